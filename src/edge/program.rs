//! A look at the file of a command, and at those that are to run it: what lies there, and how it begins.

use std::ffi::{OsStr, OsString};
use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Read};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use nix::sys::statvfs::{FsFlags, statvfs};
use nix::unistd::{AccessFlags, eaccess};

use super::process::candidates;
use crate::rules::program::head::Head;
use crate::rules::program::{Chain, Lies};

/// The processor that trainit was built for, and so one that this machine runs.
pub const MACHINE: &str = std::env::consts::ARCH;
/// A program's loader is named in its first bytes, behind some ten program headers; who moved it away names none here.
const HEAD_BYTES: u64 = 64 << 10;
/// Linux goes no further from script to interpreter.
const MOST_LINKS: usize = 5;

/// What there is of a command, and of its interpreters; empty where no candidate lies anywhere. `path` is PATH, if it is set.
pub fn look(program: &OsStr, path: Option<&[u8]>) -> Chain {
    let mut chain = Chain::new();
    let candidates = candidates(program.as_bytes(), path.unwrap_or(super::process::DEFAULT_PATH));
    let mut barred = None;
    let mut next =
        candidates.into_iter().map(|path| PathBuf::from(OsString::from_vec(path))).find_map(|path| match lies(&path) {
            Lies::Nothing => None,
            Lies::Barred => {
                barred.get_or_insert((path, Lies::Barred));
                None
            }
            lies => Some((path, lies)),
        });
    next = next.or(barred);
    while let Some((path, lies)) = next.take() {
        let interpreter = match &lies {
            Lies::File { head: Some(head), .. } if chain.len() < MOST_LINKS => head.interpreter(),
            _ => None,
        };
        next = interpreter.map(|bytes| PathBuf::from(OsStr::from_bytes(bytes))).map(|path| {
            let lies = self::lies(&path);
            (path, lies)
        });
        chain.push((path.to_string_lossy().into_owned(), lies));
    }
    chain
}

/// Whether a file lies there.
pub fn is_file(path: &OsStr) -> bool {
    Path::new(path).is_file()
}

fn lies(path: &Path) -> Lies {
    match fs::metadata(path) {
        Ok(found) if found.is_file() => Lies::File {
            is_executable: eaccess(path, AccessFlags::X_OK).is_ok(),
            is_noexec: is_noexec(path),
            head: head(path),
        },
        Ok(found) if found.is_dir() => Lies::Directory,
        Ok(_) => Lies::Special,
        Err(error) if error.kind() == ErrorKind::PermissionDenied => Lies::Barred,
        Err(_) => {
            fs::read_link(path).map_or(Lies::Nothing, |to| Lies::LinkToNothing(to.to_string_lossy().into_owned()))
        }
    }
}

fn is_noexec(path: &Path) -> bool {
    statvfs(path).is_ok_and(|system| system.flags().contains(FsFlags::ST_NOEXEC))
}

fn head(path: &Path) -> Option<Head> {
    let mut bytes = Vec::new();
    let file: File = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(path).ok()?;
    file.take(HEAD_BYTES).read_to_end(&mut bytes).ok()?;
    Some(Head::of(&bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_is_looked_at_with_all_that_is_to_run_it() {
        let dir = tempfile::tempdir().expect("temporary directory");
        let script = dir.path().join("script");
        fs::write(&script, "#!/no/such/interpreter\n").expect("written");
        let chain = look(script.as_os_str(), None);
        assert_eq!(chain.len(), 2, "{chain:?}");
        assert!(matches!(chain[0].1, Lies::File { is_executable: false, .. }), "{chain:?}");
        assert_eq!(chain[1], ("/no/such/interpreter".to_owned(), Lies::Nothing));
        let path = format!("/nowhere:{}", dir.path().display());
        assert_eq!(look(OsStr::new("script"), Some(path.as_bytes())), chain, "found along PATH");
        assert_eq!(look(OsStr::new("no-such"), Some(path.as_bytes())), []);
        assert_eq!(look(OsStr::new("/dev/null"), None)[0].1, Lies::Special);
        std::os::unix::fs::symlink("/gone", dir.path().join("link")).expect("linked");
        assert_eq!(look(dir.path().join("link").as_os_str(), None)[0].1, Lies::LinkToNothing("/gone".to_owned()));
        // It runs itself: an end is found.
        fs::write(&script, format!("#!{}\n", script.display())).expect("written");
        assert_eq!(look(script.as_os_str(), None).len(), MOST_LINKS + 1);
    }

    #[test]
    fn a_file_system_that_nothing_is_executed_from_is_known() {
        let mounts = fs::read_to_string("/proc/self/mounts").expect("mounts");
        let proc = mounts.lines().find(|line| line.split(' ').nth(1) == Some("/proc"));
        assert_eq!(is_noexec(Path::new("/proc/version")), proc.is_some_and(|line| line.contains("noexec")), "{mounts}");
    }
}
