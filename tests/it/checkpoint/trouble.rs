//! Full disks, read-only places, too few descriptors: one clear line, the right code, nothing lost.

use std::fs;
use std::os::unix::fs::symlink;

use crate::support::checkpoints::{Place, tree};
use crate::support::{Trainit, stopped};

/// Runs trainit with a small tmpfs at a path, in a separate mount namespace.
fn with_tmpfs(place: &Place, action: &str, at: &std::path::Path, size: &str) -> Trainit {
    fs::create_dir_all(at).unwrap();
    let script = "mount -t tmpfs -o size=$1 tmpfs \"$2\" && shift 2 && exec \"$@\"";
    let prefix = ["unshare", "-rm", "sh", "-c", script, "sh", size, at.to_str().unwrap()];
    place.checkpoint_through(&prefix, action, &place.local())
}

#[test]
fn a_full_store_is_204_in_one_line_and_nothing_committed_is_lost() {
    let place = Place::new();
    place.save(1);
    fs::write(place.local().join("step-1/big.bin"), vec![1; 3 << 20]).unwrap();
    let done = with_tmpfs(&place, "push", &place.store(), "1m").output().expect_code(204);
    assert_eq!(done.err().lines().count(), 1, "{}", done.err());
    assert!(done.err().contains("No space left on device"), "{}", done.err());
}

#[test]
fn in_a_full_store_expendable_commits_are_deleted_to_make_room() {
    let place = Place::new();
    fs::create_dir_all(place.store()).unwrap();
    let from = place.path("from");
    for step in 1..=3 {
        fs::create_dir_all(from.join(format!("step-{step}"))).unwrap();
        fs::write(from.join(format!("step-{step}/weights.bin")), vec![step; 1 << 20]).unwrap();
    }
    let script = "mount -t tmpfs -o size=2500k tmpfs \"$1\" && from=$2 to=$3 && shift 3
                  for step in 1 2 3; do mv \"$from/step-$step\" \"$to\"; \"$@\" --keep-last 3; echo code $?; done
                  \"$@\" --keep-last 1; echo code $?";
    let (local, store) = (place.local(), place.store());
    let paths = [&store, &from, &local].map(|path| path.to_str().unwrap());
    let prefix = [&["unshare", "-rm", "sh", "-c", script, "sh"][..], &paths].concat();
    let url = place.url();
    let args = [
        "checkpoint",
        "push",
        "--checkpoint-store",
        &url,
        "--checkpoint-dir",
        paths[2],
        "--settle",
        "0",
        "--keep-saves",
        "1",
    ];
    let done = Trainit::through(&prefix, args).output();
    let out = done.out();
    let codes: Vec<&str> = out.lines().filter(|line| line.starts_with("code")).collect();
    assert_eq!(codes, ["code 0", "code 0", "code 204", "code 0"], "{}", done.err());
    assert!(done.err().contains("trainit checkpoint prune"), "{}", done.err());
}

#[test]
fn an_impossible_attempt_number_is_ignored_and_the_last_possible_one_is_an_error() {
    let claimed = |name: &str| {
        let place = Place::new();
        place.save(1);
        fs::create_dir_all(place.store().join(".trainit/attempts")).unwrap();
        fs::write(place.store().join(".trainit/attempts").join(name), "{}").unwrap();
        place
    };
    let place = claimed("18446744073709551615.json");
    place.push();
    assert_eq!(place.steps(), [1]);
    assert!(place.store().join(".trainit/attempts/0000000001.json").exists());
    let place = claimed("9999999999.json");
    let done = place.checkpoint("push").output().expect_code(204);
    assert_eq!(done.err().lines().count(), 1, "{}", done.err());
    assert!(done.err().contains("attempts/9999999999.json") && done.err().contains("delete it"), "{}", done.err());
}

