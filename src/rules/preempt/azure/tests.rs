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

/// A watch that knows the name of this machine.
fn events() -> Events {
    let mut events = Events::default();
    assert!(events.question().path.contains("compute/name"));
    events.evaluate(Some(&answer(200, "vm_0")), SOON, 0.5);
    events
}

fn hear(events: &mut Events, answer: &Answer) -> Evaluation {
    events.evaluate(Some(answer), SOON, 0.5)
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
    assert_eq!(hear(&mut events, &document(2, &preempt)).news, []);
    assert_eq!(hear(&mut events, &document(3, &preempt)).news, [], "the event is the same");
}

#[test]
fn events_of_other_machines_are_ignored() {
    let mut events = events();
    let other = [event("e1", "Preempt", "vm_1", "Scheduled", AT)];
    assert_eq!(hear(&mut events, &document(2, &other)).news, []);
}

#[test]
fn without_a_name_it_is_requested_again_and_then_every_event_counts() {
    let long = "x".repeat(300);
    for (status, no_name) in [(404, "Not found"), (200, ""), (200, "<html>"), (200, "{}"), (200, "a\nb"), (200, &long)]
    {
        let mut events = Events::default();
        events.evaluate(None, SOON, 0.5);
        let preempt = document(2, &[event("e1", "Preempt", "vm_0", "Scheduled", AT)]);
        assert_eq!(hear(&mut events, &preempt).news, []);
        assert_eq!(events.question().path, NAME);
        events.evaluate(Some(&answer(status, no_name)), SOON, 0.5);
        assert_eq!(notices(&hear(&mut events, &preempt)).len(), 1, "{status} {no_name:?}");
    }
}

#[test]
fn an_event_that_has_begun_has_little_time_left() {
    let mut events = events();
    let begun = [event("e1", "Preempt", "vm_0", "Started", "")];
    assert_eq!(notices(&hear(&mut events, &document(2, &begun))), [("azure preempt".into(), 30)]);
}

#[test]
fn a_preemption_is_30_s_away_for_any_local_clock() {
    let mut events = events();
    let mut evaluation = document(2, &[event("e1", "Preempt", "vm_0", "Scheduled", AT)]);
    evaluation.headers.clear();
    assert_eq!(notices(&hear(&mut events, &evaluation)), [("azure preempt".into(), 30)]);
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
    let news = hear(&mut events, &document(2, &[event("e1", "Freeze", "vm_0", "Started", "")])).news;
    assert!(matches!(news[..], [News::Frozen { length, .. }] if length.as_secs() == 69), "{news:?}");
}

#[test]
fn an_event_is_reported_once_unless_its_date_comes_nearer_or_it_begins() {
    let mut events = events();
    let mut hear = |incarnation, status: &str, day: u32, minute: u32| {
        let at = format!("{day} Apr 2022 08:{minute:02}:28 GMT");
        let evaluation = hear(&mut events, &document(incarnation, &[event("e1", "Redeploy", "vm_0", status, &at)]));
        notices(&evaluation).into_iter().map(|(_, lead)| lead).collect::<Vec<_>>()
    };
    assert_eq!(hear(2, "Scheduled", 14, 26), [2 * 86_400 + 10 * 3600]);
    assert_eq!(hear(3, "Scheduled", 14, 26), [0; 0]);
    assert_eq!(hear(4, "Scheduled", 14, 27), [0; 0], "a later date is not reported");
    assert_eq!(hear(5, "Scheduled", 14, 25), [2 * 86_400 + 10 * 3600 - 60]);
    assert_eq!(hear(6, "Scheduled", 13, 26), [86_400 + 10 * 3600]);
    assert_eq!(hear(7, "Started", 13, 26), [30]);
}

#[test]
fn an_event_that_disappears_before_it_began_is_withdrawn() {
    let mut events = events();
    hear(&mut events, &document(2, &[event("e1", "Reboot", "vm_0", "Scheduled", AT)]));
    let news = hear(&mut events, &document(3, &[])).news;
    assert_eq!((withdrawn(&news), news.len()), (vec!["azure e1"], 1));
    assert_eq!(hear(&mut events, &document(4, &[])).news, [], "once");
    hear(&mut events, &document(5, &[event("e2", "Freeze", "vm_0", "Scheduled", AT)]));
    let news = hear(&mut events, &document(6, &[])).news;
    assert!(matches!(&news[..], [News::Remark(text)] if text.contains("e2")), "{news:?}");
}

