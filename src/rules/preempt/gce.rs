//! Google Compute Engine's metadata server (contracts/preemption.md, section 1): `preempted` and `maintenance-event`,
//! each by a hanging GET that returns when the value changes.
//!
//! Example: `GET /computeMetadata/v1/instance/preempted` with `Metadata-Flavor: Google` answers `FALSE` and an ETag.

use std::time::Duration;

use super::watch::{Answer, Heard, Notice, Question, Watch};
use super::{LocalFacts, Source};
use crate::rules::env::Env;

/// The line in the list.
pub(super) const SOURCE: Source = Source {
    name: "gce",
    named_endpoint,
    default_endpoint: "169.254.169.254:80",
    is_here,
    watches: || vec![Box::new(Key::new(PREEMPTED)), Box::new(Key::new(MAINTENANCE))],
};

/// What the server waits for a change before it answers with the old value.
const SERVER_WAIT: Duration = Duration::from_secs(120);
/// A whole hanging request; without a limit a dead connection would hang for ever.
const HANGING_TIMEOUT: Duration = Duration::from_secs(130);
/// A plain request.
const PLAIN_TIMEOUT: Duration = Duration::from_secs(2);
/// Tries in a row before the watch goes quiet.
const TRIES: u32 = 3;
/// Between two tries once it is quiet: the server may come back.
const QUIET_PAUSE: Duration = Duration::from_secs(60);
/// A server that does not wait must not be asked in a tight loop.
const SHORTEST_ROUND: Duration = Duration::from_secs(1);
/// Without the opt-in notice, the machine is off some 30 s after the value turns.
const PREEMPTION_LEAD: Duration = Duration::from_secs(30);
/// The documented warning before a host maintenance that ends the machine.
const MAINTENANCE_LEAD: Duration = Duration::from_secs(60);

/// The SDKs' variables, host with or without a port.
fn named_endpoint(env: &Env) -> Option<String> {
    let host = env.given("GCE_METADATA_HOST").or_else(|| env.given("GCE_METADATA_IP"))?.trim();
    Some(if host.contains(':') { host.to_owned() } else { format!("{host}:80") })
}

fn is_here(facts: &LocalFacts) -> bool {
    matches!(facts.dmi_product.trim(), "Google Compute Engine" | "Google")
}

