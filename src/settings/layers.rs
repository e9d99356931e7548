//! Which value of a setting holds, and where it came from: flag > variable > file > platform > default.
//!
//! Every complaint is collected; nothing stops at the first. Deliberately absent: what a setting means.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;

use super::config_file::ConfigFile;
use super::defs::{Setting, Takes, all, find};
pub use super::nearest::{hint, nearest, one_of};
use crate::rules::checkpoint::address::Address;
use crate::rules::cluster::spec::ClusterError;
use crate::rules::env::Env;

/// Where a value came from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Origin {
    /// The command line.
    Flag,
    /// The `TRAINIT_` variable of the setting.
    Variable,
    /// The configuration file, with the line.
    File(PathBuf, usize),
    /// Implied by what the platform says; the text names the variable.
    Platform(&'static str),
    /// Built in.
    Default,
}

/// A setting's values with their origin.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Given {
    /// One value, or several where the setting takes many. A switch has `true` or `false`.
    pub values: Vec<String>,
    /// Where they came from.
    pub origin: Origin,
}

/// One thing that is wrong with what was given.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Complaint {
    /// The flag, variable, or file and line.
    pub place: String,
    /// What is wrong and what was expected.
    pub message: String,
}

impl Complaint {
    /// With the code that every wrong setting has.
    pub fn mistake(&self) -> ClusterError {
        ClusterError::new("bad_setting", &self.place, &self.message)
    }
}

impl fmt::Display for Complaint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.place, self.message)
    }
}

/// The settings of one subcommand, layered.
#[derive(Debug, Clone, Default)]
pub struct Values {
    given: BTreeMap<&'static str, Given>,
}

impl Values {
    /// Layers what was typed over the variables over the file over the defaults, for the subcommand `on`.
    pub fn gather(
        on: u8,
        flags: BTreeMap<&'static str, Vec<String>>,
        env: &Env,
        file: Option<&ConfigFile>,
        complaints: &mut Vec<Complaint>,
    ) -> Values {
        let mut given = BTreeMap::new();
        for setting in all().filter(|s| s.on & on != 0 && !s.default.is_empty()) {
            let values = vec![setting.default.to_owned()];
            given.insert(setting.name, Given { values, origin: Origin::Default });
        }
        if let Some(file) = file {
            file.read(on, &mut given, complaints);
        }
        for (name, text) in env.iter().filter(|(name, text)| name.starts_with("TRAINIT_") && !text.trim().is_empty()) {
            let Some(setting) = all().find(|s| s.on & on != 0 && s.is_set_by(name)) else { continue };
            if env.is_damaged(name) {
                let message = format!("not UTF-8, so nobody would find what it names; found {text:?}");
                complaints.push(Complaint { place: name.to_owned(), message });
                continue;
            }
            let values = match setting.takes {
                Takes::Many(_) => text.lines().filter(|l| !l.trim().is_empty()).map(str::to_owned).collect(),
                // `$(cat file)` and a block of YAML leave an end of line.
                _ => vec![text.trim().to_owned()],
            };
            given.insert(setting.name, Given { values, origin: Origin::Variable });
        }
        for (name, values) in flags {
            given.insert(name, Given { values, origin: Origin::Flag });
        }
        Values { given }
    }

    /// What was given, if anything.
    pub fn get(&self, name: &str) -> Option<&Given> {
        self.given.get(name)
    }

    /// Adds a value that the platform implies, unless something stronger than a default is there.
    pub fn imply(&mut self, name: &'static str, value: String, because: &'static str) {
        if self.get(name).is_none_or(|g| g.origin == Origin::Default) {
            self.given.insert(name, Given { values: vec![value], origin: Origin::Platform(because) });
        }
    }

    /// Takes a setting out, as if it were not in the list.
    pub fn remove(&mut self, name: &str) -> Option<Given> {
        self.given.remove(name)
    }

