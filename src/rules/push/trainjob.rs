//! Kubeflow Trainer 2's status of a TrainJob (KEP-2779): progress, time left and metrics. The field names are those of
//! `trainer.kubeflow.org/v1alpha1` UpdateTrainJobStatusRequest.

use std::path::PathBuf;
use std::time::{Duration, UNIX_EPOCH};

use humantime::format_rfc3339_micros;
use serde_json::{Value, json};

use super::{Content, Receiver, TIMEOUT, checked_url, given};
use crate::process::env::Env;
use crate::status::Facts;

const URL: &str = "KUBEFLOW_TRAINER_SERVER_URL";
const CA: &str = "KUBEFLOW_TRAINER_SERVER_CA_CERT";
const TOKEN: &str = "KUBEFLOW_TRAINER_SERVER_TOKEN";
/// The server accepts a report every 5 s.
const PERIOD: Duration = Duration::from_secs(5);
/// The server's limit.
const METRICS: usize = 256;

/// The receiver, if the controller has set its variables. Errors: a warning.
pub(super) fn receiver(env: &Env) -> Option<Result<Receiver, String>> {
    let url = given(env, URL)?;
    Some(checked_url(URL, url).and_then(|url| {
        let token_file = given(env, TOKEN).map(PathBuf::from).ok_or_else(|| {
            format!("{URL} is set without {TOKEN}, the file of its token: no progress is sent; training continues; see the TrainJob's controller")
        })?;
        Ok(Receiver {
            url,
            headers: Vec::new(),
            token_file: Some(token_file),
            ca_file: given(env, CA).map(PathBuf::from),
            period: PERIOD,
            timeout: TIMEOUT,
            content: Content::TrainJob,
        })
    }))
}

/// The status without its time. `None`: neither progress nor a metric is known.
pub(super) fn status(facts: &Facts) -> Option<Value> {
    let total = facts.total_steps.filter(|total| *total > 0);
    let progress = facts.step.zip(total);
    let mut status = json!({});
    if let Some((step, total)) = progress {
        status["progressPercentage"] = (step.saturating_mul(100) / total).min(100).into();
        if let Some(pace) = facts.steps_per_second.filter(|pace| *pace > 0.0) {
            status["estimatedRemainingSeconds"] = ((total.saturating_sub(step) as f64 / pace).round() as u64).into();
        }
    }
    if !facts.metrics.is_empty() {
        let metric = |(name, value): (&String, &String)| json!({"name": name, "value": value});
        status["metrics"] = facts.metrics.iter().take(METRICS).map(metric).collect();
    }
    status.as_object().is_some_and(|status| !status.is_empty()).then_some(status)
}

pub(super) fn body(facts: &Facts) -> Option<String> {
    let mut status = status(facts)?;
    status["lastUpdatedTime"] = format_rfc3339_micros(UNIX_EPOCH + facts.wall).to_string().into();
    Some(json!({"trainerStatus": status}).to_string())
}
