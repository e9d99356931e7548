//! Where a preemption notice can come from beside SIGTERM, as data: what to ask, and what an answer means.
//!
//! Only a well-formed answer says anything (contracts/preemption.md, section 0): a time-out, a refusal, HTML or an
//! unknown word are "don't know", never "no" and never "yes". Deliberately absent: sockets, clocks, what happens next.

mod gce;
mod watch;

pub use watch::{Answer, Heard, Notice, Question, Watch};

use super::env::Env;

/// What can be known of the machine without asking anybody over a network.
#[derive(Debug, Clone, Default)]
pub struct LocalFacts {
    /// `/sys/class/dmi/id/product_name`.
    pub dmi_product: String,
}

/// One cloud's notices.
#[derive(Debug)]
pub struct Source {
    /// Its name in `--preemption`.
    pub name: &'static str,
    /// `host:port` that the environment names, as the vendor's own SDKs read it.
    pub named_endpoint: fn(&Env) -> Option<String>,
    /// `host:port` where nothing else is said.
    pub default_endpoint: &'static str,
    /// Whether this machine shows that it is this cloud's.
    pub is_here: fn(&LocalFacts) -> bool,
    /// The keys to watch, each with its own loop.
    pub watches: fn() -> Vec<Box<dyn Watch>>,
}

/// Every source there is; the first with evidence is asked. A new one is a file and a line here.
pub const SOURCES: &[Source] = &[gce::SOURCE];

/// Which source to ask, and where.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Choice {
    /// One whose variable is set, or that this machine's own data names.
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

/// The source to watch and its endpoint; `None` when nobody is to be asked.
pub fn pick(choice: Choice, env: &Env, facts: &dyn Fn() -> LocalFacts) -> Option<(&'static Source, String)> {
    let endpoint = |source: &Source| (source.named_endpoint)(env);
    match choice {
        Choice::Off => None,
        Choice::Named(name) => {
            let source = SOURCES.iter().find(|s| s.name == name)?;
            Some((source, endpoint(source).unwrap_or_else(|| source.default_endpoint.to_owned())))
        }
        Choice::Auto => SOURCES.iter().find_map(|source| Some((source, endpoint(source)?))).or_else(|| {
            let facts = facts();
            let source = SOURCES.iter().find(|s| (s.is_here)(&facts))?;
            Some((source, source.default_endpoint.to_owned()))
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn picked(choice: Choice, env: &[(&str, &str)], product: &str) -> Option<String> {
        let facts = || LocalFacts { dmi_product: product.to_owned() };
        pick(choice, &Env::from_pairs(env.iter().copied()), &facts).map(|(s, at)| format!("{} {at}", s.name))
    }

    #[test]
    fn nobody_is_asked_without_local_evidence() {
        assert_eq!(picked(Choice::Auto, &[], "KVM"), None);
        assert_eq!(picked(Choice::Auto, &[("GCE_METADATA_HOST", " ")], ""), None);
    }

    #[test]
    fn evidence_is_the_endpoint_variable_or_the_machines_own_product_name() {
        let host = [("GCE_METADATA_HOST", "127.0.0.1:8080")];
        assert_eq!(picked(Choice::Auto, &host, ""), Some("gce 127.0.0.1:8080".into()));
        assert_eq!(picked(Choice::Auto, &[], "Google Compute Engine\n"), Some("gce 169.254.169.254:80".into()));
    }

    #[test]
    fn off_asks_nobody_whatever_the_evidence() {
        assert_eq!(picked(Choice::Off, &[("GCE_METADATA_HOST", "127.0.0.1")], "Google Compute Engine"), None);
    }

    #[test]
    fn a_host_without_a_port_means_port_80() {
        let host = [("GCE_METADATA_HOST", "127.0.0.1")];
        assert_eq!(picked(Choice::Named("gce"), &host, ""), Some("gce 127.0.0.1:80".into()));
    }
}
