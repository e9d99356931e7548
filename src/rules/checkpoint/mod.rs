//! Which checkpoints lie in a directory, which of them are complete, and what is to be done with them: pure rules over
//! a walk. How a byte is read, sent or deleted is not known here.
//!
//! A directory becomes a list of candidates in four passes ([`recognise`]):
//!
//! 1. **Left out** is what is no checkpoint whoever asks: the finished model, what workers save for nobody ([`Options::seen`]).
//! 2. **Found**: each of the [`LAYOUTS`] says what is of its form, finished or not, by names alone. Loggers' copies go, and the
//!    rest is put in order, the newest first (`contest::sort`).
//! 3. **Chosen**: the first layout that finds something has the directory, unless that is nothing to go on from (a model to
//!    begin from, files without a step) and a later one has steps (`contest::gives_way`).
//! 4. **Gathered** (`gather`): a library knows all files of its own. Where a checkpoint is just a file, or has nothing but a
//!    name, what was saved with it is taken in: first what makes it a whole save (`siblings`, `strangers`), then, since a save
//!    is known from a part of one now, what is saved over beside it (`saved_over`); what is left is a copy (`fixed_name`), was
//!    saved in haste (`hasty`), is a note (`notes`), or half of one in another directory (`halves`).
//!
//! Only then is each asked, from the newest on, whether it is complete ([`complete`]): by its layout, by the types of its files
//! (`check`), by what the steps beside it have (`parts`). What was passed over is told of: `linked`, `mixed`, `unrecognised`;
//! what was cut off is `torn`.

mod accelerate;
pub mod address;
mod ascii;
mod aside;
mod beside;
mod called;
mod catboost;
pub mod check;
mod composer;
mod contest;
mod dcp;
mod deepspeed;
mod dlrover;
mod fixed_name;
mod flax;
mod generic;
mod halves;
mod hasty;
mod hostile;
mod huggingface;
pub mod json;
mod keras;
mod layout;
pub mod linked;
pub mod listing;
pub mod manifest;
mod marker;
mod megatron;
mod mixed;
pub mod names;
mod notes;
mod nvrx;
mod orbax;
mod order;
pub mod pace;
mod parts;
pub mod plan;
pub mod pointing;
mod roles;
mod same_save;
mod saved_over;
mod siblings;
mod steps;
mod strangers;
mod structure;
mod tensorflow;
mod torch_file;
pub mod torn;
pub mod unit;
pub mod unrecognised;
mod xgboost;

use std::collections::BTreeMap;

pub use beside::Beside;
pub use composer::is_link as is_composers_link;
pub use fixed_name::{There, copies, there};
pub use halves::of_the_same_save;
pub use layout::{Layout, Makeup, Pointer};
pub use listing::{Entry, Kind, Listing, Peek};
pub use mixed::{beyond, later};
pub use saved_over::is_of_the_next;
pub use unit::{Candidate, Options, Scan};

/// Every layout in order of precedence: what was asked for by flag, then those with pointer files, then shapes of
/// directories, then single files, and the one that fits anything at the end.
pub const LAYOUTS: &[&Layout] = &[
    &marker::MARKER,
    // Pointer files.
    &tensorflow::TENSORFLOW,
    &deepspeed::DEEPSPEED,
    &megatron::MEGATRON,
    &dlrover::DLROVER,
    // Shapes of directories.
    &accelerate::ACCELERATE,
    &huggingface::HUGGINGFACE,
    &orbax::ORBAX,
    &dcp::DCP,
    // Single files.
    &nvrx::NVRX,
    &keras::KERAS,
    &composer::COMPOSER,
    &flax::FLAX,
    &xgboost::XGBOOST,
    &torch_file::TORCH_FILE,
    &catboost::CATBOOST,
    &generic::GENERIC,
];

/// Whether one of the layout's is complete, quiescence apart; where a marker was asked for, that is in it as well. Errors:
/// what is missing, in one clause.
pub fn complete(found: &Found, scan: &Scan, candidate: &Candidate) -> Result<(), String> {
    marker::marked(scan, candidate)?;
    aside::unmarked(scan, candidate)?;
    if let Some((entry, why)) = candidate.entries(scan.listing).find_map(|e| Some((e, e.refused()?))) {
        return Err(format!("{}: {why}", entry.path));
    }
    (found.layout.complete)(scan, candidate, &found.beside)?;
    let makeup = found.layout.makeup;
    if scan.options.marker.is_some() || makeup == Makeup::Told {
        return Ok(());
    }
    parts::all_counted(scan, candidate)?;
    let is_file = scan.listing.file(&candidate.unit).is_some();
    parts::as_before(scan, candidate, &found.candidates, is_file || makeup != Makeup::SameAgain)
}

