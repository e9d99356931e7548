//! Parses the text of a setting's value into a type.
//!
//! All mistakes are collected with their origin. Deliberately absent: which value wins (`layers`), and the meaning of a
//! setting.

use std::path::PathBuf;

use super::layers::{Complaint, Origin, Values};
use crate::rules::store::address::Address;
use crate::rules::text::quoted::{about, shown};
use crate::settings::defs::{Takes, find};
use crate::settings::values::suggest::one_of;

/// Parses values of [`Values`], and collects complaints that name the origin.
#[derive(Debug)]
pub struct Reader<'a> {
    pub(in crate::settings) values: &'a Values,
    /// The mistakes so far.
    pub complaints: Vec<Complaint>,
    gathered_all: bool,
}

impl<'a> Reader<'a> {
    /// Starts with the complaints from the layers.
    pub fn new(values: &'a Values, complaints: Vec<Complaint>) -> Reader<'a> {
        let gathered_all = complaints.is_empty();
        Reader { values, complaints, gathered_all }
    }

    /// Whether every flag, variable and line of the file could be read.
    pub fn is_complete(&self) -> bool {
        self.gathered_all
    }

    /// The text of a single-valued setting.
    pub fn text(&self, name: &str) -> Option<String> {
        debug_assert!(find(name).is_some(), "no setting {name}");
        self.values.get(name).and_then(|g| g.values.last().cloned())
    }

    /// Whether it was given on the command line.
    pub fn is_typed(&self, name: &str) -> bool {
        self.values.get(name).is_some_and(|given| given.origin == Origin::Flag)
    }

    /// A parsed value; `None` if it is absent or wrong (which adds a complaint).
    pub fn parse<T>(&mut self, name: &str, parse: impl FnOnce(&str) -> Result<T, String>) -> Option<T> {
        let text = self.text(name)?;
        match parse(&text) {
            Ok(value) => Some(value),
            Err(message) => {
                self.complain(name, message);
                None
            }
        }
    }

    /// Every value of a repeatable setting, parsed.
    pub fn each<T>(&mut self, name: &str, parse: impl Fn(&str) -> Result<T, String>) -> Vec<T> {
        let texts = self.values.get(name).map(|g| g.values.clone()).unwrap_or_default();
        texts
            .iter()
            .filter_map(|text| match parse(text) {
                Ok(value) => Some(value),
                Err(message) => {
                    self.complain(name, message);
                    None
                }
            })
            .collect()
    }

    /// `FROM:TO`, `CODE=CLASS` and the like, any number of them. Two different values for one key are a mistake.
    pub fn each_once<F: PartialEq, T: PartialEq>(
        &mut self,
        name: &str,
        parse: impl Fn(&str) -> Result<(F, T), String>,
    ) -> Vec<(F, T)> {
        let read = self.each(name, |text| parse(text).map(|pair| (text.trim().to_owned(), pair)));
        let contradicts =
            |(_, (from, to)): &&(String, (F, T)), (_, other): &(String, (F, T))| *from == other.0 && *to != other.1;
        for (at, later) in read.iter().enumerate() {
            if let Some((earlier, _)) = read[..at].iter().find(|earlier| contradicts(earlier, later)) {
                let message = format!("expected each {} once, found {earlier} and {}", first_part(name), later.0);
                self.complain(name, message);
            }
        }
        read.into_iter().map(|(_, pair)| pair).collect()
    }

    /// A path on this machine.
    pub fn path(&mut self, name: &str) -> Option<PathBuf> {
        self.parse(name, |text| match unquoted(text)?.trim() {
            address if address.contains("://") => Err(format!(
                "expected a directory or file of this machine, found the address {address}; give a store as \
                 --checkpoint-store or --model-store, beside the directory where the trainer writes"
            )),
            _ => local(text),
        })
    }

    /// The URL of a store.
    pub fn store(&mut self, name: &str) -> Option<Address> {
        self.parse(name, |text| expanded(text).and_then(Address::parse))
    }

    /// One of several words.
    pub fn choice<T: Copy>(&mut self, name: &str, words: &[(&str, T)]) -> Option<T> {
        let known: Vec<&str> = words.iter().map(|(word, _)| *word).collect();
        let found = self.parse(name, |text| one_of(text, &known))?;
        words.iter().find(|(word, _)| *word == found).map(|(_, value)| *value)
    }

    /// A whole number from 0.
    pub fn count(&mut self, name: &str) -> Option<u64> {
        self.parse(name, |text| {
            text.trim().parse().map_err(|_| format!("expected a whole number from 0, found {text:?}"))
        })
    }

    /// A switch.
    pub fn switch(&mut self, name: &str) -> bool {
        let expected = |text: &str| format!("expected true or false, found {text:?}");
        self.parse(name, |text| switch_value(text).ok_or_else(|| expected(text))).unwrap_or(false)
    }

    /// Adds a complaint that `name` lacks another setting, unless some setting could not be read: it may be the missing
    /// one.
    pub fn complain_of_missing(&mut self, name: &str, message: String) {
        if self.is_complete() {
            self.complain(name, message);
        }
    }

    /// Adds a complaint about the value of `name`.
    pub fn complain(&mut self, name: &str, message: String) {
        let values = self.values.get(name).map_or(&[][..], |given| &given.values);
        let message = values.iter().fold(message, |message, value| about(message, value));
        self.complaints.push(Complaint { place: self.place(name), message });
    }

    /// The origin of the value of `name`, as text for a complaint.
    pub fn place(&self, name: &str) -> String {
        self.values.place(name)
    }
}

/// `CODE` for a setting with the form `CODE=CLASS`.
fn first_part(name: &str) -> &'static str {
    match find(name).map(|setting| setting.takes) {
        Some(Takes::One(form) | Takes::Many(form)) => form.split(|c: char| !c.is_ascii_alphabetic()).next(),
        _ => None,
    }
    .unwrap_or_default()
}

