//! Hugging Face Accelerate's `save_state`: directories `checkpoint_N`, usually under `checkpoints`, where it names them
//! itself, else of any name (`step_100`, `epoch_3`, the `checkpoint-500` of diffusers' trainers). There is no marker; each
//! process writes its `random_states_R.pkl` last. DeepSpeed and FSDP write their shards into directories in it.

use std::sync::LazyLock;

use super::dcp;
use super::deepspeed::{self, is_accelerates, is_tag};
use crate::rules::checkpoint::ascii::Pattern;
use crate::rules::checkpoint::layout::{Layout, Makeup};
use crate::rules::checkpoint::listing::{Entry, Kind, extension_of, name_of, parent_of};
use crate::rules::checkpoint::memo::Memo;
use crate::rules::checkpoint::order;
use crate::rules::checkpoint::steps::{number_after, step_in_stem};
use crate::rules::checkpoint::unit::{Candidate, IN_ITSELF, Scan};

pub(super) const ACCELERATE: Layout = Layout {
    makeup: Makeup::SameAgain,
    stumbles,
    ..Layout::of(
        "accelerate",
        "directories with random_states_*.pkl, or named checkpoint_N with an accelerator's other files",
        find,
        complete,
    )
};

/// Under Accelerate's own names.
const TELLTALES: [&str; 4] = ["optimizer.bin", "model.safetensors", "pytorch_model.bin", "scaler.pt"];
/// Under any name; `Trainer` writes `scheduler.pt`.
const PLAIN: [&str; 2] = ["scheduler.bin", "sampler.bin"];

/// What to say where it need not be Accelerate's.
const NOT_OURS: &str = "where Accelerate does not write them, give --checkpoint-format generic";

fn find(scan: &Scan) -> Vec<Candidate> {
    let within = |path: &str, wanted: &dyn Fn(&Entry) -> bool| scan.listing.within(path).any(wanted);
    let is_plain = |e: &Entry| PLAIN.contains(&e.name()) || is_random(e.name()) || is_sharded(scan, e);
    let unit = |directory: &Entry| {
        let path = &directory.path;
        let counted = number_after("checkpoint_", directory.name());
        let number = counted.or_else(|| step_in_stem(directory.name()));
        let is_ours = within(path, &is_plain) || counted.is_some() && within(path, &|e| TELLTALES.contains(&e.name()));
        if !is_ours && (scan.options.format.is_none() || counted.is_none()) {
            return None;
        }
        Some(Candidate::directory(scan.listing, path, scan.step(path, number)?))
    };
    let mut units: Vec<Candidate> = scan.listing.directories().filter_map(unit).collect();
    // One under a plain name beside numbered ones is no step, and must not be restored in their place.
    if units.iter().any(|u| u.step.is_some()) {
        units.retain(|u| u.step.is_some());
    }
    // Each save ends with random states before the next one begins: Ray Train calls its checkpoints so, too.
    let is_marked = |u: &Candidate| within(&u.unit, &|e| is_random(e.name()));
    if scan.options.format.is_none() && units.len() > 1 && !units.iter().any(is_marked) {
        units.clear();
    }
    let in_itself = scan.listing.within("").find(|e| is_random(e.name()) || is_sharded(scan, e));
    match in_itself {
        Some(entry) if units.is_empty() => vec![Candidate::file(entry, None)],
        _ => units,
    }
}

/// Under its automatic names it takes the number in every name beside them.
fn stumbles(candidate: &Candidate) -> Option<&'static str> {
    number_after("checkpoint_", &candidate.unit)
        .map(|_| "Accelerate's load_state() without a path, and its total_limit, fail at it (IndexError)")
}

/// A directory that DeepSpeed or FSDP writes into it. The trainer's of Hugging Face has such, too.
fn is_sharded(scan: &Scan, entry: &Entry) -> bool {
    let is_deepspeeds = is_accelerates(entry.name()) && is_tag(scan, entry);
    let is_trainers = number_after("checkpoint-", name_of(parent_of(&entry.path))).is_some();
    let is_fsdps = number_after("pytorch_model_fsdp_", entry.name()).is_some() && !is_trainers;
    entry.kind == Kind::Directory && (is_deepspeeds || is_fsdps)
}

fn is_random(name: &str) -> bool {
    name.starts_with("random_states_") && name.ends_with(".pkl")
}

