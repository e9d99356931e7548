//! Standard output and standard error: whole lines, and no panic when nobody listens.

#![expect(unsafe_code, reason = "the descriptors 0, 1 and 2 are borrowed for one call")]

use std::fs::{self, File};
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, RawFd};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use super::wake::is_writable;
use crate::rules::plain::plain;

/// Writes all of it to standard output, or says why that was not possible. Errors: as write(2), EPIPE included.
pub fn print(text: &str) -> io::Result<()> {
    let written = write_all(libc::STDOUT_FILENO, text.as_bytes());
    if let Err(error) = &written
        && error.kind() != io::ErrorKind::BrokenPipe
    {
        complain(&format!(
            "trainit: error: standard output cannot be written, what was asked for is not told: {error}"
        ));
    }
    written
}

/// Writes one line to standard error, whatever it quotes; a closed or full one is no reason to fail.
pub fn complain(line: &str) {
    let _ = write_all(libc::STDERR_FILENO, format!("{}\n", plain(line)).as_bytes());
}

/// Writes to standard error as it is, without an end of line.
pub fn draw(text: &str) {
    let _ = write_all(libc::STDERR_FILENO, text.as_bytes());
}

/// Writes all bytes to a descriptor, through short writes, EINTR and a non-blocking terminal.
pub fn write_all(fd: RawFd, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        // SAFETY: the pointer and length are those of a live slice.
        let written = unsafe { libc::write(fd, bytes.as_ptr().cast(), bytes.len()) };
        if written >= 0 {
            bytes = &bytes[written as usize..];
            continue;
        }
        let error = io::Error::last_os_error();
        match error.kind() {
            io::ErrorKind::Interrupted => {}
            io::ErrorKind::WouldBlock => {
                let mut poll = libc::pollfd { fd, events: libc::POLLOUT, revents: 0 };
                // SAFETY: one pollfd, alive for the call.
                unsafe { libc::poll(&raw mut poll, 1, -1) };
            }
            _ => return Err(error),
        }
    }
    Ok(())
}

/// Whether a write of so many bytes does not have to wait (but for others who fill the pipe at this very moment).
pub fn takes_at_once(fd: RawFd, length: usize) -> bool {
    let mut stat = MaybeUninit::<libc::stat>::uninit();
    // SAFETY: the structure is read only after the call has written it.
    let kind = unsafe {
        if libc::fstat(fd, stat.as_mut_ptr()) < 0 {
            return true;
        }
        stat.assume_init().st_mode & libc::S_IFMT
    };
    match kind {
        // With any room a pipe has room for one write that is not split.
        libc::S_IFIFO => length <= libc::PIPE_BUF && is_writable(fd),
        libc::S_IFSOCK => false,
        _ => !is_terminal(fd),
    }
}

/// Our own standard output and standard error.
pub fn outputs() -> (BorrowedFd<'static>, BorrowedFd<'static>) {
    // SAFETY: they are closed at the very end only: where they were at the start, `hold_closed` has filled them.
    unsafe { (BorrowedFd::borrow_raw(libc::STDOUT_FILENO), BorrowedFd::borrow_raw(libc::STDERR_FILENO)) }
}

/// Which of them writes to this very file, where it is one that opening anew could empty.
pub fn output_into(path: &Path) -> Option<BorrowedFd<'static>> {
    let is_it = |fd: &BorrowedFd| {
        let (ours, named) = (File::from(fd.try_clone_to_owned().ok()?).metadata().ok()?, fs::metadata(path).ok()?);
        Some(ours.is_file() && (ours.dev(), ours.ino()) == (named.dev(), named.ino()))
    };
    let (output, error) = outputs();
    [output, error].into_iter().find(|fd| is_it(fd) == Some(true))
}

/// Closes both: who reads them comes to the end.
pub fn hang_up() {
    // SAFETY: nobody has anything more to write; a line that a thread still waits with fails.
    unsafe {
        libc::close(libc::STDOUT_FILENO);
        libc::close(libc::STDERR_FILENO);
    }
}

/// Standard input; a closed one is at its end.
pub fn input() -> impl io::Read {
    io::stdin().lock()
}

/// Whether a descriptor is a terminal.
pub fn is_terminal(fd: RawFd) -> bool {
    // SAFETY: isatty only looks at the descriptor's number.
    unsafe { libc::isatty(fd) == 1 }
}

/// Fills closed standard descriptors with something harmless that the child does not inherit, so that no file of ours
/// ends up as somebody's standard output. Works without /dev.
pub fn hold_closed() {
    for fd in 0..=2 {
        // SAFETY: integers and a C string constant. The lowest free descriptor is `fd`, since lower ones are open.
        unsafe {
            if libc::fcntl(fd, libc::F_GETFD) < 0 {
                libc::open(c"/".as_ptr(), libc::O_PATH | libc::O_CLOEXEC);
            }
        }
    }
}
