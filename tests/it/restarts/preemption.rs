//! Notices: SIGTERM, other signals, and the clouds' metadata servers, which speak their real protocols on loopback.

use std::net::TcpListener;
use std::time::Instant;

use crate::support::checkpoints::Place;
use crate::support::metadata::{Metadata, Reply, Request, Stage, gce, gce_key, google, ok, status};
use crate::support::{Running, Trainit, assert_prompt, is_root};

const WAITING: &str = "trap 'echo told; cat \"$TRAINIT_PREEMPTION_FILE\"; exit 0' TERM; echo ready; \
                       while :; do sleep 0.01; done";

fn waiting(variable: &str, at: &str) -> Running {
    Trainit::run(["sh", "-c", WAITING]).env(variable, at).start()
}

#[test]
fn a_metadata_notice_stops_the_trainer_with_its_deadline_in_the_file() {
    let server = Metadata::start(gce);
    let running = waiting("GCE_METADATA_HOST", &server.at);
    running.after_line("ready");
    server.after_question("last_etag=e0", 1);
    let turned = Instant::now();
    server.turn();
    running.after_line("told");
    // scripts/bench preemption measures the time.
    assert_prompt(turned);
    let done = running.finish().expect_code(143);
    assert!(done.out().contains("told\n20"), "the file holds an RFC 3339 time: {}", done.out());
    let verdict = done.verdict();
    assert_eq!(verdict["reason"], "preempted");
    assert!(verdict["detail"].as_str().unwrap().contains("gce preempted"));
}

#[test]
fn gce_announces_maintenance_a_minute_ahead_and_with_gpus_an_hour_which_is_left_at_the_next_commit() {
    if !is_root() {
        crate::support::skip("needs root for a /dev of its own");
        return;
    }
    for (nodes, is_far, announcement) in [
        ("", false, "the machine goes away in 60 s"),
        ("touch /dev/nvidiactl /dev/nvidia0; ", true, "in 1h; the job continues until a commit"),
    ] {
        let place = Place::new();
        let values = ["NONE", "TERMINATE_ON_HOST_MAINTENANCE"];
        let server = Metadata::start(move |request, stage| gce_key("maintenance-event", values, request, stage));
        let script = format!("mount -t tmpfs none /dev; mkdir /dev/shm; {nodes}exec \"$@\"");
        let local = place.local();
        let run = ["run", "--checkpoint-dir", local.to_str().unwrap(), "--checkpoint-store", &place.url()];
        let running = Trainit::through(&["unshare", "--mount", "sh", "-c", &script, "sh"], run)
            .args(["--settle", "0", "--commit-interval", "100ms", "--", "sh", "-c", WAITING])
            .env("GCE_METADATA_HOST", &server.at)
            .start();
        running.after_line("ready");
        server.turn();
        running.after_log(announcement);
        if is_far {
            place.save(10);
        }
        running.after_line("told");
        let done = running.finish().expect_code(143);
        assert_eq!(done.verdict()["reason"], "preempted");
        assert_eq!(done.verdict()["committed_step"].as_u64(), is_far.then_some(10), "{}", done.err());
    }
}

#[test]
fn a_change_before_the_first_question_is_not_lost() {
    let server = Metadata::start(gce);
    server.turn();
    let done = waiting("GCE_METADATA_HOST", &server.at).finish().expect_code(143);
    assert_eq!(done.verdict()["reason"], "preempted");
}

