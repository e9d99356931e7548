//! Fetches a range of an object into a file.

use std::fs::File;
use std::io;
use std::mem;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use bytes::Bytes;

use crate::edge::fs::rooted_dir::write_sparsely;
use crate::edge::store::{ObjectInfo, Store, StoreError};
use crate::edge::transfer::blocking::blocking;
use crate::rules::store::manifest::SMALL;

/// Bytes written at a time; a file of no more is small.
pub(crate) const BLOCK: u64 = SMALL;

/// The result of a fetch.
pub(crate) struct Fetched {
    /// Of the bytes of the range.
    pub(crate) crc32c: u32,
    /// The metadata of the whole object, from a bucket.
    pub(crate) info: Option<ObjectInfo>,
}

/// Fetches a range and writes it at its offset. `sparsely`: runs of zeros become holes, for a file without bytes there. The
/// outer error is the disk's.
pub(crate) async fn fetch_range(
    store: Arc<Store>,
    file: Arc<File>,
    key: String,
    range: Range<u64>,
    sparsely: bool,
) -> io::Result<Result<Fetched, StoreError>> {
    let (mut crc32c, mut at) = (0, range.start);
    let mut reading = match store.read(&key, at, range.end - range.start).await {
        Ok(reading) => reading,
        Err(error) => return Ok(Err(error)),
    };
    let (mut pieces, mut held) = (Vec::new(), 0);
    loop {
        let piece = match reading.next().await {
            Ok(piece) => piece,
            Err(error) => return Ok(Err(error)),
        };
        let is_last = piece.is_none();
        held += piece.as_ref().map_or(0, Bytes::len) as u64;
        pieces.extend(piece);
        if is_last || held >= BLOCK {
            let (file, pieces) = (Arc::clone(&file), mem::take(&mut pieces));
            crc32c = blocking(move || write(&file, at, pieces, crc32c, sparsely)).await?;
            at += mem::take(&mut held);
        }
        if is_last {
            return Ok(Ok(Fetched { crc32c, info: reading.info().cloned() }));
        }
    }
}

/// Writes the pieces at their offset; returns the checksum `crc32c` extended by them.
fn write(file: &File, mut at: u64, pieces: Vec<Bytes>, mut crc32c: u32, sparsely: bool) -> io::Result<u32> {
    for piece in pieces {
        if sparsely {
            write_sparsely(file, at, &piece)?;
        } else {
            file.write_all_at(&piece, at)?;
        }
        crc32c = crc32c::crc32c_append(crc32c, &piece);
        at += piece.len() as u64;
    }
    Ok(crc32c)
}
