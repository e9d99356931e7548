//! Notices: SIGTERM and a metadata server that speaks the real protocol, on loopback.

use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use crate::support::{Running, Trainit};

const WAITING: &str = "trap 'echo told; cat \"$TRAINIT_PREEMPTION_FILE\"; exit 0' TERM; echo ready; \
                       while :; do sleep 0.01; done";

/// How the server answers for `preempted`.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Mood {
    /// As documented: hangs on `wait_for_change` until the value differs from the ETag's.
    Honest,
    /// Accepts and never answers.
    BlackHole,
    /// 503 with HTML.
    Broken,
    /// 200 TRUE, but not Google's.
    Impostor,
    /// A redirect to a page that says TRUE.
    Redirect,
}

struct Metadata {
    at: String,
    state: Arc<(Mutex<bool>, Condvar)>,
}

impl Metadata {
    fn start(mood: Mood) -> Metadata {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let at = listener.local_addr().unwrap().to_string();
        let state = Arc::new((Mutex::new(false), Condvar::new()));
        let shared = Arc::clone(&state);
        // The threads end with the test process; each serves one connection.
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let shared = Arc::clone(&shared);
                std::thread::spawn(move || serve(stream, mood, &shared));
            }
        });
        Metadata { at, state }
    }

    fn preempt(&self) {
        *self.state.0.lock().unwrap() = true;
        self.state.1.notify_all();
    }

    fn run(&self) -> Running {
        Trainit::run(["sh", "-c", WAITING]).env("GCE_METADATA_HOST", &self.at).start()
    }
}

fn serve(mut stream: TcpStream, mood: Mood, state: &(Mutex<bool>, Condvar)) {
    let mut lines = BufReader::new(stream.try_clone().unwrap()).lines().map_while(Result::ok);
    let request = lines.next().unwrap_or_default();
    let headers: Vec<String> = lines.by_ref().take_while(|l| !l.is_empty()).map(|l| l.to_lowercase()).collect();
    let flavored = headers.iter().any(|h| h == "metadata-flavor: google");
    let (status, flavor, body) = match mood {
        Mood::BlackHole => loop {
            std::thread::park();
        },
        Mood::Broken => ("503 Service Unavailable", "Google", "<html>TRUE</html>".to_owned()),
        Mood::Impostor => ("200 OK", "Other", "TRUE".to_owned()),
        Mood::Redirect => ("302 Found", "Google", "TRUE".to_owned()),
        Mood::Honest if !flavored => ("403 Forbidden", "Google", String::new()),
        Mood::Honest if request.contains("/instance/preempted") => {
            let mut preempted = state.0.lock().unwrap();
            if request.contains("wait_for_change=true") && request.contains("last_etag=FALSE") {
                preempted = state.1.wait_while(preempted, |p| !*p).unwrap();
            }
            ("200 OK", "Google", if *preempted { "TRUE" } else { "FALSE" }.to_owned())
        }
        Mood::Honest => ("404 Not Found", "Google", String::new()),
    };
    let etag = body.clone();
    let _ = write!(
        stream,
        "HTTP/1.1 {status}\r\nMetadata-Flavor: {flavor}\r\nETag: {etag}\r\nLocation: /true\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    );
}

#[test]
fn a_metadata_notice_stops_the_trainer_with_its_deadline_in_the_file() {
    let server = Metadata::start(Mood::Honest);
    let running = server.run();
    running.after_line("ready");
    server.preempt();
    let done = running.finish().expect_code(143);
    assert!(done.out().contains("told\n20"), "the file holds an RFC 3339 time: {}", done.out());
    let verdict = done.verdict();
    assert_eq!(verdict["reason"], "preempted");
    assert!(verdict["detail"].as_str().unwrap().contains("gce preempted"));
}

#[test]
fn a_change_before_the_first_question_is_not_lost() {
    let server = Metadata::start(Mood::Honest);
    server.preempt();
    let done = server.run().finish().expect_code(143);
    assert_eq!(done.verdict()["reason"], "preempted");
}

#[test]
fn a_metadata_server_that_lies_or_hangs_neither_stops_nor_delays_the_trainer() {
    for mood in [Mood::BlackHole, Mood::Broken, Mood::Impostor, Mood::Redirect] {
        let server = Metadata::start(mood);
        let start = Instant::now();
        let done = Trainit::run(["sh", "-c", "exit 0"]).env("GCE_METADATA_HOST", &server.at).output().expect_code(0);
        assert!(start.elapsed() < Duration::from_secs(5), "{mood:?} cost {:?}", start.elapsed());
        assert_eq!(done.verdict()["reason"], "finished", "{mood:?}");
    }
}

#[test]
fn a_refused_metadata_server_is_said_once_and_training_goes_on() {
    let nobody = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let running = Trainit::run(["sh", "-c", WAITING]).env("GCE_METADATA_HOST", nobody.to_string()).start();
    running.after_log("does not tell preempted");
    let done = running.stop().expect_code(143);
    assert_eq!(done.verdict()["reason"], "stopped");
    assert_eq!(done.err().matches("does not tell preempted").count(), 1, "{}", done.err());
}

#[test]
fn preemption_off_asks_nobody() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.set_nonblocking(true).unwrap();
    let at = listener.local_addr().unwrap().to_string();
    Trainit::new(["run", "--preemption", "off", "--", "sh", "-c", "sleep 0.2"])
        .env("GCE_METADATA_HOST", at)
        .output()
        .expect_code(0);
    assert!(listener.accept().is_err(), "somebody was asked");
}

#[test]
fn on_sigterm_the_file_is_there_before_the_signal() {
    let running = Trainit::run(["sh", "-c", WAITING]).start();
    running.after_line("ready");
    let done = running.stop().expect_code(143);
    assert!(done.out().contains("told\n20"), "{}", done.out());
    assert_eq!(done.verdict()["reason"], "stopped");
}

#[test]
fn another_preempt_signal_is_sent_where_it_is_asked_for() {
    let script = "trap 'echo usr1; exit 0' USR1; trap 'exit 9' TERM; echo ready; while :; do sleep 0.01; done";
    let running = Trainit::new(["run", "--preempt-signal", "USR1", "--", "sh", "-c", script]).start();
    running.after_line("ready");
    let done = running.stop().expect_code(143);
    assert!(done.out().contains("usr1"), "{}", done.out());
}
