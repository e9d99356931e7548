//! Cuts a file into lines, and counts them.

use crate::metric::files::records::LONGEST_LINE_BYTES;
use crate::metric::foreign_text::text::is_end;

/// Cuts a file into lines. The bytes come in pieces of any size.
#[derive(Debug, Default)]
pub struct Lines {
    /// The incomplete last line. A line that is too long is kept only up to a little more than the limit.
    pub(super) incomplete: Vec<u8>,
}

impl Lines {
    /// Adds the next bytes, and reports each complete line without its end.
    pub fn feed(&mut self, mut bytes: &[u8], mut report: impl FnMut(&[u8])) {
        while let Some(end) = bytes.iter().position(|b| is_end(*b)) {
            self.append(&bytes[..end]);
            bytes = &bytes[end + 1..];
            self.finish(&mut report);
        }
        self.append(bytes);
    }

    /// The last line has ended.
    pub fn finish(&mut self, mut report: impl FnMut(&[u8])) {
        if !self.incomplete.is_empty() {
            report(&self.incomplete);
        }
        self.incomplete.clear();
    }

    fn append(&mut self, bytes: &[u8]) {
        let room = LONGEST_LINE_BYTES + 1 - self.incomplete.len();
        self.incomplete.extend_from_slice(&bytes[..bytes.len().min(room)]);
    }
}

/// The number of lines that could be read.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// Lines that are not blank.
    pub lines: u64,
    /// Lines with a measurement.
    pub understood: u64,
}
