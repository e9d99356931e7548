//! Many small files in a bucket: few objects, and each file whole by itself.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::process::Command;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::bucket::commits::{amazon, each, fails, goes_through_little_memory, google};
use crate::bucket::runs::{commits, run};
use crate::support::bucket::{Bucket, Fault, NAME, Request};
use crate::support::checkpoints::{Place, tree};
use crate::support::eventually;

/// The largest number of small files that are stored as separate objects.
const FEW: usize = 1000;
const MIB: usize = 1 << 20;

/// Writes this many files of some KiB, 4 MiB in total, into a step; no two have the same bytes.
fn save(local: &Path, step: u64, count: usize) {
    for number in 0..count {
        let path = local.join(format!("step-{step}/{:02}/{number:04}.bin", number / 100));
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, format!("{number} of {step} ").repeat(number % 97 * 8 + 1)).unwrap();
    }
}

fn manifest(bucket: &Bucket) -> Value {
    let key = bucket.keys().into_iter().filter(|key| key.contains("/commits/")).max().unwrap();
    serde_json::from_slice(&bucket.object(&key).unwrap()).unwrap()
}

/// The keys of a bucket's data.
fn data(bucket: &Bucket) -> Vec<String> {
    bucket.keys().into_iter().filter(|key| !key.contains("/.trainit/")).collect()
}

fn is_archive(key: &str) -> bool {
    key.contains("/small-files-") && key.ends_with(".tar")
}

/// Files at or beyond the limits of an archive, and others that are within the limits.
fn save_odd(local: &Path, step: u64) {
    save(local, step, FEW + 1);
    let unit = local.join(format!("step-{step}"));
    for (name, size) in [("none", 0), ("511", 511), ("512", 512), ("513", 513), ("large", MIB + 1)] {
        fs::write(unit.join(name), vec![(size % 251) as u8 + 3; size]).unwrap();
    }
    (0..10).for_each(|number| fs::write(unit.join(format!("most-{number}")), vec![number; MIB]).unwrap());
    fs::write(unit.join("run"), "#!").unwrap();
    fs::set_permissions(unit.join("run"), Permissions::from_mode(0o750)).unwrap();
    fs::write(unit.join("\u{fc}\u{4e2d} #1%\\\n*"), "odd name").unwrap();
    fs::write(unit.join("n".repeat(101)), "no archive has room for its name").unwrap();
    let deep = unit.join([&"d".repeat(70); 4].map(String::as_str).join("/"));
    fs::create_dir_all(&deep).unwrap();
    fs::write(deep.join("deep"), "no archive has room for its path").unwrap();
    symlink("511", unit.join("link")).unwrap();
}

#[test]
fn more_than_a_thousand_small_files_are_stored_in_few_objects_and_restored_bit_for_bit() {
    each(|bucket, place| {
        save_odd(&place.local(), 7);
        place.push();
        let restored = place.pull_afresh("elsewhere");
        assert!(tree(&restored.join("step-7")) == tree(&place.local().join("step-7")));
        place.checkpoint("verify").output().expect_code(0);
        assert_eq!(place.steps(), [7]);
        let (archives, others): (Vec<_>, Vec<_>) = data(bucket).into_iter().partition(|key| is_archive(key));
        assert!((2..10).contains(&archives.len()), "{archives:?}");
        let others: BTreeSet<&str> = others.iter().filter_map(|key| key.rsplit('/').next()).collect();
        let long = "n".repeat(101);
        assert_eq!(others, BTreeSet::from([long.as_str(), "deep", "large"]));
        assert_eq!(bucket.object("jobs/1/step-7/0000000001-000001/large").unwrap().len(), MIB + 1);
        assert_eq!(manifest(bucket)["schema"], "trainit.ckpt/2");
    });
}

