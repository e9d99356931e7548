//! What a trainer saves over and over under one name beside its numbered files, and looks for by that name when it starts:
//! Lightning's `last.ckpt` beside `epoch=0-step=30.ckpt`, Ultralytics' `last.pt`, fairseq's `checkpoint_last.pt`. Of the same
//! save it goes along with the numbered file, which stays the checkpoint: what goes along is whole or left out, and never
//! makes that one incomplete, or newer.

use std::collections::BTreeMap;

use super::listing::{Entry, Kind, name_of, parent_of};
use super::unit::{Candidate, Scan, is_bystander, step_in};
use super::{Found, check, complete, contest, pointing, same};

/// What lay there so long before the first numbered file is of another time, nanoseconds.
const ANOTHER_TIME_NS: i64 = 86_400_000_000_000;

/// Of the numbered files written before it, so many are compared with it.
const BEFORE: usize = 3;

/// By unit, the paths that go along with it.
pub(super) type Along = BTreeMap<String, Vec<String>>;

impl Found {
    /// The entries that go along with one of them.
    pub fn along<'a>(&'a self, scan: &'a Scan, candidate: &Candidate) -> impl Iterator<Item = &'a Entry> {
        let paths = self.along.get(&candidate.unit).into_iter().flatten();
        paths.filter_map(|path| scan.listing.get(path))
    }
}

/// Whether a file of a unit only goes along with it, as its name tells.
pub fn is_along(unit: &str, path: &str) -> bool {
    let is_beside = parent_of(unit) == parent_of(path) && ending(unit) == ending(path);
    path != unit && is_beside && is_saved_over(path) && !is_saved_over(unit)
}

/// Whether a name has no step and is that of what is saved over: `last`, `latest` as a word of it, or `checkpoint` alone.
fn is_saved_over(path: &str) -> bool {
    let name = name_of(path).to_ascii_lowercase();
    let stem = name.split('.').next().unwrap_or(&name);
    let mut words = name.split(|c: char| !c.is_ascii_alphanumeric());
    let is_called =
        words.clone().any(|word| ["last", "latest"].contains(&word)) || ["checkpoint", "ckpt"].contains(&stem);
    is_called && !words.any(|word| word == "best") && (step_in(&name).is_none() || name.starts_with("last"))
}

fn ending(path: &str) -> &str {
    name_of(path).rsplit_once('.').map_or("", |(_, ending)| ending)
}

/// Finds them, and puts each that is also a unit by itself behind the one of the same save: it is the same again.
pub(super) fn find(scan: &Scan, found: &mut Found) {
    if !found.layout.makeup.is_anybodys() || scan.options.marker.is_some() {
        return;
    }
    let is_file = |unit: &Candidate| scan.listing.file(&unit.unit).is_some();
    let is_numbered = |unit: &&Candidate| unit.step.is_some() && is_file(unit) && !contest::is_best(&unit.unit);
    let numbered: Vec<Candidate> = found.candidates.iter().filter(is_numbered).cloned().collect();
    for last in lasts(scan, found, &numbered) {
        let beside = |unit: &&Candidate| last.paths.iter().all(|path| is_along(&unit.unit, path));
        let numbered: Vec<&Candidate> = numbered.iter().filter(beside).collect();
        let homes = homes(scan, &numbered, &last);
        let is_pointer =
            |unit: &Candidate| pointing::beside(scan, unit).any(|pointer| last.paths.contains(&pointer.path));
        if homes.iter().all(|home| is_pointer(home)) || complete(found, scan, &last).is_err() {
            continue;
        }
        for home in homes {
            found.along.entry(home.unit.clone()).or_default().extend(last.paths.iter().cloned());
            if home.newest_ns(scan.listing) < last.newest_ns(scan.listing) {
                behind(&mut found.candidates, &last.unit, &home.unit);
            }
        }
    }
    found.along.values_mut().for_each(|paths| paths.sort());
}

/// What is saved over beside numbered files: units without a step, and files that are no unit of the layout's.
fn lasts(scan: &Scan, found: &Found, numbered: &[Candidate]) -> Vec<Candidate> {
    let is_taken = |path: &str| found.candidates.iter().any(|unit| unit.paths.iter().any(|of_it| of_it == path));
    let mut homes: Vec<&str> = numbered.iter().map(|unit| parent_of(&unit.unit)).collect();
    homes.sort_unstable();
    homes.dedup();
    let is_one = |f: &&Entry| f.kind == Kind::File && f.size > 0 && is_saved_over(&f.path) && !is_bystander(f.name());
    let files = homes.into_iter().flat_map(|home| scan.listing.within(home)).filter(is_one);
    let files = files.filter(|f| check::is_weights(f.name()) && !scan.is_aside(&f.path) && !is_taken(&f.path));
    let units = found.candidates.iter().filter(|unit| unit.step.is_none() && is_saved_over(&unit.unit));
    units.cloned().chain(files.map(|f| Candidate::file(f, None))).collect()
}

