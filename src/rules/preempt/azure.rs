//! Azure's Scheduled Events, asked once a second; there is no hanging GET.
//!
//! Example: `GET /metadata/scheduledevents?api-version=2020-07-01` with `Metadata: true` answers
//! `{"DocumentIncarnation": 2, "Events": [{"EventId": "…", "EventType": "Preempt", "Resources": ["vm_0"], "EventStatus":
//! "Scheduled", "NotBefore": "Mon, 11 Apr 2026 22:26:58 GMT", …}]}`. Deliberately absent: acknowledging an event, which
//! starts it early for every machine that it names.

use std::time::Duration;

use serde_json::Value as Json;

use super::watch::{Answer, Failures, Heard, Method, Notice, PLAIN_TIMEOUT, Question, Watch, Word, unheard};
use super::{LocalFacts, Source};
use crate::rules::when;

/// The line in the list.
pub(super) const SOURCE: Source = Source {
    name: "azure",
    named_by: &["TRAINIT_AZURE_METADATA_ENDPOINT"],
    default_endpoint: |_| "169.254.169.254:80".to_owned(),
    is_here: |_, facts| is_azure(facts),
    watches: |_, _| vec![Box::new(Events::default())],
};

/// What Azure gives every machine as its chassis' tag.
const CHASSIS: &str = "7783-7084-3265-9085-8269-3286-77";
const EVENTS: &str = "/metadata/scheduledevents?api-version=2020-07-01";
const NAME: &str = "/metadata/instance/compute/name?api-version=2021-02-01&format=text";
/// The first question turns the service on, which takes up to two minutes.
const FIRST_TIMEOUT: Duration = Duration::from_secs(130);
const ROUND: Duration = Duration::from_secs(1);
/// The least warning of an event without a time (it has begun, or none is given), and all that a preemption has.
const LEAST_LEAD: Duration = Duration::from_secs(30);
/// The most warning that is documented for any.
const MOST_LEAD: Duration = Duration::from_secs(60 * 60);
/// A freeze is over some time after its own length.
const AFTER_FREEZE: Duration = Duration::from_secs(30);
/// Where a freeze's length is not known.
const SOME_FREEZE: Duration = Duration::from_secs(30);

fn is_azure(facts: &LocalFacts) -> bool {
    facts.chassis_asset_tag.trim() == CHASSIS
}

#[derive(Debug)]
struct Event {
    id: String,
    kind: String,
    /// Names of the machines that it is about; none: all.
    resources: Vec<String>,
    status: String,
    not_before: String,
    seconds: Option<u64>,
}

impl Event {
    /// `None` where it is not well formed. What may be left out may be `null`, too.
    fn read(json: &Json) -> Option<Event> {
        let text = |name: &str| Some(json.get(name)?.as_str()?.to_owned());
        let or_nothing = |name: &str| match json.get(name) {
            None | Some(Json::Null) => Some(String::new()),
            Some(value) => value.as_str().map(str::to_owned),
        };
        let resources = match json.get("Resources") {
            None | Some(Json::Null) => Vec::new(),
            Some(names) => names.as_array()?.iter().map(|n| n.as_str().map(str::to_owned)).collect::<Option<_>>()?,
        };
        Some(Event {
            id: text("EventId")?,
            kind: text("EventType")?,
            resources,
            status: or_nothing("EventStatus")?,
            not_before: or_nothing("NotBefore")?,
            seconds: json.get("DurationInSeconds").and_then(Json::as_u64),
        })
    }

    /// What tells its announcement from others.
    fn name(&self) -> String {
        format!("azure {}", self.id)
    }
}

/// What this machine calls itself, as far as that is known.
#[derive(Debug, PartialEq, Eq)]
enum Name {
    Unasked,
    /// The server did not say; asked once more when there are events.
    Unsaid,
    /// It never will.
    Nobody,
    Known(String),
}

