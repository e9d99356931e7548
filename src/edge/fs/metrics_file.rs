//! The metrics file: whole lines in, under a lock, on the same inode.
//!
//! `rules::metric::report::plan` decides what a write does to the file. Deliberately absent: a temporary file with a rename (a
//! tailing reader would stay on the old inode, and a bind mount refuses it), truncation before writing, and a lock file. The
//! file is flushed only if a setting asks for it.

use std::fmt;
use std::fs::{File, FileType, Metadata, TryLockError};
use std::io::{self, ErrorKind, Seek, Write};
use std::os::unix::fs::{FileExt, FileTypeExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::sleep;
use std::time::Duration;

use nix::fcntl::{FcntlArg, OFlag, fcntl};
use thiserror::Error;

use crate::edge::clock::Clock;
use crate::edge::fs::trusted_open;
use crate::rules::metric::report::plan::{Tail, Trim, ends_blank, plan, unfinished};

/// Pause between two tries to get a lock, or room in a FIFO: the first, and the longest.
const PAUSES: (Duration, Duration) = (Duration::from_micros(50), Duration::from_millis(5));

/// How long to wait for a lock after an earlier wait timed out: a live writer is done in this time.
const MOMENT: Duration = Duration::from_millis(20);

/// An unfinished last line longer than this is not a torn report: arguments are limited to 128 KiB each, and an escape makes
/// six characters of one.
const LONGEST_LINE_BYTES: u64 = 1 << 20;

/// A file longer than this is not trimmed: a trim holds it in memory.
const LARGEST_TRIM_BYTES: u64 = 256 << 20;

/// A missing directory that cannot be created because something else has its name.
const LEADS_NOWHERE: &str = "a symlink of that name has no target; create its target folder, or name another file";

/// The file for reports, and how it is written.
#[derive(Debug)]
pub struct MetricsFile {
    /// The file; missing folders are made.
    pub path: PathBuf,
    /// Lines to keep; 0 keeps all.
    pub keep: usize,
    /// Flush to the device after each write.
    pub fsync: bool,
    /// How long to wait for the lock, or for a FIFO's reader to make room.
    timeout: Duration,
    /// The last wait for the lock timed out: the next wait is short.
    is_stuck: AtomicBool,
}

/// A warning, although the lines were written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Note {
    /// The lock could not be taken, for this reason: appended, not trimmed.
    Unlocked(String),
    /// The last line was torn, by a crash or a full disk: cut off.
    Torn,
    /// The lines were appended, and older ones could not be dropped, for this reason.
    Untrimmed(String),
}

impl fmt::Display for Note {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Note::Unlocked(why) => {
                write!(
                    f,
                    "written without a lock ({why}): the file was not trimmed, and a writer that has it may undo this"
                )
            }
            Note::Untrimmed(why) => {
                write!(f, "written, but the file cannot be trimmed ({why}); the next report tries again")
            }
            Note::Torn => f.write_str("the last line was torn, by a crash or a full disk: it was cut off"),
        }
    }
}

/// The lines are not in the file.
#[derive(Debug, Error)]
#[error("cannot {operation} {}: {source}", .path.display())]
pub struct Error {
    operation: &'static str,
    path: PathBuf,
    source: io::Error,
}

impl Error {
    /// The operation that failed.
    pub fn operation(&self) -> &'static str {
        self.operation
    }

    /// The kind of failure.
    pub fn kind(&self) -> ErrorKind {
        self.source.kind()
    }
}

impl MetricsFile {
    /// See the fields.
    pub fn new(path: PathBuf, keep: usize, fsync: bool, timeout: Duration) -> MetricsFile {
        MetricsFile { path, keep, fsync, timeout, is_stuck: AtomicBool::new(false) }
    }

    /// Adds whole lines in one write. After an error the file contains none of them (except a FIFO or device).
    pub fn append(&self, lines: &[u8]) -> Result<Vec<Note>, Error> {
        match trusted_open::metadata(&self.path).map(|m| Metadata::file_type(&m)) {
            Ok(kind) if kind.is_fifo() || kind.is_char_device() => self.send(kind, lines),
            Ok(kind) if kind.is_block_device() => {
                Err(self.error("write")(io::Error::other("it is a disk, and its content would be overwritten")))
            }
            _ => self.append_regular(lines),
        }
    }

    fn append_regular(&self, lines: &[u8]) -> Result<Vec<Note>, Error> {
        let file = self.open()?;
        let mut notes = Vec::new();
        match self.lock(&file) {
            None => notes = self.write_locked(&file, lines).map_err(self.error("write"))?,
            Some(why) => {
                self.write_unlocked(&file, lines).map_err(self.error("write"))?;
                notes.push(Note::Unlocked(why));
            }
        }
        if self.fsync {
            file.sync_data().map_err(self.error("flush"))?;
        }
        // A network file system may report a failed write only here.
        nix::unistd::close(file).map_err(|e| self.error("write")(e.into()))?;
        Ok(notes)
    }

