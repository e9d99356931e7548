//! `run --metric`: metrics from an unmodified trainer's output, which passes through unchanged.

use std::fs;
use std::io::BufRead;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::metrics::report_metric::{folder, lines};
use crate::support::{Finished, Trainit, eventually};

pub const LOSS: &str = "loss=loss: ([0-9.]+)";

/// A shell script as the trainer, with these patterns.
pub fn trainer(file: &Path, patterns: &[&str], script: &str) -> Trainit {
    let patterns = patterns.iter().flat_map(|p| ["--metric", p]);
    Trainit::new(["run"])
        .args(patterns)
        .args(["--", "sh", "-c", script])
        .env("CLOUD_ML_HP_METRIC_FILE", file)
        .env("TRAINIT_LOG_FORMAT", "json")
}

pub fn warnings(done: &Finished, text: &str) -> usize {
    done.err().lines().filter(|line| line.contains("\"WARNING\"") && line.contains(text)).count()
}

#[test]
fn metrics_on_either_stream_reach_the_file_and_the_verdict() {
    let (_dir, file) = folder();
    let script = "echo start; echo 'epoch 1 loss: 0.5'; echo 'loss: 0.25' >&2; echo 'acc 0.75 at step 12'";
    let run = trainer(&file, &[LOSS, "acc=acc (?<value>\\S+) at step (?<step>\\d+)"], script);
    let done = run.env("CLOUD_ML_TRIAL_ID", "7").output().expect_code(0);
    assert_eq!(done.out(), "start\nepoch 1 loss: 0.5\nacc 0.75 at step 12\n");
    assert!(done.err().starts_with("loss: 0.25\n") || done.err().contains("\nloss: 0.25\n"), "{}", done.err());
    let found = lines(&file);
    assert_eq!(found.len(), 3);
    assert!(found.iter().all(|line| line["trial"] == "7"), "{found:?}");
    let losses: Vec<_> = found.iter().filter(|l| l.get("loss").is_some()).map(|l| l["global_step"].clone()).collect();
    assert_eq!(losses, ["1", "2"]);
    assert!(found.iter().any(|line| line["acc"] == "0.75" && line["global_step"] == "12"), "{found:?}");
    assert_eq!(done.verdict()["metrics"]["acc"], 0.75);
    assert!(done.verdict()["metrics"]["loss"].is_number());
}

#[test]
fn a_log_line_after_an_unfinished_progress_bar_starts_a_new_line() {
    let (_dir, file) = folder();
    let said = |bar: &str| {
        let run = trainer(&file, &[LOSS], &format!("printf 'loss: 0.5\\n{bar}' >&2; kill -9 $$"));
        run.output().expect_code(137).err()
    };
    for bar in ["50|##  |\\r", "50|##  |"] {
        let said = said(bar);
        assert!(said.contains("|##  |") && said.contains("verdict"), "{said}");
        let ours = said.lines().filter(|line| line.contains("\"severity\""));
        ours.for_each(|line| drop(serde_json::from_str::<serde_json::Value>(line).expect(line)));
    }
    assert!(!said("100\\n").contains("\n\n"), "a line that is ended is ended once");
}

#[test]
fn the_first_trainit_of_a_node_reports_and_the_others_say_that_they_do_not() {
    let (_dir, file) = folder();
    let rank = |rank: &str, patterns: &[&str]| {
        let run = trainer(&file, patterns, "echo loss: 0.5").env("CLOUD_ML_TRIAL_ID", "7");
        let run =
            run.env("PMI_RANK", rank).env("MPI_LOCALRANKID", rank).env("PMI_SIZE", "2").env("MPI_LOCALNRANKS", "2");
        let done = run.output().expect_code(0);
        assert_eq!(done.out(), "loss: 0.5\n");
        (done.err().contains("metrics are collected by the trainit of local rank 0"), warnings(&done, ""))
    };
    let quiet = rank("1", &[]);
    assert_eq!((rank("1", &[LOSS]), quiet.0, file.exists()), ((true, quiet.1), false, false));
    assert!(!rank("0", &[LOSS]).0);
    assert_eq!(lines(&file).len(), 1);
    let last = |of: &str| {
        let run = trainer(&file, &[LOSS], "echo loss: 0.25").env("TRAINIT_METRIC_RANK", "last");
        let run = run.env("PMI_RANK", of).env("MPI_LOCALRANKID", of).env("PMI_SIZE", "2").env("MPI_LOCALNRANKS", "2");
        run.output().expect_code(0).err().contains("metrics are collected by the trainit of local rank 1")
    };
    assert_eq!((last("0"), last("1"), lines(&file).len()), (true, false, 2));
}

