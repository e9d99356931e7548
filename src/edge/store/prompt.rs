//! Connections whose other side need not wait for the kernel to acknowledge: a server that leaves Nagle's algorithm on
//! keeps the rest of an answer back until then, up to 40 ms on a connection that was used before.

use std::io;
use std::os::fd::AsRawFd;
use std::pin::Pin;
use std::task::{Context, Poll};

use futures_util::FutureExt;
use futures_util::future::{BoxFuture, TryFutureExt};
use hyper::Uri;
use hyper_util::client::legacy::connect::{Connected, Connection, HttpConnector};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tower_service::Service;

use super::motion::{Line, Meter};

/// Makes them.
#[derive(Clone)]
pub(super) struct Connector {
    pub(super) tcp: HttpConnector,
    pub(super) meter: Meter,
}

impl Service<Uri> for Connector {
    type Response = TokioIo<Prompt>;
    type Error = <HttpConnector as Service<Uri>>::Error;
    type Future = BoxFuture<'static, Result<Self::Response, Self::Error>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.tcp.poll_ready(context)
    }

    fn call(&mut self, to: Uri) -> Self::Future {
        let meter = self.meter.clone();
        let prompt = move |tcp: TokioIo<TcpStream>| TokioIo::new(Prompt::new(tcp.into_inner(), &meter));
        self.tcp.call(to).map_ok(prompt).boxed()
    }
}

/// Acknowledges what it has read once there is no more, and counts what moves.
pub(super) struct Prompt {
    /// Goes before the connection does.
    line: Line,
    tcp: TcpStream,
    /// Whether something was read that may not be acknowledged.
    owes: bool,
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
        } else if std::mem::take(&mut self.owes) {
            // Where it cannot be, it is only slower.
            let _ = self.tcp.set_quickack(true);
        }
        read
    }
}

impl AsyncWrite for Prompt {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.tcp).poll_write(context, bytes);
        self.counted(written)
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
        let written = Pin::new(&mut self.tcp).poll_write_vectored(context, bytes);
        self.counted(written)
    }
}

impl Prompt {
    fn new(tcp: TcpStream, meter: &Meter) -> Prompt {
        Prompt { line: meter.line(tcp.as_raw_fd()), tcp, owes: false }
    }

    fn counted(&self, written: Poll<io::Result<usize>>) -> Poll<io::Result<usize>> {
        if let Poll::Ready(Ok(bytes)) = written {
            self.line.sent(bytes);
        }
        written
    }
}

impl Connection for Prompt {
    fn connected(&self) -> Connected {
        self.tcp.connected()
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::net::TcpListener;

    use tokio::io::AsyncReadExt;

    use super::*;

    #[tokio::test]
    async fn what_was_read_is_acknowledged_before_more_is_waited_for() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("binds");
        let tcp = TcpStream::connect(listener.local_addr().expect("has an address")).await.expect("connects");
        let (mut server, _) = listener.accept().expect("accepts");
        let mut prompt = Prompt::new(tcp, &Meter::default());
        // As after a few questions and answers: the kernel lets acknowledgements wait.
        prompt.tcp.set_quickack(false).expect("sets");
        server.write_all(b"HTTP/1.1 200 OK").expect("writes");
        let mut bytes = [0; 64];
        assert_eq!(prompt.read(&mut bytes).await.expect("reads"), 15);
        let mut reading = std::pin::pin!(prompt.read(&mut bytes));
        assert!(futures_util::poll!(&mut reading).is_pending());
        assert!(prompt.tcp.quickack().expect("asks"), "the other side waits for the kernel's timer");
    }
}
