//! Unit tests of what all layouts have in common, and what the tests of each look with.

use super::listing::tests::Memory;
use super::*;

/// What a rule says of what is recognised.
pub(crate) fn recognised<T>(memory: &Memory, options: &Options, rule: impl FnOnce(&Found, &Scan) -> T) -> T {
    memory.scanned(options, |scan| rule(&recognise(scan).expect("something is recognised"), scan))
}

/// The newest of what is recognised, whole or not.
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

#[test]
fn one_whose_writer_was_cut_off_is_sure_only_where_it_shows_its_own_end_and_lacks_nothing() {
    let whole = check::tests::zip_of(b"w", b"");
    let legacy = b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19.tensors".to_vec();
    let of = |files: &[(&str, &[u8])]| files.iter().fold(Memory::default(), |m, (name, bytes)| m.with(name, *bytes));
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
            &[("step-2/.metadata", b"__0_0.distcp"), ("step-2/__0_0.distcp", b"its layout says when it is through")],
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
