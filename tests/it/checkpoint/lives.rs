//! The checkpoint from which a run resumes: the local one or the store's, after a change of machines, a fallback, or a
//! crash without a whole checkpoint.

use std::fs;

use crate::support::checkpoints::{Place, tree};
use crate::support::{Finished, Trainit};

/// `trainit run` of a shell script in the place; it sees the checkpoint directory as $D.
fn run(place: &Place, args: &[&str], script: &str) -> Finished {
    let local = place.local();
    let run = ["run", "--checkpoint-store", &place.url(), "--checkpoint-dir", local.to_str().unwrap()];
    let trainit = Trainit::new(run).args(["--settle", "20ms", "--commit-interval", "20ms", "--restart-backoff", "1ms"]);
    let trainit = trainit.args(args).args(["--", "sh", "-c", script]).env("D", &local);
    trainit.output()
}

/// A script that saves this step and prints the checkpoint that it resumed from.
fn saves(step: u64) -> String {
    format!(
        r#"echo "from ${{TRAINIT_RESUME_FROM:-scratch}} at ${{TRAINIT_RESUME_STEP:-none}}"; echo {{}} >"$D/ckpt-{step}.json""#
    )
}

fn resumed(place: &Place, done: &Finished, step: u64) {
    let line = format!("from {}/ckpt-{step}.json at {step}\n", place.local().display());
    assert!(done.out().contains(&line), "wanted step {step}: {}\n{}", done.out(), done.err());
}

#[test]
fn a_newer_local_checkpoint_of_the_same_machine_is_kept_and_committed() {
    let place = Place::new();
    run(&place, &[], &saves(10)).expect_code(0);
    fs::write(place.local().join("ckpt-20.json"), "{}").unwrap();
    let done = run(&place, &[], &saves(30)).expect_code(0);
    resumed(&place, &done, 20);
    let steps = place.steps();
    assert!(steps[0] == 30 && steps.ends_with(&[10]), "{steps:?}");
}

#[test]
fn nodes_that_share_a_directory_distinguish_their_own_checkpoints() {
    let place = Place::new();
    let node = |rank: &str, script: &str| {
        let args = ["--nnodes", "2", "--leader", "127.0.0.1:1", "--node-rank", rank];
        run(&place, &args, script).expect_code(0)
    };
    node("0", &saves(10));
    node("1", "exit 0");
    fs::write(place.local().join("ckpt-20.json"), "{}").unwrap();
    resumed(&place, &node("0", &saves(30)), 20);
}

#[test]
fn a_checkpoint_of_another_job_is_not_resumed() {
    let place = Place::new();
    run(&place, &[], &saves(10)).expect_code(0);
    let other = format!("file://{}", place.path("another store").display());
    run(&place, &["--checkpoint-store", &other, "--restore", "none"], &saves(20)).expect_code(0);
    resumed(&place, &run(&place, &[], &saves(11)).expect_code(0), 10);
}

#[test]
fn a_returning_machine_resumes_from_the_newer_checkpoint_of_another_machine() {
    let place = Place::new();
    run(&place, &[], &saves(10)).expect_code(0);
    fs::rename(place.local(), place.path("first machine")).unwrap();
    run(&place, &[], &saves(15)).expect_code(0);
    fs::remove_dir_all(place.local()).unwrap();
    fs::rename(place.path("first machine"), place.local()).unwrap();
    // Never committed, because the first machine lost its store before.
    fs::write(place.local().join("ckpt-20.json"), "{}").unwrap();
    let done = run(&place, &[], &saves(16)).expect_code(0);
    resumed(&place, &done, 15);
    assert_eq!(place.steps(), [16, 15, 10], "the stale checkpoint is never committed");
    let mut aside = fs::read_dir(place.local().join(".trainit/aside")).unwrap();
    assert!(aside.any(|kept| kept.unwrap().path().join("ckpt-20.json").exists()), "and never deleted");
}

