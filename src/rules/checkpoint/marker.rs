//! `--marker NAME`: a directory is a checkpoint, complete when it holds the file NAME, which the trainer writes last.

use super::listing::{join, parent_of};
use super::unit::{Candidate, Layout, Scan, is_temporary, no_pointers, step_in_stem};

#[allow(missing_docs, reason = "the entry of the list in mod.rs")]
pub const MARKER: Layout =
    Layout { name: "marker", evidence: "--marker was given", find, complete, pointers: no_pointers };

fn find(scan: &Scan) -> Vec<Candidate> {
    let Some(marker) = &scan.options.marker else { return Vec::new() };
    let has_marker = |path: &str| scan.listing.file(&join(path, marker)).is_some();
    let mut units: Vec<Candidate> = Vec::new();
    for directory in scan.listing.directories() {
        let path = &directory.path;
        let is_part = units.iter().any(|u| path.starts_with(&format!("{}/", u.unit)));
        let step = step_in_stem(directory.name());
        let is_unit = has_marker(path) || parent_of(path).is_empty() && step.is_some() && !is_temporary(path);
        if !is_part
            && is_unit
            && let Some(step) = scan.step(path, step)
        {
            units.push(Candidate::directory(scan.listing, path, step));
        }
    }
    units
}

fn complete(scan: &Scan, candidate: &Candidate) -> Result<(), String> {
    let marker = scan.options.marker.as_deref().unwrap_or_default();
    if scan.listing.file(&join(&candidate.unit, marker)).is_none() {
        return Err(format!("{marker} is not there yet"));
    }
    scan.all_whole(candidate)
}

#[cfg(test)]
mod tests {
    use super::super::listing::tests::Memory;
    use super::super::tests::complete_units_with;
    use super::super::unit::Options;
    use regex::Regex;

    #[test]
    fn only_a_directory_with_the_marker_is_finished() {
        let memory = Memory::of(&[("s-1/w", "1"), ("s-1/DONE", ""), ("s-2/w", "1"), ("s-3.json", "{}")]);
        let options = Options { marker: Some("DONE".into()), ..Options::default() };
        assert_eq!(complete_units_with(&memory, &options), [("s-1".into(), Some(1))]);
    }

    #[test]
    fn the_step_is_what_the_expression_finds() {
        let memory = Memory::of(&[("e4_s90_x7/w", "1"), ("e4_s90_x7/DONE", ""), ("other/w", "1"), ("other/DONE", "")]);
        let step = Some(Regex::new(r"_s(\d+)").expect("compiles"));
        let options = Options { marker: Some("DONE".into()), step, ..Options::default() };
        assert_eq!(complete_units_with(&memory, &options), [("e4_s90_x7".into(), Some(90))]);
    }
}
