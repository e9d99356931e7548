//! Orders that come while something else is being done, and what they do to it.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::mpsc::UnboundedReceiver;
use tokio::sync::watch;

use super::super::background::Order;
use super::NOTICE_SETTLE;
use super::doubt::CutOff;
use super::places::{ATTEMPT, BEAT, COMMIT, Places, RESTORE, Silence};
use super::vigil::{LONG_PATIENCE, Vigil, patience};
use crate::edge::clock::Clock;
use crate::rules::checkpoint::pace::Pace;

/// How much longer something may take once this order has come; `None`: as long as it does.
pub(super) type Yields = fn(&Order) -> Option<Duration>;

/// To no order.
pub(super) const TO_NONE: Yields = |_| None;
/// What only another attempt would need, to the last commit.
pub(super) const TO_A_FLUSH: Yields = |order| matches!(order, Order::Flush(_)).then_some(Duration::ZERO);
/// What can be done later; most often it is about to be through.
pub(super) const TO_ANY: Yields = |_| Some(Duration::from_secs(1));

/// How long a checkpoint is waited for to lie still, as orders come meanwhile.
#[derive(Debug)]
pub(super) struct Haste(watch::Sender<Duration>);

impl Default for Haste {
    fn default() -> Haste {
        Haste(watch::Sender::new(Duration::MAX))
    }
}

impl Haste {
    /// At most so long from now on.
    fn limit(&self, most: Duration) {
        self.0.send_modify(|so_far| *so_far = most.min(*so_far));
    }

    /// Whether somebody has asked for it.
    pub(super) fn is_asked(&self) -> bool {
        *self.0.borrow() < Duration::MAX
    }

    fn end(&self) {
        self.0.send_replace(Duration::MAX);
    }

    /// Whether nobody writes any more.
    pub(super) fn is_over(&self) -> bool {
        self.0.borrow().is_zero()
    }

    /// Comes back so long after something that is `age` old, or sooner where that is all the time there is.
    pub(super) async fn wait(&self, settle: Duration, age: impl Fn() -> Duration) {
        let mut most = self.0.subscribe();
        loop {
            let left = settle.min(*most.borrow_and_update()).saturating_sub(age());
            if left.is_zero() {
                return;
            }
            // Who could say so is here.
            let _ = tokio::time::timeout(left, most.changed()).await;
        }
    }
}

/// Orders that come while something is being done.
pub(super) struct Inbox {
    clock: Clock,
    held: VecDeque<Order>,
    /// By when all must be through, where that was said of what was under way.
    hurry: Option<Duration>,
    /// Who has kept somebody waiting for too long.
    silent: Option<Silence>,
    places: Rc<Places>,
    /// Asks them.
    watch: Pin<Box<dyn Future<Output = Infallible>>>,
    pace: Option<Arc<Mutex<Pace>>>,
    cut_off: Arc<CutOff>,
    haste: Arc<Haste>,
}

impl Inbox {
    /// An empty one; `pace`, `cut_off` and `haste` are the commits' own, as are the `places`.
    pub(super) fn new(
        clock: Clock,
        pace: Option<Arc<Mutex<Pace>>>,
        cut_off: Arc<CutOff>,
        haste: Arc<Haste>,
        places: Rc<Places>,
    ) -> Inbox {
        let asked = Rc::clone(&places);
        let watch = Box::pin(async move { asked.watch().await });
        Inbox { clock, held: VecDeque::new(), hurry: None, silent: None, places, watch, pace, cut_off, haste }
    }

    /// The order that has waited longest. What only another attempt would need is not done before the last commit.
    pub(super) fn next(&mut self) -> Option<Order> {
        if self.is_to_flush() {
            self.held.retain(|order| !matches!(order, Order::Refresh | Order::FallBack));
        }
        let Some(order) = self.held.pop_front() else {
            // Nobody is left to be told.
            self.silent = None;
            return None;
        };
        match order {
            Order::Flush(by) => Some(Order::Flush([by, self.hurry].into_iter().flatten().min())),
            order => Some(order),
        }
    }

    /// For whose silence something was cut off.
    pub(super) fn silent(&mut self) -> Option<Silence> {
        self.silent.take()
    }

