//! A trainer that saves over one file in place faster than the store takes it.

use std::fs;
use std::time::Duration;

use crate::bucket::commits::amazon;
use crate::support::bucket::Bucket;
use crate::support::checkpoints::Place;
use crate::support::{Running, Trainit, eventually};

/// Saves 3.6 MB each 1.5 s until a signal file exists.
const TRAINER: &str = "import os, time\nn = 0\nwhile not os.path.exists(os.environ['GO']):\n  n += 1\n  \
    f = open(os.environ['D'] + '/state.raw', 'r+b' if n > 1 else 'wb')\n  f.write(b'%09d' % n * 400000)\n  f.close()\n  \
    time.sleep(1.5)";

/// A run beside a bucket that takes 4 s for each save.
fn run(bucket: &Bucket, place: &Place) -> Running {
    bucket.misbehave(|r| {
        if r.method == "PUT" && r.key.contains("state.raw") {
            std::thread::sleep(Duration::from_secs(4));
        }
        None
    });
    let (url, local) = (place.url(), place.local());
    let run = ["run", "--checkpoint-store", &url, "--checkpoint-dir", local.to_str().unwrap(), "--settle", "100ms"];
    let trainit = Trainit::new(run).args(["--commit-interval", "100ms", "--", "python3", "-c", TRAINER]);
    let trainit = place.env().iter().fold(trainit, |trainit, (name, value)| trainit.env(name, value));
    trainit.env("D", &local).env("GO", place.path("go")).start()
}

#[test]
fn a_file_that_is_saved_over_faster_than_it_can_be_sent_is_committed_while_the_trainer_runs() {
    let bucket = Bucket::start();
    let place = amazon(&bucket);
    let going = run(&bucket, &place);
    eventually("a commit", || bucket.keys().iter().any(|key| key.contains("/commits/")));
    fs::write(place.path("go"), "").unwrap();
    going.finish().expect_code(0);
    bucket.behave();
    let pulled = fs::read(place.pull_afresh("elsewhere").join("state.raw")).unwrap();
    assert!(pulled.chunks(9).all(|chunk| *chunk == pulled[..9]), "it is of one save");
}
