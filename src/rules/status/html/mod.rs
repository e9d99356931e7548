//! The page about a run: one HTML document that loads nothing from outside. The live page has a script that updates it; the
//! report has no script.
//!
//! [`markup`] escapes every text of the run. Deliberately absent: arguments, variables, and the trainer's output.

pub(crate) mod chart;
mod gpus;
pub(crate) mod markup;
mod sections;

use super::history::History;
use super::{Facts, span};
use crate::job::Snapshot;
use markup::{Html, Piece, html};

const STYLE: &str = include_str!("page.css");
const LIVE: &str = include_str!("live.js");

/// The content security policy of the live page: its own style, its own script, and requests to its own address.
pub const POLICY: &str = "default-src 'none'; style-src 'unsafe-inline'; connect-src 'self'; base-uri 'none'; form-action 'none'; \
                          frame-ancestors 'none'; script-src 'sha256-Z12qY2hVp68P8SjXAFyvh9x5wSTIqF+yqWGN6HtFuZw='";
/// The content security policy of the report.
const REPORT_POLICY: &str = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'";

/// A run at one moment, as its page shows it.
#[derive(Debug)]
pub struct RunView {
    /// The facts of the job machine.
    pub snapshot: Snapshot,
    /// The other facts.
    pub facts: Facts,
    /// trainit's own last log lines.
    pub log: Vec<String>,
    /// The word and the sentence of the verdict, once there is one.
    pub verdict: Option<(&'static str, String)>,
}

/// The live page, which updates itself.
pub fn live(view: &RunView, history: &History) -> String {
    let mut controls = Html::default();
    html!(
        controls,
        "<p class=\"dim\"><label hidden><input type=\"checkbox\" id=\"auto\" checked> renew every 5 s</label> \
                     <span id=\"note\" role=\"status\"></span></p>"
    );
    let mut script = Html::default();
    html!(script, "<script>" {Html::of(LIVE)} "</script>");
    document(&heading(view), &Html::default(), &controls, &sections::all(view, history), &script)
}

/// The page for a file.
pub fn report(view: &RunView, history: &History) -> String {
    let at = humantime::format_rfc3339_seconds(std::time::UNIX_EPOCH + view.facts.wall).to_string();
    let mut below = Html::default();
    html!(below, "<p class=\"dim\">written at " {at} "</p>");
    still(&heading(view), &below, &sections::all(view, history))
}

/// A page without a script.
pub(crate) fn still(heading: &str, below: &Html, main: &Html) -> String {
    let mut policy = Html::default();
    html!(policy, "<meta http-equiv=\"Content-Security-Policy\" content=\"" {Html::of(REPORT_POLICY)} "\">");
    document(heading, &policy, below, main, &Html::default())
}

fn heading(view: &RunView) -> String {
    let state = view.verdict.as_ref().map_or(view.snapshot.state, |(word, _)| word);
    format!("{} ({state})", view.facts.command)
}

fn document(heading: &str, meta: &Html, below: &Html, main: &Html, script: &Html) -> String {
    let mut page = Html::default();
    html!(page, "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">" {meta}
        "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"><title>" {heading} " - trainit</title><style>"
        {Html::of(STYLE)} "</style></head>\n<body><header><h1>" {heading} "</h1>" {below} "</header>\n<main id=\"run\">\n" {main}
        "</main>" {script} "</body></html>\n");
    page.text()
}

/// `48.2 GiB`.
fn bytes(count: u64) -> String {
    let units = ["B", "KiB", "MiB", "GiB", "TiB"];
    let power = (count.max(1).ilog2() / 10).min(4);
    match power {
        0 => format!("{count} B"),
        _ => format!("{:.1} {}", count as f64 / 1024f64.powi(power as i32), units[power as usize]),
    }
}

/// A duration in the two largest units.
pub(crate) fn lasted(duration: std::time::Duration) -> String {
    match duration.as_secs_f64() {
        seconds if seconds < 10.0 => format!("{seconds:.1}s"),
        seconds => span(seconds),
    }
}

/// A table. The first cell of each row is its heading.
pub(crate) fn table<Cell: Piece>(
    page: &mut Html,
    caption: &str,
    heads: &[&'static str],
    rows: impl IntoIterator<Item = Vec<Cell>>,
) {
    html!(page, "<div class=\"wide\"><table><caption>" {caption} "</caption><thead><tr>");
    for head in heads {
        html!(page, "<th scope=\"col\">" {head} "</th>");
    }
    html!(page, "</tr></thead><tbody>\n");
    for row in rows {
        html!(page, "<tr>");
        for (n, cell) in row.iter().enumerate() {
            match n {
                0 => html!(page, "<th scope=\"row\">" {cell} "</th>"),
                _ => html!(page, "<td>" {cell} "</td>"),
            }
        }
        html!(page, "</tr>\n");
    }
    html!(page, "</tbody></table></div>\n");
}

#[cfg(test)]
mod tests;
