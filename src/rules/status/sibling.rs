//! What the trainits of one node make of each other's status: its first keeps the checkpoints, and the others wait for it.

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Where a run's checkpoints are, as its status has it, and a file that lies beside its socket: nobody is asked for nothing.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Kept {
    /// The checkpoint directory, without symbolic links.
    pub directory: String,
    /// The store of all nodes.
    pub store: String,
    /// Whose corner of it; `None`: who says this does not know.
    pub node_rank: Option<u32>,
    /// The launch that this run is of, where its launcher has a name for it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub launch: Option<String>,
    /// This run keeps nothing; it is one beside the run that does.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub beside: bool,
}

impl Kept {
    /// What lies beside the socket.
    pub fn text(&self) -> String {
        serde_json::to_string(self).unwrap_or_default()
    }

    /// Reads that.
    pub fn parse(text: &str) -> Option<Kept> {
        serde_json::from_str(text).ok()
    }

    /// Whether who says this commits to this very store, of which other nodes have a corner each. A bucket's name may be
    /// another's at another endpoint, so there it must be from this directory, too.
    pub fn commits_to(&self, store: &str, directory: &str) -> bool {
        let is_it = self.store == store && (store.starts_with("file://") || self.directory == directory);
        is_it && self.node_rank == Some(0) && !self.beside
    }

    /// Whether they are those that are looked for, of the same launch as far as that is known: equal names may be two
    /// launches' (torchrun's is its user's), other names are.
    pub fn is(&self, wanted: &Kept) -> bool {
        let is_node = self.node_rank.zip(wanted.node_rank).is_none_or(|(node, wanted)| node == wanted);
        let is_launch =
            self.launch.as_ref().zip(wanted.launch.as_ref()).is_none_or(|(launch, wanted)| launch == wanted);
        let is_it = self.directory == wanted.directory && self.store == wanted.store && self.beside == wanted.beside;
        is_it && is_node && is_launch
    }
}

/// How far the one that keeps the checkpoints is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stage {
    /// It has not brought them back yet.
    Restoring,
    /// What it goes on from is in place.
    Restored,
    /// It is leaving.
    Over,
}

/// What the one that keeps the checkpoints goes on from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum From {
    /// Nobody knows any more: the newest there is.
    Newest,
    /// It begins anew.
    Nothing,
    /// What its command loads.
    Checkpoint(String),
}

/// What is told of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct First {
    /// How far it is.
    pub stage: Stage,
    /// Whose corner of the store it keeps.
    pub node: u32,
    /// Once it has restored.
    pub from: From,
}

/// What there is to know of the run of this status; `None` where it is not what is looked for.
pub fn first(status: &Value, wanted: &Kept) -> Option<First> {
    let kept = Kept::deserialize(&status["checkpoint"]).ok()?;
    let stage = match status["state"].as_str()? {
        "restoring" => Stage::Restoring,
        "stopping" | "flushing" | "done" => Stage::Over,
        _ => Stage::Restored,
    };
    let from = match &status["checkpoint"]["resumed_from"] {
        Value::String(from) => From::Checkpoint(from.clone()),
        _ => From::Nothing,
    };
    kept.node_rank.filter(|_| kept.is(wanted)).map(|node| First { stage, node, from })
}

/// Whether the run beside the one that keeps the checkpoints may be saving: its command runs, or what that has started.
pub fn may_save(status: &Value) -> bool {
    !matches!(status["state"].as_str(), Some("restoring" | "gathering" | "done"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rules::job::{STATES, Told};
    use crate::rules::status::{Facts, answer, parse};

    fn kept(node_rank: Option<u32>) -> Kept {
        Kept { directory: "/ck".into(), store: "gs://b/x".into(), node_rank, launch: None, beside: false }
    }

    fn status(state: &'static str, has_store: bool) -> Value {
        let told = Told { state, has_store, ..Told::default() };
        parse(&answer(&told, &Facts { kept: Some(kept(Some(2))), ..Facts::default() })).expect("a status")
    }

    #[test]
    fn the_one_that_keeps_the_same_checkpoints_of_the_same_node_is_known_by_its_status() {
        let running = status("running", true);
        let it = Some(First { stage: Stage::Restored, node: 2, from: From::Nothing });
        assert_eq!(first(&running, &kept(Some(2))), it);
        assert_eq!(first(&running, &kept(None)), it);
        assert_eq!(first(&running, &kept(Some(0))), None, "of another node that shares the directory");
        assert_eq!(first(&running, &Kept { directory: "/ck2".into(), ..kept(None) }), None);
        assert_eq!(first(&running, &Kept { store: "gs://b/y".into(), ..kept(None) }), None);
        assert_eq!(first(&status("running", false), &kept(None)), None, "a sibling, which keeps nothing");
        let beside = Kept { beside: true, ..kept(None) };
        assert!(!beside.is(&kept(Some(2))) && beside.is(&Kept { beside: true, ..kept(Some(2)) }));
    }

    #[test]
    fn only_the_first_node_commits_to_the_very_store() {
        let first = || kept(Some(0));
        assert!(first().commits_to("gs://b/x", "/ck") && !first().commits_to("gs://b/y", "/ck"));
        assert!(!kept(Some(1)).commits_to("gs://b/x", "/ck") && !kept(None).commits_to("gs://b/x", "/ck"));
        assert!(!Kept { beside: true, ..first() }.commits_to("gs://b/x", "/ck"));
        assert!(!first().commits_to("gs://b/x", "/elsewhere"), "at another endpoint it is another bucket");
        let shared = || Kept { store: "file:///s".into(), ..first() };
        assert!(shared().commits_to("file:///s", "/elsewhere") && !shared().commits_to("file:///t", "/ck"));
    }

    #[test]
    fn who_is_of_another_launch_is_not_the_one_that_is_looked_for() {
        let of = |launch: Option<&str>| Kept { launch: launch.map(str::to_owned), ..kept(Some(2)) };
        assert!(of(Some("77.0")).is(&of(Some("77.0"))) && !of(Some("76.0")).is(&of(Some("77.0"))));
        assert!(of(None).is(&of(Some("77.0"))) && of(Some("77.0")).is(&of(None)), "one that does not say");
        assert_eq!(Kept::parse(&of(Some("77.0")).text()), Some(of(Some("77.0"))));
        assert_eq!(Kept::parse(&of(None).text()), Some(of(None)));
    }

    #[test]
    fn one_beside_the_first_may_be_saving_from_its_start_to_its_end() {
        let at: Vec<_> = STATES.into_iter().filter(|state| !may_save(&status(state, false))).collect();
        assert_eq!(at, ["restoring", "gathering", "done"]);
    }

    #[test]
    fn nothing_is_in_place_before_the_restore_is_through_nor_counts_who_is_leaving() {
        let stage = |state| first(&status(state, true), &kept(None)).map(|first| first.stage);
        let at = |wanted| STATES.into_iter().filter(|state| stage(state) == Some(wanted)).collect::<Vec<_>>();
        assert_eq!(at(Stage::Restoring), ["restoring"]);
        assert_eq!(at(Stage::Restored), ["gathering", "launching", "running", "draining", "refreshing", "waiting"]);
        assert_eq!(at(Stage::Over), ["stopping", "flushing", "done"]);
    }
}
