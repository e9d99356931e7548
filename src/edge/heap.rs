//! The heap of the static file: musl gives a page back as soon as nothing is in it, and takes a fresh one for the next
//! allocation, two system calls and a page fault each time, also between a SIGTERM and the command.

#![expect(unsafe_code, reason = "madvise on memory of our own")]

use std::ffi::c_void;
use std::hint;
use std::mem;

/// Up to which size, in bytes, allocations are served from pages that stay.
const LARGEST: usize = 2048;

/// Keeps one allocation of each size that is used, so that their pages stay; some 20 KiB in all.
pub fn keep_warm() {
    if !cfg!(target_env = "musl") {
        return;
    }
    // Every 16 bytes, then by fifths: no wider apart than musl's own classes.
    let mut size = 12;
    while size <= LARGEST {
        mem::forget(hint::black_box(Vec::<u8>::with_capacity(size)));
        size = (size + 16).max(size * 6 / 5);
    }
}

/// Zeroed bytes; so many that huge pages fit in are in such where the kernel has some (transparent_hugepage is `madvise` or
/// `always`): to map and clear small ones takes as long as to fill them.
pub fn zeroed(length: usize) -> Vec<u8> {
    /// Of all kernels' small pages the largest.
    const PAGE: usize = 64 << 10;
    const HUGE: usize = 2 << 20;
    let bytes = vec![0; length];
    if length >= 2 * HUGE {
        let from = bytes.as_ptr().addr().next_multiple_of(PAGE);
        let end = bytes.as_ptr().addr() + length;
        // SAFETY: a hint, about pages that are ours; of the last, others may have a part.
        unsafe { libc::madvise(from as *mut c_void, end - from, libc::MADV_HUGEPAGE) };
    }
    bytes
}