fn complete(scan: &Scan, candidate: &Candidate, memo: &Memo) -> Result<(), String> {
    // A directory's entries lie below it: this one stands for the checkpoint directory.
    if candidate.paths.first() == Some(&candidate.unit) {
        return Err(IN_ITSELF.to_owned());
    }
    scan.all_whole(candidate)?;
    // The last thing each process saves.
    let found = scan.listing.within(&candidate.unit).filter(|e| is_random(e.name())).count();
    match scan.lacking(candidate.newest_ns(scan.listing), found) {
        Some(world) => {
            return Err(format!("{found} of {world} random_states files are there"));
        }
        _ if found == 0 => {
            return Err(format!("no random_states file is there yet ({NOT_OURS})"));
        }
        _ => {}
    }
    deepspeed::tags_whole(scan, &candidate.unit)?;
    dcp::parts_whole(scan, &candidate.unit)?;
    whole_still(scan, candidate, memo)
}

/// What the main process writes is of one save. (`scaler.pt` and `dl_state_dict.bin` are written by every process.)
fn in_order(scan: &Scan, unit: &str) -> Result<(), String> {
    static BEFORE: LazyLock<Pattern> = LazyLock::new(|| {
        let stems = r"(pytorch_model|optimizer|scheduler|sampler)(_\d+)?\.bin|model(_\d+)?\.safetensors";
        Pattern::new(&format!("^(?:{stems})$"))
    });
    let random = scan.listing.within(unit).filter(|e| is_random(e.name()));
    let Some(last) = random.min_by_key(|e| (e.name().len(), e.name())) else { return Ok(()) };
    order::written_before(scan.listing.within(unit).filter(|e| BEFORE.is_match(e.name())), last, 0)
}

/// Nobody is deleting it, or was saving over it.
fn whole_still(scan: &Scan, candidate: &Candidate, memo: &Memo) -> Result<(), String> {
    let is_weights =
        |e: &Entry| e.kind == Kind::Directory || e.name().contains("model") || has_end(e, &["safetensors"]);
    if !scan.listing.within(&candidate.unit).any(is_weights) {
        return Err("no weights are in it".to_owned());
    }
    let is_saved = |other: &Candidate| scan.listing.within(&other.unit).any(|e| is_random(e.name()));
    let saved = memo.saved(|| {
        let mut saved: Vec<Candidate> = find(scan).into_iter().filter(is_saved).collect();
        saved.sort_by_key(|unit| unit.step);
        saved
    });
    order::as_all_do(candidate, saved, |unit| in_order(scan, unit))?;
    scan.nothing_lost(candidate, saved, |e| has_end(e, &["bin", "pkl", "pt", "safetensors"]))
}

fn has_end(entry: &Entry, extensions: &[&str]) -> bool {
    extensions.contains(&extension_of(entry.name()))
}

#[cfg(test)]
mod tests {
    use crate::rules::checkpoint::check::tests::{safetensors_of, zip_of};
    use crate::rules::checkpoint::listing::tests::Memory;
    use crate::rules::checkpoint::tests::{complete_units, complete_units_with, reason};
    use crate::rules::checkpoint::unit::Options;

    #[test]
    fn directories_that_are_called_so_and_never_end_as_ours_are_somebody_elses() {
        let of = |numbers: &[u32]| {
            let weights =
                |m: Memory, n: &u32| m.with(&format!("checkpoint_{n:06}/model.safetensors"), safetensors_of(b"1"));
            numbers.iter().fold(Memory::default(), weights)
        };
        assert!(
            reason(&of(&[0]), "checkpoint_000000").contains("give --checkpoint-format generic"),
            "the first may be torn"
        );
        let units = complete_units(&of(&[0, 1]));
        assert_eq!(units, [("checkpoint_000001".into(), Some(1)), ("checkpoint_000000".into(), Some(0))]);
        let ours = of(&[0, 1, 2]).with("checkpoint_000000/random_states_0.pkl", b"\x80\x04.");
        assert_eq!(complete_units(&ours), [("checkpoint_000000".into(), Some(0))]);
        let asked = Options { format: Some("accelerate".into()), ..Options::default() };
        assert_eq!(complete_units_with(&of(&[0, 1]), &asked), []);
    }

    #[test]
    fn each_process_random_state_completes_a_save() {
        let memory = Memory::of(&[("checkpoints/checkpoint_0/random_states_0.pkl", b"\x80\x04.")])
            .with("checkpoints/checkpoint_0/model.safetensors", safetensors_of(b"1"))
            .with("checkpoints/checkpoint_1/model.safetensors", safetensors_of(b"1"));
        assert_eq!(complete_units(&memory), [("checkpoints/checkpoint_0".into(), Some(0))]);
    }

