//! A complete store with invalid answers: that must not cause a restore of an older checkpoint.

use std::fs;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;

use crate::bucket::commits::{amazon, each, fails};
use crate::support::bucket::{Bucket, Fault, Request};
use crate::support::checkpoints::{Place, tree};

/// An object that is sent in one request, one in several chunks, and the manifest.
const SMALL: &str = "/step-2/0000000002-000001/weights.bin";
const LARGE: &str = "/step-2/0000000002-000001/large.bin";
const MANIFEST: &str = "/.trainit/commits/0000000002-";

type Make = fn() -> Fault;

const REFUSALS: [Make; 6] = [
    || Fault::Refuse("400 Bad Request", "InvalidRequest"),
    || Fault::Refuse("404 Not Found", "NoSuchKey"),
    || Fault::Refuse("409 Conflict", "Conflict"),
    || Fault::Refuse("412 Precondition Failed", "PreconditionFailed"),
    || Fault::Refuse("416 Requested Range Not Satisfiable", "InvalidRange"),
    || Fault::Refuse("423 Locked", "Locked"),
];
const SPOILT: [Make; 3] = [|| Fault::Short, || Fault::Flip, || Fault::Say("<html>Sign in</html>")];

fn is_get_of(request: &Request, key: &str) -> bool {
    request.method == "GET" && request.key.contains(key)
}

/// Two commits, the second with a large file.
fn two_commits(place: &Place) {
    place.save(1);
    place.push_one();
    place.save(2);
    let large: Vec<u8> = (0..3_000_000_u32).map(|at| (at % 251) as u8).collect();
    fs::write(place.local().join("step-2/large.bin"), large).unwrap();
    place.push_one();
}

#[test]
fn one_corrupt_answer_is_requested_again_and_the_newest_commit_is_restored() {
    each(|bucket, place| {
        two_commits(&place);
        let saved = tree(&place.local().join("step-2"));
        for (key, name) in [(SMALL, "small"), (LARGE, "large"), (MANIFEST, "manifest")] {
            for (number, fault) in REFUSALS.into_iter().chain(SPOILT).enumerate() {
                let once = AtomicBool::new(true);
                bucket.misbehave(move |r| (is_get_of(r, key) && once.swap(false, Relaxed)).then(fault));
                let pulled = place.pull_afresh(&format!("{name}-{number}"));
                assert!(!pulled.join("step-1").exists(), "{name} {number}");
                assert_eq!(tree(&pulled.join("step-2")), saved, "{name} {number}");
                fs::remove_dir_all(pulled).unwrap();
            }
        }
    });
}

#[test]
fn unreadable_data_with_a_complete_listing_does_not_cause_an_older_restore() {
    each(|bucket, place| {
        two_commits(&place);
        let pulled = place.path("elsewhere");
        let refused = |key: &'static str, fault: Make, words: &[&str]| {
            bucket.misbehave(move |r| is_get_of(r, key).then(fault));
            fails(place.checkpoint_in("pull", &pulled).output(), words);
            assert!(!pulled.join("step-1").exists(), "{words:?}");
        };
        for key in [SMALL, LARGE] {
            for fault in REFUSALS.into_iter().chain([(|| Fault::Short) as Make]) {
                refused(key, fault, &["cannot read", "the store lists it whole", "--restore-step"]);
            }
        }
        for fault in REFUSALS {
            refused(MANIFEST, fault, &["cannot read", ".trainit/commits/0000000002-"]);
        }
        refused(MANIFEST, || Fault::Short, &["cannot read", "bytes came"]);
        place.checkpoint_in("pull", &pulled).args(["--restore-step", "1"]).output().expect_code(0);
        assert!(pulled.join("step-1").exists());
    });
}

#[test]
fn complete_data_with_a_wrong_checksum_causes_an_older_restore() {
    let bucket = Bucket::start();
    let place = amazon(&bucket);
    two_commits(&place);
    for (key, name) in [(SMALL, "small"), (LARGE, "large"), (MANIFEST, "manifest")] {
        bucket.misbehave(move |r| is_get_of(r, key).then_some(Fault::Flip));
        assert!(place.pull_afresh(name).join("step-1").exists(), "{name}");
    }
}

#[test]
fn an_endless_answer_is_cut_off() {
    const REFUSAL: &str = "<Error><Code>AccessDenied</Code><Message>Sign in.</Message></Error>";
    let bucket = Bucket::start();
    let place = amazon(&bucket);
    place.save(1);
    place.push();
    bucket.misbehave(|_| Some(Fault::Endless("403 Forbidden", REFUSAL)));
    fails(place.checkpoint("list").output(), &["answer 403 AccessDenied: Sign in."]);
    assert!(bucket.babbled() < 20 << 20, "{} bytes", bucket.babbled());
    bucket.misbehave(|_| Some(Fault::Endless("200 OK", "<ListBucketResult>")));
    fails(place.checkpoint("list").output(), &["longer than any that was asked for"]);
    assert!(bucket.babbled() < 200 << 20, "{} bytes", bucket.babbled());
}