/// Whether one that passes for complete surely is, although its writer was cut off after `since_ns` (since 1970): its layout
/// says when it is through, or each file written since shows its own end and nothing is missing that the step before has.
pub fn is_sure(found: &Found, scan: &Scan, candidate: &Candidate, since_ns: i64) -> bool {
    if !found.layout.makeup.is_anybodys() || scan.options.marker.is_some() {
        return true;
    }
    let files = candidate.files(scan.listing).filter(|f| !unit::is_bystander(f.name()) && !candidate.is_note(f));
    let (late, before): (Vec<_>, Vec<_>) = files.partition(|f| f.mtime_ns > since_ns);
    // Of a save over the same names, some files may be of the save before.
    let is_saved_over = candidate.step.is_none() && scan.listing.file(&candidate.unit).is_some();
    let is_mixed = is_saved_over && !late.is_empty() && !before.is_empty();
    !is_mixed && late.iter().all(|f| check::shows_its_end(scan.peek, f)) && is_as_before(found, scan, candidate)
}

/// Whether one that passes for complete has all that the step before has, where its layout does not tell: else the rest may
/// be still to come, or was left out.
pub fn is_as_before(found: &Found, scan: &Scan, candidate: &Candidate) -> bool {
    let is_told = !found.layout.makeup.is_anybodys() || scan.options.marker.is_some();
    is_told
        || saved_over::are_current(candidate, &found.candidates)
            && halves::are_all_there(candidate, &found.candidates)
            && parts::as_before(scan, candidate, &found.candidates, false).is_ok()
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
    pub beside: Beside,
    /// Copies without a step, by path, and which unit each is a copy of.
    pub copies: BTreeMap<String, String>,
}

impl Found {
    fn of(layout: &'static Layout, candidates: Vec<Candidate>) -> Found {
        Found { layout, candidates, beside: Beside::default(), copies: BTreeMap::new() }
    }
}

/// Looks with the layout that was asked for, or with each in turn until one finds something, finished or not. Files that
/// have no step (`best.pt`, `metrics.h5`), copies, models to begin from and what is over do not hide the steps of a later one.
pub fn recognise(scan: &Scan) -> Option<Found> {
    let scan = &Scan { listing: &scan.options.seen(scan.listing), ..*scan };
    let asked = match (&scan.options.format, &scan.options.marker) {
        (Some(name), _) => Some(name.as_str()),
        (None, Some(_)) => Some(marker::MARKER.name),
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
        fixed_name::without_copies(scan, found);
    }
    if found.layout.makeup.is_anybodys() {
        let units = hasty::with_hasty(scan, std::mem::take(&mut found.candidates));
        found.candidates = halves::joined(scan, notes::with_notes(scan, units));
        saved_over::with_files(scan, found);
    }
}

#[cfg(test)]
mod tests {
    use super::listing::tests::Memory;
    use super::*;

    #[test]
    fn one_without_a_step_does_not_make_the_clock_decide_between_those_that_have_one() {
        const SECOND: i64 = 1_000_000_000;
        let files = [("100", 900), ("200", 20), ("last", 21), ("old", 1)];
        let memory = files.iter().fold(Memory::default(), |m, (name, at)| m.with(name, "").at(name, at * SECOND));
        let listing = memory.listing();
        let of = |name: &str, step| Candidate::file(listing.get(name).unwrap(), step);
        let mut all = vec![of("old", None), of("100", Some(100)), of("last", None), of("200", Some(200))];
        memory.scanned(&Options::default(), |scan| contest::sort(scan, &mut all));
        let names: Vec<&str> = all.iter().map(|c| c.unit.as_str()).collect();
        assert_eq!(names, ["last", "200", "100", "old"]);
    }

    /// What a rule says of what is recognised.
    #[track_caller]
    pub(crate) fn recognised<T>(memory: &Memory, options: &Options, rule: impl FnOnce(&Found, &Scan) -> T) -> T {
        memory.scanned(options, |scan| rule(&recognise(scan).expect("something is recognised"), scan))
    }

    /// The newest of what is recognised, whole or not.
    #[track_caller]
    pub(crate) fn newest(memory: &Memory) -> Candidate {
        recognised(memory, &Options::default(), |found, _| found.candidates[0].clone())
    }

