//! The trainer's output -> measurements. Bytes come in chunks of any size; `\n` and `\r` (progress bars) end a line.
//!
//! Most output holds no metric, so whole chunks are searched at once, and only where something is found are lines cut out.
//! Colour codes are left out of what is searched. A line longer than [`LONGEST_LINE_BYTES`] is searched in pieces of that
//! size, so that memory stays bounded; no cut goes through a number. What begins in a piece's last [`OVERLAP_BYTES`] is left
//! to the next one, so that of the matches across a cut only longer ones are missed, and none is counted twice.
//! Deliberately absent: encodings. A byte that is no UTF-8 is a `?`, so that it hides nothing else of its line.

use super::pattern::{Found, NoNumber, Pattern};

/// The length of the pieces that a longer line is searched in.
pub const LONGEST_LINE_BYTES: usize = 64 * 1024;

/// A cut keeps words together that are no longer than this.
const LONGEST_WORD_BYTES: usize = 64;

/// How much of a piece's end is searched with the next.
const OVERLAP_BYTES: usize = 512;

/// So often a cut is moved behind the matches that it would go through; after that it is at the piece's end.
const MOVES: usize = 8;

/// One stream's reader. Patterns are handed in with every call, so that two streams can share them.
#[derive(Debug, Default)]
pub struct Scraper {
    /// The unfinished last line, shorter than a piece.
    rest: Vec<u8>,
    /// A block without colour codes.
    plain: Vec<u8>,
    /// Patterns that matched what is no number, each once, and what that was.
    refused: Vec<(usize, NoNumber)>,
    /// How many of them were told.
    told: usize,
}

/// A measurement and the place of its pattern in the list.
pub type Hit = (usize, Found);

impl Scraper {
    /// Takes the next bytes; gives each measurement of each finished line, in order of the lines, then of the patterns.
    pub fn feed(&mut self, patterns: &[Pattern], chunk: &[u8], hits: &mut Vec<Hit>) {
        // So no line within a chunk is as long as a piece.
        for chunk in chunk.chunks(LONGEST_LINE_BYTES - 1) {
            self.take(patterns, chunk, hits);
        }
    }

    fn take(&mut self, patterns: &[Pattern], mut chunk: &[u8], hits: &mut Vec<Hit>) {
        while !self.rest.is_empty() {
            let end = chunk.iter().position(|b| is_end(*b)).unwrap_or(chunk.len());
            let room = LONGEST_LINE_BYTES - self.rest.len();
            let (head, tail) = chunk.split_at(end.min(room));
            self.rest.extend_from_slice(head);
            chunk = tail;
            if self.rest.len() == LONGEST_LINE_BYTES {
                self.piece(patterns, hits);
            } else if chunk.is_empty() {
                return;
            } else {
                self.finish(patterns, hits);
            }
        }
        let whole = chunk.iter().rposition(|b| is_end(*b)).map_or(0, |at| at + 1);
        let (block, rest) = chunk.split_at(whole);
        self.block(patterns, block, hits);
        self.rest.extend_from_slice(rest);
    }

    /// The begin of a line that is too long; what is left of it is shorter.
    fn piece(&mut self, patterns: &[Pattern], hits: &mut Vec<Hit>) {
        if self.rest.contains(&ESCAPE) {
            // The last code may not be whole yet.
            let last = self.rest.iter().rposition(|b| *b == ESCAPE).unwrap_or_default();
            let whole = if last + LONGEST_WORD_BYTES > self.rest.len() { last } else { self.rest.len() };
            without_codes(&self.rest[..whole], &mut self.plain);
            self.plain.extend_from_slice(&self.rest[whole..]);
            std::mem::swap(&mut self.rest, &mut self.plain);
            if self.rest.len() < LONGEST_LINE_BYTES {
                return;
            }
        }
        make_text(&mut self.rest, false);
        let end = word_start(&self.rest, self.rest.len());
        let mut cut = word_start(&self.rest, end - OVERLAP_BYTES);
        let kept = hits.len();
        for moved in 1.. {
            let mut reach = 0;
            for (which, pattern) in patterns.iter().enumerate() {
                let ends = pattern.find_before(&self.rest[..end], cut, |found| match found {
                    Ok(found) => hits.push((which, found)),
                    Err(what) => refuse(&mut self.refused, which, what),
                });
                reach = reach.max(ends);
            }
            if reach <= cut {
                break;
            }
            hits.truncate(kept);
            cut = if moved < MOVES { reach } else { end };
        }
        self.rest.drain(..cut);
    }

