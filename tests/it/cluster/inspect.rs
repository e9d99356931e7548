//! `trainit inspect`: its output, the origins of values, and its errors.

use serde_json::{Value, json};

use crate::support::{Finished, Trainit};

const TWO_WORKERS: &str = r#"{"cluster":{"worker":["a:2222","b:2222"]},"task":{"type":"worker","index":1}}"#;

#[track_caller]
fn object(done: &Finished) -> Value {
    serde_json::from_slice(&done.stdout).unwrap_or_else(|e| panic!("no JSON ({e}): {}{}", done.out(), done.err()))
}

#[test]
fn the_object_has_the_documented_keys_and_without_a_cluster_nothing_is_set() {
    let done = Trainit::new(["inspect", "--json"]).output().expect_code(0);
    let object = object(&done);
    let keys: Vec<&str> = object.as_object().unwrap().keys().map(String::as_str).collect();
    let expected =
        ["checkpoints", "child_env", "cluster", "gang", "gpus", "limits", "model", "preemption", "removed_env"];
    assert_eq!(keys, [&expected[..], &["settings", "warnings"]].concat());
    let cluster: Vec<&str> = object["cluster"].as_object().unwrap().keys().map(String::as_str).collect();
    let expected = ["hosts", "is_chief", "leader", "node_rank", "num_nodes", "platform", "role", "trial"];
    assert_eq!(cluster, expected);
    assert_eq!((&object["child_env"], &object["removed_env"]), (&json!({}), &json!([])));
}

#[test]
fn every_setting_is_shown_with_its_origin() {
    let dir = tempfile::tempdir().unwrap();
    let config = dir.path().join("config.toml");
    std::fs::write(&config, "\nmax-restarts = 7\n").unwrap();
    let done = Trainit::new(["inspect", "--json", "--stop-grace", "9s", "--config", config.to_str().unwrap()])
        .env("TRAINIT_SIGNAL_TARGET", "group")
        .output()
        .expect_code(0);
    let settings = object(&done)["settings"].clone();
    assert_eq!(settings["stop-grace"], json!({"value": "9s", "source": "flag"}));
    assert_eq!(settings["signal-target"], json!({"value": "group", "source": "variable TRAINIT_SIGNAL_TARGET"}));
    assert_eq!(settings["max-restarts"], json!({"value": "7", "source": format!("{}:2", config.display())}));
    assert_eq!(settings["log-level"], json!({"value": "info", "source": "default"}));
}

#[test]
fn a_default_that_follows_from_another_setting_is_shown_too() {
    let options = ["inspect", "--json", "--checkpoint-dir", "/tmp/x"];
    let settings = object(&Trainit::new(options).output().expect_code(0))["settings"].clone();
    assert_eq!(settings["max-restarts"], json!({"value": "3", "source": "default"}));
}

#[test]
fn the_limits_are_those_of_this_process() {
    let done = Trainit::through(&["sh", "-c", "ulimit -Sn 77; exec \"$@\"", "sh"], ["inspect", "--json"]).output();
    let limits = object(&done)["limits"].clone();
    assert_eq!(limits["open_files"], 77);
    let total = std::fs::read_to_string("/proc/meminfo").unwrap();
    let kib: u64 = total.lines().next().unwrap().split_whitespace().nth(1).unwrap().parse().unwrap();
    assert_eq!(limits["memory_bytes"], kib * 1024);
    assert!(limits["cpus"].as_u64().unwrap() >= 1);
}

#[test]
fn the_text_form_has_the_same_content_in_one_block() {
    let done = Trainit::new(["inspect"]).env("TF_CONFIG", TWO_WORKERS).env("MASTER_PORT", "1234").output();
    let text = done.expect_code(0).out();
    for line in ["platform      tf_config", "node rank     1 of 2", "leader        a:1234", "hosts         a, b"] {
        assert!(text.lines().any(|l| l == line), "{line:?} is not in:\n{text}");
    }
    assert!(text.contains("WORLD_SIZE") && text.contains("stop-grace"), "{text}");
}

