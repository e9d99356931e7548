//! Several processes in one checkpoint directory, which is common on a network file system.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use crate::support::checkpoints::{Place, save_in, tree};
use crate::support::{Finished, Running, Trainit, stopped};

/// A restore of the place's newest commit, stopped at a fault point.
fn stopped_pull(place: &Place, pulled: &Path, point: u32) -> Running {
    let pull = place.checkpoint_in("pull", pulled).env("TRAINIT_TEST_FAULT", format!("{point}:stop")).start();
    stopped(&pull);
    pull
}

fn names(dir: &Path) -> Vec<PathBuf> {
    fs::read_dir(dir).map(|names| names.map(|name| name.unwrap().path()).collect()).unwrap_or_default()
}

#[track_caller]
fn is_in_place(done: Finished, what: &str) {
    assert!(done.code() == 0 && done.out().contains("in place"), "{what}: {} {}", done.out(), done.err());
}

#[track_caller]
fn nothing_is_left(pulled: &Path, what: &str) {
    for name in ["tmp", "restoring.json", "aside"] {
        assert!(!pulled.join(".trainit").join(name).exists(), "{what} left {name}");
    }
}

/// One checkpoint of several files in a directory, or side by side.
fn committed(side_by_side: bool) -> Place {
    let place = Place::new();
    if side_by_side {
        for name in ["D_2.msgpack", "G_2.msgpack", "K_2.msgpack"] {
            fs::write(place.local().join(name), name.repeat(500)).unwrap();
        }
    } else {
        place.save(2);
    }
    place.push();
    place
}

#[test]
fn a_concurrent_restore_keeps_the_fetched_files_of_one_that_has_not_placed_any() {
    for (side_by_side, point) in [(false, 20), (false, 21), (false, 22), (true, 20), (true, 21), (true, 22)] {
        let what = format!("side by side {side_by_side}, point {point}");
        let place = committed(side_by_side);
        let pulled = place.path("pulled");
        let first = stopped_pull(&place, &pulled, point);
        is_in_place(place.checkpoint_in("pull", &pulled).output(), &what);
        let inodes = || names(&pulled).iter().map(|path| fs::metadata(path).unwrap().ino()).collect::<Vec<_>>();
        let put = inodes();
        first.signal(libc::SIGCONT);
        is_in_place(first.finish(), &what);
        assert_eq!(tree(&pulled), tree(&place.local()), "{what}");
        assert_eq!(inodes(), put, "{what}: what is whole and in use stays");
        nothing_is_left(&pulled, &what);
    }
}

#[test]
fn a_restore_that_starts_while_another_places_files_waits_and_uses_them() {
    for (side_by_side, point) in [false, true].into_iter().flat_map(|kind| (23..=29).map(move |at| (kind, at))) {
        // Nothing conflicts, so nothing is cleared.
        if point == 24 {
            continue;
        }
        let what = format!("side by side {side_by_side}, point {point}");
        let place = committed(side_by_side);
        let pulled = place.path("pulled");
        let first = stopped_pull(&place, &pulled, point);
        let second = place.checkpoint_in("pull", &pulled).start();
        first.signal(libc::SIGCONT);
        is_in_place(first.finish(), &what);
        is_in_place(second.finish(), &what);
        assert_eq!(tree(&pulled), tree(&place.local()), "{what}");
        nothing_is_left(&pulled, &what);
    }
}

#[test]
fn a_node_with_an_empty_part_of_the_store_takes_nothing_from_a_restoring_node() {
    let place = committed(false);
    let pulled = place.path("pulled");
    let first = stopped_pull(&place, &pulled, 22);
    let other = format!("file://{}", place.path("another store").display());
    let run = ["run", "--checkpoint-store", &other, "--checkpoint-dir", pulled.to_str().unwrap(), "--", "true"];
    Trainit::new(run).output().expect_code(0);
    first.signal(libc::SIGCONT);
    is_in_place(first.finish(), "the node that restores");
    assert_eq!(tree(&pulled), tree(&place.local()));
}