#[test]
fn a_metadata_server_with_wrong_answers_or_a_hang_neither_stops_nor_delays_the_trainer() {
    type Mood = (&'static str, fn() -> Reply);
    let moods: [Mood; 8] = [
        ("black hole", || Reply::Hang),
        ("broken", || Reply::Answer("503 Service Unavailable", vec![], "<html>TRUE</html>".into())),
        ("impostor", || ok("TRUE")),
        ("redirect", || Reply::Answer("302 Found", vec![("Location", "/true".into())], "TRUE".into())),
        ("closed", || Reply::Close),
        ("half a body", || Reply::Half("TRUE")),
        ("endless", || Reply::Endless),
        ("garbage", || google("x", "\u{0}TRUE\u{1}")),
    ];
    for (mood, reply) in moods {
        let server = Metadata::start(move |_, _| reply());
        let start = Instant::now();
        let mut trainit = Trainit::run(["sh", "-c", "exit 0"]);
        for variable in ["GCE_METADATA_HOST", "AWS_EC2_METADATA_SERVICE_ENDPOINT", "TRAINIT_AZURE_METADATA_ENDPOINT"] {
            trainit = trainit.env(variable, &server.at);
        }
        let done = trainit.output().expect_code(0);
        assert_prompt(start);
        assert_eq!(done.verdict()["reason"], "finished", "{mood}");
    }
}

#[test]
fn a_refused_metadata_server_is_logged_once_and_training_continues() {
    let runs = [
        ("GCE_METADATA_HOST", "preempted"),
        ("AWS_EC2_METADATA_SERVICE_ENDPOINT", "spot/instance-action"),
        ("TRAINIT_AZURE_METADATA_ENDPOINT", "scheduledevents"),
    ]
    .map(|(variable, key)| {
        let closed = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        (waiting(variable, &closed.to_string()), key)
    });
    for (running, key) in runs {
        let text = format!("does not return {key}");
        running.after_log(&text);
        let done = running.stop().expect_code(143);
        assert_eq!(done.verdict()["reason"], "stopped");
        assert_eq!(done.err().matches(&text).count(), 1, "{}", done.err());
        let line = done.err().lines().find(|line| line.contains(&text)).unwrap().to_owned();
        assert!(line.contains("refused") && line.contains("--preemption off"), "{line}");
    }
}

#[test]
fn a_metadata_server_with_a_useless_answer_is_reported_with_that_answer() {
    let server = Metadata::start(|_, _| status("403 Forbidden"));
    let running = waiting("GCE_METADATA_HOST", &server.at);
    assert!(running.after_log("does not return preempted").contains("preempted (HTTP 403): "));
    running.stop().expect_code(143);
}

#[test]
fn preemption_off_asks_no_metadata_server() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.set_nonblocking(true).unwrap();
    let at = listener.local_addr().unwrap().to_string();
    Trainit::new(["run", "--preemption", "off", "--", "sh", "-c", "sleep 0.2"])
        .env("GCE_METADATA_HOST", &at)
        .env("AWS_EC2_METADATA_SERVICE_ENDPOINT", &at)
        .env("TRAINIT_AZURE_METADATA_ENDPOINT", &at)
        .output()
        .expect_code(0);
    assert!(listener.accept().is_err(), "a server was asked");
}

#[test]
fn an_invalid_metadata_endpoint_is_refused_by_run_and_inspect_and_no_other_server_is_asked() {
    for (cloud, variable, value, shown) in [
        ("aws", "AWS_EC2_METADATA_SERVICE_ENDPOINT", "https://127.0.0.1:1", "which has a scheme other than http"),
        ("gce", "GCE_METADATA_HOST", "127.0.0.1:99999", "which has no port between 1 and 65535"),
        ("gce", "GCE_METADATA_HOST", "http://user:s3cret@127.0.0.1:1", "has a '@' in it"),
        ("azure", "TRAINIT_AZURE_METADATA_ENDPOINT", "bad host", "has a ' ' in it"),
    ] {
        let trainit = |args: &[&str]| Trainit::new(args).env(variable, value).output();
        for preemption in ["auto", cloud] {
            let run = trainit(&["run", "--preemption", preemption, "--", "sh", "-c", "echo started"]).expect_code(125);
            assert_eq!(run.verdict()["reason"], "not_started");
            let inspect = trainit(&["inspect", "--preemption", preemption]).expect_code(125);
            for done in [run, inspect] {
                let (out, err) = (done.out(), done.err());
                assert!(err.contains(&format!("{variable}: expected")) && err.contains(shown), "{err}");
                assert!(!out.contains("started") && !out.contains("s3cret") && !err.contains("s3cret"), "{out}{err}");
            }
        }
        trainit(&["run", "--preemption", "off", "--", "true"]).expect_code(0);
        trainit(&["inspect", "--preemption", "off"]).expect_code(0);
    }
}

