//! What was typed: the command line split into subcommand, settings and operands. Form only; meaning is `settings`.
//!
//! Only the subcommand that was asked for is built, so that `run` and `report-metric` start fast.

pub mod completions;
mod quick;
#[cfg(test)]
mod settings_page;
mod subs;

use std::collections::BTreeMap;
use std::ffi::OsString;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Arg, ArgAction, ArgMatches, Command, value_parser};

use subs::{SUBS, Sub, as_flags};

use crate::rules::plain::plain;
use crate::settings::Complaint;
use crate::settings::defs::{Takes, all, find, on};
use crate::settings::left_out::is_left_out;
use crate::settings::nearest::nearest;
use crate::settings::reader::switched;

/// A command line in parts.
#[derive(Debug)]
pub struct Parsed {
    /// The subcommand's name.
    pub command: &'static str,
    /// Its bit in [`on`].
    pub on: u8,
    /// Settings given as flags.
    pub flags: BTreeMap<&'static str, Vec<String>>,
    /// What is not a flag, in order: the command to run, or TAG and VALUE.
    pub operands: Vec<OsString>,
    /// `--config`, if typed.
    pub config: Option<OsString>,
    /// What could not be read. The rest is there, so that all that is wrong can be told at once.
    pub mistakes: Vec<Complaint>,
}

impl Parsed {
    fn of(sub: &Sub, operands: Vec<OsString>) -> Parsed {
        let (flags, mistakes) = Default::default();
        Parsed { command: sub.name, on: sub.on, flags, operands, config: None, mistakes }
    }
}

