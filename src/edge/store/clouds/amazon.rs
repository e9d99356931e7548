//! S3 and compatible stores (`AWS_ENDPOINT_URL_S3`, `AWS_ENDPOINT_URL`, `AWS_ENDPOINT`). Credentials, the first found: the
//! environment's, a web identity's, the container's, the instance's (IMDSv2). The files of AWS's tools (`~/.aws`) are not
//! read.
//! <https://docs.aws.amazon.com/sdkref/latest/guide/standardized-credentials.html>
//!
//! Bodies are sent unsigned with a CRC-64/NVME that the server checks: TLS proves the sender, and hashing them for the
//! signature would cost a third of the throughput.

use std::sync::Arc;

use object_store::aws::{AmazonS3Builder, Checksum, S3ConditionalPut};

use crate::edge::store::clouds::access::Access;
use crate::edge::store::clouds::{Opened, values};
use crate::edge::store::error::Failed;
use crate::edge::store::http::connect::{self, Connector};
use crate::rules::store::address::Bucket;

const WAY_OUT: &str = "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or give the machine, container or pod a role";
const PROFILE: &str = "AWS_PROFILE";
const WAY_OUT_OF_PROFILE: &str =
    "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or unset AWS_PROFILE if the role of the machine is to sign";
const KEYS: [(&str, &str); 2] =
    [("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"), ("AWS_SECRET_ACCESS_KEY", "AWS_ACCESS_KEY_ID")];
/// The other sources, and what each needs: without it the crate would ask the machine instead.
const SOURCES: [(&str, &str); 2] = [
    ("AWS_WEB_IDENTITY_TOKEN_FILE", "AWS_ROLE_ARN"),
    ("AWS_CONTAINER_CREDENTIALS_FULL_URI", "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE"),
];
const CONTAINER: &str = "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI";
const MACHINE: &str = "AWS_EC2_METADATA_SERVICE_ENDPOINT";

pub(in crate::edge::store) async fn open(bucket: &Bucket, access: &Access) -> Result<Opened, Failed> {
    values::check(access, &["AWS_"])?;
    let is_signed = !access.is_on("AWS_SKIP_SIGNATURE");
    let has_keys = KEYS.iter().any(|(name, _)| access.given(name).is_some());
    values::pairs(access, &KEYS)?;
    if is_signed && !has_keys {
        check_source(access)?;
    }
    let mut builder = AmazonS3Builder::new().with_conditional_put(S3ConditionalPut::ETagMatch);
    for (key, value) in values::settings(access, "AWS_")? {
        builder = builder.with_config(key, value);
    }
    if let Some(endpoint) = access.given(MACHINE) {
        builder = builder.with_metadata_endpoint(endpoint.trim_end_matches('/'));
    }
    let builder = builder
        .with_bucket_name(&bucket.name)
        .with_retry(connect::retries(access))
        .with_client_options(connect::options())
        .with_http_connector(Connector(access.clone()))
        .with_unsigned_payload(true)
        // Every server supports single deletes.
        .with_disable_bulk_delete(true)
        .with_checksum_algorithm(Checksum::CRC64NVME);
    let store = builder.build().map_err(|error| Failed::no_credentials(&error, WAY_OUT))?;
    if is_signed {
        access.wait_for(store.credentials().get_credential(), WAY_OUT).await?;
    }
    // The crate renews sessions of S3 Express.
    Ok(Opened { client: Arc::new(store), renews: is_signed && !has_keys && !access.is_on("AWS_S3_EXPRESS") })
}

/// Errors: without keys, no other source may be asked, one is incomplete, or a profile is named, which the machine's
/// identity must not replace.
fn check_source(access: &Access) -> Result<(), Failed> {
    if access.given(PROFILE).is_some() {
        return Err(values::unusable(PROFILE, "trainit does not read AWS's files of profiles", WAY_OUT_OF_PROFILE));
    }
    values::pairs(access, &SOURCES)?;
    let has_source =
        SOURCES.map(|(name, _)| name).into_iter().chain([CONTAINER]).any(|name| access.given(name).is_some());
    if access.is_on("AWS_EC2_METADATA_DISABLED") && !has_source {
        return Err(Failed::of_credentials(format!(
            "no credentials, and AWS_EC2_METADATA_DISABLED forbids to ask the instance; {WAY_OUT}"
        )));
    }
    Ok(())
}
