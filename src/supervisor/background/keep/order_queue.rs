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

/// How much longer the work may take after this order has arrived; `None`: without a limit.
type TimeAfterOrder = fn(&Order) -> Option<Duration>;

/// The work yields to no order.
pub(super) const TO_NONE: TimeAfterOrder = |_| None;
/// Work that only another attempt would need yields to the last commit.
pub(super) const TO_A_FLUSH: TimeAfterOrder = |order| matches!(order, Order::Flush(_)).then_some(Duration::ZERO);
/// A restore for the gang yields to the last commit, and to another survey, which ends the agreement.
pub(super) const TO_A_SURVEY: TimeAfterOrder =
    |order| matches!(order, Order::Flush(_) | Order::Survey(_)).then_some(Duration::ZERO);
/// The work yields to any order, because it can be done later; it gets a second to finish.
pub(super) const TO_ANY: TimeAfterOrder = |_| Some(Duration::from_secs(1));

/// Orders that wait for their turn.
pub(super) struct OrderQueue {
    clock: Clock,
    held: VecDeque<Order>,
    /// The deadline that an order set for the work in progress.
    deadline: Option<Duration>,
    pace: Option<Arc<Mutex<Pace>>>,
    /// Whether an order has announced a near end; shared with the work in progress.
    is_pressed: Rc<Cell<bool>>,
}

impl OrderQueue {
    /// An empty queue; `pace` is that of the commits.
    pub(super) fn new(clock: Clock, pace: Option<Arc<Mutex<Pace>>>, is_pressed: Rc<Cell<bool>>) -> OrderQueue {
        OrderQueue { clock, held: VecDeque::new(), deadline: None, pace, is_pressed }
    }

    /// The oldest order. Work that only another attempt would need is skipped if the last commit is queued.
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

    /// Whether the last commit is queued.
    pub(super) fn is_to_flush(&self) -> bool {
        self.held.iter().any(|order| matches!(order, Order::Flush(_)))
    }

    /// Whether no order is queued and no deadline was set.
    pub(super) fn is_idle(&self) -> bool {
        self.held.is_empty() && self.deadline.is_none()
    }

    /// Sets whether no trainer runs now, so that the bandwidth limit does not apply.
    pub(super) fn rest(&self, is_off: bool) {
        if let Some(pace) = &self.pace {
            pace.lock().unwrap_or_else(PoisonError::into_inner).rest(is_off);
        }
    }

    /// Runs the work, and queues the orders that arrive meanwhile. `None`: the work was cut off. It is cut off at the deadline
    /// of the last commit, some time after an order that it `yields` to, and when the supervisor has ended.
    pub(super) async fn during<T>(
        &mut self,
        orders: &mut UnboundedReceiver<Order>,
        yields: TimeAfterOrder,
        work: impl Future<Output = T>,
    ) -> Option<T> {
        let mut work = Box::pin(work);
        let mut by: Option<Duration> = None;
        loop {
            let left = by.map(|by| by.saturating_sub(self.clock.now()));
            tokio::select! {
                biased;
                done = &mut work => return Some(done),
                order = orders.recv() => by = [by, self.take(order?, yields)].into_iter().flatten().min(),
                () = tokio::time::sleep(left.unwrap_or_default()), if left.is_some() => return None,
            }
        }
    }

    /// Queues the order. Returns the new deadline of the work in progress.
    fn take(&mut self, order: Order, yields: TimeAfterOrder) -> Option<Duration> {
        // From now on commits ignore the bandwidth limit.
        let is_urgent =
            matches!(order, Order::SetCommitDeadline(_) | Order::Flush(_) | Order::CommitSoon { notice: true });
        if let Some(pace) = self.pace.as_ref().filter(|_| is_urgent) {
            pace.lock().unwrap_or_else(PoisonError::into_inner).remove_limit();
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
    async fn the_last_commit_skips_work_for_another_attempt_and_keeps_the_first_deadline() {
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
            come.iter().for_each(|order| orders.send(*order).expect("the queue is open"));
            drop(orders);
            assert_eq!(queue.during(&mut received, TO_NONE, pending::<()>()).await, None);
            let left: Vec<Order> = std::iter::from_fn(|| queue.next()).collect();
            assert_eq!(format!("{left:?}"), expected);
        }
    }

    #[tokio::test]
    async fn a_task_that_yields_to_an_order_is_cancelled_and_another_continues() {
        for (yields, is_through) in [(TO_NONE, true), (TO_A_FLUSH, false)] {
            let (orders, mut received) = unbounded_channel();
            let mut queue = OrderQueue::new(Clock::start(), None, Rc::default());
            orders.send(Order::Flush(None)).expect("the queue is open");
            let work = tokio::time::sleep(Duration::from_millis(50));
            assert_eq!(queue.during(&mut received, yields, work).await.is_some(), is_through);
        }
    }
}
