//! Hugging Face `Trainer`: directories `checkpoint-N`, in which rank 0 writes `trainer_state.json` last.
//!
//! Other ranks may still be writing their `rng_state_R.pth` then, so with a known number of processes these are counted;
//! and their shards, which are DeepSpeed's (`global_stepN` and `latest`) or FSDP's (`pytorch_model_fsdp_0`, `optimizer_0`).

use std::collections::BTreeSet;
use std::sync::LazyLock;

use serde::Deserialize;

use super::{dcp, deepspeed};
use crate::rules::checkpoint::ascii::Pattern;
use crate::rules::checkpoint::json;
use crate::rules::checkpoint::layout::{Layout, Makeup};
use crate::rules::checkpoint::listing::{Kind, Listing, join};
use crate::rules::checkpoint::memo::Memo;
use crate::rules::checkpoint::order::{self, APART_NS};
use crate::rules::checkpoint::steps::number_after;
use crate::rules::checkpoint::unit::{Candidate, Scan};

pub(super) const HUGGINGFACE: Layout = Layout {
    makeup: Makeup::SameAgain,
    is_handed_out: true,
    best_step,
    ..Layout::of("huggingface", "directories named checkpoint-N with a trainer's files", find, complete)
};

/// Files that tell a trainer's directory from anybody's.
const TELLTALES: [&str; 12] = [
    "trainer_state.json",
    "training_args.bin",
    "config.json",
    "adapter_config.json",
    "model.safetensors",
    "model.safetensors.index.json",
    "adapter_model.safetensors",
    "pytorch_model.bin",
    "pytorch_model.bin.index.json",
    "optimizer.pt",
    "scheduler.pt",
    "checkpoint-is-incomplete.txt",
];

fn find(scan: &Scan) -> Vec<Candidate> {
    let named = scan.listing.directories().filter_map(|d| Some((d, number_after("checkpoint-", d.name())?)));
    let named: Vec<_> = named.collect();
    let is_trainers =
        |path: &str| TELLTALES.iter().any(|t| scan.listing.get(&join(path, t)).is_some()) || shards(scan.listing, path);
    // One directory of the trainer's kind makes its empty siblings unfinished ones.
    let ours = named.iter().filter(|(d, _)| is_trainers(&d.path)).count();
    // Each save ends with its state before the next one begins: who saves a model by hand may call it so, too.
    let is_by_hand = || ours > 1 && !named.iter().any(|(d, _)| is_marked(scan.listing, &d.path));
    if scan.options.format.is_none() && (ours == 0 || is_by_hand()) {
        return Vec::new();
    }
    let units = named.into_iter();
    units.filter_map(|(d, n)| Some(Candidate::directory(scan.listing, &d.path, scan.step(&d.path, Some(n))?))).collect()
}

/// Whether a directory holds what nobody but the trainer writes.
fn is_marked(listing: &Listing, path: &str) -> bool {
    let is_mark =
        |name: &str| ["trainer_state.json", "training_args.bin"].contains(&name) || name.starts_with("rng_state");
    let mut within = listing.within(path);
    within.any(|e| is_mark(e.name()) || e.name() == "checkpoint-is-incomplete.txt")
}

fn shards(listing: &Listing, path: &str) -> bool {
    listing.within(path).any(|e| e.name().starts_with("model-") && e.name().ends_with(".safetensors"))
}

#[derive(Deserialize)]
struct State {
    global_step: u64,
}

#[derive(Deserialize)]
struct Best {
    best_model_checkpoint: Option<String>,
}

/// The step that `trainer_state.json` calls the best: `best_model_checkpoint` is the path of its directory, wherever it was
/// when it was written.
fn best_step(scan: &Scan, candidate: &Candidate) -> Option<u64> {
    let best: Best =
        json::python_json(&mut scan.text(&join(&candidate.unit, "trainer_state.json"))?.as_bytes()).ok()?;
    number_after(
        "checkpoint-",
        crate::rules::checkpoint::listing::name_of(best.best_model_checkpoint?.trim_end_matches('/')),
    )
}

