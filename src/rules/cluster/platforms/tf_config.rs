//! `TF_CONFIG`: AI Platform Training, Kubeflow's TFJob, and values set by hand.
//!
//! ```json
//! {"cluster":{"chief":["c:2222"],"worker":["w0:2222","w1:2222"]},"task":{"type":"worker","index":1}}
//! ```
//!
//! Stricter than TensorFlow, which accepts some values and then hangs. Deliberately absent: rewriting it, which
//! `framework/tensorflow.rs` does.

use serde_json::Value;

use crate::cluster::Platform;
use crate::cluster::first::First;
use crate::cluster::parse::input::Input;
use crate::cluster::parse::json;
use crate::cluster::parse::pools::{
    Pool, RENDEZVOUS_PORT, Replicas, Task, check_task, many_evaluators, read_cluster, read_task, refuse_duplicates,
};
use crate::cluster::spec::{ClusterError, ClusterOptions, Leader, PlatformName, Reading, Role, Traits, Warning};
use crate::cluster::written::{Job, Limit, Notice, Permanent, Replica, Restarts, Simulated, Success};
use crate::process::env::Env;

const VARIABLE: &str = "TF_CONFIG";
const JOBS: [&str; 5] = ["chief", "master", "worker", "ps", "evaluator"];

const NAME: PlatformName = PlatformName("tf_config");
/// AI Platform Training, which also sets its own variables.
const AI_PLATFORM: PlatformName = PlatformName("ai_platform");

pub(in crate::cluster) const TF_CONFIG: Platform = Platform {
    is_frameworks: true,
    first: First::Task(VARIABLE),
    // Kubeflow's TFJob with restartPolicy ExitCode.
    simulated: Some(Simulated {
        name: NAME.0,
        write,
        other_roles: &[Role::Ps, Role::Evaluator],
        restarts: Restarts { whole_job: false, limit: Limit::None, permanent: Permanent::Below128 },
        success: Success::OfChief,
        notice: Notice::Signal,
    }),
    ..Platform::of(&[AI_PLATFORM, NAME], &["TF_CONFIG"], "TF_CONFIG with a cluster", read)
};

/// The variable of a replica. Evaluators are outside of the cluster, as TensorFlow wants it.
fn write(job: &Job, replica: &Replica) -> Vec<(&'static str, String)> {
    let roles = [Role::Chief, Role::Worker, Role::Ps].map(|role| (role, role.word()));
    let task = serde_json::json!({ "type": replica.seat.role().word(), "index": replica.seat.index });
    let config = serde_json::json!({ "cluster": job.cluster(&roles), "task": task, "environment": "cloud" });
    vec![(VARIABLE, config.to_string())]
}

/// Reads the variable, if it is set and has a cluster.
fn read(input: &Input<'_>, warnings: &mut Vec<Warning>) -> Result<Option<Reading>, ClusterError> {
    let Some(text) = input.env.given(VARIABLE) else { return Ok(None) };
    let document = json::object(VARIABLE, text)?;
    let cluster = document.get("cluster").filter(|raw| json::members(raw).is_none_or(|m| !m.is_empty()));
    let Some(cluster) = cluster else {
        warnings.extend(without_cluster(document.get("task"), misplaced(&document))?);
        return Ok(None);
    };
    let pools = read_cluster(VARIABLE, cluster, &JOBS)?;
    let chiefs: usize = pools.iter().filter(|p| role(&p.name) == Role::Chief).map(|p| p.tasks.len()).sum();
    if chiefs > 1 {
        let message = format!("cluster has {chiefs} chiefs (a master is one); a job has at most one");
        return Err(ClusterError::new("multiple_chiefs", VARIABLE, message));
    }
    refuse_duplicates(VARIABLE, &pools)?;
    let task = read_task(VARIABLE, document.get("task"), &JOBS)?;
    let own = role(&task.kind);
    let listed = pools.iter().find(|p| role(&p.name) == own);
    if own != Role::Evaluator || listed.is_some() {
        check_task(VARIABLE, &task, listed)?;
    }
    let evaluators = pools.iter().filter(|p| role(&p.name) == Role::Evaluator).map(|p| p.tasks.len()).sum();
    if own == Role::Evaluator && usize::max(evaluators, task.index as usize + 1) > 1 {
        warnings.push(many_evaluators(VARIABLE));
    }
    let platform = platform(input.env, input.options);
    let has_trainers = pools.iter().any(|p| role(&p.name).trains());
    if !has_trainers || pools.iter().any(|p| !p.is_dense()) {
        warnings.push(Warning::new(
            "sparse_cluster",
            "TF_CONFIG: the cluster does not list every replica, so the world and its leader are unknown; \
             nothing is derived from it",
        ));
        return Ok(Some(place_only(platform, own, task, chiefs)));
    }
    let mut reading = replicas(pools, own, task).reading(platform, input.options);
    reading.traits = traits(platform);
    if platform == AI_PLATFORM {
        reading.leader = Leader { platform_port: Some(RENDEZVOUS_PORT), ..reading.leader };
    }
    Ok(Some(reading))
}

