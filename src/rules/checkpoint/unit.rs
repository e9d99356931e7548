//! The words that recognisers share: what they look at, and what they find.
//!
//! A unit is what is copied, committed and restored as one: a file, a directory, or files with a common prefix.

use std::borrow::Cow;
use std::collections::BTreeSet;

use regex::Regex;

use super::aside::is_nobodys;
pub use super::aside::{is_bystander, is_temporary};
use super::listing::{Entry, Kind, Listing, Peek, around, is_below, name_of, parent_of};
use super::names::OWN;
use super::{check, containers};

/// Longest text of a symbolic link, bytes.
const LONGEST_TARGET: usize = 4095;

/// Of what has no path of its own to be restored to, and is written over by the next save.
pub(super) const IN_ITSELF: &str =
    "it lies in the checkpoint directory itself; save each checkpoint into a directory of its own there, as step-100";

/// What a recogniser looks at.
#[derive(Clone, Copy)]
pub struct Scan<'a> {
    /// The walk.
    pub listing: &'a Listing,
    /// A few bytes of any file of it.
    pub peek: &'a dyn Peek,
    /// What was asked for.
    pub options: &'a Options,
}

impl std::fmt::Debug for Scan<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Scan").field("options", &self.options).finish_non_exhaustive()
    }
}

/// What the user said about the checkpoints' form.
#[derive(Debug, Clone, Default)]
pub struct Options {
    /// The layout's name; `None` finds out.
    pub format: Option<String>,
    /// The file that completes a checkpoint directory.
    pub marker: Option<String>,
    /// Finds the step in a unit's name: the first group, else the whole match.
    pub step: Option<Regex>,
    /// Number of training processes that write into the directory, where it is known.
    pub world_size: Option<u32>,
    /// When these were started, since 1970: what was written before may be of fewer or more.
    pub begun_ns: i64,
    /// Whether other nodes train as well; each may have a directory of its own.
    pub has_other_nodes: bool,
    /// Whether links that lead out of a unit are followed.
    pub follow: bool,
    /// What is below this path is no checkpoint: the finished model.
    pub left_out: Option<String>,
    /// What beside steps is written over all the time ([`super::saved_over`]): no part of one, as none would ever lie still.
    pub restless: BTreeSet<String>,
}

impl Options {
    /// What of a walk may be of checkpoints.
    pub fn seen<'a>(&self, listing: &'a Listing) -> Cow<'a, Listing> {
        let nobodys = listing.directories().filter(|directory| is_nobodys(listing, directory)).map(|d| d.path.as_str());
        let out: BTreeSet<&str> = nobodys.chain(self.left_out.as_deref()).collect();
        if out.is_empty() { Cow::Borrowed(listing) } else { Cow::Owned(listing.without(&out)) }
    }
}

/// What may be a checkpoint.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Candidate {
    /// The file, directory or common prefix, relative to the checkpoint directory: what the framework loads.
    pub unit: String,
    /// The training step, where the name or the content tells.
    pub step: Option<u64>,
    /// Paths of its entries (files, symbolic links and directories), sorted.
    pub paths: Vec<String>,
    /// Those of them that each save writes over, under a name without a step ([`super::saved_over`]).
    pub fixed: Vec<String>,
}

impl Candidate {
    /// A unit of these entries.
    pub fn of(unit: String, step: Option<u64>, paths: Vec<String>) -> Candidate {
        Candidate { unit, step, paths, fixed: Vec::new() }
    }

    /// A unit of one file.
    pub fn file(entry: &Entry, step: Option<u64>) -> Candidate {
        Candidate::of(entry.path.clone(), step, vec![entry.path.clone()])
    }

    /// A unit of everything in a directory.
    pub fn directory(listing: &Listing, path: &str, step: Option<u64>) -> Candidate {
        let paths = listing.below(path).iter().map(|e| e.path.clone()).collect();
        Candidate::of(path.to_owned(), step, paths)
    }

