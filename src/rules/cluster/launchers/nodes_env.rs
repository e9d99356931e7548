//! Nodes set by hand: `NNODES` (or `NUM_NODES`), `NODE_RANK`, `MASTER_ADDR`, `MASTER_PORT` and `NPROC_PER_NODE`.
//! LLaMA-Factory, ms-swift and many scripts around torchrun read them, and some clouds set them.
//!
//! A single node is ignored, because images set it as their default. A Slurm step, for which job scripts write these,
//! gives each task its own place. Deliberately absent: starting `NPROC_PER_NODE` processes, which `--nproc` does.

use crate::cluster::Platform;
use crate::cluster::first::First;
use crate::cluster::parse::input::{Input, rank, within};
use crate::cluster::platforms::slurm;
use crate::cluster::spec::{ClusterError, Leader, PlatformName, Reading, Warning, role_of_rank};
use crate::cluster::unread::signs::Signs;
use crate::process::env::Env;

/// The number of nodes, best first.
const COUNTS: [&str; 2] = ["NNODES", "NUM_NODES"];
/// The number of processes on each node.
const PROCESSES: &str = "NPROC_PER_NODE";

const NAME: PlatformName = PlatformName("nodes_env");

pub(in crate::cluster) const NODES_ENV: Platform = Platform {
    first: First::Host(&["NODE_RANK"]),
    signs: &[
        Signs {
            launcher: "torch launchers",
            counts: &[COUNTS[0]],
            places: &["NODE_RANK"],
            leaders: &["MASTER_ADDR"],
            ..Signs::NODES
        },
        Signs {
            launcher: "torch launchers",
            counts: &[COUNTS[1]],
            places: &["NODE_RANK"],
            leaders: &["MASTER_ADDR"],
            also_set: &["MASTER_ADDR"],
            ..Signs::NODES
        },
    ],
    ..Platform::of(
        &[NAME],
        &[COUNTS[0], COUNTS[1], "NODE_RANK", "MASTER_ADDR", "MASTER_PORT", PROCESSES],
        "NNODES of several nodes, NODE_RANK and MASTER_ADDR",
        read,
    )
};

/// Reads the place of the node.
fn read(input: &Input<'_>, _: &mut Vec<Warning>) -> Result<Option<Reading>, ClusterError> {
    let given = |name: &str| input.env.given(name);
    let counted = COUNTS.into_iter().find(|name| given(name).is_some());
    let (Some(counted), Some(own)) = (counted, given("NODE_RANK")) else { return Ok(None) };
    if slurm::is_task(input.env) {
        return Ok(None);
    }
    let Some(nodes) = input.count(counted)?.filter(|nodes| *nodes > 1) else { return Ok(None) };
    let node_rank = rank("NODE_RANK", own)?;
    within("NODE_RANK", node_rank, counted, nodes)?;
    Ok(Some(Reading {
        leader: Leader { host: input.host("MASTER_ADDR")?, ..Leader::default() },
        leader_variable: "MASTER_ADDR",
        procs_per_node: processes(input.env).map(str::to_owned),
        ..Reading::of(NAME, role_of_rank(node_rank), node_rank, nodes)
    }))
}

/// The number of processes on each node, in torchrun's form: a number, `gpu`, `auto`.
pub(in crate::cluster) fn processes(env: &Env) -> Option<&str> {
    env.given(PROCESSES)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::detect;
    use crate::cluster::spec::ClusterOptions;

    /// The platform, the place, the leader and the codes of the warnings; or the code of the error.
    type Found = Result<(&'static str, Option<u32>, Option<u32>, Option<String>, Vec<&'static str>), &'static str>;

    fn found(pairs: &[(&str, &str)]) -> Found {
        let (env, options) = (Env::from_pairs(pairs.iter().copied()), ClusterOptions::default());
        let found = detect(&Input { env: &env, files: &|_| Ok(None), options: &options }, &[]);
        let found = found.map_err(|error| error.code)?;
        let warned = found.warnings.iter().map(|warning| warning.code).collect();
        let leader = found.spec.leader.map(|leader| leader.to_string());
        let said = found.spec.reading;
        Ok((said.platform.word(), said.node_rank, said.num_nodes, leader, warned))
    }

    #[test]
    fn a_node_set_by_hand_has_its_place() {
        for count in COUNTS {
            let node = [(count, "3"), ("NODE_RANK", "2"), ("MASTER_ADDR", "10.0.0.1"), ("MASTER_PORT", "29511")];
            let leader = Some("10.0.0.1:29511".to_owned());
            assert_eq!(found(&node), Ok(("nodes_env", Some(2), Some(3), leader, vec![])));
        }
        assert_eq!(found(&[("NNODES", "2"), ("NODE_RANK", "2"), ("MASTER_ADDR", "a")]), Err("task_index_out_of_range"));
        assert_eq!(found(&[("NNODES", "2"), ("NODE_RANK", "1")]), Err("missing_leader"));
        // xpk's entrypoint for GPUs on GKE.
        let jax = [
            ("NNODES", "2"),
            ("NODE_RANK", "1"),
            ("JAX_COORDINATOR_ADDRESS", "j-0-0.j"),
            ("JAX_COORDINATOR_PORT", "6002"),
        ];
        assert_eq!(found(&jax), Ok(("nodes_env", Some(1), Some(2), Some("j-0-0.j:29500".to_owned()), vec![])));
        assert_eq!(found(&[("NNODES", "two"), ("NODE_RANK", "1")]), Err("bad_cluster"));
    }

    #[test]
    fn a_single_node_is_an_images_default_and_is_ignored() {
        let default = [("NNODES", "1"), ("NODE_RANK", "0"), ("MASTER_ADDR", "a")];
        assert_eq!(found(&default), Ok(("none", Some(0), Some(1), None, vec![])));
        let torch = [("RANK", "1"), ("WORLD_SIZE", "2")];
        let leader = Some("a:29500".to_owned());
        assert_eq!(found(&[&default[..], &torch[..]].concat()), Ok(("torch_env", Some(1), Some(2), leader, vec![])));
    }

    #[test]
    fn processes_of_a_launcher_on_these_nodes_keep_its_ranks() {
        let nodes = [("NNODES", "2"), ("NODE_RANK", "1"), ("MASTER_ADDR", "a")];
        let process = [("RANK", "5"), ("WORLD_SIZE", "8"), ("LOCAL_RANK", "1"), ("LOCAL_WORLD_SIZE", "4")];
        let env = Env::from_pairs(nodes.into_iter().chain(process));
        let options = ClusterOptions::default();
        let found = detect(&Input { env: &env, files: &|_| Ok(None), options: &options }, &[]).expect("a job");
        assert_eq!(found.spec.reading.process.map(|process| (process.rank, process.local_rank)), Some((5, Some(1))));
    }

    #[test]
    fn a_job_scripts_copy_of_slurms_nodes_keeps_slurms_tasks() {
        let nodes = [("NNODES", "2"), ("NODE_RANK", "1"), ("MASTER_ADDR", "n1")];
        let task = [("SLURM_JOB_ID", "7"), ("SLURM_STEP_ID", "0"), ("SLURM_PROCID", "5"), ("SLURM_LOCALID", "1")];
        let step =
            [("SLURM_NTASKS", "8"), ("SLURM_NNODES", "2"), ("SLURM_NODEID", "1"), ("SLURM_STEP_NODELIST", "n[1-2]")];
        let (platform, ..) = found(&[&nodes[..], &task[..], &step[..]].concat()).expect("a job");
        assert_eq!(platform, "slurm");
    }
}
