//! Runs whose store is a bucket: the objects that are sent, those that are not, and the speed.

use std::fs;
use std::os::unix::fs::FileExt;
use std::sync::Mutex;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::SeqCst;
use std::time::{Duration, Instant};

use crate::support::bucket::{Bucket, Fault, NAME, Request};
use crate::support::checkpoints::{Place, tree};
use crate::support::{Running, Trainit, eventually};

/// A run whose trainer waits for the file `go` in the place, or for SIGTERM.
pub(crate) fn run(place: &Place, args: &[&str]) -> Running {
    let local = place.local();
    let run = ["run", "--checkpoint-store", &place.url(), "--checkpoint-dir", local.to_str().unwrap()];
    let timing = ["--settle", "10ms", "--commit-interval", "10ms"];
    let script = format!("until [ -e {} ]; do sleep 0.01; done", place.path("go").display());
    let trainit = Trainit::new(run).args(timing).args(args).args(["--", "sh", "-c", &script]);
    place.env().iter().fold(trainit, |trainit, (name, value)| trainit.env(name, value)).start()
}

pub(crate) fn commits(bucket: &Bucket, step: u64) -> bool {
    bucket.keys().iter().any(|k| k.contains("/commits/") && k.contains(&format!("-{step:012}-")))
}

fn puts(bucket: &Bucket, name: &str) -> usize {
    bucket.asked().iter().filter(|r| r.method == "PUT" && r.key.ends_with(name)).count()
}

#[test]
fn an_unchanged_file_is_sent_once_and_kept_while_a_commit_needs_it() {
    let bucket = Bucket::start();
    let place = Place::with_store(&format!("gs://{NAME}/job"), bucket.as_google());
    let going = run(&place, &["--keep-last", "1", "--keep-saves", "1"]);
    for step in 1..=3 {
        let unit = place.path(&format!("step-{step}"));
        fs::create_dir(&unit).unwrap();
        match step {
            1 => fs::write(unit.join("base.bin"), "frozen".repeat(1000)).unwrap(),
            _ => fs::hard_link(place.local().join("step-1/base.bin"), unit.join("base.bin")).unwrap(),
        }
        fs::write(unit.join("head.bin"), format!("of {step}").repeat(1000)).unwrap();
        fs::rename(&unit, place.local().join(format!("step-{step}"))).unwrap();
        eventually("the step is committed", || commits(&bucket, step));
    }
    eventually("older commits go", || !commits(&bucket, 1) && !commits(&bucket, 2));
    fs::write(place.path("go"), "").unwrap();
    going.finish().expect_code(0);
    assert_eq!((puts(&bucket, "base.bin"), puts(&bucket, "head.bin")), (1, 3));
    let kept: Vec<String> = bucket.keys().into_iter().filter(|k| k.ends_with(".bin")).collect();
    let expected = ["job/step-1/0000000001-000001/base.bin", "job/step-3/0000000001-000003/head.bin"];
    assert_eq!(kept, expected);
    let pulled = place.pull_afresh("elsewhere");
    assert_eq!(tree(&pulled.join("step-3")), tree(&place.local().join("step-3")));
    place.checkpoint("verify").output().expect_code(0);
    // The object is deleted with the last commit that needs it.
    fs::write(place.local().join("step-3/head.bin"), "changed").unwrap();
    fs::remove_file(place.local().join("step-3/base.bin")).unwrap();
    fs::write(place.local().join("step-3/base.bin"), "thawed").unwrap();
    place.checkpoint("push").args(["--keep-last", "1", "--keep-saves", "1"]).output().expect_code(0);
    assert!(bucket.object(expected[0]).is_none());
}

