//! Checks the environment's values before `object_store` gets them: it panics at an invalid address, header or host name.
//! Errors repeat no value, which may be a secret.

use std::net::IpAddr;
use std::path::Path;
use std::str::FromStr;

use hyper::Uri;
use object_store::ClientConfigKey;
use url::Url;

use crate::edge::fs::trusted_open;
use crate::edge::store::clouds::access::Access;
use crate::edge::store::error::Failed;

type Check = fn(&str, &str) -> Result<(), Failed>;

const CHECKS: [(Check, &[&str]); 2] = [
    (
        address,
        &[
            "AWS_ENDPOINT_URL_S3",
            "AWS_ENDPOINT_URL",
            "AWS_ENDPOINT",
            "AWS_ENDPOINT_URL_STS",
            "AWS_EC2_METADATA_SERVICE_ENDPOINT",
            "AWS_METADATA_ENDPOINT",
            "AWS_CONTAINER_CREDENTIALS_FULL_URI",
            "AZURE_ENDPOINT",
            "AZURE_STORAGE_ENDPOINT",
            "AZURE_AUTHORITY_HOST",
            "AZURE_MSI_ENDPOINT",
            "AZURITE_BLOB_STORAGE_URL",
            "IDENTITY_ENDPOINT",
            "CLOUDSDK_API_ENDPOINT_OVERRIDES_STORAGE",
            "GOOGLE_BASE_URL",
        ],
    ),
    (
        host,
        &[
            "AWS_REGION",
            "AWS_DEFAULT_REGION",
            "AZURE_STORAGE_ACCOUNT",
            "AZURE_STORAGE_ACCOUNT_NAME",
            "AZURE_TENANT_ID",
            "GCE_METADATA_HOST",
            "GCE_METADATA_ROOT",
            "GCE_METADATA_IP",
        ],
    ),
];

/// Errors: one of the variables with these prefixes has a value that the crate cannot use.
pub(super) fn check(access: &Access, prefixes: &[&str]) -> Result<(), Failed> {
    for (name, value) in access.variables().filter(|(name, _)| prefixes.iter().any(|prefix| name.starts_with(prefix))) {
        // A blank value counts as unset, except a host, which the crate would use.
        let is_given = !value.trim().is_empty() || name.starts_with("GCE_");
        if value.starts_with('/') {
            check_links(name, value)?;
        }
        let mut checks = CHECKS.iter().filter(|(_, names)| is_given && names.contains(&name));
        checks.try_for_each(|(check, _)| check(name, value))?;
    }
    Ok(())
}

/// Errors: the first of a pair is given without the second.
pub(super) fn pairs(access: &Access, pairs: &[(&str, &str)]) -> Result<(), Failed> {
    let half = pairs.iter().find(|(name, other)| access.given(name).is_some() && access.given(other).is_none());
    half.map_or(Ok(()), |(name, other)| Err(unusable(name, &format!("{other} is not given"), "set both, or neither")))
}

/// The crate's settings, without those of its HTTP client. Errors: a value that no header can hold.
pub(super) fn settings<'a, K: FromStr>(access: &'a Access, prefix: &str) -> Result<Vec<(K, &'a str)>, Failed> {
    let mut known = Vec::new();
    for (name, value) in access.variables().filter(|(_, value)| !value.trim().is_empty()) {
        let rest = name.strip_prefix(prefix).map(str::to_ascii_lowercase);
        if rest.is_some_and(|rest| rest.parse::<ClientConfigKey>().is_err())
            && let Ok(key) = name.to_ascii_lowercase().parse()
        {
            // JSON may have several lines.
            if !value.trim_start().starts_with('{') {
                text(name, value)?;
            }
            known.push((key, value));
        }
    }
    Ok(known)
}

/// Errors: it is not an http or https address.
pub(super) fn address(name: &str, value: &str) -> Result<(), Failed> {
    let bad = |why: &str| unusable(name, why, "give a whole address, such as https://HOST or http://HOST:PORT");
    text(name, value)?;
    let is_web = |text: &str| text.starts_with("http://") || text.starts_with("https://");
    if !is_web(&value.to_ascii_lowercase()) {
        return Err(bad("it does not begin with http:// or https://"));
    }
    Url::parse(value).map_err(|error| bad(&error.to_string()))?;
    // The crate builds requests by a stricter reading than the one it checks.
    value.parse::<Uri>().map(drop).map_err(|error| bad(&error.to_string()))
}

/// Errors: it cannot be a host name or a part of one.
fn host(name: &str, value: &str) -> Result<(), Failed> {
    let bad = |_| unusable(name, "it becomes a part of an address", "give letters, digits, . and - only");
    address(name, &format!("http://{}", value.trim())).map_err(bad)
}

/// Errors: it contains a control character.
fn text(name: &str, value: &str) -> Result<(), Failed> {
    if value.chars().any(char::is_control) {
        return Err(unusable(name, "a line end or another control character is in it", "give it in one line"));
    }
    Ok(())
}

/// For a file that the crate may open. Errors: a link of another user is on the way to it.
fn check_links(name: &str, path: &str) -> Result<(), Failed> {
    match trusted_open::metadata(Path::new(path)) {
        Err(error) if trusted_open::is_refused(&error) => {
            Err(Failed::of_credentials(format!("{name}={path} cannot be used: {error}")))
        }
        _ => Ok(()),
    }
}

/// Whether this host is this machine, without a name server.
pub(in crate::edge::store) fn is_loopback(host: &str) -> bool {
    let ip = host.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>();
    host == "localhost" || ip.is_ok_and(|ip| ip.is_loopback())
}

pub(super) fn unusable(name: &str, why: &str, way_out: &str) -> Failed {
    Failed::of_credentials(format!("{name} cannot be used: {why}; {way_out}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_loopback_addresses_are_this_machine() {
        assert!(["localhost", "127.0.0.1", "127.9.9.9", "[::1]"].into_iter().all(is_loopback));
        let elsewhere = ["127.0.0.1.nip.invalid", "127.example", "localhost.example", "[::2]"];
        assert!(!elsewhere.into_iter().any(is_loopback));
    }
}
