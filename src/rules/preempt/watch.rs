//! The words that all sources share: a question, its answer, a notice.

use std::time::Duration;

/// The machine goes away.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Notice {
    /// Who said so, for the log and the verdict.
    pub source: String,
    /// How long until then.
    pub lead: Duration,
}

/// One HTTP GET.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Question {
    /// Path and query.
    pub path: String,
    /// Headers beside Host.
    pub headers: &'static [(&'static str, &'static str)],
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
    /// The body, at most 64 KiB; bytes that are not UTF-8 are replaced.
    pub body: String,
}

impl Answer {
    /// The first header of this (lower-case) name.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(n, _)| n == name).map(|(_, v)| v.as_str())
    }
}

/// What an answer means.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Heard {
    /// The machine goes away.
    pub notice: Option<Notice>,
    /// Worth a line in the log, once.
    pub remark: Option<String>,
    /// How long to wait before the next question.
    pub pause: Duration,
}

/// One key of one source.
pub trait Watch: Send {
    /// What to ask next.
    fn question(&self) -> Question;
    /// Takes an answer (`None`: there was none in time), how long it took, and a random number from 0 to 1.
    fn heard(&mut self, answer: Option<&Answer>, took: Duration, random: f64) -> Heard;
}
