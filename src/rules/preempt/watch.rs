//! The types that all sources share: a request, its answer, and the meaning.

use std::time::Duration;

use crate::text::timestamps;

/// The machine will go away.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Notice {
    /// The id that distinguishes it from other notices.
    pub id: String,
    /// The source, for the log and the verdict.
    pub source: String,
    /// The time until then.
    pub lead: Duration,
}

/// One fact from an answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum News {
    /// The machine goes away at a known time.
    Leaving(Notice),
    /// A notice was withdrawn.
    Withdrawn {
        /// The id of the notice.
        id: String,
        /// The source of the notice.
        source: String,
    },
    /// The machine may go away or be slow soon: a checkpoint is advisable, a stop is not.
    Soon(String),
    /// The machine will freeze for a while, so silence is not a hang.
    Frozen {
        /// The time from now to the end of the freeze.
        length: Duration,
        /// One line about it.
        text: String,
    },
    /// Text for one log line.
    Remark(String),
}

/// The method of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Method {
    /// Reads.
    Get,
    /// Requests a token.
    Put,
}

/// One HTTP request without a body.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Question {
    /// The method.
    pub method: Method,
    /// Path and query.
    pub path: String,
    /// Headers apart from Host.
    pub headers: Vec<(&'static str, String)>,
    /// The limit for the whole request, including the server's own waiting.
    pub timeout: Duration,
}

/// The answer to a request.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Answer {
    /// The HTTP status.
    pub status: u16,
    /// Header names in lower case, with values.
    pub headers: Vec<(String, String)>,
    /// The body, at most 64 KiB, without a byte order mark; bytes that are not UTF-8 are replaced.
    pub body: String,
    /// This machine's wall clock at the arrival, in seconds since 1970.
    pub received_unix: i64,
}

impl Answer {
    /// The first header of this (lower-case) name.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(n, _)| n == name).map(|(_, v)| v.as_str())
    }

    /// The time from the answer until `unix`, by the server's clock if it sends one. A time in the past is zero.
    pub fn until(&self, unix: i64) -> Duration {
        let now = self.header("date").and_then(timestamps::http_date).unwrap_or(self.received_unix);
        Duration::from_secs(u64::try_from(unix.saturating_sub(now)).unwrap_or(0))
    }
}

/// The meaning of an answer, and the pause before the next request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Evaluation {
    /// The facts from the answer, usually none.
    pub news: Vec<News>,
    /// The pause before the next request.
    pub pause: Duration,
}

impl Evaluation {
    /// No facts; the next request follows after `pause`.
    pub fn nothing(pause: Duration) -> Evaluation {
        Evaluation { news: Vec::new(), pause }
    }
}

/// One loop of requests to one source.
pub trait Watch: Send + std::fmt::Debug {
    /// The next request.
    fn question(&self) -> Question;
    /// Evaluates an answer (`None` if there was none in time), with its duration and a random number from 0 to 1.
    fn evaluate(&mut self, answer: Option<&Answer>, took: Duration, random: f64) -> Evaluation;
}

/// The limit for a request to a server on the same machine.
pub(super) const PLAIN_TIMEOUT: Duration = Duration::from_secs(2);
/// The number of failures in a row before a remark; then the watch slows down.
pub(super) const TRIES: u32 = 3;
/// The pause between tries after that: the server may start, or return.
const QUIET_PAUSE: Duration = Duration::from_secs(60);
/// The pause after an answer that says that the server is busy. It is short: a notice may come only 30 s ahead.
const BUSY_PAUSE: Duration = Duration::from_secs(5);

/// Counts failures in a row: a few quick tries, one remark, then one try a minute. A server that has answered before, or that
/// is only busy, is polled every few seconds.
#[derive(Debug, Default)]
pub(super) struct Failures {
    in_a_row: u32,
    /// It has answered before.
    has_answered: bool,
}

impl Failures {
    /// Counts a failure. Returns the pause, and whether to report this one.
    pub(super) fn failed(&mut self, answer: Option<&Answer>, random: f64) -> (Duration, bool) {
        self.in_a_row = self.in_a_row.saturating_add(1);
        let is_busy = answer.is_some_and(|answer| answer.status == 429 || answer.status >= 500);
        let pause = match self.in_a_row {
            quick if quick < TRIES => Duration::from_secs(1 << (quick - 1)),
            _ if self.has_answered || is_busy => BUSY_PAUSE,
            _ => QUIET_PAUSE,
        };
        (pause.mul_f64(0.8 + 0.4 * random.clamp(0.0, 1.0)), self.in_a_row == TRIES)
    }

    /// Resets the count after a readable answer.
    pub(super) fn reset(&mut self) {
        *self = Failures { in_a_row: 0, has_answered: true };
    }
}

/// The remark about a server without usable answers. The cause of a missing answer is unknown here.
pub(super) fn unusable_server(cloud: &str, what: &str, answer: Option<&Answer>) -> News {
    let why = match answer {
        Some(answer) if answer.status != 200 => format!(" (HTTP {})", answer.status),
        Some(_) => " (its answer cannot be read)".to_owned(),
        None => String::new(),
    };
    News::Remark(format!(
        "the metadata server of {cloud} does not return {what}{why}: until it does, only SIGTERM announces a preemption; check \
         whether it can be reached from here, or use --preemption off"
    ))
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// The notices among the news.
    pub(in super::super) fn notices(evaluation: &Evaluation) -> Vec<(String, u64)> {
        evaluation
            .news
            .iter()
            .filter_map(|item| match item {
                News::Leaving(notice) => Some((notice.source.clone(), notice.lead.as_secs())),
                _ => None,
            })
            .collect()
    }

    /// The ids of the withdrawn notices among the news.
    pub(in super::super) fn withdrawn(news: &[News]) -> Vec<&str> {
        news.iter().filter_map(|item| if let News::Withdrawn { id, .. } = item { Some(&**id) } else { None }).collect()
    }

    #[test]
    fn a_server_that_answered_before_or_is_busy_is_polled_within_seconds() {
        let answer = |status| Answer { status, ..Answer::default() };
        let pauses = |failures: &mut Failures, answer: Option<&Answer>| {
            [(); 5].map(|()| failures.failed(answer, 0.5).0.as_secs())
        };
        for absent in [None, Some(answer(404))] {
            assert_eq!(pauses(&mut Failures::default(), absent.as_ref()), [1, 2, 60, 60, 60], "{absent:?}");
        }
        let answered = Failures { in_a_row: 0, has_answered: true };
        for (mut failures, answer) in
            [(answered, None), (Failures::default(), Some(answer(503))), (Failures::default(), Some(answer(429)))]
        {
            assert_eq!(pauses(&mut failures, answer.as_ref()), [1, 2, 5, 5, 5], "{answer:?}");
        }
    }

    #[test]
    fn the_time_left_is_by_the_servers_clock_if_it_sends_one() {
        let mut answer = Answer { received_unix: 1_000_000, ..Answer::default() };
        assert_eq!(answer.until(1_000_030).as_secs(), 30);
        assert_eq!(answer.until(999_000).as_secs(), 0, "a time in the past is zero");
        answer.headers.push(("date".into(), "Mon, 12 Jan 1970 13:46:50 GMT".into()));
        assert_eq!(answer.until(1_000_030).as_secs(), 20);
    }
}
