//! Writes into a named pipe that another program reads.

use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::FileTypeExt;
use std::path::Path;

use nix::fcntl::OFlag;

use super::trusted_open;

/// Writes a line without waiting for a reader. Errors: as open(2) and write(2), `ENXIO` if no process reads it; it is not a
/// pipe.
pub fn write_line(path: &Path, line: &str) -> io::Result<()> {
    let mut pipe = trusted_open::open(path, OFlag::O_WRONLY | OFlag::O_NONBLOCK)?;
    if !pipe.metadata()?.file_type().is_fifo() {
        return Err(io::Error::new(ErrorKind::InvalidInput, "it is not a named pipe"));
    }
    pipe.write_all(format!("{line}\n").as_bytes())
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::os::unix::fs::OpenOptionsExt;

    use super::*;

    #[test]
    fn a_pipe_without_a_reader_and_a_file_are_refused_at_once() {
        let place = tempfile::tempdir().expect("a directory");
        let (pipe, file) = (place.path().join("pipe"), place.path().join("file"));
        nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::S_IRWXU).expect("a pipe");
        std::fs::write(&file, "x").expect("a file");
        assert!(write_line(&pipe, "1").is_err() && write_line(&file, "1").is_err());
        assert_eq!(std::fs::read_to_string(&file).expect("it"), "x");
        let mut reader =
            std::fs::File::options().read(true).custom_flags(libc::O_NONBLOCK).open(&pipe).expect("a reader");
        write_line(&pipe, "1").expect("written");
        let mut received = [0; 2];
        reader.read_exact(&mut received).expect("read");
        assert_eq!(&received, b"1\n");
    }
}
