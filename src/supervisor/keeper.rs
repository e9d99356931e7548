//! Keeps the checkpoints of a run: restores at the start, commits what is new while training goes on, commits the last.
//! It runs on the background thread; what to do with its news is the machine's to decide. How it is done is in the files
//! of `keeper/`. A build without stores has `keeper_without_store.rs` in this file's place.

mod again;
mod archive;
pub mod audit;
mod budget;
mod chief;
mod claim;
pub mod commit;
mod config;
mod doubt;
mod fall_back;
mod fetch;
mod flush;
pub mod foresight;
mod guard;
mod in_place;
mod inbox;
mod known;
mod lineage;
mod look;
mod made;
pub mod mirror;
mod model;
mod names;
mod nook;
mod pieces;
mod pins;
mod place;
mod places;
mod remarks;
mod rest;
pub mod restore;
pub mod retention;
mod send;
pub mod sibling;
mod sums;
pub mod survey;
mod telling;
mod torn;
pub mod transfer;
mod unrestored;
mod vigil;
mod wanted;

use std::rc::Rc;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::mpsc::UnboundedReceiver;

use super::background::{Order, Teller};
use crate::edge::clock::Clock;
use crate::rules::checkpoint::names::Attempt;
use crate::rules::exit;
use crate::rules::job::{Event, Flushed};
use crate::rules::status::sibling::From;
use commit::Outcome;
use doubt::CutOff;
use inbox::{Haste, Inbox, TO_A_FLUSH, TO_ANY, TO_NONE};
use mirror::{Mirror, MirrorConfig, MirrorError};
pub use model::LeftModel;
use model::{publish, words};
use places::{ATTEMPT, COPY, Places, RESTORE, Silence};
use send::Stop;
use sibling::{Others, SEARCH};
use transfer::log_lines;
use vigil::{LONG_PATIENCE, Seen};
pub use wanted::{Checkpoints, Keep};

/// What was not complete at so many looks in a row is not being written.
const STALE_LOOKS: u32 = 10;
/// Between two words of progress to the supervisor.
const PROGRESS_PAUSE: Duration = Duration::from_millis(500);

/// Under a notice: how long a checkpoint must have lain unchanged, and between two looks.
const NOTICE_SETTLE: Duration = Duration::from_millis(500);
const NOTICE_INTERVAL: Duration = Duration::from_secs(1);
/// A complaint is repeated when the store is twice as far behind as when it was made, from here on.
const SAID_AGAIN: Duration = Duration::from_secs(120);
/// How long retention may keep the next look waiting, and the end of a job that is done.
const TURN: Duration = Duration::from_secs(10);
const LAST_TURN: Duration = Duration::from_secs(60);
/// Between two looks after a warning that leaves more time.
const WARNED_INTERVAL: Duration = Duration::from_secs(5);

/// What to do about a place that does not answer.
const WELL: &str = "see that its file system is well and can be reached from here, then start again";

/// What came of the commit after a crash.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Saved {
    Done,
    StoreIsAway,
}

struct Keeper {
    checkpoints: Option<Checkpoints>,
    model: Option<LeftModel>,
    settle: Duration,
    interval: Duration,
    mirror: Option<Mirror>,
    cut_off: Arc<CutOff>,
    /// See [`Checkpoints::alone`].
    alone: bool,
    haste: Arc<Haste>,
    teller: Teller,
    clock: Clock,
    /// The last complaint and how far behind the store was, so that a store that stays away is one line now and then and
    /// not one each interval.
    said: (String, Duration),
    /// What the checkpoints were said to be.
    taken_for: &'static str,
    /// Why the newest checkpoint was not taken, and at how many looks in a row.
    passed: (String, u32),
    /// What was seen of the store since it is waited for.
    seen: Arc<Mutex<Seen>>,
    places: Rc<Places>,
    others: Option<Others>,
    /// At the end.
    waits_for_others: bool,
}

