//! Amazon EC2's instance metadata, version 2 (contracts/preemption.md, section 3): the Spot action, the rebalance
//! recommendation and scheduled maintenance, asked every 5 s as AWS advises; there is no hanging GET.
//!
//! Example: `PUT /latest/api/token` answers a token; `GET /latest/meta-data/spot/instance-action` with it answers 404, or
//! `{"action": "terminate", "time": "2017-09-18T08:22:00Z"}`. Deliberately absent: version 1 without a token, which a
//! machine that answers at all does not need, and SageMaker, which says it by SIGTERM.

use std::collections::HashSet;
use std::time::Duration;

use serde_json::Value as Json;

use super::watch::{Answer, Failures, Heard, Method, Notice, PLAIN_TIMEOUT, Question, Watch, Word, unheard};
use super::{LocalFacts, Source, endpoint_of};
use crate::rules::env::Env;
use crate::rules::when;

/// The line in the list.
pub(super) const SOURCE: Source = Source {
    name: "aws",
    named_endpoint: |env| env.given("AWS_EC2_METADATA_SERVICE_ENDPOINT").and_then(endpoint_of),
    default_endpoint,
    is_here,
    watches: |_| vec![Box::new(Imds::default())],
};

/// Between two rounds of questions.
const ROUND: Duration = Duration::from_secs(5);
/// Scheduled maintenance is hours away when it appears: it is asked for in one of so many rounds.
const SLOW_ROUNDS: u64 = 12;
/// What a token is asked to live, and how long before that it is renewed.
const TOKEN_TTL_SECS: u64 = 3600;
const RENEW_BEFORE_SECS: u64 = 15;
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
    let is_sagemaker = env.given("TRAINING_JOB_ARN").is_some() || env.given("SM_CURRENT_HOST").is_some();
    let is_ec2 = facts.sys_vendor.trim() == "Amazon EC2" || facts.bios_version.to_lowercase().contains("amazon");
    is_ec2 && !is_off && !is_sagemaker
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
    /// Seconds until the token is renewed, counted down by what questions and pauses take.
    token_left: Duration,
    /// A token was refused in this round; a second one would be too.
    was_refused: bool,
    round: u64,
    failures: Failures,
    /// What was told already.
    told: HashSet<String>,
}

