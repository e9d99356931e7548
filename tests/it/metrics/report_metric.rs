//! `report-metric`: the bytes of the tuner's library, and a file that loses nothing.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use serde_json::Value;
use tempfile::TempDir;

use crate::support::{Trainit, binary};

pub fn report<S: AsRef<std::ffi::OsStr>>(file: &Path, args: impl IntoIterator<Item = S>) -> Trainit {
    Trainit::new(["report-metric"]).args(args).env("CLOUD_ML_HP_METRIC_FILE", file)
}

pub fn folder() -> (TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("output.metrics");
    (dir, file)
}

pub fn lines(file: &Path) -> Vec<Value> {
    let text = fs::read_to_string(file).unwrap();
    assert!(text.ends_with('\n'), "unfinished: {text:?}");
    text.lines().map(|line| serde_json::from_str(line).unwrap_or_else(|e| panic!("{line:?}: {e}"))).collect()
}

pub fn is_root() -> bool {
    fs::metadata("/proc/self").unwrap().uid() == 0
}

/// Skips the test with a message if it cannot mount.
macro_rules! needs_root {
    () => {
        if !$crate::metrics::report_metric::is_root() {
            eprintln!("SKIPPED: mounting needs root");
            return;
        }
    };
}
pub(crate) use needs_root;

/// Cases where trainit differs from the library on purpose, with the resulting file.
const DIFFERENCES: &[(&str, Option<&str>)] = &[
    // In the library the tag replaces the step; trainit refuses the tag.
    ("tag 'global_step'", None),
];

#[test]
fn every_case_that_fits_a_command_line_writes_the_librarys_bytes() {
    let cases = include_str!("../../golden/hypertune-cases.jsonl");
    let cases = cases.lines().filter(|line| line.contains("\"cli\": true"));
    let cases: Vec<Value> = cases.map(|line| serde_json::from_str(line).unwrap()).collect();
    assert!(cases.len() > 100);
    std::thread::scope(|scope| {
        let (first, second) = cases.split_at(cases.len() * 5 / 6);
        for half in [first, second] {
            scope.spawn(move || half.iter().for_each(run_case));
        }
    });
}

fn run_case(case: &Value) {
    let name = case["name"].as_str().unwrap();
    let (_dir, file) = folder();
    let difference = DIFFERENCES.iter().find(|(n, _)| *n == name);
    let mut clock = "1700000000.5".to_owned();
    let mut variables: Vec<(String, String)> = Vec::new();
    for (index, call) in case["calls"].as_array().unwrap().iter().enumerate() {
        if call["op"] == "env" {
            let set = call["set"].as_object().unwrap().iter();
            variables.extend(set.map(|(k, v)| (k.clone(), v.as_str().unwrap().to_owned())));
            continue;
        }
        if let Some(t) = call["t"].as_str() {
            clock = t.to_owned();
        }
        let mut args =
            vec![call["tag"].as_str().unwrap_or_default().to_owned(), call["value"].as_str().unwrap().to_owned()];
        let mut option = |flag: &str, value: &Value| match value {
            Value::Null => {}
            Value::String(text) => args.extend([flag.to_owned(), text.clone()]),
            other => args.extend([flag.to_owned(), other.to_string()]),
        };
        option("--step", &call["step"]);
        option("--checkpoint-path", &call["checkpoint_path"]);
        let mut run = report(&file, args).env("TRAINIT_TEST_CLOCK", &clock);
        for (key, value) in &variables {
            run = run.env(key, value);
        }
        let fails = case["errors"].as_array().unwrap().iter().any(|e| e[0] == index) || difference.is_some();
        let done = run.output();
        assert_eq!(done.code(), if fails { 125 } else { 0 }, "{name}, call {index}: {}", done.err());
    }
    let expected = difference.map_or(case["expect"].as_str(), |(_, left)| *left);
    let found = fs::read_to_string(&file).ok();
    if cfg!(debug_assertions) {
        assert_eq!(found.as_deref(), expected, "{name}");
    } else {
        // A release build has no clock to freeze.
        let lines = |text: Option<&str>| text.map(|t| t.lines().map(without_timestamp).collect::<Vec<_>>());
        assert_eq!(lines(found.as_deref()), lines(expected), "{name}");
    }
}

