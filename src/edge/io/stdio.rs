//! Standard output and standard error: whole lines, and no panic without a reader.

#![expect(unsafe_code, reason = "the descriptors 0, 1 and 2 are borrowed")]

use std::fs::{self, File};
use std::io::{self, IsTerminal};
use std::os::fd::{AsRawFd, BorrowedFd, IntoRawFd, RawFd};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use nix::errno::Errno;
use nix::fcntl::{OFlag, open};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::stat::{Mode, fstat};
use nix::unistd::{close, write};

use crate::edge::io::eventfd::is_writable;
use crate::rules::text::safe_text::printable;

/// Our own standard input.
pub const STDIN: BorrowedFd<'static> = standard(libc::STDIN_FILENO);
/// Our own standard output.
pub const STDOUT: BorrowedFd<'static> = standard(libc::STDOUT_FILENO);
/// Our own standard error.
pub const STDERR: BorrowedFd<'static> = standard(libc::STDERR_FILENO);

/// The descriptor 0, 1 or 2.
const fn standard(fd: RawFd) -> BorrowedFd<'static> {
    // SAFETY: they are closed only at the very end; if they were closed at the start, `hold_closed` has filled them.
    unsafe { BorrowedFd::borrow_raw(fd) }
}

/// Writes all of it to standard output, or logs why that failed. Errors: as write(2), EPIPE included.
pub fn print(text: &str) -> io::Result<()> {
    let written = write_all(STDOUT, text.as_bytes());
    if let Err(error) = &written
        && error.kind() != io::ErrorKind::BrokenPipe
    {
        complain(&format!("trainit: error: standard output cannot be written, the result is lost: {error}"));
    }
    written
}

/// Writes one line to standard error, with control characters escaped. Errors are ignored.
pub fn complain(line: &str) {
    let _ = write_all(STDERR, format!("{}\n", printable(line)).as_bytes());
}

/// Writes all bytes to a descriptor; handles short writes, EINTR and non-blocking terminals.
pub fn write_all(fd: BorrowedFd<'_>, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        match write(fd, bytes) {
            Ok(written) => bytes = &bytes[written..],
            Err(Errno::EINTR) => {}
            Err(Errno::EAGAIN) => {
                let _ = poll(&mut [PollFd::new(fd, PollFlags::POLLOUT)], PollTimeout::NONE);
            }
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

/// Whether a write of this length will not block, unless another process fills the pipe at this moment. A file may be on a
/// file system that hangs.
pub fn takes_at_once(fd: BorrowedFd<'_>, length: usize) -> bool {
    let Ok(stat) = fstat(fd) else { return true };
    match stat.st_mode & libc::S_IFMT {
        // A writable pipe has room for one atomic write.
        libc::S_IFIFO => length <= libc::PIPE_BUF && is_writable(fd),
        _ => false,
    }
}

/// Whether it is a file, which takes a line at once unless its file system hangs.
pub fn is_file(fd: BorrowedFd<'_>) -> bool {
    fstat(fd).is_ok_and(|stat| stat.st_mode & libc::S_IFMT == libc::S_IFREG)
}

/// Our own standard output and standard error.
pub fn outputs() -> (BorrowedFd<'static>, BorrowedFd<'static>) {
    (STDOUT, STDERR)
}

/// The output that is this regular file, which must not be truncated by a second open.
pub fn output_into(path: &Path) -> Option<BorrowedFd<'static>> {
    let is_it = |fd: &BorrowedFd| {
        let (own, named) = (File::from(fd.try_clone_to_owned().ok()?).metadata().ok()?, fs::metadata(path).ok()?);
        Some(own.is_file() && (own.dev(), own.ino()) == (named.dev(), named.ino()))
    };
    [STDOUT, STDERR].into_iter().find(|fd| is_it(fd) == Some(true))
}

/// Closes both outputs, so that their readers see the end of file.
pub fn hang_up() {
    // No later code writes to them; a pending line of another thread fails.
    for fd in [libc::STDOUT_FILENO, libc::STDERR_FILENO] {
        let _ = close(fd);
    }
}

/// Standard input; a closed one reads as empty.
pub fn input() -> impl io::Read {
    io::stdin().lock()
}

/// Whether a standard descriptor (0, 1 or 2) is a terminal.
pub fn is_terminal(fd: RawFd) -> bool {
    standard(fd).is_terminal()
}

/// Fills closed standard descriptors with a harmless one that the child does not inherit, so that no file of ours
/// becomes another process's standard output. Works without /dev.
pub fn hold_closed() {
    // open(2) takes the lowest free descriptor.
    while let Ok(fd) = open(c"/", OFlag::O_PATH | OFlag::O_CLOEXEC, Mode::empty()) {
        if fd.as_raw_fd() > libc::STDERR_FILENO {
            break;
        }
        // It stays open.
        let _ = fd.into_raw_fd();
    }
}
