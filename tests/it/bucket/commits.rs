//! Stores in buckets, over real HTTP on loopback: commits are restored bit for bit, also after kills and with conditions
//! that the bucket ignores.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;

use crate::support::Finished;
use crate::support::bucket::{Bucket, Fault, NAME, Request};
use crate::support::cgroup::Cgroup;
use crate::support::checkpoints::{Place, tree};

pub(crate) fn google(bucket: &Bucket) -> Place {
    Place::with_store(&format!("gs://{NAME}/jobs/1"), bucket.as_google())
}

pub(crate) fn amazon(bucket: &Bucket) -> Place {
    Place::with_store(&format!("s3://{NAME}/jobs/1"), bucket.as_amazon())
}

fn azure(bucket: &Bucket) -> Place {
    Place::with_store(&format!("az://{NAME}/jobs/1"), bucket.as_azure())
}

/// All dialects, one after the other.
pub(crate) fn each(test: impl Fn(&Bucket, Place)) {
    for place in [google, amazon, azure] {
        let bucket = Bucket::start();
        let place = place(&bucket);
        test(&bucket, place);
    }
}

pub(crate) fn is_data(request: &Request) -> bool {
    request.method == "PUT" && !request.key.contains("/.trainit/")
}

pub(crate) fn is_manifest(request: &Request) -> bool {
    request.method == "PUT" && request.key.contains("/.trainit/commits/")
}

/// Checks that the failure is one line with these words.
#[track_caller]
pub(crate) fn fails(done: Finished, words: &[&str]) {
    let done = done.expect_code(204);
    let line = done.err();
    assert_eq!(line.lines().count(), 1, "{line}");
    for word in words {
        assert!(line.contains(word), "no {word:?} in {line}");
    }
}

#[test]
fn a_push_to_a_bucket_is_restored_bit_for_bit() {
    each(|bucket, place| {
        place.save(7);
        let unit = place.local().join("step-7");
        fs::create_dir_all(unit.join("empty/deep")).unwrap();
        fs::write(unit.join("a b\nc#1%\\ \u{fc}?*&<"), "odd name").unwrap();
        fs::write(unit.join("zero.txt"), "").unwrap();
        place.push();
        assert_eq!(tree(&place.pull_afresh("elsewhere").join("step-7")), tree(&unit));
        let data = bucket.object("jobs/1/step-7/0000000001-000001/weights.bin").unwrap();
        assert_eq!(data, fs::read(unit.join("weights.bin")).unwrap(), "data is plain bytes");
        assert_eq!(place.steps(), [7]);
        place.checkpoint("verify").output().expect_code(0);
        place.checkpoint("prune").output().expect_code(0);
        assert!(bucket.keys().iter().all(|k| k.starts_with("jobs/1/")), "{:?}", bucket.keys());
        assert!(!bucket.keys().iter().any(|k| k.contains("probe")), "{:?}", bucket.keys());
    });
}

#[test]
fn a_file_of_many_parts_is_restored_bit_for_bit() {
    each(|bucket, place| {
        place.save(1);
        let large = File::create(place.local().join("step-1/large.bin")).unwrap();
        large.set_len(70 << 20).unwrap();
        for at in [0, (32 << 20) - 2, (64 << 20) - 1, (70 << 20) - 5] {
            large.write_all_at(b"here", at).unwrap();
        }
        drop(large);
        place.push();
        let pulled = place.pull_afresh("elsewhere");
        let same = |name: &str| fs::read(pulled.join(name)).unwrap() == fs::read(place.local().join(name)).unwrap();
        assert!(same("step-1/large.bin") && same("step-1/weights.bin"));
        assert_eq!(bucket.uploads(), 0);
        let is_part =
            |r: &&Request| r.query.contains_key("partNumber") || r.query.get("comp").is_some_and(|c| c == "block");
        assert_eq!(bucket.asked().iter().filter(is_part).count(), 3);
    });
}

/// The files of step 1 are pushed to a bucket and pulled with this memory limit.
pub(crate) fn goes_through_little_memory(mebibytes: u64, save: impl Fn(&Place)) {
    let Some(group) = Cgroup::with_limit(mebibytes << 20) else {
        crate::support::skip("a transfer in little memory (no memory cgroup can be made here)");
        return;
    };
    let bucket = Bucket::start();
    let place = amazon(&bucket);
    place.save(1);
    save(&place);
    let enter = group.enter();
    let inside = |action: &str, local: &Path| {
        place.checkpoint_through(&["sh", "-c", &enter], action, local).output().expect_code(0)
    };
    inside("push", &place.local());
    let elsewhere = place.path("elsewhere");
    inside("pull", &elsewhere);
    inside("verify", &elsewhere);
    assert!(tree(&elsewhere.join("step-1")) == tree(&place.local().join("step-1")));
}