fn without_timestamp(line: &str) -> String {
    let (before, after) = line.split_once("\"timestamp\": ").unwrap();
    format!("{before}{}", after.trim_start_matches(|c| !",}".contains(c)))
}

#[test]
fn the_timestamp_is_the_present() {
    let (_dir, file) = folder();
    let now = || std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs_f64();
    let before = now();
    report(&file, ["loss", "1"]).output().expect_code(0);
    let found = lines(&file)[0]["timestamp"].as_f64().unwrap();
    assert!((before - 1e-3..=now() + 1e-3).contains(&found), "{found}");
}

#[test]
fn flags_and_operands_are_equivalent() {
    let (_dir, file) = folder();
    for args in [
        &["loss", "0.5", "--step", "3"][..],
        &["--step=3", "--tag", "loss", "--value", "0.5"],
        &["--tag=loss", "0.5", "--step", "3"],
        &["loss", "--value", "0.5", "--step", "3"],
    ] {
        report(&file, args).env("TRAINIT_TEST_CLOCK", "1").output().expect_code(0);
    }
    let found = lines(&file);
    assert!(found.len() == 4 && found.iter().all(|l| l["loss"] == "0.5" && l["global_step"] == "3"), "{found:?}");
}

#[test]
fn a_value_that_begins_with_a_dash_is_a_value() {
    let (_dir, file) = folder();
    for (value, written) in [("-1e-5", "-1e-05"), ("-inf", "-inf"), ("-nan", "nan"), ("-.5", "-0.5"), ("-0", "-0.0")] {
        report(&file, ["loss", value]).output().expect_code(0);
        report(&file, ["--value", value]).output().expect_code(0);
        let found = lines(&file);
        let last = &found[found.len() - 2..];
        assert!(last[0]["loss"] == written && last[1]["training/hptuning/metric"] == written, "{value}: {last:?}");
    }
}

#[test]
fn a_mistake_is_125_names_itself_and_writes_nothing() {
    let (_dir, file) = folder();
    for (args, reason) in [
        (&["loss", "abc"][..], "\"abc\" is not a number"),
        (&["loss"], "\"loss\" alone is read as the value, and is not a number; expected TAG and VALUE"),
        (&["--tag", "loss", "abc"], "\"abc\" is not a number"),
        (&["loss", ""], "is not a number"),
        (&["loss", "1", "--step", "1.5"], "\"1.5\" is not a whole number"),
        (&["loss", "1", "--step", "1e3"], "is not a whole number"),
        (&["timestamp", "1"], "choose another tag"),
        (&["--tag", "trial", "--value", "1"], "choose another tag"),
        (&["checkpoint_path", "1"], "choose another tag"),
        (&[], "no value"),
        (&["--tag", "loss"], "no value"),
        (&["loss", "1", "--value", "2"], "given twice"),
        (&["loss", "1", "--tag", "acc"], "given twice"),
        (&["loss", "1", "2"], "unexpected argument '2' found; for a step give --step 2; nothing was written"),
        (&["loss", "1", "2.5"], "unexpected argument '2.5' found; see trainit report-metric --help"),
        (&["loss", "1", "--keep", "many"], "--keep"),
        (&["loss", "1", "--stdin"], "--stdin"),
        (&["--stdin", "--step", "3"], "--step"),
        (&["loss", "1", "--stepp", "3"], "--step"),
        (&["loss", "1", "--file", "/tmp/"], "is a directory"),
    ] {
        let done = report(&file, args).output().expect_code(125);
        assert!(done.err().contains(reason) && done.err().lines().count() == 1, "{args:?}: {}", done.err());
        assert!(done.out().is_empty() && !file.exists(), "{args:?}");
    }
}

