//! The events, actions and faults of a simulated job, and how it ends.

use std::time::Duration;

use serde_json::Value;

use crate::process::signal::Signal;
use crate::simulate::fault::{Fault, When};

/// An event.
#[derive(Debug)]
pub enum Event<'a> {
    /// The start.
    Begin,
    /// A time has come.
    Due,
    /// A replica printed a line.
    Line(usize, &'a str),
    /// The last process of a replica has ended: its exit code, and its verdict if it wrote one.
    Ended(usize, u8, Option<Value>),
    /// The user stops the job with this signal. A second signal kills at once.
    Stop(Signal),
}

/// An order to the supervisor.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// Start the replica. The number counts the restarts of the whole job.
    Start(usize, u32),
    /// Send its main process a signal.
    Signal(usize, Signal),
    /// Its metadata server announces the end after this time.
    Announce(usize, Duration),
    /// Kill all its processes.
    Kill(usize),
    /// Stop all its processes.
    Freeze(usize),
    /// Continue them.
    Thaw(usize),
    /// Stop the processes below its main process.
    Hang(usize),
    /// Its disk is replaced by an empty one.
    EmptyDisk(usize),
    /// Print this line for the user.
    Say(String),
    /// The job has ended and no process is left.
    Over,
}

/// How the job ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// The platform reports success.
    Succeeded,
    /// The platform reports a failure, with the reason.
    Failed(String),
    /// The user ended it with this signal.
    Interrupted(Signal),
}

/// A fault and its state.
#[derive(Debug, Clone)]
pub struct FaultRecord {
    /// The fault.
    pub fault: Fault,
    /// When it occurred; `None` before that.
    pub at: Option<Duration>,
    /// The replica had no processes at that time.
    pub is_missed: bool,
}

impl FaultRecord {
    /// When it occurs; `None` if it depends on a step or has occurred.
    pub(super) fn due(&self) -> Option<Duration> {
        match self.fault.when {
            When::At(at) if self.at.is_none() => Some(at),
            _ => None,
        }
    }
}