#[test]
fn leftovers_of_killed_restores_are_removed_and_files_of_running_ones_are_kept() {
    let place = committed(false);
    let pulled = place.path("pulled");
    let living = stopped_pull(&place, &pulled, 22);
    let tmp = pulled.join(".trainit/tmp");
    let alive = names(&tmp);
    place.checkpoint_in("pull", &pulled).env("TRAINIT_TEST_FAULT", "22").output().expect_code(137);
    assert_eq!(names(&tmp).len(), 2);
    // On other machines, whose locks are not visible: one touched just now, one long ago.
    let elsewhere = |name: &str, ago: u64| {
        fs::create_dir_all(tmp.join(name).join("files")).unwrap();
        let lock = fs::File::create(tmp.join(name).join("lock")).unwrap();
        lock.set_modified(SystemTime::now() - Duration::from_secs(ago)).unwrap();
        tmp.join(name)
    };
    let (fresh, old) = (elsewhere("another-kernel-1", 100), elsewhere("another-kernel-2", 1000));
    place.checkpoint_in("pull", &pulled).output().expect_code(0);
    assert!(alive[0].exists() && fresh.exists() && !old.exists());
    assert_eq!(names(&tmp).len(), 2, "the directory of the killed restore is removed");
    living.signal(libc::SIGCONT);
    is_in_place(living.finish(), "the running restore");
}

#[test]
fn files_that_are_removed_before_the_restore_is_reported_are_restored_again() {
    let place = committed(false);
    let pulled = place.path("pulled");
    let pull = stopped_pull(&place, &pulled, 25);
    fs::remove_file(pulled.join("step-2/layers/0.bin")).unwrap();
    fs::write(pulled.join("step-2/state.json"), "{").unwrap();
    pull.signal(libc::SIGCONT);
    is_in_place(pull.finish(), "the repeated restore");
    assert_eq!(tree(&pulled.join("step-2")), tree(&place.local().join("step-2")));
}

#[test]
fn a_commit_to_another_store_removes_no_pins() {
    let place = Place::new();
    let saved = place.save(2);
    let push = place.checkpoint("push").env("TRAINIT_TEST_FAULT", "3:stop").start();
    stopped(&push);
    let (other, local) = (format!("file://{}", place.path("another store").display()), place.local());
    let args = ["checkpoint", "push", "--checkpoint-store", &other, "--checkpoint-dir", local.to_str().unwrap()];
    Trainit::new(args).args(["--settle", "0"]).output().expect_code(0);
    fs::remove_dir_all(place.local().join("step-2")).unwrap();
    push.signal(libc::SIGCONT);
    push.finish().expect_code(0);
    assert_eq!(tree(&place.pull_afresh("pulled").join("step-2")), saved);
    assert!(!place.local().join(".trainit/pin").exists());
}

#[test]
fn a_restore_without_permission_to_move_a_checkpoint_names_it_and_leaves_it() {
    let place = committed(false);
    if fs::metadata(place.local()).unwrap().uid() != 0 {
        return;
    }
    let pulled = place.path("pulled");
    save_in(&pulled, 2);
    fs::write(pulled.join("step-2/weights.bin"), "another life's").unwrap();
    for (path, mode) in [(place.path(""), 0o777), (pulled.clone(), 0o777), (pulled.join("step-2"), 0o555)] {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    }
    let as_other_user = |args: &[&str]| {
        let as_nobody = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"];
        Trainit::through(&as_nobody, args.iter().chain(&["--checkpoint-dir", pulled.to_str().unwrap()])).output()
    };
    let done = as_other_user(&["checkpoint", "pull", "--checkpoint-store", &place.url()]).expect_code(125);
    assert!(
        done.err().contains("cannot restore step-2/weights.bin into") && done.err().contains("rename step-2"),
        "{}",
        done.err()
    );
    assert!(!pulled.join(".trainit/restoring").exists());
    let local = Trainit::new(["run", "--checkpoint-dir", pulled.to_str().unwrap()]);
    let done = local.args(["--", "sh", "-c", "echo $TRAINIT_RESUME_FROM"]).output().expect_code(0);
    assert_eq!(done.out(), format!("{}/step-2\n", pulled.display()), "{}", done.err());
}

#[test]
fn a_checkpoint_directory_that_is_a_link_to_nothing_is_125_in_one_line() {
    let place = committed(false);
    let link = place.path("link");
    symlink("nowhere", &link).unwrap();
    let done = place.checkpoint_in("pull", &link).output().expect_code(125);
    assert!(done.err().contains("symbolic link") && done.err().lines().count() == 1, "{}", done.err());
    let (url, link) = (place.url(), link.to_str().unwrap());
    let run = ["run", "--checkpoint-store", &url, "--checkpoint-dir", link, "--", "true"];
    let done = Trainit::new(run).output().expect_code(125);
    assert!(done.err().contains("cannot use the checkpoint directory"), "{}", done.err());
}
