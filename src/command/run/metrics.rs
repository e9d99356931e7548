//! The metrics of a run: what to collect, and warnings after its end about what a tuner will miss.

use std::io::ErrorKind;
use std::time::Duration;

use crate::edge::fs::metrics_file::{self, MetricsFile};
use crate::edge::process::signals;
use crate::rules::cluster::spec::Process;
use crate::rules::metric::ledger::Ledger;
use crate::rules::metric::report::contract;
use crate::rules::metric::sources::Sources;
use crate::rules::process::env::Env;
use crate::settings;
use crate::settings::metrics::{Collected, Target, Tuner};
use crate::supervisor::Metrics;
use crate::supervisor::metrics::files::Files;
use crate::supervisor::output::LOCK_TIMEOUT;

/// The limit for reading the metrics file after a trial, because a file system may hang.
const TRIAL_LIMIT: Duration = Duration::from_secs(2);

/// The same for a run without a trial.
const REPAIR_LIMIT: Duration = Duration::from_millis(500);

/// The size of the end of the metrics file that is checked after a trial.
const TRIAL_BYTES: u64 = 1 << 20;

/// The metrics to collect, and the tuner's expectations. A tag that nothing reports causes a warning here, and none at
/// the end. Of several trainits on a node only the first one follows the files, and only those with searched output
/// search it; otherwise each step would be reported once for each rank.
pub(super) fn collected_metrics(
    mut collected: Option<Collected>,
    process: Option<&Process>,
    env: &Env,
) -> (Option<Metrics>, Tuner) {
    let mut tuner = settings::metrics::tuner(env);
    if let (Some(all), Some(process)) = (&mut collected, process) {
        let (local_rank, count) = (process.local_rank.unwrap_or(0), process.local_size.unwrap_or(1));
        if local_rank > 0 {
            (all.events, all.records) = (None, None);
        }
        if !all.searched.includes(local_rank, count) {
            all.patterns.clear();
        }
        if !all.has_source() {
            let searched = all.searched.shown(count);
            tracing::info!(
                "metrics are collected by the trainit of {searched} on this node, not by this one with local rank {local_rank}"
            );
            return (None, Tuner { trial: None, ..tuner });
        }
    }
    let metrics = collected.map(metrics);
    if let Some(metrics) = &metrics
        && let Some(warning) = contract::tag_differs(tuner.tag.as_deref(), &metrics.tags())
    {
        tracing::warn!("{warning}");
        tuner.tag = None;
    }
    (metrics, tuner)
}

/// The metrics to collect, and the file for them.
fn metrics(collected: Collected) -> Metrics {
    for warning in &collected.warnings {
        tracing::warn!("{warning}");
    }
    let Target { path, keep, trial } = collected.target;
    Metrics {
        patterns: collected.patterns,
        files: Files {
            events: collected.events,
            records: collected.records,
            step: collected.step.clone(),
            asked: collected.report.clone(),
        },
        step: collected.step,
        searched: collected.searched,
        report: collected.report,
        file: MetricsFile::new(path, keep, false, LOCK_TIMEOUT),
        trial,
    }
}

/// Finishes the work of a killed writer of the metrics file, and warns about metrics that a tuner will miss. A run that was
/// stopped may continue elsewhere, so nothing is missing yet.
pub(super) fn check_metrics_file(tuner: &Tuner, sources: Option<&Sources>, is_stopped: bool) {
    let (path, file) = (tuner.path.to_string_lossy(), tuner.path.clone());
    let trial = tuner.trial.as_ref().filter(|_| !is_stopped);
    let limit = if trial.is_some() { TRIAL_LIMIT } else { REPAIR_LIMIT };
    let read = signals::in_time("trial", limit, move || {
        let repaired = MetricsFile::new(file.clone(), 0, false, LOCK_TIMEOUT).repair();
        if let Err(error) = repaired {
            tracing::warn!(
                "{error}; a report was killed while it trimmed the file, and one line may be two halves; the next report tries again"
            );
        }
        metrics_file::end_of(&file, TRIAL_BYTES)
    });
    let Some(trial) = trial else { return };
    let file = match read {
        Ok(file) => file,
        Err(error) if error.kind() == ErrorKind::TimedOut => {
            tracing::warn!(
                "{path} could not be read within 2 s, so it is unknown whether the tuning service will find this trial's metrics in \
                 it; check whether its file system hangs"
            );
            return;
        }
        // A file that is not a regular file has been read by its reader.
        Err(_) => return,
    };
    let trial = contract::Trial { id: trial, tag: tuner.tag.as_deref(), path: &path, sources };
    for warning in trial.at_end(&file) {
        tracing::warn!("{warning}");
    }
}

/// Warns about metrics and steps that were not found. A trial without any metric has its own warning.
pub(super) fn warn_of_missing(looked_for: &[String], step_name: Option<&str>, measured: &Ledger, tuner: &Tuner) {
    let missing: Vec<&str> = looked_for.iter().map(String::as_str).filter(|tag| !measured.has(tag)).collect();
    let is_warned = measured.is_empty() && tuner.trial.is_some();
    if let Some(warning) = contract::not_found(measured.names(), &missing, &measured.sources).filter(|_| !is_warned) {
        tracing::warn!("{warning}");
    }
    if let Some(name) = step_name.filter(|_| !measured.is_empty() && !measured.has_steps()) {
        tracing::warn!("{}", contract::no_steps(name));
    }
}
