//! Which of TensorBoard's tags are measurements, and under which name. A tag's full name has the folder of its event file
//! before it, as TensorBoard shows it as a run of its own: `validation/epoch_loss` is `epoch_loss` in `DIR/validation`.
//!
//! Deliberately absent: the files.

use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap};

use regex::{Regex, RegexBuilder};

use super::line::{Report, Wrong};

/// Tags that are remembered; what others are called is found anew each time.
const TAGS: usize = 10_000;

/// `GLOB`, or `TAG=GLOB` for another name. An example: `val_loss=validation/epoch_*`.
#[derive(Debug, Clone)]
pub struct Choice {
    name: Option<String>,
    /// With its wildcards, if there are any.
    glob: String,
    regex: Regex,
}

impl Choice {
    /// Reads it: `*` is any text, `?` any character, `[ab]` and `[!ab]` one of a set. Errors: what is wrong with it.
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
        let regex =
            regex.map_err(|_| format!("the glob {glob:?} has a set that makes no sense; expected one such as [ab]"))?;
        Ok(Choice { name: name.map(str::to_owned), glob: glob.to_owned(), regex })
    }

    /// Under which name it is reported, where that is known beforehand.
    pub fn tag(&self) -> Option<&str> {
        self.name.as_deref().or_else(|| (!self.glob.contains(['*', '?', '['])).then_some(&self.glob))
    }

    /// The name for a tag, by its full name or by itself.
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

/// The choices of a run, the first that matches decides; none at all: every tag, under its full name.
#[derive(Debug, Default)]
pub struct Names {
    choices: Vec<Choice>,
    /// By folder and tag.
    known: HashMap<String, HashMap<String, Option<String>>>,
    remembered: usize,
    /// The full name that first had a reported name; empty once it was told that there are several.
    first: BTreeMap<String, String>,
}

impl Names {
    /// With these choices.
    pub fn new(choices: Vec<Choice>) -> Names {
        Names { choices, ..Names::default() }
    }

    /// The name for a tag in an event file of this folder (relative, empty for the top), and a warning the first time that
    /// one name is given to what is not one thing.
    pub fn name(&mut self, folder: &str, tag: &str) -> (Option<Cow<'_, str>>, Option<String>) {
        let mut warning = None;
        if self.known.get(folder).is_none_or(|tags| !tags.contains_key(tag)) {
            let full = if folder.is_empty() { tag.to_owned() } else { format!("{folder}/{tag}") };
            let name = match self.choices.is_empty() {
                true => Some(full.as_str()),
                false => self.choices.iter().find_map(|choice| choice.name(&full, tag)),
            };
            let name = name.map(str::to_owned);
            if self.remembered >= TAGS {
                return (name.map(Cow::Owned), None);
            }
            if let Some(name) = &name {
                warning = Self::note(&mut self.first, name, &full);
            }
            self.known.entry(folder.to_owned()).or_default().insert(tag.to_owned(), name);
            self.remembered += 1;
        }
        (self.known.get(folder).and_then(|tags| tags.get(tag)?.as_deref()).map(Cow::Borrowed), warning)
    }

    fn note(firsts: &mut BTreeMap<String, String>, name: &str, full: &str) -> Option<String> {
        let first = firsts.entry(name.to_owned()).or_insert_with(|| full.to_owned());
        if first.is_empty() || first == full {
            return None;
        }
        let warning = format!(
            "the metric {name:?} is made of {first:?} and of {full:?}, so its values and steps are mixed; if they are not one \
             thing, name one of them with its folder"
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

    fn name(choices: &[&str], folder: &str, tag: &str) -> Option<String> {
        names(choices).name(folder, tag).0.map(Cow::into_owned)
    }

    #[test]
    fn without_a_choice_every_tag_is_taken_with_its_folder() {
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
    fn globs_know_stars_question_marks_and_sets() {
        let matches = |glob: &str, tag: &str| name(&[&format!("x={glob}")], "", tag).is_some();
        assert!(matches("a*c", "abbc") && matches("a*c", "ac") && !matches("a*c", "acd") && matches("*", "a/b"));
        assert!(matches("a?", "ab") && matches("a?", "aé") && !matches("a?", "a"));
        assert!(matches("[ab]1", "b1") && !matches("[!ab]1", "b1") && matches("[0-9]", "7") && matches("[^]", "^"));
        assert!(matches("a.b", "a.b") && !matches("a.b", "axb") && matches("f[", "f[") && matches("[]", "[]"));
        assert!(matches("loss[0]", "loss[0]") && matches("loss[0]", "loss0"));
    }

    #[test]
    fn a_name_is_known_beforehand_unless_it_depends_on_the_files() {
        let tag = |text: &str| Choice::parse(text).expect(text).tag().map(str::to_owned);
        assert_eq!((tag("a=*"), tag("loss"), tag("l*")), (Some("a".into()), Some("loss".into()), None));
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
        for (text, reason) in
            [("", "expected a tag"), ("=x", "expected"), ("a=", "expected"), ("trial=x", "another tag")]
        {
            assert!(Choice::parse(text).is_err_and(|error| error.contains(reason)), "{text}");
        }
        assert!(Choice::parse("[z-a]").is_err_and(|error| error.contains("a set")));
    }

    #[test]
    fn one_name_for_two_things_is_warned_of_once() {
        let mut names = names(&["loss"]);
        let mut warns = |folder: &str| names.name(folder, "loss").1.is_some();
        assert_eq!([warns("a"), warns("a"), warns("b"), warns("c"), warns("b")], [false, false, true, false, false]);
    }

    #[test]
    fn a_flood_of_tags_is_named_and_not_remembered() {
        let mut names = names(&["x=loss/*"]);
        for number in 0..3 * TAGS {
            assert_eq!(names.name("run", &format!("loss/{number}")).0.as_deref(), Some("x"));
            assert_eq!(names.name(&format!("run{number}"), "accuracy").0, None);
        }
        assert_eq!(names.known.values().map(HashMap::len).sum::<usize>(), TAGS);
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
