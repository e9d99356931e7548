//! Restores: the content of the checkpoint directory after a pull, for any content of the store and any fault.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::time::{Duration, UNIX_EPOCH};

use serde_json::{Value, json};

use crate::support::checkpoints::{Place, tree};
use crate::support::{Trainit, stopped};

/// Points of a restore in src/supervisor/checkpoints/restore at which a test may kill it.
const RESTORE_POINTS: std::ops::RangeInclusive<u32> = 19..=29;

#[test]
fn after_a_kill_at_any_point_of_a_restore_the_next_one_completes_it_without_local_losses() {
    for point in RESTORE_POINTS {
        let place = Place::new();
        let saved = place.save(2);
        place.push();
        let other = place.path("other");
        fs::create_dir_all(other.join("step-2")).unwrap();
        fs::write(other.join("step-2/weights.bin"), "torn, but foreign").unwrap();
        let pull = place.checkpoint_in("pull", &other).env("TRAINIT_TEST_FAULT", point.to_string());
        pull.output().expect_code(137);
        place.checkpoint_in("pull", &other).output().expect_code(0);
        assert_eq!(tree(&other.join("step-2")), saved, "killed at point {point}");
        assert!(!other.join(".trainit/tmp").exists() && !other.join(".trainit/restoring").exists());
        let aside: Vec<PathBuf> =
            fs::read_dir(other.join(".trainit/aside")).unwrap().map(|e| e.unwrap().path()).collect();
        let kept = aside.iter().filter_map(|a| fs::read_to_string(a.join("step-2/weights.bin")).ok());
        assert!(kept.collect::<Vec<_>>().contains(&"torn, but foreign".to_owned()), "killed at point {point}");
    }
}

#[test]
fn an_empty_checkpoint_directory_is_a_mistake_in_one_line() {
    for args in [["run", "--checkpoint-dir", "", "--", "true"], ["run", "--model-dir", " ", "--", "true"]] {
        let done = Trainit::new(args).env("AIP_CHECKPOINT_DIR", "file:///x").output().expect_code(125);
        assert!(done.err().contains("found nothing"), "{}", done.err());
        assert_eq!(done.err().lines().count(), 1, "{}", done.err());
    }
}

#[test]
fn a_restore_that_is_requested_without_a_checkpoint_directory_starts_nothing() {
    let asked: [(&[&str], &str); 4] = [
        (&["--restore", "required"], "--restore:"),
        (&["--restore-step", "5"], "--restore-step:"),
        (&["TRAINIT_RESTORE=required", "TRAINIT_CHECKPOINT_DIR="], "TRAINIT_RESTORE:"),
        (&["TRAINIT_RESTORE=required", "AIP_CHECKPOINT_DIR=file:///x"], "TRAINIT_RESTORE:"),
    ];
    for (words, place) in asked {
        let (flags, variables): (Vec<&str>, Vec<&str>) = words.iter().partition(|word| !word.contains('='));
        let run = Trainit::through(&[vec!["env"], variables].concat(), ["run"]);
        let done = run.args(flags).args(["--", "echo", "started"]).output().expect_code(125);
        assert_eq!((done.out(), done.err().lines().count()), (String::new(), 1), "{}", done.err());
        assert!(done.err().contains(place) && done.err().contains("needs --checkpoint-dir"), "{}", done.err());
    }
}

/// The effects that the retention of a replaced run may have in the meantime.
#[test]
fn if_a_commit_disappears_during_its_check_a_newer_one_is_restored() {
    for is_half_gone in [true, false] {
        let place = Place::new();
        place.save(1);
        place.push_one();
        place.save(2);
        place.push_one();
        let (manifest, data) = (place.manifest().0, place.store().join("step-2"));
        let pulled = place.path("elsewhere");
        let pull = place.checkpoint_in("pull", &pulled).env("TRAINIT_TEST_FAULT", "19:stop").start();
        stopped(&pull);
        let saved = place.save(3);
        place.push_one();
        if is_half_gone {
            fs::remove_dir_all(data).unwrap()
        } else {
            fs::remove_file(manifest).unwrap()
        }
        pull.signal(libc::SIGCONT);
        let done = pull.finish().expect_code(0);
        assert!(done.err().contains("skipped commit 0000000002-000001"), "{}", done.err());
        assert!(pulled.join("step-3").is_dir(), "{} {}", done.out(), done.err());
        assert_eq!(tree(&pulled.join("step-3")), saved);
    }
}

