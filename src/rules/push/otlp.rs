//! The series of `/metrics` as an OTLP metrics request in JSON, for OpenTelemetry collectors. The variables are those of
//! OpenTelemetry's specification of exporters.

use std::path::PathBuf;
use std::time::Duration;

use percent_encoding::percent_decode_str;
use serde_json::{Value, json};

use super::{Content, Receiver, checked_url, given};
use crate::process::env::Env;
use crate::status::exposition::{Labels, Series, series};
use crate::status::html::RunView;

const ENDPOINT: &str = "OTEL_EXPORTER_OTLP_ENDPOINT";
const METRICS_ENDPOINT: &str = "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT";
const PERIOD: Duration = Duration::from_secs(60);
const TIMEOUT: Duration = Duration::from_secs(10);
const CUMULATIVE: u8 = 2;

/// The receiver, if the variables name one and no variable turns it off. Errors: a warning.
pub(super) fn receiver(env: &Env) -> Option<Result<Receiver, String>> {
    let (name, url) = match given(env, METRICS_ENDPOINT) {
        Some(url) => (METRICS_ENDPOINT, url.to_owned()),
        None => (ENDPOINT, format!("{}/v1/metrics", given(env, ENDPOINT)?.trim_end_matches('/'))),
    };
    let is_off = given(env, "OTEL_SDK_DISABLED").is_some_and(|text| text.eq_ignore_ascii_case("true"))
        || given(env, "OTEL_METRICS_EXPORTER").is_some_and(|text| !text.split(',').any(|e| e.trim() == "otlp"));
    if is_off {
        return None;
    }
    if setting(env, "PROTOCOL").is_some_and(|protocol| protocol == "grpc") {
        return Some(Err(format!(
            "{name} is for gRPC (OTEL_EXPORTER_OTLP_PROTOCOL), and trainit sends OTLP over HTTP only: its metrics are not sent; \
             training continues; set OTEL_EXPORTER_OTLP_METRICS_PROTOCOL to http/json and \
             {METRICS_ENDPOINT} to the collector's HTTP port (4318) with /v1/metrics"
        )));
    }
    Some(checked_url(name, &url).map(|url| Receiver {
        url,
        headers: setting(env, "HEADERS").map(pairs).unwrap_or_default(),
        token_file: None,
        ca_file: setting(env, "CERTIFICATE").map(PathBuf::from),
        period: millis(given(env, "OTEL_METRIC_EXPORT_INTERVAL")).unwrap_or(PERIOD).max(Duration::from_secs(1)),
        timeout: millis(setting(env, "TIMEOUT")).unwrap_or(TIMEOUT),
        content: Content::Otlp(resource(env)),
    }))
}

/// The setting for metrics, or else for all signals.
fn setting<'a>(env: &'a Env, name: &str) -> Option<&'a str> {
    let of = |signal: &str| given(env, &format!("OTEL_EXPORTER_OTLP_{signal}{name}"));
    of("METRICS_").or_else(|| of(""))
}

fn millis(text: Option<&str>) -> Option<Duration> {
    text?.parse().ok().filter(|millis| *millis > 0).map(Duration::from_millis)
}

/// `name=value,name=value` with percent-encoded values.
fn pairs(text: &str) -> Vec<(String, String)> {
    let pair = |pair: &str| {
        let (name, value) = pair.split_once('=')?;
        let decode = |text: &str| percent_decode_str(text.trim()).decode_utf8_lossy().into_owned();
        Some((decode(name), decode(value))).filter(|(name, _)| !name.is_empty())
    };
    text.split(',').filter_map(pair).collect()
}

fn resource(env: &Env) -> Vec<(String, String)> {
    let mut attributes = given(env, "OTEL_RESOURCE_ATTRIBUTES").map(pairs).unwrap_or_default();
    let name = given(env, "OTEL_SERVICE_NAME").map(str::to_owned);
    let is_named = attributes.iter().any(|(name, _)| name == "service.name");
    if let Some(name) = name.or_else(|| (!is_named).then(|| "trainit".to_owned())) {
        attributes.retain(|(name, _)| name != "service.name");
        attributes.push(("service.name".to_owned(), name));
    }
    attributes
}

pub(super) fn body(view: &RunView, resource: &[(String, String)]) -> String {
    let facts = &view.facts;
    let now = facts.wall.as_nanos().to_string();
    let start = facts.wall.saturating_sub(facts.now).as_nanos().to_string();
    let metrics = series(&view.snapshot, facts);
    let metrics: Vec<Value> = metrics.iter().map(|series| metric(series, &start, &now)).collect();
    let scope = json!({"name": "trainit", "version": facts.version});
    let resource = attributes(resource.iter().map(|(name, value)| (name.as_str(), value)));
    json!({"resourceMetrics": [{
        "resource": {"attributes": resource},
        "scopeMetrics": [{"scope": scope, "metrics": metrics}],
    }]})
    .to_string()
}

fn metric(series: &Series, start: &str, now: &str) -> Value {
    let point = |(labels, value): &(Labels, f64)| {
        let attributes = attributes(labels.iter().map(|(name, value)| (*name, value)));
        let mut point = json!({"attributes": attributes, "timeUnixNano": now, "asDouble": double(*value)});
        if series.is_counter {
            point["startTimeUnixNano"] = start.into();
        }
        point
    };
    let points: Vec<Value> = series.samples.iter().map(point).collect();
    let mut metric = json!({"name": format!("trainit_{}", series.name), "description": series.help});
    match series.is_counter {
        true => {
            metric["sum"] = json!({"aggregationTemporality": CUMULATIVE, "isMonotonic": true, "dataPoints": points});
        }
        false => metric["gauge"] = json!({"dataPoints": points}),
    }
    metric
}

/// As protobuf's JSON form writes a double.
fn double(value: f64) -> Value {
    match value {
        f64::INFINITY => "Infinity".into(),
        f64::NEG_INFINITY => "-Infinity".into(),
        value if value.is_nan() => "NaN".into(),
        value => value.into(),
    }
}

fn attributes<'a>(pairs: impl Iterator<Item = (&'a str, &'a String)>) -> Vec<Value> {
    pairs.map(|(name, value)| json!({"key": name, "value": {"stringValue": value}})).collect()
}