fn platform(env: &Env, options: &ClusterOptions) -> PlatformName {
    // The metrics file is set elsewhere, too: cloudml-hypertune reads it on every platform.
    let is_its = |name: &str| name.strip_prefix("CLOUD_ML_").is_some_and(|rest| rest != "HP_METRIC_FILE");
    match options.platform {
        Some(named @ (AI_PLATFORM | NAME)) => named,
        _ if env.iter().any(|(name, value)| is_its(name) && !value.trim().is_empty()) => AI_PLATFORM,
        _ => NAME,
    }
}

fn role(job: &str) -> Role {
    match job {
        "chief" | "master" => Role::Chief,
        "ps" => Role::Ps,
        "evaluator" => Role::Evaluator,
        _ => Role::Worker,
    }
}

/// Where several replicas are written that TensorFlow does not read, in words.
fn misplaced(document: &json::Members) -> Option<String> {
    let outside = jobs_outside(document);
    if !outside.is_empty() {
        return Some(format!("its jobs ({}) are beside \"cluster\"", outside.join(", ")));
    }
    // A whole TF_CONFIG as a member of another object, perhaps as text.
    let inner = |raw: &str| json::members(raw).or_else(|| json::object(VARIABLE, json::value(raw)?.as_str()?).ok());
    document.iter().find_map(|(name, raw)| {
        let cluster = json::members(inner(raw)?.get("cluster")?)?;
        (!jobs_outside(&cluster).is_empty()).then(|| format!("its \"cluster\" is inside {name:?}"))
    })
}

/// The names of jobs with several replicas in an object that is not "cluster".
fn jobs_outside(document: &json::Members) -> Vec<String> {
    let replicas = |raw: &str| match json::value(raw) {
        Some(Value::Array(list)) => list.len(),
        Some(Value::Object(map)) => map.len(),
        _ => 0,
    };
    let jobs: Vec<(&str, usize)> = JOBS
        .iter()
        .filter_map(|job| Some((*job, replicas(document.get(job)?))))
        .filter(|(_, count)| *count > 0)
        .collect();
    let is_several = jobs.iter().map(|(_, count)| count).sum::<usize>() > 1;
    jobs.into_iter().filter(|_| is_several).map(|(job, _)| job.to_owned()).collect()
}