#[test]
fn a_torn_newest_commit_is_skipped_for_the_previous_one_with_the_reason() {
    type Damage = fn(&Place);
    let damages: [(&str, Damage); 5] = [
        ("missing from the store", |p| {
            fs::remove_file(p.store().join("step-2/0000000002-000001/weights.bin")).unwrap()
        }),
        ("bytes in the store, not", |p| {
            let path = p.store().join("step-2/0000000002-000001/weights.bin");
            fs::OpenOptions::new().write(true).open(path).unwrap().set_len(100).unwrap();
        }),
        ("does not match its checksum", |p| {
            let path = p.store().join("step-2/0000000002-000001/weights.bin");
            let mut bytes = fs::read(&path).unwrap();
            bytes[77] ^= 1;
            fs::write(path, bytes).unwrap();
        }),
        ("torn or altered", |p| {
            let path = p.manifest().0;
            let mut bytes = fs::read(&path).unwrap();
            bytes.truncate(bytes.len() - 1);
            fs::write(path, bytes).unwrap();
        }),
        ("torn or altered", |p| fs::write(p.manifest().0, "").unwrap()),
    ];
    for (reason, damage) in damages {
        let place = Place::new();
        let saved = place.save(1);
        place.push();
        place.save(2);
        place.push();
        damage(&place);
        let pulled = place.path("elsewhere");
        let done = place.checkpoint_in("pull", &pulled).output().expect_code(0);
        assert!(
            done.err().contains("skipped commit 0000000002-000001") && done.err().contains(reason),
            "{}",
            done.err()
        );
        assert_eq!(tree(&pulled.join("step-1")), saved);
        assert!(!pulled.join("step-2").exists(), "{reason}");
    }
}

#[test]
fn without_a_restorable_commit_nothing_starts_from_scratch() {
    let place = Place::new();
    place.save(1);
    place.push();
    fs::write(place.manifest().0, "{}").unwrap();
    let pulled = place.path("elsewhere");
    let done = place.checkpoint_in("pull", &pulled).output().expect_code(204);
    assert!(done.err().contains("none of the 1 commits"), "{}", done.err());
    place.checkpoint_in("pull", &pulled).args(["--restore", "none"]).output().expect_code(0);
}

#[test]
fn a_missing_required_checkpoint_is_204() {
    let place = Place::new();
    place.save(4);
    place.push();
    let pulled = place.path("elsewhere");
    let pull = |args: &[&str]| place.checkpoint_in("pull", &pulled).args(args).output();
    let done = pull(&["--restore-step", "5"]).expect_code(204);
    assert!(done.err().contains("of step 5"), "{}", done.err());
    pull(&["--restore-step", "4"]).expect_code(0);
    let empty = Place::new();
    fs::create_dir(empty.store()).unwrap();
    empty.checkpoint("pull").output().expect_code(0);
    empty.checkpoint("pull").args(["--restore", "required"]).output().expect_code(204);
}