fn complete(scan: &Scan, candidate: &Candidate, memo: &Memo) -> Result<(), String> {
    let unit = &candidate.unit;
    let has = |name: &str| scan.listing.get(&join(unit, name)).is_some();
    if has("checkpoint-is-incomplete.txt") {
        return Err("checkpoint-is-incomplete.txt is in it".to_owned());
    }
    let state = scan.listing.file(&join(unit, "trainer_state.json")).ok_or(
        "trainer_state.json is not there yet (where Transformers' Trainer does not write them, give --checkpoint-format generic)",
    )?;
    let state: State = json::read(scan.peek, state).map_err(|error| match error.is_io() {
        true => "trainer_state.json cannot be read".to_owned(),
        false => format!("trainer_state.json is cut short or no JSON ({error})"),
    })?;
    let named = number_after("checkpoint-", crate::rules::checkpoint::listing::name_of(unit));
    if named != Some(state.global_step) {
        return Err(format!("trainer_state.json speaks of step {}", state.global_step));
    }
    scan.all_whole(candidate)?;
    let weights = |e: &str| e.ends_with(".safetensors") || e.ends_with(".bin") && e != "training_args.bin";
    let sharded = |kind: &Kind, name: &str| {
        *kind == Kind::Directory && (name.starts_with("pytorch_model") || name.starts_with("global_step"))
    };
    let below = scan.listing.below(unit);
    if !below.iter().any(|e| weights(e.name()) || sharded(&e.kind, e.name()) || e.name().ends_with(".distcp")) {
        return Err("no weights are in it".to_owned());
    }
    deepspeed::tags_whole(scan, unit)?;
    dcp::parts_whole(scan, unit)?;
    resumable(scan, candidate, memo)?;
    order::as_all_do(candidate, memo.saved(|| find(scan)), |unit| in_order(scan, unit))
}

/// What rank 0 writes before `trainer_state.json` is of the same save. Random states follow it in older versions. A save
/// begins with `config.json`: where that is not younger, nothing was saved over, but fetched in any order.
fn in_order(scan: &Scan, unit: &str) -> Result<(), String> {
    static BEFORE: LazyLock<Pattern> = LazyLock::new(|| {
        Pattern::new(r"^(?:(optimizer|scheduler)\.(pt|bin)|model.*\.safetensors|pytorch_model.*\.bin)$")
    });
    let Some(last) = scan.listing.file(&join(unit, "trainer_state.json")) else { return Ok(()) };
    if scan
        .listing
        .file(&join(unit, "config.json"))
        .is_some_and(|first| order::written_before([first], last, APART_NS).is_ok())
    {
        return Ok(());
    }
    order::written_before(scan.listing.within(unit).filter(|e| BEFORE.is_match(e.name())), last, APART_NS)
}

