//! The warning that something waits for too long.

use std::collections::{BTreeMap, BTreeSet};

/// The number of looks with new uncommitted content before a warning.
const LOOKS: u32 = 10;

/// Why a part is not ready: the kind of problem, the path, and the text.
pub(super) type Trouble = (&'static str, String, String);

/// The path that each part waits for, and the number of looks.
#[derive(Debug, Default)]
pub(super) struct Warnings {
    waits: BTreeMap<Option<String>, (String, u32)>,
    warned: BTreeSet<String>,
}

impl Warnings {
    /// Takes what a look found for each part, by its root. Returns a due warning, once for each path: one line that says what
    /// waits and what to do.
    pub(super) fn due(&mut self, parts: impl Iterator<Item = (Option<String>, Option<Trouble>)>) -> Option<String> {
        let mut due = None;
        for (root, trouble) in parts {
            let Some((code, path, why)) = trouble else {
                self.waits.remove(&root);
                continue;
            };
            let wait = self.waits.entry(root).or_default();
            if wait.0 != path {
                *wait = (path.clone(), 0);
            }
            wait.1 += 1;
            if wait.1 >= LOOKS && due.is_none() && self.warned.insert(path.clone()) {
                let way_out = match code {
                    "incomplete" => {
                        "if no more files are written, set --checkpoint-format tree, or --checkpoint-exclude with its name"
                    }
                    "torn" => "remove it, or set --checkpoint-exclude with its name",
                    _ => "if it is not part of a checkpoint, set --checkpoint-exclude with its name",
                };
                due = Some(format!("{why}, for {LOOKS} looks, so its new content is not committed; {way_out}"));
            }
        }
        due
    }

    pub(super) fn reset(&mut self) {
        self.waits.clear();
    }
}
