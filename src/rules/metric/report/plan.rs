//! Plans a write to the metrics file, from the file's end and the new lines.
//!
//! A write appends; then it trims: all lines that stay move to the front of the file, and newlines fill the rest until the file
//! is cut. The kernel may end a killed process's write between two pages, and the file then is the trimmed one up to there and
//! the old one from there. So a mark follows the new lines before a trim, and from it [`unfinished`] plans the rest of the trim.
//! The mark is a line of white space, which readers skip.
//!
//! Deliberately absent: the file and its lock, and parsing the lines of other programs, except for an incomplete last
//! line.

use serde::de::IgnoredAny;

/// Bytes of a mark: one for each bit of the two numbers, and a newline.
const MARK: usize = 65;
/// The limit for places that are tried as the end of the killed write.
const MOST_PLACES: usize = 64;

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
pub struct Plan {
    /// Cut the file to this length: its last line is torn.
    pub cut_to: Option<u64>,
    /// Append these bytes in one write.
    pub append: Vec<u8>,
    /// Then move the last lines to the front.
    pub trim: Option<Trim>,
}

/// Moves the last lines of a file to its front.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Trim {
    /// Where to write.
    pub at: u64,
    /// What to write there, up to the end of the mark.
    pub content: Vec<u8>,
    /// Then the file's length, if nothing was appended meanwhile.
    pub len: u64,
}

/// Plans the addition of complete lines if at most `keep` lines may stay. Blank lines do not count. If `keep` is 0 all lines
/// stay, and `tail` may start at the last newline; otherwise it must be the whole file.
pub fn plan(tail: Tail<'_>, new: &[u8], keep: usize) -> Plan {
    let end_of_lines = tail.bytes.iter().rposition(|b| *b == b'\n').map_or(0, |at| at + 1);
    let (whole, rest) = tail.bytes.split_at(end_of_lines);
    let lacks_newline = !rest.is_empty() && is_object(rest);
    let is_torn = !rest.is_empty() && !lacks_newline;
    let cut_to = is_torn.then_some(tail.start + end_of_lines as u64);
    let mut append = if lacks_newline { b"\n".to_vec() } else { Vec::new() };
    let old = if lacks_newline { tail.bytes } else { whole };
    if keep == 0 || lines(old).count() + lines(new).count() <= keep {
        append.extend_from_slice(new);
        return Plan { cut_to, append, trim: None };
    }
    append.extend_from_slice(&new[start_of_last(new, keep)..]);
    let mut file = [old, &append].concat();
    let kept = file.split_off(start_of_last(&file, keep));
    let dropped = file.len();
    append.extend_from_slice(&mark(dropped, &kept));
    let trim = Some(Trim::new(0, &kept, kept.len(), dropped));
    Plan { cut_to, append, trim }
}

/// The rest of a trim that was killed, in the whole file. Blank lines at the end are dropped, too.
pub fn unfinished(file: &[u8]) -> Option<Trim> {
    marked(file).or_else(|| {
        let len = start_of_blank_end(file);
        let blank = vec![b'\n'; file.len() - len];
        ends_blank(file).then_some(Trim { at: len as u64, content: blank, len: len as u64 })
    })
}

/// Whether the last line is blank.
pub fn ends_blank(file: &[u8]) -> bool {
    start_of_blank_end(file) < file.len()
}

fn marked(file: &[u8]) -> Option<Trim> {
    let mut end = file.len();
    let (dropped, sum, file) = loop {
        end = file[..end].iter().rposition(|b| *b == b'\n')?;
        let start = (end + 1).checked_sub(MARK)?;
        if let Some((dropped, sum)) = read_mark(&file[start..=end]) {
            break (dropped, sum, &file[..start]);
        }
    };
    let len = file.len().checked_sub(dropped).filter(|_| dropped > 0)?;
    // Up to the end of the write, the file has the bytes that stood `dropped` bytes further on. The last of them stand there still.
    let is_moved = |at: usize| file[at] == file[at + dropped];
    let (mut run, mut places) = (0, vec![0, len]);
    for at in 0..len {
        run = if is_moved(at) { run + 1 } else { 0 };
        let place = at + 1;
        // Within a run every place gives the same lines.
        if run >= place.min(dropped) && place < len && !is_moved(place) && places.len() < MOST_PLACES {
            places.push(place);
        }
    }
    let whole = places.into_iter().find(|at| adler32(file[..*at].iter().chain(&file[at + dropped..])) == sum)?;
    Some(Trim::new(whole, &file[whole + dropped..], len, dropped))
}

/// Where the blank lines at the end start.
fn start_of_blank_end(file: &[u8]) -> usize {
    let lines = file.trim_ascii_end().len();
    // The newline of the last line.
    lines + usize::from(lines > 0 && file.get(lines) == Some(&b'\n'))
}