#[test]
fn without_a_metric_setting_no_output_is_captured() {
    let (dir, file) = folder();
    let [out, err, seen] = ["out", "err", "seen"].map(|name| dir.path().join(name));
    let script =
        "out=$(readlink /proc/$$/fd/1); err=$(readlink /proc/$$/fd/2); printf '%s\\n' \"$out\" \"$err\" >\"$SEEN\"";
    let inherits = |patterns: &[&str]| {
        let mut run = trainer(&file, patterns, script).env("SEEN", &seen);
        let create = |path| fs::File::create(path).unwrap();
        let status = run.command().stdout(create(&out)).stderr(create(&err)).status().unwrap();
        assert!(status.success());
        let links = fs::read_to_string(&seen).unwrap();
        let links: Vec<bool> = links.lines().zip([&out, &err]).map(|(link, file)| Path::new(link) == file).collect();
        links
    };
    assert_eq!(inherits(&[]), [true, true]);
    assert_eq!(inherits(&[LOSS]), [false, false]);
}

#[test]
fn metrics_that_were_never_written_are_mentioned_at_the_end() {
    let run = trainer(Path::new("/dev/full"), &[LOSS], "echo loss: 0.5; echo loss: 0.25");
    let done = run.env("CLOUD_ML_TRIAL_ID", "7").output().expect_code(0);
    assert_eq!(warnings(&done, "never written to /dev/full: 2 of this run's metrics"), 1, "{}", done.err());
}

#[test]
fn every_byte_passes_through_in_order() {
    let (dir, file) = folder();
    let junk = dir.path().join("junk");
    let made = Command::new("sh").arg("-c").arg("head -c 8000000 /dev/urandom >\"$0\"").arg(&junk).status().unwrap();
    assert!(made.success());
    let script = format!("cat {}; printf '\\nloss: 0.5'", junk.display());
    let done = trainer(&file, &[LOSS], &script).output().expect_code(0);
    let expected = [&fs::read(&junk).unwrap()[..], b"\nloss: 0.5"].concat();
    assert!(done.stdout == expected, "{} of {} bytes", done.stdout.len(), expected.len());
    assert_eq!(lines(&file)[0]["loss"], "0.5");
}

#[test]
fn both_streams_keep_their_order_if_they_are_the_same_file() {
    let (dir, file) = folder();
    let log = dir.path().join("log");
    let output = fs::File::create(&log).unwrap();
    let script = "i=0; while [ $i -lt 300 ]; do echo out $i; echo err $i >&2; i=$((i+1)); done";
    let mut run = trainer(&file, &[LOSS], script);
    let status = run.command().stdout(output.try_clone().unwrap()).stderr(output).status().unwrap();
    assert!(status.success());
    let log = fs::read_to_string(&log).unwrap();
    let found: Vec<&str> = log.lines().filter(|l| l.starts_with("out ") || l.starts_with("err ")).collect();
    let expected: Vec<String> = (0..300).flat_map(|i| [format!("out {i}"), format!("err {i}")]).collect();
    assert_eq!(found, expected);
}

#[test]
fn counted_steps_continue_over_the_attempts_of_a_run() {
    let (_dir, file) = folder();
    let script = "echo loss: 0.$TRAINIT_ATTEMPT; echo loss: 1.$TRAINIT_ATTEMPT; [ $TRAINIT_ATTEMPT = 2 ]";
    let run = trainer(&file, &[LOSS], script);
    let done = run.env("TRAINIT_MAX_RESTARTS", "1").env("TRAINIT_RESTART_BACKOFF", "1ms..1ms").output().expect_code(0);
    assert_eq!(done.out(), "loss: 0.1\nloss: 1.1\nloss: 0.2\nloss: 1.2\n");
    let found: Vec<_> = lines(&file).iter().map(|l| (l["global_step"].clone(), l["loss"].clone())).collect();
    let expected = [("1", "0.1"), ("2", "1.1"), ("3", "0.2"), ("4", "1.2")].map(|(s, v)| (s.into(), v.into()));
    assert_eq!(found, expected);
}

