//! The cluster, through the real program: every golden case, once as `inspect --json` (the model) and once as
//! `run -- env -0` (the child's real environment).

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use crate::support::{Finished, Trainit};

/// The contract's cases, and further cases in the same form (its section 8) for gaps in the former.
const CASES: &str =
    concat!(include_str!("../../golden/cluster-cases.jsonl"), include_str!("../../golden/cluster-more.jsonl"));

struct Case(Value);

fn cases() -> impl Iterator<Item = Case> {
    CASES.lines().filter(|l| !l.trim().is_empty()).map(|line| Case(serde_json::from_str(line).unwrap()))
}

impl Case {
    fn name(&self) -> &str {
        self.0["name"].as_str().unwrap()
    }

    fn flags(&self) -> Vec<&str> {
        self.0["flags"].as_array().into_iter().flatten().map(|f| f.as_str().unwrap()).collect()
    }

    /// The process-mode child that the case is about.
    fn child(&self) -> usize {
        self.flags().iter().find_map(|f| f.strip_prefix("child=")).map_or(0, |n| n.parse().unwrap())
    }

    fn env(&self) -> BTreeMap<String, String> {
        serde_json::from_value(self.0["env"].clone()).unwrap()
    }

    /// `trainit SUB FLAGS... REST...` with the case's environment and, in namespaces of its own, its host name and files.
    fn trainit(&self, sub: &str, rest: &[&str]) -> Finished {
        let flags: Vec<&str> = self.flags().into_iter().filter(|f| f.starts_with("--")).collect();
        let args: Vec<&str> = [sub].into_iter().chain(flags).chain(rest.iter().copied()).collect();
        let files: BTreeMap<String, String> =
            self.0.get("files").map_or_else(BTreeMap::new, |f| serde_json::from_value(f.clone()).unwrap());
        let mut script = format!("set -e; hostname '{}'; ", self.0["hostname"].as_str().unwrap());
        if !files.is_empty() {
            script += "mkdir -p /opt/ml; mount -t tmpfs none /opt/ml; ";
        }
        for (at, path) in files.keys().enumerate() {
            script += &format!("mkdir -p \"$(dirname '{path}')\"; printf %s \"$FILE_{at}\" > '{path}'; ");
        }
        for at in 0..files.len() {
            script += &format!("unset FILE_{at}; ");
        }
        script += "exec \"$@\"";
        let mut trainit = Trainit::through(&["unshare", "--uts", "--mount", "sh", "-c", &script, "sh"], args);
        for (at, content) in files.values().enumerate() {
            trainit = trainit.env(&format!("FILE_{at}"), content);
        }
        for (name, value) in self.env() {
            trainit = trainit.env(&name, value);
        }
        trainit.output()
    }
}

fn inspected(case: &Case) -> (i32, Value) {
    let done = case.trainit("inspect", &["--json"]);
    let object = serde_json::from_slice(&done.stdout)
        .unwrap_or_else(|e| panic!("{}: no JSON ({e})\n{}{}", case.name(), done.out(), done.err()));
    (done.code(), object)
}

fn leader_text(leader: &Value) -> Value {
    match leader["host"].as_str() {
        None => Value::Null,
        Some(host) if host.contains(':') => Value::from(format!("[{host}]:{}", leader["port"])),
        Some(host) => Value::from(format!("{host}:{}", leader["port"])),
    }
}

/// The differences between the case's expectation and an environment.
fn complaints_about(case: &Case, env: &BTreeMap<String, String>) -> Vec<String> {
    let expect = &case.0["expect"];
    let mut wrong = Vec::new();
    for (name, value) in expect["env"].as_object().unwrap() {
        if env.get(name).map(String::as_str) != value.as_str() {
            wrong.push(format!("{name}: {:?}, expected {value}", env.get(name)));
        }
    }
    for name in expect["env_unset"].as_array().unwrap() {
        if let Some(value) = env.get(name.as_str().unwrap()) {
            wrong.push(format!("{name} should be unset, is {value:?}"));
        }
    }
    match &expect["tf_config"] {
        Value::Null => {}
        Value::String(_) => {
            if env.get("TF_CONFIG") != case.env().get("TF_CONFIG") {
                wrong.push(format!("TF_CONFIG changed: {:?}", env.get("TF_CONFIG")));
            }
        }
        object => {
            let found = env.get("TF_CONFIG").map(|text| serde_json::from_str::<Value>(text).unwrap());
            if found.as_ref() != Some(object) {
                wrong.push(format!("TF_CONFIG: {found:?}, expected {object}"));
            }
        }
    }
    wrong
}

