//! The heap of the static file: musl gives a page back as soon as nothing is in it, and takes a fresh one for the next
//! allocation, two system calls and a page fault each time, also between a SIGTERM and the command.

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
