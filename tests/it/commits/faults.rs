//! trainit, its trainer or the store killed at every numbered point of a commit and of a restore, under `run`; and a
//! store that hangs before a deadline.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use crate::support::bucket::{Bucket, Fault, NAME, Request};
use crate::support::checkpoints::{Place, save_in, tree};
use crate::support::{Running, Trainit, assert_prompt, assert_within, eventually, send, stopped};

/// Points of a commit, as in `checkpoint_store`.
const COMMIT_POINTS: std::ops::RangeInclusive<u32> = 2..=12;
/// From here on the new manifest is in the store.
const COMMITTED: u32 = 9;
/// Points of a restore, as in `checkpoint_restore`.
const RESTORE_POINTS: std::ops::RangeInclusive<u32> = 19..=29;

/// `trainit run` in a directory; the script sees it as $D.
fn run(place: &Place, dir: &Path, script: &str) -> Trainit {
    run_with(place, dir, &["--commit-interval", "10ms"], script)
}

fn run_with(place: &Place, dir: &Path, options: &[&str], script: &str) -> Trainit {
    let run = ["run", "--checkpoint-store", &place.url(), "--checkpoint-dir", dir.to_str().unwrap()];
    let trainit = Trainit::new(run).args(["--settle", "0", "--keep-last", "1", "--max-restarts", "0"]).args(options);
    let trainit = trainit.args(["--", "sh", "-c", script]).env("D", dir);
    place.env().iter().fold(trainit, |trainit, (name, value)| trainit.env(name, value))
}

/// A trainer that moves step 2, which was saved elsewhere, into place, and waits for a signal file.
const SAVES: &str =
    r#"mv "$D.saved/step-2" "$D/step-2"; echo "saved by $$"; until [ -e "$D.go" ]; do sleep 0.01; done"#;

type Saved = std::collections::BTreeMap<String, Vec<u8>>;

/// A place with step 1 committed (and step 0, which the next commit deletes), and the files of step 2.
fn one_committed(place: Place) -> (Place, [Saved; 2]) {
    place.save(0);
    place.push();
    let first = place.save(1);
    place.push();
    let saved = place.local().with_extension("saved");
    save_in(&saved, 2);
    let second = tree(&saved.join("step-2"));
    (place, [first, second])
}

fn restores(place: &Place, step: usize, saved: &Saved, what: &str) {
    let dir = place.path("another machine");
    let _ = fs::remove_dir_all(&dir);
    let script = r#"echo "from $TRAINIT_RESUME_FROM at $TRAINIT_RESUME_STEP""#;
    let done = run(place, &dir, script).output().expect_code(0);
    let unit = dir.join(format!("step-{step}"));
    assert!(done.out().contains(&format!("from {} at {step}\n", unit.display())), "{what}: {}", done.out());
    assert_eq!(tree(&unit), *saved, "{what}");
}

