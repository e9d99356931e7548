//! The two pages of `--status-addr`, made of the same facts as the answer to `trainit status`.

use super::{Facts, answer, check, exposition, parse};
use crate::job::Snapshot;

/// The text for any other path.
pub const NOT_FOUND: &str =
    "no such page; /metrics has the numbers for Prometheus, /healthz says whether the run is healthy\n";

/// A page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Page {
    /// `/metrics`: Prometheus' text format.
    Metrics,
    /// `/healthz`: the line of `trainit status --check`.
    Health,
}

/// The content of a page.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Shown {
    /// Whether the run is healthy; always true for `/metrics`.
    pub is_well: bool,
    /// The text.
    pub text: String,
}

impl Page {
    /// The page at this path.
    pub fn at(path: &str) -> Option<Page> {
        match path {
            "/metrics" => Some(Page::Metrics),
            "/healthz" => Some(Page::Health),
            _ => None,
        }
    }

    /// Its media type.
    pub fn media_type(self) -> &'static str {
        match self {
            Page::Metrics => exposition::MEDIA_TYPE,
            Page::Health => "text/plain; charset=utf-8",
        }
    }

    /// The page with the present state.
    pub fn show(self, snapshot: &Snapshot, facts: &Facts<'_>) -> Shown {
        match self {
            Page::Metrics => Shown { is_well: true, text: exposition::text(snapshot, facts) },
            Page::Health => {
                let (is_well, line) =
                    parse(&answer(snapshot, facts)).map_or_else(|why| (false, why), |snapshot| check(&snapshot));
                Shown { is_well, text: line + "\n" }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_health_page_is_the_line_of_the_check() {
        let facts = Facts { version: "1", command: "python", ..Facts::default() };
        let snapshot = Snapshot { state: "running", attempt: 1, ..Snapshot::default() };
        let well = Page::Health.show(&snapshot, &facts);
        assert_eq!(well, Shown { is_well: true, text: "healthy: running (attempt 1, up 0s): python\n".into() });
        let snapshot = Snapshot { leaving: Some("GPU 1: lost".into()), is_failing: true, ..snapshot };
        assert_eq!(
            Page::Health.show(&snapshot, &facts),
            Shown { is_well: false, text: "unhealthy: GPU 1: lost\n".into() }
        );
        assert!(Page::Metrics.show(&snapshot, &facts).is_well, "an unhealthy run has numbers too");
    }

    #[test]
    fn only_two_paths_exist() {
        assert_eq!((Page::at("/metrics"), Page::at("/healthz")), (Some(Page::Metrics), Some(Page::Health)));
        for path in ["/", "", "*", "/metrics/", "/Metrics", "//metrics", "/favicon.ico"] {
            assert_eq!(Page::at(path), None, "{path}");
        }
    }
}
