//! The state of a run as Prometheus' text, version 0.0.4: `trainit_attempt 2`, one series a line, `# HELP` and `# TYPE`
//! before the first of each name. docs/status-page.md has the list for people.
//!
//! Absent knowledge is no series, never a 0. Deliberately absent: arguments, variables and addresses: those may hold
//! secrets, and who may scrape is not ours to say.

use std::fmt::Write as _;
use std::time::Duration;

use super::{Facts, Gpus, METRICS, lag, problem};
use crate::rules::gpu::{Gpu, Health};
use crate::rules::job::{STATES, Told};

/// Its media type.
pub const MEDIA_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

type Labels = Vec<(&'static str, String)>;

const GAUGE: &str = "gauge";
const COUNTER: &str = "counter";

/// Everything there is to say now.
pub fn text(told: &Told, facts: &Facts<'_>) -> String {
    let mut page = Text::default();
    page.all("info", GAUGE, "trainit's version", vec![(vec![("version", facts.version.to_owned())], 1.0)]);
    page.one("uptime_seconds", GAUGE, "Time since trainit started", facts.now.as_secs_f64());
    page.one("healthy", GAUGE, "1: well; 0: /healthz says what is not", flag(problem(told).is_none()));
    let state = |name: &&str| (vec![("state", (*name).to_owned())], flag(*name == told.state));
    page.all("state", GAUGE, "1 for the state the job is in", STATES.iter().map(state).collect());
    page.one("leaving", GAUGE, "1: the job is being stopped, or will be", flag(told.leaving.is_some()));
    let unix = |at: Duration| facts.since_1970(at).as_secs_f64();
    page.maybe("deadline_timestamp_seconds", GAUGE, "When what is left gets SIGKILL", told.kill_at.map(unix));
    page.maybe("machine_gone_timestamp_seconds", GAUGE, "When the machine goes away", told.machine_gone_at.map(unix));
    page.one("attempt", GAUGE, "Starts of the command so far", f64::from(told.attempt));
    let running = told.attempt_at.filter(|_| told.is_running).map(|at| facts.now.saturating_sub(at).as_secs_f64());
    page.maybe("attempt_seconds", GAUGE, "For how long this attempt has run", running);
    page.one("restarts_total", COUNTER, "Restarts so far", f64::from(told.attempt.saturating_sub(1)));
    page.one("restarts_used", GAUGE, "Restarts since the last progress", f64::from(told.restarts_used));
    page.one("restarts_allowed", GAUGE, "So many of those there may be", f64::from(told.restarts_allowed));
    checkpoints(&mut page, told, facts);
    let memory = &facts.memory;
    page.bytes("memory_bytes", "Memory the container uses", memory.current_bytes);
    page.bytes("memory_peak_bytes", "The most it has used", memory.peak_bytes);
    page.bytes("memory_limit_bytes", "What it may use", memory.limit_bytes);
    let value = |(tag, text): (&String, &String)| Some((vec![("tag", tag.clone())], text.trim().parse().ok()?));
    let metrics = facts.metrics.iter().take(METRICS).filter_map(value).collect();
    page.all("metric", GAUGE, "The last value the trainer reported of each metric", metrics);
    if let Some(known) = &facts.gpus {
        gpus(&mut page, known);
    }
    page.0
}

fn checkpoints(page: &mut Text, told: &Told, facts: &Facts<'_>) {
    let step = |step: Option<u64>| step.map(|step| step as f64);
    page.maybe("checkpoint_resumed_step", GAUGE, "The step this attempt went on from", step(told.resumed_step));
    if !told.has_store {
        return;
    }
    let tally = &facts.tally;
    page.maybe("checkpoint_committed_step", GAUGE, "The step of the newest commit", step(told.committed_step));
    let lag = lag(told, facts).map(|lag| lag.as_secs_f64());
    page.maybe("checkpoint_lag_seconds", GAUGE, "Training that would be lost by a death now", lag);
    let help = "Steps the newest complete checkpoint is ahead of the store";
    page.maybe("checkpoint_lag_steps", GAUGE, help, step(tally.behind));
    page.one("checkpoint_commits_total", COUNTER, "Commits made", tally.commits as f64);
    page.one("checkpoint_committed_bytes_total", COUNTER, "Bytes of the files committed", tally.bytes as f64);
    page.one("checkpoint_commit_seconds_total", COUNTER, "How long the commits took", tally.took.as_secs_f64());
    let last = tally.last_at.map(|at| facts.since_1970(at).as_secs_f64());
    page.maybe("checkpoint_last_commit_timestamp_seconds", GAUGE, "When the last commit was through", last);
    let failure = |(cause, count): (&&str, &u64)| (vec![("cause", (*cause).to_owned())], *count as f64);
    let failures = tally.failures.iter().map(failure).collect();
    page.all("checkpoint_failures_total", COUNTER, "Attempts to commit that came to nothing", failures);
}

fn gpus(page: &mut Text, known: &Gpus) {
    let mut gauge = |name: &str, help: &str, value: &dyn Fn(&Gpu) -> Option<f64>| {
        let samples = known.gpus.iter().filter_map(|(gpu, _)| Some((labels(gpu), value(gpu)?)));
        page.all(name, GAUGE, help, samples.collect());
    };
    let share = |gpu: &Gpu| Some(f64::from(gpu.utilization_percent?) / 100.0);
    gauge("gpu_utilization_ratio", "Share of time with a kernel running", &share);
    gauge("gpu_memory_used_bytes", "Memory in use", &|gpu| Some(gpu.memory_used_bytes? as f64));
    gauge("gpu_memory_total_bytes", "Memory of the board", &|gpu| Some(gpu.memory_total_bytes? as f64));
    gauge("gpu_power_watts", "Power drawn", &|gpu| gpu.power_watts);
    gauge("gpu_temperature_celsius", "Of the die", &|gpu| Some(f64::from(gpu.temperature_celsius?)));
    gauge("gpu_healthy", "0: no place to train", &|gpu| match gpu.health {
        Health::Ok | Health::Warn => Some(1.0),
        Health::Bad => Some(0.0),
        Health::Unknown => None,
    });
    let xids = known.xids.iter().map(|xid| {
        let gpu = known.gpus.iter().find(|(gpu, _)| gpu.label() == xid.gpu);
        let mut labels = gpu.map_or_else(|| vec![("gpu", xid.gpu.clone())], |(gpu, _)| labels(gpu));
        labels.push(("xid", xid.xid.to_string()));
        (labels, xid.count as f64)
    });
    page.all("gpu_xids_total", COUNTER, "Errors the driver told of", xids.collect());
}

fn labels(gpu: &Gpu) -> Labels {
    let text = |text: &Option<String>| text.clone().unwrap_or_default();
    vec![("gpu", gpu.index.to_string()), ("uuid", text(&gpu.uuid)), ("name", text(&gpu.name))]
}

fn flag(holds: bool) -> f64 {
    f64::from(u8::from(holds))
}

/// The page so far.
#[derive(Default)]
struct Text(String);

impl Text {
    /// All series of one name; none, and the name is not mentioned.
    fn all(&mut self, name: &str, kind: &str, help: &str, samples: Vec<(Labels, f64)>) {
        // Nothing can fail: it is memory that is written to.
        let _ = match samples.is_empty() {
            true => Ok(()),
            false => writeln!(self.0, "# HELP trainit_{name} {help}\n# TYPE trainit_{name} {kind}"),
        };
        for (labels, value) in samples {
            let _ = write!(self.0, "trainit_{name}");
            for (n, (label, text)) in labels.iter().enumerate() {
                let _ = write!(self.0, "{}{label}=\"", if n == 0 { '{' } else { ',' });
                for c in text.chars() {
                    match c {
                        '\\' => self.0.push_str("\\\\"),
                        '"' => self.0.push_str("\\\""),
                        '\n' => self.0.push_str("\\n"),
                        other => self.0.push(other),
                    }
                }
                self.0.push('"');
            }
            self.0.push_str(if labels.is_empty() { " " } else { "} " });
            let _ = match value {
                f64::INFINITY => writeln!(self.0, "+Inf"),
                f64::NEG_INFINITY => writeln!(self.0, "-Inf"),
                // A number that is none is written as Prometheus has it: NaN.
                number => writeln!(self.0, "{number}"),
            };
        }
    }

    fn one(&mut self, name: &str, kind: &str, help: &str, value: f64) {
        self.all(name, kind, help, vec![(Vec::new(), value)]);
    }

    fn maybe(&mut self, name: &str, kind: &str, help: &str, value: Option<f64>) {
        self.all(name, kind, help, value.map(|value| (Vec::new(), value)).into_iter().collect());
    }

    fn bytes(&mut self, name: &str, help: &str, bytes: Option<u64>) {
        self.maybe(name, GAUGE, help, bytes.map(|bytes| bytes as f64));
    }
}

#[cfg(test)]
mod tests {
    use super::super::tally::Tally;
    use super::super::{Memory, tests};
    use super::*;
    use crate::rules::gpu::ledger::XidCount;

    const SECOND: Duration = Duration::from_secs(1);

    fn told() -> Told {
        Told { restarts_used: 1, ..tests::told() }
    }

    fn facts<'a>() -> Facts<'a> {
        let metrics = [("loss", "0.31"), ("bad", "nan"), ("far", "-inf"), ("word", "best"), ("a \"b\\c\n", "1e3")];
        Facts {
            version: "0.1.0",
            command: "secret",
            now: 4000 * SECOND,
            wall: 1_000_000_000 * SECOND,
            tally: Tally {
                committed_unit: None,
                committed_at: Some(3965 * SECOND),
                behind: Some(40),
                commits: 12,
                bytes: 12_884_901_888,
                took: Duration::from_millis(30_500),
                last_at: Some(3967 * SECOND),
                failures: [("unreachable", 3), ("denied", 1)].into(),
            },
            memory: Memory { current_bytes: Some(5), peak_bytes: Some(6), limit_bytes: None },
            metrics: metrics.map(|(tag, text)| (tag.to_owned(), text.to_owned())).into(),
            ..Facts::default()
        }
    }

    /// The series, without what explains them.
    fn series(told: &Told, facts: &Facts<'_>) -> Vec<String> {
        text(told, facts).lines().filter(|line| !line.starts_with('#')).map(str::to_owned).collect()
    }

    #[test]
    fn a_running_job_is_told_series_by_series() {
        let expected = r#"trainit_info{version="0.1.0"} 1
trainit_uptime_seconds 4000
trainit_healthy 1
trainit_state{state="restoring"} 0
trainit_state{state="gathering"} 0
trainit_state{state="launching"} 0
trainit_state{state="running"} 1
trainit_state{state="stopping"} 0
trainit_state{state="draining"} 0
trainit_state{state="refreshing"} 0
trainit_state{state="waiting"} 0
trainit_state{state="flushing"} 0
trainit_state{state="done"} 0
trainit_leaving 0
trainit_attempt 2
trainit_attempt_seconds 3900
trainit_restarts_total 1
trainit_restarts_used 1
trainit_restarts_allowed 3
trainit_checkpoint_resumed_step 400
trainit_checkpoint_committed_step 520
trainit_checkpoint_lag_seconds 35
trainit_checkpoint_lag_steps 40
trainit_checkpoint_commits_total 12
trainit_checkpoint_committed_bytes_total 12884901888
trainit_checkpoint_commit_seconds_total 30.5
trainit_checkpoint_last_commit_timestamp_seconds 999999967
trainit_checkpoint_failures_total{cause="denied"} 1
trainit_checkpoint_failures_total{cause="unreachable"} 3
trainit_memory_bytes 5
trainit_memory_peak_bytes 6
trainit_metric{tag="a \"b\\c\n"} 1000
trainit_metric{tag="bad"} NaN
trainit_metric{tag="far"} -Inf
trainit_metric{tag="loss"} 0.31"#;
        assert_eq!(series(&told(), &facts()).join("\n"), expected);
        assert!(!text(&told(), &facts()).contains("secret"), "the command is nobody's affair");
    }

    #[test]
    fn each_name_is_explained_once_and_before_its_series() {
        let text = text(&told(), &facts());
        let mut known: Vec<&str> = Vec::new();
        for line in text.lines() {
            let name = line.trim_start_matches("# HELP ").split([' ', '{']).next().unwrap_or_default();
            match line.strip_prefix("# TYPE ") {
                Some(rest) => {
                    let (name, kind) = rest.split_once(' ').expect("a kind");
                    assert_eq!(kind == COUNTER, name.ends_with("_total"), "{name}");
                }
                None if line.starts_with("# HELP ") => {
                    assert!(!known.contains(&name), "{name} is explained twice");
                    known.push(name);
                }
                None => assert_eq!(known.last(), Some(&name), "{line}"),
            }
        }
        assert!(text.starts_with("# HELP trainit_info trainit's version\n# TYPE trainit_info gauge\ntrainit_info{"));
        assert!(text.ends_with('\n'));
    }

    #[test]
    fn what_is_not_known_is_no_series() {
        let told = Told { has_store: false, resumed_step: None, is_running: false, ..told() };
        let facts = Facts { memory: Memory::default(), metrics: Default::default(), ..facts() };
        for name in ["checkpoint", "memory", "metric", "gpu", "attempt_seconds", "deadline", "machine"] {
            let found = text(&told, &facts).lines().find(|line| line.contains(&format!("trainit_{name}"))).is_some();
            assert!(!found, "{name}");
        }
    }

    #[test]
    fn a_stop_is_told_with_its_deadline_and_a_failure_as_one() {
        let told = Told {
            state: "stopping",
            leaving: Some("GPU 1: lost".into()),
            is_failing: true,
            kill_at: Some(4025 * SECOND),
            machine_gone_at: Some(3990 * SECOND),
            ..told()
        };
        let all = series(&told, &facts());
        for line in [
            "trainit_healthy 0",
            "trainit_leaving 1",
            "trainit_state{state=\"stopping\"} 1",
            "trainit_deadline_timestamp_seconds 1000000025",
            "trainit_machine_gone_timestamp_seconds 999999990",
        ] {
            assert!(all.iter().any(|l| l == line), "{line}: {all:#?}");
        }
    }

    #[test]
    fn gpus_are_told_apart_and_an_xid_is_its_gpus() {
        let gpu = Gpu {
            index: 3,
            uuid: Some("GPU-x".into()),
            name: Some("H100".into()),
            utilization_percent: Some(97),
            memory_used_bytes: Some(1 << 30),
            memory_total_bytes: Some(80 << 30),
            power_watts: Some(70.5),
            health: Health::Bad,
            ..Gpu::default()
        };
        let xid = |gpu: String| XidCount { gpu, xid: 79, count: 2 };
        let xids = vec![xid(gpu.label()), xid("GPU 9 (gone)".into())];
        let gpus = Gpus { gpus: vec![(gpu, Vec::new()), (Gpu::default(), Vec::new())], blind: None, xids };
        let all = series(&told(), &Facts { gpus: Some(gpus), ..facts() });
        let of_gpus: Vec<&str> = all.iter().filter_map(|line| line.strip_prefix("trainit_gpu_")).collect();
        let expected = [
            r#"utilization_ratio{gpu="3",uuid="GPU-x",name="H100"} 0.97"#,
            r#"memory_used_bytes{gpu="3",uuid="GPU-x",name="H100"} 1073741824"#,
            r#"memory_total_bytes{gpu="3",uuid="GPU-x",name="H100"} 85899345920"#,
            r#"power_watts{gpu="3",uuid="GPU-x",name="H100"} 70.5"#,
            r#"healthy{gpu="3",uuid="GPU-x",name="H100"} 0"#,
            r#"xids_total{gpu="3",uuid="GPU-x",name="H100",xid="79"} 2"#,
            r#"xids_total{gpu="GPU 9 (gone)",xid="79"} 2"#,
        ];
        assert_eq!(of_gpus, expected);
    }

    #[test]
    fn the_page_for_people_lists_each_series_and_no_other() {
        let gpu = Gpu {
            utilization_percent: Some(1),
            memory_used_bytes: Some(1),
            memory_total_bytes: Some(1),
            power_watts: Some(1.0),
            temperature_celsius: Some(1),
            health: Health::Ok,
            ..Gpu::default()
        };
        let xids = vec![XidCount { gpu: gpu.label(), xid: 79, count: 1 }];
        let gpus = Gpus { gpus: vec![(gpu, Vec::new())], blind: None, xids };
        let told = Told { kill_at: Some(SECOND), machine_gone_at: Some(SECOND), ..told() };
        let memory = Memory { limit_bytes: Some(7), ..facts().memory };
        let text = text(&told, &Facts { gpus: Some(gpus), memory, ..facts() });
        let names = text.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split(' ').next());
        let page = include_str!("../../../docs/status-page.md");
        let listed = page.lines().filter_map(|line| line.strip_prefix("| `trainit_")?.split('`').next());
        assert_eq!(listed.map(|name| format!("trainit_{name}")).collect::<Vec<_>>(), names.collect::<Vec<_>>());
    }

    #[test]
    fn a_trainer_with_thousands_of_metrics_does_not_flood_who_scrapes() {
        let metrics = (0..5000).map(|n| (format!("m{n}"), "1".to_owned())).collect();
        let all = series(&told(), &Facts { metrics, ..facts() });
        assert_eq!(all.iter().filter(|line| line.starts_with("trainit_metric{")).count(), METRICS);
    }
}
