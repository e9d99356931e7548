//! Access to a bucket, configured by the environment: a mistake is reported on one line without a secret.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ServerConfig, ServerConnection, StreamOwned};

use crate::bucket::commits::fails;
use crate::support::assert_prompt;
use crate::support::bucket::{Bucket, Fault, NAME};
use crate::support::checkpoints::Place;
use crate::support::metadata::{Metadata, Reply, ok, status};

#[test]
fn an_invalid_value_is_one_line_that_names_the_variable() {
    let bucket = Bucket::start();
    let amazon = |name, value: &str| (format!("s3://{NAME}/x"), bucket.as_amazon(), name, value.to_owned());
    let azure = |name, value: &str| (format!("az://{NAME}/x"), bucket.as_azure(), name, value.to_owned());
    let google = |name, value: &str| (format!("gs://{NAME}/x"), Vec::new(), name, value.to_owned());
    let all = [
        amazon("AWS_ENDPOINT_URL", "127.0.0.1:9000"),
        amazon("AWS_ENDPOINT_URL", "http://127.0.0.1:99999"),
        amazon("AWS_ENDPOINT_URL", "http://127.0.0.1:1/a b"),
        amazon("AWS_REGION", "us-east\n-1"),
        amazon("AWS_REGION", "us east"),
        amazon("AWS_ACCESS_KEY_ID", "AKID\nEXAMPLE"),
        amazon("AWS_SESSION_TOKEN", "to\nken"),
        amazon("AWS_CONTAINER_CREDENTIALS_FULL_URI", "not a url"),
        azure("AZURE_STORAGE_TOKEN", "to\nken"),
        azure("AZURE_STORAGE_ENDPOINT", "127.0.0.1:1"),
        google("CLOUDSDK_API_ENDPOINT_OVERRIDES_STORAGE", "127.0.0.1:1"),
        google("STORAGE_EMULATOR_HOST", "127.0.0.1 :1"),
        google("GCE_METADATA_HOST", ""),
        google("GCE_METADATA_IP", " "),
    ];
    for (url, mut env, name, value) in all {
        env.retain(|(variable, _)| *variable != name);
        env.extend([(name, value), ("HOME", "/nonexistent".to_owned())]);
        fails(Place::with_store(&url, env).checkpoint("list").output(), &[name, "cannot be used"]);
    }
}

#[test]
fn credentials_are_sent_over_plain_http_to_this_machine_only() {
    let bucket = Bucket::start();
    let mut env = bucket.as_amazon();
    env[0].1 = "http://127.0.0.1.nip.invalid".to_owned();
    fails(Place::with_store("s3://b/x", env).checkpoint("list").output(), &["plain http", "--allow-http"]);
    let mut env = bucket.as_azure();
    env.push(("AZURE_STORAGE_USE_EMULATOR", "true".to_owned()));
    env.push(("AZURITE_BLOB_STORAGE_URL", "http://store.invalid".to_owned()));
    fails(Place::with_store("az://c/x", env).checkpoint("list").output(), &["plain http", "--allow-http"]);
}

#[test]
fn a_password_in_an_address_is_never_printed() {
    let bucket = Bucket::start();
    let mut env = bucket.as_amazon();
    for host in ["store.invalid", "127.0.0.1:99999"] {
        env[0].1 = format!("http://user:hunter2@{host}");
        let done = Place::with_store("s3://b/x", env.clone()).checkpoint("list").output().expect_code(204);
        assert!(!done.err().contains("hunter2"), "{}", done.err());
    }
    let odd = server_without_http();
    env[0].1 = format!("http://user:hunter2@{odd}");
    let done = Place::with_store("s3://b/x", env).checkpoint("list").output().expect_code(204);
    assert!(done.err().contains(&format!("no answer from {odd}")) && !done.err().contains("hunter2"), "{}", done.err());
}

