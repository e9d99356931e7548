//! Orders that come while something else is being done, and what they do to it.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::mpsc::UnboundedReceiver;
use tokio::sync::oneshot;

use super::super::background::Order;
use super::doubt::CutOff;
use super::vigil::Vigil;
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

/// Orders that come while something is being done.
pub(super) struct Inbox {
    clock: Clock,
    held: VecDeque<Order>,
    /// What was found out of a store that the last commit waits for.
    silent: Option<String>,
    pace: Option<Arc<Mutex<Pace>>>,
    cut_off: Arc<CutOff>,
}

impl Inbox {
    /// An empty one; `pace` and `cut_off` are the commits' own.
    pub(super) fn new(clock: Clock, pace: Option<Arc<Mutex<Pace>>>, cut_off: Arc<CutOff>) -> Inbox {
        Inbox { clock, held: VecDeque::new(), silent: None, pace, cut_off }
    }

    /// The order that has waited longest.
    pub(super) fn next(&mut self) -> Option<Order> {
        self.held.pop_front()
    }

    /// What to say of the store, where a commit was cut off for its silence.
    pub(super) fn silent(&mut self) -> Option<String> {
        self.silent.take()
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

    /// Whether an order waits.
    pub(super) fn has_any(&self) -> bool {
        !self.held.is_empty()
    }

    /// Does it, keeping what comes meanwhile for later; cut off (`None`) where an order says by when the last commit must
    /// be through, so long after an order that it `yields` to, where one waits for a store that the `vigil` finds silent, or when nobody
    /// is left to give orders.
    pub(super) async fn during<T>(
        &mut self,
        orders: &mut UnboundedReceiver<Order>,
        yields: Yields,
        vigil: Option<Vigil>,
        deed: impl Future<Output = T>,
    ) -> Option<T> {
        tokio::pin!(deed);
        let mut by: Option<Duration> = None;
        let (flush, flushes) = oneshot::channel();
        let mut flush = Some(flush);
        let silence = async {
            match (vigil, flushes.await) {
                (Some(vigil), Ok(by)) => vigil.silence(by).await,
                _ => std::future::pending().await,
            }
        };
        tokio::pin!(silence);
        loop {
            let left = by.map(|by| by.saturating_sub(self.clock.now()));
            tokio::select! {
                biased;
                done = &mut deed => return Some(done),
                order = orders.recv() => {
                    let order = order?;
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
                    let yielded = yields(&order).map(|more| self.clock.now() + more);
                    let limit = match order {
                        Order::Hurry(by) => Some(by),
                        Order::Flush(by) => {
                            let _ = flush.take().map(|flush| flush.send(by));
                            by
                        }
                        _ => None,
                    };
                    by = [by, limit, yielded].into_iter().flatten().min();
                    if !matches!(order, Order::Hurry(_)) {
                        self.held.push_back(order);
                    }
                }
                why = &mut silence => {
                    self.silent = Some(why);
                    return None;
                }
                () = tokio::time::sleep(left.unwrap_or_default()), if left.is_some() => return None,
            }
        }
    }
}