/// The value of a word for a switch; `None` if it has none.
pub fn switch_value(word: &str) -> Option<bool> {
    match word.to_ascii_lowercase().as_str() {
        "true" | "1" | "yes" | "on" => Some(true),
        "false" | "0" | "no" | "off" => Some(false),
        _ => None,
    }
}

/// A path, which may look like a URL. Errors: it is empty, usually because a variable in a script is unset; or it
/// contains text that a shell should have expanded.
pub fn local(text: &str) -> Result<PathBuf, String> {
    match unquoted(text)?.trim() {
        "" => Err("expected a path, found nothing; give one, or omit the setting".to_owned()),
        home if home == "~" || home.starts_with("~/") => {
            Err(format!("expected a path, found {home:?}, which no shell has expanded; write the full path"))
        }
        _ => expanded(text).map(PathBuf::from),
    }
}

/// The text, if it has no quotes or comments that a shell would have removed: `docker run --env-file` passes a line
/// unchanged. Errors: which of the two, and advice.
pub fn unquoted(text: &str) -> Result<&str, String> {
    let is_quote = |c: char| matches!(c, '"' | '\'');
    let trimmed = text.trim();
    let why = "is part of the value: docker run --env-file keeps it, because no shell reads the line";
    if trimmed.starts_with(is_quote) || trimmed.ends_with(is_quote) {
        let shown = if is_secret(trimmed) {
            String::new()
        } else {
            format!(", as in {}", shown(trimmed.trim_matches(is_quote)))
        };
        return Err(format!("the quotation mark {why}; omit the quotes{shown}"));
    }
    let remark = trimmed.char_indices().any(|(at, c)| c == '#' && trimmed[..at].ends_with(char::is_whitespace));
    if remark {
        return Err(format!("the comment (\" #\" and the text after it) {why}; put it on its own line"));
    }
    Ok(text)
}

/// An address may contain a signature or a password.
fn is_secret(text: &str) -> bool {
    text.contains("://") || text.contains('#')
}

