//! `--status-addr`: Prometheus and health checks ask a running trainit over HTTP. No client can delay it.

use std::fs;
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::support::fake_nvml::FakeNvml;
use crate::support::{Finished, Running, TIMEOUT, Trainit, assert_prompt, assert_within, eventually, settled};

const LOOP: &str = "while :; do sleep 0.01; done";
const ANYWHERE: [&str; 3] = ["run", "--status-addr", "127.0.0.1:0"];

/// The address at which a started run listens, from its log.
#[track_caller]
fn address(running: &Running) -> SocketAddr {
    let line = running.after_log("the status is at http://");
    let at = line.split("http://").nth(1).and_then(|rest| rest.split(": ").next()).unwrap();
    at.parse().unwrap_or_else(|e| panic!("{e}: {line}"))
}

fn run(flags: &[&str], script: &str) -> (Running, SocketAddr) {
    let running = Trainit::new([&ANYWHERE, flags, &["--", "sh", "-c", script]].concat()).start();
    let at = address(&running);
    (running, at)
}

fn connect(at: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect_timeout(&at, TIMEOUT).unwrap();
    stream.set_read_timeout(Some(TIMEOUT)).unwrap();
    stream
}

/// Sends a request; returns the whole answer.
fn say(at: SocketAddr, request: &[u8]) -> String {
    let mut stream = connect(at);
    stream.write_all(request).unwrap();
    let mut answer = Vec::new();
    match stream.read_to_end(&mut answer) {
        Err(error) if error.kind() != ErrorKind::ConnectionReset => panic!("{error}"),
        _ => String::from_utf8(answer).unwrap(),
    }
}

/// The code and the text of a page.
pub(super) fn get(at: SocketAddr, path: &str) -> (u16, String) {
    let answer = say(at, format!("GET {path} HTTP/1.1\r\nHost: {at}\r\n\r\n").as_bytes());
    let (head, text) = answer.split_once("\r\n\r\n").unwrap_or_else(|| panic!("no answer: {answer:?}"));
    let code = head.split(' ').nth(1).and_then(|code| code.parse().ok()).unwrap_or_else(|| panic!("{head}"));
    (code, text.to_owned())
}

#[test]
fn a_client_that_has_closed_its_sending_side_gets_its_answer() {
    let (running, at) = run(&[], LOOP);
    let mut stream = connect(at);
    stream.write_all(b"GET /healthz HTTP/1.0\r\n\r\n").unwrap();
    stream.shutdown(std::net::Shutdown::Write).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert!(answer.contains(" 200 OK") && answer.contains("healthy: running"), "{answer:?}");
    running.stop().expect_code(143);
}

/// Scrapes until the page has this line.
#[track_caller]
fn until(at: SocketAddr, line: &str) -> String {
    let mut last = String::new();
    let deadline = Instant::now() + TIMEOUT;
    while !last.lines().any(|l| l == line) {
        assert!(Instant::now() < deadline, "{line:?} never came: {last}");
        let (code, text) = get(at, "/metrics");
        assert_eq!(code, 200, "{text}");
        last = text;
    }
    last
}

/// The sockets among a process's descriptors, by their inodes.
fn sockets(pid: i64) -> Vec<String> {
    let fds = fs::read_dir(format!("/proc/{pid}/fd")).unwrap().filter_map(|fd| fs::read_link(fd.ok()?.path()).ok());
    let names = fds.map(|link| link.to_string_lossy().into_owned());
    names.filter_map(|name| Some(name.strip_prefix("socket:[")?.strip_suffix(']')?.to_owned())).collect()
}

/// The number of a process's sockets that listen for TCP connections.
fn listens(pid: i64) -> usize {
    let own = sockets(pid);
    let tables = ["tcp", "tcp6"].map(|name| fs::read_to_string(format!("/proc/{pid}/net/{name}")).unwrap_or_default());
    let rows = tables.iter().flat_map(|table| table.lines().skip(1));
    let columns = rows.map(|row| row.split_whitespace().collect::<Vec<_>>());
    columns.filter(|row| row[3] == "0A" && own.iter().any(|inode| inode == row[9])).count()
}

