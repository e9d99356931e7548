//! Stretches of files that are sent without being held in memory. `object_store` takes bytes only: it is given a stand-in
//! of a few, which the connector finds in the request, and sends the file's in its place.

use std::fmt;
use std::fs::File;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};

use bytes::Bytes;
use crc_fast::{CrcAlgorithm, Digest, STAND_IN, stand_in, stands_for};
use futures_util::FutureExt;
use futures_util::future::{BoxFuture, MaybeDone, maybe_done};
use http_body_util::BodyExt;
use hyper::Request;
use hyper::body::{Body, Frame, SizeHint};
use hyper::header::CONTENT_LENGTH;
use object_store::client::{HttpError, HttpErrorKind, HttpRequest, HttpRequestBody};

use super::motion::{Idle, Meter};
use crate::edge::beneath::{forget, read_into};
use crate::edge::blocking::blocking;
use crate::edge::pool::{Buffer, Pool};

/// A stretch of a file, read once to know its checksum. What is sent of it later is the same, or not sent to the end.
pub struct Source {
    file: File,
    from: u64,
    until: u64,
    crc64: u64,
    /// Whether the file is through with it: the page cache is the trainer's.
    is_last: bool,
    windows: Pool,
    fault: Mutex<Option<io::Error>>,
}

impl fmt::Debug for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Source").field(&self.from).field(&self.until).finish()
    }
}

impl Source {
    /// Reads `length` bytes, by as many as a window holds; all are shown to `seen`. `is_last`: nothing of the file will be
    /// read after it was sent. Errors: as pread(2); [`io::ErrorKind::UnexpectedEof`] where there are fewer.
    pub(crate) fn new(
        file: File,
        from: u64,
        length: u64,
        is_last: bool,
        windows: &Pool,
        mut seen: impl FnMut(&[u8]),
    ) -> io::Result<Source> {
        let (until, mut digest) = (from + length, Digest::new(CrcAlgorithm::Crc64Nvme));
        let (mut window, mut at) = (windows.take()?, from);
        while at < until {
            window.fill(until - at, |room| {
                read_into(&file, at, room, |bytes| {
                    digest.update(bytes);
                    seen(bytes);
                })
            })?;
            at += entire(&window, at, until)?;
        }
        let (crc64, windows) = (digest.finalize(), windows.clone());
        Ok(Source { file, from, until, crc64, is_last, windows, fault: Mutex::default() })
    }

    /// How many bytes it is.
    pub(crate) fn length(&self) -> u64 {
        self.until - self.from
    }

    /// What kept it from being sent. [`io::ErrorKind::UnexpectedEof`]: the file became shorter;
    /// [`io::ErrorKind::InvalidData`]: it has other bytes than it had.
    pub(crate) fn take_fault(&self) -> Option<io::Error> {
        self.fault().take()
    }

    fn fault(&self) -> MutexGuard<'_, Option<io::Error>> {
        self.fault.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The window from there on, and what all up to its end sums to. The last one comes only where that is what it was.
    fn window(&self, at: u64, mut digest: Digest) -> io::Result<(Buffer, Digest)> {
        let mut window = self.windows.take()?;
        window.fill(self.until - at, |room| read_into(&self.file, at, room, |bytes| digest.update(bytes)))?;
        if at + entire(&window, at, self.until)? == self.until {
            if digest.finalize() != self.crc64 {
                return Err(io::ErrorKind::InvalidData.into());
            }
            if self.is_last {
                forget(&self.file);
            }
        }
        Ok((window, digest))
    }
}

/// The bytes that were read; fewer than a window's, or than are left, are too few.
fn entire(window: &Buffer, at: u64, until: u64) -> io::Result<u64> {
    let read = window.as_ref().len() as u64;
    if read == (until - at).min(window.room()) { Ok(read) } else { Err(io::ErrorKind::UnexpectedEof.into()) }
}

