//! What stands at `--status-addr`: two pages, made of the same facts as the answer to `trainit status`.

use super::{Facts, answer, check, exposition, parse};
use crate::rules::job::Told;

/// What is said of any other path.
pub const NOWHERE: &str =
    "nothing is here; /metrics has the numbers for Prometheus, /healthz says whether the run is well\n";

/// A page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Page {
    /// `/metrics`: Prometheus' text.
    Metrics,
    /// `/healthz`: the line of `trainit status --check`.
    Health,
}

/// What there is to see.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Shown {
    /// Whether it is what was hoped for.
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

    /// The page as of now.
    pub fn show(self, told: &Told, facts: &Facts<'_>) -> Shown {
        match self {
            Page::Metrics => Shown { is_well: true, text: exposition::text(told, facts) },
            Page::Health => {
                let (is_well, line) = parse(&answer(told, facts)).map_or_else(|why| (false, why), |told| check(&told));
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
        let told = Told { state: "running", attempt: 1, ..Told::default() };
        let well = Page::Health.show(&told, &facts);
        assert_eq!(well, Shown { is_well: true, text: "healthy: running (attempt 1, up 0s): python\n".into() });
        let told = Told { leaving: Some("GPU 1: lost".into()), is_failing: true, ..told };
        assert_eq!(Page::Health.show(&told, &facts), Shown { is_well: false, text: "unhealthy: GPU 1: lost\n".into() });
        assert!(Page::Metrics.show(&told, &facts).is_well, "numbers are told of an unhealthy run too");
    }

    #[test]
    fn only_two_paths_lead_anywhere() {
        assert_eq!((Page::at("/metrics"), Page::at("/healthz")), (Some(Page::Metrics), Some(Page::Health)));
        for path in ["/", "", "*", "/metrics/", "/Metrics", "//metrics", "/favicon.ico"] {
            assert_eq!(Page::at(path), None, "{path}");
        }
    }
}
