//! A trainer that is killed while it saves: what lies there lies still, and is no checkpoint.

use std::fs;

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
