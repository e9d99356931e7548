//! What a checkpoint format says of itself: a layout is one file here, and one line in [`super::LAYOUTS`].

use serde::{Deserialize, Serialize};

use super::listing::{join, parent_of};
use super::memo::Memo;
use super::unit::{Candidate, Scan};

/// A small file or link beside the units that names the newest one; committed with the unit, restored last.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pointer {
    /// The text of the file, or what the link says.
    pub content: String,
    /// Relative to the checkpoint directory.
    pub path: String,
    /// Whether it is a symbolic link.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub symlink: bool,
}

impl Pointer {
    /// The file of this name beside the unit, where there is one, saying this.
    pub(super) fn file(scan: &Scan, unit: &Candidate, name: &str, content: String) -> Option<Pointer> {
        let path = join(parent_of(&unit.unit), name);
        scan.listing.file(&path)?;
        Some(Pointer { path, content, symlink: false })
    }
}

/// One way of writing checkpoints.
#[derive(Debug)]
pub struct Layout {
    /// For `--checkpoint-format` and the manifest.
    pub name: &'static str,
    /// What gives it away, for people.
    pub evidence: &'static str,
    /// Everything of this form, finished or not, in any order. Cheap: names, and at most a pointer file's text.
    pub find: fn(&Scan) -> Vec<Candidate>,
    /// Whether one of them is complete, quiescence apart. Errors: what is missing, in one clause.
    pub complete: fn(&Scan, &Candidate, &Memo) -> Result<(), String>,
    /// Whose choice it is what a checkpoint is made of.
    pub makeup: Makeup,
    /// Whether others hand finished models out in this form, to begin from.
    pub is_handed_out: bool,
    /// Whether its trainer does not start, or cannot save, where a save that was cut off lies above what it goes on from, whatever
    /// a pointer names.
    pub fails_beside_later: bool,
    /// What shows that a unit was cut off, whatever a pointer names, where a later save of that step would pass for whole with
    /// what is left of it.
    pub cut_off: fn(&Scan, &Candidate) -> Option<String>,
    /// The pointers that shall name this unit.
    pub pointers: fn(&Scan, &Candidate) -> Vec<Pointer>,
    /// What a state file says of the order of those found, which come newest first.
    pub order: fn(&Scan, &mut [Candidate]),
    /// The step that the trainer itself calls the best so far, where the files of the unit say so.
    pub best_step: fn(&Scan, &Candidate) -> Option<u64>,
    /// What its trainer makes of our own directory beside this one, in one clause, where it cannot bear it.
    pub stumbles: fn(&Candidate) -> Option<&'static str>,
}

/// Whose choice it is what a checkpoint is made of: so much the step before tells of whether one is through.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Makeup {
    /// The layout's: it says itself when the last file is there.
    Told,
    /// The library's: the same files again at each step.
    SameAgain,
    /// The trainer's, which may leave out what it likes but for the files of its ranks.
    Free,
    /// The trainer's, and a checkpoint is a file: other libraries' files may belong to it.
    OneFile,
    /// Anybody's: nothing but a name with a step gives it away.
    Anybodys,
}

impl Makeup {
    /// Whether no library stands behind it that writes its files in an order of its own.
    pub fn is_anybodys(self) -> bool {
        matches!(self, Makeup::OneFile | Makeup::Anybodys)
    }
}

impl Layout {
    /// One without pointers and state files, of what the trainer likes.
    pub const fn of(
        name: &'static str,
        evidence: &'static str,
        find: fn(&Scan) -> Vec<Candidate>,
        complete: fn(&Scan, &Candidate, &Memo) -> Result<(), String>,
    ) -> Layout {
        Layout {
            name,
            evidence,
            find,
            complete,
            makeup: Makeup::Free,
            is_handed_out: false,
            fails_beside_later: false,
            cut_off: |_, _| None,
            pointers: |_, _| Vec::new(),
            order: |_, _| {},
            best_step: |_, _| None,
            stumbles: |_| None,
        }
    }
}
