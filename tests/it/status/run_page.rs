//! The page about a run: live at `--status-addr`, and as a file with `--run-report`.

use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::process::Command;

use crate::support::{Running, TIMEOUT, Trainit, eventually, shared_dir};

const LOOP: &str = "while :; do sleep 0.01; done";

fn address(running: &Running) -> SocketAddr {
    let line = running.after_log("the status is at http://");
    let at = line.split("http://").nth(1).and_then(|rest| rest.split(": ").next()).unwrap();
    at.parse().unwrap_or_else(|e| panic!("{e}: {line}"))
}

fn ask(at: SocketAddr) -> TcpStream {
    let mut stream = TcpStream::connect_timeout(&at, TIMEOUT).unwrap();
    stream.set_read_timeout(Some(TIMEOUT)).unwrap();
    stream.write_all(format!("GET / HTTP/1.1\r\nHost: {at}\r\n\r\n").as_bytes()).unwrap();
    stream
}

/// The head and the page.
fn page(at: SocketAddr) -> (String, String) {
    let mut answer = String::new();
    ask(at).read_to_string(&mut answer).unwrap();
    let (head, page) = answer.split_once("\r\n\r\n").unwrap_or_else(|| panic!("no answer: {answer:?}"));
    assert!(head.starts_with("HTTP/1.1 200 OK"), "{head}");
    (head.to_owned(), page.to_owned())
}

/// Requests the page until it has this text.
#[track_caller]
fn page_with(at: SocketAddr, text: &str) -> String {
    let mut last = String::new();
    eventually(text, || {
        last = page(at).1;
        last.contains(text)
    });
    last
}

#[test]
fn the_page_shows_a_restarted_run_with_its_metrics_and_commits_and_no_secrets() {
    let dir = tempfile::tempdir().unwrap();
    let (ck, store) = (dir.path().join("ck").display().to_string(), format!("file://{}/store", dir.path().display()));
    let script = format!(
        "echo step $((TRAINIT_ATTEMPT * 10)) loss 0.5; [ $TRAINIT_ATTEMPT = 2 ] || exit 3
        mkdir $TRAINIT_CHECKPOINT_DIR/step-40; echo weights >$TRAINIT_CHECKPOINT_DIR/step-40/w; {LOOP} # word-of-pass"
    );
    let flags = ["--status-addr", "127.0.0.1:0", "--checkpoint-dir", &ck, "--checkpoint-store", &store];
    let more = ["--commit-interval", "50ms", "--settle", "50ms", "--max-restarts", "1", "--restart-backoff", "10ms"];
    let metric = ["--metric", "loss=step (?<step>\\d+) loss (?<value>\\S+)", "--", "sh", "-c", &script];
    let running = Trainit::new([&["run"], &flags[..], &more, &metric].concat())
        .env("CLOUD_ML_HP_METRIC_FILE", dir.path().join("metrics"))
        .env("API_TOKEN", "open-sesame")
        .start();
    let page = page_with(address(&running), "<th scope=\"row\">40</th>");
    for text in
        ["attempt 1 ended with exit code 3", "attempt 2 started", "<span>loss</span>", "restarting", "first step"]
    {
        assert!(page.contains(text), "{text}: {page}");
    }
    assert!(page.matches("<svg ").count() >= 2, "{page}");
    assert!(!page.contains("word-of-pass") && !page.contains("open-sesame"), "neither arguments nor variables: {page}");
    running.stop().expect_code(143);
}

#[test]
fn a_hostile_metric_and_a_hostile_name_of_the_command_stay_text() {
    let dir = shared_dir();
    let (records, program) = (dir.path().join("records"), dir.path().join("a<img src=x>\u{1b}[2J"));
    fs::write(
        &program,
        format!("#!/bin/sh\necho '{{\"</script><b>\": 0.5, \"step\": 1}}' >{}\n{LOOP}\n", records.display()),
    )
    .unwrap();
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
    let (records, program) = (records.display().to_string(), program.display().to_string());
    let running = Trainit::new(["run", "--status-addr", "127.0.0.1:0", "--metric-file", &records, "--", &program])
        .env("CLOUD_ML_HP_METRIC_FILE", dir.path().join("metrics"))
        .start();
    let page = page_with(address(&running), "&lt;/script&gt;&lt;b&gt;");
    assert!(!page.contains("</script><b>") && !page.contains("<img") && !page.contains('\u{1b}'), "{page}");
    running.stop().expect_code(143);
}

