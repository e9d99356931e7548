//! The body of a request on its way out.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use crc_fast::{CrcAlgorithm, Digest};
use futures_util::FutureExt;
use futures_util::future::{BoxFuture, MaybeDone, maybe_done};
use http_body_util::BodyExt;
use hyper::body::{Body, Frame, SizeHint};
use object_store::client::{HttpError, HttpErrorKind, HttpRequestBody};

use super::motion::{Idle, Meter};
use super::source::Source;
use super::stand_in::Sources;
use crate::edge::blocking::blocking;
use crate::edge::pool::Buffer;

/// What a body stands for, if it does.
pub(super) fn behind(body: &HttpRequestBody, sources: &Sources) -> Option<Arc<Source>> {
    let first = body.clone().frame().now_or_never()??.ok()?;
    sources.behind(first.data_ref()?).map(|(source, _)| source)
}

/// The body of a request.
pub(super) enum Sent {
    /// As it is; where it is a stand-in, the connection knows.
    Given(HttpRequestBody),
    /// Read here.
    Streamed(Streamed),
}

impl Body for Sent {
    type Data = Bytes;
    type Error = HttpError;

    fn poll_frame(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, HttpError>>> {
        match self.get_mut() {
            Sent::Given(body) => Pin::new(body).poll_frame(context),
            Sent::Streamed(body) => body.poll(context).map(|window| window.map(|window| window.map(Frame::data))),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Sent::Given(body) => body.is_end_stream(),
            Sent::Streamed(body) => body.at == body.source.until,
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Sent::Given(body) => body.size_hint(),
            Sent::Streamed(body) => SizeHint::with_exact(body.source.until - body.at),
        }
    }
}

type Ahead = MaybeDone<BoxFuture<'static, io::Result<(Buffer, Digest)>>>;

/// A source on its way out: while one window is sent, the next is read.
pub(super) struct Streamed {
    source: Arc<Source>,
    meter: Meter,
    /// What is read next.
    at: u64,
    ahead: Ahead,
    /// While the file is waited for, nobody else is.
    idle: Option<Idle>,
}

impl Streamed {
    pub(super) fn new(source: Arc<Source>, meter: Meter) -> Streamed {
        let ahead = read(&source, source.from, Digest::new(CrcAlgorithm::Crc64Nvme));
        Streamed { at: source.from, source, meter, ahead, idle: None }
    }

    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<Bytes, HttpError>>> {
        if self.at == self.source.until {
            return Poll::Ready(None);
        }
        if Pin::new(&mut self.ahead).poll(context).is_pending() {
            self.idle.get_or_insert_with(|| self.meter.idle());
            return Poll::Pending;
        }
        self.idle = None;
        let read_ahead = Pin::new(&mut self.ahead).take_output();
        let (window, digest) = match read_ahead.unwrap_or_else(|| Err(io::ErrorKind::Other.into())) {
            Ok(read_ahead) => read_ahead,
            Err(error) => {
                let error = self.source.at_fault(error);
                return Poll::Ready(Some(Err(HttpError::new(HttpErrorKind::Unknown, error))));
            }
        };
        self.at += window.as_ref().len() as u64;
        if self.at < self.source.until {
            self.ahead = read(&self.source, self.at, digest);
            // It begins now.
            let _ = Pin::new(&mut self.ahead).poll(context);
        }
        Poll::Ready(Some(Ok(Bytes::from_owner(window))))
    }
}

fn read(source: &Arc<Source>, at: u64, digest: Digest) -> Ahead {
    let source = Arc::clone(source);
    maybe_done(blocking(move || source.window(at, digest)).boxed())
}

#[cfg(test)]
mod tests {
    use object_store::PutPayload;

    use super::super::source::tests::{LENGTH, fixture, spoilt};
    use super::*;

    #[tokio::test]
    async fn a_file_is_streamed_to_its_end_as_often_as_it_is_asked_for() {
        let (_file, bytes, source) = fixture();
        for _ in 0..2 {
            let body = Sent::Streamed(Streamed::new(Arc::clone(&source), Meter::default()));
            assert_eq!(body.size_hint().exact(), Some(LENGTH));
            assert!(body.collect().await.expect("is sent").to_bytes() == bytes);
        }
    }

    #[tokio::test]
    async fn a_file_that_is_written_to_meanwhile_is_not_streamed_to_its_end() {
        for (_file, source, fault) in spoilt() {
            let body = Sent::Streamed(Streamed::new(Arc::clone(&source), Meter::default()));
            assert!(body.collect().await.is_err(), "{fault}");
            assert_eq!(source.take_fault().map(|error| error.kind()), Some(fault));
        }
    }

    #[test]
    fn it_is_seen_whether_a_body_stands_for_a_file() {
        let (_file, _, source) = fixture();
        let sources = Sources::default();
        let body = |bytes: &Bytes| HttpRequestBody::from(PutPayload::from_bytes(bytes.clone()));
        let stand_in = sources.stand_in(&source).expect("there is memory");
        assert!(behind(&body(&stand_in), &sources).is_some_and(|behind| Arc::ptr_eq(&behind, &source)));
        for bytes in [Bytes::new(), Bytes::from_static(b"bytes"), Bytes::copy_from_slice(&stand_in)] {
            assert!(behind(&body(&bytes), &sources).is_none());
        }
    }
}
