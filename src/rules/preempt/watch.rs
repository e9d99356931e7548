//! The words that all sources share: a question, its answer, and what is known from it.

use std::time::Duration;

use crate::rules::when;

/// The machine goes away.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Notice {
    /// What tells it from other notices.
    pub id: String,
    /// Who said so, for the log and the verdict.
    pub source: String,
    /// How long until then.
    pub lead: Duration,
}

/// What a source has to say.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Word {
    /// The machine goes away at a known time.
    Leaving(Notice),
    /// A notice is no longer there: what it announced will not come.
    Withdrawn {
        /// The notice's.
        id: String,
        /// Who had said so.
        source: String,
    },
    /// It may go away before long, or will be slow for a while: a checkpoint soon is wise, stopping is not.
    Soon(String),
    /// The machine will stand still for a while; silence then is no hang.
    Frozen {
        /// From now on, the standstill included.
        length: Duration,
        /// One line about it.
        text: String,
    },
    /// Worth a line in the log, once.
    Remark(String),
}

/// The verb of a question.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Method {
    /// Reads.
    Get,
    /// Asks for a token.
    Put,
}

/// One HTTP request without a body.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Question {
    /// The verb.
    pub method: Method,
    /// Path and query.
    pub path: String,
    /// Headers beside Host.
    pub headers: Vec<(&'static str, String)>,
    /// For the whole request, the server's own waiting included.
    pub timeout: Duration,
}

/// What came back, if anything did.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Answer {
    /// The HTTP status.
    pub status: u16,
    /// Header names in lower case, with values.
    pub headers: Vec<(String, String)>,
    /// The body, at most 64 KiB, without a byte order mark; bytes that are not UTF-8 are replaced.
    pub body: String,
    /// This machine's wall clock when it came, seconds since 1970.
    pub received_unix: i64,
}

impl Answer {
    /// The first header of this (lower-case) name.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(n, _)| n == name).map(|(_, v)| v.as_str())
    }

    /// How long from the answer until `unix`, by the server's own clock where it says what that is. A time that is past
    /// is now.
    pub fn until(&self, unix: i64) -> Duration {
        let now = self.header("date").and_then(when::http_date).unwrap_or(self.received_unix);
        Duration::from_secs(u64::try_from(unix.saturating_sub(now)).unwrap_or(0))
    }
}

/// What an answer means.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Heard {
    /// What is known from it; mostly nothing.
    pub words: Vec<Word>,
    /// How long to wait before the next question.
    pub pause: Duration,
}

impl Heard {
    /// Nothing to say; the next question after `pause`.
    pub fn nothing(pause: Duration) -> Heard {
        Heard { words: Vec::new(), pause }
    }
}

/// One loop of questions to one source.
pub trait Watch: Send + std::fmt::Debug {
    /// What to ask next.
    fn question(&self) -> Question;
    /// Takes an answer (`None`: there was none in time), how long it took, and a random number from 0 to 1.
    fn heard(&mut self, answer: Option<&Answer>, took: Duration, random: f64) -> Heard;
}

/// A plain request to a server that is on the same machine.
pub(super) const PLAIN_TIMEOUT: Duration = Duration::from_secs(2);
/// Tries in a row before it is said that a server does not tell, and a watch goes quiet.
pub(super) const TRIES: u32 = 3;
/// Between two tries once it is quiet: the server may come up, or come back.
const QUIET_PAUSE: Duration = Duration::from_secs(60);
/// The same where it is there, if busy: a notice may be half a minute ahead only.
const UNQUIET_PAUSE: Duration = Duration::from_secs(5);

/// Counts failures in a row: a few quick tries, one complaint, then a try a minute; one every few seconds where the server
/// has told before, or is only busy (as one that has just started is).
#[derive(Debug, Default)]
pub(super) struct Failures {
    in_a_row: u32,
    /// It has answered before.
    is_there: bool,
}

impl Failures {
    /// Another one: how long to wait, and whether this is the one to speak about.
    pub(super) fn another(&mut self, answer: Option<&Answer>, random: f64) -> (Duration, bool) {
        self.in_a_row = self.in_a_row.saturating_add(1);
        let is_busy = answer.is_some_and(|answer| answer.status == 429 || answer.status >= 500);
        let pause = match self.in_a_row {
            quick if quick < TRIES => Duration::from_secs(1 << (quick - 1)),
            _ if self.is_there || is_busy => UNQUIET_PAUSE,
            _ => QUIET_PAUSE,
        };
        (pause.mul_f64(0.8 + 0.4 * random.clamp(0.0, 1.0)), self.in_a_row == TRIES)
    }

    /// An answer that could be read.
    pub(super) fn over(&mut self) {
        *self = Failures { in_a_row: 0, is_there: true };
    }
}

/// The one line about a server that does not tell. Why there was no answer is not known here.
pub(super) fn unheard(cloud: &str, what: &str, answer: Option<&Answer>) -> Word {
    let why = match answer {
        Some(answer) if answer.status != 200 => format!(" (HTTP {})", answer.status),
        Some(_) => " (its answer cannot be read)".to_owned(),
        None => String::new(),
    };
    Word::Remark(format!(
        "the metadata server of {cloud} does not tell {what}{why}: until it does, only SIGTERM announces a preemption; see \
         whether it can be asked from here, or have nobody asked by --preemption off"
    ))
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// The notices among the words.
    pub(in super::super) fn notices(heard: &Heard) -> Vec<(String, u64)> {
        heard
            .words
            .iter()
            .filter_map(|word| match word {
                Word::Leaving(notice) => Some((notice.source.clone(), notice.lead.as_secs())),
                _ => None,
            })
            .collect()
    }

    /// The ids of what is withdrawn by the words.
    pub(in super::super) fn withdrawn(words: &[Word]) -> Vec<&str> {
        words.iter().filter_map(|word| if let Word::Withdrawn { id, .. } = word { Some(&**id) } else { None }).collect()
    }

    #[test]
    fn a_server_that_has_told_before_or_is_only_busy_is_asked_again_within_seconds() {
        let answer = |status| Answer { status, ..Answer::default() };
        let pauses = |failures: &mut Failures, answer: Option<&Answer>| {
            [(); 5].map(|()| failures.another(answer, 0.5).0.as_secs())
        };
        for absent in [None, Some(answer(404))] {
            assert_eq!(pauses(&mut Failures::default(), absent.as_ref()), [1, 2, 60, 60, 60], "{absent:?}");
        }
        let told = Failures { in_a_row: 0, is_there: true };
        for (mut failures, answer) in
            [(told, None), (Failures::default(), Some(answer(503))), (Failures::default(), Some(answer(429)))]
        {
            assert_eq!(pauses(&mut failures, answer.as_ref()), [1, 2, 5, 5, 5], "{answer:?}");
        }
    }

    #[test]
    fn the_time_left_is_by_the_servers_clock_where_it_has_one() {
        let mut answer = Answer { received_unix: 1_000_000, ..Answer::default() };
        assert_eq!(answer.until(1_000_030).as_secs(), 30);
        assert_eq!(answer.until(999_000).as_secs(), 0, "past is now");
        answer.headers.push(("date".into(), "Mon, 12 Jan 1970 13:46:50 GMT".into()));
        assert_eq!(answer.until(1_000_030).as_secs(), 20);
    }
}
