//! Plans a write to the metrics file, from the file's end and the new lines.
//!
//! Deliberately absent: the file and its lock, and parsing the lines of other programs, except for an incomplete last
//! line.

use serde::de::IgnoredAny;

/// The last bytes of the file.
#[derive(Debug, Clone, Copy)]
pub struct Tail<'a> {
    /// The bytes up to the file's end.
    pub bytes: &'a [u8],
    /// The offset of the first of them.
    pub start: u64,
}

/// The steps, in the order of the fields.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Plan {
    /// Append the new lines in one write.
    Append {
        /// First cut the file to this length, because its last line is torn.
        cut_to: Option<u64>,
        /// First write a newline, because the last line is complete but has none.
        newline_first: bool,
    },
    /// Write `content` over the file from its start in one write, then cut the file to `len` bytes. The content beyond
    /// `len` is newlines up to the file's old size: a kill between the two steps leaves blank lines, which readers
    /// skip.
    Replace {
        /// The bytes.
        content: Vec<u8>,
        /// The number of bytes that stay.
        len: u64,
        /// A torn last line is dropped.
        torn: bool,
    },
}

/// Plans the addition of complete lines if at most `keep` lines may stay. Blank lines do not count and are dropped. If
/// `keep` is 0 all lines stay, and `tail` may start at the last newline; otherwise it must be the whole file.
pub fn plan(tail: Tail<'_>, new: &[u8], keep: usize) -> Plan {
    let end_of_lines = tail.bytes.iter().rposition(|b| *b == b'\n').map_or(0, |at| at + 1);
    let (whole, rest) = tail.bytes.split_at(end_of_lines);
    let lacks_newline = !rest.is_empty() && is_object(rest);
    let torn = !rest.is_empty() && !lacks_newline;
    let old = if lacks_newline { tail.bytes } else { whole };
    if keep == 0 || lines(old).count() + lines(new).count() <= keep {
        let cut_to = torn.then_some(tail.start + end_of_lines as u64);
        return Plan::Append { cut_to, newline_first: lacks_newline };
    }
    let mut last: Vec<&[u8]> = lines(new).rev().chain(lines(old).rev()).take(keep).collect();
    last.reverse();
    let mut content = Vec::with_capacity(tail.bytes.len() + new.len());
    for line in last {
        content.extend_from_slice(line);
        content.push(b'\n');
    }
    let len = content.len() as u64;
    let old_size = tail.start + tail.bytes.len() as u64;
    content.resize(len.max(old_size) as usize, b'\n');
    Plan::Replace { content, len, torn }
}

/// The lines that are not blank, without newlines.
fn lines(bytes: &[u8]) -> impl DoubleEndedIterator<Item = &[u8]> {
    bytes.split(|b| *b == b'\n').filter(|line| !line.trim_ascii().is_empty())
}

