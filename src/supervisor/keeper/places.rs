//! The directories that a run's checkpoints and model go from and to: on a file system that hangs none of them answers. They
//! are asked now and then, so that it is told which does not, and so that nobody waits for one without end.
//!
//! What a bucket does is seen on its connections (`vigil.rs`).

use std::cell::{Cell, RefCell};
use std::convert::Infallible;
use std::path::PathBuf;
use std::time::Duration;

use futures_util::future::join_all;
use tokio::sync::{Notify, watch};

use super::guard::SOON;
use super::mirror::blocking;
use super::vigil::{LONG_PATIENCE, PATIENCE};
use super::{Keep, LeftModel};
use crate::edge::clock::Clock;
use crate::edge::places;
use crate::edge::store::{Access, Motion, takes_a_file};
use crate::rules::awake::Awake;
use crate::rules::checkpoint::address::Address;

/// Before the first question, between two while somebody waits, and while nobody does.
pub(super) const BEAT: Duration = Duration::from_secs(2);
const PACE: Duration = Duration::from_secs(10);
const REST: Duration = Duration::from_secs(30);
/// Between two looks whether what is late is to be told of, or to be given up.
const MOMENT: Duration = Duration::from_millis(500);

/// What somebody waits for, as a line has it.
pub(super) const RESTORE: &str = "the restore waits for it";
pub(super) const ATTEMPT: &str = "the next attempt waits for it";
pub(super) const COMMIT: &str = "the last commit is tried";
pub(super) const COPY: &str = "the copy of the model is tried";

/// That somebody waits for what is done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Wait {
    pub(super) what: &'static str,
    pub(super) since: Duration,
    /// How long for who does not answer.
    pub(super) patience: Duration,
}

impl Wait {
    /// Where another attempt follows, what lies here will do.
    pub(super) fn patience_with_the_store(self) -> Duration {
        if self.what == ATTEMPT { self.patience.min(PATIENCE) } else { self.patience }
    }

    fn patience_with(self, place: &Place) -> Duration {
        if place.kind == Kind::Store { self.patience_with_the_store() } else { self.patience }
    }
}

/// Who was waited for and has not answered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Silence {
    pub(super) why: String,
    pub(super) is_of_the_store: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Checkpoints,
    Store,
    Model,
}

/// A directory.
struct Place {
    kind: Kind,
    path: PathBuf,
    /// In a line.
    called: String,
    /// Where what is written to it is counted.
    access: Option<Access>,
    /// Since when it owes an answer, and whether that is to a write.
    owes: Cell<Option<(Duration, bool)>>,
}

/// All of them, and who waits.
pub(super) struct Places {
    clock: Clock,
    awake: RefCell<Awake>,
    places: Vec<Place>,
    wait: watch::Sender<Option<Wait>>,
    /// Something takes long.
    nudge: Notify,
}

impl Places {
    pub(super) fn of(Keep { checkpoints, model }: &Keep, clock: Clock) -> Places {
        let mut places = Vec::new();
        if let Some(checkpoints) = checkpoints {
            let mirror = &checkpoints.mirror;
            places.push(Place::new(Kind::Checkpoints, mirror.dir.clone(), "the checkpoint directory ", None));
            let store = mirror.store.as_ref().filter(|_| checkpoints.sibling.is_none());
            places.extend(Place::of_store(Kind::Store, store, &mirror.access));
        }
        if let Some(LeftModel { dir, store, access, .. }) = model {
            places.push(Place::new(Kind::Model, dir.clone(), "the model directory ", None));
            places.extend(Place::of_store(Kind::Model, Some(store), access));
        }
        Places { clock, awake: RefCell::default(), places, wait: watch::Sender::new(None), nudge: Notify::new() }
    }

    /// The time that has passed awake, for who waits.
    pub(super) fn now(&self) -> Duration {
        self.awake.borrow_mut().at(self.clock.now())
    }

    /// Does it again where it failed and we stood still meanwhile: nobody could answer us in time.
    pub(super) async fn awake<T, E>(&self, mut deed: impl AsyncFnMut() -> Result<T, E>) -> Result<T, E> {
        let asleep = || {
            self.now();
            self.awake.borrow().asleep()
        };
        loop {
            let before = asleep();
            let done = deed().await;
            if done.is_ok() || asleep() == before {
                return done;
            }
        }
    }

    /// Somebody waits, for so long; who waits already began to earlier, and waits no longer.
    pub(super) fn awaits(&self, what: &'static str, patience: Duration) {
        let now = self.now();
        self.wait.send_modify(|wait| {
            let (since, most) = wait.map_or((now, patience), |wait| (wait.since, wait.patience));
            *wait = Some(Wait { what, since, patience: most.min(patience) });
        });
    }

    /// Who waits has no more time than who is told to stop.
    pub(super) fn hurry(&self) {
        self.wait.send_modify(|wait| {
            if let Some(wait) = wait {
                wait.patience = wait.patience.min(PATIENCE);
            }
        });
    }

    /// What is being done takes long: it is time to ask.
    pub(super) fn nudge(&self) {
        self.nudge.notify_waiters();
    }

