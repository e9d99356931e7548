//! Checkpoints of another format than the one that holds for the directory: none of them is committed, and where they go on
//! beyond the others, whoever trains is to be told.

use std::collections::BTreeSet;

use super::aside::is_copy;
use super::contest;
use super::generic::{is_surely_weights, says_word};
use super::hasty;
use super::layout::Layout;
use super::listing::stem_of;
use super::order::is_later;
use super::steps::{is_steps, step_in_stem};
use super::sure;
use super::unit::{Candidate, Scan, taken};
use super::{Entry, Found, LAYOUTS, check, complete};

/// What goes on beyond all that was found, or later, and is none of it; the former with its format.
pub fn goes_on(scan: &Scan, found: &Found) -> Option<(String, Option<&'static str>)> {
    let beyond = beyond(scan, found).map(|(unit, layout)| (unit.unit, Some(layout.name)));
    beyond.or_else(|| Some((later(scan, found)?, None)))
}

/// What was saved later than all that was found, whole and by this run, and is none of it: without a step, or with one that is
/// counted anew in another directory.
pub(super) fn later(scan: &Scan, found: &Found) -> Option<String> {
    let options = scan.options;
    let newest = found.candidates.iter().map(|c| c.newest_ns(scan.listing)).max()?;
    let is_later = |f: &&Entry| is_later(f.mtime_ns, newest) && f.mtime_ns >= options.begun_ns;
    let scan = &Scan { listing: &options.seen(scan.listing), ..*scan };
    let steps: BTreeSet<u64> = found.candidates.iter().filter_map(|c| c.step).collect();
    let is_anew = |f: &&Entry| {
        let is_aside = scan.is_aside(&f.path) || is_copy(&f.path);
        is_surely_weights(f) && !is_aside && said_step(&f.path).is_some_and(|step| !steps.contains(&step))
    };
    let taken = taken(&found.candidates);
    let is_asked = options.format.is_some() || options.marker.is_some() || options.step.is_some();
    let others = scan.listing.files().filter(is_later).filter(|f| !is_asked && !taken.contains(f.path.as_str()));
    let anew = others.filter(is_anew).max_by_key(|f| f.mtime_ns);
    let file = hasty::newest(scan, &found.candidates).filter(is_later).or(anew)?;
    let is_known = found.copies.contains_key(&file.path) || check::whole(scan.peek, file).is_err();
    (!is_known).then(|| file.path.clone())
}

/// The step that a word in the name of the file says, or in that of a directory around it.
fn said_step(path: &str) -> Option<u64> {
    let said = stem_of(path).rsplit('/').find(|part| is_steps(part) && says_word(part))?;
    step_in_stem(said)
}

/// The highest of those of other formats that are younger than all that was found, of a higher step, whole and written by
/// this run. A bare number is a step where it counts on.
fn beyond(scan: &Scan, found: &Found) -> Option<(Candidate, &'static Layout)> {
    let options = scan.options;
    let highest = found.candidates.iter().filter_map(|c| c.step).max()?;
    let newest = found.candidates.iter().map(|c| c.newest_ns(scan.listing)).max()?;
    let is_younger = |time: i64| is_later(time, newest) && time >= options.begun_ns;
    // Looking for others costs time.
    let has_younger = scan.listing.files().any(|f| is_younger(f.mtime_ns) && is_surely_weights(f));
    if options.format.is_some() || options.marker.is_some() || !has_younger {
        return None;
    }
    let scan = &Scan { listing: &options.seen(scan.listing), ..*scan };
    let others = LAYOUTS.iter().filter(|layout| layout.name != found.layout.name);
    let whole = others.flat_map(|layout| {
        let candidates = (layout.find)(scan).into_iter().filter(|c| !scan.is_aside(&c.unit) && !is_copy(&c.unit));
        let other = contest::without(Found::of(layout, candidates.collect()), found);
        let is_beyond = |c: &&Candidate| {
            let is_higher = c.step.is_some_and(|step| step > highest) && is_younger(c.newest_ns(scan.listing));
            is_higher && c.files(scan.listing).any(is_surely_weights) && sure::counts(c, &other.candidates)
        };
        let beyond = other.candidates.iter().filter(is_beyond).filter(|c| complete(&other, scan, c).is_ok());
        beyond.max_by_key(|c| c.step).cloned().map(|c| (c, *layout))
    });
    // What a format knows goes before what fits anything.
    whole.reduce(|first, other| if other.0.step > first.0.step { other } else { first })
}

