//! Whether this process is the one of its job that reports (`--rank0-only`): all ranks of a container share one metrics
//! file. The first that is set decides:
//!
//! 1. a rank variable of a launcher: torchrun's, Open MPI's, MPICH's, PMIx's, Slurm's;
//! 2. the task in `TF_CONFIG`, then in `CLUSTER_SPEC`: the chief, the master or the first of workerpool0 reports; the first
//!    worker where the cluster has neither chief nor master, as TensorFlow has it;
//! 3. the TPU's worker and slice.
//!
//! Deliberately absent: everything else about a cluster.

use serde_json::Value;

use crate::rules::env::Env;

const RANKS: [&str; 5] = ["RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK", "SLURM_PROCID"];

/// Whether this process reports. With no sign of other ranks it does.
pub fn reports(env: &Env) -> bool {
    if let Some(rank) = RANKS.iter().find_map(|name| env.given(name)) {
        return is_zero(rank);
    }
    ["TF_CONFIG", "CLUSTER_SPEC"]
        .iter()
        .filter_map(|name| serde_json::from_str::<Value>(env.given(name)?).ok())
        .find_map(|spec| is_first(&spec))
        .unwrap_or_else(|| {
            ["TPU_WORKER_ID", "MEGASCALE_SLICE_ID"].iter().filter_map(|name| env.given(name)).all(is_zero)
        })
}

fn is_zero(rank: &str) -> bool {
    rank.trim().parse() == Ok(0u64)
}

/// `None` where the specification names no task.
fn is_first(spec: &Value) -> Option<bool> {
    let task = spec.get("task")?;
    let kind = task.get("type")?.as_str()?;
    let index = match task.get("index") {
        None => Some(0),
        // Some write it as a string.
        Some(index) => index.as_u64().or_else(|| index.as_str()?.trim().parse().ok()),
    };
    let has = |role: &str| spec.get("cluster").and_then(|c| c.get(role)).is_some();
    let role_reports = match kind {
        "chief" | "master" | "workerpool0" => true,
        "worker" => spec.get("cluster").is_some() && !has("chief") && !has("master"),
        _ => false,
    };
    Some(role_reports && index == Some(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(pairs: &[(&str, &str)]) -> bool {
        reports(&Env::from_pairs(pairs.iter().copied()))
    }

    #[test]
    fn a_lone_process_reports() {
        assert!(with(&[]) && with(&[("RANK", "")]));
    }

    #[test]
    fn of_a_tpus_hosts_the_first_of_the_first_slice_reports() {
        assert!(with(&[("TPU_WORKER_ID", "0")]) && with(&[("TPU_WORKER_ID", "0"), ("MEGASCALE_SLICE_ID", "0")]));
        assert!(!with(&[("TPU_WORKER_ID", "1")]) && !with(&[("TPU_WORKER_ID", "0"), ("MEGASCALE_SLICE_ID", "1")]));
    }

    #[test]
    fn only_rank_0_of_every_launcher_reports() {
        for name in RANKS {
            assert!(with(&[(name, "0")]) && with(&[(name, " 0 ")]), "{name}");
            assert!(!with(&[(name, "1")]) && !with(&[(name, "x")]), "{name}");
        }
    }

    #[test]
    fn the_first_variable_decides() {
        assert!(with(&[("RANK", "0"), ("SLURM_PROCID", "3")]));
        assert!(!with(&[("RANK", "3"), ("SLURM_PROCID", "0")]));
        assert!(with(&[("RANK", "0"), ("TF_CONFIG", r#"{"task": {"type": "worker", "index": 2}}"#)]));
    }

    #[test]
    fn the_primary_task_reports_and_no_other() {
        for name in ["TF_CONFIG", "CLUSTER_SPEC"] {
            let task = |kind: &str, index: &str| {
                with(&[(
                    name,
                    &format!(r#"{{"cluster": {{"chief": ["a"]}}, "task": {{"type": "{kind}", "index": {index}}}}}"#),
                )])
            };
            assert!(
                task("chief", "0") && task("master", "0") && task("workerpool0", "0") && task("workerpool0", "\"0\"")
            );
            assert!(!task("workerpool0", "1") && !task("worker", "0") && !task("ps", "0") && !task("evaluator", "0"));
            assert!(!task("workerpool1", "0"));
        }
    }

    #[test]
    fn the_first_worker_reports_where_there_is_no_chief() {
        let spec = |index: u8| {
            format!(r#"{{"cluster": {{"worker": ["a", "b"]}}, "task": {{"type": "worker", "index": {index}}}}}"#)
        };
        assert!(with(&[("TF_CONFIG", &spec(0))]));
        assert!(!with(&[("TF_CONFIG", &spec(1))]));
    }

    #[test]
    fn a_specification_without_a_task_says_nothing() {
        for text in ["{}", "nonsense", r#"{"cluster": {}}"#, "[]", r#"{"task": 3}"#] {
            assert!(with(&[("TF_CONFIG", text)]), "{text}");
            assert!(
                !with(&[("TF_CONFIG", text), ("CLUSTER_SPEC", r#"{"task": {"type": "workerpool1", "index": 0}}"#)]),
                "{text}"
            );
        }
    }
}
