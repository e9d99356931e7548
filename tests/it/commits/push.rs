//! Commits: the content of the store after a push, with faults.

use std::ffi::OsStr;
use std::fs;
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};

use crate::support::checkpoints::{Place, tree};
use crate::support::{Trainit, eventually};

/// Points of a commit in src/supervisor/checkpoints/commit and store/retention.rs at which a test may kill it.
const COMMIT_POINTS: std::ops::RangeInclusive<u32> = 1..=12;
/// From here on the new manifest is in the store.
const COMMITTED: u32 = 9;

#[test]
fn pull_returns_the_pushed_bytes_modes_times_links_and_empty_directories() {
    let place = Place::new();
    place.save(7);
    let unit = place.local().join("step-7");
    fs::create_dir_all(unit.join("empty/deep")).unwrap();
    fs::write(unit.join("a b\nc#1%\\ \u{fc}?*"), "odd name").unwrap();
    fs::write(unit.join("zero.txt"), "").unwrap();
    symlink("weights.bin", unit.join("latest")).unwrap();
    fs::set_permissions(unit.join("state.json"), fs::Permissions::from_mode(0o640)).unwrap();
    let done = place.push();
    assert!(done.out().contains("committed step-7"), "{}", done.out());
    let pulled = place.pull_afresh("elsewhere");
    assert_eq!(tree(&pulled.join("step-7")), tree(&unit));
    let data = place.store().join("step-7/0000000001-000001/weights.bin");
    assert_eq!(fs::read(data).unwrap(), fs::read(unit.join("weights.bin")).unwrap(), "data is plain bytes");
}

#[test]
fn a_manifest_has_the_fields_of_the_contract() {
    let place = Place::new();
    place.save(7);
    place.checkpoint("push").env("CLOUD_ML_JOB_ID", "job-1").output().expect_code(0);
    let (path, manifest) = place.manifest();
    assert!(path.to_str().unwrap().contains("/0000000001-000001-000000000007-"), "{path:?}");
    for (key, value) in [("schema", "trainit.ckpt/2"), ("job", "job-1"), ("unit", "step-7"), ("framework", "numbered")]
    {
        assert_eq!(manifest[key], value, "{key}");
    }
    let file = &manifest["files"][0];
    assert_eq!(file["path"], "step-7/layers/0.bin");
    assert_eq!(file["key"], "step-7/0000000001-000001/layers/0.bin");
    assert_eq!(file["crc32c"], format!("{:08x}", crc32c::crc32c(&[8; 5000])));
    assert_eq!(file["chunks"]["size"], 67_108_864);
    assert_eq!((&file["type"], &file["size"]), (&"file".into(), &5000.into()));
    assert_eq!((manifest["attempt"].as_u64(), manifest["seq"].as_u64()), (Some(1), Some(1)));
}

#[test]
fn after_a_kill_at_any_point_of_a_commit_the_newest_commit_is_restored() {
    for point in COMMIT_POINTS {
        let place = Place::new();
        let first = place.save(1);
        place.push();
        let second = place.save(2);
        let push = place.checkpoint("push").args(["--keep-last", "1"]);
        push.env("TRAINIT_TEST_FAULT", point.to_string()).output().expect_code(137);
        let pulled = place.pull_afresh("elsewhere");
        if point < COMMITTED {
            assert_eq!(tree(&pulled.join("step-1")), first, "killed at point {point}");
            assert!(!pulled.join("step-2").exists(), "killed at point {point}");
        } else {
            assert_eq!(tree(&pulled.join("step-2")), second, "killed at point {point}");
        }
        place.push();
        assert_eq!(place.steps()[0], 2, "after point {point}");
        assert_eq!(tree(&place.pull_afresh("later").join("step-2")), second, "after point {point}");
    }
}

#[test]
fn no_data_key_is_ever_written_twice() {
    let place = Place::new();
    place.save(1);
    place.checkpoint("push").env("TRAINIT_TEST_FAULT", "8").output().expect_code(137);
    let inode =
        |stamp: &str| fs::metadata(place.store().join("step-1").join(stamp).join("weights.bin")).map(|m| m.ino());
    let before = inode("0000000001-000001").unwrap();
    place.push();
    assert_eq!(inode("0000000001-000001").unwrap(), before);
    assert!(inode("0000000002-000001").is_ok());
}

