//! Log lines on standard error: text for people, JSON for clouds. One line an event, one write a line.
//!
//! Deliberately absent: the lines of libraries. They may hold what is secret (a signed address, a header), so only our own
//! pass, at any level. Spans too: nothing here is timed by them.
//!
//! JSON: `{"severity","time","message","trainit":{fields},"verdict":{...}}`, severities as Cloud Logging spells them.

use std::fmt::{self, Write as _};
use std::sync::OnceLock;
use std::time::Duration;

use serde_json::{Map, Value, json};
use tracing::field::{Field, Visit};
use tracing::level_filters::LevelFilter;
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

use crate::edge::backlog::Backlog;
use crate::edge::{clock, stdio};
use crate::rules::plain::plain as without_controls;

/// How lines look.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// For people.
    Text,
    /// For clouds.
    Json,
}

static FORMAT: OnceLock<Format> = OnceLock::new();

static BACKLOG: Backlog = Backlog::new(libc::STDERR_FILENO, lost);

/// How long the end of a run waits for who reads its lines.
const PATIENCE: Duration = Duration::from_millis(500);

/// Writes the last line of a run, whatever level is asked for.
pub fn last_line(level: Level, message: String, fields: Map<String, Value>, verdict: Value) {
    let line = Line { message, fields, verdict: Some(verdict) };
    BACKLOG.put_last(line.whole(format(), level), PATIENCE);
}

/// Whether what others write to standard error has left a line without its end, as a progress bar does.
pub fn stands_behind(is_begun: bool) {
    BACKLOG.is_begun(is_begun);
}

fn lost(count: u64) -> String {
    let message = format!("{count} log lines were lost here: nobody read them in time");
    Line { message, ..Line::default() }.whole(format(), Level::WARN)
}

fn format() -> Format {
    FORMAT.get().copied().unwrap_or_else(auto_format)
}

/// The format that `auto` means here.
pub fn auto_format() -> Format {
    if stdio::is_terminal(libc::STDERR_FILENO) { Format::Text } else { Format::Json }
}

/// Sends every line from here on to standard error. Only the first call counts.
pub fn start(format: Format, level: Level) {
    let _ = FORMAT.set(format);
    let _ = tracing::subscriber::set_global_default(Lines { format, level });
}

/// Everything of ours up to a level, a line each.
struct Lines {
    format: Format,
    level: Level,
}

impl Subscriber for Lines {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() <= self.level && metadata.target().split("::").next() == Some("trainit")
    }

    fn max_level_hint(&self) -> Option<LevelFilter> {
        Some(LevelFilter::from_level(self.level))
    }

    fn event(&self, event: &Event<'_>) {
        let mut line = Line::default();
        event.record(&mut line);
        BACKLOG.put(line.whole(self.format, *event.metadata().level()));
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}

/// An event's parts.
#[derive(Default)]
struct Line {
    message: String,
    fields: Map<String, Value>,
    verdict: Option<Value>,
}

impl Line {
    /// With its end, and whatever it quotes: one line.
    fn whole(self, format: Format, level: Level) -> String {
        format!("{}\n", without_controls(&self.in_format(format, level)))
    }

    fn in_format(self, format: Format, level: Level) -> String {
        let time = humantime::format_rfc3339_millis(clock::wall()).to_string();
        match format {
            Format::Json => self.json(level, &time),
            Format::Text => self.text(level, &time),
        }
    }

    fn json(self, level: Level, time: &str) -> String {
        let severity = match level {
            Level::ERROR => "ERROR",
            Level::WARN => "WARNING",
            Level::INFO => "INFO",
            _ => "DEBUG",
        };
        let mut object = json!({ "severity": severity, "time": time, "message": self.message });
        if !self.fields.is_empty() {
            object["trainit"] = Value::Object(self.fields);
        }
        if let Some(verdict) = self.verdict {
            object["verdict"] = verdict;
        }
        object.to_string()
    }

    fn text(self, level: Level, time: &str) -> String {
        let clock = time.get(11..19).unwrap_or(time);
        let word = match level {
            Level::ERROR => "error: ",
            Level::WARN => "warning: ",
            _ => "",
        };
        let mut text = format!("{clock} trainit: {word}{}", self.message);
        let shown: Vec<String> = self.fields.iter().map(|(name, value)| format!("{name}={}", plain(value))).collect();
        if !shown.is_empty() {
            let _ = write!(text, " [{}]", shown.join(" "));
        }
        text
    }

    fn put(&mut self, field: &Field, value: Value) {
        match (field.name(), value) {
            ("message", value) => self.message = plain(&value),
            (name, value) => {
                self.fields.insert(name.to_owned(), value);
            }
        }
    }
}

fn plain(value: &Value) -> String {
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
        Line { message: "a\nb".into(), fields: fields.into_iter().collect(), verdict: None }
    }

    #[test]
    fn a_librarys_line_is_not_ours_to_show() {
        tracing::subscriber::with_default(Lines { format: Format::Json, level: Level::DEBUG }, || {
            assert!(tracing::enabled!(target: "trainit::supervisor", Level::DEBUG));
            assert!(!tracing::enabled!(target: "trainit", Level::TRACE));
            assert!(!tracing::enabled!(target: "hyper_util::client", Level::ERROR));
            assert!(!tracing::enabled!(target: "trainita", Level::ERROR));
        });
    }

    #[test]
    fn a_text_line_ends_with_its_fields() {
        let text = line().text(Level::ERROR, "2026-01-02T03:04:05.678Z");
        assert_eq!(text, "03:04:05 trainit: error: a\nb [code=bad_address pid=7]");
    }

    #[test]
    fn a_json_line_has_the_fields_under_trainit_and_the_verdict_beside_them() {
        let mut line = line();
        line.verdict = Some(json!({"reason": "finished"}));
        let value: Value = serde_json::from_str(&line.json(Level::WARN, "t")).expect("json");
        assert_eq!(value["severity"], "WARNING");
        assert_eq!(value["trainit"]["pid"], 7);
        assert_eq!(value["verdict"]["reason"], "finished");
    }
}
