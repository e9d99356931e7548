use serde_json::{Value, json};

use super::*;
use crate::job::Snapshot;
use crate::status::Facts;
use crate::status::exposition;

const URL: (&str, &str) = ("KUBEFLOW_TRAINER_SERVER_URL", "https://trainer/status");
const TOKEN: (&str, &str) = ("KUBEFLOW_TRAINER_SERVER_TOKEN", "/run/token");
const OTLP: (&str, &str) = ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://collector:4318/");

fn found(variables: &[(&str, &str)], is_first: bool) -> (Vec<Receiver>, Vec<String>) {
    receivers(&Env::from_pairs(variables.iter().copied()), is_first)
}

fn view(step: Option<u64>, total_steps: Option<u64>) -> RunView {
    let facts = Facts {
        version: "0.1.0",
        now: Duration::from_secs(100),
        wall: Duration::from_secs(1_000_000_000),
        metrics: [("loss".to_owned(), "0.25".to_owned()), ("far".to_owned(), "inf".to_owned())].into(),
        step,
        total_steps,
        steps_per_second: Some(2.0),
        ..Facts::default()
    };
    RunView {
        snapshot: Snapshot { state: "running", attempt: 2, ..Snapshot::default() },
        facts,
        log: Vec::new(),
        verdict: None,
    }
}

fn body(variables: &[(&str, &str)], view: &RunView) -> Value {
    let text = found(variables, true).0[0].body(view).expect("a body");
    serde_json::from_str(&text).expect("JSON")
}

#[test]
fn a_trainjobs_status_has_progress_time_left_and_metrics() {
    let status = &body(&[URL, TOKEN], &view(Some(150), Some(200)))["trainerStatus"];
    let metrics = json!([{"name": "far", "value": "inf"}, {"name": "loss", "value": "0.25"}]);
    let time = "2001-09-09T01:46:40.000000Z";
    assert_eq!(
        *status,
        json!({"progressPercentage": 75, "estimatedRemainingSeconds": 25, "metrics": metrics, "lastUpdatedTime": time})
    );
    let status = &body(&[URL, TOKEN], &view(Some(300), Some(200)))["trainerStatus"];
    assert_eq!((&status["progressPercentage"], &status["estimatedRemainingSeconds"]), (&100.into(), &0.into()));
    let status = &body(&[URL, TOKEN], &view(Some(300), None))["trainerStatus"];
    assert_eq!((&status["progressPercentage"], &status["metrics"]), (&Value::Null, &metrics));
}

#[test]
fn only_the_first_replica_sends_the_status_of_the_trainjob() {
    assert_eq!((found(&[URL, TOKEN], true).0.len(), found(&[URL, TOKEN], false).0.len()), (1, 0));
    let (receivers, warnings) = found(&[URL], true);
    assert!(receivers.is_empty() && warnings[0].contains("KUBEFLOW_TRAINER_SERVER_TOKEN"), "{warnings:?}");
}

#[test]
fn an_otlp_body_has_each_series_of_the_metrics_page() {
    let (view, variables) = (view(Some(7), None), [OTLP, ("OTEL_RESOURCE_ATTRIBUTES", "team=a%20b,service.name=x")]);
    let body = body(&variables, &view);
    let resource = &body["resourceMetrics"][0];
    assert_eq!(
        resource["resource"]["attributes"],
        json!([{"key": "team", "value": {"stringValue": "a b"}}, {"key": "service.name", "value": {"stringValue": "x"}}])
    );
    let metrics = resource["scopeMetrics"][0]["metrics"].as_array().expect("metrics");
    let page = exposition::text(&view.snapshot, &view.facts);
    let named: Vec<&str> = page.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split(' ').next()).collect();
    assert_eq!(metrics.iter().map(|metric| metric["name"].as_str().expect("a name")).collect::<Vec<_>>(), named);
    let one = |name: &str| metrics.iter().find(|metric| metric["name"] == name).expect("is there");
    let points = &one("trainit_metric")["gauge"]["dataPoints"];
    assert_eq!((&points[0]["asDouble"], &points[1]["asDouble"]), (&"Infinity".into(), &0.25.into()));
    assert_eq!(points[1]["attributes"], json!([{"key": "tag", "value": {"stringValue": "loss"}}]));
    let restarts = &one("trainit_restarts_total")["sum"];
    assert_eq!((&restarts["isMonotonic"], &restarts["aggregationTemporality"]), (&true.into(), &2.into()));
    assert_eq!(restarts["dataPoints"][0]["startTimeUnixNano"], "999999900000000000");
}

#[test]
fn the_variables_of_opentelemetry_choose_the_otlp_receiver() {
    let one = |more: &[(&'static str, &'static str)]| found(&[&[OTLP], more].concat(), true);
    let plain = one(&[]).0.remove(0);
    assert_eq!((plain.url.as_str(), plain.period), ("http://collector:4318/v1/metrics", Duration::from_secs(60)));
    let given = one(&[
        ("OTEL_EXPORTER_OTLP_METRICS_ENDPOINT", "https://else/in"),
        ("OTEL_EXPORTER_OTLP_HEADERS", "api-key=s%3D1"),
        ("OTEL_METRIC_EXPORT_INTERVAL", "5000"),
        ("OTEL_EXPORTER_OTLP_TIMEOUT", "1500"),
    ]);
    let given = &given.0[0];
    assert_eq!((given.url.as_str(), given.headers[0].1.as_str()), ("https://else/in", "s=1"));
    assert_eq!((given.period.as_secs(), given.timeout.as_millis()), (5, 1500));
    for off in [("OTEL_SDK_DISABLED", "true"), ("OTEL_METRICS_EXPORTER", "none")] {
        assert_eq!(one(&[off]), (Vec::new(), Vec::new()), "{off:?}");
    }
    for odd in [("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc"), ("OTEL_EXPORTER_OTLP_METRICS_ENDPOINT", "collector:4317")] {
        let (receivers, warnings) = one(&[odd]);
        assert!(receivers.is_empty() && warnings.len() == 1, "{odd:?}: {warnings:?}");
    }
    assert_eq!(found(&[], true), (Vec::new(), Vec::new()));
}
