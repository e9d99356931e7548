//! The status socket of a run: a permitted caller connects and receives one JSON object.
//!
//! Nothing is read from a caller, and an answer that does not fit into the socket buffer is cut off. So no slow or hostile
//! caller delays the supervisor. The kernel identifies the caller (SO_PEERCRED). Deliberately absent: the content.

use std::fs;
use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::time::Duration;

use nix::sys::socket::{
    AddressFamily, Backlog, SockFlag, SockType, UnixAddr, UnixCredentials, bind, connect, getsockopt, listen, sockopt,
};
use nix::sys::stat::{Mode, fchmod};
use nix::unistd::geteuid;

use crate::edge::clock::Clock;

/// The limit of waiting callers.
const BACKLOG: i32 = 16;
/// The limit of refused callers to disconnect in one turn.
const STRANGERS: usize = 8;
/// Longer than any answer.
const LONGEST_ANSWER_BYTES: u64 = 4 << 20;

/// The supervisor's end.
#[derive(Debug)]
pub struct Listener(UnixListener);

/// A permitted caller that waits for its answer.
#[derive(Debug)]
pub struct Caller(UnixStream);

impl Listener {
    /// Makes the socket, for its owner (and root) only from its first moment. Errors: as bind(2); a path of more than 107
    /// bytes is `InvalidInput`.
    pub fn bind(path: &Path) -> io::Result<Listener> {
        let address = address(path)?;
        let socket = socket(SockFlag::SOCK_NONBLOCK)?;
        // Linux gives the file the socket's own mode.
        fchmod(&socket, Mode::S_IRUSR | Mode::S_IWUSR)?;
        bind(socket.as_raw_fd(), &address)?;
        listen(&socket, Backlog::new(BACKLOG)?)?;
        Ok(Listener(UnixListener::from(socket)))
    }

    /// The next permitted caller that waits. Other callers are disconnected, a few in one call; the socket stays
    /// readable while more wait. Errors: as accept(2); the socket stays readable, as when descriptors run out.
    pub fn next(&self) -> io::Result<Option<Caller>> {
        for _ in 0..STRANGERS {
            let stream = match self.0.accept() {
                Ok((stream, _)) => stream,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(None),
                Err(error) => return Err(error),
            };
            let own = geteuid().as_raw();
            let may_ask = credentials(&stream).is_ok_and(|peer| peer.uid() == own || peer.uid() == 0);
            if may_ask && stream.set_nonblocking(true).is_ok() {
                return Ok(Some(Caller(stream)));
            }
        }
        Ok(None)
    }
}

#[cfg(test)]
impl Listener {
    /// A socket that accepts no caller.
    pub fn broken() -> Listener {
        Listener(UnixListener::from(socket(SockFlag::SOCK_NONBLOCK).expect("a socket")))
    }
}

impl AsRawFd for Listener {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}

impl Caller {
    /// Sends the answer and closes the connection.
    pub fn tell(mut self, answer: &str) {
        // Bytes that do not fit now are never sent: the caller sees an unfinished object.
        let _ = self.0.write_all(answer.as_bytes());
    }
}

/// A run that has not answered yet.
#[derive(Debug)]
pub struct PendingAnswer {
    stream: UnixStream,
    /// Its process; 0: outside our PID namespace.
    pub pid: i32,
    /// Its user.
    pub uid: u32,
}

/// Connects to the run behind this socket and does not wait. Errors: as connect(2); `WouldBlock` if too many callers wait.
pub fn begin(path: &Path) -> io::Result<PendingAnswer> {
    let address = address(path)?;
    let stream = UnixStream::from(socket(SockFlag::SOCK_NONBLOCK)?);
    connect(stream.as_raw_fd(), &address)?;
    let peer = credentials(&stream)?;
    Ok(PendingAnswer { stream, pid: peer.pid(), uid: peer.uid() })
}

