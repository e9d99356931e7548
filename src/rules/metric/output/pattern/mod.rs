//! A pattern for a line of output: the metric's name, its value, and its step if it has a group for it.
//!
//! The forms in which a user writes it have their own files (the list is [`crate::metric::FORMS`]). Deliberately absent: the
//! ends of lines ([`crate::metric::output::scrape`]).

use regex::bytes::{CaptureLocations, Regex, RegexBuilder};
use thiserror::Error;

use crate::metric::foreign_text::value;
use crate::metric::output::dialect::translated;
use crate::metric::output::digits;
use crate::metric::report::line::{Report, Wrong, shown};

/// One pattern.
#[derive(Debug, Clone)]
pub struct Pattern {
    name: Name,
    regex: Regex,
    /// The same pattern for a block of many lines; `None` if it could miss a match there.
    block_pattern: Option<Regex>,
    value_group: usize,
    step_group: Option<usize>,
}

#[derive(Debug, Clone)]
enum Name {
    Fixed(String),
    Group(usize),
    /// Not a metric: the match is the step of the line.
    Step {
        name: String,
        /// The user gave the name, so a fraction in a field of this name is truncated.
        is_chosen: bool,
    },
}

/// The content of a match.
#[derive(Debug, Clone, PartialEq)]
pub struct Found {
    /// The metric's name, if it is in the line.
    pub tag: Option<String>,
    /// The value.
    pub value: f64,
    /// The step as decimal text, if the line has one.
    pub step: Option<String>,
    /// The time of the measurement in seconds since 1970, if the source has one.
    pub time: Option<f64>,
}

/// Why the text of a group is not a number, or only part of one.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum NoNumber {
    /// The value.
    #[error(
        "the metric {tag}: the value {text:?} in the trainer's output is not a number, so this match and similar ones are omitted; let the group match only digits, as in ([0-9.eE+-]+)"
    )]
    Value {
        /// The metric.
        tag: String,
        /// The text of the group.
        text: String,
    },
    /// The step.
    #[error(
        "the metric {tag}: the step {text:?} in the trainer's output is not a number, so this match and similar ones are omitted; let the group match only digits, as in (?<step>[0-9]+)"
    )]
    Step {
        /// The metric.
        tag: String,
        /// The text of the group.
        text: String,
    },
    /// The match is reported, but may be a wrong number.
    #[error(
        "the metric {tag}: the group of its value matches only {text:?} of a longer number in the trainer's output, and that part is reported; let the group match the whole number, as in ([0-9.eE+-]+)"
    )]
    Part {
        /// The metric.
        tag: String,
        /// The text of the group.
        text: String,
    },
}

impl NoNumber {
    /// The metric.
    pub(in crate::metric) fn tag(&self) -> &str {
        match self {
            NoNumber::Value { tag, .. } | NoNumber::Step { tag, .. } | NoNumber::Part { tag, .. } => tag,
        }
    }
}

impl Pattern {
    /// Reads any of the forms, one of which is a list. Errors: the mistake.
    pub fn parse_all(text: &str) -> Result<Vec<Pattern>, String> {
        crate::metric::FORMS
            .iter()
            .find_map(|form| form(text))
            .unwrap_or_else(|| Err(format!("expected TAG=REGEX such as loss=loss: ([0-9.]+), found {text:?}")))
    }

    /// A metric with this name. The value is the group named `value`, or else the first group that is not `step`.
    /// Errors: the mistake in the name or the pattern.
    pub fn named(tag: &str, text: &str) -> Result<Pattern, String> {
        if tag.is_empty() {
            return Err(format!("no tag for {text:?}; expected TAG=REGEX"));
        }
        if let Err(Wrong::Reserved(_)) = Report::new(tag, 0.0, String::new(), "") {
            return Err(format!("the tag {tag:?} is a key of every line in the metrics file; choose another tag"));
        }
        let pattern = Pattern::compile(Name::Fixed(tag.to_owned()), text).map_err(|error| format!("{tag}: {error}"))?;
        let value = pattern.group(&["step"], "value", 0).ok_or_else(|| {
            format!("{tag}: {text:?} has no group for the value; put it in parentheses, as in loss: ([0-9.]+)")
        })?;
        Ok(pattern.with_value(value))
    }

    /// Metrics whose name is in the line: the group named `name`, or else the first. The value is the group named
    /// `value`, or else the next. Errors: the mistake.
    pub fn filter(text: &str) -> Result<Pattern, String> {
        let mut pattern = Pattern::compile(Name::Group(0), text)?;
        let name = pattern.group(&["value", "step"], "name", 0);
        let missing =
            || format!("{text:?} needs two groups, for the metric's name and its value, as in (\\w+)=([0-9.]+)");
        let name = name.ok_or_else(missing)?;
        pattern.name = Name::Group(name);
        let value = pattern.group(&["name", "step"], "value", name).ok_or_else(missing)?;
        Ok(pattern.with_value(value))
    }