    fn open(&self) -> Result<File, Error> {
        let open = |create: bool| {
            let create = if create { OFlag::O_CREAT } else { OFlag::empty() };
            trusted_open::open(&self.path, OFlag::O_RDWR | OFlag::O_APPEND | create)
        };
        let opened = match open(true) {
            Err(error) if error.kind() == ErrorKind::NotFound => {
                if let Some(folder) = self.path.parent().filter(|f| !f.as_os_str().is_empty()) {
                    trusted_open::create_directories(folder).map_err(|source| Error {
                        operation: "make the folder",
                        path: folder.to_owned(),
                        source: match source.kind() {
                            ErrorKind::AlreadyExists => io::Error::new(ErrorKind::AlreadyExists, LEADS_NOWHERE),
                            _ => source,
                        },
                    })?;
                }
                open(true)
            }
            // fs.protected_regular refuses O_CREAT on another user's file in a sticky folder, not writing to it.
            Err(error) if error.kind() == ErrorKind::PermissionDenied => open(false).map_err(|_| error),
            other => other,
        };
        opened.map_err(self.error("open"))
    }

    /// Takes the file's lock. Returns the reason if that fails.
    fn lock(&self, file: &File) -> Option<String> {
        let is_stuck = self.is_stuck.load(Ordering::Relaxed);
        let mut retry = Retry::new(if is_stuck { MOMENT } else { self.timeout });
        loop {
            match file.try_lock() {
                Ok(()) => {
                    self.is_stuck.store(false, Ordering::Relaxed);
                    return None;
                }
                Err(TryLockError::WouldBlock) if retry.waits() => {}
                Err(TryLockError::WouldBlock) => {
                    self.is_stuck.store(true, Ordering::Relaxed);
                    let timeout = humantime::format_duration(self.timeout);
                    return Some(format!("another process has held it for {timeout}"));
                }
                Err(TryLockError::Error(error)) if error.kind() == ErrorKind::Interrupted => {}
                Err(TryLockError::Error(error)) => return Some(error.to_string()),
            }
        }
    }

    /// Ends the trim of a process that was killed in the middle of one. Errors: as open(2), read(2), write(2).
    pub fn repair(&self) -> Result<(), Error> {
        if !trusted_open::metadata(&self.path).is_ok_and(|found| found.is_file()) {
            return Ok(());
        }
        let file = trusted_open::open(&self.path, OFlag::O_RDWR | OFlag::O_NONBLOCK).map_err(self.error("open"))?;
        match self.lock(&file) {
            None => finish_trim(&file).map_err(self.error("repair")),
            Some(_) => Ok(()),
        }
    }

    fn write_locked(&self, file: &File, lines: &[u8]) -> io::Result<Vec<Note>> {
        let (mut notes, mut size) = (Vec::new(), file.metadata()?.len());
        let (mut start, mut old) = self.read_end(file, size)?;
        if if self.keep == 0 { ends_blank(&old) } else { unfinished(&old).is_some() } {
            if let Err(error) = finish_trim(file) {
                notes.push(Note::Untrimmed(error.to_string()));
            }
            size = file.metadata()?.len();
            (start, old) = self.read_end(file, size)?;
        }
        let plan = plan(Tail { bytes: &old, start }, lines, self.keep);
        if let Some(cut_to) = plan.cut_to {
            file.set_len(cut_to)?;
            notes.push(Note::Torn);
        }
        append_whole(file, &plan.append)?;
        // Writers without the lock append; if lines of theirs came before the mark, the plan is not of this file.
        let size = plan.cut_to.unwrap_or(size) + plan.append.len() as u64;
        if let Some(trim) = plan.trim
            && file.metadata()?.len() == size
            && let Err(error) = move_lines(file, &trim)
        {
            notes.push(Note::Untrimmed(error.to_string()));
        }
        Ok(notes)
    }

    /// The offset and the bytes of the file's end: the whole file if it may be trimmed, or else from its last newline
    /// on.
    fn read_end(&self, file: &File, size: u64) -> io::Result<(u64, Vec<u8>)> {
        let mut wanted = if self.keep == 0 { 4096 } else { size };
        if self.keep > 0 && size > LARGEST_TRIM_BYTES {
            let text = format!("it has {size} bytes, too many to be trimmed; --keep 0 never trims");
            return Err(io::Error::new(ErrorKind::FileTooLarge, text));
        }
        loop {
            let start = size.saturating_sub(wanted);
            let end = read_from(file, start, size - start)?;
            let unfinished = end.iter().rev().take_while(|b| **b != b'\n').count() as u64;
            if unfinished > LONGEST_LINE_BYTES {
                let text = "its last line has no end within 1 MiB, so it is not a metrics file and was not changed";
                return Err(io::Error::other(text));
            }
            if unfinished < end.len() as u64 || start == 0 {
                return Ok((start, end));
            }
            wanted *= 8;
        }
    }

