//! Follows symbolic links of a checkpoint directory: the target takes the place of the link in a listing.
//!
//! Deliberately absent: the choice of links to follow, and links of a manifest.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::fcntl::OFlag;
use nix::sys::stat::{fstat, lstat};

use crate::edge::fs::rooted_dir::open_dir::OpenDir;
use crate::edge::fs::rooted_dir::{RootedDir, read_at};
use crate::edge::fs::trusted_open;
use crate::edge::fs::walk::{NOT_UTF8, entry, legible};
use crate::rules::checkpoint::listing::{Entry, Kind, Listing, Peek, join};

/// Links to more names than this are not followed: a manifest holds no more files.
const MOST: usize = 1_000_000;
/// The depth limit of a manifest's paths.
const MAX_DEPTH: usize = 64;

/// The links anywhere in the directory that lead out of it.
pub fn leading_out(root: &Path, listing: &Listing) -> BTreeSet<String> {
    let Ok(real) = fs::canonicalize(root) else { return BTreeSet::new() };
    let links = listing.entries().iter().filter(|e| matches!(e.kind, Kind::Symlink(_)));
    let leads_out = |e: &&Entry| fs::canonicalize(root.join(&e.path)).is_ok_and(|end| !end.starts_with(&real));
    links.filter(leads_out).map(|e| e.path.clone()).collect()
}

/// The listing with the targets of these links in their place, further links below them included. A link that cannot be
/// followed is [`Kind::NoContent`]: its target is missing, or it leads back.
pub fn follow(root: &Path, listing: &Listing, links: &BTreeSet<String>) -> Listing {
    let (followed, kept): (Vec<&Entry>, Vec<&Entry>) = listing.entries().iter().partition(|e| links.contains(&e.path));
    let mut entries: Vec<Entry> = kept.into_iter().cloned().collect();
    for link in followed {
        let place = root.join(&link.path);
        // A link to a directory above itself has no end.
        let above = place.parent().and_then(|p| fs::canonicalize(p).ok());
        let mut above: Vec<PathBuf> = above.iter().flat_map(|p| p.ancestors()).map(Path::to_owned).collect();
        visit(&place, link.path.clone(), link, &mut above, &mut entries);
    }
    Listing::new(entries)
}

fn visit(at: &Path, path: String, link: &Entry, above: &mut Vec<PathBuf>, entries: &mut Vec<Entry>) {
    let refused = |kind| Entry { path: path.clone(), kind, size: 0, ..link.clone() };
    let opened = trusted_open::resolve(at).and_then(|real| {
        let file = trusted_open::reach(&real, OFlag::O_PATH)?;
        Ok((fstat(&file)?, file, real))
    });
    let (stat, file, real) = match opened {
        Ok(opened) => opened,
        Err(error) => {
            entries.push(refused(match error.raw_os_error() {
                Some(libc::ENOENT | libc::ENOTDIR) => Kind::NoContent("a symbolic link to nothing"),
                Some(libc::ELOOP) => Kind::NoContent("a symbolic link that leads back to itself"),
                Some(_) => Kind::Uncopyable("the target of the symbolic link cannot be reached"),
                None => Kind::Uncopyable(
                    "a symbolic link of another user than trainit's and root, which is not followed; copy its target",
                ),
            }));
            return;
        }
    };
    let kind = stat.st_mode & libc::S_IFMT;
    let is_directory = kind == libc::S_IFDIR;
    let why = match () {
        () if entries.len() >= MOST => Some(Kind::Uncopyable("symbolic links lead to more than a million names")),
        () if path.split('/').count() > MAX_DEPTH => Some(Kind::Uncopyable("it lies deeper than 64 directories")),
        () if is_directory && above.contains(&real) => {
            Some(Kind::NoContent("a symbolic link that leads back to a directory above it"))
        }
        () if matches!(kind, libc::S_IFSOCK | libc::S_IFIFO) => {
            Some(Kind::NoContent("a socket or a pipe, which cannot be copied"))
        }
        () if !is_directory && kind != libc::S_IFREG => Some(Kind::NoContent("a device, which cannot be copied")),
        () => None,
    };
    if let Some(why) = why {
        entries.push(refused(why));
        return;
    }
    let kind = if is_directory { Kind::Directory } else { Kind::File };
    entries.push(Entry { through: Some(real.clone()), ..entry(path.clone(), kind, &stat) });
    if !is_directory {
        return;
    }
    let names = OpenDir::at(&file, c".").and_then(|mut directory| directory.names(MOST));
    let Ok(names) = names else {
        entries.push(refused(Kind::Uncopyable("the directory that the symbolic link leads to cannot be read")));
        return;
    };
    above.push(real.clone());
    for name in names {
        match name.to_str() {
            Ok(text) => visit(&real.join(text), join(&path, text), link, above, entries),
            Err(_) => entries
                .push(Entry { path: join(&path, &legible(name.to_bytes())), ..refused(Kind::Uncopyable(NOT_UTF8)) }),
        }
    }
    above.pop();
}

