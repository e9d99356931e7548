//! The verdict: one JSON object about the end of a run, in the last log line, in /dev/termination-log and in a file.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::path::Path;
use std::time::Duration;

use nix::fcntl::OFlag;
use serde_json::{Map, Value, json};
use tracing::Level;

use super::log;
use crate::edge::fs::trusted_open;
use crate::edge::host::limits;
use crate::edge::io::stdio;
use crate::edge::process::signals;
use crate::rules::gang::Summary;
use crate::rules::gpu::ledger::XidCount;
use crate::rules::job::goodput::{Cause, Totals};
use crate::rules::job::{Outcome, Reason};
use crate::rules::process::exit;
use crate::rules::process::exit::End;
use crate::rules::status::{metric, span, three_digits};
use crate::rules::text::safe_text::counted;

/// Kubernetes reads it after the end of the container. The kubelet cuts larger ones.
const TERMINATION_LOG: &str = "/dev/termination-log";
const TERMINATION_LOG_BYTES: usize = 4096;
/// A longer sentence is cut for the termination message.
const SHORT_DETAIL_CHARS: usize = 1000;

/// The metrics in the summary for people.
const METRICS_IN_SUMMARY: usize = 3;

/// Opening a FIFO without a reader must not block.
const OVERWRITE: OFlag = OFlag::O_WRONLY.union(OFlag::O_TRUNC).union(OFlag::O_NONBLOCK);

/// The limit for writing the verdict's file if no trainer ran.
pub const FILE_LIMIT: Duration = Duration::from_secs(2);
/// The limit of the wait for log lines before the verdict's file is written.
const LOG_LIMIT: Duration = Duration::from_millis(200);

/// Facts about a run that the job machine does not know.
#[derive(Debug, Default)]
pub struct Facts {
    /// The last value of each metric, as it was reported.
    pub metrics: BTreeMap<String, String>,
    /// The step of the last attempt, and its steps a second.
    pub pace: (Option<u64>, Option<f64>),
    /// The job's highest memory use.
    pub peak_memory_bytes: Option<u64>,
    /// The XIDs that the GPU watch saw, by GPU; `None` without a watch.
    pub xids: Option<Vec<XidCount>>,
    /// The gang that the job was part of.
    pub gang: Option<Summary>,
    /// The duration of the run by cause; `None` if the job never started.
    pub goodput: Option<Totals>,
    /// The duration of the run.
    pub seconds: f64,
}

/// The object. An unknown value is null.
pub fn object(outcome: &Outcome, facts: &Facts) -> Value {
    let metrics: Map<String, Value> = facts.metrics.iter().map(|(tag, text)| (tag.clone(), metric(text))).collect();
    let (code, signal) = match outcome.child {
        Some(End::Code(code)) => (Some(code), None),
        Some(End::Signal(signal)) => (None, Some(signal.number())),
        None => (None, None),
    };
    let mut object = json!({
        "reason": outcome.reason.word(),
        "exit_code": outcome.exit_code,
        "child_code": code,
        "child_signal": signal,
        "oom": outcome.oom,
        "attempts": outcome.attempts,
        "resumed_step": outcome.resumed_step,
        "committed_step": outcome.committed_step,
        "step": facts.pace.0,
        "metrics": metrics,
        "xids": facts.xids,
        "peak_memory_bytes": facts.peak_memory_bytes,
        "seconds": (facts.seconds * 1000.0).round() / 1000.0,
        "goodput": facts.goodput,
        "detail": outcome.detail,
    });
    if let Some(gang) = &facts.gang {
        object["gang"] = gang_object(gang);
    }
    // The rank of the failed process, if there are several on this node.
    if let Some(rank) = outcome.rank {
        object["rank"] = Value::from(rank);
    }
    object
}

fn gang_object(gang: &Summary) -> Value {
    let first = gang.first.as_ref().map(|first| {
        let failure = &first.failure;
        json!({
            "seat": first.seat,
            "host": first.host,
            "code": failure.code,
            "signal": failure.signal,
            "reason": failure.class,
            "step": failure.step,
            "detail": failure.detail,
        })
    });
    json!({ "generation": gang.generation, "members": gang.members, "first": first })
}

/// The outcome of a job that never started, with the complaint as its sentence.
pub fn not_started(detail: String) -> Outcome {
    Outcome {
        reason: Reason::NotStarted,
        exit_code: exit::NOT_STARTED,
        child: None,
        rank: None,
        oom: Some(false),
        attempts: 0,
        resumed_step: None,
        committed_step: None,
        detail,
    }
}

/// The outcome of a job that did not start because of broken GPUs: another machine may succeed.
pub fn broken_gpus(exit_code: u8, detail: String) -> Outcome {
    Outcome { reason: Reason::Gpu, exit_code, ..not_started(detail) }
}

