//! The history of a run in bounded memory: the account of its time, its timeline and the curves of its metrics.

mod curves;
mod pace;
mod timeline;

pub use curves::{Curve, Curves, MOST_CURVES, Point};
pub use pace::Pace;
pub use timeline::{Attempt, Timeline};

use crate::job::goodput::Goodput;
use crate::life::account::Account;
use crate::metric::ledger::Ledger;

/// The history.
#[derive(Debug, Clone, Default)]
pub struct History {
    /// The time of the run by cause.
    pub goodput: Goodput,
    /// What the run's object in the store tells besides.
    pub account: Account,
    /// Attempts, commits and marks.
    pub timeline: Timeline,
    /// Metrics.
    pub curves: Curves,
    /// The present step.
    pub pace: Pace,
    /// The training's last step, as the trainer reported it.
    pub total_steps: Option<u64>,
    /// The metrics that processes of the job reported themselves.
    pub reported: Ledger,
}