impl Trim {
    fn new(at: usize, rest: &[u8], len: usize, dropped: usize) -> Trim {
        let mut content = rest.to_vec();
        content.resize(rest.len() + dropped + MARK, b'\n');
        Trim { at: at as u64, content, len: len as u64 }
    }
}

/// A line of spaces (0) and tabs (1): how many bytes a trim drops, and the sum of those that stay.
fn mark(dropped: usize, kept: &[u8]) -> Vec<u8> {
    let bits = (dropped as u64) << 32 | u64::from(adler32(kept.iter()));
    let digits = (0..64).rev().map(|bit| if bits >> bit & 1 == 1 { b'\t' } else { b' ' });
    digits.chain([b'\n']).collect()
}

fn read_mark(line: &[u8]) -> Option<(usize, u32)> {
    let (digits, b"\n") = line.split_last_chunk()? else { return None };
    let bits = digits.iter().try_fold(0u64, |bits, digit| match digit {
        b' ' => Some(bits << 1),
        b'\t' => Some(bits << 1 | 1),
        _ => None,
    })?;
    Some(((bits >> 32) as usize, bits as u32))
}

/// The sum of zlib, which Python has, too.
fn adler32<'a>(bytes: impl Iterator<Item = &'a u8>) -> u32 {
    const PRIME: u32 = 65521;
    let add = |(a, b): (u32, u32), byte: &u8| {
        let a = (a + u32::from(*byte)) % PRIME;
        (a, (b + a) % PRIME)
    };
    let (a, b) = bytes.fold((1, 0), add);
    b << 16 | a
}

