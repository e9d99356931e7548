//! One file by its name.

use std::fs::{File, Metadata};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

use nix::fcntl::OFlag;

use crate::edge::fs::follow::{HEAD_BYTES, Id, LOOK_BYTES, SLICE_BYTES, Seen, identity};
use crate::edge::fs::trusted_open;

/// The number of bytes before the read offset that are compared: a rewritten file may be as long as before, or longer.
const MARK_BYTES: usize = 4 << 10;
/// The limit for reads of the rest of a replaced file, of some MiB each.
const LAST_READS: usize = 64;

/// A file followed by its name. It may appear late, be truncated, or be replaced by a new one. The rest of the old file is
/// read first. A new file that begins with the bytes already read continues it.
#[derive(Debug)]
pub struct Named {
    path: PathBuf,
    /// It has not been read yet.
    is_new: bool,
    open: Option<Open>,
}

#[derive(Debug)]
struct Open {
    file: File,
    identity: Id,
    at: u64,
    /// The bytes before `at`.
    mark: Vec<u8>,
    /// All its bytes existed before the first look, and none was reported.
    is_passed_over: bool,
    /// Its modification time at the last look, in seconds and nanoseconds.
    written: (i64, i64),
}

impl Named {
    /// A file that has not been read yet.
    pub fn new(path: PathBuf) -> Named {
        Named { path, is_new: true, open: None }
    }

    /// Its path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Whether it existed at the last look.
    pub fn exists(&self) -> bool {
        self.open.is_some()
    }