#[test]
fn a_tag_or_trial_that_is_not_utf8_is_refused() {
    use std::os::unix::ffi::OsStrExt;
    let (_dir, file) = folder();
    let bytes = std::ffi::OsStr::from_bytes(b"a\xff");
    let done = report(&file, [bytes, "1".as_ref()]).output().expect_code(125);
    assert!(done.err().contains("not UTF-8"), "{}", done.err());
    let done = report(&file, ["--tag".as_ref(), bytes, "1".as_ref()]).output().expect_code(125);
    assert!(done.err().contains("not UTF-8"), "{}", done.err());
    let done = report(&file, ["a", "1"]).env("CLOUD_ML_TRIAL_ID", bytes).output().expect_code(125);
    assert!(done.err().contains("CLOUD_ML_TRIAL_ID"), "{}", done.err());
    for variable in ["CLOUD_ML_HP_METRIC_TAG", "TRAINIT_FILE"] {
        let done = report(&file, ["1"]).env(variable, bytes).output().expect_code(125);
        assert!(done.err().contains(&format!("{variable}: not UTF-8")), "{}", done.err());
    }
    report(&file, ["acc", "1"]).env("CLOUD_ML_HP_METRIC_TAG", bytes).output().expect_code(0);
    assert_eq!(lines(&file).len(), 1, "what is not used does no harm");
}

#[test]
fn a_path_need_not_be_utf8() {
    use std::os::unix::ffi::OsStrExt;
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join(std::ffi::OsStr::from_bytes(b"m\xff"));
    report(&file, ["a", "1"]).output().expect_code(0);
    assert_eq!(lines(&file).len(), 1);
}

#[test]
fn tag_and_file_are_taken_from_the_flag_then_from_the_variable_which_alone_gives_the_trial() {
    let (dir, file) = folder();
    let other = dir.path().join("other.metrics");
    let run = || report(&file, ["--value", "1"]).env("CLOUD_ML_HP_METRIC_TAG", "acc").env("CLOUD_ML_TRIAL_ID", "7");
    run().output().expect_code(0);
    run().args(["--tag", "f1", "--file"]).args([&other]).env("CLOUD_ML_TRIAL_ID", "").output().expect_code(0);
    run().env("TRAINIT_FILE", &other).output().expect_code(0);
    report(&file, ["1"]).env("CLOUD_ML_HP_METRIC_TAG", "").output().expect_code(0);
    let (first, second) = (lines(&file), lines(&other));
    assert!(first[0]["acc"] == "1.0" && first[0]["trial"] == "7", "{first:?}");
    assert!(first[1]["training/hptuning/metric"] == "1.0" && first[1]["trial"] == "0", "{first:?}");
    assert!(second[0]["f1"] == "1.0" && second[0]["trial"] == "", "{second:?}");
    assert!(second[1]["acc"] == "1.0" && second[1]["trial"] == "7", "{second:?}");
}

#[test]
fn a_flag_beats_a_variable() {
    let (_dir, file) = folder();
    let run = |args: &[&str]| {
        let run = report(&file, args).env("TRAINIT_TAG", "other").env("TRAINIT_VALUE", "9").env("TRAINIT_STEP", "5");
        run.output().expect_code(0);
    };
    run(&["loss", "1"]);
    run(&["2"]);
    run(&["--tag", "acc", "3"]);
    run(&["f1", "--value", "4", "--step", "6"]);
    run(&[]);
    report(&file, ["loss", "7"]).env("TRAINIT_STDIN", "true").output().expect_code(0);
    let input = file.with_extension("in");
    std::fs::write(&input, "loss 8 1\n").unwrap();
    let piped = report(&file, ["--stdin"]).env("TRAINIT_STEP", "5").env("TRAINIT_VALUE", "9");
    piped.stdin(std::fs::File::open(input).unwrap()).output().expect_code(0);
    let expected = [
        ("loss", "1.0"),
        ("other", "2.0"),
        ("acc", "3.0"),
        ("f1", "4.0"),
        ("other", "9.0"),
        ("loss", "7.0"),
        ("loss", "8.0"),
    ];
    let found = lines(&file);
    assert_eq!(found.len(), expected.len());
    for (line, (tag, value)) in found.iter().zip(expected) {
        assert_eq!(line[tag], value, "{line}");
    }
    let steps: Vec<&str> = found.iter().filter_map(|line| line["global_step"].as_str()).collect();
    assert_eq!(steps, ["5", "5", "5", "6", "5", "0", "1"]);
}

