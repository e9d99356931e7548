//! The command line, split into subcommand, settings and operands. Only the form is checked here; `settings` has the
//! meaning.
//!
//! Only the definition of the given subcommand is built, so that `run` and `report-metric` start fast.

pub mod completions;
#[cfg(test)]
mod config_schema;
pub mod man;
mod quick;
mod refusal;
#[cfg(test)]
mod settings_page;
mod subs;

use std::collections::BTreeMap;
use std::ffi::OsString;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Arg, ArgAction, ArgMatches, Command, value_parser};

use refusal::refusal;
use subs::{SUBS, Sub, as_flags};

use crate::rules::text::quoted::shown;
use crate::settings::Complaint;
use crate::settings::defs::{MOST_USED, Setting, Takes, find, on};
use crate::settings::values::reader::switch_value;
use crate::settings::values::suggest::nearest;

/// The parts of a command line.
#[derive(Debug)]
pub struct Parsed {
    /// The subcommand's name.
    pub command: &'static str,
    /// Its bit in [`on`].
    pub on: u8,
    /// Settings given as flags.
    pub flags: BTreeMap<&'static str, Vec<String>>,
    /// The words that are not flags, in order: the command to run, or TAG and VALUE.
    pub operands: Vec<OsString>,
    /// The value of `--config`.
    pub config: Option<OsString>,
    /// Mistakes. The other parts are valid, so that all mistakes can be reported together.
    pub mistakes: Vec<Complaint>,
}

impl Parsed {
    fn of(sub: &Sub, operands: Vec<OsString>) -> Parsed {
        let (flags, mistakes) = Default::default();
        Parsed { command: sub.name, on: sub.on, flags, operands, config: None, mistakes }
    }
}

/// Why there is nothing to run.
#[derive(Debug)]
pub enum Refusal {
    /// Help or version: printed to stdout, exit code 0.
    Shown(String),
    /// Mistakes: one line each on stderr, exit code 125.
    Wrong(Vec<String>),
}

/// Splits a command line; `argv[0]` is the program.
pub fn parse(argv: Vec<OsString>) -> Result<Parsed, Refusal> {
    quick::parse(&argv).map_or_else(|| parse_with_clap(argv), Ok)
}

#[inline(never)]
fn parse_with_clap(mut argv: Vec<OsString>) -> Result<Parsed, Refusal> {
    as_flags(&mut argv);
    let wanted = argv.get(1).and_then(|a| a.to_str()).and_then(|a| SUBS.iter().find(|s| s.name == a));
    let mut mistakes = wanted.map_or_else(Vec::new, |sub| misplaced_values(sub, &mut argv));
    let mut parsed = loop {
        let error = match read(wanted, &argv) {
            Ok(parsed) => break parsed,
            Err(error) => error,
        };
        if let Some(mistake) = wanted.and_then(|sub| remove_unknown(sub, &error, &mut argv)) {
            mistakes.push(mistake);
            continue;
        }
        match (refusal(error, &argv, wanted), wanted) {
            (Refusal::Wrong(lines), Some(sub)) => {
                let complaint = |message| Complaint { place: "command line".to_owned(), message };
                mistakes.extend(lines.into_iter().map(complaint));
                break Parsed::of(sub, argv);
            }
            (refusal, _) => return Err(refusal),
        }
    };
    parsed.mistakes.splice(0..0, mistakes);
    // The subcommands that read the cluster report further mistakes together with these.
    match parsed.mistakes.is_empty() || parsed.on & on::CLUSTER != 0 {
        true => Ok(parsed),
        false => Err(Refusal::Wrong(parsed.mistakes.iter().map(ToString::to_string).collect())),
    }
}

