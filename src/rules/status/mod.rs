//! The status of a run: the JSON object of its answer, and the text that `trainit status` prints for it.
//!
//! An unknown value is null. Deliberately absent: sockets and callers.

pub mod exposition;
mod gang_line;
pub mod history;
pub mod html;
pub mod page;
pub mod sibling;
pub mod tally;

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::time::Duration;

use serde::Serialize;
use serde_json::{Map, Value};

use crate::gang::view::View;
use crate::gpu::Gpu;
use crate::gpu::ledger::XidCount;
use crate::gpu::watch::Sample;
use crate::job::goodput::Totals;
use crate::job::{Snapshot, Uptime};
pub use crate::text::quantity::{span, three_digits};
use crate::text::safe_text::printable;
use gang_line::gang_line;
use sibling::Kept;
use tally::Tally;

/// The limit of samples for each GPU: ten minutes at the default interval. The answer must fit a socket's buffer.
const SAMPLES: usize = 60;
/// The limit of metrics, for the same reason.
const METRICS: usize = 200;

/// Facts that the job machine does not know.
#[derive(Debug, Default)]
pub struct Facts {
    /// trainit's version.
    pub version: &'static str,
    /// trainit's process id, in its own PID namespace.
    pub pid: u32,
    /// The command's name, without its arguments: those may hold secrets.
    pub command: String,
    /// Which replica of which job this is.
    pub who: Who,
    /// The main children that live, by local rank.
    pub children: Vec<i32>,
    /// Now.
    pub now: Uptime,
    /// Now, since 1970.
    pub wall: Duration,
    /// The time of the run by cause.
    pub goodput: Totals,
    /// The commits so far.
    pub tally: Tally,
    /// The checkpoint directory and the store.
    pub kept: Option<Kept>,
    /// The job's memory.
    pub memory: Memory,
    /// The last value of each metric, as the trainer reported it.
    pub metrics: BTreeMap<String, String>,
    /// The present step of the attempt.
    pub step: Option<u64>,
    /// The training's last step.
    pub total_steps: Option<u64>,
    /// Its steps a second.
    pub steps_per_second: Option<f64>,
    /// The GPUs with their samples, oldest first; `None` if no GPU watch runs.
    pub gpus: Option<Gpus>,
    /// The gang, if the job is part of one.
    pub gang: Option<View>,
}

impl Facts {
    /// A time of the run, past or future, as time since 1970.
    fn since_1970(&self, at: Uptime) -> Duration {
        (self.wall + at.saturating_sub(self.now)).saturating_sub(self.now.saturating_sub(at))
    }
}

/// A replica, for people. What is not known is absent.
#[derive(Debug, Clone, Default)]
pub struct Who {
    /// Its host.
    pub host: Option<String>,
    /// The platform that placed it.
    pub platform: Option<String>,
    /// Its rank, and the number of replicas.
    pub rank: Option<String>,
    /// The platform's name of the job.
    pub job: Option<String>,
}

/// Memory in bytes; that of the container, if it has a limit.
#[derive(Debug, Clone, Copy, Default)]
pub struct Memory {
    /// Now.
    pub current_bytes: Option<u64>,
    /// The peak so far; without a limit, the peak of the largest process that has ended.
    pub peak_bytes: Option<u64>,
    /// The limit.
    pub limit_bytes: Option<u64>,
}

/// The state of the GPU watch.
#[derive(Debug, Default)]
pub struct Gpus {
    /// Each GPU with its last samples.
    pub gpus: Vec<(Gpu, Vec<Sample>)>,
    /// Why no readings are available at present.
    pub unavailable: Option<String>,
    /// The XIDs so far, with their counts.
    pub xids: Vec<XidCount>,
}