    /// The same where it is such a one, and the last commit, which would tell of it, does not come next.
    pub(super) fn silent_if(&mut self, is_one: fn(&Silence) -> bool) -> Option<Silence> {
        let is_ours = !self.is_to_flush();
        self.silent.take_if(|silence| is_ours && is_one(silence))
    }

    /// Whether something was cut off for somebody's silence, and nobody was told yet.
    pub(super) fn is_cut_off(&self) -> bool {
        self.silent.is_some()
    }

    /// Does it, with an eye on the places. Errors: one of them keeps who waits waiting for too long.
    pub(super) async fn watched<T>(&mut self, deed: impl Future<Output = T>) -> Result<T, Silence> {
        tokio::select! {
            biased;
            done = deed => Ok(done),
            silence = self.places.silence() => Err(silence),
            never = &mut self.watch => match never {},
        }
    }

    /// Whether nobody trains now, and the network need not be spared.
    pub(super) fn rest(&self, is_off: bool) {
        if let Some(pace) = &self.pace {
            pace.lock().unwrap_or_else(PoisonError::into_inner).rest(is_off);
        }
    }

    /// Whether the last commit waits to be asked for.
    pub(super) fn is_to_flush(&self) -> bool {
        self.held.iter().any(|order| matches!(order, Order::Flush(_)))
    }

    /// Whether no order waits, nor hurry is asked for.
    pub(super) fn is_idle(&self) -> bool {
        self.held.is_empty() && self.hurry.is_none()
    }

    /// Does it, keeping what comes meanwhile for later; cut off (`None`) where an order says by when the last commit must
    /// be through, so long after an order that it `yields` to, where one waits for a place that does not answer or for a
    /// store that the `vigil` finds silent, or when nobody is left to give orders.
    pub(super) async fn during<T>(
        &mut self,
        orders: &mut UnboundedReceiver<Order>,
        yields: Yields,
        vigil: Option<Vigil>,
        deed: impl Future<Output = T>,
    ) -> Option<T> {
        let mut done = None;
        let deed = Box::pin(async { done = Some(deed.await) });
        self.during_it(orders, yields, vigil, deed).await;
        done
    }

