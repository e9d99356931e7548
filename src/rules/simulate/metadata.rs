//! The answers of a cloud's metadata server, as `rules/preempt` reads them: GCE with its hanging GET, AWS with tokens,
//! Azure's Scheduled Events.

use std::fmt::Write as _;
use std::time::{Duration, UNIX_EPOCH};

/// A request.
#[derive(Clone, Copy)]
pub struct Request<'a> {
    /// `GET`, `PUT`.
    pub method: &'a str,
    /// The path without the query.
    pub path: &'a str,
    /// The query.
    pub query: &'a str,
    /// The value of a header, by its name in lower case.
    pub header: &'a dyn Fn(&str) -> Option<String>,
}

/// The state of a machine.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct State {
    /// When it ends, in seconds since 1970; `None` if no end is announced.
    pub ends_at: Option<u64>,
}

/// The server's reply.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reply {
    /// Answer at once.
    Answer(Answer),
    /// Answer when the state changes, or with this after two minutes.
    Hang(Answer),
}

/// An answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answer {
    /// The status code.
    pub status: u16,
    /// Headers.
    pub headers: Vec<(&'static str, String)>,
    /// The body.
    pub body: String,
}

/// The lifetime of a token.
const TOKEN_SECONDS: &str = "21600";
const TOKEN: &str = "simulated-token";
/// The machine's name in Azure's events.
const VM: &str = "simulated_0";

/// The reply of this cloud's server for a machine in this state.
pub fn reply(cloud: &str, request: &Request<'_>, state: State) -> Reply {
    match cloud {
        "gce" => gce(request, state),
        "aws" => Reply::Answer(aws(request, state)),
        _ => Reply::Answer(azure(request, state)),
    }
}

fn answer(status: u16, body: impl Into<String>) -> Answer {
    Answer { status, headers: Vec::new(), body: body.into() }
}

fn gce(request: &Request<'_>, state: State) -> Reply {
    if (request.header)("metadata-flavor").as_deref() != Some("Google") {
        return Reply::Answer(answer(403, "Missing Metadata-Flavor:Google header."));
    }
    let is_going = state.ends_at.is_some();
    let found = match request.path.strip_prefix("/computeMetadata/v1/instance/") {
        Some("preempted") => Some((if is_going { "TRUE" } else { "FALSE" }, is_going)),
        Some("maintenance-event" | "upcoming-maintenance") => Some(("NONE", false)),
        _ => None,
    };
    let flavor = ("metadata-flavor", "Google".to_owned());
    let Some((body, has_changed)) = found else {
        return Reply::Answer(Answer { headers: vec![flavor], ..answer(404, "") });
    };
    let etag = if has_changed { "1" } else { "0" };
    let answer = Answer { headers: vec![flavor, ("etag", etag.to_owned())], ..answer(200, body) };
    let parameter = |name: &str| request.query.split('&').find_map(|pair| pair.strip_prefix(name)?.strip_prefix('='));
    let knows_it = parameter("last_etag").is_none_or(|last| last == etag);
    let waits = parameter("wait_for_change") == Some("true") && knows_it;
    if waits { Reply::Hang(answer) } else { Reply::Answer(answer) }
}

fn aws(request: &Request<'_>, state: State) -> Answer {
    if (request.method, request.path) == ("PUT", "/latest/api/token") {
        let lifetime = ("x-aws-ec2-metadata-token-ttl-seconds", TOKEN_SECONDS.to_owned());
        return Answer { headers: vec![lifetime], ..answer(200, TOKEN) };
    }
    if (request.header)("x-aws-ec2-metadata-token").as_deref() != Some(TOKEN) {
        return answer(401, "");
    }
    let time =
        state.ends_at.map(|at| humantime::format_rfc3339_seconds(UNIX_EPOCH + Duration::from_secs(at)).to_string());
    match (request.path.trim_start_matches("/latest/meta-data/"), time) {
        ("spot/instance-action", Some(time)) => {
            answer(200, serde_json::json!({ "action": "terminate", "time": time }).to_string())
        }
        ("spot/termination-time", Some(time)) => answer(200, time),
        ("events/maintenance/scheduled", _) => answer(200, "[]"),
        _ => answer(404, ""),
    }
}

fn azure(request: &Request<'_>, state: State) -> Answer {
    if (request.header)("metadata").as_deref() != Some("true") {
        return answer(400, "");
    }
    match request.path {
        "/metadata/instance/compute/name" => answer(200, VM),
        "/metadata/scheduledevents" => {
            let events: Vec<_> = state
                .ends_at
                .map(|at| {
                    serde_json::json!({
                        "EventId": "simulated", "EventType": "Preempt", "ResourceType": "VirtualMachine",
                        "Resources": [VM], "EventStatus": "Scheduled", "NotBefore": http_date(at),
                        "Description": "", "EventSource": "Platform", "DurationInSeconds": -1,
                    })
                })
                .into_iter()
                .collect();
            let document = serde_json::json!({ "DocumentIncarnation": 1 + events.len(), "Events": events });
            answer(200, document.to_string())
        }
        _ => answer(404, ""),
    }
}