/// The object of `trainit status --json`. Durations in seconds.
#[derive(Debug, Serialize)]
struct Status<'a> {
    version: &'a str,
    pid: u32,
    state: &'static str,
    healthy: bool,
    problem: Option<String>,
    uptime_seconds: f64,
    command: &'a str,
    child_pids: &'a [i32],
    attempt: u32,
    restarts: u32,
    /// Since the last progress.
    restarts_used: u32,
    restarts_allowed: u32,
    attempt_seconds: Option<f64>,
    /// Seconds by cause.
    goodput: Totals,
    checkpoint: Option<Checkpoint<'a>>,
    leaving: Option<Leaving>,
    step: Option<u64>,
    steps_per_second: Option<f64>,
    metrics: Map<String, Value>,
    gpus: Option<Vec<GpuStatus<'a>>>,
    gpu_problem: Option<&'a str>,
    xids: Option<&'a [XidCount]>,
    #[serde(skip_serializing_if = "Option::is_none")]
    gang: Option<&'a View>,
}

#[derive(Debug, Serialize)]
struct Checkpoint<'a> {
    #[serde(flatten)]
    kept: Option<&'a Kept>,
    resumed_from: Option<&'a str>,
    resumed_step: Option<u64>,
    committed_step: Option<u64>,
    /// The newest checkpoint that this run has committed, whether its name has a step or not.
    committed_unit: Option<String>,
    /// Training that would be lost if the job died now.
    lag_seconds: Option<f64>,
    /// Steps that the newest complete checkpoint is ahead of the store; 0: the store has it.
    lag_steps: Option<u64>,
}

#[derive(Debug, Serialize)]
struct Leaving {
    reason: String,
    /// RFC 3339: when the remaining processes get SIGKILL.
    deadline: Option<String>,
    seconds_left: Option<f64>,
    /// RFC 3339, if it was announced.
    machine_gone: Option<String>,
}

#[derive(Debug, Serialize)]
struct GpuStatus<'a> {
    #[serde(flatten)]
    gpu: &'a Gpu,
    samples: Samples,
}

/// Columns, oldest first.
#[derive(Debug, Default, Serialize)]
struct Samples {
    seconds_ago: Vec<f64>,
    utilization_percent: Vec<Option<u32>>,
    memory_used_bytes: Vec<Option<u64>>,
    power_watts: Vec<Option<f64>>,
    temperature_celsius: Vec<Option<u32>>,
}

/// The answer: one line.
pub fn answer(snapshot: &Snapshot, facts: &Facts) -> String {
    let now = facts.now;
    let rfc3339 = |at| humantime::format_rfc3339_millis(std::time::UNIX_EPOCH + facts.since_1970(at)).to_string();
    let checkpoint = snapshot.has_store.then(|| Checkpoint {
        kept: facts.kept.as_ref(),
        resumed_from: snapshot.resumed_from.as_deref(),
        resumed_step: snapshot.resumed_step,
        committed_step: snapshot.committed_step,
        committed_unit: facts.tally.committed_unit.clone(),
        lag_seconds: lag(snapshot, facts).map(seconds),
        lag_steps: facts.tally.behind,
    });
    let leaving = snapshot.leaving.clone().map(|reason| Leaving {
        reason,
        deadline: snapshot.kill_at.map(rfc3339),
        seconds_left: snapshot.kill_at.map(|at| seconds(at.saturating_sub(now))),
        machine_gone: snapshot.machine_gone_at.map(rfc3339),
    });
    let problem = problem(snapshot);
    let gpus = facts.gpus.as_ref();
    let status = Status {
        version: facts.version,
        pid: facts.pid,
        state: snapshot.state,
        healthy: problem.is_none(),
        problem,
        uptime_seconds: seconds(now),
        command: &facts.command,
        child_pids: &facts.children,
        attempt: snapshot.attempt,
        restarts: snapshot.attempt.saturating_sub(1),
        restarts_used: snapshot.restarts_used,
        restarts_allowed: snapshot.restarts_allowed,
        attempt_seconds: snapshot.attempt_at.filter(|_| snapshot.is_running).map(|at| seconds(now.saturating_sub(at))),
        goodput: facts.goodput,
        checkpoint,
        leaving,
        step: facts.step,
        steps_per_second: facts.steps_per_second.map(|pace| (pace * 1000.0).round() / 1000.0),
        metrics: facts.metrics.iter().take(METRICS).map(|(tag, text)| (tag.clone(), metric(text))).collect(),
        gpus: gpus.map(|gpus| {
            let last = |all: &[Sample]| columns(now, &all[all.len().saturating_sub(SAMPLES)..]);
            gpus.gpus.iter().map(|(gpu, all)| GpuStatus { gpu, samples: last(all) }).collect()
        }),
        gpu_problem: gpus.and_then(|gpus| gpus.unavailable.as_deref()),
        xids: gpus.map(|gpus| gpus.xids.as_slice()),
        gang: facts.gang.as_ref(),
    };
    // Maps with text keys and plain numbers always have a JSON form.
    serde_json::to_string(&status).unwrap_or_default() + "\n"
}