#[test]
fn a_run_that_resumes_from_an_older_step_on_request_continues_from_there() {
    let place = Place::new();
    for step in [10, 20, 30] {
        run(&place, &[], &saves(step)).expect_code(0);
    }
    let done = run(&place, &["--restore-step", "10"], &saves(12)).expect_code(0);
    resumed(&place, &done, 10);
    assert_eq!(place.steps()[0], 12);
    let done = run(&place, &[], &saves(13)).expect_code(0);
    resumed(&place, &done, 12);
}

#[test]
fn a_run_from_scratch_ignores_older_checkpoints_and_uses_its_own() {
    let place = Place::new();
    run(&place, &[], &saves(50)).expect_code(0);
    let done = run(&place, &["--restore", "none"], &saves(5)).expect_code(0);
    assert!(done.out().contains("from scratch at none"), "{}", done.out());
    assert_eq!(place.steps(), [5, 50]);
    resumed(&place, &run(&place, &[], &saves(6)).expect_code(0), 5);
}

#[test]
fn a_restart_in_a_run_from_scratch_does_not_restore_an_older_runs_commit() {
    let place = Place::new();
    run(&place, &[], &saves(50)).expect_code(0);
    let script = r#"echo "from ${TRAINIT_RESUME_FROM:-scratch}"; [ "$TRAINIT_ATTEMPT" = 1 ] && exit 9; exit 0"#;
    let done = run(&place, &["--restore", "none", "--max-restarts", "1"], script).expect_code(0);
    assert_eq!(done.out(), "from scratch\nfrom scratch\n", "{}", done.err());
}

