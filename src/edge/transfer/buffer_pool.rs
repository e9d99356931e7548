//! Reusable buffers for file transfers: the kernel takes longer to map and clear the pages of a new buffer than to copy
//! into it.

use std::io;
use std::sync::{Arc, Mutex, PoisonError};

use crate::edge::transfer::large_pages::Pages;

type Free = Arc<Mutex<Vec<Pages>>>;

/// Buffers of one length. The pool grows with the number of buffers in use, which the caller limits, and is dropped
/// with the transfer.
#[derive(Clone)]
pub(crate) struct Pool {
    /// The length of each buffer in bytes.
    pub(crate) length: usize,
    free: Free,
}

impl Pool {
    pub(crate) fn new(length: u64) -> Pool {
        Pool { length: length as usize, free: Free::default() }
    }

    /// An empty buffer.
    ///
    /// # Errors
    /// Out of memory.
    pub(crate) fn take(&self) -> io::Result<Buffer> {
        let used_before = self.free.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let bytes = used_before.map_or_else(|| Pages::new(self.length), Ok)?;
        Ok(Buffer { bytes, filled: 0, home: Arc::clone(&self.free) })
    }
}

/// Returns to its pool when it is dropped.
pub(crate) struct Buffer {
    bytes: Pages,
    filled: usize,
    home: Free,
}

impl Buffer {
    /// Replaces the content: `read` fills at most `length` bytes and returns the number of bytes filled.
    pub(crate) fn fill(&mut self, length: u64, read: impl FnOnce(&mut [u8]) -> io::Result<usize>) -> io::Result<()> {
        let length = self.bytes.len().min(length as usize);
        self.filled = read(&mut self.bytes[..length])?;
        Ok(())
    }

    /// Appends as many bytes as there is room for, and returns the rest.
    pub(crate) fn gather<'a>(&mut self, bytes: &'a [u8]) -> &'a [u8] {
        let room = &mut self.bytes[self.filled..];
        let (taken, rest) = bytes.split_at(bytes.len().min(room.len()));
        room[..taken.len()].copy_from_slice(taken);
        self.filled += taken.len();
        rest
    }
}

impl AsRef<[u8]> for Buffer {
    fn as_ref(&self) -> &[u8] {
        &self.bytes[..self.filled]
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        let bytes = std::mem::take(&mut self.bytes);
        self.home.lock().unwrap_or_else(PoisonError::into_inner).push(bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reused_buffer_contains_nothing_of_its_last_use() {
        let pool = Pool::new(8);
        let mut buffer = pool.take().expect("there is memory");
        assert_eq!(buffer.gather(b"0123456789"), b"89");
        let place = buffer.as_ref().as_ptr();
        drop(buffer);
        let mut again = pool.take().expect("there is memory");
        assert_eq!(again.as_ref(), b"");
        assert_eq!(again.as_ref().as_ptr(), place, "a fresh buffer was made");
        again.fill(3, |room| Ok(room.len())).expect("fills");
        assert_eq!(again.as_ref().len(), 3);
        let other = pool.take().expect("there is memory");
        assert_ne!(other.as_ref().as_ptr(), place, "a buffer in use was given away");
    }
}
