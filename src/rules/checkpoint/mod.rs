//! Which checkpoints lie in a directory, which of them are complete, and what is to be done with them: pure rules over
//! a walk. How a byte is read, sent or deleted is not known here.

pub mod address;
pub mod check;
pub mod generic;
pub mod huggingface;
pub mod listing;
pub mod manifest;
pub mod marker;
pub mod names;
pub mod plan;
pub mod tensorflow;
pub mod torch_file;
pub mod unit;

pub use listing::{Entry, Kind, Listing, Peek};
pub use unit::{Candidate, Layout, Options, Pointer, Scan};

/// Every layout in order of precedence: what was asked for by flag, then those with pointer files, then shapes of
/// directories, then single files, and the one that fits anything at the end.
pub const LAYOUTS: &[&Layout] =
    &[&marker::MARKER, &tensorflow::TENSORFLOW, &huggingface::HUGGINGFACE, &torch_file::TORCH_FILE, &generic::GENERIC];

/// The layout of this name.
pub fn layout(name: &str) -> Option<&'static Layout> {
    LAYOUTS.iter().find(|l| l.name == name).copied()
}

/// What was found, newest first, and by which layout.
#[derive(Debug)]
pub struct Found {
    /// The layout that recognised something.
    pub layout: &'static Layout,
    /// Units, finished or not, newest first.
    pub candidates: Vec<Candidate>,
}

/// Looks with the layout that was asked for, or with each in turn until one finds something, finished or not.
pub fn recognise(scan: &Scan) -> Option<Found> {
    let asked = match (&scan.options.format, &scan.options.marker) {
        (Some(name), _) => Some(name.as_str()),
        (None, Some(_)) => Some(marker::MARKER.name),
        (None, None) => None,
    };
    let mut layouts = LAYOUTS.iter().filter(|l| asked.is_none_or(|name| l.name == name));
    layouts.find_map(|layout| {
        let mut candidates = (layout.find)(scan);
        sort(scan.listing, &mut candidates);
        if candidates.is_empty() { None } else { Some(Found { layout, candidates }) }
    })
}

/// By step; where any has none, by time. Times within a second of each other (mounts that fake them) leave it to the step.
fn sort(listing: &Listing, candidates: &mut [Candidate]) {
    let times = candidates.iter().map(|c| c.newest_ns(listing));
    let spread_ns = times.clone().max().unwrap_or(0).saturating_sub(times.min().unwrap_or(0));
    let by_step = spread_ns < 1_000_000_000 || candidates.iter().all(|c| c.step.is_some());
    candidates.sort_by_cached_key(|c| {
        let time = c.newest_ns(listing);
        let first = if by_step { 0 } else { time };
        std::cmp::Reverse((first, c.step, time, c.unit.clone()))
    });
}

#[cfg(test)]
mod tests {
    use super::listing::tests::Memory;
    use super::*;

    /// Complete units and their steps, newest first.
    pub(crate) fn complete_units_with(memory: &Memory, options: &Options) -> Vec<(String, Option<u64>)> {
        let listing = memory.listing();
        let scan = Scan { listing: &listing, peek: memory, options };
        let Some(found) = recognise(&scan) else { return Vec::new() };
        let complete = found.candidates.into_iter().filter(|c| (found.layout.complete)(&scan, c).is_ok());
        complete.map(|c| (c.unit, c.step)).collect()
    }

    pub(crate) fn complete_units(memory: &Memory) -> Vec<(String, Option<u64>)> {
        complete_units_with(memory, &Options::default())
    }

    /// Why a unit is not complete.
    pub(crate) fn reason(memory: &Memory, unit: &str) -> String {
        let (listing, options) = (memory.listing(), Options::default());
        let scan = Scan { listing: &listing, peek: memory, options: &options };
        let found = recognise(&scan).expect("something is recognised");
        let candidate = found.candidates.iter().find(|c| c.unit == unit).expect("the unit is found");
        (found.layout.complete)(&scan, candidate).expect_err("it is not complete")
    }

    #[test]
    fn no_two_layouts_share_a_name() {
        for (at, layout) in LAYOUTS.iter().enumerate() {
            assert!(LAYOUTS[at + 1..].iter().all(|l| l.name != layout.name), "{}", layout.name);
        }
    }

    #[test]
    fn an_empty_directory_holds_no_checkpoint() {
        let memory = Memory::default();
        assert_eq!(complete_units(&memory), []);
    }
}
