//! No format known: a file or directory at the top whose name carries a step and whose files pass the checks of their
//! types. Temporary names, dot files and zero-length files are never checkpoints; nor are, beside
//! weights, texts and pictures. Where there is nothing of the kind at the top, directories of steps further down are, else
//! files ([`super::deeper`]).

use std::collections::BTreeMap;

use super::{deeper, keras};
use crate::rules::checkpoint::aside::is_copy;
use crate::rules::checkpoint::called::is_kept;
use crate::rules::checkpoint::check::{is_torchs, is_weights};
use crate::rules::checkpoint::contest::holds_weights;
use crate::rules::checkpoint::hasty::with_hasty;
use crate::rules::checkpoint::layout::{Layout, Makeup};
use crate::rules::checkpoint::listing::{Entry, Kind, join, name_of, parent_of};
use crate::rules::checkpoint::memo::Memo;
use crate::rules::checkpoint::siblings::together;
use crate::rules::checkpoint::steps::{is_day, is_steps, step_in, step_in_stem};
use crate::rules::checkpoint::unit::{Candidate, Scan, is_bystander, is_temporary};

pub(super) const GENERIC: Layout = Layout {
    makeup: Makeup::Anybodys,
    ..Layout::of("generic", "files or directories whose names carry a step", find, complete)
};

/// Of a SavedModel.
const MODEL: &str = "saved_model.pb";

fn find(scan: &Scan) -> Vec<Candidate> {
    let top = scan.listing.within("").filter(|entry| !is_home(scan, entry));
    let mut units: Vec<Candidate> = top.filter_map(|entry| unit(scan, entry)).collect();
    // Where what an earlier layout found gives way to this, it is none of ours.
    let is_others = |name: &str| scan.options.format.is_none() && (is_torchs(name) || keras::is_model(name));
    if units.iter().all(|unit| holds_results(scan, unit) || is_others(&unit.unit)) {
        let directories = scan.listing.directories().filter(|d| d.path.contains('/') && is_step_of_run(scan, &d.path));
        let mut deeper: Vec<Candidate> = directories.filter_map(|directory| unit(scan, directory)).collect();
        if deeper.is_empty() {
            deeper = deeper::files(scan);
            deeper.retain(|file| !is_others(&file.unit) && !is_a_part(name_of(&file.unit)));
        }
        units.extend(deeper);
    }
    if units.iter().any(|unit| holds_weights(scan.listing, unit)) {
        units.retain(|unit| is_steps(&unit.unit) || !holds_results(scan, unit));
    }
    with_hasty(scan, together(scan.listing, units))
}

/// Texts and pictures alone: what a step came to (`metrics-200.json`, `samples-200`), unless nothing else is there or the
/// name says that it is the step.
fn holds_results(scan: &Scan, unit: &Candidate) -> bool {
    let is_result = |name: &str| is_bystander(name) || [".json", ".txt"].iter().any(|end| name.ends_with(end));
    let mut files = unit.files(scan.listing).peekable();
    files.peek().is_some() && files.all(|file| is_result(file.name()))
}

/// The directory of a run (`exp_1`, `llama3-8b`), in which the checkpoints are.
fn is_home(scan: &Scan, entry: &Entry) -> bool {
    let mut within = scan.listing.within(&entry.path);
    within.any(|e| is_step_of_run(scan, &e.path)) && !scan.listing.within(&entry.path).any(is_surely_weights)
}

/// A directory that says which step it is, by a word or in one of checkpoints, in directories that say none, and holds weights.
fn is_step_of_run(scan: &Scan, path: &str) -> bool {
    let Some((around, name)) = path.rsplit_once('/') else { return false };
    let holds_models = is_kept(name) || is_kept(name_of(around));
    let is_of_a_model = |f: &Entry| is_surely_weights(f) || holds_models && is_archive(f);
    is_steps(name)
        && (says_word(name) || is_kept(name_of(around)))
        && !around.split('/').any(is_steps)
        && !is_copy(path)
        && scan.listing.below(path).iter().any(is_of_a_model)
}

/// What weights and results are kept in alike, and no text.
fn is_archive(file: &Entry) -> bool {
    file.kind == Kind::File && is_weights(file.name()) && !file.name().ends_with(".json")
}

/// Whether a file lies in the directory of a step: it is a part of that, whatever library wrote it, and no checkpoint of its
/// own.
pub(super) fn is_in_step(scan: &Scan, file: &Entry) -> bool {
    scan.options.format.is_none() && step_around(&file.path).is_some()
}