/// What is to be sent.
#[derive(Debug)]
pub enum Content {
    /// It is here.
    Blocks(Vec<Bytes>),
    /// It is in a file.
    File(Arc<Source>),
}

impl From<Vec<Bytes>> for Content {
    fn from(blocks: Vec<Bytes>) -> Content {
        Content::Blocks(blocks)
    }
}

impl Content {
    /// The file's part of it.
    pub(crate) fn source(&self) -> Option<Arc<Source>> {
        match self {
            Content::Blocks(_) => None,
            Content::File(source) => Some(Arc::clone(source)),
        }
    }

    /// How many bytes.
    pub fn length(&self) -> u64 {
        match self {
            Content::Blocks(blocks) => blocks.iter().map(|block| block.len() as u64).sum(),
            Content::File(source) => source.length(),
        }
    }
}

/// The sources that stand-ins stand for.
#[derive(Clone, Default)]
pub(super) struct Sources(Arc<Mutex<Named>>);

#[derive(Default)]
struct Named {
    last: u64,
    /// A few, by their names.
    there: Vec<(u64, Arc<Source>)>,
}

impl Sources {
    /// What to send in its place, as long as the guard is there.
    pub(super) fn stand_in(&self, source: &Arc<Source>) -> (Bytes, Standing) {
        let mut named = self.lock();
        named.last += 1;
        let name = named.last;
        named.there.push((name, Arc::clone(source)));
        (Bytes::copy_from_slice(&stand_in(source.crc64, name)), Standing { sources: self.clone(), name })
    }

    /// The request with what is to be sent in the place of a stand-in. Errors: nobody sends that any more.
    pub(super) fn resolve(&self, request: HttpRequest, meter: &Meter) -> Result<Request<Sent>, HttpError> {
        let (mut head, body) = request.into_parts();
        let Some(name) = name_in(&body) else { return Ok(Request::from_parts(head, Sent::Given(body))) };
        let source = self.lock().there.iter().find(|(known, _)| *known == name).map(|(_, source)| Arc::clone(source));
        let source = source.ok_or_else(|| HttpError::new(HttpErrorKind::Unknown, io::Error::other("given up")))?;
        // Not signed by any cloud's scheme that stand-ins are sent under.
        head.headers.insert(CONTENT_LENGTH, source.length().into());
        Ok(Request::from_parts(head, Sent::Streamed(Streamed::new(source, meter.clone()))))
    }

