//! The dumps of PyTorch's flight recorder at a hang, with a shell instead of torch: it creates the pipe and reads it like torch.

use std::fs;

use crate::support::Trainit;

const HANGS: [&str; 3] = ["run", "--hang-timeout", "200ms"];

#[test]
fn a_trainer_that_hangs_is_asked_for_its_dump_before_sigabrt() {
    let place = tempfile::tempdir().unwrap();
    let dumps = place.path().join("made/dumps");
    let torch = "pipe=${TORCH_NCCL_DEBUG_INFO_PIPE_FILE}3.pipe; mkfifo $pipe; \
                 (read line < $pipe; echo $line > ${TORCH_FR_DUMP_TEMP_FILE}3) & exec sleep 1000";
    let options = ["--hang-forensics", dumps.to_str().unwrap(), "--", "sh", "-c", torch];
    let done = Trainit::new(HANGS).args(options).output().expect_code(201);
    assert_eq!(fs::read_to_string(dumps.join("rank_3")).unwrap(), "dump\n");
    assert!(done.err().contains("1 rank of PyTorch asked for the flight recorder's dump"), "{}", done.err());
    assert_eq!(done.verdict()["child_signal"], 6);
}

#[test]
fn a_trainer_without_a_flight_recorder_is_still_ended_and_the_missing_dump_is_logged() {
    let place = tempfile::tempdir().unwrap();
    let options = ["--hang-forensics", place.path().to_str().unwrap(), "--", "sleep", "1000"];
    let done = Trainit::new(HANGS).args(options).output().expect_code(201);
    assert!(done.err().contains("so there is no dump of it"), "{}", done.err());
}

#[test]
fn the_variables_are_set_only_on_request_and_the_users_values_stay() {
    let script = "echo $TORCH_FR_BUFFER_SIZE $TORCH_NCCL_DUMP_ON_TIMEOUT $TORCH_NCCL_DEBUG_INFO_TEMP_FILE";
    let run = |options: &[&str]| Trainit::new(["run"]).args(options).args(["--", "sh", "-c", script]);
    assert_eq!(run(&[]).output().out(), "\n");
    let place = tempfile::tempdir().unwrap();
    let dir = place.path().to_str().unwrap();
    let asked = run(&["--hang-forensics", dir]).env("TORCH_FR_BUFFER_SIZE", "7");
    assert_eq!(asked.output().out(), format!("7 1 {dir}/rank_\n"));
}
