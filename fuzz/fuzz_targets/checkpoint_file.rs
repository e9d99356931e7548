//! The checks that a file was not cut short: zip, safetensors, HDF5, JSON, pickle, NumPy. The first byte selects the type.
#![no_main]

use trainit_rules::checkpoint::{Entry, Kind, Peek, ends};

const ENDINGS: [&str; 8] = ["pt", "bin", "npz", "safetensors", "h5", "json", "pkl", "npy"];

struct Memory<'a>(&'a [u8]);

impl Peek for Memory<'_> {
    fn read(&self, _: &str, from: u64, length: usize) -> Option<Vec<u8>> {
        let rest = self.0.get(usize::try_from(from).ok()?..).unwrap_or_default();
        Some(rest[..length.min(rest.len())].to_vec())
    }
}

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let Some((first, content)) = bytes.split_first() else { return };
    let entry = Entry {
        path: format!("step-1/file.{}", ENDINGS[usize::from(*first) % ENDINGS.len()]),
        kind: Kind::File,
        size: content.len() as u64,
        mtime_ns: 0,
        ctime_ns: 0,
        inode: 1,
        device: 1,
        mode: 0o644,
        through: None,
    };
    if let Err(why) = ends::whole(&Memory(content), &entry) {
        assert!(!why.contains('\n') && why.len() < 1000, "{why:?}");
    }
});
