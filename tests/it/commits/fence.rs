//! A newer run of the job takes over the store: the older one notices it during any operation, and changes nothing of
//! the newer run.

use std::fs;

use crate::support::checkpoints::Place;
use crate::support::{Finished, Running, Trainit, eventually, stopped};

/// A pipe for a script to wait at.
fn pipe(place: &Place, name: &str) -> String {
    let path = place.path(name);
    nix::unistd::mkfifo(&path, nix::sys::stat::Mode::S_IRWXU).unwrap();
    path.to_str().unwrap().to_owned()
}

/// A run that scans for checkpoints only at the end of attempts. Its model has the same destination as that of other runs.
fn scanning_rarely(place: &Place, local: &str, script: &str) -> Trainit {
    let (local, model) = (place.path(local), place.path(&format!("model of {local}")));
    let models = format!("file://{}", place.path("models").display());
    Trainit::new(["run", "--checkpoint-store", &place.url(), "--checkpoint-dir", local.to_str().unwrap()])
        .args(["--settle", "0s", "--commit-interval", "1h", "--restart-backoff", "1ms", "--model-store", &models])
        .args(["--model-dir", model.to_str().unwrap(), "--", "sh", "-c", script, model.to_str().unwrap()])
}

/// Takes over, commits step 500 and leaves its model.
fn newer_run(place: &Place) {
    let script = "mkdir -p $TRAINIT_CHECKPOINT_DIR/step-500 \"$0\"; echo newer > \"$0/saved_model.pb\"; \
                  echo 1 > $TRAINIT_CHECKPOINT_DIR/step-500/weights.bin";
    scanning_rarely(place, "elsewhere", script).output().expect_code(0);
    assert_eq!(place.steps()[0], 500);
}

#[track_caller]
fn is_fenced(place: &Place, older: Running) -> Finished {
    let done = older.finish().expect_code(205);
    assert_eq!(done.verdict()["reason"], "fenced");
    assert_eq!(
        done.err().matches("has taken over the store").count(),
        2,
        "on the last line and in its verdict: {}",
        done.err()
    );
    assert_eq!(fs::read_to_string(place.path("models/saved_model.pb")).unwrap(), "newer\n");
    done
}

#[test]
fn a_run_without_a_new_commit_notices_at_its_end_that_it_was_replaced_and_keeps_the_newer_model() {
    let place = Place::new();
    place.save(100);
    place.push();
    let go = pipe(&place, "go");
    let script = format!("echo ready; read _ < {go}; mkdir \"$0\"; echo older > \"$0/saved_model.pb\"");
    let older = scanning_rarely(&place, "checkpoints", &script).start();
    older.after_line("ready");
    newer_run(&place);
    fs::write(&go, "\n").unwrap();
    is_fenced(&place, older);
}

#[test]
fn a_push_to_the_store_of_a_running_job_is_refused_until_the_run_has_ended() {
    let place = Place::new();
    let go = pipe(&place, "go");
    let script = format!("echo ready; read _ < {go}; mkdir \"$0\"; touch \"$0/saved_model.pb\"");
    let run = scanning_rarely(&place, "checkpoints", &script).start();
    run.after_line("ready");
    place.save(100);
    let refusal = place.checkpoint("push").output().expect_code(1).err();
    assert!(refusal.contains(&format!("pid {}", run.pid())) && refusal.contains("stop that run first"), "{refusal}");
    assert_eq!(place.commits().len(), 0);
    let elsewhere = format!("file://{}", place.path("another store").display());
    place.checkpoint("push").args(["--checkpoint-store", &elsewhere]).output().expect_code(0);
    fs::write(&go, "\n").unwrap();
    run.finish().expect_code(0);
    place.save(200);
    place.push();
}

#[test]
fn a_run_that_is_replaced_after_its_last_commit_keeps_the_newer_model() {
    let place = Place::new();
    place.save(99);
    place.push();
    let script = "mkdir \"$0\" $TRAINIT_CHECKPOINT_DIR/step-100; echo older > \"$0/saved_model.pb\"; \
                  echo 1 > $TRAINIT_CHECKPOINT_DIR/step-100/weights.bin";
    let older = scanning_rarely(&place, "checkpoints", script).env("TRAINIT_TEST_FAULT", "12:stop").start();
    stopped(&older);
    assert_eq!(place.steps()[0], 100);
    newer_run(&place);
    older.signal(libc::SIGCONT);
    is_fenced(&place, older);
}

