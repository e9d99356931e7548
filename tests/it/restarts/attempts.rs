//! The failures that cause another attempt, and the checkpoint from which it continues.

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::{Duration, UNIX_EPOCH};

use crate::support::checkpoints::{Place, tree};
use crate::support::{Running, Trainit};

/// A trainer that fails with the checkpoint of step 2.
const PICKY: &str = "echo from=${TRAINIT_RESUME_STEP-none}; [ \"${TRAINIT_RESUME_STEP-}\" != 2 ] || exit 3; \
                     echo $TRAINIT_RESUME_FROM; ls \"$TRAINIT_CHECKPOINT_DIR\"";

fn run(place: &Place, store: bool, script: &str) -> Trainit {
    let mut trainit = Trainit::new(["run", "--restart-backoff", "1ms", "--settle", "0", "--checkpoint-dir"]);
    trainit = trainit.args([place.local()]);
    if store {
        trainit = trainit.args(["--checkpoint-store", &place.url()]);
    }
    trainit.args(["--", "sh", "-c", script])
}

#[test]
fn two_deaths_soon_after_a_resume_fall_back_to_an_older_checkpoint_and_delete_nothing() {
    for on_a_new_machine in [true, false] {
        let place = Place::new();
        let older = place.save(1);
        place.push();
        let bad = place.save(2);
        place.push();
        if on_a_new_machine {
            fs::remove_dir_all(place.local()).unwrap();
        }
        let done = run(&place, true, PICKY).output().expect_code(0);
        let from = place.local().join("step-1");
        assert_eq!(done.out(), format!("from=2\nfrom=2\nfrom=1\n{}\nstep-1\n", from.display()));
        assert_eq!(tree(&from), older);
        assert!(done.err().contains("resumes from") && done.err().contains("poisoned_checkpoint"), "{}", done.err());
        assert_eq!(done.verdict()["resumed_step"], 1);
        assert_eq!(place.steps(), [2, 1], "the store keeps both");
        let list = |args: &[&str]| place.checkpoint("list").args(args).output().expect_code(0).out();
        let marks = list(&[]).lines().map(|line| line.contains("failed twice soon after")).collect::<Vec<_>>();
        assert_eq!(marks[1..3], [true, false], "{}", list(&[]));
        let listed: serde_json::Value = serde_json::from_str(&list(&["--json"])).unwrap();
        let of = |commit: usize, member: &str| listed["commits"][commit][member].clone();
        assert!(of(0, "poisoned") == true && of(1, "poisoned") == false, "{listed}");
        assert_eq!(of(0, "complete"), true, "a new start goes on from it");
        assert_eq!(fs::read_dir(place.store().join(".trainit/bad")).unwrap().count(), 1);
        assert_eq!(tree(&place.pull_afresh("elsewhere").join("step-2")), bad);
    }
}

#[test]
fn the_same_checkpoint_in_each_attempt_is_no_progress_and_the_job_ends() {
    for store in [true, false] {
        let place = Place::new();
        let script =
            "echo x; mkdir -p \"$TRAINIT_CHECKPOINT_DIR\"; echo {} > \"$TRAINIT_CHECKPOINT_DIR/step-1.json\"; exit 7";
        let done = run(&place, store, script).env("TRAINIT_MAX_RESTARTS", "2").output().expect_code(7);
        let starts = done.out().lines().count();
        assert!((2..=5).contains(&starts), "{starts} starts, store: {store}");
    }
}

/// Saves like torch.distributed, whose format is recognised at any depth.
fn save_sharded(unit: &Path, seconds: u64) {
    fs::create_dir_all(unit).unwrap();
    for (name, text) in [("__0_0.distcp", "weights"), (".metadata", "__0_0.distcp")] {
        let mut file = fs::File::create(unit.join(name)).unwrap();
        file.write_all(text.as_bytes()).unwrap();
        file.set_modified(UNIX_EPOCH + Duration::from_secs(seconds)).unwrap();
    }
}

/// Continues from the highest number that it finds, without trainit's advice, and dies if that checkpoint is torn.
const HIGHEST: &str = "cd \"$TRAINIT_CHECKPOINT_DIR\"; newest=$(ls -d step_* | sort -t_ -k2n | tail -1); echo from=$newest; \
                       [ -e $newest/.metadata ] || exit 3; [ $newest = step_8 ] && [ ! -e over ] || exit 0; touch over; \
                       mkdir step_12; echo x >step_12/__0_0.distcp; kill -9 $$";

