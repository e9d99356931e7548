//! Files and directories that trainit may not read or write: one clear line, the right code, nothing lost. And the modes
//! of restored directories.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;

use crate::support::checkpoints::{Place, save_in, tree};
use crate::support::{Trainit, stopped};

/// The command as another user, which owns no file of the place.
fn as_other_user(place: &Place, action: &str) -> Trainit {
    let prefix = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"];
    place.checkpoint_through(&prefix, action, &place.local())
}

fn is_root(place: &Place) -> bool {
    fs::metadata(place.local()).unwrap().uid() == 0
}

fn open_to_all(place: &Place) {
    fs::create_dir_all(place.store()).unwrap();
    for path in [place.path(""), place.local(), place.store()] {
        fs::set_permissions(path, fs::Permissions::from_mode(0o777)).unwrap();
    }
}

#[test]
fn without_hard_links_a_checkpoint_is_committed_unless_it_is_deleted_during_the_copy() {
    if !is_root(&Place::new()) {
        return;
    }
    let place = Place::new();
    let saved = place.save(1);
    open_to_all(&place);
    as_other_user(&place, "push").output().expect_code(0);
    assert_eq!(tree(&place.pull_afresh("elsewhere").join("step-1")), saved);
    place.save(2);
    let push = as_other_user(&place, "push").env("TRAINIT_TEST_FAULT", "3:stop").start();
    stopped(&push);
    fs::remove_dir_all(place.local().join("step-2")).unwrap();
    push.signal(libc::SIGCONT);
    let done = push.finish().expect_code(1);
    assert!(done.err().contains("while it was copied"), "{}", done.err());
    assert_eq!(place.steps(), [1]);
}

#[test]
fn a_path_without_permission_is_named_in_one_line() {
    if !is_root(&Place::new()) {
        return;
    }
    let place = Place::new();
    place.save(1);
    open_to_all(&place);
    fs::set_permissions(place.local().join("step-1/weights.bin"), fs::Permissions::from_mode(0o600)).unwrap();
    let done = as_other_user(&place, "push").output();
    assert!([1, 204].contains(&done.code()) && done.err().contains("weights.bin"), "{}", done.err());
    fs::set_permissions(place.store(), fs::Permissions::from_mode(0o755)).unwrap();
    fs::remove_dir_all(place.store().join(".trainit")).unwrap();
    let done = as_other_user(&place, "push").output().expect_code(204);
    assert!(done.err().contains("Permission denied") && done.err().lines().count() == 1, "{}", done.err());
    fs::set_permissions(place.store(), fs::Permissions::from_mode(0o777)).unwrap();
    let _ = fs::remove_dir_all(place.store().join("step-1"));
    fs::set_permissions(place.local().join("step-1/weights.bin"), fs::Permissions::from_mode(0o644)).unwrap();
    fs::set_permissions(place.local(), fs::Permissions::from_mode(0o555)).unwrap();
    fs::remove_dir_all(place.local().join(".trainit")).unwrap();
    as_other_user(&place, "push").output().expect_code(0);
    assert_eq!(place.steps(), [1], "readable files can be sent");
}

/// A place with step 1, pushed by another user. `None` if the tests do not run as root.
fn pushed_by_other_user() -> Option<Place> {
    let place = Place::new();
    if !is_root(&place) {
        return None;
    }
    place.save(1);
    open_to_all(&place);
    as_other_user(&place, "push").output().expect_code(0);
    Some(place)
}

