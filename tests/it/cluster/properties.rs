//! Properties of the cluster's rules over random inputs: no panic, errors only with the contract's codes, and
//! over the replicas of one cluster each rank exactly once.

use proptest::prelude::*;
use serde_json::{Value, json};
use trainit::rules::cluster::PLATFORMS;
use trainit::rules::cluster::framework::{Resolved, resolve};
use trainit::rules::cluster::parse::input::Input;
use trainit::rules::cluster::spec::{ClusterError, ClusterOptions, Nproc};
use trainit::rules::process::env::Env;

/// The codes of section 5 of the contract, and the code for a setting that fits no cluster.
const CODES: [&str; 16] = [
    "invalid_json",
    "not_an_object",
    "missing_cluster",
    "missing_task",
    "bad_cluster",
    "unknown_task_type",
    "task_type_not_in_cluster",
    "bad_task_index",
    "task_index_out_of_range",
    "multiple_chiefs",
    "missing_chief",
    "bad_address",
    "duplicate_address",
    "host_not_in_list",
    "bad_hostlist",
    "missing_leader",
];

/// The variables that the platforms read, and similar ones.
fn names() -> Vec<&'static str> {
    let torchruns = ["PET_NNODES", "PET_NODE_RANK", "PET_MASTER_ADDR", "PET_MASTER_PORT", "PET_RDZV_ENDPOINT"];
    PLATFORMS.iter().flat_map(|source| source.variables).copied().chain(torchruns).chain(["CLOUD_ML_JOB_ID"]).collect()
}

fn resolved(
    pairs: &[(String, String)],
    file: Option<&str>,
    options: &ClusterOptions,
) -> Result<Resolved, ClusterError> {
    let env = Env::from_pairs(pairs.iter().map(|(k, v)| (k, v)));
    let files = |path: &str| Ok(file.filter(|_| path.ends_with("resourceconfig.json")).map(str::to_owned));
    resolve(&Input { env: &env, files: &files, options }, &[])
}

fn named(name: &str, value: impl ToString) -> (String, String) {
    (name.to_owned(), value.to_string())
}

/// Properties of every outcome, for any input.
fn check(outcome: &Result<Resolved, ClusterError>) {
    match outcome {
        Err(error) => {
            assert!(CODES.contains(&error.code), "{error:?}");
            assert!(!error.variable.is_empty() && error.message.chars().count() < 700, "{error:?}");
            assert!(!error.to_string().contains('\n'), "{error:?}");
        }
        Ok(resolved) => {
            let spec = &resolved.spec;
            if let (Some(rank), Some(nodes), false) =
                (spec.reading.node_rank, spec.reading.num_nodes, spec.reading.hands_off)
            {
                assert!(rank < nodes, "{spec:?}");
            }
            if let (Some(hosts), Some(nodes)) = (&spec.reading.hosts, spec.reading.num_nodes) {
                assert_eq!(hosts.len(), nodes as usize, "{spec:?}");
            }
            assert_eq!(resolved.launches.len(), 1);
            for value in resolved.changes().set.values() {
                assert!(!value.contains('\0'));
            }
        }
    }
}

/// Nearly correct values, which random text would never produce.
fn near_value() -> impl Strategy<Value = String> {
    prop_oneof![
        any::<String>(),
        (0u32..6).prop_map(|n| n.to_string()),
        any::<i64>().prop_map(|n| n.to_string()),
        prop::sample::select(vec![
            "",
            " ",
            "a:1",
            "a",
            "[fd00::1]:2",
            "fd00::1",
            "n[1-3]",
            "n[3-1],x",
            "4(x2),1",
            "2:4",
            "tcp://1.2.3.4:5",
            "[\"a\",\"b\"]",
            "null",
            "[]",
            "{}",
            "true",
        ])
        .prop_map(str::to_owned),
        near_json().prop_map(|v| v.to_string()),
    ]
}

/// JSON with the keys that matter, in right and wrong places.
fn near_json() -> impl Strategy<Value = Value> {
    let word = prop::sample::select(vec![
        "cluster",
        "task",
        "type",
        "index",
        "trial",
        "chief",
        "master",
        "worker",
        "ps",
        "evaluator",
        "workerpool0",
        "workerpool1",
        "workerpool2",
        "workerpool3",
        "hosts",
        "current_host",
        "0",
        "1",
        "3",
        "a:1",
        "b:1",
        "a",
        "x",
    ]);
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        (-2i64..4).prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        word.clone().prop_map(Value::from),
    ];
    leaf.prop_recursive(5, 40, 5, move |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::btree_map(word.clone().prop_map(str::to_owned), inner, 0..5)
                .prop_map(|map| Value::Object(map.into_iter().collect())),
        ]
    })
}

