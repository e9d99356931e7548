//! Files that do not record their own length: pickles and NumPy arrays. Their structure is parsed, so that a cut anywhere is
//! noticed; the last byte alone is right by chance in one of 256 cuts. Formats: Python's pickletools; numpy.lib.format.

use std::sync::LazyLock;

use regex::bytes::{Regex, RegexBuilder};

use super::containers::{Verdict, no_zeros};
use crate::checkpoint::listing::{Entry, Peek};

/// Longer files, in bytes, are judged by their last byte: parsing them at each look would take too long.
const WALKED: u64 = 256 << 20;
/// Bytes read at a time.
const WINDOW: usize = 256 << 10;
/// Longest header of a NumPy file that is parsed, in bytes.
const NPY_HEADER: u64 = 1 << 20;

/// Why a walk stopped.
enum Stop {
    /// The file ends in the middle of an item.
    Cut,
    /// The file is not in this format, or uses a part of it that is not supported here.
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

    /// A little-endian number of this many bytes.
    fn number(&mut self, width: u32) -> Result<u64, Stop> {
        (0..width).try_fold(0u64, |n, i| Ok(n | u64::from(self.byte()?) << (8 * i)))
    }

    fn line(&mut self) -> Result<(), Stop> {
        while self.byte()? != b'\n' {}
        Ok(())
    }

    /// The next bytes, without consuming them; fewer only at the end of the file. Buffered bytes are not read again.
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

/// One or more pickles, the last of which ends at the end of the file. A file that does not start as a pickle passes.
pub(in crate::checkpoint) fn pickle(peek: &dyn Peek, file: &Entry) -> Verdict {
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

/// Skips one operation and its argument; false at the operation that ends the pickle. Operations of protocols 0 and 1
/// are not supported, because those pickles start differently.
fn pickle_operation(cursor: &mut Cursor) -> Result<bool, Stop> {
    let width = match cursor.byte()? {
        b'.' => return Ok(false),
        b'K' | b'h' | b'q' | 0x80 | 0x82 => 1,
        b'M' | 0x83 => 2,
        b'J' | b'j' | b'r' | 0x84 => 4,
        b'G' | 0x95 => 8,
        // Python 2 wrote integers of more than 32 bits like this.
        b'I' => {
            cursor.line()?;
            0
        }
        b'c' => {
            cursor.line()?;
            cursor.line()?;
            0
        }
        0x8c => counted(cursor, 1)?,
        b'U' | b'C' | 0x8a => cursor.number(1)?,
        b'X' => counted(cursor, 4)?,
        b'T' | b'B' | 0x8b => cursor.number(4)?,
        0x8d | 0x8e | 0x96 => cursor.number(8)?,
        byte if b"()012]laet}dsuboRNQ".contains(&byte) => 0,
        0x81 | 0x85..=0x89 | 0x8f..=0x94 | 0x97 | 0x98 => 0,
        _ => return Err(Stop::Unknown),
    };
    cursor.skip(width)?;
    Ok(true)
}

/// The length of a string. joblib writes the bytes of arrays between operations; the class name before them shows it.
fn counted(cursor: &mut Cursor, width: u32) -> Result<u64, Stop> {
    let length = cursor.number(width)?;
    if length == 17 && cursor.ahead(17) == b"NumpyArrayWrapper" { Err(Stop::Unknown) } else { Ok(length) }
}

/// NumPy arrays, each as long as its header says. Arrays of records and of objects pass.
pub(super) fn npy(peek: &dyn Peek, file: &Entry) -> Verdict {
    match arrays(&mut Cursor::new(peek, file)) {
        Err(Stop::Cut) => Err("its array is cut short".to_owned()),
        Ok(()) | Err(Stop::Unknown) => Ok(()),
    }
}

fn arrays(cursor: &mut Cursor) -> Result<(), Stop> {
    static DTYPE: LazyLock<Regex> = LazyLock::new(|| constant(r"'descr':\s*'[<>|=]?([a-zA-Z])(\d+)(?:\[[^\]']*\])?'"));
    static SHAPE: LazyLock<Regex> = LazyLock::new(|| constant(r"'shape':\s*\(([0-9, ]*)\)"));
    while cursor.at == 0 || !cursor.is_at_end() {
        let head = cursor.ahead(8).to_vec();
        cursor.skip(8)?;
        let version = *head.get(6).ok_or(Stop::Cut)?;
        let length = cursor.number(if version == 1 { 2 } else { 4 })?;
        if !head.starts_with(b"\x93NUMPY") || length > NPY_HEADER {
            return Err(Stop::Cut);
        }
        let header = cursor.ahead(length as usize).to_vec();
        cursor.skip(length)?;
        let (Some(dtype), Some(shape)) = (DTYPE.captures(&header), SHAPE.captures(&header)) else {
            return Err(Stop::Unknown);
        };
        let number = |text: &[u8]| std::str::from_utf8(text).ok()?.trim().parse::<u64>().ok();
        let letters = if &dtype[1] == b"U" { 4 } else { 1 };
        let sizes = shape[1].split(|b| *b == b',').filter(|t| !t.trim_ascii().is_empty()).map(number);
        let mut bytes = sizes.chain([number(&dtype[2]), Some(letters)]);
        let bytes = bytes.try_fold(1u64, |all, n| all.checked_mul(n?)).ok_or(Stop::Cut)?;
        cursor.skip(bytes)?;
    }
    Ok(())
}

/// The compiled form of a constant expression for bytes, in which `.` is any byte.
#[expect(clippy::unwrap_used, reason = "constant expressions, compiled by every test")]
pub(in crate::checkpoint) fn constant(expression: &str) -> Regex {
    RegexBuilder::new(expression).unicode(false).dot_matches_new_line(true).build().unwrap()
}
