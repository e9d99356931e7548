//! `trainit checkpoint prune`: the commits that it keeps, and the objects that it finds.

use std::fs;

use crate::support::Trainit;
use crate::support::checkpoints::Place;

fn prune(place: &Place, args: &[&str]) -> String {
    place.checkpoint("prune").args(args).output().expect_code(0).out()
}

#[test]
fn a_manual_prune_keeps_the_commit_that_the_newest_run_resumed_from() {
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

#[test]
fn orphaned_data_is_found_after_the_claims_are_gone() {
    let place = Place::new();
    place.save_and_push(1..=2);
    let (older, newest) = ("step-1/0000000001-000002", "step-2/0000000002-000002");
    for orphan in [older, newest] {
        fs::create_dir_all(place.store().join(orphan)).unwrap();
        fs::write(place.store().join(orphan).join("weights.bin"), "cut").unwrap();
    }
    fs::remove_dir_all(place.store().join(".trainit/attempts")).unwrap();
    let text = prune(&place, &["--orphan-age", "0s"]);
    assert!(text.contains("1 objects without a commit; 2 commits stay"), "{text}");
    assert!(!place.store().join(older).exists());
    assert!(place.store().join(newest).exists(), "that attempt may go on still");
}

#[test]
fn a_poisoned_commit_is_named_and_does_not_count_as_kept() {
    let place = Place::new();
    place.save_and_push(1..=3);
    fs::create_dir_all(place.store().join(".trainit/bad")).unwrap();
    fs::write(place.store().join(".trainit/bad/0000000003-000001.json"), "{}").unwrap();
    let list = place.checkpoint("list").output().expect_code(0).out();
    assert!(list.contains("step-3  poisoned: a trainer failed twice"), "{list}");
    prune(&place, &["--keep-last", "1"]);
    assert_eq!(place.steps(), [3, 2], "it is kept, because training continues from it, and so is one that is good");
}

#[test]
fn a_dry_prune_reports_the_same_orphaned_data_as_a_real_one() {
    let place = Place::new();
    place.save_and_push(1..=3);
    let store = place.store();
    // The data of an unreadable manifest are unknown, so they belong to no commit after it is deleted.
    let oldest =
        fs::read_dir(store.join(".trainit/commits")).unwrap().map(|entry| entry.unwrap().path()).min().unwrap();
    fs::write(oldest, "{").unwrap();
    fs::write(store.join("step-2/0000000002-000001/left.bin"), "of a save that was cut off").unwrap();
    fs::write(store.join("notes.txt"), "a foreign file").unwrap();
    let args = ["--keep-last", "1", "--orphan-age", "0s"];
    let dry = prune(&place, &[&args[..], &["--dry-run"]].concat());
    let real = prune(&place, &args);
    assert!(real.contains("deleted 2 commits and 4 objects without a commit; 1 commit stays"), "{real}");
    assert_eq!(dry.replace("would delete", "deleted"), real);
    assert!(store.join("notes.txt").exists(), "what is another's is left alone, and no word is lost on it");
}
