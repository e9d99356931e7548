//! The manifests in docs/examples, checked without their platforms: mistakes that a cluster would refuse, and the
//! variables that the replicas would get.

use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;
use std::time::Duration;

use crate::support::Trainit;
use crate::support::documents::{files, objects, root, text, variables, words, yaml};
use serde_json::{Map, Value, json};
use trainit::rules::text::duration;

/// The default of --stop-grace.
const STOP_GRACE: Duration = Duration::from_secs(25);
/// Time for the last commit and the exit.
const COMMIT: Duration = Duration::from_secs(5);

/// The cluster that a container with these variables sees, and more that its platform adds.
fn inspected(place: &str, variables: &[(String, String)], more: &[(&str, &str)]) -> Value {
    let mut command = Trainit::new(["inspect", "--json"]);
    for (name, value) in variables {
        command = command.env(name, value);
    }
    for (name, value) in more {
        command = command.env(name, value);
    }
    let done = command.output();
    let mut seen: Value = serde_json::from_str(&done.out()).unwrap_or_else(|e| panic!("{place}: {e}: {}", done.err()));
    // This machine lacks the GPUs that the job demands; that error comes in addition to the others.
    let warnings = seen["warnings"].as_array().into_iter().flatten();
    let code = if warnings.into_iter().any(|warning| warning["code"] == "gpu_demand") { 125 } else { 0 };
    assert_eq!(done.code(), code, "{place}: {}{}", done.out(), done.err());
    seen["cluster"].take()
}

fn stop_grace(variables: &[(String, String)]) -> Duration {
    let given = variables.iter().find(|(name, _)| name == "TRAINIT_STOP_GRACE");
    given.map_or(STOP_GRACE, |(_, text)| duration::parse(text).unwrap())
}

/// The Kustomize component: its files are parts of manifests.
const COMPONENT: &str = "docs/examples/kustomize/";

#[test]
fn the_component_puts_trainit_before_the_command_and_mounts_what_its_init_container_copies() {
    let mut command = vec![json!("python"), json!("train.py")];
    for patch in yaml(&format!("{COMPONENT}command.yaml"))[0].as_array().unwrap() {
        assert_eq!(
            (&patch["op"], &patch["path"]),
            (&json!("add"), &json!("/spec/template/spec/containers/0/command/0"))
        );
        command.insert(0, patch["value"].clone());
    }
    assert_eq!(command, ["/trainit/trainit", "run", "--", "python", "train.py"]);
    let job = yaml(&format!("{COMPONENT}job.yaml")).remove(0);
    let spec = &job["spec"]["template"]["spec"];
    assert_eq!(spec["initContainers"][0]["command"][2], command[0]);
    let volumes = named(spec.get("volumes"));
    for container in [&spec["initContainers"][0], &spec["containers"][0]] {
        assert!(named(container.get("volumeMounts")).iter().all(|mount| volumes.contains(mount)), "{container}");
        assert_eq!(container["volumeMounts"][0]["mountPath"], "/trainit");
    }
    let files = yaml(&format!("{COMPONENT}kustomization.yaml")).remove(0);
    assert_eq!(files["kind"], "Component");
    assert_eq!(files["patches"].as_array().unwrap().len(), 2);
}

/// A pod's spec and its containers.
type Pod = (Map<String, Value>, Vec<Map<String, Value>>);

/// The pods of a manifest.
fn pods(manifest: &Value) -> Vec<Pod> {
    let mut found = Vec::new();
    objects(manifest, &mut |object| {
        if let Some(containers) = object.get("containers").and_then(Value::as_array) {
            found.push((object.clone(), containers.iter().map(|c| c.as_object().unwrap().clone()).collect()));
        }
    });
    found
}

fn named(list: Option<&Value>) -> Vec<&str> {
    list.and_then(Value::as_array).into_iter().flatten().filter_map(|item| item["name"].as_str()).collect()
}

/// The manifests for Kubernetes: file and document.
fn kubernetes() -> Vec<(String, Value)> {
    let all = files("docs/examples", ".yaml")
        .into_iter()
        .filter(|file| !file.starts_with(COMPONENT))
        .flat_map(|file| yaml(&file).into_iter().map(move |d| (file.clone(), d)));
    let found: Vec<_> = all.filter(|(_, document)| document.get("apiVersion").is_some()).collect();
    assert!(found.len() >= 7, "{}", found.len());
    found
}

