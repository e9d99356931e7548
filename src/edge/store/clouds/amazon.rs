//! S3, and what speaks like it (`AWS_ENDPOINT_URL_S3`, `AWS_ENDPOINT_URL`, `AWS_ENDPOINT`; plain http where the address
//! says so).
//! Credentials, the first that is there: the environment, the shared files' profile (`AWS_PROFILE`), a web identity
//! token, the container's, the instance's (IMDSv2).
//! <https://docs.aws.amazon.com/sdkref/latest/guide/standardized-credentials.html>
//!
//! Bodies are sent unsigned with a CRC-64/NVME that the server checks: TLS proves the sender, and hashing them for the
//! signature would cost a third of the throughput.

use std::sync::Arc;

use object_store::aws::{AmazonS3Builder, AmazonS3ConfigKey, Checksum};

use crate::edge::store::bucket::Opened;
use crate::edge::store::clouds::access::Access;
use crate::edge::store::clouds::credentials::Kept;
use crate::edge::store::clouds::profile::{self, Profile};
use crate::edge::store::clouds::values;
use crate::edge::store::error::{Failed, Trouble};
use crate::edge::store::http::connect::{self, Connector};
use crate::edge::store::http::tls::Roots;
use crate::rules::store::address::Bucket;

const WAY_OUT: &str = "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or give the machine, container or pod a role";

/// Variables of the SDKs, and of the crate where it knows more.
const VARIABLES: &[&str] = &[
    "AWS_ACCESS_KEY_ID",
    "AWS_SECRET_ACCESS_KEY",
    "AWS_SESSION_TOKEN",
    "AWS_REGION",
    "AWS_DEFAULT_REGION",
    "AWS_ENDPOINT",
    "AWS_ENDPOINT_URL",
    "AWS_ENDPOINT_URL_S3",
    "AWS_ENDPOINT_URL_STS",
    "AWS_WEB_IDENTITY_TOKEN_FILE",
    "AWS_ROLE_ARN",
    "AWS_ROLE_SESSION_NAME",
    "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
    "AWS_CONTAINER_CREDENTIALS_FULL_URI",
    "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE",
    "AWS_VIRTUAL_HOSTED_STYLE_REQUEST",
    "AWS_REQUEST_PAYER",
    "AWS_S3_EXPRESS",
    "AWS_SERVER_SIDE_ENCRYPTION",
    "AWS_SSE_KMS_KEY_ID",
    "AWS_SSE_BUCKET_KEY_ENABLED",
    "AWS_SKIP_SIGNATURE",
    "AWS_IMDSV1_FALLBACK",
    "AWS_UNSIGNED_PAYLOAD",
    "AWS_CHECKSUM_ALGORITHM",
];

const ENDPOINTS: &[&str] = &["AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT"];
const TOKEN_SERVICE: &str = "AWS_ENDPOINT_URL_STS";
const MACHINES: &[&str] = &["AWS_EC2_METADATA_SERVICE_ENDPOINT", "AWS_METADATA_ENDPOINT"];
const MACHINE_V6: &str = "http://[fd00:ec2::254]";
/// The source of credentials if no keys are given.
const WEB_IDENTITY: &str = "AWS_WEB_IDENTITY_TOKEN_FILE";
const CONTAINER_PATH: &str = "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI";
const CONTAINER: &str = "AWS_CONTAINER_CREDENTIALS_FULL_URI";
const CONTAINER_TOKEN_FILE: &str = "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE";

pub(in crate::edge::store) async fn open(bucket: &Bucket, access: &Access) -> Result<Opened, Failed> {
    check(access)?;
    let profile = profile::read(access).map_err(no_credentials)?.unwrap_or_default();
    check_signer(&profile, access)?;
    let is_of_profile = !has_keys(access) && profile.keys.is_some();
    let mut builder = with_metadata_servers(with_settings(unsigned(bucket, access)?, profile, access), access);
    let is_signed = !access.is_on("AWS_SKIP_SIGNATURE");
    // A session of S3 Express is the crate's to renew.
    let renews = is_signed && !has_keys(access) && !access.is_on("AWS_S3_EXPRESS");
    if renews {
        let kept = Kept::of(builder.clone().build().map_err(|error| Failed::from(&error))?.credentials());
        builder = builder.with_credentials(kept);
    }
    let store = builder.build().map_err(|error| Failed::from(&error))?;
    if is_signed {
        store.credentials().get_credential().await.map_err(|error| Failed::no_credentials(&error, WAY_OUT))?;
    }
    Ok(Opened { client: Arc::new(store), renews, is_of_profile })
}

