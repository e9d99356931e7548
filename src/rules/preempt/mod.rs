//! Where a preemption notice can come from beside SIGTERM, as data: what to ask, and what an answer means.
//!
//! Only a well-formed answer says anything (contracts/preemption.md, section 0): a time-out, a refusal, HTML or an
//! unknown word are "don't know", never "no" and never "yes". Deliberately absent: sockets, clocks, what happens next.

mod aws;
mod azure;
mod gce;
mod watch;

use std::time::Duration;

pub use watch::{Answer, Heard, Method, Notice, Question, Watch, Word};

use super::env::Env;

/// What can be known of the machine without asking anybody over a network: files of `/sys/class/dmi/id`.
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

/// What a cloud does not tell of its notices and the user may know.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Leads {
    /// From a preemption notice without a time to the machine's end.
    pub preemption: Duration,
    /// From a maintenance notice without a time to the machine's end.
    pub maintenance: Duration,
}

impl Default for Leads {
    /// GCE's documented times without the opt-in to longer ones.
    fn default() -> Leads {
        Leads { preemption: Duration::from_secs(30), maintenance: Duration::from_secs(60) }
    }
}

/// One cloud's notices.
#[derive(Debug)]
pub struct Source {
    /// Its name in `--preemption`.
    pub name: &'static str,
    /// `host:port`, and a path before all others where there is one, that the environment names, as the vendor's own
    /// SDKs read it.
    pub named_endpoint: fn(&Env) -> Option<String>,
    /// The same where the environment names none.
    pub default_endpoint: fn(&Env) -> String,
    /// Whether this machine shows that it is this cloud's, and nothing says to leave the server alone.
    pub is_here: fn(&Env, &LocalFacts) -> bool,
    /// Loops of questions that run beside each other.
    pub watches: fn(&Leads, &Env) -> Vec<Box<dyn Watch>>,
}

/// Every source there is. A new one is a file and a line here.
pub const SOURCES: &[Source] = &[gce::SOURCE, aws::SOURCE, azure::SOURCE];

/// Which source to ask, and where.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Choice {
    /// Those whose variable is set, else the one that this machine's own data names.
    Auto,
    /// Nobody.
    Off,
    /// This one, evidence or not.
    Named(&'static str),
}

/// The choice of this name.
pub fn choice(name: &str) -> Option<Choice> {
    match name {
        "auto" => Some(Choice::Auto),
        "off" => Some(Choice::Off),
        _ => SOURCES.iter().find(|s| s.name == name).map(|s| Choice::Named(s.name)),
    }
}

/// The sources to watch and their endpoints; none when nobody is to be asked.
pub fn pick(choice: Choice, env: &Env, facts: &dyn Fn() -> LocalFacts) -> Vec<(&'static Source, String)> {
    let endpoint = |source: &Source| (source.named_endpoint)(env);
    let anywhere = |source: &'static Source| {
        let at = endpoint(source).unwrap_or_else(|| (source.default_endpoint)(env));
        (source, at)
    };
    match choice {
        Choice::Off => Vec::new(),
        Choice::Named(name) => SOURCES.iter().filter(|s| s.name == name).map(anywhere).collect(),
        Choice::Auto => {
            let named: Vec<_> = SOURCES.iter().filter_map(|source| Some((source, endpoint(source)?))).collect();
            if !named.is_empty() {
                return named;
            }
            let facts = facts();
            SOURCES.iter().find(|s| (s.is_here)(env, &facts)).map(anywhere).into_iter().collect()
        }
    }
}

/// `host:port/path` of a URL or of a host with or without a port; `None` for another scheme than http.
fn endpoint_of(text: &str) -> Option<String> {
    let text = text.trim();
    let rest = match text.split_once("://") {
        Some((scheme, rest)) if scheme.eq_ignore_ascii_case("http") => rest,
        Some(_) => return None,
        None => text,
    };
    let (host, path) = rest.split_once('/').unwrap_or((rest, ""));
    let path = path.trim_matches('/');
    // Colons within the brackets of an IPv6 address are no port.
    let has_port = host.rsplit(']').next().is_some_and(|end| end.contains(':'));
    let host = if has_port { host.to_owned() } else { format!("{host}:80") };
    if host.starts_with(':') {
        return None;
    }
    Some(if path.is_empty() { host } else { format!("{host}/{path}") })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn picked_with(choice: Choice, env: &[(&str, &str)], facts: &LocalFacts) -> Vec<String> {
        let picked = pick(choice, &Env::from_pairs(env.iter().copied()), &|| facts.clone());
        picked.iter().map(|(source, at)| format!("{} {at}", source.name)).collect()
    }

    fn picked(choice: Choice, env: &[(&str, &str)], product: &str) -> Vec<String> {
        picked_with(choice, env, &LocalFacts { product_name: product.to_owned(), ..LocalFacts::default() })
    }

    const NOBODY: [&str; 0] = [];

    #[test]
    fn nobody_is_asked_without_local_evidence() {
        assert_eq!(picked(Choice::Auto, &[], "KVM"), NOBODY);
        assert_eq!(picked(Choice::Auto, &[("GCE_METADATA_HOST", " ")], ""), NOBODY);
        assert_eq!(picked(Choice::Auto, &[("AWS_EC2_METADATA_SERVICE_ENDPOINT_MODE", "IPv6")], ""), NOBODY);
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
    fn each_cloud_whose_endpoint_is_named_is_asked() {
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
    fn off_asks_nobody_whatever_the_evidence() {
        assert_eq!(picked(Choice::Off, &[("GCE_METADATA_HOST", "127.0.0.1")], "Google Compute Engine"), NOBODY);
    }

    #[test]
    fn the_vendors_own_ways_to_leave_the_server_alone_are_heard() {
        let amazon = LocalFacts { sys_vendor: "Amazon EC2".into(), ..LocalFacts::default() };
        for env in [[("AWS_EC2_METADATA_DISABLED", "True")], [("TRAINING_JOB_ARN", "arn:aws:x")]] {
            assert_eq!(picked_with(Choice::Auto, &env, &amazon), NOBODY);
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
            ("https://127.0.0.1", None),
            ("http://", None),
        ] {
            assert_eq!(endpoint_of(text).as_deref(), expected, "{text}");
        }
    }
}
