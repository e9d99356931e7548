//! The bodies of requests and responses. They report their bytes as they move.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http_body_util::BodyExt;
use hyper::body::{Body, Frame, Incoming, SizeHint};
use object_store::client::{HttpError, HttpErrorKind, HttpRequestBody};

use crate::edge::store::error::NoAnswer;
use crate::edge::store::http::progress::Progress;

/// Limit for small responses and for the text of a refusal, bytes.
pub(super) const ANSWER: usize = 64 << 10;
const PIECE: usize = 64 << 10;

/// The body of a request, passed to its connection in pieces.
pub(in crate::edge::store) struct RequestBody {
    body: HttpRequestBody,
    rest: Bytes,
    progress: Progress,
    /// Whether the first piece was passed on: a store that answers "later" has usually read no more.
    is_begun: bool,
}

impl RequestBody {
    pub(in crate::edge::store) fn new(body: HttpRequestBody, progress: Progress) -> RequestBody {
        RequestBody { body, rest: Bytes::new(), progress, is_begun: false }
    }
}

impl Body for RequestBody {
    type Data = Bytes;
    type Error = HttpError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, HttpError>>> {
        if self.rest.is_empty() {
            match ready!(Pin::new(&mut self.body).poll_frame(context)) {
                Some(Ok(frame)) => self.rest = frame.into_data().unwrap_or_default(),
                end => return Poll::Ready(end),
            }
        }
        let length = self.rest.len().min(PIECE);
        if std::mem::replace(&mut self.is_begun, true) {
            self.progress.moved(length);
        } else {
            self.progress.keep_alive();
        }
        Poll::Ready(Some(Ok(Frame::data(self.rest.split_to(length)))))
    }

    fn is_end_stream(&self) -> bool {
        self.rest.is_empty() && self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.body.size_hint().lower() + self.rest.len() as u64)
    }
}

/// The body of a response, with a limit on its length.
pub(in crate::edge::store) struct ResponseBody {
    pub(super) body: Incoming,
    pub(super) host: String,
    /// Bytes until the limit.
    pub(super) left: usize,
    pub(super) is_good: bool,
    pub(super) progress: Progress,
}

impl ResponseBody {
    /// The beginning of a refusal, which may be longer or truncated.
    pub(in crate::edge::store) async fn beginning(mut self) -> Vec<u8> {
        self.left = usize::MAX;
        let mut words = Vec::new();
        while words.len() < ANSWER
            && let Some(Ok(frame)) = self.frame().await
        {
            words.extend(frame.into_data().unwrap_or_default());
        }
        words.truncate(ANSWER);
        words
    }
}

impl Body for ResponseBody {
    type Data = Bytes;
    type Error = HttpError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, HttpError>>> {
        let frame = ready!(Pin::new(&mut self.body).poll_frame(context));
        let length = frame.as_ref().and_then(|f| f.as_ref().ok()?.data_ref()).map_or(0, Bytes::len);
        if self.is_good {
            self.progress.moved(length);
        } else {
            self.progress.keep_alive();
        }
        let Some(left) = self.left.checked_sub(length) else {
            let text = format!("the answer from {} is longer than any that was asked for", self.host);
            // Decode errors are not retried.
            return Poll::Ready(Some(Err(error(HttpErrorKind::Decode, text))));
        };
        self.left = left;
        let broken = |e: hyper::Error| {
            error(HttpErrorKind::Interrupted, format!("the answer from {} broke off: {e}", self.host))
        };
        Poll::Ready(frame.map(|frame| frame.map_err(broken)))
    }
}

pub(super) fn error(kind: HttpErrorKind, text: String) -> HttpError {
    HttpError::new(kind, NoAnswer(text))
}