    fn lock(&self) -> MutexGuard<'_, Named> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The name in a body that stands for others.
fn name_in(body: &HttpRequestBody) -> Option<u64> {
    if body.content_length() != STAND_IN {
        return None;
    }
    let first = body.clone().frame().now_or_never()??.ok()?;
    stands_for(first.data_ref()?).map(|(_, name)| name)
}

/// As long as it is there, its stand-in stands for a source.
pub(super) struct Standing {
    sources: Sources,
    name: u64,
}

impl Drop for Standing {
    fn drop(&mut self) {
        self.sources.lock().there.retain(|(name, _)| *name != self.name);
    }
}

/// The body of a request.
pub(super) enum Sent {
    Given(HttpRequestBody),
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
    fn new(source: Arc<Source>, meter: Meter) -> Streamed {
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
                // Not for a connection's error, after which one tries again.
                let told = io::Error::other(error.to_string());
                *self.source.fault() = Some(error);
                return Poll::Ready(Some(Err(HttpError::new(HttpErrorKind::Unknown, told))));
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
    use std::os::unix::fs::FileExt;

    use object_store::PutPayload;

    use super::*;

    const WINDOW: u64 = 64 << 10;
    const LENGTH: u64 = 5 * WINDOW + 7;

    /// A file, the bytes of a stretch of it, and the stretch.
    fn fixture() -> (File, Vec<u8>, Arc<Source>) {
        let file = tempfile::tempfile().expect("makes a file");
        let bytes: Vec<u8> = (0..LENGTH + 11).map(|n| (n.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
        file.write_all_at(&bytes, 0).expect("writes");
        let (mut seen, reader) = (Vec::new(), file.try_clone().expect("duplicates"));
        let source = Source::new(reader, 11, LENGTH, true, &Pool::new(WINDOW), |more| seen.extend_from_slice(more));
        assert!(seen == bytes[11..], "what is summed is shown");
        (file, seen, Arc::new(source.expect("reads")))
    }

    /// What the connector would send for a request with this body.
    fn resolved(sources: &Sources, body: impl Into<HttpRequestBody>) -> Result<Request<Sent>, HttpError> {
        let request = Request::put("http://127.0.0.1/b/k").header(CONTENT_LENGTH, STAND_IN).body(body.into());
        sources.resolve(request.expect("is a request"), &Meter::default())
    }

    async fn sent(source: &Arc<Source>) -> Result<Vec<u8>, HttpError> {
        let sources = Sources::default();
        let (bytes, _standing) = sources.stand_in(source);
        let body = resolved(&sources, PutPayload::from_bytes(bytes)).expect("resolves").into_body();
        body.collect().await.map(|body| body.to_bytes().to_vec())
    }

    #[tokio::test]
    async fn a_stretch_of_a_file_is_sent_in_the_place_of_its_stand_in_as_often_as_it_is_asked_for() {
        let (_file, bytes, source) = fixture();
        let sources = Sources::default();
        let (stand_in, standing) = sources.stand_in(&source);
        let payload = PutPayload::from_bytes(stand_in);
        for _ in 0..2 {
            let request = resolved(&sources, payload.clone()).expect("resolves");
            assert_eq!(request.headers()[CONTENT_LENGTH], LENGTH.to_string());
            assert_eq!(request.body().size_hint().exact(), Some(LENGTH));
            let sent = request.into_body().collect().await.expect("is sent").to_bytes();
            assert!(sent == bytes, "{} bytes", sent.len());
        }
        drop(standing);
        assert!(resolved(&sources, payload).is_err(), "a stand-in was sent as it is");
    }

    #[tokio::test]
    async fn a_body_of_other_bytes_is_sent_as_it_is() {
        for bytes in [Bytes::new(), Bytes::from_static(&[7; STAND_IN]), Bytes::from_static(&[7; 3 * STAND_IN])] {
            let request = resolved(&Sources::default(), PutPayload::from_bytes(bytes.clone())).expect("resolves");
            let sent = request.into_body().collect().await.expect("is sent").to_bytes();
            assert_eq!(sent, bytes);
        }
    }

    #[tokio::test]
    async fn a_file_that_is_written_to_meanwhile_is_not_sent_to_its_end() {
        for (at, length, fault) in [
            (Some(11), LENGTH + 11, io::ErrorKind::InvalidData),
            (Some(LENGTH + 10), LENGTH + 11, io::ErrorKind::InvalidData),
            (None, LENGTH + 10, io::ErrorKind::UnexpectedEof),
            (None, 0, io::ErrorKind::UnexpectedEof),
        ] {
            let (file, bytes, source) = fixture();
            if let Some(at) = at {
                file.write_all_at(&[!bytes[at as usize - 11]], at).expect("writes");
            }
            file.set_len(length).expect("cuts");
            assert!(sent(&source).await.is_err(), "{at:?} {length}");
            assert_eq!(source.take_fault().map(|error| error.kind()), Some(fault), "{at:?} {length}");
        }
    }

    #[test]
    fn a_file_that_is_shorter_than_was_thought_is_no_source() {
        let short = Source::new(tempfile::tempfile().expect("makes a file"), 0, 1, true, &Pool::new(WINDOW), |_| {});
        assert_eq!(short.map_err(|error| error.kind()).expect_err("is too short"), io::ErrorKind::UnexpectedEof);
    }
}
