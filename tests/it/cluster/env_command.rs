//! `trainit env`: the derived variables in forms for scripts.

use std::process::Command;

use serde_json::{Value, json};

use crate::support::{Trainit, binary};

const MASTER: &str = r#"{"cluster":{"master":["m:1"],"worker":["w:1"]},"job":"it's $HOME `id` \\ \"quoted\"\nand more","task":{"type":"worker","index":0}}"#;

/// The variables of a real shell after `eval` of the output of `trainit env`, as NUL-separated values.
fn after_eval(shell: &str, env: &[(&str, &str)], show: &str) -> Vec<String> {
    let script = format!("eval \"$('{}' env)\" || exit 9\n{show}", binary().display());
    let mut command = Command::new(shell);
    command.args(["-c", &script]).env_clear().env("PATH", "/usr/bin:/bin").envs(env.iter().copied());
    let done = command.output().unwrap();
    assert!(done.status.success(), "{shell}: {}", String::from_utf8_lossy(&done.stderr));
    String::from_utf8(done.stdout).unwrap().split('\0').map(str::to_owned).collect()
}

#[test]
fn quotes_dollars_and_newlines_survive_eval_in_every_shell() {
    // A raw newline is not allowed in a JSON string, but is allowed between members.
    let given = MASTER.replace(",\"job\"", ",\n\"job\"");
    let expected = Trainit::new(["env", "--format", "json"]).env("TF_CONFIG", &given).output().expect_code(0);
    let expected: Value = serde_json::from_slice(&expected.stdout).unwrap();
    let renamed: Value = serde_json::from_str(expected["TF_CONFIG"].as_str().unwrap()).unwrap();
    assert_eq!(renamed["job"], "it's $HOME `id` \\ \"quoted\"\nand more");
    for shell in ["sh", "bash", "dash"] {
        let shown =
            after_eval(shell, &[("TF_CONFIG", &given), ("HOME", "/x")], "printf '%s\\0%s' \"$TF_CONFIG\" \"$RANK\"");
        assert_eq!(shown[0], expected["TF_CONFIG"].as_str().unwrap(), "{shell}");
        assert_eq!(shown[1], "1", "{shell}");
    }
}

#[test]
fn a_removed_variable_is_unset_by_eval() {
    let shown = after_eval(
        "sh",
        &[("TF_CONFIG", ""), ("PET_STANDALONE", " ")],
        "printf %s \"${TF_CONFIG-gone} ${PET_STANDALONE-gone}\"",
    );
    assert_eq!(shown, ["gone gone"]);
}

#[test]
fn only_the_framework_that_is_named_is_printed() {
    let cluster =
        r#"{"cluster":{"workerpool0":["a:1"],"workerpool1":["b:1"]},"task":{"type":"workerpool1","index":0}}"#;
    let done = Trainit::new(["env", "--framework", "jax", "--format", "json"]).env("CLUSTER_SPEC", cluster).output();
    let object: Value = serde_json::from_slice(&done.expect_code(0).stdout).unwrap();
    let expected = json!({"JAX_COORDINATOR_ADDRESS": "a:3333", "JAX_NUM_PROCESSES": "2", "JAX_PROCESS_ID": "1"});
    assert_eq!(object, expected);
}

#[test]
fn an_unknown_framework_is_125_with_the_known_ones() {
    let done = Trainit::new(["env", "--framework", "pytorch"]).output().expect_code(125);
    assert!(done.err().contains("torch") && done.out().is_empty(), "{}", done.err());
}

#[test]
fn dotenv_lines_are_one_line_each_and_read_back_by_a_shell() {
    let given = MASTER.replace(",\"job\"", ",\n\"job\"");
    let done = Trainit::new(["env", "--format", "dotenv"]).env("TF_CONFIG", &given).env("CLUSTER_SPEC", "").output();
    let text = done.expect_code(0).out();
    assert!(text.lines().all(|l| l.starts_with('#') || l.contains('=')), "{text}");
    assert!(text.contains("# unset CLUSTER_SPEC") && text.contains("\nRANK=1\n"), "{text}");
}

#[test]
fn values_quoted_for_dotenv_have_no_effect_in_a_shell_that_sources_them() {
    let run = |format| Trainit::new(["env", "--format", format]).env("TF_CONFIG", MASTER).output().expect_code(0).out();
    let expected: Value = serde_json::from_str(&run("json")).unwrap();
    let shell =
        Command::new("sh").args(["-c", "eval \"$1\" && printf %s \"$TF_CONFIG\"", "sh", &run("dotenv")]).output();
    assert_eq!(String::from_utf8(shell.unwrap().stdout).unwrap(), expected["TF_CONFIG"].as_str().unwrap());
}