/// The directory of a step in which this lies.
fn step_around(path: &str) -> Option<&str> {
    let says = |part: &str, depth| is_steps(part) && !is_day(part) && (depth == 0 || says_word(part));
    let ends = path.match_indices('/').map(|(end, _)| &path[..end]);
    ends.enumerate().find_map(|(depth, around)| says(name_of(around), depth).then_some(around))
}

/// Adds to a unit that is alone in the directory of a step the other files there, but for its `pointer`: they are parts,
/// whatever library wrote them.
pub(super) fn with_rest(scan: &Scan, mut units: Vec<Candidate>, pointer: &str) -> Vec<Candidate> {
    let mut homes: BTreeMap<&str, usize> = BTreeMap::new();
    for around in units.iter().filter_map(|unit| step_around(&unit.unit)) {
        *homes.entry(around).or_default() += 1;
    }
    let alone: Vec<Option<String>> = units
        .iter()
        .map(|unit| step_around(&unit.unit).filter(|around| homes.get(around) == Some(&1)).map(str::to_owned))
        .collect();
    for (unit, around) in units.iter_mut().zip(alone) {
        let Some(around) = around else { continue };
        let pointer = join(parent_of(&unit.unit), pointer);
        let is_rest = |f: &&Entry| {
            let is_nobodys = is_bystander(f.name()) || is_copy(&f.path) || scan.is_aside(&f.path);
            f.kind == Kind::File && f.path != pointer && !is_nobodys
        };
        let rest = scan.listing.below(&around).iter().filter(is_rest).map(|f| f.path.clone());
        unit.paths.extend(rest);
        unit.paths.sort();
        unit.paths.dedup();
    }
    units
}

/// Whether a word for steps is in the name. (Ranks and layers are numbered, too.)
pub(in super::super) fn says_word(path: &str) -> bool {
    let name = name_of(path).to_ascii_lowercase();
    ["step", "epoch", "iter", "ckpt", "checkpoint"].iter().any(|word| name.contains(word))
}

/// Arrays, pickles and archives are of results, too.
pub(in super::super) fn is_surely_weights(file: &Entry) -> bool {
    let is_anybodys = |name: &str| ["json", "npy", "npz", "pkl", "pickle", "zip"].iter().any(|e| name.ends_with(e));
    file.kind == Kind::File && is_weights(file.name()) && !is_anybodys(file.name())
}

fn unit(scan: &Scan, entry: &Entry) -> Option<Candidate> {
    let name = entry.name();
    if is_temporary(name) || is_bystander(name) || is_a_part(name) {
        return None;
    }
    let directory = matches!(entry.kind, Kind::Directory);
    let read = if directory { step_in_stem(name).filter(|_| !is_day(name)) } else { step_of_file(scan, entry) };
    let step = scan.step(name, read)?;
    // A checkpoint of a day (`ckpt_2024_06_30`) goes by its time.
    if step.is_none() && !is_steps(name) {
        return None;
    }
    match entry.kind {
        Kind::File if entry.size > 0 => Some(Candidate::file(entry, step)),
        Kind::Directory => Some(Candidate::directory(scan.listing, &entry.path, step)),
        Kind::Odd(_) | Kind::Lost(_) => Some(Candidate::file(entry, step)),
        Kind::File | Kind::Symlink(_) => None,
    }
}

/// The step in a file's name, or in that of a file beside it to which it adds: `w2v_2.model.syn1neg.npy` beside `w2v_2.model`
/// (Gensim, which writes that last), where 1 is none.
fn step_of_file(scan: &Scan, file: &Entry) -> Option<u64> {
    let (name, home) = (file.name(), parent_of(&file.path));
    let heads = name.match_indices('.').map(|(at, _)| &name[..at]).filter(|head| !head.is_empty());
    let mut files = heads.filter(|head| is_weights(head) || scan.listing.file(&join(home, head)).is_some());
    files.find_map(step_in).or_else(|| step_in(name))
}

/// A shard of a distributed checkpoint, or one of several files of a model: `model-00002-of-00003.safetensors`.
fn is_a_part(name: &str) -> bool {
    let is_five = |text: &str| text.len() == 5 && text.bytes().all(|b| b.is_ascii_digit());
    let is_counted = name.rsplit_once("-of-").is_some_and(|(before, rest)| {
        let all = rest.split('.').next().unwrap_or_default();
        is_five(all) && before.rsplit('-').next().is_some_and(is_five)
    });
    is_counted || name.ends_with(".distcp")
}

