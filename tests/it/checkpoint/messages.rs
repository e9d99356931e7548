//! The messages of `trainit checkpoint`, and its use of the environment.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use crate::support::Trainit;
use crate::support::checkpoints::Place;

#[test]
fn a_name_with_control_characters_is_shown_escaped() {
    let place = Place::new();
    let (empty, store) = (place.path("a\u{1b}[2Jb"), place.path("s\u{1b}[2Jt"));
    for dir in [&empty, &store] {
        fs::create_dir(dir).unwrap();
    }
    let url = format!("file://{}", store.display());
    let list = ["checkpoint", "list", "--checkpoint-store", &url, "--checkpoint-dir"];
    let out = Trainit::new(list).args([&empty]).output().expect_code(0).out();
    // A path with such a character is no plausible path, so only its length is shown.
    assert!(out.contains("/s\u{fffd}[2Jt\n") && out.contains("no checkpoints in a text of "), "{out:?}");
    assert!(!out.contains('\u{1b}'), "{out:?}");
}

#[test]
fn the_platforms_checkpoint_address_is_the_store_also_without_a_directory() {
    let place = Place::new();
    place.save(1);
    place.push();
    for action in ["list", "verify", "prune"] {
        Trainit::new(["checkpoint", action]).env("AIP_CHECKPOINT_DIR", place.url()).output().expect_code(0);
    }
    let list = Trainit::new(["checkpoint", "list"]).env("AIP_CHECKPOINT_DIR", place.store()).output().expect_code(0);
    assert!(list.out().contains("step-1"), "{}", list.out());
}

#[test]
fn the_error_of_a_pull_does_not_mention_the_start_of_a_run() {
    let place = Place::new();
    fs::create_dir(place.store()).unwrap();
    let pull = |dir: &Path, args: &[&str], code: i32| {
        let line = place.checkpoint_in("pull", dir).args(args).output().expect_code(code).err();
        let is_of_a_run = ["started", "scratch", "start again"].iter().any(|word| line.contains(word));
        assert!(line.contains("nothing was pulled") && !is_of_a_run, "{line}");
        line
    };
    let (pulled, linked) = (place.path("pulled"), place.path("linked"));
    let line = pull(&pulled, &["--restore", "required"], 204);
    assert!(line.contains("see that this is the store that the run was given"), "{line}");
    place.save(1);
    place.push();
    fs::create_dir(&linked).unwrap();
    symlink("elsewhere", linked.join(".trainit")).unwrap();
    assert!(pull(&linked, &[], 125).contains("move it away"));
    fs::remove_dir_all(place.store().join("step-1")).unwrap();
    assert!(pull(&pulled, &[], 204).ends_with("repair the store\n"));
    assert!(pull(&pulled, &["--restore-step", "9"], 204).contains("committed are 1"));
}

#[test]
fn a_checkpoint_without_a_step_is_not_shown_as_step_0() {
    let place = Place::new();
    let unit = place.local().join("ckpt_2024_06_30");
    fs::create_dir(&unit).unwrap();
    fs::write(unit.join("model.safetensors"), b"\x02\0\0\0\0\0\0\0{}").unwrap();
    place.push();
    let pulled = place.path("pulled");
    let pull =
        |step| place.checkpoint_in("pull", &pulled).args(["--restore-step", step]).output().expect_code(204).err();
    let (zero, seven) = (pull("0"), pull("7"));
    assert!(!zero.contains("committed are") && zero.contains("without --restore-step the newest is taken"), "{zero}");
    assert!(seven.contains("committed are 0 (or without a step)"), "{seven}");
}

#[test]
fn a_new_store_inside_the_checkpoint_directory_is_refused_before_the_first_push() {
    let place = Place::new();
    let local = place.local().display().to_string();
    let url = format!("file://{local}/store");
    let push = ["checkpoint", "push", "--checkpoint-dir", &local, "--checkpoint-store", &url];
    let done = Trainit::new(push).output().expect_code(125);
    assert!(done.err().contains("overlap"), "{}", done.err());
}