#[test]
fn a_read_only_store_is_204_in_one_line() {
    let place = Place::new();
    place.save(1);
    place.push();
    place.save(2);
    let script = "mount --bind \"$1\" \"$1\" && mount -o remount,bind,ro \"$1\" && shift && exec \"$@\"";
    let (local, store) = (place.local(), place.store());
    let prefix = ["unshare", "-rm", "sh", "-c", script, "sh", store.to_str().unwrap()];
    let url = place.url();
    let args = ["checkpoint", "push", "--checkpoint-store", &url, "--checkpoint-dir", local.to_str().unwrap()];
    let done = Trainit::through(&prefix, args).output().expect_code(204);
    assert_eq!(done.err().lines().count(), 1, "{}", done.err());
    assert!(done.err().contains("Read-only file system"), "{}", done.err());
}

#[test]
fn a_file_in_place_of_the_state_directory_is_named() {
    for is_link in [false, true] {
        let place = Place::new();
        place.save(1);
        let corner = place.local().join(".trainit");
        if is_link {
            symlink("elsewhere", &corner).unwrap()
        } else {
            fs::write(&corner, "").unwrap()
        }
        let (local, url) = (place.local(), place.url());
        let run = ["run", "--checkpoint-store", &url, "--checkpoint-dir", local.to_str().unwrap(), "--", "true"];
        let done = Trainit::new(run).output().expect_code(125);
        let words =
            "a directory must be (the directory itself, .trainit, or a part of the checkpoint's path); move it away";
        assert!(done.err().contains("cannot use the checkpoint directory"), "{}", done.err());
        assert!(done.err().contains(words) && !done.err().contains("can be written"), "{}", done.err());
    }
}

#[test]
fn a_disk_too_full_for_the_restore_is_204_before_anything_is_written() {
    let place = Place::new();
    place.save(1);
    fs::write(place.local().join("step-1/big.bin"), vec![1; 3 << 20]).unwrap();
    place.push();
    let done = with_tmpfs(&place, "pull", &place.local(), "2m").output().expect_code(204);
    assert!(done.err().contains("bytes free and the checkpoint needs"), "{}", done.err());
}

#[test]
fn a_mount_at_the_path_of_a_checkpoint_is_named_as_the_obstacle() {
    let place = Place::new();
    place.save_and_push(1..=1);
    fs::remove_dir_all(place.local()).unwrap();
    let done = with_tmpfs(&place, "pull", &place.local().join("step-1"), "1m").output().expect_code(204);
    assert_eq!(done.err().lines().count(), 1, "{}", done.err());
    assert!(done.err().contains("something is mounted"), "{}", done.err());
}

#[test]
fn an_incomplete_checkpoint_needs_no_space() {
    let place = Place::new();
    place.save(1);
    place.push();
    place.save(2);
    fs::write(place.local().join("step-2/big.bin"), vec![1; 3 << 20]).unwrap();
    place.push();
    let data = fs::read_dir(place.store().join("step-2")).unwrap().next().unwrap().unwrap().path();
    fs::remove_file(data.join("big.bin")).unwrap();
    let done = with_tmpfs(&place, "pull", &place.local(), "2m").output().expect_code(0);
    assert!(done.out().contains("step-1") && done.err().contains("big.bin is missing"), "{}{}", done.out(), done.err());
}

#[test]
fn a_disk_that_fills_up_during_the_restore_is_204_in_one_line_and_partial_files_are_removed() {
    // Many small files need more blocks than bytes, and each needs an inode.
    for size in ["600k", "8m,nr_inodes=60"] {
        let place = Place::new();
        let unit = place.local().join("step-1");
        fs::create_dir(&unit).unwrap();
        for number in 0..300 {
            fs::write(unit.join(number.to_string()), "x").unwrap();
        }
        place.push();
        let pulled = place.path("pulled");
        fs::create_dir(&pulled).unwrap();
        let script =
            "mount -t tmpfs -o size=$1 tmpfs \"$2\" && at=$2 && shift 2 && \"$@\"; code=$?; find \"$at\"; exit $code";
        let prefix = ["unshare", "-rm", "sh", "-c", script, "sh", size, pulled.to_str().unwrap()];
        let args =
            ["checkpoint", "pull", "--checkpoint-store", &place.url(), "--checkpoint-dir", pulled.to_str().unwrap()];
        let done = Trainit::through(&prefix, args).output().expect_code(204);
        assert_eq!(done.err().lines().count(), 1, "{size}: {}", done.err());
        assert!(done.err().contains("no space left in") && done.err().contains("free space there"), "{}", done.err());
        let left: Vec<String> = done.out().lines().map(|l| l.replace(pulled.to_str().unwrap(), "")).collect();
        assert!(left.iter().all(|path| ["", "/.trainit"].contains(&path.as_str())), "{size}: {left:?}");
    }
}

