//! All files of a kind in a folder.

use std::collections::HashMap;
use std::io::{self, ErrorKind};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use super::{Id, LOOK_BYTES, SLICE_BYTES, Seen, identity};
use crate::edge::beneath::Beneath;
use crate::edge::walk::walk;
use crate::rules::checkpoint::listing::Kind;

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
    use std::fs;

    use super::super::tests::{append, place};
    use super::*;

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
