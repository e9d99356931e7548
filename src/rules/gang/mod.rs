//! The gang: the replicas of a job stop, agree on a step, and start together.
//!
//! One agent is the leader, the agent of node rank 0. Each replica's agent is a member and holds one connection to the
//! leader; the leader's own replica is a member over a link inside the process. Membership is static, because the platform
//! gave it, so unanimity replaces election: a generation starts only when every required seat has joined, has proven that
//! its process tree is empty, and has restored the agreed step.
//!
//! Both sides are state machines: `Member::step(now, event)` and `Leader::step(now, event)` return actions. `now` is the
//! agent's own monotonic clock. Nothing here opens a socket, reads a clock or starts a process.
//!
//! A peer can stop a trainer, start it again, or choose a step that this node can restore itself. No command, path,
//! environment or exit code comes from a peer.

pub mod claim;
pub mod decisions;
pub mod leader;
pub mod member;
pub mod place;
pub mod protocol;
pub mod seat;
pub mod view;

#[cfg(test)]
mod model_check;
#[cfg(test)]
mod simulation;

use std::time::Duration;

pub use decisions::{agreement, budget, first_failure, hang};
pub use protocol::{handshake, message, unproven, wire};

/// A common start of all replicas. Never reused within a job.
pub type Generation = u64;

/// Times of the protocol. The leader's hold for all; it sends the lease in its welcome.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Timing {
    /// A member that the leader has not heard for this long is gone; a member that was not answered for this long kills
    /// its trainer.
    pub lease: Duration,
    /// Between two beats of a member.
    pub beat: Duration,
    /// The same incarnation may come back within this time after its connection closed.
    pub return_grace: Duration,
    /// The leader waits this long for earlier deaths before it names the first failure.
    pub naming: Duration,
    /// A trainer that is halted gets SIGTERM, and after this time SIGKILL.
    pub stop_grace: Duration,
    /// The limit for waiting for seats, at the start and after a loss.
    pub wait: Duration,
    /// Workers may end by themselves for this long after the chief finished.
    pub finish_grace: Duration,
    /// Evaluators may work on for this long after the chief finished.
    pub evaluator_grace: Duration,
}

/// What is known of the gang at the end of a job.
#[derive(Debug, Clone)]
pub struct Summary {
    /// The newest generation.
    pub generation: Generation,
    /// Required seats.
    pub members: usize,
    /// The first failure of the last halt.
    pub first: Option<message::FirstFailure>,
}

impl Default for Timing {
    fn default() -> Timing {
        Timing {
            lease: Duration::from_secs(20),
            beat: Duration::from_secs(2),
            return_grace: Duration::from_millis(500),
            naming: Duration::from_millis(500),
            stop_grace: Duration::from_millis(500),
            wait: Duration::from_secs(3600),
            finish_grace: Duration::from_secs(60),
            evaluator_grace: Duration::from_secs(600),
        }
    }
}
