//! The output of several processes into one stream, line by line, each with its writer's name before it.
//!
//! A line goes out when it is whole, so that no two are torn into each other. `\n` ends a line. `\r` (progress bars) ends a
//! piece that goes out at once; whoever else has something to say then begins on a line of their own, so that between two
//! `\n` there is one writer only. A half line goes out at its writer's end, closed. A line longer than
//! [`LONGEST_LINE_BYTES`] goes out in pieces of that size, a line each: memory stays bounded.

/// The most that is kept of one writer's unfinished line.
pub const LONGEST_LINE_BYTES: usize = 1 << 20;

/// The lines of several writers.
#[derive(Debug)]
pub struct Lines {
    writers: Vec<Writer>,
    /// Whose piece, ended by `\r`, was the last to go out.
    open: Option<usize>,
}

#[derive(Debug)]
struct Writer {
    name: Vec<u8>,
    /// The unfinished last line.
    rest: Vec<u8>,
    /// Its last piece ended in `\r`: a `\n` right after it is the other half of a line's end.
    returned: bool,
}

impl Lines {
    /// Writers by what stands before each of their lines.
    pub fn of(names: impl IntoIterator<Item = String>) -> Lines {
        let writers = names.into_iter().map(|n| Writer { name: n.into_bytes(), rest: Vec::new(), returned: false });
        Lines { writers: writers.collect(), open: None }
    }

    /// Takes the next bytes of a writer; what can go out is put at the end of `out`.
    pub fn feed(&mut self, which: usize, mut chunk: &[u8], out: &mut Vec<u8>) {
        while let Some(at) = chunk.iter().position(|b| matches!(b, b'\n' | b'\r')) {
            let (line, end, tail) = (&chunk[..at], chunk[at], &chunk[at + 1..]);
            let writer = &self.writers[which];
            if end == b'\n' && at == 0 && writer.returned && writer.rest.is_empty() {
                self.second_half(which, out);
            } else {
                self.take(which, line, out);
                self.put(which, end, out);
            }
            chunk = tail;
        }
        self.take(which, chunk, out);
    }

    /// A writer is at its end.
    pub fn finish(&mut self, which: usize, out: &mut Vec<u8>) {
        if !self.writers[which].rest.is_empty() {
            self.put(which, b'\n', out);
        } else if self.open == Some(which) {
            self.second_half(which, out);
        }
    }

    /// A part of a line, kept; but no more of it than there is room for.
    fn take(&mut self, which: usize, mut part: &[u8], out: &mut Vec<u8>) {
        loop {
            let writer = &mut self.writers[which];
            let room = LONGEST_LINE_BYTES - writer.rest.len();
            let (fits, over) = part.split_at(part.len().min(room));
            writer.rest.extend_from_slice(fits);
            if over.is_empty() {
                return;
            }
            self.put(which, b'\n', out);
            part = over;
        }
    }

    /// The kept line goes out.
    fn put(&mut self, which: usize, end: u8, out: &mut Vec<u8>) {
        if self.open.is_some_and(|open| open != which) {
            out.push(b'\n');
        }
        let writer = &mut self.writers[which];
        out.extend_from_slice(&writer.name);
        out.append(&mut writer.rest);
        out.push(end);
        writer.returned = end == b'\r';
        self.open = writer.returned.then_some(which);
    }

    /// The `\n` of a `\r\n`; somebody else may have closed the line meanwhile.
    fn second_half(&mut self, which: usize, out: &mut Vec<u8>) {
        self.writers[which].returned = false;
        if self.open == Some(which) {
            self.open = None;
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
    fn halves_of_lines_wait_for_each_other() {
        assert_eq!(fed(&[(0, "a"), (1, "x\ny"), (0, "b\n"), (1, "z\n")]), "1: x\n0: ab\n1: yz\n");
    }

    #[test]
    fn a_half_line_at_the_end_is_closed() {
        assert_eq!(fed(&[(1, "bye"), (0, "ok\n")]), "0: ok\n1: bye\n");
        assert_eq!(fed(&[]), "");
    }

    #[test]
    fn a_progress_bar_is_seen_at_once_and_nobody_else_is_on_its_line() {
        assert_eq!(fed(&[(0, "1%\r2%\r"), (1, "x\n"), (0, "3%\r")]), "0: 1%\r0: 2%\r\n1: x\n0: 3%\r\n");
    }

    #[test]
    fn a_return_and_a_newline_are_one_end_of_a_line_however_they_come() {
        assert_eq!(fed(&[(0, "a\r\nb\r"), (0, "\n")]), "0: a\r\n0: b\r\n");
        assert_eq!(fed(&[(0, "a\r"), (1, "x\n"), (0, "\nb\n")]), "0: a\r\n1: x\n0: b\n");
        assert_eq!(fed(&[(0, "\n\n")]), "0: \n0: \n");
    }

    #[test]
    fn a_line_without_an_end_is_cut_where_room_ends() {
        let (mut lines, mut out) = (two(), Vec::new());
        lines.feed(0, &vec![b'x'; 2 * LONGEST_LINE_BYTES + 5], &mut out);
        lines.feed(0, b"y\n", &mut out);
        let text = String::from_utf8(out).expect("text");
        let lengths: Vec<usize> = text.lines().map(|line| line.len() - 3).collect();
        assert_eq!(lengths, [LONGEST_LINE_BYTES, LONGEST_LINE_BYTES, 6]);
    }

    proptest! {
        #[test]
        fn every_writers_lines_come_out_whole_and_in_order_in_whatever_pieces(
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
            for (which, rest) in left.into_iter().enumerate() {
                lines.feed(which, rest, &mut out);
                lines.finish(which, &mut out);
            }
            let out = String::from_utf8(out).expect("text");
            for line in out.split('\n') {
                prop_assert!(!(line.contains("0: ") && line.contains("1: ")), "{out:?}");
            }
            for (which, text) in texts.iter().enumerate() {
                let name = format!("{which}: ");
                let ours = out.split('\n').filter(|line| line.starts_with(&name));
                let ours: String = ours.map(|line| line.replace(&name, "")).collect::<Vec<_>>().join("").replace('\r', "");
                prop_assert_eq!(ours, text.replace(['\n', '\r'], ""));
            }
        }
    }
}
