//! clap's errors as one line each.

use std::ffi::OsString;

use clap::error::{ContextKind, ContextValue, ErrorKind};

use super::Refusal;
use super::subs::{SUBS, Sub};
use crate::rules::text::safe_text::printable;
use crate::settings::defs::{find, on};
use crate::settings::values::suggest::nearest;

/// clap's message for a mistake, as one line.
pub(super) fn refusal(error: clap::Error, argv: &[OsString], wanted: Option<&Sub>) -> Refusal {
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
                    let command =
                        argv.iter().skip(2).map(|word| printable(&word.to_string_lossy())).collect::<Vec<_>>();
                    let command = if command.is_empty() { "COMMAND ...".to_owned() } else { command.join(" ") };
                    format!("no subcommand given; to start a command: trainit run -- {command}")
                }
                Some((name, _)) => format!("{word:?} is not a subcommand; did you mean {name}?"),
                None => format!(
                    "{word:?} is not a subcommand, see trainit --help; to start it as a command: trainit run -- {word} ..."
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
            // A line that ends in a colon continues on the next line.
            let line = line.join("; ").replace(":; ", ": ");
            let line = line.strip_prefix("error: ").unwrap_or(&line);
            format!("{line}; see trainit {}--help", wanted.map_or(String::new(), |sub| format!("{} ", sub.name)))
        }
    };
    Refusal::Wrong(vec![line])
}

/// The message for a flag before the subcommand.
fn before_the_subcommand(argv: &[OsString]) -> Option<String> {
    let flag = argv.get(1)?.to_str()?.split('=').next()?;
    let setting = find(flag.strip_prefix("--")?);
    let on = setting.map(|setting| setting.on).or((flag == "--config").then_some(on::CLUSTER))?;
    let takes = |sub: &&Sub| sub.on & on != 0;
    let typed = argv[2..].iter().find_map(|word| SUBS.iter().filter(takes).find(|sub| word == sub.name));
    let sub = typed.or_else(|| SUBS.iter().find(takes))?;
    Some(format!("{flag} belongs after the subcommand: trainit {} {flag} ...", sub.name))
}

/// The message for a step after TAG and VALUE.
fn step_as_operand(error: &clap::Error, wanted: Option<&Sub>) -> Option<String> {
    wanted.filter(|sub| sub.on == on::REPORT_METRIC)?;
    let Some(ContextValue::String(word)) = error.get(ContextKind::InvalidArg) else { return None };
    let is_step = !word.is_empty() && word.bytes().all(|b| b.is_ascii_digit());
    is_step.then(|| format!("unexpected argument '{word}' found; for a step give --step {word}; nothing was written"))
}
