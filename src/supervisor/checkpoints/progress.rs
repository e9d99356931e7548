//! Reports the progress of a transfer, and how far the store is behind, to a listener.

use std::cell::{Cell, RefCell};
use std::time::Duration;

use crate::edge::clock::Clock;
use crate::edge::io::{progress_line, stdio};
use crate::edge::store::{Store, StoreError};
use crate::rules::job::Event;
use crate::rules::text::transfer_progress::{LINE_EVERY, words};

/// The pause between two checks for progress.
const LOOK_PAUSE: Duration = Duration::from_secs(2);
/// No disk takes fewer bytes a second.
const SLOWEST_DISK: u64 = 4 << 20;

/// Runs the work, and calls `report` after each check that finds progress.
pub(crate) async fn with_progress<T>(
    work: impl Future<Output = T>,
    mut moves: impl FnMut() -> bool,
    report: &dyn Fn(u64),
) -> T {
    tokio::pin!(work);
    loop {
        tokio::select! {
            biased;
            done = &mut work => return done,
            () = tokio::time::sleep(LOOK_PAUSE) => {
                if moves() {
                    report(0);
                }
            }
        }
    }
}

/// Flushes these objects to the device. A flush reports no progress, so it counts as progress for as long as a slow disk takes
/// for `bytes`.
pub(crate) async fn make_durable(
    store: &Store,
    keys: &[String],
    bytes: u64,
    report: &dyn Fn(u64),
) -> Result<(), StoreError> {
    let (clock, limit) = (Clock::start(), Duration::from_secs(bytes / SLOWEST_DISK));
    with_progress(store.make_durable(keys, bytes), || clock.now() < limit, report).await
}

/// Called with the bytes done and the bytes in all of one transfer.
pub(crate) type OnProgress = Box<dyn Fn(u64, u64)>;

/// The listeners of a mirror, and how far its restore is.
#[derive(Default)]
pub(crate) struct Listeners {
    /// Makes the callback of each restore.
    restore: Option<Box<dyn Fn() -> OnProgress>>,
    on_progress: RefCell<Option<OnProgress>>,
    /// Called at each look with the number of steps that the store is behind the directory. Called at each restore, before
    /// anything is fetched, with the step of the commit that was found; no step: the commit was damaged.
    pub(crate) on_event: Option<Box<dyn Fn(Event)>>,
    done: Cell<u64>,
    all: Cell<u64>,
}

impl Listeners {
    /// Reports the progress of each later restore to a new callback.
    pub(crate) fn on_restore(&mut self, begin: Box<dyn Fn() -> OnProgress>) {
        self.restore = Some(begin);
    }

    pub(crate) fn emit(&self, event: Event) {
        if let Some(on_event) = &self.on_event {
            on_event(event);
        }
    }

    pub(crate) fn begin(&self, all: u64) {
        self.on_progress.replace(self.restore.as_ref().map(|begin| begin()));
        self.done.set(0);
        self.all.set(all);
    }

    pub(crate) fn moved(&self, more: u64) {
        self.done.set(self.done.get() + more);
        if let Some(on_progress) = &*self.on_progress.borrow() {
            on_progress(self.done.get(), self.all.get());
        }
    }
}

/// Reports the progress of a long transfer at intervals: `committing the checkpoint: 1.5 of 6.0 GiB …`.
fn lines(what: &'static str, say: fn(String)) -> OnProgress {
    let (clock, said, last) = (Cell::new(Clock::start()), Cell::new(Duration::ZERO), Cell::new(0));
    Box::new(move |done, all| {
        if done < last.replace(done) {
            // The transfer has been started again.
            clock.set(Clock::start());
            said.set(Duration::ZERO);
        }
        let took = clock.get().now();
        if took.saturating_sub(said.get()) >= LINE_EVERY {
            said.set(took);
            say(format!("{what}: {}", words(done, all, took)));
        }
    })
}

pub(crate) fn log_lines(what: &'static str) -> OnProgress {
    lines(what, |line| tracing::info!("{line}"))
}

/// Progress of a subcommand on standard error: a bar on a terminal, else a line now and then.
pub(crate) fn shown(what: &'static str) -> OnProgress {
    let bar = progress_line::of_bytes();
    if bar.is_hidden() {
        return lines(what, |line| stdio::complain(&format!("trainit: {line}")));
    }
    Box::new(move |done, all| {
        bar.set_length(all);
        bar.set_position(done);
        if done >= all {
            bar.finish_and_clear();
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_long_transfer_is_reported_as_long_as_it_progresses() {
        let (looks, said, is_enough) = (Cell::new(0), Cell::new(0), tokio::sync::Notify::new());
        let moves = || {
            looks.set(looks.get() + 1);
            looks.get() > 1
        };
        let report = |more| {
            assert_eq!(more, 0, "no byte more is through");
            said.set(said.get() + 1);
            is_enough.notify_one();
        };
        with_progress(is_enough.notified(), moves, &report).await;
        assert_eq!((looks.get(), said.get()), (2, 1));
    }
}