#[test]
fn an_archive_can_be_unpacked_without_trainit() {
    let bucket = Bucket::start();
    let place = amazon(&bucket);
    save_odd(&place.local(), 7);
    place.push();
    let folder = place.path("unpacked");
    fs::create_dir(&folder).unwrap();
    for key in data(&bucket) {
        let object = bucket.object(&key).unwrap();
        if is_archive(&key) {
            fs::write(place.path("archive.tar"), object).unwrap();
            let tar =
                Command::new("tar").arg("-xpf").arg(place.path("archive.tar")).current_dir(&folder).output().unwrap();
            assert!(tar.status.success() && tar.stderr.is_empty(), "{}", String::from_utf8_lossy(&tar.stderr));
        }
    }
    let whole_seconds = |tree: BTreeMap<String, Vec<u8>>| -> BTreeMap<String, Vec<u8>> {
        let without = |content: Vec<u8>| {
            let text = String::from_utf8_lossy(&content).into_owned();
            let Some((stat, bytes)) = text.split_once('.') else { return content };
            let bytes = bytes.split_once(' ').map_or("", |(_, bytes)| bytes);
            format!("{stat} {bytes}").into_bytes()
        };
        let files = tree.into_iter().filter(|(path, content)| !path.ends_with('/') && !content.starts_with(b"->"));
        files.map(|(path, content)| (path, without(content))).collect()
    };
    let mut saved = whole_seconds(tree(&place.local()));
    saved.retain(|path, _| !path.contains("nnnnnnnnn") && !path.ends_with("/deep") && !path.ends_with("/large"));
    let unpacked = whole_seconds(tree(&folder));
    let differ = saved.iter().find(|(path, content)| unpacked.get(*path) != Some(content));
    assert!(unpacked == saved, "{:?}", differ.map(|(path, content)| (path, content.len(), unpacked.get(path))));
}

#[test]
fn a_thousand_files_and_the_files_in_a_directory_are_objects_of_their_own() {
    let (bucket, store) = (Bucket::start(), Place::new());
    let place = Place::with_store(&format!("s3://{NAME}/few"), bucket.as_amazon());
    save(&place.local(), 1, FEW);
    place.push();
    assert_eq!(manifest(&bucket)["schema"], "trainit.ckpt/2");
    assert_eq!(data(&bucket).len(), FEW);
    let first = bucket.object("few/step-1/0000000001-000001/01/0123.bin").unwrap();
    assert!(first == fs::read(place.local().join("step-1/01/0123.bin")).unwrap(), "data is plain bytes");
    save(&store.local(), 1, FEW + 1);
    store.push();
    assert_eq!(store.manifest().1["schema"], "trainit.ckpt/2");
    assert!(store.store().join("step-1/0000000001-000001/01/0123.bin").is_file());
}

#[test]
fn an_archive_never_has_the_name_of_a_file() {
    let bucket = Bucket::start();
    let place = google(&bucket);
    save(&place.local(), 1, FEW + 1);
    let large = vec![7; MIB + 1];
    fs::write(place.local().join("step-1/small-files-00001.tar"), &large).unwrap();
    place.push();
    let restored = place.pull_afresh("elsewhere");
    assert!(tree(&restored.join("step-1")) == tree(&place.local().join("step-1")));
    assert!(bucket.object("jobs/1/step-1/0000000001-000001/small-files-00001.tar").unwrap() == large);
    assert!(bucket.object("jobs/1/step-1/0000000001-000001/small-files_-00001.tar").is_some());
}

/// Gives each file of a tree a second name in another.
fn link_all(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap().flatten() {
        let to = to.join(entry.file_name());
        match entry.file_type().unwrap().is_dir() {
            true => link_all(&entry.path(), &to),
            false => fs::hard_link(entry.path(), to).unwrap(),
        }
    }
}

#[test]
fn only_changed_small_files_are_sent_again_and_an_archive_stays_while_a_file_in_it_is_needed() {
    let bucket = Bucket::start();
    let place = Place::with_store(&format!("s3://{NAME}/job"), bucket.as_amazon());
    let (local, going) = (place.local(), run(&place, &["--keep-last", "1", "--keep-saves", "1"]));
    for step in 1..=3 {
        // All files of the first step again, except one.
        let unit = place.path("saving");
        match step {
            1 => save(&unit, 1, FEW + 1),
            _ => link_all(&local.join("step-1"), &unit.join("step-1")),
        }
        let changed = unit.join("step-1/00/0007.bin");
        let _ = fs::remove_file(&changed);
        fs::write(changed, format!("head of {step}")).unwrap();
        fs::rename(unit.join("step-1"), local.join(format!("step-{step}"))).unwrap();
        eventually("the step is committed", || commits(&bucket, step));
    }
    eventually("older commits go", || !commits(&bucket, 1) && !commits(&bucket, 2));
    fs::write(place.path("go"), "").unwrap();
    going.finish().expect_code(0);
    let first = "job/step-1/0000000001-000001/small-files-00001.tar".to_owned();
    let changed = "job/step-3/0000000001-000003/00/0007.bin".to_owned();
    assert!(data(&bucket).contains(&first) && data(&bucket).contains(&changed));
    assert!(!data(&bucket).iter().any(|key| key.contains("step-2/")), "nothing needs it");
    let restored = place.pull_afresh("elsewhere");
    assert!(tree(&restored.join("step-3")) == tree(&local.join("step-3")));
    place.checkpoint("verify").output().expect_code(0);
    // The last commit that needs the archive deletes it, with one request.
    bucket.forget();
    save(&local, 4, 1);
    place.checkpoint("push").args(["--keep-last", "1", "--keep-saves", "1"]).output().expect_code(0);
    assert_eq!(data(&bucket), ["job/step-4/0000000002-000001/00/0000.bin"]);
    assert_eq!(bucket.asked().iter().filter(|r| r.method == "DELETE" && r.key == first).count(), 1);
}