    pub(super) fn nobody_waits(&self) {
        self.wait.send_if_modified(|wait| wait.take().is_some());
    }

    /// Whether nothing can be committed now, so that it need not be tried.
    pub(super) fn is_one_late(&self) -> bool {
        let since = |place: &Place| place.owes.get().map_or(Duration::MAX, |(since, _)| since);
        self.places.iter().any(|place| self.matters(place) && self.now().saturating_sub(since(place)) >= SOON)
    }

    /// How long who waits now still does so for who does not answer.
    pub(super) fn patience(&self) -> Duration {
        self.wait.borrow().map_or(LONG_PATIENCE, |wait| wait.patience)
    }

    /// Who waits, as soon as somebody does.
    pub(super) async fn awaited(&self) -> Wait {
        let mut wait = self.wait.subscribe();
        loop {
            if let Some(wait) = *wait.borrow_and_update() {
                return wait;
            }
            // Who could say so is here.
            let _ = wait.changed().await;
        }
    }

    /// Asks them, and tells of who is late. Each owes one answer at most, however long it takes.
    pub(super) async fn watch(&self) -> Infallible {
        join_all(self.places.iter().map(|place| self.watch_one(place))).await;
        std::future::pending().await
    }

    async fn watch_one(&self, place: &Place) -> Infallible {
        let (mut wait, mut pause) = (self.wait.subscribe(), BEAT);
        loop {
            let before = place.motion();
            tokio::select! {
                () = tokio::time::sleep(pause) => {}
                () = self.nudge.notified() => {}
                // Somebody has begun to wait. Who could say so is here.
                _ = wait.changed() => tokio::time::sleep(BEAT).await,
            }
            pause = if wait.borrow_and_update().is_some() { PACE } else { REST };
            if !self.matters(place) {
                continue;
            }
            let at = place.path.clone();
            let looked = blocking(move || {
                places::look(&at);
                Ok(())
            });
            self.ask(place, false, looked).await;
            // One that can be read may yet be frozen. Where nothing is written it is not tried.
            let is_stuck = |now: Motion, then: Motion| now.is_sending_since(then) && !now.has_taken_since(then);
            if place.motion().zip(before).is_some_and(|(now, before)| is_stuck(now, before)) {
                let at = place.path.clone();
                self.ask(place, true, blocking(move || takes_a_file(&at).map(drop))).await;
            }
        }
    }

    /// Whether it is of any use now.
    fn matters(&self, place: &Place) -> bool {
        let is_copied = self.wait.borrow().is_some_and(|wait| wait.what == COPY);
        is_copied == (place.kind == Kind::Model)
    }

    async fn ask(&self, place: &Place, is_write: bool, answer: impl Future) {
        tokio::pin!(answer);
        let (asked, mut last) = (self.now(), place.motion());
        place.owes.set(Some((asked, is_write)));
        let mut told: Option<Option<&str>> = None;
        while tokio::time::timeout(MOMENT, &mut answer).await.is_err() {
            let (now, motion) = (self.now(), place.motion());
            // It answers late, as it has much to do.
            if motion.zip(last).is_some_and(|(now, last)| now.has_taken_since(last)) {
                last = motion;
                place.owes.set(Some((now, is_write)));
            }
            let wait = *self.wait.borrow();
            let is_late = place.owes.get().is_some_and(|(since, _)| now.saturating_sub(since) >= SOON);
            let is_news = told.is_none() || wait.is_some_and(|wait| told != Some(Some(wait.what)));
            if is_late && is_news && self.matters(place) {
                place.tell(is_write, wait);
                told = Some(wait.map(|wait| wait.what));
            }
        }
        place.owes.set(None);
        if told.is_some() {
            let seconds = self.now().saturating_sub(asked).as_secs();
            tracing::info!("{} answers again, after {seconds} s", place.called);
        }
    }

    /// Comes back when one of them has not answered for as long as who waits is patient.
    pub(super) async fn silence(&self) -> Silence {
        loop {
            let (wait, now) = (self.awaited().await, self.now());
            for place in self.places.iter().filter(|place| self.matters(place)) {
                let Some((since, is_write)) = place.owes.get() else { continue };
                let lasts = now.saturating_sub(since.max(wait.since));
                if lasts >= wait.patience_with(place) {
                    let has_not = if is_write { "taken anything" } else { "answered" };
                    let why = format!("{} has not {has_not} for {} s", place.called, lasts.as_secs());
                    return Silence { why, is_of_the_store: place.kind == Kind::Store };
                }
            }
            tokio::time::sleep(MOMENT).await;
        }
    }
}

impl Place {
    fn new(kind: Kind, path: PathBuf, called: &str, access: Option<Access>) -> Place {
        let called = format!("{called}{}", path.display());
        Place { kind, path, called, access, owes: Cell::new(None) }
    }

    /// `None`: it is no directory.
    fn of_store(kind: Kind, store: Option<&Address>, access: &Access) -> Option<Place> {
        match store? {
            Address::Directory(path) => Some(Place::new(kind, path.clone(), "file://", Some(access.clone()))),
            Address::Bucket(_) => None,
        }
    }