#[test]
fn a_pods_grace_covers_the_stop_and_its_volumes_are_mounted() {
    let mut seen = 0;
    for (file, manifest) in kubernetes() {
        for (spec, containers) in pods(&manifest) {
            seen += 1;
            let seconds = spec.get("terminationGracePeriodSeconds").and_then(Value::as_u64);
            let seconds =
                Duration::from_secs(seconds.unwrap_or_else(|| panic!("{file}: no terminationGracePeriodSeconds")));
            let volumes = named(spec.get("volumes"));
            for container in containers {
                assert!(
                    words(container.get("command")).starts_with(&["trainit".to_owned(), "run".to_owned()]),
                    "{file}"
                );
                let grace = stop_grace(&variables(&container));
                assert!(
                    seconds >= grace + COMMIT,
                    "{file}: killed after {seconds:?}, before the grace of {grace:?} is over"
                );
                for mount in named(container.get("volumeMounts")) {
                    assert!(volumes.contains(&mount), "{file}: there is no volume {mount}");
                }
            }
        }
    }
    assert!(seen >= 8, "{seen}");
}

#[test]
fn a_kubernetes_job_is_what_the_api_accepts() {
    for (file, job) in kubernetes().into_iter().filter(|(_, m)| m["kind"] == "Job") {
        assert_eq!(job["apiVersion"], "batch/v1", "{file}");
        let spec = &job["spec"]["template"]["spec"];
        let policy = spec["restartPolicy"].as_str().unwrap();
        assert!(["Never", "OnFailure"].contains(&policy), "{file}: a Job's pods cannot have {policy}");
        let Some(rules) = job["spec"]["podFailurePolicy"]["rules"].as_array() else { continue };
        assert_eq!(policy, "Never", "{file}: podFailurePolicy wants it");
        for rule in rules {
            assert_ne!(
                rule.get("onExitCodes").is_some(),
                rule.get("onPodConditions").is_some(),
                "{file}: one of the two"
            );
            if let Some(codes) = rule.get("onExitCodes") {
                assert!(named(spec.get("containers")).contains(&codes["containerName"].as_str().unwrap()), "{file}");
                assert_eq!(codes["values"], json!([125, 126, 127]), "{file}: the codes that are for good");
            }
        }
    }
}

#[test]
fn the_pods_of_the_indexed_job_resolve_each_other() {
    let file = "docs/examples/indexed-job.yaml";
    let documents = yaml(file);
    let [service, job] = &documents[..] else { panic!("{file}: a Service and a Job") };
    let (name, spec) = (job["metadata"]["name"].as_str().unwrap(), &job["spec"]);
    assert_eq!(service["spec"]["clusterIP"], "None", "headless");
    assert_eq!(service["spec"]["selector"]["job-name"], name);
    assert_eq!(spec["template"]["spec"]["subdomain"], service["metadata"]["name"]);
    assert_eq!(spec["completionMode"], "Indexed");
    assert_eq!(spec["completions"], spec["parallelism"], "all at once, or the first wait for ever");
    let container = spec["template"]["spec"]["containers"][0].as_object().unwrap();
    let count = spec["completions"].as_u64().unwrap();
    for index in 0..count {
        let seen = inspected(file, &variables(container), &[("JOB_COMPLETION_INDEX", &index.to_string())]);
        assert_eq!(seen["platform"], "k8s_indexed");
        assert_eq!((&seen["node_rank"], &seen["num_nodes"]), (&json!(index), &json!(count)));
        let leader = format!("{name}-0.{}", service["metadata"]["name"].as_str().unwrap());
        assert_eq!(seen["leader"]["host"], leader, "pod 0 under the Service's name");
    }
}

#[test]
fn kubeflow_finds_the_container_it_looks_for() {
    let wanted = BTreeMap::from([("TFJob", "tensorflow"), ("PyTorchJob", "pytorch")]);
    let mut seen = 0;
    for (file, job) in kubernetes() {
        let kind = job["kind"].as_str().unwrap();
        let replicas = ["tfReplicaSpecs", "pytorchReplicaSpecs", "mpiReplicaSpecs"];
        for (role, replica) in replicas.iter().filter_map(|key| job["spec"][key].as_object()).flatten() {
            seen += 1;
            let policy = replica["restartPolicy"].as_str().unwrap();
            assert!(["ExitCode", "OnFailure", "Never"].contains(&policy), "{file}: {role}: {policy}");
            let containers = named(replica["template"]["spec"].get("containers"));
            assert!(wanted.get(kind).is_none_or(|name| containers.contains(name)), "{file}: {role}: {containers:?}");
        }
        if kind == "TrainJob" {
            seen += 1;
            // Its pods' grace is that of the runtime, by default 30 s.
            let trainer = job["spec"]["trainer"].as_object().unwrap();
            assert!(stop_grace(&variables(trainer)) + COMMIT <= Duration::from_secs(30), "{file}");
        }
    }
    assert_eq!(seen, 7);
}

