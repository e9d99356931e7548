//! How the trainits of one node read each other's status: the first one keeps the checkpoints, and the others wait for
//! it.

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Where a run keeps its checkpoints. It is part of the status and of a file next to the socket, so that a run that
/// keeps none need not be queried.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Kept {
    /// The checkpoint directory, without symbolic links.
    pub directory: String,
    /// The store of all nodes.
    pub store: String,
    /// The node whose part of the store it is; `None` if this run does not know it.
    pub node_rank: Option<u32>,
    /// The launch that this run belongs to, if its launcher has a name for it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub launch: Option<String>,
    /// This run keeps no checkpoints; another run on this node does.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub beside: bool,
}

impl Kept {
    /// The content of the file beside the socket.
    pub fn text(&self) -> String {
        serde_json::to_string(self).unwrap_or_default()
    }

    /// Reads the content of that file.
    pub fn parse(text: &str) -> Option<Kept> {
        serde_json::from_str(text).ok()
    }

    /// Whether this run is node 0's and commits to exactly this store, in which each node has its own part. A bucket's
    /// name may mean another bucket at another endpoint, so a bucket must have the same checkpoint directory, too.
    pub fn commits_to(&self, store: &str, directory: &str) -> bool {
        let is_it = self.store == store && (store.starts_with("file://") || self.directory == directory);
        is_it && self.node_rank == Some(0) && !self.beside
    }

    /// Whether it is the wanted run. The launches are compared only if both are known: different names are different
    /// launches, but two launches may have equal names (the user chooses torchrun's).
    pub fn is(&self, wanted: &Kept) -> bool {
        let is_node = self.node_rank.zip(wanted.node_rank).is_none_or(|(node, wanted)| node == wanted);
        let is_launch =
            self.launch.as_ref().zip(wanted.launch.as_ref()).is_none_or(|(launch, wanted)| launch == wanted);
        let is_it = self.directory == wanted.directory && self.store == wanted.store && self.beside == wanted.beside;
        is_it && is_node && is_launch
    }
}

/// The progress of the run that keeps the checkpoints.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stage {
    /// It has not finished its restore.
    Restoring,
    /// The checkpoint that it resumes from is in place.
    Restored,
    /// It is stopping, or has ended.
    Over,
}

/// What the run that keeps the checkpoints resumes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum From {
    /// Unknown: use the newest checkpoint.
    Newest,
    /// It starts from scratch.
    Nothing,
    /// The path that its command loads, and its step.
    #[allow(missing_docs, reason = "the names say it")]
    Checkpoint { path: String, step: Option<u64> },
}

/// The facts in the status of the run that keeps the checkpoints.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct First {
    /// Its progress.
    pub stage: Stage,
    /// The node whose part of the store it keeps.
    pub node: u32,
    /// Valid once it has restored.
    pub from: From,
}

/// Reads a status; `None` if it is not the wanted run.
pub fn first(status: &Value, wanted: &Kept) -> Option<First> {
    let kept = Kept::deserialize(&status["checkpoint"]).ok()?;
    let stage = match status["state"].as_str()? {
        "fetching" | "restoring" | "surveying" | "assembling" => Stage::Restoring,
        "stopping" | "flushing" | "done" => Stage::Over,
        _ => Stage::Restored,
    };
    let from = match &status["checkpoint"]["resumed_from"] {
        Value::String(from) => {
            From::Checkpoint { path: from.clone(), step: status["checkpoint"]["resumed_step"].as_u64() }
        }
        _ => From::Nothing,
    };
    kept.node_rank.filter(|_| kept.is(wanted)).map(|node| First { stage, node, from })
}