impl Default for Imds {
    fn default() -> Imds {
        Imds {
            step: Step::Token,
            token: None,
            token_left: Duration::ZERO,
            was_refused: false,
            round: 0,
            failures: Failures::default(),
            told: HashSet::new(),
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

    /// Begins again with a new token, after a pause.
    fn failed(&mut self, random: f64) -> Heard {
        self.step = Step::Token;
        let (pause, is_the_one) = self.failures.another(random);
        let hint = "; in a container the answer may get lost on the way: raise HttpPutResponseHopLimit to 2";
        let words = is_the_one.then(|| match unheard("aws", "spot/instance-action") {
            Word::Remark(text) => Word::Remark(format!("{text}{hint}")),
            other => other,
        });
        Heard { words: words.into_iter().collect(), pause }
    }

    fn take_token(&mut self, answer: &Answer) -> bool {
        let token = answer.body.trim();
        let is_token = answer.status == 200
            && !token.is_empty()
            && token.len() <= 4096
            && token.bytes().all(|b| b.is_ascii_graphic());
        if is_token {
            let granted = answer.header("x-aws-ec2-metadata-token-ttl-seconds").and_then(|t| t.parse().ok());
            let ttl = granted.unwrap_or(TOKEN_TTL_SECS).min(TOKEN_TTL_SECS);
            self.token_left = Duration::from_secs(ttl.saturating_sub(RENEW_BEFORE_SECS).max(1));
            self.token = Some(token.to_owned());
        }
        is_token
    }

    /// What a good answer to the present question says; `None` where it is not well formed.
    fn read(&self, answer: &Answer) -> Option<Vec<Word>> {
        let body = answer.body.trim();
        match (self.step, answer.status) {
            (Step::Maintenance, 200) => maintenance(body, answer),
            (Step::SpotAction, 200) => spot_action(body, answer).map(|word| vec![word]),
            (Step::TerminationTime, 200) => {
                let lead = answer.until(when::any(body)?).min(SPOT_LEAD);
                Some(vec![Word::Leaving(Notice { source: "aws spot/termination-time".to_owned(), lead })])
            }
            (Step::Rebalance, 200) => {
                let json: Json = serde_json::from_str(body).ok()?;
                json.get("noticeTime")?.as_str()?;
                Some(vec![Word::Soon("AWS sees a higher risk of interruption for this Spot instance".to_owned())])
            }
            (_, 404) => Some(Vec::new()),
            _ => None,
        }
    }
}

fn spot_action(body: &str, answer: &Answer) -> Option<Word> {
    let json: Json = serde_json::from_str(body).ok()?;
    let action = json.get("action")?.as_str()?;
    let time = json.get("time").and_then(Json::as_str).and_then(when::any);
    let lead = match (action, time) {
        ("terminate" | "stop", Some(time)) => answer.until(time).min(SPOT_LEAD),
        ("hibernate", time) => time.map_or(Duration::ZERO, |time| answer.until(time).min(SPOT_LEAD)),
        _ => return None,
    };
    Some(Word::Leaving(Notice { source: format!("aws spot {action}"), lead }))
}

fn maintenance(body: &str, answer: &Answer) -> Option<Vec<Word>> {
    let events: Vec<Json> = serde_json::from_str(body).ok()?;
    let words = events.iter().filter_map(|event| {
        let field = |name: &str| event.get(name).and_then(Json::as_str);
        let code = field("Code").filter(|code| {
            matches!(
                *code,
                "instance-stop" | "system-reboot" | "instance-reboot" | "instance-retirement" | "system-maintenance"
            )
        })?;
        let is_over = field("State").is_some_and(|state| matches!(state, "completed" | "canceled"));
        let begins = when::any(field("NotBefore")?)?;
        let ends = field("NotAfter").and_then(when::any).unwrap_or(begins);
        // Else every run on a machine whose window is open would end at its first look.
        let lead = Some(answer.until(begins)).filter(|lead| !lead.is_zero()).unwrap_or_else(|| answer.until(ends));
        let lead = lead.min(MAINTENANCE_LEAD);
        (!is_over).then(|| Word::Leaving(Notice { source: format!("aws {code}"), lead }))
    });
    Some(words.collect())
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
        let Some(answer) = answer else { return self.failed(random) };
        if self.step == Step::Token {
            if !self.take_token(answer) {
                return self.failed(random);
            }
            return Heard::nothing(self.next());
        }
        if answer.status == 401 && !self.was_refused {
            self.was_refused = true;
            self.step = Step::Token;
            return Heard::nothing(Duration::ZERO);
        }
        let Some(mut words) = self.read(answer) else { return self.failed(random) };
        self.failures.over();
        words.retain(|word| {
            let key = match word {
                // The time left goes down with each answer; the event stays the same.
                Word::Leaving(notice) => format!("{} {}", notice.source, answer.body.trim()),
                other => format!("{other:?}"),
            };
            self.told.insert(key)
        });
        Heard { words, pause: self.next() }
    }
}

#[cfg(test)]
mod tests {
    use super::super::watch::tests::notices;
    use super::*;

    const SOON: Duration = Duration::from_millis(5);
    const NOW: &str = "Mon, 18 Sep 2017 08:20:00 GMT";

    fn answer(status: u16, body: &str) -> Answer {
        Answer { status, headers: vec![("date".into(), NOW.into())], body: body.into(), received_unix: 0 }
    }

