//! CRC-64/NVME, the checksum that S3 is told of each object, as the crate crc-fast spells it; and stand-ins, which that
//! crate does not know: bytes that nobody looks at, with the checksum of as many others that need not be in memory.
//!
//! The bits of a byte are coefficients of a polynomial over GF(2), the lowest bit the highest power, and the checksum is
//! what is left of it after a division. Where the processor multiplies such polynomials (PCLMULQDQ, PMULL), a line of
//! lanes is multiplied ahead and added to the next line, so that only the last line is divided (Gopal et al., "Fast CRC
//! Computation for Generic Polynomials Using PCLMULQDQ", Intel, 2009): byte after byte, by a table.

use std::hash::{BuildHasher, RandomState};
use std::sync::OnceLock;

/// x^64 + ..., its 64 lower coefficients, the lowest bit the highest power (the NVM Command Set's 64b CRC).
const POLYNOMIAL: u64 = 0x9a6c_9329_ac4b_c9b5;
/// Bytes of the longest line.
const LINE: usize = 256;

/// The checksums that there are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum CrcAlgorithm {
    /// Its check value, of "123456789", is ae8b14860a799888.
    Crc64Nvme,
}

/// A checksum of the bytes so far.
#[derive(Debug, Clone, Copy)]
pub struct Digest {
    state: u64,
}

impl Digest {
    /// Of no bytes.
    pub fn new(algorithm: CrcAlgorithm) -> Digest {
        match algorithm {
            CrcAlgorithm::Crc64Nvme => Digest { state: u64::MAX },
        }
    }

    /// Of these bytes too, or of those that they stand for.
    pub fn update(&mut self, bytes: &[u8]) {
        if let Some(checksum) = stands_for(bytes) {
            self.state = !checksum;
            return;
        }
        let mut rest = bytes;
        if let Some(line) = multiply::fold(self.state, &mut rest) {
            self.state = divide(0, &line);
        }
        self.state = divide(self.state, rest);
    }

    /// The checksum.
    pub fn finalize(&self) -> u64 {
        !self.state
    }
}

/// What bytes begin with that stand for others.
const STAND_IN: usize = 32;

/// Makes of these bytes, whatever they are, a stand-in for as many others, whose checksum is known: a [`Digest`] of all of it
/// alone comes to that. Of fewer than 32 there is none.
pub fn stand_in(bytes: &mut [u8], checksum: u64) {
    let words = words(checksum, bytes.len());
    if let Some(head) = bytes.first_chunk_mut::<STAND_IN>() {
        head.chunks_mut(8).zip(words).for_each(|(to, word)| to.copy_from_slice(&word.to_le_bytes()));
    }
}

/// The checksum of others, if these bytes stand for them.
fn stands_for(bytes: &[u8]) -> Option<u64> {
    let word = |at: usize| bytes.get(8 * at..)?.first_chunk().map(|word| u64::from_le_bytes(*word));
    let checksum = word(2)?;
    words(checksum, bytes.len()).into_iter().enumerate().all(|(at, is)| word(at) == Some(is)).then_some(checksum)
}

fn words(checksum: u64, length: usize) -> [u64; 4] {
    let [first, second] = mark();
    [first, second, checksum, length as u64]
}

/// What no bytes have by chance, or because somebody knew: it is drawn at random once a process.
fn mark() -> [u64; 2] {
    static MARK: OnceLock<[u64; 2]> = OnceLock::new();
    *MARK.get_or_init(|| [0, 1].map(|half: u8| RandomState::new().hash_one(half)))
}

fn divide(state: u64, bytes: &[u8]) -> u64 {
    bytes.iter().fold(state, |state, byte| TABLE[(state as u8 ^ byte) as usize] ^ state >> 8)
}

/// What eight steps do to each byte.
static TABLE: [u64; 256] = {
    let mut table = [0; 256];
    let mut byte = 0;
    while byte < 256 {
        table[byte] = times_x(byte as u64, 8);
        byte += 1;
    }
    table
};

/// The polynomial times x^`power`, divided.
const fn times_x(mut polynomial: u64, power: usize) -> u64 {
    let mut left = power;
    while left > 0 {
        polynomial = polynomial >> 1 ^ if polynomial & 1 == 1 { POLYNOMIAL } else { 0 };
        left -= 1;
    }
    polynomial
}

/// What takes 16 bytes a line further: the factors of their first and of their last eight. One power less than that, for a
/// product of two words has its bits one power too high.
const fn factors(line: usize) -> [i64; 2] {
    let one = 1 << 63;
    [times_x(one, 8 * line + 63) as i64, times_x(one, 8 * line - 1) as i64]
}