#[test]
fn a_scraper_sees_the_state_of_the_run_and_the_metrics_of_the_trainer() {
    let dir = tempfile::tempdir().unwrap();
    let flags = ["--metric", "val_accuracy=acc=([0-9.a-z]+)", "--metric", "word=(bes)t"];
    let script = format!("echo acc=0.93 best; {LOOP}");
    let running = Trainit::new([&ANYWHERE[..], &flags, &["--", "sh", "-c", &script]].concat())
        .env("CLOUD_ML_HP_METRIC_FILE", dir.path().join("metrics"))
        .start();
    let at = address(&running);
    let text = until(at, "trainit_metric{tag=\"val_accuracy\"} 0.93");
    for line in
        ["trainit_healthy 1", "trainit_state{state=\"running\"} 1", "trainit_attempt 1", "trainit_restarts_total 0"]
    {
        assert!(text.lines().any(|l| l == line), "{line}: {text}");
    }
    assert!(text.contains(&format!("trainit_info{{version=\"{}", env!("CARGO_PKG_VERSION"))), "{text}");
    assert!(!text.contains("checkpoint") && !text.contains("word"), "{text}");
    assert!(!text.contains("acc=") && !text.contains("/sh"), "neither arguments nor the environment: {text}");
    running.stop().expect_code(143);
}

#[test]
fn commits_failures_and_uncommitted_steps_are_counted() {
    let dir = tempfile::tempdir().unwrap();
    let (ck, store) = (dir.path().join("ck"), dir.path().join("store"));
    fs::create_dir(&ck).unwrap();
    let script = format!(
        "save() {{ mkdir $TRAINIT_CHECKPOINT_DIR/step-$1; echo weights >$TRAINIT_CHECKPOINT_DIR/step-$1/w; }}
        save 40; until [ -e {0}/more ]; do sleep 0.01; done; save 55; {LOOP}",
        dir.path().display()
    );
    let (ck, url) = (ck.display().to_string(), format!("file://{}", store.display()));
    let flags = ["--checkpoint-dir", &ck, "--checkpoint-store", &url, "--commit-interval", "50ms", "--settle", "50ms"];
    let (running, at) = run(&flags, &script);
    let text = until(at, "trainit_checkpoint_commits_total 1");
    assert!(text.contains("\ntrainit_checkpoint_committed_bytes_total 8\n"), "{text}");
    assert!(text.contains("\ntrainit_checkpoint_last_commit_timestamp_seconds "), "{text}");
    assert!(!text.contains("checkpoint_failures"), "{text}");
    let text = until(at, "trainit_checkpoint_committed_step 40");
    assert!(
        text.contains("\ntrainit_checkpoint_lag_steps 0\n") && text.contains("\ntrainit_checkpoint_lag_seconds "),
        "{text}"
    );

    fs::rename(&store, dir.path().join("aside")).unwrap();
    fs::write(&store, "a file").unwrap();
    fs::write(dir.path().join("more"), "").unwrap();
    let text = until(at, "trainit_checkpoint_lag_steps 15");
    assert!(text.contains("\ntrainit_checkpoint_committed_step 40\n"), "{text}");
    eventually("a failure", || get(at, "/metrics").1.contains("\ntrainit_checkpoint_failures_total{cause=\""));

    fs::remove_file(&store).unwrap();
    fs::rename(dir.path().join("aside"), &store).unwrap();
    until(at, "trainit_checkpoint_committed_step 55");
    until(at, "trainit_checkpoint_lag_steps 0");
    running.stop().expect_code(143);
}