#[test]
fn below_a_run_the_trial_is_the_same_as_that_of_the_run_and_of_the_tuners_library() {
    let cluster =
        r#"{"cluster": {"workerpool0": ["a:2222"]}, "task": {"type": "workerpool0", "index": 0, "trial": "3"}}"#;
    for (given, written) in [(Some("9"), "9"), (Some(""), ""), (None, "0")] {
        let (_dir, file) = folder();
        let script = r#"echo "trial $TRAINIT_TRIAL"; "$1" report-metric a 1; echo m: 5"#;
        let run = Trainit::new(["run", "--metric", r"m=m: (\d)", "--", "sh", "-c", script, "sh"]).args([binary()]);
        let run = run.env("CLUSTER_SPEC", cluster).env("CLOUD_ML_HP_METRIC_FILE", &file);
        let run = given.into_iter().fold(run, |run, trial| run.env("CLOUD_ML_TRIAL_ID", trial));
        let done = run.output().expect_code(0);
        assert!(done.out().contains("trial 3"), "{}", done.out());
        let trials: Vec<Value> = lines(&file).iter().map(|line| line["trial"].clone()).collect();
        assert_eq!(trials, [written, written], "{given:?}");
    }
}

#[test]
fn an_empty_file_variable_counts_as_unset_and_causes_a_warning() {
    let (_dir, file) = folder();
    let done = report(Path::new(""), ["a", "1", "--file"]).args([&file]).output().expect_code(0);
    assert!(done.err().contains("CLOUD_ML_HP_METRIC_FILE is set but empty"), "{}", done.err());
    let done = report(&file, ["a", "2", "--file", ""]).output().expect_code(0);
    assert!(done.err().contains("--file is set but empty"), "{}", done.err());
    assert_eq!(lines(&file).len(), 2);
}

#[test]
fn a_url_in_the_file_variable_is_used_as_a_path_like_in_the_library_with_a_warning() {
    let (dir, file) = folder();
    let url = Path::new("gs://bucket/output.metrics");
    let done = report(url, ["a", "1"]).dir(dir.path()).output().expect_code(0);
    assert_eq!(lines(&dir.path().join(url)).len(), 1);
    let said = done.err();
    assert!(said.contains("is the URL gs://bucket/output.metrics") && said.contains("no tuner reads it"), "{said}");
    let script = ["run", "--metric", r"a=a (\d)", "--", "echo", "a 1"];
    let run = Trainit::new(script).env("CLOUD_ML_HP_METRIC_FILE", url).dir(dir.path()).output().expect_code(0);
    assert_eq!(run.err().matches("no tuner reads it").count(), 1, "{}", run.err());
    let named = report(url, ["a", "1", "--file"]).args([&file]).output().expect_code(0);
    assert_eq!(named.err(), "", "a named file is used");
}

#[test]
fn a_tilde_path_or_a_url_as_the_file_is_refused_and_nothing_is_created() {
    let (dir, file) = folder();
    for name in ["gs://b/metrics", "~/metrics", "$HOME/metrics", " "] {
        let done = report(&file, ["a", "1", "--file", name]).dir(dir.path()).output().expect_code(125);
        assert!(done.err().contains("--file: ") && done.err().lines().count() == 1, "{name:?}: {}", done.err());
    }
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
}

#[test]
fn without_settings_the_metrics_file_is_the_librarys() {
    needs_root!();
    // The program may itself be under /tmp, so it is opened first.
    let script =
        "exec 9<\"$1\"; shift; mount -t tmpfs none /tmp && /proc/self/fd/9 \"$@\" && cat /tmp/hypertune/output.metrics";
    let shell = ["unshare", "-m", "sh", "-c", script, "sh"];
    let done = Trainit::through(&shell, ["report-metric", "a", "1"]).output().expect_code(0);
    assert!(done.out().starts_with("{\"a\": \"1.0\""), "{}", done.out());
}

