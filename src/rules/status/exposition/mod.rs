//! The state of a run in Prometheus' text format, version 0.0.4: one sample a line, such as `trainit_attempt 2`, with
//! `# HELP` and `# TYPE` before the first sample of each name. docs/status-page.md lists all names.
//!
//! An unknown value is omitted, never written as 0. Deliberately absent: arguments, variables and addresses, because
//! they may hold secrets and any process may be allowed to scrape.

use std::fmt::Write as _;
use std::time::Duration;

use super::{Facts, Gpus, METRICS, lag, problem};
use crate::gang::view::MemberView;
use crate::gpu::{Gpu, Health};
use crate::job::goodput::Cause;
use crate::job::{STATES, Snapshot};

/// Its media type.
pub const MEDIA_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// Names and values.
pub type Labels = Vec<(&'static str, String)>;

const GAUGE: &str = "gauge";
const COUNTER: &str = "counter";

/// The samples of one name.
#[derive(Debug, Clone, PartialEq)]
pub struct Series {
    /// Without the prefix `trainit_`.
    pub name: &'static str,
    /// Whether it only grows during a run.
    pub is_counter: bool,
    /// One line.
    pub help: &'static str,
    /// Each with its labels.
    pub samples: Vec<(Labels, f64)>,
}

/// The whole page.
pub fn text(snapshot: &Snapshot, facts: &Facts) -> String {
    let mut text = String::new();
    for Series { name, is_counter, help, samples } in series(snapshot, facts) {
        let kind = if is_counter { COUNTER } else { GAUGE };
        // Writing to a String cannot fail.
        let _ = writeln!(text, "# HELP trainit_{name} {help}\n# TYPE trainit_{name} {kind}");
        samples.iter().for_each(|(labels, value)| write_sample(&mut text, name, labels, *value));
    }
    text
}

fn write_sample(text: &mut String, name: &str, labels: &Labels, value: f64) {
    let _ = write!(text, "trainit_{name}");
    for (n, (label, value)) in labels.iter().enumerate() {
        let _ = write!(text, "{}{label}=\"", if n == 0 { '{' } else { ',' });
        for c in value.chars() {
            match c {
                '\\' => text.push_str("\\\\"),
                '"' => text.push_str("\\\""),
                '\n' => text.push_str("\\n"),
                other => text.push(other),
            }
        }
        text.push('"');
    }
    text.push_str(if labels.is_empty() { " " } else { "} " });
    let _ = match value {
        f64::INFINITY => writeln!(text, "+Inf"),
        f64::NEG_INFINITY => writeln!(text, "-Inf"),
        // NaN is written as Prometheus expects it: NaN.
        number => writeln!(text, "{number}"),
    };
}

/// Every series that has a sample now.
pub fn series(snapshot: &Snapshot, facts: &Facts) -> Vec<Series> {
    let mut page = Builder::default();
    page.all("info", GAUGE, "trainit's version", vec![(vec![("version", facts.version.to_owned())], 1.0)]);
    page.one("uptime_seconds", GAUGE, "Time since trainit started", facts.now.as_secs_f64());
    page.one("healthy", GAUGE, "1: healthy; 0: /healthz names the problem", number(problem(snapshot).is_none()));
    let state = |name: &&str| (vec![("state", (*name).to_owned())], number(*name == snapshot.state));
    page.all("state", GAUGE, "1 for the state the job is in", STATES.iter().map(state).collect());
    page.one("leaving", GAUGE, "1: the job is being stopped, or will be", number(snapshot.leaving.is_some()));
    let unix = |at: Duration| facts.since_1970(at).as_secs_f64();
    page.maybe(
        "deadline_timestamp_seconds",
        GAUGE,
        "When the remaining processes get SIGKILL",
        snapshot.kill_at.map(unix),
    );
    page.maybe(
        "machine_gone_timestamp_seconds",
        GAUGE,
        "When the machine goes away",
        snapshot.machine_gone_at.map(unix),
    );
    page.one("attempt", GAUGE, "Starts of the command so far", f64::from(snapshot.attempt));
    let running =
        snapshot.attempt_at.filter(|_| snapshot.is_running).map(|at| facts.now.saturating_sub(at).as_secs_f64());
    page.maybe("attempt_seconds", GAUGE, "Running time of this attempt", running);
    page.one("restarts_total", COUNTER, "Restarts so far", f64::from(snapshot.attempt.saturating_sub(1)));
    page.one("restarts_used", GAUGE, "Restarts since the last progress", f64::from(snapshot.restarts_used));
    page.one("restarts_allowed", GAUGE, "Restarts allowed without progress", f64::from(snapshot.restarts_allowed));
    let goodput = facts.goodput.millis();
    let cause = |(cause, millis): &(Cause, u64)| (vec![("cause", cause.word().to_owned())], *millis as f64 / 1000.0);
    page.all("goodput_seconds", GAUGE, "The time of the run by cause", goodput.iter().map(cause).collect());
    page.maybe("step", GAUGE, "The present step of the trainer", facts.step.map(|step| step as f64));
    page.maybe("steps_per_second", GAUGE, "Steps a second over the last minute", facts.steps_per_second);
    checkpoints(&mut page, snapshot, facts);
    let memory = &facts.memory;
    page.bytes("memory_bytes", "Memory the container uses", memory.current_bytes);
    page.bytes("memory_peak_bytes", "Peak of memory_bytes", memory.peak_bytes);
    page.bytes("memory_limit_bytes", "Memory limit of the container", memory.limit_bytes);
    let value = |(tag, text): (&String, &String)| Some((vec![("tag", tag.clone())], text.trim().parse().ok()?));
    let metrics = facts.metrics.iter().take(METRICS).filter_map(value).collect();
    page.all("metric", GAUGE, "The last value the trainer reported of each metric", metrics);
    if let Some(gang) = &facts.gang {
        page.one("gang_generation", GAUGE, "The newest common start of the gang's replicas", gang.generation as f64);
        page.one("gang_waiting_for", GAUGE, "Replicas that the gang waits for", gang.waiting_for.len() as f64);
        let members = gang.members.iter().flatten();
        let member = |m: &MemberView| {
            (vec![("seat", m.seat.to_string()), ("host", m.host.clone()), ("state", m.state.to_owned())], 1.0)
        };
        page.all(
            "gang_member",
            GAUGE,
            "1 for each replica of the gang, in the leader's run",
            members.map(member).collect(),
        );
    }
    if let Some(watched) = &facts.gpus {
        gpus(&mut page, watched);
    }
    page.0
}

fn checkpoints(page: &mut Builder, snapshot: &Snapshot, facts: &Facts) {
    let step = |step: Option<u64>| step.map(|step| step as f64);
    page.maybe("checkpoint_resumed_step", GAUGE, "The step this attempt resumed from", step(snapshot.resumed_step));
    if !snapshot.has_store {
        return;
    }
    let tally = &facts.tally;
    page.maybe("checkpoint_committed_step", GAUGE, "The step of the newest commit", step(snapshot.committed_step));
    let lag = lag(snapshot, facts).map(|lag| lag.as_secs_f64());
    page.maybe("checkpoint_lag_seconds", GAUGE, "Training that would be lost if the job died now", lag);
    let help = "Steps the newest complete checkpoint is ahead of the store";
    page.maybe("checkpoint_lag_steps", GAUGE, help, step(tally.behind));
    page.one("checkpoint_commits_total", COUNTER, "Commits made", tally.commits as f64);
    page.one("checkpoint_committed_bytes_total", COUNTER, "Bytes of the files committed", tally.bytes as f64);
    page.one("checkpoint_commit_seconds_total", COUNTER, "How long the commits took", tally.took.as_secs_f64());
    let last = tally.last_at.map(|at| facts.since_1970(at).as_secs_f64());
    page.maybe("checkpoint_last_commit_timestamp_seconds", GAUGE, "When the last commit was complete", last);
    let failure = |(cause, count): (&&str, &u64)| (vec![("cause", (*cause).to_owned())], *count as f64);
    let failures = tally.failures.iter().map(failure).collect();
    page.all("checkpoint_failures_total", COUNTER, "Commits that failed", failures);
}

fn gpus(page: &mut Builder, watched: &Gpus) {
    let mut gauge = |name: &'static str, help: &'static str, value: &dyn Fn(&Gpu) -> Option<f64>| {
        let samples = watched.gpus.iter().filter_map(|(gpu, _)| Some((labels(gpu), value(gpu)?)));
        page.all(name, GAUGE, help, samples.collect());
    };
    let share = |gpu: &Gpu| Some(f64::from(gpu.utilization_percent?) / 100.0);
    gauge("gpu_utilization_ratio", "Share of time in which a kernel ran", &share);
    gauge("gpu_memory_used_bytes", "Memory in use", &|gpu| Some(gpu.memory_used_bytes? as f64));
    gauge("gpu_memory_total_bytes", "Memory of the GPU", &|gpu| Some(gpu.memory_total_bytes? as f64));
    gauge("gpu_power_watts", "Power drawn", &|gpu| gpu.power_watts);
    gauge("gpu_temperature_celsius", "Temperature of the GPU", &|gpu| Some(f64::from(gpu.temperature_celsius?)));
    gauge("gpu_healthy", "0: unfit for training", &|gpu| match gpu.health {
        Health::Ok | Health::Warn => Some(1.0),
        Health::Bad => Some(0.0),
        Health::Unknown => None,
    });
    let xids = watched.xids.iter().map(|xid| {
        let gpu = watched.gpus.iter().find(|(gpu, _)| gpu.label() == xid.gpu);
        let mut labels = gpu.map_or_else(|| vec![("gpu", xid.gpu.clone())], |(gpu, _)| labels(gpu));
        labels.push(("xid", xid.xid.to_string()));
        (labels, xid.count as f64)
    });
    page.all("gpu_xids_total", COUNTER, "Errors reported by the driver", xids.collect());
}

fn labels(gpu: &Gpu) -> Labels {
    let text = |text: &Option<String>| text.clone().unwrap_or_default();
    vec![("gpu", gpu.index.to_string()), ("uuid", text(&gpu.uuid)), ("name", text(&gpu.name))]
}

fn number(holds: bool) -> f64 {
    f64::from(u8::from(holds))
}

/// The series under construction.
#[derive(Default)]
struct Builder(Vec<Series>);

impl Builder {
    /// All samples of one name. A name without samples is omitted.
    fn all(&mut self, name: &'static str, kind: &'static str, help: &'static str, samples: Vec<(Labels, f64)>) {
        if !samples.is_empty() {
            self.0.push(Series { name, is_counter: kind == COUNTER, help, samples });
        }
    }

    fn one(&mut self, name: &'static str, kind: &'static str, help: &'static str, value: f64) {
        self.all(name, kind, help, vec![(Vec::new(), value)]);
    }

    fn maybe(&mut self, name: &'static str, kind: &'static str, help: &'static str, value: Option<f64>) {
        self.all(name, kind, help, value.map(|value| (Vec::new(), value)).into_iter().collect());
    }

    fn bytes(&mut self, name: &'static str, help: &'static str, bytes: Option<u64>) {
        self.maybe(name, GAUGE, help, bytes.map(|bytes| bytes as f64));
    }
}

#[cfg(test)]
mod tests;
