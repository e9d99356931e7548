//! trainit killed with -9 at every numbered point of a restore, under `run`.

use std::fs;
use std::path::Path;

use crate::support::Trainit;
use crate::support::checkpoints::{Place, save_in, tree};

/// Points of a restore, as in `checkpoint_restore`.
const RESTORE_POINTS: std::ops::RangeInclusive<u32> = 20..=29;

/// `trainit run` in a directory; the script sees it as $D.
fn run(place: &Place, dir: &Path, script: &str) -> Trainit {
    let run = ["run", "--checkpoint-store", &place.url(), "--checkpoint-dir", dir.to_str().unwrap()];
    let trainit = Trainit::new(run).args(["--settle", "0", "--mirror-interval", "10ms", "--keep-last", "1"]);
    trainit.args(["--max-restarts", "0", "--", "sh", "-c", script]).env("D", dir)
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