#[test]
fn the_model_of_every_golden_case_matches_the_contract() {
    let mut wrong = Vec::new();
    for case in cases() {
        let (code, object) = inspected(&case);
        let mut complain = |what: String| wrong.push(format!("{}: {what}", case.name()));
        if let Some(error) = case.0.get("error") {
            if code != 125 || object["error"]["code"] != *error {
                complain(format!("expected {error}, got {code}: {object}"));
            }
            for key in ["variable", "message"] {
                if object["error"][key].as_str().is_none_or(str::is_empty) {
                    complain(format!("the error has no {key}: {object}"));
                }
            }
            continue;
        }
        if code != 0 {
            complain(format!("left with {code}: {object}"));
            continue;
        }
        let expect = &case.0["expect"];
        for key in ["platform", "role", "is_chief", "node_rank", "num_nodes", "leader", "hosts", "trial"] {
            let found = if key == "leader" {
                leader_text(&object["cluster"]["leader"])
            } else {
                object["cluster"][key].clone()
            };
            let Some(expected) = expect.get(key) else { continue };
            if found != *expected {
                complain(format!("{key}: {found}, expected {expected}"));
            }
        }
        let codes = |list: &Value| -> BTreeSet<String> {
            list.as_array().unwrap().iter().map(|w| w.get("code").unwrap_or(w).as_str().unwrap().to_owned()).collect()
        };
        if codes(&object["warnings"]) != codes(&expect["warnings"]) {
            complain(format!("warnings: {}, expected {}", object["warnings"], expect["warnings"]));
        }
        let mut env = case.env();
        let child_env: BTreeMap<String, String> = serde_json::from_value(object["child_env"].clone()).unwrap();
        env.extend(child_env);
        if let Some(processes) = object["processes"].as_array() {
            let own: BTreeMap<String, String> =
                serde_json::from_value(processes[case.child()]["child_env"].clone()).unwrap();
            env.extend(own);
        }
        for name in object["removed_env"].as_array().unwrap() {
            env.remove(name.as_str().unwrap());
        }
        complaints_about(&case, &env).into_iter().for_each(complain);
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn the_child_of_every_golden_case_gets_what_inspect_shows() {
    let mut wrong = Vec::new();
    for case in cases().filter(|case| case.child() == 0 && !case.flags().iter().any(|f| f.starts_with("--nproc"))) {
        let done = case.trainit("run", &["--", "env", "-0"]);
        let mut complain = |what: String| wrong.push(format!("{}: {what}", case.name()));
        if let Some(error) = case.0.get("error") {
            let coded = done.err().contains(&format!("\"code\":{error}"));
            if done.code() != 125 || !coded || !done.out().is_empty() {
                complain(format!("expected {error} and 125, got {}: {}", done.code(), done.err()));
            }
            continue;
        }
        let env: BTreeMap<String, String> = done
            .out()
            .split('\0')
            .filter_map(|entry| entry.split_once('='))
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .collect();
        for warning in case.0["expect"]["warnings"].as_array().unwrap() {
            if !done.err().contains(&format!("\"code\":{warning}")) {
                complain(format!("the log has no {warning}: {}", done.err()));
            }
        }
        complaints_about(&case, &env).into_iter().for_each(complain);
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn a_variable_that_is_too_long_for_exec_is_omitted() {
    let run = |own: Option<&str>| {
        let run = Trainit::run(["sh", "-c", "echo rank $RANK of $WORLD_SIZE; printenv TF_CONFIG"])
            .env("SLURM_JOB_ID", "7")
            .env("SLURM_STEP_ID", "0")
            .env("SLURM_NTASKS", "9000")
            .env("SLURM_NNODES", "9000")
            .env("SLURM_PROCID", "1")
            .env("SLURM_NODEID", "1")
            .env("SLURM_JOB_NODELIST", "node[0001-9000]");
        own.into_iter().fold(run, |run, own| run.env("TF_CONFIG", own)).output()
    };
    let done = run(None);
    assert_eq!((done.code(), done.out().as_str()), (1, "rank 1 of 9000\n"), "{}", done.err());
    assert_eq!(done.err().matches("variable_too_long").count(), 1, "{}", done.err());
    assert!(done.err().contains("TF_CONFIG (") && done.err().contains("TRAINIT_LIGHTGBM_MACHINES ("), "{}", done.err());
    let own = "x".repeat(128 * 1024 - "TF_CONFIG=".len() - 1);
    let own = format!(r#"{{"a":"{}"}}"#, &own[8..]);
    let done = run(Some(&own));
    assert!(done.out().ends_with(&format!("{own}\n")), "{}", done.err());
}

#[test]
fn an_unreadable_file_of_sagemaker_starts_nothing() {
    const FILE: &str = "/opt/ml/input/config/resourceconfig.json";
    let written = format!("echo '{{\"hosts\":[\"a\",\"b\"],\"current_host\":\"b\"}}' >{FILE}; chmod 600 {FILE}");
    let of_a_user = "exec setpriv --reuid 65534 --clear-groups";
    let cases = [
        (format!("{written}; {of_a_user}"), "Permission denied"),
        (format!("mkdir {FILE}; exec"), "not a regular file"),
    ];
    for (script, why) in cases {
        let script =
            format!("mkdir -p /opt/ml && mount -t tmpfs none /opt/ml && mkdir -p \"${{0%/*}}\" && {script} \"$@\"");
        for platform in [&[][..], &["--platform", "sagemaker"]] {
            let run = Trainit::through(&["unshare", "-m", "sh", "-c", &script, FILE], ["run"]);
            let done = run.args(platform).args(["--", "echo", "started"]).output().expect_code(125);
            assert!(done.err().contains(FILE) && done.err().contains(why) && done.out().is_empty(), "{}", done.err());
        }
    }
}
