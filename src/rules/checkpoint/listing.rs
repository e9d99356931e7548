//! What lies under a checkpoint directory, as data: one entry for each name, as stat(2) told it.
//!
//! Deliberately absent: how the walk is made, and any reading of content but through [`Peek`], which is handed in.

use std::collections::BTreeSet;
use std::iter::successors;
use std::path::PathBuf;

/// What an entry is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Kind {
    /// A regular file.
    File,
    /// A directory.
    Directory,
    /// A symbolic link and what it says.
    Symlink(String),
    /// What can never be copied and holds nothing, and why: a socket, a link to nothing.
    Odd(&'static str),
    /// What holds something and cannot be copied, and why: a name that is not UTF-8. A copy without it is not whole.
    Lost(&'static str),
}

/// One name under the checkpoint directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// Relative to the checkpoint directory, parts joined by `/`.
    pub path: String,
    /// What it is.
    pub kind: Kind,
    /// Bytes.
    pub size: u64,
    /// Modification time, nanoseconds since 1970.
    pub mtime_ns: i64,
    /// Change time, nanoseconds since 1970.
    pub ctime_ns: i64,
    /// Inode number.
    pub inode: u64,
    /// Device number.
    pub device: u64,
    /// Permission bits, `mode & 0o777`.
    pub mode: u32,
    /// Where it really lies, absolute, when a symbolic link was followed to it.
    pub through: Option<PathBuf>,
}

impl Entry {
    /// The last part of the path.
    pub fn name(&self) -> &str {
        name_of(&self.path)
    }

    /// Why it can never be copied.
    pub fn refused(&self) -> Option<&'static str> {
        match self.kind {
            Kind::Odd(why) | Kind::Lost(why) => Some(why),
            Kind::File | Kind::Directory | Kind::Symlink(_) => None,
        }
    }

    /// Whether this is still the same file with the same bytes, as far as stat can tell. A hard link made or lost moves
    /// only the change time, so that is left out.
    pub fn same_bytes(&self, other: &Entry) -> bool {
        self.kind == other.kind
            && self.size == other.size
            && self.mtime_ns == other.mtime_ns
            && self.inode == other.inode
            && self.device == other.device
    }
}

/// The last part of a path.
pub fn name_of(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}

/// The path without its last part; empty for a name at the top.
pub fn parent_of(path: &str) -> &str {
    path.rsplit_once('/').map_or("", |(parent, _)| parent)
}

/// The path itself and the directories around it, the innermost first.
pub fn around(path: &str) -> impl Iterator<Item = &str> {
    successors(Some(path), |path| Some(parent_of(path)).filter(|parent| !parent.is_empty()))
}

/// Whether it lies in this directory, at any depth.
pub fn is_below(path: &str, directory: &str) -> bool {
    path.strip_prefix(directory).is_some_and(|rest| rest.starts_with('/'))
}

/// The name without its extension.
pub fn stem_of(name: &str) -> &str {
    name.rsplit_once('.').map_or(name, |(stem, _)| stem)
}

/// What comes after the last dot; empty where there is none.
pub fn extension_of(name: &str) -> &str {
    name.rsplit_once('.').map_or("", |(_, extension)| extension)
}

/// `parent/name`, or the name alone at the top.
pub fn join(parent: &str, name: &str) -> String {
    if parent.is_empty() { name.to_owned() } else { format!("{parent}/{name}") }
}

/// A whole walk, sorted by path.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Listing {
    entries: Vec<Entry>,
}

impl Listing {
    /// From entries in any order. Of two with the same path one is a name that had to be put otherwise: that one stays.
    pub fn new(mut entries: Vec<Entry>) -> Listing {
        entries.sort_by(|a, b| (&a.path, a.refused().is_none()).cmp(&(&b.path, b.refused().is_none())));
        entries.dedup_by(|later, first| later.path == first.path);
        Listing { entries }
    }

    /// Every entry, by path.
    pub fn entries(&self) -> &[Entry] {
        &self.entries
    }

    /// The entry of this path.
    pub fn get(&self, path: &str) -> Option<&Entry> {
        self.entries.binary_search_by(|e| e.path.as_str().cmp(path)).ok().map(|at| &self.entries[at])
    }

    /// The regular file of this path.
    pub fn file(&self, path: &str) -> Option<&Entry> {
        self.get(path).filter(|e| e.kind == Kind::File)
    }

    /// Everything below a directory, at any depth.
    pub fn below(&self, directory: &str) -> &[Entry] {
        let first = format!("{directory}/");
        let from = self.entries.partition_point(|e| e.path.as_str() < first.as_str());
        let count = self.entries[from..].partition_point(|e| e.path.starts_with(&first));
        &self.entries[from..from + count]
    }

    /// When a file below this directory was last written, since 1970.
    pub fn newest_ns(&self, directory: &str) -> i64 {
        self.below(directory).iter().filter(|e| e.kind == Kind::File).map(|e| e.mtime_ns).max().unwrap_or(0)
    }

    /// All but these directories and what is below them.
    pub fn without(&self, directories: &BTreeSet<&str>) -> Listing {
        let is_other = |e: &&Entry| !around(&e.path).any(|path| directories.contains(path));
        Listing { entries: self.entries.iter().filter(is_other).cloned().collect() }
    }

    /// What lies directly in a directory; the empty path is the top.
    pub fn within<'a>(&'a self, directory: &'a str) -> impl Iterator<Item = &'a Entry> {
        let all = if directory.is_empty() { &self.entries[..] } else { self.below(directory) };
        all.iter().filter(move |e| parent_of(&e.path) == directory)
    }

    /// Every directory.
    pub fn directories(&self) -> impl Iterator<Item = &Entry> {
        self.entries.iter().filter(|e| e.kind == Kind::Directory)
    }