#[test]
fn an_event_that_disappears_after_it_began_is_not_withdrawn() {
    let mut events = events();
    let reboot = |id: &str, status: &str| event(id, "Reboot", "vm_0", status, AT);
    hear(&mut events, &document(2, &[reboot("e1", "Scheduled"), reboot("e2", "Scheduled")]));
    assert_eq!(withdrawn(&hear(&mut events, &document(3, &[reboot("e2", "Scheduled")])).news), ["azure e1"]);
    hear(&mut events, &document(4, &[reboot("e2", "Started")]));
    assert_eq!(hear(&mut events, &document(5, &[])).news, []);
}

#[test]
fn an_unreadable_event_hides_no_other_one_and_is_reported_once() {
    for odd in [
        "null",
        "7",
        r#"{"EventType": "Reboot", "Resources": ["vm_0"], "EventStatus": "Scheduled"}"#,
        r#"{"EventId": "e2", "Resources": ["vm_0"], "EventStatus": "Scheduled"}"#,
        r#"{"EventId": "e2", "EventType": "Reboot", "Resources": "vm_0"}"#,
        r#"{"EventId": "e2", "EventType": "Reboot", "NotBefore": 7}"#,
        r#"{"EventId": "e2", "EventType": "Reboot", "EventStatus": "Completed"}"#,
        r#"{"EventId": "e2", "EventType": "Preempt", "EventStatus": "Bogus"}"#,
    ] {
        let mut events = events();
        let preempt = event("e1", "Preempt", "vm_0", "Scheduled", AT);
        let evaluation = hear(&mut events, &document(2, &[odd.to_owned(), preempt.clone()]));
        assert_eq!(notices(&evaluation), [("azure preempt".into(), 30)], "{odd}");
        assert!(evaluation.news.iter().any(|w| matches!(w, News::Remark(text) if text.contains("unknown form"))));
        assert_eq!(hear(&mut events, &document(2, &[odd.to_owned(), preempt])).news, [], "{odd}");
    }
}

#[test]
fn a_null_value_counts_as_absent() {
    let body = r#"{"EventId": "e1", "EventType": "Preempt", "Resources": null, "EventStatus": null,
                   "NotBefore": null, "DurationInSeconds": null}"#;
    let evaluation = hear(&mut events(), &document(2, &[body.to_owned()]));
    assert_eq!(notices(&evaluation), [("azure preempt".into(), 30)]);
}

#[test]
fn an_event_that_becomes_unreadable_is_not_withdrawn() {
    let mut events = events();
    hear(&mut events, &document(2, &[event("e1", "Reboot", "vm_0", "Scheduled", AT)]));
    let odd = r#"{"EventId": "e1", "EventType": 7}"#.to_owned();
    assert_eq!(withdrawn(&hear(&mut events, &document(3, &[odd])).news), [""; 0]);
    assert_eq!(withdrawn(&hear(&mut events, &document(4, &[])).news), ["azure e1"]);
}

#[test]
fn only_a_well_formed_answer_has_a_meaning_and_many_others_are_one_remark() {
    let mut events = events();
    let preempt = document(2, &[event("e1", "Preempt", "vm_0", "Scheduled", AT)]).body;
    let strange =
        [answer(400, &preempt), answer(503, &preempt), answer(200, "<html>"), answer(200, "{}"), answer(200, "[]")];
    let news: Vec<News> = (0..10).flat_map(|_| strange.iter()).flat_map(|a| hear(&mut events, a).news).collect();
    assert!(matches!(news[..], [News::Remark(_)]), "{news:?}");
}

#[test]
fn a_server_that_answered_before_is_polled_every_few_seconds_while_it_fails() {
    let mut events = events();
    hear(&mut events, &document(1, &[]));
    assert!((0..50).all(|_| events.evaluate(None, SOON, 0.5).pause <= Duration::from_secs(5)));
}

#[test]
fn a_day_with_a_fake_clock_is_a_request_a_second_without_news() {
    let (mut events, mut clock, mut asked) = (events(), Duration::ZERO, 0u32);
    while clock < Duration::from_secs(24 * 3600) {
        let evaluation = hear(&mut events, &document(1, &[]));
        assert_eq!(evaluation.news, []);
        clock += SOON + evaluation.pause;
        asked += 1;
    }
    assert!((86_000..87_500).contains(&asked), "{asked}");
}