/// Their answers in order, all within `timeout`. Errors: as read(2), `TimedOut`.
pub fn answers(pending: &[PendingAnswer], timeout: Duration) -> Vec<io::Result<String>> {
    let clock = Clock::start();
    let mut texts: Vec<Vec<u8>> = vec![Vec::new(); pending.len()];
    let mut ends: Vec<Option<io::Result<()>>> = pending.iter().map(|_| None).collect();
    loop {
        for ((run, text), end) in pending.iter().zip(&mut texts).zip(&mut ends).filter(|(_, end)| end.is_none()) {
            *end = read_on(&run.stream, text);
        }
        let open = pending.iter().zip(&ends).filter(|(_, end)| end.is_none()).map(|(run, _)| run.stream.as_raw_fd());
        let (open, left): (Vec<RawFd>, _) = (open.collect(), timeout.saturating_sub(clock.now()));
        if open.is_empty() || left.is_zero() {
            break;
        }
        crate::edge::io::eventfd::wait_readable(&open, Some(left));
    }
    let answer_of = |(end, text): (Option<io::Result<()>>, Vec<u8>)| {
        end.unwrap_or(Err(ErrorKind::TimedOut.into()))?;
        Ok(String::from_utf8(text).map_err(|_| ErrorKind::InvalidData)?)
    };
    ends.into_iter().zip(texts).map(answer_of).collect()
}

/// Reads the available bytes, a part at a time, so that no run delays the others; `None`: more may follow.
fn read_on(mut stream: &UnixStream, text: &mut Vec<u8>) -> Option<io::Result<()>> {
    let mut part = [0; 4096];
    match stream.read(&mut part) {
        Ok(0) => Some(Ok(())),
        Ok(read) => {
            text.extend_from_slice(&part[..read]);
            (text.len() as u64 >= LONGEST_ANSWER_BYTES).then_some(Ok(()))
        }
        Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => None,
        Err(error) => Some(Err(error)),
    }
}

/// The user of a process; `None` if it is unknown.
pub fn user_of(pid: i32) -> Option<u32> {
    fs::metadata(format!("/proc/{pid}")).map(|found| found.uid()).ok()
}

/// Asks the run behind this socket. Returns its process (0: outside our PID namespace), and the answer or its error: as
/// read(2), `TimedOut` if it does not arrive within `timeout`. Errors: as connect(2), `TimedOut` if too many callers wait
/// already.
pub fn ask(path: &Path, timeout: Duration) -> io::Result<(i32, io::Result<String>)> {
    let address = address(path)?;
    let stream = UnixStream::from(socket(SockFlag::empty())?);
    stream.set_read_timeout(Some(timeout))?;
    stream.set_write_timeout(Some(timeout))?;
    // `WouldBlock`: the queue is full of callers that left without an answer.
    connect(stream.as_raw_fd(), &address).map_err(|errno| slow(errno.into()))?;
    Ok((credentials(&stream)?.pid(), answer(&stream, timeout)))
}

