//! The content of a checkpoint directory as data: one entry for each name, from stat(2).
//!
//! Deliberately absent: the walk itself, and any reading of content except through [`Peek`].

use std::iter::successors;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// Trainit's own directory in a checkpoint directory and in a store.
pub const OWN: &str = ".trainit";

/// The type of an entry.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// A regular file.
    File,
    /// A directory.
    Directory,
    /// A symbolic link and its target.
    Symlink(String),
    /// An entry without content to copy, and why: a socket, a dangling link.
    #[serde(skip)]
    NoContent(#[serde(skip)] &'static str),
    /// An entry with content that cannot be copied, and why: a name that is not UTF-8. A copy without it is not whole.
    #[serde(skip)]
    Uncopyable(#[serde(skip)] &'static str),
}

/// One name under the checkpoint directory.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    /// Relative to the checkpoint directory, parts joined by `/`.
    pub path: String,
    /// Its type.
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
    /// Its absolute real path, if it was reached through a symbolic link.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub through: Option<PathBuf>,
}

impl Entry {
    /// A regular file for tests.
    #[cfg(test)]
    pub(crate) fn file(path: &str, size: u64) -> Entry {
        let (path, kind, mode) = (path.to_owned(), Kind::File, 0o644);
        Entry { path, kind, size, mtime_ns: 0, ctime_ns: 0, inode: 1, device: 1, mode, through: None }
    }

    /// The last part of the path.
    pub fn name(&self) -> &str {
        name_of(&self.path)
    }

    /// Size, modification time and inode.
    pub fn signature(&self) -> (u64, i64, u64) {
        (self.size, self.mtime_ns, self.inode)
    }

    /// Why it can never be copied.
    pub fn refused(&self) -> Option<&'static str> {
        match self.kind {
            Kind::NoContent(why) | Kind::Uncopyable(why) => Some(why),
            Kind::File | Kind::Directory | Kind::Symlink(_) => None,
        }
    }

    /// Whether this is still the same file with the same bytes, as far as stat(2) shows. The change time is not
    /// compared, because adding or removing a hard link changes it.
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

/// The path itself and its parent directories, the innermost first.
pub fn around(path: &str) -> impl Iterator<Item = &str> {
    successors(Some(path), |path| Some(parent_of(path)).filter(|parent| !parent.is_empty()))
}

/// Whether the path lies in this directory, at any depth.
pub fn is_below(path: &str, directory: &str) -> bool {
    path.strip_prefix(directory).is_some_and(|rest| rest.starts_with('/'))
}

/// Whether the path belongs to this unit: it is the unit or below it, or has it as its prefix before a dot (TensorFlow).
pub fn is_of_unit(path: &str, unit: &str) -> bool {
    path.strip_prefix(unit).is_some_and(|rest| rest.is_empty() || rest.starts_with(['/', '.']))
}

/// The text after the last dot; empty if there is none.
pub fn extension_of(name: &str) -> &str {
    name.rsplit_once('.').map_or("", |(_, extension)| extension)
}

/// `parent/name`, or the name alone at the top.
pub fn join(parent: &str, name: &str) -> String {
    if parent.is_empty() { name.to_owned() } else { format!("{parent}/{name}") }
}

/// Longest text of a symbolic link, bytes.
const LONGEST_TARGET: usize = 4095;

/// The path that a relative link at `path` leads to; `None` if it leaves the checkpoint directory, or cannot be a link.
pub(crate) fn end_of(path: &str, target: &str) -> Option<String> {
    if target.is_empty() || target.len() > LONGEST_TARGET || target.starts_with('/') || target.contains('\0') {
        return None;
    }
    let mut parts: Vec<&str> = parent_of(path).split('/').filter(|p| !p.is_empty()).collect();
    for part in target.split('/') {
        match part {
            "" | "." => {}
            ".." => drop(parts.pop()?),
            part => parts.push(part),
        }
    }
    Some(parts.join("/"))
}

/// A whole walk, sorted by path.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Listing {
    entries: Vec<Entry>,
}

impl Listing {
    /// From entries in any order. If two have the same path, one is the shown form of a name that is not UTF-8, and that
    /// one is kept.
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

    /// Everything below a directory, at any depth; the empty path is the top.
    pub fn below(&self, directory: &str) -> &[Entry] {
        if directory.is_empty() {
            return &self.entries;
        }
        let first = format!("{directory}/");
        let from = self.entries.partition_point(|e| e.path.as_str() < first.as_str());
        let inside = &self.entries[from..];
        &inside[..inside.partition_point(|e| e.path.starts_with(&first))]
    }

    /// The entries directly in a directory; the empty path is the top.
    pub fn within<'a>(&'a self, directory: &'a str) -> impl Iterator<Item = &'a Entry> {
        self.below(directory).iter().filter(move |e| parent_of(&e.path) == directory)
    }

    /// Every regular file.
    pub fn files(&self) -> impl Iterator<Item = &Entry> {
        self.entries.iter().filter(|e| e.kind == Kind::File)
    }
}

/// Reads a few bytes of a file of the listing. The caller implements it.
pub trait Peek {
    /// Up to `length` bytes from offset `from`; `None` if the file cannot be read.
    fn read(&self, path: &str, from: u64, length: usize) -> Option<Vec<u8>>;
}

/// `None`: there is no directory, so no file can be read.
impl<P: Peek> Peek for Option<P> {
    fn read(&self, path: &str, from: u64, length: usize) -> Option<Vec<u8>> {
        self.as_ref()?.read(path, from, length)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_entries_below_a_directory_exclude_itself_and_its_namesakes() {
        let paths = ["ab", "a", "a-1", "a-1/z", "a/x", "a/b/y", "a/b"];
        let listing = Listing::new(paths.map(|path| Entry::file(path, 1)).into());
        assert!(listing.below("a").iter().map(|e| &e.path).eq(["a/b", "a/b/y", "a/x"]));
        assert!(listing.within("a").map(|e| &e.path).eq(["a/b", "a/x"]));
        assert!(listing.within("").map(|e| &e.path).eq(["a", "a-1", "ab"]));
    }

    #[test]
    fn a_link_leads_to_a_path_in_the_directory_or_to_none() {
        let long = "./".repeat(2048);
        for (path, target, end) in [
            ("u/a", "b", Some("u/b")),
            ("u/d/a", "../b", Some("u/b")),
            ("u/a", "..", Some("")),
            ("u/a", &long[2..], Some("u")),
            ("u/a", &long, None),
            ("u/a", "../../b", None),
            ("u/a", "/etc/passwd", None),
            ("u/a", "", None),
        ] {
            assert_eq!(end_of(path, target).as_deref(), end, "{path} -> {target}");
        }
    }
}
