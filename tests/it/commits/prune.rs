//! `trainit checkpoint prune`: the commits that it keeps, and the objects that it finds.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::symlink;

use super::schedules::{Kept, config, runtime, save};
use crate::support::Trainit;
use crate::support::checkpoints::{Place, tree};
use trainit::supervisor::checkpoints::commit::outcome::{Ask, Outcome};
use trainit::supervisor::checkpoints::mirror::Mirror;

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
    assert!(place.store().join(newest).exists(), "that attempt may still run");
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
    assert_eq!(place.steps(), [3, 2], "the commit that training resumes from and one good commit are kept");
}

#[test]
fn a_dry_prune_reports_the_same_orphaned_data_as_a_real_one() {
    let place = Place::new();
    place.save_and_push(1..=3);
    let store = place.store();
    // The data of an unreadable manifest is unknown, so it belongs to no commit after it is deleted.
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
    assert!(store.join("notes.txt").exists(), "foreign objects stay and are not mentioned");
}

#[test]
fn retention_keeps_the_newest_and_the_multiples_and_deletes_their_data_too() {
    let place = Place::new();
    for step in 1..=6 {
        place.save(step);
        place
            .checkpoint("push")
            .args(["--keep-last", "2", "--keep-every", "3", "--keep-saves", "1"])
            .output()
            .expect_code(0);
    }
    assert_eq!(place.steps(), [6, 5, 3]);
    let mut left: Vec<_> = fs::read_dir(place.store()).unwrap().map(|e| e.unwrap().file_name()).collect();
    left.sort();
    assert_eq!(left, [".trainit", "step-3", "step-5", "step-6"]);
    for step in 1..=6 {
        assert!(place.local().join(format!("step-{step}/weights.bin")).exists(), "nothing local is deleted");
    }
}

#[test]
fn an_older_commit_is_not_deleted_while_the_newer_ones_are_torn() {
    let place = Place::new();
    place.save_and_push(1..=2);
    fs::remove_file(place.store().join("step-2/0000000002-000001/weights.bin")).unwrap();
    place.save(3);
    place.checkpoint("push").args(["--keep-last", "2"]).output().expect_code(0);
    assert_eq!(place.steps(), [3, 1]);
}

#[test]
fn a_dry_prune_only_reports_what_it_would_delete() {
    let place = Place::new();
    place.save_and_push(1..=3);
    let prune = || place.checkpoint("prune").args(["--keep-last", "1"]);
    let done = prune().args(["--dry-run"]).output().expect_code(0);
    assert!(done.out().contains("would delete 2 commits"), "{}", done.out());
    assert_eq!(place.steps(), [3, 2, 1]);
    prune().output().expect_code(0);
    assert_eq!(place.steps(), [3]);
}

#[test]
fn data_of_no_commit_is_pruned_when_it_is_a_day_old_and_no_other_stores_data_ever() {
    let place = Place::new();
    place.save(1);
    place.checkpoint("push").env("TRAINIT_TEST_FAULT", "8").output().expect_code(137);
    let orphan = place.store().join("step-1/0000000001-000001");
    let others = place.store().join("node-00001/step-1/0000000001-000001");
    fs::create_dir_all(&others).unwrap();
    fs::write(others.join("w"), "1").unwrap();
    // A node claims its attempt before it has data. Here its store is on another disk, where only a lookup by name
    // finds it.
    fs::create_dir_all(place.path("claims/attempts")).unwrap();
    fs::write(place.path("claims/attempts/0000000001.json"), "{}").unwrap();
    symlink(place.path("claims"), place.store().join("node-00001/.trainit")).unwrap();
    fs::write(orphan.join("half#1"), "1").unwrap();
    fs::write(place.store().join("notes#1"), "1").unwrap();
    place.push();
    let age = |path: &std::path::Path| {
        for entry in fs::read_dir(path).unwrap().map(|e| e.unwrap().path()).filter(|p| p.is_file()) {
            let day_before_yesterday = std::time::SystemTime::now() - std::time::Duration::from_secs(48 * 3600);
            fs::File::open(entry).unwrap().set_modified(day_before_yesterday).unwrap();
        }
    };
    place.checkpoint("prune").output().expect_code(0);
    assert!(orphan.join("weights.bin").exists(), "young data may be on its way into a commit");
    let own = place.store().join("step-1/0000000002-000001");
    for path in [orphan.clone(), orphan.join("layers"), others.clone(), own, place.store()] {
        age(&path);
    }
    let done = place.checkpoint("prune").args(["--dry-run"]).output().expect_code(0);
    assert!(done.out().contains("0 commits and 3 objects"), "{}", done.out());
    place.checkpoint("prune").output().expect_code(0);
    assert!(!orphan.exists());
    assert!(others.join("w").exists() && place.store().join("notes#1").exists());
    assert_eq!(place.steps(), [1]);
    place.checkpoint("verify").output().expect_code(0);
}

#[test]
fn young_data_without_a_commit_is_deleted_on_request_and_committed_data_never() {
    let place = Place::new();
    let saved = place.save(1);
    place.checkpoint("push").env("TRAINIT_TEST_FAULT", "8").output().expect_code(137);
    place.push();
    let orphan = place.store().join("step-1/0000000001-000001");
    place.checkpoint("prune").args(["--orphan-age", "1h"]).output().expect_code(0);
    assert!(orphan.exists());
    place.checkpoint("prune").args(["--orphan-age", "0s"]).output().expect_code(0);
    assert!(!orphan.exists());
    assert_eq!(tree(&place.pull_afresh("elsewhere").join("step-1")), saved);
}

/// A run commits three checkpoints that share a file, and the next run a fourth.
fn commit_four(place: &Place) {
    let kept = Kept { last: 9, every: None };
    let runtime = runtime();
    runtime.block_on(async {
        for steps in [1..=3, 4..=4] {
            let mut run = Mirror::open(config(&place.local(), &place.store(), kept, true)).await.unwrap();
            for step in steps {
                save(&place.local(), step, &format!("step-{step}"));
                let outcome = run.commit(&Ask::at_rest(), &|_, _| {}).await;
                assert!(matches!(outcome, Outcome::Committed { .. }), "{outcome:?}");
            }
        }
    });
}

#[test]
fn a_prune_killed_anywhere_leaves_every_commit_with_its_shared_files() {
    // After each manifest, and after each of the seven files that belong only to deleted commits.
    let manifests = (1..=3).map(|time| (10, time));
    for (point, time) in manifests.chain((1..=7).map(|time| (11, time))) {
        let place = Place::new();
        commit_four(&place);
        let prune = place.checkpoint("prune").args(["--keep-last", "1"]);
        prune.env("TRAINIT_TEST_FAULT", format!("{point}:kill:{time}")).output().expect_code(137);
        let verified = place.checkpoint("verify").output();
        assert_eq!(verified.code(), 0, "killed at point {point}, time {time}: {}", verified.out());
    }
    let place = Place::new();
    commit_four(&place);
    place.checkpoint("prune").args(["--keep-last", "1"]).output().expect_code(0);
    let left = fs::read_dir(place.store()).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap());
    assert_eq!(left.collect::<BTreeSet<_>>(), [".trainit", "step-4"].map(str::to_owned).into());
}