    /// Where the value of `name` came from, as a complaint names it.
    pub fn place(&self, name: &str) -> String {
        match self.get(name).map(|g| &g.origin) {
            Some(Origin::Variable) => find(name).and_then(Setting::variable).unwrap_or_default(),
            Some(Origin::File(path, line)) => format!("{}:{line}: {name}", path.display()),
            Some(Origin::Platform(because)) => format!("--{name} (from {because})"),
            _ => format!("--{name}"),
        }
    }

    /// Every setting that has a value, by name.
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, &Given)> {
        self.given.iter().map(|(name, given)| (*name, given))
    }
}

/// What a word says of a switch, if it does.
pub fn switched(word: &str) -> Option<bool> {
    match word.to_ascii_lowercase().as_str() {
        "true" | "1" | "yes" | "on" => Some(true),
        "false" | "0" | "no" | "off" => Some(false),
        _ => None,
    }
}

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

    /// `FROM:TO` as often as given. Of what stands twice, only one could hold.
    pub fn each_from<F: Copy + PartialEq, T: PartialEq>(
        &mut self,
        name: &str,
        parse: impl Fn(&str) -> Result<(F, T), String>,
    ) -> Vec<(F, T)> {
        let texts = self.values.get(name).map(|g| g.values.clone()).unwrap_or_default();
        let pairs = self.each(name, parse);
        let is_again = |at: usize| pairs[..at].iter().any(|(from, to)| *from == pairs[at].0 && *to != pairs[at].1);
        if (0..pairs.len()).any(is_again) {
            self.complain(name, format!("expected each FROM once, found {}", texts.join(" and ")));
        }
        pairs
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

/// Variables of ours that are no setting: what trainit sets for its children, and endpoints that tests and clouds name.
const OTHER_VARIABLES: &[&str] = &[
    "TRAINIT_ATTEMPT",
    "TRAINIT_INCARNATION",
    "TRAINIT_RESUME_FROM",
    "TRAINIT_RESUME_STEP",
    "TRAINIT_PREEMPTION_FILE",
    "TRAINIT_HEARTBEAT_FILE",
    "TRAINIT_GPU_COUNT",
    "TRAINIT_HOSTFILE",
    "TRAINIT_LEADER_ADDR",
    "TRAINIT_LEADER_PORT",
    "TRAINIT_LIGHTGBM_MACHINES",
    "TRAINIT_TRIAL",
    "TRAINIT_NVML_LIBRARY",
    "TRAINIT_GPU_PROBE",
    "TRAINIT_AZURE_METADATA_ENDPOINT",
    "TRAINIT_STD_SOURCE",
    "TRAINIT_CONFIG",
    // Kills or stops a test build at a numbered point (edge/fault.rs).
    #[cfg(debug_assertions)]
    "TRAINIT_TEST_FAULT",
];

/// A warning for each `TRAINIT_` variable that nothing reads, with the nearest name that something does.
pub fn unknown_variables(env: &Env) -> Vec<Complaint> {
    let mut names: Vec<&str> = env.iter().map(|(name, _)| name).filter(|name| name.starts_with("TRAINIT_")).collect();
    if names.is_empty() {
        return Vec::new();
    }
    let known: Vec<String> =
        all().filter_map(Setting::variable).chain(OTHER_VARIABLES.iter().map(|v| (*v).to_owned())).collect();
    names.retain(|name| !known.iter().any(|k| k == name));
    names.sort_unstable();
    let known: Vec<&str> = known.iter().map(String::as_str).collect();
    names
        .into_iter()
        .map(|name| Complaint {
            place: name.to_owned(),
            message: format!("no such setting, ignored{}", hint(name, &known)),
        })
        .collect()
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

    fn gather(flags: &[(&'static str, &str)], env: &Env, text: Option<&str>) -> (Values, Vec<Complaint>) {
        let flags = flags.iter().map(|(k, v)| (*k, vec![(*v).to_owned()])).collect();
        let file = text.map(|text| ConfigFile { path: "c.toml".into(), text: text.to_owned() });
        let mut complaints = Vec::new();
        let values = Values::gather(on::RUN, flags, env, file.as_ref(), &mut complaints);
        (values, complaints)
    }

    #[test]
    fn a_flag_beats_a_variable_beats_the_file_beats_the_default() {
        let env = Env::from_pairs([("TRAINIT_STOP_GRACE", "3s")]);
        let none = Env::default();
        let file = Some("stop-grace = \"2s\"\n");
        let of = |flags: &[(&'static str, &str)], env, file| {
            let given = gather(flags, env, file).0.get("stop-grace").cloned().expect("has a default");
            (given.values[0].clone(), given.origin)
        };
        assert_eq!(of(&[("stop-grace", "4s")], &env, file), ("4s".into(), Origin::Flag));
        assert_eq!(of(&[], &env, file), ("3s".into(), Origin::Variable));
        assert_eq!(of(&[], &none, file), ("2s".into(), Origin::File("c.toml".into(), 1)));
        assert_eq!(of(&[], &none, None), ("25s".into(), Origin::Default));
    }

    #[test]
    fn an_empty_variable_counts_as_unset() {
        let (values, _) = gather(&[], &Env::from_pairs([("TRAINIT_STOP_GRACE", "")]), None);
        assert_eq!(values.get("stop-grace").map(|g| g.origin.clone()), Some(Origin::Default));
    }

    #[test]
    fn the_ends_of_a_variable_and_the_case_of_a_word_matter_to_nobody() {
        let pairs =
            [("TRAINIT_STRONG_HASH", "True\n"), ("TRAINIT_RESTORE", " NONE"), ("TRAINIT_CHECKPOINT_DIR", "/ck ")];
        let (values, complaints) = gather(&[], &Env::from_pairs(pairs), None);
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
            let (values, complaints) = gather(&[("checkpoint-dir", text)], &Env::default(), None);
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
    fn an_unknown_variable_is_named_with_the_nearest_one() {
        let env = Env::from_pairs([("TRAINIT_STOP_GRACEE", "1"), ("TRAINIT_ATTEMPT", "1")]);
        let warnings = unknown_variables(&env);
        assert_eq!(warnings.len(), 1);
        assert!(warnings[0].message.contains("TRAINIT_STOP_GRACE?"), "{:?}", warnings[0]);
    }

    #[test]
    fn what_trainit_sets_for_its_children_is_no_setting_of_theirs() {
        for variable in OTHER_VARIABLES {
            assert!(!all().any(|setting| setting.is_set_by(variable)), "{variable}");
        }
    }

    #[test]
    fn a_platform_value_yields_to_what_somebody_said() {
        let (mut values, _) = gather(&[("checkpoint-dir", "/x")], &Env::default(), None);
        values.imply("checkpoint-dir", "/y".into(), "AIP_CHECKPOINT_DIR");
        values.imply("checkpoint-store", "/z".into(), "AIP_CHECKPOINT_DIR");
        assert_eq!(values.get("checkpoint-dir").map(|g| g.values[0].as_str()), Some("/x"));
        assert_eq!(values.get("checkpoint-store").map(|g| g.values[0].as_str()), Some("/z"));
    }

    #[test]
    fn every_bad_value_is_reported_not_only_the_first() {
        let (values, complaints) =
            gather(&[("stop-grace", "x"), ("max-restarts", "-1"), ("restore", "lastest")], &Env::default(), None);
        let mut reader = Reader::new(&values, complaints);
        reader.parse("stop-grace", crate::rules::duration::parse);
        reader.count("max-restarts");
        reader.choice("restore", &[("latest", 1), ("none", 2)]);
        assert_eq!(reader.complaints.len(), 3);
        assert!(reader.complaints[2].message.contains("did you mean latest?"), "{:?}", reader.complaints);
    }
}