/// Why there is nothing to do, or nothing can be done.
#[derive(Debug)]
pub enum Refusal {
    /// Help or version: print to stdout, leave with 0.
    Shown(String),
    /// Mistakes: a line each for stderr, leave with 125.
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
        if let Some(mistake) = wanted.and_then(|sub| mend(sub, &error, &mut argv)) {
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
    // Where a start is judged, there is more that may be wrong with it.
    match parsed.mistakes.is_empty() || parsed.on & on::CLUSTER != 0 {
        true => Ok(parsed),
        false => Err(Refusal::Wrong(parsed.mistakes.iter().map(ToString::to_string).collect())),
    }
}

/// Takes out what was given to switches, which would be the command (`--strong-hash true -- python` ran `true`), and flags
/// whose value is missing, for which the next word would be taken: of `--checkpoint-dir $DIR -- python` without a DIR, `--`.
fn misplaced_values(sub: &Sub, argv: &mut Vec<OsString>) -> Vec<Complaint> {
    let mut mistakes = Vec::new();
    let ours = |name: &str| find(name).filter(|setting| setting.on & sub.on != 0);
    let is_flag = |word: &str| {
        word.strip_prefix("--").is_some_and(|name| {
            let name = name.split('=').next().unwrap_or(name);
            name.is_empty() || name == "config" || ours(name).is_some()
        })
    };
    let mut at = 2;
    // As far as the flags go: what follows the first operand is the command's own.
    while at + 1 < argv.len() && argv[at] != "--" {
        let Some(flag) = argv[at].to_str().filter(|word| word.starts_with("--")).map(str::to_owned) else { break };
        let next = argv[at + 1].to_str().unwrap_or_default().to_owned();
        let message = match ours(&flag[2..]).map(|setting| setting.takes) {
            Some(Takes::Switch) if switched(&next).is_some() && argv[at + 2..].iter().any(|word| word == "--") => {
                argv.remove(at + 1);
                at += 1;
                format!("it takes no value, found {next:?}; give it alone, or leave it out")
            }
            Some(Takes::One(value) | Takes::Many(value)) if is_flag(&next) => {
                argv.remove(at);
                format!("expected a value ({value}), found {next:?}: is a variable unset that it should come from?")
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
    // Help texts of some forty flags cost more than all the rest of the command line; they are made when they are read.
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

/// Takes a flag that is not there out of the command line, or puts the nearest one that is in its place, so that the rest
/// can be read; `None` where something else is wrong.
fn mend(sub: &Sub, error: &clap::Error, argv: &mut Vec<OsString>) -> Option<Complaint> {
    let flag = match (error.kind(), error.get(ContextKind::InvalidArg)?) {
        (ErrorKind::UnknownArgument, ContextValue::String(flag)) if flag.starts_with('-') => flag.clone(),
        _ => return None,
    };
    let word = |at: &OsString| at.to_str().is_some_and(|w| w.split('=').next() == Some(flag.as_str()));
    let at = argv.iter().take_while(|a| *a != "--").position(word)?;
    let value = argv[at].to_str()?.split_once('=').map(|(_, value)| value.to_owned());
    let known: Vec<&str> = all().filter(|s| s.on & sub.on != 0 && !is_left_out(s)).map(|s| s.name).collect();
    let nearest = flag.strip_prefix("--").and_then(|name| nearest(name, &known));
    argv.remove(at);
    // What follows was meant as its value, if it cannot be an operand.
    let is_value = !argv.get(at).is_none_or(|next| next.as_encoded_bytes().starts_with(b"-"))
        && ((sub.operands)().is_empty() || argv[at + 1..].iter().any(|a| a == "--"));
    match (nearest.and_then(find), value) {
        (Some(setting), Some(value)) if setting.takes != Takes::Switch => {
            argv.insert(at, format!("--{}={value}", setting.name).into());
        }
        (Some(setting), _) => argv.insert(at, format!("--{}", setting.name).into()),
        (None, None) if is_value => {
            argv.remove(at);
        }
        (None, _) => {}
    }
    let hint = nearest.map_or(String::new(), |name| format!("; did you mean --{name}?"));
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
    let mut command = Command::new(sub.name).about(sub.about).after_help(sub.after);
    command = command.hide(!cfg!(feature = "store") && sub.on == on::CHECKPOINT);
    for setting in all().filter(|s| s.on & sub.on != 0) {
        let mut arg =
            Arg::new(setting.name).long(setting.name).help_heading(setting.topic).value_parser(value_parser!(OsString));
        // Still known, so that who gives it is told why it does not work.
        arg = arg.hide(is_left_out(setting));
        if help {
            let default = match setting.default {
                "" => String::new(),
                default => format!(" [default: {default}]"),
            };
            let variable = setting.variable().map_or(String::new(), |variable| format!(" [{variable}]"));
            arg = arg.help(format!("{}{default}{variable}", setting.help));
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
                .help("The configuration file [default: /etc/trainit/config.toml if it exists] [TRAINIT_CONFIG]"),
        );
    }
    command.args((sub.operands)())
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
    for setting in all().filter(|s| s.on & sub.on != 0) {
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
                    let odd: Vec<String> = values.map(|value| format!("{value:?}")).collect();
                    let message = format!("not UTF-8, so nobody would find what it names; found {}", odd.join(", "));
                    parsed.mistakes.push(Complaint { place: format!("--{}", setting.name), message });
                }
            }
        }
    }
    parsed
}

/// clap's text, cut to one line for a mistake.
fn refusal(error: clap::Error, argv: &[OsString], wanted: Option<&Sub>) -> Refusal {
    let text = error.render().to_string();
    let line = match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => return Refusal::Shown(text),
        ErrorKind::MissingSubcommand | ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => {
            "no subcommand given; see trainit --help".to_owned()
        }
        ErrorKind::InvalidSubcommand => {
            let word = argv.get(1).map(|word| word.to_string_lossy().into_owned()).unwrap_or_default();
            let names: Vec<&str> = SUBS.iter().map(|sub| sub.name).collect();
            match nearest(&word, &names) {
                _ if word == "--" => {
                    let command = argv.iter().skip(2).map(|word| plain(&word.to_string_lossy())).collect::<Vec<_>>();
                    let command = if command.is_empty() { "COMMAND ...".to_owned() } else { command.join(" ") };
                    format!("no subcommand given; to start a command: trainit run -- {command}")
                }
                Some(name) => format!("{word:?} is no subcommand; did you mean {name}?"),
                None => format!(
                    "{word:?} is no subcommand, see trainit --help; to start it as a command: trainit run -- {word} ..."
                ),
            }
        }
        ErrorKind::UnknownArgument if let Some(line) = before_the_subcommand(argv) => line,
        ErrorKind::UnknownArgument if let Some(line) = step_as_operand(&error, wanted) => line,
        ErrorKind::MissingRequiredArgument if let Some(sub) = wanted => {
            let operands = (sub.operands)();
            let needed = operands.iter().filter(|operand| operand.is_required_set());
            let choices = needed.filter_map(|o| Some(format!("{}: {}", o.get_id(), o.get_help()?)));
            let choices: Vec<String> = choices.collect();
            format!("trainit {} needs {}; see trainit {} --help", sub.name, choices.join(", "), sub.name)
        }
        _ => {
            let lines = text.lines().map(str::trim).filter(|l| !l.is_empty());
            let others = ["Usage:", "For more information", "tip:"];
            let line: Vec<&str> = lines.filter(|l| !others.iter().any(|other| l.starts_with(other))).collect();
            // Where a line ends in a colon, the next says what.
            let line = line.join("; ").replace(":; ", ": ");
            let line = line.strip_prefix("error: ").unwrap_or(&line);
            format!("{line}; see trainit {}--help", wanted.map_or(String::new(), |sub| format!("{} ", sub.name)))
        }
    };
    Refusal::Wrong(vec![line])
}

/// What to tell of a flag that stands where a subcommand belongs.
fn before_the_subcommand(argv: &[OsString]) -> Option<String> {
    let flag = argv.get(1)?.to_str()?.split('=').next()?;
    let setting = find(flag.strip_prefix("--")?);
    let on = setting.map(|setting| setting.on).or((flag == "--config").then_some(on::CLUSTER))?;
    let takes = |sub: &&Sub| sub.on & on != 0;
    let typed = argv[2..].iter().find_map(|word| SUBS.iter().filter(takes).find(|sub| word == sub.name));
    let sub = typed.or_else(|| SUBS.iter().find(takes))?;
    Some(format!("{flag} belongs after the subcommand: trainit {} {flag} ...", sub.name))
}

/// What to tell of a step that stands behind TAG and VALUE.
fn step_as_operand(error: &clap::Error, wanted: Option<&Sub>) -> Option<String> {
    wanted.filter(|sub| sub.on == on::REPORT_METRIC)?;
    let Some(ContextValue::String(word)) = error.get(ContextKind::InvalidArg) else { return None };
    let is_step = !word.is_empty() && word.bytes().all(|b| b.is_ascii_digit());
    is_step.then(|| format!("unexpected argument '{word}' found; for a step give --step {word}; nothing was written"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(line: &str) -> Parsed {
        parse(line.split(' ').map(OsString::from).collect()).expect(line)
    }

    #[test]
    fn what_follows_the_dashes_is_the_commands_own() {
        let p = parsed("trainit run --stop-grace 3s -- python --stop-grace 9 -- x");
        assert_eq!(p.flags["stop-grace"], ["3s"]);
        assert_eq!(p.operands, ["python", "--stop-grace", "9", "--", "x"]);
    }

    #[test]
    fn a_missing_operand_is_told_with_what_it_can_be() {
        let told = |line: &str| match parse(line.split(' ').map(OsString::from).collect()) {
            Err(Refusal::Wrong(lines)) => lines.join("; "),
            _ => String::new(),
        };
        let wanted = "command line: trainit checkpoint needs ACTION: list, verify, push, pull or prune; see trainit checkpoint --help";
        assert_eq!(told("trainit checkpoint"), wanted);
        assert_eq!(
            told("trainit completions"),
            "command line: trainit completions needs SHELL: bash, zsh or fish; see trainit completions --help"
        );
    }

    #[test]
    fn a_flag_without_its_value_does_not_take_the_next_word_for_it() {
        for (line, flag, next) in [
            ("run --checkpoint-dir -- python", "--checkpoint-dir", "--"),
            ("run --verdict-file --log-level warn -- python", "--verdict-file", "--log-level"),
            ("run --report a --metric-file --stop-grace=3s python", "--metric-file", "--stop-grace=3s"),
        ] {
            let parsed = parsed(&format!("trainit {line}"));
            let [mistake] = parsed.mistakes.as_slice() else { panic!("{parsed:?}") };
            assert!(mistake.place == flag && mistake.message.contains(&format!("found {next:?}")), "{mistake:?}");
            assert_eq!(parsed.operands, ["python"], "{line}");
        }
        let given = parsed("trainit run --verdict-file=-- --marker --done -- python --report -- x");
        assert_eq!((given.mistakes.len(), &given.flags["verdict-file"][..]), (0, &["--".to_owned()][..]));
        assert_eq!(given.flags["marker"], ["--done"]);
    }

    #[test]
    fn the_dashes_may_be_left_out() {
        let p = parsed("trainit run python -m trainer --json");
        assert_eq!(p.operands, ["python", "-m", "trainer", "--json"]);
    }

    #[test]
    fn a_negative_value_is_a_value_not_a_flag() {
        assert_eq!(parsed("trainit report-metric loss -1e-5 --step 3").operands, ["loss", "-1e-5"]);
        assert_eq!(parsed("trainit report-metric loss -inf").operands, ["loss", "-inf"]);
        assert_eq!(parsed("trainit report-metric --tag t --value -1").flags["value"], ["-1"]);
    }

    #[test]
    fn an_unknown_flag_is_one_line_with_the_nearest_one() {
        for (line, value) in [("run --stop-grac 1 -- true", "1"), ("run --stop_grace=2 true", "2")] {
            let parsed = parsed(&format!("trainit {line}"));
            let [mistake] = parsed.mistakes.as_slice() else { panic!("{parsed:?}") };
            assert!(mistake.message.ends_with("did you mean --stop-grace?"), "{mistake}");
            // What it was meant for is read, so that its mistakes come in the same go.
            assert_eq!(parsed.flags["stop-grace"], [value]);
            assert_eq!(parsed.operands, ["true"]);
        }
        let error = parse(["trainit", "status", "--jsn"].map(OsString::from).to_vec());
        let Err(Refusal::Wrong(lines)) = error else { panic!("{error:?}") };
        assert_eq!(lines, ["--jsn: trainit status has no such flag; did you mean --json?"]);
    }

    #[test]
    fn what_is_given_to_a_switch_is_not_the_command() {
        let p = parsed("trainit run --strong-hash True --stop-grace 5s -- python x");
        let [mistake] = p.mistakes.as_slice() else { panic!("{p:?}") };
        assert!(mistake.to_string().starts_with("--strong-hash: it takes no value, found \"True\""), "{mistake}");
        assert_eq!(p.operands, ["python", "x"]);
        for line in [
            "run --strong-hash true",
            "run --strong-hash -- true",
            "run --strong-hash true x",
            "run true -- x",
            "run --config c -- true --strong-hash true -- x",
            "run true --strong-hash true -- x",
            "run --stop-grace 5s true --strong-hash true -- x",
        ] {
            let p = parsed(&format!("trainit {line}"));
            assert!(p.mistakes.is_empty() && p.operands[0] == "true", "{p:?}");
        }
    }

    #[test]
    fn flags_that_resemble_none_are_all_named_and_what_stands_around_them_is_read() {
        let p = parsed("trainit run --frobnicate 3 --quux=4 --stop-grace 5s --zzzzzz -- python x");
        let places: Vec<&str> = p.mistakes.iter().map(|m| m.place.as_str()).collect();
        assert_eq!(places, ["--frobnicate", "--quux", "--zzzzzz"]);
        assert_eq!((p.flags["stop-grace"][0].as_str(), p.operands.len()), ("5s", 2));
    }

    #[test]
    fn help_is_shown_however_wrong_the_rest_is() {
        let shown = parse("trainit run --frobnicate --help".split(' ').map(OsString::from).collect());
        assert!(matches!(shown, Err(Refusal::Shown(_))), "{shown:?}");
    }

    #[test]
    fn help_names_every_flag_with_its_variable() {
        let Err(Refusal::Shown(text)) = parse(["trainit", "run", "--help"].map(OsString::from).to_vec()) else {
            panic!("no help");
        };
        for setting in all().filter(|s| s.on & on::RUN != 0 && !is_left_out(s)) {
            let variable = setting.variable().unwrap_or_default();
            assert!(text.contains(&format!("--{}", setting.name)) && text.contains(&variable), "{text}");
        }
    }

    #[test]
    fn clap_finds_nothing_wrong_with_the_list() {
        for sub in SUBS {
            build(sub, true).debug_assert();
        }
    }
}
