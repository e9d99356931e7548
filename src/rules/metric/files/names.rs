//! Decides which of TensorBoard's tags are measurements, and their names. The full name of a tag starts with the
//! directory of its event file, which TensorBoard shows as a run: `validation/epoch_loss` is `epoch_loss` in
//! `DIR/validation`.
//!
//! Deliberately absent: reading the files.

use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap};

use regex::{Regex, RegexBuilder};

use crate::metric::ledger::{MOST_TAGS, TAGS_BYTES};
use crate::metric::report::line::{Report, Wrong};

/// `GLOB`, or `TAG=GLOB` to rename. An example: `val_loss=validation/epoch_*`.
#[derive(Debug, Clone)]
pub struct Choice {
    name: Option<String>,
    /// The glob, which may have no wildcards.
    glob: String,
    regex: Regex,
}

impl Choice {
    /// Reads it: `*` is any text, `?` any character, `[ab]` and `[!ab]` a character of a set. Errors: the mistake.
    pub fn parse(text: &str) -> Result<Choice, String> {
        let (name, glob) = match text.split_once('=') {
            Some((name, glob)) => (Some(name.trim()), glob),
            None => (None, text),
        };
        if name == Some("") || glob.is_empty() {
            return Err(format!(
                "expected a tag or a glob, or TAG=GLOB such as val_loss=validation/*loss, found {text:?}"
            ));
        }
        if let Some(name) = name
            && let Err(Wrong::Reserved(_)) = Report::new(name, 0.0, String::new(), "")
        {
            return Err(format!("the tag {name:?} is a key of every line in the metrics file; choose another tag"));
        }
        let regex = RegexBuilder::new(&as_regex(glob)).dot_matches_new_line(true).build();
        let regex = regex.map_err(|_| format!("the glob {glob:?} has an invalid set; expected one such as [ab]"))?;
        Ok(Choice { name: name.map(str::to_owned), glob: glob.to_owned(), regex })
    }

    /// The reported name, if it does not depend on the files.
    pub fn tag(&self) -> Option<&str> {
        self.name.as_deref().or_else(|| (!self.glob.contains(['*', '?', '['])).then_some(&self.glob))
    }

    /// The reported name for a tag, which may match by its full name or by its own.
    fn name<'a>(&'a self, full: &'a str, tag: &'a str) -> Option<&'a str> {
        let matches = |text: &str| text == self.glob || self.regex.is_match(text);
        let found = [full, tag].into_iter().find(|text| matches(text))?;
        Some(self.name.as_deref().unwrap_or(found))
    }
}

fn as_regex(glob: &str) -> String {
    let mut regex = String::from("^(?:");
    let mut rest = glob;
    while let Some(c) = rest.chars().next() {
        rest = &rest[c.len_utf8()..];
        match (c, rest.find(']')) {
            ('*', _) => regex.push_str(".*"),
            ('?', _) => regex.push('.'),
            ('[', Some(end)) if end > 0 => {
                let (set, after) = (&rest[..end], &rest[end + 1..]);
                let (not, set) = set.strip_prefix('!').map_or(("", set), |set| ("^", set));
                let set = set
                    .replace('\\', "\\\\")
                    .replace('[', "\\[")
                    .replace('^', "\\^")
                    .replace('&', "\\&")
                    .replace('~', "\\~");
                regex.extend(["[", not, &set, "]"]);
                rest = after;
            }
            (c, _) => regex.push_str(&regex::escape(c.encode_utf8(&mut [0; 4]))),
        }
    }
    regex.push_str(")$");
    regex
}

/// The choices of a run; the first that matches decides. Without choices, every tag is reported with its full name.
#[derive(Debug, Default)]
pub struct Names {
    choices: Vec<Choice>,
    /// The names found so far, by directory and tag.
    known: HashMap<String, HashMap<String, Option<String>>>,
    /// The number of remembered names and their total bytes; beyond the limit, names are computed each time.
    remembered: usize,
    remembered_bytes: usize,
    /// The first full name for each reported name; empty after the warning about several.
    first: BTreeMap<String, String>,
}

impl Names {
    /// Names with these choices.
    pub fn new(choices: Vec<Choice>) -> Names {
        Names { choices, ..Names::default() }
    }

    /// The name for a tag in an event file of this directory (relative, empty for the top). The second value is a warning, the
    /// first time that several tags get the same name.
    pub fn name(&mut self, directory: &str, tag: &str) -> (Option<Cow<'_, str>>, Option<String>) {
        let mut warning = None;
        if self.known.get(directory).is_none_or(|tags| !tags.contains_key(tag)) {
            let full = if directory.is_empty() { tag.to_owned() } else { format!("{directory}/{tag}") };
            let name = match self.choices.is_empty() {
                true => Some(full.as_str()),
                false => self.choices.iter().find_map(|choice| choice.name(&full, tag)),
            };
            let name = name.map(str::to_owned);
            if self.remembered >= MOST_TAGS || self.remembered_bytes + full.len() > TAGS_BYTES {
                return (name.map(Cow::Owned), None);
            }
            if let Some(name) = &name {
                warning = Self::note(&mut self.first, name, &full);
            }
            self.known.entry(directory.to_owned()).or_default().insert(tag.to_owned(), name);
            self.remembered += 1;
            self.remembered_bytes += full.len();
        }
        (self.known.get(directory).and_then(|tags| tags.get(tag)?.as_deref()).map(Cow::Borrowed), warning)
    }

