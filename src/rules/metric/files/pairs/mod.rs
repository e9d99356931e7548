//! Finds `name=value` and `name: value` in a line of text, between other words. An example: a progress bar's `5/10
//! [00:01<00:01, 5.0it/s, step=5, loss=0.500]` has `step` and `loss`.
//!
//! The grammar: a sign (`=`, or `:` before white space) takes the word before it as a name if a number follows, which
//! may be quoted, in brackets or the argument of a call. Otherwise the sign takes nothing, and the search continues
//! directly behind it. A `:` without white space is a sign only behind a quoted name or before a number with a fraction.
//! A number is a whole token, up to white space, a comma, `;`, `|`, a bracket or a quote.
//!
//! Deliberately absent: the meaning of names, such as that of a step.

use crate::metric::foreign_text::value::{self, CLOSING, OPENING, QUOTES, call_argument, length_of_number};

/// The names of levels in Python's default form of a log line, `LEVEL:logger:message`.
const LEVELS: &[&str] = &["CRITICAL", "FATAL", "ERROR", "WARNING", "WARN", "INFO", "DEBUG", "NOTSET", "TRACE"];

/// A name and the token after its sign.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(in crate::metric) struct Pair<'a> {
    /// The word before the name: `train` of `train loss: 0.5`, of `[train] loss: 0.5` and of `train: loss: 0.5`.
    pub(in crate::metric) label: &'a str,
    pub(in crate::metric) name: &'a str,
    pub(in crate::metric) text: &'a str,
    /// The value of the token. Without one the sign takes nothing.
    pub(in crate::metric) number: Option<f64>,
    /// An unquoted word after `=`, which is certainly meant as a value.
    pub(in crate::metric) is_assigned: bool,
}

/// All names with a sign in a line, in order.
pub(in crate::metric) fn pairs(line: &str) -> Vec<Pair<'_>> {
    let mut pairs = Vec::new();
    let mut from = 0;
    for (at, sign) in line.match_indices(['=', ':']) {
        let Some(before) = line.get(from..at) else { continue };
        let after = &line[at + 1..];
        let (text, end) = token(after);
        let (label, name) = name_before(before);
        let is_sign = match sign {
            "=" => !after.starts_with('=') && !before.ends_with(['=', '!', '<', '>', ':']),
            _ if after.starts_with(char::is_whitespace) || before.ends_with(QUOTES) => true,
            _ => is_fraction(text) && !is_time(name),
        };
        // `train:  20%|##   |` is a progress bar behind its title.
        let is_bar = sign == ":" && text.ends_with('%') && after[end..].starts_with('|');
        if !is_sign || is_bar || text.is_empty() || !name.contains(char::is_alphabetic) {
            continue;
        }
        let number = number(text, &after[end..]);
        if number.is_some() {
            from = at + 1 + end;
        }
        let is_assigned = sign == "=" && !after.trim_start().starts_with(QUOTES);
        pairs.push(Pair { label, name, text, number, is_assigned });
    }
    pairs
}

/// Whether a name with a number is in the text.
pub(in crate::metric) fn has_pair(text: &str) -> bool {
    pairs(text).iter().any(|pair| pair.number.is_some())
}

/// Whether a token that directly follows `:` may be a value. XGBoost's `rmse:0.5` has one; `file.py:12`, `cuda:0` and
/// `image:24.01-py3` have none. `9875/10000` and `6006.` are none either, but are worth a warning.
fn is_fraction(token: &str) -> bool {
    let number = length_of_number(token).map(|length| &token[..length]);
    let is_whole = |text: &str| text.bytes().all(|b| b.is_ascii_digit() || b == b'_');
    let is_value = number.is_some_and(|number| !is_whole(number)) && value::value(token).is_some();
    is_value || !is_whole(token) && token.bytes().all(|b| b.is_ascii_digit() || b"./,".contains(&b))
}