#[test]
fn a_bad_setting_is_an_error_object_and_125() {
    let done = Trainit::new(["inspect", "--json", "--stop-grace", "x"]).env("TRAINIT_NPROC", "0").output();
    let error = object(&done.expect_code(125))["error"].clone();
    assert_eq!((&error["code"], &error["variable"]), (&json!("bad_setting"), &json!("--stop-grace")));
    assert!(error["message"].as_str().unwrap().contains("TRAINIT_NPROC"), "{error}");
}

#[test]
fn wrong_explicit_values_have_the_contracts_codes() {
    for (name, value, code) in [
        ("TRAINIT_NNODES", "many", "bad_cluster"),
        ("TRAINIT_NODE_RANK", "-1", "bad_task_index"),
        ("TRAINIT_NODE_RANK", "2", "task_index_out_of_range"),
        ("TRAINIT_LEADER", "tcp://a:1", "bad_address"),
        ("TRAINIT_PLATFORM", "vertex", "missing_cluster"),
    ] {
        let done = Trainit::new(["inspect", "--json"]).env("TF_CONFIG", TWO_WORKERS).env(name, value).output();
        let error = object(&done.expect_code(125))["error"].clone();
        assert_eq!(error["code"], code, "{name}={value}: {error}");
    }
}

#[test]
fn a_requested_platform_that_is_missing_names_all_that_it_needs() {
    for (platform, given, needed) in [
        ("k8s_indexed", "JOB_COMPLETION_INDEX", "--nnodes"),
        ("slurm", "SLURM_JOB_ID", "SLURM_PROCID"),
        ("torch_env", "RANK", "WORLD_SIZE"),
    ] {
        let done = Trainit::new(["inspect", "--platform", platform]).env(given, "1").output();
        let errors = done.expect_code(125).err();
        assert!(errors.contains(needed) && errors.contains("omit --platform"), "{platform}: {errors}");
    }
}

#[test]
fn explicit_values_override_a_source_and_suffice_for_a_cluster() {
    let done = Trainit::new(["inspect", "--json", "--leader", "x:1"]).env("TF_CONFIG", TWO_WORKERS).output();
    assert_eq!(object(&done)["cluster"]["leader"], json!({"host": "x", "port": 1}));
    let done = Trainit::new(["inspect", "--json", "--nnodes", "2", "--node-rank", "0", "--leader", "x:1"]).output();
    let object = object(&done);
    assert_eq!((&object["cluster"]["platform"], &object["child_env"]["WORLD_SIZE"]), (&json!("none"), &json!("2")));
}

#[test]
fn an_unknown_trainit_variable_is_a_warning_with_the_nearest_name() {
    let done = Trainit::new(["inspect", "--json"]).env("TRAINIT_STOP_GRACEE", "1s").output().expect_code(0);
    let warnings = object(&done)["warnings"].clone();
    assert_eq!(warnings[0]["code"], "unknown_variable");
    assert!(warnings[0]["message"].as_str().unwrap().contains("TRAINIT_STOP_GRACE?"), "{warnings}");
}

#[test]
fn each_process_of_a_node_is_listed_with_what_differs() {
    let done = Trainit::new(["inspect", "--json", "--nproc", "2"]).output().expect_code(0);
    let object = object(&done);
    let env = &object["child_env"];
    assert_eq!((&env["MASTER_ADDR"], &env["MASTER_PORT"]), (&json!("127.0.0.1"), &json!("29500")));
    assert_eq!((&env["RANK"], &env["WORLD_SIZE"]), (&json!("0"), &json!("2")));
    let second = &object["processes"][1];
    assert_eq!(
        second["child_env"],
        json!({"RANK": "1", "LOCAL_RANK": "1", "JAX_PROCESS_ID": "1", "JAX_LOCAL_DEVICE_IDS": "1", "DMLC_TASK_ID": "1"})
    );
    assert_eq!((&object["processes"][0]["is_chief"], &second["is_chief"]), (&json!(true), &json!(false)));
}