#[test]
fn a_read_only_directory_can_be_pushed_and_a_run_that_would_restore_into_it_is_125() {
    let place = Place::new();
    place.save(1);
    let script = "mount --bind \"$1\" \"$1\" && mount -o remount,bind,ro \"$1\" && shift && exec \"$@\"";
    let (local, url) = (place.local(), place.url());
    let prefix = ["unshare", "-rm", "sh", "-c", script, "sh", local.to_str().unwrap()];
    let places = ["--checkpoint-store", &url, "--checkpoint-dir", local.to_str().unwrap()];
    let read_only =
        |command: &[&str], operands: &[&str]| Trainit::through(&prefix, [command, &places, operands].concat()).output();
    let done = read_only(&["checkpoint", "push"], &[]).expect_code(0);
    assert_eq!(done.err(), "");
    assert!(read_only(&["checkpoint", "push"], &[]).expect_code(0).out().contains("nothing to push"));
    assert_eq!(place.steps(), [1]);
    let done = read_only(&["run"], &["--", "true"]).expect_code(125);
    assert!(done.err().contains("cannot use the checkpoint directory"), "{}", done.err());
}

#[test]
fn unreadable_files_do_not_prevent_a_start_but_unreadable_commits_do() {
    let Some(place) = pushed_by_other_user() else { return };
    // For example at the root of a disk.
    fs::create_dir(place.store().join("lost+found")).unwrap();
    fs::set_permissions(place.store().join("lost+found"), fs::Permissions::from_mode(0o700)).unwrap();
    as_other_user(&place, "prune").output().expect_code(0);
    std::os::unix::fs::chown(place.store().join(".trainit/commits"), Some(0), Some(0)).unwrap();
    fs::set_permissions(place.store().join(".trainit/commits"), fs::Permissions::from_mode(0o700)).unwrap();
    let done = as_other_user(&place, "prune").output().expect_code(204);
    assert!(done.err().contains("Permission denied") && done.err().contains(".trainit/commits"), "{}", done.err());
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o777
}

fn set_mode(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

#[test]
fn directories_are_restored_with_their_modes() {
    let place = Place::new();
    place.save(1);
    let unit = place.local().join("step-1");
    fs::create_dir(unit.join("empty")).unwrap();
    for (directory, mode) in [("", 0o755), ("layers", 0o755), ("empty", 0o755)] {
        set_mode(&unit.join(directory), mode);
    }
    place.push();
    let manifest = place.manifest().1;
    let paths: Vec<&str> = manifest["files"].as_array().unwrap().iter().map(|f| f["path"].as_str().unwrap()).collect();
    assert_eq!(paths, ["step-1/empty", "step-1/layers/0.bin", "step-1/state.json", "step-1/weights.bin"]);
    assert!(manifest.get("unit_mode").is_none(), "an ordinary mode is not stored");
    let modes = [("", 0o770), ("layers", 0o2707), ("empty", 0o555)];
    save_in(&place.local(), 2);
    let unit = place.local().join("step-2");
    fs::create_dir(unit.join("empty")).unwrap();
    for (directory, mode) in modes {
        set_mode(&unit.join(directory), mode);
    }
    place.push();
    let pulled = place.pull_afresh("pulled").join("step-2");
    let restored = modes.map(|(directory, _)| mode(&pulled.join(directory)));
    assert_eq!(restored, [0o770, 0o707, 0o755], "each owner can still use the directory");
    assert!(place.checkpoint_in("pull", &place.path("pulled")).output().out().contains("is already in place"));
}

#[test]
fn restored_files_belong_to_the_user_that_the_directory_belongs_to() {
    let place = Place::new();
    if !is_root(&place) {
        return;
    }
    place.save(1);
    std::os::unix::fs::symlink("weights.bin", place.local().join("step-1/link")).unwrap();
    fs::create_dir(place.local().join("step-1/empty")).unwrap();
    fs::set_permissions(place.local().join("step-1/weights.bin"), fs::Permissions::from_mode(0o600)).unwrap();
    place.push();
    let dir = place.path("elsewhere");
    fs::create_dir(&dir).unwrap();
    std::os::unix::fs::chown(&dir, Some(1000), Some(1001)).unwrap();
    place.pull_afresh("elsewhere");
    let paths = ["", "/weights.bin", "/layers", "/layers/0.bin", "/link", "/empty"].map(|name| format!("step-1{name}"));
    for path in paths {
        let found = fs::symlink_metadata(dir.join(&path)).unwrap();
        assert_eq!((found.uid(), found.gid()), (1000, 1001), "{path}");
    }
}
