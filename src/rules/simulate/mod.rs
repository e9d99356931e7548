//! A training platform on one machine: the replicas of a job, the faults and their times, the reaction of the platform, and
//! the report.
//!
//! [`Simulation::step`] decides everything; time is an argument. The variables of each platform are in its file of
//! `rules/cluster`. Deliberately absent: processes, sockets and directories, which are in `supervisor/simulate`.

pub mod account;
pub mod environment;
pub mod fault;
mod findings;
pub mod machine;
pub mod metadata;
mod page;
pub mod progress;
pub mod replica;
pub mod report;
pub mod seats;

use std::time::Duration;

pub use machine::{Action, Event, Simulation};

use crate::cluster::PLATFORMS;
use crate::cluster::seat::Seat;
use crate::cluster::written::{Notice, Simulated};
use fault::Fault;

/// The configuration of a simulation.
#[derive(Debug, Clone)]
pub struct Plan {
    /// The platform.
    pub platform: &'static Simulated,
    /// How preemptions are announced.
    pub notice_by: Notice,
    /// The replicas: chief, workers, parameter servers, evaluators.
    pub seats: Vec<Seat>,
    /// The faults.
    pub faults: Vec<Fault>,
    /// The time from a notice, or from the end of the job, to SIGKILL.
    pub notice: Duration,
    /// A replica that the platform has ended comes back without the content of its disk.
    pub lose_disk: bool,
    /// The time until a replica that has ended is started again.
    pub replace_after: Duration,
    /// The time limit of the job.
    pub limit: Duration,
}

/// Every platform that can be simulated.
pub fn platforms() -> impl Iterator<Item = &'static Simulated> {
    PLATFORMS.iter().filter_map(|platform| platform.simulated.as_ref())
}

/// The metadata servers of a platform's clouds, in the words of `--preemption`.
pub const CLOUDS: [&str; 3] = ["gce", "aws", "azure"];