#[test]
fn variables_of_several_processes_have_headings_and_one_process_has_none() {
    let headings = |nproc| {
        let text = Trainit::new(["inspect", "--nproc", nproc]).output().expect_code(0).out();
        let headings = text.lines().filter(|line| line.starts_with("process "));
        (headings.map(str::to_owned).collect::<Vec<_>>(), text.matches("  RANK ").count())
    };
    assert_eq!(headings("2"), (vec!["process 0".to_owned(), "process 1".to_owned()], 3));
    assert_eq!(headings("1"), (vec![], 1));
}

#[test]
fn no_error_contains_a_secret_in_job() {
    for broken in [
        r#"{"cluster":{"worker":["a:0"]},"job":{"password":"hunter2"},"task":{"type":"worker","index":0}}"#,
        r#"{"job":{"password":"hunter2"},"cluster":{"worker":["a:1"]},"task":{"type":"worker","index":0}"#,
        r#"{"job":{"password" "hunter2"},"cluster":{"worker":["a:1"]}}"#,
        r#"{"job":{"password":"hunter2"}, cluster}"#,
    ] {
        for variable in ["TF_CONFIG", "CLUSTER_SPEC"] {
            for sub in [vec!["inspect", "--json"], vec!["inspect"], vec!["env"], vec!["run", "--", "true"]] {
                let done = Trainit::new(sub).env(variable, broken).output().expect_code(125);
                let said = done.out() + &done.err();
                assert!(said.contains(variable) && !said.contains("hunter2"), "{said}");
            }
        }
    }
}

#[test]
fn inspect_refuses_the_same_settings_as_run_with_the_same_text() {
    let elastic = ["--nnodes", "3", "--node-rank", "1", "--leader", "a:1"];
    let mut all_peers = vec!["--wait-for-peers", "all:5s"];
    all_peers.extend(elastic);
    let dir = tempfile::tempdir().unwrap();
    let (inside, store) = (dir.path().join("c"), format!("file://{}", dir.path().display()));
    let cases: [&[&str]; 11] = [
        &["--wait-for-peers", "soon"],
        &["--wait-for-peers", "some:5s"],
        &all_peers,
        &["--metric", "loss"],
        &["--metric-filter", "x"],
        &["--report", "loss", "--metric", "acc=([0-9]+)"],
        &["--tensorboard-dir", "gs://b/logs"],
        &["--tensorboard-tag", "loss"],
        &["--keep", "few"],
        &["--checkpoint-dir", inside.to_str().unwrap(), "--checkpoint-store", &store],
        &["--stop-grace", "x", "--keep", "-1", "--wait-for-peers", "soon"],
    ];
    for case in cases {
        let refused = Trainit::new([&["run"], case, &["--", "true"]].concat()).output().expect_code(125);
        let inspected = Trainit::new([&["inspect", "--json"], case].concat()).output().expect_code(125);
        let errors = object(&inspected)["errors"].clone();
        for error in errors.as_array().unwrap() {
            let line = format!("{}: {}", error["variable"].as_str().unwrap(), error["message"].as_str().unwrap());
            let quoted = serde_json::to_string(&line).unwrap();
            assert!(refused.err().contains(quoted.trim_matches('"')), "{line}\n{}", refused.err());
        }
        // One mistake is the verdict's own line, several have a line each before it.
        let lines = refused.err().lines().count();
        assert_eq!(errors.as_array().unwrap().len(), lines.saturating_sub(1).max(1), "{}", refused.err());
    }
}