#[test]
fn an_interrupted_save_is_moved_away_for_a_trainer_that_takes_the_highest_number() {
    for store in [true, false] {
        let place = Place::new();
        save_sharded(&place.local().join("step_8"), 1_000);
        let done = run(&place, store, HIGHEST).output().expect_code(0);
        assert_eq!(done.out(), "from=step_8\nfrom=step_8\n", "{}", done.err());
        let aside = place.local().join(".trainit/torn");
        let kept = fs::read_dir(aside).unwrap().map(|e| e.unwrap().path().join("step_12")).next().unwrap();
        assert!(kept.join("__0_0.distcp").exists());
        assert!(done.err().contains("may be half a save (step_12/.metadata is not there yet)"), "{}", done.err());
    }
}

#[test]
fn an_interrupted_save_is_moved_away_at_a_start_but_the_first() {
    for was_ours in [true, false] {
        let place = Place::new();
        save_sharded(&place.local().join("step_8"), 1_000);
        if was_ours {
            run(&place, true, "exit 0").output().expect_code(0);
        }
        let torn = place.local().join("step_12");
        save_sharded(&torn, 2_000);
        fs::remove_file(torn.join(".metadata")).unwrap();
        let done = run(&place, true, "ls $TRAINIT_CHECKPOINT_DIR").output().expect_code(0);
        // At a first start nothing is known about the directory, so nothing is moved.
        let (left, moved) = if was_ours { ("step_8\n", 1) } else { ("step_12\nstep_8\n", 0) };
        assert_eq!(done.out(), left, "{}", done.err());
        assert_eq!(fs::read_dir(place.local().join(".trainit/torn")).map_or(0, Iterator::count), moved, "and kept");
    }
}

#[test]
fn another_number_of_processes_resumes_from_the_checkpoint_of_the_previous_number() {
    for nproc in ["2", "4", "8"] {
        let place = Place::new();
        let unit = place.local().join("step_8");
        save_sharded(&unit, 1_000);
        for rank in 1..4 {
            fs::copy(unit.join("__0_0.distcp"), unit.join(format!("__{rank}_0.distcp"))).unwrap();
            let file = File::open(unit.join(format!("__{rank}_0.distcp"))).unwrap();
            file.set_modified(UNIX_EPOCH + Duration::from_secs(1_000)).unwrap();
        }
        let done = run(&place, false, "echo $TRAINIT_RESUME_STEP").env("TRAINIT_NPROC", nproc).output().expect_code(0);
        let resumed = done.out().lines().filter(|line| line.ends_with("] 8")).count();
        assert_eq!(resumed.to_string(), nproc, "{}", done.err());
    }
}

#[test]
fn a_checkpoint_skipped_for_one_of_the_same_name_elsewhere_stays_skipped() {
    let place = Place::new();
    let (first, then) = (place.local().join("step-2"), place.local().join("runs/a/step-2"));
    save_sharded(&then, 10);
    place.push();
    fs::remove_dir_all(place.local()).unwrap();
    // It is younger, and nothing shows that it belongs to this job.
    save_sharded(&first, 20);
    let done = run(&place, true, "echo $TRAINIT_RESUME_FROM").output().expect_code(0);
    assert_eq!(done.out(), format!("{}\n", then.display()));
    assert_eq!(place.commits().len(), 1, "{}", done.err());
}

#[test]
fn without_an_older_checkpoint_nothing_starts_from_scratch() {
    let place = Place::new();
    let only = place.save(2);
    for store in [false, true] {
        let done = run(&place, store, PICKY).output().expect_code(3);
        assert_eq!(done.out(), "from=2\nfrom=2\n");
        let detail = done.verdict()["detail"].as_str().unwrap().to_owned();
        assert!(detail.contains("no older checkpoint") || detail.contains("failed the same way"), "{}", done.err());
        assert_eq!(tree(&place.local().join("step-2")), only);
    }
}

#[test]
fn after_a_fallback_later_checkpoints_are_committed() {
    let place = Place::new();
    for step in [1, 2] {
        place.save(step);
        place.push();
    }
    let script = "[ $TRAINIT_RESUME_STEP != 2 ] || exit 3; cd $TRAINIT_CHECKPOINT_DIR; \
                  mkdir step-2; echo '{\"step\": 2}' > step-2/state.json";
    let done = run(&place, true, script).output().expect_code(0);
    assert_eq!(done.verdict()["committed_step"], 2, "{}", done.err());
    assert_eq!(place.steps(), [2, 2, 1]);
    assert_eq!(tree(&place.pull_afresh("elsewhere").join("step-2")).len(), 1, "the new one is the newest");
}

