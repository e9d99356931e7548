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
/// The most warning that is believed: a host that is to fail is told of days before.
const MOST_LEAD: Duration = Duration::from_secs(60 * 24 * 3600);
/// A date that moves by less than this is the same one.
const SAME_DATE_SECS: i64 = 60;
/// So long before its date a freeze is waited for.
const FREEZE_LEAD: Duration = Duration::from_secs(60 * 60);
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
    /// `None` where it is not well formed, or says what nobody has documented. What may be left out may be `null`, too.
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
            status: or_nothing("EventStatus").filter(|word| matches!(word.as_str(), "" | "Scheduled" | "Started"))?,
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
            if !self.told.iter().any(|told| told.id == event.id && is_same(told, &event)) {
                words.extend(word(&event, answer));
                self.told.retain(|told| told.id != event.id);
                self.told.push(event);
            }
        }
        Some(words)
    }
}

/// Whether there is nothing new in it. A later date than was told changes nothing of what is done.
fn is_same(told: &Event, now: &Event) -> bool {
    let is_date_same = match (when::any(&told.not_before), when::any(&now.not_before)) {
        (Some(told), Some(now)) => now > told - SAME_DATE_SECS,
        _ => told.not_before == now.not_before,
    };
    told.status == now.status && is_date_same
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
                length: lead.min(FREEZE_LEAD) + length + AFTER_FREEZE,
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
            let (pause, is_the_one) = self.failures.another(answer, random);
            return Heard {
                words: is_the_one.then(|| unheard("azure", "scheduledevents", answer)).into_iter().collect(),
                pause,
            };
        };
        self.failures.over();
        self.is_on = true;
        Heard { words, pause: if self.asks_name { Duration::ZERO } else { ROUND.saturating_sub(took) } }
    }
}

#[cfg(test)]
mod tests;