/// Why the run is unhealthy.
fn problem(snapshot: &Snapshot) -> Option<String> {
    snapshot.leaving.clone().filter(|_| snapshot.is_failing)
}

/// Training that would be lost if the job died now; `None` while the command does not run.
fn lag(snapshot: &Snapshot, facts: &Facts) -> Option<Duration> {
    let start = [facts.tally.committed_at, snapshot.attempt_at].into_iter().flatten().max();
    start.filter(|_| snapshot.is_running).map(|at| facts.now.saturating_sub(at))
}

/// A metric as a number if JSON has one for it, else as its text.
pub fn metric(text: &str) -> Value {
    let number = text.parse::<f64>().ok().and_then(serde_json::Number::from_f64);
    number.map_or_else(|| Value::from(text), Value::Number)
}

fn columns(now: Uptime, samples: &[Sample]) -> Samples {
    let mut columns = Samples::default();
    for sample in samples {
        columns.seconds_ago.push(seconds(now.saturating_sub(sample.at)));
        columns.utilization_percent.push(sample.utilization_percent);
        columns.memory_used_bytes.push(sample.memory_used_bytes);
        columns.power_watts.push(sample.power_watts);
        columns.temperature_celsius.push(sample.temperature_celsius);
    }
    columns
}

/// In seconds, rounded to a tenth.
fn seconds(duration: Duration) -> f64 {
    (duration.as_secs_f64() * 10.0).round() / 10.0
}

/// Reads an answer. Errors: it is not a status, or was cut off.
pub fn parse(text: &str) -> Result<Value, String> {
    match serde_json::from_str::<Value>(text) {
        Ok(value) if value["state"].is_string() => Ok(value),
        _ if text.is_empty() => {
            Err("it closed the connection without an answer; does it run as another user?".to_owned())
        }
        _ => Err("its answer is not a status".to_owned()),
    }
}

/// For a health check: whether the run is healthy, and one line about it.
pub fn check(status: &Value) -> (bool, String) {
    match status["problem"].as_str() {
        Some(problem) => (false, format!("unhealthy: {}", printable(problem))),
        None => (true, format!("healthy: {}", headline(status))),
    }
}

/// `running (attempt 2, up 3m 20s): python`.
pub fn headline(status: &Value) -> String {
    let up = status["uptime_seconds"].as_f64().unwrap_or_default();
    let attempt = status["attempt"].as_u64().filter(|n| *n > 0).map(|n| format!("attempt {n}, "));
    format!(
        "{} ({}up {}): {}",
        text(&status["state"]),
        attempt.unwrap_or_default(),
        span(up),
        printable(status["command"].as_str().unwrap_or("?"))
    )
}

