//! Stores that accept uploads and never answer one other kind of request: the newest checkpoint is committed.

use std::fs;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::SeqCst;
use std::time::{Duration, Instant};

use crate::support::bucket::{Bucket, Fault, NAME, Request};
use crate::support::checkpoints::Place;
use crate::support::{Running, Trainit, eventually};

/// A bucket, and a run whose trainer waits for the file `go` in the place, or for a signal; step 1 is committed.
fn one_committed(args: &[&str]) -> (Bucket, Place, Running) {
    let bucket = Bucket::start();
    let place = Place::with_store(&format!("s3://{NAME}/job"), bucket.as_amazon());
    let local = place.local();
    let run = ["run", "--checkpoint-store", &place.url(), "--checkpoint-dir", local.to_str().unwrap()];
    let timing = ["--settle", "0s", "--commit-interval", "10ms", "--keep-last", "1", "--keep-saves", "1"];
    let script = format!("until [ -e {} ]; do sleep 0.01; done", place.path("go").display());
    let trainit = Trainit::new(run).args(timing).args(args).args(["--", "sh", "-c", &script]);
    let going = place.env().iter().fold(trainit, |trainit, (name, value)| trainit.env(name, value)).start();
    going.after_log("started sh");
    place.save(1);
    eventually("the first is committed", || commits(&bucket, 1));
    (bucket, place, going)
}

fn commits(bucket: &Bucket, step: u64) -> bool {
    bucket.keys().iter().any(|k| k.contains("/commits/") && k.contains(&format!("-{step:012}-")))
}

fn is_deletion(request: &Request) -> bool {
    request.method == "DELETE" || request.method == "POST" && request.query.contains_key("delete")
}

fn reads_a_manifest(request: &Request) -> bool {
    request.method == "GET" && request.key.contains("/commits/")
}

#[test]
fn a_stop_commits_the_newest_checkpoint_although_work_after_the_previous_commit_hangs() {
    let stopped = |hangs: fn(&Request) -> bool| {
        let (bucket, place, going) = one_committed(&[]);
        bucket.misbehave(move |r| hangs(r).then_some(Fault::Hang));
        bucket.forget();
        place.save(2);
        eventually("it hangs", || bucket.asked().iter().any(hangs));
        place.save(3);
        let asked = Instant::now();
        going.signal(libc::SIGTERM);
        let done = going.finish().expect_code(143);
        assert!(asked.elapsed() < Duration::from_secs(18), "{:?}", asked.elapsed());
        assert!(commits(&bucket, 3), "{}", done.err());
        assert_eq!(done.verdict()["committed_step"], 3);
        assert!(!done.err().contains("is tried for"), "{}", done.err());
    };
    std::thread::scope(|scope| {
        scope.spawn(|| stopped(is_deletion));
        scope.spawn(|| stopped(reads_a_manifest));
    });
}

#[test]
fn a_store_that_hangs_at_deletions_delays_neither_the_next_commit_nor_the_end() {
    let (bucket, place, going) = one_committed(&[]);
    bucket.misbehave(|r| is_deletion(r).then_some(Fault::Hang));
    bucket.forget();
    place.save(2);
    eventually("it hangs", || bucket.asked().iter().any(is_deletion));
    let saved = Instant::now();
    place.save(3);
    going.after_log("\"step\":3");
    fs::write(place.path("go"), "").unwrap();
    let done = going.finish().expect_code(0);
    assert!(saved.elapsed() < Duration::from_secs(60), "{:?}", saved.elapsed());
    assert!(commits(&bucket, 3));
    assert!(done.err().contains("commits beyond --keep-last stay for now"), "{}", done.err());
    assert!(!done.err().contains("is tried for"), "{}", done.err());
}

fn data_of(bucket: &Bucket, step: u64) -> usize {
    bucket.keys().iter().filter(|k| k.contains(&format!("/step-{step}/"))).count()
}

#[test]
fn an_object_that_cannot_be_deleted_does_not_prevent_other_deletions() {
    let (bucket, place, going) = one_committed(&[]);
    let is_held = |r: &Request| is_deletion(r) && r.key.contains("/step-1/") && r.key.ends_with("weights.bin");
    bucket.misbehave(move |r| is_held(r).then_some(Fault::Refuse("403 Forbidden", "AccessDenied")));
    for step in 2..5 {
        place.save(step);
        eventually("it is committed", || commits(&bucket, step));
    }
    eventually("the others are gone", || (1..4).all(|step| !commits(&bucket, step)) && data_of(&bucket, 3) == 0);
    fs::write(place.path("go"), "").unwrap();
    let done = going.finish().expect_code(0);
    assert_eq!((data_of(&bucket, 1), data_of(&bucket, 2)), (1, 0), "{:?}", bucket.keys());
    assert_eq!(done.err().matches("commits beyond --keep-last stay for now").count(), 1, "{}", done.err());
}

#[test]
fn the_data_of_an_interrupted_deletion_are_deleted_the_next_time() {
    let (bucket, place, going) = one_committed(&[]);
    let is_cut = AtomicBool::new(false);
    bucket.misbehave(move |r| {
        let is_manifest = is_deletion(r) && r.key.contains("/commits/");
        (is_manifest && !is_cut.swap(true, SeqCst)).then_some(Fault::Mute)
    });
    place.save(2);
    eventually("its commit is gone", || commits(&bucket, 2) && !commits(&bucket, 1));
    place.save(3);
    eventually("its data, too", || commits(&bucket, 3) && data_of(&bucket, 1) == 0);
    fs::write(place.path("go"), "").unwrap();
    going.finish().expect_code(0);
    assert_eq!(data_of(&bucket, 2), 0, "{:?}", bucket.keys());
}

#[test]
fn a_newer_checkpoint_is_not_reported_as_safe_after_a_timeout_of_the_previous_commit() {
    let (bucket, place, going) = one_committed(&["--preempt-on", "USR1@6"]);
    bucket.misbehave(|r| (r.method == "PUT" && r.key.contains("/commits/")).then_some(Fault::Mute));
    place.save(2);
    eventually("the manifest is stored", || commits(&bucket, 2));
    place.save(3);
    going.signal(libc::SIGUSR1);
    let done = going.finish().expect_code(143);
    assert_eq!(done.verdict()["committed_step"], 2, "{}", done.err());
    assert!(done.err().contains("the last commit (step 2) remains"), "{}", done.err());
    assert!(!done.err().contains("is safe"), "{}", done.err());
}

#[test]
fn a_store_that_hangs_during_the_last_upload_is_given_up_as_soon_as_one_that_hung_before() {
    let (bucket, place, going) = one_committed(&[]);
    let hangs = AtomicBool::new(false);
    bucket.misbehave(move |r| {
        let is_sent = r.method == "PUT" && r.key.contains("step-2/");
        (hangs.fetch_or(is_sent, SeqCst) || is_sent).then_some(Fault::Hang)
    });
    bucket.forget();
    place.save(2);
    eventually("it is sent", || bucket.asked().iter().any(|r| r.method == "PUT" && r.key.contains("step-2/")));
    let asked = Instant::now();
    going.signal(libc::SIGTERM);
    let done = going.finish().expect_code(204);
    assert!(asked.elapsed() < Duration::from_secs(34), "{:?}", asked.elapsed());
    assert!(done.err().contains("has not answered for"), "{}", done.err());
}
