//! Amazon EC2's instance metadata, version 2: the Spot action, the rebalance recommendation and scheduled maintenance,
//! asked every 5 s as AWS advises; there is no hanging GET.
//!
//! Example: `PUT /latest/api/token` answers a token; `GET /latest/meta-data/spot/instance-action` with it answers 404, or
//! `{"action": "terminate", "time": "2017-09-18T08:22:00Z"}`. A proxy that hands out no tokens is asked by version 1, without
//! one. Deliberately absent: SageMaker, which says it by SIGTERM.

use std::collections::HashSet;
use std::time::Duration;

use serde_json::Value as Json;

use super::watch::{Answer, Failures, Heard, Method, Notice, PLAIN_TIMEOUT, Question, Watch, Word, unheard};
use super::{LocalFacts, Source};
use crate::rules::cluster::sagemaker;
use crate::rules::env::Env;
use crate::rules::when;

/// The line in the list.
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

/// Between two rounds of questions.
const ROUND: Duration = Duration::from_secs(5);
/// Scheduled maintenance is hours away when it appears: it is asked for in one of so many rounds.
const SLOW_ROUNDS: u64 = 12;
/// What a token is asked to live, and how long before that it is renewed.
const TOKEN_TTL_SECS: u64 = 3600;
const RENEW_BEFORE_SECS: u64 = 15;
/// How long questions go without a token before one is asked for again.
const TOKENLESS: Duration = Duration::from_secs(60);
/// The longest that each kind of notice is documented to run ahead.
const SPOT_LEAD: Duration = Duration::from_secs(120);
const MAINTENANCE_LEAD: Duration = Duration::from_secs(60 * 24 * 3600);

/// The SDKs' second variable: which of the two link-local addresses.
fn default_endpoint(env: &Env) -> String {
    let is_v6 = env.given("AWS_EC2_METADATA_SERVICE_ENDPOINT_MODE").is_some_and(|m| m.eq_ignore_ascii_case("ipv6"));
    if is_v6 { "[fd00:ec2::254]:80" } else { "169.254.169.254:80" }.to_owned()
}

/// Nitro machines say it in the vendor's name, older ones in the version of their BIOS.
fn is_here(env: &Env, facts: &LocalFacts) -> bool {
    let is_off = env.given("AWS_EC2_METADATA_DISABLED").is_some_and(|v| v.eq_ignore_ascii_case("true"));
    let is_ec2 = facts.sys_vendor.trim() == "Amazon EC2" || facts.bios_version.to_lowercase().contains("amazon");
    is_ec2 && !is_off && !sagemaker::is_here(env)
}

/// What is asked in a round, in order.
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
    /// Whether version 1, which has no tokens, will do where none is to be had.
    is_v1_allowed: bool,
    /// Seconds until the token is renewed, counted down by what questions and pauses take.
    token_left: Duration,
    /// A token was refused in this round; a second one would be too.
    was_refused: bool,
    round: u64,
    failures: Failures,
    /// Of the Spot action alone.
    actionless: Failures,
    /// Hints that were told already.
    told: HashSet<String>,
    /// Notices that stand.
    standing: Vec<Standing>,
}

/// What a well-formed answer says.
struct Said {
    words: Vec<Word>,
    /// Nothing of it was passed over, which might have been about any notice.
    is_whole: bool,
}

/// A notice as it was told.
#[derive(Debug, PartialEq, Eq)]
struct Standing {
    id: String,
    step: Step,
    source: String,
    /// The time left goes down with each answer; the event stays the same.
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
            actionless: Failures::default(),
            told: HashSet::new(),
            standing: Vec::new(),
        }
    }
}

impl Imds {
    /// Goes on to the next question of the round; how long to wait before it.
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
        self.token_left = self.token_left.saturating_sub(ROUND);
        self.step = if self.token_left.is_zero() { Step::Token } else { Step::SpotAction };
        ROUND
    }

    /// Begins again with a new token, after a pause. `is_lost`: the token did not come in time.
    fn failed(&mut self, answer: Option<&Answer>, random: f64, is_lost: bool) -> Heard {
        self.step = Step::Token;
        let (pause, is_the_one) = self.failures.another(answer, random);
        let hint = "; in a container the answer may get lost on the way: raise HttpPutResponseHopLimit to 2";
        let words = is_the_one.then(|| match unheard("aws", "spot/instance-action", answer) {
            Word::Remark(text) if is_lost => Word::Remark(format!("{text}{hint}")),
            other => other,
        });
        Heard { words: words.into_iter().collect(), pause }
    }

    /// Whether the questions may go on, with a token or without.
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
        // Who answers so knows no tokens; a server that wants one says it by 401.
        let is_tokenless = self.is_v1_allowed && !self.was_refused && matches!(answer.status, 403..=405);
        if is_tokenless {
            (self.token, self.token_left) = (None, TOKENLESS);
        }
        is_token || is_tokenless
    }

    /// What was not told yet of a good answer to the present question, and what it no longer says.
    fn news(&mut self, said: Said, body: &str) -> Vec<Word> {
        let Said { words, is_whole } = said;
        let is_said = |id: &str| words.iter().any(|word| matches!(word, Word::Leaving(notice) if notice.id == id));
        let is_over = |of: &str| words.iter().any(|word| matches!(word, Word::Withdrawn { id, .. } if id == of));
        let is_left = |id: &str| is_said(id) || !is_whole && !is_over(id);
        let mut news = Vec::new();
        self.standing.retain(|notice| {
            let stands = notice.step != self.step || is_left(&notice.id);
            if !stands {
                news.push(Word::Withdrawn { id: notice.id.clone(), source: notice.source.clone() });
            }
            stands
        });
        news.extend(words.into_iter().filter(|word| match word {
            Word::Leaving(notice) => {
                let (id, source) = (notice.id.clone(), notice.source.clone());
                let now = Standing { id, step: self.step, source, body: body.to_owned() };
                let is_new = !self.standing.contains(&now);
                self.standing.retain(|before| before.id != now.id);
                self.standing.push(now);
                is_new
            }
            Word::Withdrawn { .. } => false,
            other => self.told.insert(format!("{other:?}")),
        }));
        news
    }

    /// What a good answer to the present question says; `None` where it is not well formed.
    fn read(&self, answer: &Answer) -> Option<Said> {
        let body = answer.body.trim();
        let words = match (self.step, answer.status) {
            (Step::Maintenance, 200) => {
                return maintenance(body, answer, |id| self.standing.iter().any(|notice| notice.id == id));
            }
            // Its empty value is a list.
            (Step::Maintenance, _) => return None,
            (Step::SpotAction, 200) => vec![spot_action(body, answer)?],
            (Step::TerminationTime, 200) => {
                let lead = answer.until(when::any(body)?).min(SPOT_LEAD);
                let source = "aws spot/termination-time".to_owned();
                vec![Word::Leaving(Notice { id: source.clone(), source, lead })]
            }
            (Step::Rebalance, 200) => {
                let json: Json = serde_json::from_str(body).ok()?;
                json.get("noticeTime")?.as_str()?;
                vec![Word::Soon("AWS sees a higher risk of interruption for this Spot instance".to_owned())]
            }
            (_, 404) => Vec::new(),
            _ => return None,
        };
        Some(Said { words, is_whole: true })
    }
}

