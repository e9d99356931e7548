//! Memory in large pages, for file buffers: the kernel takes longer to map and clear 4 KiB pages than to copy into
//! them.

#![expect(unsafe_code, reason = "mmap and madvise")]

use std::io;
use std::num::NonZeroUsize;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::slice;

use nix::errno::Errno;
use nix::sys::mman::{MapFlags, MmapAdvise, ProtFlags, madvise, mmap_anonymous, munmap};

/// The size of a large page on x86-64, and on aarch64 with 4 KiB pages.
const LARGE: usize = 2 << 20;

/// A zeroed memory mapping, unmapped when it is dropped.
pub(crate) struct Pages {
    at: NonNull<u8>,
    length: usize,
}

// SAFETY: the mapping has one owner.
unsafe impl Send for Pages {}
// SAFETY: as above; it is written only through `&mut`.
unsafe impl Sync for Pages {}

impl Pages {
    /// Maps `length` bytes, in large pages if the kernel has some and `length` fills at least one.
    ///
    /// # Errors
    /// Out of memory, or `length` is 0.
    pub(crate) fn new(length: usize) -> io::Result<Pages> {
        if length >= LARGE {
            Pages::map(length, LARGE, MmapAdvise::MADV_HUGEPAGE)
        } else {
            Pages::map(length, 0, MmapAdvise::MADV_NORMAL)
        }
    }

    /// Maps `length` bytes, aligned to `slack`.
    fn map(length: usize, slack: usize, advice: MmapAdvise) -> io::Result<Pages> {
        let whole = NonZeroUsize::new(length + slack).ok_or(Errno::EINVAL)?;
        let read_write = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
        // SAFETY: a new mapping; no reference exists yet to the parts around the aligned range that are unmapped.
        unsafe {
            let all = mmap_anonymous(None, whole, read_write, MapFlags::MAP_PRIVATE)?;
            let before = if slack > 0 { all.cast::<u8>().align_offset(slack) } else { 0 };
            let at = all.byte_add(before);
            if before > 0 {
                let _ = munmap(all, before);
            }
            if slack > before {
                let _ = munmap(at.byte_add(length), slack - before);
            }
            let _ = madvise(at, length, advice);
            Ok(Pages { at: at.cast(), length })
        }
    }
}

/// An empty range.
impl Default for Pages {
    fn default() -> Pages {
        Pages { at: NonNull::dangling(), length: 0 }
    }
}

impl Deref for Pages {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: `length` zeroed bytes are mapped there until the drop; with length 0 the pointer may dangle.
        unsafe { slice::from_raw_parts(self.at.as_ptr(), self.length) }
    }
}

impl DerefMut for Pages {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and no other reference exists.
        unsafe { slice::from_raw_parts_mut(self.at.as_ptr(), self.length) }
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        if self.length > 0 {
            // SAFETY: mapped by `new`, and no reference exists any more.
            let _ = unsafe { munmap(self.at.cast(), self.length) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_are_zeroed_aligned_and_writable_to_the_last_byte() {
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
    fn more_memory_than_exists_is_an_error() {
        assert!(Pages::new(usize::MAX / 2).is_err());
    }
}
