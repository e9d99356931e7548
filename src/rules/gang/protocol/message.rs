//! The messages between the agents. Every message that starts or stops a trainer carries its generation.

use core::fmt::Write;
use core::net::IpAddr;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::super::budget::Loss;
use super::super::hang::TreeState;
use super::super::{Generation, Incarnation, Timing};
use super::beat::Beat;
pub use super::beat::SaveAt;
pub use super::offer::{Choice, Offer, Step};
use super::settings::Settings;
use crate::cluster::seat::Seat;

/// The maximum number of offered steps, without the kept one.
pub const MOST_STEPS: usize = 16;
/// The maximum number of commits of a member that the leader remembers: an older one can never become common.
pub const MOST_REMEMBERED: usize = 2 * MOST_STEPS;
/// The longest text that an agent accepts from another, in bytes.
const MOST_TEXT: usize = 300;
/// The longest reason for giving up, in bytes: it may contain a table of the members' steps.
pub const MOST_REASON: usize = 2000;

/// The kinds of failure. The most likely cause of other failures comes first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Class {
    /// A GPU failed.
    Gpu,
    /// The cgroup's limit killed a process.
    OutOfMemory,
    /// No sign of life within the hang time-out.
    Hung,
    /// A signal that trainit did not send.
    Signal,
    /// An exit code.
    Code,
    /// The agent is gone, or silent for the lease.
    Lost,
    /// A notice announced the end of the machine.
    Preempted,
    /// Probably caused by another failure: a connection reset by a peer, a broken pipe, a remote error of NCCL.
    Consequence,
}

/// What collective libraries say when the connection to another rank ends.
const OF_PEERS: [&str; 5] =
    ["closed by peer", "reset by peer", "broken pipe", "remote process exited", "socket closed"];

/// The failure of a trainer. Its text is never executed or used as a path.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Failure {
    /// Its kind.
    pub class: Class,
    /// The exit code.
    pub code: Option<u8>,
    /// The number of the signal.
    pub signal: Option<u8>,
    /// The last step that the trainer reported.
    pub step: Option<u64>,
    /// One sentence, at most [`MOST_TEXT`] bytes.
    pub detail: String,
}

/// The first failure of a halt, which the verdict of every member contains.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct FirstFailure {
    /// The seat that failed.
    pub seat: Seat,
    /// Its host, as it calls itself.
    pub host: String,
    /// The failure.
    pub failure: Failure,
}

/// The history of the generations that a new leader needs. The leader sends it in `Go`, and members return it in `Hello`. Of two
/// records, the one of the later generation is valid.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Record {
    /// The newest agreed generation; 0: none.
    #[serde(default)]
    pub generation: Generation,
    /// The restarts charged since the agreed step last increased.
    pub charged: u32,
    /// The number of generations in a row that ended soon after their start, without a newer agreed step.
    pub quick: u32,
    /// The class and step of the last failure, to detect the same failure at the same step.
    pub last: Option<(Class, Option<u64>)>,
    /// The exit codes of failures that get only one retry, since the agreed step last increased.
    #[serde(default)]
    pub retried: Vec<u8>,
    /// The losses of agents since the agreed step last increased, oldest first.
    #[serde(default)]
    pub losses: Vec<Loss>,
    /// The newest agreed step.
    pub agreed: Option<u64>,
    /// The hash of the checkpoint of node 0 in the last agreement.
    #[serde(default)]
    pub agreed_hash: Option<u64>,
    /// The newest step that all training members have committed.
    pub kept: Option<u64>,
    /// A node other than 0 has had checkpoints of its own.
    #[serde(default)]
    pub each_has_own: bool,
    /// The first failure of the last halt.
    pub first: Option<FirstFailure>,
    /// A generation started while no member had any step, and no step was kept since. So no common step can be lost.
    #[serde(default)]
    pub from_nothing: bool,
}

