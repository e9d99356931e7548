//! Finds measurements in the trainer's output. Bytes come in chunks of any size. [`crate::metric::foreign_text::text`] defines the ends of
//! lines and the parts that are not searched.
//!
//! Most output has no metric, so whole chunks are searched at once, and lines are cut out only around a match. A line
//! longer than [`LONGEST_LINE_BYTES`] is searched in pieces of that size, so that memory stays bounded. A cut never
//! splits a number. A match that begins in the last [`OVERLAP_BYTES`] of a piece is left to the next piece: so only
//! longer matches across a cut are missed, and no match is counted twice. Deliberately absent: encodings; an invalid
//! UTF-8 byte hides nothing else of its line.

use crate::metric::foreign_text::text::{ESCAPE, clean, is_end, is_plain, make_text, without_codes};
use crate::metric::output::pattern::{Found, NoNumber, Pattern};

/// The size of the pieces in which longer lines are searched.
pub const LONGEST_LINE_BYTES: usize = 64 * 1024;

/// A cut does not split words up to this length.
const LONGEST_WORD_BYTES: usize = 64;

/// The part of a piece that is searched again with the next one.
const OVERLAP_BYTES: usize = 512;

/// The limit for moving a cut behind the matches that it would split; after that, the cut is at the end of the piece.
const MOST_MOVES: usize = 8;

/// The limit for counting lines.
pub const MOST_LINES: u64 = 10_000;

/// The limit for metrics with complaints.
const MOST_COMPLAINTS: usize = 10;

/// Reads one stream. The patterns are an argument of each call, so that two streams can share them. A pattern for steps
/// must come before all others.
#[derive(Debug, Default)]
pub struct Scraper {
    /// The incomplete last line, shorter than a piece.
    incomplete: Vec<u8>,
    /// A buffer for a block without colour codes.
    plain: Vec<u8>,
    /// Matches that are not numbers, one for each metric.
    refused: Vec<NoNumber>,
    /// The number of complaints that were returned.
    returned: usize,
    lines: u64,
}

/// A measurement, and the index of its pattern in the list.
pub type Hit = (usize, Found);

/// The last step in the output of a process. Its streams share it, because a trainer may write its steps to one and its
/// metrics to the other.
#[derive(Debug, Default)]
pub struct LastStep(Option<String>);

impl LastStep {
    /// Adds the last step to measurements without one, and removes the steps from them.
    pub fn add(&mut self, patterns: &[Pattern], hits: &mut Vec<Hit>) {
        let Some(name) = patterns.first().and_then(Pattern::step_name) else { return };
        hits.retain_mut(|(which, found)| {
            if *which == 0 {
                self.0 = found.step.take();
                return false;
            }
            if found.step.is_none() {
                found.step.clone_from(&self.0);
            }
            found.tag.as_deref().is_none_or(|tag| !tag.eq_ignore_ascii_case(name))
        });
    }
}

impl Scraper {
    /// Adds the next bytes. Returns each measurement of each complete line, in the order of the lines, then of the
    /// patterns. [`LastStep`] gives them their steps.
    pub fn feed(&mut self, patterns: &[Pattern], chunk: &[u8], hits: &mut Vec<Hit>) {
        if self.lines < MOST_LINES {
            self.lines += chunk.iter().filter(|b| is_end(**b)).count() as u64;
        }
        // This makes every line in a chunk shorter than a piece.
        for chunk in chunk.chunks(LONGEST_LINE_BYTES - 1) {
            self.append(patterns, chunk, hits);
        }
    }

    fn append(&mut self, patterns: &[Pattern], mut chunk: &[u8], hits: &mut Vec<Hit>) {
        while !self.incomplete.is_empty() {
            let end = chunk.iter().position(|b| is_end(*b)).unwrap_or(chunk.len());
            let room = LONGEST_LINE_BYTES - self.incomplete.len();
            let (head, tail) = chunk.split_at(end.min(room));
            self.incomplete.extend_from_slice(head);
            chunk = tail;
            if self.incomplete.len() == LONGEST_LINE_BYTES {
                self.search_piece(patterns, hits);
            } else if chunk.is_empty() {
                return;
            } else {
                self.finish(patterns, hits);
            }
        }
        let whole = chunk.iter().rposition(|b| is_end(*b)).map_or(0, |at| at + 1);
        let (search_block, incomplete) = chunk.split_at(whole);
        self.search_block(patterns, search_block, hits);
        self.incomplete.extend_from_slice(incomplete);
    }

