//! How far the transfer under way is, and how far the store is behind, told to whoever wants to hear.

use std::cell::{Cell, RefCell};
use std::fmt;
use std::time::Duration;

use super::mirror::Mirror;
use crate::edge::clock::Clock;
use crate::edge::stdio;
use crate::edge::store::{Store, StoreError};
use crate::rules::progress::{BAR_EVERY, Cadence, LINE_EVERY, bar, words};

/// Between two looks whether what takes long goes on.
const LOOK_PAUSE: Duration = Duration::from_secs(2);
/// No disk takes fewer bytes a second.
const SLOWEST_DISK: u64 = 4 << 20;

/// Does it, and tells that it goes on as often as `moves` says so.
pub(super) async fn going_on<T>(
    deed: impl Future<Output = T>,
    mut moves: impl FnMut() -> bool,
    told: &dyn Fn(u64),
) -> T {
    tokio::pin!(deed);
    loop {
        tokio::select! {
            biased;
            done = &mut deed => return done,
            () = tokio::time::sleep(LOOK_PAUSE) => {
                if moves() {
                    told(0);
                }
            }
        }
    }
}

/// Flushes what was sent to the device. How far that is nobody says, so for as long as a slow disk takes for so many bytes
/// it is said to go on.
pub(super) async fn make_durable(
    store: &Store,
    keys: &[String],
    bytes: u64,
    told: &dyn Fn(u64),
) -> Result<(), StoreError> {
    let (clock, limit) = (Clock::start(), Duration::from_secs(bytes / SLOWEST_DISK));
    going_on(store.make_durable(keys), || clock.now() < limit, told).await
}

/// Hears bytes done and bytes in all of one transfer.
pub type Hear = Box<dyn Fn(u64, u64)>;

/// Makes who hears of each restore, and tells it.
#[derive(Default)]
pub struct Transfer {
    listen: Option<Box<dyn Fn() -> Hear>>,
    hear: RefCell<Option<Hear>>,
    hear_behind: Option<Box<dyn Fn(Option<u64>)>>,
    hear_step: Option<Box<dyn Fn(Option<u64>)>>,
    done: Cell<u64>,
    all: Cell<u64>,
}

impl fmt::Debug for Transfer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Transfer({} of {})", self.done.get(), self.all.get())
    }
}

impl Transfer {
    /// Tells one of these of each transfer from now on.
    pub fn tell(&mut self, listen: Box<dyn Fn() -> Hear>) {
        self.listen = Some(listen);
    }

    /// A restore has read a good commit of this step, or, with none, found that the last one was not.
    pub(crate) fn found(&self, step: Option<u64>) {
        if let Some(hear) = &self.hear_step {
            hear(step);
        }
    }

