//! What each checkpoint is held against and is the same for all of them, found out once: with it, judging a thousand of them
//! is a thousand times the work of one, and no more.

use std::cell::OnceCell;
use std::collections::BTreeMap;

use super::unit::Candidate;

/// Each layout keeps in it what it likes, found at the first question.
#[derive(Debug, Default)]
pub struct Memo {
    names: OnceCell<BTreeMap<String, String>>,
    saved: OnceCell<Vec<Candidate>>,
}

impl Memo {
    /// Names of what is there, and who has it.
    pub(super) fn names(&self, find: impl FnOnce() -> BTreeMap<String, String>) -> &BTreeMap<String, String> {
        self.names.get_or_init(find)
    }

    /// Checkpoints to be compared with, in order: by the directory they lie in, then by step.
    pub(super) fn saved(&self, find: impl FnOnce() -> Vec<Candidate>) -> &[Candidate] {
        self.saved.get_or_init(find)
    }
}

/// What stands under keys that begin so: their rest, and what they lead to.
pub(super) fn under<'a>(
    names: &'a BTreeMap<String, String>,
    start: &'a str,
) -> impl Iterator<Item = (&'a str, &'a str)> + 'a {
    let from = names.range::<str, _>((std::ops::Bound::Included(start), std::ops::Bound::Unbounded));
    from.map_while(move |(key, value)| Some((key.strip_prefix(start)?, value.as_str())))
}
