//! Hugging Face Accelerate's `save_state`: directories `checkpoint_N`, usually under `checkpoints`, where it names them
//! itself, else of any name with a number (`step_100`, `epoch_3`, the `checkpoint-500` of diffusers' trainers). There is no
//! marker; each process writes its `random_states_R.pkl` last.

use super::listing::{Entry, Kind};
use super::unit::{Candidate, Layout, Scan, no_pointers, number_after, step_in_stem};

#[allow(missing_docs, reason = "the entry of the list in mod.rs")]
pub const ACCELERATE: Layout = Layout {
    name: "accelerate",
    evidence: "directories with random_states_*.pkl, or named checkpoint_N with an accelerator's other files",
    find,
    complete,
    pointers: no_pointers,
};

/// Under Accelerate's own names.
const TELLTALES: [&str; 4] = ["optimizer.bin", "model.safetensors", "pytorch_model.bin", "scaler.pt"];
/// Under any name; `Trainer` writes `scheduler.pt`.
const PLAIN: [&str; 2] = ["scheduler.bin", "sampler.bin"];

fn find(scan: &Scan) -> Vec<Candidate> {
    let within = |path: &str, wanted: &dyn Fn(&str) -> bool| scan.listing.within(path).any(|e| wanted(e.name()));
    let is_plain = |name: &str| PLAIN.contains(&name) || is_random(name);
    let unit = |directory: &Entry| {
        let counted = number_after("checkpoint_", directory.name());
        let number = counted.or_else(|| step_in_stem(directory.name()))?;
        let is_ours = within(&directory.path, &is_plain)
            || counted.is_some() && within(&directory.path, &|name| TELLTALES.contains(&name));
        if !is_ours && (scan.options.format.is_none() || counted.is_none()) {
            return None;
        }
        Some(Candidate::directory(scan.listing, &directory.path, scan.step(&directory.path, Some(number))?))
    };
    scan.listing.directories().filter_map(unit).collect()
}

fn is_random(name: &str) -> bool {
    name.starts_with("random_states_") && name.ends_with(".pkl")
}

fn complete(scan: &Scan, candidate: &Candidate) -> Result<(), String> {
    scan.all_whole(candidate)?;
    // The last thing each process saves.
    let found = scan.listing.within(&candidate.unit).filter(|e| is_random(e.name())).count();
    match scan.options.world_size {
        Some(world) if found != world as usize => {
            return Err(format!("{found} of {world} random_states files are there"));
        }
        _ if found == 0 => return Err("no random_states file is there yet".to_owned()),
        _ => {}
    }
    whole_still(scan, candidate)
}

/// Nobody is deleting it.
fn whole_still(scan: &Scan, candidate: &Candidate) -> Result<(), String> {
    let is_weights =
        |e: &Entry| e.kind == Kind::Directory || e.name().contains("model") || has_end(e, &["safetensors"]);
    if !scan.listing.within(&candidate.unit).any(is_weights) {
        return Err("no weights are in it".to_owned());
    }
    let is_saved = |other: &Candidate| scan.listing.within(&other.unit).any(|e| is_random(e.name()));
    let saved: Vec<Candidate> = find(scan).into_iter().filter(is_saved).collect();
    scan.nothing_lost(candidate, &saved, |e| has_end(e, &["bin", "pkl", "pt", "safetensors"]))
}

fn has_end(entry: &Entry, extensions: &[&str]) -> bool {
    entry.name().rsplit_once('.').is_some_and(|(_, extension)| extensions.contains(&extension))
}

#[cfg(test)]
mod tests {
    use super::super::check::tests::safetensors_of;
    use super::super::listing::tests::Memory;
    use super::super::tests::{complete_units, reason};

    #[test]
    fn each_process_random_state_completes_a_save() {
        let memory = Memory::of(&[("checkpoints/checkpoint_0/random_states_0.pkl", b"\x80\x04.")])
            .with("checkpoints/checkpoint_0/model.safetensors", safetensors_of(b"1"))
            .with("checkpoints/checkpoint_1/model.safetensors", safetensors_of(b"1"));
        assert_eq!(complete_units(&memory), [("checkpoints/checkpoint_0".into(), Some(0))]);
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
}
