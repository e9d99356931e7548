//! Small files of others, read without trust: only regular ones, never more than asked for.

use std::fs::{self, OpenOptions};
use std::io::{self, ErrorKind, Read};
use std::os::unix::fs::OpenOptionsExt;

/// The file's first `limit` bytes as text (what is no UTF-8 is replaced); `None` where there is none. Errors: it is there and
/// cannot be read, or is no regular file.
pub fn read_small(path: &str, limit: usize) -> io::Result<Option<String>> {
    read(path, limit, 0)
}

/// The same, but a symbolic link is not followed.
pub fn read_small_itself(path: &str, limit: usize) -> io::Result<Option<String>> {
    read(path, limit, libc::O_NOFOLLOW)
}

fn read(path: &str, limit: usize, flags: i32) -> io::Result<Option<String>> {
    // A FIFO in its place must not hold us up.
    let flags = flags | libc::O_NONBLOCK | libc::O_NOCTTY;
    let file = match OpenOptions::new().read(true).custom_flags(flags).open(path) {
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => return Ok(None),
        // Nobody can say that there is one in a directory that is closed to us.
        Err(error) if error.kind() == ErrorKind::PermissionDenied && fs::symlink_metadata(path).is_err() => {
            return Ok(None);
        }
        file => file?,
    };
    if !file.metadata()?.is_file() {
        return Err(io::Error::other("it is no regular file"));
    }
    let mut bytes = Vec::new();
    file.take(limit as u64).read_to_end(&mut bytes)?;
    Ok(Some(String::from_utf8_lossy(&bytes).into_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_regular_files_are_read_and_only_so_far() {
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
