//! Which value of a setting holds, and where it came from: flag > variable > file > platform > default.
//!
//! Every complaint is collected; nothing stops at the first. Deliberately absent: what a setting means.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;

use super::config_file::ConfigFile;
use super::defs::{Setting, Takes, all, find};
use super::nearest::hint;
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

#[cfg(test)]
mod tests {
    use super::super::defs::on;
    use super::*;

    pub(in super::super) fn gather(
        flags: &[(&'static str, &str)],
        env: &Env,
        text: Option<&str>,
    ) -> (Values, Vec<Complaint>) {
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
}
