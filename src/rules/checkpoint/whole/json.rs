//! JSON as Python writes it, of any length: read piece by piece and held nowhere.

use std::io::{self, BufRead, BufReader, Read};

use serde::de::{DeserializeOwned, IgnoredAny};

use super::containers::Verdict;
use crate::rules::checkpoint::listing::{Entry, Peek};

/// Longer files are judged by their last bytes: reading them at each look would take too long.
const LIMIT: u64 = 100 << 20;
/// Bytes read at a time.
const WINDOW: usize = 256 << 10;
/// What no JSON has outside of a string.
const NEVER: u8 = b'N';

/// What Python's `json` writes, which knows of `NaN`, `Infinity` and `-Infinity`: here they are 0, nobody wants their
/// value.
pub fn python_json<T: DeserializeOwned>(text: &mut dyn Read) -> serde_json::Result<T> {
    serde_json::from_reader(BufReader::new(Plain { text, is_string: false, is_escaped: false, word: b"" }))
}

/// The same from a file of the listing.
pub fn read<T: DeserializeOwned>(peek: &dyn Peek, file: &Entry) -> serde_json::Result<T> {
    python_json(&mut content(peek, file))
}

/// JSON to the end, or a line of it after the other.
pub fn json(peek: &dyn Peek, file: &Entry) -> Verdict {
    if file.size > LIMIT {
        let tail = peek.read(&file.path, file.size - 64, 64).ok_or("it cannot be read")?;
        let last = tail.iter().rev().find(|b| !b.is_ascii_whitespace());
        return if matches!(last, Some(b'}' | b']')) { Ok(()) } else { Err("its JSON is cut short".to_owned()) };
    }
    match read::<IgnoredAny>(peek, file) {
        Ok(_) => Ok(()),
        Err(error) if error.is_io() => Err("it cannot be read".to_owned()),
        // Lines begin with one that is whole.
        Err(error) if error.is_eof() => Err("its JSON is cut short".to_owned()),
        Err(_) if is_lines(content(peek, file)).unwrap_or(false) => Ok(()),
        Err(error) => Err(format!("it is no JSON ({error})")),
    }
}

/// Whether each line is JSON.
fn is_lines(mut text: impl BufRead) -> io::Result<bool> {
    while has_more(&mut text)? {
        if python_json::<IgnoredAny>(&mut Line(&mut text)).is_err() {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Passes blanks and empty lines; whether anything is behind them.
fn has_more(text: &mut impl BufRead) -> io::Result<bool> {
    loop {
        let held = text.fill_buf()?;
        let (length, blanks) = (held.len(), held.iter().take_while(|byte| b" \t\r\n".contains(byte)).count());
        text.consume(blanks);
        if length == 0 || blanks < length {
            return Ok(length > 0);
        }
    }
}

/// A text up to the end of its line.
struct Line<'a, R>(&'a mut R);

impl<R: BufRead> Read for Line<'_, R> {
    fn read(&mut self, room: &mut [u8]) -> io::Result<usize> {
        let held = self.0.fill_buf()?;
        let line = held.iter().take(room.len()).take_while(|byte| **byte != b'\n').count();
        room[..line].copy_from_slice(&held[..line]);
        self.0.consume(line);
        Ok(line)
    }
}

fn content<'a>(peek: &'a dyn Peek, file: &'a Entry) -> BufReader<Content<'a>> {
    BufReader::with_capacity(WINDOW, Content { peek, file, at: 0 })
}

/// A file, as long as the listing has it.
struct Content<'a> {
    peek: &'a dyn Peek,
    file: &'a Entry,
    at: u64,
}

impl Read for Content<'_> {
    fn read(&mut self, room: &mut [u8]) -> io::Result<usize> {
        let wanted = usize::try_from(self.file.size - self.at).unwrap_or(usize::MAX).min(room.len());
        if wanted == 0 {
            return Ok(0);
        }
        let bytes = self.peek.read(&self.file.path, self.at, wanted).ok_or(io::ErrorKind::Other)?;
        room[..bytes.len()].copy_from_slice(&bytes);
        self.at += bytes.len() as u64;
        Ok(bytes.len())
    }
}

/// Python's JSON made everybody's, byte by byte.
struct Plain<'a> {
    text: &'a mut dyn Read,
    is_string: bool,
    is_escaped: bool,
    /// What is to come of a word of Python's own.
    word: &'static [u8],
}