/// A task without a cluster: TensorFlow 2 runs locally if it could be the first replica.
fn without_cluster(task: Option<&str>, misplaced: Option<String>) -> Result<Option<Warning>, ClusterError> {
    let misplaced = misplaced.map(|place| {
        format!("{place}, where TensorFlow does not read it: write {{\"cluster\": {{…}}, \"task\": {{…}}}}")
    });
    let unplaced = misplaced.as_ref().map(|misplaced| {
        let message = format!(
            "TF_CONFIG: {misplaced}, or give --nnodes, --node-rank and --leader HOST:PORT; until then this process is treated as the \
             only replica, and replicas that share a checkpoint directory or store fence each other (205)"
        );
        Warning::new("node_rank_unknown", message)
    });
    let Some(raw) = task.filter(|raw| json::members(raw).is_none_or(|m| !m.is_empty())) else {
        return Ok(unplaced);
    };
    if raw == "null" {
        return read_task(VARIABLE, task, &JOBS).map(|_| None);
    }
    match read_task(VARIABLE, task, &JOBS) {
        Ok(Task { kind, index: 0, .. }) if role(&kind).trains() && unplaced.is_some() => Ok(unplaced),
        Ok(Task { kind, index: 0, .. }) if role(&kind).trains() => Ok(Some(Warning::new(
            "task_without_cluster",
            "TF_CONFIG: has a task but no cluster; it runs as a single process, as in TensorFlow",
        ))),
        _ => {
            let why = misplaced.map(|misplaced| format!("has no cluster: {misplaced}")).unwrap_or_else(|| {
                "has a task but no cluster, and the task is not the first replica; list the cluster, or unset the variable"
                    .to_owned()
            });
            Err(ClusterError::new("missing_cluster", VARIABLE, why))
        }
    }
}

/// A reading with nothing but the place of this replica.
fn place_only(platform: PlatformName, role: Role, task: Task, chiefs: usize) -> Reading {
    let rank = match role {
        Role::Chief => Some(0),
        Role::Worker => Some(task.index.saturating_add(chiefs as u32)),
        _ => None,
    };
    Reading {
        is_chief: rank == Some(0),
        node_rank: rank,
        num_nodes: None,
        trial: task.trial,
        traits: traits(platform),
        ..Reading::of(platform, role, 0, 1)
    }
}

fn traits(platform: PlatformName) -> Traits {
    Traits { behind_services: platform == AI_PLATFORM, tells_tensorflow: true, ..Traits::default() }
}

fn replicas(pools: Vec<Pool>, own: Role, task: Task) -> Replicas {
    let order = [Role::Chief, Role::Worker, Role::Ps, Role::Evaluator];
    let addresses = |wanted: Role| {
        pools.iter().filter(|p| role(&p.name) == wanted).flat_map(|p| p.tasks.values().cloned()).collect()
    };
    Replicas {
        pools: order.into_iter().map(|role| (role, addresses(role))).collect(),
        role: own,
        index: task.index,
        trial: task.trial,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::detect;

    #[test]
    fn a_tf_config_inside_another_object_causes_a_warning_or_an_error() {
        let inner = r#"{"cluster": {"worker": ["a:1", "b:1"]}, "task": {"type": "worker", "index": 0}}"#;
        let as_text = serde_json::json!({ "config": inner }).to_string();
        let alone = r#"{"spec": {"cluster": {"worker": ["a:1"]}}, "environment": "cloud"}"#;
        let found = |text: &str| {
            let (env, options) = (Env::from_pairs([(VARIABLE, text)]), ClusterOptions::default());
            let found = detect(&Input { env: &env, files: &|_| Ok(None), options: &options }, &[]);
            found.map(|found| found.warnings.into_iter().map(|w| (w.code, w.message)).collect::<Vec<_>>())
        };
        for (text, name) in [(format!("{{\"spec\": {inner}}}"), "spec"), (as_text, "config")] {
            let warnings = found(&text).expect("no error");
            let [("node_rank_unknown", message)] = warnings.as_slice() else { panic!("{text}: {warnings:?}") };
            assert!(message.contains(&format!("its \"cluster\" is inside {name:?}")), "{message}");
        }
        assert_eq!(found(alone).expect("no error"), []);
        let second = format!("{{\"spec\": {inner}, \"task\": {{\"type\": \"worker\", \"index\": 1}}}}");
        assert!(found(&second).is_err_and(|error| error.message.contains("inside \"spec\"")));
    }
}
