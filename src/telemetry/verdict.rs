//! The verdict: one JSON object that says how it ended, as the last log line, in /dev/termination-log and in a file.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::time::Duration;

use serde_json::{Map, Value, json};
use tracing::Level;

use super::log;
use crate::edge::{limits, signals, stdio};
use crate::rules::exit::{self, End};
use crate::rules::gpu::ledger::XidCount;
use crate::rules::job::{Outcome, Reason};
use crate::rules::status::metric;

/// Kubernetes reads it after the container's end; larger ones are cut by the kubelet.
const TERMINATION_LOG: &str = "/dev/termination-log";
const TERMINATION_LOG_BYTES: usize = 4096;
/// A sentence longer than this says too much for a termination message.
const SHORT_DETAIL_CHARS: usize = 1000;

/// What the verdict's file is given; the log line comes after it.
const FILE_PATIENCE: Duration = Duration::from_secs(2);

/// What the machine does not know of a run's end.
#[derive(Debug, Default)]
pub struct Facts {
    /// The last value of each metric, as it was reported.
    pub metrics: BTreeMap<String, String>,
    /// The job's highest memory use.
    pub peak_memory_bytes: Option<u64>,
    /// The XIDs that came while GPUs were watched, by GPU; `None`: none were watched.
    pub xids: Option<Vec<XidCount>>,
    /// How long it all took.
    pub seconds: f64,
}

/// The object. Absent knowledge is null.
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
        "metrics": metrics,
        "xids": facts.xids,
        "peak_memory_bytes": facts.peak_memory_bytes,
        "seconds": (facts.seconds * 1000.0).round() / 1000.0,
        "detail": outcome.detail,
    });
    // Of several processes on this node: whose end it was.
    if let Some(rank) = outcome.rank {
        object["rank"] = Value::from(rank);
    }
    object
}

/// An outcome for a job that never began, with the complaint as its sentence.
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

/// An outcome for a job that did not begin because of broken GPUs: another machine may succeed.
pub fn broken_gpus(exit_code: u8, detail: String) -> Outcome {
    Outcome { reason: Reason::Gpu, exit_code, ..not_started(detail) }
}

/// Publishes the verdict everywhere it goes; the log line is the last one. `code` names the mistake, if it was one.
pub fn publish(outcome: &Outcome, facts: &Facts, file: Option<&Path>, code: Option<&str>) {
    let verdict = object(outcome, facts);
    if let Some(path) = file
        && let Err(error) = write_in_time(path, format!("{verdict}\n"))
    {
        tracing::warn!(
            "the verdict could not be written to {}: {error}; it is on the last log line only; {}",
            path.display(),
            limits::way_out(&error, "see that this user may write there, or name another --verdict-file")
        );
    }
    // It must be there already: making one would only litter.
    let log = fs::OpenOptions::new().write(true).truncate(true).custom_flags(libc::O_NONBLOCK).open(TERMINATION_LOG);
    let written = log.and_then(|mut log| log.write_all(shortened(&verdict).as_bytes()));
    if let Err(error) = written.or_else(|e| if e.kind() == io::ErrorKind::NotFound { Ok(()) } else { Err(e) }) {
        tracing::warn!(
            "the verdict could not be written to {TERMINATION_LOG}: {error}; Kubernetes will not show why it ended, the last log line does; make it writable for this user"
        );
    }
    let level = if outcome.reason.is_failure() { Level::ERROR } else { Level::INFO };
    let mut fields = Map::from_iter([("exit_code".to_owned(), Value::from(outcome.exit_code))]);
    // An error without a code of its own has the reason's word: whoever alerts on errors asks for one field.
    let code = code.or((level == Level::ERROR).then(|| outcome.reason.word()));
    fields.extend(code.map(|code| ("code".to_owned(), Value::from(code))));
    fields.extend(outcome.committed_step.map(|step| ("committed_step".to_owned(), Value::from(step))));
    log::last_line(level, format!("{}: {}", outcome.reason.word(), outcome.detail), fields, verdict);
}

/// On a thread, since a file system that hangs must not keep us; a FIFO that nobody reads is an error at once. Where the
/// file is the log itself (`/dev/stdout`), it is written on.
fn write_in_time(path: &Path, text: String) -> io::Result<()> {
    let path = path.to_owned();
    signals::in_time("verdict", FILE_PATIENCE, move || {
        if let Some(output) = stdio::output_into(&path) {
            return stdio::write_all(output.as_raw_fd(), text.as_bytes());
        }
        // If it cannot be made, opening the file says why.
        let _ = path.parent().map(fs::create_dir_all);
        let mut open = fs::OpenOptions::new();
        let file = open.write(true).create(true).truncate(true).custom_flags(libc::O_NONBLOCK).open(path);
        file.and_then(|mut file| file.write_all(text.as_bytes()))
    })
}

/// The verdict within the kubelet's limit: first the sentence is cut, then the metrics go.
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
    fn a_metric_that_is_no_json_number_stays_text() {
        let facts =
            Facts { metrics: [("loss".into(), "nan".into()), ("acc".into(), "0.5".into())].into(), ..Facts::default() };
        let object = object(&not_started(String::new()), &facts);
        assert_eq!((&object["metrics"]["loss"], &object["metrics"]["acc"]), (&json!("nan"), &json!(0.5)));
    }
}