/// The text, if it contains no unexpanded variable. Errors: the variable. Otherwise a directory with that literal name
/// would be created. Lower-case names, such as a share's `c$data`, are allowed.
pub fn expanded(text: &str) -> Result<&str, String> {
    let text = unquoted(text)?;
    let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let begins = |c: char| c.is_ascii_uppercase() || "_{(".contains(c);
    let left = text.split('$').skip(1).find(|rest| rest.starts_with(begins));
    let Some(rest) = left else { return Ok(text) };
    let name: String = rest.trim_start_matches(['{', '(']).chars().take_while(|c| is_name(*c)).collect();
    Err(format!(
        "expected the full value, found the variable {name:?} in it, which no shell has expanded: an ENTRYPOINT in JSON has none, \
         and Kubernetes keeps an unknown $(NAME); write the value, or start trainit with sh -c"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rules::process::env::Env;
    use crate::settings::defs::on;

    fn gather(flags: &[(&'static str, &str)], env: &Env) -> (Values, Vec<Complaint>) {
        let flags = flags.iter().map(|(name, text)| (*name, vec![(*text).to_owned()])).collect();
        let mut complaints = Vec::new();
        (Values::gather(on::RUN, flags, env, None, &mut complaints), complaints)
    }

    #[test]
    fn surrounding_blanks_and_the_case_of_a_word_do_not_matter() {
        let pairs =
            [("TRAINIT_ALLOW_HTTP", "True\n"), ("TRAINIT_RESTORE", " NONE"), ("TRAINIT_CHECKPOINT_DIR", "/ck ")];
        let (values, complaints) = gather(&[], &Env::from_pairs(pairs));
        let mut reader = Reader::new(&values, complaints);
        assert!(reader.switch("allow-http"));
        assert_eq!(reader.choice("restore", &[("latest", 1), ("none", 2)]), Some(2));
        assert_eq!(reader.path("checkpoint-dir"), Some("/ck".into()));
        assert_eq!(reader.complaints, []);
    }

    #[test]
    fn a_value_that_is_not_a_path_of_this_machine_is_refused() {
        for (text, why) in [
            ("gs://bucket/job", "--checkpoint-store"),
            ("~/ckpt", "expanded"),
            ("~", "expanded"),
            (" ", "nothing"),
            ("/x/${JOB}", "\"JOB\""),
        ] {
            let (values, complaints) = gather(&[("checkpoint-dir", text)], &Env::default());
            let mut reader = Reader::new(&values, complaints);
            assert_eq!(reader.path("checkpoint-dir"), None);
            assert!(reader.complaints[0].message.contains(why), "{:?}", reader.complaints);
        }
    }

    #[test]
    fn quotes_and_comments_that_an_env_file_keeps_are_refused() {
        for text in ["\"/ck\"", "'/ck'", "\"/ck", "/ck'", "'gs://b/x?sig=s3cret'"] {
            let why = unquoted(text).unwrap_err();
            assert!(why.contains("quot") && why.contains("--env-file") && !why.contains("s3cret"), "{why}");
            assert!(local(text).is_err() && expanded(text).is_err());
        }
        for text in ["/ck # here", "/ck\t#here", "s3://b # sig s3cret"] {
            let why = unquoted(text).unwrap_err();
            assert!(why.contains("comment") && why.contains("--env-file") && !why.contains("s3cret"), "{why}");
        }
        for text in ["/ck", "/a#b", "#1", "/it's/here", " /ck "] {
            assert_eq!(unquoted(text), Ok(text));
        }
    }

    #[test]
    fn an_unexpanded_variable_is_named_and_a_single_dollar_is_allowed() {
        for text in ["$JOB", "/x/$JOB/y", "gs://b/$(JOB)?sig=s3cret", "a$/${JOB}"] {
            let why = expanded(text).unwrap_err();
            assert!(why.contains("\"JOB\"") && !why.contains("s3cret"), "{why}");
        }
        for text in ["/x/a$", "/$/$.b", "//host/c$data", "plain"] {
            assert_eq!(expanded(text), Ok(text));
        }
    }

    #[test]
    fn every_wrong_value_is_reported() {
        let (values, complaints) =
            gather(&[("stop-grace", "x"), ("max-restarts", "-1"), ("restore", "lastest")], &Env::default());
        let mut reader = Reader::new(&values, complaints);
        reader.parse("stop-grace", crate::rules::text::duration::parse);
        reader.count("max-restarts");
        reader.choice("restore", &[("latest", 1), ("none", 2)]);
        assert_eq!(reader.complaints.len(), 3);
        assert!(reader.complaints[2].message.contains("did you mean latest?"), "{:?}", reader.complaints);
    }
}
