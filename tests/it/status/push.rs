//! Progress that is sent to Kubeflow Trainer's status server and to an OTLP collector. No receiver can delay a job.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpListener;
use std::sync::mpsc;
use std::time::Instant;

use serde_json::Value;

use crate::support::{Trainit, assert_prompt, binary};

/// A receiver that answers each request with this status; gives the head and the body of each.
fn receiver(status: &'static str) -> (String, mpsc::Receiver<(String, String)>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let at = listener.local_addr().unwrap();
    let (send, requests) = mpsc::channel();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let (mut stream, mut request) = (stream.unwrap(), Vec::new());
            let mut buffer = [0; 65536];
            let (head, body) = loop {
                let count = stream.read(&mut buffer).unwrap();
                request.extend(&buffer[..count]);
                let text = String::from_utf8_lossy(&request).into_owned();
                let Some((head, body)) = text.split_once("\r\n\r\n") else { continue };
                let length =
                    head.lines().find_map(|line| line.to_lowercase().strip_prefix("content-length: ")?.parse().ok());
                if body.len() == length.unwrap_or(0) {
                    break (head.to_owned(), body.to_owned());
                }
            };
            let answer = format!("HTTP/1.1 {status}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
            let _ = stream.write_all(answer.as_bytes());
            let _ = send.send((head, body));
        }
    });
    (format!("http://{at}"), requests)
}

#[test]
fn the_last_state_of_a_trainjob_is_sent_with_the_present_token() {
    let (url, requests) = receiver("200 OK");
    let place = tempfile::tempdir().unwrap();
    let token = place.path().join("token");
    fs::write(&token, "secret-1\n").unwrap();
    let script = format!(
        "{} report-metric --tag loss --value 0.25 --step 7; echo secret-2 >{}",
        binary().display(),
        token.display()
    );
    let run = Trainit::new(["run", "--steps", "10", "--", "sh", "-c", &script])
        .env("CLOUD_ML_HP_METRIC_FILE", place.path().join("metrics").to_str().unwrap())
        .env("KUBEFLOW_TRAINER_SERVER_URL", format!("{url}/apis/status"))
        .env("KUBEFLOW_TRAINER_SERVER_TOKEN", token.to_str().unwrap());
    let done = run.output().expect_code(0);
    let (head, body) = requests.recv().unwrap();
    assert!(
        head.starts_with("POST /apis/status ") && head.to_lowercase().contains("authorization: bearer secret-2"),
        "{head}"
    );
    let body: Value = serde_json::from_str(&body).unwrap();
    let status = &body["trainerStatus"];
    assert_eq!((&status["progressPercentage"], &status["metrics"][0]["value"]), (&70.into(), &"0.25".into()), "{body}");
    assert!(!done.err().contains("secret"), "{}", done.err());
}

#[test]
fn the_series_of_the_metrics_page_are_sent_to_an_otlp_collector_at_the_end() {
    let (url, requests) = receiver("200 OK");
    let run = Trainit::new(["run", "--", "true"]);
    run.env("OTEL_EXPORTER_OTLP_ENDPOINT", url).env("OTEL_EXPORTER_OTLP_HEADERS", "api-key=k").output().expect_code(0);
    let (head, body) = requests.recv().unwrap();
    assert!(head.starts_with("POST /v1/metrics ") && head.to_lowercase().contains("api-key: k"), "{head}");
    let body: Value = serde_json::from_str(&body).unwrap();
    let metrics = body["resourceMetrics"][0]["scopeMetrics"][0]["metrics"].as_array().unwrap();
    assert!(metrics.iter().any(|metric| metric["name"] == "trainit_attempt"), "{body}");
}

#[test]
fn a_receiver_that_hangs_delays_no_end_and_one_that_refuses_is_named() {
    let hangs = TcpListener::bind("127.0.0.1:0").unwrap();
    let at = format!("http://{}", hangs.local_addr().unwrap());
    let begun = Instant::now();
    let run = Trainit::new(["run", "--", "true"]).env("OTEL_EXPORTER_OTLP_TIMEOUT", "600000");
    run.env("OTEL_EXPORTER_OTLP_ENDPOINT", at).output().expect_code(0);
    assert_prompt(begun);
    let (url, _requests) = receiver("401 Unauthorized");
    let done = Trainit::new(["run", "--", "true"]).env("OTEL_EXPORTER_OTLP_ENDPOINT", url).output().expect_code(0);
    assert!(done.err().contains("does not take the run's progress: it answered 401 Unauthorized"), "{}", done.err());
}
