//! Where metrics go, under which tag and trial, and what `report-metric` was asked to report.
//!
//! Deliberately absent: the file itself, and what standard input holds.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use super::layers::Complaint;
use super::nearest::hint;
use super::reader::{Reader, local};
use crate::rules::cluster::first::is_first;
use crate::rules::env::Env;
use crate::rules::metric::line::{Report, Wrong};
use crate::rules::metric::names::Choice;
use crate::rules::metric::pattern::Pattern;

/// The metrics file where none is named.
pub const DEFAULT_FILE: &str = "/tmp/hypertune/output.metrics";

/// The metrics file and what every line in it says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Target {
    /// The file, relative to the working directory.
    pub path: PathBuf,
    /// Lines to keep; 0 keeps all.
    pub keep: usize,
    /// The trial's id.
    pub trial: String,
}

/// What to report.
#[derive(Debug, Clone, PartialEq)]
pub enum Wanted {
    /// This.
    One(Report),
    /// What standard input says; the tag is for lines without one.
    Stdin {
        /// Empty for the default tag.
        tag: String,
    },
}

/// A `report-metric` that makes sense.
#[derive(Debug, Clone, PartialEq)]
pub struct ReportMetric {
    /// Where.
    pub target: Target,
    /// What.
    pub wanted: Wanted,
    /// Flush the file to the device.
    pub fsync: bool,
    /// A file that cannot be written is no failure.
    pub best_effort: bool,
    /// What is odd, one line each.
    pub warnings: Vec<String>,
}

/// What `run` is to look for in the trainer's output and files.
#[derive(Debug)]
pub struct Collected {
    /// What in the output.
    pub patterns: Vec<Pattern>,
    /// The folder of TensorBoard's event files, and which of their tags; none named: all.
    pub events: Option<(PathBuf, Vec<Choice>)>,
    /// A file of records.
    pub records: Option<PathBuf>,
    /// Of what is found, only these tags are reported; none named: all.
    pub report: Vec<String>,
    /// On standard output.
    pub stdout: bool,
    /// On standard error.
    pub stderr: bool,
    /// Where it is reported.
    pub target: Target,
    /// What is odd, one line each.
    pub warnings: Vec<String>,
}

/// What the platform says of a tuner.
#[derive(Debug)]
pub struct Tuner {
    /// The trial that it waits for; `None` where there is none, or where this is not the replica that reports.
    pub trial: Option<String>,
    /// The tag that it waits for, where it is named.
    pub tag: Option<String>,
    /// Where the trainer reports, if it does so by itself.
    pub path: PathBuf,
}

/// Reads what the environment says of a tuner.
pub fn tuner(env: &Env) -> Tuner {
    let given = |name: &str| env.given(name).map(str::to_owned);
    let path = env.bytes("CLOUD_ML_HP_METRIC_FILE").filter(|path| !path.is_empty());
    Tuner {
        trial: given("CLOUD_ML_TRIAL_ID").filter(|_| is_first(env)),
        tag: given("CLOUD_ML_HP_METRIC_TAG"),
        path: path.map_or(DEFAULT_FILE.into(), |path| OsStr::from_bytes(path).into()),
    }
}

/// Reads what `run` collects; `None` where nothing is.
pub fn collected(reader: &mut Reader<'_>, env: &Env) -> Option<Collected> {
    let before = reader.complaints.len();
    let mut patterns: Vec<Pattern> = reader.each("metric", Pattern::parse_all).into_iter().flatten().collect();
    patterns.extend(reader.each("metric-filter", Pattern::filter));
    let choices = reader.each("tensorboard-tag", Choice::parse);
    let dir = reader.parse("tensorboard-dir", local_path);
    if dir.is_none() && !choices.is_empty() {
        let message = "there is no --tensorboard-dir whose tags it could name, so nothing would be reported".to_owned();
        reader.complain_of_lack("tensorboard-tag", message);
    }
    let records = reader.parse("metric-file", local_path);
    // What could not be read might have found it.
    let is_read = reader.is_whole() && reader.complaints.len() == before;
    let is_open = !is_read || records.is_some() || (dir.is_some() && choices.is_empty());
    let tags = patterns.iter().map(Pattern::tag).chain(choices.iter().map(Choice::tag));
    let tags: Option<Vec<&str>> = tags.collect::<Option<_>>().filter(|_| !is_open);
    let report = reader.each("report", |tag| match &tags {
        Some(tags) if !tags.contains(&tag) => {
            Err(format!("nothing finds {tag:?}, so nothing would be reported{}", hint(tag, tags)))
        }
        _ => Ok(tag.to_owned()),
    });
    let named = patterns.iter().filter_map(Pattern::tag).chain(choices.iter().filter_map(Choice::tag));
    let mut warnings: Vec<String> =
        named.filter_map(|tag| Report::new(tag, 0.0, "0".into(), "").ok()).flat_map(|r| r.warnings()).collect();
    let events = dir.map(|dir| (dir, choices));
    let words = [("both", (true, true)), ("stdout", (true, false)), ("stderr", (false, true))];
    let (stdout, stderr) = reader.choice("metric-from", &words).unwrap_or((true, true));
    let keep = keep(reader);
    if patterns.is_empty() && events.is_none() && records.is_none() {
        return None;
    }
    let target = target(reader, None, None, keep, env, &mut warnings);
    let whole = |path: &Path| std::path::absolute(path).ok();
    if records.as_deref().is_some_and(|records| whole(records) == whole(&target.path)) {
        let path = target.path.display();
        reader.complain(
            "metric-file",
            format!(
                "{path} is where trainit reports, so each report would be one more metric; name a file of the trainer's"
            ),
        );
    }
    Some(Collected { patterns, events, records, report, stdout, stderr, target, warnings })
}