#[test]
fn a_transfer_uses_no_more_memory_than_the_cgroup_has_free() {
    goes_through_little_memory(48, |place| {
        for number in 0..4 {
            let large = File::create(place.local().join(format!("step-1/large-{number}.bin"))).unwrap();
            large.set_len(40 << 20).unwrap();
            large.write_all_at(b"here", 30 << 20).unwrap();
        }
    });
}

#[test]
fn a_transfer_uses_a_bounded_amount_of_memory() {
    const PEAK: &str = "import resource, subprocess, sys\ncode = subprocess.call(sys.argv[1:])\n\
        print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss, file=sys.stderr)\nsys.exit(code)";
    each(|_, place| {
        place.save(1);
        for (number, mebibytes) in [60, 60, 40, 60, 60, 60, 200].into_iter().enumerate() {
            let large = File::create(place.local().join(format!("step-1/large-{number}.bin"))).unwrap();
            large.set_len(mebibytes << 20).unwrap();
        }
        let pushed = place.checkpoint_through(&["python3", "-c", PEAK], "push", &place.local()).output().expect_code(0);
        let peak: u64 = pushed.err().lines().last().and_then(|line| line.parse().ok()).expect("says how many KiB");
        assert!(peak < 300 << 10, "{peak} KiB");
    });
}

/// A file of 24 MiB without holes in step 1: more than an unread connection holds.
fn dense(place: &Place) -> (PathBuf, Vec<u8>) {
    let path = place.local().join("step-1/dense.bin");
    let bytes: Vec<u8> = (0..24_u32 << 20).map(|at| (at.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
    fs::write(&path, &bytes).unwrap();
    (path, bytes)
}

#[test]
fn a_file_is_restored_bit_for_bit_after_an_interrupted_try() {
    each(|bucket, place| {
        place.save(1);
        let (_, bytes) = dense(&place);
        let first = AtomicBool::new(true);
        bucket.misbehave(move |r| (r.key.ends_with("dense.bin") && first.swap(false, Relaxed)).then_some(Fault::Cut));
        place.push();
        let data = bucket.object("jobs/1/step-1/0000000001-000001/dense.bin").unwrap();
        assert!(data == bytes, "other bytes than the file's");
        assert!(fs::read(place.pull_afresh("elsewhere").join("step-1/dense.bin")).unwrap() == bytes);
    });
}

#[test]
fn a_file_that_is_written_to_while_it_is_sent_is_not_committed() {
    each(|bucket, place| {
        place.save(1);
        let (path, bytes) = dense(&place);
        let file = File::options().write(true).open(&path).unwrap();
        bucket.misbehave(move |r| {
            if r.key.ends_with("dense.bin") && r.method == "PUT" {
                file.write_all_at(&[!bytes[bytes.len() - 1]], bytes.len() as u64 - 1).unwrap();
            }
            None
        });
        let pushed = place.checkpoint("push").output().expect_code(1);
        assert!(pushed.err().contains("step-1/dense.bin changed while it was copied"), "{}", pushed.err());
        assert!(!bucket.keys().iter().any(|key| key.contains("/commits/")), "{:?}", bucket.keys());
    });
}

#[test]
fn after_a_kill_at_any_point_of_a_commit_the_newest_commit_is_restored_from_the_bucket() {
    for point in 1..=12 {
        let bucket = Bucket::start();
        let place = google(&bucket);
        let first = place.save(1);
        place.push();
        let second = place.save(2);
        let push = place.checkpoint("push").args(["--keep-last", "1"]);
        push.env("TRAINIT_TEST_FAULT", point.to_string()).output().expect_code(137);
        let pulled = place.pull_afresh("elsewhere");
        let (step, saved) = if point < 9 { (1, &first) } else { (2, &second) };
        assert_eq!(tree(&pulled.join(format!("step-{step}"))), *saved, "killed at point {point}");
        place.push();
        assert_eq!(place.steps()[0], 2, "after point {point}");
    }
}

#[test]
fn a_bucket_fences_two_runs() {
    each(|_, place| place.expect_fenced_at("4:stop"));
}

#[test]
fn a_bucket_that_ignores_conditions_is_detected_and_used_with_care() {
    for place in [google, amazon] {
        let bucket = Bucket::liar();
        let place = place(&bucket);
        place.save(1);
        let done = place.push();
        assert!(done.err().contains("ignores put-if-absent"), "{}", done.err());
        assert!(bucket.keys().iter().any(|k| k.contains("/attempts/0000000001r")), "{:?}", bucket.keys());
        let pulled = place.pull_afresh("elsewhere");
        assert_eq!(tree(&pulled.join("step-1")), tree(&place.local().join("step-1")));
    }
}

#[test]
fn a_bucket_that_does_not_know_conditions_is_used_with_care_too() {
    let bucket = Bucket::start();
    let place = amazon(&bucket);
    place.save(1);
    bucket.misbehave(|r| {
        r.headers.contains_key("if-none-match").then_some(Fault::Refuse("501 Not Implemented", "NotImplemented"))
    });
    let done = place.push();
    assert!(done.err().contains("ignores put-if-absent"), "{}", done.err());
    assert_eq!(place.steps(), [1]);
}
