//! Memory in large pages, for buffers that files pass through: to map and clear 4 KiB at a time takes the kernel longer
//! than to copy into them.

#![expect(unsafe_code, reason = "mmap and madvise")]

use std::io;
use std::ops::{Deref, DerefMut};
use std::ptr::{self, NonNull};
use std::slice;

/// Bytes of a large page: x86-64's, and aarch64's with pages of 4 KiB.
const LARGE: usize = 2 << 20;

/// Zeroed bytes in a place of their own, given back to the kernel when they are dropped.
pub(crate) struct Pages {
    at: NonNull<u8>,
    length: usize,
}

// SAFETY: nobody else has the place.
unsafe impl Send for Pages {}
// SAFETY: as above; it is written through `&mut` alone.
unsafe impl Sync for Pages {}

impl Pages {
    /// So many bytes, in large pages where the kernel has some and `length` fills them.
    ///
    /// # Errors
    /// Out of memory, or none asked for.
    pub(crate) fn new(length: usize) -> io::Result<Pages> {
        if length >= LARGE {
            Pages::map(length, LARGE, libc::MADV_HUGEPAGE)
        } else {
            Pages::map(length, 0, libc::MADV_NORMAL)
        }
    }

    /// So many bytes, of which few will be touched: the others take no memory.
    ///
    /// # Errors
    /// As [`Pages::new`].
    pub(crate) fn bare(length: usize) -> io::Result<Pages> {
        Pages::map(length, 0, libc::MADV_NOHUGEPAGE)
    }

    /// So many bytes, aligned to `slack`.
    fn map(length: usize, slack: usize, advice: libc::c_int) -> io::Result<Pages> {
        let (read_write, own) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: a fresh mapping; what lies before and behind the aligned place, and is given back, nobody has seen.
        unsafe {
            let all = libc::mmap(ptr::null_mut(), length + slack, read_write, own, -1, 0);
            if all == libc::MAP_FAILED {
                return Err(io::Error::last_os_error());
            }
            let before = if slack > 0 { all.align_offset(slack) } else { 0 };
            let at = all.add(before);
            if before > 0 {
                libc::munmap(all, before);
            }
            if slack > before {
                libc::munmap(at.add(length), slack - before);
            }
            libc::madvise(at, length, advice);
            let at = NonNull::new(at.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
            Ok(Pages { at, length })
        }
    }
}

/// None.
impl Default for Pages {
    fn default() -> Pages {
        Pages { at: NonNull::dangling(), length: 0 }
    }
}

impl Deref for Pages {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: `length` zeroed bytes are mapped there until the drop; of none, the place may dangle.
        unsafe { slice::from_raw_parts(self.at.as_ptr(), self.length) }
    }
}

impl DerefMut for Pages {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and nobody else has a reference.
        unsafe { slice::from_raw_parts_mut(self.at.as_ptr(), self.length) }
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        if self.length > 0 {
            // SAFETY: mapped by `new`, and nobody has a reference any more.
            unsafe { libc::munmap(self.at.as_ptr().cast(), self.length) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_are_zeroed_aligned_and_ones_own_to_the_last_byte() {
        for length in [1, 4096, LARGE - 1, LARGE, 2 * LARGE, 2 * LARGE + 4096] {
            let mut pages = Pages::new(length).expect("there is memory");
            assert_eq!(pages.len(), length);
            assert!(pages.iter().all(|byte| *byte == 0), "{length}");
            pages.fill(7);
            if length >= LARGE {
                assert_eq!(pages.as_ptr() as usize % LARGE, 0, "{length}");
            }
        }
        assert!(Pages::default().is_empty());
    }

    #[test]
    fn more_than_there_is_is_an_error() {
        assert!(Pages::new(usize::MAX / 2).is_err());
    }
}
