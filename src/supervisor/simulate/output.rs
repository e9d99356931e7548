//! The visible output: the lines of each replica after its name, the simulator's own lines, and on a terminal one
//! progress line below them.

use std::os::fd::{AsRawFd, BorrowedFd, RawFd};
use std::time::Duration;

use indicatif::ProgressBar;

use crate::edge::io::eventfd::is_writable;
use crate::edge::io::pipe::Reader;
use crate::edge::io::{progress_line, stdio};

/// A longer line is shown in parts.
const LONGEST_LINE: usize = 64 << 10;
/// The size of one read.
const CHUNK: usize = 16 << 10;
/// The pause between two changes of the progress line.
const REDRAW: Duration = Duration::from_millis(200);

/// Standard output or standard error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stream {
    Out,
    Err,
}

/// The lines that arrive through a pipe.
#[derive(Debug)]
pub(super) struct Lines {
    /// `None` after the end.
    reader: Option<Reader>,
    pending: Vec<u8>,
}

impl Lines {
    pub(super) fn new(reader: Reader) -> Lines {
        Lines { reader: Some(reader), pending: Vec::new() }
    }

    pub(super) fn fd(&self) -> Option<RawFd> {
        self.reader.as_ref().map(AsRawFd::as_raw_fd)
    }

    /// About this number of complete lines, without their ends; at the end of the stream also the incomplete rest.
    pub(super) fn next(&mut self, most: usize) -> Vec<Vec<u8>> {
        let (mut lines, mut chunk) = (Vec::new(), [0; CHUNK]);
        while lines.len() < most {
            let Some(reader) = &mut self.reader else { break };
            let count = match reader.read(&mut chunk) {
                Ok(None) => break,
                Ok(Some(count)) => count,
                Err(_) => 0,
            };
            self.pending.extend_from_slice(&chunk[..count]);
            while let Some(end) = self.pending.iter().position(|byte| *byte == b'\n') {
                let mut line: Vec<u8> = self.pending.drain(..=end).collect();
                line.pop();
                lines.push(line);
            }
            if count == 0 {
                self.reader = None;
            }
            if !self.pending.is_empty() && (count == 0 || self.pending.len() >= LONGEST_LINE) {
                lines.push(std::mem::take(&mut self.pending));
            }
        }
        lines
    }
}

/// Our own two streams.
#[derive(Debug)]
pub(super) struct Screen {
    /// The names of the replicas, padded.
    names: Vec<String>,
    line: ProgressBar,
}

impl Screen {
    pub(super) fn new(names: &[String]) -> Screen {
        let width = names.iter().map(String::len).max().unwrap_or(0);
        let names = names.iter().map(|name| format!("{name:width$} | ")).collect();
        Screen { names, line: progress_line::of_text() }
    }

    /// Whether a line can be written without a wait for its reader.
    pub(super) fn has_room() -> bool {
        [stdio::STDOUT, stdio::STDERR].into_iter().all(is_writable)
    }

    /// A line of a replica.
    pub(super) fn show(&self, at: usize, stream: Stream, line: &[u8]) {
        let to: BorrowedFd<'static> = if stream == Stream::Out { stdio::STDOUT } else { stdio::STDERR };
        let whole = [self.names[at].as_bytes(), line, b"\n"].concat();
        // The simulation continues without a reader.
        let _ = self.line.suspend(|| stdio::write_all(to, &whole));
    }

    /// A line of the simulator.
    pub(super) fn say(&self, text: &str) {
        self.line.suspend(|| stdio::complain(&format!("simulate: {text}")));
    }

    /// Sets the text of the progress line.
    pub(super) fn progress(&self, text: String) {
        self.line.set_message(text);
    }

    /// The time until the progress line is drawn again.
    pub(super) fn redraws_in(&self) -> Option<Duration> {
        (!self.line.is_hidden()).then_some(REDRAW)
    }

    /// Removes the progress line.
    pub(super) fn clear(&self) {
        self.line.finish_and_clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::edge::io::pipe;
    use std::fs::File;
    use std::io::Write;

    #[test]
    fn lines_are_complete_and_the_rest_follows_at_the_end() {
        let (reader, writer) = pipe::pair().expect("a pipe");
        let (mut lines, mut writer) = (Lines::new(reader), File::from(writer));
        writer.write_all(b"one\ntw").expect("room");
        assert_eq!(lines.next(10), [b"one".to_vec()]);
        writer.write_all(b"o\n\nthree").expect("room");
        assert_eq!(lines.next(10), [b"two".to_vec(), b"".to_vec()]);
        drop(writer);
        assert_eq!((lines.next(10), lines.fd()), (vec![b"three".to_vec()], None));
    }

    #[test]
    fn an_endless_line_is_shown_in_parts() {
        let (reader, writer) = pipe::pair().expect("a pipe");
        let (mut lines, mut writer) = (Lines::new(reader), File::from(writer));
        writer.write_all(&vec![b'x'; LONGEST_LINE + 1]).expect("room");
        let first = lines.next(1).remove(0);
        drop(writer);
        let rest: usize = lines.next(10).iter().map(Vec::len).sum();
        assert_eq!(first.len() + rest, LONGEST_LINE + 1);
    }
}