    fn motion(&self) -> Option<Motion> {
        self.access.as_ref().map(Access::motion)
    }

    fn tell(&self, is_write: bool, wait: Option<Wait>) {
        let does_not = if is_write { "take what is written" } else { "answer" };
        let so = wait.map_or("training goes on, and nothing is committed until it does".to_owned(), |wait| {
            format!("{} for at most {} s", wait.what, wait.patience_with(self).as_secs())
        });
        let code = if self.kind == Kind::Checkpoints { "checkpoint" } else { "store" };
        tracing::warn!(code, "{} does not {does_not}: {so}; see that its file system is well", self.called);
    }
}

#[cfg(test)]
mod tests {
    use std::rc::Rc;
    use std::sync::mpsc::channel;

    use bytes::Bytes;

    use super::super::{Checkpoints, tests::config};
    use super::*;
    use crate::edge::store::Store;

    fn places(place: &std::path::Path) -> Rc<Places> {
        let (mirror, hour) = (config(place), Duration::from_secs(3600));
        let checkpoints =
            Checkpoints { mirror, interval: hour, settle: hour, kept: None, alone: true, sibling: None, others: None };
        Rc::new(Places::of(&Keep { checkpoints: Some(checkpoints), model: None }, Clock::start()))
    }

    #[tokio::test]
    async fn who_waits_gives_up_one_that_does_not_answer_and_who_does_not_wait_never_does() {
        let dir = tempfile::tempdir().expect("temporary directory");
        let places = places(dir.path());
        let (held, holds) = channel::<()>();
        let owed = places.ask(&places.places[0], false, blocking(move || Ok(holds.recv().is_ok())));
        let short = Duration::from_millis(700);
        let silence = async {
            assert!(tokio::time::timeout(3 * short, places.silence()).await.is_err(), "nobody waits");
            places.awaits(COMMIT, short);
            let begun = places.now();
            let silence = places.silence().await;
            assert!(places.now() - begun >= short, "who begins to wait only now has not waited yet");
            silence
        };
        let silence = tokio::select! {
            silence = silence => silence,
            () = owed => unreachable!("it is held"),
        };
        assert!(silence.why.contains("checkpoints has not answered for") && !silence.is_of_the_store, "{silence:?}");
        drop(held);
    }

    #[tokio::test]
    async fn while_we_stand_still_ourselves_nobody_is_silent() {
        let dir = tempfile::tempdir().expect("temporary directory");
        let places = places(dir.path());
        places.awake.replace(Awake::new(2 * MOMENT));
        let (held, holds) = channel::<()>();
        let owed = places.ask(&places.places[0], false, blocking(move || Ok(holds.recv().is_ok())));
        let (clock, patience, still) = (Clock::start(), 4 * MOMENT, 6 * MOMENT);
        let silence = async {
            places.awaits(COMMIT, patience);
            let freeze = async {
                tokio::time::sleep(MOMENT / 2).await;
                std::thread::sleep(still);
            };
            futures_util::future::join(places.silence(), freeze).await;
        };
        tokio::select! {
            () = silence => {}
            () = owed => unreachable!("it is held"),
        }
        assert!(clock.now() >= patience + still, "it was given up for our own silence, after {:?}", clock.now());
        drop(held);
    }

    #[tokio::test]
    async fn what_failed_as_we_stood_still_is_done_again_and_nothing_else_is() {
        let dir = tempfile::tempdir().expect("temporary directory");
        let places = places(dir.path());
        places.awake.replace(Awake::new(MOMENT));
        let mut tries = 0;
        let failed = places.awake(async || {
            tries += 1;
            if tries == 1 {
                std::thread::sleep(2 * MOMENT);
            }
            Err::<(), _>(tries)
        });
        assert_eq!(failed.await, Err(2));
    }

    #[tokio::test]
    async fn a_store_that_answers_late_as_it_takes_what_is_written_is_not_given_up() {
        let dir = tempfile::tempdir().expect("temporary directory");
        let places = places(dir.path());
        let place = &places.places[1];
        let access = place.access.as_ref().expect("it is a store");
        let address = Address::Directory(place.path.clone());
        let store = Store::open(&address, true, access).await.expect("opens");
        places.awaits(COMMIT, 4 * MOMENT);
        let (held, holds) = channel::<()>();
        let owed = places.ask(place, false, blocking(move || Ok(holds.recv().is_ok())));
        let writes = async {
            for at in 0..10 {
                store.put(&format!("{at}.bin"), vec![Bytes::from_static(b"1")], 0).await.expect("writes");
                tokio::time::sleep(MOMENT).await;
            }
            places.now()
        };
        let silence = async { (places.silence().await, places.now()) };
        let then = tokio::select! {
            (written, (silence, given_up)) = futures_util::future::join(writes, silence) => {
                assert!(silence.is_of_the_store);
                (written, given_up)
            }
            () = owed => unreachable!("it is held"),
        };
        assert!(then.1 > then.0, "it was given up while it took what is written");
        drop(held);
    }
}