    /// Appends only; a torn line of another writer stays, on a line of its own.
    fn write_unlocked(&self, file: &File, lines: &[u8]) -> io::Result<()> {
        let size = file.metadata()?.len();
        let last = read_from(file, size.saturating_sub(1), 1)?;
        let newline: &[u8] = if last.last().is_some_and(|b| *b != b'\n') { b"\n" } else { b"" };
        append_whole(file, &[newline, lines].concat())
    }

    /// To a FIFO or a device: no lock, no trim, and no wait for a missing reader.
    fn send(&self, kind: FileType, lines: &[u8]) -> Result<Vec<Note>, Error> {
        let flags = OFlag::O_WRONLY | OFlag::O_APPEND | OFlag::O_NONBLOCK;
        let mut file = trusted_open::open(&self.path, flags).map_err(|error| {
            let no_reader = kind.is_fifo() && error.raw_os_error() == Some(libc::ENXIO);
            self.error("open")(if no_reader { io::Error::other("no process reads this FIFO") } else { error })
        })?;
        let mut rest = lines;
        let mut retry = Retry::new(self.timeout);
        while !rest.is_empty() {
            match file.write(rest) {
                Ok(written) => rest = &rest[written..],
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock && retry.waits() => {}
                Err(error) => return Err(self.error("write")(error)),
            }
        }
        Ok(Vec::new())
    }

    fn error(&self, operation: &'static str) -> impl Fn(io::Error) -> Error {
        move |source| Error { operation, path: self.path.clone(), source }
    }
}

/// The last bytes of a metrics file, up to the limit; empty if the file is missing. Errors: as open(2), read(2); the file is
/// not a regular file.
pub fn end_of(path: &Path, limit: u64) -> io::Result<Vec<u8>> {
    let file = match trusted_open::open(path, OFlag::O_RDONLY | OFlag::O_NONBLOCK) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        file => file?,
    };
    let metadata = file.metadata()?;
    if !metadata.is_file() {
        return Err(ErrorKind::InvalidInput.into());
    }
    let wanted = metadata.len().min(limit);
    read_from(&file, metadata.len() - wanted, wanted)
}

/// Reads up to `wanted` bytes; fewer if the file was shortened in the meantime.
fn read_from(file: &File, mut at: u64, wanted: u64) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; wanted as usize];
    let mut filled = 0;
    while filled < bytes.len() {
        let read = file.read_at(&mut bytes[filled..], at)?;
        if read == 0 {
            break;
        }
        filled += read;
        at += read as u64;
    }
    bytes.truncate(filled);
    Ok(bytes)
}

/// One write(2); a partial write to a full disk is undone.
fn append_whole(mut file: &File, bytes: &[u8]) -> io::Result<()> {
    let written = file.write(bytes)?;
    if written < bytes.len() {
        let end = file.stream_position()?;
        if file.metadata()?.len() == end {
            file.set_len(end - written as u64)?;
        }
        return Err(no_room(written, bytes.len()));
    }
    Ok(())
}

fn finish_trim(file: &File) -> io::Result<()> {
    let size = file.metadata()?.len();
    if size > LARGEST_TRIM_BYTES {
        return Ok(());
    }
    unfinished(&read_from(file, 0, size)?).map_or(Ok(()), |trim| move_lines(file, &trim))
}

/// The mark at the file's end is overwritten last, so a killed or failed write can be continued.
fn move_lines(file: &File, trim: &Trim) -> io::Result<()> {
    // With O_APPEND, pwrite(2) ignores its offset.
    fcntl(file, FcntlArg::F_SETFL(OFlag::empty()))?;
    let written = file.write_all_at(&trim.content, trim.at);
    fcntl(file, FcntlArg::F_SETFL(OFlag::O_APPEND))?;
    written?;
    if file.metadata()?.len() == trim.at + trim.content.len() as u64 {
        file.set_len(trim.len)?;
    }
    Ok(())
}

fn no_room(written: usize, wanted: usize) -> io::Error {
    let text = format!("no space for more than {written} of {wanted} bytes; the file is unchanged");
    io::Error::new(ErrorKind::StorageFull, text)
}

/// Waits with growing pauses, up to a total limit.
struct Retry {
    limit: Duration,
    pause: Duration,
    since: Option<Clock>,
}

impl Retry {
    fn new(limit: Duration) -> Retry {
        Retry { limit, pause: PAUSES.0, since: None }
    }

    /// Sleeps; an error when the time is up.
    fn waits(&mut self) -> bool {
        let clock = self.since.get_or_insert_with(Clock::start);
        if clock.now() >= self.limit {
            return false;
        }
        sleep(self.pause);
        self.pause = (self.pause * 2).min(PAUSES.1);
        true
    }
}
