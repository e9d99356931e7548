//! `--track`: one run of an experiment tracker over all attempts of a job.

use crate::support::Trainit;

const PRINT: &str = "echo \"$TRAINIT_TRACKING_ID $WANDB_RUN_ID $WANDB_RESUME $MLFLOW_RUN_CONTEXT\"";

#[test]
fn every_attempt_of_a_job_has_the_same_tracking_id_on_any_machine() {
    let dir = tempfile::tempdir().unwrap();
    let store = format!("file://{}/store", dir.path().display());
    let run = |machine: &str| {
        let ck = dir.path().join(machine).display().to_string();
        let script = format!("{PRINT}; exit $((2 - TRAINIT_ATTEMPT))");
        let flags =
            ["run", "--track", "wandb", "--track", "mlflow", "--checkpoint-dir", &ck, "--checkpoint-store", &store];
        let more = ["--max-restarts", "1", "--restart-backoff", "10ms", "--", "sh", "-c", &script];
        Trainit::new([&flags[..], &more].concat()).output().expect_code(0).out()
    };
    let (one, other) = (run("one"), run("other"));
    assert_eq!(one, other);
    let lines: Vec<&str> = one.lines().collect();
    assert_eq!((lines.len(), lines[0]), (2, lines[1]), "{one}");
    let id = lines[0].split(' ').next().unwrap();
    assert!(id.starts_with("trainit-"), "{one}");
    assert_eq!(lines[0], format!("{id} {id} allow {{\"trainit.id\":\"{id}\"}}"));
}

#[test]
fn without_track_no_variable_is_set_and_an_unknown_tracker_starts_nothing() {
    assert_eq!(Trainit::run(["sh", "-c", PRINT]).output().expect_code(0).out().trim(), "");
    let done = Trainit::new(["run", "--track", "tensorbord", "--", "true"]).output().expect_code(125);
    assert!(done.err().contains("wandb"), "{}", done.err());
}
