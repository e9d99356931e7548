//! The save that was cut off, where it lies in the way of a trainer that goes on from the highest number it finds.

use std::collections::BTreeMap;

use super::called::series_of;
use super::listing::{is_below, name_of, parent_of};
use super::plan::Age;
use super::steps::{is_steps, step_in_stem};
use super::{Candidate, Entry, Found, Kind, Scan, check, complete};

/// What lies in the way.
#[derive(Debug)]
pub struct Torn {
    /// The unit.
    pub unit: String,
    /// The step of it.
    pub step: Option<u64>,
    /// Why it is not whole.
    pub why: String,
    /// What somebody may still be writing: its files, or its directories where it has none.
    pub entries: Vec<Entry>,
    /// What is to be moved so that it is out of the way; of an empty one what is to be removed, the innermost first.
    pub paths: Vec<String>,
    /// Whether it is directories alone, with which nothing is lost.
    pub is_empty: bool,
}

impl Torn {
    fn of(unit: &Candidate, scan: &Scan, why: String) -> Torn {
        let paths = parts(unit, scan).into_iter().map(str::to_owned).collect();
        let entries = unit.files(scan.listing).cloned().collect();
        Torn { unit: unit.unit.clone(), step: unit.step, why, entries, paths, is_empty: false }
    }

    fn empty(directory: &Entry, scan: &Scan) -> Torn {
        let below = scan.listing.below(&directory.path).iter();
        let entries: Vec<Entry> = [directory].into_iter().chain(below).cloned().collect();
        let paths = entries.iter().rev().map(|entry| entry.path.clone()).collect();
        let (unit, why) = (directory.path.clone(), "it is empty".to_owned());
        Torn { unit, step: None, why, entries, paths, is_empty: true }
    }
}

/// The one unit of a higher step, written after what is gone on from, that is not whole. `None` in doubt: where other nodes
/// may still write it or hold the rest of it, where there are several (a run leaves one, so it is how they are written that
/// is not known), and where a higher one is whole and passed over for a reason of its own.
pub fn in_the_way(found: &Found, scan: &Scan, resumed: Age) -> Option<Torn> {
    if scan.options.has_other_nodes {
        return None;
    }
    let mut above = found.candidates.iter().filter(|unit| unit.step > resumed.step);
    match (above.next(), above.next()) {
        (Some(_), Some(_)) => None,
        (Some(one), None) if !is_empty(one, scan) => {
            let (torn, why) = newest(found, scan, resumed).or_else(|| mixed_again(found, scan, resumed))?;
            is_all_here(torn, scan).then(|| Torn::of(torn, scan, why))
        }
        _ => empty(found, scan, resumed),
    }
}

/// The one empty directory above what is gone on from that is called like the others and was made after it: its trainer was
/// killed before the first file.
fn empty(found: &Found, scan: &Scan, resumed: Age) -> Option<Torn> {
    let step = resumed.step?;
    let series = |path: &str| (parent_of(path).to_owned(), series_of(name_of(path)));
    let from = found.candidates.iter().find(|unit| unit.step == resumed.step && !is_empty(unit, scan))?;
    let listing = scan.options.seen(scan.listing);
    let is_above = |d: &Entry| scan.step(&d.path, step_in_stem(d.name())).flatten() > Some(step);
    let is_one = |d: &&Entry| {
        is_above(d) && series(&d.path) == series(&from.unit) && !scan.is_aside(&d.path) && is_hollow(d, scan)
    };
    let mut all = listing.directories().filter(is_one);
    let (one, another) = (all.next()?, all.next());
    let is_it = another.is_none() && !is_pointed_at(found, scan, from) && one.mtime_ns > resumed.newest_ns;
    is_it.then(|| Torn::empty(one, scan))
}

