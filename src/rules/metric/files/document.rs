//! Joins the lines of an object that spans several lines: JSON with indentation, or a Python dict as `pprint` writes it.
//!
//! An object ends where its brackets close. If its structure is broken, it ends there, too, or before a line that cannot
//! belong to it, such as the first line of the next object after a crash. Deliberately absent: the meaning of the object.

use crate::metric::files::records::LONGEST_LINE_BYTES;
use crate::metric::foreign_text::value::{CLOSING, QUOTES};

/// An object of which not all lines were read.
#[derive(Debug)]
pub(in crate::metric) struct Document {
    text: String,
    lines: usize,
    /// The open brackets.
    open: Vec<char>,
    /// The last character that is not white space; the quote for a string.
    last: char,
    /// Why it will be refused.
    mistake: Option<&'static str>,
}

/// The state after a line.
#[derive(Debug, PartialEq)]
pub(in crate::metric) enum State {
    /// It is not complete.
    Open,
    /// The line closes it.
    Closed,
    /// The line does not belong to it, and it was not closed.
    Foreign,
}

impl Document {
    /// The object that begins with this line, if one does.
    pub(in crate::metric) fn begin(line: &str) -> Option<(Document, State)> {
        let inside = line.strip_prefix('{')?.trim_start();
        let is_object = inside.is_empty() || inside.starts_with('}') || inside.starts_with(QUOTES);
        let mut document = Document { text: String::new(), lines: 0, open: Vec::new(), last: ':', mistake: None };
        is_object.then(|| {
            let state = document.add(line);
            (document, state)
        })
    }

    /// Adds a line with its indentation.
    pub(in crate::metric) fn add(&mut self, line: &str) -> State {
        let continues = |c: char| c.is_whitespace() || QUOTES.contains(&c) || CLOSING.contains(&c);
        let is_foreign = self.lines > 0 && !line.starts_with(continues);
        if is_foreign && (self.mistake.is_some() || !self.allows(line.chars().next().unwrap_or_default(), true)) {
            return State::Foreign;
        }
        self.lines += 1;
        let is_closed = self.scan(line);
        if self.text.len() + line.len() > LONGEST_LINE_BYTES {
            self.mistake = Some("it has more than 1 MiB");
        }
        match self.mistake {
            None => self.text.extend([line, "\n"]),
            Some(_) => self.text.clear(),
        }
        if is_closed { State::Closed } else { State::Open }
    }

    /// Its text. Errors: its mistake, as a clause.
    pub(in crate::metric) fn into_text(self) -> Result<String, &'static str> {
        match self.mistake {
            Some(mistake) => Err(mistake),
            None if !self.open.is_empty() => Err("it is not closed"),
            None => Ok(self.text),
        }
    }

    /// The number of its lines.
    pub(in crate::metric) fn lines(&self) -> usize {
        self.lines
    }

    /// Follows brackets and strings; returns whether the last bracket closes.
    fn scan(&mut self, line: &str) -> bool {
        let mut chars = line.chars();
        let mut gap = true;
        while let Some(c) = chars.next() {
            if c.is_whitespace() {
                gap = true;
                continue;
            }
            if !self.allows(c, gap) {
                self.mistake = Some("a comma, a quote or a bracket is missing");
            }
            (self.last, gap) = (c, false);
            match c {
                _ if QUOTES.contains(&c) && !skip_string(&mut chars, c) => {
                    self.mistake = Some("a quote is missing");
                }
                '{' | '[' | '(' => self.open.push(c),
                '}' | ']' | ')' => {
                    self.open.pop();
                    if self.open.is_empty() {
                        if !chars.as_str().trim().is_empty() {
                            self.mistake = Some("text follows it in its last line");
                        }
                        return true;
                    }
                }
                _ => {}
            }
        }
        false
    }

    /// Whether the character may follow the last one; `gap`: white space is between.
    fn allows(&self, c: char, gap: bool) -> bool {
        let top = self.open.last();
        let is_first = matches!(self.last, '{' | '[' | '(' | ',' | ':');
        let is_key = top == Some(&'{') && matches!(self.last, '{' | ',');
        match c {
            '}' | ']' | ')' => top == Some(&opening(c)),
            ',' | ':' => true,
            '(' => is_first || !gap,
            '{' | '[' => is_first && !is_key,
            // Python joins strings that follow one another; an argument of a call may be a string.
            _ if QUOTES.contains(&c) => is_first || self.last == '=' || QUOTES.contains(&self.last),
            _ if is_key => c.is_ascii_digit(),
            _ => is_first || !gap,
        }
    }
}