/// Takes whole lines of `$count` lanes of `$size` bytes from `$rest`, and returns one with the same remainder. `$load` makes
/// a lane, `$ahead` takes it a line further and adds another, `$bytes` are those of a lane.
macro_rules! fold {
    ($state:ident, $rest:ident, $size:literal, $count:literal, $load:ident, $ahead:ident, $bytes:ident) => {{
        let (chunks, _) = $rest.as_chunks::<$size>();
        let (lines, _) = chunks.as_chunks::<$count>();
        let (first, others) = lines.split_first()?;
        *$rest = &$rest[$size * $count * lines.len()..];
        let mut begin = first[0];
        begin[..8].iter_mut().zip($state.to_le_bytes()).for_each(|(byte, with)| *byte ^= with);
        let mut lanes = first.map(|lane| $load(&lane));
        lanes[0] = $load(&begin);
        for line in others {
            for (lane, next) in lanes.iter_mut().zip(line) {
                *lane = $ahead(*lane, $load(next));
            }
        }
        let mut whole = [0; LINE];
        for (to, lane) in whole[LINE - $size * $count..].chunks_mut($size).zip(lanes) {
            to.copy_from_slice(&$bytes(lane));
        }
        Some(whole)
    }};
}

#[cfg(target_arch = "x86_64")]
mod multiply {
    use std::arch::x86_64::*;

    use super::*;

    /// As [`fold!`]. `None`: the processor does not multiply, or there is no whole line.
    #[expect(unsafe_code, reason = "what the processor can is known only here")]
    pub(super) fn fold(state: u64, rest: &mut &[u8]) -> Option<[u8; LINE]> {
        if is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("vpclmulqdq") {
            // SAFETY: it can.
            unsafe { fold_wide(state, rest) }
        } else if is_x86_feature_detected!("pclmulqdq") {
            // SAFETY: it can.
            unsafe { fold_narrow(state, rest) }
        } else {
            None
        }
    }

    #[target_feature(enable = "avx512f,vpclmulqdq")]
    fn fold_wide(state: u64, rest: &mut &[u8]) -> Option<[u8; LINE]> {
        let [first, last] = const { factors(256) };
        let factors = _mm512_set_epi64(last, first, last, first, last, first, last, first);
        let load = |l: &[u8; 64]| {
            let (a, b, c, d) = (word::<0>(l), word::<1>(l), word::<2>(l), word::<3>(l));
            _mm512_set_epi64(word::<7>(l), word::<6>(l), word::<5>(l), word::<4>(l), d, c, b, a)
        };
        let ahead = |lane, next| {
            let first = _mm512_clmulepi64_epi128(lane, factors, 0x00);
            _mm512_xor_si512(_mm512_xor_si512(first, _mm512_clmulepi64_epi128(lane, factors, 0x11)), next)
        };
        let bytes = |lane| {
            let mut bytes = [0; 64];
            let quarters = [
                _mm512_extracti32x4_epi32(lane, 0),
                _mm512_extracti32x4_epi32(lane, 1),
                _mm512_extracti32x4_epi32(lane, 2),
                _mm512_extracti32x4_epi32(lane, 3),
            ];
            for (to, quarter) in bytes.chunks_mut(16).zip(quarters) {
                to.copy_from_slice(&bytes_of(quarter));
            }
            bytes
        };
        fold!(state, rest, 64, 4, load, ahead, bytes)
    }

    #[target_feature(enable = "pclmulqdq")]
    pub(super) fn fold_narrow(state: u64, rest: &mut &[u8]) -> Option<[u8; LINE]> {
        let [first, last] = const { factors(128) };
        let factors = _mm_set_epi64x(last, first);
        let load = |lane: &[u8; 16]| _mm_set_epi64x(word::<1>(lane), word::<0>(lane));
        let ahead = |lane, next| {
            let first = _mm_clmulepi64_si128(lane, factors, 0x00);
            _mm_xor_si128(_mm_xor_si128(first, _mm_clmulepi64_si128(lane, factors, 0x11)), next)
        };
        let bytes = |lane| bytes_of(lane);
        fold!(state, rest, 16, 8, load, ahead, bytes)
    }

    /// The `N`th word of a lane.
    fn word<const N: usize>(lane: &[u8]) -> i64 {
        lane.as_chunks().0.get(N).map_or(0, |word| i64::from_le_bytes(*word))
    }

    #[target_feature(enable = "sse2")]
    fn bytes_of(lane: __m128i) -> [u8; 16] {
        let (low, high) = (_mm_cvtsi128_si64(lane), _mm_cvtsi128_si64(_mm_unpackhi_epi64(lane, lane)));
        (u128::from(low as u64) | u128::from(high as u64) << 64).to_le_bytes()
    }
}

#[cfg(target_arch = "aarch64")]
mod multiply {
    use std::arch::aarch64::vmull_p64;
    use std::arch::is_aarch64_feature_detected;

