//! What to look for in a line of output: the metric's name, its value, and its step if there is a group for it.
//!
//! The forms in which it is given are in files of their own beside this one (the list is [`super::FORMS`]). Deliberately
//! absent: where lines begin and end ([`super::scrape`]).

use regex::bytes::{CaptureLocations, Regex, RegexBuilder};
use thiserror::Error;

use super::dialect::translated;
use super::line::{Report, Wrong, shown};
use super::number::{parse_any_step, parse_float};

/// One rule of what to look for.
#[derive(Debug, Clone)]
pub struct Pattern {
    name: Name,
    regex: Regex,
    /// The same for many lines at once; `None` where that could overlook something.
    gate: Option<Regex>,
    value_group: usize,
    step_group: Option<usize>,
}

#[derive(Debug, Clone)]
enum Name {
    Fixed(String),
    Group(usize),
}

/// What a line says.
#[derive(Debug, Clone, PartialEq)]
pub struct Found {
    /// The metric's name, where the line says it.
    pub tag: Option<String>,
    /// The value.
    pub value: f64,
    /// The step as decimal text, where the line says it.
    pub step: Option<String>,
    /// When it was measured, in seconds since 1970, where the source says so.
    pub time: Option<f64>,
}

/// What a group found and is no number.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum NoNumber {
    /// Where the value should be.
    #[error(
        "the value {0:?} in the trainer's output is no number, so the match is left out, as all like it; have its group take digits only, as in ([0-9.eE+-]+)"
    )]
    Value(String),
    /// Where the step should be.
    #[error(
        "the step {0:?} in the trainer's output is no number, so the match is left out, as all like it; have its group take digits only, as in (?<step>[0-9]+)"
    )]
    Step(String),
}

impl Pattern {
    /// Reads any of the forms, one of which is a list. Errors: what is wrong with it, for a complaint.
    pub fn parse_all(text: &str) -> Result<Vec<Pattern>, String> {
        super::FORMS
            .iter()
            .find_map(|form| form(text))
            .unwrap_or_else(|| Err(format!("expected TAG=REGEX such as loss=loss: ([0-9.]+), found {text:?}")))
    }

    /// A metric of this name; the value is the group named `value`, else the first group that is not `step`. Errors: what is
    /// wrong with either.
    pub fn named(tag: &str, text: &str) -> Result<Pattern, String> {
        if tag.is_empty() {
            return Err(format!("no tag for {text:?}; expected TAG=REGEX"));
        }
        if let Err(Wrong::Reserved(_)) = Report::new(tag, 0.0, String::new(), "") {
            return Err(format!("the tag {tag:?} is a key of every line in the metrics file; choose another tag"));
        }
        let pattern = Pattern::compile(Name::Fixed(tag.to_owned()), text).map_err(|error| format!("{tag}: {error}"))?;
        pattern.with_value(&["step"]).ok_or_else(|| {
            format!("{tag}: {text:?} has no group for the value; put it in parentheses, as in loss: ([0-9.]+)")
        })
    }

    /// Metrics whose name is in the line: the group named `name`, else the first; the value is the group named `value`, else
    /// the next. Errors: what is wrong with it.
    pub fn filter(text: &str) -> Result<Pattern, String> {
        let mut pattern = Pattern::compile(Name::Group(0), text)?;
        let name = pattern.group(&["value", "step"], "name", 0);
        let missing = || format!("{text:?} needs two groups, the metric's name and its value, as in (\\w+)=([0-9.]+)");
        let name = name.ok_or_else(missing)?;
        pattern.name = Name::Group(name);
        let value = pattern.group(&["name", "step"], "value", name).ok_or_else(missing)?;
        Ok(Pattern { value_group: value, ..pattern })
    }

    fn compile(name: Name, text: &str) -> Result<Pattern, String> {
        let ours = &translated(text)?;
        let regex = build(&mut RegexBuilder::new(ours)).map_err(|error| {
            let error = error.to_string();
            let reason = error.lines().last().unwrap_or_default().trim().trim_start_matches("error: ").to_owned();
            format!("{text:?} is no regular expression: {reason}")
        })?;
        let step_group = regex.capture_names().position(|n| n == Some("step"));
        let gate = is_the_same_in_a_block(ours)
            .then(|| build(RegexBuilder::new(ours).multi_line(true).crlf(true)).ok())
            .flatten();
        Ok(Pattern { name, regex, gate, value_group: 0, step_group })
    }

    fn with_value(self, others: &[&str]) -> Option<Pattern> {
        let value_group = self.group(others, "value", 0)?;
        Some(Pattern { value_group, ..self })
    }

    /// The group of this name, else the first after another one that has none of the other names.
    fn group(&self, others: &[&str], name: &str, after: usize) -> Option<usize> {
        let is_other = |n: Option<&str>| n.is_some_and(|n| others.contains(&n));
        let named = self.regex.capture_names().position(|n| n == Some(name));
        named.or_else(|| {
            self.regex.capture_names().enumerate().skip(after + 1).find(|(_, n)| !is_other(*n)).map(|(at, _)| at)
        })
    }

    /// The metric's name, where the pattern itself has it.
    pub fn tag(&self) -> Option<&str> {
        match &self.name {
            Name::Fixed(tag) => Some(tag),
            Name::Group(_) => None,
        }
    }

    /// For a block of whole lines: nothing before the place it gives can be found on a line of its own.
    pub(super) fn gate(&self) -> Option<&Regex> {
        self.gate.as_ref()
    }

    /// Tells everything one line says, in order; `Err`: what stands where a number should, if the pattern is one metric's.
    pub fn find(&self, line: &[u8], tell: impl FnMut(Result<Found, NoNumber>)) {
        self.find_before(line, usize::MAX, tell);
    }