#[test]
fn a_file_that_becomes_shorter_or_is_written_again_during_the_copy_drops_the_commit() {
    type Change = fn(&std::path::Path);
    let changes: [Change; 2] = [
        |path| fs::OpenOptions::new().write(true).open(path).unwrap().set_len(10).unwrap(),
        |path| fs::write(path, fs::read(path).unwrap().to_ascii_uppercase()).unwrap(),
    ];
    for (number, change) in changes.iter().enumerate() {
        for point in ["3:stop", "4:stop:2", "6:stop"] {
            let place = Place::new();
            place.save(1);
            place.push();
            place.save(2);
            let push = place.checkpoint("push").env("TRAINIT_TEST_FAULT", point).start();
            stopped(&push);
            change(&place.local().join("step-2/weights.bin"));
            push.signal(libc::SIGCONT);
            let done = push.finish().expect_code(1);
            assert!(done.err().contains("while it was copied"), "{number} at {point}: {}", done.err());
            assert_eq!(place.steps(), [1], "{number} at {point}");
        }
    }
}

#[test]
fn the_longest_and_deepest_names_are_committed_and_restored() {
    let place = Place::new();
    let unit = place.local().join("step-1");
    let deep = unit.join(["a-directory-of-some-length"; 40].join("/"));
    fs::create_dir_all(&deep).unwrap();
    fs::write(deep.join("last"), "deep").unwrap();
    for end in ["a", "b"] {
        fs::write(unit.join(format!("{}{end}", "n".repeat(254))), end).unwrap();
        fs::write(unit.join(format!("{}{end}", "\n".repeat(254))), end).unwrap();
    }
    place.push();
    assert_eq!(tree(&place.pull_afresh("elsewhere").join("step-1")), tree(&unit));
    place.checkpoint("verify").output().expect_code(0);
}

#[test]
fn nothing_starts_from_scratch_if_another_file_is_in_the_place_of_the_commits() {
    for is_link in [false, true] {
        let place = Place::new();
        place.save(1);
        place.push();
        let (commits, local) = (place.store().join(".trainit/commits"), place.path("another machine"));
        fs::rename(&commits, place.path("away")).unwrap();
        if is_link {
            symlink("nowhere", &commits).unwrap()
        } else {
            fs::write(&commits, "").unwrap()
        }
        let run = ["run", "--checkpoint-store", &place.url(), "--checkpoint-dir", local.to_str().unwrap()];
        let done = Trainit::new(run).args(["--", "echo", "from scratch"]).output().expect_code(204);
        assert!(done.out().is_empty() && done.err().contains("/.trainit/commits: Not a directory"), "{}", done.err());
        for action in ["list", "prune"] {
            let done = place.checkpoint(action).output().expect_code(204);
            assert!(done.err().contains("/.trainit/commits: Not a directory"), "{}", done.err());
        }
    }
}

#[test]
fn with_too_few_descriptors_it_fails_in_one_line_and_nothing_is_lost() {
    for limit in 8..24 {
        let place = Place::new();
        place.save(1);
        place.push();
        place.save(2);
        let script = format!("ulimit -n {limit}; exec \"$@\"");
        let done = place.checkpoint_through(&["sh", "-c", &script, "sh"], "push", &place.local()).output();
        // Committed, but there is no free descriptor to remove the pins: that is logged and is not a failure.
        let only_pins_stayed = done.code() == 0 && done.err().contains("cannot remove .trainit/pin");
        let expected_lines = usize::from(done.code() != 0 || only_pins_stayed);
        assert_eq!(done.err().lines().count(), expected_lines, "limit {limit}: {}", done.err());
        assert!(done.code() == 0 || done.err().contains("raise the limit on open files"), "{limit}: {}", done.err());
        assert!(place.steps().contains(&1), "limit {limit}: {}", done.err());
        assert_eq!(place.steps()[0] == 2, done.code() == 0, "limit {limit}");
    }
}

