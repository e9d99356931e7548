//! Reports the progress of a transfer, and how far the store is behind, to a listener.

use std::cell::{Cell, RefCell};
use std::time::Duration;

use crate::edge::clock::Clock;
use crate::edge::io::{progress_line, stdio};
use crate::edge::store::{Store, StoreError};
use crate::rules::job::Event;
use crate::rules::text::transfer_progress::{LINE_EVERY, words};

/// Between two looks whether what takes long goes on.
const LOOK_PAUSE: Duration = Duration::from_secs(2);
/// No disk takes fewer bytes a second.
const SLOWEST_DISK: u64 = 4 << 20;

/// Runs the work, and calls `told` each time that `moves` reports progress.
pub(crate) async fn going_on<T>(
    work: impl Future<Output = T>,
    mut moves: impl FnMut() -> bool,
    told: &dyn Fn(u64),
) -> T {
    tokio::pin!(work);
    loop {
        tokio::select! {
            biased;
            done = &mut work => return done,
            () = tokio::time::sleep(LOOK_PAUSE) => {
                if moves() {
                    told(0);
                }
            }
        }
    }
}

/// Flushes what was sent to the device. Nothing reports its progress, so it counts as going on for as long as a slow disk takes
/// for so many bytes.
pub(crate) async fn make_durable(
    store: &Store,
    keys: &[String],
    bytes: u64,
    told: &dyn Fn(u64),
) -> Result<(), StoreError> {
    let (clock, limit) = (Clock::start(), Duration::from_secs(bytes / SLOWEST_DISK));
    going_on(store.make_durable(keys, bytes), || clock.now() < limit, told).await
}

/// Hears bytes done and bytes in all of one transfer.
pub(crate) type Hear = Box<dyn Fn(u64, u64)>;

/// The listeners of a mirror, and how far its restore is.
#[derive(Default)]
pub(crate) struct Listeners {
    /// Makes a listener for each restore: the one before may be long ago.
    restore: Option<Box<dyn Fn() -> Hear>>,
    hear: RefCell<Option<Hear>>,
    /// Hears how many steps the store is behind the directory, at each look, and the step of each commit that a restore finds
    /// good, before anything is fetched; with none, that the last one was not.
    pub(crate) tell: Option<Box<dyn Fn(Event)>>,
    done: Cell<u64>,
    all: Cell<u64>,
}

impl Listeners {
    /// Tells bytes done and bytes in all of each restore from now on, one of these listeners each.
    pub(crate) fn hear_restore(&mut self, listen: Box<dyn Fn() -> Hear>) {
        self.restore = Some(listen);
    }

    pub(crate) fn tell(&self, event: Event) {
        if let Some(tell) = &self.tell {
            tell(event);
        }
    }

    /// So many bytes are to be moved.
    pub(crate) fn begin(&self, all: u64) {
        self.hear.replace(self.restore.as_ref().map(|listen| listen()));
        self.done.set(0);
        self.all.set(all);
    }

    /// So many more have been.
    pub(crate) fn moved(&self, more: u64) {
        self.done.set(self.done.get() + more);
        if let Some(hear) = &*self.hear.borrow() {
            hear(self.done.get(), self.all.get());
        }
    }
}

/// Says now and then how far a long transfer is: `committing the checkpoint: 1.5 of 6.0 GiB …`.
fn lines(what: &'static str, say: fn(String)) -> Hear {
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

/// The same in the log.
pub(crate) fn log_lines(what: &'static str) -> Hear {
    lines(what, |line| tracing::info!("{line}"))
}

/// Progress of a subcommand on standard error: a bar on a terminal, else a line now and then.
pub(crate) fn shown(what: &'static str) -> Hear {
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
        let told = |more| {
            assert_eq!(more, 0, "no byte more is through");
            said.set(said.get() + 1);
            is_enough.notify_one();
        };
        going_on(is_enough.notified(), moves, &told).await;
        assert_eq!((looks.get(), said.get()), (2, 1));
    }
}