#[test]
fn health_is_the_line_of_the_check_and_its_code_says_whether_all_is_well() {
    let fake = FakeNvml::new(&["gpu1.util 55"]);
    let script = format!("trap 'echo asked' TERM; echo socket=$TRAINIT_SOCKET; {LOOP}");
    let flags = [&ANYWHERE[..], &["--stop-grace", "4s", "--gpu-interval", "50ms", "--", "sh", "-c", &script]].concat();
    let running = fake.trainit(&flags).start();
    let at = address(&running);
    let socket = running.after_line("socket=").trim().strip_prefix("socket=").unwrap().to_owned();
    let check = || -> Finished { Trainit::new(["status", "--check"]).env("TRAINIT_SOCKET", &socket).output() };
    eventually("the GPUs", || {
        get(at, "/metrics").1.contains("trainit_gpu_utilization_ratio{gpu=\"1\",uuid=\"GPU-0000")
    });
    let (code, line) = get(at, "/healthz");
    assert!(
        code == 200 && line.starts_with("healthy: running (attempt 1, up ") && line.ends_with("s): sh\n"),
        "{line}"
    );
    assert!(check().expect_code(0).out().starts_with("healthy: running"));

    fake.play(&["event-1 1 8 79"]);
    running.after_line("asked");
    let (code, line) = get(at, "/healthz");
    assert!(
        code == 503 && line.starts_with("unhealthy: GPU 1 (GPU-00000001") && line.contains("XID 79"),
        "{code}: {line}"
    );
    assert_eq!(check().expect_code(1).out(), line);
    let text = get(at, "/metrics").1;
    assert!(text.contains("\ntrainit_healthy 0\n") && text.contains("xid=\"79\"} 1\n"), "{text}");
    running.finish().expect_code(202);
}

#[test]
fn there_is_an_answer_between_two_attempts_and_while_the_command_is_being_stopped() {
    let (running, at) = run(&["--max-restarts", "1", "--restart-backoff", "1h"], "exit 3");
    let text = until(at, "trainit_state{state=\"waiting\"} 1");
    assert!(text.contains("\ntrainit_restarts_used ") && get(at, "/healthz").0 == 200, "{text}");
    running.stop().expect_code(143);

    let (running, at) = run(&["--stop-grace", "2s"], &format!("trap 'echo asked' TERM; echo up; {LOOP}"));
    running.after_line("up");
    running.signal(libc::SIGTERM);
    running.after_line("asked");
    let text = until(at, "trainit_state{state=\"stopping\"} 1");
    assert!(text.contains("\ntrainit_leaving 1\n") && text.contains("\ntrainit_deadline_timestamp_seconds "), "{text}");
    assert_eq!(get(at, "/healthz").0, 200, "a stop is a wish, no failure");
    running.finish().expect_code(143);
}

#[test]
fn the_status_answers_while_a_restore_waits_for_a_silent_store() {
    let mute = TcpListener::bind("127.0.0.1:0").unwrap();
    let dir = tempfile::tempdir().unwrap();
    let flags = ["--checkpoint-dir", dir.path().to_str().unwrap(), "--checkpoint-store", "s3://bucket/job"];
    let running = Trainit::new([&ANYWHERE[..], &flags, &["--", "true"]].concat())
        .env("AWS_ENDPOINT_URL", format!("http://{}", mute.local_addr().unwrap()))
        .env("AWS_ACCESS_KEY_ID", "key")
        .env("AWS_SECRET_ACCESS_KEY", "hidden")
        .env("AWS_EC2_METADATA_SERVICE_ENDPOINT", "http://127.0.0.1:1")
        .start();
    let at = address(&running);
    let text = until(at, "trainit_state{state=\"restoring\"} 1");
    assert!(text.contains("\ntrainit_attempt 0\n") && !text.contains("bucket") && !text.contains("hidden"), "{text}");
    let (code, line) = get(at, "/healthz");
    assert!(code == 200 && line.starts_with("healthy: restoring"), "{line}");
    running.stop().expect_code(143);
}