/// The only unit there is, where nothing whole is, if it was written after this time. With none to compare it with, how it
/// is written is not known, and one that seems to lack something may be all that its trainer needs: it must be empty, or
/// hold a file that ends before its own end, unless its trainer can do nothing beside it.
pub fn first(found: &Found, scan: &Scan, since_ns: i64) -> Option<Torn> {
    let [only] = &found.candidates[..] else { return None };
    let own = scan.listing.get(&only.unit).filter(|entry| entry.kind == Kind::Directory);
    // One that is called otherwise (`exp_1`) may be a run's, with all that it writes.
    let is_a_step = only.step.is_some() && own.is_none_or(|directory| is_steps(directory.name()));
    if scan.options.has_other_nodes || is_pointed_at(found, scan, only) || !is_a_step {
        return None;
    }
    if let Some(directory) = own.filter(|directory| is_hollow(directory, scan)) {
        return (directory.mtime_ns > since_ns).then(|| Torn::empty(directory, scan));
    }
    let mut why = complete(found, scan, only).err()?;
    if !found.layout.fails_beside_later {
        let cut = only.files(scan.listing).find(|file| check::is_cut(scan.peek, file))?;
        why = format!("{} is cut short", cut.path);
    }
    let is_ours = only.newest_ns(scan.listing) > since_ns && is_all_here(only, scan);
    is_ours.then(|| Torn::of(only, scan, why))
}

/// What is whole and was passed over for an older step (by name and time), where its trainer does not start beside it: what is
/// to be moved, and what somebody may still be writing. `None`: nothing.
pub fn left_behind(
    found: &Found,
    scan: &Scan,
    resumed: u64,
    passed_over: &BTreeMap<String, i64>,
) -> Option<(Vec<String>, Vec<Entry>)> {
    let is_left = |unit: &&Candidate| {
        unit.step > Some(resumed)
            && passed_over.get(&unit.unit) == Some(&unit.newest_ns(scan.listing))
            && is_all_here(unit, scan)
            && complete(found, scan, unit).is_ok()
    };
    let is_known = found.layout.fails_beside_later && !scan.options.has_other_nodes;
    let left: Vec<&Candidate> = found.candidates.iter().filter(|_| is_known).filter(is_left).collect();
    let paths = left.iter().flat_map(|unit| parts(unit, scan)).map(str::to_owned).collect();
    let entries = left.iter().flat_map(|unit| unit.files(scan.listing)).cloned().collect();
    (!left.is_empty()).then_some((paths, entries))
}

/// Whether one that was cut off at a step and moved is of no use any more: another of that step has been moved, or a whole one
/// that is as new is gone on from. (What seems to lack something may be all that its trainer saves by now.)
pub fn is_superseded(step: u64, moved: Option<u64>, whole: Option<u64>) -> bool {
    moved == Some(step) || whole.is_some_and(|whole| step <= whole)
}

fn is_empty(unit: &Candidate, scan: &Scan) -> bool {
    scan.listing.get(&unit.unit).is_some_and(|entry| is_hollow(entry, scan))
}

/// Whether it is a directory with nothing but directories in it.
fn is_hollow(entry: &Entry, scan: &Scan) -> bool {
    let is_directory = |entry: &Entry| entry.kind == Kind::Directory && entry.through.is_none();
    is_directory(entry) && scan.listing.below(&entry.path).iter().all(is_directory)
}

/// Whether nothing of it lies elsewhere, or cannot be moved.
fn is_all_here(unit: &Candidate, scan: &Scan) -> bool {
    let is_elsewhere = |entry: &Entry| entry.refused().is_some() || entry.through.is_some();
    !unit.entries(scan.listing).any(is_elsewhere) && unit.leaving(scan.listing).next().is_none()
}

/// The unit of the highest step, where it is above and written after what is gone on from, and not whole; and why it is not.
pub fn newest<'a>(found: &'a Found, scan: &Scan, resumed: Age) -> Option<(&'a Candidate, String)> {
    let highest = highest(found, scan, resumed).filter(|unit| !is_pointed_at(found, scan, unit))?;
    Some((highest, complete(found, scan, highest).err()?))
}

/// The same where a pointer says what to load: what is left of it would be mixed with a later save of its step.
fn mixed_again<'a>(found: &'a Found, scan: &Scan, resumed: Age) -> Option<(&'a Candidate, String)> {
    let highest = highest(found, scan, resumed)?;
    Some((highest, (found.layout.cut_off)(scan, highest)?))
}