#[test]
fn the_bandwidth_limit_counts_whole_archives() {
    let bucket = Bucket::start();
    let place = Place::with_store(&format!("s3://{NAME}/job"), bucket.as_amazon());
    let unit = place.path("step-1");
    fs::create_dir(&unit).unwrap();
    (0..FEW + 1).for_each(|number| fs::write(unit.join(number.to_string()), number.to_string()).unwrap());
    fs::rename(&unit, place.local().join("step-1")).unwrap();
    let begun = Instant::now();
    let going = run(&place, &["--commit-bandwidth", "200KiB"]);
    eventually("the step is committed", || commits(&bucket, 1));
    // The files have some KiB, and each has 1 KiB more in the archives.
    assert!(begun.elapsed() > Duration::from_secs(3), "{:?}", begun.elapsed());
    fs::write(place.path("go"), "").unwrap();
    going.finish().expect_code(0);
}

/// A commit of a few files, and one of many.
fn two_commits(place: &Place) {
    place.save_and_push(1..=1);
    save(&place.local(), 2, FEW + 1);
    place.push();
}

/// Whether the request reads an archive.
fn is_get(request: &Request) -> bool {
    request.method == "GET" && is_archive(&request.key)
}

#[test]
fn after_one_corrupt_answer_only_its_files_are_requested_again() {
    type Make = fn() -> Fault;
    let faults: [Make; 5] = [
        || Fault::Flip,
        || Fault::Short,
        || Fault::Say("<html>Sign in</html>"),
        || Fault::Refuse("404 Not Found", "NoSuchKey"),
        || Fault::Half,
    ];
    let bucket = Bucket::start();
    let place = amazon(&bucket);
    two_commits(&place);
    let pulled = |name: &str| {
        bucket.forget();
        let restored = place.pull_afresh(name);
        assert!(tree(&restored.join("step-2")) == tree(&place.local().join("step-2")), "{name}");
        bucket.asked().iter().filter(|request| is_get(request)).count()
    };
    let requests = pulled("well");
    assert!(requests < 20, "{requests}");
    for (number, fault) in faults.into_iter().enumerate() {
        let once = AtomicBool::new(true);
        bucket.misbehave(move |r| (is_get(r) && once.swap(false, Relaxed)).then(fault));
        let more = pulled(&number.to_string()) - requests;
        // The flipped bit belongs to one file.
        assert!((1..=if number == 0 { 1 } else { FEW + 1 }).contains(&more), "fault {number}: {more} more");
    }
}

#[test]
fn a_damaged_archive_causes_a_restore_of_the_previous_commit_and_verify_names_the_file() {
    let bucket = Bucket::start();
    let place = amazon(&bucket);
    two_commits(&place);
    let files = manifest(&bucket)["files"].clone();
    let hit = files.as_array().unwrap().iter().find(|file| file["path"] == "step-2/05/0512.bin").unwrap();
    let key = format!("jobs/1/{}", hit["key"].as_str().unwrap());
    let whole = bucket.object(&key).unwrap();
    let mut damaged = whole.clone();
    damaged[hit["offset"].as_u64().unwrap() as usize] ^= 1;
    bucket.place(&key, &damaged);
    let done = place.checkpoint("verify").output().expect_code(1);
    assert!(done.out().contains("step-2/05/0512.bin does not match its checksum"), "{}", done.out());
    assert_eq!(done.out().matches("does not match").count(), 1, "{}", done.out());
    let restored = place.pull_afresh("damaged");
    assert!(restored.join("step-1").exists() && !restored.join("step-2").exists());

    bucket.place(&key, &whole[..whole.len() - 8192]);
    assert_eq!(place.steps(), [1]);
    let restored = place.pull_afresh("shorter");
    assert!(restored.join("step-1").exists() && !restored.join("step-2").exists());
    bucket.remove(&key);
    assert_eq!(place.steps(), [1]);
    assert!(place.pull_afresh("gone").join("step-1").exists());
}

