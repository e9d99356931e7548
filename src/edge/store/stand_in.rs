//! Stand-ins for stretches of files. `object_store` takes bytes only: it is given as many that nobody looks at, and knows
//! their checksum from our crc-fast. Who sends them sends the file's in their place.

use std::io;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use crc_fast::stand_in;

use super::source::Source;
use crate::edge::pages::Pages;

/// The sources of the stand-ins that there are.
#[derive(Clone, Default)]
pub(super) struct Sources(Arc<Mutex<Vec<Place>>>);

/// Where a stand-in lies.
struct Place {
    at: Range<usize>,
    source: Arc<Source>,
}

impl Sources {
    /// As many bytes as the source has, in its place. Errors: out of memory.
    pub(super) fn stand_in(&self, source: &Arc<Source>) -> io::Result<Bytes> {
        let mut pages = Pages::bare(source.length() as usize)?;
        stand_in(&mut pages, source.crc64);
        let at = pages.as_ptr_range();
        self.lock().push(Place { at: at.start.addr()..at.end.addr(), source: Arc::clone(source) });
        Ok(Bytes::from_owner(StandIn { pages, sources: self.clone() }))
    }

    /// What bytes are really, if they are a part of a stand-in, and from where in the file on.
    pub(super) fn behind(&self, bytes: &[u8]) -> Option<(Arc<Source>, u64)> {
        let at = bytes.as_ptr().addr();
        let places = self.lock();
        let place = places.iter().find(|place| place.at.contains(&at))?;
        Some((Arc::clone(&place.source), place.source.from + (at - place.at.start) as u64))
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Place>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// As long as anybody has a part of it, its source is known.
struct StandIn {
    pages: Pages,
    sources: Sources,
}

impl AsRef<[u8]> for StandIn {
    fn as_ref(&self) -> &[u8] {
        &self.pages
    }
}

impl Drop for StandIn {
    fn drop(&mut self) {
        let at = self.pages.as_ptr().addr();
        self.sources.lock().retain(|place| place.at.start != at);
    }
}

#[cfg(test)]
mod tests {
    use crc_fast::{CrcAlgorithm, Digest};

    use super::super::source::tests::{LENGTH, fixture};
    use super::*;

    #[test]
    fn any_part_of_a_stand_in_stands_for_that_part_of_the_file_as_long_as_it_is_there() {
        let (_file, bytes, source) = fixture();
        let sources = Sources::default();
        let mut stand_in = sources.stand_in(&source).expect("there is memory");
        let other = sources.stand_in(&source).expect("there is memory");
        assert_eq!(stand_in.len() as u64, LENGTH);
        let mut digest = Digest::new(CrcAlgorithm::Crc64Nvme);
        digest.update(&stand_in);
        assert_eq!(digest.finalize(), source.crc64);
        let rest = stand_in.split_off(LENGTH as usize - 1);
        let from = |bytes: &[u8]| sources.behind(bytes).map(|(_, at)| at - source.from);
        assert_eq!((from(&stand_in), from(&rest), from(&other)), (Some(0), Some(LENGTH - 1), Some(0)));
        assert_eq!((from(&bytes), from(&[])), (None, None));
        drop(stand_in);
        assert_eq!(from(&rest), Some(LENGTH - 1));
        drop((rest, other));
        assert!(sources.lock().is_empty());
    }
}