impl Keeper {
    fn new(keep: Keep, teller: Teller, clock: Clock) -> Keeper {
        let places = Rc::new(Places::of(&keep, clock));
        let Keep { checkpoints, model } = keep;
        let (settle, interval) = checkpoints.as_ref().map_or(Default::default(), |c| (c.settle, c.interval));
        Keeper {
            others: checkpoints.as_ref().and_then(|c| c.others.clone()),
            waits_for_others: true,
            checkpoints,
            model,
            settle,
            interval,
            mirror: None,
            cut_off: Arc::default(),
            alone: false,
            haste: Arc::default(),
            teller,
            clock,
            said: Default::default(),
            taken_for: "",
            passed: Default::default(),
            seen: Arc::default(),
            places,
        }
    }

    async fn work(mut self, mut orders: UnboundedReceiver<Order>) {
        let mut pause = self.interval;
        let mut is_training = false;
        let pace = self.checkpoints.as_ref().map(|c| Arc::clone(&c.mirror.pace));
        let (cut_off, haste) = (Arc::clone(&self.cut_off), Arc::clone(&self.haste));
        let mut inbox = Inbox::new(self.clock, pace, cut_off, haste, Rc::clone(&self.places));
        loop {
            let order = if let Some(order) = inbox.next() {
                Some(order)
            } else if is_training {
                self.places.nobody_waits();
                tokio::select! {
                    biased;
                    order = orders.recv() => order,
                    _ = inbox.watched(tokio::time::sleep(pause)) => {
                        if self.places.is_one_late() {
                            continue;
                        }
                        let vigil = self.vigil();
                        let looked = inbox.during(&mut orders, TO_NONE, vigil, self.look()).await;
                        pause = looked.unwrap_or(self.interval);
                        if inbox.is_idle() {
                            inbox.during(&mut orders, TO_ANY, None, self.retire(TURN, false)).await;
                        }
                        continue;
                    }
                }
            } else {
                self.places.nobody_waits();
                orders.recv().await
            };
            match order {
                None => return,
                Some(Order::Hasten { notice }) => {
                    self.hasten(notice);
                    pause = Duration::ZERO;
                }
                Some(Order::Doubt(at_ns, most)) => {
                    self.cut_off.note(at_ns);
                    inbox.during(&mut orders, TO_NONE, None, self.doubt(most)).await;
                }
                Some(Order::WaitForNobody) => self.waits_for_others = false,
                // What was to be through earlier is through already.
                Some(Order::Hurry(_)) => {}
                Some(Order::Restore) => {
                    is_training = self.restore(&mut inbox).await;
                    pause = self.interval;
                }
                Some(Order::Refresh) => self.refresh(&mut inbox, &mut orders).await,
                Some(Order::FallBack) => {
                    self.places.awaits(RESTORE, LONG_PATIENCE);
                    inbox.during(&mut orders, TO_A_FLUSH, None, self.fall_back()).await;
                    self.tell_silence(&mut inbox);
                }
                Some(Order::Publish) => {
                    self.places.awaits(COPY, LONG_PATIENCE);
                    let published = inbox.during(&mut orders, TO_NONE, None, self.publish()).await;
                    let published = published.or_else(|| {
                        let (model, silence) = (self.model.as_ref()?, inbox.silent()?);
                        Some(Ok(Flushed::Failed(model.kept_waiting(&silence.why))))
                    });
                    self.tell_published(published);
                }
                Some(Order::Flush(by)) => {
                    is_training = false;
                    self.flush_and_tidy(by, &mut inbox, &mut orders).await;
                }
            }
        }
    }

    /// Commits what a crash left and finds where the next attempt goes on. Cut off, it has no answer; a flush is next then.
    async fn refresh(&mut self, inbox: &mut Inbox, orders: &mut UnboundedReceiver<Order>) {
        inbox.rest(true);
        self.places.awaits(ATTEMPT, LONG_PATIENCE);
        let saved = if inbox.is_cut_off() {
            None
        } else {
            let vigil = self.vigil();
            inbox.during(orders, TO_NONE, vigil, self.save_what_is_left()).await
        };
        // What is here will do, if that answers.
        let saved = saved.unwrap_or_else(|| {
            let silence = inbox.silent_if(|silence| silence.is_of_the_store)?;
            self.complain(format!(
                "{}; what the attempt left is not committed yet; see that its file system is well",
                silence.why
            ));
            Some(Saved::StoreIsAway)
        });
        if let Some(saved) = saved.filter(|_| !inbox.is_to_flush()) {
            // It may need the store all the same.
            self.places.nobody_waits();
            self.places.awaits(RESTORE, LONG_PATIENCE);
            inbox.during(orders, TO_A_FLUSH, None, self.find_newest(saved)).await;
        }
        self.tell_silence(inbox);
        inbox.rest(false);
    }