#[test]
fn invalid_requests_get_http_errors() {
    let (running, at) = run(&[], LOOP);
    for path in ["/index.html", "/favicon.ico", "/metrics/"] {
        let (code, text) = get(at, path);
        assert!(code == 404 && text.contains("/metrics") && text.contains("/healthz"), "{path}: {code} {text}");
    }
    assert_eq!(get(at, "/metrics?a=b").0, 200);
    let posted = say(at, b"POST /metrics HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\nhi");
    assert!(posted.starts_with("HTTP/1.1 405 ") && posted.contains("allow: GET, HEAD\r\n"), "{posted}");
    let head = say(at, b"HEAD /metrics HTTP/1.1\r\nHost: x\r\n\r\n");
    let (head, body) = head.split_once("\r\n\r\n").unwrap();
    assert!(head.starts_with("HTTP/1.1 200 ") && head.contains("version=0.0.4") && body.is_empty(), "{head}\n{body}");
    assert!(head.contains("content-length: ") && !head.contains("content-length: 0"), "{head}");
    assert!(head.contains("connection: close"), "{head}");
    for garbage in
        [&b"\x16\x03\x01\x02\x00\x01\r\n\r\n"[..], b"hello\r\n\r\n", b"GET\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n"]
    {
        let answer = say(at, garbage);
        assert!(answer.starts_with("HTTP/1.1 400 "), "{garbage:?}: {answer:?}");
    }
    let endless = [b"GET /metrics HTTP/1.1\r\nX: ".as_slice(), &vec![b'x'; 64 << 10]].concat();
    let answer = say(at, &endless);
    assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 431 "), "{answer}");
    assert_eq!(get(at, "/healthz").0, 200, "and then as before");
    running.stop().expect_code(143);
}

#[test]
fn silent_clients_delay_neither_other_clients_nor_the_end() {
    let (running, at) = run(&[], LOOP);
    // A silent client is disconnected after 5 s. Six requests that wait for that take 30 s.
    let begun = Instant::now();
    for _ in 0..6 {
        let silent: Vec<TcpStream> = (0..7).map(|_| connect(at)).collect();
        assert_eq!(get(at, "/metrics").0, 200);
        drop(silent);
    }
    assert_within(begun, Duration::from_secs(25));
    // More clients than the limit.
    let silent: Vec<TcpStream> = (0..20).map(|_| connect(at)).collect();
    let begun = Instant::now();
    running.stop().expect_code(143);
    assert_prompt(begun);
    drop(silent);
}

#[test]
fn more_silent_clients_than_are_served_at_once_do_not_block_a_health_check() {
    let (running, at) = run(&[], LOOP);
    let mut silent: Vec<TcpStream> = (0..16).map(|_| connect(at)).collect();
    let begun = Instant::now();
    assert_eq!(get(at, "/healthz").0, 200);
    assert_prompt(begun);
    assert_eq!(silent[0].read(&mut [0]).unwrap(), 0, "the oldest made room");
    let last = silent.last_mut().unwrap();
    write!(last, "GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
    let mut answer = String::new();
    last.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 200 "), "the newest did not have to: {answer}");
    running.stop().expect_code(143);
}

#[test]
fn a_silent_client_is_disconnected_and_a_waiting_client_is_served() {
    let (running, at) = run(&[], LOOP);
    let mut silent: Vec<TcpStream> = (0..8).map(|_| connect(at)).collect();
    assert_eq!(get(at, "/healthz").0, 200, "when their time is up");
    for stream in &mut silent {
        assert_eq!(stream.read(&mut [0]).unwrap(), 0, "hung up on");
    }
    running.stop().expect_code(143);
}

#[test]
fn many_at_once_are_each_answered() {
    let (running, at) = run(&[], LOOP);
    let asking: Vec<_> = (0..64).map(|_| std::thread::spawn(move || get(at, "/metrics"))).collect();
    for asked in asking {
        let (code, text) = asked.join().unwrap();
        assert!(code == 200 && text.ends_with('\n') && text.contains("trainit_attempt"), "{code} {text}");
    }
    running.stop().expect_code(143);
}

#[test]
fn an_unavailable_address_is_one_line_and_the_job_continues() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let at = taken.local_addr().unwrap().to_string();
    for (address, way_out) in [(at.as_str(), "another port"), ("203.0.113.1:9464", "an address of this host")] {
        let done = Trainit::new(["run", "--status-addr", address, "--", "echo", "trained"]).output().expect_code(0);
        assert_eq!(done.out(), "trained\n");
        let err = done.err();
        let lines: Vec<&str> = err.lines().filter(|line| line.contains("cannot listen on")).collect();
        let [line] = lines[..] else { panic!("{}", done.err()) };
        let line: Value = serde_json::from_str(line).unwrap();
        let message = line["message"].as_str().unwrap();
        assert_eq!(line["severity"], "WARNING");
        assert!(message.contains(address) && message.contains(way_out), "{message}");
    }
}