#[derive(Debug)]
struct Events {
    name: Name,
    /// The present question is for the name.
    asks_name: bool,
    /// Any document came yet.
    is_on: bool,
    incarnation: Option<i64>,
    failures: Failures,
    /// Events of ours that were told, as they were then.
    told: Vec<Event>,
}

impl Default for Events {
    fn default() -> Events {
        Events {
            name: Name::Unasked,
            asks_name: true,
            is_on: false,
            incarnation: None,
            failures: Failures::default(),
            told: Vec::new(),
        }
    }
}

impl Events {
    fn take_name(&mut self, answer: Option<&Answer>) {
        self.asks_name = false;
        let name = answer.filter(|a| a.status == 200).map(|a| a.body.trim());
        let is_name = |name: &&str| !name.is_empty() && name.len() <= 256 && !name.contains(['<', '{', '\n']);
        self.name = match (name.filter(is_name), &self.name) {
            (Some(name), _) => Name::Known(name.to_owned()),
            (None, Name::Unasked) => Name::Unsaid,
            (None, _) => Name::Nobody,
        };
    }

    /// Events of other machines in the same set are delivered too. Without a name of our own all of them count: a stop
    /// too many costs less than a preemption that is missed.
    fn is_ours(&self, event: &Event) -> bool {
        match &self.name {
            Name::Known(name) => {
                event.resources.is_empty() || event.resources.iter().any(|r| r.eq_ignore_ascii_case(name))
            }
            Name::Unasked | Name::Unsaid | Name::Nobody => true,
        }
    }

    /// What is new in a document; `None` where it is not well formed.
    fn read(&mut self, answer: &Answer) -> Option<Vec<Word>> {
        let document: Json = serde_json::from_str(&answer.body).ok().filter(|_| answer.status == 200)?;
        let incarnation = document.get("DocumentIncarnation")?.as_i64()?;
        let all = document.get("Events")?.as_array()?;
        if self.incarnation == Some(incarnation) {
            return Some(Vec::new());
        }
        if self.name == Name::Unsaid && !all.is_empty() {
            // Whose they are is worth another question; the document will be as new then as it is now.
            self.asks_name = true;
            return Some(Vec::new());
        }
        self.incarnation = Some(incarnation);
        let mut ours: Vec<Event> = all.iter().filter_map(Event::read).collect();
        let odd = all.len() - ours.len();
        ours.retain(|event| self.is_ours(event));
        let mut words: Vec<Word> = Vec::new();
        if odd > 0 {
            words.push(Word::Remark(format!(
                "Azure tells of events that cannot be read ({odd}), which are passed over"
            )));
        }
        self.told.retain(|told| {
            // One of those that cannot be read may be it.
            let is_there = odd > 0 || ours.iter().any(|e| e.id == told.id);
            if !is_there && told.status != "Started" {
                words.push(withdrawn(told));
            }
            is_there
        });
        for event in ours {
            let is_same = |told: &Event| (&told.status, &told.not_before) == (&event.status, &event.not_before);
            if !self.told.iter().any(|told| told.id == event.id && is_same(told)) {
                words.extend(word(&event, answer));
                self.told.retain(|told| told.id != event.id);
                self.told.push(event);
            }
        }
        Some(words)
    }
}

/// It disappeared before it began.
fn withdrawn(event: &Event) -> Word {
    match source(event) {
        Some(source) => Word::Withdrawn { id: event.name(), source },
        None => Word::Remark(format!("Azure has withdrawn the event {}", plain(&event.id))),
    }
}

/// Who announces the machine's end, where the event is one.
fn source(event: &Event) -> Option<String> {
    let kind = event.kind.as_str();
    let is_end = matches!(kind, "Preempt" | "Terminate" | "Reboot" | "Redeploy");
    is_end.then(|| format!("azure {}", kind.to_lowercase()))
}

