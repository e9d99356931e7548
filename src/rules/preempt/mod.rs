//! Sources of preemption notices apart from SIGTERM, as data: the requests, and the meaning of the answers.
//!
//! Only a well-formed answer has a meaning: a timeout, a refusal, HTML or an unknown word mean "unknown", never "no"
//! and never "yes". Deliberately absent: sockets, clocks, and the reaction.

mod aws;
mod azure;
mod gce;
mod watch;

use std::time::Duration;

pub use watch::{Answer, Method, News, Question, Watch};

use crate::cluster::parse::address::Address;
use crate::cluster::spec::quote;
use crate::process::env::Env;

/// Facts about the machine that need no network: files of `/sys/class/dmi/id`.
#[derive(Debug, Clone, Default)]
pub struct LocalFacts {
    /// `product_name`.
    pub product_name: String,
    /// `sys_vendor`.
    pub sys_vendor: String,
    /// `bios_version`.
    pub bios_version: String,
    /// `chassis_asset_tag`.
    pub chassis_asset_tag: String,
}

impl LocalFacts {
    /// Whether this is a machine of Google Compute Engine.
    pub fn is_google(&self) -> bool {
        (gce::SOURCE.is_here)(&Env::default(), self)
    }
}

/// The default of `--preemption-lead`.
pub const PREEMPTION_LEAD: Duration = Duration::from_secs(30);

/// Facts from which the notice periods follow that a cloud does not announce.
#[derive(Debug, Clone, Copy)]
pub struct NoticeFacts {
    /// The time from a preemption notice without a time to the machine's end, which only the user knows.
    pub preemption: Duration,
    /// Whether the machine has GPUs: their maintenance is announced earlier.
    pub has_gpus: bool,
}

/// One cloud's notices.
#[derive(Debug)]
pub struct Source {
    /// Its name in `--preemption`.
    pub name: &'static str,
    /// Variables that name the server, as in the vendor's SDKs; the first one that is set counts.
    pub named_by: &'static [&'static str],
    /// `host:port` with an optional base path, if the environment names no server.
    pub default_endpoint: fn(&Env) -> String,
    /// Whether this machine belongs to this cloud, and no variable disables the server.
    pub is_here: fn(&Env, &LocalFacts) -> bool,
    /// Loops of requests that run in parallel.
    pub watches: fn(&NoticeFacts, &Env) -> Vec<Box<dyn Watch>>,
}

/// All sources. To add one, add a file and a line here.
pub const SOURCES: &[Source] = &[gce::SOURCE, aws::SOURCE, azure::SOURCE];

/// The choice of a source.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Choice {
    /// Sources whose variable is set, or else the source that the machine's data names.
    Auto,
    /// No source.
    Off,
    /// This source, with or without evidence.
    Named(&'static str),
}

/// The choice with this name.
pub fn choice(name: &str) -> Option<Choice> {
    match name {
        "auto" => Some(Choice::Auto),
        "off" => Some(Choice::Off),
        _ => SOURCES.iter().find(|s| s.name == name).map(|s| Choice::Named(s.name)),
    }
}

/// An endpoint from the environment: the variable, and the endpoint or the mistake.
type NamedBy = (&'static str, Result<String, String>);

impl Source {
    fn named(&self, env: &Env) -> Option<NamedBy> {
        self.named_by.iter().find_map(|name| Some((*name, endpoint_of(env.given(name)?))))
    }
}

/// Variables with an unusable endpoint for a chosen source, each with the mistake.
pub fn unusable(choice: Choice, env: &Env) -> impl Iterator<Item = (&'static str, String)> {
    let is_chosen = move |source: &&Source| match choice {
        Choice::Auto => true,
        Choice::Off => false,
        Choice::Named(name) => source.name == name,
    };
    SOURCES.iter().filter(is_chosen).filter_map(|source| {
        let (name, endpoint) = source.named(env)?;
        Some((name, endpoint.err()?))
    })
}

/// The sources to watch and their endpoints. If a name is [`unusable`], no other endpoint is used instead.
pub fn sources_to_watch(choice: Choice, env: &Env, facts: &dyn Fn() -> LocalFacts) -> Vec<(&'static Source, String)> {
    let with_endpoint = |source: &'static Source| {
        let at = source.named(env).map_or_else(|| Ok((source.default_endpoint)(env)), |(_, at)| at);
        Some((source, at.ok()?))
    };
    match choice {
        Choice::Off => Vec::new(),
        Choice::Named(name) => SOURCES.iter().filter(|s| s.name == name).filter_map(with_endpoint).collect(),
        Choice::Auto => {
            let mut named = SOURCES.iter().filter(|source| source.named(env).is_some()).peekable();
            if named.peek().is_some() {
                return named.filter_map(with_endpoint).collect();
            }
            let facts = facts();
            SOURCES.iter().find(|s| (s.is_here)(env, &facts)).and_then(with_endpoint).into_iter().collect()
        }
    }
}