#[test]
fn the_bandwidth_limit_applies_while_training_but_not_before_a_deadline() {
    let bucket = Bucket::start();
    let place = Place::with_store(&format!("s3://{NAME}/job"), bucket.as_amazon());
    let unit = place.path("step-1");
    fs::create_dir(&unit).unwrap();
    let file = fs::File::create(unit.join("weights.bin")).unwrap();
    file.set_len(20 << 20).unwrap();
    file.write_all_at(b"weights", 0).unwrap();
    drop(file);
    fs::rename(&unit, place.local().join("step-1")).unwrap();
    let parts = |bucket: &Bucket| bucket.asked().iter().filter(|r| r.query.contains_key("partNumber")).count();
    // Three parts; with the limit the second would be sent after 80 s.
    let going = run(&place, &["--commit-bandwidth", "100KiB"]);
    eventually("the first part is sent", || parts(&bucket) == 1);
    let begun = Instant::now();
    going.signal(libc::SIGTERM);
    going.finish().expect_code(143);
    assert!(begun.elapsed() < Duration::from_secs(40), "{:?}", begun.elapsed());
    assert!(parts(&bucket) <= 4);
    assert_eq!(place.steps(), [1]);
}

#[test]
fn a_store_with_an_outage_at_the_end_still_gets_the_last_checkpoint() {
    let bucket = Bucket::start();
    let place = Place::with_store(&format!("gs://{NAME}/job"), bucket.as_google());
    let going = run(&place, &["--commit-interval", "1h"]);
    eventually("it has begun", || bucket.keys().iter().any(|k| k.contains("/attempts/")));
    place.save(1);
    // A kind of outage that a commit does not wait for.
    let left = AtomicU32::new(1);
    bucket.misbehave(move |request| {
        let is_data = request.method == "PUT" && request.key.contains("step-1/");
        let is_away = is_data && left.fetch_update(SeqCst, SeqCst, |n| n.checked_sub(1)).is_ok();
        is_away.then_some(Fault::Refuse("409 Conflict", "OperationAborted"))
    });
    fs::write(place.path("go"), "").unwrap();
    let done = going.finish().expect_code(0);
    assert!(place.pull_afresh("elsewhere").join("step-1").exists(), "{}", done.err());
    assert!(done.err().contains("commit_failed"), "it was away: {}", done.err());
}

#[test]
fn a_stop_during_an_outage_of_the_store_is_reported_and_waits_only_for_one_answer() {
    let stopped = |rule: fn(&Request) -> Option<Fault>, interval: &str| {
        let bucket = Bucket::start();
        let place = Place::with_store(&format!("s3://{NAME}/job"), bucket.as_amazon());
        // A process that dies of the stop was not saving at that time.
        let going = run(&place, &["--commit-interval", interval, "--settle", "0s"]);
        going.after_log("started sh");
        bucket.misbehave(rule);
        bucket.forget();
        place.save(1);
        if interval != "1h" {
            eventually("a commit is in flight", || !bucket.asked().is_empty());
        }
        let asked = Instant::now();
        going.signal(libc::SIGTERM);
        if interval == "1h" {
            going.after_log("the last commit waits for it");
        }
        let done = going.finish().expect_code(204);
        assert!(asked.elapsed() < Duration::from_secs(45), "{:?}", asked.elapsed());
        assert_eq!(done.verdict()["reason"], "store");
    };
    let away = |rule, interval| stopped(rule, interval);
    let stuck = |interval| {
        let rule = |r: &Request| (r.method == "PUT" && r.key.contains("step-1/")).then_some(Fault::Hang);
        stopped(rule, interval);
    };
    std::thread::scope(|scope| {
        scope.spawn(|| away(|_| Some(Fault::Hang), "1h"));
        let refuses = |rule| stopped(rule, "1h");
        scope.spawn(move || refuses(|_| Some(Fault::Refuse("503 Slow Down", "SlowDown"))));
        scope.spawn(|| away(|_| Some(Fault::Hang), "100ms"));
        scope.spawn(|| stuck("1h"));
        scope.spawn(|| stuck("100ms"));
        let rule = |r: &Request| is_data(r).then_some(Fault::Refuse("500 Internal Server Error", "InternalError"));
        scope.spawn(move || refuses(rule));
    });
}