fn opening(closing: char) -> char {
    match closing {
        '}' => '{',
        ']' => '[',
        _ => '(',
    }
}

/// Goes behind the end of a string. Returns whether it ends.
fn skip_string(chars: &mut std::str::Chars<'_>, quote: char) -> bool {
    while let Some(c) = chars.next() {
        match c {
            '\\' => drop(chars.next()),
            _ if c == quote => return true,
            _ => {}
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The result for each line of a text whose first line begins an object.
    fn states(text: &str) -> (Vec<State>, Result<String, &'static str>) {
        let mut lines = text.lines();
        let (mut document, first) = Document::begin(lines.next().expect("a line")).expect("an object");
        let mut states = vec![first];
        states.extend(lines.map(|line| document.add(line)));
        (states, document.into_text())
    }

    #[track_caller]
    fn is_whole(text: &str) {
        let (states, read) = states(text);
        let (last, others) = states.split_last().expect("a line");
        assert!(*last == State::Closed && others.iter().all(|state| *state == State::Open), "{text}: {states:?}");
        assert_eq!(read.as_deref().map(str::trim), Ok(text), "{text}");
    }

    #[test]
    fn an_object_ends_where_its_brackets_close() {
        is_whole("{\"loss\": 0.5, \"a\": [1, {\"b\": \"}\"}]}");
        is_whole(
            "{\n  \"loss\": 0.5,\n  \"name\": \"a \\\" }\",\n  \"more\": {\n    \"x\": [\n      1,\n      2\n    ]\n  }\n}",
        );
        is_whole(
            "{'loss': np.float64(0.5),\n 'text': 'a'\n         'b',\n 0: tensor([0.5], device='cuda:0'),\n 'x': -1}",
        );
        is_whole("{}");
    }

    #[test]
    fn a_line_that_begins_no_object_is_not_joined() {
        for line in ["{rank 0} loss=0.5", "loss", "{0: 1}", " {\"a\": 1}", ""] {
            assert!(Document::begin(line).is_none(), "{line}");
        }
    }

    #[test]
    fn an_object_that_was_cut_ends_before_the_next_one() {
        for cut in ["{\"loss\": 0.", "{\"loss\": 0.5,", "{\"lo", "{\"loss\": \"a", "{\"a\": [1", "{"] {
            let (states, read) = states(&format!("{cut}\n{{\"loss\": 0.5}}"));
            assert_eq!((&states[1], read.is_err()), (&State::Foreign, true), "{cut}");
        }
        assert_eq!(states("{\"loss\": 0.\nloss=0.5").0[1], State::Foreign);
        assert_eq!(states("{\"loss\": [\n{\"a\": 1}").0[1], State::Open);
    }

    #[test]
    fn all_lines_of_a_broken_object_belong_to_it() {
        for text in [
            "{\n  \"a\": 1\n  \"b\": 2\n}",
            "{\n  \"a: 1,\n  \"b\": 2\n}",
            "{\n  a: 1,\n  b: 2\n}",
            "{\"a\": 1} and more",
            "{\n\"a\": 1]\n}",
        ] {
            let (states, read) = states(text);
            assert!(states.iter().all(|state| *state != State::Foreign), "{text}: {states:?}");
            assert!(read.is_err(), "{text}");
        }
    }

    #[test]
    fn an_object_that_is_too_long_takes_no_memory() {
        let (mut document, _) = Document::begin("{").expect("an object");
        for _ in 0..3 * LONGEST_LINE_BYTES / 1000 {
            assert_eq!(document.add(&format!("  \"{}\": 1,", "x".repeat(1000))), State::Open);
            assert!(document.text.capacity() <= 2 * LONGEST_LINE_BYTES);
        }
        assert_eq!(document.add("}"), State::Closed);
        assert!(document.into_text().is_err_and(|why| why.contains("1 MiB")));
    }

    proptest! {
        #[test]
        fn no_lines_make_it_panic(lines in prop::collection::vec("[{}\\[\\]()\"'a0,: \\\\é]{0,12}", 0..8)) {
            if let Some((mut document, _)) = Document::begin(&format!("{{{}", lines.concat())) {
                for line in &lines {
                    document.add(line);
                }
                let _ = document.into_text();
            }
        }
    }
}
