//! Buckets with faults: lost answers, broken connections, changed or missing data. No commit is torn or lost.

use std::collections::BTreeMap;
use std::fs::File;
use std::sync::Mutex;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;

use crate::bucket::commits::{amazon, each, fails, google, is_data, is_manifest};
use crate::support::Trainit;
use crate::support::bucket::{Bucket, Fault, Request};
use crate::support::checkpoints::{Place, tree};

#[test]
fn a_request_that_succeeds_with_an_answer_of_503_is_recognised() {
    each(|bucket, place| {
        place.save(1);
        let seen = std::sync::Mutex::new(std::collections::BTreeSet::new());
        bucket.misbehave(move |r| {
            let is_first = r.method == "PUT" && seen.lock().unwrap().insert(r.key.clone());
            is_first.then_some(Fault::Afterwards("503 Service Unavailable"))
        });
        place.push();
        assert_eq!(place.steps(), [1]);
        assert_eq!(bucket.keys().iter().filter(|k| k.contains("/attempts/")).count(), 1, "one claim");
    });
}

/// The answers to the first tries of a claim and of a manifest are lost.
fn loses_answers(bucket: &Bucket, place: &Place, fault: fn() -> Fault, first: usize) {
    place.save(1);
    let tries = Mutex::new(BTreeMap::new());
    bucket.misbehave(move |r| {
        let is_it = r.method == "PUT" && (r.key.contains("/attempts/") || r.key.contains("/commits/"));
        let mut tries = tries.lock().unwrap();
        let count: &mut usize = tries.entry(r.key.clone()).or_default();
        *count += 1;
        (is_it && *count <= first).then(fault)
    });
    let done = place.checkpoint("push").args(["--store-timeout", "1s"]).output().expect_code(0);
    for what in ["/attempts/", "/commits/"] {
        let keys: Vec<_> = bucket.keys().into_iter().filter(|k| k.contains(what)).collect();
        assert_eq!(keys.len(), 1, "{keys:?} {}", done.err());
    }
    assert_eq!(place.steps(), [1]);
}

#[test]
fn a_claim_and_a_manifest_whose_answers_are_lost_are_this_runs_own() {
    for fault in [|| Fault::Lose, || Fault::Afterwards("503 Service Unavailable")] {
        each(|bucket, place| loses_answers(bucket, &place, fault, 1));
    }
    let bucket = Bucket::start();
    loses_answers(&bucket, &amazon(&bucket), || Fault::Lose, usize::MAX);
}

#[test]
fn a_manifest_that_the_bucket_holds_is_never_reported_as_missing() {
    const SPOILT: [fn() -> Fault; 4] =
        [|| Fault::Refuse("404 Not Found", "NoSuchKey"), || Fault::Short, || Fault::Flip, || Fault::Half];
    let is_read = |r: &Request| r.method == "GET" && r.key.contains("/commits/");
    for fault in SPOILT {
        each(|bucket, place| {
            place.save(1);
            let once = AtomicBool::new(true);
            bucket.misbehave(move |r| (is_read(r) && once.swap(false, Relaxed)).then(fault));
            place.push();
            assert_eq!(place.steps(), [1]);
        });
    }
    // Reads find nothing, but the listing has it.
    each(|bucket, place| {
        place.save(1);
        bucket.misbehave(move |r| is_read(r).then_some(Fault::Refuse("404 Not Found", "NoSuchKey")));
        place.push();
        bucket.behave();
        assert_eq!(place.steps(), [1]);
    });
}

#[test]
fn a_commit_whose_answer_was_lost_appears_once() {
    let bucket = Bucket::start();
    let place = amazon(&bucket);
    let go = place.path("go");
    let script = format!(
        r#"mkdir -p "$D/step-1"; echo 1 >"$D/step-1/state.json"; until [ -e {} ]; do sleep 0.01; done"#,
        go.display()
    );
    // The manifest arrives, and neither its answer nor an answer about it does.
    bucket.misbehave(|r| match r.method.as_str() {
        "PUT" if is_manifest(r) => Some(Fault::Lose),
        "GET" if r.key.contains("/commits/") => Some(Fault::Close),
        _ => None,
    });
    let (url, dir) = (place.url(), place.local());
    let run = ["run", "--checkpoint-store", &url, "--checkpoint-dir", dir.to_str().unwrap()];
    let trainit = Trainit::new(run).args(["--settle", "0", "--commit-interval", "10ms"]);
    let trainit = trainit.args(["--store-timeout", "1s", "--", "sh", "-c", &script]);
    let trainit = place.env().iter().fold(trainit, |trainit, (name, value)| trainit.env(name, value));
    let going = trainit.env("D", dir).start();
    going.after_log("commit_failed");
    bucket.behave();
    std::fs::write(go, "").unwrap();
    let verdict = going.finish().expect_code(0).verdict();
    assert_eq!(verdict["committed_step"], 1, "{verdict}");
    assert_eq!(place.commits().len(), 1, "{:?}", bucket.keys());
}