/// Opens a file at the end of a link for reading. Errors: as open(2); InvalidInput if it is no longer a regular file.
pub fn open(real: &Path) -> io::Result<File> {
    let file = trusted_open::reach(real, OFlag::O_RDONLY | OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK)?;
    if file.metadata()?.is_file() { Ok(file) } else { Err(io::ErrorKind::InvalidInput.into()) }
}

/// The target of a link now; `None` if it is missing. Errors: as stat(2).
pub fn look(path: &str, real: &Path) -> io::Result<Option<Entry>> {
    match lstat(real) {
        Ok(stat) => {
            let is_file = stat.st_mode & libc::S_IFMT == libc::S_IFREG;
            let kind = if is_file { Kind::File } else { Kind::NoContent("no longer a file") };
            Ok(Some(entry(path.to_owned(), kind, &stat)))
        }
        Err(Errno::ENOENT) => Ok(None),
        Err(errno) => Err(errno.into()),
    }
}

/// Reads the files of a listing, also behind links.
#[derive(Debug)]
pub struct Files<'a> {
    /// The directory that was walked.
    pub rooted_dir: &'a RootedDir,
    /// The walk.
    pub listing: &'a Listing,
}

impl Files<'_> {
    /// Up to `length` bytes from `from` on. Errors: as open(2) and pread(2).
    pub fn read_at(&self, path: &str, from: u64, length: usize) -> io::Result<Vec<u8>> {
        let file = match self.listing.get(path).and_then(|e| e.through.as_ref()) {
            Some(real) => open(real)?,
            None => self.rooted_dir.read_file(path)?,
        };
        read_at(&file, from, length)
    }
}

impl Peek for Files<'_> {
    fn read(&self, path: &str, from: u64, length: usize) -> Option<Vec<u8>> {
        self.read_at(path, from, length).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::edge::fs::walk::walk;
    use std::os::unix::fs::symlink;

    #[test]
    fn the_targets_replace_the_links() {
        let dir = tempfile::tempdir().expect("temporary directory");
        let at = |name: &str| dir.path().join(name);
        fs::create_dir_all(at("root/unit")).expect("mkdir");
        fs::create_dir_all(at("far/deep")).expect("mkdir");
        fs::write(at("far/deep/x"), "123").expect("write");
        symlink("deep/x", at("far/y")).expect("symlink");
        symlink(at("far"), at("root/unit/far")).expect("symlink");
        symlink("far", at("root/unit/inner")).expect("symlink");
        symlink("../../far/gone", at("root/unit/gone")).expect("symlink");
        symlink("../unit", at("root/unit/up")).expect("symlink");
        let walked = walk(&at("root")).expect("walks");
        let out = leading_out(&at("root"), &walked);
        assert_eq!(out.iter().collect::<Vec<_>>(), ["unit/far", "unit/inner"]);
        let links = ["unit/far", "unit/gone", "unit/up"].map(str::to_owned).into();
        let listing = follow(&at("root"), &walked, &links);
        let paths: Vec<&str> = listing.entries().iter().map(|e| e.path.as_str()).collect();
        let expected = [
            "unit",
            "unit/far",
            "unit/far/deep",
            "unit/far/deep/x",
            "unit/far/y",
            "unit/gone",
            "unit/inner",
            "unit/up",
        ];
        assert_eq!(paths, expected);
        let file = listing.file("unit/far/y").expect("a file");
        assert_eq!((file.size, file.through.clone()), (3, fs::canonicalize(at("far/deep/x")).ok()));
        let why = |path: &str| match listing.get(path).map(|e| e.kind.clone()) {
            Some(Kind::NoContent(why)) => why,
            other => panic!("{path}: {other:?}"),
        };
        assert!(why("unit/gone").contains("to nothing") && why("unit/up").contains("leads back"));
        let rooted_dir = RootedDir::open(&at("root")).expect("opens");
        let files = Files { rooted_dir: &rooted_dir, listing: &listing };
        assert_eq!(files.read("unit/far/y", 1, 9).as_deref(), Some(&b"23"[..]));
    }

    #[test]
    fn circular_links_end() {
        let dir = tempfile::tempdir().expect("temporary directory");
        let at = |name: &str| dir.path().join(name);
        fs::create_dir_all(at("root/unit")).expect("mkdir");
        fs::create_dir_all(at("far")).expect("mkdir");
        symlink("..", at("far/back")).expect("symlink");
        symlink("loop", at("root/unit/loop")).expect("symlink");
        symlink("../../far", at("root/unit/far")).expect("symlink");
        let links = ["unit/far", "unit/loop"].map(str::to_owned).into();
        let listing = follow(&at("root"), &walk(&at("root")).expect("walks"), &links);
        let odd =
            listing.entries().iter().filter(|e| matches!(e.kind, Kind::NoContent(why) if why.contains("leads back")));
        assert!(odd.count() >= 2, "{listing:?}");
        assert!(listing.entries().len() < 20, "{listing:?}");
    }
}
