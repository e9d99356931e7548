//! trainit, the trainer, or both killed with -9 at every numbered point of a commit and of a restore, under `run`.

use std::fs;
use std::path::Path;

use crate::support::checkpoints::{Place, save_in, tree};
use crate::support::{Trainit, send, stopped};

/// Points of a commit, as in `checkpoint_store`; from 9 on the new manifest is in the store.
const COMMIT_POINTS: std::ops::RangeInclusive<u32> = 1..=12;
const COMMITTED: u32 = 9;
/// Points of a restore, as in `checkpoint_restore`.
const RESTORE_POINTS: std::ops::RangeInclusive<u32> = 20..=29;

/// Brings the checkpoint that lies ready beside the directory into it at once, says its own process number, and stays.
const TRAINER: &str = r#"exec >"$D.log" 2>&1
mv "$D.ready/step-2" "$D/"
echo $$ >"$D.new" && mv "$D.new" "$D.pid"
while :; do sleep 0.02; done"#;

/// `trainit run` in a directory; the script sees it as $D.
fn run(place: &Place, dir: &Path, script: &str) -> Trainit {
    let run = ["run", "--checkpoint-store", &place.url(), "--checkpoint-dir", dir.to_str().unwrap()];
    let trainit = Trainit::new(run).args(["--settle", "0", "--mirror-interval", "10ms", "--keep-last", "1"]);
    trainit.args(["--max-restarts", "0", "--", "sh", "-c", script]).env("D", dir)
}

/// The process number that the trainer said.
fn trainer(dir: &Path) -> Option<i32> {
    fs::read_to_string(dir.with_extension("pid")).ok()?.trim().parse().ok()
}

/// A committed step 1, and a step 2 that the trainer is going to save.
fn ready() -> Place {
    let place = Place::new();
    place.save(1);
    place.push();
    save_in(&place.path("checkpoints.ready"), 2);
    place
}

#[test]
fn trainit_killed_at_any_point_of_a_commit_the_newest_committed_one_is_restored_elsewhere_and_the_newest_here() {
    for point in COMMIT_POINTS {
        let place = ready();
        let (local, first) = (place.local(), tree(&place.local().join("step-1")));
        let second = tree(&place.path("checkpoints.ready").join("step-2"));
        run(&place, &local, TRAINER).env("TRAINIT_TEST_FAULT", point.to_string()).output().expect_code(137);
        // The trainer may live on without trainit; it dies with its machine.
        if let Some(pid) = trainer(&local).filter(|pid| crate::support::is_alive(*pid)) {
            send(pid, libc::SIGKILL);
        }
        let there = place.pull_afresh("elsewhere");
        let (unit, saved) = if point < COMMITTED { ("step-1", &first) } else { ("step-2", &second) };
        assert_eq!(tree(&there.join(unit)), *saved, "killed at point {point}");
        assert_eq!(fs::read_dir(&there).unwrap().count(), 2, "killed at point {point}: the unit and our corner");
        // On the same machine the checkpoint that was not committed is the newest.
        let done = run(&place, &local, "echo from=$TRAINIT_RESUME_FROM").output().expect_code(0);
        let newest = if point == 1 { "step-1" } else { "step-2" };
        assert_eq!(done.out(), format!("from={}\n", local.join(newest).display()), "killed at point {point}");
        assert_eq!(place.commits().first().map(|c| c["unit"] == newest), Some(true), "killed at point {point}");
        place.checkpoint("verify").output().expect_code(0);
    }
}

#[test]
fn the_trainer_killed_at_any_point_of_a_commit_the_commit_is_finished() {
    // The last four are behind the commit that the trainer waits for.
    for point in *COMMIT_POINTS.start() + 1..=COMMITTED {
        let place = ready();
        let (local, second) = (place.local(), tree(&place.path("checkpoints.ready").join("step-2")));
        let running = run(&place, &local, TRAINER).env("TRAINIT_TEST_FAULT", format!("{point}:stop")).start();
        stopped(&running);
        send(trainer(&local).expect("the trainer has begun"), libc::SIGKILL);
        running.signal(libc::SIGCONT);
        running.finish().expect_code(137);
        assert_eq!(tree(&place.pull_afresh("elsewhere").join("step-2")), second, "the trainer died at point {point}");
        place.checkpoint("verify").output().expect_code(0);
    }
}

#[test]
fn trainit_killed_at_any_point_of_a_restore_starts_no_trainer_and_the_next_run_restores_bit_for_bit() {
    for point in RESTORE_POINTS {
        let place = Place::new();
        let saved = place.save(2);
        place.push();
        let there = place.path("elsewhere");
        save_in(&there, 1);
        fs::create_dir_all(there.join("step-2")).unwrap();
        fs::write(there.join("step-2/weights.bin"), "torn").unwrap();
        let script = r#"echo "$TRAINIT_RESUME_FROM" >>"$D.began""#;
        run(&place, &there, script).env("TRAINIT_TEST_FAULT", point.to_string()).output().expect_code(137);
        assert!(!there.with_extension("began").exists(), "killed at point {point}");
        run(&place, &there, script).output().expect_code(0);
        let began = fs::read_to_string(there.with_extension("began")).unwrap();
        assert_eq!(began, format!("{}\n", there.join("step-2").display()), "killed at point {point}");
        assert_eq!(tree(&there.join("step-2")), saved, "killed at point {point}");
    }
}
