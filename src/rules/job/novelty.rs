//! Whether a commit is progress for the restart budget: it has a higher step, or bytes that no commit of this run had. A trainer
//! that writes the same checkpoint again in each attempt makes none.

use std::collections::HashSet;

/// Beyond this many files no more are remembered, and each further one counts as new.
const MOST_FILES: usize = 1 << 18;

/// What the commits of a run had.
#[derive(Debug, Default)]
pub struct Novelty {
    highest: Option<u64>,
    /// Size and checksum of each file so far.
    files: HashSet<(u64, u32)>,
}

impl Novelty {
    /// Whether a commit of this step and these files, by size and checksum, is progress.
    pub fn is_progress(&mut self, step: Option<u64>, files: impl Iterator<Item = (u64, u32)>) -> bool {
        let mut is_new = step > self.highest;
        self.highest = self.highest.max(step);
        for file in files.filter(|(size, _)| *size > 0) {
            let is_known = self.files.contains(&file);
            is_new |= !is_known;
            if !is_known && self.files.len() < MOST_FILES {
                self.files.insert(file);
            }
        }
        is_new
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_higher_step_or_new_bytes_are_progress_and_the_same_bytes_are_not() {
        let mut novelty = Novelty::default();
        let mut commit = |step, files: &[(u64, u32)]| novelty.is_progress(step, files.iter().copied());
        assert!(commit(Some(1), &[(2, 7)]));
        assert!(!commit(Some(1), &[(2, 7)]));
        assert!(commit(Some(1), &[(2, 8)]), "other bytes");
        assert!(!commit(Some(1), &[(2, 7), (2, 8)]));
        assert!(commit(Some(2), &[(2, 7)]), "a higher step");
        assert!(!commit(Some(1), &[(2, 8)]), "a lower one");
        assert!(!commit(None, &[(0, 9)]), "an empty file");
    }
}
