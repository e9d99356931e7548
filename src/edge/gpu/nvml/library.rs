//! Finds NVML: the paths of the library in the order of search, and a check for the toolkit's stub, which is never
//! used.
//!
//! Deliberately absent: loading it.
//!
//! libc is used because nix has no dladdr(3).

#![expect(unsafe_code, reason = "asking the loader where a function came from")]

use std::ffi::{CStr, c_void};
use std::path::{Path, PathBuf};

use nvml_wrapper_sys::bindings::NvmlLib;

use super::blank;
use crate::rules::process::env::Env;

const SONAME: &str = "libnvidia-ml.so.1";

/// Directories in which container runtimes put the library, searched after the loader's own. A `*` matches one
/// directory.
const DIRECTORIES: &[&str] = &[
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu",
    "/usr/lib64",
    "/usr/local/nvidia/lib64",
    "/usr/local/nvidia/lib",
    "/usr/lib/wsl/lib",
    "/usr/lib/wsl/drivers/*",
    "/usr/lib/aarch64-linux-gnu/nvidia",
    "/run/opengl-driver/lib",
    "/run/nvidia/driver/usr/lib/*",
];

/// The library's paths in the order of search. A path set by the user is the only one.
pub(super) fn candidates(env: &Env) -> Vec<PathBuf> {
    if let Some(named) = env.given("TRAINIT_NVML_LIBRARY") {
        return vec![PathBuf::from(named)];
    }
    let mut paths = vec![PathBuf::from(SONAME)];
    let own = env.given("LD_LIBRARY_PATH").unwrap_or("").split([':', ';']).filter(|dir| dir.starts_with('/'));
    for dir in own.chain(DIRECTORIES.iter().copied()) {
        match dir.strip_suffix("/*") {
            None => paths.push(Path::new(dir).join(SONAME)),
            Some(parent) => {
                let entries = std::fs::read_dir(parent).into_iter().flatten().flatten();
                paths.extend(entries.map(|entry| entry.path().join(SONAME)));
            }
        }
    }
    let named_by_path = paths.split_off(1).into_iter().filter(|path| path.exists());
    paths.extend(named_by_path);
    paths
}

/// Whether the loader found the CUDA toolkit's stub, which prints a warning and finds no GPUs.
pub(super) fn is_stub(lib: &NvmlLib) -> bool {
    let Ok(function) = lib.nvmlInit_v2 else { return false };
    let mut info: libc::Dl_info = blank();
    // SAFETY: dladdr only looks the address up; the name it returns is valid while the library is loaded.
    unsafe {
        libc::dladdr(function as *const c_void, &raw mut info) != 0
            && !info.dli_fname.is_null()
            && CStr::from_ptr(info.dli_fname).to_bytes().windows(7).any(|part| part == b"/stubs/")
    }
}
