//! Which checkpoints lie in a directory, which of them are complete, and what is to be done with them: pure rules over
//! a walk. How a byte is read, sent or deleted is not known here.
//!
//! A directory becomes a list of candidates in four passes ([`recognise`]):
//!
//! 1. **Left out** is what is no checkpoint whoever asks: the finished model, what workers save for nobody ([`Options::seen`]).
//! 2. **Found**: each of the [`LAYOUTS`] says what is of its form, finished or not, by names alone. Loggers' copies go, and the
//!    rest is put in order, the newest first (`contest::sort`; `sure`: which numbers are steps).
//! 3. **Chosen**: the first layout that finds something has the directory, unless that is nothing to go on from (a model to
//!    begin from, files without a step) and a later one has steps (`contest::gives_way`).
//! 4. **Gathered** (`gather`): a library knows all files of its own. Where a checkpoint is just a file, or has nothing but a
//!    name, what was saved with it is taken in: first what makes it a whole save (`siblings`, `strangers`), then, since a save
//!    is known from a part of one now, what is saved over beside it (`saved_over`); what is left is a copy (`second_name`), was
//!    saved in haste (`hasty`), is a note (`notes`), half of one in another directory (`halves`), or was made of one (`results`).
//!
//! Only then is each asked, from the newest on, whether it is complete ([`complete`]): by its layout, by the types of its files
//! (`check`), by what the steps beside it have (`parts`). What was passed over is told of: `linked`, `mixed`, `unrecognised`;
//! what was cut off is `torn`.

mod belongs;
mod formats;
mod store;
mod whole;

mod ascii;
mod aside;
mod called;
mod contest;
mod layout;
pub mod linked;
pub mod listing;
mod memo;
mod mixed;
pub mod pointing;
mod steps;
mod sure;
pub mod torn;
pub mod unit;
pub mod unrecognised;

use std::collections::BTreeMap;

use belongs::{halves, hasty, notes, results, roles, saved_over, second_name, siblings, strangers};
use formats::{composer, dcp, deepspeed, dlrover, generic, marker};
use whole::{containers, order, parts, same_save, structure};

pub use composer::is_link as is_composers_link;
pub use formats::LAYOUTS;
pub use halves::of_the_same_save;
pub use layout::{Layout, Makeup, Pointer};
pub use listing::{Entry, Kind, Listing, Peek};
pub use memo::Memo;
pub use mixed::goes_on;
pub use saved_over::is_of_the_next;
pub use second_name::{There, copies, there};
#[cfg(feature = "store")]
pub use store::archive;
pub use store::{address, manifest, names, pace, plan};
pub use unit::{Candidate, Options, Scan};
pub use whole::{check, json};

/// Whether one of the layout's is complete, quiescence apart; where a marker was asked for, that is in it as well. Errors:
/// what is missing, in one clause.
pub fn complete(found: &Found, scan: &Scan, candidate: &Candidate) -> Result<(), String> {
    marker::marked(scan, candidate)?;
    aside::unmarked(scan, candidate)?;
    if let Some((entry, why)) = candidate.entries(scan.listing).find_map(|e| Some((e, e.refused()?))) {
        return Err(format!("{}: {why}", entry.path));
    }
    (found.layout.complete)(scan, candidate, &found.memo)?;
    let makeup = found.layout.makeup;
    if scan.options.marker.is_some() || makeup == Makeup::Told {
        return Ok(());
    }
    parts::all_counted(scan, candidate)?;
    parts::as_before(scan, candidate, &found.candidates, candidate.is_file(scan.listing) || makeup != Makeup::SameAgain)
}

/// Whether one that passes for complete surely is, although its writer was cut off after `since_ns` (since 1970): its layout
/// says when it is through, or each file written since shows its own end and nothing is missing that the step before has.
pub fn is_sure(found: &Found, scan: &Scan, candidate: &Candidate, since_ns: i64) -> bool {
    if is_told(found, scan) {
        return true;
    }
    let files = candidate.files(scan.listing).filter(|f| !unit::is_bystander(f.name()) && !candidate.is_note(f));
    let (late, before): (Vec<_>, Vec<_>) = files.partition(|f| f.mtime_ns > since_ns);
    // Of a save over the same names, some files may be of the save before.
    let is_saved_over = candidate.step.is_none() && candidate.is_file(scan.listing);
    let is_mixed = is_saved_over && !late.is_empty() && !before.is_empty();
    !is_mixed && late.iter().all(|f| check::shows_its_end(scan.peek, f)) && is_as_before(found, scan, candidate)
}