    /// Every regular file.
    pub fn files(&self) -> impl Iterator<Item = &Entry> {
        self.entries.iter().filter(|e| e.kind == Kind::File)
    }
}

/// Reads a few bytes of a file of the listing. Whoever has the files hands this in.
pub trait Peek {
    /// Up to `length` bytes from `from` on; `None` when the file cannot be read.
    fn read(&self, path: &str, from: u64, length: usize) -> Option<Vec<u8>>;
}

#[cfg(test)]
pub(crate) mod tests {
    use super::super::check::tests::whole_file;
    use super::super::{Options, Scan};
    use super::*;
    use std::cell::Cell;
    use std::collections::BTreeMap;

    /// Files in memory: path to content; a path that ends in `/` is a directory.
    #[derive(Clone, Default)]
    pub(crate) struct Memory(pub(crate) BTreeMap<String, Vec<u8>>, pub(crate) BTreeMap<String, i64>);

    impl Memory {
        pub(crate) fn of<B: AsRef<[u8]>>(files: &[(&str, B)]) -> Memory {
            let files = files.iter().map(|(path, bytes)| ((*path).to_owned(), bytes.as_ref().to_vec())).collect();
            Memory(files, BTreeMap::new())
        }

        pub(crate) fn with(mut self, path: &str, bytes: impl AsRef<[u8]>) -> Memory {
            self.0.insert(path.to_owned(), bytes.as_ref().to_vec());
            self
        }

        /// Each of these, whole.
        pub(crate) fn saved(self, names: &[&str]) -> Memory {
            names.iter().fold(self, |memory, name| memory.with(name, whole_file(name)))
        }

        /// Each of these, whole, so many seconds after the one before.
        pub(crate) fn in_turn(names: &[&str], seconds: i64) -> Memory {
            let at = |memory: Memory, (at, name): (i64, &&str)| memory.at(name, at * seconds * 1_000_000_000);
            (1..).zip(names).fold(Memory::default().saved(names), at)
        }

        /// What a rule says of it.
        pub(crate) fn scanned<T>(&self, options: &Options, rule: impl FnOnce(&Scan) -> T) -> T {
            rule(&Scan { listing: &self.listing(), peek: self, options })
        }

        pub(crate) fn without(mut self, path: &str) -> Memory {
            self.0.remove(path).unwrap_or_else(|| panic!("no {path}"));
            self
        }

        pub(crate) fn at(mut self, path: &str, mtime_ns: i64) -> Memory {
            self.1.insert(path.to_owned(), mtime_ns);
            self
        }

        pub(crate) fn listing(&self) -> Listing {
            let mut entries: BTreeMap<String, Entry> = BTreeMap::new();
            let entry = |path: &str, kind: Kind, size: usize| Entry {
                path: path.to_owned(),
                kind,
                size: size as u64,
                mtime_ns: self.1.get(path).copied().unwrap_or(1),
                ctime_ns: 1,
                inode: path.len() as u64,
                device: 1,
                mode: 0o644,
                through: None,
            };
            for (path, bytes) in &self.0 {
                let path = path.trim_end_matches('/');
                let mut parent = parent_of(path);
                while !parent.is_empty() {
                    entries.entry(parent.to_owned()).or_insert_with(|| entry(parent, Kind::Directory, 0));
                    parent = parent_of(parent);
                }
                let text = String::from_utf8_lossy(bytes);
                let kind = match text.strip_prefix("-> ") {
                    Some(target) => Kind::Symlink(target.to_owned()),
                    None if self.0.contains_key(&format!("{path}/")) => Kind::Directory,
                    None => Kind::File,
                };
                entries.insert(path.to_owned(), entry(path, kind, bytes.len()));
            }
            Listing::new(entries.into_values().collect())
        }
    }

    impl Peek for Memory {
        fn read(&self, path: &str, from: u64, length: usize) -> Option<Vec<u8>> {
            let bytes = self.0.get(path)?;
            let from = (from as usize).min(bytes.len());
            Some(bytes[from..(from + length).min(bytes.len())].to_vec())
        }
    }

    /// Counts what is read of them.
    pub(crate) struct Counting {
        pub(crate) memory: Memory,
        pub(crate) times: Cell<usize>,
        pub(crate) bytes: Cell<usize>,
        pub(crate) most_at_once: Cell<usize>,
    }

    impl Counting {
        pub(crate) fn of<B: AsRef<[u8]>>(name: &str, content: B) -> Counting {
            let memory = Memory::of(&[(name, content)]);
            Counting { memory, times: Cell::default(), bytes: Cell::default(), most_at_once: Cell::default() }
        }
    }

    impl Peek for Counting {
        fn read(&self, path: &str, from: u64, length: usize) -> Option<Vec<u8>> {
            let bytes = self.memory.read(path, from, length)?;
            self.times.update(|times| times + 1);
            self.bytes.update(|read| read + bytes.len());
            self.most_at_once.update(|most| most.max(bytes.len()));
            Some(bytes)
        }
    }

    #[test]
    fn below_a_directory_is_neither_its_namesakes_nor_itself() {
        let memory = Memory::of(&[("a/x", "1"), ("a/b/y", "1"), ("a-1/z", "1"), ("ab", "1")]);
        let listing = memory.listing();
        let paths: Vec<&str> = listing.below("a").iter().map(|e| e.path.as_str()).collect();
        assert_eq!(paths, ["a/b", "a/b/y", "a/x"]);
        let paths: Vec<&str> = listing.within("a").map(|e| e.path.as_str()).collect();
        assert_eq!(paths, ["a/b", "a/x"]);
        let paths: Vec<&str> = listing.within("").map(|e| e.path.as_str()).collect();
        assert_eq!(paths, ["a", "a-1", "ab"]);
    }
}
