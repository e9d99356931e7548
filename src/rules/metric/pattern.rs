//! `TAG=REGEX`: which metric a line of output holds. The value is the group named `value`, else the first group; the step is
//! the group named `step`, if there is one. An example: `val_acc=val_acc: ([0-9.eE+-]+)`.
//!
//! Deliberately absent: where lines begin and end ([`super::scrape`]).

use regex::bytes::{CaptureLocations, Regex, RegexBuilder};

use super::line::{Report, Wrong};
use super::number::{parse_float, parse_step};

/// One rule of what to look for.
#[derive(Debug, Clone)]
pub struct Pattern {
    tag: String,
    regex: Regex,
    /// The same for many lines at once; `None` where that could overlook something.
    gate: Option<Regex>,
    value_group: usize,
    step_group: Option<usize>,
}

/// What a line says.
#[derive(Debug, Clone, PartialEq)]
pub struct Found {
    /// The value.
    pub value: f64,
    /// The step as decimal text, where the pattern has a group for it.
    pub step: Option<String>,
}

impl Pattern {
    /// Reads `TAG=REGEX`. Errors: what is wrong with it, for a complaint.
    pub fn parse(text: &str) -> Result<Pattern, String> {
        let (tag, regex) = text
            .split_once('=')
            .ok_or_else(|| format!("expected TAG=REGEX such as loss=loss: ([0-9.]+), found {text:?}"))?;
        Pattern::new(tag.trim(), regex)
    }

    /// A tag and its regular expression. Errors: what is wrong with either.
    pub fn new(tag: &str, text: &str) -> Result<Pattern, String> {
        if tag.is_empty() {
            return Err(format!("no tag before the =; expected TAG=REGEX, found {:?}", format!("={text}")));
        }
        if let Err(Wrong::Reserved(_)) = Report::new(tag, 0.0, String::new(), "") {
            return Err(format!("the tag {tag:?} is a key of every line in the metrics file; choose another tag"));
        }
        let regex = Regex::new(text).map_err(|error| {
            let error = error.to_string();
            let reason = error.lines().last().unwrap_or_default().trim().trim_start_matches("error: ").to_owned();
            format!("{tag}: {text:?} is no regular expression: {reason}")
        })?;
        let named = |name: &str| regex.capture_names().position(|n| n == Some(name));
        let value_group = named("value")
            .or_else(|| regex.capture_names().enumerate().skip(1).find(|(_, n)| *n != Some("step")).map(|(at, _)| at))
            .ok_or_else(|| {
                format!("{tag}: {text:?} has no group for the value; put it in parentheses, as in loss: ([0-9.]+)")
            })?;
        let step_group = named("step");
        let gate = is_the_same_in_a_block(text)
            .then(|| RegexBuilder::new(text).multi_line(true).crlf(true).build().ok())
            .flatten();
        Ok(Pattern { tag: tag.to_owned(), regex, gate, value_group, step_group })
    }

    /// The metric's name.
    pub fn tag(&self) -> &str {
        &self.tag
    }

    /// For a block of whole lines: nothing before the place it gives can be found on a line of its own.
    pub(super) fn gate(&self) -> Option<&Regex> {
        self.gate.as_ref()
    }

    /// Tells everything one line says, in order. What is no number is left out.
    pub fn find(&self, line: &[u8], mut tell: impl FnMut(Found)) {
        let mut groups = self.regex.capture_locations();
        let mut at = 0;
        while at <= line.len() {
            let Some(place) = self.regex.captures_read_at(&mut groups, line, at) else { return };
            if let Some(found) = self.found(line, &groups) {
                tell(found);
            }
            at = if place.is_empty() { place.end() + 1 } else { place.end() };
        }
    }

    fn found(&self, line: &[u8], groups: &CaptureLocations) -> Option<Found> {
        let text = |group| groups.get(group).and_then(|(start, end)| std::str::from_utf8(&line[start..end]).ok());
        let value = parse_float(text(self.value_group)?)?;
        let step = match self.step_group {
            None => None,
            Some(group) => Some(parse_step(text(group).filter(|t| !t.is_empty())?)?),
        };
        Some(Found { value, step })
    }
}

/// Whether every match on a lone line is a match in a block of lines too, when `^`, `$` and `.` mind the lines' ends.
/// Cautious: a switched-off flag, `.` over newlines, or the ends of the text count as doubt.
fn is_the_same_in_a_block(regex: &str) -> bool {
    let doubtful = ["\\A", "\\z", "(?"];
    let named_groups_aside = regex.replace("(?P<", "(").replace("(?<", "(").replace("(?:", "(").replace("(?i)", "");
    !doubtful.iter().any(|part| named_groups_aside.contains(part))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(pattern: &Pattern, line: &[u8]) -> Vec<Found> {
        let mut all = Vec::new();
        pattern.find(line, |found| all.push(found));
        all
    }

    fn found(pattern: &str, line: &str) -> Vec<(f64, Option<String>)> {
        let pattern = Pattern::parse(pattern).expect(pattern);
        all(&pattern, line.as_bytes()).into_iter().map(|f| (f.value, f.step)).collect()
    }

    #[test]
    fn the_value_is_the_named_group_or_the_first() {
        assert_eq!(found("a=loss: ([0-9.]+)", "x loss: 0.5, loss: 0.25"), [(0.5, None), (0.25, None)]);
        assert_eq!(found("a=(epoch|step) loss=(?P<value>\\S+)", "epoch loss=1e-5"), [(1e-5, None)]);
        let step = |text: &str| Some(text.to_owned());
        assert_eq!(found("a=step (?<step>\\d+).*loss (\\S+)", "step 007 loss nan")[0].1, step("7"));
        assert_eq!(found("a=(?<value>\\S+) at (?<step>\\d+)", "-inf at 3"), [(f64::NEG_INFINITY, step("3"))]);
    }

    #[test]
    fn the_first_equals_sign_ends_the_tag() {
        let pattern = Pattern::parse("f1=f1=(.*)").expect("a pattern");
        assert_eq!((pattern.tag(), all(&pattern, b"f1=0.5").len()), ("f1", 1));
    }

    #[test]
    fn what_is_no_number_is_no_metric() {
        assert_eq!(found("a=loss: (\\S+)", "loss: n/a loss: 0.5"), [(0.5, None)]);
        assert_eq!(found("a=loss: (\\S+) (?<step>\\S*)", "loss: 0.5 soon"), []);
        assert_eq!(Pattern::parse("a=(?s-u)loss: (.)").map(|p| all(&p, b"loss: \xff").len()), Ok(0));
    }

    #[test]
    fn a_bad_pattern_says_what_is_wrong_with_it() {
        for (text, reason) in [
            ("loss", "expected TAG=REGEX"),
            ("=(x)", "no tag"),
            ("loss=x", "no group"),
            ("loss=(?<step>x)", "no group"),
            ("loss=(x", "unclosed group"),
            ("loss=x{9999999}(y)", "no regular expression"),
            ("trial=(x)", "choose another tag"),
        ] {
            let error = Pattern::parse(text).map(|p| p.tag).expect_err(text);
            assert!(error.contains(reason) && !error.contains('\n'), "{text}: {error}");
        }
    }
}
