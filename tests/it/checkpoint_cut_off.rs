//! A trainer that is killed while it saves: what lies there lies still, and is no checkpoint.

use std::fs::{self, File};
use std::path::Path;
use std::time::{Duration, UNIX_EPOCH};

use crate::support::Trainit;
use crate::support::checkpoints::Place;

/// Saves step 1, waits until that has settled, and then saves step 2 without an end.
const SAVES: &str = r#"
    mkdir "$D/step-1"; echo whole >"$D/step-1/weights.bin"; sleep 1.2
    mkdir "$D/step-2"; echo torn >"$D/step-2/weights.bin"; echo saving
    while :; do echo more >>"$D/step-2/weights.bin"; sleep 0.01; done"#;

fn run(place: &Place, args: &[&str], script: &str) -> Trainit {
    let (local, url) = (place.local(), place.url());
    let run = ["run", "--checkpoint-dir", local.to_str().unwrap(), "--settle", "1s", "--mirror-interval", "1h"];
    let store = if args.contains(&"--max-restarts") { vec![] } else { vec!["--checkpoint-store", &url] };
    Trainit::new(run).args(store).args(args).args(["--", "sh", "-c", script]).env("D", &local)
}

#[test]
fn what_was_being_written_when_it_was_killed_is_neither_committed_nor_resumed_from_until_it_is_written_again() {
    let place = Place::new();
    let going = run(&place, &["--stop-grace", "300ms"], &format!("trap '' TERM; {SAVES}")).start();
    going.after_line("saving");
    going.signal(libc::SIGTERM);
    let done = going.finish().expect_code(143);
    assert!(done.err().contains("step-2 was written as the command was cut off"), "{}", done.err());
    assert_eq!(place.steps(), [1]);
    let step = || run(&place, &[], "echo at $TRAINIT_RESUME_STEP").output().expect_code(0).out();
    assert_eq!(step(), "at 1\n");
    assert_eq!((step(), place.steps()), ("at 1\n".to_owned(), vec![1]), "it is not forgotten");
    fs::write(place.local().join("step-2/weights.bin"), "whole at last").unwrap();
    assert_eq!((step(), place.steps()), ("at 2\n".to_owned(), vec![2, 1]));
}

#[test]
fn after_a_crash_in_a_save_the_next_attempt_goes_on_from_the_one_before_and_from_one_that_shows_that_it_is_whole() {
    for (save, step) in [("mkdir step-2; echo torn >step-2/weights.bin", "1"), ("echo {} >step-2.json", "2")] {
        let place = Place::new();
        let script = format!(
            r#"cd "$D"; [ $TRAINIT_ATTEMPT = 2 ] && exec echo at $TRAINIT_RESUME_STEP
            echo {{}} >step-1.json; sleep 1.2; {save}; kill -9 $$"#
        );
        let script = if step == "1" {
            script.replace("echo {} >step-1.json", "mkdir step-1; echo w >step-1/weights.bin")
        } else {
            script
        };
        let args = ["--max-restarts", "1", "--restart-backoff", "1ms"];
        assert_eq!(run(&place, &args, &script).output().expect_code(0).out(), format!("at {step}\n"), "{save}");
    }
}

#[test]
fn what_an_attempt_resumed_from_is_not_in_doubt_because_it_was_killed_soon_after_and_what_it_saved_itself_is() {
    let script = r#"cd "$D"; save() { mkdir step-$1; echo w >step-$1/weights.bin; }
        case $TRAINIT_ATTEMPT in
            1) save 1; exit 1 ;;
            2) save 2; exit 137 ;;
            *) echo at $TRAINIT_RESUME_STEP ;;
        esac"#;
    let place = Place::new();
    let done = run(&place, &["--max-restarts", "2", "--restart-backoff", "500ms"], script).output().expect_code(0);
    assert_eq!(done.out(), "at 1\n", "{}", done.err());
}

/// Trains from whole saves in `$D`, taking the highest number by itself; what each attempt does is the test's.
fn takes_the_highest(place: &Place, attempts: &str) -> Trainit {
    let script = format!(
        r#"cd "$D"; save() {{ mkdir step_$1; echo w >step_$1/__0_0.distcp; echo __0_0.distcp >step_$1/.metadata
            touch -d @$1 step_$1/.metadata step_$1/__0_0.distcp; }}
        die() {{ kill -9 $$; }}
        echo $TRAINIT_ATTEMPT from $(ls -d step_* model_* 2>/dev/null | sort -t_ -k2n | tail -1)
        case $TRAINIT_ATTEMPT in {attempts} esac"#
    );
    run(place, &["--max-restarts", "3", "--restart-backoff", "1ms"], &script)
}

#[test]
fn a_job_that_is_killed_in_each_save_keeps_what_is_newer_than_its_whole_ones_and_all_that_may_be_whole() {
    let place = Place::new();
    let own = place.local().join(".trainit");
    let moved_before = own.join("aside/0000000001-1/step_2/w");
    fs::create_dir_all(moved_before.parent().unwrap()).unwrap();
    fs::write(&moved_before, "whole, or of an older version").unwrap();
    let attempts = r#"1) save 4; mkdir step_8; echo torn >step_8/__0_0.distcp; die ;;
        2) save 8; mkdir step_12; echo torn >step_12/__0_0.distcp; die ;;
        3) while [ "$(ls .trainit/gone)" ]; do sleep 0.01; done ;;"#;
    let done = takes_the_highest(&place, attempts).output().expect_code(0);
    assert_eq!(done.out(), "1 from\n2 from step_4\n3 from step_8\n", "{}", done.err());
    let kept = fs::read_dir(own.join("torn")).unwrap().map(|place| place.unwrap().path()).collect::<Vec<_>>();
    assert_eq!((kept.len(), kept[0].join("step_12/__0_0.distcp").exists()), (1, true), "{kept:?}");
    assert!(moved_before.exists());
    assert!(done.err().contains("torn/8-1/step_8, which is superseded, is removed"), "{}", done.err());
}

