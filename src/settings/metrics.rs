//! The settings for metrics: the file, the tag and the trial, the searched sources, and the report of `report-metric`.
//!
//! Deliberately absent: the file itself, and the content of standard input.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use super::values::layers::Complaint;
use super::values::reader::{Reader, local, unquoted};
use crate::rules::cluster::first::is_first;
use crate::rules::metric::files::names::Choice;
use crate::rules::metric::output::pattern::Pattern;
use crate::rules::metric::output::searched::Searched;
use crate::rules::metric::report::line::{Report, Wrong};
use crate::rules::process::env::Env;
use crate::settings::values::suggest::hint;

/// The metrics file if none is named.
pub const DEFAULT_FILE: &str = "/tmp/hypertune/output.metrics";

/// The metrics file and the common parts of its lines.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Target {
    /// The file, relative to the working directory.
    pub path: PathBuf,
    /// Lines to keep; 0 keeps all.
    pub keep: usize,
    /// The trial's id.
    pub trial: String,
}

/// The metrics to report.
#[derive(Debug, Clone, PartialEq)]
pub enum Reports {
    /// This report.
    One(Report),
    /// The reports on standard input; the tag is for lines without one.
    Stdin {
        /// Empty for the default tag.
        tag: String,
    },
}

/// The settings of `report-metric`.
#[derive(Debug, Clone, PartialEq)]
pub struct ReportMetric {
    /// The file.
    pub target: Target,
    /// The metrics.
    pub reports: Reports,
    /// Flush the file to the device.
    pub fsync: bool,
    /// A file that cannot be written is not a failure.
    pub best_effort: bool,
    /// Non-fatal problems, one line each.
    pub warnings: Vec<String>,
}

/// The metrics that `run` collects from the trainer's output and files.
#[derive(Debug)]
pub struct Collected {
    /// Patterns for the output.
    pub patterns: Vec<Pattern>,
    /// The directory of TensorBoard's event files, and the selected tags; if empty, all tags.
    pub events: Option<(PathBuf, Vec<Choice>)>,
    /// A file with records.
    pub records: Option<PathBuf>,
    /// Only these tags are reported; if empty, all tags.
    pub report: Vec<String>,
    /// The name before the step in a line or record.
    pub step: Option<String>,
    /// The searched processes.
    pub searched: Searched,
    /// The metrics file.
    pub target: Target,
    /// Non-fatal problems, one line each.
    pub warnings: Vec<String>,
}

impl Collected {
    /// Whether there is a source to search.
    pub fn has_source(&self) -> bool {
        !self.patterns.is_empty() || self.events.is_some() || self.records.is_some()
    }
}

/// What the platform says about a tuner.
#[derive(Debug)]
pub struct Tuner {
    /// The trial that it waits for; `None` if there is none, or if this replica does not report.
    pub trial: Option<String>,
    /// The tag that it waits for, if known.
    pub tag: Option<String>,
    /// The metrics file of a trainer that reports itself.
    pub path: PathBuf,
}

/// Reads the variables of a tuner.
pub fn tuner(env: &Env) -> Tuner {
    let given = |name: &str| env.given(name).map(str::to_owned);
    let path = env.bytes("CLOUD_ML_HP_METRIC_FILE").filter(|path| !path.is_empty());
    Tuner {
        trial: given("CLOUD_ML_TRIAL_ID").filter(|_| is_first(env)),
        tag: given("CLOUD_ML_HP_METRIC_TAG"),
        path: path.map_or(DEFAULT_FILE.into(), |path| OsStr::from_bytes(path).into()),
    }
}