/// A builder for the bucket and its endpoint, without credentials. Errors: the endpoint is plain http, which is not allowed.
fn unsigned(bucket: &Bucket, access: &Access) -> Result<AmazonS3Builder, Failed> {
    let endpoint = access.first(ENDPOINTS).map(|value| values::address(ENDPOINTS[1], value)).transpose()?;
    let plain = connect::is_plain(endpoint.as_ref(), access)?;
    let tokens = access.given(TOKEN_SERVICE).map(|value| values::address(TOKEN_SERVICE, value)).transpose()?;
    connect::is_plain(tokens.as_ref(), access)?;
    let roots = Roots {
        file: access.given("SSL_CERT_FILE").map(str::to_owned),
        bundle: access.given("AWS_CA_BUNDLE").map(str::to_owned),
    };
    let connector = Connector { roots, access: access.clone(), machines: Vec::new() };
    Ok(AmazonS3Builder::new()
        .with_bucket_name(&bucket.name)
        .with_retry(connect::retries(access))
        .with_client_options(connect::options(plain))
        .with_http_connector(connector)
        .with_unsigned_payload(true)
        // What every server knows, one by one.
        .with_disable_bulk_delete(true)
        .with_checksum_algorithm(Checksum::CRC64NVME))
}

fn has_keys(access: &Access) -> bool {
    access.given("AWS_ACCESS_KEY_ID").is_some() || access.given("AWS_SECRET_ACCESS_KEY").is_some()
}

fn no_credentials(detail: String) -> Failed {
    Failed::new(Trouble::NoCredentials, detail)
}

/// Errors: the named source of credentials fails, or no source may be asked.
fn check_signer(profile: &Profile, access: &Access) -> Result<(), Failed> {
    profile.check()?;
    let is_signed = !access.is_on("AWS_SKIP_SIGNATURE");
    if let (Some(why), false, true) = (&profile.useless, has_keys(access), is_signed) {
        return Err(no_credentials(why.clone()));
    }
    let has_keys = has_keys(access) || profile.keys.is_some();
    if access.given(WEB_IDENTITY).is_some() && access.given("AWS_ROLE_ARN").is_none() && !has_keys {
        return Err(no_credentials(format!(
            "{WEB_IDENTITY} is given without AWS_ROLE_ARN, which says whose keys it is changed for; set both, or neither"
        )));
    }
    let has_keys = has_keys || access.first(&[WEB_IDENTITY, CONTAINER_PATH, CONTAINER]).is_some();
    if access.is_on("AWS_EC2_METADATA_DISABLED") && !has_keys && is_signed {
        return Err(no_credentials(format!(
            "no credentials, and AWS_EC2_METADATA_DISABLED forbids to ask the instance; {WAY_OUT}"
        )));
    }
    Ok(())
}

/// What the profile says, and over it what the variables say.
fn with_settings(mut builder: AmazonS3Builder, profile: Profile, access: &Access) -> AmazonS3Builder {
    let has_keys = has_keys(access);
    if let (false, Some((id, key))) = (has_keys, profile.keys) {
        builder = builder.with_access_key_id(id).with_secret_access_key(key);
        if let Some(token) = profile.token {
            builder = builder.with_token(token);
        }
    }
    // A token belongs to the keys beside it.
    for name in VARIABLES.iter().filter(|name| has_keys || **name != "AWS_SESSION_TOKEN") {
        if let (Some(value), Ok(key)) = (access.given(name), name.to_ascii_lowercase().parse::<AmazonS3ConfigKey>()) {
            builder = builder.with_config(key, value);
        }
    }
    match access.first(&["AWS_REGION", "AWS_DEFAULT_REGION"]).map(str::to_owned).or(profile.region) {
        Some(region) => builder.with_region(region),
        None => builder,
    }
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
fn check(access: &Access) -> Result<(), Failed> {
    values::texts(access, VARIABLES.iter().copied().chain([connect::CONTAINER_TOKEN]))?;
    [ENDPOINTS, MACHINES, &[TOKEN_SERVICE, CONTAINER]].iter().try_for_each(|names| values::addresses(access, names))?;
    let [id, key] = ["AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"];
    for (given, missing) in [(id, key), (key, id)] {
        if access.given(given).is_some() && access.given(missing).is_none() {
            return Err(values::unusable(given, &format!("{missing} is not given"), "set both, or neither"));
        }
    }
    for name in ["AWS_REGION", "AWS_DEFAULT_REGION"] {
        access.given(name).map_or(Ok(()), |region| values::label(name, region))?;
    }
    if let Some(path) = access.given(CONTAINER_PATH) {
        values::address(CONTAINER_PATH, &format!("http://169.254.170.2{path}"))?;
    }
    values::files(access, &[WEB_IDENTITY, CONTAINER_TOKEN_FILE])?;
    let file = access.given(CONTAINER_TOKEN_FILE);
    // Where it cannot be read, the crate says so.
    if let Some((file, token)) = file.and_then(|file| Some((file, values::file(file).ok()?))) {
        values::text(&format!("the token in {file}"), &token)?;
    }
    Ok(())
}