#[test]
fn a_relative_path_without_a_folder_is_in_the_working_directory() {
    let (dir, file) = folder();
    report(Path::new("output.metrics"), ["a", "1"]).dir(dir.path()).output().expect_code(0);
    assert_eq!(lines(&file).len(), 1);
}

#[test]
fn values_that_a_tuner_would_refuse_are_written_with_a_warning() {
    let (_dir, file) = folder();
    let done = report(&file, ["a b", "1", "--step", "-5"]).output().expect_code(0);
    assert!(done.err().contains("white space") && done.err().contains("-5 is negative"), "{}", done.err());
    assert_eq!(lines(&file)[0]["global_step"], "-5");
}

#[test]
fn keep_0_never_trims() {
    let (_dir, file) = folder();
    let many = "a 1\n".repeat(150);
    fs::write(file.with_extension("in"), &many).unwrap();
    let input = || fs::File::open(file.with_extension("in")).unwrap();
    report(&file, ["--stdin", "--keep", "0"]).stdin(input()).output().expect_code(0);
    report(&file, ["b", "2", "--keep", "0"]).output().expect_code(0);
    assert_eq!(lines(&file).len(), 151);
    report(&file, ["c", "3"]).output().expect_code(0);
    let kept = lines(&file);
    assert!(kept.len() == 100 && kept[98]["b"] == "2.0" && kept[99]["c"] == "3.0");
}

#[test]
fn with_rank0_only_only_rank_0_reports_and_the_writers_of_other_ranks_get_no_error() {
    let (_dir, file) = folder();
    let run = |args: &[&str], rank: &str| report(&file, args).env("RANK", rank).output();
    run(&["a", "1", "--rank0-only"], "1").expect_code(0);
    assert!(!file.exists());
    run(&["a", "x", "--rank0-only"], "0").expect_code(125);
    run(&["a", "1", "--rank0-only", "--frobnicate"], "1").expect_code(125);
    run(&["a", "1", "--rank0-only"], "0").expect_code(0);
    run(&["a", "1"], "1").expect_code(0);
    assert_eq!(lines(&file).len(), 2);
    let script = "set -o pipefail; head -c 200000 /dev/zero | \"$@\"";
    Trainit::through(&["bash", "-c", script, "bash"], ["report-metric", "--stdin", "--rank0-only"])
        .env("RANK", "1")
        .output()
        .expect_code(0);
}

#[test]
fn a_rank_that_does_not_report_ignores_mistakes_in_its_metrics() {
    let (dir, file) = folder();
    let folder = dir.path().to_str().unwrap();
    for args in [
        &["a", "x"][..],
        &["timestamp", "1"],
        &["a", "1", "--step", "1.5"],
        &["a", "1", "--keep", "many"],
        &["a", "1", "--file", folder],
        &["a", "1", "--file", "/tmp/"],
        &["a"],
        &[],
        &["--stdin", "--step", "3"],
    ] {
        let done = report(&file, args).args(["--rank0-only"]).env("RANK", "1").output().expect_code(0);
        assert!(done.err().is_empty() && !file.exists(), "{args:?}: {}", done.err());
    }
    let done = report(&file, ["a", "x"]).env("RANK", "1").env("TRAINIT_RANK0_ONLY", "maybe").output().expect_code(125);
    assert_eq!(done.err().matches("expected true or false").count(), 1, "{}", done.err());
}

#[test]
fn a_configuration_file_may_name_the_file_and_the_limit() {
    let (dir, file) = folder();
    let config = dir.path().join("config.toml");
    fs::write(&config, format!("file = {:?}\nkeep = 2\n", file)).unwrap();
    for _ in 0..3 {
        report(Path::new("/nowhere/x"), ["a", "1", "--config"]).args([&config]).output().expect_code(0);
    }
    assert_eq!(lines(&file).len(), 2);
}