/// IMDSv2: no key without the token that belongs to the stage; a new stage makes the old token void.
fn imds(key: &'static str, body: &'static str) -> impl Fn(&Request, &Stage<'_>) -> Reply {
    move |request, stage| {
        let now = stage.now();
        let token = format!("token-{now}");
        if request.path == "/latest/api/token" {
            let ttl = request.header("x-aws-ec2-metadata-token-ttl-seconds").unwrap_or_default().to_owned();
            let is_good = request.method == "PUT" && (1..=21600).contains(&ttl.parse::<u32>().unwrap_or(0));
            return if is_good { ok(token) } else { status("400 Bad Request") };
        }
        if request.header("x-aws-ec2-metadata-token") != Some(&token) {
            return status("401 Unauthorized");
        }
        if request.path == format!("/latest/meta-data/{key}") && now > 0 {
            return ok(body);
        }
        if request.path.ends_with("maintenance/scheduled") { ok("[]") } else { status("404 Not Found") }
    }
}

#[test]
fn a_spot_interruption_is_noticed_after_the_token_has_expired() {
    // The documented maximum is two minutes, for any announced time.
    let server =
        Metadata::start(imds("spot/instance-action", r#"{"action": "terminate", "time": "2999-01-01T00:00:00Z"}"#));
    let running = waiting("AWS_EC2_METADATA_SERVICE_ENDPOINT", &format!("http://{}/", server.at));
    running.after_line("ready");
    server.after_question("rebalance", 1);
    server.turn();
    let done = running.finish().expect_code(143);
    assert!(done.out().contains("told\n20"), "{}", done.out());
    let verdict = done.verdict();
    assert_eq!(verdict["reason"], "preempted");
    assert!(verdict["detail"].as_str().unwrap().contains("aws spot terminate"), "{verdict}");
    let asked = server.asked();
    assert_eq!(asked.iter().filter(|q| *q == "PUT /latest/api/token").count(), 2, "{asked:?}");
}

#[test]
fn after_a_notice_with_a_past_time_the_last_checkpoint_is_still_committed() {
    let place = Place::new();
    let action = r#"{"action": "terminate", "time": "2017-09-18T08:22:00Z"}"#;
    let server = Metadata::start(imds("spot/instance-action", action));
    let script = "trap 'echo {} > \"$TRAINIT_CHECKPOINT_DIR/step-7.json\"; exit 0' TERM; echo ready; \
                  while :; do sleep 0.01; done";
    let running = Trainit::new(["run", "--checkpoint-dir"])
        .args([place.local()])
        .args(["--checkpoint-store", &place.url(), "--", "sh", "-c", script])
        .env("AWS_EC2_METADATA_SERVICE_ENDPOINT", &server.at)
        .start();
    running.after_line("ready");
    server.turn();
    let done = running.finish().expect_code(143);
    assert_eq!(done.verdict()["committed_step"], 7, "{}", done.err());
    assert!(done.err().contains("its time has passed, the machine may go away at any moment"), "{}", done.err());
}

#[test]
fn a_rebalance_recommendation_is_a_hint_and_not_a_stop() {
    let server = Metadata::start(imds("events/recommendations/rebalance", r#"{"noticeTime": "2026-01-01T00:00:00Z"}"#));
    server.turn();
    let running = waiting("AWS_EC2_METADATA_SERVICE_ENDPOINT", &server.at);
    running.after_log("training continues");
    server.after_question("spot/instance-action", 2);
    let done = running.stop().expect_code(143);
    assert_eq!(done.verdict()["reason"], "stopped");
}

/// Scheduled Events of a machine named vm_0; the event comes with the stage.
fn azure(kind: &'static str, vm: &'static str) -> impl Fn(&Request, &Stage<'_>) -> Reply {
    move |request, stage| {
        if request.header("metadata") != Some("true") || !request.path.contains("api-version=") {
            return status("400 Bad Request");
        }
        if request.path.starts_with("/metadata/instance/compute/name?") {
            return ok("vm_0");
        }
        let event = format!(
            r#"{{"EventId": "e", "EventType": "{kind}", "ResourceType": "VirtualMachine", "Resources": ["{vm}"],
                "EventStatus": "Scheduled", "NotBefore": "Mon, 11 Apr 2022 22:26:58 GMT", "DurationInSeconds": 5}}"#
        );
        let (incarnation, events) = if stage.now() == 0 { (1, String::new()) } else { (2, event) };
        let body = format!(r#"{{"DocumentIncarnation": {incarnation}, "Events": [{events}]}}"#);
        Reply::Answer("200 OK", vec![("Date", "Mon, 11 Apr 2022 22:26:28 GMT".to_owned())], body)
    }
}

#[test]
fn an_azure_preemption_of_this_machine_stops_the_trainer_at_the_servers_time() {
    let server = Metadata::start(azure("Preempt", "vm_0"));
    let running = waiting("TRAINIT_AZURE_METADATA_ENDPOINT", &server.at);
    running.after_line("ready");
    server.after_question("scheduledevents", 1);
    server.turn();
    let done = running.finish().expect_code(143);
    assert!(done.err().contains("preempted (azure preempt): the machine goes away in 30 s"), "{}", done.err());
    assert_eq!(done.verdict()["reason"], "preempted");
}

#[test]
fn a_byte_order_mark_before_an_answer_is_ignored() {
    let plain = azure("Preempt", "vm_0");
    let server = Metadata::start(move |request, stage| match plain(request, stage) {
        Reply::Answer(status, headers, body) => Reply::Answer(status, headers, format!("\u{feff}{body}")),
        other => other,
    });
    server.turn();
    let done = waiting("TRAINIT_AZURE_METADATA_ENDPOINT", &server.at).finish().expect_code(143);
    assert!(done.err().contains("preempted (azure preempt)"), "{}", done.err());
}

#[test]
fn after_the_withdrawal_of_a_distant_end_the_trainer_finishes() {
    let server = Metadata::start(|request, stage| {
        let far = r#"{"EventId": "e", "EventType": "Reboot", "Resources": ["vm_0"], "EventStatus": "Scheduled",
                      "NotBefore": "Mon, 11 Apr 2022 22:41:28 GMT"}"#;
        let (now, event) = (stage.now(), if stage.now() == 0 { far } else { "" });
        let body = format!(r#"{{"DocumentIncarnation": {now}, "Events": [{event}]}}"#);
        let body = if request.path.contains("compute/name") { "vm_0".to_owned() } else { body };
        Reply::Answer("200 OK", vec![("Date", "Mon, 11 Apr 2022 22:26:28 GMT".to_owned())], body)
    });
    let place = Place::new();
    let script = "while [ ! -e \"$0\" ]; do sleep 0.01; done; echo {} > \"$TRAINIT_CHECKPOINT_DIR/step-7.json\"; \
                  while ! ls \"$1/.trainit/commits/\"*; do sleep 0.01; done; sleep 0.3; echo to the end";
    let (go, store) = (place.path("go"), place.store());
    let running = Trainit::new(["run", "--commit-interval", "50ms", "--settle", "10ms", "--checkpoint-dir"])
        .args([place.local()])
        .args(["--checkpoint-store", &place.url(), "--", "sh", "-c", script])
        .args([&go, &store])
        .env("TRAINIT_AZURE_METADATA_ENDPOINT", &server.at)
        .start();
    let announced = running.after_log("announced (azure reboot): the machine goes away at ");
    assert!(announced.contains("Z, in 15m; the job continues"), "{announced}");
    server.turn();
    running.after_log("the notice (azure reboot) was withdrawn; training continues");
    std::fs::write(go, "").unwrap();
    let done = running.finish().expect_code(0);
    assert!(done.out().contains("to the end"), "{}", done.err());
    assert_eq!(done.verdict()["reason"], "finished");
}

#[test]
fn another_machines_event_and_a_freeze_stop_nothing() {
    for (kind, vm) in [("Preempt", "vm_1"), ("Freeze", "vm_0")] {
        let server = Metadata::start(azure(kind, vm));
        server.turn();
        let running = waiting("TRAINIT_AZURE_METADATA_ENDPOINT", &server.at);
        running.after_line("ready");
        server.after_question("scheduledevents", 2);
        let done = running.stop().expect_code(143);
        assert_eq!(done.verdict()["reason"], "stopped", "{kind}");
        assert_eq!(kind == "Freeze", done.err().contains("freeze"), "{}", done.err());
    }
}

#[test]
fn with_checkpoints_the_preemption_file_exists_before_sigterm_is_forwarded() {
    let checkpoints = tempfile::tempdir().unwrap();
    let dir = checkpoints.path().to_str().unwrap();
    let running = Trainit::new(["run", "--checkpoint-dir", dir, "--", "sh", "-c", WAITING]).start();
    running.after_line("ready");
    let done = running.stop().expect_code(143);
    assert!(done.out().contains("told\n20"), "{}", done.out());
    assert_eq!(done.verdict()["reason"], "stopped");
}

#[test]
fn another_preempt_signal_is_sent_if_configured() {
    let script = "trap 'echo usr1; exit 0' USR1; trap 'exit 9' TERM; echo ready; while :; do sleep 0.01; done";
    let running = Trainit::new(["run", "--preempt-signal", "USR1", "--", "sh", "-c", script]).start();
    running.after_line("ready");
    let done = running.stop().expect_code(143);
    assert!(done.out().contains("usr1"), "{}", done.out());
}

#[test]
fn a_signal_that_announces_the_end_is_a_notice_with_its_own_deadline() {
    let running = Trainit::new(["run", "--preempt-on", "USR1@120", "--", "sh", "-c", WAITING]).start();
    running.after_line("ready");
    running.signal(libc::SIGUSR1);
    let done = running.finish().expect_code(143);
    assert!(done.out().contains("told\n20"), "{}", done.out());
    assert!(done.err().contains("the machine goes away in 120 s"), "{}", done.err());
    assert_eq!(done.verdict()["reason"], "preempted");
}

#[test]
fn slurms_usr1_is_forwarded_and_complete_checkpoints_are_committed() {
    let place = Place::new();
    let script = "trap 'echo told' USR1; echo ready; while :; do sleep 0.01; done";
    let local = place.local();
    let run = ["run", "--checkpoint-dir", local.to_str().unwrap(), "--checkpoint-store", &place.url(), "--settle", "0"];
    let run = Trainit::new(run).args(["--commit-interval", "1h", "--", "sh", "-c", script]);
    let slurm = [("JOB_ID", "7"), ("STEP_ID", "0"), ("NTASKS", "1"), ("NNODES", "1"), ("PROCID", "0"), ("NODEID", "0")];
    let running = slurm.iter().fold(run, |run, (name, value)| run.env(&format!("SLURM_{name}"), value)).start();
    running.after_line("ready");
    place.save(10);
    running.signal(libc::SIGUSR1);
    running.after_line("told");
    running.after_log("checkpoint committed");
    assert_eq!(place.steps(), [10]);
    running.stop();
}

#[test]
fn extreme_times_cause_no_panic() {
    let script = "trap 'cat $TRAINIT_PREEMPTION_FILE; exit 0' TERM; kill -USR1 $PPID; \
                  until \"$BINARY\" status | grep 'the machine goes away at'; do sleep 0.01; done; \
                  kill -TERM $PPID; while :; do sleep 0.01; done";
    let times = ["--stop-grace=999999999999s", "--hang-timeout=9000000000000000000s", "--restart-backoff=1e18"];
    let done = Trainit::new(["run", "--preempt-on", "USR1@999999999999s"]).args(times).args(["--", "sh", "-c", script]);
    let done = done.env("BINARY", crate::support::binary()).output().expect_code(143);
    assert_eq!(done.out().lines().count(), 2, "{}", done.out());
}