    /// Its entries in the listing.
    pub fn entries<'a>(&'a self, listing: &'a Listing) -> impl Iterator<Item = &'a Entry> {
        self.paths.iter().filter_map(|path| listing.get(path))
    }

    /// Whether it is called by a file, be it one of several; else it is a directory, or what their names begin with.
    pub(super) fn is_file(&self, listing: &Listing) -> bool {
        listing.file(&self.unit).is_some()
    }

    /// Its regular files.
    pub fn files<'a>(&'a self, listing: &'a Listing) -> impl Iterator<Item = &'a Entry> {
        self.entries(listing).filter(|e| e.kind == Kind::File)
    }

    /// Its symbolic links that lead out of it.
    pub fn leaving<'a>(&'a self, listing: &'a Listing) -> impl Iterator<Item = &'a str> {
        let leaves = |e: &&Entry| matches!(&e.kind, Kind::Symlink(to) if !stays_inside(&e.path, to, &self.unit));
        self.entries(listing).filter(leaves).map(|e| e.path.as_str())
    }

    /// Whether each save writes over this one of its files.
    pub fn is_fixed(&self, path: &str) -> bool {
        self.fixed.iter().any(|fixed| fixed == path)
    }

    /// The newest modification time of its own files, nanoseconds since 1970: the next save may have written over the others.
    pub fn newest_ns(&self, listing: &Listing) -> i64 {
        self.files(listing).filter(|e| !self.is_fixed(&e.path)).map(|e| e.mtime_ns).max().unwrap_or(0)
    }

    /// Bytes of all its files.
    pub fn bytes(&self, listing: &Listing) -> u64 {
        self.files(listing).map(|e| e.size).sum()
    }
}

/// The paths that are of one of these.
pub(super) fn taken(units: &[Candidate]) -> BTreeSet<&str> {
    units.iter().flat_map(|unit| &unit.paths).map(String::as_str).collect()
}

impl Scan<'_> {
    /// The directories that are units, but for those inside one; `step` reads their names.
    pub(super) fn outermost(&self, is_unit: impl Fn(&str) -> bool, step: fn(&str) -> Option<u64>) -> Vec<Candidate> {
        let mut units: Vec<Candidate> = Vec::new();
        for path in self.listing.directories().map(|d| d.path.as_str()).filter(|path| is_unit(path)) {
            let is_inside = units.iter().any(|unit| is_below(path, &unit.unit));
            let step = self.step(path, step(name_of(path))).filter(|_| !is_inside);
            units.extend(step.map(|step| Candidate::directory(self.listing, path, step)));
        }
        units
    }

    /// The whole text of a small file (1 MiB at most).
    pub fn text(&self, path: &str) -> Option<String> {
        let file = self.listing.file(path).filter(|f| f.size <= 1 << 20)?;
        String::from_utf8(self.peek.read(path, 0, file.size as usize)?).ok()
    }

    /// Every file of the unit passes the check of its type, and nothing in it is refused.
    pub fn all_whole(&self, candidate: &Candidate) -> Result<(), String> {
        let mut files = 0;
        for entry in candidate.entries(self.listing).filter(|entry| !candidate.is_note(entry)) {
            match &entry.kind {
                Kind::File => {
                    check::whole(self.peek, entry)?;
                    if is_tensorflows(candidate, &entry.path) {
                        containers::table(self.peek, entry).map_err(|why| format!("{}: {why}", entry.path))?;
                    }
                    // What another run keeps of its own beside its checkpoints is none.
                    files += usize::from(!entry.path.split('/').any(|part| part == OWN));
                }
                Kind::Symlink(target) if !stays_inside(&entry.path, target, &candidate.unit) => {
                    return Err(format!(
                        "{}: a symbolic link that leaves the checkpoint ({target}); --follow-symlinks copies what it leads to",
                        entry.path
                    ));
                }
                Kind::Symlink(target) if self.leads_to_nothing(&entry.path, target) => {
                    return Err(format!("{}: what this link leads to, {target}, is not there", entry.path));
                }
                // What can never be copied was looked for before.
                Kind::Symlink(_) | Kind::Directory | Kind::Odd(_) | Kind::Lost(_) => {}
            }
        }
        self.indexed_files_there(candidate)?;
        if files == 0 { Err("it holds no file".to_owned()) } else { Ok(()) }
    }

    /// Whether nothing is where a link in a unit leads, as far as no other link is on the way.
    fn leads_to_nothing(&self, path: &str, target: &str) -> bool {
        let end = end_of(path, target).unwrap_or_default();
        let on_the_way = around(&end).find_map(|path| self.listing.get(path));
        self.listing.get(&end).is_none() && on_the_way.is_none_or(|e| !matches!(e.kind, Kind::Symlink(_)))
    }

    /// The step of a unit whose name a rule read as `otherwise`; `--step-regex` has the first word: it is held against the
    /// last part of the path, with its extension or without. `None` for a name that it does not match: no checkpoint.
    pub fn step(&self, unit: &str, otherwise: Option<u64>) -> Option<Option<u64>> {
        let Some(regex) = &self.options.step else { return Some(otherwise) };
        let name = name_of(unit);
        let stem = || name.rsplit_once('.').and_then(|(stem, _)| regex.captures(stem));
        let found = regex.captures(name).or_else(stem)?;
        let digits = found.get(1).or_else(|| found.get(0))?.as_str();
        digits.parse().ok().map(Some)
    }
}

