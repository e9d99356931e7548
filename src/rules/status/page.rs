//! The pages of `--status-addr`, made of the same facts as the answer to `trainit status`.

use bytes::Bytes;

use super::history::History;
use super::html::{self, RunView};
use super::{answer, check, exposition, parse};

/// The text for any other path.
pub const NOT_FOUND: &str = "no such page; / shows the run, /metrics has the numbers for Prometheus, /healthz says whether the run is \
                             healthy\n";

/// A page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Page {
    /// `/`: the run for people.
    Run,
    /// `/metrics`: Prometheus' text format.
    Metrics,
    /// `/healthz`: the line of `trainit status --check`.
    Health,
}

/// The content of a page.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Shown {
    /// Whether the run is healthy; always true except for `/healthz`.
    pub is_well: bool,
    /// The text.
    pub text: Bytes,
}

impl Page {
    /// The page at this path.
    pub fn at(path: &str) -> Option<Page> {
        match path {
            "/" => Some(Page::Run),
            "/metrics" => Some(Page::Metrics),
            "/healthz" => Some(Page::Health),
            _ => None,
        }
    }

    /// Its media type.
    pub fn media_type(self) -> &'static str {
        match self {
            Page::Run => "text/html; charset=utf-8",
            Page::Metrics => exposition::MEDIA_TYPE,
            Page::Health => "text/plain; charset=utf-8",
        }
    }

    /// Its content security policy.
    pub fn policy(self) -> &'static str {
        match self {
            Page::Run => html::POLICY,
            Page::Metrics | Page::Health => "default-src 'none'",
        }
    }

    /// The page with the present state. Only [`Page::Run`] uses the history.
    pub fn show(self, view: &RunView, history: &History) -> Shown {
        let RunView { snapshot, facts, .. } = view;
        let well = |text: String| Shown { is_well: true, text: text.into() };
        match self {
            Page::Run => well(html::live(view, history)),
            Page::Metrics => well(exposition::text(snapshot, facts)),
            Page::Health => {
                let (is_well, line) =
                    parse(&answer(snapshot, facts)).map_or_else(|why| (false, why), |snapshot| check(&snapshot));
                Shown { is_well, text: (line + "\n").into() }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::job::Snapshot;
    use crate::status::Facts;

    #[test]
    fn the_health_page_is_the_line_of_the_check() {
        let facts = || Facts { version: "1", command: "python".into(), ..Facts::default() };
        let running = Snapshot { state: "running", attempt: 1, ..Snapshot::default() };
        let view = |snapshot: &Snapshot| RunView {
            snapshot: snapshot.clone(),
            facts: facts(),
            log: Vec::new(),
            verdict: None,
        };
        let health = |snapshot| Page::Health.show(&view(snapshot), &History::default());
        let well = Shown { is_well: true, text: "healthy: running (attempt 1, up 0s): python\n".into() };
        assert_eq!(health(&running), well);
        let failing = Snapshot { leaving: Some("GPU 1: lost".into()), is_failing: true, ..running.clone() };
        assert_eq!(health(&failing), Shown { is_well: false, text: "unhealthy: GPU 1: lost\n".into() });
        for page in [Page::Metrics, Page::Run] {
            assert!(page.show(&view(&failing), &History::default()).is_well, "an unhealthy run has numbers too");
        }
    }

    #[test]
    fn only_three_paths_exist() {
        let pages = ["/", "/metrics", "/healthz"].map(Page::at);
        assert_eq!(pages, [Some(Page::Run), Some(Page::Metrics), Some(Page::Health)]);
        for path in ["", "*", "//", "/metrics/", "/Metrics", "//metrics", "/index.html", "/favicon.ico"] {
            assert_eq!(Page::at(path), None, "{path}");
        }
    }
}
