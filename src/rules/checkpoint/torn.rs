//! The save that was cut off, where it lies in the way of a trainer that goes on from the highest number it finds.

use super::plan::Age;
use super::{Candidate, Found, Kind, Scan, complete};

/// The one unit of a higher step, written after what is gone on from, that is not whole; and why it is not. `None` in doubt:
/// where other nodes may still write it or hold the rest of it, where there are several (a run leaves one, so it is how they
/// are written that is not known), and where a higher one is whole and passed over for a reason of its own.
pub fn in_the_way<'a>(found: &'a Found, scan: &Scan, resumed: Age) -> Option<(&'a Candidate, String)> {
    let (torn, why) = newest(found, scan, resumed)?;
    if found.candidates.iter().filter(|unit| unit.step > resumed.step).count() > 1 {
        return None;
    }
    let is_whole_elsewhere = scan.options.has_other_nodes
        || torn.entries(scan.listing).any(|entry| entry.refused().is_some() || entry.through.is_some());
    if is_whole_elsewhere || torn.leaving(scan.listing).next().is_some() {
        return None;
    }
    Some((torn, why))
}

/// The unit of the highest step, where it is above and written after what is gone on from, and not whole; and why it is not.
/// Where a pointer says what to load, nobody takes the highest, and a whole one that it does not name passes for torn.
pub fn newest<'a>(found: &'a Found, scan: &Scan, resumed: Age) -> Option<(&'a Candidate, String)> {
    let step = resumed.step?;
    let highest = found.candidates.iter().filter(|unit| unit.step > Some(step)).max_by_key(|unit| unit.step)?;
    let why = complete(found, scan, highest).err()?;
    let is_pointed_at = !(found.layout.pointers)(scan, highest).is_empty();
    (!is_pointed_at && highest.newest_ns(scan.listing) > resumed.newest_ns).then_some((highest, why))
}

/// What is to be moved, so that it is out of the way: a directory, or each file of one that has none for itself.
pub fn parts<'a>(unit: &'a Candidate, scan: &'a Scan) -> Vec<&'a str> {
    if scan.listing.get(&unit.unit).is_some_and(|entry| entry.kind == Kind::Directory) {
        return vec![&unit.unit];
    }
    let own = unit.entries(scan.listing).filter(|entry| entry.kind != Kind::Directory && !unit.is_note(entry));
    own.map(|entry| entry.path.as_str()).collect()
}

#[cfg(test)]
mod tests {
    use super::super::check::tests::zip_of;
    use super::super::listing::tests::Memory;
    use super::super::{Options, recognise};
    use super::*;

    fn saved(steps: &[u64], torn: &[u64]) -> Memory {
        let file = |memory: Memory, step: u64, name: &str| {
            let path = format!("step_{step}/{name}");
            memory.with(&path, "__0_0.distcp").at(&path, 1_000 * step as i64)
        };
        let memory = steps.iter().chain(torn).fold(Memory::default(), |m, step| file(m, *step, "__0_0.distcp"));
        steps.iter().fold(memory, |m, step| file(m, *step, ".metadata"))
    }

    fn moved_with(memory: &Memory, step: u64, options: &Options) -> Vec<String> {
        let listing = memory.listing();
        let scan = Scan { listing: &listing, peek: memory, options };
        let found = recognise(&scan).expect("something is recognised");
        let resumed = Age { step: Some(step), newest_ns: 1_000 * step as i64 };
        let torn = in_the_way(&found, &scan, resumed).map(|(unit, _)| parts(unit, &scan));
        torn.unwrap_or_default().into_iter().map(str::to_owned).collect()
    }

    fn moved(memory: &Memory, step: u64) -> Vec<String> {
        moved_with(memory, step, &Options::default())
    }

    #[test]
    fn the_save_that_was_cut_off_is_in_the_way_of_who_takes_the_highest_number() {
        assert_eq!(moved(&saved(&[4, 8], &[12]), 8), ["step_12"]);
    }

    #[test]
    fn where_a_pointer_says_what_to_load_nothing_is_in_the_way() {
        let state = |memory: Memory, step: u64| {
            let path = format!("global_step{step}/mp_rank_00_model_states.pt");
            memory.with(&path, zip_of(b"w", b"")).at(&path, 1_000 * step as i64)
        };
        let deepspeed = [8, 12].into_iter().fold(Memory::of(&[("latest", "global_step8")]), state);
        assert_eq!(moved(&deepspeed, 8), [""; 0], "whole, and gone back from");
        let files = [("ckpt-8.index", 8), ("ckpt-8.data-00000-of-00001", 8), ("ckpt-12.data-00000-of-00001", 12)];
        let memory = files.iter().fold(Memory::default(), |m, (name, at)| m.with(name, "i").at(name, *at * 1_000));
        assert_eq!(moved(&memory, 8), ["ckpt-12.data-00000-of-00001"]);
        let told = "model_checkpoint_path: \"ckpt-8\"\nall_model_checkpoint_paths: \"ckpt-8\"\n";
        assert_eq!(moved(&memory.with("checkpoint", told), 8), [""; 0], "TensorFlow reads it");
    }

    #[test]
    fn in_doubt_everything_stays() {
        assert_eq!(moved(&saved(&[4, 8], &[]), 8), [""; 0], "nothing is torn");
        assert_eq!(moved(&saved(&[4, 8], &[6]), 8), [""; 0], "nobody takes it for the newest");
        assert_eq!(moved(&saved(&[4, 8, 12], &[]), 8), [""; 0], "a whole one, gone back from");
        assert_eq!(moved(&saved(&[4, 8], &[12, 16]), 8), [""; 0], "how it is written is not known");
        assert_eq!(moved(&saved(&[4, 8], &[12]).at("step_12/__0_0.distcp", 7_000), 8), [""; 0], "of an older run");
        let nodes = Options { has_other_nodes: true, ..Options::default() };
        assert_eq!(moved_with(&saved(&[4, 8], &[12]), 8, &nodes), [""; 0], "the rest may be another node's");
        assert_eq!(moved(&saved(&[4, 8], &[12]).with("step_12/x", "-> /elsewhere"), 8), [""; 0]);
    }
}