/// Reads the settings for `run`; `None` without a source.
pub fn collection(reader: &mut Reader<'_>, env: &Env) -> Option<Collected> {
    let before = reader.complaints.len();
    let mut patterns: Vec<Pattern> = reader.each("metric", Pattern::parse_all).into_iter().flatten().collect();
    patterns.extend(reader.each("metric-filter", Pattern::filter));
    let choices = reader.each("tensorboard-tag", Choice::parse);
    let dir = reader.parse("tensorboard-dir", local_path);
    if dir.is_none() && !choices.is_empty() {
        let message = "it needs --tensorboard-dir, so nothing would be reported".to_owned();
        reader.complain_of_missing("tensorboard-tag", message);
    }
    let records = reader.parse("metric-file", local_path);
    // A setting that could not be read might have found it.
    let is_read = reader.is_complete() && reader.complaints.len() == before;
    let is_open = !is_read || records.is_some() || (dir.is_some() && choices.is_empty());
    let tags = patterns.iter().map(Pattern::tag).chain(choices.iter().map(Choice::tag));
    let tags: Option<Vec<&str>> = tags.collect::<Option<_>>().filter(|_| !is_open);
    let report = reader.each("report", |tag| match &tags {
        Some(tags) if !tags.contains(&tag) => {
            Err(format!("no pattern has the tag {tag:?}, so nothing would be reported{}", hint(tag, tags)))
        }
        _ => Ok(tag.to_owned()),
    });
    let named = patterns.iter().filter_map(Pattern::tag).chain(choices.iter().filter_map(Choice::tag));
    let mut warnings: Vec<String> =
        named.filter_map(|tag| Report::new(tag, 0.0, "0".into(), "").ok()).flat_map(|r| r.warnings()).collect();
    let events = dir.map(|dir| (dir, choices));
    let step = reader.parse("metric-step", |name| match name.trim() {
        "" => Err("expected the name of the step, such as iteration, found nothing".to_owned()),
        name => Ok(name.to_owned()),
    });
    let searched = reader.parse("metric-rank", Searched::parse).unwrap_or_default();
    let keep = keep(reader);
    if patterns.is_empty() && events.is_none() && records.is_none() {
        return None;
    }
    let target = target(reader, None, keep, env, &mut warnings);
    let whole = |path: &Path| std::path::absolute(path).ok();
    if records.as_deref().is_some_and(|records| whole(records) == whole(&target.path)) {
        let path = target.path.display();
        reader.complain(
            "metric-file",
            format!(
                "{path} is the file that trainit writes, so each report would be read as another metric; name a file of the trainer"
            ),
        );
    }
    Some(Collected { patterns, events, records, report, step, searched, target, warnings })
}

/// Whether only rank 0 reports, and this is another rank. Then no other setting matters.
pub fn is_for_another_rank(reader: &mut Reader<'_>, env: &Env) -> bool {
    reader.switch("rank0-only") && !is_first(env)
}

/// Reads the settings and operands of `report-metric`. `None` if there is a mistake; the reader has the complaints.
pub fn report_metric(reader: &mut Reader<'_>, operands: &[OsString], env: &Env) -> Option<ReportMetric> {
    let mut warnings = Vec::new();
    let named = match reader.text("file") {
        // An empty value counts as unset.
        Some(text) if text.is_empty() => Some(PathBuf::new()),
        _ => reader.parse("file", local_path),
    };
    let keep = keep(reader);
    let target = target(reader, named, keep, env, &mut warnings);
    let fsync = reader.switch("fsync");
    let best_effort = reader.switch("best-effort");
    let reports = reports(reader, operands, env)?;
    if let Reports::One(report) = &reports {
        warnings.extend(report.warnings());
    }
    let all_is_well = reader.complaints.is_empty();
    all_is_well.then_some(ReportMetric { target, reports, fsync, best_effort, warnings })
}

/// A path on this machine. Errors: it is a URL, or see [`local`].
fn local_path(text: &str) -> Result<PathBuf, String> {
    if text.contains("://") {
        return Err(format!(
            "{text:?} is a URL, but metrics are only read from and written to files of this machine; name a file in the directory \
             where the bucket is mounted"
        ));
    }
    local(text)
}

/// The number of lines that are kept; 0 for all.
fn keep(reader: &mut Reader<'_>) -> usize {
    reader.count("keep").map_or(0, |keep| usize::try_from(keep).unwrap_or(0))
}

/// The file (from a setting, or else `CLOUD_ML_HP_METRIC_FILE`, or else [`DEFAULT_FILE`]), its limit and the trial.
fn target(
    reader: &mut Reader<'_>,
    named: Option<PathBuf>,
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
                    "{place} is set but empty, so it counts as unset: the metrics are written to {}",
                    path.display()
                ));
            }
            Some(given) => path = given,
            None => {}
        }
    }
    if path.as_os_str().as_bytes().ends_with(b"/") {
        let message =
            format!("{} is a directory, so no metric can be written there; name a file in it", path.display());
        reader.complaints.push(Complaint { place: "the metrics file".to_owned(), message });
    }
    if let Some(text) = env.given("CLOUD_ML_HP_METRIC_FILE")
        && let Err(message) = unquoted(text)
    {
        reader.complaints.push(Complaint { place: "CLOUD_ML_HP_METRIC_FILE".to_owned(), message });
    }
    // From the variable; a URL in the flag is refused above. The library treats it as a path.
    if path.to_string_lossy().contains("://") {
        warnings.push(format!(
            "CLOUD_ML_HP_METRIC_FILE is the URL {}, which cloudml-hypertune, and so trainit, treats as a path in the working \
             directory, where no tuner reads it; name a file of this machine, in the directory where the bucket is mounted",
            path.display()
        ));
    }
    let trial = match env.bytes("CLOUD_ML_TRIAL_ID") {
        None => "0".to_owned(),
        Some(bytes) => String::from_utf8(bytes.to_vec()).unwrap_or_else(|_| {
            let message = "not UTF-8, so no reader could match it; expected the trial's id".to_owned();
            reader.complaints.push(Complaint { place: "CLOUD_ML_TRIAL_ID".to_owned(), message });
            String::new()
        }),
    };
    Target { path, keep, trial }
}