    /// No attempt can go on from what does not answer. The last commit, if that is next, says so itself.
    fn tell_silence(&mut self, inbox: &mut Inbox) {
        if let Some(silence) = inbox.silent_if(|_| true) {
            let detail = format!("{}; no further attempt can go on from there; {WELL}", silence.why);
            self.teller.tell(Event::NotRestored { code: exit::STORE, detail });
        }
    }

    async fn doubt(&mut self, most: Duration) {
        let Some(mirror) = &mut self.mirror else { return };
        if let Err(error) = mirror.doubt(self.settle, most).await {
            mirror.note(format!(
                "what the command was writing in {} when it was cut off cannot be looked at: {error}; half a checkpoint may be taken for a whole one; see that the directory can be read",
                mirror.directory().display()
            ));
        }
        self.tell_notes();
    }

    fn hasten(&mut self, notice: bool) {
        if notice {
            if let Some(mirror) = &self.mirror {
                mirror.config.pace.lock().unwrap_or_else(PoisonError::into_inner).lift();
            }
            self.settle = self.settle.min(NOTICE_SETTLE);
            self.interval = self.interval.min(NOTICE_INTERVAL);
        } else {
            self.interval = self.interval.min(WARNED_INTERVAL);
        }
    }

    /// Opens both sides and restores. Whether there is a store to commit to from now on.
    async fn restore(&mut self, inbox: &mut Inbox) -> bool {
        self.places.awaits(RESTORE, LONG_PATIENCE);
        let Some(checkpoints) = self.checkpoints.take() else {
            self.tell_restored(None);
            return false;
        };
        let places = Rc::clone(&self.places);
        let restored = async {
            let mut config = checkpoints.mirror;
            let beside = match &checkpoints.sibling {
                Some(sibling) => sibling.restored(SEARCH).await?.map(|first| (sibling, first)),
                None => None,
            };
            if let Some((_, (node, _))) = beside {
                config = MirrorConfig { node, store: None, claim: false, ..config };
                self.teller.tell(Event::KeptBeside);
            }
            let has_store = config.store.is_some();
            let mut mirror = places.awake(async || Mirror::open(config.clone()).await).await?;
            let was_ours = mirror.lineage.is_some() && checkpoints.alone;
            if !has_store {
                mirror.make_directory().await;
            }
            if checkpoints.alone {
                mirror.remove_what_is_gone();
            }
            if let Some((sibling, _)) = &beside {
                mirror.heed(&sibling.store).await;
            }
            mirror.cut_off = Arc::clone(&self.cut_off);
            mirror.haste = Arc::clone(&self.haste);
            mirror.is_patient = true;
            mirror.hear_restore(Box::new(|| Box::new(log_lines("restoring the checkpoint"))));
            mirror.hear_behind(self.behind());
            let teller = self.teller.clone();
            mirror.hear_found(Box::new(move |committed| teller.tell(Event::Found { committed })));
            let from = beside.map_or(From::Newest, |(_, (_, from))| from);
            let resume = places.awake(async || mirror.restore_like(&from).await).await?;
            if was_ours {
                mirror.clear_the_way(resume.as_ref()).await;
            }
            self.alone = checkpoints.alone;
            Ok::<_, MirrorError>((mirror, resume, has_store))
        };
        let restored = inbox.watched(restored).await.unwrap_or_else(|Silence { why, .. }| {
            Err(MirrorError::store(format!("{why}; nothing was started; {WELL}")))
        });
        match restored {
            Ok((mirror, resume, has_store)) => {
                if let Some(number) = mirror.incarnation() {
                    self.teller.incarnation(number);
                }
                self.mirror = Some(mirror);
                self.tell_notes();
                self.tell_restored(resume);
                has_store
            }
            Err(MirrorError { message, code }) => {
                self.teller.tell(Event::NotRestored { code, detail: message });
                false
            }
        }
    }

