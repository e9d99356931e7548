//! Checks that the container files of weights are not cut short: a few reads each, without any framework.

use std::collections::BTreeMap;

use serde::Deserialize;

use crate::checkpoint::listing::{Entry, Peek};

/// The end record of a zip file with the longest possible comment.
const ZIP_TAIL: u64 = 65_557;
/// Longest JSON header of a safetensors file that its readers accept.
const JSON_LIMIT: u64 = 100 << 20;
/// The last eight bytes of a TensorFlow table (`.index`), little endian.
pub(super) const TABLE_MAGIC: u64 = 0xdb47_7524_8b80_fb57;
pub(super) const HDF5_SIGNATURE: &[u8] = b"\x89HDF\r\n\x1a\n";

/// Errors: why the file is not whole, in one clause.
pub(in crate::checkpoint) type Verdict = Result<(), String>;

/// After a crash of the machine, a file may hold zeros where data had not reached the disk.
pub(super) fn no_zeros(peek: &dyn Peek, file: &Entry) -> Verdict {
    let head = peek.read(&file.path, 0, 4).ok_or("it cannot be read")?;
    let is_zeros = !head.is_empty() && head.iter().all(|byte| *byte == 0);
    if is_zeros { Err("it starts with zeros: not written yet".to_owned()) } else { Ok(()) }
}

/// `torch.save`: a zip file, or a pickle in older versions. The end of such a pickle cannot be checked.
pub(super) fn torch(peek: &dyn Peek, file: &Entry) -> Verdict {
    let head = peek.read(&file.path, 0, 4).ok_or("it cannot be read")?;
    match head.as_slice() {
        [] => Err("it is empty".to_owned()),
        b"PK\x03\x04" => zip(peek, file),
        head if b"PK\x03\x04".starts_with(head) => Err("it is cut short".to_owned()),
        _ => no_zeros(peek, file),
    }
}

/// A zip file whose central directory ends where its end record starts.
pub(super) fn zip(peek: &dyn Peek, file: &Entry) -> Verdict {
    let read = |from, length| peek.read(&file.path, from, length).ok_or("it cannot be read");
    if read(0, 4)? != b"PK\x03\x04" {
        return Err("it is not a zip file".to_owned());
    }
    let from = file.size.saturating_sub(ZIP_TAIL);
    let tail = read(from, (file.size - from) as usize)?;
    let at = (0..tail.len().saturating_sub(21))
        .rev()
        .find(|at| tail[*at..].starts_with(b"PK\x05\x06") && *at + 22 + le(&tail, at + 20, 2) as usize == tail.len())
        .ok_or("it has no zip end record: cut short")?;
    let (size, offset) = (le(&tail, at + 12, 4), le(&tail, at + 16, 4));
    let end = from + at as u64;
    if offset.checked_add(size) == Some(end) {
        return Ok(());
    }
    let cut = "its zip directory does not end where the end record starts: cut short or joined";
    if at < 20 || !tail[at - 20..].starts_with(b"PK\x06\x07") {
        return Err(cut.to_owned());
    }
    let record_at = le(&tail, at - 20 + 8, 8);
    let record = read(record_at, 56)?;
    if record.len() < 56 || !record.starts_with(b"PK\x06\x06") {
        return Err("its zip64 end record is missing: cut short".to_owned());
    }
    let (size, offset) = (le(&record, 40, 8), le(&record, 48, 8));
    if offset.checked_add(size) == Some(record_at) { Ok(()) } else { Err(cut.to_owned()) }
}

/// A safetensors file whose tensors fill it to the last byte without overlap.
pub(super) fn safetensors(peek: &dyn Peek, file: &Entry) -> Verdict {
    #[derive(Deserialize)]
    struct Tensor {
        data_offsets: (u64, u64),
    }
    let read = |from, length| peek.read(&file.path, from, length).ok_or("it cannot be read");
    let head = read(0, 8)?;
    if head.len() < 8 {
        return Err("it is shorter than its header: cut short".to_owned());
    }
    let length = le(&head, 0, 8);
    if length >= JSON_LIMIT || 8 + length > file.size {
        return Err(format!("its header claims {length} bytes: cut short or not a safetensors file"));
    }
    let header = read(8, length as usize)?;
    let header: BTreeMap<String, serde_json::Value> =
        serde_json::from_slice(&header).map_err(|_| "its header is not JSON: cut short or not a safetensors file")?;
    let mut spans = Vec::new();
    for (name, value) in header.into_iter().filter(|(name, _)| name != "__metadata__") {
        let tensor: Tensor =
            serde_json::from_value(value).map_err(|_| format!("its header has no offsets for {name:?}"))?;
        spans.push(tensor.data_offsets);
    }
    spans.sort_unstable();
    let mut end = 0;
    for (from, to) in spans {
        if from < end || to < from {
            return Err("its tensors overlap".to_owned());
        }
        end = to;
    }
    match end.checked_add(8 + length) {
        Some(end) if end == file.size => Ok(()),
        Some(end) => Err(format!("it should have {end} bytes and has {}", file.size)),
        None => Err("the ends of its tensors overflow".to_owned()),
    }
}

/// An HDF5 file as long as its superblock says.
pub(super) fn hdf5(peek: &dyn Peek, file: &Entry) -> Verdict {
    let mut at = 0;
    loop {
        let head = peek.read(&file.path, at, 64).ok_or("it cannot be read")?;
        if head.starts_with(HDF5_SIGNATURE) && head.len() > 16 {
            return match hdf5_end(&head) {
                Some((base, end)) if end == file.size || base.checked_add(end) == Some(file.size) => Ok(()),
                Some((_, end)) => Err(format!("its superblock says {end} bytes and it has {}", file.size)),
                None => Err("its superblock is cut short or of an unknown version".to_owned()),
            };
        }
        at = if at == 0 { 512 } else { at * 2 };
        if at >= file.size {
            return Err("it is not an HDF5 file, or was not closed".to_owned());
        }
    }
}

/// Base address and end of file address from a superblock.
fn hdf5_end(head: &[u8]) -> Option<(u64, u64)> {
    let (width, base, between) = match *head.get(8)? {
        0 => (*head.get(13)?, 24, 2),
        1 => (*head.get(13)?, 28, 2),
        2 | 3 => (*head.get(9)?, 12, 2),
        _ => return None,
    };
    let width = usize::from(width);
    let end = base + between * width;
    ((1..=8).contains(&width) && head.len() >= end + width).then(|| (le(head, base, width), le(head, end, width)))
}

/// A TensorFlow table: it ends with the magic number.
pub(in crate::checkpoint) fn table(peek: &dyn Peek, file: &Entry) -> Verdict {
    let tail = peek.read(&file.path, file.size.saturating_sub(8), 8).ok_or("it cannot be read")?;
    let whole = tail.len() == 8 && le(&tail, 0, 8) == TABLE_MAGIC;
    if whole {
        Ok(())
    } else {
        Err("it does not end with the magic number of a TensorFlow index: cut short".to_owned())
    }
}

/// A little-endian number; bytes past the end count as zero.
pub(super) fn le(bytes: &[u8], at: usize, width: usize) -> u64 {
    (0..width).rev().fold(0, |n, i| n << 8 | u64::from(bytes.get(at + i).copied().unwrap_or(0)))
}
