//! Azure's Scheduled Events, polled once a second, because the service has no hanging GET.
//!
//! Example: `GET /metadata/scheduledevents?api-version=2020-07-01` with `Metadata: true` returns
//! `{"DocumentIncarnation": 2, "Events": [{"EventId": "…", "EventType": "Preempt", "Resources": ["vm_0"],
//! "EventStatus": "Scheduled", "NotBefore": "Mon, 11 Apr 2026 22:26:58 GMT", …}]}`. Deliberately absent: acknowledging
//! an event, which starts it early for every machine that it names.

use std::time::Duration;

use serde_json::Value as Json;

use super::watch::{
    Answer, Evaluation, Failures, Method, News, Notice, PLAIN_TIMEOUT, Question, Watch, unusable_server,
};
use super::{LocalFacts, Source};
use crate::text::timestamps;

/// The entry for the list.
pub(super) const SOURCE: Source = Source {
    name: "azure",
    named_by: &["TRAINIT_AZURE_METADATA_ENDPOINT"],
    default_endpoint: |_| "169.254.169.254:80".to_owned(),
    is_here: |_, facts| is_azure(facts),
    watches: |_, _| vec![Box::new(Events::default())],
};

/// The chassis tag of every Azure machine.
const CHASSIS: &str = "7783-7084-3265-9085-8269-3286-77";
const EVENTS: &str = "/metadata/scheduledevents?api-version=2020-07-01";
const NAME: &str = "/metadata/instance/compute/name?api-version=2021-02-01&format=text";
/// The first request turns the service on, which takes up to two minutes.
const FIRST_TIMEOUT: Duration = Duration::from_secs(130);
const ROUND_PAUSE: Duration = Duration::from_secs(1);
/// The shortest notice period of an event without a time (it has begun, or none is given), and the only one of a
/// preemption.
const LEAST_LEAD: Duration = Duration::from_secs(30);
/// The longest notice period that is accepted: a host that will fail is announced days ahead.
const MOST_LEAD: Duration = Duration::from_secs(60 * 24 * 3600);
/// A date that moves by less than this counts as unchanged.
const SAME_DATE_SECS: i64 = 60;
/// A freeze is expected this long before its date.
const FREEZE_LEAD: Duration = Duration::from_secs(60 * 60);
/// A freeze ends this much after its announced length.
const AFTER_FREEZE: Duration = Duration::from_secs(30);
/// The length of a freeze if it is unknown.
const DEFAULT_FREEZE: Duration = Duration::from_secs(30);

fn is_azure(facts: &LocalFacts) -> bool {
    facts.chassis_asset_tag.trim() == CHASSIS
}

#[derive(Debug)]
struct Event {
    id: String,
    kind: String,
    /// Names of the affected machines; empty means all.
    resources: Vec<String>,
    status: String,
    not_before: String,
    seconds: Option<u64>,
}

impl Event {
    /// `None` if it is not well-formed or has undocumented values. Optional values may be `null`, too.
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

    /// The id of its announcement.
    fn name(&self) -> String {
        format!("azure {}", self.id)
    }
}

/// The name of this machine, if it is known.
#[derive(Debug, PartialEq, Eq)]
enum Name {
    Unasked,
    /// The server did not give it; it is requested again when there are events.
    Unknown,
    /// The server will never give it.
    Never,
    Known(String),
}

#[derive(Debug)]
struct Events {
    name: Name,
    /// The present request is for the name.
    requests_name: bool,
    /// A document has arrived.
    has_document: bool,
    incarnation: Option<i64>,
    failures: Failures,
    /// Events of this machine in the state in which they were reported.
    reported: Vec<Event>,
}

impl Default for Events {
    fn default() -> Events {
        Events {
            name: Name::Unasked,
            requests_name: true,
            has_document: false,
            incarnation: None,
            failures: Failures::default(),
            reported: Vec::new(),
        }
    }
}

impl Events {
    fn take_name(&mut self, answer: Option<&Answer>) {
        self.requests_name = false;
        let name = answer.filter(|a| a.status == 200).map(|a| a.body.trim());
        let is_name = |name: &&str| !name.is_empty() && name.len() <= 256 && !name.contains(['<', '{', '\n']);
        self.name = match (name.filter(is_name), &self.name) {
            (Some(name), _) => Name::Known(name.to_owned()),
            (None, Name::Unasked) => Name::Unknown,
            (None, _) => Name::Never,
        };
    }

    /// The server also delivers events of other machines in the same set. Without a name for this machine all of them
    /// count: an unnecessary stop costs less than a missed preemption.
    fn is_for_this_machine(&self, event: &Event) -> bool {
        match &self.name {
            Name::Known(name) => {
                event.resources.is_empty() || event.resources.iter().any(|r| r.eq_ignore_ascii_case(name))
            }
            Name::Unasked | Name::Unknown | Name::Never => true,
        }
    }