fn complete(scan: &Scan, candidate: &Candidate, _: &Memo) -> Result<(), String> {
    let is_cut = |name: &str| [".tmp", ".part", ".incomplete"].iter().any(|end| name.ends_with(end));
    let unfinished = |e: &&Entry| is_cut(e.name()) || e.name().starts_with(".tmp");
    if let Some(entry) = candidate.entries(scan.listing).find(unfinished) {
        return Err(format!("{} is still being written", entry.path));
    }
    // A SavedModel's graph is written after its variables.
    let at = |name: &str| join(&candidate.unit, name);
    if scan.listing.get(&at("variables/variables.index")).is_some() && scan.listing.get(&at(MODEL)).is_none() {
        return Err(format!("{} is not there yet", at(MODEL)));
    }
    scan.all_whole(candidate)
}

#[cfg(test)]
mod tests {
    use crate::rules::checkpoint::check::tests::{hdf5_of, safetensors_of, table_of, zip_of};
    use crate::rules::checkpoint::listing::tests::Memory;
    use crate::rules::checkpoint::tests::{complete_units, complete_units_with, newest, reason, recognised};
    use crate::rules::checkpoint::unit::Options;

    #[test]
    fn all_files_of_a_steps_directory_are_one_checkpoint_whatever_libraries_wrote_them() {
        let files: [(&str, Vec<u8>); 7] = [
            ("model.h5", hdf5_of(0, b"data", 0)),
            ("policies/p/model.weights.h5", hdf5_of(0, b"data", 0)),
            ("model.keras", zip_of(b"w", b"")),
            ("model_3.ubj", b"{i\x01aT}".to_vec()),
            ("snapshot.cbsnapshot", b"\x03\0\0\0CPU\x8a\x11\0\0{}".to_vec()),
            ("checkpoint_3", b"msgpack".to_vec()),
            ("model.pt", zip_of(b"w", b"")),
        ];
        for (home, (name, bytes)) in ["", "runs/a/"].iter().flat_map(|home| files.iter().map(move |file| (home, file)))
        {
            let of = |memory: Memory, step: u64| {
                let unit = format!("{home}step-{step}");
                let memory = memory.with(&format!("{unit}/{name}"), bytes.clone());
                memory.with(&format!("{unit}/optimizer.safetensors"), safetensors_of(b"w"))
            };
            let memory = [100, 200].into_iter().fold(Memory::default(), of);
            let newest = newest(&memory);
            assert_eq!(newest.files(&memory.listing()).count(), 2, "{home}{name}");
            assert_eq!((newest.unit, newest.step), (format!("{home}step-200"), Some(200)), "{name}");
            assert_eq!(complete_units(&memory).len(), 2, "{home}{name}");
        }
    }

    #[test]
    fn what_lies_beside_a_library_of_several_files_in_a_steps_directory_goes_with_it() {
        let tensorflow = |memory: Memory, unit: &str| {
            let memory = memory.with(&format!("{unit}/ckpt-1.index"), table_of(b"x"));
            let memory = memory.with(&format!("{unit}/ckpt-1.data-00000-of-00001"), "w");
            memory.with(&format!("{unit}/checkpoint"), "all_model_checkpoint_paths: \"ckpt-1\"")
        };
        let deepspeed = |memory: Memory, unit: &str| {
            let memory = memory.with(&format!("{unit}/global_step7/mp_rank_00_model_states.pt"), zip_of(b"w", b""));
            memory.with(&format!("{unit}/latest"), "global_step7")
        };
        let of = |save: &dyn Fn(Memory, &str) -> Memory, names: &[&str]| {
            let memory = [90, 100].into_iter().fold(Memory::default(), |memory, step| {
                let unit = format!("runs/a/step-{step}");
                let with = |memory: Memory, name: &&str| memory.with(&format!("{unit}/{name}"), safetensors_of(b"w"));
                names.iter().fold(save(memory, &unit), with)
            });
            assert_eq!(complete_units(&memory).len(), 2, "{names:?}");
            recognised(&memory, &Options::default(), |found, scan| {
                found.candidates.iter().map(|unit| unit.files(scan.listing).count()).collect::<Vec<_>>()
            })
        };
        let (files, others) = (
            ["ema.safetensors", "a/loader.bin"],
            [&["train.log"][..], &["new.safetensors.tmp"], &["a/.b.bin"], &["wandb/run-1/w.bin"]],
        );
        assert_eq!(of(&tensorflow, &[]), [2, 2]);
        assert_eq!(of(&tensorflow, &files), [4, 4]);
        assert_eq!(of(&deepspeed, &[]), [1, 1]);
        assert_eq!(of(&deepspeed, &files), [3, 3]);
        for other in others {
            assert_eq!((of(&tensorflow, other), of(&deepspeed, other)), (vec![2, 2], vec![1, 1]), "{other:?}");
        }
        let two = tensorflow(tensorflow(Memory::default(), "step-1/a"), "step-1/b").with("step-1/w.bin", "x");
        let has_two =
            recognised(&two, &Options::default(), |found, _| found.candidates.iter().all(|unit| unit.paths.len() == 2));
        assert!(has_two, "whose the others are nobody knows");
    }

