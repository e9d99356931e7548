//! What the environment says, as far as `object_store` can take it: it panics on an address, a header or a host name that
//! is none, and that would end trainit. So all values pass here first; complaints repeat no value, which may be a secret.
//! Files of credentials are opened here, too: a link of another user is not followed.

use std::io;
use std::path::Path;

use hyper::Uri;
use nix::fcntl::OFlag;
use url::{Host, Url};

use crate::edge::fs::trusted_open;
use crate::edge::store::clouds::access::Access;
use crate::edge::store::error::Failed;

/// Applies a check to each of these variables that is given.
pub(super) fn each(
    access: &Access,
    names: &[&str],
    check: impl Fn(&str, &str) -> Result<(), Failed>,
) -> Result<(), Failed> {
    let mut given = names.iter().filter_map(|name| Some((name, access.given(name)?)));
    given.try_for_each(|(name, value)| check(name, value))
}

/// Errors: it is no address of http or https.
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

/// Errors: it holds what no header can.
pub(super) fn text(name: &str, value: &str) -> Result<(), Failed> {
    if value.chars().any(char::is_control) {
        return Err(unusable(name, "a line end or another control character is in it", "give it in one line"));
    }
    Ok(())
}

/// The text of a file of credentials. Errors: as open(2), read(2); a link of another user.
pub(super) fn file(path: &str) -> io::Result<String> {
    io::read_to_string(trusted_open::open(Path::new(path), OFlag::O_RDONLY)?)
}

/// For a file that the crate opens itself, at each renewal too. Errors: a link of another user is on the way to it.
pub(super) fn is_ours(name: &str, path: &str) -> Result<(), Failed> {
    match trusted_open::metadata(Path::new(path)) {
        Err(error) if trusted_open::is_refused(&error) => {
            Err(Failed::of_credentials(format!("{name}={path} cannot be used: {error}")))
        }
        // What else is wrong with it, the crate says.
        _ => Ok(()),
    }
}

/// Errors: it cannot be a part of a host's name.
pub(super) fn label(name: &str, value: &str) -> Result<(), Failed> {
    if value.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.')) {
        return Ok(());
    }
    Err(unusable(name, "it becomes a part of an address", "give letters, digits and - only"))
}

/// Whether this is the machine we are on, whatever a name server says.
pub(in crate::edge::store) fn is_here(url: &Url) -> bool {
    match url.host() {
        Some(Host::Domain(name)) => name == "localhost",
        Some(Host::Ipv4(ip)) => ip.is_loopback(),
        Some(Host::Ipv6(ip)) => ip.is_loopback(),
        None => false,
    }
}

/// `host:port` of an authority: a user and a password may stand before it.
pub(in crate::edge::store) fn bare(authority: &str) -> &str {
    authority.rsplit('@').next().unwrap_or_default()
}

pub(super) fn unusable(name: &str, why: &str, way_out: &str) -> Failed {
    Failed::of_credentials(format!("{name} cannot be used: {why}; {way_out}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_whole_addresses_pass() {
        for good in ["http://127.0.0.1:9000", "https://minio.example/base/", "http://[::1]:9", "https://u:p@h"] {
            assert!(address("X", good).is_ok(), "{good}");
        }
        for bad in ["minio:9000", "http://a b", "http://h/a b", "http://h\n", "", "ftp://h", "http://", "http://[::1"] {
            assert!(address("X", bad).is_err_and(|f| f.detail.starts_with("X cannot be used: ")), "{bad:?}");
        }
    }

    #[test]
    fn only_loopback_addresses_are_this_machine() {
        let here = |text: &str| is_here(&Url::parse(text).expect("parses"));
        assert!(
            ["http://localhost", "http://127.0.0.1:1", "http://127.9.9.9/x", "http://[::1]/"].into_iter().all(here)
        );
        let elsewhere =
            ["http://127.0.0.1.nip.invalid", "http://127.example", "http://localhost.example", "http://[::2]"];
        assert!(!elsewhere.into_iter().any(here));
    }
}
