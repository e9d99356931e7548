//! In which order the files of a checkpoint were written, as their times tell: one that is saved over again in place keeps
//! its last file of before until the end, so that a save killed half way leaves every file there, of two saves.

use crate::rules::checkpoint::listing::Entry;
use crate::rules::checkpoint::unit::Candidate;

/// Clocks of machines that write into one directory may be so far apart.
pub(in super::super) const APART_NS: i64 = 1_000_000_000;

/// Whether a time is surely after another.
pub(in super::super) fn is_later(time: i64, than: i64) -> bool {
    time.saturating_sub(than) > APART_NS
}

/// None of the parts is younger, by more than `apart_ns`, than the file that is written after them.
pub(in super::super) fn written_before<'a>(
    parts: impl IntoIterator<Item = &'a Entry>,
    last: &Entry,
    apart_ns: i64,
) -> Result<(), String> {
    match parts.into_iter().find(|part| part.mtime_ns.saturating_sub(last.mtime_ns) > apart_ns) {
        None => Ok(()),
        Some(Entry { path, .. }) => Err(format!(
            "{path} is younger than {last}, which is written last: saved over again and not finished; touch {last} if this is a whole copy without its times",
            last = last.path
        )),
    }
}

/// The unit's files were written in this order, or those of another checkpoint beside it were not either: some trainers
/// write the weights once more at the end (`save_pretrained` in a callback).
pub(in super::super) fn as_all_do(
    candidate: &Candidate,
    all: &[Candidate],
    in_order: impl Fn(&str) -> Result<(), String>,
) -> Result<(), String> {
    let is_so_too = |other: &Candidate| other.unit != candidate.unit && in_order(&other.unit).is_err();
    in_order(&candidate.unit).or_else(|why| if all.iter().any(is_so_too) { Ok(()) } else { Err(why) })
}
