//! The settings that all members of a gang must agree about. A member sends its own in `Hello`, and the leader compares them.

use std::collections::BTreeSet;
use std::fmt::Write;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::super::Timing;
use super::super::agreement::Mode;
use super::message::{bounded_text, one_line};
use crate::cluster::seat::Seat;

/// A contradiction that lasts this long is permanent.
pub const PERMANENT: Duration = Duration::from_secs(60);
/// What this agent can do beyond the first version of the protocol.
pub const FEATURES: &[&str] = &["leaders-timing", "one-step-saves", "settings"];
/// The longest list of seats in a message, in bytes.
const LONGEST_LIST: usize = 200;

/// The settings of one agent.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(default)]
pub struct Settings {
    /// The version of trainit.
    pub version: String,
    /// See [`FEATURES`].
    pub features: BTreeSet<String>,
    /// The number of required seats.
    pub nodes: usize,
    /// The required seats, as `chief/0, worker/0-6`.
    pub seats: String,
    /// The value of `--gang-checkpoints`.
    pub mode: String,
}

impl Settings {
    /// The settings of an agent with this roster.
    pub fn new(version: &str, roster: &BTreeSet<Seat>, mode: Mode) -> Settings {
        let required: Vec<Seat> = roster.iter().copied().filter(|seat| seat.is_required()).collect();
        Settings {
            version: version.to_owned(),
            features: FEATURES.iter().map(|feature| (*feature).to_owned()).collect(),
            nodes: required.len(),
            seats: one_line(&list(&required), LONGEST_LIST),
            mode: mode.word().to_owned(),
        }
    }

    /// How a member's settings contradict the leader's: a clause with both values and the way out.
    pub fn contradiction(&self, member: &Settings) -> Option<String> {
        if member.nodes != self.nodes {
            let (its, own) = (member.nodes, self.nodes);
            return Some(format!(
                "it counts {its} nodes, and the leader {own}: give all replicas the same number of nodes (NNODES)"
            ));
        }
        if member.seats != self.seats {
            let its = bounded_text(&member.seats);
            return Some(format!(
                "it counts the replicas {its}, and the leader {}: give all replicas the same description of the cluster",
                self.seats
            ));
        }
        (member.mode != self.mode).then(|| {
            let (its, own) = (bounded_text(&member.mode), &self.mode);
            format!("it has --gang-checkpoints {its}, and the leader {own}: give all replicas the same value")
        })
    }

    /// The difference between a member's program and the leader's, for the log; `None`: there is none.
    pub fn other_version(&self, member: &Settings) -> Option<String> {
        let lacking: Vec<&str> = self.features.difference(&member.features).map(String::as_str).collect();
        if member.version == self.version && lacking.is_empty() {
            return None;
        }
        let lacks = if lacking.is_empty() { String::new() } else { format!(" and lacks {}", lacking.join(", ")) };
        Some(format!("it has trainit {}, and the leader {}{lacks}", bounded_text(&member.version), self.version))
    }
}

/// The differences of the times that a user can set: this agent's and the leader's, as a clause; empty: there are none.
pub fn other_times(own: &Timing, leader: &Timing) -> String {
    let times = |timing: &Timing| {
        [
            ("--gang-timeout", timing.lease),
            ("--gang-stop-grace", timing.stop_grace),
            ("--gang-wait", timing.wait),
            ("--finish-grace", timing.finish_grace),
            ("--evaluator-grace", timing.evaluator_grace),
        ]
    };
    let pairs = times(own).into_iter().zip(times(leader)).filter(|((_, own), (_, leader))| own != leader);
    let words = pairs.map(|((name, own), (_, leader))| format!("{name} {leader:?} instead of {own:?}"));
    words.collect::<Vec<_>>().join(", ")
}

/// Seats with consecutive indices as one range.
fn list(sorted: &[Seat]) -> String {
    let mut text = String::new();
    let runs = sorted.chunk_by(|one, next| one.role() == next.role() && one.index + 1 == next.index);
    for run in runs {
        let (Some(first), Some(last)) = (run.first(), run.last()) else { continue };
        let separator = if text.is_empty() { "" } else { ", " };
        let _ = write!(text, "{separator}{first}");
        if run.len() > 1 {
            let _ = write!(text, "-{}", last.index);
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::spec::Role;

    fn settings(workers: impl IntoIterator<Item = u32>, mode: Mode) -> Settings {
        let workers = workers.into_iter().map(|index| Seat::new(Role::Worker, index));
        let evaluator = Seat::new(Role::Evaluator, 0);
        Settings::new("1", &workers.chain([Seat::new(Role::Chief, 0), evaluator]).collect(), mode)
    }

    #[test]
    fn a_contradiction_names_both_values() {
        let leader = settings(0..3, Mode::Auto);
        assert_eq!(leader.contradiction(&settings(0..3, Mode::Auto)), None);
        let found = |member: Settings| leader.contradiction(&member).expect("a contradiction");
        assert!(found(settings(0..2, Mode::Auto)).starts_with("it counts 3 nodes, and the leader 4"));
        assert!(
            found(settings([0, 1, 7], Mode::Auto))
                .contains("chief/0, worker/0-1, worker/7, and the leader chief/0, worker/0-2")
        );
        assert!(found(settings(0..3, Mode::Each)).contains("--gang-checkpoints each, and the leader auto"));
    }

    #[test]
    fn another_version_and_other_times_are_named_with_both_values() {
        let leader = settings(0..3, Mode::Auto);
        let mut member = leader.clone();
        assert_eq!(leader.other_version(&member), None);
        member.version = "0".to_owned();
        member.features.remove("settings");
        assert_eq!(leader.other_version(&member).unwrap(), "it has trainit 0, and the leader 1 and lacks settings");
        let short = Timing { lease: Duration::from_secs(3), ..Timing::default() };
        assert_eq!(other_times(&Timing::default(), &short), "--gang-timeout 3s instead of 20s");
    }
}
