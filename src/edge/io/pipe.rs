//! A pipe from a child; our end does not block.

use std::fs::File;
use std::io::{self, ErrorKind, Read};
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};

use nix::fcntl::{FcntlArg, OFlag, SpliceFFlags, fcntl, tee};
use nix::unistd::{dup2_stdin, pipe2};

use crate::edge::io::stdio::STDIN;

/// The default of /proc/sys/fs/pipe-max-size, which is the limit for an unprivileged process.
const ROOM_BYTES: i32 = 1 << 20;

/// The read end; it does not block.
#[derive(Debug)]
pub struct Reader(File);

/// Both ends, closed on exec, with as large a buffer as the kernel allows. Errors: as pipe2(2).
pub fn pair() -> io::Result<(Reader, OwnedFd)> {
    let (read, write) = pipe2(OFlag::O_CLOEXEC)?;
    fcntl(&read, FcntlArg::F_SETFL(OFlag::O_NONBLOCK))?;
    // A smaller buffer is only slower.
    let _ = fcntl(&read, FcntlArg::F_SETPIPE_SZ(ROOM_BYTES));
    Ok((Reader(File::from(read)), write))
}

/// Standard input as a reader of our own, which no child inherits; /dev/null takes its place. Errors: as dup(2) and
/// open(2).
pub fn take_stdin() -> io::Result<Reader> {
    let stdin = STDIN.try_clone_to_owned()?;
    fcntl(&stdin, FcntlArg::F_SETFL(OFlag::O_NONBLOCK))?;
    dup2_stdin(File::open("/dev/null")?)?;
    Ok(Reader(File::from(stdin)))
}

impl Reader {
    /// Reads available bytes: `Some(0)` at the end, when the last writer has closed; `None` if there is nothing yet.
    /// Errors: as read(2).
    pub fn read(&mut self, buffer: &mut [u8]) -> io::Result<Option<usize>> {
        loop {
            match self.0.read(buffer) {
                Ok(count) => return Ok(Some(count)),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(None),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }
}

impl AsRawFd for Reader {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}

/// Whether two open descriptors refer to the same file, pipe or terminal.
pub fn is_same_file(one: BorrowedFd<'_>, other: BorrowedFd<'_>) -> bool {
    let identity = |fd: BorrowedFd<'_>| {
        let metadata = File::from(fd.try_clone_to_owned()?).metadata()?;
        io::Result::Ok((metadata.dev(), metadata.ino()))
    };
    matches!((identity(one), identity(other)), (Ok(one), Ok(other)) if one == other)
}

/// Whether the unread bytes in a pipe end in the middle of a line; `None` if it is not a pipe, is empty or cannot be
/// read. Nothing is consumed: tee(2) copies it.
pub fn ends_mid_line(fd: BorrowedFd<'_>) -> Option<bool> {
    let path = format!("/proc/self/fd/{}", fd.as_raw_fd());
    if !std::fs::metadata(&path).is_ok_and(|found| found.file_type().is_fifo()) {
        return None;
    }
    let from = File::options().read(true).custom_flags(OFlag::O_NONBLOCK.bits()).open(path).ok()?;
    let (mut reader, writer) = pair().ok()?;
    tee(&from, &writer, ROOM_BYTES as usize, SpliceFFlags::SPLICE_F_NONBLOCK).ok()?;
    let (mut buffer, mut last) = (vec![0; 16 << 10], None);
    while let Ok(Some(count @ 1..)) = reader.read(&mut buffer) {
        last = Some(buffer[count - 1]);
    }
    last.map(|last| last != b'\n')
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::os::fd::AsFd;

    #[test]
    fn a_read_returns_none_then_bytes_then_the_end() {
        let (mut reader, writer) = pair().expect("a pipe");
        let mut buffer = [0; 8];
        assert_eq!(reader.read(&mut buffer).ok(), Some(None));
        let mut writer = File::from(writer);
        writer.write_all(b"abc").expect("room");
        assert_eq!(reader.read(&mut buffer).ok(), Some(Some(3)));
        drop(writer);
        assert_eq!(reader.read(&mut buffer).ok(), Some(Some(0)));
    }

    #[test]
    fn a_copy_of_a_descriptor_leads_to_the_same_file() {
        let (reader, writer) = pair().expect("a pipe");
        let (_other, other_writer) = pair().expect("a pipe");
        let copy = writer.try_clone().expect("a copy");
        assert!(is_same_file(writer.as_fd(), copy.as_fd()));
        assert!(is_same_file(writer.as_fd(), reader.0.as_fd()));
        assert!(!is_same_file(writer.as_fd(), other_writer.as_fd()));
    }
}