    #[test]
    fn where_it_is_known_how_many_processes_save_each_has_left_its_random_state() {
        let memory = saved_with("epoch_1", "scaler.pt", 1);
        for (world_size, complete) in [(None, 1), (Some(2), 1), (Some(3), 0)] {
            let options = Options { world_size, ..Options::default() };
            assert_eq!(complete_units_with(&memory, &options).len(), complete, "{world_size:?}");
        }
    }

    #[test]
    fn a_part_of_the_model_that_its_index_names_must_be_there() {
        let memory = Memory::of(&[("checkpoint_0/random_states_0.pkl", b"\x80\x04.".as_slice())]).with(
            "checkpoint_0/model.safetensors.index.json",
            r#"{"weight_map": {"a": "model-00002-of-00002.safetensors"}}"#,
        );
        assert_eq!(complete_units(&memory), []);
        let memory = memory.with("checkpoint_0/model-00002-of-00002.safetensors", safetensors_of(b"1"));
        assert_eq!(complete_units(&memory).len(), 1);
    }

    /// One saved into `unit`, this file at another time than the rest.
    fn saved_with(unit: &str, file: &str, ns: i64) -> Memory {
        let memory = Memory::default()
            .with(&format!("{unit}/random_states_0.pkl"), b"\x80\x04.")
            .with(&format!("{unit}/random_states_1.pkl"), b"\x80\x04.");
        let memory = ["optimizer.bin", "optimizer_1.bin", "scheduler.bin", "scaler.pt"]
            .iter()
            .fold(memory, |memory, name| memory.with(&format!("{unit}/{name}"), "o"))
            .with(&format!("{unit}/model.safetensors"), safetensors_of(b"1"));
        memory.at(&format!("{unit}/{file}"), ns)
    }

    #[test]
    fn one_that_is_saved_over_again_has_files_younger_than_its_random_states() {
        for file in ["model.safetensors", "optimizer.bin", "optimizer_1.bin", "scheduler.bin"] {
            assert_eq!(complete_units(&saved_with("epoch_1", file, 1)).len(), 1);
            assert!(
                reason(&saved_with("epoch_1", file, 2), "epoch_1").contains("younger than epoch_1/random_states_0")
            );
        }
        for by_each_process in ["scaler.pt", "random_states_1.pkl"] {
            assert_eq!(complete_units(&saved_with("epoch_1", by_each_process, 2)).len(), 1);
        }
    }

    #[test]
    fn a_trainer_that_always_writes_the_weights_once_more_is_believed() {
        let mut memory = saved_with("epoch_1", "model.safetensors", 2);
        let more = saved_with("epoch_2", "model.safetensors", 2);
        memory.0.extend(more.0);
        assert!(reason(&memory, "epoch_1").contains("saved over again"), "the other is not so");
        memory.1.extend(more.1);
        assert_eq!(complete_units(&memory).len(), 2);
    }

    #[test]
    fn one_that_is_being_deleted_is_not_taken_for_whole() {
        let memory = ["checkpoint_1", "checkpoint_2"].iter().fold(Memory::default(), |memory, unit| {
            let memory = memory.with(&format!("{unit}/model.safetensors"), safetensors_of(b"1"));
            memory
                .with(&format!("{unit}/optimizer.bin"), "o")
                .with(&format!("{unit}/random_states_0.pkl"), b"\x80\x04.")
        });
        assert_eq!(complete_units(&memory).len(), 2);
        let more =
            memory.with("checkpoint_3/model.safetensors", safetensors_of(b"1")).with("checkpoint_3/scaler.pt", "s");
        assert_eq!(complete_units(&more).len(), 2, "what is not saved yet says nothing about the others");
        let memory = more.without("checkpoint_1/optimizer.bin");
        assert!(reason(&memory, "checkpoint_1").contains("optimizer.bin is missing"));
        assert_eq!(complete_units(&memory), [("checkpoint_2".into(), Some(2))]);
        let memory = memory.without("checkpoint_2/model.safetensors");
        assert!(reason(&memory, "checkpoint_2").contains("no weights"));
    }

    #[test]
    fn under_a_trainers_own_names_too() {
        for (unit, step) in [("step_100", 100), ("epoch_3", 3), ("checkpoint-500", 500)] {
            let weights = format!("{unit}/unet/diffusion_pytorch_model.safetensors");
            let memory = Memory::of(&[(format!("{unit}/optimizer.bin").as_str(), "o")])
                .with(&weights, safetensors_of(b"1"))
                .with(&format!("{unit}/model.safetensors"), safetensors_of(b"1"))
                .with(&format!("{unit}/scheduler.bin"), "s");
            assert!(reason(&memory, unit).contains("random_states"));
            let memory = memory.with(&format!("{unit}/random_states_0.pkl"), b"\x80\x04.");
            assert_eq!(complete_units(&memory), [(unit.into(), Some(step))]);
        }
    }

