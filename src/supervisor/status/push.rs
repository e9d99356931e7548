//! Sends the run's progress to its receivers, on the background thread while the job runs, and once more at the end on a
//! thread of its own. A receiver that hangs or refuses never delays the job.

use std::sync::mpsc;
use std::time::Duration;

use futures_util::future::join_all;
use tokio::sync::oneshot;
use tokio::time::sleep;

use crate::edge::net::post::{self, Client};
use crate::edge::process::signals;
use crate::edge::transfer::blocking;
use crate::rules::push::Receiver;
use crate::rules::status::html::RunView;
use crate::supervisor::background::orders::EventSender;
use crate::supervisor::status::page::Question;

/// The longest wait for the last reports.
const LAST: Duration = Duration::from_secs(1);

/// Sends to one receiver for ever. Content that does not change is not sent again, if the receiver only keeps the last.
pub(in crate::supervisor) async fn push(receiver: Receiver, events: &EventSender) {
    let (client, mut log, mut sent) = (Client::default(), Log::default(), None);
    loop {
        sleep(receiver.period).await;
        let (answer, view) = oneshot::channel();
        events.ask(Question(answer));
        let Ok(view) = view.await else { return };
        let gist = receiver.gist(&view);
        if gist.is_some() && gist == sent {
            continue;
        }
        let Some(body) = receiver.body(&view) else { continue };
        let done = post::send(&client, &receiver, body).await;
        sent = gist.filter(|_| done.is_ok());
        log.note(&receiver, done);
    }
}

/// The last reports, which are on their way.
pub(in crate::supervisor) struct LastPush(mpsc::Receiver<()>);

/// Sends the last state. Without a thread it is not sent.
pub(in crate::supervisor) fn last(receivers: Vec<Receiver>, view: &RunView) -> Option<LastPush> {
    let with_body = |receiver: Receiver| Some((receiver.body(view)?, receiver));
    let bodies: Vec<(String, Receiver)> = receivers.into_iter().filter_map(with_body).collect();
    if bodies.is_empty() {
        return None;
    }
    let (going, gone) = mpsc::channel();
    let started = signals::thread_without_signals("last-push", move || {
        let _going = going;
        let Ok(runtime) = blocking::runtime(true) else { return };
        runtime.block_on(async {
            let send = |(body, receiver)| async move {
                let done = post::send(&Client::default(), &receiver, body).await;
                Log::default().note(&receiver, done);
            };
            join_all(bodies.into_iter().map(send)).await;
        });
    });
    started.ok().map(|()| LastPush(gone))
}

impl LastPush {
    /// Waits for them for a limited time.
    pub(in crate::supervisor) fn finish(self, limit: Duration) {
        let _ = self.0.recv_timeout(limit.min(LAST));
    }
}

/// Logs each kind of failure once.
#[derive(Default)]
struct Log(Option<String>);

impl Log {
    fn note(&mut self, receiver: &Receiver, done: Result<(), String>) {
        match done {
            Ok(()) => self.0 = None,
            Err(why) if self.0.as_ref() == Some(&why) => {}
            Err(why) => {
                let period = receiver.period.as_secs();
                tracing::warn!(
                    code = "progress_not_sent",
                    "{} does not take the run's progress: {why}; training continues, and it is sent again every {period} s",
                    receiver.name()
                );
                self.0 = Some(why);
            }
        }
    }
}
