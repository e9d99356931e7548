//! Common code for launchers that start one trainit for each process (mpirun, mpiexec). They number processes, and
//! imply nodes only if ranks are packed. Also combines a launcher's process with the nodes of another source.

use crate::cluster::parse::input::{Input, rank, within};
use crate::cluster::platforms::slurm;
use crate::cluster::spec::{ClusterError, Leader, PlatformName, Process, Reading, Traits, Warning, role_of_rank};

/// The variables in which an MPI launcher gives a process its place.
pub(in crate::cluster) struct Names {
    /// The rank in the world.
    pub rank: &'static str,
    /// The size of the world.
    pub size: &'static str,
    /// The rank on its node.
    pub local_rank: &'static str,
    /// The number of processes on its node; empty if there is none.
    pub local_size: &'static str,
    /// The number of nodes, from which that number follows; empty if there is none.
    pub nodes: &'static str,
}

/// Reads the place from these variables. The leader is known only within a Slurm job.
pub(in crate::cluster) fn place(
    platform: PlatformName,
    names: &Names,
    input: &Input<'_>,
    warnings: &mut Vec<Warning>,
) -> Result<Option<Reading>, ClusterError> {
    let Some(own) = input.env.given(names.rank) else { return Ok(None) };
    let Some(world) = input.count(names.size)? else { return Ok(None) };
    let rank = rank(names.rank, own)?;
    within(names.rank, rank, names.size, world)?;
    let nodes = input.count(names.nodes)?.filter(|nodes| world.is_multiple_of(*nodes));
    let counted = input.count(names.local_size)?.map(|size| size.min(world)).or(nodes.map(|nodes| world / nodes));
    let counted = counted.or((world == 1).then_some(1));
    let size = counted.unwrap_or(1);
    // Without its own variable the local rank is known only if there is one node, or one process on each.
    let of_rank = counted.filter(|size| *size == 1 || *size == world).map(|size| rank % size);
    let local_rank = input.rank(names.local_rank)?.or(of_rank);
    if let (Some(local_rank), Some(size)) = (local_rank, counted) {
        within(names.local_rank, local_rank, names.local_size, size)?;
    }
    let is_said = input.options.nnodes.is_some() && input.options.node_rank.is_some();
    let fills_nodes = world.is_multiple_of(size) && local_rank == Some(rank % size);
    let is_packed = counted.is_some_and(|size| size == world || fills_nodes);
    let node_guessed = !is_said && !is_packed;
    if local_rank.is_none() || counted.is_none() {
        let message = format!(
            "{} is {rank} of {world}, but its place on the node is unknown ({}, {}), so LOCAL_RANK, NODE_RANK and related \
             variables are not set, and each process keeps its own checkpoints; set these two for each process",
            names.rank, names.local_rank, names.local_size
        );
        warnings.push(Warning::new("node_rank_unknown", message));
    } else if node_guessed {
        let local_rank = local_rank.unwrap_or(0);
        let message = format!(
            "{}: rank {rank} of {world}, {local_rank} of {size} on its node, does not fill nodes one after another, so \
             NODE_RANK, GROUP_RANK and GROUP_WORLD_SIZE are not set (RANK and LOCAL_RANK are right); if the program reads \
             them, set TRAINIT_NODE_RANK and TRAINIT_NNODES, or start the same number of ranks on each node, in the launcher's default order",
            names.rank
        );
        warnings.push(Warning::new("node_rank_unknown", message));
    }
    let (node, nodes) = (rank / size, world.div_ceil(size));
    let leader = if is_packed { slurm::leader(input, node, nodes) } else { None };
    Ok(Some(Reading {
        is_chief: rank == 0,
        leader: leader.unwrap_or_default(),
        process: Some(Process { local_rank, local_size: counted, rank, world, node_guessed }),
        leader_variable: "MASTER_ADDR",
        ..Reading::of(platform, role_of_rank(rank), node, nodes)
    }))
}