/// For people: a line for each known fact.
pub fn render(status: &Value) -> String {
    let mut out = headline(status);
    let mut line = |name: &str, text: String| {
        let _ = write!(out, "\n{name:<11} {text}");
    };
    let pids: Vec<String> = status["child_pids"].as_array().into_iter().flatten().map(text).collect();
    if !pids.is_empty() {
        let (used, allowed) = (text(&status["restarts_used"]), text(&status["restarts_allowed"]));
        let all = Some(text(&status["restarts"])).filter(|all| *all != used).map(|all| format!(" ({all} in all)"));
        let since = status["attempt_seconds"].as_f64().map(|s| format!(" for {}", span(s))).unwrap_or_default();
        let all = all.unwrap_or_default();
        line("process", format!("pid {}{since}, {used} of {allowed} restarts used{all}", pids.join(", ")));
    }
    if let Some(problem) = status["problem"].as_str() {
        line("problem", printable(problem));
    }
    if let Some(leaving) = status["leaving"].as_object() {
        let by = |key: &str, what: &str| {
            leaving.get(key).and_then(Value::as_str).map(|at| format!("; {what} {at}")).unwrap_or_default()
        };
        let left = leaving.get("seconds_left").and_then(Value::as_f64).map(|s| format!(" (in {})", span(s)));
        let reason = leaving.get("reason").and_then(Value::as_str).unwrap_or_default();
        let (kill, gone) = (by("deadline", "SIGKILL at"), by("machine_gone", "the machine goes away at"));
        line("leaving", format!("{}{kill}{}{gone}", printable(reason), left.unwrap_or_default()));
    }
    if let Some(checkpoint) = status["checkpoint"].as_object() {
        let step = |key: &str| checkpoint.get(key).and_then(Value::as_u64);
        let unit = || checkpoint.get("committed_unit").and_then(Value::as_str).map(printable);
        let what = step("committed_step").map(|n| format!("step {n}")).or_else(unit);
        let committed = format!("{} committed", what.as_deref().unwrap_or("nothing"));
        let resumed = step("resumed_step").map(|n| format!(", resumed from step {n}")).unwrap_or_default();
        let since = if what.is_some() { "ago" } else { "of training would be lost now" };
        let lag = checkpoint.get("lag_seconds").and_then(Value::as_f64).map(|s| format!(", {} {since}", span(s)));
        let behind = step("lag_steps").filter(|n| *n > 0).map(|n| format!(", {n} steps behind"));
        line("checkpoint", format!("{committed}{}{}{resumed}", lag.unwrap_or_default(), behind.unwrap_or_default()));
    }
    if let Some(step) = status["step"].as_u64() {
        line("step", step_line(step, status["steps_per_second"].as_f64()));
    }
    if let Some(gang) = status["gang"].as_object() {
        line("gang", gang_line(gang));
    }
    if let Some(metrics) = status["metrics"].as_object().filter(|metrics| !metrics.is_empty()) {
        let pairs: Vec<String> =
            metrics.iter().map(|(tag, value)| format!("{} {}", printable(tag), text(value))).collect();
        line("metrics", pairs.join(", "));
    }
    for gpu in status["gpus"].as_array().into_iter().flatten() {
        line(&format!("GPU {}", text(&gpu["index"])), gpu_line(gpu));
    }
    if let Some(problem) = status["gpu_problem"].as_str() {
        line("GPUs", format!("no readings at present: {}", printable(problem)));
    }
    for xid in status["xids"].as_array().into_iter().flatten() {
        line("XID", format!("{} x {} on {}", text(&xid["xid"]), text(&xid["count"]), text(&xid["gpu"])));
    }
    out + "\n"
}

fn gpu_line(gpu: &Value) -> String {
    let with = |key: &str, unit: &str| gpu[key].as_f64().map(|number| format!("{number:.0}{unit}"));
    let mib = |key: &str| gpu[key].as_u64().map(|bytes| bytes >> 20);
    let memory = match (mib("memory_used_bytes"), mib("memory_total_bytes")) {
        (Some(used), Some(total)) => Some(format!("{used}/{total} MiB")),
        _ => None,
    };
    let health = gpu["health_reason"].as_str().map(|reason| format!(": {reason}")).unwrap_or_default();
    let parts = [
        gpu["name"].as_str().map(str::to_owned),
        with("utilization_percent", "%"),
        memory,
        with("temperature_celsius", " C"),
        with("power_watts", " W"),
        Some(format!("{}{health}", text(&gpu["health"]))),
    ];
    printable(&parts.into_iter().flatten().collect::<Vec<_>>().join(", "))
}

/// A JSON value without quotes or control characters.
fn text(value: &Value) -> String {
    printable(&value.as_str().map_or_else(|| value.to_string(), str::to_owned))
}

/// `1200 (2.5 a second)`.
fn step_line(step: u64, per_second: Option<f64>) -> String {
    per_second.map_or(step.to_string(), |pace| format!("{step} ({} a second)", three_digits(pace)))
}

#[cfg(test)]
mod tests;