    /// The same, once for all that is done.
    async fn during_it(
        &mut self,
        orders: &mut UnboundedReceiver<Order>,
        yields: Yields,
        vigil: Option<Vigil>,
        mut deed: Pin<Box<dyn Future<Output = ()> + '_>>,
    ) {
        self.haste.end();
        let mut by: Option<Duration> = None;
        let places = Rc::clone(&self.places);
        let stuck = async {
            match vigil {
                Some(vigil) => vigil.silence().await,
                None => std::future::pending().await,
            }
        };
        let nudge = async {
            tokio::time::sleep(BEAT).await;
            places.nudge();
            std::future::pending().await
        };
        let silence = async {
            tokio::select! {
                silence = stuck => silence,
                silence = places.silence() => silence,
                silence = nudge => silence,
            }
        };
        tokio::pin!(silence);
        loop {
            let left = by.map(|by| by.saturating_sub(self.clock.now()));
            tokio::select! {
                biased;
                () = &mut deed => return,
                order = orders.recv() => {
                    let Some(order) = order else { return };
                    // From now on a commit has better things to do than to be considerate.
                    let is_urgent = matches!(order, Order::Hurry(_) | Order::Flush(_) | Order::Hasten { notice: true });
                    if let Some(pace) = self.pace.as_ref().filter(|_| is_urgent) {
                        pace.lock().unwrap_or_else(PoisonError::into_inner).lift();
                    }
                    if matches!(order, Order::Refresh) {
                        self.rest(true);
                    }
                    if let Order::Doubt(at_ns, _) = order {
                        self.cut_off.note(at_ns);
                    }
                    match order {
                        Order::Hurry(_) | Order::Hasten { notice: true } => self.haste.limit(NOTICE_SETTLE),
                        Order::Restore | Order::Hasten { notice: false } => {}
                        // What the trainer has left is looked at anew.
                        _ => self.haste.limit(Duration::ZERO),
                    }
                    match order {
                        Order::Refresh => self.places.awaits(ATTEMPT, LONG_PATIENCE),
                        Order::FallBack => self.places.awaits(RESTORE, LONG_PATIENCE),
                        Order::Flush(by) => self.places.awaits(COMMIT, patience(by)),
                        Order::Hurry(_) | Order::Hasten { notice: true } => self.places.hurry(),
                        _ => {}
                    }
                    let yielded = yields(&order).map(|more| self.clock.now() + more);
                    let limit = match order {
                        Order::Hurry(by) => {
                            self.hurry = Some(by);
                            Some(by)
                        }
                        Order::Flush(by) => by,
                        _ => None,
                    };
                    by = [by, limit, yielded].into_iter().flatten().min();
                    if !matches!(order, Order::Hurry(_)) {
                        self.held.push_back(order);
                    }
                }
                why = &mut silence => {
                    self.silent = Some(why);
                    return;
                }
                never = &mut self.watch => match never {},
                () = tokio::time::sleep(left.unwrap_or_default()), if left.is_some() => return,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::pending;

    use tokio::sync::mpsc::unbounded_channel;

    use super::super::Keep;
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn inbox(haste: &Arc<Haste>) -> Inbox {
        let places = Rc::new(Places::of(&Keep { checkpoints: None, model: None }, Clock::start()));
        Inbox::new(Clock::start(), None, Arc::default(), Arc::clone(haste), places)
    }

    /// What is next after these orders came during something that takes for ever.
    async fn left_after(come: &[Order]) -> Vec<Order> {
        let (haste, (orders, mut received)) = (Arc::default(), unbounded_channel());
        let mut inbox = inbox(&haste);
        come.iter().for_each(|order| orders.send(*order).expect("is heard"));
        drop(orders);
        assert_eq!(inbox.during(&mut received, TO_NONE, None, pending::<()>()).await, None);
        std::iter::from_fn(|| inbox.next()).collect()
    }

    #[tokio::test]
    async fn the_last_commit_waits_for_nothing_that_only_another_attempt_would_need() {
        let left = left_after(&[Order::Doubt(0, SECOND), Order::Refresh, Order::Flush(None)]).await;
        assert!(matches!(left[..], [Order::Doubt(..), Order::Flush(None)]), "{left:?}");
        let left = left_after(&[Order::FallBack, Order::Flush(Some(SECOND))]).await;
        assert!(matches!(left[..], [Order::Flush(Some(SECOND))]), "{left:?}");
        assert!(matches!(left_after(&[Order::Refresh]).await[..], [Order::Refresh]));
    }

    #[tokio::test]
    async fn what_must_hurry_while_it_waits_hurries_when_it_begins() {
        for come in
            [[Order::Flush(Some(3600 * SECOND)), Order::Hurry(SECOND)], [Order::Hurry(SECOND), Order::Flush(None)]]
        {
            let left = left_after(&come).await;
            assert!(matches!(left[..], [Order::Flush(Some(SECOND))]), "{left:?}");
        }
    }

    #[tokio::test]
    async fn a_checkpoint_is_not_waited_for_to_lie_still_once_the_trainer_has_come_to_its_end() {
        for (order, is_over) in [
            (Order::Flush(None), true),
            (Order::Refresh, true),
            (Order::Doubt(0, SECOND), true),
            (Order::Hurry(3600 * SECOND), false),
            (Order::Hasten { notice: true }, false),
        ] {
            let (haste, (orders, mut received)) = (Arc::new(Haste::default()), unbounded_channel());
            let mut inbox = inbox(&haste);
            orders.send(order).expect("is heard");
            let begun = Clock::start();
            let still = haste.wait(3600 * SECOND, || begun.now());
            let through = tokio::time::timeout(20 * SECOND, inbox.during(&mut received, TO_NONE, None, still)).await;
            assert_eq!((through, haste.is_over()), (Ok(Some(())), is_over), "{order:?}");
            // What comes after it begins anew.
            inbox.during(&mut received, TO_NONE, None, async { assert!(!haste.is_over()) }).await;
        }
    }
}