    /// Complete units and their steps, newest first.
    pub(crate) fn complete_units_with(memory: &Memory, options: &Options) -> Vec<(String, Option<u64>)> {
        memory.scanned(options, |scan| {
            let Some(found) = recognise(scan) else { return Vec::new() };
            let complete = found.candidates.iter().filter(|c| complete(&found, scan, c).is_ok());
            complete.map(|c| (c.unit.clone(), c.step)).collect()
        })
    }

    pub(crate) fn complete_units(memory: &Memory) -> Vec<(String, Option<u64>)> {
        complete_units_with(memory, &Options::default())
    }

    /// Why a unit is not complete.
    pub(crate) fn reason(memory: &Memory, unit: &str) -> String {
        recognised(memory, &Options::default(), |found, scan| {
            let candidate = found.candidates.iter().find(|c| c.unit == unit).expect("the unit is found");
            complete(found, scan, candidate).expect_err("it is not complete")
        })
    }

    #[test]
    fn one_whose_writer_was_cut_off_is_sure_only_where_it_shows_its_own_end_and_lacks_nothing() {
        let whole = check::tests::zip_of(b"w", b"");
        let legacy = b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19.tensors".to_vec();
        let of =
            |files: &[(&str, &[u8])]| files.iter().fold(Memory::default(), |m, (name, bytes)| m.with(name, *bytes));
        let sure = |memory: &Memory, since: i64| {
            recognised(memory, &Options::default(), |found, scan| {
                complete(found, scan, &found.candidates[0]).expect("it passes for complete");
                is_sure(found, scan, &found.candidates[0], since)
            })
        };
        for (files, expected) in [
            (&[("ckpt_2.pt", &whole[..])][..], true),
            (&[("ckpt_2.pt", &legacy[..])], false),
            (&[("step-2.json", b"{}")], true),
            (&[("step-2/a.pkl", b"\x80\x04].")], true),
            (&[("step-2/a.pkl", &legacy[..])], false),
            (
                &[
                    ("step-2/.metadata", b"__0_0.distcp"),
                    ("step-2/__0_0.distcp", b"its layout says when it is through"),
                ],
                true,
            ),
            (&[("step-2/model.bin", b"weights")], false),
            (&[("step-2/weights", b"weights")], false),
            (&[("step-2/a.npz", &whole), ("step-2/train.log", b"x")], true),
            (&[("step-1/a.npz", &whole), ("step-1/b.npz", &whole), ("step-2/a.npz", &whole)], false),
            (&[("step-1/a.npz", &whole), ("step-1/notes.txt", b"x"), ("step-2/a.npz", &whole)], true),
            (&[("D_1.pth", &whole), ("G_1.pth", &whole), ("G_2.pth", &whole)], false),
            (&[("epoch=0-step=1.ckpt", &whole), ("epoch=1-step=2.ckpt", &whole)], true),
        ] {
            assert_eq!(sure(&of(files), -1), expected, "{:?}", files[files.len() - 1].0);
        }
        let before = of(&[("step-2/model.bin", b"weights")]);
        assert!(sure(&before, i64::MAX), "it was written long before");
    }

    #[test]
    fn no_two_layouts_share_a_name() {
        for (at, layout) in LAYOUTS.iter().enumerate() {
            assert!(LAYOUTS[at + 1..].iter().all(|l| l.name != layout.name), "{}", layout.name);
        }
    }

    proptest::proptest! {
        #[test]
        fn no_directory_makes_a_recogniser_panic(
            files in proptest::collection::vec((
                "(ckpt|checkpoint|step|iter_|global_step|ep1-ba|__0_|latest|checkpoints/|a/|10/|0/iter_1_0_local)[-_.=]?[0-9]{0,3}(/|-rank0|_0|)\
                 (\\.index|\\.data-0000[01]-of-0000[12]|\\.pt|\\.json|\\.h5|\\.ubj|/\\.metadata|\\.distcp|/trainer_state\\.json|\\.txt|_gda|\\.orbax-checkpoint-tmp|)",
                "(-> ?[./a-z]{0,6}|[0-9]{0,4}|\\{.{0,9}|PK.{0,30}|.{0,20})",
            ), 0..12),
            asked in 0usize..18,
            world in proptest::option::of(0u32..4),
        ) {
            let memory = files.iter().fold(Memory::default(), |m, (name, text)| m.with(name.trim_end_matches('/'), text));
            let format = LAYOUTS.get(asked).map(|l| l.name.to_owned());
            let options = Options { format, world_size: world, marker: Some("latest".into()), ..Options::default() };
            let _ = complete_units_with(&memory, &options);
            let _ = complete_units_with(&memory, &Options { format: None, marker: None, ..options });
        }
    }