/// TAG and VALUE may be operands or flags. A single operand is the one that no flag gives.
fn reports(reader: &mut Reader<'_>, operands: &[OsString], env: &Env) -> Option<Reports> {
    let mut texts = Vec::new();
    for operand in operands {
        match operand.to_str() {
            Some(text) => texts.push(text.to_owned()),
            None => {
                complain(reader, format!("{operand:?} is not UTF-8, so no reader could match it; nothing was written"));
                return None;
            }
        }
    }
    let flag_tag = reader.text("tag");
    let flag_value = reader.text("value");
    // The command line wins over variables.
    let is_typed = |name: &str| reader.is_typed(name);
    let stdin = reader.text("stdin").is_some() && (is_typed("stdin") || texts.is_empty() && !is_typed("value"));
    let (has_tag, has_value) = (flag_tag.is_some(), is_typed("value"));
    let flag_tag = flag_tag.filter(|_| is_typed("tag") || texts.is_empty() || texts.len() == 1 && !has_value);
    let flag_value = flag_value.filter(|_| has_value || texts.is_empty() || texts.len() == 1 && !has_tag);
    if stdin && reader.switch("stdin") {
        let unused = ["value", "step", "checkpoint-path"].into_iter().filter(|name| reader.is_typed(name));
        let mut unused: Vec<String> = unused.map(|name| format!("--{name}")).collect();
        unused.extend(texts);
        if !unused.is_empty() {
            complain(
                reader,
                format!("{} cannot be used with --stdin, where each line has its own; omit one", unused.join(" ")),
            );
            return None;
        }
        return Some(Reports::Stdin { tag: tag_or_default(reader, flag_tag, env) });
    }
    let (tag, value) = match (texts.as_slice(), flag_tag, flag_value) {
        ([tag, value], None, None) => (Some(tag.clone()), value.clone()),
        ([tag], None, Some(value)) => (Some(tag.clone()), value),
        ([value], tag, None) => (tag, value.clone()),
        ([], tag, Some(value)) => (tag, value),
        ([], _, None) => {
            complain(reader, "no value to report; expected TAG VALUE, --tag TAG --value VALUE, or --stdin".to_owned());
            return None;
        }
        _ => {
            complain(reader, "the tag or the value is given twice, as an operand and as a flag; omit one".to_owned());
            return None;
        }
    };
    let is_alone = texts.len() == 1 && tag.is_none();
    let step = reader.text("step").unwrap_or_default();
    let checkpoint_path = reader.text("checkpoint-path").unwrap_or_default();
    match Report::parse(&tag_or_default(reader, tag, env), &value, &step, &checkpoint_path) {
        Ok(report) => Some(Reports::One(report)),
        Err(Wrong::Value(text)) if is_alone => {
            let message = format!(
                "{text:?} alone is read as the value, and is not a number; expected TAG and VALUE, as in: \
                 trainit report-metric loss 0.3; nothing was written"
            );
            complain(reader, message);
            None
        }
        Err(error) => {
            complain(reader, format!("{error}; nothing was written"));
            None
        }
    }
}

/// The given tag, or else `CLOUD_ML_HP_METRIC_TAG`; an empty one counts as not given.
fn tag_or_default(reader: &mut Reader<'_>, given: Option<String>, env: &Env) -> String {
    const VARIABLE: &str = "CLOUD_ML_HP_METRIC_TAG";
    given.filter(|tag| !tag.is_empty()).unwrap_or_else(|| {
        if env.is_damaged(VARIABLE) {
            let message = "not UTF-8, so no reader could match it; expected the metric's tag".to_owned();
            reader.complaints.push(Complaint { place: VARIABLE.to_owned(), message });
        }
        env.get(VARIABLE).unwrap_or_default().to_owned()
    })
}

fn complain(reader: &mut Reader<'_>, message: String) {
    reader.complaints.push(Complaint { place: "report-metric".to_owned(), message });
}
