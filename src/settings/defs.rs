//! The one list of settings. From it come the flags, the `TRAINIT_` variables, the keys of the configuration file,
//! `--help`, the nearest-name hints and the settings part of `trainit inspect`.
//!
//! To add a setting: one entry in the file of its topic (`defs/`), and one line where it is read (the file of its topic
//! beside this one).

mod checkpoints;
mod cluster;
mod gpus;
mod metrics;
mod output;
mod preemption;
mod restarting;
mod stopping;

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
    /// Wherever the cluster is read.
    pub const CLUSTER: u8 = RUN | INSPECT | ENV;
    /// Wherever the checkpoint store is opened.
    pub const STORE: u8 = RUN | INSPECT | CHECKPOINT;
}

/// What a setting takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Takes {
    /// Nothing: present or absent; `true` or `false` from a variable or the file.
    Switch,
    /// One value; the text names it in `--help`.
    One(&'static str),
    /// Any number of values: the flag repeats, the file has a list, the variable has one a line.
    Many(&'static str),
}

/// One setting.
#[derive(Debug)]
pub struct Setting {
    /// The flag without its dashes; also the key in the configuration file, and upper-cased after `TRAINIT_` the variable.
    pub name: &'static str,
    /// Whether that variable sets it.
    pub has_variable: bool,
    /// What it takes.
    pub takes: Takes,
    /// The heading in `--help`.
    pub topic: &'static str,
    /// On which subcommands (bits of [`on`]).
    pub on: u8,
    /// The built-in default as it would be typed; empty when there is none or when it depends.
    pub default: &'static str,
    /// One sentence for `--help`.
    pub help: &'static str,
    /// It has an effect only where one of these is given; empty where it does not depend.
    pub needs: &'static [&'static str],
}

impl Setting {
    /// Without a variable: trainit gives its children one of that name, which must not come back as a setting of theirs.
    const fn without_variable(self) -> Setting {
        Setting { has_variable: false, ..self }
    }

    const fn needs(self, needs: &'static [&'static str]) -> Setting {
        Setting { needs, ..self }
    }

    /// `TRAINIT_STOP_GRACE` for `stop-grace`; `None` where no variable sets it.
    pub fn variable(&self) -> Option<String> {
        if !self.has_variable {
            return None;
        }
        let mut name = String::with_capacity("TRAINIT_".len() + self.name.len());
        name.push_str("TRAINIT_");
        name.extend(self.name.chars().map(|c| if c == '-' { '_' } else { c.to_ascii_uppercase() }));
        Some(name)
    }

    /// Whether this is the setting's variable; as [`Setting::variable`], without making it.
    pub fn is_set_by(&self, variable: &str) -> bool {
        let spelled = |c: u8| if c == b'-' { b'_' } else { c.to_ascii_uppercase() };
        let is_its = |name: &str| name.bytes().eq(self.name.bytes().map(spelled));
        self.has_variable && variable.strip_prefix("TRAINIT_").is_some_and(is_its)
    }
}

/// The setting of this name.
pub fn find(name: &str) -> Option<&'static Setting> {
    all().find(|s| s.name == name)
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
const TOPICS: [&[Setting]; 8] = [
    stopping::SETTINGS,
    restarting::SETTINGS,
    cluster::SETTINGS,
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
    fn every_setting_belongs_to_a_subcommand_and_explains_itself() {
        for setting in all() {
            assert_ne!(setting.on, 0, "{}", setting.name);
            assert!(!setting.help.is_empty() && !setting.help.ends_with('.'), "{}", setting.name);
            assert!(
                setting.needs.iter().all(|name| find(name).is_some_and(|s| s.default.is_empty())),
                "{}",
                setting.name
            );
        }
    }
}
