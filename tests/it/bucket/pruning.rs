//! `trainit checkpoint prune` and bad commits in a bucket: the objects that are kept and the objects that are deleted.

use crate::bucket::commits::{amazon, each, fails};
use crate::support::bucket::{Bucket, Fault};
use crate::support::checkpoints::{Place, tree};

#[test]
fn the_age_of_data_is_measured_by_the_buckets_clock() {
    each(|bucket, place| {
        place.save(1);
        place.checkpoint("push").env("TRAINIT_TEST_FAULT", "8").output().expect_code(137);
        place.push();
        let orphan = "jobs/1/step-1/0000000001-000001/weights.bin".to_owned();
        // By the local clock every object of this bucket is hours old.
        place.checkpoint("prune").args(["--orphan-age", "61m"]).output().expect_code(0);
        assert!(bucket.keys().contains(&orphan), "an hour old by the server's Date");
        place.checkpoint("prune").args(["--orphan-age", "59m"]).output().expect_code(0);
        assert!(!bucket.keys().contains(&orphan));
        assert_eq!(place.steps(), [1]);
    });
}

#[test]
fn a_commit_that_another_process_deletes_during_a_prune_is_not_an_error() {
    let bucket = Bucket::start();
    let place = amazon(&bucket);
    for step in 1..=4 {
        place.save(step);
        place.checkpoint("push").args(["--keep-last", "9"]).output().expect_code(0);
    }
    let newest = bucket.keys().into_iter().rfind(|key| key.contains("/.trainit/commits/")).unwrap();
    let asked = std::sync::atomic::AtomicUsize::new(0);
    bucket.misbehave(move |r| {
        let again = r.key == newest && asked.fetch_add(1, std::sync::atomic::Ordering::Relaxed) > 0;
        again.then_some(Fault::Refuse("404 Not Found", "NoSuchKey"))
    });
    let done = place.checkpoint("prune").args(["--keep-last", "2"]).output().expect_code(0);
    assert!(done.out().contains("deleted 2 commits"), "{}", done.out());
}

#[test]
fn directories_that_a_console_made_are_skipped_and_kept() {
    each(|bucket, place| {
        let saved = place.save(1);
        place.push();
        let directories = ["", "folder/", "step-1/", ".trainit/", ".trainit/commits/"];
        for name in directories {
            bucket.place(&format!("jobs/1/{name}"), b"");
        }
        for action in ["push", "list", "verify"] {
            place.checkpoint(action).output().expect_code(0);
        }
        place.checkpoint("prune").args(["--orphan-age", "0s"]).output().expect_code(0);
        assert_eq!(tree(&place.pull_afresh("elsewhere").join("step-1")), saved);
        assert!(
            directories.iter().all(|name| bucket.object(&format!("jobs/1/{name}")).is_some()),
            "{:?}",
            bucket.keys()
        );
    });
}

#[test]
fn a_name_among_the_commits_that_cannot_be_a_key_is_an_error_with_the_way_out() {
    for name in ["/x", "a/../b", "a\nb"] {
        each(|bucket, place| {
            place.save(1);
            place.push();
            bucket.place(&format!("jobs/1/.trainit/commits/{name}"), b"");
            fails(place.checkpoint("list").output(), &["cannot list", "path segment", "delete that object"]);
        });
    }
}

#[test]
fn data_of_a_store_below_another_is_never_pruned() {
    each(|bucket, place| {
        let below = |name: &str| Place::with_store(&format!("{}/{name}", place.url()), place.env().to_vec());
        let (node, deep) = (below("node-00001"), below("a/b"));
        for other in [&node, &deep] {
            other.save(1);
            other.push();
        }
        // The store's own first commit, of the same attempt and sequence, was deleted.
        for step in 1..=2 {
            place.save(step);
            place.checkpoint("push").args(["--keep-last", "1"]).output().expect_code(0);
        }
        // One of the two signs of another store may be missing.
        for lost in ["", "jobs/1/a/b/.trainit"] {
            bucket.misbehave(move |r| {
                let is_asked = r.query.get("prefix").is_some_and(|prefix| !lost.is_empty() && prefix.starts_with(lost));
                is_asked.then_some(Fault::LosePage)
            });
            let done = place.checkpoint("prune").args(["--orphan-age", "0s"]).output().expect_code(0);
            assert!(done.out().contains("0 objects without a commit"), "{}", done.out());
            bucket.behave();
        }
        for other in [&node, &deep] {
            other.checkpoint("verify").output().expect_code(0);
        }
    });
}

#[test]
fn a_commit_with_a_temporarily_unreadable_manifest_is_not_deleted() {
    each(|bucket, place| {
        place.save_and_push(1..=2);
        bucket.misbehave(|r| {
            let is_it = r.method == "GET" && r.key.contains("/commits/") && r.key.contains("-000000000001-");
            is_it.then_some(Fault::Refuse("403 Forbidden", "AccessDenied"))
        });
        let prune = || place.checkpoint("prune").args(["--keep-last", "1"]).output();
        fails(prune(), &["AccessDenied"]);
        bucket.behave();
        assert_eq!(place.steps(), [2, 1]);
        prune().expect_code(0);
        assert_eq!(place.steps(), [2]);
        let left: Vec<String> = bucket.keys().into_iter().filter(|key| key.contains("/step-1/")).collect();
        assert_eq!(left, [""; 0], "with its data");
    });
}
