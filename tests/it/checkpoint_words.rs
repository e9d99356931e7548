//! What `trainit checkpoint` says, and how it takes what the environment says.

use std::fs;

use crate::support::Trainit;
use crate::support::checkpoints::Place;

#[test]
fn a_name_that_could_move_the_cursor_is_shown_without_that() {
    let place = Place::new();
    let (empty, store) = (place.path("a\u{1b}[2Jb"), place.path("s\u{1b}[2Jt"));
    for dir in [&empty, &store] {
        fs::create_dir(dir).unwrap();
    }
    let url = format!("file://{}", store.display());
    let list = ["checkpoint", "list", "--checkpoint-store", &url, "--checkpoint-dir"];
    let out = Trainit::new(list).args([&empty]).output().expect_code(0).out();
    assert!(out.contains("/s\u{fffd}[2Jt\n") && out.contains("/a\u{fffd}[2Jb\n"), "{out:?}");
    assert!(!out.contains('\u{1b}'), "{out:?}");
}

#[test]
fn the_platforms_place_for_checkpoints_is_the_store_without_a_directory_too() {
    let place = Place::new();
    place.save(1);
    place.push();
    for deed in ["list", "verify", "prune"] {
        Trainit::new(["checkpoint", deed]).env("AIP_CHECKPOINT_DIR", place.url()).output().expect_code(0);
    }
    let list = Trainit::new(["checkpoint", "list"]).env("AIP_CHECKPOINT_DIR", place.store()).output().expect_code(0);
    assert!(list.out().contains("step-1"), "{}", list.out());
}