    /// Answers by path until a round is over; the questions of it and what was said.
    fn round(imds: &mut Imds, answers: &dyn Fn(&str) -> Answer) -> (Vec<String>, Vec<Word>) {
        let (mut asked, mut words) = (Vec::new(), Vec::new());
        loop {
            let question = imds.question();
            let heard = imds.heard(Some(&answers(&question.path)), SOON, 0.5);
            asked.push(question.path.rsplit('/').next().unwrap_or_default().to_owned());
            words.extend(heard.words);
            assert!(asked.len() < 20, "asked without a pause: {asked:?}");
            if !heard.pause.is_zero() {
                return (asked, words);
            }
        }
    }

    fn healthy(path: &str) -> Answer {
        match path {
            "/latest/api/token" => answer(200, "secret"),
            "/latest/meta-data/events/maintenance/scheduled" => answer(200, "[]"),
            _ => answer(404, ""),
        }
    }

    fn with(key: &'static str, body: &'static str) -> impl Fn(&str) -> Answer {
        move |path| if path.ends_with(key) { answer(200, body) } else { healthy(path) }
    }

    #[test]
    fn a_token_comes_first_and_goes_with_every_question() {
        let mut imds = Imds::default();
        let first = imds.question();
        assert_eq!((first.method, first.path.as_str()), (Method::Put, "/latest/api/token"));
        assert_eq!(first.headers, [("X-aws-ec2-metadata-token-ttl-seconds", "3600".to_owned())]);
        imds.heard(Some(&healthy(&first.path)), SOON, 0.5);
        assert_eq!(imds.question().headers, [("X-aws-ec2-metadata-token", "secret".to_owned())]);
        let (asked, words) = round(&mut imds, &healthy);
        assert_eq!(asked, ["instance-action", "termination-time", "rebalance", "scheduled"]);
        assert_eq!(words, []);
        assert_eq!(round(&mut imds, &healthy).0, ["instance-action", "termination-time", "rebalance"]);
    }

