//! Amazon EC2's instance metadata service, version 2: the Spot action, the rebalance recommendation and scheduled
//! maintenance. It is polled every 5 s, as AWS recommends, because it has no hanging GET.
//!
//! Example: `PUT /latest/api/token` returns a token; `GET /latest/meta-data/spot/instance-action` with the token
//! returns 404, or `{"action": "terminate", "time": "2017-09-18T08:22:00Z"}`. A proxy without tokens is polled with
//! version 1. Deliberately absent: SageMaker, which sends SIGTERM.

use std::collections::HashSet;
use std::time::Duration;

use serde_json::Value as Json;

use super::watch::{
    Answer, Evaluation, Failures, Method, News, Notice, PLAIN_TIMEOUT, Question, Watch, unusable_server,
};
use super::{LocalFacts, Source};
use crate::cluster::platforms::sagemaker;
use crate::process::env::Env;
use crate::text::timestamps;

/// The entry for the list.
pub(super) const SOURCE: Source = Source {
    name: "aws",
    named_by: &["AWS_EC2_METADATA_SERVICE_ENDPOINT"],
    default_endpoint,
    is_here,
    watches: |_, env| {
        let is_forbidden = env.given("AWS_EC2_METADATA_V1_DISABLED").is_some_and(|v| v.eq_ignore_ascii_case("true"));
        vec![Box::new(Imds { is_v1_allowed: !is_forbidden, ..Imds::default() })]
    },
};

/// The pause between two rounds of requests.
const ROUND_PAUSE: Duration = Duration::from_secs(5);
/// Scheduled maintenance is announced hours ahead, so it is requested in one of this many rounds.
const SLOW_ROUNDS: u64 = 12;
/// The requested lifetime of a token, and the time before its end when it is renewed.
const TOKEN_TTL_SECS: u64 = 3600;
const RENEW_BEFORE_SECS: u64 = 15;
/// The time without a token before one is requested again.
const TOKEN_RETRY: Duration = Duration::from_secs(60);
/// The longest documented notice period of each kind.
const SPOT_LEAD: Duration = Duration::from_secs(120);
const MAINTENANCE_LEAD: Duration = Duration::from_secs(60 * 24 * 3600);

/// The SDKs' second variable selects one of two link-local addresses.
fn default_endpoint(env: &Env) -> String {
    let is_v6 = env.given("AWS_EC2_METADATA_SERVICE_ENDPOINT_MODE").is_some_and(|m| m.eq_ignore_ascii_case("ipv6"));
    if is_v6 { "[fd00:ec2::254]:80" } else { "169.254.169.254:80" }.to_owned()
}

/// Nitro machines have it in the vendor's name, older ones in the BIOS version.
fn is_here(env: &Env, facts: &LocalFacts) -> bool {
    let is_off = env.given("AWS_EC2_METADATA_DISABLED").is_some_and(|v| v.eq_ignore_ascii_case("true"));
    let is_ec2 = facts.sys_vendor.trim() == "Amazon EC2" || facts.bios_version.to_lowercase().contains("amazon");
    is_ec2 && !is_off && !sagemaker::is_here(env)
}

/// The requests of a round, in order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    Token,
    SpotAction,
    TerminationTime,
    Rebalance,
    Maintenance,
}

#[derive(Debug)]
struct Imds {
    step: Step,
    token: Option<String>,
    /// Whether version 1, which needs no token, may be used if there are none.
    is_v1_allowed: bool,
    /// The time until the token is renewed; requests and pauses reduce it.
    token_left: Duration,
    /// A token was refused in this round, so a second one would be refused, too.
    was_refused: bool,
    round: u64,
    failures: Failures,
    /// Failures of the Spot action alone.
    action_failures: Failures,
    /// Hints that were reported.
    reported: HashSet<String>,
    /// Notices that are still valid.
    valid_notices: Vec<ValidNotice>,
}

/// The content of a well-formed answer.
struct Content {
    news: Vec<News>,
    /// Every part was understood. Otherwise the rest might be about any notice.
    is_complete: bool,
}

/// A notice that was reported.
#[derive(Debug, PartialEq, Eq)]
struct ValidNotice {
    id: String,
    step: Step,
    source: String,
    /// The time left decreases with each answer, but the event stays the same.
    body: String,
}

impl Default for Imds {
    fn default() -> Imds {
        Imds {
            step: Step::Token,
            token: None,
            is_v1_allowed: true,
            token_left: Duration::ZERO,
            was_refused: false,
            round: 0,
            failures: Failures::default(),
            action_failures: Failures::default(),
            reported: HashSet::new(),
            valid_notices: Vec::new(),
        }
    }
}

