//! The warning that something waits for too long.

use std::collections::{BTreeMap, BTreeSet};

/// Looks in which something is new and not committed before a warning.
const LOOKS: u32 = 10;

/// What a part waits for: the kind of trouble, the path, and the text.
pub(super) type Trouble = (&'static str, String, String);

/// What each part waits for, and for how many looks.
#[derive(Debug, Default)]
pub(super) struct Warnings {
    waits: BTreeMap<Option<String>, (String, u32)>,
    warned: BTreeSet<String>,
}

impl Warnings {
    /// What a look says of each part, by its root. Returns the warning that is due, once for each path: one line with what waits
    /// and the way out.
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
                        "if no more is to come, give --checkpoint-format tree, or --checkpoint-exclude with its name"
                    }
                    "torn" => "remove it, or give --checkpoint-exclude with its name",
                    _ => "if it is no part of a checkpoint, give --checkpoint-exclude with its name",
                };
                due = Some(format!("{why}, for {LOOKS} looks, so nothing new of it is committed; {way_out}"));
            }
        }
        due
    }

    pub(super) fn begin_anew(&mut self) {
        self.waits.clear();
    }
}
