//! Symbolic links in a checkpoint: links inside it stay links, and links out of it are followed on request.

use std::fs;
use std::os::unix::fs::symlink;

use crate::support::checkpoints::{Place, save_in, tree};
use crate::support::{Trainit, stopped};

/// A checkpoint with links to a file and a directory elsewhere, and to a file of an older checkpoint.
fn linked() -> Place {
    let place = Place::new();
    place.save(1);
    place.save(2);
    let (unit, base) = (place.local().join("step-2"), place.path("base"));
    fs::create_dir_all(base.join("tokens/empty")).unwrap();
    fs::write(base.join("tokens/vocabulary.txt"), "a b c").unwrap();
    fs::write(base.join("frozen.bin"), vec![7; 100_000]).unwrap();
    symlink(base.join("frozen.bin"), unit.join("frozen.bin")).unwrap();
    symlink("../../base/tokens", unit.join("tokens")).unwrap();
    symlink("../step-1/weights.bin", unit.join("before.bin")).unwrap();
    symlink("weights.bin", unit.join("same.bin")).unwrap();
    place
}

const FOLLOW: [&str; 1] = ["--follow-symlinks"];

#[test]
fn targets_of_links_out_of_the_checkpoint_are_copied_with_follow_symlinks() {
    let place = linked();
    let done = place.checkpoint("push").output().expect_code(0);
    let omitted =
        "step-2/frozen.bin is NOT committed: a symbolic link that leaves the checkpoint directory; --follow-symlinks";
    assert!(done.err().contains(omitted) && done.err().contains("step-2/tokens is NOT"), "{}", done.err());
    place.checkpoint("push").args(FOLLOW).output().expect_code(0);
    let pulled = place.pull_afresh("elsewhere").join("step-2");
    for name in ["frozen.bin", "tokens/vocabulary.txt"] {
        assert!(!fs::symlink_metadata(pulled.join(name)).unwrap().is_symlink(), "{name}");
        assert_eq!(fs::read(pulled.join(name)).unwrap(), fs::read(place.local().join("step-2").join(name)).unwrap());
    }
    assert!(pulled.join("tokens/empty").is_dir() && !pulled.join("tokens").is_symlink());
    assert_eq!(
        fs::read_link(pulled.join("same.bin")).unwrap().to_str(),
        Some("weights.bin"),
        "a link inside stays one"
    );
    place.checkpoint("verify").output().expect_code(0);
}

#[test]
fn a_checkpoint_that_is_itself_a_link_out_of_the_directory_is_reported_and_copied_on_request() {
    let place = Place::new();
    place.save(1);
    save_in(&place.path("scratch"), 7);
    symlink("../scratch/step-7", place.local().join("step-7")).unwrap();
    symlink("step-1", place.local().join("latest")).unwrap();
    let local = place.local();
    let run = ["run", "--settle", "0", "--checkpoint-dir", local.to_str().unwrap(), "--checkpoint-store", &place.url()];
    let done = Trainit::new(run).args(["--", "true"]).output().expect_code(0).err();
    let why = "step-7 is NOT committed: a symbolic link that leaves the checkpoint directory; \
               --follow-symlinks copies its target";
    assert!(done.contains(why) && !done.contains("latest is"), "{done}");
    let listed = Trainit::new(["checkpoint", "list", "--checkpoint-dir", local.to_str().unwrap()]).output();
    let listed = listed.expect_code(0).out();
    assert!(
        listed.lines().any(|line| line.contains("step-7 ") && line.contains("excluded: a symbolic link")),
        "{listed}"
    );
    place.checkpoint("push").args(FOLLOW).output().expect_code(0);
    assert_eq!(tree(&place.pull_afresh("elsewhere").join("step-7")), tree(&place.path("scratch/step-7")));
}

#[test]
fn a_link_to_the_checkpoints_own_root_stays_a_link() {
    let place = Place::new();
    place.save(1);
    symlink("..", place.local().join("step-1/layers/up")).unwrap();
    let saved = tree(&place.local().join("step-1"));
    place.push();
    assert_eq!(tree(&place.pull_afresh("elsewhere").join("step-1")), saved);
    place.checkpoint("push").args(FOLLOW).output().expect_code(0);
    assert_eq!(tree(&place.pull_afresh("followed").join("step-1")), saved);
}

#[test]
fn files_copied_through_links_are_neither_pushed_nor_fetched_again() {
    let place = linked();
    place.checkpoint("push").args(FOLLOW).output().expect_code(0);
    let before = tree(&place.local());
    let done = place.checkpoint("push").args(FOLLOW).output().expect_code(0);
    assert!(done.out().starts_with("nothing to push"), "{}", done.out());
    let done = place.checkpoint("pull").args(FOLLOW).output().expect_code(0);
    assert!(done.out().contains("already in place"), "{} {}", done.out(), done.err());
    assert_eq!(tree(&place.local()), before, "the links are still links");
    fs::write(place.path("base/frozen.bin"), vec![8; 100_000]).unwrap();
    assert!(place.checkpoint("push").args(FOLLOW).output().expect_code(0).out().starts_with("committed step-2"));
    fs::write(place.path("base/frozen.bin"), vec![9; 100_000]).unwrap();
    // As on another machine: a file that is written after a push is newer.
    fs::remove_dir_all(place.local().join(".trainit")).unwrap();
    place.checkpoint("pull").args(FOLLOW).output().expect_code(0);
    let now = place.local().join("step-2/frozen.bin");
    assert!(!now.is_symlink() && fs::read(now).unwrap() == vec![8; 100_000]);
    assert_eq!(fs::read(place.path("base/frozen.bin")).unwrap(), vec![9; 100_000], "files outside are not changed");
}

#[test]
fn a_dangling_link_and_a_circular_link_are_omitted_and_named() {
    for target in ["/nowhere/at/all", "../../around"] {
        let place = Place::new();
        place.save(1);
        symlink("around", place.path("around")).unwrap();
        symlink(target, place.local().join("step-1/odd")).unwrap();
        let done = place.checkpoint("push").args(FOLLOW).output().expect_code(0);
        assert!(done.err().contains("step-1/odd is NOT committed: a symbolic link"), "{target}: {}", done.err());
        assert_eq!(done.err().lines().count(), 1, "{}", done.err());
    }
}

#[test]
fn the_target_of_a_link_is_pinned_and_watched_like_any_other_file() {
    let place = linked();
    let frozen = place.path("base/frozen.bin");
    let push = place.checkpoint("push").args(FOLLOW).env("TRAINIT_TEST_FAULT", "3:stop").start();
    stopped(&push);
    fs::remove_file(&frozen).unwrap();
    push.signal(libc::SIGCONT);
    push.finish().expect_code(0);
    fs::write(&frozen, vec![8; 100_000]).unwrap();
    let push = place.checkpoint("push").args(FOLLOW).env("TRAINIT_TEST_FAULT", "3:stop").start();
    stopped(&push);
    let time = fs::metadata(&frozen).unwrap().modified().unwrap() + std::time::Duration::from_secs(1);
    fs::File::open(&frozen).unwrap().set_modified(time).unwrap();
    push.signal(libc::SIGCONT);
    let done = push.finish().expect_code(1);
    assert!(done.err().contains("step-2/frozen.bin changed while it was copied"), "{}", done.err());
    assert_eq!(place.steps(), [2]);
}