impl Imds {
    /// Moves to the next request of the round. Returns the pause before it.
    fn next(&mut self) -> Duration {
        let is_slow_round = self.round.is_multiple_of(SLOW_ROUNDS);
        let next = match self.step {
            Step::Token => Some(Step::SpotAction),
            Step::SpotAction => Some(Step::TerminationTime),
            Step::TerminationTime => Some(Step::Rebalance),
            Step::Rebalance if is_slow_round => Some(Step::Maintenance),
            Step::Rebalance | Step::Maintenance => None,
        };
        if let Some(next) = next {
            self.step = next;
            return Duration::ZERO;
        }
        self.round += 1;
        self.was_refused = false;
        self.token_left = self.token_left.saturating_sub(ROUND_PAUSE);
        self.step = if self.token_left.is_zero() { Step::Token } else { Step::SpotAction };
        ROUND_PAUSE
    }

    /// Starts a new round with a new token, after a pause. `is_lost`: the token did not arrive in time.
    fn failed(&mut self, answer: Option<&Answer>, random: f64, is_lost: bool) -> Evaluation {
        self.step = Step::Token;
        let (pause, is_the_one) = self.failures.failed(answer, random);
        let hint = "; in a container the answer may be dropped: raise HttpPutResponseHopLimit to 2";
        let news = is_the_one.then(|| match unusable_server("aws", "spot/instance-action", answer) {
            News::Remark(text) if is_lost => News::Remark(format!("{text}{hint}")),
            other => other,
        });
        Evaluation { news: news.into_iter().collect(), pause }
    }

    /// Whether requests can continue, with or without a token.
    fn take_token(&mut self, answer: &Answer) -> bool {
        let token = answer.body.trim();
        let is_token = answer.status == 200
            && !token.is_empty()
            && !token.starts_with('<')
            && token.len() <= 4096
            && token.bytes().all(|b| b.is_ascii_graphic());
        if is_token {
            let granted = answer.header("x-aws-ec2-metadata-token-ttl-seconds").and_then(|t| t.parse().ok());
            let ttl = granted.unwrap_or(TOKEN_TTL_SECS).min(TOKEN_TTL_SECS);
            self.token_left = Duration::from_secs(ttl.saturating_sub(RENEW_BEFORE_SECS).max(1));
            self.token = Some(token.to_owned());
        }
        // These codes mean that the server has no tokens; a server that needs one answers 401.
        let is_tokenless = self.is_v1_allowed && !self.was_refused && matches!(answer.status, 403..=405);
        if is_tokenless {
            (self.token, self.token_left) = (None, TOKEN_RETRY);
        }
        is_token || is_tokenless
    }

    /// The new notices and hints in a good answer to the present request, and the notices that it no longer contains.
    fn changes(&mut self, content: Content, body: &str) -> Vec<News> {
        let Content { news, is_complete } = content;
        let is_listed = |id: &str| news.iter().any(|item| matches!(item, News::Leaving(notice) if notice.id == id));
        let is_over = |of: &str| news.iter().any(|item| matches!(item, News::Withdrawn { id, .. } if id == of));
        let is_left = |id: &str| is_listed(id) || !is_complete && !is_over(id);
        let mut changes = Vec::new();
        self.valid_notices.retain(|notice| {
            let is_valid = notice.step != self.step || is_left(&notice.id);
            if !is_valid {
                changes.push(News::Withdrawn { id: notice.id.clone(), source: notice.source.clone() });
            }
            is_valid
        });
        changes.extend(news.into_iter().filter(|item| match item {
            News::Leaving(notice) => {
                let (id, source) = (notice.id.clone(), notice.source.clone());
                let now = ValidNotice { id, step: self.step, source, body: body.to_owned() };
                let is_new = !self.valid_notices.contains(&now);
                self.valid_notices.retain(|before| before.id != now.id);
                self.valid_notices.push(now);
                is_new
            }
            News::Withdrawn { .. } => false,
            other => self.reported.insert(format!("{other:?}")),
        }));
        changes
    }

    /// Reads a good answer to the present request; `None` if it is not well-formed.
    fn read(&self, answer: &Answer) -> Option<Content> {
        let body = answer.body.trim();
        let news = match (self.step, answer.status) {
            (Step::Maintenance, 200) => {
                return maintenance(body, answer, |id| self.valid_notices.iter().any(|notice| notice.id == id));
            }
            // The empty answer to this request is a list.
            (Step::Maintenance, _) => return None,
            (Step::SpotAction, 200) => vec![spot_action(body, answer)?],
            (Step::TerminationTime, 200) => {
                let lead = answer.until(timestamps::any(body)?).min(SPOT_LEAD);
                let source = "aws spot/termination-time".to_owned();
                vec![News::Leaving(Notice { id: source.clone(), source, lead })]
            }
            (Step::Rebalance, 200) => {
                let json: Json = serde_json::from_str(body).ok()?;
                json.get("noticeTime")?.as_str()?;
                vec![News::Soon("AWS reports a higher risk of interruption for this Spot instance".to_owned())]
            }
            (_, 404) => Vec::new(),
            _ => return None,
        };
        Some(Content { news, is_complete: true })
    }
}

