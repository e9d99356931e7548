//! Small files of others, read without trust: only regular ones, never more than asked for.
//!
//! Deliberately absent: errors. A file that cannot be read is not there.

use std::fs::OpenOptions;
use std::io::Read;
use std::os::unix::fs::OpenOptionsExt;

/// The file's first `limit` bytes as text (what is no UTF-8 is replaced); `None` for what is no readable regular file.
pub fn read_small(path: &str, limit: usize) -> Option<String> {
    // A FIFO in its place must not hold us up.
    let file = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY).open(path).ok()?;
    if !file.metadata().ok()?.is_file() {
        return None;
    }
    let mut bytes = Vec::new();
    file.take(limit as u64).read_to_end(&mut bytes).ok()?;
    Some(String::from_utf8_lossy(&bytes).into_owned())
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
        assert_eq!(read_small(&path("link"), 3).as_deref(), Some("abc"));
        for other in [path("fifo"), path("absent"), path(""), "/dev/zero".to_owned()] {
            assert_eq!(read_small(&other, 3), None, "{other}");
        }
    }
}