#[test]
fn what_a_killed_run_had_not_removed_yet_is_removed_while_the_next_one_trains() {
    let place = Place::new();
    let (gone, kept) = (place.local().join(".trainit/gone"), place.local().join(".trainit/torn/8-1/step_8/w"));
    for path in [&gone.join("4-1-0/step_4/w"), &kept] {
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, "torn").unwrap();
    }
    let attempts = r#"1) while [ "$(ls .trainit/gone)" ]; do sleep 0.01; done ;;"#;
    takes_the_highest(&place, attempts).output().expect_code(0);
    assert!(kept.exists() && fs::read_dir(gone).unwrap().next().is_none());
}

#[test]
fn a_directory_that_was_made_and_not_written_into_is_out_of_the_way_of_the_next_attempt() {
    let place = Place::new();
    let done = takes_the_highest(&place, "1) save 4; mkdir step_8; die ;;").output().expect_code(0);
    assert_eq!(done.out(), "1 from\n2 from step_4\n", "{}", done.err());
    assert!(done.err().contains("step_8 is not complete (it is empty)"), "{}", done.err());
}

#[test]
fn a_first_save_that_is_surely_cut_short_is_out_of_the_way_of_the_next_attempt_and_one_in_doubt_stays() {
    let cut = "printf 'PK\\003\\004 and no end' >model_4.pt";
    for (save, then) in [(cut, ""), ("mkdir step_4", ""), ("mkdir step_4; echo w >step_4/__0_0.distcp", " step_4")] {
        let place = Place::new();
        let done = takes_the_highest(&place, &format!("1) {save}; die ;;")).output().expect_code(0);
        assert_eq!(done.out(), format!("1 from\n2 from{then}\n"), "{save}: {}", done.err());
        assert_eq!(done.err().contains("nothing whole is there to go on from"), then.is_empty(), "{}", done.err());
    }
}

#[test]
fn a_first_save_that_a_run_before_was_cut_off_in_is_out_of_the_way_and_what_lay_there_before_it_stays() {
    for (written, then) in [(2_000, ""), (500, " model_4.pt")] {
        let place = Place::new();
        let set = |path: &Path, seconds: u64| {
            File::open(path).unwrap().set_modified(UNIX_EPOCH + Duration::from_secs(seconds)).unwrap();
        };
        run(&place, &[], "exit 0").output().expect_code(0);
        let own = fs::read_dir(place.local().join(".trainit")).unwrap().map(|entry| entry.unwrap().path());
        let records: Vec<_> = own.filter(|path| path.to_string_lossy().contains("/attempt-")).collect();
        set(&records[0], 1_000);
        fs::write(place.local().join("model_4.pt"), b"PK\x03\x04 and no end").unwrap();
        set(&place.local().join("model_4.pt"), written);
        let done = run(&place, &[], "cd \"$D\"; echo from $(ls)").output().expect_code(0);
        assert_eq!(done.out(), format!("from{then}\n"), "{}", done.err());
    }
}

#[test]
fn of_deepspeeds_save_that_was_cut_off_no_ranks_states_are_taken_for_those_of_the_same_step_saved_again() {
    let place = Place::new();
    let script = r#"cd "$D"; at() { echo $TRAINIT_ATTEMPT >global_step$1/$2; }
        model() { mkdir -p global_step$1; at $1 mp_rank_00_model_states.pt; }
        rank() { at $1 zero_pp_rank_$2_mp_rank_00_optim_states.pt; }
        case $TRAINIT_ATTEMPT in
            1) model 8; rank 8 0; rank 8 1; touch -d @8 global_step8/*; echo global_step8 >latest
                model 12; rank 12 1; exit 1 ;;
            2) model 12; rank 12 0; echo global_step12 >latest; exit 3 ;;
            *) echo at $TRAINIT_RESUME_STEP, latest is $(cat latest) ;;
        esac"#;
    let done = run(&place, &["--max-restarts", "3", "--restart-backoff", "1ms"], script).output().expect_code(0);
    assert_eq!(done.out(), "at 8, latest is global_step8\n", "{}", done.err());
    assert!(done.err().contains("is kept as .trainit/torn/12-1/global_step12"), "{}", done.err());
}

#[test]
fn what_a_rank_was_saving_when_the_failure_of_another_stopped_it_is_not_gone_on_from() {
    let place = Place::new();
    let script = r#"cd "$D"; [ $TRAINIT_ATTEMPT = 2 ] && exec echo at $TRAINIT_RESUME_STEP
        if [ $RANK = 1 ]; then until [ -s step-2/weights.bin ]; do sleep 0.01; done; exit 1; fi
        mkdir step-1; echo whole >step-1/weights.bin; sleep 1.2
        mkdir step-2; while :; do echo more; done >step-2/weights.bin"#;
    let args = ["--nproc", "2", "--max-restarts", "1", "--restart-backoff", "1ms"];
    let done = run(&place, &args, script).output().expect_code(0);
    assert!(done.out().contains("[rank 0] at 1\n") && done.out().contains("[rank 1] at 1\n"), "{}", done.out());
    assert!(done.err().contains("step-2 was written as the command was cut off"), "{}", done.err());
}