/// In `2026-11-27T10:24:07.5` the name before the last sign ends with hours and minutes.
fn is_time(name: &str) -> bool {
    name.rsplit(':').next().is_some_and(|part| part.starts_with(|c: char| c.is_ascii_digit()))
        || name.starts_with(|c: char| c.is_ascii_digit())
}

/// The value of a token. `6006.` may be the end of a sentence, so it is none; in brackets or quotes it is 6006.
fn number(token: &str, after: &str) -> Option<f64> {
    let in_quotes = after.strip_prefix(QUOTES).is_some_and(|more| more.starts_with(char::is_alphanumeric));
    let is_cut = length_of_number(token).is_some_and(|length| token[..length].ends_with('.'));
    // In `x=1=y` the token is itself a name.
    if after.starts_with('=') || in_quotes || is_cut { None } else { value::value(token) }
}

/// The last word with a letter in it, and the word before it. If the text ends with a bracket, the word before the
/// bracket is preferred: `time (s): 3` is `time`.
fn name_before(text: &str) -> (&str, &str) {
    let text = text.trim_end().trim_end_matches(QUOTES);
    if let Some(inside) = text.strip_suffix(CLOSING) {
        let (outside, inside) = inside.rfind(OPENING).map_or(("", inside), |open| inside.split_at(open));
        let words = last_words(outside.trim_end());
        return if words.1.contains(char::is_alphabetic) { words } else { last_words(inside) };
    }
    last_words(text)
}

fn last_words(text: &str) -> (&str, &str) {
    let start = text.rfind(is_between).map_or(0, |at| at + text[at..].chars().next().map_or(0, char::len_utf8));
    let word = &text[start..];
    let before = text[..start].trim_end();
    let label = before.trim_end_matches(':').trim_end_matches(CLOSING).rsplit(is_between).next().unwrap_or_default();
    // A single letter is the unit of the number before.
    let is_label = before.len() < start
        && label.len() > 1
        && label.chars().all(|c| c.is_alphabetic() || c == '_' || c == '-')
        && !LEVELS.contains(&label);
    let label = if is_label { label.trim_matches(|c: char| !c.is_alphabetic()) } else { "" };
    let word = word.trim_matches(|c: char| !c.is_alphanumeric() && c != '_');
    (label, if word.contains("://") { "" } else { without_logger(word) })
}

/// Removes `LEVEL:logger:` from the front of a name.
fn without_logger(word: &str) -> &str {
    let Some((_, message)) = word.split_once(':').filter(|(level, _)| LEVELS.contains(level)) else { return word };
    message.split_once(':').map_or(message, |(_, message)| message)
}

/// The text after a sign up to the end of its token, and the position of that end.
fn token(text: &str) -> (&str, usize) {
    let start = text.find(|c: char| !c.is_whitespace()).unwrap_or(text.len());
    let rest = &text[start..];
    let length = if rest.starts_with(OPENING) {
        rest.find(CLOSING).map_or(rest.len(), |end| end + 1)
    } else if call_argument(rest).is_some() {
        rest.find(')').map_or(rest.len(), |end| end + 1)
    } else if let Some(quoted) = rest.strip_prefix(QUOTES) {
        quoted.find(QUOTES).map_or(rest.len(), |end| end + 2)
    } else {
        word_length(rest)
    };
    (&rest[..length], start + length)
}

/// A comma between digits is part of a number (`1,234.5`), unless a name follows before the next space.
fn word_length(text: &str) -> usize {
    let end = text.find(is_between).unwrap_or(text.len());
    let word = text.split(|c: char| c.is_whitespace() || c == ';').next().unwrap_or_default();
    let goes_on = text[end..].strip_prefix(',').is_some_and(|more| more.starts_with(|c: char| c.is_ascii_digit()));
    if goes_on && !word.contains(['=', ':']) { word.trim_end_matches(is_between).len() } else { end }
}

fn is_between(c: char) -> bool {
    c.is_whitespace() || ",;|=".contains(c) || [OPENING, CLOSING, QUOTES].iter().any(|set| set.contains(&c))
}

#[cfg(test)]
mod tests;
