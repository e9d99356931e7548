//! Orbax (JAX): directories `N` or `prefix_N`, renamed from `N.orbax-checkpoint-tmp*` when finished; where renames are
//! not atomic, a file `commit_success.txt` inside says so instead.

use super::check;
use super::listing::{join, parent_of};
use super::unit::{Candidate, Layout, Scan, no_pointers};

const TEMPORARY: &str = ".orbax-checkpoint-tmp";
const METADATA: &str = "_CHECKPOINT_METADATA";
const COMMIT: &str = "commit_success.txt";
const TELLTALES: [&str; 5] = [METADATA, COMMIT, "_METADATA", "manifest.ocdbt", "_sharding"];

#[allow(missing_docs, reason = "the entry of the list in mod.rs")]
pub const ORBAX: Layout = Layout {
    name: "orbax",
    evidence: "directories named N or PREFIX_N with Orbax's metadata, or named *.orbax-checkpoint-tmp*",
    find,
    complete,
    pointers: no_pointers,
};

fn find(scan: &Scan) -> Vec<Candidate> {
    let telltale = |name: &str| TELLTALES.contains(&name) || name.contains(TEMPORARY);
    let telltales: Vec<&str> =
        scan.listing.entries().iter().filter(|e| telltale(e.name())).map(|e| e.path.as_str()).collect();
    let mut units: Vec<Candidate> = Vec::new();
    for directory in scan.listing.directories() {
        let path = &directory.path;
        let Some(number) = number(directory.name()) else { continue };
        let inside = format!("{path}/");
        let beside = parent_of(path);
        // Its own metadata, or a sibling's: what has none of its own yet is unfinished.
        let is_orbax = telltales.iter().any(|t| {
            t.starts_with(&inside) || parent_of(t) == beside || parent_of(parent_of(t)) == beside && t.contains('/')
        });
        let is_part = units.iter().any(|u| path.starts_with(&format!("{}/", u.unit)));
        if (is_orbax || scan.options.format.is_some())
            && !is_part
            && let Some(step) = scan.step(path, Some(number))
        {
            units.push(Candidate::directory(scan.listing, path, step));
        }
    }
    units
}

/// `N` or `prefix_N`.
fn number(name: &str) -> Option<u64> {
    let digits = name.rsplit_once('_').map_or(name, |(_, digits)| digits);
    if digits.bytes().all(|b| b.is_ascii_digit()) { digits.parse().ok() } else { None }
}

fn complete(scan: &Scan, candidate: &Candidate) -> Result<(), String> {
    let unit = &candidate.unit;
    let has = |unit: &str, name: &str| scan.listing.file(&join(unit, name)).is_some();
    if candidate.paths.iter().any(|p| p.contains(TEMPORARY)) {
        return Err("a part of it is still being written".to_owned());
    }
    let beside = parent_of(unit);
    // What one of the siblings has, this version of Orbax writes.
    let siblings: Vec<&str> = scan.listing.within(beside).map(|e| e.path.as_str()).collect();
    for marker in [METADATA, COMMIT] {
        if !has(unit, marker) && siblings.iter().any(|s| has(s, marker)) {
            return Err(format!("{marker} is not there yet"));
        }
    }
    if let Some(metadata) = scan.listing.file(&join(unit, METADATA)) {
        check::json(scan.peek, metadata).map_err(|why| format!("{METADATA}: {why}"))?;
    }
    scan.all_whole(candidate)?;
    let is_saved = |other: &Candidate| has(&other.unit, METADATA) || has(&other.unit, COMMIT);
    let saved: Vec<Candidate> = find(scan).into_iter().filter(is_saved).collect();
    scan.nothing_lost(candidate, &saved, |e| TELLTALES.contains(&e.name()))
}

#[cfg(test)]
mod tests {
    use super::super::listing::tests::Memory;
    use super::super::tests::{complete_units, reason};

    #[test]
    fn a_directory_under_its_final_name_with_metadata_is_finished() {
        let memory = Memory::of(&[("10/_CHECKPOINT_METADATA", "{}"), ("10/default/manifest.ocdbt", "x")])
            .with("20/_CHECKPOINT_METADATA", "{}")
            .with("20/default/d/abc", "x")
            .with("30.orbax-checkpoint-tmp-171/default/d/abc", "x");
        assert_eq!(complete_units(&memory), [("20".into(), Some(20)), ("10".into(), Some(10))]);
        let memory = memory.with("40/default/d/abc", "x");
        assert!(reason(&memory, "40").contains("_CHECKPOINT_METADATA"));
    }

    #[test]
    fn a_first_save_that_is_not_renamed_yet_is_no_checkpoint_of_any_format() {
        assert_eq!(complete_units(&Memory::of(&[("10.orbax-checkpoint-tmp-5/default/d/a", "x")])), []);
    }

    #[test]
    fn where_one_has_a_commit_file_all_need_it() {
        let memory = Memory::of(&[("ckpt_1/commit_success.txt", "x"), ("ckpt_1/a", "x"), ("ckpt_2/a", "x")]);
        assert_eq!(complete_units(&memory), [("ckpt_1".into(), Some(1))]);
    }

    #[test]
    fn an_item_still_being_written_spoils_it() {
        let memory = Memory::of(&[("10/_CHECKPOINT_METADATA", "{}"), ("10/state.orbax-checkpoint-tmp-1/a", "x")]);
        assert!(reason(&memory, "10").contains("still being written"));
    }

    #[test]
    fn an_old_one_that_is_being_deleted_is_not_taken_for_whole() {
        let memory = ["1", "2"].iter().fold(Memory::default(), |memory, unit| {
            let memory = memory.with(&format!("{unit}/_CHECKPOINT_METADATA"), "{}");
            let memory = memory.with(&format!("{unit}/default/manifest.ocdbt"), "m");
            memory.with(&format!("{unit}/default/d/{unit}f0e"), "d")
        });
        assert_eq!(complete_units(&memory).len(), 2, "the names of arrays do not count");
        let memory = memory.without("1/default/manifest.ocdbt");
        assert!(reason(&memory, "1").contains("default/manifest.ocdbt is missing, which 2 has"));
    }
}
