//! Whether this node goes on from where node 0 does. Nothing makes the nodes agree on a step, so it is said where they
//! do not.

use super::guard::AT_ONCE;
use super::mirror::{Mirror, Resume};
use super::retention::commits;
use crate::edge::store::Store;
use crate::rules::checkpoint::names::CommitName;

impl Mirror {
    /// Notes that node 0's newest commit is of another step than what this node goes on from. What cannot be found out at
    /// once is left: it holds up no start.
    pub(super) async fn compare_with_chief(&self, resume: Option<&Resume>) {
        let newest = tokio::time::timeout(AT_ONCE, self.newest_of_chief()).await.ok().flatten();
        let here = resume.map_or(Some(0), |resume| resume.step);
        let (Some(newest), Some(here)) = (newest.filter(|newest| newest.step > 0), here) else { return };
        if newest.step != here {
            let from = resume.map_or("at the beginning".to_owned(), |_| format!("from step {here}"));
            self.note(format!(
                "node {} starts {from}, and node 0's newest commit is of step {} ({}): workers that start from different steps hang or train apart; start all nodes with --restore-step and a step that each has, or let them share the checkpoint directory and give the store to node 0 alone",
                self.config.node, newest.step, newest.stamp
            ));
        }
    }

    async fn newest_of_chief(&self) -> Option<CommitName> {
        let chief = Store::open(self.config.chief.as_ref()?, false, &self.config.access).await.ok()?;
        commits(&chief).await.ok()?.into_iter().next()
    }
}