    /// As save_state writes it with DeepSpeed.
    fn sharded(unit: &str) -> Memory {
        ["mp_rank_00_model", "zero_pp_rank_0_mp_rank_00_optim", "zero_pp_rank_1_mp_rank_00_optim"]
            .iter()
            .fold(Memory::default(), |memory, name| {
                memory.with(&format!("{unit}/pytorch_model/{name}_states.pt"), zip_of(b"w", b""))
            })
            .with(&format!("{unit}/latest"), "pytorch_model")
            .with(&format!("{unit}/scheduler.bin"), "s")
            .with(&format!("{unit}/random_states_0.pkl"), b"\x80\x04.")
            .with(&format!("{unit}/random_states_1.pkl"), b"\x80\x04.")
    }

    #[test]
    fn what_deepspeed_writes_into_it_is_a_part_of_it_and_looked_into() {
        let unit = "checkpoints/checkpoint_0";
        let file = |name: &str| format!("{unit}/{name}");
        assert_eq!(complete_units(&sharded(unit)), [(unit.into(), Some(0))]);
        let begun = sharded(unit).without(&file("scheduler.bin"));
        let begun = begun.without(&file("random_states_0.pkl")).without(&file("random_states_1.pkl"));
        assert!(reason(&begun, unit).contains("no random_states"));
        let lacking = |name: &str| reason(&sharded(unit).without(&file(name)), unit);
        assert!(lacking("pytorch_model/zero_pp_rank_0_mp_rank_00_optim_states.pt").contains("zero_pp_rank_0"));
        assert!(lacking("pytorch_model/mp_rank_00_model_states.pt").contains("the model states of"));
        let emptied = |latest: &str| {
            let mut memory =
                sharded(unit).with(&file("latest"), latest).with(&file("model.safetensors"), safetensors_of(b"1"));
            memory.0.retain(|name, _| !name.contains("pytorch_model/"));
            memory
        };
        assert!(reason(&emptied("pytorch_model"), unit).contains("of which no states are there"));
        assert_eq!(complete_units(&emptied("anybody's")).len(), 1);
        assert!(lacking("latest").contains("the pointer checkpoints/checkpoint_0/latest is not there yet"));
    }

    #[test]
    fn what_fsdp_writes_into_it_is_looked_into() {
        let memory = Memory::of(&[("checkpoint_0/random_states_0.pkl", b"\x80\x04.".as_slice())])
            .with("checkpoint_0/pytorch_model_fsdp_0/.metadata", "__0_0.distcp")
            .with("checkpoint_0/pytorch_model_fsdp_0/__0_0.distcp", "x")
            .with("checkpoint_0/optimizer_0/__0_0.distcp", "x");
        assert!(reason(&memory, "checkpoint_0").contains("optimizer_0/.metadata is not there yet"));
        let whole = memory.with("checkpoint_0/optimizer_0/.metadata", "__0_0.distcp");
        assert_eq!(complete_units(&whole).len(), 1);
        let emptied = whole.without("checkpoint_0/optimizer_0/.metadata");
        let emptied = emptied.without("checkpoint_0/optimizer_0/__0_0.distcp").with("checkpoint_0/optimizer_0/", "");
        assert!(reason(&emptied, "checkpoint_0").contains("optimizer_0/.metadata is not there yet"));
    }

    #[test]
    fn one_under_a_plain_name_is_one_checkpoint_of_no_step_unless_there_are_numbered_ones() {
        assert_eq!(complete_units(&sharded("last")), [("last".into(), None)]);
        let mut both = sharded("last");
        both.0.extend(sharded("step_5").0);
        assert_eq!(complete_units(&both), [("step_5".into(), Some(5))]);
    }

    #[test]
    fn one_saved_into_the_checkpoint_directory_itself_is_never_taken_in_parts() {
        let top = |name: &str| name.trim_start_matches("x/").to_owned();
        let mut memory = Memory::default();
        memory.0.extend(sharded("x").0.into_iter().map(|(name, bytes)| (top(&name), bytes)));
        assert_eq!(complete_units(&memory), []);
        assert!(reason(&memory, "pytorch_model").contains("in the checkpoint directory itself"));
        let plain = Memory::of(&[("random_states_0.pkl", b"\x80\x04.".as_slice()), ("scheduler.bin", b"s")]);
        assert!(reason(&plain, "random_states_0.pkl").contains("in the checkpoint directory itself"));
    }
}
