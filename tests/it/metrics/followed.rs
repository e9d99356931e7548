//! `run --tensorboard-dir` and `run --metric-file`: metrics from the files that an unmodified trainer writes.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

use serde_json::Value;
use tempfile::TempDir;

use crate::metrics::report_metric::lines;
use crate::support::tracer::Held;
use crate::support::{Finished, Running, Trainit, eventually};

const TENSORBOARDX: &[u8] = include_bytes!("../../golden/tensorboard/tensorboardX.tfevents");
const TENSORS: &[u8] = include_bytes!("../../golden/tensorboard/tensors.tfevents");

pub(super) struct Place {
    dir: TempDir,
}

impl Place {
    pub(super) fn new() -> Place {
        Place { dir: tempfile::tempdir().unwrap() }
    }

    pub(super) fn at(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// A shell script as the trainer, in this folder.
    pub(super) fn trainer(&self, args: &[&str], script: &str) -> Trainit {
        let run = Trainit::new(["run"]).args(args).args(["--", "sh", "-c", script]).dir(self.dir.path());
        run.env("CLOUD_ML_HP_METRIC_FILE", self.at("metrics")).env("TRAINIT_LOG_FORMAT", "json")
    }

    /// A trainer that waits for a signal file; the test writes the files for it.
    pub(super) fn waiting(&self, args: &[&str]) -> Running {
        let running = self.trainer(args, "echo started; while [ ! -e over ]; do sleep 0.01; done").start();
        running.after_line("started");
        running
    }

    pub(super) fn finish(&self, running: Running) -> Finished {
        fs::write(self.at("over"), "").unwrap();
        running.finish().expect_code(0)
    }

    pub(super) fn golden(&self, name: &str, bytes: &[u8]) {
        fs::write(self.at(name), bytes).unwrap();
    }

    /// The value and step of each report of this tag.
    pub(super) fn reports(&self, tag: &str) -> Vec<(String, String)> {
        // The file is created just before its first line.
        if fs::metadata(self.at("metrics")).is_ok_and(|file| file.len() == 0) || !self.at("metrics").exists() {
            return Vec::new();
        }
        let text = |line: &Value, key: &str| line[key].as_str().unwrap().to_owned();
        let lines = lines(&self.at("metrics"));
        lines.iter().filter(|l| l.get(tag).is_some()).map(|l| (text(l, tag), text(l, "global_step"))).collect()
    }

    /// Waits until a tag was reported this number of times.
    pub(super) fn after_reports(&self, tag: &str, count: usize) {
        eventually("the metric is reported while the trainer runs", || self.reports(tag).len() >= count);
    }
}

pub(super) fn pairs(expected: &[(&str, &str)]) -> Vec<(String, String)> {
    expected.iter().map(|(value, step)| ((*value).to_owned(), (*step).to_owned())).collect()
}

pub(super) fn append(path: &Path, bytes: impl AsRef<[u8]>) {
    let mut file = fs::OpenOptions::new().append(true).create(true).open(path).unwrap();
    file.write_all(bytes.as_ref()).unwrap();
}

#[track_caller]
pub(super) fn warns(done: &Finished, text: &str, times: usize) {
    let all = done.err();
    let count = all.lines().filter(|line| line.contains("\"WARNING\"") && line.contains(text)).count();
    assert_eq!(count, times, "{text}: {all}");
}

#[test]
fn scalars_of_event_files_reach_the_metrics_file_and_the_verdict() {
    let place = Place::new();
    place.golden("1", TENSORBOARDX);
    place.golden("2", TENSORS);
    let script =
        "mkdir -p logs/validation; cp 1 logs/events.out.tfevents.1; cp 2 logs/validation/events.out.tfevents.2";
    let done = place.trainer(&["--tensorboard-dir", "logs"], script).output().expect_code(0);
    let losses = [("1.0", "1"), ("0.5", "2"), ("0.3333333432674408", "3"), ("0.25", "4"), ("0.20000000298023224", "5")];
    assert_eq!(place.reports("train/loss"), pairs(&losses), "{}", done.err());
    let validation = [("0.5", "0"), ("0.25", "1"), ("3.0", "2"), ("0.125", "3")];
    assert_eq!(place.reports("validation/epoch_loss"), pairs(&validation));
    let all = lines(&place.at("metrics"));
    let steps: Vec<u64> = all.iter().map(|line| line["global_step"].as_str().unwrap().parse().unwrap()).collect();
    assert!(steps.is_sorted() && steps.len() == 14, "{steps:?}");
    assert!(all.iter().any(|line| line["timestamp"] == 1.7e9 && line["validation/epoch_loss"] == "0.5"));
    assert_eq!(done.verdict()["metrics"]["accuracy"], 0.5);
    assert_eq!(done.verdict()["metrics"].as_object().unwrap().len(), 3);
}

#[test]
fn tags_are_chosen_by_name_or_glob_and_renamed() {
    let place = Place::new();
    place.golden("1", TENSORBOARDX);
    place.golden("2", TENSORS);
    let script = "mkdir -p logs/a logs/b; cp 1 logs/a/tfevents.1; cp 2 logs/b/tfevents.2; cp 2 logs/b/tfevents.3";
    let choices = ["--tensorboard-tag", "loss=train/*", "--tensorboard-tag", "b/epoch_[kl]oss", "--report", "loss"];
    let done = place.trainer(&[&["--tensorboard-dir", "logs"], &choices[..]].concat(), script).output().expect_code(0);
    assert_eq!((place.reports("loss").len(), lines(&place.at("metrics")).len()), (5, 5));
    let metrics = done.verdict()["metrics"].clone();
    assert!(metrics["loss"] == 0.20000000298023224 && metrics["b/epoch_loss"] == 0.125, "{metrics}");
}

#[test]
fn event_files_are_read_while_they_are_written_and_each_record_once() {
    let place = Place::new();
    let running = place.waiting(&["--tensorboard-dir", "logs"]);
    let file = place.at("logs/run/events.out.tfevents.1");
    fs::create_dir_all(file.parent().unwrap()).unwrap();
    let cut = TENSORBOARDX.len() / 2;
    append(&file, &TENSORBOARDX[..cut]);
    place.after_reports("run/accuracy", 1);
    let seen = place.reports("run/accuracy").len();
    assert!(seen < 5);
    append(&file, &TENSORBOARDX[cut..cut + 7]);
    append(&file, &TENSORBOARDX[cut + 7..]);
    place.after_reports("run/accuracy", 5);
    fs::write(place.at("logs/run/events.out.tfevents.2"), TENSORS).unwrap();
    let done = place.finish(running);
    assert_eq!((place.reports("run/accuracy").len(), place.reports("run/epoch_loss").len()), (5, 4), "{}", done.err());
    assert_eq!(done.err().matches("WARNING").count(), 0, "{}", done.err());
}

#[test]
fn a_damaged_record_is_omitted_with_one_warning() {
    let place = Place::new();
    let mut damaged = TENSORS.to_vec();
    let end = damaged.len();
    // Within the data of the last two records.
    (damaged[end - 30], damaged[end - 90]) = (!damaged[end - 30], !damaged[end - 90]);
    // Other mistakes are reported, too.
    damaged.extend([7; 12]);
    place.golden("1", &damaged);
    place.golden("2", &[TENSORBOARDX, &[7; 12]].concat());
    let script = "mkdir logs; cp 1 logs/tfevents.1; cp 2 logs/tfevents.2; printf 'no event file' >logs/tfevents.3";
    let done = place.trainer(&["--tensorboard-dir", "logs"], script).output().expect_code(0);
    assert_eq!(place.reports("epoch_loss"), pairs(&[("0.5", "0"), ("0.25", "1")]), "{}", done.err());
    assert_eq!(place.reports("train/loss").len(), 5);
    warns(&done, "checksum is wrong", 1);
    warns(&done, "tfevents.1: the rest of this event file is skipped", 1);
    warns(&done, "tfevents.2: the rest of this event file is skipped", 1);
    warns(&done, "tfevents.3: the rest of this event file is skipped", 1);
}

#[test]
fn a_completely_damaged_file_causes_one_warning_and_uses_no_memory() {
    let place = Place::new();
    let running = place.waiting(&["--metric-file", "log"]);
    let most = || {
        let status = fs::read_to_string(format!("/proc/{}/status", running.pid())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).expect("it has memory");
        line.trim().trim_end_matches(" kB").parse::<u64>().unwrap()
    };
    let before = most();
    append(&place.at("log"), "{\n".repeat(500_000));
    append(&place.at("log"), "loss=1 step=1\n");
    place.after_reports("loss", 1);
    // The kernel's count is approximate.
    let more = most().saturating_sub(before);
    assert!(more < 16 << 10, "{more} KiB");
    warns(&place.finish(running), "a line of log is skipped", 1);
}

#[test]
fn metrics_from_before_the_run_are_not_reported() {
    let place = Place::new();
    fs::create_dir(place.at("logs")).unwrap();
    place.golden("logs/tfevents.old", TENSORBOARDX);
    place.golden("log", b"loss=1 step=1\n");
    place.golden("new", TENSORS);
    let script = "cp new logs/tfevents.new; cat new >>logs/tfevents.old; echo loss=2 step=2 >>log";
    let args = ["--tensorboard-dir", "logs", "--metric-file", "log"];
    let done = place.trainer(&args, script).output().expect_code(0);
    assert_eq!((place.reports("train/loss").len(), place.reports("epoch_loss").len()), (0, 8));
    assert_eq!(place.reports("loss"), pairs(&[("2.0", "2")]));
    assert!(done.err().contains("1 event files under logs existed before this run"), "{}", done.err());
}

#[test]
fn the_last_warning_describes_the_content_of_the_files() {
    let place = Place::new();
    place.golden("events", TENSORBOARDX);
    let said = |args: &[&str], script: &str| place.trainer(args, script).output().expect_code(0);
    warns(&said(&["--metric-file", "gone.csv"], "true"), "gone.csv never existed", 1);
    let script = "printf 'step 1 train loss 4.2\\n\\nstep 2 train loss 4.1\\n' >text";
    warns(&said(&["--metric-file", "text"], script), "none of 2 lines of text had a metric in a supported form", 1);
    warns(&said(&["--tensorboard-dir", "none"], "true"), "there is no event file in none", 1);
    let args = ["--tensorboard-dir", "logs", "--tensorboard-tag", "val_loss"];
    let done = said(&args, "mkdir -p logs/run; cp events logs/run/tfevents.1");
    warns(&done, "the event files in logs have run/accuracy, run/train/loss", 1);
    let done = said(&["--metric", "loss=loss=(\\S+)", "--metric-file", "gone.csv"], "echo loss=0.5");
    warns(&done, "a file had no metric: gone.csv never existed; other sources had loss", 1);
}

#[test]
fn training_continues_if_files_cannot_be_read() {
    let place = Place::new();
    let script = "mkfifo log; mkdir logs; echo >logs/tfevents; chmod 0 logs/tfevents; exit 7";
    let done = place.trainer(&["--tensorboard-dir", "logs", "--metric-file", "log"], script).output().expect_code(7);
    warns(&done, "log cannot be followed", 1);
}

#[test]
fn a_url_and_a_tag_without_a_folder_are_refused() {
    let place = Place::new();
    let done = place.trainer(&["--tensorboard-dir", "gs://b/logs", "--tensorboard-tag", "[z-a]"], "echo ran").output();
    let done = done.expect_code(125);
    assert!(done.out().is_empty() && done.err().contains("is a URL") && done.err().contains("invalid set"));
    for flag in ["--tensorboard-dir", "--metric-file"] {
        let done = place.trainer(&[flag, "~/logs"], "echo ran").output().expect_code(125);
        assert!(done.out().is_empty() && done.err().contains("which no shell has expanded"), "{}", done.err());
    }
    let done = place.trainer(&["--tensorboard-tag", "loss"], "echo ran").output().expect_code(125);
    assert!(done.err().contains("it needs --tensorboard-dir"), "{}", done.err());
    let args = ["--tensorboard-dir", "logs", "--tensorboard-tag", "loss=*", "--report", "los"];
    let done = place.trainer(&args, "echo ran").output().expect_code(125);
    assert!(done.err().contains("did you mean loss?"), "{}", done.err());
}

#[test]
fn the_file_that_is_reported_to_is_not_followed() {
    let place = Place::new();
    let run = place.trainer(&["--metric-file", "./own"], "echo ran");
    let done = run.env("CLOUD_ML_HP_METRIC_FILE", place.at("own")).output();
    let done = done.expect_code(125);
    assert!(done.out().is_empty() && done.err().contains("is the file that trainit writes"), "{}", done.err());
}

/// The thread that follows the files.
fn following(running: &Running) -> Option<i32> {
    let tasks = fs::read_dir(format!("/proc/{}/task", running.pid())).unwrap();
    let mut tasks = tasks.map(|task| task.unwrap().path());
    let follows = tasks.find(|task| fs::read_to_string(task.join("comm")).unwrap().trim() == "follow")?;
    Some(follows.file_name()?.to_str()?.parse().unwrap())
}

#[test]
fn a_run_reports_its_status_while_it_waits_for_the_end_of_an_unreadable_file() {
    let place = Place::new();
    let script = "echo socket=$TRAINIT_SOCKET; while [ ! -e over ]; do sleep 0.01; done; echo loss=0.5 >log; exit 7";
    let running = place.trainer(&["--metric-file", "log"], script).start();
    let line = running.after_line("socket=");
    let held = Held::still(following(&running).unwrap());
    fs::write(place.at("over"), "").unwrap();
    running.after_log("ended with exit code 7");
    let status = Trainit::new(["status", "--json"]).env("TRAINIT_SOCKET", line.trim().replace("socket=", "")).output();
    assert!(status.expect_code(0).out().contains("\"draining\""));
    drop(held);
    let done = running.finish().expect_code(7);
    assert_eq!(place.reports("loss"), pairs(&[("0.5", "1")]), "{}", done.err());
    warns(&done, "may be missing", 0);
}

#[test]
fn a_save_on_a_stop_is_committed_although_a_metric_file_cannot_be_read() {
    let (place, checkpoints) = (Place::new(), crate::support::checkpoints::Place::new());
    let script = "trap 'echo loss=0.5 >log; mkdir tmp; echo w >tmp/model.bin; mv tmp $TRAINIT_CHECKPOINT_DIR/step-7; exit' TERM; \
                  echo ready; while :; do sleep 0.01; done";
    let local = checkpoints.local();
    let args = ["--metric-file", "log", "--settle", "0", "--checkpoint-dir", local.to_str().unwrap()];
    let running = place.trainer(&args, script).env("TRAINIT_CHECKPOINT_STORE", checkpoints.url()).start();
    running.after_line("ready");
    let held = Held::still(following(&running).unwrap());
    running.signal(libc::SIGTERM);
    eventually("the commit is made", || checkpoints.steps() == [7]);
    drop(held);
    let done = running.finish().expect_code(143);
    assert_eq!(place.reports("loss"), pairs(&[("0.5", "1")]), "{}", done.err());
    warns(&done, "may be missing", 0);
}

#[test]
fn an_unused_name_of_the_step_causes_a_warning_at_the_end() {
    for (name, warnings) in [("iteration", 1), ("iter", 0)] {
        let place = Place::new();
        let args = ["--metric-file", "log", "--metric-step", name];
        let done = place.trainer(&args, "echo 'iter=7 loss=0.5' >log").output().expect_code(0);
        warns(&done, &format!("no number stood behind \\\"{name}\\\" (--metric-step)"), warnings);
        assert_eq!(place.reports("loss"), pairs(&[("0.5", if warnings == 0 { "7" } else { "1" })]), "{}", done.err());
    }
}

#[test]
fn files_are_not_followed_without_a_setting() {
    let place = Place::new();
    let threads = |args: &[&str]| {
        let running = place.waiting(args);
        let follows = following(&running).is_some();
        place.finish(running);
        fs::remove_file(place.at("over")).unwrap();
        follows
    };
    assert_eq!([threads(&["--metric", "a=(x)"]), threads(&["--metric-file", "log"])], [false, true]);
}