    #[test]
    fn a_name_with_a_step_and_whole_content_is_a_checkpoint() {
        let memory =
            Memory::of(&[("ckpt-00000010.json", "{\"w\": 1}"), ("ckpt-00000020.json", "{\"w\": 1"), ("step=5/a", "x")]);
        let units = complete_units(&memory);
        assert_eq!(units, [("ckpt-00000010.json".into(), Some(10)), ("step=5".into(), Some(5))]);
    }

    #[test]
    fn a_file_that_safetensors_will_rename_is_not_written_yet() {
        assert!(reason(&Memory::of(&[("epoch_1/.tmpexM3xZ", "x")]), "epoch_1").contains("still being written"));
    }

    #[test]
    fn one_of_so_many_is_a_part_only_where_files_of_models_are_numbered() {
        let memory = Memory::of(&[("step-10-of-100/a", "x"), ("model-00002-of-00003.bin", "x")]);
        assert_eq!(complete_units(&memory).iter().map(|u| u.0.as_str()).collect::<Vec<_>>(), ["step-10-of-100"]);
    }

    #[test]
    fn temporary_hidden_empty_and_bystanding_files_never_are() {
        let names = "ckpt-1.json.tmp a-2.part .ckpt-3 train-4.log samples_8.png loss_9.csv core.12345 a_7.bin.sha256 \
                     events.out.tfevents.17.host tmp-5/x readme";
        let memory = names.split(' ').fold(Memory::of(&[("ckpt-6", "")]), |memory, name| memory.with(name, "x"));
        assert_eq!(complete_units(&memory), []);
    }

    #[test]
    fn one_of_several_files_of_a_model_is_no_checkpoint() {
        let memory = ["model-00001-of-00002.json", "model-00002-of-00002.json", "out-of-memory-7.json"];
        let memory = memory.iter().fold(Memory::default(), |memory, name| memory.with(name, "{}"));
        assert_eq!(complete_units(&memory), [("out-of-memory-7.json".into(), Some(7))]);
    }

    #[test]
    fn what_torch_saved_as_a_tar_in_a_steps_directory_must_have_its_end() {
        for name in ["model.pth.tar", "model.tar"] {
            let (whole, before) = (zip_of(b"weights", b""), format!("step-1/{name}"));
            let memory = Memory::of(&[(before.as_str(), &whole)]).with("step-2/w.bin", "w");
            let with = |bytes: &[u8]| complete_units(&memory.clone().with(&format!("step-2/{name}"), bytes)).len();
            assert_eq!([with(&whole), with(&whole[..40]), with(&whole[..2])], [2, 1, 1], "{name}");
        }
        let before = Memory::of(&[("step-1/model.pth.tar", zip_of(b"weights", b"")), ("step-2/model.pth.tar", vec![])]);
        assert_eq!(complete_units(&before), [("step-1".into(), Some(1))], "an empty one");
    }

    #[test]
    fn a_directory_with_a_file_still_being_written_is_not_finished() {
        let memory = Memory::of(&[("step-1/a", "x"), ("step-1/b.tmp", "x"), ("step-2/a.json", "{")]);
        assert_eq!(complete_units(&memory), []);
        assert!(reason(&memory, "step-1").contains("b.tmp"));
    }

    #[test]
    fn what_a_step_came_to_is_no_checkpoint_beside_its_weights() {
        for (weights, results) in [
            ("step-200/weights.msgpack", "samples-200/a.png"),
            ("step-200/weights.msgpack", "samples-900/a.png"),
            ("model-200.safetensors", "metrics-200.json"),
            ("model-200.safetensors", "eval-900.json"),
            ("model-200.msgpack", "vocab_32000.txt"),
        ] {
            let memory = Memory::default().with(weights, safetensors_of(b"w")).with(results, "{}").at(results, 9);
            let step = weights.split('/').next().expect("it has a first part").to_owned();
            assert_eq!(complete_units(&memory), [(step, Some(200))], "{results}");
            assert_eq!(complete_units(&memory.without(weights)).len(), 1, "{results}");
        }
    }

