//! TFRecord framing of TensorBoard's event files: the length (8 bytes, little-endian), the masked CRC-32C of these 8
//! bytes, the data, the masked CRC-32C of the data. An example, the 3 bytes `abc`: `03 00 00 00 00 00 00 00 | crc | 61
//! 62 63 | crc`.
//!
//! Deliberately absent: the meaning of the data. Records that are too large to be scalars (graphs, images) are skipped
//! without being held in memory or checked.

/// The length and its checksum.
const HEADER_BYTES: usize = 12;

/// The data's checksum.
const FOOTER_BYTES: usize = 4;

/// Larger records are skipped.
const LARGEST_RECORD_BYTES: u64 = 16 << 20;

/// The constant that the masked checksum adds (tensorflow/core/lib/hash/crc32c.h).
const MASK_DELTA: u32 = 0xa282_ead8;

/// Reads the records of one file. The bytes come in pieces of any size.
#[derive(Debug, Default)]
pub struct Records {
    /// The incomplete last record.
    incomplete: Vec<u8>,
    /// The bytes left of a record that is skipped.
    skip: u64,
    /// The end of the last complete record.
    end: u64,
    lost: bool,
}

/// A result.
#[derive(Debug, PartialEq, Eq)]
pub enum Record<'a> {
    /// A valid record.
    Whole {
        /// Its data.
        data: &'a [u8],
        /// Its end in the file.
        end: u64,
    },
    /// A record with damaged data; the next one can be found.
    Damaged,
    /// A damaged length, so no further record can be found.
    Lost,
}

impl Records {
    /// Adds the next bytes, and reports each record that they complete.
    pub fn feed(&mut self, bytes: &[u8], mut report: impl FnMut(Record<'_>)) {
        let passed_over = self.skip.min(bytes.len() as u64);
        self.skip -= passed_over;
        self.end += passed_over;
        if self.lost || self.skip > 0 {
            return;
        }
        let mut incomplete = std::mem::take(&mut self.incomplete);
        incomplete.extend_from_slice(&bytes[passed_over as usize..]);
        let mut at = 0;
        while let Some((header, after)) = incomplete[at..].split_first_chunk::<HEADER_BYTES>() {
            let (length, check) = header.split_at(8);
            if !is_valid(length, check) {
                self.lost = true;
                return report(Record::Lost);
            }
            let length = number(length);
            let size = length.saturating_add((HEADER_BYTES + FOOTER_BYTES) as u64);
            if length > LARGEST_RECORD_BYTES {
                let here = size.min((incomplete.len() - at) as u64);
                self.skip = size - here;
                self.end += here;
                at += here as usize;
                continue;
            }
            let Some((data, check)) = after.split_at_checked(length as usize) else { break };
            let Some(check) = check.get(..FOOTER_BYTES) else { break };
            self.end += size;
            at += size as usize;
            report(if is_valid(data, check) { Record::Whole { data, end: self.end } } else { Record::Damaged });
        }
        incomplete.drain(..at);
        self.incomplete = incomplete;
    }
}

fn is_valid(bytes: &[u8], check: &[u8]) -> bool {
    u64::from(masked_crc(bytes)) == number(check)
}

/// The checksum of a part of a record.
fn masked_crc(bytes: &[u8]) -> u32 {
    crc32c::crc32c(bytes).rotate_right(15).wrapping_add(MASK_DELTA)
}

fn number(little_endian: &[u8]) -> u64 {
    little_endian.iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn record(data: &[u8]) -> Vec<u8> {
        let length = (data.len() as u64).to_le_bytes();
        [&length[..], &masked_crc(&length).to_le_bytes(), data, &masked_crc(data).to_le_bytes()].concat()
    }

    /// The data of valid records; `!` for a damaged one, `X` for the end of all.
    fn read(file: &[u8], size: usize) -> Vec<Vec<u8>> {
        let mut records = Records::default();
        let mut all = Vec::new();
        for piece in file.chunks(size.max(1)) {
            records.feed(piece, |record| {
                all.push(match record {
                    Record::Whole { data, .. } => data.to_vec(),
                    Record::Damaged => b"!".to_vec(),
                    Record::Lost => b"X".to_vec(),
                })
            });
        }
        all
    }

    #[test]
    fn the_masked_checksum_is_tensorflows() {
        // The first 12 bytes of every event file: the length of "brain.Event:2" with a wall time is 24.
        assert_eq!(masked_crc(&24u64.to_le_bytes()).to_le_bytes(), [0xa3, 0x7f, 0x4b, 0x22]);
    }

    #[test]
    fn a_damaged_record_is_skipped_and_the_next_one_is_found() {
        let mut file = [record(b"one"), record(b"two"), record(b"three")].concat();
        file[record(b"one").len() + HEADER_BYTES] ^= 1;
        for size in [1, 5, 1000] {
            assert_eq!(read(&file, size), [&b"one"[..], b"!", b"three"]);
        }
    }

    #[test]
    fn a_damaged_length_ends_the_file_and_is_reported_once() {
        let mut file = [record(b"one"), record(b"two"), record(b"three")].concat();
        file[record(b"one").len() + 2] ^= 1;
        assert_eq!(read(&file, 7), [&b"one"[..], b"X"]);
    }

    #[test]
    fn an_incomplete_record_is_completed_later() {
        let file = record(b"whole");
        for cut in 0..file.len() {
            assert!(read(&file[..cut], 1000).is_empty());
        }
        assert_eq!(read(&file, 1000), [b"whole"]);
        assert_eq!(read(&record(b""), 3), [b""]);
    }

    #[test]
    fn a_record_too_large_for_a_scalar_is_skipped_without_being_held() {
        let length = (LARGEST_RECORD_BYTES + 1).to_le_bytes();
        let mut records = Records::default();
        let mut seen = Vec::new();
        records.feed(&[&length[..], &masked_crc(&length).to_le_bytes()].concat(), |_| panic!("a record"));
        for _ in 0..LARGEST_RECORD_BYTES >> 20 {
            records.feed(&[7; 1 << 20], |_| panic!("a record"));
            assert!(records.incomplete.capacity() < 1 << 20);
        }
        records.feed(&[&[7; 1 + FOOTER_BYTES][..], &record(b"next")].concat(), |record| {
            if let Record::Whole { data, end } = record {
                seen.push((data.to_vec(), end));
            }
        });
        let end = LARGEST_RECORD_BYTES + 1 + 16 + record(b"next").len() as u64;
        assert_eq!(seen, [(b"next".to_vec(), end)]);
    }

    proptest! {
        #[test]
        fn records_are_read_for_any_pieces(
            all in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..40), 0..10), size in 1usize..60,
        ) {
            let file: Vec<u8> = all.iter().flat_map(|data| record(data)).collect();
            prop_assert_eq!(read(&file, size), all);
        }

        #[test]
        fn no_bytes_make_it_panic(bytes in any::<Vec<u8>>(), size in 1usize..9) {
            read(&bytes, size);
            read(&[record(b"a"), bytes].concat(), size);
        }
    }
}
