//! Our own code's memory: start-up touches almost all of the file once, supervising needs a few pages of it.
//!
//! Deliberately absent: anything that could lose data. Only pages that are not writable are let go; they are the file's
//! own, and come back from it when they are needed again.

#![expect(unsafe_code, reason = "dl_iterate_phdr and madvise on our own segments")]

use std::ffi::{c_int, c_void};

/// Takes the program's code and constants out of our resident memory, so that an idle trainit counts for what it uses.
pub fn let_go() {
    // SAFETY: the callback matches the signature and needs no data; nothing is loaded or unloaded meanwhile.
    unsafe { libc::dl_iterate_phdr(Some(let_go_of), std::ptr::null_mut()) };
}

/// The first object is the program itself; shared libraries are other processes' too, so the walk ends there.
unsafe extern "C" fn let_go_of(info: *mut libc::dl_phdr_info, _: usize, _: *mut c_void) -> c_int {
    // SAFETY: the C library hands over a valid description, its table of headers included.
    let (base, headers) = unsafe {
        let info = &*info;
        (info.dlpi_addr, std::slice::from_raw_parts(info.dlpi_phdr, usize::from(info.dlpi_phnum)))
    };
    // SAFETY: asks for a number.
    let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) } as u64;
    for header in headers.iter().filter(|h| h.p_type == libc::PT_LOAD && h.p_flags & libc::PF_W == 0) {
        // Whole pages only: the ones at the ends may be shared with a segment that is written to.
        let from = (base + header.p_vaddr).next_multiple_of(page);
        let to = (base + header.p_vaddr + header.p_filesz) / page * page;
        if from < to {
            // SAFETY: a private, unwritten file mapping: the next access reads the same bytes from the file again.
            unsafe { libc::madvise(from as *mut c_void, (to - from) as usize, libc::MADV_DONTNEED) };
        }
    }
    1
}