/// Removes two kinds of words that clap would read wrongly, and reports each as a mistake:
/// - a value after a switch, which would be the command: `--allow-http true -- python` would run `true`;
/// - a flag without a value, which would consume the next word: in `--checkpoint-dir $DIR -- python` with an empty DIR, the `--`.
fn misplaced_values(sub: &Sub, argv: &mut Vec<OsString>) -> Vec<Complaint> {
    let mut mistakes = Vec::new();
    let find_setting = |name: &str| sub.settings().find(|setting| setting.name == name);
    let is_flag = |word: &str| {
        word.strip_prefix("--").is_some_and(|name| {
            let name = name.split('=').next().unwrap_or(name);
            name.is_empty() || name == "config" || find_setting(name).is_some()
        })
    };
    let mut at = 2;
    // Only among the flags: the words after the first operand belong to the command.
    while at + 1 < argv.len() && argv[at] != "--" {
        let Some(flag) = argv[at].to_str().filter(|word| word.starts_with("--")).map(str::to_owned) else { break };
        let next = argv[at + 1].to_str().unwrap_or_default().to_owned();
        let message = match find_setting(&flag[2..]).map(|setting| setting.takes) {
            Some(Takes::Switch) if switch_value(&next).is_some() && argv[at + 2..].iter().any(|word| word == "--") => {
                argv.remove(at + 1);
                at += 1;
                format!("it takes no value, found {:?}; remove the value, or omit the flag", shown(&next))
            }
            Some(Takes::One(value) | Takes::Many(value)) if is_flag(&next) => {
                argv.remove(at);
                format!("expected a value ({value}), found {next:?}: is the variable that contains it unset?")
            }
            Some(Takes::Switch) => {
                at += 1;
                continue;
            }
            _ => {
                at += if flag.contains('=') { 1 } else { 2 };
                continue;
            }
        };
        mistakes.push(Complaint { place: flag, message });
    }
    mistakes
}

fn read(wanted: Option<&'static Sub>, argv: &[OsString]) -> Result<Parsed, clap::Error> {
    // Building the help texts of some forty flags costs more than the rest of the command line, so it is done only for
    // help.
    let help = argv.iter().any(|a| a.as_encoded_bytes().starts_with(b"-h") || a == "--help");
    let mut root = match wanted {
        Some(sub) => root().subcommand(build(sub, help)),
        None => root().subcommands(SUBS.iter().map(|sub| build(sub, help))),
    };
    let matches = root.try_get_matches_from_mut(argv)?;
    let found = matches.subcommand();
    let found = found.and_then(|(name, matches)| Some((SUBS.iter().find(|s| s.name == name)?, matches)));
    match found {
        Some((sub, matches)) => Ok(collect(sub, matches)),
        None => Err(root.error(ErrorKind::MissingSubcommand, "no subcommand given; see trainit --help")),
    }
}

/// Removes an unknown flag and its value from the command line, so that the rest can be read; `None` for another mistake.
/// The nearest flag is named only: a guess must not set anything (`--heartbeat-file` is not `--verdict-file`).
fn remove_unknown(sub: &Sub, error: &clap::Error, argv: &mut Vec<OsString>) -> Option<Complaint> {
    let flag = match (error.kind(), error.get(ContextKind::InvalidArg)?) {
        (ErrorKind::UnknownArgument, ContextValue::String(flag)) if flag.starts_with('-') => flag.clone(),
        _ => return None,
    };
    // A short flag of another tool may have its value attached (`-r15:2`), or be repeated (`-vv`).
    let is_short = !flag.starts_with("--");
    let word = |at: &OsString| {
        at.to_str().is_some_and(|w| w.split('=').next() == Some(flag.as_str()) || is_short && w.starts_with(&flag))
    };
    let at = argv.iter().take_while(|a| *a != "--").position(word)?;
    let known: Vec<&str> = sub.settings().map(|s| s.name).collect();
    let nearest = nearest(&flag, &known);
    let setting = nearest.and_then(|(name, _)| sub.settings().find(|setting| setting.name == name));
    let has_value = argv.remove(at).len() > flag.len();
    // A word that stands for a value of ours is a switch there.
    let is_switch = setting.is_some_and(|setting| setting.takes == Takes::Switch)
        || nearest.is_some_and(|(_, value)| value.chars().any(char::is_lowercase));
    // The next word is its value, as that of the nearest flag would be. Without a nearest flag it may be an operand.
    let may_be_value = nearest.is_some() || (sub.operands)().is_empty() || argv[at..].iter().skip(1).any(|a| a == "--");
    let is_value = |next: &OsString| !next.as_encoded_bytes().starts_with(b"-");
    if !has_value && !is_switch && may_be_value && argv.get(at).is_some_and(is_value) {
        argv.remove(at);
    }
    let hint = match (nearest, flag.as_str()) {
        (Some((name, value)), _) => format!("; did you mean --{name}{value}?"),
        (None, "--dry-run") if sub.on & on::RUN != 0 => "; trainit inspect shows what run would do".to_owned(),
        (None, "-s") if sub.on & on::RUN != 0 => "; trainit always adopts orphans: leave it out".to_owned(),
        (None, _) => String::new(),
    };
    Some(Complaint { place: flag, message: format!("trainit {} has no such flag{hint}", sub.name) })
}

