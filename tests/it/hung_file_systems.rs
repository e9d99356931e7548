//! File systems that do not answer: signals are acted on, a trainer that crashed is judged, and it is told what it is that
//! does not.

use std::fs;

use crate::support::checkpoints::Place;
use crate::support::mounts::Hung;
use crate::support::{Running, Trainit, eventually};

macro_rules! or_skip {
    ($mounted:expr) => {
        match $mounted {
            Some(mounted) => mounted,
            None => return eprintln!("skipped: nothing can be mounted here"),
        }
    };
}

fn is_at(going: &Running, thread: &str) -> bool {
    let tasks = fs::read_dir(format!("/proc/{}/task", going.pid())).unwrap().flatten();
    tasks
        .map(|task| fs::read_to_string(task.path().join("comm")))
        .any(|name| name.is_ok_and(|name| name.trim() == thread))
}

#[test]
fn who_is_told_to_stop_while_it_is_not_known_where_the_store_lies_stops() {
    let place = Place::new();
    fs::create_dir(place.store()).unwrap();
    let _hung = or_skip!(Hung::over(&place.store()));
    let (local, below) = (place.local(), format!("{}/jobs/1", place.url()));
    let run = ["run", "--checkpoint-dir", local.to_str().unwrap(), "--checkpoint-store", &below, "--", "true"];
    let going = Trainit::new(run).start();
    eventually("it is looked at", || is_at(&going, "places"));
    going.signal(libc::SIGTERM);
    let done = going.finish().expect_code(143);
    assert!(done.err().contains("the command had not been started"), "{}", done.err());
}