/// A key's name and what its values mean.
#[derive(Debug, Clone, Copy)]
struct Meaning {
    key: &'static str,
    read: fn(&str) -> Option<Value>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Value {
    Nothing,
    Going(Duration),
    Remark(&'static str),
}

const PREEMPTED: Meaning = Meaning {
    key: "preempted",
    read: |body| match body {
        "FALSE" => Some(Value::Nothing),
        "TRUE" => Some(Value::Going(PREEMPTION_LEAD)),
        _ => None,
    },
};

const MAINTENANCE: Meaning = Meaning {
    key: "maintenance-event",
    read: |body| match body {
        "NONE" => Some(Value::Nothing),
        "TERMINATE_ON_HOST_MAINTENANCE" => Some(Value::Going(MAINTENANCE_LEAD)),
        "MIGRATE_ON_HOST_MAINTENANCE" => {
            Some(Value::Remark("this machine is being moved to another host; training goes on after a short pause"))
        }
        _ => None,
    },
};

#[derive(Debug)]
struct Key {
    meaning: Meaning,
    /// Of the last good answer; without it a change between two questions would be lost.
    etag: Option<String>,
    failures: u32,
    last: Option<Value>,
}

impl Key {
    fn new(meaning: Meaning) -> Key {
        Key { meaning, etag: None, failures: 0, last: None }
    }

    /// The value and ETag of a good answer.
    fn read(&self, answer: &Answer) -> Option<(Value, Option<String>)> {
        let ours = answer.header("metadata-flavor") == Some("Google");
        if answer.status != 200 || !ours {
            return None;
        }
        let value = (self.meaning.read)(answer.body.trim())?;
        Some((value, answer.header("etag").map(str::to_owned)))
    }
}

impl Watch for Key {
    fn question(&self) -> Question {
        let path = format!("/computeMetadata/v1/instance/{}", self.meaning.key);
        let headers = &[("Metadata-Flavor", "Google")];
        match &self.etag {
            Some(etag) => Question {
                path: format!(
                    "{path}?wait_for_change=true&timeout_sec={}&last_etag={}",
                    SERVER_WAIT.as_secs(),
                    escaped(etag)
                ),
                headers,
                timeout: HANGING_TIMEOUT,
            },
            None => Question { path, headers, timeout: PLAIN_TIMEOUT },
        }
    }

    fn heard(&mut self, answer: Option<&Answer>, took: Duration, random: f64) -> Heard {
        let Some((value, etag)) = answer.and_then(|a| self.read(a)) else {
            self.failures = self.failures.saturating_add(1);
            self.etag = None;
            let remark = (self.failures == TRIES).then(|| {
                format!(
                    "the metadata server does not tell {}; a preemption will be noticed by SIGTERM only until it does",
                    self.meaning.key
                )
            });
            let pause =
                if self.failures >= TRIES { QUIET_PAUSE } else { Duration::from_secs(1 << (self.failures - 1)) };
            return Heard { notice: None, remark, pause: pause.mul_f64(0.8 + 0.4 * random.clamp(0.0, 1.0)) };
        };
        self.failures = 0;
        self.etag = etag;
        let is_news = self.last.replace(value) != Some(value);
        let waits = self.etag.is_some();
        let pause = if is_news && waits { Duration::ZERO } else { SHORTEST_ROUND.saturating_sub(took) };
        let (notice, remark) = match value {
            Value::Going(lead) if is_news => (Some(Notice { source: format!("gce {}", self.meaning.key), lead }), None),
            Value::Remark(text) if is_news => (None, Some(text.to_owned())),
            _ => (None, None),
        };
        Heard { notice, remark, pause }
    }
}

/// For a query: what is not plainly harmless is percent-encoded.
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
    use super::*;

    const SOON: Duration = Duration::from_millis(5);

    fn answer(status: u16, flavor: &str, body: &str) -> Answer {
        let headers = vec![("metadata-flavor".into(), flavor.into()), ("etag".into(), "e/1".into())];
        Answer { status, headers, body: body.into() }
    }

    fn good(body: &str) -> Answer {
        answer(200, "Google", body)
    }

    #[test]
    fn true_is_a_notice_of_thirty_seconds_once() {
        let mut key = Key::new(PREEMPTED);
        assert_eq!(key.heard(Some(&good("FALSE\n")), SOON, 0.5).notice, None);
        let notice = key.heard(Some(&good("TRUE")), SOON, 0.5).notice.expect("a notice");
        assert_eq!((notice.source.as_str(), notice.lead), ("gce preempted", PREEMPTION_LEAD));
        assert_eq!(key.heard(Some(&good("TRUE")), SOON, 0.5).notice, None);
    }

    #[test]
    fn a_machine_that_is_preempted_already_is_noticed_by_the_first_answer() {
        assert!(Key::new(PREEMPTED).heard(Some(&good("TRUE")), SOON, 0.5).notice.is_some());
    }

    #[test]
    fn the_first_question_is_plain_and_the_next_one_carries_the_etag() {
        let mut key = Key::new(PREEMPTED);
        assert_eq!(key.question().path, "/computeMetadata/v1/instance/preempted");
        key.heard(Some(&good("FALSE")), SOON, 0.5);
        assert!(key.question().path.ends_with("?wait_for_change=true&timeout_sec=120&last_etag=e%2F1"));
        assert!(key.question().timeout > SERVER_WAIT);
    }

    #[test]
    fn only_a_well_formed_answer_says_anything() {
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
            let heard = Key::new(PREEMPTED).heard(Some(&strange), SOON, 0.5);
            assert_eq!(heard.notice, None, "{strange:?}");
            assert!(heard.pause > Duration::ZERO);
        }
    }

    #[test]
    fn after_an_error_it_asks_plainly_again_so_that_no_change_is_lost() {
        let mut key = Key::new(PREEMPTED);
        key.heard(Some(&good("FALSE")), SOON, 0.5);
        key.heard(None, SOON, 0.5);
        assert!(!key.question().path.contains("wait_for_change"));
        assert!(key.heard(Some(&good("TRUE")), SOON, 0.5).notice.is_some());
    }

    #[test]
    fn a_storm_of_failures_is_one_remark_and_one_try_a_minute() {
        let mut key = Key::new(MAINTENANCE);
        let heard: Vec<Heard> = (0..50).map(|_| key.heard(Some(&answer(404, "Google", "")), SOON, 0.5)).collect();
        assert_eq!(heard.iter().filter(|h| h.remark.is_some()).count(), 1);
        assert_eq!(heard[0].pause, Duration::from_secs(1));
        assert_eq!(heard[49].pause, QUIET_PAUSE);
    }

    #[test]
    fn a_server_that_does_not_wait_is_asked_once_a_second_at_most() {
        let mut key = Key::new(PREEMPTED);
        key.heard(Some(&good("FALSE")), SOON, 0.5);
        assert!(key.heard(Some(&good("FALSE")), SOON, 0.5).pause > Duration::from_millis(900));
    }

    #[test]
    fn maintenance_that_ends_the_machine_is_a_notice_and_a_move_is_a_remark() {
        let mut key = Key::new(MAINTENANCE);
        let moved = key.heard(Some(&good("MIGRATE_ON_HOST_MAINTENANCE")), SOON, 0.5);
        assert!(moved.notice.is_none() && moved.remark.is_some());
        let ends = key.heard(Some(&good("TERMINATE_ON_HOST_MAINTENANCE")), SOON, 0.5);
        assert_eq!(ends.notice.map(|n| n.lead), Some(MAINTENANCE_LEAD));
    }
}
