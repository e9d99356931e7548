//! Many small files in few objects: uncompressed tar archives. Any tool can unpack them, and one file can be fetched by
//! its byte range.
//!
//! Each object costs a request, and Cloud Storage's guidelines begin at 1,000 requests a second. So a checkpoint of 30,000
//! small objects would not be complete within the 30 s of a notice, however small it is.

use std::ops::Range;

use tar::{EntryType, Header};

use super::manifest::{Item, SMALL};
use crate::checkpoint::listing::Entry;

/// Up to this number of small files, each is an object.
const FEW: usize = 1000;
/// Longest archive, bytes.
pub const LONGEST: u64 = 8 << 20;
/// The limit of files in one archive: they are read and written one after the other, which is slow on some file
/// systems.
const MOST: usize = 256;
/// Headers and files begin at a multiple of this, bytes.
const BLOCK: u64 = 512;
/// The end of an archive.
pub const END: [u8; 2 * BLOCK as usize] = [0; 2 * BLOCK as usize];

/// Longest range of an archive that is fetched at once, bytes.
pub const RUN: u64 = 4 << 20;
/// Up to this gap in bytes between two files, fetching the gap is faster than another request.
const GAP: u64 = 128 << 10;

/// One object to write.
#[derive(Debug)]
pub enum Load<'a> {
    /// A file.
    Alone(&'a Entry),
    /// An archive of several.
    Together(Vec<Member<'a>>),
}

/// A file of an archive.
#[derive(Debug)]
pub struct Member<'a> {
    /// Its entry in the listing.
    pub entry: &'a Entry,
    header: Box<Header>,
}

impl<'a> Member<'a> {
    /// `None` if a tar header cannot describe it.
    fn of(entry: &'a Entry) -> Option<Member<'a>> {
        if entry.size > SMALL {
            return None;
        }
        let mut header = Box::new(Header::new_ustar());
        header.set_path(&entry.path).ok()?;
        header.set_entry_type(EntryType::Regular);
        header.set_size(entry.size);
        header.set_mode(entry.mode);
        header.set_uid(0);
        header.set_gid(0);
        header.set_mtime(u64::try_from(entry.mtime_ns).unwrap_or(0) / 1_000_000_000);
        header.set_cksum();
        Some(Member { entry, header })
    }

    /// Its bytes in the archive, with header and padding.
    pub fn length(&self) -> u64 {
        BLOCK + self.entry.size.next_multiple_of(BLOCK)
    }

    /// Its tar header.
    pub fn header(&self) -> &[u8; BLOCK as usize] {
        self.header.as_bytes()
    }

    /// The byte range of the file's content.
    pub fn own(&self) -> Range<u64> {
        BLOCK..BLOCK + self.entry.size
    }
}

/// Divides these files into objects, in their order; `gathers`: whether small files may share an archive.
pub fn loads<'a>(files: impl Iterator<Item = &'a Entry>, gathers: bool) -> Vec<Load<'a>> {
    let files: Vec<&Entry> = files.collect();
    if !gathers || files.iter().filter(|file| file.size <= SMALL).count() <= FEW {
        return files.into_iter().map(Load::Alone).collect();
    }
    let (mut loads, mut members, mut length) = (Vec::new(), Vec::new(), 0);
    for entry in files {
        let Some(member) = Member::of(entry) else {
            loads.push(Load::Alone(entry));
            continue;
        };
        if members.len() == MOST || length + member.length() + END.len() as u64 > LONGEST {
            loads.push(Load::Together(std::mem::take(&mut members)));
            length = 0;
        }
        length += member.length();
        members.push(member);
    }
    if !members.is_empty() {
        loads.push(Load::Together(members));
    }
    loads
}

/// Groups files of archives for fetching. The files of a group are in one archive, within [`RUN`] bytes, and at most
/// [`MOST`].
pub fn runs(mut items: Vec<&Item>) -> Vec<Vec<&Item>> {
    items.sort_by_key(|item| (&item.key, item.offset));
    let mut runs: Vec<Vec<&Item>> = Vec::new();
    let mut end = 0;
    for item in items {
        let next = item.run();
        let run = runs.last_mut().filter(|run| {
            let first = run[0];
            // Any number of files may share the same bytes.
            let has_room = || run.len() < MOST && next.end - first.run().start <= RUN;
            first.key == item.key && next.start.saturating_sub(end) <= GAP && has_room()
        });
        match run {
            Some(run) => {
                run.push(item);
                end = end.max(next.end);
            }
            None => {
                runs.push(vec![item]);
                end = next.end;
            }
        }
    }
    runs
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn item(archive: u8, offset: u64, size: u64) -> Item {
        let (path, key) = (format!("u/{archive}-{offset}"), format!("u/{archive}.tar"));
        let item = serde_json::json!({"type": "file", "path": path, "key": key, "offset": offset, "size": size});
        serde_json::from_value(item).expect("is an item")
    }

    #[test]
    fn neighbours_are_fetched_together_and_distant_files_are_not() {
        let same = vec![item(1, 512, 1000); 2 * MOST + 1];
        let near = vec![item(1, 512, 1000), item(1, 2048 + GAP - 536, 7), item(2, 512, 7)];
        let far = vec![item(1, 512, 1000), item(1, 1512 + GAP + 1, 7)];
        for (items, lengths) in [(same, &[MOST, MOST, 1][..]), (near, &[2, 1]), (far, &[1, 1])] {
            assert!(runs(items.iter().collect()).iter().map(Vec::len).eq(lengths.iter().copied()));
        }
    }

    proptest! {
        #[test]
        fn for_any_manifest_every_file_is_in_one_run_of_its_archive_that_is_not_too_long(
            places in prop::collection::vec((0..3_u8, 0..(20_u64 << 20), 0..=SMALL), 0..200),
            first in prop::sample::select(vec![0, u64::MAX - (21 << 20)])
        ) {
            let places = places.into_iter().map(|(archive, offset, size)| (archive, first + offset, size));
            let items: Vec<Item> = places.map(|(archive, offset, size)| item(archive, offset, size)).collect();
            let runs = runs(items.iter().collect());
            prop_assert_eq!(runs.iter().map(Vec::len).sum::<usize>(), items.len());
            for run in runs {
                prop_assert!(run.iter().all(|item| item.key == run[0].key));
                let from = run.iter().map(|item| item.run().start).min().unwrap_or(0);
                let until = run.iter().map(|item| item.run().end).max().unwrap_or(0);
                prop_assert_eq!(from, run[0].run().start);
                prop_assert!(until - from <= RUN && run.len() <= MOST);
            }
        }
    }
}
