//! A Kubernetes Indexed Job: `JOB_COMPLETION_INDEX`, with the number of nodes from the user. The index alone means an
//! array job, which is more common.

use crate::cluster::parse::input::{Input, count};
use crate::cluster::spec::{ClusterError, PlatformName, Reading, Warning, role_of_rank};
use crate::cluster::unread::signs::Signs;
use crate::cluster::written::{Job, Limit, Notice, Permanent, Replica, Restarts, Simulated, Success};
use crate::cluster::{EXPLICIT, Platform};

const NAME: PlatformName = PlatformName("k8s_indexed");

pub(in crate::cluster) const K8S_INDEXED: Platform = Platform {
    simulated: Some(Simulated {
        name: NAME.0,
        write,
        other_roles: &[],
        restarts: Restarts { whole_job: false, limit: Limit::Together(6), permanent: Permanent::None },
        success: Success::OfAll,
        notice: Notice::Signal,
    }),
    // Kubeflow's TrainJob for XGBoost gives each node an index, but counts workers; a node with several GPUs has
    // several workers.
    signs: &[Signs {
        launcher: "TrainJob for XGBoost",
        counts: &["DMLC_NUM_WORKER"],
        places: &["DMLC_TASK_ID"],
        leaders: &["DMLC_TRACKER_URI"],
        also_set: &["DMLC_TASK_ID"],
        ..Signs::PROCESSES
    }],
    ..Platform::of(&[NAME], &["JOB_COMPLETION_INDEX"], "JOB_COMPLETION_INDEX, and --nnodes or TRAINIT_NNODES", read)
};

/// The index, and the values of the job's manifest (docs/examples/indexed-job.yaml).
fn write(job: &Job, replica: &Replica) -> Vec<(&'static str, String)> {
    let [nnodes, _, leader] = EXPLICIT;
    vec![
        ("JOB_COMPLETION_INDEX", job.rank(replica).to_string()),
        (nnodes, job.training().count().to_string()),
        (leader, format!("{}:{}", job.leader_host(), job.rendezvous_port)),
    ]
}

/// Reads the index if the number of nodes is given.
fn read(input: &Input<'_>, warnings: &mut Vec<Warning>) -> Result<Option<Reading>, ClusterError> {
    let Some(nnodes) = &input.options.nnodes else { return Ok(None) };
    let Some(index) = input.rank("JOB_COMPLETION_INDEX")? else { return Ok(None) };
    let nodes = count(&nnodes.place, &nnodes.text)?;
    warnings.extend(repeated_index(input, index));
    Ok(Some(Reading::of(NAME, role_of_rank(index), index, nodes)))
}

/// The warning if this pod and the leader belong to different jobs of a JobSet, each of which counts its pods from 0. The
/// pods are named SET-JOB-REPLICA-INDEX.
fn repeated_index(input: &Input<'_>, index: u32) -> Option<Warning> {
    let job = |host: &str| -> Option<(String, u32)> {
        let (job, index) = host.trim().split('.').next()?.rsplit_once('-')?;
        let (name, replica) = job.rsplit_once('-')?;
        index.parse::<u32>().ok()?;
        Some((name.to_owned(), replica.parse().ok()?))
    };
    let leader = input.options.leader.as_ref().filter(|_| input.options.node_rank.is_none())?;
    let own = input.options.hostname.as_deref()?;
    let (own_job, leader_job) = (job(own)?, job(leader.text.split(':').next()?)?);
    let message = format!(
        "JOB_COMPLETION_INDEX is {index} in this pod ({own}), and in one of each other job of the set, such as that of the leader \
         ({}): their ranks collide; set TRAINIT_NODE_RANK to a different one in every pod, or use one job with all pods",
        leader.text
    );
    let is_repeated = own_job.0 == leader_job.0 && own_job.1 != leader_job.1;
    is_repeated.then(|| Warning::new("node_rank_unknown", message))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::detect;
    use crate::cluster::spec::{ClusterOptions, Explicit};
    use crate::process::env::Env;

    #[test]
    fn workers_on_an_unknown_number_of_nodes_cause_a_warning() {
        let found = |task: Option<&str>, workers: &str, nnodes: Option<&str>| {
            let task = task.map(|task| ("DMLC_TASK_ID", task));
            let env =
                [("JOB_COMPLETION_INDEX", "1"), ("DMLC_TRACKER_URI", "j-node-0-0.j"), ("DMLC_NUM_WORKER", workers)];
            let env = Env::from_pairs(env.into_iter().chain(task));
            let explicit = |text: &str| Explicit { text: text.to_owned(), place: "TRAINIT_NNODES".to_owned() };
            let leader = nnodes.map(|_| explicit("j-node-0-0.j:29500"));
            let options = ClusterOptions { nnodes: nnodes.map(explicit), leader, ..ClusterOptions::default() };
            let input = Input { env: &env, files: &|_| Ok(None), options: &options };
            let found = detect(&input, &[]).expect("a job");
            (found.spec.reading.platform, found.warnings.iter().map(|warning| warning.code).collect::<Vec<_>>())
        };
        let none = PlatformName::NONE;
        assert_eq!(found(Some("1"), "4", None), (none, vec!["node_rank_unknown"]));
        assert_eq!(found(Some("1"), "4", Some("2")), (NAME, vec![]));
        assert_eq!(found(Some("1"), "some", None), (none, vec!["node_rank_unknown"]), "the number of nodes is unknown");
        for (task, workers) in [(Some("0"), "1"), (None, "4"), (Some("0"), "some")] {
            assert_eq!(found(task, workers, None), (none, vec![]), "{task:?} {workers}");
        }
    }
}
