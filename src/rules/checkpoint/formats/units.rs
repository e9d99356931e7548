//! What a walk is divided into: units of known formats in their roots, and the rest.

use regex::Regex;

use super::exclude::Exclusions;
use super::layouts::{Format, Layout, Member, Proof, pattern};
use crate::checkpoint::history::History;
use crate::checkpoint::listing::{Entry, Kind, Listing, Peek, join, name_of};

/// What is looked at.
#[derive(Clone, Copy)]
pub struct Scan<'a> {
    /// The walk.
    pub listing: &'a Listing,
    /// A few bytes of any file of it.
    pub peek: &'a dyn Peek,
    /// What was asked for.
    pub options: &'a Options,
}

impl Scan<'_> {
    /// The whole text of a small file (1 MiB at most).
    pub(in crate::checkpoint) fn text(&self, path: &str) -> Option<String> {
        let file = self.listing.file(path).filter(|f| f.size <= 1 << 20)?;
        String::from_utf8(self.peek.read(path, 0, file.size as usize)?).ok()
    }
}

/// What the user said about the checkpoints.
#[derive(Debug, Clone, Default)]
pub struct Options {
    /// Which formats are looked for.
    pub format: Format,
    /// The file that completes a checkpoint directory.
    pub marker: Option<String>,
    /// Finds the step in a path: the first group, else the whole match.
    pub step: Option<Regex>,
    /// Number of training processes that write into the directory, where it is known.
    pub world_size: Option<u32>,
    /// What never is part of a commit.
    pub exclusions: Exclusions,
    /// Of files whose names differ only in numbers, those of so many newest saves are committed.
    pub keep_saves: Option<u32>,
    /// Whether links that lead out of the checkpoint directory are followed.
    pub follow: bool,
}

impl Options {
    /// The step that `--step-regex` finds in a path: in its last part, with its extension or without, else in all of it.
    pub(in crate::checkpoint) fn step_in(&self, path: &str) -> Option<u64> {
        let regex = self.step.as_ref()?;
        let name = name_of(path);
        let stem = name.rsplit_once('.').map_or(name, |(stem, _)| stem);
        let found = [name, stem, path].into_iter().find_map(|text| regex.captures(text))?;
        found.get(1).or_else(|| found.get(0))?.as_str().parse().ok()
    }
}

/// One checkpoint of a format.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unit<'a> {
    /// What the framework loads: a file, a directory or a common prefix, relative to the checkpoint directory; empty for the
    /// checkpoint directory itself.
    pub path: String,
    /// Its name in its root.
    pub key: String,
    /// The training step, where the format tells.
    pub step: Option<u64>,
    /// Its files, links and directories, by path.
    pub members: Vec<&'a Entry>,
    /// Whether it is a directory.
    pub is_directory: bool,
    /// Whether it is complete.
    pub state: UnitState,
}

/// Whether a unit is complete, apart from whether it lies still.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum UnitState {
    /// Everything is there, and the save is proven.
    Complete,
    /// Why not, in one clause that names the file.
    Incomplete(String),
    /// Nothing proves that the save was finished. Why, in one clause.
    Unproven(String),
    /// Not looked at, since a newer one is complete.
    Older,
}

impl Unit<'_> {
    /// Whether it may be committed once it lies still.
    pub(in crate::checkpoint) fn is_good(&self) -> bool {
        matches!(self.state, UnitState::Complete | UnitState::Unproven(_))
    }

    /// How new it is: the last look that saw it change, then its files' times, then its step and name.
    pub(in crate::checkpoint) fn age(&self, history: &History) -> (u64, i64, Option<u64>, String) {
        let files = self.members.iter().filter(|entry| entry.kind != Kind::Directory);
        let (look, time) = files.map(|entry| (history.look_of(entry), entry.mtime_ns)).max().unwrap_or_default();
        (look, time, self.step, self.path.clone())
    }
}

/// A directory that holds units of one format.
#[derive(Debug, Clone)]
pub struct Root<'a> {
    /// Relative to the checkpoint directory; empty for itself.
    pub dir: String,
    /// The format's row.
    pub layout: &'static Layout,
    /// Its units, newest first.
    pub units: Vec<Unit<'a>>,
    /// The files and links in it that name its newest unit.
    pub pointers: Vec<&'a Entry>,
}

impl Root<'_> {
    /// Whether nothing proves its units but that they lie still.
    pub(in crate::checkpoint) fn is_unprovable(&self) -> bool {
        matches!(self.layout.proof, Proof::Nothing)
    }
}

/// What each path belongs to.
#[derive(Debug, Clone, Default)]
pub struct Partition<'a> {
    /// Outer directories first.
    pub roots: Vec<Root<'a>>,
    /// The files and links that belong to no root, by path.
    pub rest: Vec<&'a Entry>,
    /// Paths that are never committed, and the pattern or the reason. What lies below one is not named.
    pub excluded: Vec<(String, String)>,
}

/// One unit among those of its root, while it is judged.
pub(in crate::checkpoint) struct Case<'a, 'r> {
    pub(in crate::checkpoint) scan: &'r Scan<'a>,
    pub(in crate::checkpoint) history: &'r History,
    pub(in crate::checkpoint) root: &'r Root<'a>,
    /// Which unit of the root is meant.
    pub(in crate::checkpoint) at: usize,
    /// A pointer that names a unit from this one on proves it: its save was over when the later one's was.
    pub(in crate::checkpoint) newest: usize,
}

impl<'a, 'r> Case<'a, 'r> {
    pub(in crate::checkpoint) fn unit(&self) -> &'r Unit<'a> {
        &self.root.units[self.at]
    }

    /// Where its members' paths are counted from.
    pub(in crate::checkpoint) fn base(&self) -> &'r str {
        if self.unit().is_directory { &self.unit().path } else { &self.root.dir }
    }

    /// Its files, each with its path from the base.
    pub(in crate::checkpoint) fn files(&self) -> impl Iterator<Item = (&'a Entry, &'a str)> + use<'a, 'r> {
        let length = self.base().len();
        let files = self.unit().members.iter().filter(|entry| entry.kind == Kind::File);
        files.map(move |entry| (*entry, entry.path[length..].trim_start_matches('/')))
    }

    /// The first of its files that matches, by the length of its path.
    pub(in crate::checkpoint) fn first(&self, text: &'static str) -> Option<&'a Entry> {
        let found = self.files().filter(|(_, path)| pattern(text).is_match(path));
        found.min_by_key(|(_, path)| (path.len(), *path)).map(|(entry, _)| entry)
    }

    /// The file of this path from the base.
    pub(in crate::checkpoint) fn file(&self, path: &str) -> Option<&'a Entry> {
        self.scan.listing.file(&join(self.base(), path))
    }

    /// Whether it is the file of one rank.
    pub(in crate::checkpoint) fn is_per_rank(&self, path: &str) -> bool {
        let is_one = |m: &Member| matches!(m, Member::PerRank { file, .. } if pattern(file).is_match(path));
        self.root.layout.members.iter().any(is_one)
    }

    /// Whether it may be written after the proof, or by another clock: another rank's file. A rank 0 that may write for all
    /// writes its own files before the proof.
    pub(in crate::checkpoint) fn is_unordered(&self, path: &str) -> bool {
        let is_one = |member: &Member| {
            let Member::PerRank { file, or_rank_0 } = member else { return false };
            let rank = pattern(file).captures(path).and_then(|found| found.get(1));
            rank.is_some_and(|rank| !or_rank_0 || rank.as_str() != "0")
        };
        self.root.layout.members.iter().any(is_one)
    }
}