#[test]
fn hostile_manifests_write_nothing_outside_and_are_skipped() {
    let place = Place::new();
    place.save(1);
    place.push();
    let (_, honest) = place.manifest();
    let pulled = place.path("deep/elsewhere");
    fs::create_dir_all(&pulled).unwrap();
    let outside = place.path("outside");
    fs::create_dir(&outside).unwrap();
    type Change = fn(&mut Value);
    let changes: [Change; 19] = [
        |m| m["files"][0]["path"] = json!("../evil"),
        |m| m["files"][0]["path"] = json!("/tmp/trainit-evil"),
        |m| m["files"][0]["path"] = json!("step-1/../../evil"),
        |m| m["files"][0]["path"] = json!(".trainit/attempt.json"),
        |m| m["files"][0]["path"] = json!("step-1/state.json/x"),
        |m| m["files"][0]["path"] = m["files"][1]["path"].clone(),
        |m| m["files"][0]["path"] = json!("step-1/a\u{0}b"),
        |m| m["files"][0]["key"] = json!("../../etc/passwd"),
        |m| m["files"][0]["key"] = json!("/etc/passwd"),
        |m| m["files"][0]["size"] = json!(u64::MAX),
        |m| m["files"][0]["key"] = json!("step-1/0000000001-000001/a\nb"),
        |m| m["files"][0]["key"] = json!("step-1/0000000001-000001/a#1"),
        |m| m["files"][0]["key"] = json!("step-1/0000000001-000001/weights.bin/x"),
        |m| m["files"][0]["key"] = json!("step-1/0000000001-000001/weights.bin/x/y/z"),
        |m| m["files"][0]["key"] = json!(["k"; 30].map(|k| k.repeat(200)).join("/")),
        |m| m["pointers"] = json!([{"path": "../evil", "content": "x"}]),
        |m| m["pointers"] = json!([{"path": "p".repeat(250), "content": "x"}]),
        |m| m["pointers"] = json!([{"path": "last", "content": "x/".repeat(2500), "symlink": true}]),
        |m| {
            m["files"].as_array_mut().unwrap().push(
                json!({"path": "step-1/out", "type": "symlink", "target": "../../outside", "size": 0, "mode": 511, "mtime_ns": 0}),
            );
        },
    ];
    for (number, change) in changes.iter().enumerate() {
        let mut manifest = honest.clone();
        change(&mut manifest);
        manifest["seq"] = (number + 1).into();
        place.forge(manifest);
    }
    let done = place.checkpoint_in("pull", &pulled).output().expect_code(0);
    assert_eq!(done.err().matches("skipped commit").count(), changes.len(), "{}", done.err());
    assert_eq!(place.steps(), [1]);
    place.checkpoint("verify").output().expect_code(1);
    place.checkpoint("prune").args(["--dry-run"]).output().expect_code(0);
    assert_eq!(tree(&pulled.join("step-1")), tree(&place.local().join("step-1")));
    assert_eq!(fs::read_dir(&outside).unwrap().count(), 0);
    assert_eq!(fs::read_dir(place.path("deep")).unwrap().count(), 1);
}

#[test]
fn a_link_planted_in_the_checkpoint_directory_is_not_followed() {
    let place = Place::new();
    let saved = place.save(1);
    place.push();
    let (pulled, outside) = (place.path("elsewhere"), place.path("outside"));
    fs::create_dir_all(&pulled).unwrap();
    fs::create_dir_all(outside.join("layers")).unwrap();
    symlink(&outside, pulled.join("step-1")).unwrap();
    place.checkpoint_in("pull", &pulled).output().expect_code(0);
    assert_eq!(tree(&pulled.join("step-1")), saved);
    assert_eq!(tree(&outside).len(), 1, "nothing was written through the link");
}

#[test]
fn tensorflows_state_file_is_restored_unchanged() {
    let place = Place::new();
    let index = |text: &str| [text.as_bytes(), &0xdb47_7524_8b80_fb57_u64.to_le_bytes()].concat();
    for step in [10, 20] {
        fs::write(place.local().join(format!("ckpt-{step}.index")), index("i")).unwrap();
        fs::write(place.local().join(format!("ckpt-{step}.data-00000-of-00001")), format!("w{step}")).unwrap();
    }
    let state = "model_checkpoint_path: \"ckpt-20\"\nall_model_checkpoint_paths: \"ckpt-10\"\nall_model_checkpoint_paths: \"ckpt-20\"\n\
                 all_model_checkpoint_timestamps: 1.5\nall_model_checkpoint_timestamps: 2.5\nlast_preserved_timestamp: 0.5\n";
    fs::write(place.local().join("checkpoint"), state).unwrap();
    place.push();
    let pulled = place.path("elsewhere");
    let done = place.checkpoint_in("pull", &pulled).args(["--json"]).output().expect_code(0);
    let value: Value = serde_json::from_str(&done.out()).unwrap();
    assert_eq!(value["resume"]["from"], pulled.join("ckpt-20").to_str().unwrap());
    assert_eq!(value["resume"]["step"], 20);
    let names: Vec<String> = tree(&pulled).into_keys().collect();
    let of = |step: u64| [format!("ckpt-{step}.data-00000-of-00001"), format!("ckpt-{step}.index")];
    assert_eq!(names, [vec!["checkpoint".to_owned()], of(10).to_vec(), of(20).to_vec()].concat());
    assert_eq!(fs::read_to_string(pulled.join("checkpoint")).unwrap(), state);
}

