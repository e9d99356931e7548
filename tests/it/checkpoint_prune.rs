//! What `trainit checkpoint prune` spares and what it finds.

use std::fs;

use crate::support::Trainit;
use crate::support::checkpoints::Place;

fn prune(place: &Place, args: &[&str]) -> String {
    place.checkpoint("prune").args(args).output().expect_code(0).out()
}

#[test]
fn a_prune_by_hand_spares_the_commit_that_the_newest_ones_run_resumed_from() {
    let place = Place::new();
    let run = |step: u64| {
        let dir = place.local();
        let script = format!("mkdir {0} && echo {{}} >{0}/w.json", dir.join(format!("step-{step}")).display());
        let (dir, url) = (dir.display().to_string(), place.url());
        let run = ["run", "--checkpoint-dir", &dir, "--checkpoint-store", &url, "--", "sh", "-c", &script];
        Trainit::new(run).output().expect_code(0);
    };
    for step in 1..=3 {
        run(step);
    }
    assert_eq!(place.steps(), [3, 2, 1]);
    assert!(prune(&place, &["--keep-last", "1"]).contains("deleted 1 commit and"), "{:?}", place.steps());
    assert_eq!(place.steps(), [3, 2]);
    assert!(prune(&place, &["--keep-last", "1"]).contains("deleted 0 commits and"), "{:?}", place.steps());
}