#[test]
fn with_an_unsupported_source_of_credentials_the_machines_are_not_used() {
    let bucket = Bucket::start();
    let cases = [
        ("s3", bucket.as_amazon(), "AWS_PROFILE", "AWS_ACCESS_KEY_ID"),
        ("az", bucket.as_azure(), "AZURE_STORAGE_CONNECTION_STRING", "AZURE_STORAGE_KEY"),
    ];
    for (scheme, mut env, variable, way_out) in cases {
        env.retain(|(name, _)| !name.contains("KEY"));
        env.push(("AWS_EC2_METADATA_SERVICE_ENDPOINT", "http://127.0.0.1:1".to_owned()));
        env.push(("IDENTITY_ENDPOINT", "http://127.0.0.1:1".to_owned()));
        env.push((variable, "named".to_owned()));
        let place = Place::with_store(&format!("{scheme}://{NAME}/x"), env);
        fails(place.checkpoint("list").output(), &[&format!("{variable} cannot be used"), way_out]);
    }
    assert!(bucket.asked().is_empty());
}

#[test]
fn a_certificate_of_an_unknown_signer_is_refused_at_once_with_advice() {
    let (at, connections) = tls_server(CERTIFICATE);
    let mut env = Bucket::start().as_amazon();
    env[0].1 = format!("https://{at}");
    let start = std::time::Instant::now();
    let place = Place::with_store("s3://b/x", env);
    fails(
        place.checkpoint("list").output(),
        &[&format!("certificate of {at} is not trusted"), "SSL_CERT_FILE", "AWS_CA"],
    );
    assert_eq!(connections.load(Relaxed), 1);
    assert_prompt(start);
}

#[test]
fn a_servers_own_certificate_is_trusted_if_configured_unless_it_is_a_cas() {
    let list = |certificate: &str, variable, host: &str| {
        let (at, _) = tls_server(certificate);
        let place = Place::new();
        let file = place.path("ca.pem");
        std::fs::write(&file, certificate).unwrap();
        let mut env = Bucket::start().as_amazon();
        env[0].1 = format!("https://{host}:{}", at.port());
        env.push((variable, file.to_str().unwrap().to_owned()));
        Place::with_store("s3://b/x", env).checkpoint("list").output()
    };
    for variable in ["SSL_CERT_FILE", "AWS_CA_BUNDLE"] {
        let listed = list(CERTIFICATE, variable, "127.0.0.1");
        assert!(listed.expect_code(0).err().is_empty(), "{variable}");
    }
    fails(list(CERTIFICATE, "SSL_CERT_FILE", "localhost"), &["localhost", "is not trusted", "not valid for name"]);
    fails(list(OF_A_CA, "SSL_CERT_FILE", "127.0.0.1"), &["is not trusted", "basicConstraints=critical,CA:FALSE"]);
}

#[test]
fn an_answer_in_another_form_is_not_a_credential() {
    for role in ["a role", "<html>", "ro\x01le"] {
        let server = Metadata::start(move |request, _| match request.path.as_str() {
            "/latest/api/token" => ok("AQAE=="),
            _ => ok(role),
        });
        let env = vec![
            ("AWS_EC2_METADATA_SERVICE_ENDPOINT", format!("http://{}", server.at)),
            ("HOME", "/nonexistent".to_owned()),
        ];
        let done = Place::with_store("s3://b/x", env).checkpoint("list").output().expect_code(204);
        assert!(done.err().contains("credentials that cannot be used; set AWS_ACCESS_KEY_ID"), "{}", done.err());
    }
}

