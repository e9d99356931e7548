//! Google Compute Engine's metadata server: `preempted`, `maintenance-event` and `upcoming-maintenance`, each with a
//! hanging GET that returns when the value changes.
//!
//! Example: `GET /computeMetadata/v1/instance/preempted` with `Metadata-Flavor: Google` returns `FALSE` and an ETag.

use std::time::Duration;

use serde_json::Value as Json;

use super::watch::{
    Answer, Evaluation, Failures, Method, News, Notice, PLAIN_TIMEOUT, Question, Watch, unusable_server,
};
use super::{LocalFacts, NoticeFacts, Source};
use crate::process::env::Env;

/// The entry for the list.
pub(super) const SOURCE: Source = Source {
    name: "gce",
    named_by: &["GCE_METADATA_HOST", "GCE_METADATA_IP"],
    default_endpoint: |_| "169.254.169.254:80".to_owned(),
    is_here,
    watches: |facts, _| {
        [PREEMPTED, MAINTENANCE, UPCOMING]
            .into_iter()
            .map(|meaning| Box::new(Key::new(meaning, *facts)) as Box<dyn Watch>)
            .collect()
    },
};

/// The documented notice periods for maintenance that ends a machine without GPUs, and one with GPUs.
const MAINTENANCE_LEAD: Duration = Duration::from_secs(60);
const MAINTENANCE_LEAD_WITH_GPUS: Duration = Duration::from_secs(3600);

/// The time that the server waits for a change before it returns the old value.
const SERVER_WAIT: Duration = Duration::from_secs(120);
/// The limit for a hanging request; without it a dead connection would hang for ever.
const HANGING_TIMEOUT: Duration = Duration::from_secs(130);
/// The shortest interval, for servers that do not wait.
const SHORTEST_ROUND: Duration = Duration::from_secs(1);

fn is_here(_: &Env, facts: &LocalFacts) -> bool {
    matches!(facts.product_name.trim(), "Google Compute Engine" | "Google")
}