#[test]
fn the_variables_of_every_manifest_are_read() {
    let mut seen = 0;
    let json_files =
        files("docs/examples", ".json").into_iter().map(|f| (f.clone(), serde_json::from_str(&text(&f)).unwrap()));
    let yaml_files =
        files("docs/examples", ".yaml").into_iter().flat_map(|f| yaml(&f).into_iter().map(move |d| (f.clone(), d)));
    for (file, document) in json_files.chain(yaml_files) {
        let document: Value = document;
        // A JobSet has the indexed Job inside.
        let is_indexed = document.to_string().contains(r#""completionMode":"Indexed""#);
        let index: &[(&str, &str)] = if is_indexed { &[("JOB_COMPLETION_INDEX", "0")] } else { &[] };
        objects(&document, &mut |object| {
            let variables = variables(object);
            // The part that both workers of the compose file share lacks the rank that each adds.
            let is_shared =
                file.ends_with("compose.yaml") && !variables.iter().any(|(name, _)| name == "TRAINIT_NODE_RANK");
            if !variables.is_empty() && !is_shared {
                seen += 1;
                inspected(&file, &variables, index);
            }
        });
    }
    assert!(seen >= 12, "{seen}");
}

/// The CLUSTER_SPEC of a replica on Vertex AI, from its job.
fn cluster_spec(pools: &[Value], pool: usize, index: u64) -> String {
    let hosts = |(number, pool): (usize, &Value)| {
        let hosts = (0..pool["replicaCount"].as_u64().unwrap())
            .map(|n| format!("cmle-training-workerpool{number}-ab-{n}:2222"));
        (format!("workerpool{number}"), hosts.collect::<Vec<_>>().into())
    };
    let cluster: Map<String, Value> = pools.iter().enumerate().map(hosts).collect();
    json!({"cluster": cluster, "environment": "cloud", "task": {"type": format!("workerpool{pool}"), "index": index}})
        .to_string()
}

#[test]
fn each_replica_of_the_vertex_job_has_its_rank() {
    let file = "docs/examples/vertex-custom-job.yaml";
    let job = yaml(file).remove(0);
    let pools = job["workerPoolSpecs"].as_array().unwrap();
    assert_eq!(pools[0]["replicaCount"], 1, "the primary pool has one replica");
    let mut rank = 0;
    for (number, pool) in pools.iter().enumerate() {
        let container = pool["containerSpec"].as_object().unwrap();
        assert!(container.get("command").is_none(), "{file}: a command replaces the image's entry point");
        let variables = variables(container);
        for index in 0..pool["replicaCount"].as_u64().unwrap() {
            let seen = inspected(file, &variables, &[("CLUSTER_SPEC", &cluster_spec(pools, number, index))]);
            assert_eq!((&seen["platform"], &seen["node_rank"]), (&json!("vertex"), &json!(rank)));
            rank += 1;
        }
    }
    assert_eq!(rank, 4);
}

#[test]
fn the_vertex_study_gets_its_metric() {
    let job = yaml("docs/examples/vertex-tuning-job.yaml").remove(0);
    let metric = job["studySpec"]["metrics"][0]["metricId"].as_str().unwrap();
    let container = job["trialJobSpec"]["workerPoolSpecs"][0]["containerSpec"].as_object().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("output.metrics");
    let mut run = Trainit::run(["echo", "epoch 3: loss: 0.4 val_acc: 0.91"]).env("CLOUD_ML_HP_METRIC_FILE", &file);
    for (name, value) in variables(container) {
        run = run.env(&name, value);
    }
    run.env("CLOUD_ML_TRIAL_ID", "7").output().expect_code(0);
    let line: Value = serde_json::from_str(&std::fs::read_to_string(&file).unwrap()).unwrap();
    assert_eq!((&line[metric], &line["global_step"], &line["trial"]), (&json!("0.91"), &json!("3"), &json!("7")));
}

#[test]
fn the_sagemaker_job_keeps_its_checkpoints_where_sagemaker_copies_them() {
    let file = "docs/examples/sagemaker-job.json";
    let job: Value = serde_json::from_str(&text(file)).unwrap();
    let variables = variables(job.as_object().unwrap());
    let dir = variables.iter().find(|(name, _)| name == "TRAINIT_CHECKPOINT_DIR").unwrap();
    assert_eq!(job["CheckpointConfig"]["LocalPath"], dir.1.as_str());
    assert!(stop_grace(&variables) + COMMIT <= Duration::from_secs(120), "SageMaker kills after 120 s");
    let seen = inspected(file, &variables, &[("SM_HOSTS", r#"["algo-1","algo-2"]"#), ("SM_CURRENT_HOST", "algo-2")]);
    assert_eq!((&seen["platform"], &seen["node_rank"]), (&json!("sagemaker"), &json!(1)));
}

#[test]
fn compose_accepts_the_file_and_waits_for_the_last_commit() {
    let file = "docs/examples/compose.yaml";
    let document = yaml(file).remove(0);
    let services = document["services"].as_object().unwrap();
    for (rank, (name, service)) in services.iter().enumerate() {
        let variables = variables(service.as_object().unwrap());
        let wait = duration::parse(service["stop_grace_period"].as_str().unwrap()).unwrap();
        assert!(wait >= stop_grace(&variables) + COMMIT, "{name}");
        let seen = inspected(file, &variables, &[]);
        assert_eq!((&seen["node_rank"], &seen["num_nodes"]), (&json!(rank), &json!(services.len())));
        assert!(services.contains_key(seen["leader"]["host"].as_str().unwrap()), "{name}: the leader is a service");
    }
    match Command::new("docker-compose").args(["-f", file, "config", "-q"]).current_dir(root()).output() {
        Ok(done) => assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr)),
        Err(_) => crate::support::skip(format!("docker-compose is not there to read {file}")),
    }
}

#[test]
fn the_batch_file_requeues_itself_only_after_a_stop_and_not_for_ever() {
    let file = root().join("docs/examples/train.sbatch");
    let announced =
        text("docs/examples/train.sbatch").lines().find_map(|l| Some(l.strip_prefix("#SBATCH --signal=")?.to_owned()));
    let read = Command::new("bash").arg("-n").arg(&file).output().unwrap();
    assert!(read.status.success() && read.stderr.is_empty(), "{read:?}");
    let stopped = "kill -USR1 $PPID; sleep 60";
    for (trainer, restarts, expected, requeued) in [
        ("exit 0", "0", 0, ""),
        (stopped, "0", 143, "requeue 4711\n"),
        (stopped, "50", 143, ""),
        ("exit 3", "0", 3, ""),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let stub = |name: &str, script: String| {
            let path = folder.path().join(name);
            std::fs::write(&path, format!("#!/bin/sh\n{script}\n")).unwrap();
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
        };
        // Without GPUs, without a shared folder, and without a second try.
        stub(
            "srun",
            "shift; unset TRAINIT_REQUIRE_GPUS TRAINIT_CHECKPOINT_DIR TRAINIT_CHECKPOINT_STORE; exec \"$@\"".to_owned(),
        );
        stub("torchrun", trainer.to_owned());
        stub("scontrol", format!("echo \"$@\" >>{}/requeued", folder.path().display()));
        std::os::unix::fs::symlink(crate::support::binary(), folder.path().join("trainit")).unwrap();
        let done = Command::new("bash")
            .arg(&file)
            .env_clear()
            .env("PATH", format!("{}:/usr/bin:/bin", folder.path().display()))
            .env("SLURM_JOB_ID", "4711")
            .env("SLURM_RESTART_COUNT", restarts)
            .output()
            .unwrap();
        let log = String::from_utf8_lossy(&done.stderr).into_owned();
        assert_eq!(done.status.code(), Some(expected), "{trainer}: {log}");
        assert_eq!(std::fs::read_to_string(folder.path().join("requeued")).unwrap_or_default(), requeued, "{log}");
        // With 1 the first stopped node would end the others before they have saved.
        assert!(text("docs/examples/train.sbatch").contains("\nsrun --kill-on-bad-exit=0 "));
        // The signal that Slurm sends is the one that trainit was configured for.
        let announced = announced.as_deref().unwrap();
        assert!(text("docs/examples/train.sbatch").contains(&format!("TRAINIT_PREEMPT_ON={announced}\n")));
    }
}
