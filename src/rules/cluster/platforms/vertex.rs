//! Vertex AI: `CLUSTER_SPEC`, on every replica, even if there is only one.
//!
//! ```json
//! {"cluster":{"workerpool0":["cmle-training-workerpool0-ab-0:2222"],"workerpool1":["cmle-training-workerpool1-ab-0:2222"]},
//!  "environment":"cloud","task":{"type":"workerpool1","index":0,"trial":""},"job":"{...}"}
//! ```
//!
//! Deliberately absent: `job`, which may be of any type and hold secrets; it is neither parsed nor copied. Host names
//! are never compared with the pod's own name, because they are names of services.

use crate::cluster::Platform;
use crate::cluster::first::First;
use crate::cluster::parse::input::Input;
use crate::cluster::parse::json;
use crate::cluster::parse::pools::{
    Pool, RENDEZVOUS_PORT, Replicas, check_task, many_evaluators, read_cluster, read_task, refuse_duplicates,
};
use crate::cluster::spec::{ClusterError, Fact, Leader, PlatformName, Reading, Role, Traits, Warning};
use crate::cluster::written::{Job, Limit, Notice, Permanent, Replica, Restarts, Simulated, Success};

const VARIABLE: &str = "CLUSTER_SPEC";
const POOLS: [&str; 4] = ["workerpool0", "workerpool1", "workerpool2", "workerpool3"];

const NAME: PlatformName = PlatformName("vertex");

pub(in crate::cluster) const VERTEX: Platform = Platform {
    first: First::Task(VARIABLE),
    collector: &["CLOUD_ML_JOB_ID", "CLOUD_ML_JOB", "CLUSTER_SPEC", "AIP_*"],
    facts: &[
        (Fact::Job, "CLOUD_ML_JOB_ID"),
        (Fact::CheckpointStore, "AIP_CHECKPOINT_DIR"),
        (Fact::ModelStore, "AIP_MODEL_DIR"),
    ],
    simulated: Some(Simulated {
        name: NAME.0,
        write,
        other_roles: &[Role::Ps, Role::Evaluator],
        restarts: Restarts { whole_job: false, limit: Limit::Each(5), permanent: Permanent::None },
        success: Success::OfChief,
        notice: Notice::Cloud("gce"),
    }),
    ..Platform::of(&[NAME], &[VARIABLE], VARIABLE, read)
};

/// Reads the variable, if it is set. Other programs use the same name, so an error says how to select another source.
fn read(input: &Input<'_>, warnings: &mut Vec<Warning>) -> Result<Option<Reading>, ClusterError> {
    let is_vertex = input.env.given("CLOUD_ML_JOB_ID").is_some() || input.options.platform.is_some();
    read_as_vertex(input, warnings).map_err(|mut error| {
        if !is_vertex {
            error.message += "; if it is not Vertex AI's, select the source with --platform (none: one process)";
        }
        error
    })
}

fn read_as_vertex(input: &Input<'_>, warnings: &mut Vec<Warning>) -> Result<Option<Reading>, ClusterError> {
    let Some(text) = input.env.given(VARIABLE) else { return Ok(None) };
    let document = json::object(VARIABLE, text)?;
    let cluster = document.get("cluster").ok_or_else(|| {
        ClusterError::new("missing_cluster", VARIABLE, "has no cluster; it must list the worker pools")
    })?;
    let pools = read_cluster(VARIABLE, cluster, &POOLS)?;
    let find = |name: &str| pools.iter().find(|p| p.name == name);
    match find(POOLS[0]).map(|p| p.tasks.len()) {
        Some(1) => {}
        None => {
            let message = "cluster has no workerpool0; Vertex AI always has one, with one replica";
            return Err(ClusterError::new("missing_chief", VARIABLE, message));
        }
        Some(many) => {
            let message = format!("cluster.workerpool0 has {many} replicas; the primary pool must have exactly one");
            return Err(ClusterError::new("multiple_chiefs", VARIABLE, message));
        }
    }
    if let Some(pool) = pools.iter().find(|p| !p.is_dense()) {
        let message = format!("cluster.{}: a replica is missing; expected every index from 0", pool.name);
        return Err(ClusterError::new("bad_cluster", VARIABLE, message));
    }
    refuse_duplicates(VARIABLE, &pools)?;
    let task = read_task(VARIABLE, document.get("task"), &POOLS)?;
    check_task(VARIABLE, &task, find(&task.kind))?;

    let roles = [Role::Chief, Role::Worker, input.options.pool2, Role::Evaluator];
    let role = POOLS.iter().zip(roles).find(|(name, _)| **name == task.kind).map_or(Role::Chief, |(_, role)| role);
    // If pool 2 has workers, they follow those of pool 1.
    let shift = match task.kind == POOLS[2] && role == Role::Worker {
        true => find(POOLS[1]).map_or(0, |p| p.tasks.len() as u32),
        false => 0,
    };
    let mut by_role = Vec::new();
    for (name, role) in POOLS.iter().zip(roles) {
        let addresses: Vec<_> = find(name).map(addresses).unwrap_or_default();
        match by_role.iter_mut().find(|(r, _): &&mut (Role, Vec<_>)| *r == role) {
            Some((_, list)) => list.extend(addresses),
            None => by_role.push((role, addresses)),
        }
    }
    let replicas = Replicas { pools: by_role, role, index: task.index + shift, trial: task.trial };
    if role == Role::Evaluator && replicas.count(Role::Evaluator) > 1 {
        warnings.push(many_evaluators(VARIABLE));
    }
    let mut reading = replicas.reading(NAME, input.options);
    reading.leader = Leader { platform_port: Some(RENDEZVOUS_PORT), ..reading.leader };
    reading.traits = Traits { behind_services: true, tells_tensorflow: true, ..Traits::default() };
    Ok(Some(reading))
}

fn addresses(pool: &Pool) -> Vec<crate::cluster::parse::address::Address> {
    pool.tasks.values().cloned().collect()
}

/// The variables of a replica of a custom job. Vertex AI fixes the rendezvous port for one machine each; on one machine
/// for all replicas it is a variable.
fn write(job: &Job, replica: &Replica) -> Vec<(&'static str, String)> {
    let roles = [Role::Chief, Role::Worker, Role::Ps, Role::Evaluator];
    let names: Vec<(Role, &str)> = roles.into_iter().zip(POOLS).collect();
    let pool = names.iter().find(|(role, _)| *role == replica.seat.role()).map_or(POOLS[0], |(_, pool)| pool);
    let task = serde_json::json!({ "type": pool, "index": replica.seat.index, "trial": "" });
    let cluster = job.cluster(&names);
    let spec = serde_json::json!({ "cluster": cluster, "environment": "cloud", "task": task, "job": "{}" });
    let place = |name: &str| format!("file://{}/{name}/", job.shared);
    vec![
        (VARIABLE, spec.to_string()),
        ("CLOUD_ML_JOB_ID", job.number.to_string()),
        ("AIP_CHECKPOINT_DIR", place("checkpoints")),
        ("AIP_MODEL_DIR", place("model")),
        ("AIP_TENSORBOARD_LOG_DIR", place("logs")),
        ("MASTER_PORT", job.rendezvous_port.to_string()),
    ]
}