#[test]
fn an_older_run_is_fenced_by_a_newer_one_and_commits_nothing_more() {
    for point in ["2:stop", "4:stop", "7:stop"] {
        Place::new().expect_fenced_at(point);
    }
}

#[test]
fn a_fenced_trainer_that_stops_slowly_gets_one_sigterm_and_one_log_line() {
    let place = Place::new();
    let local = place.local();
    let script = "trap 'echo stopping; stopping=1' TERM; until [ $stopping ]; do sleep 0.01; done; sleep 1";
    let older = Trainit::new(["run", "--checkpoint-store", &place.url(), "--checkpoint-dir", local.to_str().unwrap()])
        .args(["--settle", "0s", "--commit-interval", "10ms", "--", "sh", "-c", script])
        .start();
    older.after_log("started sh");
    place.save(1);
    eventually("it is committed", || place.commits().len() == 1);
    fs::write(place.store().join(".trainit/attempts/0000000002.json"), "{}").unwrap();
    place.save(2);
    let done = older.finish().expect_code(205);
    assert_eq!(done.out(), "stopping\n");
    let as_it_happened = done.err().lines().filter(|l| l.contains("fenced: ") && !l.contains("verdict")).count();
    assert_eq!(as_it_happened, 1, "{}", done.err());
}

#[test]
fn a_commit_that_slips_past_the_fence_sorts_below_the_newer_runs() {
    let place = Place::new();
    place.save(5);
    let older = place.push_stopped_at("8:stop");
    fs::remove_dir_all(place.local().join("step-5")).unwrap();
    place.save(3);
    place.push();
    older.signal(libc::SIGCONT);
    older.finish().expect_code(0);
    assert_eq!(place.steps(), [3, 5], "the newer attempt's commit is the newest");
    assert!(place.pull_afresh("elsewhere").join("step-3").exists());
}

#[test]
fn a_file_that_changes_during_the_copy_moves_to_the_next_commit() {
    let place = Place::new();
    place.save(1);
    let push = place.push_stopped_at("4:stop");
    let mut file = fs::OpenOptions::new().append(true).open(place.local().join("step-1/weights.bin")).unwrap();
    file.write_all(b"more").unwrap();
    drop(file);
    push.signal(libc::SIGCONT);
    let done = push.finish().expect_code(1);
    assert!(done.err().contains("changed while it was copied"), "{}", done.err());
    assert_eq!(place.commits().len(), 0);
    assert!(!place.store().join("step-1").exists(), "its uploaded data is deleted");
    place.push();
    let pulled = place.pull_afresh("elsewhere");
    assert_eq!(tree(&pulled), tree(&place.local()));
}

#[test]
fn a_file_that_is_written_during_the_copy_and_given_its_old_time_again_drops_the_commit() {
    let place = Place::new();
    place.save(1);
    let push = place.push_stopped_at("4:stop");
    let path = place.local().join("step-1/weights.bin");
    let (before, bytes) = (fs::metadata(&path).unwrap(), fs::read(&path).unwrap());
    let mut file = fs::OpenOptions::new().write(true).open(&path).unwrap();
    file.write_all(&vec![b'?'; bytes.len()]).unwrap();
    file.set_modified(before.modified().unwrap()).unwrap();
    drop(file);
    push.signal(libc::SIGCONT);
    let done = push.finish().expect_code(1);
    assert!(done.err().contains("weights.bin changed while it was copied"), "{}", done.err());
    assert_eq!(place.commits().len(), 0);
}

#[test]
fn a_file_that_is_added_during_the_copy_drops_the_commit() {
    let place = Place::new();
    place.save(1);
    let push = place.push_stopped_at("5:stop");
    fs::write(place.local().join("step-1/rank_1.bin"), "late").unwrap();
    push.signal(libc::SIGCONT);
    let done = push.finish().expect_code(1);
    assert!(done.err().contains("step-1/rank_1.bin came into step-1 while it was copied"), "{}", done.err());
    assert_eq!(place.commits().len(), 0);
}