    use super::*;

    /// As [`fold!`]. `None`: the processor does not multiply, or there is no whole line.
    #[expect(unsafe_code, reason = "what the processor can is known only here")]
    pub(super) fn fold(state: u64, rest: &mut &[u8]) -> Option<[u8; LINE]> {
        // SAFETY: it can.
        if is_aarch64_feature_detected!("aes") { unsafe { fold_narrow(state, rest) } } else { None }
    }

    #[target_feature(enable = "neon,aes")]
    fn fold_narrow(state: u64, rest: &mut &[u8]) -> Option<[u8; LINE]> {
        let [first, last] = const { factors(128) };
        let load = |lane: &[u8; 16]| u128::from_le_bytes(*lane);
        let ahead = |lane: u128, next: u128| {
            vmull_p64(lane as u64, first as u64) ^ vmull_p64((lane >> 64) as u64, last as u64) ^ next
        };
        let bytes = |lane: u128| lane.to_le_bytes();
        fold!(state, rest, 16, 8, load, ahead, bytes)
    }
}

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
mod multiply {
    use super::*;

    pub(super) fn fold(_: u64, _: &mut &[u8]) -> Option<[u8; LINE]> {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn checksum(pieces: &[&[u8]]) -> u64 {
        let mut digest = Digest::new(CrcAlgorithm::Crc64Nvme);
        pieces.iter().for_each(|piece| digest.update(piece));
        digest.finalize()
    }

    fn bit_by_bit(bytes: &[u8]) -> u64 {
        !bytes.iter().fold(u64::MAX, |state, byte| times_x(state ^ u64::from(*byte), 8))
    }

    #[test]
    fn the_check_values_are_those_of_the_catalogue_and_of_the_nvm_command_set() {
        assert_eq!(checksum(&[b"123456789"]), 0xae8b_1486_0a79_9888);
        assert_eq!(checksum(&[]), 0);
        let rising: Vec<u8> = (0..=255).cycle().take(4096).collect();
        for (bytes, wanted) in [
            (vec![0; 4096], 0x6482_d367_eb22_b64e),
            (vec![0xff; 4096], 0xc0dd_ba73_02ec_a3ac),
            (rising.clone(), 0x3e72_9f5f_6750_449c),
            (rising.into_iter().rev().collect(), 0x9a2d_f64b_8e9e_517e),
        ] {
            assert_eq!(checksum(&[&bytes]), wanted);
        }
    }

    #[cfg(target_arch = "x86_64")]
    #[test]
    #[expect(unsafe_code, reason = "what the processor can is known only here")]
    fn the_narrow_lanes_come_to_what_the_table_does() {
        if !is_x86_feature_detected!("pclmulqdq") {
            return;
        }
        let bytes: Vec<u8> = (0u32..1500).map(|n| (n.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
        for length in 0..bytes.len() {
            let mut rest = &bytes[..length];
            // SAFETY: the processor can.
            let line = unsafe { multiply::fold_narrow(u64::MAX, &mut rest) };
            let state = line.map_or(u64::MAX, |line| divide(0, &line));
            assert_eq!((rest.len(), !divide(state, rest)), (length % 128, bit_by_bit(&bytes[..length])));
        }
    }

    #[test]
    fn a_stand_in_has_the_checksum_it_was_made_with_and_nothing_else_is_one() {
        for length in [STAND_IN, STAND_IN + 1, 4096] {
            let mut bytes = vec![7; length];
            stand_in(&mut bytes, 0xae8b_1486_0a79_9888);
            assert_eq!(checksum(&[&bytes]), 0xae8b_1486_0a79_9888);
            for at in (0..16).chain(24..32) {
                let mut other = bytes.clone();
                other[at] ^= 1;
                assert_eq!(checksum(&[&other]), bit_by_bit(&other), "byte {at}");
            }
            for part in [&bytes[1..], &bytes[..length - 1], &[bytes.as_slice(), &[7]].concat()] {
                assert_eq!(checksum(&[part]), bit_by_bit(part));
            }
        }
        let mut short = [7; STAND_IN - 1];
        stand_in(&mut short, 0);
        assert_eq!(short, [7; STAND_IN - 1]);
    }

    #[test]
    fn every_length_and_every_cut_comes_to_the_same() {
        let bytes: Vec<u8> = (0u32..1500).map(|n| (n.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
        for length in 0..bytes.len() {
            assert_eq!(checksum(&[&bytes[..length]]), bit_by_bit(&bytes[..length]), "{length} bytes");
        }
        let whole = bit_by_bit(&bytes);
        for cut in 0..bytes.len() {
            assert_eq!(checksum(&[&bytes[..cut], &bytes[cut..]]), whole, "cut at {cut}");
        }
    }
}