fn highest<'a>(found: &'a Found, scan: &Scan, resumed: Age) -> Option<&'a Candidate> {
    let above = found.candidates.iter().filter(|unit| resumed.step.is_some() && unit.step > resumed.step);
    above.max_by_key(|unit| unit.step).filter(|unit| unit.newest_ns(scan.listing) > resumed.newest_ns)
}

/// Where a pointer says what to load, nobody takes the highest, and a whole one that it does not name passes for torn; but for
/// trainers that look at what lies above it.
fn is_pointed_at(found: &Found, scan: &Scan, unit: &Candidate) -> bool {
    !found.layout.fails_beside_later && !(found.layout.pointers)(scan, unit).is_empty()
}

/// What is to be moved, so that it is out of the way: a directory, or each file of one that has none for itself.
fn parts<'a>(unit: &'a Candidate, scan: &'a Scan) -> Vec<&'a str> {
    let directory =
        scan.listing.get(&unit.unit).filter(|entry| entry.kind == Kind::Directory).map(|_| unit.unit.as_str());
    let is_inside = |path: &str| directory.is_some_and(|directory| is_below(path, directory));
    let own = unit
        .entries(scan.listing)
        .filter(|entry| entry.kind != Kind::Directory && !unit.is_note(entry) && !unit.is_fixed(&entry.path));
    let others = own.map(|entry| entry.path.as_str()).filter(|path| !is_inside(path));
    directory.into_iter().chain(others).collect()
}

