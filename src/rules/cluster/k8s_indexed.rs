//! A Kubernetes Indexed Job: `JOB_COMPLETION_INDEX`, and a number of nodes that somebody must give. Alone the index means
//! an array job, which is its commoner use.

use super::Platform;
use super::input::{Input, count};
use super::spec::{ClusterError, PlatformName, Reading, Warning, quote, role_of_rank};

const NAME: PlatformName = PlatformName("k8s_indexed");

pub(super) const K8S_INDEXED: Platform =
    Platform::of(&[NAME], &["JOB_COMPLETION_INDEX"], "JOB_COMPLETION_INDEX, and --nnodes or TRAINIT_NNODES", read);

/// Reads the index where the world is given.
fn read(input: &Input<'_>, warnings: &mut Vec<Warning>) -> Result<Option<Reading>, ClusterError> {
    let Some(nnodes) = &input.options.nnodes else {
        warnings.extend(workers(input));
        return Ok(None);
    };
    let Some(index) = input.rank("JOB_COMPLETION_INDEX")? else { return Ok(None) };
    let nodes = count(&nnodes.place, &nnodes.text)?;
    Ok(Some(Reading::of(NAME, role_of_rank(index), index, nodes)))
}

/// Kubeflow's TrainJob for XGBoost numbers the nodes and counts the workers, of which a node with several GPUs has several.
fn workers(input: &Input<'_>) -> Option<Warning> {
    let task = input.env.given("DMLC_TASK_ID")?;
    let workers = input.count("DMLC_NUM_WORKER").ok().flatten().filter(|workers| *workers > 1)?;
    let message = format!(
        "DMLC_TASK_ID is {} of {workers} workers, but on how many nodes they are is not told: this is taken for the only \
         replica, and those that share a checkpoint directory or store overtake each other (205); set TRAINIT_NNODES and \
         TRAINIT_NODE_RANK, and TRAINIT_LEADER as DMLC_TRACKER_URI:DMLC_TRACKER_PORT, on every node",
        quote(task)
    );
    Some(Warning::new("node_rank_unknown", message))
}

#[cfg(test)]
mod tests {
    use super::super::detect;
    use super::super::spec::{ClusterOptions, Explicit};
    use super::*;
    use crate::rules::env::Env;

    #[test]
    fn workers_on_nodes_that_nobody_counts_are_warned_of() {
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
            (found.spec.said.platform, found.warnings.iter().map(|warning| warning.code).collect::<Vec<_>>())
        };
        let none = PlatformName::NONE;
        assert_eq!(found(Some("1"), "4", None), (none, vec!["node_rank_unknown"]));
        assert_eq!(found(Some("1"), "4", Some("2")), (NAME, vec![]));
        for (task, workers) in [(Some("0"), "1"), (None, "4"), (Some("1"), "some")] {
            assert_eq!(found(task, workers, None), (none, vec![]), "{task:?} {workers}");
        }
    }
}