/// Optimizer, scheduler and the state of each rank's random numbers, unless the trainer saves only the model.
fn resumable(scan: &Scan, candidate: &Candidate, memo: &Memo) -> Result<(), String> {
    let within = |unit: &str, wanted: &dyn Fn(&str) -> bool| scan.listing.within(unit).any(|e| wanted(e.name()));
    let optimizer = |name: &str| name.starts_with("optimizer") || name.starts_with("global_step");
    let scheduler = |name: &str| name == "scheduler.pt";
    let random = |name: &str| name.starts_with("rng_state") && name.ends_with(".pth");
    let unit = candidate.unit.as_str();
    let names = memo.names(|| {
        let all = memo.saved(|| find(scan)).iter().flat_map(|c| scan.listing.within(&c.unit));
        all.map(|e| (e.name().to_owned(), String::new())).collect()
    });
    let any_has = |wanted: &dyn Fn(&str) -> bool| names.keys().any(|name| wanted(name));
    if !any_has(&|n| optimizer(n) || scheduler(n) || random(n)) {
        return Ok(());
    }
    if !within(unit, &optimizer) {
        return Err("optimizer.pt is missing".to_owned());
    }
    let engine = within(unit, &|n| n.starts_with("global_step"));
    if !engine && !within(unit, &scheduler) {
        return Err("scheduler.pt is missing".to_owned());
    }
    let found = scan.listing.within(unit).filter(|e| random(e.name())).count();
    if found == 0 && any_has(&random) {
        return Err("rng_state.pth is missing".to_owned());
    }
    let rank = |name: &str| number_after("rng_state_", name.strip_suffix(".pth")?);
    let ranks: BTreeSet<u64> = scan.listing.within(unit).filter_map(|e| rank(e.name())).collect();
    // Another node's ranks do not start at 0.
    if let Some((before, _)) = ranks.iter().zip(ranks.iter().skip(1)).find(|(one, next)| **next - **one > 1) {
        return Err(format!("rng_state_{}.pth is missing", before + 1));
    }
    let lacking = scan.lacking(candidate.newest_ns(scan.listing), found);
    lacking.map_or(Ok(()), |world| Err(format!("{found} of {world} rng_state files are there")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rules::checkpoint::Options;
    use crate::rules::checkpoint::check::tests::{safetensors_of, zip_of};
    use crate::rules::checkpoint::listing::tests::Memory;
    use crate::rules::checkpoint::tests::{complete_units, complete_units_with, reason};

    fn saved() -> Memory {
        ["checkpoint-500", "checkpoint-1000"].iter().zip([500, 1000]).fold(Memory::default(), |memory, (unit, step)| {
            memory
                .with(&format!("{unit}/config.json"), "{}")
                .with(&format!("{unit}/model-00001-of-00002.safetensors"), safetensors_of(b"1"))
                .with(&format!("{unit}/model-00002-of-00002.safetensors"), safetensors_of(b"2"))
                .with(
                    &format!("{unit}/model.safetensors.index.json"),
                    r#"{"weight_map":{"a":"model-00001-of-00002.safetensors","b":"model-00002-of-00002.safetensors"}}"#,
                )
                .with(&format!("{unit}/optimizer.pt"), zip_of(b"o", b""))
                .with(&format!("{unit}/scheduler.pt"), zip_of(b"s", b""))
                .with(&format!("{unit}/rng_state.pth"), zip_of(b"r", b""))
                .with(&format!("{unit}/trainer_state.json"), format!(r#"{{"global_step": {step}}}"#))
        })
    }

    #[test]
    fn directories_that_are_called_so_and_never_end_as_ours_are_somebody_elses() {
        let of = |steps: &[u64]| {
            let file = |m: Memory, path: String| m.with(&path, safetensors_of(b"1"));
            let of_step = |m: Memory, n: &u64| {
                let m = m.with(&format!("checkpoint-{n}/adapter_config.json"), "{}");
                file(m, format!("checkpoint-{n}/adapter_model.safetensors"))
            };
            steps.iter().fold(Memory::default(), of_step)
        };
        assert!(
            reason(&of(&[10]), "checkpoint-10").contains("give --checkpoint-format generic"),
            "the first may be torn"
        );
        let units = complete_units(&of(&[10, 20]));
        assert_eq!(units, [("checkpoint-20".into(), Some(20)), ("checkpoint-10".into(), Some(10))]);
        let ours = of(&[10, 20, 30]).with("checkpoint-10/trainer_state.json", r#"{"global_step": 10}"#);
        assert_eq!(complete_units(&ours), [("checkpoint-10".into(), Some(10))]);
    }

    #[test]
    fn the_highest_number_with_everything_in_it_is_the_newest() {
        let units = complete_units(&saved());
        assert_eq!(units, [("checkpoint-1000".into(), Some(1000)), ("checkpoint-500".into(), Some(500))]);
    }

    #[test]
    fn without_any_one_file_it_is_not_finished() {
        for file in ["trainer_state.json", "model-00002-of-00002.safetensors", "optimizer.pt", "scheduler.pt"] {
            let memory = saved().without(&format!("checkpoint-1000/{file}"));
            assert_eq!(complete_units(&memory), [("checkpoint-500".into(), Some(500))], "{file}");
            let mut alone = memory;
            alone.0.retain(|path, _| path.starts_with("checkpoint-1000/"));
            assert_eq!(complete_units(&alone), [], "{file}, with no other to compare it with");
        }
    }

    #[test]
    fn the_first_checkpoint_without_its_state_is_unfinished_and_no_directory_of_no_format() {
        let memory = Memory::default().with("checkpoint-5/model.safetensors", safetensors_of(b"1"));
        assert_eq!(complete_units(&memory), []);
        assert!(reason(&memory, "checkpoint-5").contains("trainer_state.json"));
        let shard = Memory::default().with("checkpoint-5/model-00001-of-00002.safetensors", safetensors_of(b"1"));
        assert!(reason(&shard, "checkpoint-5").contains("trainer_state.json"));
        let anybodys = Memory::default().with("checkpoint-5/weights.npz", zip_of(b"w", b""));
        assert_eq!(complete_units(&anybodys), [("checkpoint-5".into(), Some(5))], "nothing in it is the trainer's");
    }

    #[test]
    fn the_best_is_the_one_whose_directory_the_state_names() {
        let best = |state: &str| {
            let memory = saved().with("checkpoint-1000/trainer_state.json", state);
            assert_eq!(complete_units(&memory).len(), 2, "whatever it names: {state}");
            let is_it = |c: &&Candidate| c.unit == "checkpoint-1000";
            memory.scanned(&Options::default(), |scan| {
                best_step(scan, find(scan).iter().find(is_it).expect("it is there"))
            })
        };
        let named = |path: &str| best(&format!(r#"{{"global_step": 1000, "best_model_checkpoint": {path}}}"#));
        assert_eq!(named(r#""/mnt/out/checkpoint-500""#), Some(500));
        assert_eq!(named(r#""checkpoint-1000/""#), Some(1000));
        assert_eq!(best(r#"{"global_step": 1000}"#), None);
        for nothing in ["null", "7", r#""""#, r#""out/final""#, r#""checkpoint-x""#] {
            assert_eq!(named(nothing), None, "{nothing}");
        }
    }

    #[test]
    fn a_loss_that_is_no_number_spoils_nothing() {
        let state = r#"{"global_step": 1000, "log_history": [{"grad_norm": NaN, "loss": Infinity}]}"#;
        assert_eq!(complete_units(&saved().with("checkpoint-1000/trainer_state.json", state)).len(), 2);
    }

    #[test]
    fn a_wrong_step_a_cut_file_or_the_sentinel_spoils_it() {
        let wrong = saved().with("checkpoint-1000/trainer_state.json", r#"{"global_step": 999}"#);
        assert!(reason(&wrong, "checkpoint-1000").contains("999"));
        let cut = saved().with("checkpoint-1000/optimizer.pt", &zip_of(b"o", b"")[..40]);
        assert!(reason(&cut, "checkpoint-1000").contains("optimizer.pt"));
        let sentinel = saved().with("checkpoint-1000/checkpoint-is-incomplete.txt", "");
        assert!(reason(&sentinel, "checkpoint-1000").contains("incomplete"));
    }

    #[test]
    fn a_trainer_that_saves_only_the_model_needs_no_optimizer() {
        let memory = ["optimizer.pt", "scheduler.pt", "rng_state.pth"].iter().fold(saved(), |memory, file| {
            memory.without(&format!("checkpoint-1000/{file}")).without(&format!("checkpoint-500/{file}"))
        });
        assert_eq!(complete_units(&memory).len(), 2);
    }

    fn with_all(memory: Memory, names: &[&str], bytes: &[u8]) -> Memory {
        names.iter().fold(memory, |memory, name| memory.with(&format!("checkpoint-1000/{name}"), bytes))
    }

    #[test]
    fn what_deepspeed_writes_into_it_is_looked_into() {
        let states = [
            "global_step1000/zero_pp_rank_0_mp_rank_00_model_states.pt",
            "global_step1000/zero_pp_rank_1_mp_rank_00_model_states.pt",
            "global_step1000/bf16_zero_pp_rank_0_mp_rank_00_optim_states.pt",
            "global_step1000/bf16_zero_pp_rank_1_mp_rank_00_optim_states.pt",
        ];
        let memory = with_all(saved().without("checkpoint-1000/optimizer.pt"), &states, &zip_of(b"s", b""));
        let memory = memory.with("checkpoint-1000/latest", "global_step1000");
        assert_eq!(complete_units(&memory)[0].0, "checkpoint-1000");
        for state in states {
            let torn = with_all(saved(), &states, &zip_of(b"s", b"")).without(&format!("checkpoint-1000/{state}"));
            let torn = torn.with("checkpoint-1000/latest", "global_step1000");
            assert!(reason(&torn, "checkpoint-1000").contains("are missing"), "{state}");
        }
        let torn = memory.without("checkpoint-1000/latest");
        assert!(reason(&torn, "checkpoint-1000").contains("checkpoint-1000/latest is not there yet"));
    }

    #[test]
    fn what_fsdp_writes_into_it_is_looked_into() {
        let shards = ["pytorch_model_fsdp_0/__0_0.distcp", "pytorch_model_fsdp_0/__1_0.distcp"];
        let optimizer = ["optimizer_0/__0_0.distcp", "optimizer_0/__1_0.distcp"];
        let memory = with_all(with_all(saved(), &shards, b"w"), &optimizer, b"o");
        let metadata = ["pytorch_model_fsdp_0/.metadata", "optimizer_0/.metadata"];
        let memory = with_all(memory.without("checkpoint-1000/optimizer.pt"), &metadata, b"__0_0.distcp..__1_0.distcp");
        assert_eq!(complete_units(&memory)[0].0, "checkpoint-1000");
        let memory = memory.without("checkpoint-1000/pytorch_model_fsdp_0/__1_0.distcp");
        assert!(reason(&memory, "checkpoint-1000").contains("__1_0.distcp is missing, which .metadata names"));
        let memory = memory.with("checkpoint-1000/pytorch_model_fsdp_0/__1_0.distcp", "w");
        let memory = memory.without("checkpoint-1000/optimizer_0/.metadata");
        assert!(reason(&memory, "checkpoint-1000").contains("optimizer_0/.metadata is not there yet"));
    }

    #[test]
    fn one_that_is_saved_over_again_has_files_younger_than_its_state() {
        let at = |memory: Memory, file: &str| memory.at(&format!("checkpoint-1000/{file}"), 5 * APART_NS);
        for file in ["model-00001-of-00002.safetensors", "optimizer.pt", "scheduler.pt"] {
            for begun in [at(saved(), "config.json"), saved().without("checkpoint-1000/config.json")] {
                let why = reason(&at(begun, file), "checkpoint-1000");
                assert!(why.contains("younger than checkpoint-1000/trainer_state.json"), "{why}");
            }
            let newer = at(at(at(saved(), "config.json"), file), "trainer_state.json");
            assert_eq!(complete_units(&newer).len(), 2);
        }
        assert_eq!(complete_units(&at(saved(), "rng_state.pth")).len(), 2, "older versions write it after the state");
        let always = ["config.json", "model-00001-of-00002.safetensors"].into_iter().fold(saved(), at);
        let always = ["config.json", "model-00001-of-00002.safetensors"]
            .iter()
            .fold(always, |memory, file| memory.at(&format!("checkpoint-500/{file}"), 5 * APART_NS));
        assert_eq!(complete_units(&always).len(), 2, "a callback writes the weights once more");
    }

    #[test]
    fn what_was_fetched_in_any_order_was_not_saved_over() {
        let fetched = saved().at("checkpoint-1000/model-00001-of-00002.safetensors", 600 * APART_NS);
        assert_eq!(complete_units(&fetched).len(), 2, "the largest last");
        let alone = Memory::of(&[("checkpoint-5/model.safetensors", safetensors_of(b"1"))])
            .at("checkpoint-5/model.safetensors", 50_000_000)
            .with("checkpoint-5/trainer_state.json", r#"{"global_step": 5}"#);
        assert_eq!(complete_units(&alone).len(), 1, "side by side");
    }

    #[test]
    fn where_another_has_random_states_there_must_be_some() {
        let memory = saved().without("checkpoint-1000/rng_state.pth");
        assert!(reason(&memory, "checkpoint-1000").contains("rng_state.pth is missing"));
        assert_eq!(complete_units(&memory.without("checkpoint-500/rng_state.pth")).len(), 2, "nobody writes them");
    }

    #[test]
    fn the_random_states_of_ranks_have_no_gap() {
        let ranks = ["rng_state_0.pth", "rng_state_1.pth", "rng_state_3.pth"];
        let memory = with_all(saved().without("checkpoint-1000/rng_state.pth"), &ranks, &zip_of(b"r", b""));
        assert!(reason(&memory, "checkpoint-1000").contains("rng_state_2.pth is missing"));
        let whole = with_all(memory, &["rng_state_2.pth"], &zip_of(b"r", b""));
        assert_eq!(complete_units(&whole).len(), 2);
        let second_nodes = ["rng_state_8.pth", "rng_state_9.pth"];
        let memory = with_all(saved().without("checkpoint-1000/rng_state.pth"), &second_nodes, &zip_of(b"r", b""));
        assert_eq!(complete_units(&memory).len(), 2);
    }

    #[test]
    fn where_it_is_known_how_many_processes_save_each_has_left_its_random_states() {
        let ranks =
            with_all(saved().without("checkpoint-1000/rng_state.pth"), &["rng_state_0.pth"], &zip_of(b"r", b""));
        let both = with_all(ranks.clone(), &["rng_state_1.pth"], &zip_of(b"r", b""));
        let newest = |memory: &Memory, world_size| {
            let options = Options { world_size, ..Options::default() };
            complete_units_with(memory, &options).first().and_then(|(_, step)| *step)
        };
        assert_eq!([newest(&ranks, None), newest(&ranks, Some(2))], [Some(1000), None]);
        assert_eq!(newest(&both, Some(2)), Some(1000));
    }
}
