//! Reads and writes parts of a file; holes are skipped.

use std::fs::{File, Metadata};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};

use nix::errno::Errno;
use nix::fcntl::{PosixFadviseAdvice, posix_fadvise};
use nix::sys::stat::{Mode, fchmod, futimens};
use nix::sys::time::TimeSpec;
use nix::unistd::{Whence, lseek};

/// Up to `length` bytes from `from` on; shorter only at the end. Errors: as pread(2).
pub fn read_at(file: &File, from: u64, length: usize) -> io::Result<Vec<u8>> {
    let left = file.metadata()?.len().saturating_sub(from);
    let mut bytes = vec![0; length.min(usize::try_from(left).unwrap_or(usize::MAX))];
    let read = read_into(file, from, &mut bytes, |_| ())?;
    bytes.truncate(read);
    Ok(bytes)
}

/// Fills a buffer with the bytes from `from` on; returns how many, fewer only at the end. Holes are not read. `seen`
/// gets all bytes in order, while they are in the processor's cache. Errors: as pread(2).
pub fn read_into(file: &File, from: u64, bytes: &mut [u8], mut seen: impl FnMut(&[u8])) -> io::Result<usize> {
    const PIECE: usize = 256 << 10;
    let metadata = file.metadata()?;
    let left = usize::try_from(metadata.len().saturating_sub(from)).unwrap_or(usize::MAX);
    let length = bytes.len().min(left);
    let bytes = &mut bytes[..length];
    // SEEK_HOLE walks through all cached pages of the file.
    if !is_sparse(&metadata) {
        let mut at = from;
        for piece in bytes.chunks_mut(PIECE) {
            let read = fill(file, at, piece)?;
            seen(&piece[..read]);
            at += read as u64;
            if read < piece.len() {
                break;
            }
        }
        return Ok((at - from) as usize);
    }
    let end = from + length as u64;
    let mut at = from;
    while at < end {
        // Without SEEK_DATA everything counts as data.
        let data = match lseek(file, at as i64, Whence::SeekData) {
            Ok(data) => (data as u64).max(at),
            Err(Errno::ENXIO) => end,
            Err(_) => at,
        };
        bytes[(at - from) as usize..(data.min(end) - from) as usize].fill(0);
        if data >= end {
            at = end;
            break;
        }
        let hole = lseek(file, data as i64, Whence::SeekHole).map_or(end, |hole| (hole as u64).clamp(data + 1, end));
        let read = fill(file, data, &mut bytes[(data - from) as usize..(hole - from) as usize])?;
        at = data + read as u64;
        if at < hole {
            break;
        }
    }
    let read = (at - from) as usize;
    seen(&bytes[..read]);
    Ok(read)
}

/// Whether the file uses fewer bytes on the device than its length: it has holes or is compressed.
fn is_sparse(metadata: &Metadata) -> bool {
    metadata.blocks() * 512 < metadata.len()
}

