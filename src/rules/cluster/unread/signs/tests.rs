use super::*;
use crate::cluster::spec::{ClusterOptions, Explicit, PlatformName};
use crate::cluster::unread::unsupported::UNSUPPORTED;
use crate::cluster::{Input, PLATFORMS, detect};

fn warned_with(pairs: &[(&str, &str)], options: &ClusterOptions) -> Vec<String> {
    let env = Env::from_pairs(pairs.iter().copied());
    let found = detect(&Input { env: &env, files: &|_| Ok(None), options }, &[]).expect("no error");
    let unplaced = found.warnings.into_iter().filter(|warning| warning.code == "node_rank_unknown");
    unplaced.map(|warning| warning.message).collect()
}

fn warned(pairs: &[(&str, &str)]) -> Vec<String> {
    warned_with(pairs, &ClusterOptions::default())
}

#[test]
fn every_unread_count_and_place_causes_one_warning_with_its_name() {
    for signs in UNSUPPORTED {
        let also_set: Vec<(&str, &str)> = signs.also_set.iter().map(|name| (*name, "h")).collect();
        let counted = signs.counts.iter().map(|name| (*name, "2"));
        let placed = signs.places.iter().map(|name| (*name, "1"));
        for (name, value) in counted.chain(placed) {
            let messages = warned(&[&[(name, value)], &also_set[..]].concat());
            assert!(messages.len() == 1 && messages[0].contains(name), "{name}: {messages:?}");
            assert!(messages[0].contains(signs.launcher) && messages[0].contains("--node-rank"), "{messages:?}");
        }
        for name in signs.counts {
            assert!(warned(&[&[(*name, "1")], &also_set[..]].concat()).is_empty(), "a single one is alone: {name}");
        }
        for name in signs.places {
            assert!(warned(&[&[(*name, "0")], &also_set[..]].concat()).is_empty(), "the first may be alone: {name}");
        }
    }
}