#[test]
fn a_hanging_store_does_not_delay_an_end_without_a_commit() {
    let ended = |saved: bool, stopped: bool| {
        let bucket = Bucket::start();
        let place = Place::with_store(&format!("s3://{NAME}/job"), bucket.as_amazon());
        let going = run(&place, &["--settle", "0s"]);
        going.after_log("started sh");
        if saved {
            place.save(1);
            eventually("it is committed", || commits(&bucket, 1));
            going.after_log("checkpoint committed");
        }
        // The work after a commit is complete when scans continue.
        bucket.forget();
        eventually("looks go on", || bucket.asked().len() > 9);
        bucket.misbehave(|_| Some(Fault::Hang));
        bucket.forget();
        eventually("a scan checks the owner of the store", || !bucket.asked().is_empty());
        let asked = Instant::now();
        if stopped {
            going.signal(libc::SIGTERM);
        } else {
            fs::write(place.path("go"), "").unwrap();
        }
        going.finish().expect_code(if stopped { 143 } else { 0 });
        assert!(asked.elapsed() < Duration::from_secs(8), "{:?}", asked.elapsed());
    };
    std::thread::scope(|scope| {
        for (saved, stopped) in [(false, false), (false, true), (true, false), (true, true)] {
            scope.spawn(move || ended(saved, stopped));
        }
    });
}

fn is_data(request: &Request) -> bool {
    request.method == "PUT" && request.key.contains("step-1/")
}

/// A run that ends well, with a checkpoint to commit, while the bucket misbehaves.
fn ends(bucket: &Bucket, rule: impl Fn(&Request) -> Option<Fault> + Send + Sync + 'static) -> (Place, Running) {
    let place = Place::with_store(&format!("gs://{NAME}/job"), bucket.as_google());
    let going = run(&place, &["--commit-interval", "1h"]);
    eventually("it has begun", || bucket.keys().iter().any(|k| k.contains("/attempts/")));
    place.save(1);
    bucket.misbehave(rule);
    fs::write(place.path("go"), "").unwrap();
    (place, going)
}

#[test]
fn objects_that_are_damaged_or_lost_are_sent_again() {
    for (what, fault) in [("/step-1/", Fault::Flip), ("/step-1/", Fault::Pretend), ("/commits/", Fault::Pretend)] {
        let (bucket, fault) = (Bucket::start(), Mutex::new(Some(fault)));
        let (place, going) = ends(&bucket, move |request| {
            (request.method == "PUT" && request.key.contains(what)).then(|| fault.lock().unwrap().take())?
        });
        let done = going.finish().expect_code(0);
        assert!(done.err().contains("commit_failed"), "{}", done.err());
        assert_eq!(tree(&place.pull_afresh("elsewhere")), tree(&place.local()));
    }
}

#[test]
fn an_object_that_is_always_lost_is_sent_a_few_times_and_a_denied_one_once() {
    let bucket = Bucket::start();
    let (_place, going) = ends(&bucket, |r| is_data(r).then_some(Fault::Pretend));
    let done = going.finish().expect_code(204);
    assert!(done.err().contains("see that this is the store and nothing between, then start again"), "{}", done.err());
    assert_eq!(puts(&bucket, "weights.bin"), 4);
    let bucket = Bucket::start();
    let (_place, going) = ends(&bucket, |r| is_data(r).then_some(Fault::Refuse("403 Forbidden", "AccessDenied")));
    going.finish().expect_code(204);
    // The first denial may arrive before another request is sent.
    let tries = ["weights.bin", "layers/0.bin", "state.json"].map(|name| puts(&bucket, name));
    assert!(tries.contains(&1) && tries.iter().all(|tries| *tries <= 1), "{tries:?}");
}

#[test]
fn a_commit_that_times_out_while_the_manifest_is_confirmed_is_recognised_as_made() {
    let bucket = Bucket::start();
    let place = Place::with_store(&format!("s3://{NAME}/job"), bucket.as_amazon());
    let going = run(&place, &["--settle", "0s", "--preempt-on", "USR1@6"]);
    going.after_log("started sh");
    bucket.misbehave(|r| (r.method == "PUT" && r.key.contains("/commits/")).then_some(Fault::Mute));
    place.save(7);
    eventually("the manifest is stored", || commits(&bucket, 7));
    going.signal(libc::SIGUSR1);
    let done = going.finish().expect_code(143);
    let verdict = done.verdict();
    assert_eq!((verdict["reason"].as_str(), verdict["committed_step"].as_u64()), (Some("preempted"), Some(7)));
    assert!(!done.err().contains("committed nothing"), "{}", done.err());
}

