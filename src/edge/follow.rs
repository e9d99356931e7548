//! Files that somebody else writes, read while they grow: one by its name, or all of a kind in a folder. What they held at
//! the first look is passed over; each byte after that is told once.
//!
//! By looking, not by inotify(7): that misses what a network mount's other side writes. Deliberately absent: when to look.

use std::collections::HashMap;
use std::fs::{self, File, Metadata, OpenOptions};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use super::beneath::Beneath;
use super::walk::walk;
use crate::rules::checkpoint::listing::Kind;

/// What is read of one file at once.
const SLICE_BYTES: usize = 256 << 10;

/// What is read of one file in one look.
const LOOK_BYTES: u64 = 4 << 20;

/// So many bytes before the place where reading goes on are compared: a file that was written anew may be as long as before,
/// or longer already.
const MARK_BYTES: usize = 4 << 10;

/// What a look found.
#[derive(Debug, PartialEq, Eq)]
pub enum Seen<'a> {
    /// The next bytes.
    Bytes(&'a [u8]),
    /// Nothing more comes of these bytes: what follows is another file, or the same one written anew.
    End,
}

/// A file followed by its name. It may appear late, be shortened, or be renamed away for a new one; what was written to the
/// old one meanwhile is read first.
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
    identity: (u64, u64),
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

fn identity(metadata: &Metadata) -> (u64, u64) {
    (metadata.dev(), metadata.ino())
}

/// One of the files of a [`Folder`], whatever its name.
pub type Id = (u64, u64);

/// All files of a kind in a folder and the folders in it, known by their inodes: a renamed file goes on. No symbolic link is
/// followed but one that is the folder itself.
#[derive(Debug)]
pub struct Folder {
    path: PathBuf,
    /// Whether a file of this name belongs to it.
    is_wanted: fn(&str) -> bool,
    files: HashMap<Id, Grown>,
    looks: u64,
}

#[derive(Debug)]
struct Grown {
    /// What was there at the first look; told only up to the end of an unfinished record, so by the reader of records.
    passed_over: u64,
    at: u64,
    /// The last look that saw it.
    seen: u64,
}

/// Bytes of one of the files.
#[derive(Debug)]
pub struct Part<'a> {
    /// Which.
    pub id: Id,
    /// Its path from the folder on.
    pub path: &'a str,
    /// What it held at the first look: for the reader to leave out.
    pub passed_over: u64,
    /// What is new.
    pub seen: Seen<'a>,
}

impl Folder {
    /// Not looked at yet.
    pub fn new(path: PathBuf, is_wanted: fn(&str) -> bool) -> Folder {
        Folder { path, is_wanted, files: HashMap::new(), looks: 0 }
    }

    /// The folder.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// How many files were seen at the last look.
    pub fn count(&self) -> usize {
        self.files.len()
    }

