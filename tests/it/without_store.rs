//! The small build: who asks it for checkpoints is told at once that it keeps none, and nothing is started.

use crate::support::Trainit;

/// In each line: what was asked for, and where to get it.
fn told(line: &str, asked: &str) -> bool {
    line.contains(asked) && line.contains("built without checkpoint stores") && line.contains("take the full file")
}

#[test]
fn a_run_that_asks_for_checkpoints_is_not_started() {
    for (flag, value) in [("checkpoint-dir", "/c"), ("checkpoint-store", "file:///s"), ("model-dir", "/m")] {
        let done = Trainit::new(["run", &format!("--{flag}={value}"), "--", "echo", "started"]).output();
        let done = done.expect_code(125);
        assert_eq!(done.out(), "");
        let detail = done.verdict()["detail"].as_str().unwrap().to_owned();
        assert!(told(&detail, &format!("--{flag}")), "{detail}");
    }
    let done = Trainit::run(["echo", "started"]).env("TRAINIT_CHECKPOINT_DIR", "/c").output().expect_code(125);
    assert_eq!(done.out(), "");
    assert!(told(done.verdict()["detail"].as_str().unwrap(), "TRAINIT_CHECKPOINT_DIR"));
}

#[test]
fn a_run_that_asks_for_the_status_page_is_not_started() {
    let done = Trainit::run(["echo", "started"]).env("TRAINIT_STATUS_ADDR", "127.0.0.1:0").output().expect_code(125);
    assert_eq!(done.out(), "");
    let detail = done.verdict()["detail"].as_str().unwrap().to_owned();
    assert!(detail.starts_with("TRAINIT_STATUS_ADDR: ") && detail.contains("built without an HTTP server"), "{detail}");
    assert!(!Trainit::new(["run", "--help"]).output().out().contains("--status-addr"));
}

#[test]
fn where_only_the_platform_names_a_place_the_run_starts() {
    let done = Trainit::run(["echo", "started"]).env("AIP_CHECKPOINT_DIR", "gs://b/c").output().expect_code(0);
    assert_eq!(done.out(), "started\n");
}

#[test]
fn the_subcommand_of_the_store_is_refused_with_the_reason() {
    let done = Trainit::new(["checkpoint", "list", "--checkpoint-store", "file:///s"]).output().expect_code(125);
    assert!(told(&done.err(), "trainit checkpoint") && done.err().lines().count() == 1, "{}", done.err());
}

#[test]
fn the_help_offers_nothing_that_is_refused() {
    let help = Trainit::new(["run", "--help"]).output().expect_code(0).out();
    assert!(help.contains("--stop-grace") && !help.contains("--checkpoint-dir <"), "{help}");
    let help = Trainit::new(["--help"]).output().expect_code(0).out();
    assert!(help.contains("report-metric") && !help.contains("\n  checkpoint"), "{help}");
}

#[test]
fn inspect_says_that_checkpoints_are_left_out() {
    let done = Trainit::new(["inspect", "--json"]).output().expect_code(0);
    let object: serde_json::Value = serde_json::from_str(&done.out()).unwrap();
    assert!(
        object["checkpoints"]["left_out"].as_str().unwrap().contains("built without checkpoint stores"),
        "{object}"
    );
}
