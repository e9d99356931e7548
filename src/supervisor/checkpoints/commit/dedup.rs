//! Files that are unchanged since the last commit, even if renamed, are not sent again. The manifest names their old key.

use std::collections::HashMap;

use crate::rules::checkpoint::Entry;
use crate::rules::store::manifest::{Item, ItemKind};

#[derive(Debug, Clone)]
pub(crate) struct Sent {
    /// The file in the directory.
    pub(crate) entry: Entry,
    /// Its item in the manifest.
    pub(crate) item: Item,
}

impl Sent {
    /// From stat(2) only: no key and no checksum.
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

    /// The committed item of this file, under its present name, if stat(2) shows no change.
    pub(crate) fn unchanged(&self, entry: &Entry) -> Option<Sent> {
        let sent = &self.sent[*self.by_file.get(&(entry.device, entry.inode))?];
        (!self.is_distrusted && sent.entry.same_bytes(entry)).then(|| Sent {
            entry: entry.clone(),
            item: Item { path: entry.path.clone(), mode: entry.mode, ..sent.item.clone() },
        })
    }

    pub(crate) fn of_path(&self, path: &str) -> Option<&Sent> {
        self.by_path.get(path).map(|at| &self.sent[*at])
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.sent.is_empty()
    }

    /// Updates the entry of a file that was put back from the store.
    pub(crate) fn put_back(&mut self, entry: Entry) {
        if let Some(at) = self.by_path.get(&entry.path).copied() {
            self.by_file.insert((entry.device, entry.inode), at);
            self.sent[at].entry = entry;
        }
    }

    /// The store may have lost some files: all are sent again.
    pub(crate) fn distrust(&mut self) {
        self.is_distrusted = true;
    }
}
