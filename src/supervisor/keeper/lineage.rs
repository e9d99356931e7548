//! `.trainit/attempt-STORE-NODE.json` in the checkpoint directory: which attempt of a store's used it last, and what it
//! left behind there. Each node has its own: nodes may share a directory.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::mirror::{Mirror, SMALL, beneath, blocking};
use crate::edge::beneath::Beneath;
use crate::rules::checkpoint::address::Address;
use crate::rules::checkpoint::names::{Attempt, OWN, hash16};
use crate::rules::checkpoint::plan::{self, Age};

/// What it says.
#[derive(Debug, Serialize, Deserialize)]
struct Lineage {
    store: String,
    attempt: String,
    #[serde(default)]
    ignored: BTreeMap<String, i64>,
}

const RECORD: &str = "attempt";

pub(super) fn record(node: u32, address: &Address) -> (String, String) {
    let (node, address) = (format!("{node:05}"), address.to_string());
    let store = address.strip_suffix(&format!("/node-{node}")).unwrap_or(&address);
    let ours = format!("{RECORD}-{}-", hash16(store.as_bytes()));
    (ours.clone(), format!("{OWN}/{ours}{node}.json"))
}

/// What nodes have written down of the directory for this store. Each run writes anew, when it has restored.
pub(super) fn written(dir: &Path, store: &Address) -> BTreeMap<String, Vec<u8>> {
    let Ok(dir) = Beneath::open(dir) else { return BTreeMap::new() };
    let ours = record(0, store).0;
    let names = dir.names(OWN).unwrap_or_default().into_iter().filter(|name| name.starts_with(&ours));
    let paths = names.map(|name| format!("{OWN}/{name}"));
    paths.map(|path| (path.clone(), dir.read(&path, SMALL).unwrap_or_default())).collect()
}

impl Mirror {
    /// How the names of all nodes' begin, and the name of ours.
    fn record(&self, address: &Address) -> (String, String) {
        record(self.config.node, address)
    }

    /// Goes by what the one that keeps this node's checkpoints there has written down.
    pub(super) async fn heed(&mut self, store: &Address) {
        self.read_lineage(&store.of_node(self.config.node)).await;
    }

    pub(super) async fn read_lineage(&mut self, address: &Address) {
        let (at, path) = (self.config.dir.clone(), self.record(address).1);
        let read = blocking(move || {
            let dir = beneath(&at)?;
            Ok((dir.read(&path, SMALL)?, dir.look(&path)?.map(|record| record.mtime_ns)))
        });
        let (text, written) = read.await.unwrap_or_default();
        if let Ok(lineage) = serde_json::from_slice::<Lineage>(&text) {
            self.lineage = Attempt::parse(&lineage.attempt);
            self.used_ns = written.filter(|_| self.lineage.is_some()).unwrap_or(i64::MAX);
            self.ignored = lineage.ignored;
        }
    }

    /// Writes down that what lies in the directory is of this attempt's line. Only once the restore is done: before, it
    /// may hold what another run left.
    pub(super) async fn write_lineage(&mut self, dir: &Arc<Beneath>, whose: Option<Attempt>) -> io::Result<()> {
        let Some(address) = &self.config.store else { return Ok(()) };
        let attempt = whose.as_ref().map_or(String::new(), Attempt::to_string);
        let lineage = Lineage { store: address.to_string(), attempt, ignored: self.ignored.clone() };
        let text = serde_json::to_string(&lineage).unwrap_or_default();
        let (dir, path) = (Arc::clone(dir), self.record(address).1);
        blocking(move || dir.replace(&path, text.as_bytes(), 0o644)).await?;
        self.lineage = whose;
        Ok(())
    }

    /// After a commit of this age by hand: what lies there is of its line, unless an older one was asked for.
    pub(super) async fn write_pushed(&mut self, beside: &BTreeMap<String, Age>, age: Age) {
        let is_newest = self.config.push_step.is_none() || !beside.values().any(|other| plan::supersedes(*other, age));
        if self.lineage != self.attempt && is_newest {
            // Where it cannot be written, a restore says that it leaves alone what is newer here.
            let at = self.config.dir.clone();
            if let Ok(dir) = blocking(move || beneath(&at)).await {
                let _ = self.write_lineage(&dir, self.attempt.clone()).await;
            }
        }
    }

    /// The directory is this job's now: what another store's runs wrote down holds no more.
    pub(super) async fn take_over(&self, dir: &Arc<Beneath>) -> io::Result<()> {
        let Some(address) = &self.config.store else { return Ok(()) };
        let (dir, ours) = (Arc::clone(dir), self.record(address).0);
        blocking(move || {
            for name in dir.names(OWN)?.iter().filter(|name| name.starts_with(RECORD) && !name.starts_with(&ours)) {
                dir.remove_file(&format!("{OWN}/{name}"))?;
            }
            Ok(())
        })
        .await
    }
}
