//! `--marker NAME`: a directory is a checkpoint, complete when it holds the file NAME, which the trainer writes last.

use std::collections::BTreeSet;

use crate::rules::checkpoint::layout::{Layout, Makeup};
use crate::rules::checkpoint::listing::{Kind, around, is_below, join, name_of, parent_of};
use crate::rules::checkpoint::memo::Memo;
use crate::rules::checkpoint::order::{self, APART_NS};
use crate::rules::checkpoint::steps::{is_steps, step_in_stem};
use crate::rules::checkpoint::unit::{Candidate, Scan, is_bystander, is_temporary};

pub(super) const MARKER: Layout =
    Layout { makeup: Makeup::Told, ..Layout::of("marker", "--marker was given", find, complete) };

fn find(scan: &Scan) -> Vec<Candidate> {
    let Some(marker) = &scan.options.marker else { return Vec::new() };
    let is_marked = |path: &str| scan.listing.file(&join(path, marker)).is_some();
    let marked = scan.listing.directories().map(|d| d.path.as_str()).filter(|path| is_marked(path));
    let mut marked: BTreeSet<&str> = marked.map(|path| unit_of(scan, path)).collect();
    let all = marked.clone();
    marked.retain(|unit| is_marked(unit) || !all.iter().any(|inner| is_below(inner, unit)));
    let mut homes: BTreeSet<&str> = marked.iter().map(|path| parent_of(path)).collect();
    if homes.is_empty() {
        homes.insert("");
    }
    // Beside what is marked, what carries a step is unfinished, unless it is what others lie in.
    let is_next = |path: &str| {
        let may_be = homes.contains(parent_of(path)) && step_in_stem(name_of(path)).is_some() && !is_temporary(path);
        may_be && !marked.iter().any(|m| is_below(m, path))
    };
    scan.outermost(|path| marked.contains(path) || is_next(path), step_in_stem)
}

/// The directory of the step that a marked one is a part of (each rank's may be marked, too), or itself.
fn unit_of<'a>(scan: &Scan, marked: &'a str) -> &'a str {
    let says_a_step = |path: &&str| match &scan.options.step {
        Some(regex) => regex.is_match(name_of(path)),
        None => is_steps(name_of(path)),
    };
    let top = marked.split('/').next().filter(|top| step_in_stem(top).is_some());
    around(marked).find(says_a_step).or(top).unwrap_or(marked)
}

fn complete(scan: &Scan, candidate: &Candidate, _: &Memo) -> Result<(), String> {
    scan.all_whole(candidate)
}

/// The marker is in the unit, of whatever layout, and nothing of a later save.
pub(in super::super) fn marked(scan: &Scan, candidate: &Candidate) -> Result<(), String> {
    let Some(name) = &scan.options.marker else { return Ok(()) };
    if scan.listing.get(&candidate.unit).is_none_or(|e| e.kind != Kind::Directory) {
        return Err(format!("it is no directory, so {name} cannot lie in it; leave --marker out"));
    }
    let marker = scan.listing.file(&join(&candidate.unit, name));
    let marker = marker.ok_or_else(|| format!("{name} is not there yet"))?;
    // What others put beside the weights later: results, logs.
    let is_a_text = |name: &str| [".json", ".jsonl", ".txt", ".csv"].iter().any(|end| name.ends_with(end));
    let parts = candidate.files(scan.listing).filter(|e| !is_a_text(e.name()) && !is_bystander(e.name()));
    order::written_before(parts, marker, APART_NS)
}

#[cfg(test)]
mod tests {
    use crate::rules::checkpoint::check::tests::{safetensors_of, zip_of};
    use crate::rules::checkpoint::complete;
    use crate::rules::checkpoint::listing::tests::Memory;
    use crate::rules::checkpoint::tests::{complete_units_with, recognised};
    use crate::rules::checkpoint::unit::Options;
    use regex::Regex;

    #[test]
    fn only_a_directory_with_the_marker_is_finished() {
        let memory = Memory::of(&[("s-1/w", "1"), ("s-1/DONE", ""), ("s-2/w", "1"), ("s-3.json", "{}")]);
        let options = Options { marker: Some("DONE".into()), ..Options::default() };
        assert_eq!(complete_units_with(&memory, &options), [("s-1".into(), Some(1))]);
        let torn = memory.with("s-1/model.pt", &zip_of(b"w", b"")[..40]);
        assert_eq!(complete_units_with(&torn, &options), [], "what is written last says nothing of a torn file");
    }

    #[test]
    fn a_marker_of_the_save_before_completes_nothing() {
        let second = 1_000_000_000;
        let memory = Memory::of(&[("last/w", "1"), ("last/DONE", ""), ("last/eval_results.json", "{}")]);
        let memory = memory.at("last/DONE", 10).at("last/eval_results.json", 9 * second);
        let options = Options { marker: Some("DONE".into()), ..Options::default() };
        let units = |ns: i64, memory: Memory| complete_units_with(&memory.at("last/w", ns), &options).len();
        assert_eq!(units(10 + second, memory), 1);
        let memory = Memory::of(&[("last/w", "1"), ("last/DONE", "")]).at("last/DONE", 10);
        assert_eq!(units(11 + second, memory), 0);
    }