    /// Tells what was written since the last look, file by file in order of their names; returns whether there is more.
    /// Errors: as readdir(3), open(2), read(2), of the first file that cannot be read; the others are read. A folder that is
    /// not there has no files.
    pub fn look(&mut self, mut tell: impl FnMut(Part<'_>)) -> io::Result<bool> {
        let listing = walk(&self.path)?;
        let is_first = self.looks == 0;
        self.looks += 1;
        let (mut more, mut trouble, mut beneath) = (false, None, None);
        let mut buffer = Vec::new();
        let name = |path: &str| path.rsplit('/').next().is_some_and(self.is_wanted);
        for entry in listing.entries().iter().filter(|e| e.kind == Kind::File && name(&e.path)) {
            let id = (entry.device, entry.inode);
            let size = entry.size;
            let new = || Grown { passed_over: if is_first { size } else { 0 }, at: 0, seen: 0 };
            let grown = self.files.entry(id).or_insert_with(new);
            grown.seen = self.looks;
            if size == grown.at || (grown.at == 0 && size == grown.passed_over) {
                continue;
            }
            let passed_over = grown.passed_over;
            if size < grown.at.max(passed_over) {
                *grown = Grown { passed_over: 0, at: 0, ..*grown };
                tell(Part { id, path: &entry.path, passed_over, seen: Seen::End });
            }
            if beneath.is_none() {
                beneath = Some(Beneath::open(&self.path)?);
            }
            let Some(beneath) = &beneath else { continue };
            buffer.resize(SLICE_BYTES, 0);
            let passed_over = grown.passed_over;
            let read = read_on(beneath, &entry.path, id, &mut grown.at, &mut buffer, |bytes| {
                tell(Part { id, path: &entry.path, passed_over, seen: Seen::Bytes(bytes) });
            });
            match read {
                Ok(is_more) => more |= is_more,
                // It was renamed or removed meanwhile: the next look knows.
                Err(error) if error.kind() == ErrorKind::NotFound => {}
                Err(error) => trouble = trouble.or(Some(error)),
            }
        }
        let looks = self.looks;
        self.files.retain(|id, grown| {
            if grown.seen != looks {
                tell(Part { id: *id, path: "", passed_over: 0, seen: Seen::End });
            }
            grown.seen == looks
        });
        trouble.map_or(Ok(more), Err)
    }
}

fn read_on(
    beneath: &Beneath,
    path: &str,
    id: Id,
    at: &mut u64,
    buffer: &mut [u8],
    mut tell: impl FnMut(&[u8]),
) -> io::Result<bool> {
    let file = beneath.read_file(path)?;
    if identity(&file.metadata()?) != id {
        return Ok(false);
    }
    let end = at.saturating_add(LOOK_BYTES);
    while *at < end {
        match file.read_at(buffer, *at)? {
            0 => return Ok(false),
            count => {
                tell(&buffer[..count]);
                *at += count as u64;
            }
        }
    }
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

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

    fn append(path: &Path, text: &str) {
        let mut file = OpenOptions::new().append(true).create(true).open(path).expect("opens");
        file.write_all(text.as_bytes()).expect("writes");
    }

    fn place() -> (tempfile::TempDir, PathBuf) {
        let dir = tempfile::tempdir().expect("a folder");
        let path = dir.path().join("log");
        (dir, path)
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

    /// What a look at the folder tells: path and text of each part.
    fn look_in(folder: &mut Folder) -> Vec<String> {
        let mut told = Vec::new();
        let more = folder.look(|part| {
            told.push(match part.seen {
                Seen::Bytes(bytes) => format!("{}:{}", part.path, String::from_utf8_lossy(bytes)),
                Seen::End => "|".to_owned(),
            })
        });
        assert!(!more.expect("readable"));
        told
    }

    #[test]
    fn files_of_a_kind_are_found_wherever_they_appear_and_followed_through_a_rename() {
        let (dir, _) = place();
        let top = dir.path().join("runs");
        let mut folder = Folder::new(top.clone(), |name| name.contains("tfevents"));
        assert!(look_in(&mut folder).is_empty());
        fs::create_dir_all(top.join("a/b")).expect("mkdir");
        append(&top.join("a/b/tfevents.2"), "two");
        append(&top.join("tfevents.1"), "one");
        append(&top.join("other"), "x");
        std::os::unix::fs::symlink("tfevents.1", top.join("tfevents.link")).expect("symlink");
        assert_eq!(look_in(&mut folder), ["a/b/tfevents.2:two", "tfevents.1:one"]);
        append(&top.join("tfevents.1"), "+");
        fs::rename(top.join("tfevents.1"), top.join("a/tfevents.9")).expect("renames");
        assert_eq!(look_in(&mut folder), ["a/tfevents.9:+"]);
        fs::remove_file(top.join("a/tfevents.9")).expect("removes");
        assert_eq!((look_in(&mut folder), folder.count()), (vec!["|".to_owned()], 1));
        fs::write(top.join("a/b/tfevents.2"), "x").expect("writes");
        assert_eq!(look_in(&mut folder), ["|", "a/b/tfevents.2:x"]);
    }

    #[test]
    fn of_files_that_were_there_it_says_how_much_is_old() {
        let (dir, _) = place();
        append(&dir.path().join("tfevents"), "old");
        let mut folder = Folder::new(dir.path().to_owned(), |_| true);
        assert!(look_in(&mut folder).is_empty());
        append(&dir.path().join("tfevents"), "new");
        folder.look(|part| assert_eq!((part.passed_over, part.seen), (3, Seen::Bytes(b"oldnew")))).expect("readable");
    }
}