fn root() -> Command {
    Command::new("trainit")
        .version(env!("TRAINIT_VERSION"))
        .about("The init process of a machine-learning training container")
        .after_help(
            "Flags are also variables (--stop-grace is TRAINIT_STOP_GRACE) and keys of /etc/trainit/config.toml.\n\
             Start with: trainit run -- python -m trainer.task",
        )
        .subcommand_required(true)
        .disable_help_subcommand(true)
}

fn build(sub: &Sub, help: bool) -> Command {
    let mut command = Command::new(sub.name).about(sub.about).after_long_help(sub.after);
    // `run` has many settings, and `inspect` takes them too: `-h` shows the most used ones, `--help` shows those first.
    let most_used: &[&str] = if sub.on & on::RUN != 0 { &MOST_USED } else { &[] };
    let is_most_used = |setting: &&Setting| most_used.contains(&setting.name);
    let first = most_used.iter().filter_map(|name| find(name));
    for setting in first.chain(sub.settings().filter(|s| !is_most_used(s))) {
        let heading = if is_most_used(&setting) { "Most used" } else { setting.topic };
        let mut arg = Arg::new(setting.name)
            .long(setting.name)
            .help_heading(heading)
            .hide_short_help(!most_used.is_empty() && !is_most_used(&setting))
            .value_parser(value_parser!(OsString));
        if let Some(old) = setting.old_name() {
            arg = arg.alias(old);
        }
        if help {
            let default = match setting.default {
                "" => String::new(),
                default => format!(" [default: {default}]"),
            };
            let variable = setting.variable().map_or(String::new(), |variable| format!(" [{variable}]"));
            let long = format!("{}{default}{variable}", setting.help);
            // The short help has one line of a terminal for each flag.
            let short = setting.help.split([';', ':', ',', '(']).next().unwrap_or_default().trim_end().to_owned();
            arg = arg.help(short).long_help(long);
        }
        command = command.arg(match setting.takes {
            Takes::Switch => arg.action(ArgAction::SetTrue).value_parser(value_parser!(bool)),
            Takes::One(value) => arg.action(ArgAction::Append).value_name(value).allow_hyphen_values(true),
            Takes::Many(value) => arg.action(ArgAction::Append).value_name(value).allow_hyphen_values(true),
        });
    }
    if sub.on != 0 {
        command = command.arg(
            Arg::new("config")
                .long("config")
                .value_name("FILE")
                .value_parser(value_parser!(OsString))
                .help("The configuration file [default: /etc/trainit/config.toml if it exists]")
                .long_help("The configuration file [default: /etc/trainit/config.toml if it exists] [TRAINIT_CONFIG]"),
        );
    }
    let operands = (sub.operands)();
    if operands.iter().any(|operand| operand.get_id() == "command") {
        command = command.override_usage(format!("trainit {} [OPTIONS] -- COMMAND [ARG]...", sub.name));
    }
    command.args(operands)
}

fn collect(sub: &'static Sub, matches: &ArgMatches) -> Parsed {
    let operands = (sub.operands)()
        .iter()
        .filter_map(|arg| matches.get_many::<OsString>(arg.get_id().as_str()))
        .flatten()
        .cloned()
        .collect();
    let mut parsed = Parsed::of(sub, operands);
    parsed.config = matches.try_get_one::<OsString>("config").ok().flatten().cloned();
    for setting in sub.settings() {
        if setting.takes == Takes::Switch {
            if matches.get_flag(setting.name) {
                parsed.flags.insert(setting.name, vec!["true".to_owned()]);
            }
        } else if let Some(values) = matches.get_many::<OsString>(setting.name) {
            let texts: Option<Vec<String>> = values.clone().map(|v| v.to_str().map(str::to_owned)).collect();
            match texts {
                Some(texts) => {
                    parsed.flags.insert(setting.name, texts);
                }
                None => {
                    let odd: Vec<String> = values.map(|value| shown(&value.to_string_lossy()).into_owned()).collect();
                    let message = format!("not UTF-8, so it would not be found; found {}", odd.join(", "));
                    parsed.mistakes.push(Complaint { place: format!("--{}", setting.name), message });
                }
            }
        }
    }
    parsed
}

#[cfg(test)]
mod tests;