#[test]
fn an_endless_answer_of_a_metadata_server_is_cut_off() {
    let google =
        |at: &str| ("gs://b/x", ["GCE_METADATA_HOST", "GCE_METADATA_IP"].map(|name| (name, at.to_owned())).to_vec());
    let amazon = |at: &str| ("s3://b/x", vec![("AWS_EC2_METADATA_SERVICE_ENDPOINT", format!("http://{at}"))]);
    for (is_google, has_token) in [(true, false), (false, false), (false, true)] {
        let server = Metadata::start(move |request, _| match has_token && request.method == "PUT" {
            true => ok("AQAE=="),
            false => Reply::Endless,
        });
        let (url, mut env) = if is_google { google(&server.at) } else { amazon(&server.at) };
        env.extend(
            [("AWS_ENDPOINT_URL", "http://127.0.0.1:1"), ("HOME", "/nonexistent")].map(|(n, v)| (n, v.to_owned())),
        );
        fails(Place::with_store(url, env).checkpoint("list").output(), &[&server.at, "longer than any"]);
        assert!(server.babbled() < 20 << 20, "{} bytes", server.babbled());
    }
}

#[test]
fn a_store_is_at_the_endpoint_of_its_own_variables_and_no_other_server_is_asked() {
    let account = |bucket: &Bucket| {
        let ids = r#""private_key":"","private_key_id":"","client_email":"""#;
        format!(r#"{{"gcs_base_url":"http://{}","disable_oauth":true,{ids}}}"#, bucket.at)
    };
    type Env = Vec<(&'static str, String)>;
    let dir = tempfile::tempdir().unwrap();
    let with_file = |name: &'static str, text: String| -> Env {
        let file = tempfile::NamedTempFile::new_in(&dir).unwrap().keep().unwrap().1;
        std::fs::write(&file, text).unwrap();
        vec![(name, file.to_str().unwrap().to_owned())]
    };
    let at = |bucket: &Bucket| format!("http://{}", bucket.at);
    type Way<'a> = &'a dyn Fn(&Bucket) -> Env;
    let ways: [(&str, Way); 5] = [
        ("gs", &|b| with_file("GOOGLE_SERVICE_ACCOUNT", account(b))),
        ("gs", &|b| vec![("GOOGLE_SERVICE_ACCOUNT_KEY", account(b))]),
        ("gs", &|b| vec![("GOOGLE_BASE_URL", at(b)), ("GOOGLE_SKIP_SIGNATURE", "true".to_owned())]),
        ("s3", &|b| renamed(b.as_amazon(), "AWS_ENDPOINT_URL", "AWS_ENDPOINT")),
        ("az", &|b| renamed(b.as_azure(), "AZURE_STORAGE_ENDPOINT", "AZURE_ENDPOINT")),
    ];
    for (scheme, env) in ways {
        let bucket = Bucket::start();
        let machine = Metadata::start(|_, _| ok(r#"{"access_token":"of-the-machine","expires_in":3600}"#));
        let mut env = env(&bucket);
        env.extend(["GCE_METADATA_HOST", "GCE_METADATA_IP"].map(|name| (name, machine.at.clone())));
        env.push(("HOME", "/nonexistent".to_owned()));
        let names: Vec<&str> = env.iter().map(|(name, _)| *name).collect();
        let place = Place::with_store(&format!("{scheme}://{NAME}/x"), env.clone());
        place.save(1);
        place.push();
        assert_eq!((place.steps(), machine.asked().len()), (vec![1], 0), "{names:?}");
    }
}

fn renamed(env: Vec<(&'static str, String)>, from: &str, to: &'static str) -> Vec<(&'static str, String)> {
    env.into_iter().map(|(name, value)| (if name == from { to } else { name }, value)).collect()
}

/// The answer of a container's or a token service, in JSON.
fn keys_of(id: &str) -> String {
    format!(
        r#"{{"AccessKeyId":"{id}","SecretAccessKey":"secret","Token":"token","Expiration":"2099-01-01T00:00:00Z"}}"#
    )
}

#[test]
fn a_containers_credentials_are_requested_with_its_token_and_never_replaced_by_the_machines() {
    let machine = Metadata::start(|_, _| ok(keys_of("AKIDMACHINE")));
    let bucket = Bucket::start();
    let container = Metadata::start(move |request, _| match request.header("authorization") {
        Some("of-the-container") => ok(keys_of("AKIDCONTAINER")),
        _ => status("401 Unauthorized"),
    });
    let token = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(&token, "of-the-container").unwrap();
    let mut env = bucket.as_amazon();
    env.retain(|(name, _)| !name.contains("KEY"));
    env.push(("AWS_EC2_METADATA_SERVICE_ENDPOINT", format!("http://{}", machine.at)));
    env.push(("AWS_CONTAINER_CREDENTIALS_FULL_URI", format!("http://{}/keys", container.at)));
    env.push(("HOME", "/nonexistent".to_owned()));
    let list = |env| Place::with_store(&format!("s3://{NAME}/x"), env).checkpoint("list").output();
    fails(list(env.clone()), &["AWS_CONTAINER_CREDENTIALS_FULL_URI", "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE"]);
    env.push(("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE", token.path().to_str().unwrap().to_owned()));
    list(env).expect_code(0);
    assert!(bucket.asked().iter().all(|r| r.headers["authorization"].contains("AKIDCONTAINER")));
    assert_eq!(machine.asked().len(), 0);
}

#[test]
fn a_token_service_on_this_machine_may_be_asked_by_plain_http() {
    let bucket = Bucket::start();
    let service = Metadata::start(|_, _| {
        let keys = "<AccessKeyId>AKIDROLE</AccessKeyId><SecretAccessKey>s</SecretAccessKey>\
            <SessionToken>t</SessionToken><Expiration>2099-01-01T00:00:00Z</Expiration>";
        let result = format!(
            "<AssumeRoleWithWebIdentityResult><Credentials>{keys}</Credentials></AssumeRoleWithWebIdentityResult>"
        );
        ok(format!("<AssumeRoleWithWebIdentityResponse>{result}</AssumeRoleWithWebIdentityResponse>"))
    });
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(&file, "jwt").unwrap();
    let mut env = bucket.as_amazon();
    env.retain(|(name, _)| !name.contains("KEY"));
    env.push(("AWS_WEB_IDENTITY_TOKEN_FILE", file.path().to_str().unwrap().to_owned()));
    env.push(("AWS_ENDPOINT_URL_STS", format!("http://{}", service.at)));
    env.push(("HOME", "/nonexistent".to_owned()));
    let place = |env| Place::with_store(&format!("s3://{NAME}/x"), env);
    let of_nobody = ["AWS_WEB_IDENTITY_TOKEN_FILE", "AWS_ROLE_ARN is not given"];
    fails(place(env.clone()).checkpoint("list").output(), &of_nobody);
    env.push(("AWS_ROLE_ARN", "arn:aws:iam::1:role/r".to_owned()));
    place(env.clone()).checkpoint("list").output().expect_code(0);
    assert!(bucket.asked().iter().all(|r| r.headers["authorization"].contains("AKIDROLE")));
    env.push(("AWS_ENDPOINT_URL_STS", "http://sts.invalid".to_owned()));
    fails(place(env).checkpoint("list").output(), &["sts.invalid", "plain http", "--allow-http"]);
}

#[test]
fn no_part_of_a_request_that_a_server_repeats_is_printed() {
    let long = "longer+than/what=is_shown".repeat(20);
    let text: &'static str = format!("the token {long} of ya29.of-the-machine").leak();
    let bucket = Bucket::start();
    bucket.misbehave(move |_| Some(Fault::Refuse("403 Forbidden", text)));
    let mut amazon = bucket.as_amazon();
    amazon.push(("AWS_SESSION_TOKEN", long.clone()));
    let machine =
        Metadata::start(|_, _| ok(r#"{"access_token":"ya29.of-the-machine","expires_in":3600,"token_type":"Bearer"}"#));
    let google = vec![
        ("GCE_METADATA_HOST", machine.at.clone()),
        ("GCE_METADATA_IP", machine.at.clone()),
        ("CLOUDSDK_API_ENDPOINT_OVERRIDES_STORAGE", format!("http://{}", bucket.at)),
        ("HOME", "/nonexistent".to_owned()),
    ];
    for (url, env, secret) in [("s3", amazon, &long[..25]), ("gs", google, "ya29.of-the-machine")] {
        let done = Place::with_store(&format!("{url}://{NAME}/x"), env).checkpoint("list").output().expect_code(204);
        assert!(done.err().contains("answer 403 the token") && !done.err().contains(secret), "{}", done.err());
    }
}

#[test]
fn a_mistake_in_a_key_names_the_key() {
    let bucket = Bucket::start();
    let without = |name: &str| -> Vec<_> { bucket.as_amazon().into_iter().filter(|(n, _)| *n != name).collect() };
    let place = |scheme: &str, env| Place::with_store(&format!("{scheme}://{NAME}/x"), env).checkpoint("list").output();
    let [id, key] = ["AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"];
    fails(place("s3", without(key)), &[&format!("{id} cannot be used: {key} is not given")]);
    fails(place("s3", without(id)), &[&format!("{key} cannot be used: {id} is not given")]);
    let mut env = bucket.as_azure();
    env[1].1 = "not base64 !!!".to_owned();
    fails(place("az", env), &["copy the storage account's key", "whole"]);
    let account = r#"{"type":"service_account","private_key":"-----BEGIN PRIVATE KEY-----\nMII=\n-----END PRIVATE KEY-----",
        "private_key_id":"k","client_email":"a@b"}"#;
    let env = vec![("GOOGLE_SERVICE_ACCOUNT_KEY", account.to_owned()), ("HOME", "/nonexistent".to_owned())];
    fails(place("gs", env), &["GOOGLE_SERVICE_ACCOUNT_KEY is whole, with its private_key"]);
    let machine = Metadata::start(|request, _| match request.path.ends_with("/role") {
        true => ok(r#"{"Code":"AssumeRoleUnauthorizedAccess","Message":"no"}"#),
        false => ok("role"),
    });
    let env = vec![
        ("AWS_EC2_METADATA_SERVICE_ENDPOINT", format!("http://{}", machine.at)),
        ("HOME", "/nonexistent".to_owned()),
    ];
    fails(place("s3", env), &["no credentials", "AccessKeyId", "give the machine, container or pod a role"]);
}

/// Answers any request like an empty bucket.
fn answer_as_an_empty_bucket(mut stream: StreamOwned<ServerConnection, TcpStream>) {
    let (mut asked, mut more) = (Vec::new(), [0; 4096]);
    let text = "<ListBucketResult><IsTruncated>false</IsTruncated></ListBucketResult>";
    while let Ok(read @ 1..) = stream.read(&mut more) {
        asked.extend_from_slice(&more[..read]);
        if asked.ends_with(b"\r\n\r\n") {
            asked.clear();
            let _ = write!(stream, "HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{text}", text.len());
        }
    }
}

/// `host:port` of an empty server with a self-signed certificate, and the number of calls to it.
fn tls_server(certificate: &str) -> (SocketAddr, Arc<AtomicUsize>) {
    let certificate = CertificateDer::from_pem_slice(certificate.as_bytes()).unwrap();
    let key = PrivateKeyDer::from_pem_slice(KEY.as_bytes()).unwrap();
    let config = ServerConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()));
    let config = config.with_safe_default_protocol_versions().unwrap().with_no_client_auth();
    let config = Arc::new(config.with_single_cert(vec![certificate], key).unwrap());
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let at = listener.local_addr().unwrap();
    let connections = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&connections);
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            count.fetch_add(1, Relaxed);
            let connection = ServerConnection::new(Arc::clone(&config)).unwrap();
            std::thread::spawn(move || answer_as_an_empty_bucket(StreamOwned::new(connection, stream)));
        }
    });
    (at, connections)
}