#[test]
fn two_pushes_at_once_leave_the_newer_ones_commit() {
    let place = Place::new();
    place.save(1);
    let start = || place.checkpoint("push").env("TRAINIT_TEST_FAULT", "3:stop").start();
    let first = start();
    stopped(&first);
    let second = start();
    stopped(&second);
    first.signal(libc::SIGCONT);
    assert!(first.finish().expect_code(205).err().contains("taken over"));
    second.signal(libc::SIGCONT);
    second.finish().expect_code(0);
    assert_eq!(place.steps(), [1]);
    assert!(!place.local().join(".trainit/pin").exists());
}

#[test]
fn a_directory_in_the_place_of_a_pointer_is_moved_aside() {
    let place = Place::new();
    fs::write(place.local().join("epoch=0-step=10.ckpt"), "weights").unwrap();
    std::os::unix::fs::symlink("epoch=0-step=10.ckpt", place.local().join("last.ckpt")).unwrap();
    place.push();
    let pulled = place.path("pulled");
    fs::create_dir_all(pulled.join("last.ckpt/inside")).unwrap();
    let done = place.checkpoint_in("pull", &pulled).output().expect_code(0);
    assert!(done.err().contains("last.ckpt") && done.err().contains(".trainit/aside"), "{}", done.err());
    assert_eq!(fs::read_to_string(pulled.join("last.ckpt")).unwrap(), "weights");
    assert!(pulled.join(".trainit/aside/pull-1/last.ckpt/inside").exists());
}

#[test]
fn control_characters_in_a_name_are_not_printed() {
    let place = Place::new();
    let name = "step-10\u{1b}[31m\nx.bin";
    fs::write(place.local().join(name), "x").unwrap();
    place.push();
    for action in ["list", "verify", "pull", "explain"] {
        let done = place.checkpoint(action).output().expect_code(0);
        let text = done.out().to_owned() + &done.err();
        assert!(!text.contains('\u{1b}'), "{action}: {text:?}");
        assert!(action != "explain" || text.contains("step-10\u{fffd}[31m\\nx.bin"), "{text:?}");
    }
}

#[test]
fn a_checkpoint_that_never_settles_causes_one_warning_with_advice() {
    const RENAMED: &str = r#"save() { echo "w $1" >"$D/tmp"; mv "$D/tmp" "$D/model.pt"; }"#;
    const IN_PLACE: &str = r#"save() { echo "w $1" >"$D/model.pt"; }"#;
    let nothing = "this run has committed nothing yet";
    let runs = [(RENAMED, "model.pt", nothing), (IN_PLACE, "model.pt", nothing)];
    let runs = runs.map(|(save, unit, expected)| {
        let place = Place::new();
        let script = format!("trap exit TERM\n{save}\nn=1; while save $n; do n=$((n + 1)); sleep 0.02; done");
        let running = Trainit::new(["run", "--commit-interval", "20ms", "--settle", "300ms", "--checkpoint-dir"])
            .args([place.local().to_str().unwrap(), "--checkpoint-store", &place.url()])
            .args(["--", "sh", "-c", &script])
            .env("D", place.local())
            .env("STORE", place.store())
            .start();
        (place, running, unit, expected)
    });
    for (place, running, unit, expected) in runs {
        let line = running.after_log("checkpoint_passed_over");
        for part in [unit, "for 10 looks", expected, "--checkpoint-exclude"] {
            assert!(line.contains(part), "{part}: {line}");
        }
        // The last checkpoint is committed as usual.
        let before = fs::read_dir(place.store().join(".trainit/commits")).map_or(0, Iterator::count);
        let done = running.stop().expect_code(143);
        assert_eq!(done.err().matches("checkpoint_passed_over").count(), 1, "{}", done.err());
        assert_eq!(place.commits().len(), before + 1);
    }
}