    /// So many bytes are to be moved, by a transfer that has a clock of its own: the one before may be long ago.
    pub(crate) fn begin(&self, all: u64) {
        let hear = self.listen.as_ref().map(|listen| listen());
        self.hear.replace(hear);
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

impl Mirror {
    /// Tells bytes done and bytes in all of each restore from now on, one of these each.
    pub fn hear_restore(&mut self, listen: Box<dyn Fn() -> Hear>) {
        self.transfer.tell(listen);
    }

    /// Tells from now on how many steps the store is behind the directory, at each look: 0 where it is not, `None` where
    /// the steps are not known.
    pub fn hear_behind(&mut self, hear: Box<dyn Fn(Option<u64>)>) {
        self.transfer.hear_behind = Some(hear);
    }

    /// This complete checkpoint is not in the store, since then; `None`: there is none such.
    pub(super) fn waits(&mut self, waiting: Option<(Option<u64>, Duration)>) {
        self.waiting = waiting;
        if let Some(hear) = &self.transfer.hear_behind {
            hear(self.behind().map_or(Some(0), |(steps, _)| steps));
        }
    }

    /// Tells the step of each commit that a restore finds good, before anything is fetched.
    pub fn hear_found(&mut self, hear: Box<dyn Fn(Option<u64>)>) {
        self.transfer.hear_step = Some(hear);
    }

    /// Why checkpoints that may be newer were not taken when one was last looked for, newest first.
    pub fn passed(&self) -> &[String] {
        &self.passed
    }

    /// What the checkpoints were taken for when one was last looked for: the layout's name, and what gives it away.
    pub fn taken_for(&self) -> Option<(&'static str, &'static str)> {
        self.layout.map(|layout| (layout.name, layout.evidence))
    }

    /// How far the store is behind the directory: steps, where both are known, and for how long. `None`: not at all, as
    /// of the last look.
    pub fn behind(&self) -> Option<(Option<u64>, Duration)> {
        let (step, since) = self.waiting?;
        let committed = self.committed.as_ref().and_then(|c| c.age.step);
        let steps = step.map(|step| step.saturating_sub(committed.unwrap_or(0)));
        Some((steps, self.clock.now().saturating_sub(since)))
    }
}

/// A line on the log now and then, for what takes long: `committing the checkpoint: 1.5 of 6.0 GiB …`.
pub(super) fn log_lines(what: &'static str) -> impl Fn(u64, u64) {
    let progress = Paced::new(LINE_EVERY);
    move |done, all| {
        if let Some(words) = progress.words(done, all) {
            tracing::info!("{what}: {words}");
        }
    }
}

/// For somebody who waits: a bar on a terminal, else a line now and then, on standard error.
pub fn shown(what: &'static str) -> Hear {
    if !stdio::is_terminal(libc::STDERR_FILENO) {
        let progress = Paced::new(LINE_EVERY);
        return Box::new(move |done, all| {
            if let Some(words) = progress.words(done, all) {
                stdio::complain(&format!("trainit: {what}: {words}"));
            }
        });
    }
    let (progress, drawn) = (Paced::new(BAR_EVERY), Drawn(Cell::new(false)));
    Box::new(move |done, all| {
        let words = progress.words(done, all);
        if let Some(text) = stroke(&drawn.0, words, done, all) {
            stdio::draw(&text);
        }
    })
}

/// Whether a bar is to be seen; that of a transfer which is given up goes with it.
struct Drawn(Cell<bool>);

impl Drop for Drawn {
    fn drop(&mut self) {
        if self.0.get() {
            stdio::draw(ERASE);
        }
    }
}

const ERASE: &str = "\r\x1b[K";

/// What to draw: the bar with its words, or, over it when all is done, nothing. It leaves no trace, nor is it drawn for its
/// last word.
fn stroke(drawn: &Cell<bool>, words: Option<String>, done: u64, all: u64) -> Option<String> {
    if done >= all {
        return drawn.replace(false).then(|| ERASE.to_owned());
    }
    let words = words?;
    drawn.set(true);
    Some(format!("\r{} {words}\x1b[K", bar(done, all)))
}

/// Words at their pace; a commit that is tried anew starts the clock again.
struct Paced {
    every: Duration,
    clock: Cell<Clock>,
    cadence: Cell<Cadence>,
    last: Cell<u64>,
}

impl Paced {
    fn new(every: Duration) -> Paced {
        Paced { every, clock: Cell::new(Clock::start()), cadence: Cell::new(Cadence::new(every)), last: Cell::new(0) }
    }

    fn words(&self, done: u64, all: u64) -> Option<String> {
        if done < self.last.replace(done) {
            self.clock.set(Clock::start());
            self.cadence.set(Cadence::new(self.every));
        }
        let (took, mut cadence) = (self.clock.get().now(), self.cadence.get());
        let is_time = cadence.is_time(took);
        self.cadence.set(cadence);
        is_time.then(|| words(done, all, took))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::rc::Rc;

    #[tokio::test]
    async fn what_takes_long_is_said_to_go_on_as_long_as_it_moves() {
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

    #[test]
    fn each_transfer_is_heard_from_its_own_beginning() {
        let (begun, heard) = (Rc::new(Cell::new(0)), Rc::new(RefCell::new(Vec::new())));
        let (mut transfer, heard_so_far) = (Transfer::default(), Rc::clone(&heard));
        transfer.tell(Box::new(move || {
            let (number, heard) = (begun.get() + 1, Rc::clone(&heard));
            begun.set(number);
            Box::new(move |done, all| heard.borrow_mut().push((number, done, all)))
        }));
        for (all, parts) in [(2, &[2][..]), (9, &[3, 4])] {
            transfer.begin(all);
            parts.iter().for_each(|part| transfer.moved(*part));
        }
        assert_eq!(*heard_so_far.borrow(), [(1, 2, 2), (2, 3, 9), (2, 7, 9)]);
    }

    #[test]
    fn a_bar_leaves_no_trace_and_is_not_drawn_for_its_last_word() {
        let (drawn, words) = (Cell::new(false), || Some("w".to_owned()));
        assert_eq!(stroke(&drawn, words(), 10, 10), None, "it took too little time for a bar");
        assert_eq!(stroke(&drawn, None, 1, 10), None);
        let half = stroke(&drawn, words(), 5, 10).unwrap_or_default();
        assert!(half.starts_with("\r[####") && half.ends_with(" w\x1b[K"), "{half:?}");
        assert_eq!(stroke(&drawn, words(), 10, 10).as_deref(), Some("\r\x1b[K"));
        assert_eq!(stroke(&drawn, words(), 10, 10), None, "once");
    }
}