#[test]
fn a_replaced_run_starts_no_further_attempt() {
    let place = Place::new();
    place.save(100);
    place.push();
    let go = pipe(&place, "go");
    let older = scanning_rarely(&place, "checkpoints", &format!("echo attempt; read _ < {go}; exit 3")).start();
    older.after_line("attempt");
    newer_run(&place);
    fs::write(&go, "\n").unwrap();
    assert_eq!(is_fenced(&place, older).out(), "attempt\n");
}

#[test]
fn a_trainer_that_no_longer_saves_is_also_stopped_when_a_newer_run_takes_over() {
    for saved in [0, 1] {
        let place = Place::new();
        (0..saved).for_each(|_| drop(place.save(1)));
        let (url, local) = (place.url(), place.local());
        let older = Trainit::new(["run", "--checkpoint-store", &url, "--checkpoint-dir", local.to_str().unwrap()])
            .args(["--settle", "0s", "--commit-interval", "10ms", "--", "sleep", "1000"])
            .start();
        older.after_log("started sleep");
        eventually("it is committed", || place.commits().len() == saved);
        fs::write(place.store().join(".trainit/attempts/0000000002.json"), "{}").unwrap();
        older.finish().expect_code(205);
    }
}

#[test]
fn a_committed_run_does_not_fail_if_the_store_is_gone_at_the_end() {
    let place = Place::new();
    place.save(100);
    place.push();
    let script = format!("rm -r {}", place.store().display());
    scanning_rarely(&place, "checkpoints", &format!("{script}; mkdir \"$0\"; echo 1 > \"$0/x\""))
        .output()
        .expect_code(0);
}

#[test]
fn if_two_runs_claim_one_number_the_run_whose_claim_was_overwritten_stops_and_changes_nothing() {
    let place = Place::new();
    let go = pipe(&place, "go");
    let save = "mkdir $TRAINIT_CHECKPOINT_DIR/step-100; echo 1 > $TRAINIT_CHECKPOINT_DIR/step-100/weights.bin";
    let first = scanning_rarely(&place, "checkpoints", &format!("echo ready; read _ < {go}; {save}")).start();
    first.after_line("ready");
    let foreign = place.store().join("step-100/0000000001-000001");
    fs::create_dir_all(&foreign).unwrap();
    fs::write(foreign.join("weights.bin"), "foreign").unwrap();
    fs::write(place.store().join(".trainit/attempts/0000000001.json"), r#"{"nonce":"foreign"}"#).unwrap();
    fs::write(&go, "\n").unwrap();
    assert_eq!(first.finish().expect_code(205).verdict()["reason"], "fenced");
    assert_eq!(
        (place.steps(), fs::read_to_string(foreign.join("weights.bin")).unwrap()),
        (vec![], "foreign".to_owned())
    );
}

#[test]
fn a_run_nested_in_a_run_with_the_same_checkpoints_leaves_them_and_the_model_to_the_outer_run() {
    let place = Place::new();
    place.save(100);
    place.push();
    let trainit = crate::support::binary();
    let trainit = trainit.to_str().unwrap();
    let script = "[ \"$TRAINIT_RESUME_STEP\" = 100 ] || exit 2; mkdir $TRAINIT_CHECKPOINT_DIR/step-500; \
                  echo 1 > $TRAINIT_CHECKPOINT_DIR/step-500/weights.bin; mkdir \"$TRAINIT_MODEL_DIR\"; \
                  echo mine > \"$TRAINIT_MODEL_DIR/saved_model.pb\"";
    // A third run is nested below the first one, too.
    let done = Trainit::new(["run", "--", trainit, "run", "--", trainit, "run", "--", "sh", "-c", script])
        .env("TRAINIT_CHECKPOINT_STORE", place.url())
        .env("TRAINIT_CHECKPOINT_DIR", place.path("checkpoints").to_str().unwrap())
        .env("TRAINIT_MODEL_DIR", place.path("model").to_str().unwrap())
        .env("TRAINIT_MODEL_STORE", format!("file://{}", place.path("models").display()))
        .env("TRAINIT_SETTLE", "0s")
        .env("TRAINIT_COMMIT_INTERVAL", "1h")
        .output()
        .expect_code(0);
    assert_eq!(done.err().matches("are kept by the trainit that this one runs below").count(), 2, "{}", done.err());
    assert_eq!(done.err().matches("the model is in").count(), 1, "{}", done.err());
    assert_eq!((place.steps()[0], done.verdict()["committed_step"].as_u64()), (500, Some(500)), "{}", done.err());
}
