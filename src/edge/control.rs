//! The status socket of a run: who may connects, is told one JSON object, and that is all.
//!
//! Nothing is read from a caller, and what does not fit into its socket at once is cut off: no caller, slow or hostile, can
//! hold the supervisor up. The kernel says who calls (SO_PEERCRED). Deliberately absent: what is said.

#![expect(unsafe_code, reason = "a mode before bind, timeouts before connect, credentials")]

use std::fs;
use std::io::{self, ErrorKind, Read, Write};
use std::mem::{offset_of, zeroed};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::time::Duration;

use super::clock::Clock;

/// Callers that may wait for their turn.
const BACKLOG: libc::c_int = 16;
/// Longer than any answer.
const LONGEST_ANSWER_BYTES: u64 = 4 << 20;

/// The supervisor's end.
#[derive(Debug)]
pub struct Listener(UnixListener);

/// Somebody who may ask, and now waits.
#[derive(Debug)]
pub struct Caller(UnixStream);

impl Listener {
    /// Makes the socket, for its owner (and root) only from its first moment. Errors: as bind(2); a path of more than 107
    /// bytes is `InvalidInput`.
    pub fn bind(path: &Path) -> io::Result<Listener> {
        let (address, length) = address(path)?;
        let socket = socket(libc::SOCK_NONBLOCK)?;
        let fd = socket.as_raw_fd();
        // SAFETY: an open descriptor; the address is alive for the call. Linux gives the file the socket's own mode.
        unsafe {
            done(libc::fchmod(fd, 0o600))?;
            done(libc::bind(fd, (&raw const address).cast(), length))?;
            done(libc::listen(fd, BACKLOG))?;
        }
        Ok(Listener(UnixListener::from(socket)))
    }

    /// The next who waits and may ask; others are hung up on. Errors: as accept(2); it stays readable then, as without
    /// descriptors.
    pub fn next(&self) -> io::Result<Option<Caller>> {
        loop {
            let stream = match self.0.accept() {
                Ok((stream, _)) => stream,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(None),
                Err(error) => return Err(error),
            };
            // SAFETY: it takes nothing and cannot fail.
            let own = unsafe { libc::geteuid() };
            let may_ask = credentials(&stream).is_ok_and(|peer| peer.uid == own || peer.uid == 0);
            if may_ask && stream.set_nonblocking(true).is_ok() {
                return Ok(Some(Caller(stream)));
            }
        }
    }
}

#[cfg(test)]
impl Listener {
    /// One that lets nobody in.
    pub fn broken() -> Listener {
        Listener(UnixListener::from(socket(libc::SOCK_NONBLOCK).expect("a socket")))
    }
}

impl AsRawFd for Listener {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}

impl Caller {
    /// Says it and hangs up.
    pub fn tell(mut self, answer: &str) {
        // What does not fit now never goes: who asked sees that the object has no end.
        let _ = self.0.write_all(answer.as_bytes());
    }
}

/// Asks the run behind this socket: its process (0: none of our PID namespace) and the answer, or why there is none: as
/// read(2), `TimedOut` when it is not there within `patience`. Errors: as connect(2), `TimedOut` where too many ask already.
pub fn ask(path: &Path, patience: Duration) -> io::Result<(i32, io::Result<String>)> {
    let (address, length) = address(path)?;
    let socket = socket(0)?;
    let stream = UnixStream::from(socket);
    stream.set_read_timeout(Some(patience))?;
    stream.set_write_timeout(Some(patience))?;
    // SAFETY: an open descriptor; the address is alive for the call.
    let connected = unsafe { done(libc::connect(stream.as_raw_fd(), (&raw const address).cast(), length)) };
    // So many have asked and left without an answer that no more may.
    connected.map_err(slow)?;
    Ok((credentials(&stream)?.pid, answer(&stream, patience)))
}