fn word(event: &Event, answer: &Answer) -> Option<Word> {
    let lead = when::any(&event.not_before).map_or(LEAST_LEAD, |at| answer.until(at).min(MOST_LEAD));
    if let Some(source) = source(event) {
        // Without a Date the time left is by our clock, which may be an hour behind.
        let is_short = event.status == "Started" || event.kind == "Preempt";
        let lead = if is_short { lead.min(LEAST_LEAD) } else { lead };
        return Some(Word::Leaving(Notice { id: event.name(), source, lead }));
    }
    match event.kind.as_str() {
        "Freeze" => {
            let length = event.seconds.map_or(SOME_FREEZE, |s| Duration::from_secs(s.min(3600)));
            Some(Word::Frozen {
                length: lead + length + AFTER_FREEZE,
                text: format!(
                    "Azure will freeze this machine for some {} s; training goes on after it",
                    length.as_secs()
                ),
            })
        }
        _ => None,
    }
}

/// Fit for a line of the log.
fn plain(text: &str) -> String {
    text.chars().filter(|c| c.is_ascii_graphic()).take(64).collect()
}

impl Watch for Events {
    fn question(&self) -> Question {
        let (path, timeout) = match (self.asks_name, self.is_on) {
            (true, _) => (NAME, PLAIN_TIMEOUT),
            (false, true) => (EVENTS, PLAIN_TIMEOUT),
            (false, false) => (EVENTS, FIRST_TIMEOUT),
        };
        let headers = vec![("Metadata", "true".to_owned())];
        Question { method: Method::Get, path: path.to_owned(), headers, timeout }
    }

    fn heard(&mut self, answer: Option<&Answer>, took: Duration, random: f64) -> Heard {
        if self.asks_name {
            self.take_name(answer);
            return Heard::nothing(Duration::ZERO);
        }
        let Some(words) = answer.and_then(|answer| self.read(answer)) else {
            let (pause, is_the_one) = self.failures.another(random);
            return Heard {
                words: is_the_one.then(|| unheard("azure", "scheduledevents")).into_iter().collect(),
                pause,
            };
        };
        self.failures.over();
        self.is_on = true;
        Heard { words, pause: if self.asks_name { Duration::ZERO } else { ROUND.saturating_sub(took) } }
    }
}

#[cfg(test)]
mod tests {
    use super::super::watch::tests::{notices, withdrawn};
    use super::*;

    const SOON: Duration = Duration::from_millis(5);

    fn answer(status: u16, body: &str) -> Answer {
        let headers = vec![("date".into(), "Mon, 11 Apr 2022 22:26:28 GMT".into())];
        Answer { status, headers, body: body.into(), received_unix: 0 }
    }