fn spot_action(body: &str, answer: &Answer) -> Option<News> {
    let json: Json = serde_json::from_str(body).ok()?;
    let action = json.get("action")?.as_str()?;
    let time = json.get("time").and_then(Json::as_str).and_then(timestamps::any);
    let lead = match (action, time) {
        ("terminate" | "stop", Some(time)) => answer.until(time).min(SPOT_LEAD),
        // Hibernation begins with the notice, whatever time it names.
        ("hibernate", _) => Duration::ZERO,
        _ => return None,
    };
    let (id, source) = ("aws spot/instance-action".to_owned(), format!("aws spot {action}"));
    Some(News::Leaving(Notice { id, source, lead }))
}

/// Reads all events; `is_valid` says which notices are valid.
fn maintenance(body: &str, answer: &Answer, is_valid: impl Fn(&str) -> bool) -> Option<Content> {
    let events: Vec<Json> = serde_json::from_str(body).ok()?;
    let item = |event: &Json| {
        let field = |name: &str| event.get(name).and_then(Json::as_str);
        let code = field("Code").filter(|code| {
            matches!(
                *code,
                "instance-stop" | "system-reboot" | "instance-reboot" | "instance-retirement" | "system-maintenance"
            )
        })?;
        let (id, source) = (format!("aws {}", field("EventId").unwrap_or(code)), format!("aws {code}"));
        if field("State").is_some_and(|state| matches!(state, "completed" | "canceled")) {
            return Some(News::Withdrawn { id, source });
        }
        let begins = timestamps::any(field("NotBefore")?)?;
        let ends = field("NotAfter").and_then(timestamps::any).unwrap_or(begins);
        // Otherwise every run on a machine with an open window would end at its first poll.
        let lead = Some(answer.until(begins)).filter(|lead| !lead.is_zero()).unwrap_or_else(|| answer.until(ends));
        if lead.is_zero() && !is_valid(&id) {
            // AWS does not remove such an entry while the machine runs, so it must not stop this run or a later one.
            return Some(News::Soon(format!(
                "AWS lists maintenance of this machine ({code}) whose time had already passed when it was first seen"
            )));
        }
        Some(News::Leaving(Notice { id, source, lead: lead.min(MAINTENANCE_LEAD) }))
    };
    let mut news: Vec<News> = events.iter().filter_map(item).collect();
    let odd = events.len() - news.len();
    if odd > 0 {
        news.push(News::Remark(format!("AWS lists maintenance in an unknown form ({odd}), which is ignored")));
    }
    Some(Content { news, is_complete: odd == 0 })
}

impl Watch for Imds {
    fn question(&self) -> Question {
        let key = match self.step {
            Step::Token => {
                return Question {
                    method: Method::Put,
                    path: "/latest/api/token".to_owned(),
                    headers: vec![("X-aws-ec2-metadata-token-ttl-seconds", TOKEN_TTL_SECS.to_string())],
                    timeout: PLAIN_TIMEOUT,
                };
            }
            Step::SpotAction => "spot/instance-action",
            Step::TerminationTime => "spot/termination-time",
            Step::Rebalance => "events/recommendations/rebalance",
            Step::Maintenance => "events/maintenance/scheduled",
        };
        Question {
            method: Method::Get,
            path: format!("/latest/meta-data/{key}"),
            headers: self.token.iter().map(|token| ("X-aws-ec2-metadata-token", token.clone())).collect(),
            timeout: PLAIN_TIMEOUT,
        }
    }

    fn evaluate(&mut self, answer: Option<&Answer>, took: Duration, random: f64) -> Evaluation {
        self.token_left = self.token_left.saturating_sub(took);
        if self.step == Step::Token {
            if !answer.is_some_and(|answer| self.take_token(answer)) {
                // A refused connection fails at once, so the answer was not dropped on the way.
                return self.failed(answer, random, answer.is_none() && took >= PLAIN_TIMEOUT);
            }
            return Evaluation::nothing(self.next());
        }
        if answer.is_some_and(|answer| answer.status == 401) {
            if self.was_refused {
                return self.failed(answer, random, false);
            }
            self.was_refused = true;
            self.step = Step::Token;
            return Evaluation::nothing(Duration::ZERO);
        }
        let (answer, content) = match answer.and_then(|answer| Some((answer, self.read(answer)?))) {
            Some(read) => read,
            // The other requests may succeed.
            None => {
                let is_the_one = self.step == Step::SpotAction && self.action_failures.failed(answer, random).1;
                let news =
                    is_the_one.then(|| unusable_server("aws", "spot/instance-action", answer)).into_iter().collect();
                return Evaluation { news, pause: self.next() };
            }
        };
        self.failures.reset();
        if self.step == Step::SpotAction {
            self.action_failures.reset();
        }
        let news = self.changes(content, answer.body.trim());
        Evaluation { news, pause: self.next() }
    }
}

#[cfg(test)]
mod tests;