/// `Mon, 11 Apr 2026 22:26:58 GMT`.
fn http_date(seconds: u64) -> String {
    const DAYS: [&str; 7] = ["Thu", "Fri", "Sat", "Sun", "Mon", "Tue", "Wed"];
    const MONTHS: [&str; 12] = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
    let text = humantime::format_rfc3339_seconds(UNIX_EPOCH + Duration::from_secs(seconds)).to_string();
    // `2026-04-11T22:26:58Z`.
    let (date, time) = text.trim_end_matches('Z').split_once('T').unwrap_or((&text, ""));
    let mut parts = date.split('-');
    let (year, month, day) = (parts.next(), parts.next(), parts.next());
    let month = month.and_then(|month| month.parse::<usize>().ok()).unwrap_or(1);
    let mut shown = String::new();
    let _ = write!(
        shown,
        "{}, {} {} {} {time} GMT",
        DAYS[(seconds / 86_400 % 7) as usize],
        day.unwrap_or("01"),
        MONTHS[(month + 11) % 12],
        year.unwrap_or("1970"),
    );
    shown
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::preempt::{self, Choice, LocalFacts, Method, News, NoticeFacts, PREEMPTION_LEAD, Watch};
    use crate::process::env::Env;
    use crate::text::timestamps;

    const NOW: u64 = 1_800_000_000;

    /// Passes the watch's questions to the server until the watch reports something or has asked a fixed number of
    /// times.
    fn news(cloud: &'static str, watch: &mut dyn Watch, state: State) -> Vec<News> {
        for _ in 0..12 {
            let question = watch.question();
            let (path, query) = question.path.split_once('?').unwrap_or((&question.path, ""));
            let header = |name: &str| {
                question.headers.iter().find(|(own, _)| own.eq_ignore_ascii_case(name)).map(|(_, value)| value.clone())
            };
            let method = if question.method == Method::Put { "PUT" } else { "GET" };
            let (Reply::Answer(said) | Reply::Hang(said)) =
                reply(cloud, &Request { method, path, query, header: &header }, state);
            let headers = said.headers.iter().map(|(name, value)| ((*name).to_owned(), value.clone())).collect();
            let said =
                preempt::Answer { status: said.status, headers, body: said.body, received_unix: NOW.cast_signed() };
            let evaluation = watch.evaluate(Some(&said), Duration::from_millis(1), 0.5);
            if !evaluation.news.is_empty() {
                return evaluation.news;
            }
        }
        Vec::new()
    }

    #[test]
    fn each_clouds_reader_reports_the_end_and_nothing_before_it_is_announced() {
        let env = Env::default();
        for cloud in crate::simulate::CLOUDS {
            let picked = preempt::sources_to_watch(Choice::Named(cloud), &env, &LocalFacts::default);
            let mut watches =
                (picked[0].0.watches)(&NoticeFacts { preemption: PREEMPTION_LEAD, has_gpus: false }, &env);
            for watch in &mut watches {
                assert_eq!(news(cloud, watch.as_mut(), State::default()), [], "{cloud}");
            }
            let evaluation =
                watches.iter_mut().flat_map(|watch| news(cloud, watch.as_mut(), State { ends_at: Some(NOW + 30) }));
            let leads: Vec<u64> = evaluation
                .map(|item| match item {
                    News::Leaving(notice) => notice.lead.as_secs(),
                    other => panic!("{cloud}: {other:?}"),
                })
                .collect();
            assert!(!leads.is_empty() && leads.iter().all(|lead| *lead == 30), "{cloud}: {leads:?}");
        }
    }

    #[test]
    fn googles_server_waits_only_if_nothing_has_changed() {
        let ask = |query: &str, state| {
            let header = |name: &str| (name == "metadata-flavor").then(|| "Google".to_owned());
            let path = "/computeMetadata/v1/instance/preempted";
            matches!(reply("gce", &Request { method: "GET", path, query, header: &header }, state), Reply::Hang(_))
        };
        let going = State { ends_at: Some(NOW) };
        assert!(!ask("", State::default()) && ask("wait_for_change=true&last_etag=0", State::default()));
        assert!(!ask("wait_for_change=true&last_etag=0", going) && ask("wait_for_change=true&last_etag=1", going));
    }

    #[test]
    fn a_date_is_written_as_it_is_read() {
        for seconds in [0, NOW, 1_709_208_000] {
            assert_eq!(timestamps::http_date(&http_date(seconds)), Some(seconds.cast_signed()));
        }
        assert!(http_date(NOW).starts_with("Fri, 15 Jan 2027"), "{}", http_date(NOW));
    }
}
