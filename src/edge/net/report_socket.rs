//! The socket to which the processes of a job send copies of their reports, so that the run knows them at once. Each
//! message holds whole lines of the metrics file.
//!
//! No sender waits long: the file counts, and the copy may be lost. Deliberately absent: the content.

use std::cell::RefCell;
use std::fs::{self, Permissions};
use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::time::Duration;

/// The limit of a message. Longer ones are cut, and their last line is lost.
const LONGEST_MESSAGE_BYTES: usize = 64 << 10;
/// The limit for waiting until the run reads.
const SEND_LIMIT: Duration = Duration::from_millis(100);

/// The run's end.
#[derive(Debug)]
pub struct ReportSocket {
    socket: UnixDatagram,
    buffer: RefCell<Vec<u8>>,
}

impl ReportSocket {
    /// Makes the socket. Any user may send, because an entrypoint may change the user; the directory belongs to the run,
    /// so that no link is followed. Errors: as bind(2), chmod(2).
    pub fn bind(path: &Path) -> io::Result<ReportSocket> {
        let socket = UnixDatagram::bind(path)?;
        socket.set_nonblocking(true)?;
        fs::set_permissions(path, Permissions::from_mode(0o622))?;
        Ok(ReportSocket { socket, buffer: RefCell::new(vec![0; LONGEST_MESSAGE_BYTES]) })
    }

    /// The next waiting messages, at most this many.
    pub fn next(&self, most: usize) -> Vec<Vec<u8>> {
        let mut buffer = self.buffer.borrow_mut();
        (0..most).map_while(|_| self.socket.recv(&mut buffer).ok().map(|length| buffer[..length].to_vec())).collect()
    }
}

impl AsRawFd for ReportSocket {
    fn as_raw_fd(&self) -> RawFd {
        self.socket.as_raw_fd()
    }
}

/// Sends lines to the run behind this socket. Errors: as sendto(2); `WouldBlock` if the run does not read.
pub fn send(path: &Path, lines: &[u8]) -> io::Result<()> {
    let socket = UnixDatagram::unbound()?;
    socket.set_write_timeout(Some(SEND_LIMIT))?;
    let mut rest = lines;
    while !rest.is_empty() {
        let part = &rest[..rest.len().min(LONGEST_MESSAGE_BYTES)];
        let end = part.iter().rposition(|b| *b == b'\n').map_or(part.len(), |at| at + 1);
        socket.send_to(&rest[..end], path)?;
        rest = &rest[end..];
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_arrive_whole_and_a_run_that_does_not_read_blocks_no_sender() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("reports");
        let socket = ReportSocket::bind(&path).expect("a socket");
        let lines = "{\"loss\": 0.5}\n".repeat(6000);
        send(&path, lines.as_bytes()).expect("sent");
        let messages = socket.next(100);
        assert!(messages.len() > 1 && messages.iter().all(|message| message.ends_with(b"}\n")));
        assert_eq!(messages.concat(), lines.as_bytes());
        assert!(socket.next(1).is_empty());
        let is_full = (0..100_000).any(|_| send(&path, b"x\n").is_err());
        assert!(is_full, "a full queue is an error");
        assert_eq!(socket.next(3).len(), 3);
    }
}