    /// Not a metric, but the step of each line: the first whole number after a name, as in `step=100`, `Epoch 3/10` or
    /// `[iter: 20]`. Case does not matter. If the user chose the name, a fraction after the name in quotes, as in
    /// `'epoch': 1.5`, is truncated. Errors: a name that a line cannot contain.
    pub fn step(name: &str, is_chosen: bool) -> Result<Pattern, String> {
        let escaped = regex::escape(name);
        let number = r"[+-]?[0-9][0-9_,.]*(?:[eE][+-]?[0-9]+)?";
        let text = format!(
            r#"(?i)(?:^|[^\w/.-]){escaped}(?<key>["'])?["'\])]*[ \t]*[=:#]?[ \t]*["'\[(]*[ \t]*(?<step>{number})"#
        );
        Pattern::compile(Name::Step { name: name.to_owned(), is_chosen }, &text)
    }

    fn compile(name: Name, text: &str) -> Result<Pattern, String> {
        let translated_text = translated(text)?;
        let regex = RegexBuilder::new(&translated_text).build().map_err(|error| {
            let error = error.to_string();
            let reason = error.lines().last().unwrap_or_default().trim().trim_start_matches("error: ").to_owned();
            format!("{text:?} is not a regular expression: {reason}")
        })?;
        let step_group = regex.capture_names().position(|n| n == Some("step"));
        let block_pattern = block_pattern(&translated_text);
        Ok(Pattern { name, regex, block_pattern, value_group: 0, step_group })
    }

    /// Uses this group for the value. A group that matches only digits is extended by nan and infinities; otherwise a
    /// trainer that diverges would seem to keep its last good value.
    fn with_value(self, group: usize) -> Pattern {
        let widened = digits::with_nan(self.regex.as_str(), group);
        let widened = widened.and_then(|text| Some((RegexBuilder::new(&text).build().ok()?, block_pattern(&text))));
        let (regex, block_pattern) = widened.unwrap_or((self.regex, self.block_pattern));
        Pattern { regex, block_pattern, value_group: group, ..self }
    }

    /// The group with this name, or else the first one after `after` without any of the other names.
    fn group(&self, others: &[&str], name: &str, after: usize) -> Option<usize> {
        let is_other = |n: Option<&str>| n.is_some_and(|n| others.contains(&n));
        let named = self.regex.capture_names().position(|n| n == Some(name));
        named.or_else(|| {
            self.regex.capture_names().enumerate().skip(after + 1).find(|(_, n)| !is_other(*n)).map(|(at, _)| at)
        })
    }

    /// The metric's name, if the pattern contains it.
    pub fn tag(&self) -> Option<&str> {
        match &self.name {
            Name::Fixed(tag) => Some(tag),
            Name::Group(_) | Name::Step { .. } => None,
        }
    }

    /// The name before the step of a line; `None` for a metric.
    pub fn step_name(&self) -> Option<&str> {
        match &self.name {
            Name::Step { name, .. } => Some(name),
            Name::Fixed(_) | Name::Group(_) => None,
        }
    }

    /// The step of a line, if this pattern finds steps.
    pub(in crate::metric) fn step_in(&self, line: &[u8]) -> Option<String> {
        let Name::Step { is_chosen, .. } = self.name else { return None };
        self.regex.captures_iter(line).find_map(|found| {
            let place = found.name("step")?;
            let text = std::str::from_utf8(place.as_bytes()).ok()?.trim_end_matches([',', '.', '_']);
            if !is_whole_token(line, place.start(), place.start() + text.len()) {
                return None;
            }
            let is_field = is_chosen && found.name("key").is_some();
            if is_field { value::step(text) } else { value::whole_step(text) }
        })
    }

    /// A pattern for a block of whole lines: there is no match on any single line before its match.
    pub(in crate::metric) fn block_pattern(&self) -> Option<&Regex> {
        self.block_pattern.as_ref()
    }

    /// Reports every match of one line, in order; `Err` for text that is not a number. A step is reported once for each
    /// line.
    pub fn find(&self, line: &[u8], report: impl FnMut(Result<Found, NoNumber>)) {
        self.find_before(line, usize::MAX, report);
    }

    /// Like [`Pattern::find`], for matches that begin before a position. Returns the end of the last one.
    pub(in crate::metric) fn find_before(
        &self,
        line: &[u8],
        before: usize,
        mut report: impl FnMut(Result<Found, NoNumber>),
    ) -> usize {
        if self.step_name().is_some() {
            let step = self.step_in(line);
            if step.is_some() {
                report(Ok(Found { tag: None, value: 0.0, step, time: None }));
            }
            return 0;
        }
        let mut groups = self.regex.capture_locations();
        let (mut at, mut end) = (0, 0);
        while at <= line.len() {
            let place = self.regex.captures_read_at(&mut groups, line, at).filter(|place| place.start() < before);
            let Some(place) = place else { break };
            end = place.end();
            if let Some(cut_number) = self.cut_number(line, &groups) {
                report(Err(cut_number));
            }
            if let Some(found) = self.found(line, &groups).transpose() {
                report(found);
            }
            at = if place.is_empty() { place.end() + 1 } else { place.end() };
        }
        end
    }

