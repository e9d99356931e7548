//! Files that say nothing of their own length: their structure is walked, so that one that was cut anywhere is noticed.
//!
//! A single last byte (a brace, a full stop) is there by chance in one of 256 cuts, and in more where writers flush at the
//! end of an object. Formats: ubjson.org as XGBoost writes it; Python's pickletools; numpy.lib.format.

use std::sync::LazyLock;

use regex::bytes::Regex;

use super::check::{Verdict, no_zeros};
use super::listing::{Entry, Peek};

/// Longer files are judged by their last byte: walking them at each look would take too long.
const WALKED: u64 = 256 << 20;
/// Containers in containers.
const MAX_DEPTH: usize = 512;
/// Bytes read at a time.
const WINDOW: usize = 256 << 10;
/// Longest header of a NumPy file that is looked at.
const NPY_HEADER: u64 = 1 << 20;

/// Why a walk stopped.
enum Stop {
    /// The file ends before what it has begun.
    Cut,
    /// It is not of this format, or of a part of it that is not known here.
    Unknown,
}

/// Reads forward through a file.
struct Cursor<'a> {
    peek: &'a dyn Peek,
    file: &'a Entry,
    at: u64,
    window: Vec<u8>,
    from: u64,
}

impl<'a> Cursor<'a> {
    fn new(peek: &'a dyn Peek, file: &'a Entry) -> Cursor<'a> {
        Cursor { peek, file, at: 0, window: Vec::new(), from: 0 }
    }

    fn is_at_end(&self) -> bool {
        self.at >= self.file.size
    }

    fn byte(&mut self) -> Result<u8, Stop> {
        let byte = *self.ahead(1).first().ok_or(Stop::Cut)?;
        self.at += 1;
        Ok(byte)
    }

    fn skip(&mut self, bytes: u64) -> Result<(), Stop> {
        self.at = self.at.checked_add(bytes).filter(|at| *at <= self.file.size).ok_or(Stop::Cut)?;
        Ok(())
    }

    /// An unsigned number of this many bytes.
    fn number(&mut self, width: u32, big_endian: bool) -> Result<u64, Stop> {
        (0..width).try_fold(0u64, |n, i| {
            let byte = u64::from(self.byte()?);
            Ok(if big_endian { n << 8 | byte } else { n | byte << (8 * i) })
        })
    }

    fn line(&mut self) -> Result<(), Stop> {
        while self.byte()? != b'\n' {}
        Ok(())
    }

    /// The next bytes, without going on; fewer only at the end. Those that were read already are not read again.
    fn ahead(&mut self, length: usize) -> &[u8] {
        let passed = (self.at - self.from) as usize;
        if self.window.len().saturating_sub(passed) < length {
            self.window = self.peek.read(&self.file.path, self.at, length.max(WINDOW)).unwrap_or_default();
            self.from = self.at;
        }
        let held = self.window.get((self.at - self.from) as usize..).unwrap_or_default();
        &held[..held.len().min(length)]
    }
}

fn last_byte(peek: &dyn Peek, file: &Entry) -> Option<u8> {
    peek.read(&file.path, file.size.checked_sub(1)?, 1)?.first().copied()
}

/// A UBJSON object that ends where the file does.
pub(super) fn ubjson(peek: &dyn Peek, file: &Entry) -> Verdict {
    let cut = || Err("its UBJSON is cut short".to_owned());
    let mut cursor = Cursor::new(peek, file);
    if !cursor.ahead(1).starts_with(b"{") {
        return if file.size == 0 { cut() } else { Err("it is no UBJSON object".to_owned()) };
    }
    let whole = if file.size > WALKED { Err(Stop::Unknown) } else { ubjson_value(&mut cursor) };
    match whole {
        Ok(()) if cursor.is_at_end() => Ok(()),
        Ok(()) => Err("its UBJSON ends before the file does".to_owned()),
        Err(Stop::Cut) => cut(),
        Err(Stop::Unknown) if last_byte(peek, file) == Some(b'}') => Ok(()),
        Err(Stop::Unknown) => cut(),
    }
}

/// A container that is open: whether keys come in it, the type of all its values, how many are left.
struct Open {
    keyed: bool,
    all: Option<u8>,
    left: Option<u64>,
}

fn ubjson_value(cursor: &mut Cursor) -> Result<(), Stop> {
    let mut open: Vec<Open> = Vec::new();
    let first = cursor.byte()?;
    ubjson_begin(cursor, first, &mut open)?;
    while let Some(inner) = open.last_mut() {
        if inner.left == Some(0) {
            open.pop();
            continue;
        }
        let mut marker = None;
        if inner.left.is_none() {
            let byte = cursor.byte()?;
            if byte == (if inner.keyed { b'}' } else { b']' }) {
                open.pop();
                continue;
            }
            marker = Some(byte);
        }
        if inner.keyed {
            let kind = marker.take().map_or_else(|| cursor.byte(), Ok)?;
            let length = ubjson_length(cursor, kind)?;
            cursor.skip(length)?;
        }
        inner.left = inner.left.map(|left| left - 1);
        let kind = match (inner.all, marker) {
            (Some(kind), _) => kind,
            (None, Some(byte)) => byte,
            (None, None) => cursor.byte()?,
        };
        ubjson_begin(cursor, kind, &mut open)?;
    }
    Ok(())
}

