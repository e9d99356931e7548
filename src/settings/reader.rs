//! What the text of a setting's value says, as the type that is wanted.
//!
//! Every complaint is collected, with its place. Deliberately absent: which value holds (`layers`), what a setting means.

use std::path::PathBuf;

use super::defs::{Takes, find};
use super::layers::{Complaint, Origin, Values};
use super::nearest::one_of;
use crate::rules::checkpoint::address::Address;

/// Reads typed values out of [`Values`], collecting complaints that name the place.
#[derive(Debug)]
pub struct Reader<'a> {
    pub(super) values: &'a Values,
    /// What was wrong so far.
    pub complaints: Vec<Complaint>,
    gathered_all: bool,
}

impl<'a> Reader<'a> {
    /// Starts with the complaints found while gathering.
    pub fn new(values: &'a Values, complaints: Vec<Complaint>) -> Reader<'a> {
        let gathered_all = complaints.is_empty();
        Reader { values, complaints, gathered_all }
    }

    /// Whether all that was given is among the values: every flag, variable and line of the file could be read.
    pub fn is_whole(&self) -> bool {
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

    /// A parsed value; `None` when absent or wrong (then a complaint is noted).
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

    /// `FROM:TO`, `CODE=CLASS` and their kin, as often as given. Of two that say different things of one, only one could hold.
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
        self.parse(name, |text| match text.trim() {
            address if address.contains("://") => Err(format!(
                "expected a directory or file of this machine, found the address {address}; a store is given as \
                 --checkpoint-store or --model-store, beside the directory where the trainer writes"
            )),
            _ => local(text),
        })
    }

    /// The URL of a store.
    pub fn store(&mut self, name: &str) -> Option<Address> {
        self.parse(name, |text| filled_in(text).and_then(Address::parse))
    }

    /// One of a few words.
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
        self.parse(name, |text| switched(text).ok_or_else(|| expected(text))).unwrap_or(false)
    }

    /// Notes that `name` lacks another setting. Where not all could be read nobody knows: it may be just that.
    pub fn complain_of_lack(&mut self, name: &str, message: String) {
        if self.is_whole() {
            self.complain(name, message);
        }
    }

    /// Notes that the value of `name` is wrong.
    pub fn complain(&mut self, name: &str, message: String) {
        self.complaints.push(Complaint { place: self.place(name), message });
    }

    /// Where the value of `name` came from, as a complaint names it.
    pub fn place(&self, name: &str) -> String {
        self.values.place(name)
    }
}

/// `CODE` of a setting that takes `CODE=CLASS`.
fn first_part(name: &str) -> &'static str {
    match find(name).map(|setting| setting.takes) {
        Some(Takes::One(form) | Takes::Many(form)) => form.split(|c: char| !c.is_ascii_alphabetic()).next(),
        _ => None,
    }
    .unwrap_or_default()
}

/// What a word says of a switch, if it does.
pub fn switched(word: &str) -> Option<bool> {
    match word.to_ascii_lowercase().as_str() {
        "true" | "1" | "yes" | "on" => Some(true),
        "false" | "0" | "no" | "off" => Some(false),
        _ => None,
    }
}

/// A path that is not looked at for an address. Errors: it names nothing, which is rarely meant (a variable in a script was
/// not set), or what a shell would have filled in.
pub fn local(text: &str) -> Result<PathBuf, String> {
    match text.trim() {
        "" => Err("expected a path, found nothing; name one, or leave it out".to_owned()),
        home if home == "~" || home.starts_with("~/") => Err(format!(
            "expected a path, found {home:?}, of which no shell has made the home directory; write it in full"
        )),
        _ => filled_in(text).map(PathBuf::from),
    }
}

/// The text, in which no variable is left. Errors: which is. A place of that name would be made, and be nobody's. What a
/// file is called, as a share's `c$data`, begins with no capital.
pub fn filled_in(text: &str) -> Result<&str, String> {
    let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let begins = |c: char| c.is_ascii_uppercase() || "_{(".contains(c);
    let left = text.split('$').skip(1).find(|rest| rest.starts_with(begins));
    let Some(rest) = left else { return Ok(text) };
    let name: String = rest.trim_start_matches(['{', '(']).chars().take_while(|c| is_name(*c)).collect();
    Err(format!(
        "expected it in full, found the variable {name:?} in it, which no shell has filled in: an ENTRYPOINT in JSON has none, \
         and Kubernetes leaves a $(NAME) that it does not know; write it out, or have sh -c start trainit"
    ))
}

#[cfg(test)]
mod tests {
    use super::super::defs::on;
    use super::*;
    use crate::rules::env::Env;

    fn gather(flags: &[(&'static str, &str)], env: &Env) -> (Values, Vec<Complaint>) {
        let flags = flags.iter().map(|(name, text)| (*name, vec![(*text).to_owned()])).collect();
        let mut complaints = Vec::new();
        (Values::gather(on::RUN, flags, env, None, &mut complaints), complaints)
    }

    #[test]
    fn the_ends_of_a_variable_and_the_case_of_a_word_matter_to_nobody() {
        let pairs =
            [("TRAINIT_STRONG_HASH", "True\n"), ("TRAINIT_RESTORE", " NONE"), ("TRAINIT_CHECKPOINT_DIR", "/ck ")];
        let (values, complaints) = gather(&[], &Env::from_pairs(pairs));
        let mut reader = Reader::new(&values, complaints);
        assert!(reader.switch("strong-hash"));
        assert_eq!(reader.choice("restore", &[("latest", 1), ("none", 2)]), Some(2));
        assert_eq!(reader.path("checkpoint-dir"), Some("/ck".into()));
        assert_eq!(reader.complaints, []);
    }

    #[test]
    fn what_is_no_path_of_this_machine_is_refused() {
        for (text, why) in [
            ("gs://bucket/job", "--checkpoint-store"),
            ("~/ckpt", "home"),
            ("~", "home"),
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
    fn a_variable_that_nobody_filled_in_is_named_and_a_lone_dollar_is_none() {
        for text in ["$JOB", "/x/$JOB/y", "gs://b/$(JOB)?sig=s3cret", "a$/${JOB}"] {
            let why = filled_in(text).unwrap_err();
            assert!(why.contains("\"JOB\"") && !why.contains("s3cret"), "{why}");
        }
        for text in ["/x/a$", "/$/$.b", "//host/c$data", "plain"] {
            assert_eq!(filled_in(text), Ok(text));
        }
    }

    #[test]
    fn every_bad_value_is_reported_not_only_the_first() {
        let (values, complaints) =
            gather(&[("stop-grace", "x"), ("max-restarts", "-1"), ("restore", "lastest")], &Env::default());
        let mut reader = Reader::new(&values, complaints);
        reader.parse("stop-grace", crate::rules::duration::parse);
        reader.count("max-restarts");
        reader.choice("restore", &[("latest", 1), ("none", 2)]);
        assert_eq!(reader.complaints.len(), 3);
        assert!(reader.complaints[2].message.contains("did you mean latest?"), "{:?}", reader.complaints);
    }
}
