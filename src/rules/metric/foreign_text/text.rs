//! Text of trainers for a terminal or a file: the ends of records, and the parts that are only for a terminal.
//!
//! `\n`, `\r` and a backspace end a record, and so does an escape code that moves the cursor: a progress bar that is
//! drawn again begins a new record. All other escape codes are removed. An invalid UTF-8 byte becomes `?`. Deliberately
//! absent: the result on a terminal, such as the rest of an old bar after a shorter new one.

/// The beginning of an escape code.
pub(in crate::metric) const ESCAPE: u8 = 0x1b;
const BELL: u8 = 7;
const BACKSPACE: u8 = 8;

/// The final bytes of ECMA-48 codes that move the cursor to another line, or back in its line.
const MOVES: &[u8] = b"ABDEFGHdf";

/// Whether the byte ends a record.
pub(in crate::metric) fn is_end(byte: u8) -> bool {
    matches!(byte, b'\n' | b'\r' | BACKSPACE)
}

/// Whether the bytes are text without escape codes and backspaces, which [`clean`] would not change.
pub(in crate::metric) fn is_plain(bytes: &[u8]) -> bool {
    !bytes.contains(&ESCAPE) && !bytes.contains(&BACKSPACE) && std::str::from_utf8(bytes).is_ok()
}

/// Complete records as plain text, each with the end `\n` or `\r`.
pub(in crate::metric) fn clean(bytes: &[u8], plain: &mut Vec<u8>) {
    without_codes(bytes, plain);
    make_text(plain, true);
}

/// Replaces each invalid UTF-8 byte by `?`. If `is_whole` is false, an incomplete last character is left.
pub(in crate::metric) fn make_text(bytes: &mut [u8], is_whole: bool) {
    let mut at = 0;
    while let Err(error) = std::str::from_utf8(&bytes[at..]) {
        at += error.valid_up_to();
        let Some(count) = error.error_len().or(is_whole.then_some(bytes.len() - at)) else { return };
        bytes[at..at + count].fill(b'?');
        at += count;
    }
}

/// Removes the codes of ECMA-48: `ESC [ parameters letter` (colours, erasures), `ESC ] text` up to BEL or `ESC \`
/// (titles, links), `ESC ( letter` (character sets), `ESC 7` and all other codes of one byte (saved cursor, keypad). A
/// code that moves the cursor, and a backspace, become `\r`.
pub(in crate::metric) fn without_codes(block: &[u8], plain: &mut Vec<u8>) {
    plain.clear();
    let mut rest = block;
    while let Some(escape) = rest.iter().position(|b| *b == ESCAPE) {
        plain.extend_from_slice(&rest[..escape]);
        rest = &rest[escape + 1..];
        if let Some(code) = rest.strip_prefix(b"[") {
            let parameters = code.iter().take_while(|b| (0x20..0x40).contains(*b)).count();
            let after = &code[parameters..];
            rest = match after.first() {
                Some(last @ 0x40..0x7f) => {
                    plain.extend(MOVES.contains(last).then_some(b'\r'));
                    &after[1..]
                }
                _ => after,
            };
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
    plain.iter_mut().filter(|byte| **byte == BACKSPACE).for_each(|byte| *byte = b'\r');
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[track_caller]
    fn cleans(bytes: &[u8], expected: &str) {
        let mut plain = Vec::new();
        clean(bytes, &mut plain);
        assert_eq!(String::from_utf8(plain).as_deref(), Ok(expected));
    }

    #[test]
    fn a_code_that_redraws_a_bar_ends_a_record() {
        cleans(
            b"loss=1\x1b[1Gloss=2\x1b[20Dloss=3\x1b[Aloss=4\x08\x08loss=5",
            "loss=1\rloss=2\rloss=3\rloss=4\r\rloss=5",
        );
    }

    #[test]
    fn colours_erasures_and_titles_are_removed() {
        cleans(b"\x1b[01;31m\x1b[Kloss\x1b[m\x1b[K=\x1b[5C0.5\x1b[?25l\x1b]0;loss=9\x07", "loss=0.5");
    }

    #[test]
    fn an_invalid_byte_becomes_a_question_mark() {
        cleans(b"pr\xe9cision=1 \xff", "pr?cision=1 ?");
        assert!(is_plain("précision".as_bytes()) && !is_plain(b"\xff") && !is_plain(b"\x08") && !is_plain(b"\x1b"));
    }

    proptest! {
        #[test]
        fn any_bytes_become_text(bytes in any::<Vec<u8>>()) {
            let mut plain = Vec::new();
            clean(&bytes, &mut plain);
            prop_assert!(is_plain(&plain));
        }
    }
}