    fn note(firsts: &mut BTreeMap<String, String>, name: &str, full: &str) -> Option<String> {
        let first = firsts.entry(name.to_owned()).or_insert_with(|| full.to_owned());
        if first.is_empty() || first == full {
            return None;
        }
        let warning = format!(
            "the metric {name:?} has values of {first:?} and of {full:?}, so its values and steps are mixed; if they are different \
             metrics, select one of them with its directory"
        );
        first.clear();
        Some(warning)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn names(choices: &[&str]) -> Names {
        Names::new(choices.iter().map(|text| Choice::parse(text).expect(text)).collect())
    }

    fn name(choices: &[&str], directory: &str, tag: &str) -> Option<String> {
        names(choices).name(directory, tag).0.map(Cow::into_owned)
    }

    #[test]
    fn without_a_choice_every_tag_is_reported_with_its_directory() {
        assert_eq!(name(&[], "", "loss").as_deref(), Some("loss"));
        assert_eq!(name(&[], "validation", "epoch_loss").as_deref(), Some("validation/epoch_loss"));
    }

    #[test]
    fn a_choice_matches_the_full_name_or_the_tag_and_may_rename_it() {
        assert_eq!(name(&["loss"], "run1", "loss").as_deref(), Some("loss"));
        assert_eq!(name(&["run1/loss"], "run1", "loss").as_deref(), Some("run1/loss"));
        assert_eq!(name(&["*/loss"], "run1", "loss").as_deref(), Some("run1/loss"));
        assert_eq!(name(&["acc", "val=validation/*loss"], "validation", "epoch_loss").as_deref(), Some("val"));
        assert_eq!(name(&["acc", "val=validation/*loss"], "train", "epoch_loss"), None);
    }

    #[test]
    fn globs_support_stars_question_marks_and_sets() {
        let matches = |glob: &str, tag: &str| name(&[&format!("x={glob}")], "", tag).is_some();
        assert!(matches("a*c", "abbc") && matches("a*c", "ac") && !matches("a*c", "acd") && matches("*", "a/b"));
        assert!(matches("a?", "ab") && matches("a?", "aé") && !matches("a?", "a"));
        assert!(matches("[ab]1", "b1") && !matches("[!ab]1", "b1") && matches("[0-9]", "7") && matches("[^]", "^"));
        assert!(matches("a.b", "a.b") && !matches("a.b", "axb") && matches("f[", "f[") && matches("[]", "[]"));
        assert!(matches("loss[0]", "loss[0]") && matches("loss[0]", "loss0"));
    }

    #[test]
    fn a_name_is_known_at_the_start_unless_it_depends_on_the_files() {
        let tag = |text: &str| Choice::parse(text).expect(text).tag().map(str::to_owned);
        assert_eq!((tag("a=*"), tag("loss"), tag("l*")), (Some("a".into()), Some("loss".into()), None));
    }

    #[test]
    fn an_invalid_choice_is_refused() {
        for (text, reason) in
            [("", "expected a tag"), ("=x", "expected"), ("a=", "expected"), ("trial=x", "another tag")]
        {
            assert!(Choice::parse(text).is_err_and(|error| error.contains(reason)), "{text}");
        }
        assert!(Choice::parse("[z-a]").is_err_and(|error| error.contains("invalid set")));
    }

    #[test]
    fn one_name_for_two_tags_causes_one_warning() {
        let mut names = names(&["loss"]);
        let mut warns = |directory: &str| names.name(directory, "loss").1.is_some();
        assert_eq!([warns("a"), warns("a"), warns("b"), warns("c"), warns("b")], [false, false, true, false, false]);
    }

    #[test]
    fn a_flood_of_tags_is_reported_without_being_remembered() {
        let mut names = names(&["x=loss/*"]);
        for number in 0..3 * MOST_TAGS {
            assert_eq!(names.name("run", &format!("loss/{number}")).0.as_deref(), Some("x"));
            assert_eq!(names.name(&format!("run{number}"), "accuracy").0, None);
        }
        assert_eq!(names.known.values().map(HashMap::len).sum::<usize>(), MOST_TAGS);
    }

    proptest! {
        #[test]
        fn no_glob_makes_it_panic(glob in "[\\[\\]!*?a=\\\\^&~|-]{0,12}", tag in "[\\[\\]a!^&-]{0,6}") {
            if let Ok(choice) = Choice::parse(&glob) {
                choice.name(&tag, &tag);
            }
        }
    }
}
