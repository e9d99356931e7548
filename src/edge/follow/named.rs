//! One file by its name.

use std::fs::{self, File, Metadata, OpenOptions};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use super::{Id, LOOK_BYTES, SLICE_BYTES, Seen, identity};

/// So many bytes before the place where reading goes on are compared: a file that was written anew may be as long as before,
/// or longer already.
const MARK_BYTES: usize = 4 << 10;

/// A file followed by its name. It may appear late, be shortened, or be renamed away for a new one; what was written to the
/// old one meanwhile is read first, and one that begins with what was read goes on.
#[derive(Debug)]
pub struct Named {
    path: PathBuf,
    /// Before the first look.
    is_new: bool,
    open: Option<Open>,
}

#[derive(Debug)]
struct Open {
    file: File,
    identity: Id,
    at: u64,
    /// What stands before `at`.
    mark: Vec<u8>,
    /// All of it was there before the first look, and nothing was told.
    is_passed_over: bool,
    /// When it was written last, as the look before saw it, in seconds and nanoseconds.
    written: (i64, i64),
}

impl Named {
    /// Not looked at yet.
    pub fn new(path: PathBuf) -> Named {
        Named { path, is_new: true, open: None }
    }

    /// Its name.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Tells what was written since the last look; returns whether there is more. Errors: as open(2), read(2); what is no
    /// regular file. A file that is not there is none.
    pub fn look(&mut self, mut tell: impl FnMut(Seen<'_>)) -> io::Result<bool> {
        let is_new = std::mem::replace(&mut self.is_new, false);
        loop {
            if self.open.is_none() {
                let Some(mut open) = self.open()? else { return Ok(false) };
                if is_new {
                    open.at = open.file.metadata()?.len();
                    open.note(&[])?;
                    open.is_passed_over = true;
                }
                self.open = Some(open);
            }
            let Some(open) = &mut self.open else { return Ok(false) };
            if open.read(&mut tell)? {
                return Ok(true);
            }
            match fs::metadata(&self.path) {
                Ok(there) if identity(&there) != open.identity => {
                    // What came between the last byte read and the new file.
                    while open.read(&mut tell)? {}
                    let (at, mark) = (open.at, std::mem::take(&mut open.mark));
                    self.open = self.open()?;
                    // Whoever replaces it by a longer one each time has written the beginning anew.
                    let goes_on = match &mut self.open {
                        Some(new) if at > 0 => {
                            (new.at, new.mark) = (at, mark);
                            let size = new.file.metadata()?.len();
                            new.is_where_it_was(size)?
                        }
                        _ => false,
                    };
                    if !goes_on {
                        tell(Seen::End);
                        self.open.iter_mut().for_each(Open::begin_anew);
                    }
                }
                _ => return Ok(false),
            }
        }
    }

    fn open(&self) -> io::Result<Option<Open>> {
        // A FIFO without a writer would hold us up.
        match OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY).open(&self.path) {
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
    /// Reads on, at most so much; returns whether there is more.
    fn read(&mut self, tell: &mut impl FnMut(Seen<'_>)) -> io::Result<bool> {
        let now = self.file.metadata()?;
        let size = now.len();
        let is_touched = size != self.at || std::mem::replace(&mut self.written, written(&now)) != written(&now);
        // What an earlier run left may be written anew word for word.
        let is_again = |open: &Open| open.is_passed_over && open.at == size;
        if is_touched && (is_again(self) || !self.is_where_it_was(size)?) {
            tell(Seen::End);
            self.begin_anew();
        }
        self.is_passed_over &= self.at == size;
        let mut buffer = vec![0; SLICE_BYTES.min(size.saturating_sub(self.at) as usize)];
        let end = self.at.saturating_add(LOOK_BYTES);
        while self.at < end {
            let count = match self.file.read_at(&mut buffer, self.at)? {
                0 => return Ok(false),
                count => count,
            };
            tell(Seen::Bytes(&buffer[..count]));
            self.at += count as u64;
            self.note(&buffer[..count])?;
        }
        Ok(true)
    }

    fn begin_anew(&mut self) {
        (self.at, self.is_passed_over) = (0, false);
        self.mark.clear();
    }

    /// Whether what was read still stands before the place where reading goes on.
    fn is_where_it_was(&self, size: u64) -> io::Result<bool> {
        if size < self.at {
            return Ok(false);
        }
        let mut there = vec![0; self.mark.len()];
        let count = self.file.read_at(&mut there, self.at - self.mark.len() as u64)?;
        Ok(there[..count] == self.mark)
    }

    /// Keeps the end of what was read.
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
    use super::super::tests::{append, place};
    use super::*;

    /// What a look tells; `|` is an end.
    fn look(named: &mut Named) -> String {
        let mut told = String::new();
        while named
            .look(|seen| match seen {
                Seen::Bytes(bytes) => told.push_str(&String::from_utf8_lossy(bytes)),
                Seen::End => told.push('|'),
            })
            .expect("readable")
        {}
        told
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
    fn what_was_there_before_the_first_look_is_passed_over() {
        let (_dir, path) = place();
        append(&path, "old\n");
        let mut named = Named::new(path.clone());
        assert_eq!(look(&mut named), "");
        append(&path, "new");
        assert_eq!(look(&mut named), "new");
    }

    #[test]
    fn a_shortened_file_is_read_anew_even_if_it_is_longer_again() {
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
    fn what_was_there_and_is_written_anew_is_told_though_it_is_the_same() {
        let (_dir, path) = place();
        append(&path, "one\n");
        let mut named = Named::new(path.clone());
        assert_eq!(look(&mut named), "");
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
    fn a_file_that_is_replaced_by_a_longer_one_goes_on_and_by_another_begins_anew() {
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
    fn what_is_no_regular_file_is_an_error_and_holds_nobody_up() {
        let (dir, path) = place();
        nix::unistd::mkfifo(&path, nix::sys::stat::Mode::from_bits_truncate(0o600)).expect("mkfifo");
        assert!(Named::new(path).look(|_| ()).is_err());
        assert!(Named::new(dir.path().to_owned()).look(|_| ()).is_err());
    }
}
