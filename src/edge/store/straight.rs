//! Files that go to a connection without passing through here: the kernel sends them out of its page cache, on a thread
//! that may wait for the file.

use std::io;
use std::net::TcpStream as Socket;
use std::os::fd::{AsFd, AsRawFd};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use tokio::io::Interest;
use tokio::net::TcpStream;

use super::motion::Meter;
use super::source::Source;
use crate::edge::blocking::blocking;
use crate::edge::wake::is_writable;

/// Bytes that the kernel is given at a time: a thread that waits for a slow file says so in between.
const MOST: usize = 4 << 20;

/// What is under way on one connection.
#[derive(Default)]
pub(super) struct Straight {
    /// The connection, for threads that outlive it.
    socket: Option<Arc<Socket>>,
    sending: Option<BoxFuture<'static, io::Result<Option<usize>>>>,
}

impl Straight {
    /// Sends bytes of the source from there on, `most` at most; returns how many. Asked again, it must be for the same.
    /// Errors: as send(2); what [`Source::at_fault`] makes of the file's.
    pub(super) fn poll(
        &mut self,
        (source, at): (Arc<Source>, u64),
        most: usize,
        tcp: &TcpStream,
        meter: &Meter,
        context: &mut Context<'_>,
    ) -> Poll<io::Result<usize>> {
        loop {
            if let Some(sending) = &mut self.sending {
                let sent = ready!(Pin::new(sending).poll(context));
                self.sending = None;
                if let Some(sent) = sent? {
                    return Poll::Ready(Ok(sent));
                }
            }
            ready!(tcp.poll_write_ready(context))?;
            // What it says may be long ago.
            let is_so = || if is_writable(tcp.as_raw_fd()) { Ok(()) } else { Err(io::ErrorKind::WouldBlock.into()) };
            if tcp.try_io(Interest::WRITABLE, is_so).is_err() {
                continue;
            }
            let socket = match &self.socket {
                Some(socket) => Arc::clone(socket),
                None => Arc::clone(self.socket.insert(Arc::new(tcp.as_fd().try_clone_to_owned()?.into()))),
            };
            let (source, meter) = (Arc::clone(&source), meter.clone());
            let send = move || {
                // While the file is waited for, nobody else is.
                let _idle = meter.idle();
                source.send(at, most.min(MOST), &socket)
            };
            self.sending = Some(blocking(send).boxed());
        }
    }
}