    #[test]
    fn a_format_that_is_named_needs_the_marker_as_well() {
        let memory = Memory::of(&[("checkpoint-5/trainer_state.json", r#"{"global_step": 5}"#)])
            .with("checkpoint-5/model.safetensors", safetensors_of(b"1"));
        let options =
            |format: &str| Options { format: Some(format.into()), marker: Some("DONE".into()), ..Options::default() };
        assert_eq!(complete_units_with(&memory, &options("huggingface")), []);
        let memory = memory.with("checkpoint-5/DONE", "");
        assert_eq!(complete_units_with(&memory, &options("huggingface")), [("checkpoint-5".into(), Some(5))]);
        let wrong = memory.with("checkpoint-5/trainer_state.json", r#"{"global_step": 4}"#);
        assert_eq!(complete_units_with(&wrong, &options("huggingface")), [], "the format's own rule holds, too");
        let file = Memory::of(&[("model_5.pt", zip_of(b"w", b"")), ("DONE", Vec::new())]);
        assert_eq!(complete_units_with(&file, &options("torch")), []);
    }

    #[test]
    fn the_step_is_what_the_expression_finds() {
        let memory = Memory::of(&[("e4_s90_x7/w", "1"), ("e4_s90_x7/DONE", ""), ("other/w", "1"), ("other/DONE", "")]);
        let step = Some(Regex::new(r"_s(\d+)").expect("compiles"));
        let options = Options { marker: Some("DONE".into()), step, ..Options::default() };
        assert_eq!(complete_units_with(&memory, &options), [("e4_s90_x7".into(), Some(90))]);
    }

    #[test]
    fn the_marked_directories_and_those_beside_them_are_units_and_not_what_they_lie_in() {
        let memory = Memory::of(&[("exp1/step-10/w", "1"), ("exp1/step-10/DONE", ""), ("exp1/step-20/part_1/w", "1")]);
        let options = Options { marker: Some("DONE".into()), ..Options::default() };
        assert_eq!(complete_units_with(&memory, &options), [("exp1/step-10".into(), Some(10))]);
        let found = memory.scanned(&options, super::find);
        let units: Vec<&str> = found.iter().map(|c| c.unit.as_str()).collect();
        assert_eq!(units, ["exp1/step-10", "exp1/step-20"]);
        let memory = memory.with("exp1/final/DONE", "");
        assert_eq!(complete_units_with(&memory, &options).len(), 1);
        let alike = Memory::of(&[("step-1/DONE", ""), ("step-1/w", "1"), ("step-10/DONE", ""), ("step-10/w", "1")]);
        assert_eq!(complete_units_with(&alike, &options).len(), 2, "the one's name begins like the other's");
        let plain = Memory::of(&[("final/DONE", ""), ("final/w", "1"), ("final/ema/DONE", ""), ("final/ema/w", "1")]);
        assert_eq!(complete_units_with(&plain, &options), [("final".into(), None)], "one in another is a part of it");
        let first = Memory::of(&[("step-10/w", "1")]);
        let units = first.scanned(&options, super::find);
        assert_eq!(units[0].unit, "step-10", "before any is marked, what carries a step is unfinished");
    }

    #[test]
    fn one_nodes_part_of_a_sharded_checkpoint_is_complete_by_its_marker_alone_and_says_so() {
        for (unit, file) in [
            ("global_step10", "zero_pp_rank_8_mp_rank_00_optim_states.pt"),
            ("iter_0000010", "mp_rank_00_001/model_optim_rng.pt"),
            ("step_10", "__1_0.distcp"),
            ("ba10", "ep1-ba10-rank8.pt"),
        ] {
            let file = format!("{unit}/{file}");
            let memory = Memory::default().with(&file, zip_of(b"w", b"")).with("latest", unit);
            let memory = memory.with("latest_checkpointed_iteration.txt", "10");
            for has_other_nodes in [false, true] {
                let options = Options { has_other_nodes, ..Options::default() };
                let why = recognised(&memory, &options, |found, scan| complete(found, scan, &found.candidates[0]));
                let why = why.expect_err("others' files are not there");
                assert_eq!(why.contains("one that all nodes share"), has_other_nodes, "{why}");
                let marked = Options { marker: Some("DONE".into()), ..options };
                assert_eq!(complete_units_with(&memory, &marked), [], "{file}");
                let memory = memory.clone().with(&format!("{unit}/DONE"), "");
                assert_eq!(complete_units_with(&memory, &marked), [(unit.to_owned(), Some(10))], "{file}");
            }
        }
    }

    #[test]
    fn the_marks_of_ranks_do_not_make_checkpoints_of_them() {
        for step in ["step-10", "s-10"] {
            let memory = Memory::of(&[(format!("{step}/rank_0/w").as_str(), "1")]);
            let memory = memory.with(&format!("{step}/rank_0/DONE"), "");
            let options = Options { marker: Some("DONE".into()), ..Options::default() };
            assert_eq!(complete_units_with(&memory, &options), []);
            let memory = memory.with(&format!("{step}/DONE"), "");
            assert_eq!(complete_units_with(&memory, &options), [(step.into(), Some(10))]);
        }
    }
}