    /// The stream is at its end: a half line is a line.
    pub fn finish(&mut self, patterns: &[Pattern], hits: &mut Vec<Hit>) {
        let rest = std::mem::take(&mut self.rest);
        self.block(patterns, &rest, hits);
        self.rest = rest;
        self.rest.clear();
    }

    /// The next warning of matches that were left out; one for each pattern.
    pub fn complaint(&mut self, patterns: &[Pattern]) -> Option<String> {
        let (which, what) = self.refused.get(self.told)?;
        self.told += 1;
        let tag = patterns.get(*which).and_then(Pattern::tag).unwrap_or_default();
        Some(format!("the metric {tag}: {what}"))
    }

    /// Whole lines.
    fn block(&mut self, patterns: &[Pattern], block: &[u8], hits: &mut Vec<Hit>) {
        let mut plain = std::mem::take(&mut self.plain);
        let has_codes = block.contains(&ESCAPE);
        let block = if has_codes || std::str::from_utf8(block).is_err() {
            without_codes(block, &mut plain);
            make_text(&mut plain, true);
            &plain
        } else {
            block
        };
        let mut placed: Vec<(usize, Hit)> = Vec::new();
        for (which, pattern) in patterns.iter().enumerate() {
            search(pattern, block, |at, found| match found {
                Ok(found) => placed.push((at, (which, found))),
                Err(what) => refuse(&mut self.refused, which, what),
            });
        }
        if patterns.len() > 1 {
            placed.sort_by_key(|(at, (which, _))| (*at, *which));
        }
        hits.extend(placed.into_iter().map(|(_, hit)| hit));
        self.plain = plain;
    }
}

fn refuse(refused: &mut Vec<(usize, NoNumber)>, which: usize, what: NoNumber) {
    if refused.iter().all(|(other, _)| *other != which) {
        refused.push((which, what));
    }
}

/// One pattern in whole lines; tells where the line of each measurement begins.
fn search(pattern: &Pattern, block: &[u8], mut tell: impl FnMut(usize, Result<Found, NoNumber>)) {
    let mut line_at = |start: usize, end: usize| {
        if start < end {
            pattern.find(&block[start..end], |found| tell(start, found));
        }
    };
    let mut at = 0;
    while let Some(gate) = pattern.gate() {
        let Some(place) = gate.find_at(block, at) else { return };
        let start = block[..place.start()].iter().rposition(|b| is_end(*b)).map_or(0, |end| end + 1).max(at);
        let end = end_of_line(block, place.start());
        if place.end() > end {
            // It reaches over several lines: each has to be asked for itself.
            break;
        }
        line_at(start, end);
        at = end + 1;
        if at >= block.len() {
            return;
        }
    }
    while at < block.len() {
        let end = end_of_line(block, at);
        line_at(at, end);
        at = end + 1;
    }
}

/// Where to cut a line so that a word stays together, at a place or before it.
fn word_start(line: &[u8], at: usize) -> usize {
    let is_in_word = |b: &&u8| b.is_ascii_alphanumeric() || b"._+-".contains(b);
    let word = line[..at].iter().rev().take(LONGEST_WORD_BYTES + 1).take_while(is_in_word).count();
    at - if word <= LONGEST_WORD_BYTES { word } else { 0 }
}

fn is_end(byte: u8) -> bool {
    byte == b'\n' || byte == b'\r'
}

fn end_of_line(block: &[u8], from: usize) -> usize {
    block[from..].iter().position(|b| is_end(*b)).map_or(block.len(), |at| from + at)
}

/// Makes each byte that is no UTF-8 a `?`; of what is not whole, its last character may have more to come.
fn make_text(bytes: &mut [u8], is_whole: bool) {
    let mut at = 0;
    while let Err(error) = std::str::from_utf8(&bytes[at..]) {
        at += error.valid_up_to();
        let Some(count) = error.error_len().or(is_whole.then_some(bytes.len() - at)) else { return };
        bytes[at..at + count].fill(b'?');
        at += count;
    }
}