#[test]
fn a_checkpoint_that_the_framework_deletes_during_the_copy_is_still_committed() {
    let place = Place::new();
    let saved = place.save(1);
    let push = place.push_stopped_at("3:stop");
    fs::remove_dir_all(place.local().join("step-1")).unwrap();
    push.signal(libc::SIGCONT);
    push.finish().expect_code(0);
    assert_eq!(tree(&place.pull_afresh("elsewhere").join("step-1")), saved);
    assert!(!place.local().join(".trainit/pin").exists(), "the pins are gone");
}

#[test]
fn an_unfinished_checkpoint_is_not_pushed_and_the_reason_is_given() {
    let place = Place::new();
    fs::write(place.local().join("ckpt-5.json"), "{\"step\": 5").unwrap();
    let done = place.checkpoint("push").output().expect_code(1);
    assert!(done.err().contains("ckpt-5.json") && done.err().contains("cut short"), "{}", done.err());
    assert!(!place.store().exists(), "no attempt is claimed");
}

#[test]
fn a_file_that_is_open_for_writing_is_not_pushed() {
    let place = Place::new();
    let file = fs::File::create(place.local().join("step-1.bin")).unwrap();
    (&file).write_all(b"some of it").unwrap();
    let push = place.checkpoint("push").args(["--settle", "10ms"]);
    let done = push.output().expect_code(1);
    assert!(done.err().contains("is open for writing"), "{}", done.err());
    drop(file);
    place.push();
}

#[test]
fn a_name_that_is_not_utf8_is_refused_by_name() {
    let place = Place::new();
    place.save(1);
    let odd = place.local().join("step-1").join(std::ffi::OsStr::from_bytes(b"x\xff"));
    fs::write(odd, "1").unwrap();
    let done = place.checkpoint("push").output().expect_code(1);
    assert!(done.err().contains(r"step-1/x\xff: its name is not UTF-8"), "{}", done.err());
    // The directory also contains a file with the name that the other file is listed under.
    fs::write(place.local().join("step-1").join(r"x\xff"), "1").unwrap();
    let done = place.checkpoint("push").output().expect_code(1);
    assert!(done.err().contains("not UTF-8"), "{}", done.err());
}

#[test]
fn pushing_twice_copies_once() {
    let place = Place::new();
    place.save(1);
    place.push();
    let pushed = place.checkpoint("push").output().expect_code(0);
    assert!(pushed.out().contains("committed") || pushed.out().contains("already"), "{}", pushed.out());
    let pulled = place.pull_afresh("elsewhere");
    assert_eq!(tree(&pulled), tree(&place.local()));
}

#[test]
fn mistakes_on_the_command_line_are_125() {
    for args in [
        &["checkpoint", "list"][..],
        &["checkpoint", "push", "--checkpoint-store", "file:///x"],
        &["checkpoint", "push", "--checkpoint-store", "s3://key:secret@x/y", "--checkpoint-dir", "/x"],
        &["checkpoint", "lst", "--checkpoint-store", "file:///x"],
        &["checkpoint"],
        &["checkpoint", "list", "--checkpoint-store", "file:///x", "--checkpoint-format", "nonsense"],
    ] {
        let done = Trainit::new(args).output().expect_code(125);
        assert!(done.err().starts_with("trainit: error: "), "{}", done.err());
    }
}

#[test]
fn a_missing_store_is_204_for_commands_that_only_read() {
    let place = Place::new();
    let done = place.checkpoint("list").output().expect_code(204);
    assert!(done.err().contains("No such file"), "{}", done.err());
}

#[test]
fn ten_thousand_small_files_are_committed_and_restored() {
    let place = Place::new();
    let unit = place.local().join("step-1");
    for directory in 0..100 {
        let directory = unit.join(directory.to_string());
        fs::create_dir_all(&directory).unwrap();
        for file in 0..100 {
            fs::write(directory.join(file.to_string()), format!("{file}")).unwrap();
        }
    }
    place.push();
    let pulled = place.pull_afresh("elsewhere");
    assert_eq!(tree(&pulled), tree(&place.local()));
}

#[test]
fn holes_cost_neither_time_nor_disk_in_a_restore() {
    let place = Place::new();
    let file = fs::File::create(place.local().join("step-1.bin")).unwrap();
    file.set_len(200 << 20).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&file, b"data", 150 << 20).unwrap();
    drop(file);
    place.push();
    let pulled = fs::metadata(place.pull_afresh("elsewhere").join("step-1.bin")).unwrap();
    assert_eq!(pulled.len(), 200 << 20);
    assert!(pulled.blocks() * 512 < 1 << 20, "{} blocks", pulled.blocks());
}