/// Whether this is an index of TensorFlow's: data lies beside it. Others call files so, too (FAISS).
fn is_tensorflows(candidate: &Candidate, path: &str) -> bool {
    path.strip_suffix(".index").is_some_and(|prefix| {
        let is_data = |other: &String| other.strip_prefix(prefix).is_some_and(|rest| rest.starts_with(".data-"));
        candidate.paths.iter().any(is_data)
    })
}

/// Whether a symbolic link at `path` can have this target, which is relative and ends inside the unit, or at its root.
pub fn stays_inside(path: &str, target: &str, unit: &str) -> bool {
    end_of(path, target).is_some_and(|end| end == unit || is_below(&end, unit))
}

/// Where a relative link at `path` leads; `None` where it leaves the checkpoint directory, or can be no link.
pub(super) fn end_of(path: &str, target: &str) -> Option<String> {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_expression_finds_the_step_in_the_name_and_not_in_the_path() {
        let (listing, memory) = (Listing::default(), super::super::listing::tests::Memory::default());
        let step = |expression: &str, unit: &str| {
            let options = Options { step: Some(Regex::new(expression).expect("compiles")), ..Options::default() };
            Scan { listing: &listing, peek: &memory, options: &options }.step(unit, Some(7))
        };
        assert_eq!(step(r"(\d+)", "run1/ckpt_100"), Some(Some(100)));
        assert_eq!(step(r"^ckpt_(\d+)$", "run1/ckpt_100"), Some(Some(100)));
        assert_eq!(step(r"^ckpt_(\d+)$", "ckpt_100.pt"), Some(Some(100)));
        assert_eq!(step(r"(\d+)\.pt$", "ckpt_100.pt"), Some(Some(100)));
        assert_eq!(step(r"run(\d+)", "run1/ckpt_100"), None);
    }

    #[test]
    fn a_link_must_end_inside_its_unit() {
        assert!(stays_inside("u/a", "b", "u"));
        assert!(stays_inside("u/d/a", "../b", "u"));
        assert!(stays_inside("u/d/a", "..", "u") && stays_inside("u/a", ".", "u"), "the root is not outside");
        assert!(!stays_inside("u/d/a", "../..", "u") && !stays_inside("u/a", "..", "u"));
        assert!(stays_inside("u/a", &"./".repeat(2047), "u") && !stays_inside("u/a", &"./".repeat(2048), "u"));
        assert!(!stays_inside("u/a", "../b", "u"));
        assert!(!stays_inside("u/a", "/etc/passwd", "u"));
        assert!(!stays_inside("u/a", "../../../etc/passwd", "u"));
        assert!(!stays_inside("u/a", "../u2/x", "u"));
    }
}
