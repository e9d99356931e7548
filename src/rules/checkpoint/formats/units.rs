//! The parts of a walk: units of known formats in their roots, and the rest.

use regex::Regex;

use super::exclude::Exclusions;
use super::layouts::{Format, Layout, Member, Proof, pattern};
use super::rest;
use crate::checkpoint::history::History;
use crate::checkpoint::listing::{Entry, Kind, Listing, Peek, join, name_of};

/// The input of a look.
#[derive(Clone, Copy)]
pub struct Scan<'a> {
    /// The walk.
    pub listing: &'a Listing,
    /// Reads bytes of its files.
    pub peek: &'a dyn Peek,
    /// The user's options.
    pub options: &'a Options,
}

impl Scan<'_> {
    /// The whole text of a small file (1 MiB at most).
    pub(in crate::checkpoint) fn text(&self, path: &str) -> Option<String> {
        let file = self.listing.file(path).filter(|f| f.size <= 1 << 20)?;
        String::from_utf8(self.peek.read(path, 0, file.size as usize)?).ok()
    }
}

/// The user's options about checkpoints.
#[derive(Debug, Clone, Default)]
pub struct Options {
    /// The formats to recognise.
    pub format: Format,
    /// The file that completes a checkpoint directory.
    pub marker: Option<String>,
    /// Finds the step in a path: the first group, else the whole match.
    pub step: Option<Regex>,
    /// Number of training processes that write into the directory, if known.
    pub world_size: Option<u32>,
    /// Paths that are never committed.
    pub exclusions: Exclusions,
    /// For files whose names differ only in numbers: the number of newest saves to commit.
    pub keep_saves: Option<u32>,
    /// Whether links that lead out of the checkpoint directory are followed.
    pub follow: bool,
}

impl Options {
    /// The step that `--step-regex` finds in a path: in its last part, with or without extension, or else in the whole
    /// path.
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
    /// The training step, if the format has one.
    pub step: Option<u64>,
    /// Its files, links and directories, by path.
    pub members: Vec<&'a Entry>,
    /// Whether it is a directory.
    pub is_directory: bool,
    /// Whether it is complete.
    pub state: UnitState,
    /// Its place among the units of its root: the look that saw its proof, and the time of the proof.
    pub(in crate::checkpoint) place: (u64, i64),
}

/// Whether a unit is complete, without regard to recent changes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum UnitState {
    /// Every file exists, and the save is proven to be finished.
    Complete,
    /// Why not, in one clause that names the file.
    Incomplete(String),
    /// Nothing proves that the save was finished. Why, in one clause.
    Unproven(String),
    /// Not checked, because a newer unit is complete.
    Older,
}

impl<'a> Unit<'a> {
    /// Whether it may be committed after it has settled.
    pub(in crate::checkpoint) fn is_good(&self) -> bool {
        matches!(self.state, UnitState::Complete | UnitState::Unproven(_))
    }

    /// The sort key by age: its place, its step, its name.
    pub(in crate::checkpoint) fn age(&self) -> (u64, i64, Option<u64>, &str) {
        (self.place.0, self.place.1, self.step, &self.path)
    }

    /// Its name with `#` for each number.
    pub(in crate::checkpoint) fn series(&self) -> String {
        rest::series(&self.key)
    }

    /// Its files and links.
    pub(in crate::checkpoint) fn leaves(&self) -> impl Iterator<Item = &'a Entry> + Clone {
        self.members.iter().copied().filter(|entry| entry.kind != Kind::Directory)
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
    /// Whether nothing but the absence of changes shows that its units are complete.
    pub(in crate::checkpoint) fn is_unprovable(&self) -> bool {
        matches!(self.layout.proof, Proof::Nothing)
    }
}

/// The part that each path belongs to.
#[derive(Debug, Clone, Default)]
pub struct Partition<'a> {
    /// Outer directories first.
    pub roots: Vec<Root<'a>>,
    /// Directories with the files of a format but without a unit that it proves. Their files belong to the rest.
    pub unproven: Vec<Root<'a>>,
    /// The files and links that belong to no root, by path.
    pub rest: Vec<&'a Entry>,
    /// Paths that are never committed, each with the pattern or the reason. Paths below them are not listed.
    pub excluded: Vec<(String, String)>,
}

/// One unit among those of its root, while it is judged.
pub(in crate::checkpoint) struct Case<'a, 'r> {
    pub(in crate::checkpoint) scan: &'r Scan<'a>,
    pub(in crate::checkpoint) history: &'r History,
    pub(in crate::checkpoint) root: &'r Root<'a>,
    /// The index of the unit in its root.
    pub(in crate::checkpoint) at: usize,
    /// The index of the newest unit. Its pointer also proves this unit, because a save begins after the one before has ended.
    pub(in crate::checkpoint) newest: usize,
}

impl<'a, 'r> Case<'a, 'r> {
    pub(in crate::checkpoint) fn unit(&self) -> &'r Unit<'a> {
        &self.root.units[self.at]
    }

    /// The directory that its members' paths are relative to.
    pub(in crate::checkpoint) fn base(&self) -> &'r str {
        if self.unit().is_directory { &self.unit().path } else { &self.root.dir }
    }

    /// Its files, each with its path from the base.
    pub(in crate::checkpoint) fn files(&self) -> impl Iterator<Item = (&'a Entry, &'a str)> + use<'a, 'r> {
        let length = self.base().len();
        let files = self.unit().members.iter().filter(|entry| entry.kind == Kind::File);
        files.map(move |entry| (*entry, entry.path[length..].trim_start_matches('/')))
    }

    /// The file with the shortest path that matches.
    pub(in crate::checkpoint) fn first(&self, text: &'static str) -> Option<&'a Entry> {
        let found = self.files().filter(|(_, path)| pattern(text).is_match(path));
        found.min_by_key(|(_, path)| (path.len(), *path)).map(|(entry, _)| entry)
    }

    /// The file of this path from the base.
    pub(in crate::checkpoint) fn file(&self, path: &str) -> Option<&'a Entry> {
        self.scan.listing.file(&join(self.base(), path))
    }

    /// Whether the file belongs to one rank.
    pub(in crate::checkpoint) fn is_per_rank(&self, path: &str) -> bool {
        let is_one = |m: &Member| matches!(m, Member::PerRank { file, .. } if pattern(file).is_match(path));
        self.root.layout.members.iter().any(is_one)
    }

    /// Whether its time cannot be compared with the proof's: another rank's file, which may be written later and by another
    /// clock. If rank 0 may write for all, it writes its own files before the proof.
    pub(in crate::checkpoint) fn is_unordered(&self, path: &str) -> bool {
        let is_one = |member: &Member| {
            let Member::PerRank { file, or_rank_0 } = member else { return false };
            let rank = pattern(file).captures(path).and_then(|found| found.get(1));
            rank.is_some_and(|rank| !or_rank_0 || rank.as_str() != "0")
        };
        self.root.layout.members.iter().any(is_one)
    }
}