/// A run that saves a first checkpoint, on a signal a second one, and crashes. The second attempt prints the checkpoint
/// that it resumes from.
fn crashing(place: &Place, args: &[&str], last: &str) -> Running {
    let local = place.local();
    let run = ["run", "--checkpoint-store", &place.url(), "--checkpoint-dir", local.to_str().unwrap()];
    let timing = ["--settle", "10ms", "--commit-interval", "10ms", "--restart-backoff", "1ms", "--max-restarts", "1"];
    let script = format!(
        r#"cd {}; echo "from ${{TRAINIT_RESUME_STEP:-scratch}}"; [ "$TRAINIT_ATTEMPT" = 2 ] && exit 0
           echo {{}} >tmp; mv tmp ckpt-10.json; until [ -e ../go ]; do sleep 0.01; done; {last}; exit 9"#,
        local.display()
    );
    let trainit = Trainit::new(run).args(timing).args(args).args(["--", "sh", "-c", &script]);
    place.env().iter().fold(trainit, |trainit, (name, value)| trainit.env(name, value)).start()
}

#[test]
fn a_crash_without_a_reachable_store_resumes_from_local_files_and_logs_whether_they_are_committed() {
    let saves = "echo '{}' >tmp; mv tmp ckpt-20.json";
    for (last, step, is) in [(saves, 20, "is not committed yet"), (":", 10, "is committed")] {
        let bucket = Bucket::start();
        let place = Place::with_store(&format!("gs://{NAME}/job"), bucket.as_google());
        let going = crashing(&place, &[], last);
        going.after_log("checkpoint committed");
        bucket.misbehave(|_| Some(Fault::Refuse("503 Slow Down", "SlowDown")));
        fs::write(place.path("go"), "").unwrap();
        going.after_line(&format!("from {step}"));
        bucket.behave();
        let done = going.finish().expect_code(0);
        let expected = format!("cannot be reached: what the attempt left {is}");
        assert!(done.err().contains(&expected), "{}", done.err());
        assert!(commits(&bucket, step));
    }
}

#[test]
fn a_stop_does_not_wait_for_the_restore_of_another_attempt() {
    let bucket = Bucket::start();
    let place = Place::with_store(&format!("gs://{NAME}/job"), bucket.as_google());
    let going = crashing(&place, &[], "rm ckpt-10.json");
    eventually("the first is committed", || commits(&bucket, 10));
    bucket.misbehave(|r| (r.method == "GET" && r.key.ends_with("ckpt-10.json")).then_some(Fault::Hang));
    bucket.forget();
    fs::write(place.path("go"), "").unwrap();
    eventually("it is fetched", || bucket.asked().iter().any(|r| r.method == "GET" && r.key.ends_with("ckpt-10.json")));
    let asked = Instant::now();
    going.signal(libc::SIGTERM);
    going.finish().expect_code(143);
    assert!(asked.elapsed() < Duration::from_secs(10));
}

#[test]
fn a_stop_during_the_fetch_of_an_older_checkpoint_keeps_the_newest_commit() {
    let bucket = Bucket::start();
    let place = Place::with_store(&format!("gs://{NAME}/job"), bucket.as_google());
    for name in ["ckpt-10.json", "ckpt-20.json"] {
        fs::write(place.local().join(name), "{}").unwrap();
        place.push();
        fs::remove_file(place.local().join(name)).unwrap();
    }
    let is_older = |r: &Request| r.method == "GET" && r.key.ends_with("ckpt-10.json");
    bucket.misbehave(move |r| is_older(r).then_some(Fault::Hang));
    bucket.forget();
    let timing = ["--restart-backoff", "1ms", "--max-restarts", "5", "--commit-interval", "1h"];
    let local = place.local();
    let run = ["run", "--checkpoint-store", &place.url(), "--checkpoint-dir", local.to_str().unwrap()];
    let trainit = Trainit::new(run).args(timing).args(["--", "sh", "-c", "exit 9"]);
    let going = place.env().iter().fold(trainit, |trainit, (name, value)| trainit.env(name, value)).start();
    eventually("the older one is fetched", || bucket.asked().iter().any(is_older));
    let asked = Instant::now();
    going.signal(libc::SIGTERM);
    let done = going.finish().expect_code(143);
    assert!(asked.elapsed() < Duration::from_secs(10), "{:?}", asked.elapsed());
    assert_eq!(done.verdict()["committed_step"], 20);
    assert!(!done.err().contains("committed nothing"), "{}", done.err());
}

