//! What the environment says about stores and who may use them. It holds secrets: it is never shown.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use super::motion::{Meter, Motion};
use super::stand_in::Sources;
use crate::rules::env::Env;

/// Variables whose values must not be seen. Not addresses or names.
const SECRETS: &[&str] = &[
    "AWS_SECRET_ACCESS_KEY",
    "AWS_SESSION_TOKEN",
    "AWS_CONTAINER_AUTHORIZATION_TOKEN",
    "AZURE_CLIENT_SECRET",
    "AZURE_STORAGE_ACCESS_KEY",
    "AZURE_STORAGE_ACCOUNT_KEY",
    "AZURE_STORAGE_CONNECTION_STRING",
    "AZURE_STORAGE_KEY",
    "AZURE_STORAGE_SAS_KEY",
    "AZURE_STORAGE_SAS_TOKEN",
    "AZURE_STORAGE_TOKEN",
    "GOOGLE_BEARER_TOKEN",
    "GOOGLE_SERVICE_ACCOUNT_KEY",
    "IDENTITY_HEADER",
];
/// Shorter values would black out words.
pub(super) const SHORTEST_SECRET: usize = 8;

/// What time it was by a store's own clock when it last answered.
#[derive(Debug, Clone, Default)]
pub(super) struct Heard(Arc<AtomicI64>);

impl Heard {
    /// Seconds since 1970.
    pub(super) fn set(&self, unix: i64) {
        self.0.store(unix, Ordering::Relaxed);
    }

    /// Since 1970; `None` where it never said.
    pub(super) fn get(&self) -> Option<Duration> {
        u64::try_from(self.0.load(Ordering::Relaxed)).ok().filter(|unix| *unix > 0).map(Duration::from_secs)
    }
}

/// The environment, for stores.
#[derive(Clone, Default)]
pub struct Access {
    env: Env,
    heard: Heard,
    meter: Meter,
    sources: Sources,
    /// Plain http is fine to anybody, not only on this machine.
    pub(super) is_plain_fine: bool,
}

impl fmt::Debug for Access {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Access(..)")
    }
}

impl Access {
    /// What this environment gives access to; `is_plain_fine`: by plain http too, wherever the store is.
    pub fn new(env: Env, is_plain_fine: bool) -> Access {
        Access { env, is_plain_fine, ..Access::default() }
    }

    /// Where the store's time is kept.
    pub(super) fn heard(&self) -> Heard {
        self.heard.clone()
    }

    /// Where what moves between us and the store is counted.
    pub(super) fn meter(&self) -> &Meter {
        &self.meter
    }

    /// What is sent from files.
    pub(super) fn sources(&self) -> &Sources {
        &self.sources
    }

    /// How it stands between us and the store that it was opened with.
    pub fn motion(&self) -> Motion {
        self.meter.read()
    }

    /// A variable's value unless it is absent or blank.
    pub(super) fn given(&self, name: &str) -> Option<&str> {
        self.env.given(name)
    }

    /// Whether a variable is there and says nothing.
    pub(super) fn is_blank(&self, name: &str) -> bool {
        self.env.get(name).is_some_and(|value| value.trim().is_empty())
    }

    /// The first of these that is given.
    pub(super) fn first(&self, names: &[&str]) -> Option<&str> {
        names.iter().find_map(|name| self.given(name))
    }

    /// Whether a variable says yes.
    pub(super) fn is_on(&self, name: &str) -> bool {
        self.given(name).is_some_and(|v| matches!(v.to_ascii_lowercase().as_str(), "1" | "true" | "yes" | "on"))
    }

    /// The text without any secret that the environment holds: what a server echoes is not ours to trust.
    pub(super) fn censored(&self, mut text: String) -> String {
        for secret in SECRETS.iter().filter_map(|name| self.given(name)) {
            // A SAS token or a connection string is a list; each value of it may be echoed alone.
            let parts = secret.split(['&', ';']).map(|p| p.split_once('=').map_or(p, |(_, value)| value));
            for part in parts.chain([secret]).filter(|p| p.len() >= SHORTEST_SECRET) {
                text = text.replace(part, "...");
            }
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_secret_is_never_shown() {
        let pairs =
            [("AWS_SECRET_ACCESS_KEY", "hunter2hunter2"), ("AZURE_STORAGE_SAS_TOKEN", "sv=2024&sig=abcdefghij%3D")];
        let access = Access::new(Env::from_pairs(pairs), false);
        assert_eq!(format!("{access:?}"), "Access(..)");
        let text = access.censored("refused hunter2hunter2 (sig=abcdefghij%3D, sv=2024)".to_owned());
        assert_eq!(text, "refused ... (sig=..., sv=2024)");
    }
}
