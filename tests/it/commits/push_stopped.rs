//! `trainit checkpoint push`, stopped by a signal during the upload.

use std::fs::{self, File};
use std::time::Instant;

use crate::support::bucket::{Bucket, Fault, NAME, Request};
use crate::support::checkpoints::Place;
use crate::support::{Trainit, assert_prompt, eventually};

fn is_second_part(request: &Request) -> bool {
    request.query.get("partNumber").is_some_and(|number| number == "2")
}

#[test]
fn a_stopped_push_removes_its_objects_and_exits_with_the_signals_code() {
    for (name, signal, code) in [("TERM", libc::SIGTERM, 143), ("INT", libc::SIGINT, 130)] {
        let bucket = Bucket::start();
        let place = Place::with_store(&format!("s3://{NAME}/job"), bucket.as_amazon());
        place.save(1);
        // A file larger than 64 MiB is uploaded in parts.
        File::create(place.local().join("step-1/huge.bin")).unwrap().set_len(70 << 20).unwrap();
        bucket.misbehave(|request| is_second_part(request).then_some(Fault::Hang));
        let local = place.local().display().to_string();
        let push =
            ["checkpoint", "push", "--checkpoint-store", &place.url(), "--checkpoint-dir", &local, "--settle", "0"];
        // The signal must not be ignored, however the tests were started.
        let defaults = format!("--default-signal={name}");
        let push = Trainit::through(&["env", &defaults], push);
        let push = place.env().iter().fold(push, |push, (name, value)| push.env(name, value)).start();
        let sent = |end: &str| bucket.keys().iter().any(|key| key.ends_with(end));
        eventually("all but the last part are sent", || {
            bucket.asked().iter().any(is_second_part) && sent("weights.bin") && sent("state.json") && sent("0.bin")
        });
        assert_eq!(bucket.uploads(), 1);
        assert!(fs::read_dir(place.local().join(".trainit/pin")).unwrap().count() > 0);
        let begun = Instant::now();
        push.signal(signal);
        let done = push.finish().expect_code(code);
        assert_prompt(begun);
        let line = format!("stopped by SIG{name}: nothing was pushed, and the sent parts were deleted; push again");
        assert!(done.err().contains(&line), "{}", done.err());
        assert_eq!(bucket.uploads(), 0, "remaining parts would cost money");
        let left: Vec<String> = bucket.keys().into_iter().filter(|key| !key.contains("/.trainit/")).collect();
        assert_eq!(left, [] as [String; 0]);
        assert!(!place.local().join(".trainit/pin").exists());
        bucket.behave();
        assert!(place.push().out().starts_with("committed step-1"));
    }
}

#[test]
fn objects_whose_put_was_not_confirmed_are_removed_too() {
    type Which = fn(&Request) -> bool;
    let answers: [(&str, Which); 2] = [
        ("/weights.bin", |r| r.method == "PUT" && r.key.ends_with("/weights.bin")),
        ("/huge.bin", |r| r.method == "POST" && r.query.contains_key("uploadId")),
    ];
    for (file, is_lost) in answers {
        let bucket = Bucket::start();
        let place = Place::with_store(&format!("s3://{NAME}/job"), bucket.as_amazon());
        place.save(1);
        File::create(place.local().join("step-1/huge.bin")).unwrap().set_len(70 << 20).unwrap();
        bucket.misbehave(move |request| is_lost(request).then_some(Fault::Mute));
        let push = place.checkpoint("push").start();
        eventually("it is there", || bucket.keys().iter().any(|key| key.ends_with(file)));
        push.signal(libc::SIGTERM);
        let done = push.finish().expect_code(143);
        assert!(done.err().contains("the sent parts were deleted"), "{}", done.err());
        let left: Vec<String> = bucket.keys().into_iter().filter(|key| !key.contains("/.trainit/")).collect();
        assert_eq!(left, [] as [String; 0], "{file}");
    }
}

#[test]
fn a_push_that_is_stopped_while_it_writes_the_manifest_deletes_nothing() {
    let bucket = Bucket::start();
    let place = Place::with_store(&format!("s3://{NAME}/job"), bucket.as_amazon());
    place.save(1);
    bucket.misbehave(|r| (r.method == "PUT" && r.key.contains("/commits/")).then_some(Fault::Mute));
    let push = place.checkpoint("push").start();
    eventually("the commit is named", || bucket.keys().iter().any(|key| key.contains("/commits/")));
    push.signal(libc::SIGTERM);
    let done = push.finish().expect_code(143);
    assert!(done.err().contains("trainit checkpoint list says whether it exists"), "{}", done.err());
    bucket.behave();
    assert_eq!(place.steps(), [1], "it is whole");
}