/// A self-signed certificate, the same as a CA, and their common key.
const CERTIFICATE: &str = "-----BEGIN CERTIFICATE-----\n\
    MIIBhzCCAS2gAwIBAgIUbriTVIS/P8F/zJETqSbVcnJ72cswCgYIKoZIzj0EAwIw\n\
    ETEPMA0GA1UEAwwGbm9ib2R5MCAXDTI2MTEyMjEyMzY0N1oYDzIxMjYxMDI5MTIz\n\
    NjQ3WjARMQ8wDQYDVQQDDAZub2JvZHkwWTATBgcqhkjOPQIBBggqhkjOPQMBBwNC\n\
    AAQcPnwFkH933FC0Kcdwf7Sp9UPENxT7t9yjgW3PpheOSFYJb86WNzvTHob/axAs\n\
    nSQpTs1fCT2BU8TMqGjlPP6Go2EwXzAdBgNVHQ4EFgQUCNwisOKcjcMgr6LyG46n\n\
    xzSrWx0wHwYDVR0jBBgwFoAUCNwisOKcjcMgr6LyG46nxzSrWx0wDwYDVR0RBAgw\n\
    BocEfwAAATAMBgNVHRMBAf8EAjAAMAoGCCqGSM49BAMCA0gAMEUCIQDlohuBfVGw\n\
    vrT9sih287lrY7COKVuTAesQx0JnOyQhhwIgC05Rl4Flnnp5K26/VIqZAleJ7G2A\n\
    BGflMvjBI0TknlQ=\n\
    -----END CERTIFICATE-----";