#[test]
fn an_unmet_demand_is_reported_with_all_other_mistakes_and_is_125() {
    let done = Trainit::new(["inspect", "--json", "--require-gpus", "4096"]).output().expect_code(125);
    let object = object(&done);
    let warnings = object["warnings"].as_array().unwrap();
    assert!(warnings.iter().any(|warning| warning["code"] == "gpu_demand"), "{warnings:?}");
    assert_eq!(object["cluster"]["platform"], "none");
    let text = Trainit::new(["inspect", "--require-gpus", "4096"]).output().expect_code(125).out();
    assert!(text.contains("warning: --require-gpus: 4096 needed"), "{text}");
}

mod checkpoints {
    use super::*;
    use crate::support::checkpoints::Place;

    #[test]
    fn list_shows_the_local_checkpoints_and_the_commit_that_a_start_would_restore() {
        let place = Place::new();
        place.save(10);
        place.save(20);
        place.save(30);
        std::fs::write(place.local().join("step-30/weights.safetensors"), "cut off").unwrap();
        let inspect = |rest: &[&str]| {
            let done = Trainit::new([&["inspect", "--json"], rest].concat());
            let done = done.env("TRAINIT_CHECKPOINT_DIR", place.local()).output().expect_code(0);
            object(&done)["checkpoints"].clone()
        };
        let seen = inspect(&[]);
        let dir = json!({"value": place.local(), "source": "variable TRAINIT_CHECKPOINT_DIR"});
        assert_eq!((&seen["directory"], &seen["store"]), (&dir, &Value::Null));
        assert_eq!(
            (&seen["newest_complete"]["framework"], &seen["newest_complete"]["step"]),
            (&json!("numbered"), &json!(20))
        );
        assert_eq!((&seen["restore"], &seen["problem"]), (&json!("from step-20"), &Value::Null));
        assert_eq!(inspect(&["--restore-step", "20"])["restore"], "from step-20");
        // No server is asked: the bucket does not exist and cannot be reached.
        let seen =
            inspect(&["--checkpoint-store", "gs://no-such-bucket/job", "--nnodes=2", "--node-rank=1", "--leader=a:1"]);
        assert_eq!(seen["store"], json!({"value": "gs://no-such-bucket/job/node-00001", "source": "flag"}));
        assert!(seen["restore"].as_str().unwrap().contains("the store was not read"), "{seen}");
    }

    #[test]
    fn without_a_directory_there_are_no_checkpoints_and_the_model_is_shown_separately() {
        let done = Trainit::new(["inspect", "--json", "--model-dir", "/m"]).env("AIP_MODEL_DIR", "gs://b/model/");
        let object = object(&done.output().expect_code(0));
        assert_eq!(object["checkpoints"], Value::Null);
        let store = json!({"value": "gs://b/model/", "source": "platform AIP_MODEL_DIR"});
        assert_eq!(object["model"], json!({"directory": {"value": "/m", "source": "flag"}, "store": store}));
        let text = Trainit::new(["inspect"]).output().expect_code(0).out();
        assert!(text.contains("\ncheckpoints\n  none\n") && text.contains("\nmodel\n  none\n"), "{text}");
    }

    #[test]
    fn the_text_form_names_the_newest_on_one_line_and_an_invalid_directory_is_125() {
        let place = Place::new();
        place.save(7);
        let text = Trainit::new(["inspect", "--checkpoint-dir"]).args([place.local()]).output().expect_code(0).out();
        assert!(text.contains("newest_complete  step-7 (step 7, 3 files, "), "{text}");
        let file = place.local().join("step-7/a-file");
        std::fs::write(&file, "x").unwrap();
        let text = Trainit::new(["inspect", "--checkpoint-dir"]).args([&file]).output().expect_code(125).out();
        assert!(text.contains("problem          cannot read the checkpoint directory"), "{text}");
        // Inspecting creates nothing.
        let absent = place.path("absent");
        Trainit::new(["inspect", "--checkpoint-dir"]).args([&absent]).output().expect_code(0);
        assert!(!absent.exists());
    }
}