/// A member's earlier leader, and how its connection ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct FormerLeader {
    /// The agent process of that leader.
    pub leader: Incarnation,
    /// The time since the connection was given up as silent, in milliseconds: that leader may still run. `None`: the other side
    /// closed it.
    pub silent_for: Option<u64>,
}

/// The first message of a proven connection.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Hello {
    /// The replica's seat.
    pub seat: Seat,
    /// The agent process.
    pub incarnation: Incarnation,
    /// The host's name.
    pub host: String,
    /// The boot of the host's kernel: two hosts may have one name.
    #[serde(default)]
    pub boot: String,
    /// The newest generation that the agent has seen; 0: none.
    pub newest: Generation,
    /// The generation that the agent is restoring, armed for or training.
    pub busy: Option<Generation>,
    /// The leader of its last seat.
    pub former: Option<FormerLeader>,
    /// The agent's copy of the record.
    pub record: Record,
    /// The agent's settings; `None`: the agent is of an earlier version.
    #[serde(default)]
    pub settings: Option<Box<Settings>>,
}

/// From a member to the leader.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[allow(clippy::large_enum_variant, reason = "one at a time, and moved a few times only")]
pub enum ToLeader {
    /// Requests the seat.
    Hello(Hello),
    /// The process tree has been empty since this generation ended.
    Offer {
        /// The newest generation that this agent has seen.
        after: Generation,
        /// The checkpoints that it can restore.
        offer: Offer,
    },
    /// The agreed step is in place.
    Armed {
        /// Of this generation.
        generation: Generation,
    },
    /// The agreed step cannot be restored.
    CannotRestore {
        /// Of this generation.
        generation: Generation,
        /// One sentence.
        why: String,
    },
    /// The periodic sign of life.
    Beat(Beat),
    /// The trainer died, or has to be stopped.
    #[serde(rename = "fell")]
    Failed {
        /// Of this generation.
        generation: Generation,
        /// The time since the failure in milliseconds, by the member's own clock.
        age: u64,
        /// The failure.
        failure: Failure,
        /// The trainer had closed its connections before the gang was halted.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        is_early: bool,
    },
    /// The activity of the trainer's processes: the answer to `ReportTree`, and sent before the `Failed` of a hang.
    Tree {
        /// Of this generation.
        generation: Generation,
        /// The activity.
        tree: TreeState,
    },
    /// The trainer of this generation ended with 0.
    Finished {
        /// Of this generation.
        generation: Generation,
    },
    /// This replica's machine goes away.
    Notice {
        /// The remaining milliseconds.
        lead: u64,
        /// The step at which this replica saves; `None`: at once.
        #[serde(default)]
        save_at: Option<u64>,
    },
    /// This agent exits and does not return.
    Leaving,
}

/// The leader's own address, if the published port is borrowed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Referral {
    /// The address of its machine.
    pub ip: IpAddr,
    /// The port.
    pub port: u16,
}

