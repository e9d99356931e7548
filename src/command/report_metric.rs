//! `trainit report-metric`: one metric, or what standard input holds, to the metrics file.
//!
//! It is called in loops by shell scripts, so it costs what starting a process costs: no runtime, no log machinery.

use std::io::{ErrorKind, Read};

use crate::cli::Parsed;
use crate::edge::metrics_file::{Error, MetricsFile};
use crate::edge::{clock, signals, stdio};
use crate::rules::env::Env;
use crate::rules::exit;
use crate::rules::metric::batch::{self, LONGEST_LINE_BYTES};
use crate::rules::metric::line::Report;
use crate::rules::metric::number;
use crate::settings::Reader;
use crate::settings::metrics::{self, ReportMetric, Wanted};

/// How much of standard input is read at once: what a pipe holds. The whole lines in it are one write.
const BATCH_BYTES: usize = 64 << 10;

/// Warnings given at most: a feeder may repeat itself for hours.
const MOST_WARNINGS: usize = 10;

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
    if metrics::is_others(&mut reader, env) {
        if reader.switch("stdin") {
            // A closed pipe would end the program that feeds it.
            let _ = std::io::copy(&mut stdio::input(), &mut std::io::sink());
        }
        return 0;
    }
    let asked = metrics::report_metric(&mut reader, &parsed.operands, env);
    let Some(asked) = asked.filter(|_| reader.complaints.is_empty()) else {
        let code = super::refuse(&reader.complaints);
        return if reader.switch("best-effort") { 0 } else { code };
    };
    let mut writer = Writer::new(&asked, env);
    match &asked.wanted {
        Wanted::One(report) => writer.write(std::slice::from_ref(report)),
        Wanted::Stdin { tag } => writer.follow(tag),
    }
    if asked.best_effort { 0 } else { writer.code }
}

/// Writes reports, and knows how that went.
struct Writer<'a> {
    asked: &'a ReportMetric,
    env: &'a Env,
    file: MetricsFile,
    told: Vec<String>,
    is_failing: bool,
    code: u8,
}

impl<'a> Writer<'a> {
    fn new(asked: &'a ReportMetric, env: &'a Env) -> Writer<'a> {
        let path = asked.target.path.clone();
        let file = MetricsFile::new(path, asked.target.keep, asked.fsync, PATIENCE);
        let mut writer = Writer { asked, env, file, told: Vec::new(), is_failing: false, code: 0 };
        asked.warnings.iter().for_each(|warning| writer.warn(warning.clone()));
        writer
    }

    /// Whole lines are written as they come, each with the time it came: who is stopped loses nothing of before.
    fn follow(&mut self, tag: &str) {
        let (mut input, mut buffer) = (stdio::input(), vec![0; BATCH_BYTES]);
        let (mut pending, mut lines, mut is_empty) = (Vec::new(), 0, true);
        loop {
            let read = match input.read(&mut buffer) {
                Ok(read) => read,
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(error) => {
                    let what = "cannot read standard input";
                    stdio::complain(&format!("trainit: error: {what}: {error}; what came before it was written"));
                    self.code = NOT_WRITTEN;
                    return;
                }
            };
            let chunk = &buffer[..read];
            pending.extend_from_slice(chunk);
            let end = match chunk.iter().rposition(|b| *b == b'\n') {
                Some(at) => pending.len() - read + at + 1,
                None if read == 0 => pending.len(),
                None => {
                    // Too long already: it is refused, however much follows.
                    pending.truncate(LONGEST_LINE_BYTES + 1);
                    continue;
                }
            };
            let (reports, mistakes) = batch::parse(&pending[..end], tag, lines);
            lines += pending[..end].iter().filter(|b| **b == b'\n').count();
            pending.drain(..end);
            is_empty &= reports.is_empty() && mistakes.is_empty();
            for mistake in mistakes {
                let what = "not written, the other lines are";
                stdio::complain(&format!("trainit: error: standard input: {mistake}; {what}"));
                if self.code == 0 {
                    self.code = exit::NOT_STARTED;
                }
            }
            for warning in reports.iter().flat_map(Report::warnings) {
                self.warn(warning);
            }
            if !reports.is_empty() {
                self.write(&reports);
            }
            if read == 0 {
                break;
            }
        }
        if is_empty {
            self.warn("standard input held no metric, so nothing was written".to_owned());
        }
    }

    fn write(&mut self, reports: &[Report]) {
        let timestamp = timestamp(self.env);
        let mut lines = Vec::with_capacity(128 * reports.len());
        for report in reports {
            report.write(timestamp, &self.asked.target.trial, &mut lines);
        }
        let written = self.file.append(&lines);
        let was_failing = std::mem::replace(&mut self.is_failing, written.is_err());
        match written {
            Ok(notes) => {
                let path = self.file.path.display().to_string();
                notes.iter().for_each(|note| self.warn(format!("{path}: {note}")));
            }
            Err(_) if was_failing => {}
            Err(error) if self.asked.best_effort => {
                stdio::complain(&format!("trainit: warning: {error}; the metric is lost, and --best-effort goes on"));
            }
            Err(error) => {
                let advice = advice(&error);
                stdio::complain(&format!("trainit: error: {error}; the metric is not in the file; {advice}"));
                self.code = NOT_WRITTEN;
            }
        }
    }

    /// Each once.
    fn warn(&mut self, text: String) {
        if self.told.len() < MOST_WARNINGS && !self.told.contains(&text) {
            stdio::complain(&format!("trainit: warning: {text}"));
            self.told.push(text);
        }
    }
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