const ESCAPE: u8 = 0x1b;
const BELL: u8 = 7;

/// Leaves out what ECMA-48 knows of: `ESC [ parameters letter` (colours, cursor movements, erasures), `ESC ] text` up to BEL
/// or `ESC \` (titles, links), `ESC ( letter` (character sets), `ESC 7` and all else that is one byte long (cursor kept, keypad).
fn without_codes(block: &[u8], plain: &mut Vec<u8>) {
    plain.clear();
    let mut rest = block;
    while let Some(escape) = rest.iter().position(|b| *b == ESCAPE) {
        plain.extend_from_slice(&rest[..escape]);
        rest = &rest[escape + 1..];
        if let Some(code) = rest.strip_prefix(b"[") {
            let parameters = code.iter().take_while(|b| (0x20..0x40).contains(*b)).count();
            let after = &code[parameters..];
            rest = if after.first().is_some_and(|b| (0x40..0x7f).contains(b)) { &after[1..] } else { after };
        } else if let Some(text) = rest.strip_prefix(b"]") {
            let end = text.iter().position(|b| matches!(*b, BELL | ESCAPE) || is_end(*b)).unwrap_or(text.len());
            match &text[end..] {
                [BELL, after @ ..] | [ESCAPE, b'\\', after @ ..] => rest = after,
                _ => {}
            }
        } else if let [0x20..0x30, 0x30..0x7f, after @ ..] | [0x30..0x7f, after @ ..] = rest {
            rest = after;
        }
    }
    plain.extend_from_slice(rest);
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn patterns(texts: &[&str]) -> Vec<Pattern> {
        texts.iter().map(|text| Pattern::parse(text).expect(text)).collect()
    }

    /// Fed in chunks of this size.
    fn scrape(texts: &[&str], output: &[u8], size: usize) -> Vec<(usize, f64)> {
        let patterns = patterns(texts);
        let mut scraper = Scraper::default();
        let mut hits = Vec::new();
        for chunk in output.chunks(size.max(1)) {
            scraper.feed(&patterns, chunk, &mut hits);
        }
        scraper.finish(&patterns, &mut hits);
        hits.into_iter().map(|(which, found)| (which, found.value)).collect()
    }

    #[track_caller]
    fn finds(text: &str, output: &[u8], values: &[f64]) {
        for size in [1, 2, 3, 7, 64, 1 << 20] {
            let found: Vec<f64> = scrape(&[text], output, size).into_iter().map(|(_, value)| value).collect();
            assert_eq!(found, values, "chunks of {size}");
        }
    }

    #[test]
    fn a_metric_is_found_wherever_the_chunks_are_cut() {
        finds("a=loss: ([0-9.]+)", b"start\nloss: 0.5\nnothing\nloss: 0.25 and loss: 0.125\n", &[0.5, 0.25, 0.125]);
    }

    #[test]
    fn a_progress_bar_is_many_lines() {
        finds("a=loss=([0-9.]+)", b"\r 10%|#  | loss=0.5\r 20%|## | loss=0.4\r\n\r\ndone\n", &[0.5, 0.4]);
    }

    #[test]
    fn a_half_line_at_the_end_counts() {
        finds("a=loss: ([0-9.]+)", b"loss: 0.5\nloss: 0.25", &[0.5, 0.25]);
    }

    #[test]
    fn anchors_mean_the_line() {
        finds(
            "a=^loss: ([0-9.]+)$",
            b"loss: 1\rloss: 2\nmy loss: 3\nloss: 4 x\nloss: 5\r\nloss: 6",
            &[1.0, 2.0, 5.0, 6.0],
        );
        finds("a=\\Aloss: ([0-9.]+)\\z", b"loss: 1\nloss: 2\n x loss: 3\n", &[1.0, 2.0]);
    }

    #[test]
    fn nothing_matches_across_lines() {
        finds("a=loss:\\s+([0-9.]+)", b"loss:\n0.5\nloss:\r1\nloss: 2\n", &[2.0]);
        finds("a=(?s)loss.*?([0-9]+)", b"loss\n1\nloss 2\nloss\n", &[2.0]);
        finds("a=loss[^0-9]*([0-9]+)", b"loss\n1\nloss 2\nloss\n3\n", &[2.0]);
    }

    #[test]
    fn binary_junk_is_harmless() {
        let junk: Vec<u8> = (0..=255u8).chain((0..=255).rev()).cycle().take(200_000).collect();
        let output = [&junk[..], b"\nloss: 0.5\n", &junk].concat();
        assert_eq!(scrape(&["a=loss: ([0-9.]+)"], &output, 4096), [(0, 0.5)]);
    }

    #[test]
    fn a_byte_that_is_no_text_hides_nothing_else_of_its_line() {
        finds(
            "a=epoch.*loss=([0-9.]+)",
            b"epoch \xe9\xff loss=0.5\n\x1b[1mepoch \xc3 loss=0.25\nepoch \xc3",
            &[0.5, 0.25],
        );
        // A character that a piece's end cuts is one.
        for before in LONGEST_LINE_BYTES - 8..LONGEST_LINE_BYTES {
            let line = [&vec![b'-'; before][..], "é".as_bytes(), b"\xffloss=0.5 and on\n"].concat();
            assert_eq!(scrape(&["a=é.loss=([0-9.]+)"], &line, 1 << 20), [(0, 0.5)], "{before}");
        }
    }

    #[test]
    fn colours_are_left_out() {
        finds(
            "a=loss: ([0-9.]+)$",
            b"\x1b[1mloss:\x1b[0m \x1b[38;5;82m0.5\x1b[0m\n\x1b[2K\x1b[1Gloss: 0.25\n\x1b]junk\x1b",
            &[0.5, 0.25],
        );
    }

    #[test]
    fn titles_links_and_character_sets_are_left_out() {
        finds(
            "a=^loss: ([0-9.]+)$",
            b"\x1b]0;loss: 9\x07loss: \x1b(B0.5\n\x1b]8;;http://x\x1b\\loss: 0.25\x1b]8;;\x1b\\\n\x1b]cut off\nloss: 0.125\n",
            &[0.5, 0.25, 0.125],
        );
    }

    #[test]
    fn a_code_of_one_byte_is_no_digit_of_a_value() {
        finds(
            "a=loss=([0-9.]+)",
            b"\x1b7loss=\x1b80.46\x1b8\n\x1b=loss=\x1b>0.5\n\x1bMloss=0.25\x1bc1\n\x1b7",
            &[0.46, 0.5, 0.251],
        );
    }

    #[test]
    fn what_lies_across_the_cut_of_a_long_line_is_found_whole_and_once() {
        let places = (LONGEST_LINE_BYTES - 40..LONGEST_LINE_BYTES + 2)
            .chain(LONGEST_LINE_BYTES - OVERLAP_BYTES - 40..LONGEST_LINE_BYTES - OVERLAP_BYTES + 40);
        for before in places {
            for filler in ["x", "- "] {
                let line = format!("{} loss: 0.5625 and on\n", filler.repeat(before / filler.len()));
                for text in ["a=loss: ([0-9.]+)", "a=([0-9.]+)", "a=\\bl?oss: (\\S+)", "a=loss.*?([0-9.]+) and"] {
                    assert_eq!(scrape(&[text], line.as_bytes(), 1 << 20), [(0, 0.5625)], "{before} {text}");
                }
            }
        }
    }

    #[test]
    fn the_metrics_of_a_line_without_end_are_each_counted_once() {
        let text: String = (0..20_000).map(|n| format!("\x1b[1mstep{n}\x1b[0m=0.5 loss={n} | ")).collect();
        let losses: Vec<(usize, f64)> = (0..20_000).map(|n| (0, f64::from(n))).collect();
        for size in [1000, 4096, 1 << 20] {
            assert_eq!(scrape(&["a=loss=([0-9]+)"], text.as_bytes(), size), losses, "{size}");
            let patterns = patterns(&["b=step([0-9]+)=[0-9.]+ loss", "c=5 loss=([0-9]+)", "d=p([0-9]+)="]);
            let (mut scraper, mut hits) = (Scraper::default(), Vec::new());
            for chunk in text.as_bytes().chunks(size) {
                scraper.feed(&patterns, chunk, &mut hits);
            }
            scraper.finish(&patterns, &mut hits);
            for which in 0..3 {
                let values: Vec<f64> = hits.iter().filter(|(w, _)| *w == which).map(|(_, f)| f.value).collect();
                assert!(values.iter().copied().eq((0..20_000).map(f64::from)), "{size} {which}: {}", values.len());
            }
        }
    }

    #[test]
    fn a_line_without_end_takes_no_more_memory_than_a_piece() {
        let patterns = patterns(&["a=loss: ([0-9.]+);"]);
        let mut scraper = Scraper::default();
        let mut hits = Vec::new();
        for _ in 0..1000 {
            scraper.feed(&patterns, &[b'x'; 3000], &mut hits);
            assert!(scraper.rest.len() < LONGEST_LINE_BYTES && scraper.rest.capacity() <= 2 * LONGEST_LINE_BYTES);
        }
        scraper.feed(&patterns, b" loss: 0.5; and on", &mut hits);
        scraper.finish(&patterns, &mut hits);
        assert_eq!(hits.len(), 1);
    }

    #[test]
    fn a_match_that_is_no_number_is_complained_of_once() {
        let patterns = patterns(&["loss=loss: (\\S+)", "acc=acc: (\\S+) at (?P<step>\\S+)", "x=x: ([0-9]*)"]);
        let (mut scraper, mut hits) = (Scraper::default(), Vec::new());
        scraper.feed(&patterns, b"loss: 0.5, acc: 0.9 at soon\nloss: 0.4,\nloss: 0.3\nx: \n", &mut hits);
        assert_eq!(hits.iter().map(|(_, found)| found.value).collect::<Vec<_>>(), [0.3]);
        let complaints: Vec<String> = std::iter::from_fn(|| scraper.complaint(&patterns)).collect();
        assert_eq!(complaints.len(), 2, "{complaints:?}");
        assert!(complaints[0].contains("loss: the value \"0.5,\""), "{complaints:?}");
        assert!(
            complaints[1].contains("acc: the step \"soon\"") && complaints[1].contains("(?<step>[0-9]+)"),
            "{complaints:?}"
        );
        scraper.feed(&patterns, b"loss: 0.2,\n", &mut hits);
        assert_eq!(scraper.complaint(&patterns), None);
    }

    #[test]
    fn measurements_come_in_the_order_of_lines_then_of_patterns() {
        let texts = ["a=a=([0-9]+)", "b=b=([0-9]+)"];
        let output = b"b=1 a=2\na=3\nb=4\n";
        assert_eq!(scrape(&texts, output, 1 << 20), [(0, 2.0), (1, 1.0), (0, 3.0), (1, 4.0)]);
    }

    /// What it has to be like, without blocks and gates.
    fn by_line(texts: &[&str], output: &[u8]) -> Vec<(usize, f64)> {
        let mut plain = Vec::new();
        without_codes(output, &mut plain);
        let patterns = patterns(texts);
        let of_line = |line: &[u8]| -> Vec<(usize, f64)> {
            let each = patterns.iter().enumerate();
            let mut found = Vec::new();
            each.for_each(|(which, p)| p.find(line, |f| found.extend(f.map(|f| (which, f.value)))));
            found
        };
        plain.split(|b| is_end(*b)).flat_map(of_line).collect()
    }

    proptest! {
        #[test]
        fn blocks_and_gates_find_what_lines_would(
            output in "((loss|acc|x)[:= ]{0,2}[0-9.]{0,3}|\\n|\\r|\\x1b\\[3?m|é| ){0,40}", size in 1usize..50,
        ) {
            let texts = [
                "a=loss[:= ]*([0-9.]+)", "b=^acc: ([0-9]+)$", "c=(?s)x.*([0-9])", "d=x[^0-9]*([0-9])", "e=\\b([0-9]+)$",
                "f=(?i)LOSS\\s*([0-9])", "g=\\Aacc(.)", "h=(?:loss|acc)([^ ]+)",
            ];
            prop_assert_eq!(scrape(&texts, output.as_bytes(), size), by_line(&texts, output.as_bytes()));
        }
    }
}
