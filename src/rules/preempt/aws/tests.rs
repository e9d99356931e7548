//! Tests of the requests to EC2 and the meaning of the answers.

use super::super::watch::tests::{notices, withdrawn};
use super::*;

const SOON: Duration = Duration::from_millis(5);
const NOW: &str = "Mon, 18 Sep 2017 08:20:00 GMT";

fn answer(status: u16, body: &str) -> Answer {
    Answer { status, headers: vec![("date".into(), NOW.into())], body: body.into(), received_unix: 0 }
}

/// Answers by path until a round is over; returns its requests and news.
fn round(imds: &mut Imds, answers: &dyn Fn(&str) -> Answer) -> (Vec<String>, Vec<News>) {
    let (mut asked, mut news) = (Vec::new(), Vec::new());
    loop {
        let question = imds.question();
        let evaluation = imds.evaluate(Some(&answers(&question.path)), SOON, 0.5);
        asked.push(question.path.rsplit('/').next().unwrap_or_default().to_owned());
        news.extend(evaluation.news);
        assert!(asked.len() < 20, "requested without a pause: {asked:?}");
        if !evaluation.pause.is_zero() {
            return (asked, news);
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
fn a_token_comes_first_and_is_in_every_request() {
    let mut imds = Imds::default();
    let first = imds.question();
    assert_eq!((first.method, first.path.as_str()), (Method::Put, "/latest/api/token"));
    assert_eq!(first.headers, [("X-aws-ec2-metadata-token-ttl-seconds", "3600".to_owned())]);
    imds.evaluate(Some(&healthy(&first.path)), SOON, 0.5);
    assert_eq!(imds.question().headers, [("X-aws-ec2-metadata-token", "secret".to_owned())]);
    let (asked, news) = round(&mut imds, &healthy);
    assert_eq!(asked, ["instance-action", "termination-time", "rebalance", "scheduled"]);
    assert_eq!(news, []);
    assert_eq!(round(&mut imds, &healthy).0, ["instance-action", "termination-time", "rebalance"]);
}

#[test]
fn a_server_that_answered_before_is_polled_every_few_seconds_while_it_fails() {
    let mut imds = Imds::default();
    round(&mut imds, &healthy);
    let mut refused = || imds.evaluate(Some(&answer(401, "")), SOON, 0.5).pause;
    assert!((0..50).all(|_| refused() <= Duration::from_secs(5)));
}

#[test]
fn an_invalid_token_is_never_sent() {
    for odd in ["", "<html>", "two words", "a\r\nHost: b", "\u{fc}", &"x".repeat(5000)] {
        let mut imds = Imds::default();
        assert!(!imds.evaluate(Some(&answer(200, odd)), SOON, 0.5).pause.is_zero(), "{odd:?}");
        assert_eq!(imds.question().path, "/latest/api/token", "{odd:?}");
    }
}

#[test]
fn a_request_that_always_fails_does_not_stop_the_others() {
    let mut imds = Imds::default();
    let ill = |path: &str| if path.ends_with("rebalance") { answer(500, "") } else { healthy(path) };
    assert_eq!(round(&mut imds, &ill).0, ["token", "instance-action", "termination-time", "rebalance", "scheduled"]);
    assert_eq!(round(&mut imds, &ill).0, ["instance-action", "termination-time", "rebalance"], "at the usual interval");
}

#[test]
fn an_unreadable_spot_action_hides_no_termination_time_and_is_one_remark() {
    for odd in [(500, ""), (503, "<html>"), (200, "<html>")] {
        let mut imds = Imds::default();
        let ill = move |path: &str| match path.rsplit('/').next() {
            Some("instance-action") => answer(odd.0, odd.1),
            Some("termination-time") => answer(200, "2017-09-18T08:22:00Z"),
            _ => healthy(path),
        };
        let (asked, news) = round(&mut imds, &ill);
        assert_eq!(asked, ["token", "instance-action", "termination-time", "rebalance", "scheduled"], "{odd:?}");
        assert_eq!(notices(&Evaluation { news, pause: SOON }), [("aws spot/termination-time".into(), 120)]);
        let news: Vec<News> = (0..10).flat_map(|_| round(&mut imds, &ill).1).collect();
        let is_it = |text: &str| text.contains("instance-action") && !text.contains("HttpPutResponseHopLimit");
        assert!(matches!(&news[..], [News::Remark(text)] if is_it(text)), "{news:?}");
    }
}

#[test]
fn the_spot_action_is_a_notice_with_the_time_by_the_servers_clock() {
    let mut imds = Imds::default();
    let going = with("instance-action", r#"{"action": "terminate", "time": "2017-09-18T08:22:00Z"}"#);
    assert_eq!(
        notices(&Evaluation { news: round(&mut imds, &going).1, pause: SOON }),
        [("aws spot terminate".into(), 120)]
    );
    assert_eq!(round(&mut imds, &going).1, [], "once");
    let far = with("instance-action", r#"{"action": "stop", "time": "2027-09-18T08:22:00Z"}"#);
    let news = round(&mut Imds::default(), &far).1;
    assert_eq!(
        notices(&Evaluation { news, pause: SOON }),
        [("aws spot stop".into(), 120)],
        "at most the documented period"
    );
    let hibernate = with("instance-action", r#"{"action": "hibernate", "time": "2017-09-18T08:22:00Z"}"#);
    let news = round(&mut Imds::default(), &hibernate).1;
    assert_eq!(notices(&Evaluation { news, pause: SOON }), [("aws spot hibernate".into(), 0)]);
}

#[test]
fn a_rebalance_recommendation_asks_for_a_checkpoint_soon_and_stops_nothing() {
    let news = round(&mut Imds::default(), &with("rebalance", r#"{"noticeTime": "2017-09-18T08:20:00Z"}"#)).1;
    assert!(matches!(news[..], [News::Soon(_)]), "{news:?}");
}

#[test]
fn scheduled_maintenance_is_a_notice_at_any_distance_unless_it_is_over() {
    let body = r#"[{"NotBefore": "18 Sep 2017 09:20:00 GMT", "Code": "system-reboot", "EventId": "e", "State": "active"},
                   {"NotBefore": "18 Sep 2017 09:20:00 GMT", "Code": "instance-stop", "State": "canceled"},
                   {"NotBefore": "18 Sep 2017 09:20:00 GMT", "Code": "party", "State": "active"}]"#;
    let news = round(&mut Imds::default(), &with("scheduled", body)).1;
    assert_eq!(notices(&Evaluation { news, pause: SOON }), [("aws system-reboot".into(), 3600)]);
}

#[test]
fn maintenance_that_is_canceled_or_disappears_is_withdrawn_and_can_return() {
    let of = |id: &str, state: &str| {
        format!(
            r#"{{"NotBefore": "18 Sep 2017 09:20:00 GMT", "Code": "system-reboot", "EventId": "{id}", "State": "{state}"}}"#
        )
    };
    let mut imds = Imds::default();
    let mut hear = |events: &[String]| {
        imds.round = 0;
        round(&mut imds, &with("scheduled", format!("[{}]", events.join(",")).leak())).1
    };
    for gone in [vec![of("e1", "canceled"), of("e2", "active")], vec![of("e2", "active")]] {
        let news = hear(&[of("e1", "active"), of("e2", "active")]);
        assert!(notices(&Evaluation { news, pause: SOON }).contains(&("aws system-reboot".into(), 3600)));
        assert_eq!(withdrawn(&hear(&gone)), ["aws e1"]);
        assert_eq!(hear(&gone), [], "once");
    }
}

#[test]
fn maintenance_with_an_open_window_is_due_at_the_end_of_the_window() {
    for (window, expected) in [
        (r#""NotBefore": "18 Sep 2017 08:10:00 GMT", "NotAfter": "18 Sep 2017 10:20:00 GMT""#, 7200),
        (r#""NotBefore": "18 Sep 2017 09:20:00 GMT", "NotAfter": "18 Sep 2017 10:20:00 GMT""#, 3600),
    ] {
        let body = format!(r#"[{{{window}, "Code": "instance-reboot", "EventId": "e", "State": "active"}}]"#);
        let news = round(&mut Imds::default(), &with("scheduled", body.leak())).1;
        assert_eq!(notices(&Evaluation { news, pause: SOON }), [("aws instance-reboot".into(), expected)], "{window}");
    }
}

#[test]
fn maintenance_first_seen_after_its_time_stops_no_run_and_asks_for_a_checkpoint_once() {
    for window in [
        r#""NotBefore": "18 Sep 2017 08:00:00 GMT", "NotAfter": "18 Sep 2017 08:10:00 GMT""#,
        r#""NotBefore": "18 Sep 2017 08:00:00 GMT", "NotAfter": "x""#,
        r#""NotBefore": "18 Sep 2017 08:00:00 GMT""#,
        r#""NotBefore": "18 Sep 2017 08:20:00 GMT""#,
    ] {
        let mut imds = Imds::default();
        let body: &str =
            format!(r#"[{{{window}, "Code": "system-reboot", "EventId": "e", "State": "active"}}]"#).leak();
        let news = round(&mut imds, &with("scheduled", body)).1;
        assert!(matches!(&news[..], [News::Soon(text)] if text.contains("system-reboot")), "{window}: {news:?}");
        for body in [body, "[]"] {
            imds.round = 0;
            assert_eq!(round(&mut imds, &with("scheduled", body)).1, [], "{window}");
        }
    }
}

#[test]
fn maintenance_that_was_seen_before_its_time_stays_a_notice_when_that_passes() {
    let event = r#"{"NotBefore": "18 Sep 2017 08:22:00 GMT", "Code": "instance-stop", "EventId": "e"}"#;
    let mut imds = Imds::default();
    let news = round(&mut imds, &with("scheduled", format!("[{event}]").leak())).1;
    assert_eq!(notices(&Evaluation { news, pause: SOON }), [("aws instance-stop".into(), 120)]);
    let later = |body: &'static str| {
        move |path: &str| {
            let mut answer = with("scheduled", body)(path);
            answer.headers = vec![("date".into(), "Mon, 18 Sep 2017 08:30:00 GMT".into())];
            answer
        }
    };
    imds.round = 0;
    assert_eq!(round(&mut imds, &later(format!("[{event}]").leak())).1, []);
    imds.round = 0;
    assert_eq!(withdrawn(&round(&mut imds, &later("[]")).1), ["aws e"]);
}

#[test]
fn maintenance_that_becomes_unreadable_is_not_withdrawn() {
    let event = |id: &str, at: &str, code: &str, state: &str| {
        format!(r#"{{"NotBefore": "{at}", "Code": "{code}", "EventId": "{id}", "State": "{state}"}}"#)
    };
    const AT: &str = "18 Sep 2017 10:20:00 GMT";
    let stop = |id: &str, state: &str| event(id, AT, "instance-stop", state);
    let list = |events: &[String]| answer(200, &format!("[{}]", events.join(",")));
    let odd = [
        (list(&[event("e1", "soon", "instance-stop", "active")]), 1),
        (list(&[event("e1", AT, "party", "active")]), 1),
        (list(&["null".to_owned()]), 1),
        (list(&["7".to_owned(), "{}".to_owned()]), 1),
        (answer(200, "{}"), 0),
        (answer(200, ""), 0),
        (answer(404, "<html>"), 0),
        (answer(404, ""), 0),
        (answer(500, "[]"), 0),
    ];
    for (odd, remarks) in odd {
        let mut imds = Imds::default();
        let mut hear = |now: &Answer| {
            imds.round = 0;
            round(&mut imds, &|path: &str| if path.ends_with("scheduled") { now.clone() } else { healthy(path) }).1
        };
        assert_eq!(notices(&Evaluation { news: hear(&list(&[stop("e1", "active")])), pause: SOON }).len(), 1);
        let news = hear(&odd);
        let is_remark = |item: &News| matches!(item, News::Remark(text) if text.contains("unknown form"));
        assert!(news.len() == remarks && news.iter().all(is_remark), "{odd:?}: {news:?}");
        assert_eq!(hear(&odd), [], "once");
        assert_eq!(withdrawn(&hear(&list(&[]))), ["aws e1"], "{odd:?}");
    }
    let mut imds = Imds::default();
    round(&mut imds, &with("scheduled", list(&[stop("e1", "active"), stop("e2", "active")]).body.leak()));
    imds.round = 0;
    let news = round(&mut imds, &with("scheduled", list(&[stop("e1", "canceled"), "null".into()]).body.leak())).1;
    assert_eq!(withdrawn(&news), ["aws e1"], "a readable withdrawal is valid");
}

#[test]
fn a_refused_token_is_renewed_once_and_only_once_a_round() {
    let mut imds = Imds::default();
    round(&mut imds, &healthy);
    let refuse = |path: &str| if path.contains("api/token") { healthy(path) } else { answer(401, "") };
    let (asked, _) = round(&mut imds, &refuse);
    assert_eq!(asked, ["instance-action", "token", "instance-action"]);
    assert_eq!(round(&mut imds, &healthy).0[0], "token", "and it continues when the token is accepted again");
}

#[test]
fn a_server_without_tokens_is_polled_without_unless_that_is_forbidden_or_it_needs_one() {
    let going = with("instance-action", r#"{"action": "terminate", "time": "2017-09-18T08:22:00Z"}"#);
    for status in [403, 404, 405] {
        let tokenless = |path: &str| if path.contains("api/token") { answer(status, "") } else { going(path) };
        let watch = |env: &[(&str, &str)]| {
            let env = Env::from_pairs(env.iter().copied());
            (SOURCE.watches)(&super::super::NoticeFacts { preemption: Duration::ZERO, has_gpus: false }, &env).remove(0)
        };
        let mut imds = Imds::default();
        let (asked, news) = round(&mut imds, &tokenless);
        assert_eq!(asked, ["token", "instance-action", "termination-time", "rebalance", "scheduled"], "{status}");
        assert_eq!(notices(&Evaluation { news, pause: SOON }), [("aws spot terminate".into(), 120)]);
        assert_eq!(imds.question().headers, []);
        let asked: Vec<String> = (0..12).flat_map(|_| round(&mut imds, &tokenless).0).collect();
        assert_eq!(asked.iter().filter(|key| *key == "token").count(), 1, "once a minute");
        for (value, forbidden) in [("true", true), ("True", true), ("false", false), ("", false)] {
            let mut imds = watch(&[("AWS_EC2_METADATA_V1_DISABLED", value)]);
            let pause = imds.evaluate(Some(&tokenless("/latest/api/token")), SOON, 0.5).pause;
            assert_eq!(!pause.is_zero(), forbidden, "{value}");
        }
        let strict = |path: &str| answer(if path.contains("api/token") { status } else { 401 }, "");
        let (asked, _) = round(&mut Imds::default(), &strict);
        assert_eq!(asked, ["token", "instance-action", "token"], "it does not repeat for ever");
    }
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
fn only_a_well_formed_answer_has_a_meaning() {
    for body in ["", "<html>", "{}", r#"{"action": "dance", "time": "2017-09-18T08:22:00Z"}"#, r#"{"action": "stop"}"#]
    {
        let body: &'static str = body;
        assert_eq!(round(&mut Imds::default(), &with("instance-action", body)).1, [], "{body}");
    }
    for status in [500, 503, 302, 400, 403] {
        let broken = move |path: &str| if path.contains("api/token") { healthy(path) } else { answer(status, "TRUE") };
        assert_eq!(round(&mut Imds::default(), &broken).1, [], "{status}");
    }
}

#[test]
fn an_unreachable_server_causes_one_remark_with_advice_and_a_try_each_minute() {
    let mut imds = Imds::default();
    let evaluation: Vec<Evaluation> = (0..50).map(|_| imds.evaluate(None, PLAIN_TIMEOUT, 0.5)).collect();
    let news: Vec<&News> = evaluation.iter().flat_map(|h| &h.news).collect();
    assert!(matches!(news[..], [News::Remark(text)] if text.contains("HttpPutResponseHopLimit")), "{news:?}");
    assert_eq!(evaluation[49].pause, Duration::from_secs(60));
}

#[test]
fn only_a_token_that_does_not_arrive_in_time_causes_the_hint_about_the_hop_limit() {
    let refused = (None, SOON);
    let broken = (Some(answer(500, "")), SOON);
    let page = (Some(answer(200, "<html></html>")), SOON);
    let slow_page = (Some(answer(200, "<html></html>")), PLAIN_TIMEOUT);
    let lost = (None, PLAIN_TIMEOUT);
    for ((token, took), is_hinted) in
        [(refused, false), (broken, false), (page, false), (slow_page, false), (lost, true)]
    {
        let mut imds = Imds::default();
        let news: Vec<News> = (0..5).flat_map(|_| imds.evaluate(token.as_ref(), took, 0.5).news).collect();
        let is_it = |text: &str| text.contains("HttpPutResponseHopLimit") == is_hinted;
        assert!(matches!(&news[..], [News::Remark(text)] if is_it(text)), "{token:?}: {news:?}");
    }
}

#[test]
fn a_request_that_hangs_hides_no_other_one() {
    for hangs in ["instance-action", "termination-time", "rebalance", "scheduled"] {
        let mut imds = Imds::default();
        let mut hear = |rounds: usize| {
            let (mut asked, mut news) = (Vec::new(), Vec::new());
            for _ in 0..rounds {
                loop {
                    let path = imds.question().path;
                    let key = path.rsplit('/').next().unwrap_or_default().to_owned();
                    let answer = match &*key {
                        key if key == hangs => None,
                        "termination-time" => Some(answer(200, "2017-09-18T08:22:00Z")),
                        _ => Some(healthy(&path)),
                    };
                    asked.push(key);
                    let evaluation =
                        imds.evaluate(answer.as_ref(), if answer.is_none() { PLAIN_TIMEOUT } else { SOON }, 0.5);
                    news.extend(evaluation.news);
                    if !evaluation.pause.is_zero() {
                        break;
                    }
                }
            }
            (asked, news)
        };
        let (asked, news) = hear(1);
        assert_eq!(asked, ["token", "instance-action", "termination-time", "rebalance", "scheduled"], "{hangs}");
        let expected = usize::from(hangs != "termination-time");
        assert_eq!(notices(&Evaluation { news, pause: SOON }).len(), expected, "{hangs}");
        let (asked, news) = hear(10);
        assert!(!asked.contains(&"token".to_owned()), "{hangs}: {asked:?}");
        let is_it = |text: &str| text.contains("instance-action") && !text.contains("HttpPutResponseHopLimit");
        match (hangs, &news[..]) {
            ("instance-action", [News::Remark(text)]) if is_it(text) => {}
            (_, []) if hangs != "instance-action" => {}
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn a_day_with_a_fake_clock_is_a_round_every_five_seconds_without_news() {
    let (mut imds, mut asked) = (Imds::default(), 0);
    for _ in 0..24 * 3600 / ROUND_PAUSE.as_secs() {
        let (questions, news) = round(&mut imds, &healthy);
        assert_eq!(news, []);
        asked += questions.len();
    }
    assert!((51_840..54_000).contains(&asked), "{asked}");
}