    #[test]
    fn the_spot_action_is_a_notice_with_the_time_by_the_servers_clock() {
        let mut imds = Imds::default();
        let going = with("instance-action", r#"{"action": "terminate", "time": "2017-09-18T08:22:00Z"}"#);
        assert_eq!(
            notices(&Heard { words: round(&mut imds, &going).1, pause: SOON }),
            [("aws spot terminate".into(), 120)]
        );
        assert_eq!(round(&mut imds, &going).1, [], "once");
        let far = with("instance-action", r#"{"action": "stop", "time": "2027-09-18T08:22:00Z"}"#);
        let words = round(&mut Imds::default(), &far).1;
        assert_eq!(
            notices(&Heard { words, pause: SOON }),
            [("aws spot stop".into(), 120)],
            "never above what is documented"
        );
        let hibernate = with("instance-action", r#"{"action": "hibernate", "time": "2017-09-18T08:20:00Z"}"#);
        let words = round(&mut Imds::default(), &hibernate).1;
        assert_eq!(notices(&Heard { words, pause: SOON }), [("aws spot hibernate".into(), 0)]);
    }

    #[test]
    fn a_rebalance_recommendation_asks_for_a_checkpoint_soon_and_stops_nothing() {
        let words = round(&mut Imds::default(), &with("rebalance", r#"{"noticeTime": "2017-09-18T08:20:00Z"}"#)).1;
        assert!(matches!(words[..], [Word::Soon(_)]), "{words:?}");
    }

    #[test]
    fn scheduled_maintenance_is_a_notice_however_far_away_and_what_is_over_is_none() {
        let body = r#"[{"NotBefore": "18 Sep 2017 09:20:00 GMT", "Code": "system-reboot", "EventId": "e", "State": "active"},
                       {"NotBefore": "18 Sep 2017 09:20:00 GMT", "Code": "instance-stop", "State": "canceled"},
                       {"NotBefore": "18 Sep 2017 09:20:00 GMT", "Code": "party", "State": "active"}]"#;
        let words = round(&mut Imds::default(), &with("scheduled", body)).1;
        assert_eq!(notices(&Heard { words, pause: SOON }), [("aws system-reboot".into(), 3600)]);
    }

    #[test]
    fn maintenance_whose_window_is_open_is_due_at_the_windows_other_end() {
        for (window, expected) in [
            (r#""NotBefore": "18 Sep 2017 08:10:00 GMT", "NotAfter": "18 Sep 2017 10:20:00 GMT""#, 7200),
            (r#""NotBefore": "18 Sep 2017 09:20:00 GMT", "NotAfter": "18 Sep 2017 10:20:00 GMT""#, 3600),
            (r#""NotBefore": "18 Sep 2017 08:00:00 GMT", "NotAfter": "18 Sep 2017 08:10:00 GMT""#, 0),
            (r#""NotBefore": "18 Sep 2017 08:00:00 GMT", "NotAfter": "x""#, 0),
            (r#""NotBefore": "18 Sep 2017 08:00:00 GMT""#, 0),
        ] {
            let body = format!(r#"[{{{window}, "Code": "instance-reboot", "EventId": "e", "State": "active"}}]"#);
            let words = round(&mut Imds::default(), &with("scheduled", body.leak())).1;
            assert_eq!(notices(&Heard { words, pause: SOON }), [("aws instance-reboot".into(), expected)], "{window}");
        }
    }

    #[test]
    fn a_refused_token_is_renewed_once_and_only_once_a_round() {
        let mut imds = Imds::default();
        round(&mut imds, &healthy);
        let refuse = |path: &str| if path.contains("api/token") { healthy(path) } else { answer(401, "") };
        let (asked, _) = round(&mut imds, &refuse);
        assert_eq!(asked, ["instance-action", "token", "instance-action"]);
        assert_eq!(round(&mut imds, &healthy).0[0], "token", "and it goes on when it is taken again");
    }

    #[test]
    fn a_token_is_renewed_before_its_end() {
        let mut imds = Imds::default();
        let short = |path: &str| {
            let mut answer = healthy(path);
            answer.headers.push(("x-aws-ec2-metadata-token-ttl-seconds".into(), "25".into()));
            answer
        };
        let tokens = (0..4).map(|_| round(&mut imds, &short).0.contains(&"token".to_owned())).collect::<Vec<_>>();
        assert_eq!(tokens, [true, false, true, false]);
    }

    #[test]
    fn only_a_well_formed_answer_says_anything() {
        for body in
            ["", "<html>", "{}", r#"{"action": "dance", "time": "2017-09-18T08:22:00Z"}"#, r#"{"action": "stop"}"#]
        {
            let body: &'static str = body;
            assert_eq!(round(&mut Imds::default(), &with("instance-action", body)).1, [], "{body}");
        }
        for status in [500, 503, 302, 400, 403] {
            let broken =
                move |path: &str| if path.contains("api/token") { healthy(path) } else { answer(status, "TRUE") };
            assert_eq!(round(&mut Imds::default(), &broken).1, [], "{status}");
        }
    }

    #[test]
    fn a_black_hole_is_one_remark_with_the_way_out_and_a_try_a_minute() {
        let mut imds = Imds::default();
        let heard: Vec<Heard> = (0..50).map(|_| imds.heard(None, PLAIN_TIMEOUT, 0.5)).collect();
        let words: Vec<&Word> = heard.iter().flat_map(|h| &h.words).collect();
        assert!(matches!(words[..], [Word::Remark(text)] if text.contains("HttpPutResponseHopLimit")), "{words:?}");
        assert_eq!(heard[49].pause, Duration::from_secs(60));
    }

    #[test]
    fn a_day_of_watching_by_a_fake_clock_is_a_round_every_five_seconds_and_no_word() {
        let (mut imds, mut asked) = (Imds::default(), 0);
        for _ in 0..24 * 3600 / ROUND.as_secs() {
            let (questions, words) = round(&mut imds, &healthy);
            assert_eq!(words, []);
            asked += questions.len();
        }
        assert!((51_840..54_000).contains(&asked), "{asked}");
    }
}