#[test]
fn after_a_crash_without_a_complete_checkpoint_the_commit_is_fetched_again() {
    let place = Place::new();
    let store = place.store();
    let script = format!(
        r#"echo "from ${{TRAINIT_RESUME_FROM:-scratch}}"; [ "$TRAINIT_ATTEMPT" = 2 ] && exit 0
           echo '{{"w": 1}}' >"$D/ckpt-10.json"
           until ls {}/.trainit/commits/*-000000000010-*.json >/dev/null 2>&1; do sleep 0.01; done
           rm "$D/ckpt-10.json"; printf '{{"torn"' >"$D/ckpt-20.json"; exit 9"#,
        store.display()
    );
    let done = run(&place, &["--max-restarts", "1"], &script).expect_code(0);
    assert_eq!(done.out(), format!("from scratch\nfrom {}/ckpt-10.json\n", place.local().display()), "{}", done.err());
    assert_eq!(fs::read_to_string(place.local().join("ckpt-10.json")).unwrap(), "{\"w\": 1}\n");
}

#[test]
fn a_framework_that_deletes_its_newest_checkpoint_does_not_roll_the_store_back() {
    let place = Place::new();
    let script = format!(
        r#"echo {{}} >"$D/ckpt-10.json"; sleep 0.01; echo {{}} >"$D/ckpt-20.json"
           until ls {}/.trainit/commits/*-000000000020-*.json >/dev/null 2>&1; do sleep 0.01; done
           rm "$D/ckpt-20.json""#,
        place.store().display()
    );
    run(&place, &[], &script).expect_code(0);
    assert_eq!(place.steps()[0], 20);
}

#[test]
fn a_torn_restore_left_by_a_kill_is_never_resumed_from() {
    let place = Place::new();
    let index = |text: &str| [text.as_bytes(), &0xdb47_7524_8b80_fb57_u64.to_le_bytes()].concat();
    let state = "model_checkpoint_path: \"ckpt-1\"\nall_model_checkpoint_paths: \"ckpt-1\"\n";
    let save = |text: &str| {
        fs::write(place.local().join("ckpt-1.index"), index(text)).unwrap();
        fs::write(place.local().join("ckpt-1.data-00000-of-00001"), text).unwrap();
        fs::write(place.local().join("checkpoint"), state).unwrap();
    };
    save("committed");
    place.push();
    // Another machine has a checkpoint of the same name and other content; the restore dies between its two files.
    fs::remove_dir_all(place.local().join(".trainit")).unwrap();
    save("of another life");
    place.checkpoint("pull").env("TRAINIT_TEST_FAULT", "25").output().expect_code(137);
    fs::rename(place.store(), place.path("store away")).unwrap();
    let script = r#"echo "from ${TRAINIT_RESUME_FROM:-scratch}""#;
    let done = run(&place, &[], script).expect_code(0);
    assert_eq!(done.out(), "from scratch\n", "a mixture of two checkpoints is not resumed from");
    fs::remove_dir_all(place.store()).unwrap();
    fs::rename(place.path("store away"), place.store()).unwrap();
    place.checkpoint("pull").output().expect_code(0);
    assert_eq!(fs::read_to_string(place.local().join("ckpt-1.data-00000-of-00001")).unwrap(), "committed");
    assert_eq!(fs::read(place.local().join("ckpt-1.index")).unwrap(), index("committed"));
}

#[test]
fn two_runs_at_once_leave_only_complete_checkpoints_in_any_schedule() {
    // Each schedule freezes the older run at another point, lets the newer run finish, and continues the older one.
    for point in [
        "2:stop",
        "3:stop",
        "4:stop:2",
        "4:stop:3",
        "5:stop",
        "6:stop",
        "7:stop",
        "8:stop",
        "9:stop",
        "10:stop",
        "11:stop:2",
    ] {
        let place = Place::new();
        place.save_and_push(1..=3);
        place.save(4);
        let machine = place.path("another machine");
        let older = place.checkpoint("push").args(["--keep-last", "2"]).env("TRAINIT_TEST_FAULT", point).start();
        crate::support::stopped(&older);
        crate::support::checkpoints::save_in(&machine, 5);
        place.checkpoint_in("push", &machine).args(["--keep-last", "2"]).output().expect_code(0);
        older.signal(libc::SIGCONT);
        let code = older.finish().code();
        assert!([0, 205].contains(&code), "code {code} at {point}");
        let commits = place.commits();
        assert!(!commits.is_empty(), "{point}");
        assert!(commits.iter().all(|c| c["complete"] == true), "{point}: {commits:?}");
        assert_eq!(commits[0]["step"], 5, "{point}: the newer run's is the newest");
        place.checkpoint("verify").output().expect_code(0);
    }
}

#[test]
fn three_runs_with_one_frozen_and_one_killed_leave_a_whole_newest_checkpoint() {
    for sleeps_at in [2, 4, 7, 8] {
        for dies_at in 1..=12 {
            let what = format!("one sleeps at {sleeps_at}, one dies at {dies_at}");
            let place = Place::new();
            place.save(1);
            place.push();
            place.save(2);
            let sleeper = place.checkpoint("push").args(["--keep-last", "1"]);
            let sleeper = sleeper.env("TRAINIT_TEST_FAULT", format!("{sleeps_at}:stop")).start();
            crate::support::stopped(&sleeper);
            let machine = place.path("another machine");
            crate::support::checkpoints::save_in(&machine, 3);
            let dying = place.checkpoint_in("push", &machine).args(["--keep-last", "1"]);
            dying.env("TRAINIT_TEST_FAULT", dies_at.to_string()).output().expect_code(137);
            sleeper.signal(libc::SIGCONT);
            assert!([0, 205].contains(&sleeper.finish().code()), "{what}");
            let pulled = place.pull_afresh("a third machine");
            let steps = place.steps();
            assert!(!steps.is_empty() && place.commits()[0]["complete"] == true, "{what}");
            let newest = format!("step-{}", steps[0]);
            let written = if steps[0] == 3 { machine.join(&newest) } else { place.local().join(&newest) };
            assert_eq!(tree(&pulled.join(&newest)), tree(&written), "{what}");
            assert_eq!(steps[0] == 3, dies_at >= 9, "{what}: {steps:?}");
        }
    }
}

/// The path in the store of a step's only file, which the run of this attempt committed first.
fn data(place: &Place, attempt: u32, step: u64) -> String {
    place.store().join(format!("ckpt-{step}.json/{attempt:010}-000001/ckpt-{step}.json")).display().to_string()
}

#[test]
fn a_restart_with_a_damaged_newest_commit_resumes_from_the_previous_one() {
    let place = Place::new();
    for step in [10, 20] {
        run(&place, &[], &saves(step)).expect_code(0);
    }
    let script = format!(
        r#"echo "from ${{TRAINIT_RESUME_FROM:-scratch}}"; [ "$TRAINIT_ATTEMPT" = 2 ] && exit 0
           : >"$D/ckpt-20.json"; : >"$D/ckpt-10.json"; : >{}; exit 5"#,
        data(&place, 2, 20)
    );
    let done = run(&place, &["--max-restarts", "1", "--restore", "required"], &script).expect_code(0);
    let from = |step| format!("from {}/ckpt-{step}.json\n", place.local().display());
    assert_eq!(done.out(), from(20) + &from(10), "{}", done.err());
}

#[test]
fn a_restart_without_a_complete_commit_is_204_and_never_from_scratch() {
    let place = Place::new();
    run(&place, &[], &saves(10)).expect_code(0);
    let script = format!(
        r#"echo "from ${{TRAINIT_RESUME_FROM:-scratch}}"; : >"$D/ckpt-10.json"; rm {}; exit 5"#,
        data(&place, 1, 10)
    );
    let done = run(&place, &["--max-restarts", "1"], &script).expect_code(204);
    assert_eq!(done.out(), format!("from {}/ckpt-10.json\n", place.local().display()), "{}", done.err());
}

#[test]
fn an_unmounted_store_is_not_created_on_the_disk_below() {
    let place = Place::new();
    let (store, away) = (place.store(), place.path("away"));
    let script = format!(
        r#"echo {{}} >"$D/ckpt-10.json"
           until ls {store}/.trainit/commits/*-000000000010-*.json >/dev/null 2>&1; do sleep 0.01; done
           mv {store} {away}; echo {{}} >"$D/ckpt-20.json""#,
        store = store.display(),
        away = away.display()
    );
    let done = run(&place, &[], &script).expect_code(204);
    assert!(done.err().contains("does not show this run's claim"), "{}", done.err());
    assert!(!store.exists(), "nothing is created in place of the store");
    fs::rename(away, store).unwrap();
    assert_eq!(place.steps(), [10]);
}

#[test]
fn a_claim_that_a_lifecycle_rule_deleted_is_made_again() {
    let place = Place::new();
    let script = format!(
        r#"echo {{}} >"$D/ckpt-10.json"
           until ls {store}/.trainit/commits/*-000000000010-*.json >/dev/null 2>&1; do sleep 0.01; done
           rm -r {store}/.trainit/attempts; echo {{}} >"$D/ckpt-20.json""#,
        store = place.store().display()
    );
    run(&place, &[], &script).expect_code(0);
    assert_eq!(place.steps(), [20, 10]);
    assert!(place.store().join(".trainit/attempts/0000000001.json").exists());
}

#[test]
fn a_used_attempt_number_is_not_reused_although_its_claim_is_gone() {
    let place = Place::new();
    for step in [10, 20] {
        run(&place, &[], &saves(step)).expect_code(0);
    }
    fs::remove_dir_all(place.store().join(".trainit/attempts")).unwrap();
    run(&place, &[], &saves(30)).expect_code(0);
    assert_eq!(place.steps(), [30, 20, 10]);
    resumed(&place, &run(&place, &[], &saves(40)).expect_code(0), 30);
}

#[test]
fn a_checkpoint_pulled_by_hand_and_trained_further_is_resumed() {
    let place = Place::new();
    run(&place, &[], &saves(10)).expect_code(0);
    fs::remove_dir_all(place.local()).unwrap();
    fs::create_dir(place.local()).unwrap();
    place.checkpoint("pull").output().expect_code(0);
    fs::write(place.local().join("ckpt-20.json"), "{}").unwrap();
    let done = run(&place, &[], &saves(30)).expect_code(0);
    resumed(&place, &done, 20);
}

#[test]
fn a_file_that_is_open_for_writing_is_not_committed_for_any_settling_time() {
    let place = Place::new();
    let script = format!(
        r#"exec 3>"$D/ckpt-10.json"; echo {{}} >&3; sleep 0.5; ls {}/.trainit/commits 2>/dev/null; echo looked"#,
        place.store().display()
    );
    let done = run(&place, &["--settle", "0s"], &script).expect_code(0);
    assert_eq!(done.out(), "looked\n", "{}", done.err());
    assert_eq!(place.steps(), [10], "once it is closed");
}

#[test]
fn old_commits_are_not_deleted_during_a_stop() {
    let place = Place::new();
    let script = format!(
        r#"trap 'echo {{}} >"$D/ckpt-20.json"; exit 0' TERM; echo {{}} >"$D/ckpt-10.json"
           until ls {}/.trainit/commits/*-000000000010-*.json >/dev/null 2>&1; do sleep 0.01; done
           kill -TERM $PPID; while :; do sleep 0.01; done"#,
        place.store().display()
    );
    // Long enough that no scan during the exit of the command commits the second checkpoint.
    let done = run(&place, &["--keep-last", "1", "--settle", "2s"], &script).expect_code(143);
    assert_eq!(place.steps(), [20, 10], "{}", done.err());
    run(&place, &["--keep-last", "1"], &saves(30)).expect_code(0);
    assert_eq!(place.steps(), [30, 20], "the commit that this run resumed from stays");
}

#[test]
fn a_checkpoint_written_after_the_clock_was_set_back_is_committed() {
    let place = Place::new();
    let store = place.store();
    let script = format!(
        r#"many() {{ ls {0}/.trainit/commits 2>/dev/null | wc -l; }}
           echo '{{"w": 1}}' >"$D/tmp"; mv "$D/tmp" "$D/ckpt-10.json"; until [ "$(many)" = 1 ]; do sleep 0.01; done
           echo '{{"w": 2}}' >"$D/tmp"; touch -d '1 hour ago' "$D/tmp"; mv "$D/tmp" "$D/ckpt-10.json"
           until [ "$(many)" = 2 ]; do sleep 0.01; done
           echo '{{"w": 3}}' >"$D/tmp"; touch -d '2 hours ago' "$D/tmp"; mv "$D/tmp" "$D/ckpt-5.json"; rm "$D/ckpt-10.json""#,
        store.display()
    );
    run(&place, &[], &script).expect_code(0);
    assert_eq!(place.commits().len(), 3);
    assert_eq!(fs::read_to_string(place.pull_afresh("elsewhere").join("ckpt-5.json")).unwrap(), "{\"w\": 3}\n");
}

#[test]
fn after_any_crash_the_pointer_names_the_checkpoint_that_the_restart_resumes_from() {
    const TRACKER: &str = "latest_checkpointed_iteration.txt";
    for (has_store, left) in [
        (true, "printf 20 >$D/TRACKER"),
        (true, ": >$D/TRACKER"),
        (true, "rm $D/TRACKER"),
        (false, "printf 20 >$D/TRACKER"),
    ] {
        let place = Place::new();
        let whole = place.local().join("iter_0000010/mp_rank_00");
        fs::create_dir_all(&whole).unwrap();
        fs::write(whole.join("model_optim_rng.pt"), b"\x80\x02}q\x00.").unwrap();
        fs::write(place.local().join(TRACKER), "10").unwrap();
        fs::create_dir(place.local().join("iter_0000005")).unwrap();
        fs::write(place.local().join("last_good"), "iter_0000005").unwrap();
        let script = r#"echo "$TRAINIT_RESUME_STEP, at $(cat $D/TRACKER)"; [ $TRAINIT_ATTEMPT = 1 ] || exit 0
            mkdir -p $D/iter_0000020/mp_rank_00; printf PK >$D/iter_0000020/mp_rank_00/model_optim_rng.pt; LEFT; exit 1"#;
        let script = script.replace("LEFT", left).replace("TRACKER", TRACKER);
        let done = if has_store {
            place.push();
            run(&place, &[], &script)
        } else {
            let local = place.local();
            let trainit = Trainit::new(["run", "--restart-backoff", "1ms", "--checkpoint-dir"]).args([&local]);
            trainit.args(["--", "sh", "-c", &script]).env("D", &local).output()
        };
        let done = done.expect_code(0);
        assert_eq!(done.out(), "10, at 10\n10, at 10\n", "{left}: {}", done.err());
        let good = fs::read_to_string(place.local().join("last_good")).unwrap();
        assert!(has_store || good == "iter_0000005", "{left}: {good}");
    }
}
