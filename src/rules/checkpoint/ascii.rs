//! Regular expressions over names, byte by byte: what they seek is ASCII, and the tables of one that knows all of Unicode
//! would take each start of trainit some half a millisecond.

use std::borrow::Cow;
use std::ops::Range;

use regex::bytes::{Captures, Regex, RegexBuilder};

/// Compiles a constant expression.
#[expect(clippy::unwrap_used, reason = "constant expressions, compiled by every test")]
pub(super) fn ascii(expression: &str) -> Regex {
    RegexBuilder::new(expression).unicode(false).build().unwrap()
}

/// One that is looked for in texts.
pub(super) struct Pattern(Regex);

impl Pattern {
    pub(super) fn new(expression: &str) -> Pattern {
        Pattern(ascii(expression))
    }

    pub(super) fn is_match(&self, text: &str) -> bool {
        self.0.is_match(text.as_bytes())
    }

    /// Where it is found, in bytes.
    pub(super) fn find_iter(&self, text: &str) -> impl Iterator<Item = Range<usize>> {
        self.0.find_iter(text.as_bytes()).map(|found| found.range())
    }

    /// The groups where it is found first, the whole before them: empty ones that are not there.
    pub(super) fn groups<'a>(&self, text: &'a str) -> Option<Vec<&'a str>> {
        self.0.captures(text.as_bytes()).map(|found| texts(text, &found))
    }

    /// The groups where it is found last.
    pub(super) fn last_groups<'a>(&self, text: &'a str) -> Option<Vec<&'a str>> {
        self.0.captures_iter(text.as_bytes()).last().map(|found| texts(text, &found))
    }

    /// With something else in its place.
    pub(super) fn replaced<'a>(&self, text: &'a str, with: &str) -> Cow<'a, str> {
        match self.0.replace_all(text.as_bytes(), with.as_bytes()) {
            Cow::Borrowed(_) => Cow::Borrowed(text),
            Cow::Owned(bytes) => Cow::Owned(String::from_utf8_lossy(&bytes).into_owned()),
        }
    }
}

fn texts<'a>(text: &'a str, found: &Captures<'_>) -> Vec<&'a str> {
    found.iter().map(|group| group.and_then(|group| text.get(group.range())).unwrap_or_default()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_in_any_script_are_looked_through_by_their_ascii() {
        let step = Pattern::new("(?:^|[^a-z])step(_?)([0-9]+)|never");
        let name = "Prüfpunkt_é_日本step7_ステップstep_12é";
        assert_eq!(step.groups(name).map(|groups| groups[1..].to_vec()), Some(vec!["", "7"]));
        assert_eq!(step.last_groups(name).map(|groups| groups[1..].to_vec()), Some(vec!["_", "12"]));
        assert_eq!(step.find_iter(name).count(), 2);
        assert!(step.replaced(name, "/").ends_with("/é") && !step.is_match("日本7"));
    }
}
