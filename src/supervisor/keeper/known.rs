//! What this run has put into the store already: a file that is the same again costs no upload, its old key is named
//! once more. Deliberately absent: other runs' data, which their own retention may delete meanwhile.

use std::collections::HashMap;

use crate::rules::checkpoint::Entry;
use crate::rules::checkpoint::manifest::Item;

/// A file of the last commit.
#[derive(Debug)]
pub(super) struct Sent {
    /// As the walk saw it.
    pub(super) entry: Entry,
    /// As the manifest has it.
    pub(super) item: Item,
    /// Of small files: proof that equal bytes are equal, whatever file holds them.
    pub(super) strong: Option<blake3::Hash>,
}

/// The files of the last commit.
#[derive(Debug, Default)]
pub(super) struct Known {
    sent: Vec<Sent>,
    by_sum: HashMap<(u64, String), Vec<usize>>,
    by_file: HashMap<(u64, u64), usize>,
}

impl Known {
    pub(super) fn new(sent: Vec<Sent>) -> Known {
        let mut known = Known { sent, ..Known::default() };
        for (at, sent) in known.sent.iter().enumerate() {
            known.by_sum.entry((sent.item.size, sent.item.crc32c.clone())).or_default().push(at);
            known.by_file.insert((sent.entry.device, sent.entry.inode), at);
        }
        known
    }

    /// Whether the store may hold this very file, as far as stat can tell: then reading it is worth while.
    pub(super) fn may_hold(&self, entry: &Entry) -> bool {
        self.by_file.get(&(entry.device, entry.inode)).is_some_and(|at| self.sent[*at].entry.same_bytes(entry))
    }

    /// What has the same bytes: those of the same file, untouched since, or of one with the same strong hash.
    pub(super) fn same(&self, entry: &Entry, item: &Item, strong: Option<&blake3::Hash>) -> Option<&Item> {
        let candidates = self.by_sum.get(&(item.size, item.crc32c.clone()))?;
        let is_same = |sent: &&Sent| {
            let is_file = sent.entry.same_bytes(entry) && sent.item.chunks == item.chunks;
            is_file || strong.is_some() && sent.strong.as_ref() == strong
        };
        candidates.iter().map(|at| &self.sent[*at]).find(is_same).map(|sent| &sent.item)
    }
}

#[cfg(test)]
mod tests {
    use super::super::commit::Outcome;
    use super::super::mirror::{Mirror, MirrorConfig};
    use super::super::tests::config;

    #[tokio::test]
    async fn small_files_are_hashed_where_another_commit_may_follow_and_nowhere_else() {
        for only_sends in [false, true] {
            let place = tempfile::tempdir().expect("temporary directory");
            let config = MirrorConfig { only_sends, ..config(place.path()) };
            let unit = config.dir.join("step-1");
            std::fs::create_dir_all(&unit).expect("makes it");
            std::fs::write(unit.join("state"), "weights").expect("writes");
            let mut mirror = Mirror::open(config).await.expect("opens");
            let outcome = mirror.commit_newest(None, None, &|_, _| ()).await;
            assert!(matches!(outcome, Outcome::Committed { .. }), "{outcome:?}");
            assert_eq!(mirror.known.sent.len(), 1);
            assert_eq!(mirror.known.sent[0].strong.is_some(), !only_sends);
        }
    }
}