#[test]
fn the_policy_of_the_page_allows_its_script_and_no_other() {
    let running = Trainit::new(["run", "--status-addr", "127.0.0.1:0", "--", "sh", "-c", LOOP]).start();
    let (head, page) = page(address(&running));
    let head = head.to_lowercase();
    assert!(head.contains("content-type: text/html; charset=utf-8") && head.contains("nosniff"), "{head}");
    let (_, script) = page.split_once("<script>").unwrap();
    let (script, _) = script.split_once("</script>").unwrap();
    let digest = |command: &str, input: &str| {
        let text = Command::new("sh").args(["-c", command, "sh", input]).output().unwrap().stdout;
        String::from_utf8(text).unwrap().trim().to_owned()
    };
    let sum = digest("printf %s \"$1\" | sha256sum | cut -c1-64", script);
    let (_, allowed) = head.split_once("script-src 'sha256-").unwrap();
    let original = include_str!("../../../src/rules/status/html/mod.rs").split("script-src 'sha256-").nth(1).unwrap();
    let original = original.split('\'').next().unwrap();
    assert!(allowed.starts_with(&original.to_lowercase()), "{head}");
    let expected = digest("printf %s \"$1\" | base64 -d | od -An -v -tx1 | tr -d ' \\n'", original);
    assert_eq!(sum, expected, "live.js has changed: openssl dgst -sha256 -binary live.js | base64");
    running.stop().expect_code(143);
}

#[test]
fn two_hundred_readers_at_once_all_get_the_page_and_readers_that_never_read_delay_no_stop() {
    let running = Trainit::new(["run", "--status-addr", "127.0.0.1:0", "--", "sh", "-c", LOOP]).start();
    let at = address(&running);
    let readers: Vec<_> = (0..200).map(|_| std::thread::spawn(move || page(at).1)).collect();
    for reader in readers {
        assert!(reader.join().unwrap().ends_with("</html>\n"));
    }
    let silent: Vec<TcpStream> = (0..20).map(|_| ask(at)).collect();
    running.stop().expect_code(143);
    drop(silent);
}

#[test]
fn a_report_is_written_at_a_commit_and_again_at_the_end_with_the_verdict() {
    let dir = tempfile::tempdir().unwrap();
    let report = dir.path().join("out/run.html");
    let (ck, store) = (dir.path().join("ck").display().to_string(), format!("file://{}/store", dir.path().display()));
    let script = format!("mkdir $TRAINIT_CHECKPOINT_DIR/step-40; echo w >$TRAINIT_CHECKPOINT_DIR/step-40/w; {LOOP}");
    let flags =
        ["--checkpoint-dir", &ck, "--checkpoint-store", &store, "--commit-interval", "50ms", "--settle", "50ms"];
    let more = ["--run-report", report.to_str().unwrap(), "--", "sh", "-c", &script];
    let running = Trainit::new([&["run"], &flags[..], &more].concat()).start();
    eventually("a report", || fs::read_to_string(&report).is_ok_and(|page| page.contains("<h2>Checkpoints</h2>")));
    let page = fs::read_to_string(&report).unwrap();
    assert!(page.contains("(running)</h1>") && page.ends_with("</html>\n") && !page.contains("<script"), "{page}");
    running.stop().expect_code(143);
    let page = fs::read_to_string(&report).unwrap();
    assert!(page.contains("(stopped)</h1>") && page.contains("<strong>stopped</strong>: "), "{page}");
    assert_eq!(fs::read_dir(dir.path().join("out")).unwrap().count(), 1, "no temporary file remains");
}

#[test]
fn a_report_never_follows_a_link_and_one_that_cannot_be_written_changes_no_code() {
    let dir = shared_dir();
    let (target, link) = (dir.path().join("target"), dir.path().join("run.html"));
    fs::write(&target, "kept").unwrap();
    symlink(&target, &link).unwrap();
    let run = |report: &Path| {
        Trainit::new(["run", "--run-report", report.to_str().unwrap(), "--", "sh", "-c", "exit 4"])
            .output()
            .expect_code(4)
    };
    run(&link);
    assert_eq!(fs::read_to_string(&target).unwrap(), "kept");
    assert!(fs::read_to_string(&link).unwrap().contains("(failed)</h1>"));
    let done = run(Path::new("/proc/nowhere/run.html"));
    assert!(done.err().contains("the report could not be written to /proc/nowhere/run.html"), "{}", done.err());
}