#[cfg(test)]
mod tests {
    use super::super::Options;
    use super::super::check::tests::{safetensors_of, zip_of};
    use super::super::listing::tests::Memory;
    use super::super::tests::recognised;
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
        let resumed = Age { step: Some(step), newest_ns: 1_000 * step as i64 };
        let torn = recognised(memory, options, |found, scan| in_the_way(found, scan, resumed));
        torn.map(|torn| torn.paths).unwrap_or_default()
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
        let memory = deepspeed.with("global_step12/zero_pp_rank_1_mp_rank_00_optim_states.pt", zip_of(b"o", b""));
        assert_eq!(moved(&memory, 8), ["global_step12"], "its states would be taken for those of its step saved again");
        let files = [("ckpt-8.index", 8), ("ckpt-8.data-00000-of-00001", 8), ("ckpt-12.data-00000-of-00001", 12)];
        let memory = files.iter().fold(Memory::default(), |m, (name, at)| m.with(name, "i").at(name, *at * 1_000));
        assert_eq!(moved(&memory, 8), ["ckpt-12.data-00000-of-00001"]);
        let told = "model_checkpoint_path: \"ckpt-8\"\nall_model_checkpoint_paths: \"ckpt-8\"\n";
        assert_eq!(moved(&memory.with("checkpoint", told), 8), [""; 0], "TensorFlow reads it");
    }

    #[test]
    fn what_a_trainer_does_not_start_or_cannot_save_beside_is_in_the_way_whatever_a_pointer_names() {
        let zip = zip_of(b"weights", b"");
        let of = |name: &str, bytes: &[u8], at: i64| Memory::default().with(name, bytes).at(name, at * 1_000);
        for torn in [&zip[..40], b""] {
            let composer = of("c/ep0-ba12-rank0.pt", torn, 12);
            assert_eq!(moved_first(&composer), ["c/ep0-ba12-rank0.pt"]);
            let linked = composer.clone().with("c/latest-rank0.pt", "-> ep0-ba12-rank0.pt");
            assert_eq!(moved_first(&linked), ["c/ep0-ba12-rank0.pt"]);
            let whole = linked.with("c/ep0-ba8-rank0.pt", &*zip).at("c/ep0-ba8-rank0.pt", 8_000);
            assert_eq!(moved(&whole, 8), ["c/ep0-ba12-rank0.pt"]);
            assert_eq!(moved(&whole.with("c/ep0-ba12-rank0.pt", &*zip), 8), [""; 0], "it is whole");
        }
        let dirty = of("s/0/iter_0000012_0_local.dirty.pt", &zip, 12);
        assert_eq!(moved_first(&dirty), ["s/0/iter_0000012_0_local.dirty.pt"], "written, and not renamed");
        let path = "s/0/iter_0000008_0_local.pt";
        assert_eq!(moved(&dirty.with(path, &*zip).at(path, 8_000), 8), ["s/0/iter_0000012_0_local.dirty.pt"]);
    }

    #[test]
    fn a_pointer_that_the_format_knows_nothing_of_keeps_what_is_torn_in_nobodys_way() {
        for latest in ["-> ckpt-8", "-> ckpt-12", "ckpt-12"] {
            let zip = zip_of(b"w", b"");
            let memory = Memory::of(&[("latest", latest)]).with("ckpt-8/m.pt", &zip).at("ckpt-8/m.pt", 8_000);
            let memory = memory.with("ckpt-12/m.pt", &zip[..40]).at("ckpt-12/m.pt", 9_000);
            assert_eq!(moved(&memory, 8), ["ckpt-12"], "{latest}");
        }
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

    #[test]
    fn what_was_passed_over_for_an_older_step_is_in_the_way_of_who_does_not_start_beside_it() {
        let passed_over =
            BTreeMap::from([("ep0-ba8-rank0.pt", 8), ("ep0-ba12-rank0.pt", 12), ("ep0-ba16-rank0.pt", 1)]);
        let passed_over = passed_over.into_iter().map(|(unit, at)| (unit.to_owned(), at)).collect();
        let left = |names: [&str; 4], options: &Options| {
            let saved = |memory: Memory, (name, at): (&str, i64)| memory.with(name, zip_of(b"w", b"")).at(name, at);
            let memory = names.into_iter().zip([4, 8, 12, 16]).fold(Memory::default(), saved);
            let left = recognised(&memory, options, |found, scan| left_behind(found, scan, 8, &passed_over));
            left.map(|(paths, _)| paths)
        };
        let composers = ["ep0-ba4-rank0.pt", "ep0-ba8-rank0.pt", "ep0-ba12-rank0.pt", "ep0-ba16-rank0.pt"];
        assert_eq!(left(composers, &Options::default()), Some(vec!["ep0-ba12-rank0.pt".to_owned()]));
        assert_eq!(left(composers, &Options { has_other_nodes: true, ..Options::default() }), None);
        assert_eq!(left(composers, &Options { format: Some("torch".into()), ..Options::default() }), None);
    }

    /// The same where nothing whole is there, and the job has used the directory since 500.
    fn moved_first(memory: &Memory) -> Vec<String> {
        let torn = recognised(memory, &Options::default(), |found, scan| first(found, scan, 500));
        torn.map(|torn| torn.paths).unwrap_or_default()
    }

    #[test]
    fn an_empty_directory_above_the_others_is_in_the_way_and_nothing_else_that_is_empty() {
        let of = |steps: &[u64], empty: &[&str]| {
            let made = |memory: Memory, path: &&str| memory.with(&format!("{path}/"), "").at(path, 20_000);
            empty.iter().fold(saved(steps, &[]), made)
        };
        assert_eq!(moved(&of(&[4, 8], &["step_12"]), 8), ["step_12"]);
        assert_eq!(
            moved(&of(&[4, 8], &["step_12/optimizer"]).at("step_12", 20_000), 8),
            ["step_12/optimizer", "step_12"]
        );
        for elsewhere in ["step_6", "epoch_12", "step_12.tmp", "model", "logs/step_12"] {
            assert_eq!(moved(&of(&[4, 8], &[elsewhere]), 8), [""; 0], "{elsewhere}");
        }
        assert_eq!(moved(&of(&[4, 8], &["step_12"]).at("step_12", 7_000), 8), [""; 0], "of an older run");
        assert_eq!(moved(&of(&[4, 8], &["step_12", "step_16"]), 8), [""; 0], "how it is written is not known");
        assert_eq!(moved(&of(&[4, 8, 16], &["step_12"]), 8), [""; 0], "nobody takes it for the newest");
        assert_eq!(
            moved(&of(&[4, 8], &["step_12"]).with("step_12/notes", "-> ../notes"), 8),
            [""; 0],
            "a link is in it"
        );
        let memory = of(&[4, 8], &["step_12"]);
        assert_eq!(moved_with(&memory, 8, &Options { has_other_nodes: true, ..Options::default() }), [""; 0]);
        assert_eq!(
            moved_with(&memory, 8, &Options { left_out: Some("step_12".into()), ..Options::default() }),
            [""; 0]
        );
        let states = "global_step8/mp_rank_00_model_states.pt";
        let pointed = Memory::of(&[("latest", "global_step8"), ("global_step12/", "")]).with(states, zip_of(b"w", b""));
        let pointed = pointed.at(states, 8_000).at("global_step12", 9_000);
        assert_eq!(moved(&pointed, 8), [""; 0], "a pointer says what to load");
        let anybodys =
            Memory::of(&[("ckpt-8/w.bin", "w"), ("ckpt-12/", "")]).at("ckpt-8/w.bin", 8_000).at("ckpt-12", 9_000);
        assert_eq!(moved(&anybodys, 8), ["ckpt-12"]);
    }

    #[test]
    fn a_first_save_is_in_the_way_where_it_is_empty_or_one_of_its_files_ends_before_its_own_end() {
        let zip = zip_of(b"weights", b"");
        let of =
            |name: &str, bytes: &[u8]| Memory::default().with(name, bytes).at(name, 1_000).at("checkpoint-4", 1_000);
        let cut = of("checkpoint-4/optimizer.pt", &zip[..40]);
        assert_eq!(moved_first(&cut), ["checkpoint-4"]);
        assert_eq!(moved_first(&of("model_4.pt", &zip[..40])), ["model_4.pt"]);
        let weights = of("checkpoint-4/model.safetensors", &safetensors_of(&[b'w'; 99])[..150]);
        assert_eq!(moved_first(&weights), ["checkpoint-4"]);
        assert_eq!(moved_first(&of("checkpoint-4/", b"")), ["checkpoint-4"]);
        assert_eq!(moved_first(&cut.clone().at("checkpoint-4/optimizer.pt", 400)), [""; 0], "before the job came");
        assert_eq!(moved_first(&cut.clone().with("checkpoint-8/config.json", "{}")), [""; 0], "there are two");
        assert_eq!(moved_first(&cut.with("checkpoint-4/x", "-> /elsewhere")), [""; 0], "a part lies elsewhere");
        for of_a_run in [of("exp_4/", b""), of("exp_4/model.safetensors", &safetensors_of(&[b'w'; 99])[..150])] {
            assert_eq!(moved_first(&of_a_run.at("exp_4", 1_000)), [""; 0]);
        }
        assert_eq!(moved_first(&of("last.pt", &zip[..40])), [""; 0], "it has no number");
        let pointed = of("global_step4/mp_rank_00_model_states.pt", &zip[..40]).with("latest", "global_step4");
        assert_eq!(moved_first(&pointed), [""; 0], "a pointer tells");
    }

    #[test]
    fn a_first_save_that_only_lacks_what_others_have_may_be_all_that_its_trainer_needs() {
        let whole = zip_of(b"weights", b"");
        let files: [(&str, &[u8]); 5] = [
            ("checkpoint-4/adapter_model.bin", &whole),
            ("checkpoint-4/log.json", b"{}\n{}\n"),
            ("checkpoint-4/model.bin", b""),
            ("step_4/__0_0.distcp", b"weights"),
            ("step_4/weights.bin", b"weights"),
        ];
        for (name, bytes) in files {
            let memory = Memory::default().with("checkpoint-4/config.json", "{}").with(name, bytes).at(name, 1_000);
            assert_eq!(moved_first(&memory), [""; 0], "{name}");
        }
    }

    #[test]
    fn one_that_was_moved_is_superseded_by_its_step_saved_whole_or_cut_off_again() {
        assert!(is_superseded(8, Some(12), Some(8)) && is_superseded(8, None, Some(12)));
        assert!(is_superseded(8, Some(8), None));
        assert!(!is_superseded(8, Some(12), Some(4)), "nothing else has what it has");
        assert!(!is_superseded(8, Some(4), None) && !is_superseded(8, None, None));
    }
}
