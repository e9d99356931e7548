//! A bucket's listings: an invalid, truncated or empty answer does not mean an empty store.

use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::SeqCst;

use crate::bucket::commits::{amazon, each, fails, google};
use crate::support::bucket::{Bucket, Fault, Request};
use crate::support::checkpoints::Place;
use crate::support::{Finished, Trainit};

fn is_listing_of(what: &'static str) -> impl Fn(&Request) -> bool {
    move |r| r.method == "GET" && r.query.get("prefix").is_some_and(|prefix| prefix.contains(what))
}

/// A run that must find the commit of another machine. Its trainer prints the step that it resumes from.
fn run_afresh(place: &Place) -> Finished {
    let to = place.path("elsewhere");
    let run = ["run", "--checkpoint-store", &place.url(), "--checkpoint-dir", to.to_str().unwrap(), "--"];
    let run = Trainit::new(run).args(["sh", "-c", "echo resumed from $TRAINIT_RESUME_STEP"]);
    place.env().iter().fold(run, |run, (name, value)| run.env(name, value)).output()
}

#[test]
fn an_answer_that_is_not_a_listing_is_requested_again() {
    const ERROR: &str =
        "<?xml version='1.0'?><Error><Code>InternalError</Code><Message>Please try again.</Message></Error>";
    for fault in [|| Fault::Say(ERROR), || Fault::Say("<html>Sign in</html>"), || Fault::Say(""), || Fault::Half] {
        each(|bucket, place| {
            place.save(7);
            place.push();
            let seen = AtomicUsize::new(0);
            let is_it = is_listing_of("/.trainit/commits");
            // The first listing is part of the claim; the next one decides which commit is restored.
            bucket.misbehave(move |r| (is_it(r) && seen.fetch_add(1, SeqCst) % 2 == 1).then(fault));
            let done = run_afresh(&place).expect_code(0);
            assert_eq!(done.out(), "resumed from 7\n", "{}", done.err());
        });
    }
}

#[test]
fn an_invalid_answer_to_the_start_of_a_multipart_upload_is_requested_again() {
    for fault in [|| Fault::Half, || Fault::Say("<html>Sign in</html>")] {
        for place in [google, amazon] {
            let bucket = Bucket::start();
            let place = place(&bucket);
            place.save(1);
            std::fs::File::create(place.local().join("step-1/large.bin")).unwrap().set_len(70 << 20).unwrap();
            let seen = AtomicUsize::new(0);
            bucket.misbehave(move |r| {
                let is_start = r.method == "POST" && r.query.contains_key("uploads");
                (is_start && seen.fetch_add(1, SeqCst) == 0).then(fault)
            });
            place.push();
            assert_eq!(place.steps(), [1]);
        }
    }
}

#[test]
fn commits_that_disappear_from_a_listing_are_listed_again_and_cause_no_start_from_scratch() {
    for (faults, expected) in [(2, 0), (usize::MAX, 204)] {
        let bucket = Bucket::start();
        let place = google(&bucket);
        place.save(7);
        place.push();
        let seen = AtomicUsize::new(0);
        let is_it = is_listing_of("/.trainit/commits");
        bucket.misbehave(move |r| {
            let is_lost = is_it(r) && (1..=faults).contains(&seen.fetch_add(1, SeqCst));
            is_lost.then_some(Fault::LosePage)
        });
        let done = run_afresh(&place).expect_code(expected);
        let said = if expected == 0 { done.out() } else { done.err() };
        let word = if expected == 0 { "resumed from 7" } else { "showed commits when this run claimed it" };
        assert!(said.contains(word), "{said}");
    }
}

#[test]
fn a_listing_whose_token_repeats_is_an_error() {
    let bucket = Bucket::start();
    let place = amazon(&bucket);
    let keys = (0..1000).map(|key| {
        format!(
            "<Contents><Key>jobs/1/.trainit/commits/{key}</Key><LastModified>2026-11-21T16:00:00.000Z</LastModified><ETag>x</ETag><Size>1</Size></Contents>"
        )
    });
    let keys: String = keys.collect();
    let page = format!(
        "<ListBucketResult><IsTruncated>true</IsTruncated>{keys}<NextContinuationToken>again</NextContinuationToken></ListBucketResult>"
    );
    bucket.misbehave(move |r| is_listing_of("/.trainit/commits")(r).then(|| Fault::Tell(page.clone())));
    fails(place.checkpoint("list").output(), &["cannot list", "the listing has no end"]);
}