#[test]
fn an_unreadable_archive_with_a_complete_listing_causes_no_older_restore() {
    let bucket = Bucket::start();
    let place = google(&bucket);
    two_commits(&place);
    bucket.misbehave(|r| is_get(r).then_some(Fault::Refuse("409 Conflict", "Conflict")));
    let restored = place.path("elsewhere");
    fails(
        place.checkpoint_in("pull", &restored).output(),
        &["cannot read", "the store lists it whole", "--restore-step"],
    );
    assert!(!restored.join("step-1").exists());
}

#[test]
fn data_that_a_bucket_confirms_but_does_not_keep_is_not_committed() {
    let bucket = Bucket::start();
    let place = google(&bucket);
    save(&place.local(), 1, FEW + 1);
    bucket.misbehave(|r| (r.method == "PUT" && is_archive(&r.key)).then_some(Fault::Pretend));
    fails(place.checkpoint("push").output(), &["acknowledged", "small-files-0000", "not committed"]);
    assert!(!bucket.keys().iter().any(|key| key.contains("/commits/")), "{:?}", bucket.keys());
}

#[test]
fn a_file_that_becomes_shorter_or_vanishes_before_it_is_read_drops_the_commit() {
    let bucket = Bucket::start();
    let place = google(&bucket);
    save(&place.local(), 1, FEW + 1);
    let push = place.push_stopped_at("3:stop");
    fs::File::options().write(true).open(place.local().join("step-1/05/0512.bin")).unwrap().set_len(1).unwrap();
    push.signal(libc::SIGCONT);
    let done = push.finish().expect_code(1);
    assert!(done.err().contains("step-1/05/0512.bin became shorter while it was copied"), "{}", done.err());
    eventually("what was sent is taken back", || data(&bucket).is_empty());
    assert!(!bucket.keys().iter().any(|key| key.contains("/commits/")), "{:?}", bucket.keys());
}

#[test]
fn killed_at_any_point_of_a_commit_or_a_restore_of_archives_the_newest_committed_one_is_restored() {
    for point in [4, 5, 9, 10, 11, 21, 22] {
        let bucket = Bucket::start();
        let place = google(&bucket);
        save(&place.local(), 1, FEW + 1);
        place.push();
        save(&place.local(), 2, FEW + 1);
        let restored = place.path("elsewhere");
        let killed = if point < 20 {
            place.checkpoint("push").args(["--keep-last", "1"])
        } else {
            place.push();
            place.checkpoint_in("pull", &restored)
        };
        killed.env("TRAINIT_TEST_FAULT", point.to_string()).output().expect_code(137);
        place.checkpoint_in("pull", &restored).output().expect_code(0);
        let unit = format!("step-{}", if point < 9 { 1 } else { 2 });
        assert!(tree(&restored.join(&unit)) == tree(&place.local().join(&unit)), "killed at point {point}");
        if point < 20 {
            place.push();
            assert_eq!(place.steps()[0], 2, "after point {point}");
        }
    }
}

#[test]
fn archives_use_no_more_memory_than_the_cgroup_has_free() {
    for mebibytes in [48, 30] {
        goes_through_little_memory(mebibytes, |place| {
            for number in 0..FEW + 1 {
                fs::write(place.local().join(format!("step-1/{number}.bin")), vec![number as u8; 60_000]).unwrap();
            }
        });
    }
}

#[test]
fn a_commit_with_offsets_beyond_its_archive_is_skipped_for_the_previous_one() {
    let place = Place::new();
    place.save(1);
    place.push();
    let unit = tree(&place.local().join("step-1"));
    for (number, offset) in [1, 1 << 62, u64::MAX - (1 << 20)].into_iter().enumerate() {
        let (_, mut manifest) = place.manifest();
        manifest["schema"] = "trainit.ckpt/2".into();
        manifest["seq"] = (number + 2).into();
        manifest["files"].as_array_mut().unwrap().iter_mut().for_each(|file| file["offset"] = offset.into());
        place.forge(manifest);
        let restored = place.path(&format!("restored-{number}"));
        let done = place.checkpoint_in("pull", &restored).output().expect_code(0);
        assert!(done.err().contains(" lies, has only "), "{}", done.err());
        assert!(tree(&restored.join("step-1")) == unit);
    }
}