/// Skips a value of this type, or opens the container.
fn ubjson_begin(cursor: &mut Cursor, kind: u8, open: &mut Vec<Open>) -> Result<(), Stop> {
    if let Some(width) = ubjson_width(kind) {
        return cursor.skip(width);
    }
    match kind {
        b'S' | b'H' => {
            let kind = cursor.byte()?;
            let length = ubjson_length(cursor, kind)?;
            cursor.skip(length)
        }
        b'[' | b'{' if open.len() < MAX_DEPTH => {
            let (mut all, mut left) = (None, None);
            if cursor.ahead(1) == b"$" {
                cursor.skip(1)?;
                all = Some(cursor.byte()?);
            }
            if cursor.ahead(1) == b"#" {
                cursor.skip(1)?;
                let kind = cursor.byte()?;
                left = Some(ubjson_length(cursor, kind)?);
            } else if all.is_some() {
                return Err(Stop::Unknown);
            }
            // Numbers in a row are one skip.
            if let (b'[', Some(width), Some(count)) = (kind, all.and_then(ubjson_width), left) {
                return cursor.skip(count.checked_mul(width).ok_or(Stop::Cut)?);
            }
            open.push(Open { keyed: kind == b'{', all, left });
            Ok(())
        }
        _ => Err(Stop::Unknown),
    }
}

fn ubjson_width(kind: u8) -> Option<u64> {
    match kind {
        b'Z' | b'N' | b'T' | b'F' => Some(0),
        b'i' | b'U' | b'C' => Some(1),
        b'I' => Some(2),
        b'l' | b'd' => Some(4),
        b'L' | b'D' => Some(8),
        _ => None,
    }
}

fn ubjson_length(cursor: &mut Cursor, kind: u8) -> Result<u64, Stop> {
    let width = match kind {
        b'i' | b'U' => 1,
        b'I' => 2,
        b'l' => 4,
        b'L' => 8,
        _ => return Err(Stop::Unknown),
    };
    let length = cursor.number(width, true)?;
    let is_negative = kind != b'U' && length >> (width * 8 - 1) != 0;
    if is_negative { Err(Stop::Unknown) } else { Ok(length) }
}

/// One or more pickles, the last of which ends where the file does. What does not start as a pickle is not judged.
pub(super) fn pickle(peek: &dyn Peek, file: &Entry) -> Verdict {
    let mut cursor = Cursor::new(peek, file);
    if !cursor.ahead(1).starts_with(&[0x80]) {
        return no_zeros(peek, file);
    }
    let ends_well = last_byte(peek, file) == Some(b'.');
    let walked = if file.size > WALKED { Err(Stop::Unknown) } else { pickles(&mut cursor) };
    match walked {
        Ok(()) => Ok(()),
        Err(Stop::Unknown) if ends_well => Ok(()),
        Err(_) => Err("its pickle does not end: cut short".to_owned()),
    }
}

fn pickles(cursor: &mut Cursor) -> Result<(), Stop> {
    loop {
        while pickle_operation(cursor)? {}
        if cursor.is_at_end() {
            return Ok(());
        }
        if cursor.ahead(1) != [0x80] {
            return Err(Stop::Unknown);
        }
    }
}

/// Passes one operation and its argument; false at the one that ends the pickle.
fn pickle_operation(cursor: &mut Cursor) -> Result<bool, Stop> {
    let width = match cursor.byte()? {
        b'.' => return Ok(false),
        b'K' | b'h' | b'q' | 0x80 | 0x82 => 1,
        b'M' | 0x83 => 2,
        b'J' | b'j' | b'r' | 0x84 => 4,
        b'G' | 0x95 => 8,
        b'F' | b'I' | b'L' | b'S' | b'V' | b'P' | b'g' | b'p' => {
            cursor.line()?;
            0
        }
        b'c' | b'i' => {
            cursor.line()?;
            cursor.line()?;
            0
        }
        0x8c => counted(cursor, 1)?,
        b'U' | b'C' | 0x8a => cursor.number(1, false)?,
        b'X' => counted(cursor, 4)?,
        b'T' | b'B' | 0x8b => cursor.number(4, false)?,
        0x8d | 0x8e | 0x96 => cursor.number(8, false)?,
        b'('
        | b')'
        | b'0'
        | b'1'
        | b'2'
        | b']'
        | b'l'
        | b'a'
        | b'e'
        | b't'
        | b'}'
        | b'd'
        | b's'
        | b'u'
        | b'b'
        | b'o'
        | b'R'
        | b'N'
        | b'Q'
        | 0x81
        | 0x85..=0x89
        | 0x8f..=0x94
        | 0x97
        | 0x98 => 0,
        _ => return Err(Stop::Unknown),
    };
    cursor.skip(width)?;
    Ok(true)
}

