//! The environment's settings and credentials for stores. It holds secrets, so it is never shown.

use std::fmt;
use std::panic::AssertUnwindSafe;
use std::time::Duration;

use futures_util::FutureExt;

use crate::edge::store::error::{Failed, StoreError, not_answered, silent};
use crate::edge::store::http::progress::Meter;
use crate::rules::process::env::Env;
use crate::rules::store::address::Address;

/// How the names of variables begin and end whose values must not be seen.
const CLOUDS: [&str; 4] = ["AWS_", "AZURE_", "GOOGLE_", "IDENTITY_"];
const SECRETS: [&str; 4] = ["_KEY", "_TOKEN", "_SECRET", "_HEADER"];
pub(in crate::edge::store) const TIMEOUT: Duration = Duration::from_secs(30);
/// Shorter values would black out words.
pub(in crate::edge::store) const SHORTEST_SECRET: usize = 8;

/// The environment, for stores.
#[derive(Clone)]
pub struct Access {
    env: Env,
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
        Access { env, meter: Meter::default(), is_plain_fine, timeout }
    }

    /// Where the operations of the store that it opens are counted.
    pub(in crate::edge::store) fn meter(&self) -> &Meter {
        &self.meter
    }

    /// Does work of which the store's file system takes a part, as long as that answers. Errors: it does not.
    pub async fn watched<T>(&self, store: &Address, work: impl Future<Output = T>) -> Result<T, StoreError> {
        let done = self.meter.watch(self.timeout, work).await;
        done.ok_or_else(|| self.error("open", store.to_string(), Failed::from(&not_answered(self.timeout))))
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

    /// Waits until a source of credentials has given some. Errors: what it says, and what to do instead.
    pub(super) async fn wait_for<T>(
        &self,
        credentials: impl Future<Output = object_store::Result<T>>,
        way_out: &str,
    ) -> Result<(), Failed> {
        // The crate panics at answers of which it can make no address and no header.
        match self.meter.watch(self.timeout, AssertUnwindSafe(credentials).catch_unwind()).await {
            Some(Ok(given)) => given.map(drop).map_err(|error| Failed::no_credentials(&error, way_out)),
            Some(Err(_)) => {
                Err(Failed::of_credentials(format!("the source gives credentials that cannot be used; {way_out}")))
            }
            None => Err(Failed::of_credentials(format!(
                "no credentials are to be had: {}; {way_out}",
                silent(self.timeout)
            ))),
        }
    }

    pub(super) fn variables(&self) -> impl Iterator<Item = (&str, &str)> {
        self.env.iter()
    }

    pub(in crate::edge::store) fn given(&self, name: &str) -> Option<&str> {
        self.env.given(name)
    }

    pub(in crate::edge::store) fn first(&self, names: &[&str]) -> Option<&str> {
        names.iter().find_map(|name| self.given(name))
    }

    pub(in crate::edge::store) fn is_on(&self, name: &str) -> bool {
        self.given(name).is_some_and(|v| matches!(v.to_ascii_lowercase().as_str(), "1" | "true" | "yes" | "on"))
    }

    /// What failed at what.
    pub(in crate::edge::store) fn error(&self, action: &'static str, place: String, failed: Failed) -> StoreError {
        StoreError::new(action, place, self.censored(failed.detail), failed.trouble)
    }

    /// The text without any secret that the environment holds: what a server echoes is not ours to trust.
    pub(in crate::edge::store) fn censored(&self, mut text: String) -> String {
        let is_of_a_cloud = |name: &str| CLOUDS.iter().any(|start| name.starts_with(start));
        let is_secret = |name: &str| is_of_a_cloud(name) && SECRETS.iter().any(|end| name.ends_with(end));
        for (_, secret) in self.env.iter().filter(|(name, _)| is_secret(name)) {
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
