//! PyTorch's flight recorder: a ring buffer of the last NCCL collectives of each rank, which torch writes to a file.
//!
//! Source: `torch/csrc/distributed/c10d/{FlightRecorder,ProcessGroupNCCL}`. torch 2.9 and later read `TORCH_FR_*`,
//! earlier ones the old names. torch appends its rank to the prefixes. With dumps on time-out a thread of torch checks
//! its pipe once a second, and writes a dump if the pipe has data; the trainer continues. Only the NCCL backend writes
//! dumps.

use crate::process::env::{Changes, Env};

/// The number of recorded collectives; torch's own default since 2.9.
const BUFFER: &str = "2000";
/// The prefix of the pipes' names.
const PIPE: &str = "ask_rank_";

/// The variables that turn it on. Variables that are already set are not changed.
pub fn turn_on(directory: &str, env: &Env, changes: &mut Changes) {
    let dump = format!("{directory}/rank_");
    let variables = [
        ("TORCH_FR_BUFFER_SIZE", BUFFER),
        ("TORCH_NCCL_TRACE_BUFFER_SIZE", BUFFER),
        ("TORCH_FR_DUMP_TEMP_FILE", &dump),
        ("TORCH_NCCL_DEBUG_INFO_TEMP_FILE", &dump),
        ("TORCH_NCCL_DUMP_ON_TIMEOUT", "1"),
        ("TORCH_NCCL_DEBUG_INFO_PIPE_FILE", &format!("{directory}/{PIPE}")),
    ];
    for (name, value) in variables {
        if env.given(name).is_none() && !changes.touches(name) {
            changes.set(name, value);
        }
    }
}

/// Whether a file of the directory is a rank's pipe.
pub fn is_pipe(name: &str) -> bool {
    let rank = name.strip_prefix(PIPE).and_then(|rest| rest.strip_suffix(".pipe"));
    rank.is_some_and(|rank| rank.parse::<u32>().is_ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_user_has_set_stays_and_the_rest_is_set_under_both_names() {
        let env = Env::from_pairs([("TORCH_FR_BUFFER_SIZE", "20000")]);
        let mut changes = Changes::default();
        turn_on("/dumps", &env, &mut changes);
        assert_eq!(changes.set.len(), 5);
        assert!(!changes.touches("TORCH_FR_BUFFER_SIZE"));
        for name in ["TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE"] {
            assert_eq!(changes.set[name], "/dumps/rank_");
        }
    }

    #[test]
    fn a_pipe_is_distinguished_from_a_dump() {
        assert!(is_pipe("ask_rank_0.pipe") && is_pipe("ask_rank_1023.pipe"));
        assert!(!["rank_0", "ask_rank_", "ask_rank_.pipe", "ask_rank_x.pipe", "ask_rank_1"].into_iter().any(is_pipe));
    }
}
