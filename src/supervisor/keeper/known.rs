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
    archives: HashMap<String, Archive>,
}

/// Bytes of the files in one.
#[derive(Debug, Default)]
struct Archive {
    /// When it was sent.
    all: u64,
    /// Of those that the last commit names.
    named: u64,
}

impl Archive {
    /// Whether so little of it is needed that this is sooner sent again than all of it kept.
    fn is_worn(&self) -> bool {
        self.named < self.all / 2
    }
}

impl Known {
    /// Of a commit after that of which `before` is.
    pub(super) fn new(sent: Vec<Sent>, before: &Known) -> Known {
        let mut known = Known { sent, ..Known::default() };
        for item in known.sent.iter().map(|sent| &sent.item).filter(|item| item.offset.is_some()) {
            known.archives.entry(item.key.clone()).or_default().named += item.size;
        }
        for (key, archive) in &mut known.archives {
            archive.all = before.archives.get(key).map_or(archive.named, |before| before.all);
        }
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
        let is_kept = |item: &&Item| !self.archives.get(&item.key).is_some_and(Archive::is_worn);
        candidates.iter().map(|at| &self.sent[*at]).filter(is_same).map(|sent| &sent.item).find(is_kept)
    }
}

#[cfg(test)]
mod tests {
    use super::super::commit::Outcome;
    use super::super::mirror::{Mirror, MirrorConfig};
    use super::super::tests::config;
    use super::*;
    use crate::rules::checkpoint::Kind;
    use crate::rules::checkpoint::manifest::{ItemKind, hex};

    /// A file of ten bytes in an archive under this key.
    fn in_archive(number: u32, key: &str) -> Sent {
        let path = format!("step-1/{number}");
        let entry = Entry {
            path: path.clone(),
            kind: Kind::File,
            size: 10,
            mtime_ns: 1,
            ctime_ns: 1,
            inode: u64::from(number),
            device: 1,
            mode: 0o644,
            through: None,
        };
        let item = Item {
            path,
            kind: ItemKind::File,
            size: 10,
            mode: 0o644,
            mtime_ns: 1,
            key: key.to_owned(),
            target: None,
            etag: None,
            offset: Some(512),
            generation: None,
            crc32c: hex(number),
            chunks: None,
            blake3: None,
        };
        Sent { entry, item, strong: None }
    }

    #[test]
    fn what_little_is_needed_of_an_archive_is_sent_again_so_that_the_archive_can_go() {
        let (first, second, third) = ("u/1-1/a.tar", "u/1-2/a.tar", "u/1-3/a.tar");
        let commit = |keys: [&str; 4], before: &Known| {
            let sent = keys.into_iter().zip(0..).map(|(key, number)| in_archive(number, key));
            Known::new(sent.collect(), before)
        };
        let is_known = |known: &Known, number| {
            let sent = in_archive(number, "");
            known.same(&sent.entry, &sent.item, None).is_some()
        };
        let all = commit([first; 4], &Known::default());
        let half = commit([first, first, second, second], &all);
        let quarter = commit([first, third, second, second], &half);
        for number in 0..4 {
            assert!(is_known(&all, number) && is_known(&half, number), "{number}");
            assert_eq!(is_known(&quarter, number), number != 0, "{number}");
        }
    }

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