/// Writes the verdict to all its places, the log line last, and its file within the limit. `code` names the mistake, if there was one.
pub fn publish(outcome: &Outcome, facts: &Facts, file: Option<&Path>, code: Option<&str>, limit: Duration) {
    let verdict = object(outcome, facts);
    if file.is_some() {
        // The file may be the log.
        log::wait(limit.min(LOG_LIMIT));
    }
    if let Some(path) = file
        && let Err(error) = write_in_time(path, format!("{verdict}\n"), limit)
    {
        tracing::warn!(
            "the verdict could not be written to {}: {error}; it is on the last log line only; {}",
            path.display(),
            limits::way_out(&error, "make it writable for this user, or name another --verdict-file")
        );
    }
    // It must exist already; creating one has no use.
    let log = trusted_open::open(Path::new(TERMINATION_LOG), OVERWRITE);
    let written = log.and_then(|mut log| log.write_all(shortened(&verdict).as_bytes()));
    if let Err(error) = written.or_else(|e| if e.kind() == io::ErrorKind::NotFound { Ok(()) } else { Err(e) }) {
        tracing::warn!(
            "the verdict could not be written to {TERMINATION_LOG}: {error}; Kubernetes will not show why the job ended, but the last log line does; make it writable for this user"
        );
    }
    let level = if outcome.reason.is_failure() { Level::ERROR } else { Level::INFO };
    let mut fields = Map::from_iter([("exit_code".to_owned(), Value::from(outcome.exit_code))]);
    // An error without its own code gets the word of the reason, so that alerts can use one field.
    let code = code.or((level == Level::ERROR).then(|| outcome.reason.word()));
    fields.extend(code.map(|code| ("code".to_owned(), Value::from(code))));
    fields.extend(outcome.committed_step.map(|step| ("committed_step".to_owned(), Value::from(step))));
    let message = format!("{}: {}", outcome.reason.word(), outcome.detail);
    log::last_line(level, message, summary(outcome, facts), fields, verdict);
}

/// What a person wants to know, for a line of text: `2 attempts in 3m 20s, 93% training, step 120 (2.5 a second),
/// committed step 100, loss 0.31`. Empty for a job that never started.
fn summary(outcome: &Outcome, facts: &Facts) -> String {
    let Some(goodput) = &facts.goodput else { return String::new() };
    let share = goodput.of(Cause::Training).as_secs_f64() / goodput.sum().as_secs_f64().max(1e-3);
    let mut parts = vec![
        format!("{} in {}", counted(outcome.attempts as usize, "attempt"), span(facts.seconds)),
        format!("{:.0}% training", 100.0 * share),
    ];
    let (step, per_second) = facts.pace;
    let pace = per_second.map(|pace| format!(" ({} a second)", three_digits(pace))).unwrap_or_default();
    parts.extend(step.map(|step| format!("step {step}{pace}")));
    parts.extend(outcome.committed_step.map(|step| format!("committed step {step}")));
    parts.extend(facts.metrics.iter().take(METRICS_IN_SUMMARY).map(|(tag, value)| format!("{tag} {value}")));
    parts.join(", ")
}

/// Writes on another thread, because a hanging file system must not block. A FIFO without a reader is an immediate
/// error. If the file is the log itself (`/dev/stdout`), it is appended to.
fn write_in_time(path: &Path, text: String, limit: Duration) -> io::Result<()> {
    let path = path.to_owned();
    signals::in_time("verdict", limit, move || {
        if let Some(output) = stdio::output_into(&path) {
            return stdio::write_all(output, text.as_bytes());
        }
        // If it cannot be created, opening the file reports the error.
        let _ = path.parent().map(trusted_open::create_directories);
        let file = trusted_open::open(&path, OVERWRITE | OFlag::O_CREAT);
        file.and_then(|mut file| file.write_all(text.as_bytes()))
    })
}

/// The verdict within the kubelet's limit: first the sentence is cut, then the metrics are dropped.
fn shortened(verdict: &Value) -> String {
    let text = verdict.to_string();
    if text.len() <= TERMINATION_LOG_BYTES {
        return text;
    }
    let mut small = verdict.clone();
    let detail: String = small["detail"].as_str().unwrap_or_default().chars().take(SHORT_DETAIL_CHARS).collect();
    small["detail"] = Value::from(detail);
    if small.to_string().len() > TERMINATION_LOG_BYTES {
        small["metrics"] = Value::Null;
        small["xids"] = Value::Null;
    }
    if small.to_string().len() > TERMINATION_LOG_BYTES {
        small["detail"] = Value::Null;
    }
    small.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_verdict_of_any_size_fits_the_termination_log_and_stays_json() {
        let mut facts = Facts::default();
        for n in 0..500 {
            facts.metrics.insert(format!("metric-{n}"), "0.5".into());
            let gpu = format!("GPU {n}");
            facts.xids.get_or_insert_default().push(XidCount { gpu, xid: n, count: 1 });
        }
        let outcome = not_started("\u{1F600}\"".repeat(5000));
        let text = shortened(&object(&outcome, &facts));
        assert!(text.len() <= TERMINATION_LOG_BYTES, "{}", text.len());
        let value: Value = serde_json::from_str(&text).expect("json");
        assert_eq!(value["reason"], "not_started");
    }

    #[test]
    fn a_metric_without_a_json_number_stays_text() {
        let facts =
            Facts { metrics: [("loss".into(), "nan".into()), ("acc".into(), "0.5".into())].into(), ..Facts::default() };
        let object = object(&not_started(String::new()), &facts);
        assert_eq!((&object["metrics"]["loss"], &object["metrics"]["acc"]), (&json!("nan"), &json!(0.5)));
    }
}
