//! Limits for a store, or a file system of the checkpoint directory, that does not answer.

use std::cell::Cell;
use std::future::pending;
use std::path::PathBuf;
use std::pin::Pin;
use std::rc::Rc;
use std::time::Duration;

use crate::edge::clock::Clock;
use crate::edge::store::Access;
use crate::edge::transfer::blocking::blocking;
use crate::supervisor::checkpoints::config::Config;

/// A warning is logged after this time.
const SOON: Duration = Duration::from_secs(8);
/// The interval at which progress is checked.
const PAUSE: Duration = Duration::from_secs(1);
/// The limit near the end: a platform's usual grace is 30 s.
pub(super) const SHORT: Duration = Duration::from_secs(20);
/// The limit if the job ended by itself.
pub(super) const LONG: Duration = Duration::from_secs(60);

/// Watches the store and the directory during work.
pub(super) struct Watchdog {
    access: Access,
    store: String,
    dir: PathBuf,
    clock: Clock,
    /// Whether the end is near.
    is_pressed: Rc<Cell<bool>>,
}

/// A pending request to a file system.
type Check = Pin<Box<dyn Future<Output = ()>>>;

impl Watchdog {
    pub(super) fn new(config: &Config, clock: Clock, is_pressed: &Rc<Cell<bool>>) -> Watchdog {
        Watchdog {
            access: config.access.clone(),
            store: config.store.as_ref().map_or(String::new(), ToString::to_string),
            dir: config.dir.clone(),
            clock,
            is_pressed: Rc::clone(is_pressed),
        }
    }

    /// Runs the work, and logs once which side does not answer. Errors: the side that has not answered for `limit`, or
    /// for [`SHORT`] near the end. Without `limit` only the second applies.
    pub(super) async fn watch<T>(
        &self,
        what: &str,
        limit: Option<Duration>,
        work: impl Future<Output = T>,
    ) -> Result<T, String> {
        let mut work = Box::pin(work);
        let (mut check, mut checked_at, mut is_logged): (Option<Check>, Duration, bool) =
            (None, self.clock.now(), false);
        loop {
            tokio::select! {
                biased;
                done = &mut work => return Ok(done),
                () = answer(&mut check) => { check = None; }
                () = tokio::time::sleep(PAUSE) => {
                    if check.is_none() {
                        checked_at = self.clock.now();
                        check = Some(Box::pin(check_directory(self.dir.clone())));
                    }
                }
            }
            let now = self.clock.now();
            let of_dir = if check.is_some() { now.saturating_sub(checked_at) } else { Duration::ZERO };
            let of_store = self.access.silence();
            let silence = of_store.max(of_dir);
            let (does, has) = self.names(of_dir >= of_store);
            if silence >= SOON && !std::mem::replace(&mut is_logged, true) {
                tracing::warn!(code = "store", "{does}: the {what} waits for it");
            }
            let pressed = self.is_pressed.get().then_some(SHORT);
            if [limit, pressed].into_iter().flatten().min().is_some_and(|limit| silence >= limit) {
                return Err(format!("{has} for {} s", silence.as_secs()));
            }
        }
    }

    /// The side that does not answer, in the present and the perfect tense.
    fn names(&self, is_directory: bool) -> (String, String) {
        let dir = self.dir.display();
        match is_directory {
            true => (
                format!("the checkpoint directory {dir} does not answer"),
                format!("the checkpoint directory {dir} has not answered"),
            ),
            false if self.access.is_refused() => {
                (format!("{} refuses all data", self.store), format!("{} has refused all data", self.store))
            }
            false => (format!("{} does not answer", self.store), format!("{} has not answered", self.store)),
        }
    }
}

async fn check_directory(dir: PathBuf) {
    let _ = blocking(move || Ok(std::fs::symlink_metadata(&dir).is_ok())).await;
}

async fn answer(check: &mut Option<Check>) {
    match check {
        Some(check) => check.await,
        None => pending().await,
    }
}