    /// The news in a document; `None` if it is not well-formed.
    fn read(&mut self, answer: &Answer) -> Option<Vec<News>> {
        let document: Json = serde_json::from_str(&answer.body).ok().filter(|_| answer.status == 200)?;
        let incarnation = document.get("DocumentIncarnation")?.as_i64()?;
        let all = document.get("Events")?.as_array()?;
        if self.incarnation == Some(incarnation) {
            return Some(Vec::new());
        }
        if self.name == Name::Unknown && !all.is_empty() {
            // The events may be for other machines, so the name is requested first; the document will not be older
            // afterwards.
            self.requests_name = true;
            return Some(Vec::new());
        }
        self.incarnation = Some(incarnation);
        let mut own: Vec<Event> = all.iter().filter_map(Event::read).collect();
        let odd = all.len() - own.len();
        own.retain(|event| self.is_for_this_machine(event));
        let mut news: Vec<News> = Vec::new();
        if odd > 0 {
            news.push(News::Remark(format!("Azure lists events in an unknown form ({odd}), which are ignored")));
        }
        self.reported.retain(|reported| {
            // One of the unreadable events may be this one.
            let is_there = odd > 0 || own.iter().any(|e| e.id == reported.id);
            if !is_there && reported.status != "Started" {
                news.push(withdrawn(reported));
            }
            is_there
        });
        for event in own {
            if !self.reported.iter().any(|reported| reported.id == event.id && is_same(reported, &event)) {
                news.extend(item(&event, answer));
                self.reported.retain(|reported| reported.id != event.id);
                self.reported.push(event);
            }
        }
        Some(news)
    }
}

/// Whether the event has no news. A date that was moved back changes nothing.
fn is_same(reported: &Event, now: &Event) -> bool {
    let is_date_same = match (timestamps::any(&reported.not_before), timestamps::any(&now.not_before)) {
        (Some(reported), Some(now)) => now > reported - SAME_DATE_SECS,
        _ => reported.not_before == now.not_before,
    };
    reported.status == now.status && is_date_same
}

/// The event disappeared before it began.
fn withdrawn(event: &Event) -> News {
    match source(event) {
        Some(source) => News::Withdrawn { id: event.name(), source },
        None => News::Remark(format!("Azure has withdrawn the event {}", loggable(&event.id))),
    }
}

/// The source of the notice, if the event ends the machine.
fn source(event: &Event) -> Option<String> {
    let kind = event.kind.as_str();
    let is_end = matches!(kind, "Preempt" | "Terminate" | "Reboot" | "Redeploy");
    is_end.then(|| format!("azure {}", kind.to_lowercase()))
}

fn item(event: &Event, answer: &Answer) -> Option<News> {
    let lead = timestamps::any(&event.not_before).map_or(LEAST_LEAD, |at| answer.until(at).min(MOST_LEAD));
    if let Some(source) = source(event) {
        // Without a Date header the time left is by the local clock, which may be wrong by an hour.
        let is_short = event.status == "Started" || event.kind == "Preempt";
        let lead = if is_short { lead.min(LEAST_LEAD) } else { lead };
        return Some(News::Leaving(Notice { id: event.name(), source, lead }));
    }
    match event.kind.as_str() {
        "Freeze" => {
            let length = event.seconds.map_or(DEFAULT_FREEZE, |s| Duration::from_secs(s.min(3600)));
            Some(News::Frozen {
                length: lead.min(FREEZE_LEAD) + length + AFTER_FREEZE,
                text: format!(
                    "Azure will freeze this machine for about {} s; training continues afterwards",
                    length.as_secs()
                ),
            })
        }
        _ => None,
    }
}

/// Text for a log line.
fn loggable(text: &str) -> String {
    text.chars().filter(|c| c.is_ascii_graphic()).take(64).collect()
}

impl Watch for Events {
    fn question(&self) -> Question {
        let (path, timeout) = match (self.requests_name, self.has_document) {
            (true, _) => (NAME, PLAIN_TIMEOUT),
            (false, true) => (EVENTS, PLAIN_TIMEOUT),
            (false, false) => (EVENTS, FIRST_TIMEOUT),
        };
        let headers = vec![("Metadata", "true".to_owned())];
        Question { method: Method::Get, path: path.to_owned(), headers, timeout }
    }

    fn evaluate(&mut self, answer: Option<&Answer>, took: Duration, random: f64) -> Evaluation {
        if self.requests_name {
            self.take_name(answer);
            return Evaluation::nothing(Duration::ZERO);
        }
        let Some(news) = answer.and_then(|answer| self.read(answer)) else {
            let (pause, is_the_one) = self.failures.failed(answer, random);
            return Evaluation {
                news: is_the_one.then(|| unusable_server("azure", "scheduledevents", answer)).into_iter().collect(),
                pause,
            };
        };
        self.failures.reset();
        self.has_document = true;
        Evaluation { news, pause: if self.requests_name { Duration::ZERO } else { ROUND_PAUSE.saturating_sub(took) } }
    }
}

#[cfg(test)]
mod tests;