#[test]
fn a_flood_of_metrics_is_counted_whole() {
    let (_dir, file) = folder();
    let done = trainer(&file, &[LOSS], "yes 'loss: 0.5' | head -n 200000").output().expect_code(0);
    assert_eq!(done.stdout.len(), 200_000 * 10);
    let found = lines(&file);
    assert_eq!((found.len(), &found[99]["global_step"]), (100, &"200000".into()));
}

#[test]
fn output_of_an_orphan_is_passed_on() {
    let (_dir, file) = folder();
    let script = "(sleep 0.2; echo 'loss: 0.125') & echo leaving";
    let done = trainer(&file, &[LOSS], &format!("trap '' TERM; {script}")).output().expect_code(0);
    assert_eq!(done.out(), "leaving\nloss: 0.125\n");
    assert_eq!(done.verdict()["metrics"]["loss"], 0.125);
}

#[test]
fn a_metrics_file_that_cannot_be_written_stops_no_training() {
    let (dir, _) = folder();
    let script = "for i in 1 2 3 4 5; do echo loss: 0.$i; sleep 0.02; done; exit 7";
    let done = trainer(dir.path(), &[LOSS], script).output().expect_code(7);
    assert_eq!(warnings(&done, "training continues"), 1, "{}", done.err());
    assert_eq!(done.verdict()["metrics"]["loss"], 0.5);
}

#[test]
fn a_reader_that_exits_ends_the_trainer_as_with_a_direct_pipe() {
    let (dir, file) = folder();
    let run = |script: &str| {
        let mut run = trainer(&file, &[LOSS], script);
        let mut child = run.command().stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        let mut line = String::new();
        std::io::BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        (line, child.wait().unwrap().code())
    };
    assert_eq!(run("exec yes 'loss: 0.5'"), ("loss: 0.5\n".to_owned(), Some(128 + 13)));
    assert_eq!(lines(&file)[0]["loss"], "0.5");
    let seen = dir.path().join("seen");
    let script = format!("trap '' PIPE; yes 2>/dev/null; echo $? >{}; exit 3", seen.display());
    assert_eq!(run(&script), ("y\n".to_owned(), Some(3)));
    assert_eq!(fs::read_to_string(seen).unwrap(), "1\n");
}

#[test]
fn a_slow_reader_slows_the_trainer_and_uses_no_memory() {
    let (_dir, file) = folder();
    let mut run = trainer(&file, &[LOSS], "head -c 30000000 /dev/zero; echo; echo 'loss: 0.5'");
    let mut child = run.command().stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let writing = |pid: u32| fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
    let mut before = 0;
    eventually("the trainer is held up", || {
        let head = writing(child.id()).split_whitespace().next().and_then(|p| p.parse().ok()).unwrap_or(0);
        let head = writing(head).split_whitespace().next().map_or(head, |p| p.parse().unwrap());
        let io = fs::read_to_string(format!("/proc/{head}/io")).unwrap_or_default();
        let written = io.lines().find_map(|l| l.strip_prefix("wchar: ")).map_or(0, |n| n.parse::<u64>().unwrap());
        let still = written > 0 && written == before && written < 10_000_000;
        before = written;
        std::thread::park_timeout(std::time::Duration::from_millis(50));
        still
    });
    let status = fs::read_to_string(format!("/proc/{}/status", child.id())).unwrap();
    let resident = status.lines().find_map(|l| l.strip_prefix("RssAnon:")).unwrap();
    let kib: u64 = resident.trim().trim_end_matches(" kB").parse().unwrap();
    assert!(kib < 8 * 1024, "{kib} KiB");
    let mut all = Vec::new();
    std::io::Read::read_to_end(&mut child.stdout.take().unwrap(), &mut all).unwrap();
    assert_eq!(all.len(), 30_000_000 + 11);
    assert!(child.wait().unwrap().success());
}

