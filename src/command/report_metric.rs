//! `trainit report-metric`: one metric, or what standard input holds, to the metrics file.
//!
//! It is called in loops by shell scripts, so it costs what starting a process costs: no runtime, no log machinery.

use std::io::{ErrorKind, Read};

use crate::cli::Parsed;
use crate::edge::metrics_file::{Error, MetricsFile};
use crate::edge::{clock, signals, stdio};
use crate::rules::env::Env;
use crate::rules::metric::line::Report;
use crate::rules::metric::{batch, number, rank};
use crate::settings::Reader;
use crate::settings::metrics::{self, ReportMetric, Wanted};

/// The most that `--stdin` takes: it is read whole before the file is locked.
const LARGEST_BATCH_BYTES: u64 = 64 << 20;

/// How long to wait for the file's lock: a stopped holder must not stop the training.
const PATIENCE: std::time::Duration = std::time::Duration::from_secs(5);

/// The file could not be written.
const NOT_WRITTEN: u8 = 1;

/// Reports, and returns the exit code: 0 when the metric is in the file.
pub fn main(parsed: &Parsed, env: &Env) -> u8 {
    // A closed stderr or a file-size limit must come back as errors, not end the process before the metric is written.
    signals::ignore_write_signals();
    let (values, complaints) = super::values(parsed, env);
    let mut reader = Reader::new(&values, complaints);
    let asked = metrics::report_metric(&mut reader, &parsed.operands, env);
    let Some(asked) = asked.filter(|_| reader.complaints.is_empty()) else {
        return super::refuse(&reader.complaints);
    };
    if asked.rank0_only && !rank::reports(env) {
        if let Wanted::Stdin { .. } = asked.wanted {
            // A closed pipe would end the program that feeds it.
            let _ = std::io::copy(&mut stdio::input(), &mut std::io::sink());
        }
        return 0;
    }
    match &asked.wanted {
        Wanted::One(report) => write(&asked, std::slice::from_ref(report), env),
        Wanted::Stdin { tag } => match read_stdin(tag) {
            Ok(reports) => write(&asked, &reports, env),
            Err(Unread::Wrong(mistakes)) => super::refuse(&mistakes),
            Err(Unread::Failed(error)) => {
                stdio::complain(&format!("trainit: error: cannot read standard input: {error}; nothing was written"));
                NOT_WRITTEN
            }
        },
    }
}

enum Unread {
    Wrong(Vec<String>),
    Failed(std::io::Error),
}

fn read_stdin(tag: &str) -> Result<Vec<Report>, Unread> {
    let mut text = Vec::new();
    stdio::input().take(LARGEST_BATCH_BYTES + 1).read_to_end(&mut text).map_err(Unread::Failed)?;
    if text.len() as u64 > LARGEST_BATCH_BYTES {
        let message = "standard input has more than 64 MiB, too much for one batch; nothing was written; split it";
        return Err(Unread::Wrong(vec![message.to_owned()]));
    }
    batch::parse(&text, tag).map_err(|mut mistakes| {
        mistakes.iter_mut().for_each(|mistake| mistake.insert_str(0, "standard input: "));
        mistakes.push(
            "standard input: nothing was written, of the good lines neither; correct these and send all again"
                .to_owned(),
        );
        Unread::Wrong(mistakes)
    })
}

fn write(asked: &ReportMetric, reports: &[Report], env: &Env) -> u8 {
    let mut warnings = asked.warnings.clone();
    if let Wanted::Stdin { .. } = asked.wanted {
        warnings.extend(reports.iter().flat_map(Report::warnings));
        warnings.dedup();
        warnings.truncate(10);
    }
    warnings.iter().for_each(|warning| warn(warning));
    if reports.is_empty() {
        warn("standard input held no metric, so nothing was written");
        return 0;
    }
    let timestamp = timestamp(env);
    let mut lines = Vec::with_capacity(128 * reports.len());
    for report in reports {
        report.write(timestamp, &asked.target.trial, &mut lines);
    }
    let target = &asked.target;
    let file = MetricsFile { path: target.path.clone(), keep: target.keep, fsync: asked.fsync, patience: PATIENCE };
    match file.append(&lines) {
        Ok(notes) => {
            notes.iter().for_each(|note| warn(&format!("{}: {note}", target.path.display())));
            0
        }
        Err(error) if asked.best_effort => {
            warn(&format!("{error}; the metric is lost, and --best-effort goes on"));
            0
        }
        Err(error) => {
            let advice = advice(&error);
            stdio::complain(&format!("trainit: error: {error}; the metric is not in the file; {advice}"));
            NOT_WRITTEN
        }
    }
}

fn warn(text: &str) {
    stdio::complain(&format!("trainit: warning: {text}"));
}

fn advice(error: &Error) -> &'static str {
    match error.kind() {
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded => "make room there, or name another file with --file",
        ErrorKind::PermissionDenied => "let this user write it, or name another file with --file",
        ErrorKind::ReadOnlyFilesystem => "mount it writable, or name another file with --file",
        ErrorKind::IsADirectory => "name a file in that folder with --file",
        _ => "name another file with --file, or go on without it with --best-effort",
    }
}

/// Seconds since 1970. In debug builds only, so never in what is shipped, `TRAINIT_TEST_CLOCK` may say it instead: the cases of
/// the contract have a frozen clock.
fn timestamp(env: &Env) -> f64 {
    let frozen =
        if cfg!(debug_assertions) { env.get("TRAINIT_TEST_CLOCK").and_then(number::parse_float) } else { None };
    frozen.unwrap_or_else(|| number::timestamp(clock::wall().duration_since(std::time::UNIX_EPOCH).unwrap_or_default()))
}