/// Whether a run that keeps no checkpoints may be saving: its command, or a process that the command started, may be
/// alive.
pub fn may_save(status: &Value) -> bool {
    !matches!(status["state"].as_str(), Some("fetching" | "restoring" | "gathering" | "done"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::job::{STATES, Snapshot};
    use crate::status::{Facts, answer, parse};

    fn kept(node_rank: Option<u32>) -> Kept {
        Kept { directory: "/ck".into(), store: "gs://b/x".into(), node_rank, launch: None, beside: false }
    }

    fn status(state: &'static str, has_store: bool) -> Value {
        let snapshot = Snapshot { state, has_store, ..Snapshot::default() };
        parse(&answer(&snapshot, &Facts { kept: Some(kept(Some(2))), ..Facts::default() })).expect("a status")
    }

    #[test]
    fn the_run_that_keeps_the_checkpoints_of_this_node_is_recognised_by_its_status() {
        let running = status("running", true);
        let it = Some(First { stage: Stage::Restored, node: 2, from: From::Nothing });
        assert_eq!(first(&running, &kept(Some(2))), it);
        assert_eq!(first(&running, &kept(None)), it);
        assert_eq!(first(&running, &kept(Some(0))), None, "another node that shares the directory");
        assert_eq!(first(&running, &Kept { directory: "/ck2".into(), ..kept(None) }), None);
        assert_eq!(first(&running, &Kept { store: "gs://b/y".into(), ..kept(None) }), None);
        assert_eq!(first(&status("running", false), &kept(None)), None, "a run that keeps no checkpoints");
        let beside = Kept { beside: true, ..kept(None) };
        assert!(!beside.is(&kept(Some(2))) && beside.is(&Kept { beside: true, ..kept(Some(2)) }));
    }

    #[test]
    fn only_node_0_commits_to_the_very_store() {
        let first = || kept(Some(0));
        assert!(first().commits_to("gs://b/x", "/ck") && !first().commits_to("gs://b/y", "/ck"));
        assert!(!kept(Some(1)).commits_to("gs://b/x", "/ck") && !kept(None).commits_to("gs://b/x", "/ck"));
        assert!(!Kept { beside: true, ..first() }.commits_to("gs://b/x", "/ck"));
        assert!(!first().commits_to("gs://b/x", "/elsewhere"), "it may be another bucket at another endpoint");
        let shared = || Kept { store: "file:///s".into(), ..first() };
        assert!(shared().commits_to("file:///s", "/elsewhere") && !shared().commits_to("file:///t", "/ck"));
    }

    #[test]
    fn a_run_of_another_launch_is_not_the_wanted_one() {
        let of = |launch: Option<&str>| Kept { launch: launch.map(str::to_owned), ..kept(Some(2)) };
        assert!(of(Some("77.0")).is(&of(Some("77.0"))) && !of(Some("76.0")).is(&of(Some("77.0"))));
        assert!(of(None).is(&of(Some("77.0"))) && of(Some("77.0")).is(&of(None)), "one name is unknown");
        assert_eq!(Kept::parse(&of(Some("77.0")).text()), Some(of(Some("77.0"))));
        assert_eq!(Kept::parse(&of(None).text()), Some(of(None)));
    }

    #[test]
    fn a_run_beside_the_first_may_save_from_its_start_to_its_end() {
        let at: Vec<_> = STATES.into_iter().filter(|state| !may_save(&status(state, false))).collect();
        assert_eq!(at, ["fetching", "restoring", "gathering", "done"]);
    }

    #[test]
    fn nothing_is_in_place_before_the_restore_is_complete_and_a_stopping_run_does_not_count() {
        let stage = |state| first(&status(state, true), &kept(None)).map(|first| first.stage);
        let at = |wanted| STATES.into_iter().filter(|state| stage(state) == Some(wanted)).collect::<Vec<_>>();
        assert_eq!(at(Stage::Restoring), ["fetching", "restoring", "surveying", "assembling"]);
        let restored = ["gathering", "launching", "running", "draining", "refreshing", "waiting", "arming"];
        assert_eq!(at(Stage::Restored), restored);
        assert_eq!(at(Stage::Over), ["stopping", "flushing", "done"]);
    }
}
