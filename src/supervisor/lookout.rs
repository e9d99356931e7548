//! Asks preemption sources, for as long as the job lives, and says when the machine goes away. Whatever goes wrong
//! here stays here: the trainer is not touched by a metadata server's failure.

use crate::edge::clock::{self, Clock};
use crate::edge::http;
use crate::rules::job::Event;
use crate::rules::preempt::{Watch, Word};

/// What to watch.
#[derive(Debug)]
pub struct Lookout {
    /// Each loop of questions, and the endpoint it asks.
    pub watches: Vec<(Box<dyn Watch>, String)>,
}

impl Lookout {
    /// Goes on with every loop; `tell` is called with all but remarks, which are logged. Never returns.
    pub(super) async fn watch(self, tell: impl Fn(Event) + Clone + 'static) {
        let all = self.watches.into_iter().map(|(watch, endpoint)| follow(watch, endpoint, tell.clone()));
        futures_util::future::join_all(all).await;
    }
}

async fn follow(mut key: Box<dyn Watch>, endpoint: String, tell: impl Fn(Event)) {
    loop {
        let question = key.question();
        let since = Clock::start();
        let answer = http::ask(&endpoint, &question).await;
        if let Err(error) = &answer {
            tracing::debug!(path = question.path, "the metadata server at {endpoint} did not answer: {error}");
        }
        let heard = key.heard(answer.as_ref().ok(), since.now(), random());
        for word in heard.words {
            tell(match word {
                Word::Leaving(notice) => Event::Preempted { id: notice.id, source: notice.source, lead: notice.lead },
                Word::Withdrawn { id, source } => Event::Withdrawn { id, source },
                Word::Soon(why) => Event::Warned { why },
                Word::Frozen { length, text } => Event::Frozen { length, why: text },
                Word::Remark(remark) => {
                    let error = answer.as_ref().err().map_or(String::new(), |error| format!(" ({error})"));
                    tracing::warn!(code = "preemption_watch", "{remark}{error}");
                    continue;
                }
            });
        }
        tokio::time::sleep(heard.pause).await;
    }
}

/// Good enough to keep a thousand machines from asking at the same instant.
fn random() -> f64 {
    let nanos = clock::wall().duration_since(std::time::UNIX_EPOCH).map_or(0, |d| d.subsec_nanos());
    f64::from(nanos % 1_000_003) / 1_000_003.0
}
