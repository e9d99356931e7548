//! Asks a preemption source, for as long as the job lives, and says when the machine goes away. Whatever goes wrong
//! here stays here: the trainer is not touched by a metadata server's failure.

use crate::edge::clock::{self, Clock};
use crate::edge::http;
use crate::rules::preempt::{Notice, Source, Watch};

/// What to watch.
#[derive(Debug, Clone)]
pub struct Lookout {
    /// The source.
    pub source: &'static Source,
    /// Its `host:port`.
    pub endpoint: String,
}

impl Lookout {
    /// Watches every key of the source; `tell` is called at each notice. Never returns.
    pub(super) async fn watch(self, tell: impl Fn(Notice) + Clone + 'static) {
        let watches = (self.source.watches)().into_iter().map(|key| follow(key, self.endpoint.clone(), tell.clone()));
        futures_util::future::join_all(watches).await;
    }
}

async fn follow(mut key: Box<dyn Watch>, endpoint: String, tell: impl Fn(Notice)) {
    loop {
        let question = key.question();
        let since = Clock::start();
        let answer = http::ask(&endpoint, &question).await;
        if let Err(error) = &answer {
            tracing::debug!(path = question.path, "the metadata server at {endpoint} did not answer: {error}");
        }
        let heard = key.heard(answer.as_ref().ok(), since.now(), random());
        if let Some(remark) = heard.remark {
            tracing::warn!(code = "preemption_watch", "{remark}");
        }
        if let Some(notice) = heard.notice {
            tell(notice);
        }
        tokio::time::sleep(heard.pause).await;
    }
}

/// Good enough to keep a thousand machines from asking at the same instant.
fn random() -> f64 {
    let nanos = clock::wall().duration_since(std::time::UNIX_EPOCH).map_or(0, |d| d.subsec_nanos());
    f64::from(nanos % 1_000_003) / 1_000_003.0
}