/// Reads until the buffer is full, or to the end of a file that was cut in the meantime.
fn fill(file: &File, from: u64, room: &mut [u8]) -> io::Result<usize> {
    let mut filled = 0;
    while filled < room.len() {
        match file.read_at(&mut room[filled..], from + filled as u64) {
            Ok(0) => break,
            Ok(read) => filled += read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(filled)
}

/// Writes bytes at an offset, leaving runs of zeros as holes. The caller sets the length. Errors: as pwrite(2).
pub fn write_sparsely(file: &File, from: u64, bytes: &[u8]) -> io::Result<()> {
    const BLOCK: usize = 64 << 10;
    let is_zero = |block: &&[u8]| block.iter().all(|b| *b == 0);
    let mut at = 0;
    while at < bytes.len() {
        let blocks = bytes[at..].chunks(BLOCK);
        let zeros: usize = blocks.take_while(is_zero).map(<[u8]>::len).sum();
        let blocks = bytes[at + zeros..].chunks(BLOCK);
        let data: usize = blocks.take_while(|block| !is_zero(block)).map(<[u8]>::len).sum();
        let start = at + zeros;
        if data > 0 {
            file.write_all_at(&bytes[start..start + data], from + start as u64)?;
        }
        at = start + data;
    }
    Ok(())
}

/// Sets permission bits and modification time of a file that was written, and its length. Errors: as the calls.
pub fn finish_file(file: &File, size: u64, mode: u32, mtime_ns: i64) -> io::Result<()> {
    file.set_len(size)?;
    fchmod(file, Mode::from_bits_truncate(mode & 0o777))?;
    set_time(file, mtime_ns)
}

/// Sets the modification time. Errors: as futimens(2).
pub fn set_time(file: &File, mtime_ns: i64) -> io::Result<()> {
    let time = TimeSpec::new(mtime_ns.div_euclid(1_000_000_000), mtime_ns.rem_euclid(1_000_000_000));
    futimens(file, &time, &time)?;
    Ok(())
}

/// Sets the modification time to the file system's present time. Errors: as futimens(2).
pub fn touch(file: &File) -> io::Result<()> {
    Ok(futimens(file, &TimeSpec::UTIME_NOW, &TimeSpec::UTIME_NOW)?)
}

/// Drops the file from the page cache, to leave the cache to the trainer.
pub fn forget(file: &File) {
    let _ = posix_fadvise(file, 0, 0, PosixFadviseAdvice::POSIX_FADV_DONTNEED);
}

#[cfg(test)]
mod tests {
    use super::super::tests::fixture;
    use super::*;

    #[test]
    fn all_bytes_are_shown_in_order_and_in_pieces_that_fit_a_cache() {
        let (_dir, root) = fixture();
        let file = root.create_file("large").expect("creates");
        let bytes: Vec<u8> = (0..700 << 10).map(|n: u32| (n % 251) as u8).collect();
        file.write_all_at(&bytes, 0).expect("writes");
        let (mut room, mut shown) = (vec![0; bytes.len()], Vec::new());
        let read = read_into(&file, 5, &mut room, |piece| {
            assert!(piece.len() <= 256 << 10, "{} bytes at once", piece.len());
            shown.extend_from_slice(piece);
        });
        assert_eq!(read.expect("reads"), bytes.len() - 5);
        assert!(shown == bytes[5..] && room[..shown.len()] == shown, "other bytes than the file's");
    }

    #[test]
    fn a_file_that_is_cut_while_it_is_read_is_read_to_its_new_end() {
        let (_dir, root) = fixture();
        let file = root.create_file("large").expect("creates");
        file.write_all_at(&[b'x'; 700 << 10], 0).expect("writes");
        let (mut room, mut shown) = (vec![0; 700 << 10], 0);
        let read = read_into(&file, 0, &mut room, |piece| {
            shown += piece.len();
            file.set_len(300 << 10).expect("cuts");
        });
        assert_eq!((read.expect("it is no error"), shown), (300 << 10, 300 << 10));
    }

    #[test]
    fn holes_are_neither_read_nor_written() {
        let (_dir, root) = fixture();
        let file = root.create_file("a/sparse").expect("creates");
        write_sparsely(&file, 0, &[0; 1 << 20]).expect("writes");
        write_sparsely(&file, 1 << 20, b"data").expect("writes");
        finish_file(&file, 64 << 20, 0o640, 1_500_000_000_123_456_789).expect("finishes");
        let metadata = file.metadata().expect("stat");
        assert!(metadata.blocks() * 512 < 1 << 20, "{} blocks", metadata.blocks());
        assert_eq!((metadata.mode() & 0o777, metadata.mtime_nsec()), (0o640, 123_456_789));
        let read = read_at(&file, (1 << 20) - 2, 8).expect("reads");
        assert_eq!(read, b"\0\0data\0\0");
        assert_eq!(read_at(&file, (64 << 20) - 3, 8).expect("reads").len(), 3);
        assert_eq!(read_at(&file, 1 << 40, 8).expect("reads").len(), 0);
        let mut used = [b'x'; 8];
        let mut shown = Vec::new();
        let read = read_into(&file, (1 << 20) - 2, &mut used, |bytes| shown.extend_from_slice(bytes));
        assert_eq!(read.expect("reads"), 8);
        assert_eq!(shown, used);
        assert_eq!(&used, b"\0\0data\0\0", "the buffer is unchanged at holes");
        assert_eq!(read_into(&file, (64 << 20) - 3, &mut used, |_| ()).expect("reads"), 3);
        assert_eq!(&used[..3], b"\0\0\0");
    }
}