    /// Searches the beginning of a line that is too long, and keeps a shorter rest.
    fn search_piece(&mut self, patterns: &[Pattern], hits: &mut Vec<Hit>) {
        if self.incomplete.contains(&ESCAPE) {
            // The last code may be incomplete.
            let last = self.incomplete.iter().rposition(|b| *b == ESCAPE).unwrap_or_default();
            let whole = if last + LONGEST_WORD_BYTES > self.incomplete.len() { last } else { self.incomplete.len() };
            without_codes(&self.incomplete[..whole], &mut self.plain);
            self.plain.extend_from_slice(&self.incomplete[whole..]);
            std::mem::swap(&mut self.incomplete, &mut self.plain);
            // A code that moves the cursor has ended a line.
            if let Some(end) = self.incomplete.iter().rposition(|b| is_end(*b)) {
                let incomplete = self.incomplete.split_off(end + 1);
                self.finish(patterns, hits);
                self.incomplete = incomplete;
            }
            if self.incomplete.len() < LONGEST_LINE_BYTES {
                return;
            }
        }
        make_text(&mut self.incomplete, false);
        let end = word_start(&self.incomplete, self.incomplete.len());
        let mut cut = word_start(&self.incomplete, end - OVERLAP_BYTES);
        let mut placed = Vec::new();
        for moved in 1.. {
            let mut reach = 0;
            for (which, pattern) in patterns.iter().enumerate() {
                let ends = pattern.find_before(&self.incomplete[..end], cut, |found| match found {
                    Ok(found) => placed.push((which, found)),
                    Err(what) => refuse(&mut self.refused, what),
                });
                reach = reach.max(ends);
            }
            if reach <= cut {
                break;
            }
            placed.clear();
            cut = if moved < MOST_MOVES { reach } else { end };
        }
        self.incomplete.drain(..cut);
        hits.extend(placed);
    }

    /// The stream has ended: an incomplete line counts as a line.
    pub fn finish(&mut self, patterns: &[Pattern], hits: &mut Vec<Hit>) {
        let incomplete = std::mem::take(&mut self.incomplete);
        self.search_block(patterns, &incomplete, hits);
        self.incomplete = incomplete;
        self.incomplete.clear();
    }

    /// The approximate number of lines, up to [`MOST_LINES`].
    pub fn lines(&self) -> u64 {
        self.lines.min(MOST_LINES)
    }

    /// The next warning about omitted matches; one for each metric.
    pub fn complaint(&mut self) -> Option<String> {
        let what = self.refused.get(self.returned)?;
        self.returned += 1;
        Some(what.to_string())
    }

    /// Searches complete lines.
    fn search_block(&mut self, patterns: &[Pattern], search_block: &[u8], hits: &mut Vec<Hit>) {
        let mut plain = std::mem::take(&mut self.plain);
        let search_block = if is_plain(search_block) {
            search_block
        } else {
            clean(search_block, &mut plain);
            &plain
        };
        let mut placed: Vec<(usize, Hit)> = Vec::new();
        for (which, pattern) in patterns.iter().enumerate() {
            search(pattern, search_block, |at, found| match found {
                Ok(found) => placed.push((at, (which, found))),
                Err(what) => refuse(&mut self.refused, what),
            });
        }
        if patterns.len() > 1 {
            placed.sort_by_key(|(at, (which, _))| (*at, *which));
        }
        self.plain = plain;
        hits.extend(placed.into_iter().map(|(_, hit)| hit));
    }
}

fn refuse(refused: &mut Vec<NoNumber>, what: NoNumber) {
    if refused.len() < MOST_COMPLAINTS && refused.iter().all(|other| other.tag() != what.tag()) {
        refused.push(what);
    }
}

/// Searches complete lines for one pattern; reports each measurement with the start of its line.
fn search(pattern: &Pattern, search_block: &[u8], mut report: impl FnMut(usize, Result<Found, NoNumber>)) {
    let mut line_at = |start: usize, end: usize| {
        if start < end {
            pattern.find(&search_block[start..end], |found| report(start, found));
        }
    };
    let mut at = 0;
    while let Some(block_pattern) = pattern.block_pattern() {
        let Some(place) = block_pattern.find_at(search_block, at) else { return };
        let start = search_block[..place.start()].iter().rposition(|b| is_end(*b)).map_or(0, |end| end + 1).max(at);
        let end = end_of_line(search_block, place.start());
        if place.end() > end {
            // The match spans several lines, so each must be searched separately.
            break;
        }
        line_at(start, end);
        at = end + 1;
        if at >= search_block.len() {
            return;
        }
    }
    while at < search_block.len() {
        let end = end_of_line(search_block, at);
        line_at(at, end);
        at = end + 1;
    }
}

/// The last position up to `at` where a cut does not split a word.
fn word_start(line: &[u8], at: usize) -> usize {
    let is_in_word = |b: &&u8| b.is_ascii_alphanumeric() || b"._+-".contains(b);
    let word = line[..at].iter().rev().take(LONGEST_WORD_BYTES + 1).take_while(is_in_word).count();
    at - if word <= LONGEST_WORD_BYTES { word } else { 0 }
}

fn end_of_line(search_block: &[u8], from: usize) -> usize {
    search_block[from..].iter().position(|b| is_end(*b)).map_or(search_block.len(), |at| from + at)
}

#[cfg(test)]
mod tests;
