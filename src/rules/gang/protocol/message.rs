//! What agents say to each other. Every message that starts or stops a trainer carries its generation.

use core::net::IpAddr;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::super::Generation;
use super::super::hang::TreeState;
use super::super::seat::{Incarnation, Seat};

/// So many steps are offered at most, beside the kept one.
pub const MOST_STEPS: usize = 16;
/// Longest text that one agent takes from another, bytes.
pub const MOST_TEXT: usize = 300;
/// Longest reason for giving up, bytes: it may hold a table of the members' steps.
pub const MOST_REASON: usize = 2000;

/// A checkpoint that a member can restore.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Step {
    /// The training step; `None` where neither the format, `--step-regex` nor the heartbeat tells it.
    pub step: Option<u64>,
    /// FirstFailure 64 bits of the manifest's hash: two checkpoints of one node are told apart by it.
    pub hash: u64,
    /// Whether it is a commit in the store, which other nodes can read.
    pub is_stored: bool,
}

/// What a member can restore, sent while its process tree is empty.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Offer {
    /// The newest first, [`MOST_STEPS`] at most, and the kept one.
    pub steps: Vec<Step>,
    /// Whether this node has checkpoint files or commits that are not node 0's.
    pub has_own_checkpoints: bool,
    /// Whether it sees the file that the leader named in its checkpoint directory.
    pub sees_leaders_file: bool,
}

/// What a generation starts from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Choice {
    /// The beginning.
    Start,
    /// Each node's own commit of this step.
    Own(u64),
    /// Node 0's commit.
    Chiefs(Step),
    /// The step that lies in the directory that all share; node 0 restores it.
    Shared(Step),
}

impl Choice {
    /// The training step; `None` at the beginning.
    pub fn step(self) -> Option<u64> {
        match self {
            Choice::Start => None,
            Choice::Own(step) => Some(step),
            Choice::Chiefs(step) | Choice::Shared(step) => step.step,
        }
    }

    /// The hash of node 0's checkpoint, where that was chosen.
    pub fn hash(self) -> Option<u64> {
        match self {
            Choice::Start | Choice::Own(_) => None,
            Choice::Chiefs(step) | Choice::Shared(step) => Some(step.hash),
        }
    }
}

/// The kinds of failure, in the order in which they are more likely to be the cause of others.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Class {
    /// A GPU failed.
    Gpu,
    /// The cgroup's limit killed a process.
    OutOfMemory,
    /// No sign of life for the hang time-out.
    Hung,
    /// A signal that trainit did not send.
    Signal,
    /// An exit code.
    Code,
    /// The agent is gone or was not heard of for the lease.
    Lost,
    /// The machine of the seat was announced to go.
    Preempted,
    /// Looks like the answer to another death: a connection reset by a peer, a broken pipe, a remote error of NCCL.
    Consequence,
}

/// How a trainer failed. No text of it is ever executed or used as a path.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Failure {
    /// Its kind.
    pub class: Class,
    /// The exit code, where there is one.
    pub code: Option<u8>,
    /// The signal's number, where there is one.
    pub signal: Option<u8>,
    /// The last step that the trainer named, where it did.
    pub step: Option<u64>,
    /// One sentence, [`MOST_TEXT`] bytes at most.
    pub detail: String,
}

/// The first failure of a halt, as every member's verdict names it.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct FirstFailure {
    /// The seat that failed.
    pub seat: Seat,
    /// The host that it ran on, as it called itself.
    pub host: String,
    /// How.
    pub failure: Failure,
}

/// What a new leader must know of the generations before it. Travels in `Go` and comes back in `Hello`. Of two records the one
/// of the later generation holds.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Record {
    /// The newest generation that was agreed on; 0: none.
    #[serde(default)]
    pub generation: Generation,
    /// Restarts that were charged since the last newer agreed step.
    pub charged: u32,
    /// Generations in a row that ended soon after their start, without a newer agreed step.
    pub quick: u32,
    /// The last failure's class and step, for "the same failure at the same step twice".
    pub last: Option<(Class, Option<u64>)>,
    /// The newest step that was agreed on.
    pub agreed: Option<u64>,
    /// The hash of the checkpoint of node 0 that was agreed on last.
    #[serde(default)]
    pub agreed_hash: Option<u64>,
    /// The newest step that all training members have committed.
    pub kept: Option<u64>,
    /// Another node than 0 has had checkpoints of its own.
    #[serde(default)]
    pub each_has_own: bool,
    /// The first failure of the last halt.
    pub first: Option<FirstFailure>,
    /// A generation has started while no member had any step, and no step was kept since: nothing that is lost was ever
    /// common to all.
    #[serde(default)]
    pub from_nothing: bool,
}

/// The leader that a member had before, and how it lost it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Former {
    /// That leader's agent process.
    pub leader: Incarnation,
    /// Milliseconds since the connection was given up as silent: that leader may live. `None`: the other side closed it.
    pub silent_for: Option<u64>,
}

