//! Walks a checkpoint directory with lstat(2), without following links.

use std::ffi::OsStr;
use std::fs::{self, DirEntry, Metadata};
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;

use crate::rules::checkpoint::listing::{Entry, Kind, Listing, OWN, join};

/// Deeper directories are refused.
const MAX_DEPTH: usize = 64;
/// Why a name that is not UTF-8 is refused.
pub(super) const NOT_UTF8: &str = "its name is not UTF-8, which stores cannot keep; rename it";

/// Everything under `root` except `.trainit`. A missing root is empty. A file that disappears during the walk is omitted. A
/// file that cannot be read or copied is a [`Kind::NoContent`] or [`Kind::Uncopyable`] entry. Errors: the root itself cannot be
/// read.
pub fn walk(root: &Path) -> io::Result<Listing> {
    let mut entries = Vec::new();
    match fs::read_dir(root) {
        Ok(names) => {
            for name in names.flatten().filter(|n| n.file_name() != OWN) {
                visit(&name, "", 1, &mut entries);
            }
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(error),
    }
    Ok(Listing::new(entries))
}

fn visit(found: &DirEntry, parent: &str, depth: usize, entries: &mut Vec<Entry>) {
    let Ok(metadata) = found.metadata() else { return };
    let name = found.file_name();
    let path = join(parent, &legible(&name));
    let kind = match name.to_str() {
        None => Kind::Uncopyable(NOT_UTF8),
        Some(_) if depth > MAX_DEPTH => Kind::Uncopyable("it lies deeper than 64 directories"),
        Some(_) => kind(found, &metadata),
    };
    let is_directory = kind == Kind::Directory;
    let at = entries.len();
    entries.push(entry(path.clone(), kind, &metadata));
    if is_directory {
        match fs::read_dir(found.path()) {
            Ok(names) => names.flatten().for_each(|name| visit(&name, &path, depth + 1, entries)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => entries.truncate(at),
            Err(_) => entries[at].kind = Kind::Uncopyable("the directory cannot be read"),
        }
    }
}

fn kind(found: &DirEntry, metadata: &Metadata) -> Kind {
    let kind = metadata.file_type();
    if kind.is_file() {
        Kind::File
    } else if kind.is_dir() {
        Kind::Directory
    } else if kind.is_symlink() {
        let target = fs::read_link(found.path()).ok().and_then(|t| t.into_os_string().into_string().ok());
        target.map_or(Kind::Uncopyable("a symbolic link whose target is not UTF-8"), Kind::Symlink)
    } else if kind.is_socket() {
        Kind::NoContent("a socket, which cannot be copied")
    } else if kind.is_fifo() {
        Kind::NoContent("a pipe, which cannot be copied")
    } else {
        Kind::NoContent("a device, which cannot be copied")
    }
}

/// A printable name: bytes that are not UTF-8 as `\xff`.
pub(super) fn legible(name: &OsStr) -> String {
    let mut text = String::new();
    for chunk in name.as_encoded_bytes().utf8_chunks() {
        text.push_str(chunk.valid());
        chunk.invalid().iter().for_each(|byte| text.push_str(&format!("\\x{byte:02x}")));
    }
    text
}

/// The result of stat(2) as an entry.
pub fn entry(path: String, kind: Kind, metadata: &Metadata) -> Entry {
    let ns = |seconds: i64, rest: i64| seconds.saturating_mul(1_000_000_000).saturating_add(rest);
    Entry {
        path,
        size: if kind == Kind::File { metadata.size() } else { 0 },
        kind,
        mtime_ns: ns(metadata.mtime(), metadata.mtime_nsec()),
        ctime_ns: ns(metadata.ctime(), metadata.ctime_nsec()),
        inode: metadata.ino(),
        device: metadata.dev(),
        mode: metadata.mode() & 0o777,
        through: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::ffi::OsStrExt;
    use std::os::unix::fs::symlink;

    #[test]
    fn a_walk_sees_every_kind_and_follows_nothing() {
        let dir = tempfile::tempdir().expect("temporary directory");
        let at = |name: &str| dir.path().join(name);
        fs::create_dir_all(at("d/empty")).expect("mkdir");
        fs::create_dir_all(at(".trainit/tmp")).expect("mkdir");
        fs::write(at("d/a\nb c"), "123").expect("write");
        symlink("/etc", at("d/link")).expect("symlink");
        fs::write(dir.path().join(OsStr::from_bytes(b"x\xff")), "1").expect("write");
        fs::write(at("x\\xff"), "a name with the same printed form").expect("write");
        nix::unistd::mkfifo(&at("pipe"), nix::sys::stat::Mode::from_bits_truncate(0o600)).expect("mkfifo");
        let listing = walk(dir.path()).expect("walks");
        let paths: Vec<&str> = listing.entries().iter().map(|e| e.path.as_str()).collect();
        assert_eq!(paths, ["d", "d/a\nb c", "d/empty", "d/link", "pipe", "x\\xff"]);
        assert_eq!(listing.file("d/a\nb c").map(|e| e.size), Some(3));
        assert_eq!(listing.get("d/link").map(|e| e.kind.clone()), Some(Kind::Symlink("/etc".into())));
        assert!(listing.get("pipe").is_some_and(|e| matches!(e.kind, Kind::NoContent(_))));
        assert_eq!(listing.get("x\\xff").map(|e| e.kind.clone()), Some(Kind::Uncopyable(NOT_UTF8)));
        assert_eq!(walk(&at("nowhere")).map(|l| l.entries().len()).ok(), Some(0));
    }
}