/// The numbers of a cluster's replicas, and the document of each replica in the names of one platform.
#[derive(Debug, Clone)]
struct Made {
    chief: bool,
    workers: u32,
    ps: u32,
    evaluators: u32,
}

fn made() -> impl Strategy<Value = Made> {
    (any::<bool>(), 0u32..12, 0u32..4, 0u32..2)
        .prop_map(|(chief, workers, ps, evaluators)| Made { chief, workers, ps, evaluators })
        .prop_filter("a replica trains", |made| made.chief || made.workers > 0)
}

impl Made {
    fn pools(&self, names: [&'static str; 4]) -> Vec<(&'static str, u32)> {
        let counts = [u32::from(self.chief), self.workers, self.ps, self.evaluators];
        names.into_iter().zip(counts).filter(|(_, n)| *n > 0).collect()
    }

    /// Every replica's document, by its own address.
    fn documents(&self, names: [&'static str; 4]) -> Vec<(String, String)> {
        let address = |pool: &str, index: u32| format!("{pool}-{index}:2222");
        let cluster: Value = self
            .pools(names)
            .into_iter()
            .map(|(pool, n)| (pool.to_owned(), (0..n).map(|i| Value::from(address(pool, i))).collect::<Value>()))
            .collect::<serde_json::Map<_, _>>()
            .into();
        let mut documents = Vec::new();
        for (pool, n) in self.pools(names) {
            for index in 0..n {
                let document = json!({"cluster": cluster, "task": {"type": pool, "index": index}});
                documents.push((format!("{pool}-{index}"), document.to_string()));
            }
        }
        documents
    }
}

/// Each rank appears once over the training replicas, one replica is the chief, and all agree on world size and leader.
fn check_world(made: &Made, replicas: Vec<(String, Resolved)>, nproc: u32) {
    let world = u32::from(made.chief) + made.workers;
    let mut ranks: Vec<u32> = Vec::new();
    let mut chiefs = 0;
    for (host, resolved) in &replicas {
        let spec = &resolved.spec;
        assert_eq!(spec.reading.num_nodes, Some(world));
        assert_eq!(spec.leader.is_some(), world > 1);
        assert_eq!(spec.leader, replicas[0].1.spec.leader);
        assert_eq!(spec.reading.hosts, replicas[0].1.spec.reading.hosts);
        assert_eq!(spec.reading.node_rank.is_some(), spec.reading.role.trains());
        chiefs += resolved.launches.iter().filter(|launch| launch.is_chief).count();
        let Some(node_rank) = spec.reading.node_rank else {
            assert!(!resolved.changes().set.contains_key("RANK"));
            continue;
        };
        assert_eq!(spec.reading.hosts.as_ref().map(|h| &h[node_rank as usize]), Some(host));
        for launch in &resolved.launches {
            match launch.changes.set.get("RANK") {
                Some(rank) => {
                    assert_eq!(launch.changes.set["WORLD_SIZE"], (world * nproc).to_string());
                    ranks.push(rank.parse().unwrap());
                }
                None => ranks.push(node_rank),
            }
        }
    }
    ranks.sort_unstable();
    assert_eq!(ranks, (0..world * nproc).collect::<Vec<_>>());
    assert_eq!(chiefs, 1);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn anything_in_any_variables_is_a_model_or_a_coded_error(
        pairs in prop::collection::vec((prop::sample::select(names()), near_value()), 0..8),
        file in prop::option::of(near_value()),
    ) {
        let pairs: Vec<(String, String)> = pairs.into_iter().map(|(k, v)| named(k, v.replace('\0', ""))).collect();
        check(&resolved(&pairs, file.as_deref(), &ClusterOptions::default()));
    }

    #[test]
    fn any_json_in_the_json_variables_is_a_model_or_a_coded_error(value in near_json(), cut in 0usize..200) {
        let whole = value.to_string();
        let part: String = whole.chars().take(cut).collect();
        for text in [whole, part] {
            for name in ["CLUSTER_SPEC", "TF_CONFIG", "SM_HOSTS"] {
                let pairs = [named(name, &text), named("SM_CURRENT_HOST", "a")];
                check(&resolved(&pairs, None, &ClusterOptions::default()));
            }
            check(&resolved(&[], Some(&text), &ClusterOptions::default()));
        }
    }

    #[test]
    fn a_document_damaged_in_one_place_is_a_model_or_a_coded_error(
        made in made(), replica in any::<prop::sample::Index>(), at in any::<prop::sample::Index>(),
        piece in prop::sample::select(vec!["", "\"", "{", "]", ",", "0", "-", "null", ":", "\\u0000", "é", "1e9"]),
    ) {
        for (variable, names) in [
            ("TF_CONFIG", ["chief", "worker", "ps", "evaluator"]),
            ("CLUSTER_SPEC", ["workerpool0", "workerpool1", "workerpool2", "workerpool3"]),
        ] {
            let documents = made.documents(names);
            let mut text = replica.get(&documents).1.clone();
            let at = at.index(text.len());
            text.replace_range(at..=at, piece);
            check(&resolved(&[named(variable, text)], None, &ClusterOptions::default()));
        }
    }

    #[test]
    fn each_rank_occurs_once_over_the_replicas_of_a_tf_config(made in made(), nproc in prop::option::of(1u32..5)) {
        let options = ClusterOptions { nproc: nproc.map(Nproc::Count), ..ClusterOptions::default() };
        let replicas = made.documents(["chief", "worker", "ps", "evaluator"]).into_iter().map(|(host, document)| {
            (host, resolved(&[named("TF_CONFIG", document)], None, &options).unwrap())
        }).collect();
        check_world(&made, replicas, nproc.unwrap_or(1));
    }

    #[test]
    fn each_rank_occurs_once_over_the_replicas_of_a_vertex_job(made in made(), nproc in prop::option::of(1u32..5)) {
        let made = Made { chief: true, ..made };
        let options = ClusterOptions { nproc: nproc.map(Nproc::Count), ..ClusterOptions::default() };
        let names = ["workerpool0", "workerpool1", "workerpool2", "workerpool3"];
        let replicas = made.documents(names).into_iter().map(|(host, document)| {
            (host, resolved(&[named("CLUSTER_SPEC", document)], None, &options).unwrap())
        }).collect();
        check_world(&made, replicas, nproc.unwrap_or(1));
    }

    #[test]
    fn every_pool_gets_ranks_with_rank_all_pools(made in made()) {
        let made = Made { chief: true, ..made };
        let options = ClusterOptions { rank_all_pools: true, ..ClusterOptions::default() };
        let names = ["workerpool0", "workerpool1", "workerpool2", "workerpool3"];
        let ranks: Vec<u32> = made.documents(names).into_iter().map(|(_, document)| {
            resolved(&[named("CLUSTER_SPEC", document)], None, &options).unwrap().spec.reading.node_rank.unwrap()
        }).collect();
        prop_assert_eq!(&ranks, &(0..ranks.len() as u32).collect::<Vec<_>>());
    }

    #[test]
    fn each_slurm_task_is_one_process_of_one_world(nodes in 1u32..5, per_node in 1u32..5, job in 1u32..99_999_999) {
        let world = nodes * per_node;
        for rank in 0..world {
            let pairs = [
                named("SLURM_JOB_ID", job), named("SLURM_PROCID", rank), named("SLURM_NTASKS", world),
                named("SLURM_NNODES", nodes), named("SLURM_NODEID", rank / per_node),
                named("SLURM_LOCALID", rank % per_node), named("SLURM_STEP_NODELIST", format!("n[0-{}]", nodes - 1)),
                named("SLURM_STEP_TASKS_PER_NODE", format!("{per_node}(x{nodes})")),
            ];
            let resolved = resolved(&pairs, None, &ClusterOptions::default()).unwrap();
            let set = resolved.changes().set;
            prop_assert_eq!((resolved.spec.reading.node_rank, resolved.spec.reading.num_nodes), (Some(rank / per_node), Some(nodes)));
            prop_assert_eq!(resolved.launches[0].is_chief, rank == 0);
            if world > 1 {
                prop_assert_eq!(&set["RANK"], &rank.to_string());
                prop_assert_eq!(&set["WORLD_SIZE"], &world.to_string());
                prop_assert_eq!(&set["MASTER_ADDR"], "n0");
                prop_assert_eq!(set.get("LOCAL_RANK").cloned(), (per_node > 1).then(|| (rank % per_node).to_string()));
            }
        }
    }

    #[test]
    fn the_tf_config_of_a_replica_reads_back_as_the_same_place(made in made()) {
        let made = Made { chief: true, ..made };
        let names = ["workerpool0", "workerpool1", "workerpool2", "workerpool3"];
        for (_, document) in made.documents(names) {
            let first = resolved(&[named("CLUSTER_SPEC", document)], None, &ClusterOptions::default()).unwrap();
            let Some(text) = first.changes().set.get("TF_CONFIG").cloned() else { continue };
            let second = resolved(&[named("TF_CONFIG", text)], None, &ClusterOptions::default()).unwrap();
            prop_assert_eq!(second.spec.reading.node_rank, first.spec.reading.node_rank);
            prop_assert_eq!(second.spec.reading.num_nodes, first.spec.reading.num_nodes);
            prop_assert_eq!(second.spec.reading.role, first.spec.reading.role);
            prop_assert!(!second.changes().set.contains_key("TF_CONFIG"));
        }
    }
}