#[test]
fn the_bandwidth_limit_does_not_apply_while_no_trainer_runs() {
    let bucket = Bucket::start();
    let place = Place::with_store(&format!("gs://{NAME}/job"), bucket.as_google());
    let two_files = "mkdir tmp; head -c 2000 /dev/zero | tee tmp/a.bin >tmp/b.bin; mv tmp step-20";
    let last = format!("rm ckpt-10.json; {two_files}; until [ -e ../crash ]; do sleep 0.01; done");
    let going = crashing(&place, &["--commit-bandwidth", "1"], &last);
    eventually("the first is committed", || commits(&bucket, 10));
    fs::write(place.path("go"), "").unwrap();
    eventually("one file is uploaded", || puts(&bucket, "a.bin") + puts(&bucket, "b.bin") == 1);
    fs::write(place.path("crash"), "").unwrap();
    let done = going.finish().expect_code(0);
    assert_eq!(done.out(), "from scratch\nfrom 20\n", "{}", done.err());
}

#[test]
fn an_outage_of_some_seconds_at_the_start_is_waited_for() {
    for fault in [|| Fault::Refuse("503 Service Unavailable", "SlowDown"), || Fault::Close] {
        let bucket = Bucket::start();
        let place = Place::with_store(&format!("s3://{NAME}/job"), bucket.as_amazon());
        fs::write(place.path("go"), "").unwrap();
        let begun = Instant::now();
        bucket.misbehave(move |_| (begun.elapsed() < Duration::from_secs(5)).then(fault));
        run(&place, &[]).finish().expect_code(0);
    }
}

#[test]
fn a_store_that_accepts_no_claim_is_reported_and_given_up_after_about_a_minute() {
    let refuses: fn(&Request) -> Option<Fault> = |_| Some(Fault::Refuse("500 Internal Server Error", "InternalError"));
    let takes_nothing: fn(&Request) -> Option<Fault> =
        |r| (r.method == "PUT").then_some(Fault::Refuse("500 Internal Server Error", "InternalError"));
    let started = |rule| {
        let bucket = Bucket::start();
        let place = Place::with_store(&format!("s3://{NAME}/job"), bucket.as_amazon());
        bucket.misbehave(rule);
        let going = run(&place, &[]);
        going.after_log("the start waits for it");
        going.finish_within(Duration::from_secs(90)).expect_code(204);
    };
    std::thread::scope(|scope| {
        scope.spawn(|| started(refuses));
        scope.spawn(|| started(takes_nothing));
    });
}

#[test]
fn a_waiting_restore_is_logged_within_seconds_and_a_stop_names_the_committed_step() {
    let bucket = Bucket::start();
    let place = Place::with_store(&format!("gs://{NAME}/job"), bucket.as_google());
    fs::write(place.local().join("ckpt-10.json"), "{}").unwrap();
    place.push();
    fs::remove_file(place.local().join("ckpt-10.json")).unwrap();
    bucket.misbehave(|r| (r.method == "GET" && r.key.ends_with("ckpt-10.json")).then_some(Fault::Hang));
    let begun = Instant::now();
    let going = run(&place, &[]);
    going.after_log("does not answer: the restore waits for it");
    assert!(begun.elapsed() < Duration::from_secs(20), "{:?}", begun.elapsed());
    going.signal(libc::SIGTERM);
    let verdict = going.finish().expect_code(143).verdict();
    assert_eq!((verdict["committed_step"].as_u64(), verdict["resumed_step"].as_u64()), (Some(10), None), "{verdict}");
}