const OF_A_CA: &str = "-----BEGIN CERTIFICATE-----\n\
    MIIBiTCCATCgAwIBAgIUdifQucjOg0doLShhe6XnHb92gMMwCgYIKoZIzj0EAwIw\n\
    ETEPMA0GA1UEAwwGbm9ib2R5MCAXDTI2MTEyNjAxMTg0MloYDzIxMjYxMTAyMDEx\n\
    ODQyWjARMQ8wDQYDVQQDDAZub2JvZHkwWTATBgcqhkjOPQIBBggqhkjOPQMBBwNC\n\
    AAQcPnwFkH933FC0Kcdwf7Sp9UPENxT7t9yjgW3PpheOSFYJb86WNzvTHob/axAs\n\
    nSQpTs1fCT2BU8TMqGjlPP6Go2QwYjAdBgNVHQ4EFgQUCNwisOKcjcMgr6LyG46n\n\
    xzSrWx0wHwYDVR0jBBgwFoAUCNwisOKcjcMgr6LyG46nxzSrWx0wDwYDVR0TAQH/\n\
    BAUwAwEB/zAPBgNVHREECDAGhwR/AAABMAoGCCqGSM49BAMCA0cAMEQCIFEgI8nV\n\
    OvCA28I2OqXCf67uqaQXFWtTFgGbOkBcp826AiAXb3Zhg2urwQwkYjwATUGzjl62\n\
    FDh7RbIHCgRCruccJQ==\n\
    -----END CERTIFICATE-----";
const KEY: &str = "-----BEGIN PRIVATE KEY-----\n\
    MIGHAgEAMBMGByqGSM49AgEGCCqGSM49AwEHBG0wawIBAQQgA90Tq8bxV6SX6wTW\n\
    DPndHXpfouC8QDEXQHp8ulmQU6ihRANCAAQcPnwFkH933FC0Kcdwf7Sp9UPENxT7\n\
    t9yjgW3PpheOSFYJb86WNzvTHob/axAsnSQpTs1fCT2BU8TMqGjlPP6G\n\
    -----END PRIVATE KEY-----";

/// `host:port` of a server that answers with something else.
fn server_without_http() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let at = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let _ = stream.read(&mut [0; 4096]);
            let _ = stream.write_all(b"SSH-2.0-OpenSSH_9.9\r\n\r\n");
        }
    });
    at
}
