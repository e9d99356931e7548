//! Walks a checkpoint directory by descriptors, without following links.

use std::collections::BTreeMap;
use std::ffi::CStr;
use std::io;
use std::path::{Path, PathBuf};

use nix::fcntl::readlinkat;
use nix::sys::stat::FileStat;
use nix::unistd::geteuid;

use crate::edge::fs::rooted_dir::is_absent;
use crate::edge::fs::rooted_dir::open_dir::OpenDir;
use crate::rules::checkpoint::listing::{Entry, Kind, Listing, OWN, join};

/// Deeper directories are refused.
const MAX_DEPTH: usize = 64;
/// Why a name that is not UTF-8 is refused.
pub(super) const NOT_UTF8: &str = "its name is not UTF-8, which stores cannot keep; rename it";

/// A directory with more names is refused: it is no checkpoint directory but a disk, and a walk of it takes too long.
const MOST: usize = 500_000;

#[derive(Default)]
struct Walk {
    entries: Vec<Entry>,
    /// Files of another user than their directory's that have several names: their place among the entries, and how many.
    foreign: Vec<(usize, u64)>,
}

/// Everything under `root` except `.trainit`. A missing root is empty. A file that disappears during the walk is omitted. A
/// file that cannot be read or copied is a [`Kind::NoContent`] or [`Kind::Uncopyable`] entry. An absolute link to a place under
/// `root` is shown as the relative link to it. Errors: the root itself cannot be read, or has too many names.
pub fn walk(root: &Path) -> io::Result<Listing> {
    let mut walk = Walk::default();
    match OpenDir::open(root) {
        Ok(mut directory) => {
            let owner = directory.look(c".")?.st_uid;
            for name in directory.names(MOST + 1)?.iter().filter(|name| name.to_bytes() != OWN.as_bytes()) {
                visit(&directory, name, ("", owner), 1, &mut walk);
            }
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(error),
    }
    if walk.entries.len() > MOST {
        let text = format!("it has more than {MOST} names; name a directory that only checkpoints are in");
        return Err(io::Error::other(text));
    }
    walk.refuse_foreign();
    let homes: Vec<PathBuf> = [std::path::absolute(root), root.canonicalize()].into_iter().flatten().collect();
    for entry in &mut walk.entries {
        if let Kind::Symlink(target) = &entry.kind
            && let Some(inside) = homes.iter().find_map(|home| Path::new(target).strip_prefix(home).ok()?.to_str())
        {
            entry.kind = Kind::Symlink(format!("{}{inside}", "../".repeat(entry.path.matches('/').count())));
        }
    }
    Ok(Listing::new(walk.entries))
}

impl Walk {
    /// A hard link to a file of another user that has a name elsewhere, too. Root must not copy it for the trainer.
    fn refuse_foreign(&mut self) {
        let mut names: BTreeMap<(u64, u64), u64> = BTreeMap::new();
        let file_of = |entry: &Entry| (entry.device, entry.inode);
        for (at, _) in &self.foreign {
            *names.entry(file_of(&self.entries[*at])).or_default() += 1;
        }
        for (at, links) in &self.foreign {
            let entry = &mut self.entries[*at];
            if names[&file_of(entry)] < *links {
                *entry =
                    Entry { kind: Kind::Uncopyable("a hard link to a file of another user"), size: 0, ..entry.clone() };
            }
        }
    }
}

/// `parent`: its path and its owner.
fn visit(directory: &OpenDir, name: &CStr, parent: (&str, u32), depth: usize, walk: &mut Walk) {
    let Ok(stat) = directory.look(name) else { return };
    if walk.entries.len() > MOST {
        return;
    }
    let path = join(parent.0, &legible(name.to_bytes()));
    let kind = match name.to_str() {
        Err(_) => Kind::Uncopyable(NOT_UTF8),
        Ok(_) if depth > MAX_DEPTH => Kind::Uncopyable("it lies deeper than 64 directories"),
        Ok(_) => kind(directory, name, &stat),
    };
    let is_directory = kind == Kind::Directory;
    let at = walk.entries.len();
    let is_foreign = stat.st_uid != parent.1 && parent.1 != 0 && geteuid().is_root();
    if kind == Kind::File && stat.st_nlink > 1 && is_foreign {
        #[allow(clippy::useless_conversion, reason = "the field has 32 bits on aarch64")]
        walk.foreign.push((at, stat.st_nlink.into()));
    }
    walk.entries.push(entry(path.clone(), kind, &stat));
    if is_directory {
        let opened = OpenDir::at(directory, name).and_then(|mut below| Ok((below.names(MOST + 1)?, below)));
        match opened {
            Ok((names, below)) => {
                names.iter().for_each(|name| visit(&below, name, (&path, stat.st_uid), depth + 1, walk));
            }
            Err(error) if is_absent(&error) => walk.entries.truncate(at),
            Err(_) => walk.entries[at].kind = Kind::Uncopyable("the directory cannot be read"),
        }
    }
}

fn kind(directory: &OpenDir, name: &CStr, stat: &FileStat) -> Kind {
    match stat.st_mode & libc::S_IFMT {
        libc::S_IFREG => Kind::File,
        libc::S_IFDIR => Kind::Directory,
        libc::S_IFLNK => {
            let target = readlinkat(directory, name).ok().and_then(|target| target.into_string().ok());
            target.map_or(Kind::Uncopyable("a symbolic link whose target is not UTF-8"), Kind::Symlink)
        }
        libc::S_IFSOCK => Kind::NoContent("a socket, which cannot be copied"),
        libc::S_IFIFO => Kind::NoContent("a pipe, which cannot be copied"),
        _ => Kind::NoContent("a device, which cannot be copied"),
    }
}

/// A printable name: bytes that are not UTF-8 as `\xff`.
pub(super) fn legible(name: &[u8]) -> String {
    let mut text = String::new();
    for chunk in name.utf8_chunks() {
        text.push_str(chunk.valid());
        chunk.invalid().iter().for_each(|byte| text.push_str(&format!("\\x{byte:02x}")));
    }
    text
}

/// The result of stat(2) as an entry.
pub fn entry(path: String, kind: Kind, stat: &FileStat) -> Entry {
    let ns = |seconds: i64, rest: i64| seconds.saturating_mul(1_000_000_000).saturating_add(rest);
    Entry {
        path,
        size: if kind == Kind::File { stat.st_size.cast_unsigned() } else { 0 },
        kind,
        mtime_ns: ns(stat.st_mtime, stat.st_mtime_nsec),
        ctime_ns: ns(stat.st_ctime, stat.st_ctime_nsec),
        inode: stat.st_ino,
        device: stat.st_dev,
        mode: stat.st_mode & 0o777,
        through: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::OsStr;
    use std::fs;
    use std::os::unix::ffi::OsStrExt;
    use std::os::unix::fs::symlink;

    #[test]
    fn a_hard_link_to_a_file_of_another_user_elsewhere_is_refused() {
        if !geteuid().is_root() {
            return;
        }
        let dir = tempfile::tempdir().expect("temporary directory");
        let (outside, root) = (dir.path().join("secret"), dir.path().join("c"));
        fs::create_dir(&root).expect("mkdir");
        std::os::unix::fs::chown(&root, Some(1000), None).expect("chown");
        fs::write(&outside, "secret").expect("write");
        fs::hard_link(&outside, root.join("stolen")).expect("link");
        fs::write(root.join("best"), "of root, too").expect("write");
        fs::hard_link(root.join("best"), root.join("last")).expect("link");
        let listing = walk(&root).expect("walks");
        let kind = |path: &str| listing.get(path).map(|entry| entry.kind.clone());
        assert!(matches!(kind("stolen"), Some(Kind::Uncopyable(_))));
        assert_eq!((kind("best"), kind("last")), (Some(Kind::File), Some(Kind::File)));
    }

    #[test]
    fn a_walk_sees_every_kind_and_follows_nothing() {
        let dir = tempfile::tempdir().expect("temporary directory");
        let at = |name: &str| dir.path().join(name);
        fs::create_dir_all(at("d/empty")).expect("mkdir");
        fs::create_dir_all(at(".trainit/tmp")).expect("mkdir");
        fs::write(at("d/a\nb c"), "123").expect("write");
        symlink("/etc", at("d/link")).expect("symlink");
        symlink(at("d/empty"), at("d/inside")).expect("symlink");
        fs::write(dir.path().join(OsStr::from_bytes(b"x\xff")), "1").expect("write");
        fs::write(at("x\\xff"), "a name with the same printed form").expect("write");
        nix::unistd::mkfifo(&at("pipe"), nix::sys::stat::Mode::from_bits_truncate(0o600)).expect("mkfifo");
        let listing = walk(dir.path()).expect("walks");
        let paths: Vec<&str> = listing.entries().iter().map(|e| e.path.as_str()).collect();
        assert_eq!(paths, ["d", "d/a\nb c", "d/empty", "d/inside", "d/link", "pipe", "x\\xff"]);
        assert_eq!(listing.get("d/inside").map(|e| e.kind.clone()), Some(Kind::Symlink("../d/empty".into())));
        assert_eq!(listing.file("d/a\nb c").map(|e| e.size), Some(3));
        assert_eq!(listing.get("d/link").map(|e| e.kind.clone()), Some(Kind::Symlink("/etc".into())));
        assert!(listing.get("pipe").is_some_and(|e| matches!(e.kind, Kind::NoContent(_))));
        assert_eq!(listing.get("x\\xff").map(|e| e.kind.clone()), Some(Kind::Uncopyable(NOT_UTF8)));
        assert_eq!(walk(&at("nowhere")).map(|l| l.entries().len()).ok(), Some(0));
    }
}