/// Whether a report is for another process to make, which is rank 0: then nothing else that was given matters here.
pub fn is_others(reader: &mut Reader<'_>, env: &Env) -> bool {
    reader.switch("rank0-only") && !is_first(env)
}

/// Reads the settings and operands of `report-metric`. `None` when something is wrong; the reader has the complaints.
pub fn report_metric(reader: &mut Reader<'_>, operands: &[OsString], env: &Env) -> Option<ReportMetric> {
    let mut warnings = Vec::new();
    let named = match reader.text("file") {
        // Counts as unset.
        Some(text) if text.is_empty() => Some(PathBuf::new()),
        _ => reader.parse("file", local_path),
    };
    let trial = reader.text("trial");
    let keep = keep(reader);
    let target = target(reader, named, trial, keep, env, &mut warnings);
    let fsync = reader.switch("fsync");
    let best_effort = reader.switch("best-effort");
    let wanted = wanted(reader, operands, env)?;
    if let Wanted::One(report) = &wanted {
        warnings.extend(report.warnings());
    }
    let all_is_well = reader.complaints.is_empty();
    all_is_well.then_some(ReportMetric { target, wanted, fsync, best_effort, warnings })
}

/// A path on this machine. Errors: it names a store, or as [`local`] says.
fn local_path(text: &str) -> Result<PathBuf, String> {
    if text.contains("://") {
        return Err(format!(
            "{text:?} is a URL, and metrics are read from and written to files of this machine only; name it in the folder \
             where it is mounted"
        ));
    }
    local(text)
}

/// How many lines of the file are kept; 0 for all.
fn keep(reader: &mut Reader<'_>) -> usize {
    reader.count("keep").map_or(0, |keep| usize::try_from(keep).unwrap_or(0))
}

/// The file (as named by a setting, else `CLOUD_ML_HP_METRIC_FILE`, else [`DEFAULT_FILE`]), its limit and the trial.
fn target(
    reader: &mut Reader<'_>,
    named: Option<PathBuf>,
    trial: Option<String>,
    keep: usize,
    env: &Env,
    warnings: &mut Vec<String>,
) -> Target {
    let variable = env.bytes("CLOUD_ML_HP_METRIC_FILE").map(|path| PathBuf::from(OsStr::from_bytes(path)));
    let candidates = [(named, "--file"), (variable, "CLOUD_ML_HP_METRIC_FILE")];
    let mut path = PathBuf::from(DEFAULT_FILE);
    for (candidate, place) in candidates.into_iter().rev() {
        match candidate {
            Some(given) if given.as_os_str().is_empty() => {
                warnings.push(format!(
                    "{place} is set but empty, so it counts as unset: the metrics go to {}",
                    path.display()
                ));
            }
            Some(given) => path = given,
            None => {}
        }
    }
    if path.as_os_str().as_bytes().ends_with(b"/") {
        let message =
            format!("{} names a folder, so no metric can be written there; name a file in it", path.display());
        reader.complaints.push(Complaint { place: "the metrics file".to_owned(), message });
    }
    // Of the variable's; the flag's was refused. To the library it is a path as any other.
    if path.to_string_lossy().contains("://") {
        warnings.push(format!(
            "CLOUD_ML_HP_METRIC_FILE is the URL {}, which cloudml-hypertune, and so trainit, takes for a path from the working \
             directory: no tuner looks there; name a file of this machine, in the folder where the bucket is mounted",
            path.display()
        ));
    }
    let trial = match (trial, env.bytes("CLOUD_ML_TRIAL_ID")) {
        (Some(trial), _) => trial,
        (None, None) => "0".to_owned(),
        (None, Some(bytes)) => String::from_utf8(bytes.to_vec()).unwrap_or_else(|_| {
            let message = "not UTF-8, so no reader could match it; expected the trial's id".to_owned();
            reader.complaints.push(Complaint { place: "CLOUD_ML_TRIAL_ID".to_owned(), message });
            String::new()
        }),
    };
    Target { path, keep, trial }
}