/// From the leader to a member.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ToMember {
    /// The member has its seat.
    Welcome {
        /// The leader's agent process.
        leader: Incarnation,
        /// The lease in milliseconds.
        lease: u64,
        /// The newest generation of the job.
        newest: Generation,
        /// The leader's times; `None`: the leader is of an earlier version.
        #[serde(default)]
        timing: Option<Timing>,
    },
    /// The member does not get the seat now, and tries again.
    Refused {
        /// One sentence.
        why: String,
        /// The member's settings contradict the leader's.
        #[serde(default)]
        contradicts: bool,
    },
    /// Connect to this address instead.
    Refer(Referral),
    /// The answer to a beat.
    Echo {
        /// The clock in the beat.
        clock: u64,
        /// Where all save if a notice comes before the next echo.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        save_at: Option<SaveAt>,
        /// The step at which all save next, without a notice.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        save_step: Option<u64>,
        /// The seats for which the gang waits, at most 16.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        missing: Vec<Seat>,
    },
    /// Restore this checkpoint for the next generation.
    Agreed {
        /// The next generation.
        generation: Generation,
        /// The checkpoint.
        choice: Choice,
    },
    /// Start the trainer.
    Go {
        /// Of this generation.
        generation: Generation,
        /// The record, for a later leader.
        record: Record,
    },
    /// Stop the trainer of this generation, and offer again.
    Halt {
        /// Of this generation.
        generation: Generation,
        /// The gang hangs: log the trainer's stacks, as after its own hang.
        #[serde(default)]
        hung: bool,
    },
    /// The gang may hang: report the activity of the trainer's processes.
    ReportTree {
        /// Of this generation.
        generation: Generation,
    },
    /// Why the last generation ended.
    Named {
        /// Of this generation.
        generation: Generation,
        /// The first failure.
        first: FirstFailure,
    },
    /// Save, because the machine of a replica goes away.
    Save {
        /// The milliseconds until the earliest deadline.
        lead: u64,
        /// Whether to exit after that, instead of waiting for the replacement.
        leave: bool,
        /// The step at which to save; `None`: at once.
        #[serde(default)]
        save_at: Option<u64>,
    },
    /// Do not delete this step or newer ones.
    Kept {
        /// The newest step that all required members have committed.
        step: u64,
    },
    /// The chief has finished: exit with 0.
    Finish,
    /// The gang gives up.
    GiveUp {
        /// Why, for people.
        why: String,
        /// Whether the cause is the store or a missing common step (204), and not a peer (203).
        no_common_step: bool,
        /// Whether the cause is a contradiction between the members' settings (125).
        #[serde(default)]
        contradiction: bool,
        /// The first failure, if one occurred.
        first: Option<FirstFailure>,
    },
    /// The leader waits for seats.
    Waiting {
        /// At most 16 of them.
        missing: Vec<Seat>,
    },
}

/// A duration in milliseconds, as in the messages.
pub fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

impl Failure {
    /// A failure without an exit code or a signal.
    pub fn new(class: Class, step: Option<u64>, detail: impl Into<String>) -> Failure {
        Failure { class, code: None, signal: None, step, detail: detail.into() }
    }

    /// Adds the trainer's last words. They may show that another trainer was the cause.
    pub fn quote(&mut self, words: &str) {
        let is_of_peers = |pattern: &&str| words.to_ascii_lowercase().contains(*pattern);
        if self.class == Class::Code && OF_PEERS.iter().any(is_of_peers) {
            self.class = Class::Consequence;
        }
        let _ = write!(self.detail, "; its last words: {words}");
    }

    /// Limits the text to one short line.
    pub fn bounded(mut self) -> Failure {
        self.detail = bounded_text(&self.detail);
        self
    }
}

/// A foreign text on one line of at most [`MOST_TEXT`] bytes, without control characters.
pub fn bounded_text(text: &str) -> String {
    one_line(text, MOST_TEXT)
}

/// A foreign text on one line of at most `limit` bytes, without control characters.
pub fn one_line(text: &str, limit: usize) -> String {
    let mut short: String = text.chars().map(|c| if c.is_control() { ' ' } else { c }).take(limit).collect();
    while short.len() > limit {
        short.pop();
    }
    short
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn last_words_about_a_peer_show_that_another_trainer_was_the_cause() {
        let quoted = |words: &str| {
            let mut failure = Failure::new(Class::Code, None, "exit code 1");
            failure.quote(words);
            failure
        };
        let of_peer = quoted("RuntimeError: Connection closed by peer [10.0.0.1]:4711");
        assert_eq!(of_peer.class, Class::Consequence);
        assert!(of_peer.detail.ends_with("Connection closed by peer [10.0.0.1]:4711"), "{}", of_peer.detail);
        assert_eq!(quoted("ValueError: no data").class, Class::Code);
    }

    #[test]
    fn a_failure_is_named_fell_on_the_wire() {
        let failure = Failure { class: Class::Code, code: Some(1), signal: None, step: None, detail: String::new() };
        let json = serde_json::to_value(ToLeader::Failed { generation: 1, age: 2, failure, is_early: false }).unwrap();
        assert_eq!(json["fell"]["generation"], 1);
    }
}
