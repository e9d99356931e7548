//! Files that say nothing of their own length: their structure is walked, so that one that was cut anywhere is noticed.
//!
//! A single last byte (a brace, a full stop) is there by chance in one of 256 cuts, and in more where writers flush at the
//! end of an object. Formats: ubjson.org as XGBoost writes it; Python's pickletools; numpy.lib.format.

use std::sync::LazyLock;

use regex::bytes::Regex;

use super::containers::{Verdict, no_zeros};
use crate::rules::checkpoint::ascii::ascii;
use crate::rules::checkpoint::listing::{Entry, Peek};

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
pub(in super::super) fn pickle(peek: &dyn Peek, file: &Entry) -> Verdict {
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

/// Passes one operation and its argument; false at the one that ends the pickle. Those that only the protocols of before
/// wrote, which do not begin as this does, are not known.
fn pickle_operation(cursor: &mut Cursor) -> Result<bool, Stop> {
    let width = match cursor.byte()? {
        b'.' => return Ok(false),
        b'K' | b'h' | b'q' | 0x80 | 0x82 => 1,
        b'M' | 0x83 => 2,
        b'J' | b'j' | b'r' | 0x84 => 4,
        b'G' | 0x95 => 8,
        // Python 2 wrote so what 32 bits do not hold.
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
    static DTYPE: LazyLock<Regex> = LazyLock::new(|| ascii(r"'descr':\s*'[<>|=]?([a-zA-Z])(\d+)(?:\[[^\]']*\])?'"));
    static SHAPE: LazyLock<Regex> = LazyLock::new(|| ascii(r"'shape':\s*\(([0-9, ]*)\)"));
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
mod tests;