impl Read for Plain<'_> {
    fn read(&mut self, room: &mut [u8]) -> io::Result<usize> {
        let read = self.text.read(room)?;
        if read == 0 && !room.is_empty() && !std::mem::take(&mut self.word).is_empty() {
            room[0] = NEVER;
            return Ok(1);
        }
        room[..read].iter_mut().for_each(|byte| *byte = self.plain(*byte));
        Ok(read)
    }
}

impl Plain<'_> {
    fn plain(&mut self, byte: u8) -> u8 {
        if let [next, rest @ ..] = self.word {
            let is_it = byte == *next;
            self.word = if is_it { rest } else { b"" };
            return if is_it { b' ' } else { NEVER };
        }
        match byte {
            _ if self.is_escaped => self.is_escaped = false,
            b'\\' if self.is_string => self.is_escaped = true,
            b'"' => self.is_string = !self.is_string,
            b'N' | b'I' if !self.is_string => {
                self.word = if byte == b'N' { b"aN" } else { b"nfinity" };
                return b'0';
            }
            _ => {}
        }
        byte
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rules::checkpoint::listing::tests::{Counting, Memory};
    use std::collections::BTreeMap;

    fn verdict(text: &[u8]) -> Verdict {
        let memory = Memory::of(&[("log.json", text)]);
        let listing = memory.listing();
        json(&memory, listing.file("log.json").expect("is there"))
    }

    #[test]
    fn json_is_what_python_writes_and_may_come_line_by_line() {
        for text in ["{\"loss\": NaN}\n", "[\n1,\n2]", "{\"a\": 1}\n{\"a\": -Infinity}\n\n", "NaN", "1\r\n \n2"] {
            assert_eq!(verdict(text.as_bytes()), Ok(()), "{text}");
        }
        for text in [
            "{\"a\": 1}\n{\"a\": 2",
            "{\"a\": Nan}",
            "{\"a\": 1} {\"a\": 2}",
            "{\"a\": In",
            "\n",
            "{}}",
            "Na",
            "Na\nN",
            "{\"a\": Na}",
            "{\n}\n{\n}",
        ] {
            assert!(verdict(text.as_bytes()).is_err(), "{text}");
        }
        let text = br#"{"a \"NaN": "Infinity", "b": NaN}"#;
        let read: BTreeMap<String, serde_json::Value> = python_json(&mut &text[..]).expect("it is JSON");
        assert_eq!(read["a \"NaN"], "Infinity");
    }

    #[test]
    fn a_word_of_pythons_may_lie_across_the_pieces_that_are_read() {
        for before in 0..12 {
            let blanks = " ".repeat(WINDOW - before);
            for text in [format!("[{blanks}-Infinity, NaN, \"NaN\"]"), format!("[1]\n[{blanks}NaN, -Infinity]\n")] {
                assert_eq!(verdict(text.as_bytes()), Ok(()), "{before}");
                assert!(verdict(&text.trim_end().as_bytes()[..text.trim_end().len() - 1]).is_err(), "{before}");
            }
        }
    }

    /// The end of a file of which nothing else can be read.
    struct Tail(&'static [u8]);

    impl Peek for Tail {
        fn read(&self, _: &str, from: u64, length: usize) -> Option<Vec<u8>> {
            (from + length as u64 == LIMIT + 1).then(|| self.0[self.0.len() - length..].to_vec())
        }
    }

    #[test]
    fn of_a_huge_one_only_the_end_is_looked_at() {
        let memory = Memory::of(&[("log.json", "")]);
        let file = Entry { size: LIMIT + 1, ..memory.listing().file("log.json").expect("is there").clone() };
        let numbers = b"0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 0, 1, 2, 3, 4, 5, 6, 7]}\n";
        assert_eq!(json(&Tail(numbers), &file), Ok(()));
        assert!(json(&Tail(&numbers[..numbers.len() - 3]), &file).is_err_and(|why| why.contains("cut short")));
    }

    #[test]
    fn a_long_one_is_read_once_and_in_pieces() {
        let whole = format!("[{}0]", "{\"loss\": NaN}, ".repeat(1 << 16));
        for (text, times) in
            [(whole.clone(), 1), (whole[..whole.len() - 1].to_owned(), 1), (whole.replace(", ", "\n"), 2)]
        {
            let peek = Counting::of("a.json", &text);
            let listing = peek.memory.listing();
            let _ = json(&peek, listing.file("a.json").expect("is there"));
            assert!(peek.bytes.get() <= times * text.len(), "{} bytes of {}", peek.bytes.get(), text.len());
            assert!(peek.most_at_once.get() <= WINDOW, "{} bytes at once", peek.most_at_once.get());
        }
    }
}
