//! Credentials that change during a run: credentials that the store refuses, and credentials that arrive late.

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::atomic::{AtomicBool, AtomicU32};

use tempfile::{NamedTempFile, TempPath};

use crate::bucket::commits::{amazon, each, fails};
use crate::support::Trainit;
use crate::support::bucket::{Bucket, Fault, NAME, Request};
use crate::support::checkpoints::{Place, tree};
use crate::support::metadata::{self, Metadata, Reply, ok, status};

type Env = Vec<(&'static str, String)>;
/// The number of the current credentials, from 1.
type Now = Arc<AtomicU32>;

/// The name of these credentials in requests.
fn called(number: u32) -> String {
    format!("KEYS{number:04}")
}

fn json(number: u32, until: &str) -> Reply {
    let (id, token) = (called(number), "of-the-session");
    let keys = format!(r#""AccessKeyId":"{id}","SecretAccessKey":"secretsecret","Token":"{token}{number}""#);
    ok(format!(r#"{{"Code":"Success",{keys},"Expiration":"{until}"}}"#))
}

/// EC2's metadata service, version 2.
fn instance(request: &metadata::Request, number: u32, until: &str) -> Reply {
    match request.path.as_str() {
        "/latest/api/token" => ok("AQAE=="),
        "/latest/meta-data/iam/security-credentials/" => ok("role"),
        _ => json(number, until),
    }
}

fn token_service(number: u32) -> Reply {
    let keys = format!(
        "<AccessKeyId>{}</AccessKeyId><SecretAccessKey>secretsecret</SecretAccessKey>\
         <SessionToken>of-the-session</SessionToken><Expiration>2099-01-01T00:00:00Z</Expiration>",
        called(number)
    );
    let result =
        format!("<AssumeRoleWithWebIdentityResult><Credentials>{keys}</Credentials></AssumeRoleWithWebIdentityResult>");
    ok(format!("<AssumeRoleWithWebIdentityResponse>{result}</AssumeRoleWithWebIdentityResponse>"))
}

fn bearer(number: u32) -> Reply {
    ok(format!(r#"{{"access_token":"{}","expires_in":3600,"expires_on":"4070908800"}}"#, called(number)))
}

/// Sources of credentials, and a bucket's answers to credentials that are not valid.
struct Way {
    name: &'static str,
    refusal: (&'static str, &'static str),
    env: fn(&Bucket, &str, &Path) -> Env,
    reply: fn(&metadata::Request, u32) -> Reply,
}

fn as_amazon(bucket: &Bucket) -> Env {
    let mut env = bucket.as_amazon();
    env.retain(|(name, _)| !name.contains("KEY"));
    env
}

const EXPIRED: (&str, &str) = ("400 Bad Request", "ExpiredToken");
const FOREVER: &str = "2099-01-01T00:00:00Z";

static WAYS: [Way; 5] = [
    Way {
        name: "the instance",
        refusal: EXPIRED,
        env: |bucket, at, _| {
            [as_amazon(bucket), vec![("AWS_EC2_METADATA_SERVICE_ENDPOINT", format!("http://{at}"))]].concat()
        },
        reply: |request, number| instance(request, number, FOREVER),
    },
    Way {
        name: "the container",
        refusal: ("403 Forbidden", "InvalidAccessKeyId"),
        env: |bucket, at, file| {
            fs::write(file, "of-the-container").unwrap();
            let keys = vec![
                ("AWS_CONTAINER_CREDENTIALS_FULL_URI", format!("http://{at}/keys")),
                ("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE", file.to_str().unwrap().to_owned()),
            ];
            [as_amazon(bucket), keys].concat()
        },
        reply: |_, number| json(number, FOREVER),
    },
    Way {
        name: "a web identity",
        refusal: EXPIRED,
        env: |bucket, at, file| {
            fs::write(file, "jwt").unwrap();
            let keys = vec![
                ("AWS_WEB_IDENTITY_TOKEN_FILE", file.to_str().unwrap().to_owned()),
                ("AWS_ROLE_ARN", "arn:aws:iam::1:role/r".to_owned()),
                ("AWS_ENDPOINT_URL_STS", format!("http://{at}")),
            ];
            [as_amazon(bucket), keys].concat()
        },
        reply: |_, number| token_service(number),
    },
    Way {
        name: "Google's metadata server",
        refusal: ("401 Unauthorized", "AuthenticationRequired"),
        env: |bucket, at, _| {
            let store = ("CLOUDSDK_API_ENDPOINT_OVERRIDES_STORAGE", format!("http://{}", bucket.at));
            vec![store, ("GCE_METADATA_HOST", at.to_owned()), ("GCE_METADATA_IP", at.to_owned())]
        },
        reply: |_, number| bearer(number),
    },
    Way {
        name: "Azure's managed identity",
        refusal: ("401 Unauthorized", "InvalidAuthenticationInfo"),
        env: |bucket, at, _| {
            let mut env = bucket.as_azure();
            env.retain(|(name, _)| *name != "AZURE_STORAGE_KEY");
            [env, vec![("IDENTITY_ENDPOINT", format!("http://{at}/token"))]].concat()
        },
        reply: |_, number| bearer(number),
    },
];

impl Way {
    /// A bucket, a place whose variables name the source of credentials, and the file that this may need. The
    /// credentials are those of `now`.
    fn start(&'static self, now: &Now) -> (Bucket, Place, TempPath) {
        let (bucket, file) = (Bucket::start(), NamedTempFile::new().unwrap().into_temp_path());
        let number = Arc::clone(now);
        let server = Metadata::start(move |request, _| (self.reply)(request, number.load(SeqCst)));
        let scheme = match self.name.split_once('\'') {
            Some(("Google", _)) => "gs",
            Some(("Azure", _)) => "az",
            _ => "s3",
        };
        let mut env = (self.env)(&bucket, &server.at, &file);
        env.push(("HOME", "/nonexistent".to_owned()));
        (bucket, Place::with_store(&format!("{scheme}://{NAME}/jobs/1"), env), file)
    }

    fn refuse(&self) -> Fault {
        Fault::Refuse(self.refusal.0, self.refusal.1)
    }
}

#[test]
fn an_overloaded_token_service_is_asked_again() {
    let (bucket, keys, asked) = (Bucket::start(), NamedTempFile::new().unwrap(), AtomicU32::new(0));
    let server = Metadata::start(move |_, _| {
        let code = match asked.fetch_add(1, SeqCst) {
            0 => "Throttling",
            1 => "IDPCommunicationError",
            _ => return token_service(1),
        };
        let error = format!("<ErrorResponse><Error><Type>Sender</Type><Code>{code}</Code></Error></ErrorResponse>");
        Reply::Answer("400 Bad Request", Vec::new(), error)
    });
    let mut env = (WAYS[2].env)(&bucket, &server.at, keys.path());
    env.push(("HOME", "/nonexistent".to_owned()));
    Place::with_store(&format!("s3://{NAME}/x"), env).checkpoint("list").output().expect_code(0);
    assert!(bucket.asked().iter().all(|r| signed_by(r, 1)));
}

fn signed_by(request: &Request, number: u32) -> bool {
    request.headers.get("authorization").is_some_and(|by| by.contains(&called(number)))
}

fn is_data(request: &Request) -> bool {
    request.method == "PUT" && !request.key.contains("/.trainit/")
}

#[test]
fn credentials_that_a_store_refuses_are_requested_again() {
    for way in &WAYS {
        let now = Now::new(1.into());
        let (bucket, place, _keys) = way.start(&now);
        let saved = place.save(1);
        bucket.misbehave(move |r| {
            // In the middle of a commit.
            if is_data(r) && now.load(SeqCst) == 1 {
                now.store(2, SeqCst);
            }
            (!signed_by(r, now.load(SeqCst))).then(|| way.refuse())
        });
        let done = place.checkpoint("push").output();
        assert_eq!(done.code(), 0, "{}: {}", way.name, done.err());
        bucket.behave();
        assert_eq!(tree(&place.pull_afresh("elsewhere").join("step-1")), saved, "{}", way.name);
    }
}

#[test]
fn the_last_commit_waits_for_late_credentials() {
    let (way, now) = (&WAYS[0], Now::new(1.into()));
    let (bucket, place, _keys) = way.start(&now);
    let refused = AtomicU32::new(0);
    bucket.misbehave(move |r| {
        if !is_data(r) || signed_by(r, 2) {
            return None;
        }
        if refused.fetch_add(1, SeqCst) == 8 {
            now.store(2, SeqCst);
        }
        Some(way.refuse())
    });
    let local = place.local();
    let script = format!("mkdir {0}/tmp; echo w > {0}/tmp/w.bin; mv {0}/tmp {0}/step-1", local.display());
    let run = ["run", "--checkpoint-store", &place.url(), "--checkpoint-dir", local.to_str().unwrap()];
    let run = Trainit::new(run).args(["--preemption", "off", "--", "sh", "-c", &script]);
    place.env().iter().fold(run, |run, (name, value)| run.env(name, value)).output().expect_code(0);
    assert_eq!(place.steps(), [1]);
}

#[test]
fn the_commit_does_not_wait_for_credentials_in_variables() {
    let bucket = Bucket::start();
    let place = amazon(&bucket);
    place.save(1);
    bucket.misbehave(|r| is_data(r).then_some(Fault::Refuse(EXPIRED.0, EXPIRED.1)));
    let local = place.local();
    let run = ["run", "--checkpoint-store", &place.url(), "--checkpoint-dir", local.to_str().unwrap(), "--", "true"];
    let run = place.env().iter().fold(Trainit::new(run), |run, (name, value)| run.env(name, value));
    let done = run.output().expect_code(204);
    assert!(done.err().contains("400 ExpiredToken") && done.err().contains("a variable's stay"), "{}", done.err());
    let files = bucket.asked().iter().filter(|r| is_data(r)).count();
    assert!(files <= 6, "each file once, at a look and at the end: {files}");
}

#[test]
fn expired_credentials_without_new_ones_are_reported_with_both_causes() {
    let bucket = Bucket::start();
    let is_away = Arc::new(AtomicBool::new(false));
    let is_out = Arc::clone(&is_away);
    let server = Metadata::start(move |request, _| match is_out.load(SeqCst) {
        true => status("404 Not Found"),
        false => instance(request, 1, FOREVER),
    });
    let mut env = as_amazon(&bucket);
    env.push(("AWS_EC2_METADATA_SERVICE_ENDPOINT", format!("http://{}", server.at)));
    env.push(("HOME", "/nonexistent".to_owned()));
    bucket.misbehave(move |_| {
        is_away.store(true, SeqCst);
        Some(Fault::Refuse(EXPIRED.0, EXPIRED.1))
    });
    let place = Place::with_store(&format!("s3://{NAME}/jobs/1"), env);
    fails(place.checkpoint("list").output(), &["no longer valid", "no others are available", "answer 404"]);
}

#[test]
fn only_parts_that_arrive_too_slowly_are_sent_again() {
    each(|bucket, place| {
        place.save(1);
        let late = AtomicU32::new(0);
        bucket.misbehave(move |r| {
            let is_late = is_data(r) && r.key.ends_with("weights.bin") && late.fetch_add(1, SeqCst) < 2;
            is_late.then_some(Fault::Refuse("400 Bad Request", "RequestTimeout"))
        });
        place.push();
        let puts = bucket.asked().iter().filter(|r| is_data(r)).count();
        assert_eq!((place.steps(), puts), (vec![1], 5));
    });
}

#[test]
fn a_bucket_in_another_region_is_reported_with_that_region() {
    for status in ["301 Moved Permanently", "307 Temporary Redirect"] {
        let s3 = Metadata::start(move |_, _| {
            Reply::Answer(status, vec![("x-amz-bucket-region", "eu-west-1".to_owned())], String::new())
        });
        let mut env = Bucket::start().as_amazon();
        env[0].1 = format!("http://{}", s3.at);
        let place = Place::with_store("s3://b/x", env);
        fails(place.checkpoint("list").output(), &["in the region eu-west-1: set AWS_REGION=eu-west-1"]);
    }
}
