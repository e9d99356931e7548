//! Polls preemption sources while the job runs, and reports when the machine will be taken away. Errors of a metadata
//! server never affect the trainer.

use crate::edge::clock::{self, Clock};
use crate::edge::net::http;
use crate::rules::job::Event;
use crate::rules::preempt::{News, Watch};

/// The sources to watch.
#[derive(Debug)]
pub struct PreemptionWatch {
    /// Each poll loop with the endpoint that it polls.
    pub watches: Vec<(Box<dyn Watch>, String)>,
}

impl PreemptionWatch {
    /// Runs every loop. `send` receives every report except remarks, which are logged. Never returns.
    pub(super) async fn watch(self, send: impl Fn(Event) + Clone + 'static) {
        let all = self.watches.into_iter().map(|(watch, endpoint)| follow(watch, endpoint, send.clone()));
        futures_util::future::join_all(all).await;
    }
}

async fn follow(mut key: Box<dyn Watch>, endpoint: String, send: impl Fn(Event)) {
    loop {
        let question = key.question();
        let since = Clock::start();
        let answer = http::ask(&endpoint, &question).await;
        if let Err(error) = &answer {
            tracing::debug!(path = question.path, "the metadata server at {endpoint} did not answer: {error}");
        }
        let evaluation = key.evaluate(answer.as_ref().ok(), since.now(), random());
        for item in evaluation.news {
            send(match item {
                News::Leaving(notice) => Event::Preempted { id: notice.id, source: notice.source, lead: notice.lead },
                News::Withdrawn { id, source } => Event::Withdrawn { id, source },
                News::Soon(why) => Event::Warned { why },
                News::Frozen { length, text } => Event::Frozen { length, why: text },
                News::Remark(remark) => {
                    let error = answer.as_ref().err().map_or(String::new(), |error| format!(" ({error})"));
                    tracing::warn!(code = "preemption_watch", "{remark}{error}");
                    continue;
                }
            });
        }
        tokio::time::sleep(evaluation.pause).await;
    }
}

/// Random enough to keep a thousand machines from polling at the same instant.
fn random() -> f64 {
    let nanos = clock::wall().duration_since(std::time::UNIX_EPOCH).map_or(0, |d| d.subsec_nanos());
    f64::from(nanos % 1_000_003) / 1_000_003.0
}