#[test]
fn if_trainit_is_killed_at_any_point_of_a_commit_the_next_run_resumes_from_the_newest_commit() {
    for point in COMMIT_POINTS {
        let (place, saved) = one_committed(Place::new());
        let killed = run(&place, &place.local(), SAVES).env("TRAINIT_TEST_FAULT", point.to_string());
        killed.output().expect_code(137);
        let newest = if point < COMMITTED { 1 } else { 2 };
        let what = format!("killed at point {point}");
        restores(&place, newest, &saved[newest - 1], &what);
        // On the same machine the newer one still exists.
        let done = run(&place, &place.local(), r#"echo "at $TRAINIT_RESUME_STEP""#).output().expect_code(0);
        if point >= COMMITTED {
            assert_eq!(done.out(), "at 2\n", "{what}");
        }
        assert_eq!(tree(&place.local().join("step-2")), saved[1], "{what}");
    }
}

#[test]
fn if_the_trainer_is_killed_at_any_point_of_a_commit_its_last_checkpoint_is_committed() {
    for point in COMMIT_POINTS {
        let (place, saved) = one_committed(Place::new());
        let going = run(&place, &place.local(), SAVES).env("TRAINIT_TEST_FAULT", format!("{point}:stop")).start();
        stopped(&going);
        let trainer: i32 = going.after_line("saved by").trim().rsplit(' ').next().unwrap().parse().unwrap();
        send(trainer, libc::SIGKILL);
        going.signal(libc::SIGCONT);
        going.finish().expect_code(137);
        restores(&place, 2, &saved[1], &format!("killed at point {point}"));
    }
}

/// The bucket closes every connection until the run has sent a request, or sends no more.
fn fails_and_recovers(bucket: &Bucket, going: &Running) {
    let (asked, was_asked) = std::sync::mpsc::channel();
    bucket.misbehave(move |_: &Request| {
        let _ = asked.send(());
        Some(Fault::Close)
    });
    going.signal(libc::SIGCONT);
    // After the last fault point there is no request. The wait ends then without one.
    let _ = was_asked.recv_timeout(Duration::from_millis(500));
    bucket.behave();
}

#[test]
fn a_commit_survives_an_outage_of_the_store_at_any_point() {
    for point in COMMIT_POINTS {
        let bucket = Bucket::start();
        let place = Place::with_store(&format!("gs://{NAME}/job"), bucket.as_google());
        let (place, saved) = one_committed(place);
        let going = run(&place, &place.local(), SAVES).env("TRAINIT_TEST_FAULT", format!("{point}:stop")).start();
        stopped(&going);
        fails_and_recovers(&bucket, &going);
        fs::write(place.local().with_extension("go"), "").unwrap();
        going.finish().expect_code(0);
        restores(&place, 2, &saved[1], &format!("gone at point {point}"));
    }
}

/// A directory in which step 2 was being written when the machine went down.
fn torn(dir: &Path) {
    save_in(dir, 1);
    fs::create_dir_all(dir.join("step-2")).unwrap();
    fs::write(dir.join("step-2/weights.bin"), "torn").unwrap();
}

#[test]
fn if_trainit_is_killed_at_any_point_of_a_restore_the_next_run_restores_bit_for_bit() {
    for point in RESTORE_POINTS {
        let place = Place::new();
        let saved = place.save(2);
        place.push();
        let dir = place.path("elsewhere");
        torn(&dir);
        let script = r#"echo "$TRAINIT_RESUME_FROM" >>"$D.began""#;
        run(&place, &dir, script).env("TRAINIT_TEST_FAULT", point.to_string()).output().expect_code(137);
        assert!(!dir.with_extension("began").exists(), "killed at point {point}");
        run(&place, &dir, script).output().expect_code(0);
        let began = fs::read_to_string(dir.with_extension("began")).unwrap();
        assert_eq!(began, format!("{}\n", dir.join("step-2").display()), "killed at point {point}");
        assert_eq!(tree(&dir.join("step-2")), saved, "killed at point {point}");
    }
}

#[test]
fn a_restore_survives_an_outage_of_the_store_at_any_point() {
    for point in RESTORE_POINTS {
        let bucket = Bucket::start();
        let place = Place::with_store(&format!("s3://{NAME}/job"), bucket.as_amazon());
        let saved = place.save(2);
        place.push();
        let dir = place.path("elsewhere");
        torn(&dir);
        let script = r#"echo "from $TRAINIT_RESUME_FROM""#;
        let going = run(&place, &dir, script).env("TRAINIT_TEST_FAULT", format!("{point}:stop")).start();
        stopped(&going);
        fails_and_recovers(&bucket, &going);
        let done = going.finish().expect_code(0);
        assert_eq!(done.out(), format!("from {}\n", dir.join("step-2").display()), "gone at point {point}");
        assert_eq!(tree(&dir.join("step-2")), saved, "gone at point {point}");
    }
}

/// Data of step 2, in the bucket.
fn is_new(request: &Request) -> bool {
    request.key.contains("/step-2/")
}

#[test]
fn a_store_that_hangs_after_a_notice_loses_the_newest_checkpoint_but_never_delays_the_deadline() {
    // The same for SIGTERM with a known grace.
    for (signal, notice) in [(libc::SIGUSR1, "USR1@8"), (libc::SIGTERM, "TERM@8")] {
        let bucket = Bucket::start();
        let place = Place::with_store(&format!("s3://{NAME}/job"), bucket.as_amazon());
        let (place, saved) = one_committed(place);
        let dir = place.local();
        let options = ["--preempt-on", notice, "--commit-interval", "1h"];
        let going = run_with(&place, &dir, &options, SAVES).env("TRAINIT_LOG_FORMAT", "json").start();
        going.after_line("saved by");
        bucket.misbehave(|r| is_new(r).then_some(Fault::Hang));
        let begun = Instant::now();
        going.signal(signal);
        let done = going.finish().expect_code(143);
        assert_within(begun, Duration::from_secs(8));
        assert!(bucket.asked().iter().any(is_new), "{notice}: the commit was begun");
        let verdict = done.verdict();
        assert_eq!((&verdict["reason"], &verdict["committed_step"]), (&"preempted".into(), &1.into()), "{verdict}");
        bucket.behave();
        restores(&place, 1, &saved[0], notice);
    }
}

#[test]
fn a_store_that_never_answers_does_not_delay_a_stop_at_the_start() {
    let bucket = Bucket::start();
    let place = Place::with_store(&format!("s3://{NAME}/job"), bucket.as_amazon());
    let (place, _) = one_committed(place);
    bucket.misbehave(|_| Some(Fault::Hang));
    let dir = place.path("elsewhere");
    let before = bucket.asked().len();
    let going = run(&place, &dir, "echo began").start();
    eventually("the store is asked", || bucket.asked().len() > before);
    let begun = Instant::now();
    going.signal(libc::SIGTERM);
    let done = going.finish().expect_code(143);
    assert_prompt(begun);
    assert!(done.out().is_empty());
}

#[test]
fn a_panic_in_the_commit_thread_ends_neither_the_job_nor_its_verdict() {
    // The last fault point is after the manifest, when the commit exists.
    for (point, newest) in [(2, 1), (4, 1), (COMMITTED, 2)] {
        let (place, saved) = one_committed(Place::new());
        let fault = format!("{point}:panic");
        let going = run(&place, &place.local(), SAVES).env("TRAINIT_TEST_FAULT", fault).start();
        going.after_log("background_died");
        assert!(!going.log_so_far().contains("ended with"), "the trainer continues: {}", going.log_so_far());
        fs::write(place.local().with_extension("go"), "").unwrap();
        let done = going.finish().expect_code(204);
        let verdict = done.verdict();
        assert_eq!((verdict["reason"].as_str(), verdict["child_code"].as_i64()), (Some("store"), Some(0)), "{verdict}");
        restores(&place, newest, &saved[newest - 1], &format!("panicked at point {point}"));
    }
}

#[test]
fn after_a_panic_in_the_commit_thread_a_stop_still_reaches_the_trainer() {
    let (place, _) = one_committed(Place::new());
    let script = format!("trap 'echo received; exit 0' TERM; {SAVES}");
    let going = run(&place, &place.local(), &script).env("TRAINIT_TEST_FAULT", "2:panic").start();
    going.after_log("background_died");
    let done = going.stop();
    assert!(done.out().contains("received") && done.verdict()["child_code"] == 0, "{}{}", done.out(), done.err());
}

#[test]
fn a_panic_of_a_subcommand_is_an_exit_code_and_not_an_abort() {
    let (place, _) = one_committed(Place::new());
    save_in(&place.local(), 2);
    place.checkpoint("push").env("TRAINIT_TEST_FAULT", "2:panic").output().expect_code(125);
}