/// The length of a text. joblib writes the bytes of arrays between operations, which says the name of the class before.
fn counted(cursor: &mut Cursor, width: u32) -> Result<u64, Stop> {
    let length = cursor.number(width, false)?;
    if length == 17 && cursor.ahead(17) == b"NumpyArrayWrapper" { Err(Stop::Unknown) } else { Ok(length) }
}

/// NumPy arrays, each as long as its header says.
pub(super) fn npy(peek: &dyn Peek, file: &Entry) -> Verdict {
    #[expect(clippy::unwrap_used, reason = "a constant expression, compiled by every test")]
    static DTYPE: LazyLock<Regex> =
        LazyLock::new(|| Regex::new(r"'descr':\s*'[<>|=]?([a-zA-Z])(\d+)(?:\[[^\]']*\])?'").unwrap());
    #[expect(clippy::unwrap_used, reason = "a constant expression, compiled by every test")]
    static SHAPE: LazyLock<Regex> = LazyLock::new(|| Regex::new(r"'shape':\s*\(([0-9, ]*)\)").unwrap());
    let cut = || Err("its array is cut short".to_owned());
    let mut cursor = Cursor::new(peek, file);
    while cursor.at == 0 || !cursor.is_at_end() {
        let head = cursor.ahead(12).to_vec();
        if !head.starts_with(b"\x93NUMPY") || head.len() < 12 {
            return if b"\x93NUMPY".starts_with(&head) || head.starts_with(b"\x93NUMPY") {
                cut()
            } else {
                Err("it is no NumPy array".to_owned())
            };
        }
        let (start, length) = match head[6] {
            1 => (10, u64::from(u16::from_le_bytes([head[8], head[9]]))),
            _ => (12, u64::from(u32::from_le_bytes([head[8], head[9], head[10], head[11]]))),
        };
        if cursor.skip(start).is_err() || length > NPY_HEADER {
            return cut();
        }
        let header = cursor.ahead(length as usize).to_vec();
        if cursor.skip(length).is_err() {
            return cut();
        }
        // Records and objects are not judged.
        let (Some(dtype), Some(shape)) = (DTYPE.captures(&header), SHAPE.captures(&header)) else { return Ok(()) };
        let number = |text: &[u8]| std::str::from_utf8(text).ok()?.trim().parse::<u64>().ok();
        let letters = if &dtype[1] == b"U" { 4 } else { 1 };
        let sizes = shape[1].split(|b| *b == b',').filter(|t| !t.trim_ascii().is_empty()).map(number);
        let mut bytes = sizes.chain([number(&dtype[2]), Some(letters)]);
        let Some(bytes) = bytes.try_fold(1u64, |all, n| all.checked_mul(n?)) else { return cut() };
        if cursor.skip(bytes).is_err() {
            return cut();
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::listing::tests::{Counting, Memory};
    use super::*;
    use proptest::prelude::*;

    fn verdict(name: &str, bytes: &[u8]) -> Verdict {
        let memory = Memory::of(&[(name, bytes)]);
        let listing = memory.listing();
        super::super::check::whole(&memory, listing.file(name).expect("is there"))
    }

    /// `{"a": [1.0, 2.0] typed, "b": ["x", {}] counted, "c": true}`, full of braces.
    fn model() -> Vec<u8> {
        let mut bytes = b"{L\0\0\0\0\0\0\0\x01a[$d#L\0\0\0\0\0\0\0\x02}}}}}}}}".to_vec();
        bytes.extend_from_slice(b"i\x01b[#i\x02Si\x03}}}{}");
        bytes.extend_from_slice(b"i\x01cT}");
        bytes
    }

    /// What Python 3.11 wrote: pickle.dumps({"w": [1.5, 2], "s": "..."}, 4) and protocol 2.
    const PICKLES: [&[u8]; 2] = [
        b"\x80\x04\x95\x22\0\0\0\0\0\0\0}\x94(\x8c\x01w\x94]\x94(G?\xf8\0\0\0\0\0\0K\x02e\x8c\x01s\x94\x8c\x03...\x94u.",
        b"\x80\x02}q\0(X\x01\0\0\0wq\x01]q\x02(G?\xf8\0\0\0\0\0\0K\x02eX\x01\0\0\0sq\x03X\x03\0\0\0...q\x04u.",
    ];

    fn array(dtype: &str, shape: &str, data: usize) -> Vec<u8> {
        let header = format!("{{'descr': '{dtype}', 'fortran_order': False, 'shape': {shape}, }}\n");
        let mut bytes = b"\x93NUMPY\x01\0".to_vec();
        bytes.extend_from_slice(&(header.len() as u16).to_le_bytes());
        bytes.extend_from_slice(header.as_bytes());
        bytes.resize(bytes.len() + data, b'.');
        bytes
    }

    #[test]
    fn a_whole_structure_passes_and_one_cut_anywhere_does_not() {
        let whole = [
            ("a_1.ubj", model()),
            ("b.pkl", PICKLES[0].to_vec()),
            ("c.pkl", PICKLES[1].to_vec()),
            ("d.npy", array("<f4", "(2, 3)", 24)),
            ("e.npy", array("|b1", "(5,)", 5)),
            ("f.npy", array("<U3", "()", 12)),
            ("g.npy", array("<M8[ns]", "(2,)", 16)),
        ];
        for (name, bytes) in whole {
            assert_eq!(verdict(name, &bytes), Ok(()), "{name}");
            for length in 0..bytes.len() {
                assert!(verdict(name, &bytes[..length]).is_err(), "{name} cut to {length} of {}", bytes.len());
            }
        }
    }

    #[test]
    fn several_in_a_file_are_whole_when_the_last_is() {
        let two = [array("<f4", "(2,)", 8), array("<i8", "(1,)", 8)].concat();
        assert_eq!(verdict("x.npy", &two), Ok(()));
        assert!(verdict("x.npy", &two[..two.len() - 1]).is_err());
        assert_eq!(verdict("x.pkl", &PICKLES.concat()), Ok(()));
        assert!(verdict("x.pkl", &PICKLES.concat()[..60]).is_err());
        assert!(verdict("x.ubj", &[model(), b"tail".to_vec()].concat()).is_err());
    }

    #[test]
    fn what_is_not_known_is_left_to_the_last_byte() {
        // joblib: raw bytes of an array in the middle, here an operation that would claim 4 GiB.
        let joblib =
            b"\x80\x04\x8c\x13joblib.numpy_pickle\x94\x8c\x11NumpyArrayWrapper\x94\x93)\x81}bX\xff\xff\xff\xff.";
        assert_eq!(verdict("x.pkl", joblib), Ok(()));
        assert!(verdict("x.pkl", &joblib[..joblib.len() - 1]).is_err());
        assert_eq!(verdict("x.pkl", b"no pickle at all"), Ok(()));
        assert_eq!(verdict("x.npy", &array("|O", "(2,)", 3)), Ok(()), "objects");
        assert!(verdict("x.ubj", b"[]").is_err());
        assert!(verdict("x.npy", b"PK\x03\x04").is_err());
    }

    #[test]
    fn numbers_that_overflow_and_depth_without_end_are_refused_not_followed() {
        assert!(verdict("x.npy", &array("<f8", "(18446744073709551615, 9)", 8)).is_err());
        assert!(verdict("x.ubj", b"{i\x01a[$D#L\x7f\xff\xff\xff\xff\xff\xff\xff").is_err());
        assert!(verdict("x.ubj", &[b"{i\x01a".as_slice(), &[b'['; 100_000]].concat()).is_err());
        assert!(verdict("x.pkl", b"\x80\x04\x8e\xff\xff\xff\xff\xff\xff\xff\xff.").is_err());
    }

    #[test]
    fn what_is_full_of_small_containers_is_read_a_few_times_only() {
        let boxes = [b"{i\x01a[".as_slice(), &b"[]".repeat(1 << 18), b"]}"].concat();
        let peek = Counting::of("x.ubj", boxes);
        assert_eq!(ubjson(&peek, peek.memory.listing().file("x.ubj").expect("is there")), Ok(()));
        assert!(peek.times.get() < 8, "{} times", peek.times.get());
    }

    proptest! {
        #[test]
        fn no_bytes_make_a_walk_panic(mut bytes in prop::collection::vec(any::<u8>(), 0..300), at in 0usize..3) {
            let (name, head): (&str, &[u8]) = [("x.ubj", b"{".as_slice()), ("x.pkl", b"\x80\x04"), ("x.npy", b"\x93NUMPY\x01\0")][at];
            bytes.splice(0..0, head.iter().copied());
            let _ = verdict(name, &bytes);
        }

        #[test]
        fn one_changed_byte_never_makes_a_walk_panic(at in any::<prop::sample::Index>(), to in any::<u8>()) {
            for (name, mut bytes) in [("x.ubj", model()), ("x.pkl", PICKLES[0].to_vec()), ("x.npy", array("<f4", "(2, 3)", 24))] {
                let at = at.index(bytes.len());
                bytes[at] = to;
                let _ = verdict(name, &bytes);
            }
        }
    }
}
