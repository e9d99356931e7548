//! `trainit report-metric`: writes one metric, or those of standard input, to the metrics file.
//!
//! Shell scripts call it in loops, so it must start fast: no runtime, no logging framework.

use std::io::{ErrorKind, Read};
use std::path::Path;

use crate::cli::Parsed;
use crate::edge::clock;
use crate::edge::fs::metrics_file::{Error, MetricsFile};
use crate::edge::fs::run_dir::REPORTS;
use crate::edge::io::stdio;
use crate::edge::net::report_socket;
use crate::edge::process::signals;
use crate::rules::metric::foreign_text::number;
use crate::rules::metric::report::batch::{self, LONGEST_LINE_BYTES};
use crate::rules::metric::report::line::Report;
use crate::rules::process::env::Env;
use crate::rules::process::exit;
use crate::settings::Reader;
use crate::settings::metrics::{self, ReportMetric, Reports};

/// The size of one read of standard input, which is the size of a pipe. Its complete lines are written together.
const BATCH_BYTES: usize = 64 << 10;

/// The limit for warnings: a program may repeat a mistake for hours.
const MOST_WARNINGS: usize = 10;

/// The limit for waiting for the file's lock: a stopped holder must not block the training.
const LOCK_LIMIT: std::time::Duration = std::time::Duration::from_secs(5);

/// The file could not be written.
const NOT_WRITTEN: u8 = 1;

/// Reports, and returns the exit code: 0 if the metric is in the file.
pub fn main(parsed: &Parsed, env: &Env) -> u8 {
    // A closed stderr or a file-size limit must be returned as an error, and not end the process before the metric is
    // written.
    signals::ignore_write_signals();
    let (values, complaints) = super::values(parsed, env);
    let mut reader = Reader::new(&values, complaints);
    if metrics::is_for_another_rank(&mut reader, env) {
        if reader.switch("stdin") {
            // Standard input is read to its end, because a closed pipe would end the program that writes to it.
            let _ = std::io::copy(&mut stdio::input(), &mut std::io::sink());
        }
        return 0;
    }
    let options = metrics::report_metric(&mut reader, &parsed.operands, env);
    let Some(options) = options.filter(|_| reader.complaints.is_empty()) else {
        let code = super::refuse(&reader.complaints);
        return if reader.switch("best-effort") { 0 } else { code };
    };
    let mut writer = Writer::new(&options, env);
    match &options.reports {
        Reports::One(report) => writer.write(std::slice::from_ref(report)),
        Reports::Stdin { tag } => writer.follow(tag),
    }
    if options.best_effort { 0 } else { writer.code }
}

/// Writes reports, and remembers failures.
struct Writer<'a> {
    options: &'a ReportMetric,
    env: &'a Env,
    file: MetricsFile,
    warned: Vec<String>,
    is_failing: bool,
    code: u8,
}

impl<'a> Writer<'a> {
    fn new(options: &'a ReportMetric, env: &'a Env) -> Writer<'a> {
        let path = options.target.path.clone();
        let file = MetricsFile::new(path, options.target.keep, options.fsync, LOCK_LIMIT);
        let mut writer = Writer { options, env, file, warned: Vec::new(), is_failing: false, code: 0 };
        options.warnings.iter().for_each(|warning| writer.warn(warning.clone()));
        writer
    }

    /// Complete lines are written when they arrive, each with its time, so that nothing is lost if this process is
    /// stopped.
    fn follow(&mut self, tag: &str) {
        let (mut input, mut buffer) = (stdio::input(), vec![0; BATCH_BYTES]);
        let (mut pending, mut lines, mut is_empty) = (Vec::new(), 0, true);
        loop {
            let read = match input.read(&mut buffer) {
                Ok(read) => read,
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(error) => {
                    let what = "cannot read standard input";
                    stdio::complain(&format!("trainit: error: {what}: {error}; earlier lines were written"));
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
                    // It is already too long, and is refused with any further bytes.
                    pending.truncate(LONGEST_LINE_BYTES + 1);
                    continue;
                }
            };
            let (reports, mistakes) = batch::parse(&pending[..end], tag, lines);
            lines += pending[..end].iter().filter(|b| **b == b'\n').count();
            pending.drain(..end);
            is_empty &= reports.is_empty() && mistakes.is_empty();
            for mistake in mistakes {
                let what = "not written, but the other lines are";
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
            report.write(timestamp, &self.options.target.trial, &mut lines);
        }
        let written = self.file.append(&lines);
        let was_failing = std::mem::replace(&mut self.is_failing, written.is_err());
        match written {
            Ok(notes) => {
                if let Some(run) = self.env.given("TRAINIT_SOCKET").and_then(|socket| Path::new(socket).parent()) {
                    // The file counts. The copy is for the status and the verdict of the run.
                    let _ = report_socket::send(&run.join(REPORTS), &lines);
                }
                let path = self.file.path.display().to_string();
                notes.iter().for_each(|note| self.warn(format!("{path}: {note}")));
            }
            Err(_) if was_failing => {}
            Err(error) if self.options.best_effort => {
                stdio::complain(&format!("trainit: warning: {error}; the metric is lost, and --best-effort continues"));
            }
            Err(error) => {
                let advice = advice(&error);
                stdio::complain(&format!("trainit: error: {error}; the metric is not in the file; {advice}"));
                self.code = NOT_WRITTEN;
            }
        }
    }

    /// Prints each warning once.
    fn warn(&mut self, text: String) {
        if self.warned.len() < MOST_WARNINGS && !self.warned.contains(&text) {
            stdio::complain(&format!("trainit: warning: {text}"));
            self.warned.push(text);
        }
    }
}

fn advice(error: &Error) -> &'static str {
    match error.kind() {
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded => "free some space there, or name another file with --file",
        ErrorKind::PermissionDenied => "make it writable for this user, or name another file with --file",
        ErrorKind::ReadOnlyFilesystem => "mount it writable, or name another file with --file",
        ErrorKind::IsADirectory => "name a file in that directory with --file",
        _ => "name another file with --file, or continue without it with --best-effort",
    }
}

/// Seconds since 1970. Only in debug builds `TRAINIT_TEST_CLOCK` can set it, for test cases with a fixed clock.
fn timestamp(env: &Env) -> f64 {
    let frozen =
        if cfg!(debug_assertions) { env.get("TRAINIT_TEST_CLOCK").and_then(number::parse_float) } else { None };
    frozen.unwrap_or_else(|| number::timestamp(clock::wall().duration_since(std::time::UNIX_EPOCH).unwrap_or_default()))
}
