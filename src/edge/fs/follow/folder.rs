//! All files of a kind in a folder.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, ErrorKind};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use crate::edge::fs::follow::{Id, LOOK_BYTES, SLICE_BYTES, Seen, identity};
use crate::edge::fs::rooted_dir::RootedDir;
use crate::edge::fs::trusted_open;
use crate::edge::fs::walk::walk;
use crate::rules::checkpoint::listing::{Entry, Kind};

/// The number of bytes before the read offset that are compared, because the inode of a removed file is soon reused.
const MARK_BYTES: usize = 256;

/// All files of a kind in a folder and the folders in it, identified by inode, so that a renamed file continues. No symbolic
/// link is followed, except the folder itself if root or trainit's user made it.
#[derive(Debug)]
pub struct Folder {
    path: PathBuf,
    /// Whether a file of this name is followed.
    is_wanted: fn(&str) -> bool,
    files: HashMap<Id, Grown>,
    looks: u64,
}

#[derive(Debug, Default)]
struct Grown {
    /// The number of bytes that existed at the first look.
    passed_over: u64,
    at: u64,
    /// The bytes before `at`.
    mark: Vec<u8>,
    /// Its path from the folder on.
    path: String,
    /// Its modification time at the last look.
    mtime_ns: i64,
    /// The last look that saw it.
    seen: u64,
}

/// Bytes of one of the files.
#[derive(Debug)]
pub struct Part<'a> {
    /// The file.
    pub id: Id,
    /// Its path from the folder on.
    pub path: &'a str,
    /// Bytes that existed at the first look, for the reader to skip.
    pub passed_over: u64,
    /// New bytes.
    pub seen: Seen<'a>,
}

impl Folder {
    /// A folder that has not been read yet.
    pub fn new(path: PathBuf, is_wanted: fn(&str) -> bool) -> Folder {
        Folder { path, is_wanted, files: HashMap::new(), looks: 0 }
    }

    /// The folder.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The number of files at the last look.
    pub fn count(&self) -> usize {
        self.files.len()
    }

    /// Reports bytes written since the last look, file by file in order of names; returns whether there are more. Errors: as
    /// readdir(3), open(2), read(2), of the first file that cannot be read. The other files are still read. A missing folder
    /// has no files.
    pub fn look(&mut self, mut report: impl FnMut(Part<'_>)) -> io::Result<bool> {
        let top = match trusted_open::resolve(&self.path) {
            // A missing folder has no files.
            Err(error) if error.kind() == ErrorKind::NotFound => self.path.clone(),
            top => top?,
        };
        let listing = walk(&top)?;
        let is_first = self.looks == 0;
        self.looks += 1;
        let (mut more, mut trouble, mut rooted_dir) = (false, None, None);
        let mut buffer = Vec::new();
        let name = |path: &str| path.rsplit('/').next().is_some_and(self.is_wanted);
        for entry in listing.entries().iter().filter(|entry| name(&entry.path)) {
            match &entry.kind {
                Kind::File => {}
                Kind::Uncopyable(why) => {
                    trouble = Some(io::Error::other(format!("{} is {why}", entry.path)));
                    continue;
                }
                Kind::Directory | Kind::Symlink(_) | Kind::NoContent(_) => continue,
            }
            let id = (entry.device, entry.inode);
            let grown =
                self.files.entry(id).or_insert_with(|| if is_first { passed_over(entry) } else { Grown::default() });
            grown.seen = self.looks;
            let is_unchanged = grown.is_unchanged(entry);
            grown.mtime_ns = entry.mtime_ns;
            if is_unchanged {
                continue;
            }
            let mut report =
                |passed_over: u64, seen: Seen<'_>| report(Part { id, path: &entry.path, passed_over, seen });
            if grown.is_surely_another(entry) {
                report(grown.passed_over, Seen::End);
                grown.start_again();
            }
            if rooted_dir.is_none() {
                rooted_dir = Some(RootedDir::open(&top)?);
            }
            let Some(rooted_dir) = &rooted_dir else { continue };
            buffer.resize(SLICE_BYTES, 0);
            let read = grown.read_on(rooted_dir, &entry.path, id, &mut buffer, report);
            match read {
                Ok(is_more) => more |= is_more,
                // It was renamed or removed in the meantime; the next poll finds out.
                Err(error) if error.kind() == ErrorKind::NotFound => {}
                Err(error) => trouble = trouble.or(Some(error)),
            }
        }
        let looks = self.looks;
        self.files.retain(|id, grown| {
            if grown.seen != looks {
                report(Part { id: *id, path: "", passed_over: 0, seen: Seen::End });
            }
            grown.seen == looks
        });
        trouble.map_or(Ok(more), Err)
    }
}

/// A file at the first look. Its bytes are not read, because that is slow for hundreds of old files in a bucket.
fn passed_over(entry: &Entry) -> Grown {
    Grown { passed_over: entry.size, path: entry.path.clone(), mtime_ns: entry.mtime_ns, ..Grown::default() }
}

impl Grown {
    fn is_unchanged(&self, entry: &Entry) -> bool {
        let size = if self.at == 0 { self.passed_over } else { self.at };
        entry.size == size && (size == 0 || entry.mtime_ns == self.mtime_ns || self.is_only_touched(entry))
    }