#[test]
fn a_put_that_conflicts_with_another_is_tried_again() {
    let bucket = Bucket::start();
    let place = amazon(&bucket);
    place.save(1);
    let seen = std::sync::Mutex::new(std::collections::BTreeSet::new());
    bucket.misbehave(move |r| {
        let is_first = r.headers.contains_key("if-none-match") && seen.lock().unwrap().insert(r.key.clone());
        is_first.then_some(Fault::Refuse("409 Conflict", "ConditionalRequestConflict"))
    });
    place.push();
    assert_eq!(place.steps(), [1]);
    assert_eq!(bucket.keys().iter().filter(|k| k.contains("/attempts/")).count(), 1, "one claim");
}

#[test]
fn a_multipart_upload_whose_last_answer_was_lost_is_recognised() {
    for place in [google, amazon] {
        let bucket = Bucket::start();
        let place = place(&bucket);
        place.save(1);
        File::create(place.local().join("step-1/large.bin")).unwrap().set_len(70 << 20).unwrap();
        let once = std::sync::atomic::AtomicBool::new(true);
        bucket.misbehave(move |r| {
            let is_it = r.method == "POST" && r.query.contains_key("uploadId");
            let is_first = is_it && once.swap(false, std::sync::atomic::Ordering::Relaxed);
            is_first.then_some(Fault::Afterwards("503 Service Unavailable"))
        });
        place.push();
        assert_eq!(place.steps(), [1]);
        // A missing object does not count.
        place.save(2);
        File::create(place.local().join("step-2/large.bin")).unwrap().set_len(70 << 20).unwrap();
        bucket.misbehave(|r| {
            let is_it = r.method == "POST" && r.query.contains_key("uploadId");
            is_it.then_some(Fault::Refuse("404 Not Found", "NoSuchUpload"))
        });
        fails(place.checkpoint("push").output(), &["NoSuchUpload"]);
    }
}

#[test]
fn connections_that_break_are_made_again() {
    each(|bucket, place| {
        place.save(1);
        let count = std::sync::atomic::AtomicUsize::new(0);
        let every_third = move |_: &Request| {
            let n = count.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            (n % 3 == 2).then_some(Fault::Close)
        };
        bucket.misbehave(every_third);
        place.push();
        let pulled = place.pull_afresh("elsewhere");
        assert_eq!(tree(&pulled.join("step-1")), tree(&place.local().join("step-1")));
    });
}

#[test]
fn a_connection_that_is_closed_while_a_file_is_sent_does_not_end_the_process() {
    let bucket = Bucket::start();
    let place = amazon(&bucket);
    place.save(1);
    File::create(place.local().join("step-1/large.bin")).unwrap().set_len(24 << 20).unwrap();
    let tries = std::sync::atomic::AtomicUsize::new(0);
    bucket.misbehave(move |r| {
        let is_it = is_data(r) && r.key.ends_with("large.bin");
        (is_it && tries.fetch_add(1, std::sync::atomic::Ordering::Relaxed) < 3).then_some(Fault::Cut)
    });
    place.push();
    assert_eq!(place.steps(), [1]);
}

#[test]
fn data_that_the_bucket_confirms_but_does_not_store_is_never_committed() {
    each(|bucket, place| {
        place.save(1);
        bucket.misbehave(|r| (is_data(r) && r.key.ends_with("weights.bin")).then_some(Fault::Pretend));
        let done = place.checkpoint("push").output();
        fails(done, &["does not hold it whole"]);
        bucket.behave();
        assert_eq!(place.commits().len(), 0);
    });
}