    /// Reports bytes written since the last look; returns whether there are more. Errors: as open(2), read(2); not a regular
    /// file. A missing file is not an error.
    pub fn look(&mut self, mut report: impl FnMut(Seen<'_>)) -> io::Result<bool> {
        let is_new = std::mem::replace(&mut self.is_new, false);
        loop {
            if self.open.is_none() {
                let Some(mut open) = self.open()? else { return Ok(false) };
                if is_new {
                    open.at = open.file.metadata()?.len();
                    open.note(&[])?;
                    open.is_passed_over = true;
                    report(Seen::Before(&open.first_line()?));
                }
                self.open = Some(open);
            }
            let Some(open) = &mut self.open else { return Ok(false) };
            if open.read(&mut report)? {
                return Ok(true);
            }
            match trusted_open::metadata(&self.path) {
                Ok(now) if identity(&now) != open.identity => {
                    // Read the rest of the old file. It grows only if its writer still has it open.
                    for _ in 0..LAST_READS {
                        if !open.read(&mut report)? {
                            break;
                        }
                    }
                    let (at, mark) = (open.at, std::mem::take(&mut open.mark));
                    self.open = self.open()?;
                    // A writer that always replaces the file by a longer one repeats its beginning.
                    let continues = match &mut self.open {
                        Some(new) if at > 0 => {
                            (new.at, new.mark) = (at, mark);
                            let size = new.file.metadata()?.len();
                            new.is_unchanged_before_offset(size)?
                        }
                        _ => false,
                    };
                    if !continues {
                        report(Seen::End);
                        self.open.iter_mut().for_each(Open::start_again);
                    }
                }
                _ => return Ok(false),
            }
        }
    }

    fn open(&self) -> io::Result<Option<Open>> {
        // A FIFO without a writer would block.
        match trusted_open::open(&self.path, OFlag::O_RDONLY | OFlag::O_NONBLOCK) {
            Ok(file) => {
                let metadata = file.metadata()?;
                if !metadata.is_file() {
                    return Err(io::Error::new(ErrorKind::InvalidInput, "not a regular file"));
                }
                let (identity, written) = (identity(&metadata), written(&metadata));
                Ok(Some(Open { file, identity, at: 0, mark: Vec::new(), is_passed_over: false, written }))
            }
            Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => Ok(None),
            Err(error) => Err(error),
        }
    }
}

impl Open {
    /// Reads up to this many bytes; returns whether there are more.
    fn read(&mut self, report: &mut impl FnMut(Seen<'_>)) -> io::Result<bool> {
        let now = self.file.metadata()?;
        let size = now.len();
        let is_touched = size != self.at || std::mem::replace(&mut self.written, written(&now)) != written(&now);
        // The content of an earlier run may be rewritten with the same bytes.
        let is_again = |open: &Open| open.is_passed_over && open.at == size;
        if is_touched && (is_again(self) || !self.is_unchanged_before_offset(size)?) {
            report(Seen::End);
            self.start_again();
        }
        self.is_passed_over &= self.at == size;
        let mut buffer = vec![0; SLICE_BYTES.min(size.saturating_sub(self.at) as usize)];
        let end = self.at.saturating_add(LOOK_BYTES);
        while self.at < end {
            let count = match self.file.read_at(&mut buffer, self.at)? {
                0 => return Ok(false),
                count => count,
            };
            report(Seen::Bytes(&buffer[..count]));
            self.at += count as u64;
            self.note(&buffer[..count])?;
        }
        Ok(true)
    }

    /// The first line of the existing content.
    fn first_line(&self) -> io::Result<Vec<u8>> {
        let mut head = vec![0; HEAD_BYTES.min(self.at as usize)];
        let count = self.file.read_at(&mut head, 0)?;
        let end = head[..count].iter().position(|b| matches!(b, b'\n' | b'\r'));
        head.truncate(end.unwrap_or(0));
        Ok(head)
    }

    fn start_again(&mut self) {
        (self.at, self.is_passed_over) = (0, false);
        self.mark.clear();
    }

    /// Whether the bytes before the read offset are unchanged.
    fn is_unchanged_before_offset(&self, size: u64) -> io::Result<bool> {
        if size < self.at {
            return Ok(false);
        }
        let mut bytes = vec![0; self.mark.len()];
        let count = self.file.read_at(&mut bytes, self.at - self.mark.len() as u64)?;
        Ok(bytes[..count] == self.mark)
    }

    /// Keeps the end of the bytes that were read.
    fn note(&mut self, bytes: &[u8]) -> io::Result<()> {
        if bytes.len() >= MARK_BYTES.min(self.at as usize) {
            self.mark = bytes[bytes.len() - MARK_BYTES.min(bytes.len())..].to_vec();
        } else {
            let length = MARK_BYTES.min(self.at as usize);
            self.mark.resize(length, 0);
            let count = self.file.read_at(&mut self.mark, self.at - length as u64)?;
            self.mark.truncate(count);
        }
        Ok(())
    }
}

fn written(metadata: &Metadata) -> (i64, i64) {
    (metadata.mtime(), metadata.mtime_nsec())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::edge::fs::follow::tests::{append, place};
    use std::fmt::Write as _;
    use std::fs;

    /// The result of a look; `|` is an end.
    fn look(named: &mut Named) -> String {
        let mut report = String::new();
        while named
            .look(|seen| match seen {
                Seen::Bytes(bytes) => report.push_str(&String::from_utf8_lossy(bytes)),
                Seen::End => report.push('|'),
                Seen::Before(line) => drop(write!(report, "<{}>", String::from_utf8_lossy(line))),
            })
            .expect("readable")
        {}
        report
    }

    #[test]
    fn a_file_is_read_from_its_beginning_when_it_appears_and_on_when_it_grows() {
        let (_dir, path) = place();
        let mut named = Named::new(path.clone());
        assert_eq!(look(&mut named), "");
        append(&path, "one");
        assert_eq!(look(&mut named), "one");
        append(&path, " two");
        assert_eq!((look(&mut named), look(&mut named)), (" two".into(), String::new()));
    }

    #[test]
    fn content_from_before_the_first_look_is_skipped() {
        let (_dir, path) = place();
        append(&path, "a,b\n1,2\n");
        let mut named = Named::new(path.clone());
        assert_eq!((look(&mut named), named.exists()), ("<a,b>".into(), true), "except for its first line");
        append(&path, "new");
        assert_eq!(look(&mut named), "new");
    }

    #[test]
    fn a_shortened_file_is_read_again_even_if_it_is_longer_again() {
        let (_dir, path) = place();
        let mut named = Named::new(path.clone());
        assert_eq!(look(&mut named), "");
        append(&path, "first\n");
        assert_eq!(look(&mut named), "first\n");
        fs::write(&path, "x\n").expect("writes");
        assert_eq!(look(&mut named), "|x\n");
        fs::write(&path, "something longer\n").expect("writes");
        assert_eq!(look(&mut named), "|something longer\n");
        // In another tick of the file system's clock.
        fs::write(&path, "something LONGER\n").expect("writes");
        let written = fs::metadata(&path).and_then(|metadata| metadata.modified()).expect("a time");
        let touched = written + std::time::Duration::from_secs(1);
        File::options().append(true).open(&path).and_then(|file| file.set_modified(touched)).expect("touches");
        assert_eq!(look(&mut named), "|something LONGER\n");
        fs::write(&path, "something longer\n").expect("writes");
        assert_eq!(look(&mut named), "|something longer\n");
        fs::write(&path, "something longer\nand more\n").expect("writes");
        assert_eq!(look(&mut named), "and more\n");
    }

    #[test]
    fn content_that_is_rewritten_is_reported_although_it_is_equal() {
        let (_dir, path) = place();
        append(&path, "one\n");
        let mut named = Named::new(path.clone());
        assert_eq!(look(&mut named), "<one>");
        let again = || {
            fs::write(&path, "one\n").expect("writes");
            let written = fs::metadata(&path).and_then(|metadata| metadata.modified()).expect("a time");
            let later = written + std::time::Duration::from_secs(1);
            File::options().append(true).open(&path).and_then(|file| file.set_modified(later)).expect("touches");
        };
        again();
        assert_eq!(look(&mut named), "|one\n");
        again();
        assert_eq!(look(&mut named), "", "once");
        append(&path, "two\n");
        assert_eq!(look(&mut named), "two\n");
    }

    #[test]
    fn a_file_replaced_by_a_longer_one_continues_and_by_another_starts_again() {
        let (dir, path) = place();
        let mut named = Named::new(path.clone());
        assert_eq!(look(&mut named), "");
        let replace = |text: &str| {
            fs::write(dir.path().join("new"), text).expect("writes");
            fs::rename(dir.path().join("new"), &path).expect("renames");
        };
        replace("one\n");
        assert_eq!(look(&mut named), "one\n");
        replace("one\ntwo\n");
        assert_eq!(look(&mut named), "two\n");
        replace("one\ntwo\n");
        assert_eq!(look(&mut named), "");
        replace("two\n");
        assert_eq!(look(&mut named), "|two\n");
        replace("three\nfour\n");
        assert_eq!(look(&mut named), "|three\nfour\n");
    }

    #[test]
    fn a_renamed_file_is_read_to_its_end_before_the_new_one() {
        let (dir, path) = place();
        let mut named = Named::new(path.clone());
        assert_eq!(look(&mut named), "");
        append(&path, "a");
        assert_eq!(look(&mut named), "a");
        fs::rename(&path, dir.path().join("log.1")).expect("renames");
        append(&dir.path().join("log.1"), "b");
        assert_eq!(look(&mut named), "b");
        append(&dir.path().join("log.1"), "c");
        append(&path, "d");
        assert_eq!(look(&mut named), "c|d");
    }

    #[test]
    fn a_path_that_is_not_a_regular_file_is_an_error_and_blocks_nothing() {
        let (dir, path) = place();
        nix::unistd::mkfifo(&path, nix::sys::stat::Mode::from_bits_truncate(0o600)).expect("mkfifo");
        assert!(Named::new(path).look(|_| ()).is_err());
        assert!(Named::new(dir.path().to_owned()).look(|_| ()).is_err());
    }
}