fn spot_action(body: &str, answer: &Answer) -> Option<Word> {
    let json: Json = serde_json::from_str(body).ok()?;
    let action = json.get("action")?.as_str()?;
    let time = json.get("time").and_then(Json::as_str).and_then(when::any);
    let lead = match (action, time) {
        ("terminate" | "stop", Some(time)) => answer.until(time).min(SPOT_LEAD),
        // It begins with the notice, whatever time that names.
        ("hibernate", _) => Duration::ZERO,
        _ => return None,
    };
    let (id, source) = ("aws spot/instance-action".to_owned(), format!("aws spot {action}"));
    Some(Word::Leaving(Notice { id, source, lead }))
}

/// Each event's word; `stands` tells which notices do.
fn maintenance(body: &str, answer: &Answer, stands: impl Fn(&str) -> bool) -> Option<Said> {
    let events: Vec<Json> = serde_json::from_str(body).ok()?;
    let word = |event: &Json| {
        let field = |name: &str| event.get(name).and_then(Json::as_str);
        let code = field("Code").filter(|code| {
            matches!(
                *code,
                "instance-stop" | "system-reboot" | "instance-reboot" | "instance-retirement" | "system-maintenance"
            )
        })?;
        let (id, source) = (format!("aws {}", field("EventId").unwrap_or(code)), format!("aws {code}"));
        if field("State").is_some_and(|state| matches!(state, "completed" | "canceled")) {
            return Some(Word::Withdrawn { id, source });
        }
        let begins = when::any(field("NotBefore")?)?;
        let ends = field("NotAfter").and_then(when::any).unwrap_or(begins);
        // Else every run on a machine whose window is open would end at its first look.
        let lead = Some(answer.until(begins)).filter(|lead| !lead.is_zero()).unwrap_or_else(|| answer.until(ends));
        if lead.is_zero() && !stands(&id) {
            // Nobody takes it off the list: the machine stands, and so it may for the next run, and the one after it.
            return Some(Word::Soon(format!(
                "AWS lists maintenance of this machine ({code}) whose time was past already when it was first seen"
            )));
        }
        Some(Word::Leaving(Notice { id, source, lead: lead.min(MAINTENANCE_LEAD) }))
    };
    let mut words: Vec<Word> = events.iter().filter_map(word).collect();
    let odd = events.len() - words.len();
    if odd > 0 {
        words.push(Word::Remark(format!("AWS tells of maintenance that cannot be read ({odd}), which is passed over")));
    }
    Some(Said { words, is_whole: odd == 0 })
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

    fn heard(&mut self, answer: Option<&Answer>, took: Duration, random: f64) -> Heard {
        self.token_left = self.token_left.saturating_sub(took);
        if self.step == Step::Token {
            if !answer.is_some_and(|answer| self.take_token(answer)) {
                // A refused connection takes no time, and is no answer that got lost.
                return self.failed(answer, random, answer.is_none() && took >= PLAIN_TIMEOUT);
            }
            return Heard::nothing(self.next());
        }
        if answer.is_some_and(|answer| answer.status == 401) {
            if self.was_refused {
                return self.failed(answer, random, false);
            }
            self.was_refused = true;
            self.step = Step::Token;
            return Heard::nothing(Duration::ZERO);
        }
        let (answer, said) = match answer.and_then(|answer| Some((answer, self.read(answer)?))) {
            Some(read) => read,
            // The others may be well all the same.
            None => {
                let is_the_one = self.step == Step::SpotAction && self.actionless.another(answer, random).1;
                let words = is_the_one.then(|| unheard("aws", "spot/instance-action", answer)).into_iter().collect();
                return Heard { words, pause: self.next() };
            }
        };
        self.failures.over();
        if self.step == Step::SpotAction {
            self.actionless.over();
        }
        let words = self.news(said, answer.body.trim());
        Heard { words, pause: self.next() }
    }
}

#[cfg(test)]
mod tests;
