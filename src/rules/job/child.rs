//! trainit's own variables for the child, apart from the frameworks' variables.

use super::event::Resume;
use crate::gang::Generation;
use crate::process::env::Changes;

/// Facts about a `run` that are the same for every attempt. Paths as text.
#[derive(Debug, Clone, Default)]
pub struct ChildFacts {
    /// Where the trainer writes its checkpoints.
    pub checkpoint_dir: Option<String>,
    /// The store's number for this `run`.
    pub incarnation: Option<u64>,
    /// The gang's common start.
    pub generation: Option<Generation>,
    /// This file appears when a preemption is announced.
    pub preemption_file: Option<String>,
    /// In a gang: this file appears before the preemption file, with the step at which all replicas save.
    pub save_at_step_file: Option<String>,
    /// This file has the step at which the trainer saves next.
    pub save_step_file: Option<String>,
    /// The mtime of this file is the trainer's heartbeat.
    pub heartbeat_file: Option<String>,
    /// The status socket.
    pub socket: Option<String>,
    /// GPUs in this container.
    pub gpu_count: usize,
}

/// The variables of one attempt. A variable without a present value is removed, so that the child does not inherit it
/// from an outer trainit.
pub fn child_variables(facts: &ChildFacts, attempt: u32, resume: Option<&Resume>) -> Changes {
    let mut changes = Changes::default();
    let mut put = |name: &str, value: Option<String>| match value {
        Some(value) => changes.set(name, value),
        None => changes.remove(name),
    };
    put("TRAINIT_ATTEMPT", Some(attempt.to_string()));
    put("TRAINIT_GENERATION", facts.generation.map(|n| n.to_string()));
    put("TRAINIT_INCARNATION", facts.incarnation.map(|n| n.to_string()));
    put("TRAINIT_CHECKPOINT_DIR", facts.checkpoint_dir.clone());
    put("TRAINIT_RESUME_FROM", resume.map(|r| r.from.clone()));
    put("TRAINIT_RESUME_STEP", resume.and_then(|r| r.step).map(|s| s.to_string()));
    put("TRAINIT_PREEMPTION_FILE", facts.preemption_file.clone());
    put("TRAINIT_SAVE_AT_STEP_FILE", facts.save_at_step_file.clone());
    put("TRAINIT_SAVE_STEP_FILE", facts.save_step_file.clone());
    put("TRAINIT_HEARTBEAT_FILE", facts.heartbeat_file.clone());
    put("TRAINIT_SOCKET", facts.socket.clone());
    put("TRAINIT_GPU_COUNT", Some(facts.gpu_count.to_string()));
    changes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_resume_variables_are_removed_when_there_is_nothing_to_resume() {
        let changes = child_variables(&ChildFacts::default(), 2, None);
        assert_eq!(changes.set["TRAINIT_ATTEMPT"], "2");
        assert!(changes.removed.contains("TRAINIT_RESUME_FROM") && changes.removed.contains("TRAINIT_RESUME_STEP"));
    }

    #[test]
    fn a_checkpoint_without_a_step_is_resumed_without_a_step() {
        let resume = Resume { from: "/ck/last.ckpt".into(), step: None };
        let changes = child_variables(&ChildFacts::default(), 1, Some(&resume));
        assert_eq!(changes.set["TRAINIT_RESUME_FROM"], "/ck/last.ckpt");
        assert!(changes.removed.contains("TRAINIT_RESUME_STEP"));
    }
}