#[test]
fn a_metric_that_the_tuner_never_gets_causes_a_warning() {
    let (_dir, file) = folder();
    let run = |script: &str| {
        let run = trainer(&file, &["loss=loss: (?<value>\\S+) at (?<step>\\d+)"], script);
        run.env("CLOUD_ML_TRIAL_ID", "4").env("CLOUD_ML_HP_METRIC_TAG", "acc").output().expect_code(0)
    };
    let done = run("echo nothing");
    assert_eq!(
        (warnings(&done, "CLOUD_ML_HP_METRIC_TAG"), warnings(&done, "trial 4 ended without")),
        (1, 1),
        "{}",
        done.err()
    );
    assert!(!file.exists());
    let done = run("for i in 5 4 3; do echo loss: 1 at $i; done");
    assert_eq!((warnings(&done, "decrease from"), warnings(&done, "ended without")), (1, 0), "{}", done.err());
}

#[test]
fn a_trainer_that_reports_itself_without_the_expected_metric_causes_a_warning() {
    let (_dir, file) = folder();
    let report = |args: &str| format!("{} report-metric {args}", crate::support::binary().display());
    let run = |script: &str, rank: &str| {
        let run = Trainit::run(["sh", "-c", script]).env("CLOUD_ML_HP_METRIC_FILE", &file).env("PMIX_RANK", rank);
        let run = run.env("TRAINIT_LOG_FORMAT", "json").env("CLOUD_ML_TRIAL_ID", "4");
        run.env("CLOUD_ML_HP_METRIC_TAG", "acc").output()
    };
    let done = run("true", "0").expect_code(0);
    assert_eq!(warnings(&done, "trial 4 ended without"), 1, "{}", done.err());
    let verdict_is_last = done.err().lines().last().is_some_and(|line| line.contains("\"verdict\""));
    assert!(verdict_is_last, "{}", done.err());
    assert_eq!(warnings(&run("true", "1").expect_code(0), "trial 4"), 0);
    assert_eq!(warnings(&run("kill -TERM $PPID; sleep 60", "0").expect_code(143), "trial 4"), 0);
    let script = [report("--tag loss --value 1 --step 3"), report("--tag loss --value 1 --step 2")].join(";");
    let done = run(&script, "0").expect_code(0);
    assert_eq!((warnings(&done, "has only loss"), warnings(&done, "decrease from 3 to 2")), (1, 1), "{}", done.err());
    let done = run(&report("0.5 --step 9"), "0").expect_code(0);
    assert_eq!((warnings(&done, "has only"), warnings(&done, "ended without")), (0, 0), "{}", done.err());
}

#[test]
fn a_metrics_file_on_a_hanging_mount_does_not_delay_the_end() {
    let (dir, _) = folder();
    // A file system in user space without a server.
    let mount = "exec 3<>/dev/fuse && mount -i -t fuse -o fd=3,rootmode=40000,user_id=0,group_id=0 hangs \"$0\"";
    let at = dir.path().to_str().unwrap();
    let can_mount = Command::new("unshare").args(["-m", "sh", "-c", mount, at]).stderr(Stdio::null()).status();
    if !can_mount.is_ok_and(|status| status.success()) {
        crate::support::skip("a mount that hangs (no /dev/fuse here, or no root)");
        return;
    }
    let script = format!("{mount} && exec \"$@\"");
    let run = Trainit::through(&["unshare", "-m", "sh", "-c", &script, at], ["run", "--", "echo", "trained"]);
    let run = run.env("CLOUD_ML_HP_METRIC_FILE", dir.path().join("m")).env("CLOUD_ML_TRIAL_ID", "4");
    let done = run.env("TRAINIT_LOG_FORMAT", "json").output().expect_code(0);
    assert_eq!(
        (warnings(&done, "could not be read within 2 s"), done.verdict()["reason"].as_str()),
        (1, Some("finished"))
    );
}
