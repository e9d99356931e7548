//! The body of an answer on its way in.

use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::BodyExt;
use hyper::body::{Body, Frame, Incoming, SizeHint};
use object_store::client::{HttpError, HttpErrorKind};
use tokio::time::{Instant, Sleep, sleep};

use super::answers;
use super::connect::{ANSWER, error};
use super::page;

/// What a refusal begins with: neither the rest of it nor that it breaks off makes it another.
pub(super) async fn beginning(mut body: Watched) -> Vec<u8> {
    body.left = usize::MAX;
    let mut words = Vec::new();
    while words.len() < ANSWER
        && let Some(Ok(frame)) = body.frame().await
    {
        words.extend(frame.into_data().unwrap_or_default());
    }
    words.truncate(ANSWER);
    words
}

/// The body of an answer that is judged before the crate reads it: one of these elements where that is `owed`, else a
/// metadata server's.
pub(super) async fn whole(body: Watched, owed: Option<&[&str]>, sent: &[String]) -> Result<Bytes, HttpError> {
    let host = body.host.clone();
    // What was not sent is always sent again, and this may be: an upload that is begun twice costs nothing.
    let is_to_repeat = |e: &HttpError| owed.is_some() && e.kind() != HttpErrorKind::Decode;
    let broke_off = |e| if is_to_repeat(&e) { HttpError::new(HttpErrorKind::Request, e) } else { e };
    let words = body.collect().await.map_err(broke_off)?.to_bytes();
    let refused = |kind| move |why| error(kind, why);
    match owed {
        Some(root) => {
            let whole = answers::whole(&host, root, words, sent).map_err(refused(HttpErrorKind::Request))?;
            Ok(page::without_odd_names(whole))
        }
        None => answers::usable(&host, &words).map_err(refused(HttpErrorKind::Unknown)),
    }
}

/// A body that may not fall silent, nor go on and on.
pub(super) struct Watched {
    body: Incoming,
    host: String,
    /// Bytes that may still come.
    left: usize,
    silence: Duration,
    limit: Pin<Box<Sleep>>,
}

impl Watched {
    /// At most `left` bytes, no two of them further apart than `silence`.
    pub(super) fn new(body: Incoming, host: String, left: usize, silence: Duration) -> Watched {
        Watched { body, host, left, silence, limit: Box::pin(sleep(silence)) }
    }
}

impl Body for Watched {
    type Data = Bytes;
    type Error = HttpError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, HttpError>>> {
        if let Poll::Ready(frame) = Pin::new(&mut self.body).poll_frame(context) {
            let until = Instant::now() + self.silence;
            self.limit.as_mut().reset(until);
            let came = frame.as_ref().and_then(|f| f.as_ref().ok()?.data_ref()).map_or(0, Bytes::len);
            let Some(left) = self.left.checked_sub(came) else {
                let text = format!("the answer from {} is longer than any that was asked for", self.host);
                // Not to be asked for again.
                return Poll::Ready(Some(Err(error(HttpErrorKind::Decode, text))));
            };
            self.left = left;
            let broken = |e: hyper::Error| {
                error(HttpErrorKind::Interrupted, format!("the answer from {} broke off: {e}", self.host))
            };
            return Poll::Ready(frame.map(|frame| frame.map_err(broken)));
        }
        ready!(self.limit.as_mut().poll(context));
        let text = format!("{} fell silent for {} s", self.host, self.silence.as_secs());
        Poll::Ready(Some(Err(error(HttpErrorKind::Timeout, text))))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