/// The first message of a proven connection.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Hello {
    /// The seat that the platform gave this replica.
    pub seat: Seat,
    /// This agent process.
    pub incarnation: Incarnation,
    /// The host's name, for people.
    pub host: String,
    /// The newest generation that this agent has seen; 0: none.
    pub newest: Generation,
    /// The generation that this agent restores, has armed or trains now.
    pub busy: Option<Generation>,
    /// The leader that gave it its seat last.
    pub former: Option<Former>,
    /// What this agent knows of the generations before.
    pub record: Record,
}

/// From a member to the leader.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[allow(clippy::large_enum_variant, reason = "one at a time, and moved a few times only")]
pub enum ToLeader {
    /// Asks for its seat.
    Hello(Hello),
    /// Its process tree is empty since this generation ended, and this can be restored.
    Offer {
        /// The newest generation that this agent has seen.
        after: Generation,
        /// What can be restored.
        offer: Offer,
    },
    /// The agreed step is in place.
    Armed {
        /// Of this generation.
        generation: Generation,
    },
    /// The agreed step cannot be put in place.
    CannotRestore {
        /// Of this generation.
        generation: Generation,
        /// One sentence.
        why: String,
    },
    /// It lives.
    Beat {
        /// The member's own clock, milliseconds; echoed.
        clock: u64,
        /// The trainer's step, where it names one.
        step: Option<u64>,
        /// Bytes restored and in all, while restoring.
        restoring: Option<(u64, u64)>,
        /// The newest steps that this member has committed since its trainer's start, [`MOST_STEPS`] at most.
        committed: Vec<u64>,
    },
    /// The trainer died, or has to be stopped.
    #[serde(rename = "fell")]
    Failed {
        /// Of this generation.
        generation: Generation,
        /// Milliseconds since the main child died, by the member's own clock.
        age: u64,
        /// How.
        failure: Failure,
    },
    /// What the trainer's processes do: the answer to `ReportTree`, and before a `Failed` of a hang.
    Tree {
        /// Of this generation.
        generation: Generation,
        /// What they do.
        tree: TreeState,
    },
    /// The trainer of this generation ended with 0.
    Finished {
        /// Of this generation.
        generation: Generation,
    },
    /// This replica's machine goes.
    Notice {
        /// Milliseconds that are left.
        lead: u64,
    },
    /// This agent ends now, for good.
    Leaving,
}

/// Where the leader itself listens.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Referral {
    /// An address of its machine.
    pub ip: IpAddr,
    /// The port.
    pub port: u16,
}

/// From the leader to a member.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ToMember {
    /// The seat is this member's.
    Welcome {
        /// The leader's agent process.
        leader: Incarnation,
        /// Milliseconds of the lease.
        lease: u64,
        /// The newest generation of the job.
        newest: Generation,
    },
    /// The seat is not given, and why. The member tries again.
    Refused {
        /// One sentence.
        why: String,
    },
    /// Connect there instead.
    Refer(Referral),
    /// The beat of this clock was heard.
    Echo {
        /// As it came.
        clock: u64,
    },
    /// Restore this for the generation that comes.
    Agreed {
        /// The generation that comes.
        generation: Generation,
        /// What to restore.
        choice: Choice,
    },
    /// Start the trainer.
    Go {
        /// Of this generation.
        generation: Generation,
        /// For a leader that comes after this one.
        record: Record,
    },
    /// Stop the trainer of this generation and offer anew.
    Halt {
        /// Of this generation.
        generation: Generation,
        /// The gang hangs: the trainer's stacks are taken, as at a hang of its own.
        #[serde(default)]
        hung: bool,
    },
    /// The gang seems to hang: say what the trainer's processes do.
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
    /// Save: a replica's machine goes.
    Save {
        /// Milliseconds until the earliest deadline.
        lead: u64,
        /// Whether to leave as well, and not to hold for the replacement.
        leave: bool,
    },
    /// Nothing at or above this step may be deleted.
    Kept {
        /// The newest step that all required members have committed.
        step: u64,
    },
    /// The chief has finished: end with 0.
    Finish,
    /// The gang gives up.
    GiveUp {
        /// Why, for people.
        why: String,
        /// Whether the store or the steps are to blame (204), and not a peer (203).
        no_common_step: bool,
        /// The first failure, where there is one.
        first: Option<FirstFailure>,
    },
    /// Seats that are waited for.
    Waiting {
        /// At most 16 of them.
        missing: Vec<Seat>,
    },
}

/// Milliseconds, as they travel.
pub fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

impl Failure {
    /// The same with a text that is short and of one line.
    pub fn bounded(mut self) -> Failure {
        self.detail = bounded_text(&self.detail);
        self
    }
}

/// A foreign text on one line, [`MOST_TEXT`] bytes at most, without control characters.
pub fn bounded_text(text: &str) -> String {
    one_line(text, MOST_TEXT)
}

/// A foreign text on one line, so many bytes at most, without control characters.
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
    fn a_failure_is_named_fell_on_the_wire() {
        let failure = Failure { class: Class::Code, code: Some(1), signal: None, step: None, detail: String::new() };
        let json = serde_json::to_value(ToLeader::Failed { generation: 1, age: 2, failure }).unwrap();
        assert_eq!(json["fell"]["generation"], 1);
    }
}
