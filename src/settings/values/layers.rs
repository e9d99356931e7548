//! Finds the value of each setting and its origin: flag > variable > file > platform > default.
//!
//! All mistakes are collected, not only the first. Deliberately absent: the meaning of a setting.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;

use super::config_file::ConfigFile;
use super::reader::unquoted;
use crate::rules::cluster::spec::ClusterError;
use crate::rules::process::env::Env;
use crate::rules::text::quoted::{has_secret_place, shown};
use crate::settings::defs::{Setting, Takes, all, find};
use crate::settings::values::suggest::hint;

/// The origin of a value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Origin {
    /// The command line.
    Flag,
    /// The `TRAINIT_` variable of the setting.
    Variable,
    /// The configuration file, with the line.
    File(PathBuf, usize),
    /// Implied by the platform; the text names the variable.
    Platform(&'static str),
    /// The built-in default.
    Default,
}

/// A setting's values with their origin.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Given {
    /// One value, or several if the setting is repeatable. A switch has `true` or `false`.
    pub values: Vec<String>,
    /// Their origin.
    pub origin: Origin,
}

/// A mistake in a setting.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Complaint {
    /// The flag, variable, or file and line.
    pub place: String,
    /// The mistake and the expected form.
    pub message: String,
}

impl Complaint {
    /// The mistake as an error with the code of all wrong settings.
    pub fn mistake(&self) -> ClusterError {
        ClusterError::new("bad_setting", &self.place, &self.message)
    }
}

impl fmt::Display for Complaint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.place, self.message)
    }
}

/// All settings of one subcommand.
#[derive(Debug, Clone, Default)]
pub struct Values {
    given: BTreeMap<&'static str, Given>,
}

impl Values {
    /// Combines the flags, the variables, the file and the defaults of the subcommand `on`, in this order.
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
            let own = setting.variable().filter(|own| own != name);
            if own.is_some_and(|own| env.given(&own).is_some()) {
                continue;
            }
            if env.is_damaged(name) {
                let message = format!("not UTF-8, so it would not be found; found {}", shown(text));
                complaints.push(Complaint { place: name.to_owned(), message });
                continue;
            }
            // A pattern may contain quotes and `$`.
            if !PATTERNS.contains(&setting.name)
                && let Some(message) = text.lines().find_map(|line| unquoted(line).err())
            {
                complaints.push(Complaint { place: name.to_owned(), message });
                continue;
            }
            let values = match setting.takes {
                Takes::Many(_) => text.lines().filter(|l| !l.trim().is_empty()).map(str::to_owned).collect(),
                // `$(cat file)` and a block of YAML leave a line ending.
                _ => vec![text.trim().to_owned()],
            };
            given.insert(setting.name, Given { values, origin: Origin::Variable });
        }
        for (name, values) in flags {
            given.insert(name, Given { values, origin: Origin::Flag });
        }
        let mut values = Values { given };
        values.refuse_secrets(complaints);
        values
    }

    /// Refuses every value with a secret in it, so that no message and no file can show it.
    fn refuse_secrets(&mut self, complaints: &mut Vec<Complaint>) {
        // The addresses of stores and of training data have their own complaints. A pattern may contain anything.
        let is_read = |name: &str| !PATTERNS.contains(&name) && !name.ends_with("-store") && name != "fetch";
        let has_secret = |given: &Given| given.values.iter().find(|value| has_secret_place(value)).cloned();
        let found = self.given.iter().filter(|(name, _)| is_read(name));
        let found: Vec<_> = found.filter_map(|(name, given)| Some((*name, has_secret(given)?))).collect();
        for (name, value) in found {
            let message = format!(
                "expected a value without JSON and without a user or a query in an address, since a secret in a setting may be \
                 shown, found {}; keys and tokens belong in their own variables and files",
                shown(&value)
            );
            complaints.push(Complaint { place: self.place(name), message });
            self.given.remove(name);
        }
    }

    /// The values of a setting, if there are any.
    pub fn get(&self, name: &str) -> Option<&Given> {
        self.given.get(name)
    }

    /// Adds a value that the platform implies, unless there is one stronger than the default.
    pub fn imply(&mut self, name: &'static str, value: String, because: &'static str) {
        if self.get(name).is_none_or(|g| g.origin == Origin::Default) {
            self.given.insert(name, Given { values: vec![value], origin: Origin::Platform(because) });
        }
    }

    /// The origin of the value of `name`, as text for a complaint.
    pub fn place(&self, name: &str) -> String {
        match self.get(name).map(|g| &g.origin) {
            Some(Origin::Variable) => find(name).and_then(Setting::variable).unwrap_or_default(),
            Some(Origin::File(path, line)) => format!("{}:{line}: {name}", path.display()),
            Some(Origin::Platform(because)) => format!("--{name} (from {because})"),
            _ => format!("--{name}"),
        }
    }

    /// Every setting with a value, by name.
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, &Given)> {
        self.given.iter().map(|(name, given)| (*name, given))
    }
}

