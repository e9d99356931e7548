//! S3, and what speaks like it (`AWS_ENDPOINT_URL_S3`, `AWS_ENDPOINT_URL`, `AWS_ENDPOINT`; plain http where the address
//! says so).
//! Credentials, the first that is there: the environment, a web identity token, the container's, the
//! instance's (IMDSv2). The files that AWS's tools share (`~/.aws`) are not read.
//! <https://docs.aws.amazon.com/sdkref/latest/guide/standardized-credentials.html>
//!
//! Bodies are sent unsigned with a CRC-64/NVME that the server checks: TLS proves the sender, and hashing them for the
//! signature would cost a third of the throughput.

use std::sync::Arc;

use object_store::aws::{AmazonS3Builder, AmazonS3ConfigKey, Checksum, S3ConditionalPut};

use crate::edge::store::bucket::Opened;
use crate::edge::store::clouds::access::Access;
use crate::edge::store::clouds::values;
use crate::edge::store::error::Failed;
use crate::edge::store::http::connect::{self, Connector};
use crate::rules::store::address::Bucket;

pub(super) const WAY_OUT: &str =
    "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or give the machine, container or pod a role";

const PROFILE: &str = "AWS_PROFILE";
const WAY_OUT_OF_PROFILE: &str =
    "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or unset AWS_PROFILE if the role of the machine is to sign";
const ID: &str = "AWS_ACCESS_KEY_ID";
const SECRET: &str = "AWS_SECRET_ACCESS_KEY";
const REGIONS: &[&str] = &["AWS_REGION", "AWS_DEFAULT_REGION"];
const ADDRESSES: &[&str] = &[
    "AWS_ENDPOINT_URL_S3",
    "AWS_ENDPOINT_URL",
    "AWS_ENDPOINT",
    "AWS_ENDPOINT_URL_STS",
    "AWS_EC2_METADATA_SERVICE_ENDPOINT",
    "AWS_METADATA_ENDPOINT",
    CONTAINER,
];
const MACHINES: &[&str] = &["AWS_EC2_METADATA_SERVICE_ENDPOINT", "AWS_METADATA_ENDPOINT"];
const MACHINE_V6: &str = "http://[fd00:ec2::254]";
/// The source of credentials if no keys are given.
const WEB_IDENTITY: &str = "AWS_WEB_IDENTITY_TOKEN_FILE";
const CONTAINER_PATH: &str = "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI";
const CONTAINER: &str = "AWS_CONTAINER_CREDENTIALS_FULL_URI";
const CONTAINER_TOKEN_FILE: &str = "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE";

pub(in crate::edge::store) async fn open(bucket: &Bucket, access: &Access) -> Result<Opened, Failed> {
    let settings = settings(access);
    check(access, &settings)?;
    let has_keys = access.given(ID).is_some();
    let is_signed = !access.is_on("AWS_SKIP_SIGNATURE");
    if is_signed && !has_keys {
        check_source(access)?;
    }
    let bundle = access.given("AWS_CA_BUNDLE").map(str::to_owned);
    let mut builder = AmazonS3Builder::new()
        .with_bucket_name(&bucket.name)
        .with_retry(connect::retries(access))
        .with_client_options(connect::options())
        .with_http_connector(Connector::new(access, bundle, Vec::new()))
        .with_unsigned_payload(true)
        // What every server knows, one by one.
        .with_disable_bulk_delete(true)
        .with_checksum_algorithm(Checksum::CRC64NVME);
    for (key, _, value) in settings {
        // A token belongs to the keys beside it.
        if has_keys || key != AmazonS3ConfigKey::Token {
            builder = builder.with_config(key, value);
        }
    }
    builder = with_metadata_servers(builder, access).with_conditional_put(S3ConditionalPut::ETagMatch);
    // A session of S3 Express is the crate's to renew.
    let renews = is_signed && !has_keys && !access.is_on("AWS_S3_EXPRESS");
    let store = builder.build().map_err(|error| Failed::from(&error))?;
    if is_signed {
        store.credentials().get_credential().await.map_err(|error| Failed::no_credentials(&error, WAY_OUT))?;
    }
    Ok(Opened { client: Arc::new(store), renews })
}