    #[test]
    fn the_steps_of_a_run_are_the_checkpoints_and_not_the_run() {
        for run in ["exp_1", "llama3-8b", "checkpoints", "out/run_5/ckpts"] {
            let unit = |step: u64| (format!("{run}/step-{step}"), Some(step));
            let memory = |steps: &[u64]| {
                let save = |memory: Memory, step: &u64| memory.with(&format!("{}/w.bin", unit(*step).0), "x");
                steps.iter().fold(Memory::of(&[("metrics_900.json", "{}")]), save)
            };
            assert_eq!(complete_units(&memory(&[100, 200])), [unit(200), unit(100)], "{run}");
            let top = memory(&[100]).with("step-50/w.eqx", "x");
            assert_eq!(complete_units(&top)[0], ("step-50".into(), Some(50)));
        }
        for parts in ["model_5/0/w.bin", "step-5/iter_1/w.bin", "model_5/ep_1/w.bin"] {
            let unit = parts.split('/').next().expect("it has a first part").to_owned();
            assert_eq!(complete_units(&Memory::of(&[(parts, "x")])), [(unit, Some(5))], "{parts}");
        }
        let others = ["samples/step-5/a.png", "eval/step-5/answers.npy", "wandb/run/step-5/w.bin"];
        assert_eq!(complete_units(&Memory::of(&others.map(|path| (path, "x")))), []);
    }

    #[test]
    fn where_checkpoints_are_kept_a_number_alone_is_a_step_and_pickles_and_arrays_are_weights() {
        for unit in ["run/checkpoints/001000", "ckpts/5", "run/checkpoint_000007", "snapshots/step-3", "ckpts/10_steps"]
        {
            for file in ["params.pkl", "arrays.npy", "state.npz", "pretrained_model/model.safetensors"] {
                let memory = Memory::default().saved(&[&format!("{unit}/{file}"), "run/config.yaml"]);
                assert_eq!(newest(&memory).unit, unit, "{file}");
            }
        }
        for other in ["runs/5/w.safetensors", "run/step-5/answers.npy", "ckpts/5/config.json", "data/5/x.pkl"] {
            assert_eq!(complete_units(&Memory::default().saved(&[other])), [], "{other}");
        }
    }

    #[test]
    fn a_file_that_adds_to_the_name_of_another_is_of_the_same_step() {
        let of = |step: &str| ["", ".syn1neg.npy", ".wv.vectors.npy"].map(|end| format!("w2v_{step}.model{end}"));
        let names = [of("1"), of("2"), of("12")].concat();
        let memory = Memory::in_turn(&names.iter().map(String::as_str).collect::<Vec<_>>(), 5);
        assert_eq!(newest(&memory).paths, of("12"));
        let torn = memory.clone().without("w2v_12.model");
        for memory in [memory, torn] {
            recognised(&memory, &Options::default(), |found, _| assert_eq!(found.candidates.len(), 3));
        }
    }

    #[test]
    fn a_day_and_a_time_of_day_are_no_steps() {
        for day in ["2024-01-02", "2024_01_02", "12-30-00", "2024-01-02_12-30-00", "2024-01-02T12:30:00"] {
            assert_eq!(complete_units(&Memory::of(&[(format!("{day}/a").as_str(), "x")])), [], "{day}");
        }
        assert_eq!(complete_units(&Memory::of(&[("2024-01-02-step5/a", "x")])).len(), 1);
    }

    #[test]
    fn checkpoints_of_days_go_by_their_time() {
        let memory = Memory::of(&[("ckpt_2024_06_30/model.pt", zip_of(b"w", b""))])
            .with("ckpt_2024_07_01/model.pt", zip_of(b"w", b""))
            .with("ckpt_2024_07_01/optim.pt", zip_of(b"w", b""))
            .at("ckpt_2024_07_01/optim.pt", 5_000_000_000);
        let units = [("ckpt_2024_07_01".to_owned(), None), ("ckpt_2024_06_30".to_owned(), None)];
        assert_eq!(complete_units(&memory), units);
    }

    #[test]
    fn an_index_is_tensorflows_only_with_its_data_beside_it() {
        let faiss = Memory::of(&[("step-10/x.index", "IxF2 of FAISS"), ("step-10/w", "x")]);
        assert_eq!(complete_units(&faiss).len(), 1);
        assert!(reason(&faiss.with("step-10/x.index", ""), "step-10").contains("it is empty"));
        let index = table_of(b"blocks");
        let generic = Options { format: Some("generic".into()), ..Options::default() };
        for length in 0..=index.len() {
            let cut = Memory::of(&[("step-10/x.index", &index[..length]), ("step-10/x.data-00000-of-00001", b"w")]);
            let is_whole = !complete_units_with(&cut, &generic).is_empty();
            assert_eq!(is_whole, length == index.len(), "cut to {length}");
        }
    }
}