/// Where the last `count` lines start that are not blank.
fn start_of_last(bytes: &[u8], mut count: usize) -> usize {
    let (mut start, mut end) = (bytes.len(), bytes.len());
    for line in bytes.split(|b| *b == b'\n').rev() {
        let at = end - line.len();
        if !line.trim_ascii().is_empty() {
            if count == 0 {
                break;
            }
            (start, count) = (at, count - 1);
        }
        end = at.saturating_sub(1);
    }
    start
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

    fn appended(cut_to: Option<u64>, append: &[u8]) -> Plan {
        Plan { cut_to, append: append.to_vec(), trim: None }
    }

    fn without_mark(plan: &Plan) -> &[u8] {
        &plan.append[..plan.append.len() - MARK]
    }

    /// The file before the trim.
    fn untrimmed(file: &[u8], plan: &Plan) -> Vec<u8> {
        let mut file = file.to_vec();
        file.truncate(plan.cut_to.map_or(file.len(), |at| at as usize));
        file.extend_from_slice(&plan.append);
        file
    }

    /// The trim up to this byte, as after a kill; beyond the file's end: the whole trim.
    fn trimmed(file: &mut Vec<u8>, trim: &Trim, killed_at: usize) {
        let (at, end) = (trim.at as usize, trim.at as usize + trim.content.len());
        assert!(end <= file.len(), "a trim needs no space");
        let end = end.min(killed_at).max(at);
        file[at..end].copy_from_slice(&trim.content[..end - at]);
        if killed_at > file.len() {
            file.truncate(trim.len as usize);
        }
    }

    /// The file after the whole plan.
    fn apply(file: &[u8], plan: &Plan) -> Vec<u8> {
        let mut file = untrimmed(file, plan);
        plan.trim.iter().for_each(|trim| trimmed(&mut file, trim, usize::MAX));
        file
    }

    #[test]
    fn lines_are_appended_up_to_the_limit() {
        assert_eq!(plan(whole(b""), b"{}\n", 1), appended(None, b"{}\n"));
        assert_eq!(plan(whole(b"{}\n{}\n"), b"{}\n", 3), appended(None, b"{}\n"));
        assert_eq!(plan(whole(b"a\nb\nc\n"), b"d\n", 0), appended(None, b"d\n"));
    }

    #[test]
    fn the_oldest_lines_are_dropped_after_the_new_ones_were_appended() {
        let trims = plan(whole(b"aaa\nc\n"), b"d\n", 2);
        assert_eq!(without_mark(&trims), b"d\n");
        assert_eq!(apply(b"aaa\nc\n", &trims), b"c\nd\n");
    }

    #[test]
    fn a_complete_line_without_a_newline_gets_one_and_counts() {
        assert_eq!(plan(whole(b"{\"a\": 1}"), b"{}\n", 2), appended(None, b"\n{}\n"));
        let trims = plan(whole(b"{\"a\": 123}"), b"{}\n", 1);
        assert_eq!(apply(b"{\"a\": 123}", &trims), b"{}\n");
    }

    #[test]
    fn a_torn_line_is_cut_off() {
        for torn in [&b"{\"a\": \"0."[..], b"x", b"\0\0\0", b"  ", b"[1]", b"7", b"{} {}", b"\xff{"] {
            let file = [b"{}\n", torn].concat();
            assert_eq!(plan(whole(&file), b"{}\n", 5), appended(Some(3), b"{}\n"));
            let file = [&b"{}\n"[..], &file].concat();
            assert_eq!(apply(&file, &plan(whole(&file), b"{}\n", 2)), b"{}\n{}\n");
        }
    }

    #[test]
    fn blank_lines_at_the_end_are_dropped() {
        let mut file = b"{}\n\n \n\t".to_vec();
        trimmed(&mut file, &unfinished(b"{}\n\n \n\t").expect("a trim"), usize::MAX);
        assert_eq!(file, b"{}\n");
    }

    #[test]
    fn blank_lines_do_not_replace_reports() {
        assert_eq!(plan(whole(b"a\nb\n\n\n"), b"c\n", 3), appended(None, b"c\n"));
        let file = b"a\nb\n\n\n";
        assert_eq!(apply(file, &plan(whole(file), b"c\n", 2)), b"b\n\n\nc\n");
    }

    #[test]
    fn the_last_lines_of_a_long_batch_stay() {
        assert_eq!(apply(b"", &plan(whole(b""), b"1\n2\n3\n4\n", 2)), b"3\n4\n");
        assert_eq!(apply(b"a\n", &plan(whole(b"a\n"), b"1\n2\n3\n4\n", 2)), b"3\n4\n");
    }

    #[test]
    fn without_a_limit_the_end_of_the_file_is_enough() {
        let tail = |bytes| Tail { bytes, start: 10 };
        assert_eq!(plan(tail(b"x\n{\"torn"), b"{}\n", 0), appended(Some(12), b"{}\n"));
        assert_eq!(plan(tail(b"\n{}"), b"{}\n", 0), appended(None, b"\n{}\n"));
    }

    #[test]
    fn a_file_without_the_mark_of_a_killed_trim_is_not_changed() {
        let blank = [&b"{}\n"[..], &[b' '; MARK - 1], b"\n{}\n"].concat();
        for file in [&b""[..], b"{}\n{}\n", b"{}", b"\n{}\n", &blank] {
            assert_eq!(unfinished(file), None, "{file:?}");
        }
        // Another writer's line came before the mark, which is dropped as a blank line.
        let plan = plan(whole(b"{\"a\": 1}\n"), b"{}\n", 1);
        let mut file = untrimmed(b"{\"a\": 1}\n{\"b\": 1}\n", &plan);
        let trim = unfinished(&file).expect("a trim");
        trimmed(&mut file, &trim, usize::MAX);
        assert_eq!(file, b"{\"a\": 1}\n{\"b\": 1}\n{}\n");
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
                    2 if file.last() == Some(&b'\n') => drop(file.pop()),
                    _ => {}
                }
                file = apply(&file, &plan(whole(&file), format!("{line}\n").as_bytes(), keep));
                expected.push(line);
                if keep > 0 && expected.len() > keep {
                    expected.remove(0);
                }
                prop_assert_eq!(String::from_utf8_lossy(&file), expected.iter().map(|l| format!("{l}\n")).collect::<String>());
            }
        }

        #[test]
        fn a_trim_that_is_killed_at_any_bytes_is_finished(
            old in prop::collection::vec((0usize..3, 0usize..30), 1..12),
            new in prop::collection::vec((0usize..3, 0usize..30), 1..12),
            keep in 1usize..12,
            kills in prop::collection::vec(0usize..500, 0..3),
            after in prop::sample::select(vec!["", "{\"unlocked\": 1}\n"]),
        ) {
            // Few different lines, so that a file often repeats itself.
            let text = |lines: Vec<(usize, usize)>| -> Vec<u8> {
                lines.into_iter().flat_map(|(name, padding)| format!("{{\"{name}\": \"{}\"}}\n", "x".repeat(padding / 10)).into_bytes()).collect()
            };
            let (old, new) = (text(old), text(new));
            let plan = plan(whole(&old), &new, keep);
            if let Some(trim) = &plan.trim {
                let expected = apply(&old, &plan);
                let mut file = [untrimmed(&old, &plan), after.as_bytes().to_vec()].concat();
                let marked = file.len() - after.len() - MARK;
                let mut next = Some(trim.clone());
                for killed_at in kills {
                    // Within the mark only newlines are missing, and the mark is gone.
                    next.iter().for_each(|trim| trimmed(&mut file, trim, killed_at.min(marked)));
                    next = unfinished(&file);
                    prop_assert!(next.is_some(), "killed at {}: {:?}", killed_at, String::from_utf8_lossy(&file));
                }
                let trim = next.expect("a trim");
                let (at, end) = (trim.at as usize, trim.at as usize + trim.content.len());
                file[at..end].copy_from_slice(&trim.content);
                prop_assert_eq!(trim.len as usize, expected.len());
                prop_assert_eq!(String::from_utf8_lossy(&file[..expected.len()]), String::from_utf8_lossy(&expected));
                let blank = file.len() - after.len();
                prop_assert!(file[expected.len()..blank].iter().all(|byte| *byte == b'\n'));
                prop_assert_eq!(&file[blank..], after.as_bytes());
            }
        }
    }
}