/// Settings whose value is a pattern.
const PATTERNS: [&str; 2] = ["metric", "metric-filter"];

/// Variables of trainit that are not settings: those for its children, and endpoints for tests and clouds.
const OTHER_VARIABLES: &[&str] = &[
    "TRAINIT_ATTEMPT",
    "TRAINIT_INCARNATION",
    "TRAINIT_GENERATION",
    "TRAINIT_GANG_TOKEN",
    "TRAINIT_RESUME_FROM",
    "TRAINIT_RESUME_STEP",
    "TRAINIT_PREEMPTION_FILE",
    "TRAINIT_SAVE_AT_STEP_FILE",
    "TRAINIT_SAVE_STEP_FILE",
    "TRAINIT_HEARTBEAT_FILE",
    "TRAINIT_GPU_COUNT",
    "TRAINIT_HOSTFILE",
    "TRAINIT_LEADER_ADDR",
    "TRAINIT_LEADER_PORT",
    "TRAINIT_LIGHTGBM_MACHINES",
    "TRAINIT_TRACKING_ID",
    "TRAINIT_SIMULATED",
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

/// A warning for each unknown `TRAINIT_` variable, with the nearest known name.
pub fn unknown_variables(env: &Env) -> Vec<Complaint> {
    let mut names: Vec<&str> = env.iter().map(|(name, _)| name).filter(|name| name.starts_with("TRAINIT_")).collect();
    if names.is_empty() {
        return Vec::new();
    }
    let known: Vec<String> =
        all().filter_map(Setting::variable).chain(OTHER_VARIABLES.iter().map(|v| (*v).to_owned())).collect();
    let services: Vec<&str> = env.iter().filter_map(|(name, _)| name.strip_suffix("_SERVICE_HOST")).collect();
    let is_old = |name: &str| all().any(|setting| setting.is_set_by(name));
    names.retain(|name| {
        !known.iter().any(|k| k == name) && !is_old(name) && !services.iter().any(|of| is_of_service(name, of))
    });
    names.sort_unstable();
    let known: Vec<&str> = known.iter().map(String::as_str).collect();
    names
        .into_iter()
        .map(|name| Complaint {
            place: name.to_owned(),
            message: format!("no such setting, so it is ignored{}", hint(name, &known)),
        })
        .collect()
}

/// Whether Kubernetes sets this variable for a Service, such as `TRAINIT_PORT_80_TCP` for a Service named `trainit`;
/// `service` is its name in the form of variables.
fn is_of_service(name: &str, service: &str) -> bool {
    let rest = name.strip_prefix(service).and_then(|rest| rest.strip_prefix('_'));
    rest.is_some_and(|rest| {
        rest.starts_with("SERVICE_HOST")
            || rest == "PORT"
            || rest.starts_with("PORT_")
            || rest.starts_with("SERVICE_PORT")
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::defs::on;

    pub(in crate::settings) fn gather(
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
    fn a_flag_wins_over_a_variable_over_the_file_over_the_default() {
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
    fn an_old_name_is_read_from_a_variable_and_a_file_and_the_new_one_wins() {
        let of = |env: &[(&str, &str)], file| {
            let env = Env::from_pairs(env.iter().copied());
            assert_eq!(unknown_variables(&env), []);
            gather(&[], &env, file).0.get("commit-interval").map(|given| given.values[0].clone())
        };
        assert_eq!(of(&[("TRAINIT_MIRROR_INTERVAL", "7s")], None).as_deref(), Some("7s"));
        assert_eq!(of(&[], Some("mirror-interval = \"6s\"\n")).as_deref(), Some("6s"));
        let both = [("TRAINIT_MIRROR_INTERVAL", "7s"), ("TRAINIT_COMMIT_INTERVAL", "5s")];
        assert_eq!(of(&both, None).as_deref(), Some("5s"));
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
    fn the_variables_of_a_kubernetes_service_cause_no_warning() {
        let service = [
            ("TRAINIT_SERVICE_HOST", "10.0.0.1"),
            ("TRAINIT_SERVICE_PORT", "80"),
            ("TRAINIT_SERVICE_PORT_HTTP", "80"),
            ("TRAINIT_PORT", "tcp://10.0.0.1:80"),
            ("TRAINIT_PORT_80_TCP", "tcp://10.0.0.1:80"),
            ("TRAINIT_PORT_80_TCP_ADDR", "10.0.0.1"),
            ("TRAINIT_MASTER_SERVICE_HOST", "10.0.0.2"),
            ("TRAINIT_MASTER_PORT_80_TCP_PROTO", "tcp"),
        ];
        assert_eq!(unknown_variables(&Env::from_pairs(service)), []);
        let misspelt = Env::from_pairs(service.into_iter().chain([("TRAINIT_STOP_GRACES", "3s")]));
        assert_eq!(unknown_variables(&misspelt).len(), 1);
        assert_eq!(unknown_variables(&Env::from_pairs([("TRAINIT_PORT", "80")])).len(), 1, "no such Service");
    }

    #[test]
    fn quotes_and_comments_of_an_env_file_are_refused_except_in_a_pattern() {
        let complaints = |name: &str, text: &str| gather(&[], &Env::from_pairs([(name, text)]), None).1;
        for (name, text) in [
            ("TRAINIT_CHECKPOINT_DIR", "\"/ck\""),
            ("TRAINIT_CHECKPOINT_STORE", "gs://bucket/x # ours"),
            ("TRAINIT_VERDICT_FILE", "'/v'"),
            ("TRAINIT_REPORT", "\"loss\""),
            ("TRAINIT_STOP_GRACE", "\"5s\""),
            ("TRAINIT_XID", "79=note\n31=leave # ours"),
        ] {
            let complaints = complaints(name, text);
            assert_eq!(complaints.len(), 1, "{name}");
            assert!(complaints[0].place == name && complaints[0].message.contains("--env-file"), "{complaints:?}");
        }
        assert_eq!(complaints("TRAINIT_METRIC", "loss=\"loss # (.*)\""), []);
    }

    #[test]
    fn variables_for_children_are_not_settings() {
        for variable in OTHER_VARIABLES {
            assert!(!all().any(|setting| setting.is_set_by(variable)), "{variable}");
        }
    }

    #[test]
    fn a_platform_value_loses_against_an_explicit_one() {
        let (mut values, _) = gather(&[("checkpoint-dir", "/x")], &Env::default(), None);
        values.imply("checkpoint-dir", "/y".into(), "AIP_CHECKPOINT_DIR");
        values.imply("checkpoint-store", "/z".into(), "AIP_CHECKPOINT_DIR");
        assert_eq!(values.get("checkpoint-dir").map(|g| g.values[0].as_str()), Some("/x"));
        assert_eq!(values.get("checkpoint-store").map(|g| g.values[0].as_str()), Some("/z"));
    }
}
