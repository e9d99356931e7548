//! Runs with few allowed processes, threads or open files: such a run ends with its own code and line, and the
//! line names the limit.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use crate::support::checkpoints::Place;
use crate::support::{Finished, Trainit, is_root};

/// A user without other processes.
const USER: &str = "--reuid=53713";

/// `trainit run` as that user, with at most this many processes and threads.
fn with_processes(count: u32, args: &[&str]) -> Finished {
    let limit = format!("--nproc={count}");
    let prefix = ["setpriv", USER, "--regid=53713", "--clear-groups", "prlimit", &limit];
    Trainit::through(&prefix, ["run", "--max-restarts", "0"]).args(args).args(["--", "true"]).output()
}

#[test]
fn with_any_limit_on_processes_a_missing_thread_causes_no_panic() {
    if !is_root() {
        crate::support::skip("needs root to run as a user without other processes");
        return;
    }
    let peers = ["--nnodes", "2", "--node-rank", "1", "--leader", "localhost:1", "--wait-for-peers", "100ms"];
    // Repeated, because one thread may or may not end before the next one begins. The number of concurrent threads depends
    // on the files.
    for count in (1..=7).chain(3..=5).chain(3..=5).chain([64]) {
        let place = Place::new();
        for path in [place.path(""), place.local(), place.store()] {
            fs::create_dir_all(&path).unwrap();
            fs::set_permissions(path, fs::Permissions::from_mode(0o777)).unwrap();
        }
        let (local, url) = (place.local(), place.url());
        let store = ["--checkpoint-dir", local.to_str().unwrap(), "--checkpoint-store", &url];
        for (args, enough, least, most) in [(&store[..], 0, 4, 64), (&peers, 203, 2, 2)] {
            let done = with_processes(count, args);
            let (code, detail) = (done.code(), done.verdict()["detail"].as_str().unwrap().to_owned());
            assert!(!done.err().contains("panicked"), "{count}: {}", done.err());
            assert!(code == enough && count >= least || code == 125 && count < most, "{count}, {code}: {}", done.err());
            assert_eq!(code == 125, detail.contains("raise the limit on processes"), "{count}, {code}: {detail}");
        }
    }
}

#[test]
fn with_too_few_open_files_the_message_names_that_limit() {
    let mut codes = Vec::new();
    for limit in 6..24 {
        let (place, limit) = (Place::new(), format!("--nofile={limit}"));
        let (local, url) = (place.local(), place.url());
        let store = ["--checkpoint-dir", local.to_str().unwrap(), "--checkpoint-store", &url, "--", "true"];
        let done = Trainit::through(&["prlimit", &limit], ["run", "--max-restarts", "0"]).args(store).output();
        let detail = done.verdict()["detail"].as_str().unwrap().to_owned();
        assert_eq!(done.code() != 0, detail.contains("raise the limit on open files"), "{limit}: {}", done.err());
        assert!(!detail.contains("give a") && !detail.contains("disk") && !detail.contains("see that"), "{detail}");
        codes.push(done.code());
    }
    assert!(codes[0] == 125 && codes.last() == Some(&0), "{codes:?}");
}

#[test]
fn with_too_few_open_files_an_uncommitted_last_checkpoint_is_not_exit_code_0() {
    let mut codes = Vec::new();
    for limit in 16..30 {
        let (place, limit) = (Place::new(), format!("--nofile={limit}"));
        let (local, url) = (place.local(), place.url());
        let store = ["--checkpoint-dir", local.to_str().unwrap(), "--checkpoint-store", &url, "--nproc", "4"];
        let script = "[ $LOCAL_RANK != 0 ] || { cd $TRAINIT_CHECKPOINT_DIR; mkdir step-1; echo {} >step-1/w.json; }";
        let run = Trainit::through(&["prlimit", &limit], ["run", "--max-restarts", "0"]).args(store);
        let done = run.args(["--", "sh", "-c", script]).output();
        assert!(done.code() != 0 || place.steps() == [1], "{limit}: {}", done.err());
        codes.push(done.code());
    }
    assert!(codes.contains(&204) && codes.last() == Some(&0), "{codes:?}");
}