fn answer(mut stream: &UnixStream, timeout: Duration) -> io::Result<String> {
    let (clock, mut answer) = (Clock::start(), Vec::new());
    let mut part = [0; 4096];
    loop {
        let left = timeout.checked_sub(clock.now()).filter(|left| !left.is_zero()).ok_or(ErrorKind::TimedOut)?;
        stream.set_read_timeout(Some(left))?;
        match stream.read(&mut part).map_err(slow) {
            Ok(0) => break,
            Ok(read) => answer.extend_from_slice(&part[..read]),
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
        if answer.len() as u64 >= LONGEST_ANSWER_BYTES {
            break;
        }
    }
    Ok(String::from_utf8(answer).map_err(|_| ErrorKind::InvalidData)?)
}

fn slow(error: io::Error) -> io::Error {
    match error.kind() {
        ErrorKind::WouldBlock => io::Error::from(ErrorKind::TimedOut),
        _ => error,
    }
}

/// Whether a process has our root directory, so that it belongs to our container even if containers share a PID
/// namespace; `None` if that is unknown.
pub fn is_of_our_root(pid: i32) -> Option<bool> {
    let root = |path: &str| fs::metadata(path).map(|found| (found.dev(), found.ino())).ok();
    Some(root(&format!("/proc/{pid}/root/"))? == root("/")?)
}

fn socket(flags: SockFlag) -> io::Result<OwnedFd> {
    let (family, kind) = (AddressFamily::Unix, SockType::Stream);
    Ok(nix::sys::socket::socket(family, kind, SockFlag::SOCK_CLOEXEC | flags, None)?)
}

fn address(path: &Path) -> io::Result<UnixAddr> {
    UnixAddr::new(path).map_err(|_| io::Error::new(ErrorKind::InvalidInput, "the path is too long for a socket"))
}

fn credentials(stream: &UnixStream) -> io::Result<UnixCredentials> {
    Ok(getsockopt(stream, sockopt::PeerCredentials)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hanging_run_does_not_block_its_many_callers() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("socket");
        let _listener = Listener::bind(&path).expect("a socket");
        let mut waiting = Vec::new();
        let error = loop {
            assert!(waiting.len() < 5_000, "the number of waiting callers is limited");
            match ask(&path, Duration::from_millis(1)) {
                Ok((_, answer)) => waiting.push(answer.expect_err("no answer")),
                Err(error) => break error,
            }
        };
        assert_eq!(error.kind(), ErrorKind::TimedOut);
        assert!(!waiting.is_empty());
    }
    use std::os::unix::fs::PermissionsExt;

    const TIMEOUT: Duration = Duration::from_secs(10);

    #[test]
    fn a_caller_gets_the_status_and_the_socket_belongs_to_its_owner_from_the_start() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("socket");
        let listener = Listener::bind(&path).expect("a socket");
        assert_eq!(std::fs::metadata(&path).expect("it is there").permissions().mode() & 0o777, 0o600);
        assert!(listener.next().expect("no error").is_none(), "no caller waits");
        let asking = std::thread::spawn(move || ask(&path, TIMEOUT));
        let caller = loop {
            crate::edge::io::eventfd::wait_readable(&[listener.as_raw_fd()], Some(TIMEOUT));
            if let Some(caller) = listener.next().expect("no error") {
                break caller;
            }
        };
        caller.tell("{\"state\":\"running\"}\n");
        let (pid, answer) = asking.join().expect("no panic").expect("an answer");
        assert_eq!(
            (pid as u32, answer.expect("an answer").as_str()),
            (std::process::id(), "{\"state\":\"running\"}\n")
        );
    }

    #[test]
    fn a_run_that_does_not_answer_is_given_up_in_time() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("socket");
        let _listener = Listener::bind(&path).expect("a socket");
        let error = ask(&path, Duration::from_millis(50)).expect("a run").1.expect_err("no answer");
        assert_eq!(error.kind(), ErrorKind::TimedOut);
    }

    #[test]
    fn a_run_that_answers_byte_by_byte_is_given_up_in_time() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("socket");
        let listener = UnixListener::bind(&path).expect("a socket");
        let slow = std::thread::spawn(move || {
            let (mut caller, _) = listener.accept().expect("a caller");
            while caller.write_all(b" ").is_ok() {
                std::thread::park_timeout(Duration::from_millis(5));
            }
        });
        let error = ask(&path, Duration::from_millis(50)).expect("a run").1.expect_err("the answer is incomplete");
        assert_eq!(error.kind(), ErrorKind::TimedOut);
        slow.join().expect("the caller has left");
    }

    #[test]
    fn a_caller_that_never_reads_blocks_nothing() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("socket");
        let listener = Listener::bind(&path).expect("a socket");
        let _deaf = UnixStream::connect(&path).expect("a connection");
        listener.next().expect("no error").expect("the caller").tell(&"x".repeat(8 << 20));
    }

    #[test]
    fn a_path_that_no_socket_can_have_is_an_error() {
        let long = format!("/tmp/{}", "x".repeat(200));
        assert_eq!(Listener::bind(Path::new(&long)).expect_err("too long").kind(), ErrorKind::InvalidInput);
    }
}
