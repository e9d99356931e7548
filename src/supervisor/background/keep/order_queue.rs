//! A queue of the orders that arrive during other work, and their effect on that work.

use std::cell::Cell;
use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::mpsc::UnboundedReceiver;

use crate::edge::clock::Clock;
use crate::rules::store::pace::Pace;
use crate::supervisor::background::orders::Order;

/// How much longer something may take once this order has come; `None`: as long as it does.
pub(super) type Yields = fn(&Order) -> Option<Duration>;

/// To no order.
pub(super) const TO_NONE: Yields = |_| None;
/// What only another attempt would need, to the last commit.
pub(super) const TO_A_FLUSH: Yields = |order| matches!(order, Order::Flush(_)).then_some(Duration::ZERO);
/// A restore for the gang, to the last commit, and to another survey: the agreement is over then.
pub(super) const TO_A_SURVEY: Yields =
    |order| matches!(order, Order::Flush(_) | Order::Survey(_)).then_some(Duration::ZERO);
/// Any order stops it: it can be done later, but gets a second to finish.
pub(super) const TO_ANY: Yields = |_| Some(Duration::from_secs(1));

/// Orders that wait for their turn.
pub(super) struct OrderQueue {
    clock: Clock,
    held: VecDeque<Order>,
    /// The deadline that an order set for the work in progress.
    deadline: Option<Duration>,
    pace: Option<Arc<Mutex<Pace>>>,
    /// Whether an order says that the end is near; shared with what is under way.
    is_pressed: Rc<Cell<bool>>,
}

impl OrderQueue {
    /// An empty one; `pace` is the commits' own.
    pub(super) fn new(clock: Clock, pace: Option<Arc<Mutex<Pace>>>, is_pressed: Rc<Cell<bool>>) -> OrderQueue {
        OrderQueue { clock, held: VecDeque::new(), deadline: None, pace, is_pressed }
    }

    /// The order that has waited longest. What only another attempt would need is not done before the last commit.
    pub(super) fn next(&mut self) -> Option<Order> {
        if self.is_to_flush() {
            self.held.retain(|order| {
                !matches!(order, Order::Refresh | Order::FallBack | Order::Survey(_) | Order::RestoreAgreed(_))
            });
        }
        if self.held.iter().any(|order| matches!(order, Order::Survey(_))) {
            self.held.retain(|order| !matches!(order, Order::RestoreAgreed(_)));
        }
        match self.held.pop_front()? {
            Order::Flush(by) => Some(Order::Flush([by, self.deadline].into_iter().flatten().min())),
            order => Some(order),
        }
    }

    /// Whether the last commit waits to be asked for.
    pub(super) fn is_to_flush(&self) -> bool {
        self.held.iter().any(|order| matches!(order, Order::Flush(_)))
    }

    /// Whether no order waits, nor a deadline was set.
    pub(super) fn is_idle(&self) -> bool {
        self.held.is_empty() && self.deadline.is_none()
    }

    /// Whether no trainer runs now, and the network need not be spared.
    pub(super) fn rest(&self, is_off: bool) {
        if let Some(pace) = &self.pace {
            pace.lock().unwrap_or_else(PoisonError::into_inner).rest(is_off);
        }
    }

    /// Runs the work, and keeps the orders that arrive meanwhile. `None`: it was cut off, because an order set the deadline
    /// of the last commit, because an order that it `yields` to arrived and that time passed, or because the supervisor is
    /// gone.
    pub(super) async fn during<T>(
        &mut self,
        orders: &mut UnboundedReceiver<Order>,
        yields: Yields,
        work: impl Future<Output = T>,
    ) -> Option<T> {
        let mut work = Box::pin(work);
        let mut by: Option<Duration> = None;
        loop {
            let left = by.map(|by| by.saturating_sub(self.clock.now()));
            tokio::select! {
                biased;
                done = &mut work => return Some(done),
                order = orders.recv() => by = [by, self.hear(order?, yields)].into_iter().flatten().min(),
                () = tokio::time::sleep(left.unwrap_or_default()), if left.is_some() => return None,
            }
        }
    }

    /// Keeps the order. Returns the new deadline of the work in progress.
    fn hear(&mut self, order: Order, yields: Yields) -> Option<Duration> {
        // From now on a commit has better things to do than to be considerate.
        let is_urgent =
            matches!(order, Order::SetCommitDeadline(_) | Order::Flush(_) | Order::CommitSoon { notice: true });
        if let Some(pace) = self.pace.as_ref().filter(|_| is_urgent) {
            pace.lock().unwrap_or_else(PoisonError::into_inner).lift();
        }
        if matches!(order, Order::SetCommitDeadline(_) | Order::Flush(Some(_)) | Order::CommitSoon { notice: true }) {
            self.is_pressed.set(true);
        }
        if matches!(order, Order::Refresh | Order::Survey(_)) {
            self.rest(true);
        }
        let yielded = yields(&order).map(|more| self.clock.now() + more);
        let limit = match order {
            Order::SetCommitDeadline(by) => {
                self.deadline = Some(by);
                return Some(by);
            }
            Order::Flush(by) => by,
            _ => None,
        };
        self.held.push_back(order);
        [limit, yielded].into_iter().flatten().min()
    }
}

#[cfg(test)]
mod tests {
    use std::future::pending;

    use tokio::sync::mpsc::unbounded_channel;

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[tokio::test]
    async fn the_last_commit_waits_for_nothing_that_only_another_attempt_would_need_and_keeps_the_first_deadline() {
        let cases: [(&[Order], &str); 5] = [
            (&[Order::MarkUnsure(SECOND), Order::Refresh, Order::Flush(None)], "[MarkUnsure(1s), Flush(None)]"),
            (&[Order::FallBack, Order::Flush(Some(SECOND))], "[Flush(Some(1s))]"),
            (&[Order::Refresh], "[Refresh]"),
            (&[Order::Flush(Some(3600 * SECOND)), Order::SetCommitDeadline(SECOND)], "[Flush(Some(1s))]"),
            (&[Order::SetCommitDeadline(SECOND), Order::Flush(None)], "[Flush(Some(1s))]"),
        ];
        for (come, expected) in cases {
            let (orders, mut received) = unbounded_channel();
            let mut queue = OrderQueue::new(Clock::start(), None, Rc::default());
            come.iter().for_each(|order| orders.send(*order).expect("is heard"));
            drop(orders);
            assert_eq!(queue.during(&mut received, TO_NONE, pending::<()>()).await, None);
            let left: Vec<Order> = std::iter::from_fn(|| queue.next()).collect();
            assert_eq!(format!("{left:?}"), expected);
        }
    }

    #[tokio::test]
    async fn a_task_that_yields_to_an_order_is_cancelled_and_another_goes_on() {
        for (yields, is_through) in [(TO_NONE, true), (TO_A_FLUSH, false)] {
            let (orders, mut received) = unbounded_channel();
            let mut queue = OrderQueue::new(Clock::start(), None, Rc::default());
            orders.send(Order::Flush(None)).expect("is heard");
            let work = tokio::time::sleep(Duration::from_millis(50));
            assert_eq!(queue.during(&mut received, yields, work).await.is_some(), is_through);
        }
    }
}