#[test]
fn a_store_inside_the_checkpoint_directory_or_around_it_is_125() {
    let place = Place::new();
    place.save(1);
    let local = place.local();
    let local = local.to_str().unwrap();
    let file = |path: std::path::PathBuf| format!("file://{}", path.display());
    for (url, dir) in [
        (file(place.local()), local),
        (file(place.local().join("store")), local),
        (file(place.path("")), local),
        ("gs://b/job".to_owned(), "/gcs/b/job"),
        ("gs://b/job".to_owned(), "/gcs/b/job/checkpoints"),
    ] {
        let args = ["checkpoint", "push", "--checkpoint-store", &url, "--checkpoint-dir", dir];
        let done = Trainit::new(args).output().expect_code(125);
        assert!(done.err().contains("overlap"), "{}", done.err());
    }
    assert!(!place.local().join("store").exists(), "nothing was made");
}

#[test]
fn a_checkpoint_with_the_name_of_a_nodes_store_is_deleted_like_any_other() {
    let place = Place::new();
    for step in 1..=3 {
        let unit = place.local().join(format!("node-00001/checkpoint-{step}"));
        fs::create_dir_all(&unit).unwrap();
        fs::write(unit.join("trainer_state.json"), format!("{{\"global_step\": {step}}}")).unwrap();
        place.checkpoint("push").args(["--keep-last", "1", "--keep-saves", "1"]).output().expect_code(0);
    }
    let left: Vec<_> =
        fs::read_dir(place.store().join("node-00001")).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert_eq!(left, ["checkpoint-3"]);
    place.checkpoint("verify").output().expect_code(0);
}

#[test]
fn foreign_names_cause_no_failure_and_stay() {
    let place = Place::new();
    let saved = place.save(1);
    place.push();
    let odd = [OsStr::from_bytes(b"x\xff"), "a\nb".as_ref(), "loop".as_ref(), ".trainit/commits/loop".as_ref()];
    for name in odd {
        match name.to_str() {
            Some(text) if text.ends_with("loop") => symlink(".", place.store().join(name)).unwrap(),
            _ => fs::write(place.store().join(name), "").unwrap(),
        }
    }
    fs::write(place.store().join(OsStr::from_bytes(b".trainit/commits/\xff")), "").unwrap();
    for action in ["push", "list", "verify"] {
        place.checkpoint(action).output().expect_code(0);
    }
    place.checkpoint("prune").args(["--orphan-age", "0s"]).output().expect_code(0);
    assert_eq!(tree(&place.pull_afresh("elsewhere").join("step-1")), saved);
    assert!(odd.iter().all(|name| place.store().join(name).symlink_metadata().is_ok()));
}

#[test]
fn a_list_shows_the_local_checkpoints_with_their_missing_files() {
    let place = Place::new();
    place.save(1);
    fs::write(place.local().join("step-2.npy"), b"\x93NUMPY\x01\0\x76\0{'descr': '<f4'").unwrap();
    let list = |args: &[&str]| Trainit::new(["checkpoint", "list"]).args(args).output().expect_code(0).out();
    let dir = place.local();
    let value: serde_json::Value =
        serde_json::from_str(&list(&["--json", "--checkpoint-dir", dir.to_str().unwrap()])).unwrap();
    let local = value["local"].as_array().unwrap();
    assert_eq!((&local[0]["framework"], &local[0]["state"]), (&"tree".into(), &"torn".into()), "{value}");
    assert!(local[0]["problem"].as_str().unwrap().contains("step-2.npy"), "{value}");
    assert_eq!((local[0]["files"].as_u64(), local[0]["step"].as_u64()), (Some(4), None));
    let text = list(&["--checkpoint-dir", dir.to_str().unwrap()]);
    assert!(text.contains("(the rest)  torn: step-2.npy"), "{text}");
    assert_eq!(value["commits"], serde_json::json!([]));
    Trainit::new(["checkpoint", "list"]).output().expect_code(125);
}
