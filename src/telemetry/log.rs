//! Log lines on standard error: text for people, JSON for clouds. Each event is one line, written in one call.
//!
//! Deliberately absent: log events of libraries, at any level, because they may contain secrets (a signed address, a
//! header); and spans, which trainit does not use.
//!
//! JSON: `{"severity","time","message","trainit":{fields},"verdict":{...}}`. Both forms have Cloud Logging's names for
//! severities, so that one search finds a warning in both.

use std::collections::VecDeque;
use std::fmt::{self, Write as _};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use serde_json::{Map, Value, json};
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::{Context, SubscriberExt};
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::util::SubscriberInitExt;

use crate::edge::clock;
use crate::edge::host::dmi;
use crate::edge::io::backlog::Backlog;
use crate::edge::io::stdio;
use crate::rules::cluster::collector;
use crate::rules::process::env::Env;
use crate::rules::text::safe_text::printable;

/// The format of lines.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// For people.
    Text,
    /// For clouds.
    Json,
}

static FORMAT: OnceLock<Format> = OnceLock::new();

/// The last lines in their text form, if they are kept.
static RECENT: Mutex<Option<VecDeque<String>>> = Mutex::new(None);
/// The most of them, and the most characters of each.
const RECENT_LINES: usize = 100;
const RECENT_CHARS: usize = 1000;

static BACKLOG: Backlog = Backlog::new(stdio::STDERR, lost);

/// How long the end of a run waits until its lines are read.
const DRAIN_LIMIT: Duration = Duration::from_millis(200);

/// The same for a file. It needs no reader, but a busy machine may delay the thread that writes.
const FILE_LIMIT: Duration = Duration::from_secs(1);

/// Keeps the last lines from now on.
pub fn keep_recent() {
    recent_lines().get_or_insert_default();
}

/// The last lines, as for people. Empty unless they are kept.
pub fn recent() -> Vec<String> {
    recent_lines().iter().flatten().cloned().collect()
}

fn recent_lines() -> MutexGuard<'static, Option<VecDeque<String>>> {
    RECENT.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Writes the last line of a run, for any log level. Only a line of text has the summary: JSON has the verdict.
pub fn last_line(level: Level, message: String, summary: String, fields: Map<String, Value>, verdict: Value) {
    let line = Line { message, summary, fields, verdict: Some(verdict) };
    let limit = if stdio::is_file(stdio::STDERR) { FILE_LIMIT } else { DRAIN_LIMIT };
    BACKLOG.put_last(line.whole(format(), level), limit);
}

/// Waits up to the limit until the lines so far are written, so that another descriptor of the same file can follow them.
pub fn wait(limit: Duration) {
    BACKLOG.wait(limit);
}

/// Lets another thread write to standard error between log lines; `is_begun`: its output leaves a line without its end,
/// as a progress bar does.
pub fn beside<T>(is_begun: bool, write: impl FnOnce() -> T) -> T {
    BACKLOG.beside(is_begun, write)
}

fn lost(count: u64) -> String {
    let message = format!("{count} log lines were lost here, because they were not read in time");
    Line { message, ..Line::default() }.whole(format(), Level::WARN)
}

fn format() -> Format {
    FORMAT.get().copied().unwrap_or(Format::Text)
}

/// The format for `auto` in this environment: JSON if the platform's collector parses it, text for everybody else.
pub fn auto_format(env: &Env) -> Format {
    let parses = || collector::parses_json(env, || dmi::local_facts().is_google());
    if !stdio::is_terminal(libc::STDERR_FILENO) && parses() { Format::Json } else { Format::Text }
}

/// Starts to write all log lines to standard error. Only the first call has an effect.
pub fn start(format: Format, level: Level) {
    let _ = FORMAT.set(format);
    let _ = tracing_subscriber::registry().with(layer(format, level)).try_init();
}

/// trainit's own events up to a level. Those of libraries may contain secrets.
fn layer<S: Subscriber + for<'a> LookupSpan<'a>>(format: Format, level: Level) -> impl Layer<S> {
    Lines { format }.with_filter(Targets::new().with_target("trainit", level))
}

/// Writes each event as one line.
struct Lines {
    format: Format,
}

impl<S: Subscriber> Layer<S> for Lines {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        let mut line = Line::default();
        event.record(&mut line);
        BACKLOG.put(line.whole(self.format, *event.metadata().level()));
    }
}

/// The parts of an event.
#[derive(Default)]
struct Line {
    message: String,
    /// More for people.
    summary: String,
    fields: Map<String, Value>,
    verdict: Option<Value>,
}