#[cfg(test)]
mod tests {
    use super::super::listing::tests::Memory;
    use super::super::recognise;
    use super::super::unit::Options;
    use super::*;

    const TRAINERS: &[&str] = &["checkpoint-10/model.safetensors", "checkpoint-10/trainer_state.json"];

    /// What is beyond, where these are saved five seconds after one another.
    fn beyond_of(names: &[&str], options: &Options) -> Option<(String, &'static str)> {
        let beyond = |scan: &Scan| beyond(scan, &recognise(scan)?).map(|(c, layout)| (c.unit, layout.name));
        Memory::in_turn(names, 5).scanned(options, beyond)
    }

    #[test]
    fn what_goes_on_in_another_form_is_beyond() {
        for (before, after, unit, format) in [
            (TRAINERS, &["ckpt_20.pt", "ckpt_30.pt"][..], "ckpt_30.pt", "torch"),
            (TRAINERS, &["step-20/w.safetensors"], "step-20", "generic"),
            (&["ckpt_1.pt", "ckpt_2.pt"], &["m_3.safetensors", "m_4.safetensors"], "m_4.safetensors", "generic"),
            (&["ckpt_1.pt"], &["step-3/model.pt"], "step-3", "generic"),
            (&["ckpt_1.pt"], &["ft/step-3/model.pt"], "ft/step-3", "generic"),
        ] {
            let names = [before, after].concat();
            assert_eq!(beyond_of(&names, &Options::default()), Some((unit.to_owned(), format)), "{names:?}");
            let later = Options { begun_ns: i64::MAX, ..Options::default() };
            assert_eq!(beyond_of(&names, &later), None, "an earlier run wrote it: {names:?}");
            let named = Options { format: Some("torch".into()), ..Options::default() };
            assert_eq!(beyond_of(&names, &named), None, "its format was named: {names:?}");
            let names = [after, before].concat();
            assert_ne!(beyond_of(&names, &Options::default()).map(|b| b.0), Some(unit.to_owned()), "older: {names:?}");
        }
    }

    #[test]
    fn a_series_that_is_counted_anew_in_another_directory_is_later() {
        let later_of = |names: &[&str], options: &Options| {
            Memory::in_turn(names, 5).scanned(options, |scan| later(scan, &recognise(scan)?))
        };
        let before = ["step-10/model.pt", "step-20/model.pt"];
        for (after, told) in [
            (&["ft/ckpt_2.pt", "ft/ckpt_4.pt"][..], Some("ft/ckpt_4.pt")),
            (&["ft/ckpt_4.pt"], Some("ft/ckpt_4.pt")),
            (&["ft/step-4/model.pt"], Some("ft/step-4/model.pt")),
            // Of the same step, and what says none.
            (&["ema/ckpt_20.pt"], None),
            (&["pretrained/resnet50.pt"], None),
            (&["wandb/run-1/ckpt_4.pt"], None),
            (&["eval/step-4/answers.npz"], None),
            (&["ft/ckpt_4.pt", "step-30/model.pt"], None),
        ] {
            let names = [&before, after].concat();
            assert_eq!(later_of(&names, &Options::default()).as_deref(), told, "{after:?}");
            let earlier = Options { begun_ns: i64::MAX, ..Options::default() };
            assert_eq!(later_of(&names, &earlier), None, "an earlier run wrote it: {after:?}");
        }
    }

    #[test]
    fn what_lies_beside_a_series_is_not_beyond_it() {
        for other in [
            &["model.safetensors"][..],
            &["resnet50.pth"],
            &["ema/step-10/w.safetensors"],
            &["ckpt_5.pt"],
            &["wandb/run-1/files/ckpt_99.pt"],
            &["eval/step-20/answers.npz"],
            &["metrics_20.json"],
            &["checkpoint-20/model.safetensors"],
            &["tmp/ckpt_20.pt"],
        ] {
            assert_eq!(beyond_of(&[TRAINERS, other].concat(), &Options::default()), None, "{other:?}");
        }
    }
}
