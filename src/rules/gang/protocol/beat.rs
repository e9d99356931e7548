//! The periodic sign of life of a member. A reader ignores the fields that it does not know, so a beat can carry what an
//! earlier version of the leader does not need.

use serde::{Deserialize, Serialize};

use super::super::Generation;
use super::message::bounded_text;

/// The periodic sign of life.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Beat {
    /// The member's own clock in milliseconds, which the leader echoes.
    pub clock: u64,
    /// The step that the trainer reports.
    pub step: Option<u64>,
    /// The restored bytes and their total, while restoring.
    pub restoring: Option<(u64, u64)>,
    /// The newest steps that this member has committed since its trainer's start, at most
    /// [`MOST_STEPS`](super::message::MOST_STEPS).
    pub committed: Vec<u64>,
    /// The trainer of this generation ended with 0, and its last files are not committed yet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub succeeded: Option<Generation>,
    /// The trainer does not run any more, and its last files are being committed.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub commits: bool,
    /// The generation is halted, and the trainer, which had closed its connections before, is about to end by itself.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub ends: bool,
    /// This node's trainer has saved a checkpoint of its own, which may not be committed yet.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub has_own: bool,
    /// The leader's replica: the step at which all shall save next.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub save_step: Option<u64>,
    /// Why this agent exits: `Leaving` follows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub leaves: Option<Departure>,
}

/// A step at which all ranks can save.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct SaveAt {
    /// The step.
    pub step: u64,
    /// All ranks reach it within this time, in milliseconds.
    pub within: u64,
}

/// Why an agent exits.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Departure {
    /// Its exit code.
    pub code: u8,
    /// The reason in its verdict, as one word.
    pub reason: String,
    /// One sentence, for people.
    pub detail: String,
}

impl Departure {
    /// Limits the texts.
    pub fn bounded(mut self) -> Departure {
        (self.reason, self.detail) = (bounded_text(&self.reason), bounded_text(&self.detail));
        self
    }
}

#[cfg(test)]
mod tests {
    use super::super::message::ToLeader;
    use super::*;

    #[test]
    fn a_beat_of_an_earlier_version_is_read() {
        let json = r#"{"beat":{"clock":7,"step":3,"restoring":null,"committed":[1]}}"#;
        let beat = Beat { clock: 7, step: Some(3), committed: vec![1], ..Beat::default() };
        assert_eq!(serde_json::from_str::<ToLeader>(json).unwrap(), ToLeader::Beat(beat.clone()));
        assert_eq!(serde_json::to_string(&ToLeader::Beat(beat)).unwrap(), json, "new fields are sent only if needed");
    }
}
