//! The environment's settings and credentials for stores. It holds secrets, so it is never shown.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use crate::edge::fs::real_path;
use crate::edge::store::directory;
use crate::edge::store::error::{Failed, StoreError};
use crate::edge::store::http::progress::Meter;
use crate::rules::process::env::Env;
use crate::rules::store::address::Address;

/// Variables whose values must not be seen. Not addresses or names.
const SECRETS: &[&str] = &[
    "AWS_SECRET_ACCESS_KEY",
    "AWS_SESSION_TOKEN",
    "AWS_CONTAINER_AUTHORIZATION_TOKEN",
    "AZURE_CLIENT_SECRET",
    "AZURE_STORAGE_ACCESS_KEY",
    "AZURE_STORAGE_ACCOUNT_KEY",
    "AZURE_STORAGE_KEY",
    "AZURE_STORAGE_SAS_KEY",
    "AZURE_STORAGE_SAS_TOKEN",
    "AZURE_STORAGE_TOKEN",
    "GOOGLE_BEARER_TOKEN",
    "GOOGLE_SERVICE_ACCOUNT_KEY",
    "IDENTITY_HEADER",
];
/// Where `--store-timeout` says nothing else.
pub(in crate::edge::store) const TIMEOUT: Duration = Duration::from_secs(30);
/// Shorter values would black out words.
pub(in crate::edge::store) const SHORTEST_SECRET: usize = 8;

/// The first name in the listings that is left out of them, because it cannot be a key.
#[derive(Debug, Clone, Default)]
pub(in crate::edge::store) struct OddName(Arc<Mutex<Option<String>>>);

impl OddName {
    pub(in crate::edge::store) fn note(&self, name: &str) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert_with(|| name.to_owned());
    }
}

/// The environment, for stores.
#[derive(Clone)]
pub struct Access {
    env: Env,
    odd: OddName,
    meter: Meter,
    /// Plain http is allowed to every address, not only to this machine's own.
    pub(in crate::edge::store) is_plain_fine: bool,
    /// An operation none of whose bytes moves for so long is an error.
    pub(in crate::edge::store) timeout: Duration,
}

impl Default for Access {
    fn default() -> Access {
        Access::new(Env::default(), false, TIMEOUT)
    }
}

impl fmt::Debug for Access {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Access(..)")
    }
}

impl Access {
    /// What this environment gives access to; `is_plain_fine`: by plain http too, wherever the store is; `timeout`: how
    /// long an operation may move no byte.
    pub fn new(env: Env, is_plain_fine: bool, timeout: Duration) -> Access {
        let (odd, meter) = (OddName::default(), Meter::default());
        Access { env, odd, meter, is_plain_fine, timeout }
    }

    /// Where a name is noted that a listing leaves out.
    pub(in crate::edge::store) fn odd(&self) -> &OddName {
        &self.odd
    }

    /// The first name that the listings of the store that it opens leave out because it cannot be a key (`a/../b`, `a//b`,
    /// control characters), but for names that end in `/`, which stand for directories.
    pub fn odd_name(&self) -> Option<String> {
        self.odd.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Where the operations of the store that it opens are counted.
    pub(in crate::edge::store) fn meter(&self) -> &Meter {
        &self.meter
    }

    /// Waits until the file system of a store that is a directory answers at all. Errors: it does not in time.
    pub async fn answers(&self, store: &Address) -> Result<(), StoreError> {
        let Address::Directory(path) = store else { return Ok(()) };
        let path = path.clone();
        let looked = directory::timed(self.meter(), self.timeout, move |_| {
            real_path::look(&path);
            Ok(())
        });
        looked.await.map_err(|error| Failed::from(&error).of("open", store.to_string(), self))
    }

    /// How long the store that it opens has taken and given nothing though it was asked; zero while it is not asked.
    pub fn silence(&self) -> Duration {
        self.meter.silence()
    }

    /// Whether that store last said "later".
    pub fn is_refused(&self) -> bool {
        self.meter.refuses()
    }

    /// Bytes that have moved between this process and that store so far, either way.
    pub fn moved(&self) -> u64 {
        self.meter.bytes()
    }

    /// Every variable that is not blank.
    pub(super) fn variables(&self) -> impl Iterator<Item = (&str, &str)> {
        self.env.iter().filter(|(_, value)| !value.trim().is_empty())
    }

    pub(in crate::edge::store) fn given(&self, name: &str) -> Option<&str> {
        self.env.given(name)
    }

    /// Whether a variable is there and says nothing.
    pub(in crate::edge::store) fn is_blank(&self, name: &str) -> bool {
        self.env.get(name).is_some_and(|value| value.trim().is_empty())
    }

    pub(in crate::edge::store) fn first(&self, names: &[&str]) -> Option<&str> {
        names.iter().find_map(|name| self.given(name))
    }

    pub(in crate::edge::store) fn is_on(&self, name: &str) -> bool {
        self.given(name).is_some_and(|v| matches!(v.to_ascii_lowercase().as_str(), "1" | "true" | "yes" | "on"))
    }

    /// The text without any secret that the environment holds: what a server echoes is not ours to trust.
    pub(in crate::edge::store) fn censored(&self, mut text: String) -> String {
        for secret in SECRETS.iter().filter_map(|name| self.given(name)) {
            // A SAS token is a list; each value of it may be echoed alone.
            let parts = secret.split('&').map(|p| p.split_once('=').map_or(p, |(_, value)| value));
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
    fn secrets_are_never_shown() {
        let pairs =
            [("AWS_SECRET_ACCESS_KEY", "hunter2hunter2"), ("AZURE_STORAGE_SAS_TOKEN", "sv=2024&sig=abcdefghij%3D")];
        let access = Access::new(Env::from_pairs(pairs), false, TIMEOUT);
        assert_eq!(format!("{access:?}"), "Access(..)");
        let text = access.censored("refused hunter2hunter2 (sig=abcdefghij%3D, sv=2024)".to_owned());
        assert_eq!(text, "refused ... (sig=..., sv=2024)");
    }
}