impl Line {
    /// The complete line, with its end and without other line ends.
    fn whole(self, format: Format, level: Level) -> String {
        format!("{}\n", printable(&self.in_format(format, level)))
    }

    fn in_format(self, format: Format, level: Level) -> String {
        let time = humantime::format_rfc3339_millis(clock::wall()).to_string();
        if let Some(recent) = &mut *recent_lines() {
            if recent.len() == RECENT_LINES {
                recent.pop_front();
            }
            recent.push_back(self.text(level, &time).chars().take(RECENT_CHARS).collect());
        }
        match format {
            Format::Json => self.json(level, &time),
            Format::Text => self.text(level, &time),
        }
    }

    fn json(self, level: Level, time: &str) -> String {
        let severity = severity(level);
        let mut object = json!({ "severity": severity, "time": time, "message": self.message });
        if !self.fields.is_empty() {
            object["trainit"] = Value::Object(self.fields);
        }
        if let Some(verdict) = self.verdict {
            object["verdict"] = verdict;
        }
        object.to_string()
    }

    fn text(&self, level: Level, time: &str) -> String {
        let clock = time.get(11..19).unwrap_or(time);
        let mut text = format!("{clock} trainit: ");
        if level <= Level::WARN {
            let _ = write!(text, "{}: ", severity(level));
        }
        text.push_str(&self.message);
        if !self.summary.is_empty() {
            let _ = write!(text, "; {}", self.summary);
        }
        let reason = self.verdict.as_ref().and_then(|verdict| Some(("verdict", verdict.get("reason")?)));
        let fields = self.fields.iter().map(|(name, value)| (name.as_str(), value)).chain(reason);
        let shown: Vec<String> = fields.map(|(name, value)| format!("{name}={}", value_text(value))).collect();
        if !shown.is_empty() {
            let _ = write!(text, " [{}]", shown.join(" "));
        }
        text
    }

    fn put(&mut self, field: &Field, value: Value) {
        match (field.name(), value) {
            ("message", value) => self.message = value_text(&value),
            (name, value) => {
                self.fields.insert(name.to_owned(), value);
            }
        }
    }
}

fn severity(level: Level) -> &'static str {
    match level {
        Level::ERROR => "ERROR",
        Level::WARN => "WARNING",
        Level::INFO => "INFO",
        _ => "DEBUG",
    }
}

fn value_text(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

impl Visit for Line {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.put(field, Value::String(format!("{value:?}")));
    }
    fn record_str(&mut self, field: &Field, value: &str) {
        self.put(field, Value::from(value));
    }
    fn record_u64(&mut self, field: &Field, value: u64) {
        self.put(field, Value::from(value));
    }
    fn record_i64(&mut self, field: &Field, value: i64) {
        self.put(field, Value::from(value));
    }
    fn record_f64(&mut self, field: &Field, value: f64) {
        self.put(field, Value::from(value));
    }
    fn record_bool(&mut self, field: &Field, value: bool) {
        self.put(field, Value::from(value));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line() -> Line {
        let fields = [("code".to_owned(), Value::from("bad_address")), ("pid".to_owned(), Value::from(7))];
        Line { message: "a\nb".into(), fields: fields.into_iter().collect(), ..Line::default() }
    }

    #[test]
    fn a_librarys_event_is_not_logged() {
        tracing::subscriber::with_default(
            tracing_subscriber::registry().with(layer(Format::Json, Level::DEBUG)),
            || {
                assert!(tracing::enabled!(target: "trainit::supervisor", Level::DEBUG));
                assert!(!tracing::enabled!(target: "trainit", Level::TRACE));
                assert!(!tracing::enabled!(target: "hyper_util::client", Level::ERROR));
            },
        );
    }

    #[test]
    fn a_text_line_ends_with_its_fields() {
        let text = line().text(Level::ERROR, "2026-01-02T03:04:05.678Z");
        assert_eq!(text, "03:04:05 trainit: ERROR: a\nb [code=bad_address pid=7]");
        let last = Line { verdict: Some(json!({"reason": "finished"})), ..line() };
        assert!(last.text(Level::INFO, "t").ends_with(" [code=bad_address pid=7 verdict=finished]"));
    }

    #[test]
    fn a_json_line_has_the_fields_under_trainit_and_the_verdict_at_the_top_level() {
        let mut line = line();
        line.verdict = Some(json!({"reason": "finished"}));
        let value: Value = serde_json::from_str(&line.json(Level::WARN, "t")).expect("json");
        assert_eq!(value["severity"], "WARNING");
        assert_eq!(value["trainit"]["pid"], 7);
        assert_eq!(value["verdict"]["reason"], "finished");
    }
}
