//! Progress that is sent to other systems: the status server of Kubeflow Trainer 2 and OpenTelemetry collectors. The
//! receivers are found in the environment, and their bodies are made from the facts of a run.
//!
//! Deliberately absent: connections, and when a body is sent.

mod otlp;
mod trainjob;

use std::path::PathBuf;
use std::time::Duration;

use crate::process::env::Env;
use crate::status::html::RunView;
use crate::text::quoted::shown;

/// The limit of one request.
const TIMEOUT: Duration = Duration::from_secs(5);

/// A receiver of the run's state.
#[derive(Debug, Clone, PartialEq)]
pub struct Receiver {
    /// `https` or `http`.
    pub url: String,
    /// Sent with each request. They may hold secrets.
    pub headers: Vec<(String, String)>,
    /// A file with the bearer token, read for each request because it is renewed.
    pub token_file: Option<PathBuf>,
    /// A file with the certificate authorities to trust in addition.
    pub ca_file: Option<PathBuf>,
    /// The least time between two requests.
    pub period: Duration,
    /// The limit of one request.
    pub timeout: Duration,
    /// What is sent.
    pub content: Content,
}

/// The content of a body.
#[derive(Debug, Clone, PartialEq)]
pub enum Content {
    /// The progress of a TrainJob.
    TrainJob,
    /// The series of `/metrics` as OTLP, with the attributes of the resource.
    Otlp(Vec<(String, String)>),
}

impl Receiver {
    /// The short name for log lines.
    pub fn name(&self) -> &'static str {
        match self.content {
            Content::TrainJob => "Kubeflow Trainer's status server",
            Content::Otlp(_) => "the OTLP receiver",
        }
    }

    /// The JSON body for this moment. `None`: there is nothing to tell yet.
    pub fn body(&self, view: &RunView) -> Option<String> {
        match &self.content {
            Content::TrainJob => trainjob::body(&view.facts),
            Content::Otlp(attributes) => Some(otlp::body(view, attributes)),
        }
    }

    /// What makes a body differ from an earlier one, without its time.
    pub fn gist(&self, view: &RunView) -> Option<String> {
        match &self.content {
            Content::TrainJob => trainjob::status(&view.facts).map(|status| status.to_string()),
            Content::Otlp(_) => None,
        }
    }
}

/// The receivers that the environment names, and a warning for each that cannot be used. `is_first`: this process reports for
/// the whole job.
pub fn receivers(env: &Env, is_first: bool) -> (Vec<Receiver>, Vec<String>) {
    let (mut receivers, mut warnings) = (Vec::new(), Vec::new());
    for found in [trainjob::receiver(env).filter(|_| is_first), otlp::receiver(env)].into_iter().flatten() {
        match found {
            Ok(receiver) => receivers.push(receiver),
            Err(warning) => warnings.push(warning),
        }
    }
    (receivers, warnings)
}

/// Errors: it is no URL that can be used; why and what to do.
fn checked_url(name: &str, text: &str) -> Result<String, String> {
    let text = text.trim();
    let is_one = ["http://", "https://"].iter().any(|scheme| text.len() > scheme.len() && text.starts_with(scheme));
    if is_one && !text.chars().any(|c| c.is_whitespace() || c.is_control()) {
        return Ok(text.to_owned());
    }
    Err(format!(
        "{name} is {}, which is no http or https URL: no progress is sent there; training continues; give a whole URL",
        shown(text)
    ))
}

/// A variable that is set and not empty.
fn given<'a>(env: &'a Env, name: &str) -> Option<&'a str> {
    env.get(name).map(str::trim).filter(|text| !text.is_empty())
}

#[cfg(test)]
mod tests;
