//! Access errors of a bucket on one line, credentials from a metadata server, and no secret in any output.

use crate::bucket::commits::{amazon, each, fails};
use crate::support::bucket::{Bucket, Fault, NAME, Request, SECRET};
use crate::support::checkpoints::Place;

#[test]
fn a_bucket_error_is_one_line_with_advice() {
    let bucket = Bucket::start();
    for (url, env) in [("gs://no-such-bucket/x", bucket.as_google()), ("s3://no-such-bucket/x", bucket.as_amazon())] {
        let place = Place::with_store(url, env);
        place.save(1);
        fails(place.checkpoint("push").output(), &["NoSuchBucket", url, "make the bucket"]);
    }
    each(|bucket, place| {
        place.save(1);
        bucket.misbehave(|r| (r.method == "PUT").then_some(Fault::Refuse("403 Forbidden", "AccessDenied")));
        fails(place.checkpoint("push").output(), &["403 AccessDenied", "allowed to list, read, create and delete"]);
    });
    let no_credentials = vec![("AWS_EC2_METADATA_DISABLED", "true".to_owned()), ("HOME", "/nonexistent".to_owned())];
    let place = Place::with_store("s3://b/x", no_credentials);
    fails(place.checkpoint("list").output(), &["no credentials", "AWS_ACCESS_KEY_ID"]);
    let place = Place::with_store("gs://b/x", vec![("GOOGLE_APPLICATION_CREDENTIALS", "/nonexistent".to_owned())]);
    fails(place.checkpoint("list").output(), &["GOOGLE_APPLICATION_CREDENTIALS=/nonexistent", "No such file"]);
    let place = Place::with_store("az://c/x", vec![]);
    fails(place.checkpoint("list").output(), &["AZURE_STORAGE_ACCOUNT"]);
    let plain = vec![("STORAGE_EMULATOR_HOST", "store.example:80".to_owned())];
    fails(Place::with_store("gs://b/x", plain).checkpoint("list").output(), &["plain http", "--allow-http"]);
}

#[test]
fn credentials_come_from_the_metadata_server_and_the_bucket_sees_them() {
    use crate::support::metadata::{Metadata, ok, status};
    let bucket = Bucket::start();
    let server = Metadata::start(|request, _| {
        if request.path.contains("/service-accounts/default/token") {
            ok(r#"{"access_token":"ya29.of-the-machine","expires_in":3600,"token_type":"Bearer"}"#)
        } else {
            status("404 Not Found")
        }
    });
    let env = vec![
        ("GCE_METADATA_HOST", server.at.clone()),
        ("GCE_METADATA_IP", server.at.clone()),
        ("CLOUDSDK_API_ENDPOINT_OVERRIDES_STORAGE", format!("http://{}/", bucket.at)),
        ("HOME", "/nonexistent".to_owned()),
    ];
    let place = Place::with_store(&format!("gs://{NAME}"), env);
    place.save(1);
    let done = place.push();
    let asked = bucket.asked();
    assert!(!asked.is_empty());
    assert!(asked.iter().all(|r| r.headers["authorization"] == "Bearer ya29.of-the-machine"));
    assert!(!done.err().contains("ya29"));
}

/// No secret is printed for any error and any verbosity.
#[test]
fn no_secret_is_ever_printed() {
    let bucket = Bucket::start();
    let place = amazon(&bucket);
    place.save(1);
    let sign = |r: &Request| r.headers.get("authorization").map(|a| a.rsplit('=').next().unwrap().to_owned());
    let all = |place: &Place| {
        let mut text = String::new();
        for action in ["push", "list", "verify", "pull", "prune"] {
            let done = place.checkpoint(action).output();
            text += &format!("{}{}", done.out(), done.err());
        }
        let local = place.local();
        let run = ["run", "--log-level", "debug", "--checkpoint-store", &place.url(), "--checkpoint-dir"];
        let mut run = crate::support::Trainit::new(run).args([local.to_str().unwrap(), "--", "true"]);
        for (name, value) in place.env() {
            run = run.env(name, value);
        }
        let done = run.output();
        text + &done.out() + &done.err()
    };
    let mut text = all(&place);
    assert!(text.contains("committed step-1"), "{text}");
    // A server that repeats the request.
    bucket.misbehave(|_| Some(Fault::Refuse("403 Forbidden", SECRET)));
    text += &all(&place);
    bucket.misbehave(|_| Some(Fault::Refuse("400 Bad Request", SECRET)));
    text += &all(&place);
    assert!(text.contains("answer 400"), "{text}");
    for secret in [SECRET, "Signature=", "AWS4-HMAC"] {
        assert!(!text.contains(secret), "{secret} is in {text}");
    }
    for signature in bucket.asked().iter().filter_map(sign) {
        assert!(!text.contains(&signature));
    }
}

#[test]
fn a_sas_token_is_never_printed_though_it_is_in_every_address() {
    let bucket = Bucket::start();
    let mut env = bucket.as_azure();
    env.retain(|(name, _)| *name != "AZURE_STORAGE_KEY");
    env.push(("AZURE_STORAGE_SAS_TOKEN", "?sv=2024-11-04&sp=rwdl&sig=hunter2hunter2%3D".to_owned()));
    let place = Place::with_store(&format!("az://{NAME}/x"), env);
    place.save(1);
    let mut text = place.push().err();
    assert!(bucket.asked().iter().all(|r| r.query.get("sig").is_some_and(|s| s == "hunter2hunter2=")));
    bucket.misbehave(|_| Some(Fault::Refuse("400 Bad Request", "hunter2hunter2%3D")));
    for action in ["push", "list", "verify", "pull", "prune"] {
        text += &place.checkpoint(action).output().expect_code(204).err();
    }
    assert!(text.contains("answer 400") && !text.contains("hunter2"), "{text}");
}