#[test]
fn the_same_port_can_be_used_again_at_once() {
    let (running, at) = run(&[], LOOP);
    assert_eq!(get(at, "/healthz").0, 200);
    running.stop().expect_code(143);
    let address_again = at.to_string();
    let again = Trainit::new(["run", "--status-addr", &address_again, "--", "sh", "-c", LOOP]).start();
    assert_eq!(address(&again), at);
    again.stop().expect_code(143);
}

#[test]
fn a_malformed_address_starts_nothing() {
    let done = Trainit::run(["echo", "started"]).env("TRAINIT_STATUS_ADDR", "9464").output().expect_code(125);
    assert_eq!(done.out(), "");
    let detail = done.verdict()["detail"].as_str().unwrap().to_owned();
    assert!(detail.starts_with("TRAINIT_STATUS_ADDR: expected") && detail.contains("127.0.0.1:9464"), "{detail}");
}

#[test]
fn only_status_addr_opens_a_port_and_the_command_inherits_no_socket() {
    let pid_of = |line: &str| serde_json::from_str::<Value>(line).unwrap()["trainit"]["pid"].as_i64().unwrap();
    let (running, at) = run(&[], LOOP);
    let child = pid_of(&running.after_log("started sh"));
    assert_eq!(get(at, "/healthz").0, 200);
    assert_eq!(listens(running.pid().into()), 1);
    assert_eq!(sockets(child), [""; 0]);
    running.stop().expect_code(143);

    let running = Trainit::run(["sh", "-c", LOOP]).start();
    running.after_log("started sh");
    assert_eq!(listens(running.pid().into()), 0);
    running.stop().expect_code(143);
}

#[test]
fn without_requests_no_thread_wakes_up() {
    let (running, at) = run(&[], "echo dir=${TRAINIT_PREEMPTION_FILE%/*}; exec sleep 60");
    let dir = running.after_line("dir=");
    assert_eq!(get(at, "/healthz").0, 200);
    let switches = || -> u64 {
        let tasks = fs::read_dir(format!("/proc/{}/task", running.pid())).unwrap();
        let status = tasks.map(|task| fs::read_to_string(task.unwrap().path().join("status")).unwrap());
        let count =
            |text: String| text.lines().find_map(|l| l.strip_prefix("voluntary_ctxt_switches:")?.trim().parse().ok());
        status.map(|text| count(text).unwrap_or(0_u64)).sum()
    };
    settled(&running, Path::new(dir.trim().trim_start_matches("dir=")));
    let before = switches();
    // The test shows that nothing happens for some time. There is no event to wait for.
    std::thread::sleep(Duration::from_millis(700));
    assert_eq!(switches(), before);
    running.stop().expect_code(143);
}
