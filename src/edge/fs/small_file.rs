//! Reads small files that this process does not trust: only regular files, and never more than the limit.

use std::fs;
use std::io::{self, ErrorKind, Read};
use std::path::Path;

use nix::fcntl::OFlag;

use crate::edge::fs::trusted_open;

/// The file's first `limit` bytes as text (invalid UTF-8 is replaced); `None` if it does not exist. Errors: it cannot be read
/// or is not a regular file.
pub fn read_small(path: &str, limit: usize) -> io::Result<Option<String>> {
    read(path, limit, OFlag::empty())
}

/// The same, but a symbolic link is not followed.
pub fn read_small_itself(path: &str, limit: usize) -> io::Result<Option<String>> {
    read(path, limit, OFlag::O_NOFOLLOW)
}

fn read(path: &str, limit: usize, flags: OFlag) -> io::Result<Option<String>> {
    // O_NONBLOCK: a FIFO in its place must not block.
    let file = match trusted_open::open(Path::new(path), OFlag::O_RDONLY | OFlag::O_NONBLOCK | flags) {
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => return Ok(None),
        // In a directory without permission the file counts as missing.
        Err(error) if error.kind() == ErrorKind::PermissionDenied && fs::symlink_metadata(path).is_err() => {
            return Ok(None);
        }
        file => file?,
    };
    if !file.metadata()?.is_file() {
        return Err(io::Error::other("it is not a regular file"));
    }
    let mut bytes = Vec::new();
    file.take(limit as u64).read_to_end(&mut bytes)?;
    Ok(Some(String::from_utf8_lossy(&bytes).into_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_regular_files_are_read_up_to_the_limit() {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
        std::fs::write(path("file"), "abcdef").unwrap();
        std::os::unix::fs::symlink(path("file"), path("link")).unwrap();
        nix::unistd::mkfifo(path("fifo").as_str(), nix::sys::stat::Mode::S_IRWXU).unwrap();
        assert_eq!(read_small(&path("link"), 3).unwrap().as_deref(), Some("abc"));
        assert_eq!(read_small_itself(&path("file"), 3).unwrap().as_deref(), Some("abc"));
        assert!(read_small_itself(&path("link"), 3).is_err());
        for absent in [path("absent"), path("file/below")] {
            assert_eq!(read_small(&absent, 3).unwrap(), None, "{absent}");
        }
        for other in [path("fifo"), path(""), "/dev/zero".to_owned()] {
            assert!(read_small(&other, 3).is_err(), "{other}");
        }
    }
}