/// Combines a launcher's process with the nodes of another source: its own ranks, and the source's addresses. The
/// rendezvous is the launcher's if it gives one, else the source's. If the world is this node alone (each host ran its
/// own launcher), the rendezvous is on this node.
pub(in crate::cluster) fn merge_with_nodes(nodes: Reading, launched: Reading, warnings: &mut Vec<Warning>) -> Reading {
    let Some(process) = launched.process else { return nodes };
    // The source knows the node, which otherwise is derived from ranks.
    let counted = if process.node_guessed { nodes.num_nodes } else { launched.num_nodes };
    let node_rank = if process.node_guessed { nodes.node_rank } else { launched.node_rank };
    let is_all = counted == nodes.num_nodes;
    if let (false, Some(own), Some(stated)) = (is_all, counted, nodes.num_nodes) {
        let message = format!(
            "{} says {stated} nodes, but the launcher's {} processes are on {own}, and their ranks are used: give the launcher \
             all hosts, or the omitted hosts train separately",
            nodes.platform.word(),
            process.world
        );
        warnings.push(Warning::new("env_conflict", message));
    }
    let is_alone = !is_all && counted == Some(1);
    let own_leader = launched.leader.host.as_ref();
    let is_elsewhere = own_leader.is_some_and(|host| nodes.leader.host.as_ref() != Some(host));
    let traits = Traits { behind_services: nodes.traits.behind_services && !is_elsewhere, ..nodes.traits };
    let leader = match own_leader {
        Some(_) => launched.leader,
        None if is_alone => Leader::default(),
        None => nodes.leader,
    };
    Reading {
        is_chief: process.rank == 0,
        node_rank,
        num_nodes: counted,
        hosts: nodes.hosts.filter(|_| is_all),
        tf: nodes.tf.filter(|_| is_all),
        leader,
        traits,
        process: Some(process),
        launch: launched.launch,
        ..nodes
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::detect;
    use crate::cluster::framework::resolve;
    use crate::cluster::spec::ClusterOptions;
    use crate::process::env::Env;

    fn launch(variables: &[(&str, &str)]) -> Option<String> {
        let env = Env::from_pairs(variables.iter().copied());
        let options = ClusterOptions::default();
        let found = detect(&Input { env: &env, files: &|_| Ok(None), options: &options }, &[]);
        found.expect("a job").spec.reading.launch
    }

    #[test]
    fn a_launch_has_the_name_that_its_own_launcher_gives_it() {
        const SLURM: [(&str, &str); 6] = [
            ("SLURM_JOB_ID", "77"),
            ("SLURM_STEP_ID", "3"),
            ("SLURM_PROCID", "1"),
            ("SLURM_LOCALID", "1"),
            ("SLURM_NTASKS", "2"),
            ("SLURM_NODEID", "0"),
        ];
        const MPI: [(&str, &str); 3] =
            [("OMPI_COMM_WORLD_RANK", "1"), ("OMPI_COMM_WORLD_SIZE", "2"), ("OMPI_COMM_WORLD_LOCAL_SIZE", "2")];
        let hydra = [("PMI_RANK", "1"), ("PMI_SIZE", "2"), ("MPI_LOCALRANKID", "1"), ("MPI_LOCALNRANKS", "2")];
        let by_hand = [("RANK", "1"), ("WORLD_SIZE", "2"), ("LOCAL_RANK", "1"), ("LOCAL_WORLD_SIZE", "2")];
        let in_step = |own: &[(&'static str, &'static str)]| launch(&[own, &SLURM, &[("SLURM_NNODES", "1")]].concat());
        let name = |name: &str| Some(name.to_owned());
        assert_eq!(in_step(&[]), name("77.3.0"));
        assert_eq!(in_step(&[("SLURM_RESTART_COUNT", "1")]), name("77.3.1"));
        assert_eq!(in_step(&[&MPI[..], &[("PMIX_NAMESPACE", "603324417")]].concat()), name("603324417"));
        assert_eq!((in_step(&MPI), launch(&MPI)), (None, None), "an mpirun without PMIx");
        assert_eq!(in_step(&hydra), None, "several mpiexec may run in one step");
        assert_eq!(in_step(&by_hand), None, "one step for each process");
        for (id, known) in [("exp-1", name("exp-1")), ("none", None)] {
            assert_eq!(in_step(&[("TORCHELASTIC_RUN_ID", id)]), known);
        }
    }

    #[test]
    fn a_process_of_torchs_launchers_keeps_its_rank_on_a_platforms_nodes() {
        const TF: &str = r#"{"cluster": {"worker": ["a:1", "b:1"]}, "task": {"type": "worker", "index": 1}}"#;
        const VERTEX: &str = r#"{"cluster": {"workerpool0": ["a:1"], "workerpool1": ["b:1"]},
                                 "task": {"type": "workerpool1", "index": 0}}"#;
        const SAGEMAKER: [(&str, &str); 2] = [("SM_HOSTS", r#"["a", "b"]"#), ("SM_CURRENT_HOST", "b")];
        const TORCHRUN: [(&str, &str); 3] = [("PET_NNODES", "2"), ("PET_NODE_RANK", "1"), ("PET_MASTER_ADDR", "a")];
        let job = [("RANK", "5"), ("WORLD_SIZE", "8"), ("LOCAL_RANK", "1"), ("MASTER_ADDR", "10.0.0.1")];
        let spec = |pairs: &[(&str, &str)]| {
            let env = Env::from_pairs(pairs.iter().chain(&job).copied());
            let (hostname, options) = (Some("b-pod".to_owned()), ClusterOptions::default());
            let options = ClusterOptions { hostname, ..options };
            let found = detect(&Input { env: &env, files: &|_| Ok(None), options: &options }, &[]).expect("a job");
            let warned: Vec<&str> = found.warnings.iter().map(|warning| warning.code).collect();
            let dials = found.spec.rendezvous.map(|address| address.host);
            let said = found.spec.reading;
            (said.process.map(|process| process.rank), said.node_rank, said.num_nodes, said.is_chief, dials, warned)
        };
        let meets = Some("10.0.0.1".to_owned());
        for platform in [&[("TF_CONFIG", TF)][..], &[("CLUSTER_SPEC", VERTEX)], &SAGEMAKER, &TORCHRUN] {
            for size in [("LOCAL_WORLD_SIZE", "4"), ("LOCAL_SIZE", "4")] {
                let pairs = [platform, &[size]].concat();
                assert_eq!(spec(&pairs), (Some(5), Some(1), Some(2), false, meets.clone(), vec![]), "{pairs:?}");
            }
            let (process, node_rank, ..) = spec(&[platform, &[("LOCAL_WORLD_SIZE", "3")]].concat());
            assert_eq!(
                (process, node_rank),
                (None, Some(1)),
                "rank 5 cannot be process 1 of 3 on a node: {platform:?}"
            );
        }
    }

    #[test]
    fn processes_of_a_node_behind_a_service_meet_at_their_launchers_address() {
        let alone = r#"{"cluster": {"workerpool0": ["a:1"]}, "task": {"type": "workerpool0", "index": 0}}"#;
        let dials = |address| {
            let job = [("CLUSTER_SPEC", alone), ("RANK", "1"), ("WORLD_SIZE", "2"), ("LOCAL_RANK", "1")];
            let env = Env::from_pairs(job.into_iter().chain([("LOCAL_SIZE", "2"), ("MASTER_ADDR", address)]));
            let options = ClusterOptions { hostname: Some("a-pod".to_owned()), ..ClusterOptions::default() };
            let found = detect(&Input { env: &env, files: &|_| Ok(None), options: &options }, &[]);
            found.expect("a job").spec.rendezvous.map(|address| address.host)
        };
        assert_eq!(dials("127.0.0.1"), Some("127.0.0.1".to_owned()));
        assert_eq!(dials("a"), Some("a-pod".to_owned()), "a pod may not reach itself by the name of its service");
    }

    #[test]
    fn one_process_a_node_is_that_node_and_an_invalid_rank_is_ignored() {
        let alone = r#"{"cluster": {"workerpool0": ["a:1"]}, "task": {"type": "workerpool0", "index": 0}}"#;
        let process = |rank, world, local_size| {
            let pairs =
                [("CLUSTER_SPEC", alone), ("RANK", rank), ("WORLD_SIZE", world), ("LOCAL_WORLD_SIZE", local_size)];
            let env = Env::from_pairs(pairs.into_iter().chain([("LOCAL_RANK", "0"), ("MASTER_ADDR", "a")]));
            let options = ClusterOptions::default();
            let found = detect(&Input { env: &env, files: &|_| Ok(None), options: &options }, &[]);
            found.expect("a job").spec.reading.process.map(|process| (process.rank, process.world))
        };
        assert_eq!(process("0", "4", "4"), Some((0, 4)));
        assert_eq!((process("0", "1", "1"), process("x", "4", "4"), process("4", "4", "4")), (None, None, None));
    }

    #[test]
    fn an_unknown_place_on_the_node_is_not_set() {
        let processes: [&[(&str, &str)]; 3] = [
            &[("PMI_RANK", "3"), ("PMI_SIZE", "8")],
            &[("OMPI_COMM_WORLD_RANK", "3"), ("OMPI_COMM_WORLD_SIZE", "8")],
            &[("OMPI_COMM_WORLD_RANK", "3"), ("OMPI_COMM_WORLD_SIZE", "8"), ("OMPI_COMM_WORLD_LOCAL_SIZE", "4")],
        ];
        for process in processes {
            let (env, options) = (Env::from_pairs(process.iter().copied()), ClusterOptions::default());
            let resolved = resolve(&Input { env: &env, files: &|_| Ok(None), options: &options }, &[]).expect("a job");
            let set = resolved.changes().set;
            assert_eq!((set["RANK"].as_str(), set["WORLD_SIZE"].as_str()), ("3", "8"), "{process:?}");
            for unknown in ["LOCAL_RANK", "NODE_RANK", "GROUP_RANK", "JAX_LOCAL_DEVICE_IDS"] {
                assert!(!set.contains_key(unknown), "{unknown}: {process:?}");
            }
            assert!(resolved.warnings.iter().any(|warning| warning.code == "node_rank_unknown"), "{process:?}");
        }
        let given = [("PMI_RANK", "3"), ("PMI_SIZE", "8"), ("MPI_LOCALRANKID", "3")];
        let (env, options) = (Env::from_pairs(given), ClusterOptions::default());
        let resolved = resolve(&Input { env: &env, files: &|_| Ok(None), options: &options }, &[]).expect("a job");
        assert_eq!(resolved.changes().set["LOCAL_RANK"], "3", "the launcher says it");
    }

    #[test]
    fn a_launch_keeps_its_name_on_a_platforms_nodes() {
        let pairs = r#"{"cluster": {"worker": ["a:1", "b:1"]}, "task": {"type": "worker", "index": 0}}"#;
        let env = [
            ("TF_CONFIG", pairs),
            ("OMPI_COMM_WORLD_RANK", "1"),
            ("OMPI_COMM_WORLD_SIZE", "4"),
            ("OMPI_COMM_WORLD_LOCAL_RANK", "1"),
            ("OMPI_COMM_WORLD_LOCAL_SIZE", "2"),
            ("PMIX_NAMESPACE", "603324417"),
        ];
        assert_eq!(launch(&env), Some("603324417".to_owned()));
    }
}
