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
}

impl Known {
    pub(crate) fn new(sent: Vec<Sent>) -> Known {
        let mut known = Known { sent, ..Known::default() };
        for (at, Sent { entry, item }) in known.sent.iter().enumerate() {
            known.by_path.insert(entry.path.clone(), at);
            if item.kind == ItemKind::File {
                known.by_file.insert((entry.device, entry.inode), at);
            }
        }
        known
    }

    /// What was sent of this file, where stat says that it has not changed since, under the name that it has now.
    pub(crate) fn unchanged(&self, entry: &Entry) -> Option<Sent> {
        let sent = &self.sent[*self.by_file.get(&(entry.device, entry.inode))?];
        (!self.is_distrusted && sent.entry.same_bytes(entry)).then(|| Sent {
            entry: entry.clone(),
            item: Item { path: entry.path.clone(), mode: entry.mode, ..sent.item.clone() },
        })
    }

    /// What was sent under this path.
    pub(crate) fn of_path(&self, path: &str) -> Option<&Sent> {
        self.by_path.get(path).map(|at| &self.sent[*at])
    }

    /// The file of this path was put back from the store, and this is its entry now.
    pub(crate) fn lies_now_as(&mut self, entry: Entry) {
        if let Some(at) = self.by_path.get(&entry.path).copied() {
            self.by_file.insert((entry.device, entry.inode), at);
            self.sent[at].entry = entry;
        }
    }

    /// The store may have lost some of it: the files here are sent again.
    pub(crate) fn distrust(&mut self) {
        self.is_distrusted = true;
    }
}