    /// A skipped file of unchanged size is identified by its name alone.
    fn is_only_touched(&self, entry: &Entry) -> bool {
        self.at == 0 && entry.path == self.path
    }

    /// Whether the entry shows another file with this inode, or a rewritten file. The bytes before the read offset are
    /// compared separately. A skipped file has no read offset, but names of event files are unique: they contain the time
    /// and the process.
    fn is_surely_another(&self, entry: &Entry) -> bool {
        let was_passed_over = self.at == 0 && self.passed_over > 0;
        entry.size < self.at.max(self.passed_over) || (was_passed_over && entry.path != self.path)
    }

    fn start_again(&mut self) {
        *self = Grown { seen: self.seen, mtime_ns: self.mtime_ns, ..Grown::default() };
    }

    fn read_on(
        &mut self,
        rooted_dir: &RootedDir,
        path: &str,
        id: Id,
        buffer: &mut [u8],
        mut report: impl FnMut(u64, Seen<'_>),
    ) -> io::Result<bool> {
        let file = rooted_dir.read_own_file(path)?;
        if identity(&file.metadata()?) != id {
            return Ok(false);
        }
        if !self.is_unchanged_before_offset(&file)? {
            report(self.passed_over, Seen::End);
            self.start_again();
        }
        let end = self.at.saturating_add(LOOK_BYTES);
        while self.at < end {
            match file.read_at(buffer, self.at)? {
                0 => return Ok(false),
                count => {
                    report(self.passed_over, Seen::Bytes(&buffer[..count]));
                    self.note(&buffer[..count]);
                }
            }
        }
        Ok(true)
    }

    fn is_unchanged_before_offset(&self, file: &File) -> io::Result<bool> {
        let mut bytes = vec![0; self.mark.len()];
        let count = file.read_at(&mut bytes, self.at - self.mark.len() as u64)?;
        Ok(bytes[..count] == self.mark)
    }

    /// Keeps the end of the bytes that were read.
    fn note(&mut self, bytes: &[u8]) {
        self.at += bytes.len() as u64;
        self.mark.extend_from_slice(&bytes[bytes.len().saturating_sub(MARK_BYTES)..]);
        self.mark.drain(..self.mark.len().saturating_sub(MARK_BYTES));
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::edge::fs::follow::tests::{append, place};

    /// The result of a look at the folder: path and text of each part.
    fn look_in(folder: &mut Folder) -> Vec<String> {
        let mut report = Vec::new();
        let more = folder.look(|part| {
            report.push(match part.seen {
                Seen::Bytes(bytes) => format!("{}:{}", part.path, String::from_utf8_lossy(bytes)),
                Seen::End => "|".to_owned(),
                Seen::Before(_) => unreachable!("the first line of an event file is not reported"),
            })
        });
        assert!(!more.expect("readable"));
        report
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
    fn bytes_from_before_the_first_look_are_reported_as_old() {
        let (dir, _) = place();
        append(&dir.path().join("tfevents"), "old");
        let mut folder = Folder::new(dir.path().to_owned(), |_| true);
        assert!(look_in(&mut folder).is_empty());
        append(&dir.path().join("tfevents"), "new");
        folder.look(|part| assert_eq!((part.passed_over, part.seen), (3, Seen::Bytes(b"oldnew")))).expect("readable");
    }

    /// Gives a new file the inode of this one, as ext4 does if a file is removed and another one is created.
    fn reuse(old: &Path, new: &Path, text: &str) {
        fs::write(old, text).expect("writes");
        let file = fs::File::options().append(true).open(old).expect("opens");
        let written = file.metadata().and_then(|metadata| metadata.modified()).expect("a time");
        // The time differs by a tick of the file system's clock.
        file.set_modified(written + std::time::Duration::from_secs(1)).expect("touches");
        if old != new {
            fs::rename(old, new).expect("renames");
        }
    }

    #[test]
    fn a_new_file_with_the_inode_of_a_removed_one_is_read_from_its_beginning() {
        let (dir, _) = place();
        let (one, two) = (dir.path().join("tfevents.1"), dir.path().join("tfevents.2"));
        let mut folder = Folder::new(dir.path().to_owned(), |_| true);
        assert!(look_in(&mut folder).is_empty());
        append(&one, "first");
        assert_eq!(look_in(&mut folder), ["tfevents.1:first"]);
        reuse(&one, &two, "another, longer");
        assert_eq!(look_in(&mut folder), ["|", "tfevents.2:another, longer"]);
        reuse(&two, &one, "ANOTHER, LONGER");
        assert_eq!(look_in(&mut folder), ["|", "tfevents.1:ANOTHER, LONGER"]);
        reuse(&one, &one, "ANOTHER, LONGER");
        assert!(look_in(&mut folder).is_empty(), "only the time has changed");
        append(&one, &"+".repeat(2 * MARK_BYTES));
        assert_eq!(look_in(&mut folder).len(), 1, "the file continues");
        append(&one, "-");
        assert_eq!(look_in(&mut folder), ["tfevents.1:-"]);
    }

    #[test]
    fn a_new_file_with_the_inode_of_a_skipped_one_is_read() {
        for text in ["new", "longer"] {
            let (dir, _) = place();
            let (one, two) = (dir.path().join("tfevents.1"), dir.path().join("tfevents.2"));
            append(&one, "old");
            let mut folder = Folder::new(dir.path().to_owned(), |_| true);
            assert!(look_in(&mut folder).is_empty());
            reuse(&one, &one, "old");
            assert!(look_in(&mut folder).is_empty(), "only touched");
            fs::rename(&one, dir.path().join("tfevents.0")).expect("renames");
            assert!(look_in(&mut folder).is_empty(), "only renamed");
            reuse(&dir.path().join("tfevents.0"), &two, text);
            folder.look(|part| assert_eq!(part.passed_over, if part.seen == Seen::End { 3 } else { 0 })).expect("read");
            append(&two, "+");
            assert_eq!(look_in(&mut folder), ["tfevents.2:+"]);
        }
    }

    #[test]
    fn files_removed_and_created_between_two_polls_are_reported_completely() {
        let (dir, _) = place();
        let mut folder = Folder::new(dir.path().to_owned(), |_| true);
        assert!(look_in(&mut folder).is_empty());
        for round in 0..20 {
            // Each is at least as long as the previous one.
            let (name, text) = (format!("tfevents.{round}"), format!("{round:0length$}", length = 50 + round / 2));
            append(&dir.path().join(&name), &text);
            let report = look_in(&mut folder);
            assert!(report.contains(&format!("{name}:{text}")), "{round}: {report:?}");
            fs::remove_file(dir.path().join(&name)).expect("removes");
        }
    }
}
