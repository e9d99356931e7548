//! The list of settings. It is the source of the flags, the `TRAINIT_` variables, the keys of the configuration file,
//! `--help`, the hints for misspelt names and the settings part of `trainit inspect`.
//!
//! To add a setting, add an entry in the file of its topic (`defs/`), and read it in the file of that topic in the parent
//! folder.

mod checkpoints;
mod cluster;
mod data;
mod gang;
mod gpus;
mod metrics;
mod output;
mod preemption;
mod restarting;
mod simulate;
mod stopping;

pub use simulate::SETTINGS as SIMULATE;

/// The subcommands a setting belongs to, as bits.
pub mod on {
    #![allow(missing_docs, reason = "each is the subcommand of that name")]
    pub const RUN: u8 = 1;
    pub const REPORT_METRIC: u8 = 2;
    pub const INSPECT: u8 = 4;
    pub const ENV: u8 = 8;
    pub const GPUS: u8 = 16;
    pub const CHECKPOINT: u8 = 32;
    pub const STATUS: u8 = 64;
    pub const GOODPUT: u8 = 128;
    /// The subcommands that read the cluster.
    pub const CLUSTER: u8 = RUN | INSPECT | ENV;
    /// The subcommands that open the checkpoint store.
    pub const STORE: u8 = RUN | INSPECT | CHECKPOINT;
}

/// The most used settings of `run`, in the order of the help.
pub const MOST_USED: [&str; 10] = [
    "checkpoint-dir",
    "checkpoint-store",
    "nproc",
    "max-restarts",
    "hang-timeout",
    "stop-grace",
    "preempt-on",
    "metric",
    "require-gpus",
    "status-addr",
];

/// The kind of value of a setting.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Takes {
    /// No value on the command line; `true` or `false` in a variable or the file.
    Switch,
    /// One value, with its name in `--help`.
    One(&'static str),
    /// Any number of values: the flag can be repeated, the file has a list, the variable has one on each line.
    Many(&'static str),
}

/// One setting.
#[derive(Debug)]
pub struct Setting {
    /// The flag without its dashes. It is also the key in the configuration file, and in upper case after `TRAINIT_`
    /// the variable.
    pub name: &'static str,
    /// Whether that variable sets it.
    pub has_variable: bool,
    /// The kind of its value.
    pub takes: Takes,
    /// The heading in `--help`.
    pub topic: &'static str,
    /// The subcommands that have it (bits of [`on`]).
    pub on: u8,
    /// The built-in default in the user's form; empty if there is none or if it depends on other settings.
    pub default: &'static str,
    /// One sentence for `--help`.
    pub help: &'static str,
    /// It has an effect only if one of these is given; empty if it does not depend on others.
    pub needs: &'static [&'static str],
}

impl Setting {
    /// Without a variable: the variables configure the replicas of a simulated job.
    const fn without_variable(self) -> Setting {
        Setting { has_variable: false, ..self }
    }

    const fn needs(self, needs: &'static [&'static str]) -> Setting {
        Setting { needs, ..self }
    }

    /// `TRAINIT_STOP_GRACE` for `stop-grace`; `None` if no variable sets it.
    pub fn variable(&self) -> Option<String> {
        if !self.has_variable {
            return None;
        }
        let mut name = String::with_capacity("TRAINIT_".len() + self.name.len());
        name.push_str("TRAINIT_");
        name.extend(self.name.chars().map(|c| if c == '-' { '_' } else { c.to_ascii_uppercase() }));
        Some(name)
    }

    /// Whether this is the setting's variable, like [`Setting::variable`] without building the name, or its old one.
    pub fn is_set_by(&self, variable: &str) -> bool {
        let spelled = |c: u8| if c == b'-' { b'_' } else { c.to_ascii_uppercase() };
        let is_its = |name: &str| {
            [self.name].into_iter().chain(self.old_name()).any(|own| name.bytes().eq(own.bytes().map(spelled)))
        };
        self.has_variable && variable.strip_prefix("TRAINIT_").is_some_and(is_its)
    }

    /// Its name in earlier versions, which is still read.
    pub fn old_name(&self) -> Option<&'static str> {
        OLD_NAMES.iter().find(|(_, name)| *name == self.name).map(|(old, _)| *old)
    }
}

/// Names of earlier versions, and the present ones. They are read wherever a setting is, and shown nowhere.
const OLD_NAMES: [(&str, &str); 2] = [("mirror-interval", "commit-interval"), ("mirror-bandwidth", "commit-bandwidth")];

/// The setting with this name, or with this old name.
pub fn find(name: &str) -> Option<&'static Setting> {
    all().find(|s| s.name == name || s.old_name() == Some(name))
}

const fn one(
    name: &'static str,
    value: &'static str,
    topic: &'static str,
    on: u8,
    default: &'static str,
    help: &'static str,
) -> Setting {
    Setting { name, has_variable: true, takes: Takes::One(value), topic, on, default, help, needs: &[] }
}

const fn many(name: &'static str, value: &'static str, topic: &'static str, on: u8, help: &'static str) -> Setting {
    Setting { name, has_variable: true, takes: Takes::Many(value), topic, on, default: "", help, needs: &[] }
}

const fn switch(name: &'static str, topic: &'static str, on: u8, help: &'static str) -> Setting {
    Setting { name, has_variable: true, takes: Takes::Switch, topic, on, default: "", help, needs: &[] }
}

/// The topics, in the order of `--help`.
const TOPICS: [&[Setting]; 10] = [
    stopping::SETTINGS,
    restarting::SETTINGS,
    cluster::SETTINGS,
    gang::SETTINGS,
    data::SETTINGS,
    checkpoints::SETTINGS,
    preemption::SETTINGS,
    metrics::SETTINGS,
    gpus::SETTINGS,
    output::SETTINGS,
];

/// Every setting, in the order of `--help`.
pub fn all() -> impl Iterator<Item = &'static Setting> {
    TOPICS.into_iter().flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_two_settings_share_a_name() {
        for setting in all() {
            assert_eq!(all().filter(|s| s.name == setting.name).count(), 1, "{}", setting.name);
        }
    }

    #[test]
    fn each_variable_sets_its_own_setting_and_no_other() {
        for (setting, variable) in all().filter_map(|setting| Some((setting, setting.variable()?))) {
            let set: Vec<&str> = all().filter(|s| s.is_set_by(&variable)).map(|s| s.name).collect();
            assert_eq!(set, [setting.name]);
        }
    }

    #[test]
    fn each_old_name_leads_to_a_setting_and_is_no_name_itself() {
        for (old, name) in OLD_NAMES {
            assert!(all().any(|s| s.name == name) && !all().any(|s| s.name == old), "{old}");
            assert_eq!(find(old).map(|s| s.name), Some(name));
        }
    }

    #[test]
    fn every_setting_belongs_to_a_subcommand_and_has_help() {
        for setting in all() {
            assert_ne!(setting.on, 0, "{}", setting.name);
            assert!(!setting.help.is_empty() && !setting.help.ends_with('.'), "{}", setting.name);
            assert!(
                setting.needs.iter().all(|name| find(name).is_some_and(|s| matches!(s.default, "" | "off"))),
                "{}",
                setting.name
            );
        }
    }
}