#[test]
fn an_incomplete_set_of_a_platforms_variables_causes_a_warning() {
    let half = [
        [("SLURM_NNODES", "2"), ("SLURM_NODEID", "1")],
        [("SLURM_JOB_ID", "7"), ("SLURM_JOB_NODELIST", "n[3-4]")],
        [("SLURM_PROCID", "1"), ("SLURM_NTASKS", "2")],
        [("SLURM_JOB_ID", "7"), ("SLURM_NTASKS", "8")],
        [("SLURM_JOB_ID", "7"), ("SLURM_NTASKS_PER_NODE", "8")],
        [("SLURM_JOB_ID", "7"), ("SLURM_LOCALID", "1")],
        [("WORLD_SIZE", "2"), ("LOCAL_RANK", "0")],
        [("DMLC_NUM_WORKER", "4"), ("DMLC_TASK_ID", "1")],
        [("PET_NNODES", "1:2"), ("PET_NPROC_PER_NODE", "8")],
        [("JAX_NUM_PROCESSES", "2"), ("JAX_COORDINATOR_ADDRESS", "h:1")],
        [("OMPI_COMM_WORLD_SIZE", "2"), ("OMPI_COMM_WORLD_LOCAL_RANK", "0")],
        [("PMI_SIZE", "4"), ("MPI_LOCALRANKID", "1")],
        [("TPU_WORKER_HOSTNAMES", "a,b"), ("TPU_NAME", "x")],
        [("LOCAL_WORLD_SIZE", "2"), ("LOCAL_RANK", "1")],
        [("NNODES", "2"), ("MASTER_ADDR", "a")],
        [("AWS_BATCH_JOB_NUM_NODES", "2"), ("AWS_BATCH_JOB_MAIN_NODE_INDEX", "0")],
        [("SM_HOSTS", r#"["a", "b"]"#), ("SM_NUM_GPUS", "8")],
    ];
    for pairs in half {
        let messages = warned(&pairs);
        let names = |message: &String| pairs.iter().any(|(name, _)| message.contains(name));
        assert!(messages.len() == 1 && names(&messages[0]), "{pairs:?}: {messages:?}");
    }
}

#[test]
fn the_message_names_the_missing_variable_and_the_flags_that_replace_it() {
    let of = |pairs: &[(&str, &str)]| warned(pairs).remove(0);
    let whole = of(&[("LEPTON_JOB_TOTAL_WORKERS", "2"), ("LEPTON_JOB_WORKER_INDEX", "1")]);
    for piece in
        ["LEPTON_JOB_TOTAL_WORKERS says 2", "LEPTON_JOB_WORKER_INDEX is 1", "--nnodes 2 --node-rank 1 --leader"]
    {
        assert!(whole.contains(piece), "{piece}: {whole}");
    }
    let hosts = of(&[("SKYPILOT_NUM_NODES", "2"), ("SKYPILOT_NODE_IPS", "a\nb")]);
    assert!(hosts.contains("SKYPILOT_NODE_IPS") && !hosts.contains('\n'), "{hosts}");
    let half = of(&[("SLURM_NNODES", "3")]);
    assert!(half.contains("SLURM_PROCID is not set") && half.contains("--nnodes 3 --node-rank R"), "{half}");
    let tasks = of(&[("SLURM_NNODES", "1"), ("SLURM_NTASKS", "8")]);
    assert!(tasks.contains("SLURM_NTASKS says 8") && !tasks.contains("--nnodes 8"), "tasks are not nodes: {tasks}");
    let two = of(&[("SLURM_NNODES", "2"), ("SLURM_PROCID", "9"), ("SLURM_NODEID", "1")]);
    assert!(two.contains("--nnodes 2 --node-rank 1"), "{two}");
    let quoted = of(&[("SKYPILOT_NUM_NODES", "\"2\"")]);
    assert!(quoted.contains("--env-file"), "{quoted}");
}

#[test]
fn a_known_or_explicit_place_causes_no_warning() {
    let sky = [("LEPTON_JOB_TOTAL_WORKERS", "2"), ("LEPTON_JOB_WORKER_INDEX", "1")];
    let torch = [("RANK", "1"), ("WORLD_SIZE", "2"), ("MASTER_ADDR", "a")];
    assert!(warned(&[&sky[..], &torch[..]].concat()).is_empty());
    let explicit = |text: &str| Some(Explicit { place: "a flag".to_owned(), text: text.to_owned() });
    let (nnodes, node_rank, leader) = (explicit("2"), explicit("1"), explicit("a:1"));
    let said = ClusterOptions { nnodes, node_rank, leader, ..ClusterOptions::default() };
    assert!(warned_with(&sky, &said).is_empty());
    let none = ClusterOptions { platform: Some(PlatformName::NONE), ..ClusterOptions::default() };
    assert!(warned_with(&sky, &none).is_empty());
    let alone = [("RANK", "0"), ("WORLD_SIZE", "1"), ("MASTER_ADDR", "a")];
    assert_eq!(warned(&[&sky[..], &alone[..]].concat()).len(), 1, "an image's defaults");
}

#[test]
fn every_form_of_a_count_is_read() {
    let many = ["2", " 2 ", "1:2", "\"2\"", "'2'", "a,b", "a b", "10.0.0.5\n10.0.0.6", "a;b", r#"["a","b"]"#, "n[3-4]"];
    for text in many {
        assert_eq!(count(text), Some(2), "{text:?}");
    }
    for text in ["1", "a", "localhost", "\"\"", "x", "[1]", "n[7]"] {
        assert!(count(text).is_none_or(|count| count < 2), "{text:?}");
    }
    for text in [r#"{"a": 1, "b": 2}"#, "n[3-", "[", "[1,"] {
        assert_eq!(count(text), None, "{text:?}");
    }
    assert_eq!(count("99999999999999"), Some(u32::MAX));
}

#[test]
fn a_launcher_without_a_line_is_recognised_by_a_count_and_a_place_of_one_prefix() {
    for (count, place) in [
        ("ACME_NUM_NODES", "ACME_NODE_RANK"),
        ("X_WORLD_SIZE", "X_WORLD_RANK"),
        ("A_B_NUM_MACHINES", "A_B_MACHINE_RANK"),
    ] {
        let messages = warned(&[(count, "4"), (place, "1")]);
        assert!(messages.len() == 1, "{messages:?}");
        for piece in [count, place, "--nnodes 4 --node-rank 1", "(205)"] {
            assert!(messages[0].contains(piece), "{piece}: {messages:?}");
        }
        assert_eq!(warned(&[(count, "4"), (place, "0")]).len(), 1, "the first of four");
        for alone in [&[(count, "1"), (place, "0")][..], &[(count, "4")], &[(count, "4"), (place, "4")]] {
            assert!(warned(alone).is_empty(), "{alone:?}");
        }
    }
    let unlike = [("GRAPH_NUM_NODES", "9000"), ("LORA_RANK", "16"), ("A_NUM_NODES", "many"), ("A_NODE_RANK", "1")];
    assert!(warned(&unlike).is_empty());
    let torch = [("RANK", "1"), ("WORLD_SIZE", "4"), ("MASTER_ADDR", "a")];
    assert!(warned(&[&torch[..], &[("ACME_NUM_NODES", "4"), ("ACME_NODE_RANK", "1")]].concat()).is_empty());
}

#[test]
fn a_list_counts_each_of_its_hosts_once() {
    for (hosts, count_of) in [("h1 8 h2 8", 2), ("h1 h1 h2 h2", 2), ("h1 16", 1), ("h1 h1", 1), ("4,3", 2)] {
        assert_eq!(count(hosts), Some(count_of), "{hosts}");
    }
    assert_eq!(warned(&[("LSB_MCPU_HOSTS", "h1 8 h2 8"), ("LSB_HOSTS", "h1 h2")]).len(), 1);
    assert!(warned(&[("LSB_MCPU_HOSTS", "h1 16"), ("LSB_HOSTS", "h1 h1")]).is_empty());
}

#[test]
fn the_lists_of_several_roles_are_added_and_a_place_within_one_of_them_is_not_offered() {
    let roles = [("VC_PS_HOSTS", "p0"), ("VC_TRAINER_HOSTS", "t0,t1"), ("VC_TASK_INDEX", "1"), ("VC_X_HOSTS", "")];
    let message = warned(&roles).remove(0);
    assert!(message.contains("VC_PS_HOSTS + VC_TRAINER_HOSTS says 3 and VC_TASK_INDEX is 1"), "{message}");
    assert!(message.contains("--nnodes 3 --node-rank R --leader"), "{message}");
    let one = warned(&[("VC_TRAINER_HOSTS", "t0,t1"), ("VC_TASK_INDEX", "1")]).remove(0);
    assert!(
        one.contains("--nnodes 2 --node-rank 1 --leader HOST:PORT (the first host is in VC_TRAINER_HOSTS)"),
        "{one}"
    );
    assert!(warned(&[("VC_TRAINER_HOSTS", "t0"), ("VC_TASK_INDEX", "0")]).is_empty());
}

#[test]
fn a_file_of_several_nodes_causes_a_warning_and_one_of_a_single_node_does_not() {
    for (name, launcher) in [("PBS_NODEFILE", "PBS"), ("OAR_NODEFILE", "OAR"), ("COBALT_NODEFILE", "Cobalt")] {
        let warned = |content: Option<&str>| {
            let (env, options) = (Env::from_pairs([(name, "/nodes")]), ClusterOptions::default());
            let files = |path: &str| Ok(content.filter(|_| path == "/nodes").map(str::to_owned));
            let found = detect(&Input { env: &env, files: &files, options: &options }, &[]).expect("no error");
            found.warnings.into_iter().map(|warning| warning.message).collect::<Vec<_>>()
        };
        let several = warned(Some("n1\nn1 2\n\nn2\n"));
        assert!(several.len() == 1 && several[0].contains(&format!("{name} says 2 ({launcher})")), "{several:?}");
        assert!(warned(Some("n1\nn1\n")).is_empty() && warned(None).is_empty(), "{name}");
    }
}

#[test]
fn a_launcher_that_is_not_read_sets_nothing_that_a_platform_reads() {
    let read = |name: &&str| PLATFORMS.iter().any(|platform| platform.variables.contains(name));
    for signs in UNSUPPORTED {
        assert!(!signs.counts.iter().chain(signs.places).any(read), "{}", signs.launcher);
    }
}