    #[test]
    fn what_is_temporary_or_hidden_or_lies_in_such_is_never_taken_by_any_layout() {
        let files: [(&str, &[(&str, &str)]); 6] = [
            ("step_10", &[("__0_0.distcp", "x"), (".metadata", "__0_0.distcp")]),
            ("step_10", &[("model.safetensors", ""), ("random_states_0.pkl", "\u{80}.")]),
            ("10", &[("_CHECKPOINT_METADATA", "{}"), ("default/manifest.ocdbt", "x")]),
            ("checkpoint-10", &[("model.safetensors", ""), ("trainer_state.json", r#"{"global_step": 10}"#)]),
            ("global_step10", &[("mp_rank_00_model_states.pt", "x"), ("../latest", "global_step10")]),
            ("step-10", &[("w", "x")]),
        ];
        for (unit, parts) in files {
            let saved = |unit: &str| {
                parts.iter().fold(Memory::default(), |memory, (name, text)| {
                    let whole = super::check::tests::safetensors_of(b"1");
                    let path = match name.strip_prefix("../") {
                        Some(beside) => listing::join(listing::parent_of(unit), beside),
                        None => format!("{unit}/{name}"),
                    };
                    memory.with(&path, if text.is_empty() { &whole } else { text.as_bytes() })
                })
            };
            assert_eq!(complete_units(&saved(unit)), [(unit.to_owned(), Some(10))]);
            for aside in [".trash/", ".snapshot/hourly.0/", "tmp/run/"] {
                assert_eq!(complete_units(&saved(&format!("{aside}{unit}"))), [], "{aside}{unit}");
            }
            for aside in [format!(".{unit}"), format!("tmp_{unit}"), format!("{unit}.tmp")] {
                assert_eq!(complete_units(&saved(&aside)), [], "{aside}");
            }
        }
    }

    #[test]
    fn what_is_hidden_in_a_checkpoint_is_a_part_of_it_and_who_asks_for_a_format_may_call_a_run_tmp() {
        let memory = Memory::of(&[("step-10/.hydra/config.json", "{}"), ("step-10/w", "x")]);
        assert_eq!(newest(&memory).paths.len(), 3);
        let run = Memory::default().saved(&["tmp/model_10.pt"]);
        assert_eq!(complete_units(&run), []);
        let asked = Options { format: Some("torch".into()), ..Options::default() };
        assert_eq!(complete_units_with(&run, &asked), [("tmp/model_10.pt".into(), Some(10))]);
        let hidden = Memory::default().saved(&[".trash/model_10.pt"]);
        assert_eq!(complete_units_with(&hidden, &asked), []);
    }

    #[test]
    fn a_file_without_a_step_does_not_hide_the_checkpoints_of_steps() {
        let memory = |names: &[&str]| Memory::default().saved(names);
        let newest = |memory: &Memory| complete_units(memory).first().expect("there is one").0.clone();
        for stray in ["best.pt", "last.pt", "weights/best.keras"] {
            assert_eq!(newest(&memory(&[stray, "step-1/model.pt", "step-2/model.pt", "step-2/optim.pt"])), "step-2");
            let saved = memory(&["best/optimizer.pt", "best/model.safetensors", "step-1/model.pt"]);
            assert_eq!(newest(&saved), "step-1");
            assert_eq!(newest(&memory(&["encoder.pt", "decoder.pt", "step-1/model.pt"])), "step-1");
            assert_eq!(newest(&memory(&[stray, "samples_3/a.pt", "step-2/image.png", "v_4.json"])), stray);
        }
        assert_eq!(newest(&memory(&["best.keras", "model_1.pt", "model_2.pt"])), "model_2.pt");
        assert_eq!(newest(&memory(&["model_2.pt", "step-1/model.pt"])), "model_2.pt");
    }

    #[test]
    fn the_finished_model_is_no_checkpoint_nor_a_part_of_one() {
        let files = ["model_10.pt", "model/model.pt", "model/step-99/model.pt", "model-20/model_99.pt"];
        let memory = Memory::default().saved(&files);
        let options = Options { left_out: Some("model".into()), ..Options::default() };
        assert_eq!(complete_units_with(&memory, &options), [("model_10.pt".into(), Some(10))]);
        let alone = memory.without(files[0]).without(files[3]);
        assert_eq!(complete_units_with(&alone, &options), []);
        assert_eq!(complete_units(&alone).len(), 1);
    }

    #[test]
    fn a_save_over_the_same_names_that_was_cut_off_between_two_of_them_is_not_sure() {
        let sure = |names: [&str; 2]| {
            let memory = Memory::default().saved(&names).at(names[0], 9);
            recognised(&memory, &Options::default(), |found, scan| {
                [0, 5, 10].map(|since| is_sure(found, scan, &found.candidates[0], since))
            })
        };
        assert_eq!(sure(["model.pt", "optimizer.pt"]), [true, false, true]);
        assert_eq!(sure(["model_5.pt", "optimizer_5.pt"]), [true; 3], "of one step they are of one save");
    }

    #[test]
    fn the_pointers_that_a_framework_looks_for_name_the_checkpoint_that_is_put_there() {
        let whole = check::tests::zip_of(b"w", b"");
        let of = |files: &[(&str, &str)], unit: &str| {
            let text = |text: &str| if text == "weights" { whole.clone() } else { text.as_bytes().to_vec() };
            let memory = files.iter().fold(Memory::default(), |memory, (name, said)| memory.with(name, text(said)));
            recognised(&memory, &Options::default(), |found, scan| {
                let candidate = found.candidates.iter().find(|c| c.unit == unit).expect("the unit is found");
                let pointers = pointers(found.layout, scan, candidate).into_iter();
                pointers.map(|p| (p.path, p.content, p.symlink)).collect::<Vec<_>>()
            })
        };
        let pointer = |path: &str, content: &str, symlink| (path.to_owned(), content.to_owned(), symlink);
        let state = "model_checkpoint_path: \"m-10\"\nall_model_checkpoint_paths: \"m-10\"\n";
        let tensorflows = [
            ("run/m-10.index", "i"),
            ("run/m-10.data-00000-of-00001", "w"),
            ("run/checkpoint", "model_checkpoint_path: \"m-20\""),
        ];
        assert_eq!(of(&tensorflows, "run/m-10"), [pointer("run/checkpoint", state, false)]);
        assert_eq!(of(&tensorflows[..2], "run/m-10"), [], "there was none");
        let megatrons = [("iter_0000010/common.pt", "weights"), ("latest_checkpointed_iteration.txt", "20")];
        assert_eq!(of(&megatrons, "iter_0000010"), [pointer("latest_checkpointed_iteration.txt", "10", false)]);
        assert_eq!(of(&megatrons[..1], "iter_0000010"), []);
        let deepspeeds = [("global_step10/mp_rank_00_model_states.pt", "weights"), ("latest", "global_step20")];
        assert_eq!(of(&deepspeeds, "global_step10"), [pointer("latest", "global_step10", false)]);
        assert_eq!(of(&deepspeeds[..1], "global_step10"), []);
        let dlrovers = [("checkpoint-10/rank_0.pt", "weights"), ("dlrover_latest.txt", "20")];
        assert_eq!(of(&dlrovers, "checkpoint-10"), [pointer("dlrover_latest.txt", "10", false)]);
        let composers = [
            ("ep0-ba10-rank0.pt", "weights"),
            ("ep0-ba10-rank1.pt", "weights"),
            ("latest-rank0.pt", "-> ep0-ba20-rank0.pt"),
            ("latest-rank1.pt", "-> ep0-ba20-rank1.pt"),
            ("latest-rank2.pt", "-> ep0-ba20-rank2.pt"),
        ];
        let ranks =
            ["0", "1"].map(|rank| pointer(&format!("latest-rank{rank}.pt"), &format!("ep0-ba10-rank{rank}.pt"), true));
        assert_eq!(of(&composers, "ep0-ba10"), ranks);
        assert_eq!(of(&composers[..2], "ep0-ba10"), ranks, "it is needed");
        let with_a_file = [composers[0], ("latest-rank0.pt", "weights")];
        assert_eq!(of(&with_a_file, "ep0-ba10-rank0.pt"), [], "a checkpoint, and no link");
    }

    #[test]
    fn an_empty_directory_holds_no_checkpoint() {
        assert_eq!(complete_units(&Memory::default()), []);
    }
}
