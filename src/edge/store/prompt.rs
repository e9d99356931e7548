//! Connections whose other side need not wait for the kernel to acknowledge: a server that leaves Nagle's algorithm on
//! keeps the rest of an answer back until then, up to 40 ms on a connection that was used before.

use std::io;
use std::os::fd::AsRawFd;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::{BoxFuture, TryFutureExt};
use hyper::Uri;
use hyper_util::client::legacy::connect::{Connected, Connection, HttpConnector};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::{Instant, Sleep, sleep};
use tower_service::Service;

use super::motion::{Line, Meter};
use super::stand_in::Sources;
use super::straight::Straight;

/// Between two looks whether what was sent gets there, and how many in a row may see nothing more.
const PAUSE: Duration = Duration::from_secs(10);
const STALLED: u32 = 3;

/// Makes them.
#[derive(Clone)]
pub(super) struct Connector {
    pub(super) tcp: HttpConnector,
    pub(super) meter: Meter,
    pub(super) sources: Sources,
}

impl Service<Uri> for Connector {
    type Response = TokioIo<Prompt>;
    type Error = <HttpConnector as Service<Uri>>::Error;
    type Future = BoxFuture<'static, Result<Self::Response, Self::Error>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.tcp.poll_ready(context)
    }

    fn call(&mut self, to: Uri) -> Self::Future {
        let (meter, sources) = (self.meter.clone(), self.sources.clone());
        let prompt = move |tcp: TokioIo<TcpStream>| TokioIo::new(Prompt::new(tcp.into_inner(), meter, sources, PAUSE));
        self.tcp.call(to).map_ok(prompt).boxed()
    }
}

/// Acknowledges what it has read once there is no more, sends files in the place of their stand-ins, and counts what moves.
pub(super) struct Prompt {
    /// Goes before the connection does.
    line: Line,
    tcp: TcpStream,
    meter: Meter,
    sources: Sources,
    straight: Straight,
    /// Whether something was read that may not be acknowledged.
    owes: bool,
    /// Between two looks whether what was sent gets there.
    pause: Duration,
    look: Pin<Box<Sleep>>,
    /// What had got there at the last look, and how many in a row saw nothing more.
    there: u64,
    stalled: u32,
}

impl AsyncRead for Prompt {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let read = Pin::new(&mut self.tcp).poll_read(context, buffer);
        self.line.moved(buffer.filled().len() - before);
        if read.is_ready() {
            self.owes = true;
            return read;
        }
        if std::mem::take(&mut self.owes) {
            // Where it cannot be, it is only slower.
            let _ = self.tcp.set_quickack(true);
        }
        self.poll_stall(context).map(Err)
    }
}

impl AsyncWrite for Prompt {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.poll_write_vectored(context, &[io::IoSlice::new(bytes)])
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.tcp).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.tcp).poll_shutdown(context)
    }

    fn is_write_vectored(&self) -> bool {
        self.tcp.is_write_vectored()
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let Prompt { line, tcp, meter, sources, straight, .. } = &mut *self;
        let written = match bytes.first().and_then(|first| sources.behind(first).map(|behind| (behind, first.len()))) {
            Some((behind, most)) => straight.poll(behind, most, tcp, meter, context),
            None => {
                let before = bytes.iter().take_while(|bytes| sources.behind(bytes).is_none()).count();
                Pin::new(tcp).poll_write_vectored(context, &bytes[..before])
            }
        };
        if let Poll::Ready(Ok(bytes)) = written {
            line.sent(bytes);
        }
        if written.is_pending() { self.poll_stall(context).map(Err) } else { written }
    }
}

impl Prompt {
    fn new(tcp: TcpStream, meter: Meter, sources: Sources, pause: Duration) -> Prompt {
        let (line, look) = (meter.line(tcp.as_raw_fd()), Box::pin(sleep(pause)));
        let straight = Straight::default();
        Prompt { line, tcp, meter, sources, straight, owes: false, pause, look, there: 0, stalled: 0 }
    }

    /// While one waits: the error where nothing of what was sent has got there for some looks. TCP's own limit for that
    /// (TCP_USER_TIMEOUT) also ends a connection whose other side takes a little at a time.
    fn poll_stall(&mut self, context: &mut Context<'_>) -> Poll<io::Error> {
        while self.look.as_mut().poll(context).is_ready() {
            let (there, is_owed) = self.line.there();
            self.stalled = if is_owed && there == self.there { self.stalled + 1 } else { 0 };
            self.there = there;
            if self.stalled >= STALLED {
                return Poll::Ready(io::ErrorKind::TimedOut.into());
            }
            self.look.as_mut().reset(Instant::now() + self.pause);
        }
        Poll::Pending
    }
}

