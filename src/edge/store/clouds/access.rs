//! The environment's settings and credentials for stores. Its debug form is empty, because it holds secrets.

use std::fmt;
use std::panic::AssertUnwindSafe;
use std::time::Duration;

use futures_util::FutureExt;

use crate::edge::store::error::{Failed, StoreError, not_answered, silent};
use crate::edge::store::http::progress::Meter;
use crate::rules::process::env::Env;
use crate::rules::store::address::Address;

/// Prefixes and suffixes of the names of variables with secret values.
const CLOUDS: [&str; 4] = ["AWS_", "AZURE_", "GOOGLE_", "IDENTITY_"];
const SECRETS: [&str; 4] = ["_KEY", "_TOKEN", "_SECRET", "_HEADER"];
pub(in crate::edge::store) const TIMEOUT: Duration = Duration::from_secs(30);
/// Shorter values would match ordinary words.
pub(in crate::edge::store) const SHORTEST_SECRET: usize = 8;

/// The environment, for stores.
#[derive(Clone)]
pub struct Access {
    env: Env,
    meter: Meter,
    /// Plain http is allowed to every address, not only to this machine's own.
    pub(in crate::edge::store) allows_http: bool,
    /// An operation fails when none of its bytes moves for this long.
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
    /// `allows_http`: plain http is allowed to every address. `timeout`: how long an operation may move no byte.
    pub fn new(env: Env, allows_http: bool, timeout: Duration) -> Access {
        Access { env, meter: Meter::default(), allows_http, timeout }
    }

    /// The same for work beside the checkpoints, which must not look like progress of theirs.
    pub fn apart(&self) -> Access {
        Access { meter: Meter::default(), ..self.clone() }
    }

    pub(in crate::edge::store) fn meter(&self) -> &Meter {
        &self.meter
    }

    /// Runs work on the store's file system. Errors: the file system does not answer.
    pub async fn watched<T>(&self, store: &Address, work: impl Future<Output = T>) -> Result<T, StoreError> {
        let done = self.meter.watch(self.timeout, work).await;
        done.ok_or_else(|| self.error("open", store.to_string(), Failed::from(&not_answered(self.timeout))))
    }

    /// How long the store's requests have moved no byte; zero without a request.
    pub fn silence(&self) -> Duration {
        self.meter.silence()
    }

    /// Whether the store last answered "later".
    pub fn is_refused(&self) -> bool {
        self.meter.is_throttled()
    }

    /// Bytes moved to and from the store so far.
    pub fn moved(&self) -> u64 {
        self.meter.bytes()
    }

    /// Waits for a source of credentials. Errors: its error, and what to do instead.
    pub(super) async fn wait_for<T>(
        &self,
        credentials: impl Future<Output = object_store::Result<T>>,
        way_out: &str,
    ) -> Result<(), Failed> {
        // The crate panics at responses that make no valid address or header.
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

    pub(in crate::edge::store) fn error(&self, action: &'static str, place: String, failed: Failed) -> StoreError {
        StoreError::new(action, place, self.redacted(failed.detail), failed.trouble)
    }

    /// Removes the environment's secrets, because a server may echo them.
    pub(in crate::edge::store) fn redacted(&self, mut text: String) -> String {
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
        let text = access.redacted("refused hunter2hunter2 (sig=abcdefghij%3D, sv=2024)".to_owned());
        assert_eq!(text, "refused ... (sig=..., sv=2024)");
    }
}
