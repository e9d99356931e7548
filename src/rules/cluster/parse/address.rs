//! Reads `host:port` and `[v6]:port` strictly: values that TensorFlow accepts and then hangs on are refused.
//!
//! Deliberately absent: name resolution.

use core::net::{IpAddr, Ipv6Addr};
use std::fmt;

/// The limit of DNS for a name.
const MAX_HOST_BYTES: usize = 253;

/// A host and a port.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Address {
    /// A name or an IP address; an IPv6 address has no brackets here.
    pub host: String,
    /// From 1.
    pub port: u16,
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", bracketed(&self.host), self.port)
    }
}

impl Address {
    /// Reads `host:port` or `[v6]:port`. Errors: the mistake, in one clause.
    pub fn parse(text: &str) -> Result<Address, String> {
        if text.contains("://") {
            return Err("has a scheme; only host:port is allowed".to_owned());
        }
        let (host, port) = text.rsplit_once(':').ok_or_else(|| "has no port".to_owned())?;
        if host.contains(':') && !host.starts_with('[') {
            return Err("is neither host:port nor [IPv6]:port".to_owned());
        }
        Ok(Address { host: parse_host(host)?, port: parse_port(port)? })
    }
}

/// Reads a host without a port: a name, an IPv4 address, or an IPv6 address with or without brackets. Errors: one
/// clause.
pub fn parse_host(text: &str) -> Result<String, String> {
    if text.is_empty() {
        return Err("has no host".to_owned());
    }
    if text.contains("://") {
        return Err("has a scheme; only a host is allowed".to_owned());
    }
    let bare = text.strip_prefix('[').and_then(|t| t.strip_suffix(']'));
    if bare.is_some() || text.contains(':') {
        let bare = bare.unwrap_or(text);
        return match bare.parse::<Ipv6Addr>() {
            Ok(_) => Ok(bare.to_owned()),
            Err(_) if Address::parse(text).is_ok() => Err("has a port; only a host is allowed".to_owned()),
            Err(_) => Err("is not an IPv6 address".to_owned()),
        };
    }
    if text.len() > MAX_HOST_BYTES {
        return Err(format!("is longer than {MAX_HOST_BYTES} characters"));
    }
    if !text.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'-' | b'_')) {
        return Err("has a character other than letters, digits, '.', '-' and '_'".to_owned());
    }
    Ok(text.to_owned())
}

/// Reads a port, 1 to 65535. Errors: one clause.
pub fn parse_port(text: &str) -> Result<u16, String> {
    let digits = !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    match text.parse::<u16>() {
        Ok(port) if digits && port > 0 => Ok(port),
        _ => Err("has no port between 1 and 65535".to_owned()),
    }
}

/// One spelling for each host: IP addresses have several spellings, and names do not depend on case.
pub fn canonical(host: &str) -> String {
    host.parse::<IpAddr>().map_or_else(|_| host.to_ascii_lowercase(), |ip| ip.to_canonical().to_string())
}

/// The host in the form before a port: IPv6 in brackets.
pub fn bracketed(host: &str) -> String {
    if host.contains(':') { format!("[{host}]") } else { host.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_both_kinds_of_ip_are_read_and_written_back() {
        for text in ["a:1", "10.0.0.4:2222", "my_host-0.ns.svc:65535", "[fd00::1]:2222"] {
            assert_eq!(Address::parse(text).map(|a| a.to_string()), Ok(text.to_owned()));
        }
        assert_eq!(Address::parse("[fd00::1]:2").map(|a| a.host), Ok("fd00::1".to_owned()));
    }

    #[test]
    fn an_address_that_would_hang_a_server_is_refused() {
        let wrong = [
            "",
            "a",
            "a:",
            ":1",
            "a:0",
            "a:65536",
            "a:-1",
            "a:+1",
            "a: 1",
            "a b:1",
            "grpc://a:1",
            "fd00::1:2222",
            "[fd00::1]",
            "[x]:1",
            "[]:1",
            "ä:1",
            "a:1 ",
            "a/b:1",
            "a:1:2",
            "[fd00::1]x:1",
        ];
        for text in wrong {
            assert!(Address::parse(text).is_err(), "{text:?}");
        }
    }

    #[test]
    fn spellings_of_one_host_are_equal() {
        for (one, other) in
            [("fd00::1", "fd00:0::1"), ("FD00::A", "fd00::a"), ("::ffff:10.0.0.1", "10.0.0.1"), ("A", "a")]
        {
            assert_eq!(canonical(one), canonical(other));
        }
        assert_ne!(canonical("fd00::1"), canonical("fd00::2"));
    }

    #[test]
    fn an_unexpected_port_is_reported_as_a_port() {
        for text in ["m:29500", "[fd00::1]:29500"] {
            assert_eq!(parse_host(text), Err("has a port; only a host is allowed".to_owned()));
        }
        assert_eq!(parse_host("fd00::1:x"), Err("is not an IPv6 address".to_owned()));
    }

    #[test]
    fn a_host_without_a_port_may_be_ipv6_without_brackets() {
        assert_eq!(parse_host("fd00::1"), Ok("fd00::1".to_owned()));
        assert_eq!(parse_host("[fd00::1]"), Ok("fd00::1".to_owned()));
        assert!(parse_host("tcp://10.0.0.1:80").is_err());
    }
}