/// Reads a URL or a host with or without a port as `host:port/path`. Errors: the expected form and the mistake, without
/// anything that may be a password.
fn endpoint_of(text: &str) -> Result<String, String> {
    let text = text.trim();
    read_endpoint(text).map_err(|wrong| {
        let may_be_secret = text.contains(['@', '?']);
        let found = if may_be_secret { "a value that is not shown here".to_owned() } else { quote(text) };
        format!(
            "expected the metadata server's host, host:port or http:// address without a user and a query, such as \
             169.254.169.254 or http://127.0.0.1:8080, found {found}, which {wrong}; correct it, unset it, or use \
             --preemption off"
        )
    })
}

fn read_endpoint(text: &str) -> Result<String, String> {
    let rest = match text.split_once("://") {
        Some((scheme, rest)) if scheme.eq_ignore_ascii_case("http") => rest,
        Some(_) => return Err("has a scheme other than http".to_owned()),
        None => text,
    };
    if let Some(odd) = rest.chars().find(|c| !c.is_ascii_graphic() || matches!(c, '@' | '?' | '#')) {
        return Err(format!("has a {odd:?} in it"));
    }
    let (host, path) = rest.split_once('/').unwrap_or((rest, ""));
    let path = path.trim_matches('/');
    // Colons in the brackets of an IPv6 address do not begin a port.
    let has_port = host.rsplit(']').next().is_some_and(|end| end.contains(':'));
    let host = if has_port { host.to_owned() } else { format!("{host}:80") };
    Address::parse(&host)?;
    Ok(if path.is_empty() { host } else { format!("{host}/{path}") })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn picked_with(choice: Choice, env: &[(&str, &str)], facts: &LocalFacts) -> Vec<String> {
        let picked = sources_to_watch(choice, &Env::from_pairs(env.iter().copied()), &|| facts.clone());
        picked.iter().map(|(source, at)| format!("{} {at}", source.name)).collect()
    }

    fn picked(choice: Choice, env: &[(&str, &str)], product: &str) -> Vec<String> {
        picked_with(choice, env, &LocalFacts { product_name: product.to_owned(), ..LocalFacts::default() })
    }

    const NONE: [&str; 0] = [];

    #[test]
    fn no_source_is_used_without_local_evidence() {
        assert_eq!(picked(Choice::Auto, &[], "KVM"), NONE);
        assert_eq!(picked(Choice::Auto, &[("GCE_METADATA_HOST", " ")], ""), NONE);
        assert_eq!(picked(Choice::Auto, &[("AWS_EC2_METADATA_SERVICE_ENDPOINT_MODE", "IPv6")], ""), NONE);
    }

    #[test]
    fn evidence_is_the_endpoint_variable_or_the_machines_own_data() {
        let host = [("GCE_METADATA_HOST", "127.0.0.1:8080")];
        assert_eq!(picked(Choice::Auto, &host, ""), ["gce 127.0.0.1:8080"]);
        assert_eq!(picked(Choice::Auto, &[], "Google Compute Engine\n"), ["gce 169.254.169.254:80"]);
        let amazon = LocalFacts { sys_vendor: "Amazon EC2\n".into(), ..LocalFacts::default() };
        assert_eq!(picked_with(Choice::Auto, &[], &amazon), ["aws 169.254.169.254:80"]);
        let xen = LocalFacts { bios_version: "4.11.amazon".into(), ..LocalFacts::default() };
        assert_eq!(picked_with(Choice::Auto, &[], &xen), ["aws 169.254.169.254:80"]);
        let tag = "7783-7084-3265-9085-8269-3286-77\n".to_owned();
        let azure = LocalFacts { chassis_asset_tag: tag, ..LocalFacts::default() };
        assert_eq!(picked_with(Choice::Auto, &[], &azure), ["azure 169.254.169.254:80"]);
    }

    #[test]
    fn each_cloud_with_a_named_endpoint_is_used() {
        let env = [
            ("GCE_METADATA_HOST", "127.0.0.1:1"),
            ("AWS_EC2_METADATA_SERVICE_ENDPOINT", "http://127.0.0.1:2/"),
            ("TRAINIT_AZURE_METADATA_ENDPOINT", "http://127.0.0.1:3"),
        ];
        let all = ["gce 127.0.0.1:1", "aws 127.0.0.1:2", "azure 127.0.0.1:3"];
        assert_eq!(picked(Choice::Auto, &env, ""), all);
        assert_eq!(picked(Choice::Named("aws"), &env, "Google Compute Engine"), ["aws 127.0.0.1:2"]);
    }

    #[test]
    fn an_unusable_endpoint_is_reported_by_name_and_not_replaced() {
        let amazon = LocalFacts { sys_vendor: "Amazon EC2".into(), ..LocalFacts::default() };
        for (name, cloud, value) in [
            ("AWS_EC2_METADATA_SERVICE_ENDPOINT", "aws", "https://127.0.0.1:1"),
            ("GCE_METADATA_HOST", "gce", ":80"),
            ("GCE_METADATA_IP", "gce", "127.0.0.1:99999"),
            ("TRAINIT_AZURE_METADATA_ENDPOINT", "azure", "::1"),
        ] {
            let choice = choice(cloud).unwrap();
            let env = [(name, value)];
            let wrong = |choice| unusable(choice, &Env::from_pairs(env)).collect::<Vec<_>>();
            for choice in [choice, Choice::Auto] {
                assert_eq!(picked_with(choice, &env, &amazon), NONE, "{name}");
                let wrong = wrong(choice);
                assert!(matches!(&wrong[..], [(n, why)] if *n == name && why.contains(value)), "{wrong:?}");
            }
            let other = if cloud == "gce" { "aws" } else { "gce" };
            for choice in [Choice::Off, super::choice(other).unwrap()] {
                assert_eq!(wrong(choice), [], "{name}");
            }
        }
        let env = Env::from_pairs([("GCE_METADATA_HOST", "::1"), ("AWS_EC2_METADATA_SERVICE_ENDPOINT", "[::1]")]);
        assert_eq!(unusable(Choice::Auto, &env).count(), 1);
    }

    #[test]
    fn a_password_in_an_endpoint_is_never_shown() {
        for text in ["http://u:s3cret@127.0.0.1:1", "u:s3/cret@h", "h/?token=s3cret", "https://u:s3cret@h"] {
            let why = endpoint_of(text).unwrap_err();
            assert!(!why.contains("s3") && !why.contains("cret"), "{why}");
        }
    }

    #[test]
    fn off_uses_no_source_with_any_evidence() {
        assert_eq!(picked(Choice::Off, &[("GCE_METADATA_HOST", "127.0.0.1")], "Google Compute Engine"), NONE);
    }

    #[test]
    fn the_vendors_variables_that_disable_the_server_are_respected() {
        let amazon = LocalFacts { sys_vendor: "Amazon EC2".into(), ..LocalFacts::default() };
        for env in [[("AWS_EC2_METADATA_DISABLED", "True")], [("TRAINING_JOB_ARN", "arn:aws:x")]] {
            assert_eq!(picked_with(Choice::Auto, &env, &amazon), NONE);
            assert_eq!(picked_with(Choice::Named("aws"), &env, &amazon), ["aws 169.254.169.254:80"]);
        }
        let mode = [("AWS_EC2_METADATA_SERVICE_ENDPOINT_MODE", "ipv6")];
        assert_eq!(picked_with(Choice::Auto, &mode, &amazon), ["aws [fd00:ec2::254]:80"]);
    }

    #[test]
    fn an_endpoint_is_a_host_or_a_url_with_or_without_port_and_path() {
        for (text, expected) in [
            ("127.0.0.1", Some("127.0.0.1:80")),
            ("metadata:8080", Some("metadata:8080")),
            ("http://[fd00:ec2::254]", Some("[fd00:ec2::254]:80")),
            ("HTTP://[::1]:9/", Some("[::1]:9")),
            ("http://127.0.0.1:1338/base/", Some("127.0.0.1:1338/base")),
            ("metadata.google.internal.", Some("metadata.google.internal.:80")),
            ("https://127.0.0.1", None),
            ("http://", None),
            (":80", None),
            ("::1", None),
            ("[::1", None),
            ("127.0.0.1:", None),
            ("127.0.0.1:0", None),
            ("127.0.0.1:99999", None),
            ("bad host", None),
            ("127.0.0.1/bad path", None),
            ("127.0.0.1/?x", None),
            ("user@127.0.0.1", None),
        ] {
            assert_eq!(endpoint_of(text).ok().as_deref(), expected, "{text}");
        }
    }
}
