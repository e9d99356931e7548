//! Hugging Face Accelerate: directories `checkpoint_N` with the states of each process, usually under `checkpoints`.
//! There is no marker; N counts the saves.

use super::unit::{Candidate, Layout, Scan, no_pointers, number_after};

#[allow(missing_docs, reason = "the entry of the list in mod.rs")]
pub const ACCELERATE: Layout = Layout {
    name: "accelerate",
    evidence: "directories named checkpoint_N with random_states_*.pkl or an accelerator's other files",
    find,
    complete,
    pointers: no_pointers,
};

const TELLTALES: [&str; 6] =
    ["optimizer.bin", "scheduler.bin", "model.safetensors", "pytorch_model.bin", "sampler.bin", "scaler.pt"];

fn find(scan: &Scan) -> Vec<Candidate> {
    let is_telltale = |name: &str| TELLTALES.contains(&name) || is_random(name);
    let units = scan.listing.directories().filter_map(|d| Some((d, number_after("checkpoint_", d.name())?)));
    let ours = units
        .filter(|(d, _)| scan.options.format.is_some() || scan.listing.within(&d.path).any(|e| is_telltale(e.name())));
    ours.filter_map(|(d, n)| Some(Candidate::directory(scan.listing, &d.path, scan.step(&d.path, Some(n))?))).collect()
}

fn is_random(name: &str) -> bool {
    name.starts_with("random_states_") && name.ends_with(".pkl")
}

fn complete(scan: &Scan, candidate: &Candidate) -> Result<(), String> {
    scan.all_whole(candidate)?;
    // The last thing each process saves.
    let found = scan.listing.within(&candidate.unit).filter(|e| is_random(e.name())).count();
    match scan.options.world_size {
        Some(world) if found != world as usize => Err(format!("{found} of {world} random_states files are there")),
        _ if found == 0 => Err("no random_states file is there yet".to_owned()),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::super::check::tests::safetensors_of;
    use super::super::listing::tests::Memory;
    use super::super::tests::complete_units;

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
}