#[test]
fn after_a_fallback_the_newest_commit_counts_and_not_the_highest_step() {
    let place = Place::new();
    for step in [1, 9] {
        place.save(step);
        place.push();
    }
    for (action, newest) in [("true", 9), ("mkdir step-5; echo '{\"step\": 5}' > step-5/state.json", 5)] {
        let script = format!("[ $TRAINIT_RESUME_STEP != 9 ] || exit 3; cd $TRAINIT_CHECKPOINT_DIR; {action}");
        let done = run(&place, true, &script).output().expect_code(0);
        let verdict = done.verdict();
        assert_eq!((verdict["resumed_step"].as_u64(), verdict["committed_step"].as_u64()), (Some(1), Some(newest)));
        assert_eq!(place.steps()[0], newest, "{}", done.err());
    }
}

#[test]
fn a_stop_during_the_pause_before_a_restart_ends_it_at_once() {
    let options = ["run", "--max-restarts", "3", "--restart-backoff", "1h", "--", "sh", "-c", "exit 3"];
    let running = Trainit::new(options).start();
    running.after_log("restarting");
    let done = running.stop().expect_code(143);
    assert_eq!((done.verdict()["reason"].as_str(), done.verdict()["attempts"].as_u64()), (Some("stopped"), Some(1)));
}

#[test]
fn a_stop_while_a_crashed_attempt_drains_prevents_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let script = "echo attempt $TRAINIT_ATTEMPT; sh -c 'trap \"\" TERM; touch deaf; exec sleep 1000' & \
                  until [ -e deaf ]; do sleep 0.01; done; exit 3";
    let options = ["run", "--max-restarts", "3", "--restart-backoff", "1ms", "--stop-grace", "1s", "--"];
    let running = Trainit::new(options).args(["sh", "-c", script]).dir(dir.path()).start();
    running.after_log("ended with exit code 3");
    let done = running.stop().expect_code(143);
    assert_eq!((done.out().as_str(), done.verdict()["reason"].as_str()), ("attempt 1\n", Some("stopped")));
}

/// A trainer whose first attempt fails when it may. It cannot start while its file is open for writing.
fn busy_trainer(dir: &Path, restarts: &str) -> (Running, File) {
    let path = dir.join("train");
    fs::write(&path, "#!/bin/sh\n[ $TRAINIT_ATTEMPT = 1 ] || exit 0\necho ready\nread go\nexit 9\n").unwrap();
    fs::set_permissions(&path, PermissionsExt::from_mode(0o755)).unwrap();
    let options = ["run", "--max-restarts", restarts, "--restart-backoff", "5ms..5ms", "--"];
    let (stdin, go) = std::io::pipe().unwrap();
    let running = Trainit::new(options).args([&path]).stdin(stdin).start();
    running.after_line("ready");
    let writer = File::options().append(true).open(&path).unwrap();
    drop(go);
    (running, writer)
}

#[test]
fn a_restart_that_fails_for_a_transient_cause_is_tried_again() {
    let dir = tempfile::tempdir().unwrap();
    let (running, writer) = busy_trainer(dir.path(), "100000");
    running.after_log("attempt 3 could not be started: cannot execute");
    drop(writer);
    let done = running.finish().expect_code(0);
    assert!(done.verdict()["attempts"].as_u64().unwrap() > 3, "{}", done.err());
}

#[test]
fn a_job_that_cannot_be_started_again_leaves_with_the_code_of_its_last_attempt() {
    let dir = tempfile::tempdir().unwrap();
    let (running, _writer) = busy_trainer(dir.path(), "2");
    let done = running.finish().expect_code(9);
    let verdict = done.verdict();
    assert_eq!((&verdict["reason"], &verdict["child_code"]), (&"failed".into(), &9.into()));
    let detail = verdict["detail"].as_str().unwrap();
    assert!(detail.contains("attempt 3 could not be started: cannot execute") && detail.contains("budget"), "{detail}");
}

#[test]
fn a_command_that_is_missing_at_a_restart_is_127() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("train");
    fs::write(&path, "#!/bin/sh\nrm \"$0\"\nexit 9\n").unwrap();
    fs::set_permissions(&path, PermissionsExt::from_mode(0o755)).unwrap();
    let options = ["run", "--max-restarts", "5", "--restart-backoff", "1ms", "--"];
    let done = Trainit::new(options).args([&path]).output().expect_code(127);
    let detail = done.verdict()["detail"].as_str().unwrap().to_owned();
    assert!(detail.starts_with("attempt 2 could not be started: command not found"), "{detail}");
}