    /// The tree is empty after a crash: what is complete is committed. `None`: there is no going on.
    async fn save_what_is_left(&mut self) -> Option<Saved> {
        if let Some(mirror) = &self.mirror
            && !mirror.answers().await
        {
            return Some(Saved::StoreIsAway);
        }
        let settle = self.settle_for_others().await;
        match self.commit(settle, None).await {
            Some(Outcome::Fenced { by }) => {
                self.tell_fenced(&by.to_string());
                None
            }
            Some(Outcome::Failed { message, is_away, .. }) => {
                self.complain(message);
                Some(if is_away { Saved::StoreIsAway } else { Saved::Done })
            }
            Some(Outcome::OutOfTime { why }) => {
                self.complain(why);
                Some(Saved::Done)
            }
            _ => Some(Saved::Done),
        }
    }

    /// Where the next attempt goes on: the newest checkpoint, fetched from the store again where the crash left nothing
    /// whole.
    async fn find_newest(&mut self, saved: Saved) {
        let Some(mirror) = &mut self.mirror else { return self.tell_restored(None) };
        let local = if saved == Saved::StoreIsAway { mirror.restore_without_store().await } else { None };
        let restored = match local {
            Some(resume) => Ok(Some(resume)),
            None => self.places.awake(async || mirror.restore().await).await,
        };
        if let (Ok(resume), true) = (&restored, self.alone) {
            mirror.clear_the_way(resume.as_ref()).await;
        }
        self.tell_found(restored);
    }

    /// The newest checkpoint does the trainer no good: the next older one is put in place.
    async fn fall_back(&mut self) {
        let Some(mirror) = &mut self.mirror else { return self.tell_restored(None) };
        let restored = mirror.fall_back().await;
        self.tell_found(restored);
    }

    /// One look while training goes on. How long to wait for the next.
    async fn look(&mut self) -> Duration {
        match self.commit(Some(self.settle), None).await {
            Some(Outcome::Committed { .. }) => self.said = Default::default(),
            Some(Outcome::Fenced { by }) => {
                self.tell_fenced(&by.to_string());
                self.tell_notes();
                // Every look would find the same.
                return Duration::MAX;
            }
            Some(Outcome::Failed { message, .. } | Outcome::OutOfTime { why: message }) => self.complain(message),
            // Not settled yet: there is no need to wait for a whole interval.
            Some(Outcome::Changed { why }) => {
                tracing::debug!("a checkpoint is being written: {why}");
                self.tell_restless();
                return self.settle.min(self.interval).max(Duration::from_millis(50));
            }
            Some(Outcome::UpToDate { .. } | Outcome::NothingComplete { .. }) | None => {}
        }
        self.tell_notes();
        self.interval
    }

    /// What retention lets go of since the last commit, for so long. A commit that is owed does not wait for it.
    async fn retire(&mut self, turn: Duration, is_last: bool) {
        if let Some(mirror) = &mut self.mirror {
            mirror.retire(turn, is_last).await;
        }
        self.tell_notes();
    }

    /// Copies what the finished job leaves. Errors: the newer run that has taken over.
    async fn publish(&self) -> Result<Flushed, Attempt> {
        let Some(model) = &self.model else { return Ok(Flushed::Done { step: None }) };
        let copy = async || publish(model, self.mirror.as_ref(), &self.progress("copying the model")).await;
        match self.places.awake(copy).await {
            Ok(()) => Ok(Flushed::Done { step: None }),
            Err(Stop::Fenced(by)) => Err(by),
            Err(stop) => Ok(Flushed::Failed(words(stop))),
        }
    }

    async fn commit(&mut self, settle: Option<Duration>, left: Option<Duration>) -> Option<Outcome> {
        let progress = self.progress("committing the checkpoint");
        let outcome = self.mirror.as_mut()?.commit_newest(settle, left, &progress).await;
        self.tell_look(settle.is_none());
        self.tell_outcome(&outcome);
        // One before it may have been found to stand.
        if let (Outcome::OutOfTime { .. }, Some((committed, _))) = (&outcome, self.mirror.as_ref()?.committed()) {
            self.teller.tell(Event::Found { committed });
        }
        Some(outcome)
    }
}

#[cfg(test)]
mod tests;