    fn event(id: &str, kind: &str, vm: &str, status: &str, not_before: &str) -> String {
        format!(
            r#"{{"EventId": "{id}", "EventType": "{kind}", "ResourceType": "VirtualMachine", "Resources": ["{vm}"],
                "EventStatus": "{status}", "NotBefore": "{not_before}", "DurationInSeconds": 9}}"#
        )
    }

    fn document(incarnation: u32, events: &[String]) -> Answer {
        answer(200, &format!(r#"{{"DocumentIncarnation": {incarnation}, "Events": [{}]}}"#, events.join(",")))
    }

    const AT: &str = "Mon, 11 Apr 2022 22:26:58 GMT";

    /// A watch that knows its name.
    fn events() -> Events {
        let mut events = Events::default();
        assert!(events.question().path.contains("compute/name"));
        events.heard(Some(&answer(200, "vm_0")), SOON, 0.5);
        events
    }

    fn hear(events: &mut Events, answer: &Answer) -> Heard {
        events.heard(Some(answer), SOON, 0.5)
    }

    #[test]
    fn the_first_question_has_two_minutes_and_the_next_ones_two_seconds() {
        let mut events = events();
        let first = events.question();
        assert_eq!((first.path.as_str(), first.timeout), (EVENTS, FIRST_TIMEOUT));
        assert_eq!(first.headers, [("Metadata", "true".to_owned())]);
        hear(&mut events, &document(1, &[]));
        assert_eq!(events.question().timeout, PLAIN_TIMEOUT);
    }

    #[test]
    fn a_preempt_event_of_this_machine_is_a_notice_once() {
        let mut events = events();
        let preempt = [event("e1", "Preempt", "VM_0", "Scheduled", AT)];
        assert_eq!(notices(&hear(&mut events, &document(2, &preempt))), [("azure preempt".into(), 30)]);
        assert_eq!(hear(&mut events, &document(2, &preempt)).words, []);
        assert_eq!(hear(&mut events, &document(3, &preempt)).words, [], "the event is the same");
    }

    #[test]
    fn events_of_other_machines_are_not_ours() {
        let mut events = events();
        let other = [event("e1", "Preempt", "vm_1", "Scheduled", AT)];
        assert_eq!(hear(&mut events, &document(2, &other)).words, []);
    }

    #[test]
    fn without_a_name_it_is_asked_for_again_and_then_every_event_counts() {
        let mut events = Events::default();
        events.heard(None, SOON, 0.5);
        let preempt = document(2, &[event("e1", "Preempt", "vm_0", "Scheduled", AT)]);
        assert_eq!(hear(&mut events, &preempt).words, []);
        assert_eq!(events.question().path, NAME);
        events.heard(Some(&answer(404, "")), SOON, 0.5);
        assert_eq!(notices(&hear(&mut events, &preempt)).len(), 1);
    }

    #[test]
    fn what_has_begun_has_little_time_left() {
        let mut events = events();
        let begun = [event("e1", "Preempt", "vm_0", "Started", "")];
        assert_eq!(notices(&hear(&mut events, &document(2, &begun))), [("azure preempt".into(), 30)]);
    }

    #[test]
    fn a_preemption_is_half_a_minute_away_whatever_our_clock_says() {
        let mut events = events();
        let mut heard = document(2, &[event("e1", "Preempt", "vm_0", "Scheduled", AT)]);
        heard.headers.clear();
        assert_eq!(notices(&hear(&mut events, &heard)), [("azure preempt".into(), 30)]);
    }

    #[test]
    fn reboot_redeploy_and_terminate_are_notices_and_freeze_is_a_pause() {
        for (kind, expected) in
            [("Reboot", "azure reboot"), ("Redeploy", "azure redeploy"), ("Terminate", "azure terminate")]
        {
            let mut events = events();
            let late = [event("e1", kind, "vm_0", "Scheduled", "Mon, 11 Apr 2022 22:41:28 GMT")];
            assert_eq!(notices(&hear(&mut events, &document(2, &late))), [(expected.into(), 900)]);
        }
        let mut events = events();
        let words = hear(&mut events, &document(2, &[event("e1", "Freeze", "vm_0", "Started", "")])).words;
        assert!(matches!(words[..], [Word::Frozen { length, .. }] if length.as_secs() == 69), "{words:?}");
    }

    #[test]
    fn an_event_that_vanishes_before_it_began_was_withdrawn() {
        let mut events = events();
        hear(&mut events, &document(2, &[event("e1", "Reboot", "vm_0", "Scheduled", AT)]));
        let words = hear(&mut events, &document(3, &[])).words;
        assert_eq!((withdrawn(&words), words.len()), (vec!["azure e1"], 1));
        assert_eq!(hear(&mut events, &document(4, &[])).words, [], "once");
        hear(&mut events, &document(5, &[event("e2", "Freeze", "vm_0", "Scheduled", AT)]));
        let words = hear(&mut events, &document(6, &[])).words;
        assert!(matches!(&words[..], [Word::Remark(text)] if text.contains("e2")), "{words:?}");
    }

    #[test]
    fn an_event_that_vanishes_once_it_has_begun_was_not_withdrawn_and_neither_are_others() {
        let mut events = events();
        let reboot = |id: &str, status: &str| event(id, "Reboot", "vm_0", status, AT);
        hear(&mut events, &document(2, &[reboot("e1", "Scheduled"), reboot("e2", "Scheduled")]));
        assert_eq!(withdrawn(&hear(&mut events, &document(3, &[reboot("e2", "Scheduled")])).words), ["azure e1"]);
        hear(&mut events, &document(4, &[reboot("e2", "Started")]));
        assert_eq!(hear(&mut events, &document(5, &[])).words, []);
    }

    #[test]
    fn an_odd_event_hides_no_other_one_and_is_said_once() {
        for odd in [
            "null",
            "7",
            r#"{"EventType": "Reboot", "Resources": ["vm_0"], "EventStatus": "Scheduled"}"#,
            r#"{"EventId": "e2", "Resources": ["vm_0"], "EventStatus": "Scheduled"}"#,
            r#"{"EventId": "e2", "EventType": "Reboot", "Resources": "vm_0"}"#,
            r#"{"EventId": "e2", "EventType": "Reboot", "NotBefore": 7}"#,
        ] {
            let mut events = events();
            let preempt = event("e1", "Preempt", "vm_0", "Scheduled", AT);
            let heard = hear(&mut events, &document(2, &[odd.to_owned(), preempt.clone()]));
            assert_eq!(notices(&heard), [("azure preempt".into(), 30)], "{odd}");
            assert!(heard.words.iter().any(|w| matches!(w, Word::Remark(text) if text.contains("cannot be read"))));
            assert_eq!(hear(&mut events, &document(2, &[odd.to_owned(), preempt])).words, [], "{odd}");
        }
    }

    #[test]
    fn what_is_null_is_as_good_as_not_there() {
        let body = r#"{"EventId": "e1", "EventType": "Preempt", "Resources": null, "EventStatus": null,
                       "NotBefore": null, "DurationInSeconds": null}"#;
        let heard = hear(&mut events(), &document(2, &[body.to_owned()]));
        assert_eq!(notices(&heard), [("azure preempt".into(), 30)]);
    }

    #[test]
    fn an_event_that_cannot_be_read_any_more_is_not_withdrawn() {
        let mut events = events();
        hear(&mut events, &document(2, &[event("e1", "Reboot", "vm_0", "Scheduled", AT)]));
        let odd = r#"{"EventId": "e1", "EventType": 7}"#.to_owned();
        assert_eq!(withdrawn(&hear(&mut events, &document(3, &[odd])).words), [""; 0]);
        assert_eq!(withdrawn(&hear(&mut events, &document(4, &[])).words), ["azure e1"]);
    }

    #[test]
    fn only_a_well_formed_answer_says_anything_and_a_storm_of_others_is_one_remark() {
        let mut events = events();
        let preempt = document(2, &[event("e1", "Preempt", "vm_0", "Scheduled", AT)]).body;
        let strange =
            [answer(400, &preempt), answer(503, &preempt), answer(200, "<html>"), answer(200, "{}"), answer(200, "[]")];
        let words: Vec<Word> = (0..10).flat_map(|_| strange.iter()).flat_map(|a| hear(&mut events, a).words).collect();
        assert!(matches!(words[..], [Word::Remark(_)]), "{words:?}");
    }

    #[test]
    fn a_day_of_watching_by_a_fake_clock_is_a_question_a_second_and_no_word() {
        let (mut events, mut clock, mut asked) = (events(), Duration::ZERO, 0u32);
        while clock < Duration::from_secs(24 * 3600) {
            let heard = hear(&mut events, &document(1, &[]));
            assert_eq!(heard.words, []);
            clock += SOON + heard.pause;
            asked += 1;
        }
        assert!((86_000..87_500).contains(&asked), "{asked}");
    }
}
