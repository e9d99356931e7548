//! The page about a run: one HTML document that loads nothing from outside. The live page has a script that updates it; the
//! report has no script.
//!
//! Every text of the run is escaped. Deliberately absent: arguments, variables, and the trainer's output.

mod chart;
mod sections;

use std::fmt::Write as _;

use super::history::History;
use super::{Facts, span};
use crate::job::Snapshot;
use crate::text::safe_text::printable;

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
    let controls = "<p class=\"dim\"><label hidden><input type=\"checkbox\" id=\"auto\" checked> renew every 5 s</label> \
                    <span id=\"note\" role=\"status\"></span></p>";
    document(view, history, "", controls, &format!("<script>{LIVE}</script>"))
}

/// The page for a file.
pub fn report(view: &RunView, history: &History) -> String {
    let policy = format!("<meta http-equiv=\"Content-Security-Policy\" content=\"{REPORT_POLICY}\">");
    let at = humantime::format_rfc3339_seconds(std::time::UNIX_EPOCH + view.facts.wall);
    document(view, history, &policy, &format!("<p class=\"dim\">written at {at}</p>"), "")
}

fn document(view: &RunView, history: &History, meta: &str, controls: &str, script: &str) -> String {
    let state = view.verdict.as_ref().map_or(view.snapshot.state, |(word, _)| word);
    let heading = format!("{} ({state})", view.facts.command);
    let heading = escaped(&heading);
    let mut page = format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">{meta}<meta name=\"viewport\" \
         content=\"width=device-width, initial-scale=1\"><title>{heading} - trainit</title><style>{STYLE}</style></head>\n\
         <body><header><h1>{heading}</h1>{controls}</header>\n<main id=\"run\">\n"
    );
    sections::all(&mut page, view, history);
    // Writing to a String cannot fail.
    let _ = writeln!(page, "</main>{script}</body></html>");
    page
}

/// A document that loads nothing from outside. `heading` and all others are HTML.
pub(crate) fn static_page(heading: &str, below: &str, main: &str) -> String {
    format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><meta http-equiv=\"Content-Security-Policy\" \
         content=\"{REPORT_POLICY}\"><meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\
         <title>{heading} - trainit</title><style>{STYLE}</style></head>\n<body><header><h1>{heading}</h1>{below}</header>\n\
         <main id=\"run\">\n{main}</main></body></html>\n"
    )
}

/// Text for HTML, in an element or in a quoted attribute. Control characters become visible.
pub(crate) fn escaped(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for c in printable(text).chars() {
        match c {
            '&' => safe.push_str("&amp;"),
            '<' => safe.push_str("&lt;"),
            '>' => safe.push_str("&gt;"),
            '"' => safe.push_str("&quot;"),
            '\'' => safe.push_str("&#39;"),
            // These reorder the text around them.
            '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' => safe.push('\u{fffd}'),
            c => safe.push(c),
        }
    }
    safe
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

/// A table. The first cell of each row is its heading. `cells` are HTML.
pub(crate) fn table(page: &mut String, caption: &str, heads: &[&str], rows: impl IntoIterator<Item = Vec<String>>) {
    let _ = write!(page, "<div class=\"wide\"><table><caption>{}</caption><thead><tr>", escaped(caption));
    for head in heads {
        let _ = write!(page, "<th scope=\"col\">{head}</th>");
    }
    page.push_str("</tr></thead><tbody>\n");
    for row in rows {
        for (n, cell) in row.iter().enumerate() {
            let _ = match n {
                0 => write!(page, "<tr><th scope=\"row\">{cell}</th>"),
                _ => write!(page, "<td>{cell}</td>"),
            };
        }
        page.push_str("</tr>\n");
    }
    page.push_str("</tbody></table></div>\n");
}

#[cfg(test)]
mod tests;