/// A key's name and the meaning of its values.
#[derive(Debug, Clone, Copy)]
struct Meaning {
    key: &'static str,
    query: &'static str,
    read: fn(&str, &NoticeFacts) -> Option<Value>,
    /// Whether a server without the key causes a log line: some machine types do not have all keys.
    is_expected: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Value {
    Nothing,
    Going(Duration),
    Remark(&'static str),
    Soon(String),
}

const PREEMPTED: Meaning = Meaning {
    key: "preempted",
    query: "",
    is_expected: true,
    read: |body, facts| match body {
        "FALSE" => Some(Value::Nothing),
        "TRUE" => Some(Value::Going(facts.preemption)),
        _ => None,
    },
};

/// It changes ahead of the event only if a process has read it before.
const MAINTENANCE: Meaning = Meaning {
    key: "maintenance-event",
    query: "",
    is_expected: false,
    read: |body, facts| match body {
        "NONE" => Some(Value::Nothing),
        "TERMINATE_ON_HOST_MAINTENANCE" => {
            Some(Value::Going(if facts.has_gpus { MAINTENANCE_LEAD_WITH_GPUS } else { MAINTENANCE_LEAD }))
        }
        "MIGRATE_ON_HOST_MAINTENANCE" => {
            Some(Value::Remark("this machine is being moved to another host; training continues after a short pause"))
        }
        _ => None,
    },
};

const UPCOMING: Meaning =
    Meaning { key: "upcoming-maintenance", query: "alt=json", is_expected: false, read: |body, _| upcoming(body) };

/// `NONE`, or an object with a status and a window. The spelling of its fields varies, and it may be wrapped in another
/// object. An object with neither (an `error`) has no meaning.
fn upcoming(body: &str) -> Option<Value> {
    if body.trim_matches('"') == "NONE" {
        return Some(Value::Nothing);
    }
    let json: Json = serde_json::from_str(body).ok()?;
    let object = json.get("Upcoming maintenance").unwrap_or(&json).as_object()?;
    let field = |names: [&str; 3]| names.iter().find_map(|name| object.get(*name)?.as_str());
    let status = field(["maintenance_status", "maintenanceStatus", "status"]);
    let start = field(["window_start_time", "windowStartTime", "startTime"]);
    if status.is_none() && start.is_none() {
        return None;
    }
    let cleaned = |text: &str| text.chars().filter(|c| !c.is_control()).take(64).collect::<String>();
    Some(Value::Soon(format!(
        "maintenance of this machine is {}{}",
        status.map_or("announced".to_owned(), |s| cleaned(s).to_lowercase()),
        start.map_or(String::new(), |at| format!(", from {}", cleaned(at)))
    )))
}

#[derive(Debug)]
struct Key {
    meaning: Meaning,
    facts: NoticeFacts,
    /// The ETag of the last good answer; without it a change between two requests would be lost.
    etag: Option<String>,
    failures: Failures,
    last: Option<Value>,
}

impl Key {
    fn new(meaning: Meaning, facts: NoticeFacts) -> Key {
        Key { meaning, facts, etag: None, failures: Failures::default(), last: None }
    }

    /// The value and ETag of a good answer.
    fn read(&self, answer: &Answer) -> Option<(Value, Option<String>)> {
        let is_google = answer.header("metadata-flavor") == Some("Google");
        if answer.status != 200 || !is_google {
            return None;
        }
        let value = (self.meaning.read)(answer.body.trim(), &self.facts)?;
        Some((value, answer.header("etag").map(str::to_owned)))
    }

    fn source(&self) -> String {
        format!("gce {}", self.meaning.key)
    }

    /// The meaning of a changed value.
    fn changes(&self, before: Option<&Value>, value: Value) -> Vec<News> {
        let was_going = matches!(before, Some(Value::Going(_)));
        let is_off = was_going && !matches!(value, Value::Going(_));
        let withdrawn = is_off.then(|| News::Withdrawn { id: self.source(), source: self.source() });
        withdrawn.into_iter().chain(self.item(value)).collect()
    }

    fn item(&self, value: Value) -> Option<News> {
        Some(match value {
            Value::Nothing => return None,
            Value::Going(lead) => News::Leaving(Notice { id: self.source(), source: self.source(), lead }),
            Value::Remark(text) => News::Remark(text.to_owned()),
            Value::Soon(text) => News::Soon(text),
        })
    }
}

impl Watch for Key {
    fn question(&self) -> Question {
        let mut query: Vec<String> =
            Some(self.meaning.query.to_owned()).filter(|q| !q.is_empty()).into_iter().collect();
        if let Some(etag) = &self.etag {
            let wait = SERVER_WAIT.as_secs();
            query.push(format!("wait_for_change=true&timeout_sec={wait}&last_etag={}", escaped(etag)));
        }
        let mark = if query.is_empty() { "" } else { "?" };
        Question {
            method: Method::Get,
            path: format!("/computeMetadata/v1/instance/{}{mark}{}", self.meaning.key, query.join("&")),
            headers: vec![("Metadata-Flavor", "Google".to_owned())],
            timeout: if self.etag.is_some() { HANGING_TIMEOUT } else { PLAIN_TIMEOUT },
        }
    }

    fn evaluate(&mut self, answer: Option<&Answer>, took: Duration, random: f64) -> Evaluation {
        let Some((value, etag)) = answer.and_then(|a| self.read(a)) else {
            self.etag = None;
            let (pause, is_the_one) = self.failures.failed(answer, random);
            let is_said = is_the_one && self.meaning.is_expected;
            return Evaluation {
                news: is_said.then(|| unusable_server("gce", self.meaning.key, answer)).into_iter().collect(),
                pause,
            };
        };
        self.failures.reset();
        self.etag = etag;
        let before = self.last.replace(value.clone());
        let is_news = before.as_ref() != Some(&value);
        let news = if is_news { self.changes(before.as_ref(), value) } else { Vec::new() };
        // The first answer is immediate, and the server waits from the next request on. The ETag detects a change in
        // between.
        let waits_now = before.is_none() && self.etag.is_some();
        let pause = if waits_now { Duration::ZERO } else { SHORTEST_ROUND.saturating_sub(took) };
        Evaluation { news, pause }
    }
}

/// Percent-encodes every character that is not harmless in a query.
fn escaped(text: &str) -> String {
    text.bytes()
        .map(|b| match b {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' | b'.' => char::from(b).to_string(),
            _ => format!("%{b:02X}"),
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::super::watch::tests::{notices, withdrawn};
    use super::*;

    const SOON: Duration = Duration::from_millis(5);

    fn answer(status: u16, flavor: &str, body: &str) -> Answer {
        let headers = vec![("metadata-flavor".into(), flavor.into()), ("etag".into(), "e/1".into())];
        Answer { status, headers, body: body.into(), received_unix: 0 }
    }

    fn good(body: &str) -> Answer {
        answer(200, "Google", body)
    }

    fn key(meaning: Meaning) -> Key {
        Key::new(meaning, NoticeFacts { preemption: Duration::from_secs(30), has_gpus: false })
    }

    #[test]
    fn true_is_one_notice_of_thirty_seconds() {
        let mut key = key(PREEMPTED);
        assert_eq!(key.evaluate(Some(&good("FALSE\n")), SOON, 0.5).news, []);
        assert_eq!(notices(&key.evaluate(Some(&good("TRUE")), SOON, 0.5)), [("gce preempted".into(), 30)]);
        assert_eq!(key.evaluate(Some(&good("TRUE")), SOON, 0.5).news, []);
    }

    #[test]
    fn the_user_can_set_another_notice_period_and_gpus_have_an_hour_before_maintenance() {
        let facts = NoticeFacts { preemption: Duration::from_secs(120), has_gpus: true };
        assert_eq!(notices(&Key::new(PREEMPTED, facts).evaluate(Some(&good("TRUE")), SOON, 0.5))[0].1, 120);
        let ends = good("TERMINATE_ON_HOST_MAINTENANCE");
        assert_eq!(notices(&Key::new(MAINTENANCE, facts).evaluate(Some(&ends), SOON, 0.5))[0].1, 3600);
    }

    #[test]
    fn the_first_answer_detects_a_machine_that_is_already_preempted() {
        assert_eq!(notices(&key(PREEMPTED).evaluate(Some(&good("TRUE")), SOON, 0.5)).len(), 1);
    }

    #[test]
    fn the_first_request_is_plain_and_the_next_one_has_the_etag() {
        let mut key = key(PREEMPTED);
        assert_eq!(key.question().path, "/computeMetadata/v1/instance/preempted");
        key.evaluate(Some(&good("FALSE")), SOON, 0.5);
        assert!(key.question().path.ends_with("/preempted?wait_for_change=true&timeout_sec=120&last_etag=e%2F1"));
        assert!(key.question().timeout > SERVER_WAIT);
    }

    #[test]
    fn only_a_well_formed_answer_has_a_meaning() {
        let strange = [
            answer(200, "Amazon", "TRUE"),
            answer(404, "Google", "TRUE"),
            answer(503, "Google", "TRUE"),
            answer(302, "Google", "TRUE"),
            good("<html>TRUE</html>"),
            good("true"),
            good(""),
        ];
        for strange in strange {
            let evaluation = key(PREEMPTED).evaluate(Some(&strange), SOON, 0.5);
            assert_eq!(evaluation.news, [], "{strange:?}");
            assert!(evaluation.pause > Duration::ZERO);
        }
    }

    #[test]
    fn after_an_error_the_request_is_plain_again_so_that_no_change_is_lost() {
        let mut key = key(PREEMPTED);
        key.evaluate(Some(&good("FALSE")), SOON, 0.5);
        key.evaluate(None, SOON, 0.5);
        assert!(!key.question().path.contains("wait_for_change"));
        assert_eq!(notices(&key.evaluate(Some(&good("TRUE")), SOON, 0.5)).len(), 1);
    }

    #[test]
    fn many_failures_are_one_remark_and_one_try_a_minute() {
        let mut key = key(PREEMPTED);
        let evaluation: Vec<Evaluation> =
            (0..50).map(|_| key.evaluate(Some(&answer(404, "Google", "")), SOON, 0.5)).collect();
        assert_eq!(evaluation.iter().map(|h| h.news.len()).sum::<usize>(), 1);
        assert_eq!(evaluation[0].pause, Duration::from_secs(1));
        assert_eq!(evaluation[49].pause, Duration::from_secs(60));
    }

    #[test]
    fn a_server_that_answered_before_is_polled_every_few_seconds_while_it_fails() {
        let mut key = key(PREEMPTED);
        key.evaluate(Some(&good("FALSE")), SOON, 0.5);
        assert!((0..50).all(|_| key.evaluate(None, SOON, 0.5).pause <= Duration::from_secs(5)));
    }

    #[test]
    fn a_key_that_some_machines_lack_causes_no_remark() {
        for meaning in [MAINTENANCE, UPCOMING] {
            let mut key = key(meaning);
            assert!((0..50).all(|_| key.evaluate(Some(&answer(404, "Google", "")), SOON, 0.5).news.is_empty()));
        }
    }

    #[test]
    fn a_day_with_a_fake_clock_is_a_request_every_two_minutes_without_news() {
        let (mut key, mut clock, mut questions) = (key(PREEMPTED), Duration::ZERO, 0);
        while clock < Duration::from_secs(24 * 3600) {
            let took = if key.etag.is_some() { SERVER_WAIT } else { SOON };
            let evaluation = key.evaluate(Some(&good("FALSE")), took, 0.5);
            assert_eq!(evaluation.news, []);
            clock += took + evaluation.pause;
            questions += 1;
        }
        assert!((700..=722).contains(&questions), "{questions}");
    }

    #[test]
    fn a_server_that_does_not_wait_is_polled_at_most_once_a_second() {
        let mut key = key(PREEMPTED);
        key.evaluate(Some(&good("FALSE")), SOON, 0.5);
        assert!(key.evaluate(Some(&good("FALSE")), SOON, 0.5).pause > Duration::from_millis(900));
    }

    #[test]
    fn a_server_with_a_new_answer_each_time_is_polled_at_most_once_a_second() {
        let mut key = key(PREEMPTED);
        key.evaluate(Some(&good("FALSE")), SOON, 0.5);
        for body in ["TRUE", "FALSE", "TRUE", "FALSE"] {
            let evaluation = key.evaluate(Some(&good(body)), SOON, 0.5);
            assert!(evaluation.pause > Duration::from_millis(900) && !evaluation.news.is_empty(), "{evaluation:?}");
        }
    }

    #[test]
    fn maintenance_that_ends_the_machine_is_a_notice_and_a_move_is_a_remark() {
        let mut key = key(MAINTENANCE);
        let moved = key.evaluate(Some(&good("MIGRATE_ON_HOST_MAINTENANCE")), SOON, 0.5);
        assert!(matches!(moved.news[..], [News::Remark(_)]), "{moved:?}");
        let ends = key.evaluate(Some(&good("TERMINATE_ON_HOST_MAINTENANCE")), SOON, 0.5);
        assert_eq!(notices(&ends), [("gce maintenance-event".into(), 60)]);
    }

    #[test]
    fn maintenance_that_is_cancelled_is_withdrawn_and_can_return() {
        let ends = good("TERMINATE_ON_HOST_MAINTENANCE");
        for (then, news) in [("NONE", 1), ("MIGRATE_ON_HOST_MAINTENANCE", 2)] {
            let mut key = key(MAINTENANCE);
            key.evaluate(Some(&ends), SOON, 0.5);
            assert_eq!(key.evaluate(None, SOON, 0.5).news, [], "a missing answer has no meaning");
            let evaluation = key.evaluate(Some(&good(then)), SOON, 0.5);
            assert_eq!(withdrawn(&evaluation.news), ["gce maintenance-event"]);
            assert_eq!(evaluation.news.len(), news, "{evaluation:?}");
            assert_eq!(key.evaluate(Some(&good(then)), SOON, 0.5).news, [], "once");
            assert_eq!(notices(&key.evaluate(Some(&ends), SOON, 0.5)).len(), 1);
        }
    }

    #[test]
    fn a_servers_text_about_maintenance_is_one_short_log_line() {
        let said = format!(r#"{{"status": "PENDING\nerror: forged{}"}}"#, "x".repeat(500));
        let Some(Value::Soon(why)) = upcoming(&said) else { panic!("it is upcoming") };
        assert!(why.len() < 200 && !why.contains('\n') && why.contains("pending"), "{why:?}");
    }

    #[test]
    fn upcoming_maintenance_asks_for_a_checkpoint_soon_in_every_spelling() {
        let mut key = key(UPCOMING);
        assert_eq!(key.question().path, "/computeMetadata/v1/instance/upcoming-maintenance?alt=json");
        key.evaluate(Some(&good("NONE")), SOON, 0.5);
        assert!(key.question().path.contains("?alt=json&wait_for_change=true"));
        for body in [
            r#"{"maintenance_status": "PENDING", "window_start_time": "2026-12-01T00:00:00Z", "can_reschedule": "true"}"#,
            r#"{"maintenanceStatus": "ONGOING", "type": "UNSCHEDULED"}"#,
            r#"{"Upcoming maintenance": {"startTime": "2026-12-02T00:00:00Z"}}"#,
        ] {
            let evaluation = key.evaluate(Some(&good(body)), SOON, 0.5);
            assert!(matches!(&evaluation.news[..], [News::Soon(_)]), "{body}: {evaluation:?}");
            assert_eq!(key.evaluate(Some(&good(body)), SOON, 0.5).news, [], "once");
        }
        let error = r#"{ "error": "no notifications have been received yet, try again later" }"#;
        assert_eq!(key.evaluate(Some(&good(error)), SOON, 0.5).news, []);
    }
}