impl Connection for Prompt {
    fn connected(&self) -> Connected {
        self.tcp.connected()
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::TcpListener;
    use std::sync::Arc;

    use bytes::Buf;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::super::source::Source;
    use super::*;
    use crate::edge::pool::Pool;

    #[tokio::test]
    async fn what_was_read_is_acknowledged_before_more_is_waited_for() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("binds");
        let tcp = TcpStream::connect(listener.local_addr().expect("has an address")).await.expect("connects");
        let (mut server, _) = listener.accept().expect("accepts");
        let mut prompt = Prompt::new(tcp, Meter::default(), Sources::default(), PAUSE);
        // As after a few questions and answers: the kernel lets acknowledgements wait.
        prompt.tcp.set_quickack(false).expect("sets");
        server.write_all(b"HTTP/1.1 200 OK").expect("writes");
        let mut bytes = [0; 64];
        assert_eq!(prompt.read(&mut bytes).await.expect("reads"), 15);
        let mut reading = std::pin::pin!(prompt.read(&mut bytes));
        assert!(futures_util::poll!(&mut reading).is_pending());
        assert!(prompt.tcp.quickack().expect("asks"), "the other side waits for the kernel's timer");
    }

    /// A connection that writes only a part of what it is given at once, and what has come at its other end once it is closed.
    async fn connected(sources: &Sources) -> (Prompt, std::thread::JoinHandle<Vec<u8>>) {
        let listener = TcpListener::bind("127.0.0.1:0").expect("binds");
        let tcp = TcpStream::connect(listener.local_addr().expect("has an address")).await.expect("connects");
        let (mut server, _) = listener.accept().expect("accepts");
        let came = std::thread::spawn(move || {
            let mut came = Vec::new();
            server.read_to_end(&mut came).expect("reads");
            came
        });
        (Prompt::new(tcp, Meter::default(), sources.clone(), PAUSE), came)
    }

    #[tokio::test]
    async fn a_file_is_sent_in_the_place_of_its_stand_in_and_what_lies_around_it_as_it_is() {
        let (sources, file) = (Sources::default(), tempfile::tempfile().expect("makes a file"));
        let bytes: Vec<u8> = (0..24_u32 << 20).map(|n| (n.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
        (&file).write_all(&bytes).expect("writes");
        let source = Source::new(file, 0, bytes.len() as u64, true, &Pool::new(1 << 20), |_| {}).expect("reads");
        let stand_in = sources.stand_in(&Arc::new(source)).expect("there is memory");
        let (mut prompt, came) = connected(&sources).await;
        let mut all = Buf::chain(&b"PUT"[..], stand_in.clone()).chain(&b"GET"[..]);
        prompt.write_all_buf(&mut all).await.expect("is sent");
        prompt.write_all(&stand_in[7..9]).await.expect("is sent");
        assert_eq!(prompt.meter.sent(), bytes.len() as u64 + 8);
        drop(prompt);
        assert!(came.join().expect("reads") == [b"PUT", bytes.as_slice(), b"GET", &bytes[7..9]].concat());
    }
    /// How a connection ends on which more is written than ever gets there, for so long at most.
    async fn written(
        pause: Duration,
        most: Duration,
        mut takes: impl FnMut(&mut std::net::TcpStream) + Send + 'static,
    ) -> io::ErrorKind {
        let listener = TcpListener::bind("127.0.0.1:0").expect("binds");
        let tcp = TcpStream::connect(listener.local_addr().expect("has an address")).await.expect("connects");
        let (mut server, _) = listener.accept().expect("accepts");
        let (over, is_over) = std::sync::mpsc::channel::<()>();
        let other_side = std::thread::spawn(move || {
            while is_over.try_recv() == Err(std::sync::mpsc::TryRecvError::Empty) {
                takes(&mut server);
            }
        });
        let mut prompt = Prompt::new(tcp, Meter::default(), Sources::default(), pause);
        let block = vec![0; 1 << 20];
        let writes = async {
            loop {
                if let Err(error) = prompt.write_all(&block).await {
                    return error.kind();
                }
            }
        };
        let ended = tokio::time::timeout(most, writes).await.unwrap_or(io::ErrorKind::Other);
        drop(over);
        other_side.join().expect("ends");
        ended
    }

    #[tokio::test]
    async fn who_takes_nothing_is_given_up_and_who_takes_a_little_at_a_time_is_not() {
        let ms = Duration::from_millis;
        let nothing = written(ms(30), ms(30_000), move |_| std::thread::sleep(ms(10)));
        assert_eq!(nothing.await, io::ErrorKind::TimedOut);
        let (mut bytes, pause) = (vec![0; 128 << 10], ms(300));
        let little = written(pause, pause * (STALLED + 6), move |server| {
            let _ = server.read(&mut bytes);
            std::thread::sleep(ms(60));
        });
        assert_eq!(little.await, io::ErrorKind::Other, "it was given up although it took what it was sent");
    }
}