#[test]
fn more_processes_than_ranks_can_count_are_an_error() {
    let nodes = ["env", "--nnodes", "4000000000", "--node-rank", "3999999999", "--leader", "a:1"];
    let done = Trainit::new(nodes).args(["--nproc", "4096"]).output().expect_code(125);
    assert!(done.err().contains("code=bad_cluster") && done.out().is_empty(), "{}", done.err());
}

#[test]
fn a_malformed_variable_prints_nothing_to_evaluate() {
    let done = Trainit::new(["env"]).env("TF_CONFIG", "[").output().expect_code(125);
    assert!(done.out().is_empty());
    assert!(done.err().contains("TF_CONFIG") && done.err().contains("code=invalid_json"), "{}", done.err());
}

#[test]
fn bytes_that_are_not_text_are_not_rewritten() {
    use std::os::unix::ffi::OsStrExt;
    let mut given = MASTER.as_bytes().to_vec();
    let job = given.windows(5).position(|bytes| bytes == b"quote").unwrap();
    given[job] = 0xff;
    let given = std::ffi::OsStr::from_bytes(&given);
    let done = Trainit::new(["env", "--format", "json"]).env("TF_CONFIG", given).output().expect_code(0);
    let object: Value = serde_json::from_slice(&done.stdout).unwrap();
    assert_eq!((&object["TF_CONFIG"], &object["RANK"]), (&Value::Null, &json!("1")));
}

#[test]
fn warnings_go_to_standard_error() {
    let done = Trainit::new(["env"]).env("TF_CONFIG", MASTER).output().expect_code(0);
    assert!(done.err().contains("code=master_renamed") && !done.out().contains("warning"), "{}", done.err());
}

#[test]
fn an_explicit_value_wins_over_what_is_inherited_with_one_warning() {
    let presets = [("RANK", "0"), ("WORLD_SIZE", "2"), ("MASTER_ADDR", "a"), ("MASTER_PORT", "23456")];
    let with = |args: &[&str]| {
        let env = Trainit::new([&["env", "--framework", "torch", "--format", "json"], args].concat());
        let done = presets.iter().fold(env, |env, (name, value)| env.env(name, value)).output().expect_code(0);
        let object: serde_json::Value = serde_json::from_slice(&done.stdout).unwrap();
        (object, done.err())
    };
    let (object, said) = with(&["--nnodes", "4", "--node-rank", "3", "--leader", "b:1234"]);
    for (name, value) in [("RANK", "3"), ("WORLD_SIZE", "4"), ("MASTER_ADDR", "b"), ("MASTER_PORT", "1234")] {
        assert_eq!(object[name], value);
        assert!(said.contains(&format!("{name} was ")), "{name}: {said}");
    }
    assert_eq!((&object["PET_NODE_RANK"], &object["PET_NNODES"]), (&"3".into(), &"4".into()));
    assert!(said.lines().count() == 1 && said.contains("--node-rank") && said.contains("env_conflict"), "{said}");
    // A variable without an explicit setting keeps its value, and an equal value gets no warning.
    let (object, said) = with(&["--leader", "b:1234"]);
    assert_eq!((object.get("RANK"), &object["MASTER_ADDR"]), (None, &"b".into()));
    assert!(!said.contains("RANK") && said.contains("MASTER_ADDR was \"a\" where --leader makes it \"b\""), "{said}");
    assert_eq!(with(&["--nnodes", "2", "--node-rank", "0", "--leader", "a:23456"]).1, "");
}

#[test]
fn a_tf_config_that_explicit_values_contradict_is_left_with_a_warning() {
    let config = r#"{"cluster":{"worker":["a:2222","b:2222"]},"task":{"type":"worker","index":1}}"#;
    let warnings = |rank: &str| {
        let env = Trainit::new(["env", "--node-rank", rank]).env("TF_CONFIG", config);
        env.output().expect_code(0).err()
    };
    assert!(
        warnings("0").contains("TF_CONFIG is unchanged") && warnings("0").contains("--node-rank"),
        "{}",
        warnings("0")
    );
    assert_eq!(warnings("1"), "");
}

#[test]
fn variables_of_a_node_are_not_given_to_one_of_its_processes() {
    let slurm = [("JOB_ID", "7"), ("PROCID", "1"), ("NTASKS", "2"), ("NNODES", "2"), ("JOB_NODELIST", "n[0-1]")];
    let names = |nproc: &[&str]| {
        let env = Trainit::new([&["env", "--format", "json"], nproc].concat());
        let env = slurm.iter().fold(env, |env, (name, value)| env.env(&format!("SLURM_{name}"), value));
        env.env("PET_NPROC_PER_NODE", "8").output().expect_code(0).out()
    };
    for name in ["TF_CONFIG", "TRAINIT_LIGHTGBM_MACHINES", "PET_NNODES"] {
        assert!(names(&[]).contains(name) && !names(&["--nproc", "2"]).contains(name), "{name}");
    }
    assert!(names(&["--nproc", "2"]).contains("\"PET_NPROC_PER_NODE\": null"));
}
