//! The gang: the replicas of a job stop, agree on a step, and start together.
//!
//! The agent of node rank 0 is the leader. The agent of each replica is a member with one connection to the leader; the
//! leader's own replica is a member over a link inside the process. The platform defines the members, so unanimity replaces
//! election: a generation starts only when every required seat has joined, has reported an empty process tree, and has
//! restored the agreed step.
//!
//! Both sides are state machines: `Member::step(now, event)` and `Leader::step(now, event)` return actions. `now` is the
//! agent's own monotonic clock. Nothing here opens a socket, reads a clock or starts a process.
//!
//! A peer can stop a trainer, start it again, or choose a step that this node has offered. No command, path, environment
//! or exit code comes from a peer.

pub mod claim;
pub mod decisions;
pub mod leader;
pub mod member;
pub mod place;
pub mod protocol;
pub(crate) mod random;
pub mod view;

#[cfg(test)]
mod model_check;
#[cfg(test)]
mod simulation;

use std::time::Duration;

use serde::{Deserialize, Serialize};

pub use decisions::{agreement, budget, first_failure, hang};
pub use protocol::{beat, handshake, message, settings, unproven, wire};

/// A common start of all replicas. Never reused within a job.
pub type Generation = u64;

/// 128 random bits of one agent process, as 32 hex digits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Incarnation(#[serde(with = "hex128")] pub u128);

mod hex128 {
    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    pub(super) fn serialize<S: Serializer>(bits: &u128, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(&format!("{bits:032x}"))
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<u128, D::Error> {
        let text = String::deserialize(from)?;
        let bits = if text.len() == 32 { u128::from_str_radix(&text, 16).ok() } else { None };
        bits.ok_or_else(|| D::Error::custom("an incarnation is 32 hex digits"))
    }
}

/// The time for a trainer that had closed its connections before a halt to end by itself, so that its own end is known.
pub const ENDING: Duration = Duration::from_secs(5);

/// Times of the protocol. The leader's apply to all members; `Welcome` carries them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(default)]
pub struct Timing {
    /// The leader treats a member without a message for this time as lost. A member without an echo for this time kills its
    /// trainer.
    #[serde(with = "in_millis")]
    pub lease: Duration,
    /// The interval between two beats of a member.
    #[serde(with = "in_millis")]
    pub beat: Duration,
    /// An agent may reconnect within this time after its connection closed.
    #[serde(with = "in_millis")]
    pub return_grace: Duration,
    /// The leader waits this long for reports of earlier failures before it names the first failure.
    #[serde(with = "in_millis")]
    pub naming: Duration,
    /// The time from SIGTERM to SIGKILL when a trainer is halted.
    #[serde(with = "in_millis")]
    pub stop_grace: Duration,
    /// The limit for waiting for seats, at the start and after a loss.
    #[serde(with = "in_millis")]
    pub wait: Duration,
    /// How long workers may continue after the chief has finished.
    #[serde(with = "in_millis")]
    pub finish_grace: Duration,
    /// How long evaluators may continue after the chief has finished.
    #[serde(with = "in_millis")]
    pub evaluator_grace: Duration,
}

mod in_millis {
    use std::time::Duration;

    use serde::{Deserialize, Deserializer, Serializer};

    use super::message::millis;

    pub(super) fn serialize<S: Serializer>(time: &Duration, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_u64(millis(*time))
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Duration, D::Error> {
        u64::deserialize(from).map(Duration::from_millis)
    }
}

/// The state of the gang at the end of a job, for the verdict.
#[derive(Debug, Clone)]
pub struct Summary {
    /// The newest generation.
    pub generation: Generation,
    /// The number of required seats.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_incarnation_keeps_its_bits() {
        let one = Incarnation(7);
        let text = serde_json::to_string(&one).unwrap();
        assert_eq!(serde_json::from_str::<Incarnation>(&text).unwrap(), one);
        assert!(serde_json::from_str::<Incarnation>("\"7\"").is_err());
    }
}