/// With which of the numbered files it goes along: the one written before it, where it is of the same save, and the one
/// written after it, be it of the same save or of what was saved between the two. What is older than both is stale.
fn homes<'a>(scan: &Scan, numbered: &[&'a Candidate], last: &Candidate) -> Vec<&'a Candidate> {
    let time = |unit: &Candidate| unit.newest_ns(scan.listing);
    let at = time(last);
    let (mut before, after): (Vec<&Candidate>, Vec<&Candidate>) = numbered.iter().partition(|unit| time(unit) < at);
    before.sort_by_key(|unit| std::cmp::Reverse((time(unit), unit.step)));
    let after = after.into_iter().min_by_key(|unit| (time(unit), std::cmp::Reverse(unit.step)));
    let is_of_its_time = |unit: &&Candidate| {
        !before.is_empty() || time(unit).saturating_sub(at) < ANOTHER_TIME_NS || is_same(scan, unit, last)
    };
    let after = after.filter(is_of_its_time);
    before.into_iter().take(BEFORE).find(|unit| is_same(scan, unit, last)).into_iter().chain(after).collect()
}

/// Whether each file of what is saved over is of the same save as one of the unit's.
fn is_same(scan: &Scan, unit: &Candidate, last: &Candidate) -> bool {
    let is_one_of_its = |file: &Entry| unit.files(scan.listing).any(|ours| same::is_same_save(scan.peek, ours, file));
    last.files(scan.listing).filter(|file| !last.is_note(file)).all(is_one_of_its)
}

/// Moves a unit right behind another, where it is before that.
fn behind(units: &mut [Candidate], unit: &str, other: &str) {
    let at = |name: &str| units.iter().position(|c| c.unit == name);
    if let (Some(from), Some(to)) = (at(unit), at(other))
        && from < to
    {
        units[from..=to].rotate_left(1);
    }
}

#[cfg(test)]
mod tests {
    use super::super::listing::tests::Memory;
    use super::super::same::tests::archive_of;
    use super::super::{Options, Scan, complete, is_sure, recognise};
    use super::*;

    const SECOND: i64 = 1_000_000_000;

    /// Written one after the other, five seconds apart; after the `=` which save it is of.
    fn saved(files: &[&str]) -> Memory {
        (1..).zip(files).fold(Memory::default(), |memory, (at, file)| {
            let (name, save) = file.rsplit_once(" = ").expect("which save");
            let bytes = match save.strip_prefix("-> ") {
                Some(_) => save.as_bytes().to_vec(),
                None if name.ends_with(".bin") => save.repeat(100).into_bytes(),
                None => archive_of(&format!("{save} {name}"), &[&format!("weights of {save}")]),
            };
            memory.with(name, bytes).at(name, at * 5 * SECOND)
        })
    }

    /// The newest complete unit with its step, and what goes along with it.
    fn newest_of(memory: &Memory) -> (String, Option<u64>, Vec<String>) {
        let (listing, options) = (memory.listing(), Options::default());
        let scan = Scan { listing: &listing, peek: memory, options: &options };
        let found = recognise(&scan).expect("something is recognised");
        let newest = found.candidates.iter().find(|c| complete(&found, &scan, c).is_ok()).expect("one is complete");
        let along = found.along(&scan, newest).map(|e| e.path.clone()).collect();
        assert_eq!(newest.paths.iter().filter(|path| is_along(&newest.unit, path)).count(), 0);
        (newest.unit.clone(), newest.step, along)
    }

    #[track_caller]
    fn commits(unit: &str, step: Option<u64>, along: &[&str], files: &[&str]) {
        let along = along.iter().map(|path| (*path).to_owned()).collect();
        assert_eq!(newest_of(&saved(files)), (unit.to_owned(), step, along), "{files:?}");
    }

    #[test]
    fn what_is_called_the_last_goes_along_with_the_numbered_file_of_the_same_save_whichever_was_first() {
        for (unit, step, last) in [
            ("epoch=0-step=30.ckpt", 30, "last.ckpt"),
            ("epoch=0-step=30.ckpt", 30, "last-v1.ckpt"),
            ("train/weights/epoch30.pt", 30, "train/weights/last.pt"),
            ("checkpoint_1_500.pt", 500, "checkpoint_last.pt"),
            ("model_30.pth", 30, "latest.pth"),
            ("model_30.pt", 30, "model_last.pt"),
            ("checkpoint-30.pth.tar", 30, "last.pth.tar"),
            ("checkpoint0030.pth", 30, "checkpoint.pth"),
            ("weights_step_30.bin", 30, "latest.bin"),
        ] {
            let (unit_of, last_of) = (format!("{unit} = 30"), format!("{last} = 30"));
            let before = unit.replace("30", "20").replace("500", "400") + " = 20";
            commits(unit, Some(step), &[last], &[&before, &unit_of, &last_of]);
            commits(unit, Some(step), &[last], &[&before, &last_of, &unit_of]);
            commits(unit, Some(step), &[last], &[&unit_of, &last_of]);
            commits(unit, Some(step), &[last], &[&last_of, &unit_of]);
        }
    }

