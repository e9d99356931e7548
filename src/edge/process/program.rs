//! Reads the file of a command and of its interpreters: its type and its first bytes.

use std::ffi::{OsStr, OsString};
use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Read};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use nix::sys::statvfs::{FsFlags, statvfs};
use nix::unistd::{AccessFlags, eaccess};

use crate::edge::process::spawn::candidates;
use crate::rules::process::program::head::Head;
use crate::rules::process::program::{Chain, FileKind};

/// The processor architecture that trainit was built for.
pub const MACHINE: &str = std::env::consts::ARCH;
/// The dynamic loader is named in the first bytes of a program, after about ten program headers.
const HEAD_BYTES: u64 = 64 << 10;
/// The limit of a `#!` line.
const LINE_BYTES: u64 = 512;
/// The number of interpreters that Linux follows.
const MOST_LINKS: usize = 5;

/// The command's file and its interpreters; empty if no candidate exists. `path` is PATH, if it is set.
pub fn look(program: &OsStr, path: Option<&[u8]>) -> Chain {
    let mut chain = Chain::new();
    let candidates = candidates(program.as_bytes(), path.unwrap_or(crate::edge::process::spawn::DEFAULT_PATH));
    let mut unreachable = None;
    let mut next =
        candidates.into_iter().map(|path| PathBuf::from(OsString::from_vec(path))).find_map(|path| match kind(&path) {
            FileKind::Missing => None,
            FileKind::Unreachable => {
                unreachable.get_or_insert((path, FileKind::Unreachable));
                None
            }
            kind => Some((path, kind)),
        });
    next = next.or(unreachable);
    while let Some((path, kind)) = next.take() {
        let interpreter = match &kind {
            FileKind::File { head: Some(head), .. } if chain.len() < MOST_LINKS => head.interpreter(),
            _ => None,
        };
        next = interpreter.map(|bytes| PathBuf::from(OsStr::from_bytes(bytes))).map(|path| {
            let kind = self::kind(&path);
            (path, kind)
        });
        chain.push((path.to_string_lossy().into_owned(), kind));
    }
    chain
}

/// Whether PATH has an executable file of this name.
pub fn is_in_path(name: &str, path: Option<&[u8]>) -> bool {
    executables(OsStr::new(name), path).next().is_some()
}

/// Whether the command names an executable file, by PATH or by its own path.
pub fn exists(program: &OsStr, path: Option<&[u8]>) -> bool {
    executables(program, path).next().is_some()
}

/// The file that was executed for a command, and its first bytes.
pub fn beginning(program: &OsStr, path: Option<&[u8]>) -> Option<(String, Vec<u8>)> {
    let file = executables(program, path).next()?;
    let bytes = first_bytes(&file, LINE_BYTES)?;
    Some((file.to_string_lossy().into_owned(), bytes))
}

fn executables(program: &OsStr, path: Option<&[u8]>) -> impl Iterator<Item = PathBuf> {
    let candidates = candidates(program.as_bytes(), path.unwrap_or(crate::edge::process::spawn::DEFAULT_PATH));
    let candidates = candidates.into_iter().map(|path| PathBuf::from(OsString::from_vec(path)));
    candidates.filter(|path| path.is_file() && eaccess(path, AccessFlags::X_OK).is_ok())
}

/// Whether the path is a file.
pub fn is_file(path: &OsStr) -> bool {
    Path::new(path).is_file()
}

fn kind(path: &Path) -> FileKind {
    match fs::metadata(path) {
        Ok(found) if found.is_file() => FileKind::File {
            is_executable: eaccess(path, AccessFlags::X_OK).is_ok(),
            is_noexec: is_noexec(path),
            head: head(path),
        },
        Ok(found) if found.is_dir() => FileKind::Directory,
        Ok(_) => FileKind::Special,
        Err(error) if error.kind() == ErrorKind::PermissionDenied => FileKind::Unreachable,
        Err(_) => {
            fs::read_link(path).map_or(FileKind::Missing, |to| FileKind::BrokenLink(to.to_string_lossy().into_owned()))
        }
    }
}

fn is_noexec(path: &Path) -> bool {
    statvfs(path).is_ok_and(|system| system.flags().contains(FsFlags::ST_NOEXEC))
}

fn head(path: &Path) -> Option<Head> {
    first_bytes(path, HEAD_BYTES).map(|bytes| Head::of(&bytes))
}

fn first_bytes(path: &Path, most: u64) -> Option<Vec<u8>> {
    let mut bytes = Vec::new();
    let file: File = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(path).ok()?;
    file.take(most).read_to_end(&mut bytes).ok()?;
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_is_read_with_all_its_interpreters() {
        let dir = tempfile::tempdir().expect("temporary directory");
        let script = dir.path().join("script");
        fs::write(&script, "#!/no/such/interpreter\n").expect("written");
        let chain = look(script.as_os_str(), None);
        assert_eq!(chain.len(), 2, "{chain:?}");
        assert!(matches!(chain[0].1, FileKind::File { is_executable: false, .. }), "{chain:?}");
        assert_eq!(chain[1], ("/no/such/interpreter".to_owned(), FileKind::Missing));
        let path = format!("/nowhere:{}", dir.path().display());
        assert_eq!(look(OsStr::new("script"), Some(path.as_bytes())), chain, "found along PATH");
        assert_eq!(look(OsStr::new("no-such"), Some(path.as_bytes())), []);
        assert_eq!(look(OsStr::new("/dev/null"), None)[0].1, FileKind::Special);
        std::os::unix::fs::symlink("/gone", dir.path().join("link")).expect("linked");
        assert_eq!(look(dir.path().join("link").as_os_str(), None)[0].1, FileKind::BrokenLink("/gone".to_owned()));
        // A script that names itself does not loop.
        fs::write(&script, format!("#!{}\n", script.display())).expect("written");
        assert_eq!(look(script.as_os_str(), None).len(), MOST_LINKS + 1);
    }

    #[test]
    fn a_noexec_file_system_is_recognised() {
        let mounts = fs::read_to_string("/proc/self/mounts").expect("mounts");
        let proc = mounts.lines().find(|line| line.split(' ').nth(1) == Some("/proc"));
        assert_eq!(is_noexec(Path::new("/proc/version")), proc.is_some_and(|line| line.contains("noexec")), "{mounts}");
    }
}
