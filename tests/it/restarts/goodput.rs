//! Goodput: the seconds of a run by cause, in the verdict.

use serde_json::Value;

use crate::support::{Finished, Trainit};

/// The seconds of a cause.
fn seconds(verdict: &Value, cause: &str) -> f64 {
    verdict["goodput"][cause].as_f64().unwrap_or_else(|| panic!("no {cause}: {verdict}"))
}

/// The verdict, whose causes add up.
fn verdict(done: &Finished) -> Value {
    let verdict = done.verdict();
    let sum: f64 = verdict["goodput"].as_object().unwrap().values().map(|v| v.as_f64().unwrap()).sum();
    assert!((sum - verdict["seconds"].as_f64().unwrap()).abs() < 0.0005, "{sum}: {verdict}");
    verdict
}

#[test]
fn a_restarted_run_reports_the_time_of_the_first_step_and_of_repeated_steps() {
    let dir = tempfile::tempdir().unwrap();
    let script = "
        sleep 0.4; echo step 1 loss 0.5; sleep 0.3
        if [ $TRAINIT_ATTEMPT = 1 ]; then echo step 9 loss 0.4; exit 3; fi
        sleep 0.3; echo step 9 loss 0.4; echo step 10 loss 0.3; sleep 0.2";
    let flags = ["--metric", "loss=step (?<step>\\d+) loss (?<value>\\S+)", "--max-restarts", "1"];
    let run =
        Trainit::new([&["run"], &flags[..], &["--restart-backoff", "300ms..300ms", "--", "sh", "-c", script]].concat());
    let done = run.env("CLOUD_ML_HP_METRIC_FILE", dir.path().join("metrics")).output().expect_code(0);
    let verdict = verdict(&done);
    for (cause, at_least) in [("start", 0.1), ("first_step", 0.5), ("repeated", 0.4), ("training", 0.3)] {
        assert!(seconds(&verdict, cause) >= at_least, "{cause}: {verdict}");
    }
    for cause in ["peers", "restore", "commit"] {
        assert_eq!(seconds(&verdict, cause), 0.0, "{cause}: {verdict}");
    }
}

#[test]
fn the_first_heartbeat_with_a_step_ends_the_time_before_the_first_step() {
    let script = "sleep 0.3; echo '{\"step\": 4}' >$TRAINIT_HEARTBEAT_FILE; sleep 0.3";
    let verdict = verdict(&Trainit::run(["sh", "-c", script]).output().expect_code(0));
    assert!(seconds(&verdict, "first_step") >= 0.2 && seconds(&verdict, "training") >= 0.2, "{verdict}");
}

#[test]
fn a_stop_and_the_last_commit_have_their_own_seconds() {
    let dir = tempfile::tempdir().unwrap();
    let script = "trap 'sleep 0.3; echo weights >$TRAINIT_CHECKPOINT_DIR/w; exit' TERM; echo ready; while :; do sleep 0.01; done";
    let (ck, store) = (dir.path().join("ck").display().to_string(), format!("file://{}/store", dir.path().display()));
    let flags = ["run", "--checkpoint-dir", &ck, "--checkpoint-store", &store, "--", "sh", "-c", script];
    let running = Trainit::new(flags).start();
    running.after_line("ready");
    let verdict = verdict(&running.stop().expect_code(143));
    assert!(seconds(&verdict, "stopped") >= 0.2, "{verdict}");
    for cause in ["restore", "commit"] {
        assert!(seconds(&verdict, cause) > 0.0, "{cause}: {verdict}");
    }
}