#[test]
fn a_lost_page_of_a_listing_loses_no_checkpoint() {
    for place in [google, amazon] {
        let bucket = Bucket::start();
        let place = place(&bucket);
        place.save(1);
        place.push();
        let saved = place.save(2);
        let lose = |what: &'static str| {
            bucket.misbehave(move |r| {
                let is_asked = r.key.is_empty() && r.query.get("prefix").is_some_and(|prefix| prefix.contains(what));
                is_asked.then_some(Fault::LosePage)
            });
        };
        lose("/step-");
        place.push();
        assert_eq!(tree(&place.pull_afresh("elsewhere").join("step-2")), saved);
        place.checkpoint("verify").output().expect_code(0);
        lose("/.trainit/commits");
        place.checkpoint("prune").args(["--orphan-age", "0s"]).output().expect_code(0);
        bucket.behave();
        assert_eq!(place.steps(), [2, 1]);
        place.checkpoint("verify").output().expect_code(0);
    }
}

#[test]
fn bytes_that_change_on_the_way_are_never_committed_nor_restored() {
    let bucket = Bucket::start();
    let place = google(&bucket);
    place.save(1);
    place.push();
    place.save(2);
    bucket.misbehave(|r| (is_data(r) && r.key.ends_with("weights.bin")).then_some(Fault::Flip));
    fails(place.checkpoint("push").output(), &["BadDigest"]);
    bucket.behave();
    place.push();
    // Permanently damaged: the older commit is restored.
    bucket.misbehave(|r| {
        let is_it = r.method == "GET" && r.key.ends_with("/step-2/0000000003-000001/weights.bin");
        is_it.then_some(Fault::Flip)
    });
    let pulled = place.pull_afresh("elsewhere");
    assert!(pulled.join("step-1").exists() && !pulled.join("step-2").exists());
    // Damaged once: the data are fetched again.
    let once = std::sync::atomic::AtomicBool::new(true);
    bucket.misbehave(move |r| {
        let is_it = r.method == "GET" && r.key.ends_with("weights.bin");
        (is_it && once.swap(false, std::sync::atomic::Ordering::Relaxed)).then_some(Fault::Flip)
    });
    let pulled = place.pull_afresh("later");
    assert_eq!(tree(&pulled.join("step-2")), tree(&place.local().join("step-2")));
}

#[test]
fn an_answer_that_breaks_off_is_requested_again() {
    each(|bucket, place| {
        place.save(1);
        place.push();
        let once = std::sync::atomic::AtomicBool::new(true);
        bucket.misbehave(move |r| {
            let is_it = r.method == "GET" && r.key.ends_with("weights.bin");
            (is_it && once.swap(false, std::sync::atomic::Ordering::Relaxed)).then_some(Fault::Half)
        });
        let pulled = place.pull_afresh("elsewhere");
        assert_eq!(tree(&pulled.join("step-1")), tree(&place.local().join("step-1")));
    });
}

#[test]
fn a_store_that_fails_during_a_restore_causes_no_older_restore() {
    each(|bucket, place| {
        place.save(1);
        place.push();
        place.save(2);
        place.push();
        let to = place.path("elsewhere");
        for (status, code, way_out) in [
            ("403 Forbidden", "AccessDenied", "allowed to list, read, create and delete"),
            ("400 Bad Request", "ExpiredToken", "credentials that hold now"),
            ("403 Forbidden", "RequestTimeTooSkewed", "this machine's clock is right"),
        ] {
            bucket.misbehave(move |r| {
                let is_it = r.method == "GET" && r.key.contains("/step-2/");
                is_it.then_some(Fault::Refuse(status, code))
            });
            fails(place.checkpoint_in("pull", &to).output(), &[&format!("{} {code}", &status[..3]), way_out]);
            assert!(!to.join("step-1").exists(), "{code}");
        }
    });
}

#[test]
fn a_manifest_that_cannot_be_written_leaves_the_previous_commit() {
    each(|bucket, place| {
        place.save(1);
        place.push();
        place.save(2);
        bucket.misbehave(|r| is_manifest(r).then_some(Fault::Refuse("403 Forbidden", "AccessDenied")));
        fails(place.checkpoint("push").output(), &["403 AccessDenied", "earlier commits remain"]);
        bucket.behave();
        assert_eq!(place.steps(), [1]);
    });
}

#[test]
fn a_manifest_that_the_bucket_confirms_but_does_not_store_is_not_a_commit() {
    each(|bucket, place| {
        place.save(1);
        place.push();
        place.save(2);
        for fault in [|| Fault::Pretend, || Fault::Flip] {
            bucket.misbehave(move |r| (is_manifest(r) && r.method == "PUT").then(fault));
            fails(place.checkpoint("push").output(), &["does not hold it", "earlier commits remain"]);
            bucket.behave();
        }
        assert_eq!(tree(&place.pull_afresh("elsewhere")).keys().filter(|p| p.starts_with("step-2")).count(), 0);
    });
}
