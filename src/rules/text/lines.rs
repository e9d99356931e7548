//! Merges the output of several processes into one stream, line by line, with the writer's name before each line.
//!
//! A line is written when it is complete, so that two lines are never mixed. `\n` ends a line. `\r` (progress bars)
//! ends a piece, which is written at once; if another writer is next, it starts on a new line, so that each line of the
//! stream has one writer. An incomplete line is written, with a `\n`, when its writer ends. A line longer than
//! [`LONGEST_LINE_BYTES`] is written in pieces of that size, each as a line: memory stays bounded.

/// The limit for one writer's incomplete line.
pub const LONGEST_LINE_BYTES: usize = 1 << 20;

/// Merges the lines of several writers.
#[derive(Debug)]
pub struct Lines {
    writers: Vec<Writer>,
    /// The writer of the last piece, if that piece ended in `\r`.
    unfinished_by: Option<usize>,
}

#[derive(Debug)]
struct Writer {
    name: Vec<u8>,
    /// The incomplete last line.
    incomplete: Vec<u8>,
    /// Its last piece ended in `\r`: a `\n` directly after it belongs to the same line end.
    after_return: bool,
}

impl Lines {
    /// One writer for each of these prefixes.
    pub fn of(names: impl IntoIterator<Item = String>) -> Lines {
        let writers =
            names.into_iter().map(|n| Writer { name: n.into_bytes(), incomplete: Vec::new(), after_return: false });
        Lines { writers: writers.collect(), unfinished_by: None }
    }

    /// Adds the next bytes of a writer, and appends to `out` what is ready to be written.
    pub fn feed(&mut self, which: usize, mut chunk: &[u8], out: &mut Vec<u8>) {
        while let Some(at) = chunk.iter().position(|b| matches!(b, b'\n' | b'\r')) {
            let (line, end, tail) = (&chunk[..at], chunk[at], &chunk[at + 1..]);
            let writer = &self.writers[which];
            if end == b'\n' && at == 0 && writer.after_return && writer.incomplete.is_empty() {
                self.finish_return(which, out);
            } else {
                self.append(which, line, out);
                self.write_line(which, end, out);
            }
            chunk = tail;
        }
        self.append(which, chunk, out);
    }

    /// A writer has ended.
    pub fn finish(&mut self, which: usize, out: &mut Vec<u8>) {
        if !self.writers[which].incomplete.is_empty() {
            self.write_line(which, b'\n', out);
        } else if self.unfinished_by == Some(which) {
            self.finish_return(which, out);
        }
    }

    /// Adds a part of a line to the incomplete line, and writes pieces when the limit is reached.
    fn append(&mut self, which: usize, mut part: &[u8], out: &mut Vec<u8>) {
        loop {
            let writer = &mut self.writers[which];
            let room = LONGEST_LINE_BYTES - writer.incomplete.len();
            let (fits, over) = part.split_at(part.len().min(room));
            writer.incomplete.extend_from_slice(fits);
            if over.is_empty() {
                return;
            }
            self.write_line(which, b'\n', out);
            part = over;
        }
    }

    /// Writes the incomplete line.
    fn write_line(&mut self, which: usize, end: u8, out: &mut Vec<u8>) {
        if self.unfinished_by.is_some_and(|unfinished_by| unfinished_by != which) {
            out.push(b'\n');
        }
        let writer = &mut self.writers[which];
        out.extend_from_slice(&writer.name);
        out.append(&mut writer.incomplete);
        out.push(end);
        writer.after_return = end == b'\r';
        self.unfinished_by = writer.after_return.then_some(which);
    }

    /// Writes the `\n` of a `\r\n`, unless another writer has ended the line already.
    fn finish_return(&mut self, which: usize, out: &mut Vec<u8>) {
        self.writers[which].after_return = false;
        if self.unfinished_by == Some(which) {
            self.unfinished_by = None;
            out.push(b'\n');
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn two() -> Lines {
        Lines::of(["0: ".to_owned(), "1: ".to_owned()])
    }

    fn fed(parts: &[(usize, &str)]) -> String {
        let (mut lines, mut out) = (two(), Vec::new());
        for (which, part) in parts {
            lines.feed(*which, part.as_bytes(), &mut out);
        }
        (0..2).for_each(|which| lines.finish(which, &mut out));
        String::from_utf8(out).expect("text")
    }

    #[test]
    fn an_incomplete_line_is_held_back_until_it_is_complete() {
        assert_eq!(fed(&[(0, "a"), (1, "x\ny"), (0, "b\n"), (1, "z\n")]), "1: x\n0: ab\n1: yz\n");
    }

    #[test]
    fn an_incomplete_line_at_the_end_is_completed() {
        assert_eq!(fed(&[(1, "bye"), (0, "ok\n")]), "0: ok\n1: bye\n");
        assert_eq!(fed(&[]), "");
    }

    #[test]
    fn a_progress_bar_is_written_at_once_and_shares_its_line_with_no_other_writer() {
        assert_eq!(fed(&[(0, "1%\r2%\r"), (1, "x\n"), (0, "3%\r")]), "0: 1%\r0: 2%\r\n1: x\n0: 3%\r\n");
    }

    #[test]
    fn a_return_and_a_newline_are_one_line_end_in_one_chunk_or_in_two() {
        assert_eq!(fed(&[(0, "a\r\nb\r"), (0, "\n")]), "0: a\r\n0: b\r\n");
        assert_eq!(fed(&[(0, "a\r"), (1, "x\n"), (0, "\nb\n")]), "0: a\r\n1: x\n0: b\n");
        assert_eq!(fed(&[(0, "\n\n")]), "0: \n0: \n");
    }

    #[test]
    fn a_line_without_an_end_is_cut_at_the_limit() {
        let (mut lines, mut out) = (two(), Vec::new());
        lines.feed(0, &vec![b'x'; 2 * LONGEST_LINE_BYTES + 5], &mut out);
        lines.feed(0, b"y\n", &mut out);
        let text = String::from_utf8(out).expect("text");
        let lengths: Vec<usize> = text.lines().map(|line| line.len() - 3).collect();
        assert_eq!(lengths, [LONGEST_LINE_BYTES, LONGEST_LINE_BYTES, 6]);
    }

    proptest! {
        #[test]
        fn every_writers_lines_stay_complete_and_in_order_for_any_chunks(
            texts in prop::array::uniform2("[ab\n\r]{0,40}"),
            turns in prop::collection::vec((0usize..2, 1usize..6), 0..60),
        ) {
            let (mut lines, mut out) = (two(), Vec::new());
            let mut left: [&[u8]; 2] = [texts[0].as_bytes(), texts[1].as_bytes()];
            for (which, count) in turns {
                let (now, later) = left[which].split_at(count.min(left[which].len()));
                lines.feed(which, now, &mut out);
                left[which] = later;
            }
            for (which, incomplete) in left.into_iter().enumerate() {
                lines.feed(which, incomplete, &mut out);
                lines.finish(which, &mut out);
            }
            let out = String::from_utf8(out).expect("text");
            for line in out.split('\n') {
                prop_assert!(!(line.contains("0: ") && line.contains("1: ")), "{out:?}");
            }
            for (which, text) in texts.iter().enumerate() {
                let name = format!("{which}: ");
                let own = out.split('\n').filter(|line| line.starts_with(&name));
                let own: String = own.map(|line| line.replace(&name, "")).collect::<Vec<_>>().join("").replace('\r', "");
                prop_assert_eq!(own, text.replace(['\n', '\r'], ""));
            }
        }
    }
}