/// What the variables say that the crate knows, but for the bucket and how it is asked.
fn settings(access: &Access) -> Vec<(AmazonS3ConfigKey, &str, &str)> {
    let named = access.variables().filter(|(name, _)| name.starts_with("AWS_"));
    let known = named.filter_map(|(name, value)| Some((name.to_ascii_lowercase().parse().ok()?, name, value)));
    known.filter(|(key, ..)| !matches!(key, AmazonS3ConfigKey::Client(_) | AmazonS3ConfigKey::Bucket)).collect()
}

/// Errors: without keys, no other source may be asked, one is named by half, or a profile is named, in whose place the
/// machine's identity must not be used.
fn check_source(access: &Access) -> Result<(), Failed> {
    if access.given(PROFILE).is_some() {
        return Err(values::unusable(PROFILE, "trainit does not read AWS's files of profiles", WAY_OUT_OF_PROFILE));
    }
    let is_pod = access.given(WEB_IDENTITY).is_some();
    if is_pod && access.given("AWS_ROLE_ARN").is_none() {
        return Err(Failed::of_credentials(format!(
            "{WEB_IDENTITY} is given without AWS_ROLE_ARN, which says whose keys it is changed for; set both, or neither"
        )));
    }
    if access.is_on("AWS_EC2_METADATA_DISABLED") && !is_pod && access.first(&[CONTAINER_PATH, CONTAINER]).is_none() {
        return Err(Failed::of_credentials(format!(
            "no credentials, and AWS_EC2_METADATA_DISABLED forbids to ask the instance; {WAY_OUT}"
        )));
    }
    Ok(())
}

/// The servers that give the machine or the container its keys, where the crate would not find them.
fn with_metadata_servers(mut builder: AmazonS3Builder, access: &Access) -> AmazonS3Builder {
    let is_v6 = access.given("AWS_EC2_METADATA_SERVICE_ENDPOINT_MODE").is_some_and(|m| m.eq_ignore_ascii_case("ipv6"));
    if let Some(endpoint) = access.first(MACHINES).or(Some(MACHINE_V6).filter(|_| is_v6)) {
        builder = builder.with_metadata_endpoint(endpoint.trim_end_matches('/'));
    }
    if access.given(CONTAINER).is_some() && access.given(CONTAINER_TOKEN_FILE).is_none() {
        // Else the crate would ask the machine. The connector sends the token of the variable, where there is one.
        builder = builder.with_config(AmazonS3ConfigKey::ContainerAuthorizationTokenFile, "/dev/null");
    }
    builder
}

/// Errors: a value that the crate would panic at, or half a pair of keys.
fn check(access: &Access, settings: &[(AmazonS3ConfigKey, &str, &str)]) -> Result<(), Failed> {
    settings.iter().try_for_each(|(_, name, value)| values::text(name, value))?;
    values::each(access, &[connect::CONTAINER_TOKEN], values::text)?;
    values::each(access, ADDRESSES, values::address)?;
    values::each(access, REGIONS, values::label)?;
    values::each(access, &[WEB_IDENTITY, CONTAINER_TOKEN_FILE], values::is_ours)?;
    for (given, missing) in [(ID, SECRET), (SECRET, ID)] {
        if access.given(given).is_some() && access.given(missing).is_none() {
            return Err(values::unusable(given, &format!("{missing} is not given"), "set both, or neither"));
        }
    }
    if let Some(path) = access.given(CONTAINER_PATH) {
        values::address(CONTAINER_PATH, &format!("http://169.254.170.2{path}"))?;
    }
    let file = access.given(CONTAINER_TOKEN_FILE);
    // Where it cannot be read, the crate says so.
    if let Some((file, token)) = file.and_then(|file| Some((file, values::file(file).ok()?))) {
        values::text(&format!("the token in {file}"), &token)?;
    }
    Ok(())
}
