//! `trainit run -- COMMAND`: settings and environment cut into a job, supervised, its verdict published.

use std::path::Path;

use tracing::Level;

use super::checkpoint::mirror_config;
use super::report_metric::PATIENCE as METRICS_PATIENCE;
use super::values;
use crate::cli::Parsed;
use crate::edge::clock::Clock;
use crate::edge::metrics_file::MetricsFile;
use crate::edge::signals::Mask;
use crate::edge::{gpu, machine, stdio};
use crate::rules::env::{Changes, Env};
use crate::rules::job::ChildFacts;
use crate::rules::preempt;
use crate::settings::layers::unknown_variables;
use crate::settings::metrics::{Collected, Target};
use crate::settings::run::{LogFormat, LogLevel, RunSettings, read};
use crate::settings::{self, Reader};
use crate::supervisor::{self, Job, Lookout, Metrics, Work};
use crate::telemetry::log::{self, Format};
use crate::telemetry::verdict::{self, Facts};

/// Supervises the command; returns trainit's exit code.
#[inline(never)]
pub fn main(parsed: Parsed, env: Env, mask: Mask) -> u8 {
    let clock = Clock::start();
    stdio::hold_closed();
    let (values, complaints) = values(&parsed, &env);
    let mut reader = Reader::new(&values, complaints);
    let settings = read(&mut reader);
    let checkpoints = settings::checkpoint::Checkpoints::read(&mut reader);
    let collected = settings::metrics::collected(&mut reader, &env);
    start_log(&settings);
    let mut mistakes: Vec<String> = reader.complaints.iter().map(ToString::to_string).collect();
    if parsed.operands.is_empty() {
        mistakes.push("no command given; write it after --, as in: trainit run -- python -m trainer.task".to_owned());
    }
    if !mistakes.is_empty() {
        return not_started(&mistakes, settings.verdict_file.as_deref(), None);
    }
    for warning in unknown_variables(&env) {
        tracing::warn!(code = "unknown_variable", "{warning}");
    }
    let lookout = preempt::pick(settings.preemption, &env, &machine::local_facts)
        .map(|(source, endpoint)| Lookout { source, endpoint });
    let job = Job {
        policy: settings.policy,
        argv: parsed.operands,
        env,
        changes: Changes::default(),
        facts: ChildFacts {
            checkpoint_dir: reader.text("checkpoint-dir"),
            gpu_count: gpu::device_count() as usize,
            ..ChildFacts::default()
        },
        death_signal: settings.death_signal,
        mask,
        metrics: collected.map(metrics),
    };
    let work = Work { checkpoints: kept(checkpoints, &job.env), lookout };
    match supervisor::run(job, work, clock) {
        Ok(ended) => {
            let facts = Facts {
                peak_memory_bytes: ended.peak_memory_bytes,
                seconds: clock.now().as_secs_f64(),
                metrics: ended.metrics,
            };
            verdict::publish(&ended.outcome, &facts, settings.verdict_file.as_deref(), None);
            ended.outcome.exit_code
        }
        Err(error) => {
            not_started(&[format!("the supervisor cannot start: {error}")], settings.verdict_file.as_deref(), None)
        }
    }
}

/// What to look for, and the one file that it goes to.
fn metrics(collected: Collected) -> Metrics {
    for warning in &collected.warnings {
        tracing::warn!("{warning}");
    }
    let Target { path, keep, trial } = collected.target;
    Metrics {
        patterns: collected.patterns,
        stdout: collected.stdout,
        stderr: collected.stderr,
        file: MetricsFile { path, keep, fsync: false, patience: METRICS_PATIENCE },
        trial,
        tuned_trial: collected.tuned_trial,
        tuned_tag: collected.tuned_tag,
    }
}

/// The checkpoints to keep, if there is a directory.
fn kept(settings: settings::checkpoint::Checkpoints, env: &Env) -> Option<supervisor::Checkpoints> {
    settings.dir.as_ref()?;
    let (interval, settle) = (settings.interval, settings.settle);
    let claim = settings.store.is_some();
    Some(supervisor::Checkpoints { mirror: mirror_config(settings, 0, claim, env), interval, settle })
}

/// A command line that could not even be read: the same verdict, in the form the environment asks for.
pub fn refuse(line: String, env: &Env) -> u8 {
    let format = match env.given("TRAINIT_LOG_FORMAT") {
        Some("text") => Format::Text,
        Some("json") => Format::Json,
        _ => log::auto_format(),
    };
    log::start(format, Level::INFO);
    not_started(&[line], None, None)
}

/// One mistake is the verdict's own line; several come before it, a line each.
fn not_started(mistakes: &[String], file: Option<&Path>, code: Option<&str>) -> u8 {
    let detail = match mistakes {
        [one] => one.clone(),
        many => {
            for mistake in many {
                tracing::error!("{mistake}");
            }
            format!("{} mistakes in what was given, each on a line above; the first: {}", many.len(), many[0])
        }
    };
    let outcome = verdict::not_started(detail);
    verdict::publish(&outcome, &Facts::default(), file, code);
    outcome.exit_code
}

fn start_log(settings: &RunSettings) {
    let format = match settings.log_format {
        LogFormat::Auto => log::auto_format(),
        LogFormat::Text => Format::Text,
        LogFormat::Json => Format::Json,
    };
    let level = match settings.log_level {
        LogLevel::Error => Level::ERROR,
        LogLevel::Warn => Level::WARN,
        LogLevel::Info => Level::INFO,
        LogLevel::Debug => Level::DEBUG,
    };
    log::start(format, level);
}