fn is_object(bytes: &[u8]) -> bool {
    bytes.trim_ascii_start().starts_with(b"{") && serde_json::from_slice::<IgnoredAny>(bytes).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn whole(bytes: &[u8]) -> Tail<'_> {
        Tail { bytes, start: 0 }
    }

    /// The file after the whole plan, and after a kill before its last step.
    fn apply(file: &[u8], plan: &Plan, new: &[u8]) -> (Vec<u8>, Vec<u8>) {
        let mut file = file.to_vec();
        match plan {
            Plan::Append { cut_to, newline_first } => {
                file.truncate(cut_to.map_or(file.len(), |at| at as usize));
                let killed = file.clone();
                file.extend_from_slice(if *newline_first { b"\n" } else { b"" });
                file.extend_from_slice(new);
                (file, killed)
            }
            Plan::Replace { content, len, .. } => {
                assert!(content.len() >= file.len(), "a reader must not find old bytes after new ones");
                (content[..*len as usize].to_vec(), content.clone())
            }
        }
    }

    #[test]
    fn lines_are_appended_up_to_the_limit() {
        let append = Plan::Append { cut_to: None, newline_first: false };
        assert_eq!(plan(whole(b""), b"{}\n", 1), append);
        assert_eq!(plan(whole(b"{}\n{}\n"), b"{}\n", 3), append);
        assert_eq!(plan(whole(b"a\nb\nc\n"), b"d\n", 0), append);
    }

    #[test]
    fn the_oldest_lines_are_dropped_and_newlines_fill_the_rest() {
        let expected = Plan::Replace { content: b"c\nd\n\n\n".to_vec(), len: 4, torn: false };
        assert_eq!(plan(whole(b"aaa\nc\n"), b"d\n", 2), expected);
        let longer = Plan::Replace { content: b"c\ndddddd\n".to_vec(), len: 9, torn: false };
        assert_eq!(plan(whole(b"a\nc\n"), b"dddddd\n", 2), longer);
    }

    #[test]
    fn a_complete_line_without_a_newline_gets_one_and_counts() {
        assert_eq!(plan(whole(b"{\"a\": 1}"), b"{}\n", 2), Plan::Append { cut_to: None, newline_first: true });
        let expected = Plan::Replace { content: b"{}\n\n\n\n\n\n\n\n".to_vec(), len: 3, torn: false };
        assert_eq!(plan(whole(b"{\"a\": 123}"), b"{}\n", 1), expected);
    }

    #[test]
    fn a_torn_line_is_cut_off() {
        for torn in [&b"{\"a\": \"0."[..], b"x", b"\0\0\0", b"  ", b"[1]", b"7", b"{} {}", b"\xff{"] {
            let file = [b"{}\n", torn].concat();
            assert_eq!(plan(whole(&file), b"{}\n", 5), Plan::Append { cut_to: Some(3), newline_first: false });
            let Plan::Replace { content, len: 6, torn: true } =
                plan(whole(&[&b"{}\n"[..], &file].concat()), b"{}\n", 2)
            else {
                panic!("{torn:?} is not trimmed");
            };
            assert!(content.starts_with(b"{}\n{}\n\n"), "{content:?}");
        }
    }

    #[test]
    fn blank_lines_of_an_interrupted_trim_do_not_replace_reports() {
        assert_eq!(plan(whole(b"a\nb\n\n\n"), b"c\n", 3), Plan::Append { cut_to: None, newline_first: false });
        let Plan::Replace { content, len: 4, .. } = plan(whole(b"a\nb\n\n\n"), b"c\n", 2) else {
            panic!("not trimmed")
        };
        assert!(content.starts_with(b"b\nc\n\n"));
    }

    #[test]
    fn the_last_lines_of_a_long_batch_stay() {
        let expected = Plan::Replace { content: b"3\n4\n".to_vec(), len: 4, torn: false };
        assert_eq!(plan(whole(b""), b"1\n2\n3\n4\n", 2), expected);
    }

    #[test]
    fn without_a_limit_the_end_of_the_file_is_enough() {
        let tail = |bytes| Tail { bytes, start: 10 };
        assert_eq!(plan(tail(b"x\n{\"torn"), b"{}\n", 0), Plan::Append { cut_to: Some(12), newline_first: false });
        assert_eq!(plan(tail(b"\n{}"), b"{}\n", 0), Plan::Append { cut_to: None, newline_first: true });
    }

    proptest! {
        #[test]
        fn the_last_reports_stay_after_any_tear(
            keep in 0usize..6,
            reports in prop::collection::vec((0usize..50, 0usize..3), 1..30),
        ) {
            let mut file = Vec::new();
            let mut expected: Vec<String> = Vec::new();
            for (at, (padding, accident)) in reports.into_iter().enumerate() {
                let line = format!("{{\"{at}\": \"{}\"}}", "x".repeat(padding));
                match accident {
                    1 => file.extend_from_slice(b"{\"torn\": "),
                    2 if file.last() == Some(&b'\n') && !expected.is_empty() => {
                        file.truncate(lines(&file).map(|l| l.len() + 1).sum::<usize>().max(1) - 1);
                    }
                    _ => {}
                }
                let new = format!("{line}\n").into_bytes();
                let plan = plan(whole(&file), &new, keep);
                let (after, killed) = apply(&file, &plan, &new);
                for line in lines(&killed) {
                    prop_assert!(is_object(line), "a kill leaves {:?}", String::from_utf8_lossy(line));
                }
                file = after;
                expected.push(line);
                if keep > 0 && expected.len() > keep {
                    expected.remove(0);
                }
                prop_assert_eq!(String::from_utf8_lossy(&file), expected.iter().map(|l| format!("{l}\n")).collect::<String>());
            }
        }
    }
}