fn answer(mut stream: &UnixStream, patience: Duration) -> io::Result<String> {
    let (clock, mut answer) = (Clock::start(), Vec::new());
    let mut part = [0; 4096];
    loop {
        let left = patience.checked_sub(clock.now()).filter(|left| !left.is_zero()).ok_or(ErrorKind::TimedOut)?;
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

/// Whether a process has our root directory: one of our container, where containers share a PID namespace. `None`: it is
/// not to be known.
pub fn is_of_our_root(pid: i32) -> Option<bool> {
    let root = |path: &str| fs::metadata(path).map(|found| (found.dev(), found.ino())).ok();
    Some(root(&format!("/proc/{pid}/root/"))? == root("/")?)
}

fn socket(flags: libc::c_int) -> io::Result<OwnedFd> {
    // SAFETY: the descriptor is ours alone.
    unsafe {
        let fd = libc::socket(libc::AF_UNIX, libc::SOCK_STREAM | libc::SOCK_CLOEXEC | flags, 0);
        done(fd)?;
        Ok(OwnedFd::from_raw_fd(fd))
    }
}

fn address(path: &Path) -> io::Result<(libc::sockaddr_un, libc::socklen_t)> {
    // SAFETY: a C structure of integers.
    let mut address: libc::sockaddr_un = unsafe { zeroed() };
    address.sun_family = libc::AF_UNIX as libc::sa_family_t;
    let bytes = path.as_os_str().as_bytes();
    if bytes.len() >= address.sun_path.len() || bytes.contains(&0) {
        return Err(io::Error::new(ErrorKind::InvalidInput, "the path is too long for a socket"));
    }
    for (to, from) in address.sun_path.iter_mut().zip(bytes) {
        *to = *from as libc::c_char;
    }
    Ok((address, (offset_of!(libc::sockaddr_un, sun_path) + bytes.len() + 1) as libc::socklen_t))
}

fn credentials(stream: &UnixStream) -> io::Result<libc::ucred> {
    let mut peer = libc::ucred { pid: 0, uid: u32::MAX, gid: u32::MAX };
    let mut length = size_of::<libc::ucred>() as libc::socklen_t;
    // SAFETY: the structure and its length are alive for the call.
    unsafe {
        let fd = stream.as_raw_fd();
        let out = (&raw mut peer).cast();
        done(libc::getsockopt(fd, libc::SOL_SOCKET, libc::SO_PEERCRED, out, &raw mut length))?;
    }
    Ok(peer)
}

fn done(result: libc::c_int) -> io::Result<()> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_that_hangs_is_silent_to_the_last_of_many_who_ask() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("socket");
        let _listener = Listener::bind(&path).expect("a socket");
        let mut waiting = Vec::new();
        let error = loop {
            assert!(waiting.len() < 5_000, "there is an end to those who may wait");
            match ask(&path, Duration::from_millis(1)) {
                Ok((_, answer)) => waiting.push(answer.expect_err("nobody answers")),
                Err(error) => break error,
            }
        };
        assert_eq!(error.kind(), ErrorKind::TimedOut);
        assert!(!waiting.is_empty());
    }
    use std::os::unix::fs::PermissionsExt;

    const PATIENCE: Duration = Duration::from_secs(10);

    #[test]
    fn who_asks_is_told_and_the_socket_is_its_owners_from_the_start() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("socket");
        let listener = Listener::bind(&path).expect("a socket");
        assert_eq!(std::fs::metadata(&path).expect("it is there").permissions().mode() & 0o777, 0o600);
        assert!(listener.next().expect("no error").is_none(), "nobody asks and nobody waits");
        let asking = std::thread::spawn(move || ask(&path, PATIENCE));
        let caller = loop {
            crate::edge::wake::wait_readable(&[listener.as_raw_fd()], Some(PATIENCE));
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
        let error = ask(&path, Duration::from_millis(50)).expect("a run").1.expect_err("nobody answers");
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
        let error = ask(&path, Duration::from_millis(50)).expect("a run").1.expect_err("the answer has no end");
        assert_eq!(error.kind(), ErrorKind::TimedOut);
        slow.join().expect("the caller has left");
    }

    #[test]
    fn a_caller_that_never_reads_holds_nobody_up() {
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
