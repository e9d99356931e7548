//! Whether this process is the first of its job, which is the only one that reports with `--rank0-only`: all ranks of a
//! container share one metrics file. Each platform says how it identifies the first process ([`First`]). The first of
//! these rules that applies decides:
//!
//! 1. the rank that a launcher gave to this process;
//! 2. the task in the description of the cluster: the chief, the master or the first of workerpool0; the first worker if the
//!    cluster has neither chief nor master, as in TensorFlow;
//! 3. the index of the host.
//!
//! Deliberately absent: all other knowledge about clusters, and the names of variables.

use serde_json::Value;

use super::PLATFORMS;
use crate::cluster::unread::unsupported::UNSUPPORTED;
use crate::process::env::Env;

/// How a platform identifies the first process of its job.
pub enum First {
    /// The platform does not identify it, or another platform's variables do.
    Unknown,
    /// By the rank of the process: the first variable of each group, if all variables of the group are set.
    Rank(&'static [&'static [&'static str]]),
    /// By the task in this description of the cluster.
    Task(&'static str),
    /// By the index of the host: all of these variables that are set are 0.
    Host(&'static [&'static str]),
    /// By the index of the host in the first variable: it equals the second, or 0 if the second is not set.
    Equal([&'static str; 2]),
    /// By the name of the host in the first variable: it is the first in the list of the second.
    Name([&'static str; 2]),
}

impl First {
    fn by_rank(&self, env: &Env) -> Option<bool> {
        let First::Rank(variables) = self else { return None };
        let is_given = |name: &&str| env.given(name).is_some();
        variables.iter().find(|names| names.iter().all(is_given)).and_then(|names| env.given(names[0])).map(is_zero)
    }

    fn by_task(&self, env: &Env) -> Option<bool> {
        let First::Task(variable) = self else { return None };
        serde_json::from_str(env.given(variable)?).ok().and_then(|spec| is_first_task(&spec))
    }

    fn by_host(&self, env: &Env) -> bool {
        match self {
            First::Host(variables) => variables.iter().filter_map(|name| env.given(name)).all(is_zero),
            First::Equal(variables) => match variables.map(|name| env.given(name).map(str::trim)) {
                [Some(own), first] => own == first.unwrap_or("0"),
                [None, _] => true,
            },
            First::Name(variables) => is_first_name(variables.map(|name| env.given(name))).unwrap_or(true),
            _ => true,
        }
    }
}

/// Whether this process is the first. A process without variables of a cluster is the first.
pub fn is_first(env: &Env) -> bool {
    let ways = || PLATFORMS.iter().map(|platform| &platform.first);
    // Frameworks read the last platforms of the list themselves, so those are checked first.
    let by_task = || ways().rev().find_map(|first| first.by_task(env));
    let by_rank = ways().find_map(|first| first.by_rank(env));
    by_rank.or_else(by_task).unwrap_or_else(|| {
        ways().all(|first| first.by_host(env)) && !UNSUPPORTED.iter().any(|signs| signs.is_another(env))
    })
}

fn is_zero(rank: &str) -> bool {
    rank.trim().parse() == Ok(0u64)
}

/// `None` without a name or a list.
fn is_first_name(name_and_list: [Option<&str>; 2]) -> Option<bool> {
    let [Some(name), Some(list)] = name_and_list else { return None };
    let list: Vec<String> = serde_json::from_str(list).ok()?;
    Some(list.first()? == name.trim())
}

/// `None` if the specification names no task.
fn is_first_task(spec: &Value) -> Option<bool> {
    let task = spec.get("task")?;
    let kind = task.get("type")?.as_str()?;
    let index = match task.get("index") {
        None => Some(0.0),
        // Some programs write it as a string.
        Some(index) => index.as_f64().or_else(|| index.as_str()?.trim().parse().ok()),
    };
    // A role without members counts as absent.
    let has = |role: &str| match spec.get("cluster").and_then(|cluster| cluster.get(role)) {
        Some(Value::Array(tasks)) => !tasks.is_empty(),
        Some(Value::Object(tasks)) => !tasks.is_empty(),
        _ => false,
    };
    let role_reports = match kind {
        "chief" | "master" | "workerpool0" => true,
        "worker" => spec.get("cluster").is_some() && !has("chief") && !has("master"),
        _ => false,
    };
    Some(role_reports && index == Some(0.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(pairs: &[(&str, &str)]) -> bool {
        is_first(&Env::from_pairs(pairs.iter().copied()))
    }

    #[test]
    fn a_lone_process_reports() {
        assert!(with(&[]) && with(&[("RANK", "")]));
    }

    #[test]
    fn on_tpu_hosts_the_first_of_the_first_slice_reports() {
        assert!(with(&[("TPU_WORKER_ID", "0")]) && with(&[("TPU_WORKER_ID", "0"), ("MEGASCALE_SLICE_ID", "0")]));
        assert!(!with(&[("TPU_WORKER_ID", "1")]) && !with(&[("TPU_WORKER_ID", "0"), ("MEGASCALE_SLICE_ID", "1")]));
    }

    #[test]
    fn the_first_process_of_an_unsupported_launcher_reports() {
        for rank in ["SKYPILOT_NODE_RANK", "LEPTON_JOB_WORKER_INDEX"] {
            assert!(with(&[(rank, "0")]) && !with(&[(rank, "1")]), "{rank}");
        }
        assert!(with(&[("INDEX", "1")]), "a common name");
    }

    #[test]
    fn on_torchrun_and_sagemaker_hosts_the_first_reports_unless_a_rank_is_given() {
        let sagemaker = |host: &str| with(&[("SM_CURRENT_HOST", host), ("SM_HOSTS", r#"["algo-1", "algo-2"]"#)]);
        assert!(sagemaker("algo-1") && sagemaker("algo-1\n") && !sagemaker("algo-2"));
        assert!(with(&[("SM_CURRENT_HOST", "algo-2")]) && with(&[("SM_CURRENT_HOST", "x"), ("SM_HOSTS", "x")]));
        assert!(with(&[("PET_NODE_RANK", "0")]) && !with(&[("PET_NODE_RANK", "1")]));
        assert!(!with(&[("PET_NODE_RANK", "0"), ("RANK", "3")]), "another process of the first host");
        let whole = [("SM_CURRENT_HOST", "algo-2"), ("SM_HOSTS", r#"["algo-1", "algo-2"]"#), ("RANK", "0")];
        assert!(with(&whole), "the ranks decide");
    }

    #[test]
    fn a_common_variable_is_a_rank_only_with_its_address_variable() {
        assert!(with(&[("PROCESS_ID", "4711")]));
        assert!(!with(&[("PROCESS_ID", "1"), ("NUM_PROCESSES", "2"), ("COORDINATOR_ADDRESS", "a")]));
        assert!(with(&[("PROCESS_ID", "0"), ("NUM_PROCESSES", "2"), ("COORDINATOR_ADDRESS", "a")]));
    }

    #[test]
    fn only_rank_0_of_every_launcher_reports() {
        let ranks = ["RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK", "JAX_PROCESS_ID", "SLURM_PROCID"];
        for name in ranks {
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
    fn if_there_are_two_descriptions_the_one_that_a_framework_reads_decides() {
        let of = |kind: &str, index: u8| format!(r#"{{"task": {{"type": "{kind}", "index": {index}}}}}"#);
        let (pool, chief) = (of("workerpool1", 0), of("chief", 0));
        assert!(with(&[("CLUSTER_SPEC", &pool), ("TF_CONFIG", &chief)]));
        let (pool, worker) = (of("workerpool0", 0), of("worker", 1));
        assert!(!with(&[("CLUSTER_SPEC", &pool), ("TF_CONFIG", &worker)]));
    }

    #[test]
    fn an_empty_role_and_an_index_in_an_odd_form_do_not_suppress_the_report() {
        for no_chief in [r#""chief": [], "#, r#""chief": {}, "master": null, "#] {
            let worker = |index: &str| {
                let cluster = format!(r#""cluster": {{{no_chief}"worker": ["a", "b"]}}"#);
                with(&[("TF_CONFIG", &format!(r#"{{{cluster}, "task": {{"type": "worker", "index": {index}}}}}"#))])
            };
            assert!(worker("0") && worker("0.0") && worker("\"0\""), "{no_chief}");
            assert!(!worker("1"), "{no_chief}");
        }
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
    fn a_specification_without_a_task_does_not_decide() {
        for text in ["{}", "nonsense", r#"{"cluster": {}}"#, "[]", r#"{"task": 3}"#] {
            assert!(with(&[("TF_CONFIG", text)]), "{text}");
            assert!(
                !with(&[("TF_CONFIG", text), ("CLUSTER_SPEC", r#"{"task": {"type": "workerpool1", "index": 0}}"#)]),
                "{text}"
            );
        }
    }
}