/// Whether one that passes for complete has all that the step before has, where its layout does not tell: else the rest may
/// be still to come, or was left out.
pub fn is_as_before(found: &Found, scan: &Scan, candidate: &Candidate) -> bool {
    is_told(found, scan)
        || saved_over::are_current(candidate, &found.candidates)
            && halves::are_all_there(candidate, &found.candidates)
            && parts::as_before(scan, candidate, &found.candidates, false).is_ok()
}

/// Whether something says when a save is through: its library, or the marker.
fn is_told(found: &Found, scan: &Scan) -> bool {
    !found.layout.makeup.is_anybodys() || scan.options.marker.is_some()
}

/// The pointers that shall name this unit: those of its layout, and any beside it that already do.
pub fn pointers(layout: &Layout, scan: &Scan, candidate: &Candidate) -> Vec<Pointer> {
    let mut all = (layout.pointers)(scan, candidate);
    let others = pointing::beside(scan, candidate).filter(|other| all.iter().all(|ours| ours.path != other.path));
    let others: Vec<Pointer> = others.collect();
    all.extend(others);
    all
}

/// What was found, newest first, and by which layout.
#[derive(Debug)]
pub struct Found {
    /// The layout that recognised something.
    pub layout: &'static Layout,
    /// Units, finished or not, newest first.
    pub candidates: Vec<Candidate>,
    /// What they are compared with.
    pub memo: Memo,
    /// Copies without a step, by path, and which unit each is a copy of.
    pub copies: BTreeMap<String, String>,
}

impl Found {
    fn of(layout: &'static Layout, candidates: Vec<Candidate>) -> Found {
        Found { layout, candidates, memo: Memo::default(), copies: BTreeMap::new() }
    }
}

/// Looks with the layout that was asked for, or with each in turn until one finds something, finished or not. Files that
/// have no step (`best.pt`, `metrics.h5`), copies, models to begin from and what is over do not hide the steps of a later one.
pub fn recognise(scan: &Scan) -> Option<Found> {
    let scan = &Scan { listing: &scan.options.seen(scan.listing), ..*scan };
    let asked = match (&scan.options.format, &scan.options.marker) {
        (Some(name), _) => Some(name.as_str()),
        (None, Some(_)) => Some(formats::MARKED),
        (None, None) => None,
    };
    let layouts = LAYOUTS.iter().filter(|l| asked.is_none_or(|name| l.name == name));
    let mut found = layouts.filter_map(|layout| {
        let mut candidates = (layout.find)(scan);
        // What is saved into the checkpoint directory itself is called by its metadata, only to be refused.
        candidates.retain(|c| !scan.is_aside(&c.unit) || c.unit == dcp::METADATA);
        contest::without_copies(&mut candidates);
        contest::sort(scan, &mut candidates);
        (layout.order)(scan, &mut candidates);
        if candidates.is_empty() { None } else { Some(Found::of(layout, candidates)) }
    });
    let first = found.next()?;
    let is_doubtful = asked.is_none() && contest::is_doubtful(scan, &first);
    let mut others = found.map(|other| contest::without(other, &first));
    let better = if is_doubtful { others.find(|other| contest::gives_way(scan, &first, other)) } else { None };
    let mut chosen = better.unwrap_or(first);
    gather(scan, &mut chosen);
    Some(chosen)
}

/// Takes into each unit what was saved with it, where no library stands behind it that knows its files.
fn gather(scan: &Scan, found: &mut Found) {
    if found.layout.makeup == Makeup::OneFile {
        let units = siblings::with_others(scan, std::mem::take(&mut found.candidates));
        let units = strangers::drawn_in(siblings::of_ranks(units));
        found.candidates = saved_over::drawn_in(scan, units);
        contest::forget_steps(scan, &mut found.candidates);
        second_name::without_copies(scan, found);
    }
    if found.layout.makeup.is_anybodys() {
        let units = hasty::with_hasty(scan, std::mem::take(&mut found.candidates));
        found.candidates = halves::joined(scan, notes::with_notes(scan, units));
        if found.layout.makeup == Makeup::OneFile {
            results::left_out(&mut found.candidates);
        }
        saved_over::with_files(scan, found);
    }
}

#[cfg(test)]
mod tests;