    fn found(&self, line: &[u8], groups: &CaptureLocations) -> Result<Option<Found>, NoNumber> {
        let text = |group| groups.get(group).and_then(|(start, end)| std::str::from_utf8(&line[start..end]).ok());
        let Some(tag) = self.tag_of(line, groups) else { return Ok(None) };
        let Some(mut found_text) = text(self.value_group) else { return Ok(None) };
        if found_text.is_empty() {
            found_text = groups.get(self.value_group).map(|(start, _)| word_at(line, start)).unwrap_or_default();
        }
        if found_text.is_empty() {
            return Ok(None);
        }
        let value = value::value(found_text);
        let value = value.ok_or_else(|| NoNumber::Value { tag: tag.to_owned(), text: shown(found_text) })?;
        // A group may be optional, but its text must be a step.
        let step = self.step_group.and_then(text).filter(|t| !t.is_empty());
        let no_step = |step| NoNumber::Step { tag: tag.to_owned(), text: shown(step) };
        let step = step.map(|step| value::step(step).ok_or_else(|| no_step(step))).transpose()?;
        let tag = self.tag().is_none().then(|| tag.to_owned());
        Ok(Some(Found { tag, value, step, time: None }))
    }

    fn tag_of<'a>(&'a self, line: &'a [u8], groups: &CaptureLocations) -> Option<&'a str> {
        match self.name {
            Name::Fixed(ref tag) => Some(tag),
            Name::Group(group) => {
                let (start, end) = groups.get(group)?;
                Some(value::name(std::str::from_utf8(&line[start..end]).ok()?)).filter(|name| !name.is_empty())
            }
            Name::Step { .. } => None,
        }
    }

    /// Whether the value is only a part of a longer number, such as `1` of `1e-05`.
    fn cut_number(&self, line: &[u8], groups: &CaptureLocations) -> Option<NoNumber> {
        let (start, end) = groups.get(self.value_group)?;
        let taken = std::str::from_utf8(&line[start..end]).ok()?;
        let is_digit = |b: Option<&u8>| b.is_some_and(u8::is_ascii_digit);
        let is_in_number = |b: Option<&u8>| is_digit(b) || b == Some(&b'.');
        let before = &line[..start];
        let begins_within = is_in_number(line.get(start))
            && start < end
            && (is_digit(before.last()) || before.last() == Some(&b'.') && is_digit(before.iter().nth_back(1)));
        let word = word_at(line, start);
        let whole = value::length_of_number(word).unwrap_or(0);
        let ends_within = is_in_number(taken.as_bytes().last())
            && whole > taken.len()
            && value::length_of_number(taken) == Some(taken.len());
        let tag = self.tag_of(line, groups)?;
        (begins_within || ends_within).then(|| NoNumber::Part { tag: tag.to_owned(), text: shown(taken) })
    }
}

/// Whether a number is not a part of a longer token: a percentage (the position of a progress bar), a duration (`5s`,
/// `0:00:12`), a file (`100.pt`), the second part of `step-100`.
fn is_whole_token(line: &[u8], start: usize, end: usize) -> bool {
    let is_word = |b: Option<&u8>| b.is_some_and(|b| b.is_ascii_alphanumeric() || *b == b'_' || !b.is_ascii());
    let after = &line[end..];
    let goes_on = match after.first() {
        Some(b':' | b'-' | b'+' | b'.') => is_word(after.get(1)),
        Some(b'%') => true,
        next => is_word(next),
    };
    let is_hyphen = line[start] == b'-' && is_word(line[..start].last());
    !goes_on && !is_hyphen
}

/// The word that begins at a position; empty if there is none.
fn word_at(line: &[u8], start: usize) -> &str {
    let word = &line[start..];
    let end = word.iter().position(|b| b.is_ascii_whitespace() || b",;|".contains(b)).unwrap_or(word.len());
    std::str::from_utf8(&word[..end]).unwrap_or_default()
}

/// The pattern for a block of lines, if it finds the same matches.
fn block_pattern(regex: &str) -> Option<Regex> {
    let can_be = finds_the_same_in_a_block(regex);
    can_be.then(|| RegexBuilder::new(regex).multi_line(true).crlf(true).build().ok()).flatten()
}

/// Whether every match on a single line is also a match in a block of lines, if `^`, `$` and `.` respect line ends.
/// When in doubt the answer is no: for a switched-off flag, `.` over newlines, or the ends of the text.
fn finds_the_same_in_a_block(regex: &str) -> bool {
    let doubtful = ["\\A", "\\z", "(?"];
    let aside = [("(?P<", "("), ("(?<", "("), ("(?:", "("), ("(?i)", ""), ("(?-u:", "(")];
    let named_groups_aside = aside.iter().fold(regex.to_owned(), |text, (from, to)| text.replace(from, to));
    !doubtful.iter().any(|cut_number| named_groups_aside.contains(cut_number))
}

#[cfg(test)]
impl Pattern {
    /// The first of the patterns.
    pub fn parse(text: &str) -> Result<Pattern, String> {
        Pattern::parse_all(text).map(|mut all| all.remove(0))
    }
}

#[cfg(test)]
mod tests;
