//! Files that are unchanged since the last commit are not uploaded again, also under another name. The manifest names their
//! old key.

use std::collections::HashMap;

use crate::rules::checkpoint::Entry;
use crate::rules::store::manifest::{Item, ItemKind};

#[derive(Debug, Clone)]
pub(crate) struct Sent {
    /// As the walk saw it.
    pub(crate) entry: Entry,
    /// As the manifest has it.
    pub(crate) item: Item,
}

impl Sent {
    /// What stat says of it, and nothing of its bytes.
    pub(crate) fn of(entry: &Entry, kind: ItemKind) -> Sent {
        let item = Item {
            path: entry.path.clone(),
            kind,
            size: if kind == ItemKind::File { entry.size } else { 0 },
            mode: entry.mode,
            mtime_ns: entry.mtime_ns,
            key: String::new(),
            target: None,
            etag: None,
            offset: None,
            crc32c: String::new(),
            chunks: None,
        };
        Sent { entry: entry.clone(), item }
    }
}

/// The files of the last commit.
#[derive(Debug, Default)]
pub(crate) struct Known {
    sent: Vec<Sent>,
    by_path: HashMap<String, usize>,
    by_file: HashMap<(u64, u64), usize>,
    /// The store may have lost some.
    is_distrusted: bool,
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

impl Known {
    /// Of a commit after that of which `before` is.
    pub(crate) fn new(sent: Vec<Sent>, before: &Known) -> Known {
        let mut known = Known { sent, ..Known::default() };
        for (at, Sent { entry, item }) in known.sent.iter().enumerate() {
            known.by_path.insert(entry.path.clone(), at);
            if item.kind == ItemKind::File {
                known.by_file.insert((entry.device, entry.inode), at);
            }
            if item.offset.is_some() {
                known.archives.entry(item.key.clone()).or_default().named += item.size;
            }
        }
        for (key, archive) in &mut known.archives {
            archive.all = before.archives.get(key).map_or(archive.named, |before| before.all);
        }
        known
    }

    /// What was sent of this file, where stat says that it has not changed since, under the name that it has now.
    pub(crate) fn unchanged(&self, entry: &Entry) -> Option<Sent> {
        let sent = &self.sent[*self.by_file.get(&(entry.device, entry.inode))?];
        // So little of an archive may be needed that this is sooner sent again than all of it kept.
        let is_worn = self.archives.get(&sent.item.key).is_some_and(|archive| archive.named < archive.all / 2);
        (!self.is_distrusted && !is_worn && sent.entry.same_bytes(entry)).then(|| Sent {
            entry: entry.clone(),
            item: Item { path: entry.path.clone(), mode: entry.mode, ..sent.item.clone() },
        })
    }

    /// What was sent under this path.
    pub(crate) fn of_path(&self, path: &str) -> Option<&Sent> {
        self.by_path.get(path).map(|at| &self.sent[*at])
    }

    /// The file of this path was put back from the store, and lies there so now.
    pub(crate) fn lies_now_as(&mut self, entry: Entry) {
        if let Some(at) = self.by_path.get(&entry.path).copied() {
            self.by_file.insert((entry.device, entry.inode), at);
            self.sent[at].entry = entry;
        }
    }

    /// The store may have lost some of it: what lies here is sent again.
    pub(crate) fn distrust(&mut self) {
        self.is_distrusted = true;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rules::checkpoint::Kind;

    /// A file of ten bytes in an archive under this key.
    fn in_archive(number: u32, key: &str) -> Sent {
        let entry = Entry {
            path: format!("step-1/{number}"),
            kind: Kind::File,
            size: 10,
            mtime_ns: 1,
            ctime_ns: 1,
            inode: u64::from(number),
            device: 1,
            mode: 0o644,
            through: None,
        };
        let mut sent = Sent::of(&entry, ItemKind::File);
        (sent.item.key, sent.item.offset) = (key.to_owned(), Some(512));
        sent
    }

    #[test]
    fn a_file_is_known_by_any_name_until_too_little_of_its_archive_is_needed() {
        let (first, second, third) = ("u/1-1/a.tar", "u/1-2/a.tar", "u/1-3/a.tar");
        let commit = |keys: [&str; 4], before: &Known| {
            let sent = keys.into_iter().zip(0..).map(|(key, number)| in_archive(number, key));
            Known::new(sent.collect(), before)
        };
        let all = commit([first; 4], &Known::default());
        let half = commit([first, first, second, second], &all);
        let quarter = commit([first, third, second, second], &half);
        for number in 0..4 {
            let moved = Entry { path: format!("step-2/{number}"), ..in_archive(number, "").entry };
            let known = |known: &Known| known.unchanged(&moved).map(|sent| sent.item.path);
            assert_eq!([known(&all), known(&half)], [Some(moved.path.clone()), Some(moved.path.clone())]);
            assert_eq!(known(&quarter).is_some(), number != 0, "{number}");
        }
    }
}