    /// As [`Pattern::find`], of what begins before a place; gives where the last of it ends.
    pub(super) fn find_before(
        &self,
        line: &[u8],
        before: usize,
        mut tell: impl FnMut(Result<Found, NoNumber>),
    ) -> usize {
        let mut groups = self.regex.capture_locations();
        let (mut at, mut end) = (0, 0);
        while at <= line.len() {
            let place = self.regex.captures_read_at(&mut groups, line, at).filter(|place| place.start() < before);
            let Some(place) = place else { break };
            end = place.end();
            if let Some(found) = self.found(line, &groups).transpose().filter(|f| f.is_ok() || self.tag().is_some()) {
                tell(found);
            }
            at = if place.is_empty() { place.end() + 1 } else { place.end() };
        }
        end
    }

    fn found(&self, line: &[u8], groups: &CaptureLocations) -> Result<Option<Found>, NoNumber> {
        let text = |group| groups.get(group).and_then(|(start, end)| std::str::from_utf8(&line[start..end]).ok());
        let tag = match self.name {
            Name::Fixed(_) => None,
            Name::Group(group) => match text(group).filter(|t| !t.is_empty()) {
                Some(tag) => Some(tag.to_owned()),
                None => return Ok(None),
            },
        };
        let Some(value) = text(self.value_group).filter(|t| !t.is_empty()) else { return Ok(None) };
        let value = parse_float(value).ok_or_else(|| NoNumber::Value(shown(value)))?;
        // A group may be optional; what it finds must be a step.
        let step = self.step_group.and_then(text).filter(|t| !t.is_empty());
        let step = step.map(|step| parse_any_step(step).ok_or_else(|| NoNumber::Step(shown(step)))).transpose()?;
        Ok(Some(Found { tag, value, step, time: None }))
    }
}

/// A build without `full-regex` has no table of which letters differ in case only: what needs it is read as ASCII there.
fn build(builder: &mut RegexBuilder) -> Result<Regex, regex::Error> {
    let built = builder.build();
    if cfg!(feature = "full-regex") {
        built
    } else {
        built.or_else(|error| builder.unicode(false).build().map_err(|_| error))
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
impl Pattern {
    /// The first of what was read.
    pub(crate) fn parse(text: &str) -> Result<Pattern, String> {
        Pattern::parse_all(text).map(|mut all| all.remove(0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(pattern: &Pattern, line: &[u8]) -> Vec<Found> {
        let mut all = Vec::new();
        pattern.find(line, |found| all.extend(found));
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
    fn a_filter_takes_the_name_from_the_line() {
        let of = |filter: &str, line: &str| -> Vec<(Option<String>, f64)> {
            all(&Pattern::filter(filter).expect(filter), line.as_bytes())
                .into_iter()
                .map(|f| (f.tag, f.value))
                .collect()
        };
        let expected = |tag: &str, value| (Some(tag.to_owned()), value);
        // The standard filter of Katib's collectors.
        let katib = r"([\w|-]+)\s*=\s*([+-]?\d*(\.\d+)?([Ee][+-]?\d+)?)";
        let found = of(katib, "epoch 3: Validation-accuracy=0.93 loss = 1e-3 name=x");
        assert_eq!(found, [expected("Validation-accuracy", 0.93), expected("loss", 1e-3)]);
        // And the one of its JSON-like examples, which RE2 takes with a brace that stands for itself.
        let katib = r"{metricName: ([\w|-]+), metricValue: ((-?\d+)(\.\d+)?)}";
        let found = of(katib, "{metricName: loss, metricValue: -0.5};{metricName: acc, metricValue: 1}");
        assert_eq!(found, [expected("loss", -0.5), expected("acc", 1.0)]);
        assert_eq!(of("(?<value>\\S+) is (\\w+)", "0.5 is acc"), [expected("acc", 0.5)]);
        assert_eq!(of("(?P<value>\\S+) is (?P<name>\\w+)\\Z", "0.5 is acc"), [expected("acc", 0.5)]);
        assert!(Pattern::filter("(\\w+)=").is_err_and(|e| e.contains("two groups")));
    }

    #[test]
    fn a_line_without_its_optional_step_has_its_value_all_the_same() {
        let optional = "a=(?:step (?<step>\\d+) )?loss (?<value>\\S+)";
        assert_eq!(found(optional, "step 7 loss 0.5 loss 0.25"), [(0.5, Some("7".to_owned())), (0.25, None)]);
        assert_eq!(found("a=loss (\\S+) ?(?<step>\\d*)", "loss 1"), [(1.0, None)]);
    }

    #[test]
    fn a_step_is_one_in_any_notation() {
        for step in ["100", "1e2", "100.0", "100.9"] {
            let line = format!("loss 0.5 at {step}");
            assert_eq!(found("a=loss (\\S+) at (?<step>\\S+)", &line), [(0.5, Some("100".to_owned()))], "{step}");
        }
    }

    #[test]
    fn case_can_be_ignored() {
        assert_eq!(found("a=(?i)loss: (\\S+)", "Loss: 0.5 LOSS: 1"), [(0.5, None), (1.0, None)]);
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
            ("loss=(?<=a)(x)", "look-around, which is not taken"),
            ("loss=x{9999999}(y)", "no regular expression"),
            ("trial=(x)", "choose another tag"),
        ] {
            let error = Pattern::parse(text).map(|p| p.tag().map(str::to_owned)).expect_err(text);
            assert!(error.contains(reason) && !error.contains('\n'), "{text}: {error}");
        }
    }
}