#[test]
fn the_newest_commit_has_the_largest_attempt_and_sequence_not_the_largest_step() {
    let place = Place::new();
    place.save(40);
    place.push();
    fs::remove_dir_all(place.local().join("step-40")).unwrap();
    place.save(25);
    place.push();
    assert_eq!(place.steps(), [25, 40]);
    assert!(place.pull_afresh("elsewhere").join("step-25").exists());
}

#[test]
fn existing_files_are_left_unchanged() {
    let place = Place::new();
    place.save(1);
    place.push();
    let pulled = place.pull_afresh("elsewhere");
    let before = fs::metadata(pulled.join("step-1/weights.bin")).unwrap();
    place.checkpoint_in("pull", &pulled).output().expect_code(0);
    let after = fs::metadata(pulled.join("step-1/weights.bin")).unwrap();
    use std::os::unix::fs::MetadataExt;
    assert_eq!((before.ino(), before.ctime_nsec()), (after.ino(), after.ctime_nsec()));
}

#[test]
fn a_reused_file_gets_its_committed_time_so_that_the_marker_stays_the_youngest() {
    let place = Place::new();
    let marked = |action: &str, dir: &Path| place.checkpoint_in(action, dir).args(["--marker", "DONE"]);
    place.save(1);
    fs::write(place.local().join("step-1/DONE"), "").unwrap();
    marked("push", &place.local()).output().expect_code(0);
    let pulled = place.path("elsewhere");
    fs::create_dir_all(pulled.join("step-1")).unwrap();
    fs::write(pulled.join("step-1/weights.bin"), "of the save before").unwrap();
    fs::write(pulled.join("step-1/DONE"), "").unwrap();
    let old = fs::File::open(pulled.join("step-1/DONE")).unwrap();
    old.set_modified(UNIX_EPOCH + Duration::from_secs(1)).unwrap();
    for _ in 0..2 {
        marked("pull", &pulled).output().expect_code(0);
        let listed = marked("list", &pulled).args(["--json"]).output().expect_code(0);
        let value: Value = serde_json::from_str(&listed.out()).unwrap();
        assert_eq!(value["local"][0]["complete"], true, "{value}");
        fs::File::open(pulled.join("step-1/DONE")).unwrap().set_modified(UNIX_EPOCH).unwrap();
    }
}

#[test]
fn after_a_restore_the_newest_file_and_the_newest_directory_by_time_are_those_of_the_last_save() {
    let place = Place::new();
    let at = |dir: &Path, number: u64| [dir.join(format!("files/{number}.json")), dir.join(format!("runs/{number}"))];
    let hour = Duration::from_secs(3600);
    // Named so that neither the order of names nor its reverse is the order of the saves.
    for (age, number) in [(3, 2), (2, 10), (1, 5)] {
        let [file, unit] = at(&place.local(), number);
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::create_dir_all(unit.join("inner")).unwrap();
        for path in [file, unit.join("inner/raw.txt")] {
            fs::write(&path, "{}").unwrap();
            let saved = std::time::SystemTime::now() - hour * age;
            fs::File::options().write(true).open(&path).unwrap().set_modified(saved).unwrap();
        }
    }
    place.push();
    let pulled = place.pull_afresh("elsewhere");
    let newest = |kind: usize| {
        let time = |number: &u64| fs::metadata(&at(&pulled, *number)[kind]).unwrap().modified().unwrap();
        let mut numbers = [2, 10, 5];
        numbers.sort_by_key(time);
        numbers
    };
    assert_eq!((newest(0), newest(1)), ([2, 10, 5], [2, 10, 5]));
}