    #[test]
    fn what_is_called_otherwise_or_lies_elsewhere_stays_where_it_is() {
        for other in
            ["best.ckpt", "last_best.ckpt", "final.ckpt", "a/last.ckpt", "last.pt", "lasting.ckpt", ".last.ckpt"]
        {
            let other = format!("{other} = 30");
            commits(
                "epoch=0-step=30.ckpt",
                Some(30),
                &[],
                &[&other, "epoch=0-step=20.ckpt = 20", "epoch=0-step=30.ckpt = 30"],
            );
        }
        commits(
            "step=30.ckpt",
            Some(30),
            &[],
            &["step=20.ckpt = 20", "step=30.ckpt = 30", "last.ckpt = -> step=30.ckpt"],
        );
    }

    #[test]
    fn one_of_the_save_before_goes_along_until_the_next_is_there_and_what_is_older_still_is_stale() {
        let killed_between = ["step=10.ckpt = 10", "step=20.ckpt = 20", "last.ckpt = 20", "step=30.ckpt = 30"];
        commits("step=30.ckpt", Some(30), &["last.ckpt"], &killed_between);
        commits("step=30.ckpt", Some(30), &[], &["last.ckpt = 10", "step=20.ckpt = 20", "step=30.ckpt = 30"]);
        let days =
            |days: i64| saved(&["last.ckpt = 1", "step=20.ckpt = 20"]).at("step=20.ckpt", days * 86_400 * SECOND);
        assert_eq!(newest_of(&days(1)).2, ["last.ckpt"]);
        assert_eq!(newest_of(&days(2)).2, [""; 0], "it is of another time");
    }

    #[test]
    fn a_later_save_under_that_name_is_a_checkpoint_of_its_own() {
        for (last, numbered) in [("last.ckpt", "step=10.ckpt"), ("last.pt", "epoch10.pt")] {
            commits(last, None, &[], &[&format!("{numbered} = 10"), &format!("{last} = 11")]);
        }
        commits("w_20.bin", Some(20), &[], &["w_10.bin = 10", "w_20.bin = 20", "latest.bin = 21"]);
    }

    #[test]
    fn neither_makes_the_other_incomplete() {
        let both = ["step=20.ckpt = 20", "step=30.ckpt = 30", "last.ckpt = 30"];
        let torn = |name: &str| {
            let memory = saved(&both);
            let whole = memory.0[name].clone();
            newest_of(&memory.with(name, &whole[..whole.len() - 5]))
        };
        assert_eq!(torn("last.ckpt"), ("step=30.ckpt".into(), Some(30), vec![]));
        assert_eq!(torn("step=30.ckpt"), ("last.ckpt".into(), None, vec![]));
        let next = saved(&[&both[..], &["step=40.ckpt = 40"]].concat());
        let whole = next.0["step=40.ckpt"].clone();
        let next = next.with("step=40.ckpt", &whole[..40]);
        assert_eq!(newest_of(&next), ("step=30.ckpt".into(), Some(30), vec!["last.ckpt".into()]), "as it was before");
        let raw = saved(&["w_20.bin = 20", "w_30.bin = 30", "last.bin = 30"]);
        let (listing, options) = (raw.listing(), Options::default());
        let scan = Scan { listing: &listing, peek: &raw, options: &options };
        let found = recognise(&scan).expect("it is recognised");
        assert!(is_sure(&found, &scan, &found.candidates[0], 11 * SECOND), "only the last was being written");
    }

    #[test]
    fn it_makes_a_numbered_file_no_newer() {
        let memory = saved(&["step=30.ckpt = 30", "last.ckpt = 30"]);
        let (listing, options) = (memory.listing(), Options::default());
        let found = recognise(&Scan { listing: &listing, peek: &memory, options: &options }).expect("it is found");
        let times: Vec<_> = found.candidates.iter().map(|c| (c.unit.as_str(), c.newest_ns(&listing))).collect();
        assert_eq!(times, [("step=30.ckpt", 5 * SECOND), ("last.ckpt", 10 * SECOND)]);
    }

    #[test]
    fn several_files_under_that_name_go_along_together_or_not_at_all() {
        let names = ["1_net_D.pth = D1", "1_net_G.pth = G1", "latest_net_D.pth = D2", "latest_net_G.pth = G2"];
        let both = ["2_net_D.pth = D2", "2_net_G.pth = G2"];
        let along = ["latest_net_D.pth", "latest_net_G.pth"];
        commits("2_net_D.pth", Some(2), &along, &[&names[..], &both].concat());
        commits("2_net_D.pth", Some(2), &along, &[&names[..2], &both, &names[2..]].concat());
        let halfway = ["2_net_D.pth = D2", "2_net_G.pth = G2", "latest_net_G.pth = G1", "latest_net_D.pth = D2"];
        assert_eq!(newest_of(&saved(&halfway)).2, [""; 0]);
    }
}