/// TAG and VALUE may stand as operands or as flags; either one alone is the one that no flag gives.
fn wanted(reader: &mut Reader<'_>, operands: &[OsString], env: &Env) -> Option<Wanted> {
    let mut texts = Vec::new();
    for operand in operands {
        match operand.to_str() {
            Some(text) => texts.push(text.to_owned()),
            None => {
                wrong(reader, format!("{operand:?} is not UTF-8, so no reader could match it; nothing was written"));
                return None;
            }
        }
    }
    let flag_tag = reader.text("tag");
    let flag_value = reader.text("value");
    // What was typed holds against what a variable says.
    let is_typed = |name: &str| reader.is_typed(name);
    let stdin = reader.text("stdin").is_some() && (is_typed("stdin") || texts.is_empty() && !is_typed("value"));
    let (has_tag, has_value) = (flag_tag.is_some(), is_typed("value"));
    let flag_tag = flag_tag.filter(|_| is_typed("tag") || texts.is_empty() || texts.len() == 1 && !has_value);
    let flag_value = flag_value.filter(|_| has_value || texts.is_empty() || texts.len() == 1 && !has_tag);
    if stdin && reader.switch("stdin") {
        let idle = ["value", "step", "checkpoint-path"].into_iter().filter(|name| reader.is_typed(name));
        let mut idle: Vec<String> = idle.map(|name| format!("--{name}")).collect();
        idle.extend(texts);
        if !idle.is_empty() {
            wrong(
                reader,
                format!("{} cannot go with --stdin, where each line has its own; leave one out", idle.join(" ")),
            );
            return None;
        }
        return Some(Wanted::Stdin { tag: standard_tag(reader, flag_tag, env) });
    }
    let (tag, value) = match (texts.as_slice(), flag_tag, flag_value) {
        ([tag, value], None, None) => (Some(tag.clone()), value.clone()),
        ([tag], None, Some(value)) => (Some(tag.clone()), value),
        ([value], tag, None) => (tag, value.clone()),
        ([], tag, Some(value)) => (tag, value),
        ([], _, None) => {
            wrong(reader, "no value to report; expected TAG VALUE, --tag TAG --value VALUE, or --stdin".to_owned());
            return None;
        }
        _ => {
            wrong(reader, "the tag or the value is given twice, as an operand and as a flag; leave one out".to_owned());
            return None;
        }
    };
    let is_alone = texts.len() == 1 && tag.is_none();
    let step = reader.text("step").unwrap_or_default();
    let checkpoint_path = reader.text("checkpoint-path").unwrap_or_default();
    match Report::parse(&standard_tag(reader, tag, env), &value, &step, &checkpoint_path) {
        Ok(report) => Some(Wanted::One(report)),
        Err(Wrong::Value(text)) if is_alone => {
            let message = format!(
                "{text:?} alone is taken for the value, and is no number; expected TAG and VALUE, as in: \
                 trainit report-metric loss 0.3; nothing was written"
            );
            wrong(reader, message);
            None
        }
        Err(error) => {
            wrong(reader, format!("{error}; nothing was written"));
            None
        }
    }
}

/// The tag that was given, else `CLOUD_ML_HP_METRIC_TAG`; empty counts as not given.
fn standard_tag(reader: &mut Reader<'_>, given: Option<String>, env: &Env) -> String {
    const VARIABLE: &str = "CLOUD_ML_HP_METRIC_TAG";
    given.filter(|tag| !tag.is_empty()).unwrap_or_else(|| {
        if env.is_damaged(VARIABLE) {
            let message = "not UTF-8, so no reader could match it; expected the metric's tag".to_owned();
            reader.complaints.push(Complaint { place: VARIABLE.to_owned(), message });
        }
        env.get(VARIABLE).unwrap_or_default().to_owned()
    })
}

fn wrong(reader: &mut Reader<'_>, message: String) {
    reader.complaints.push(Complaint { place: "report-metric".to_owned(), message });
}
