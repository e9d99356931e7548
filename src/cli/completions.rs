//! Completion scripts for shells, written by clap_complete from the same tree that reads the command line.
//!
//! What a flag takes is known from its value's name in the list: words in small letters are the choices, DIR is a
//! directory, PATH and FILE are files; the names of platforms, frameworks and formats are in their own lists. For all else
//! nothing is offered.

use clap::builder::PossibleValuesParser;
use clap::{Arg, Command, ValueHint};
use clap_complete::Shell;

use super::{SUBS, build, root};
use crate::rules::checkpoint::LAYOUTS;
use crate::rules::cluster::{self, spec::PlatformName};
use crate::rules::framework::FRAMEWORKS;
use crate::settings::defs::{Takes, find};

/// The shells that there is a script for.
pub const SHELLS: &[&str] = &["bash", "zsh", "fish"];
/// The deeds of `trainit checkpoint`.
const DEEDS: &[&str] = &["list", "verify", "push", "pull", "prune"];

/// The script; `None` for another shell.
pub fn script(shell: &str) -> Option<String> {
    let shell = match shell {
        "bash" => Shell::Bash,
        "zsh" => Shell::Zsh,
        "fish" => Shell::Fish,
        _ => return None,
    };
    let (mut tree, mut text) = (tree(), Vec::new());
    clap_complete::generate(shell, &mut tree, "trainit", &mut text);
    let text = String::from_utf8(text).ok()?;
    Some(match shell {
        Shell::Fish => text + &operands_for_fish(&tree),
        Shell::Bash => text + COMMAND_FOR_BASH,
        _ => text,
    })
}

/// What follows `run … --` is completed as bash would by itself, which clap_complete leaves out: with the command's own
/// completions where bash-completion is there to find them, else with commands, then files.
const COMMAND_FOR_BASH: &str = r#"
_trainit_or_command() {
    local at
    for ((at = 2; at < COMP_CWORD; at++)); do
        [[ ${COMP_WORDS[1]} == run && ${COMP_WORDS[at]} == -- ]] || continue
        COMPREPLY=()
        if declare -F _command_offset >/dev/null; then
            _command_offset $((at + 1))
        elif ((COMP_CWORD == at + 1)); then
            mapfile -t COMPREPLY < <(compgen -c -- "${COMP_WORDS[COMP_CWORD]}")
        fi
        return
    done
    _trainit "$@"
}
complete -F _trainit_or_command -o bashdefault -o default trainit
"#;

/// What operands may be, which clap_complete leaves out for fish.
fn operands_for_fish(tree: &Command) -> String {
    let mut text = String::new();
    for (sub, operand) in tree.get_subcommands().flat_map(|sub| sub.get_positionals().map(move |arg| (sub, arg))) {
        let words: Vec<String> = operand.get_possible_values().iter().map(|word| word.get_name().to_owned()).collect();
        if words.is_empty() {
            continue;
        }
        let (words, here) = (words.join(" "), format!("__fish_trainit_using_subcommand {}", sub.get_name()));
        text.push_str(&format!(
            "complete -c trainit -n \"{here}\" -f\n\
             complete -c trainit -n \"{here}; and not __fish_seen_subcommand_from {words}\" -a \"{words}\"\n"
        ));
    }
    text
}

/// The whole tree, with what a shell can guess of each value.
fn tree() -> Command {
    root().subcommands(SUBS.iter().map(|sub| build(sub, true).mut_args(hinted)))
}

fn hinted(arg: Arg) -> Arg {
    match arg.get_id().as_str() {
        "command" => return arg.value_hint(ValueHint::CommandWithArguments),
        "config" => return arg.value_hint(ValueHint::FilePath),
        "ACTION" => return arg.value_parser(PossibleValuesParser::new(DEEDS)),
        "SHELL" => return arg.value_parser(PossibleValuesParser::new(SHELLS)),
        _ => {}
    }
    match find(arg.get_id().as_str()).map(|setting| setting.takes) {
        Some(Takes::One(value) | Takes::Many(value)) => match value {
            "DIR" => arg.value_hint(ValueHint::DirPath),
            "PATH" | "FILE" => arg.value_hint(ValueHint::FilePath),
            _ => match words(value) {
                Some(words) => arg.value_parser(PossibleValuesParser::new(words)),
                None => match listed(arg.get_id().as_str()) {
                    names if names.is_empty() => arg.value_hint(ValueHint::Other),
                    names => arg.value_parser(PossibleValuesParser::new(names)),
                },
            },
        },
        _ => arg,
    }
}

/// Names that are another list's.
fn listed(setting: &str) -> Vec<&'static str> {
    match setting {
        "platform" => cluster::names().map(PlatformName::word).collect(),
        "framework" => FRAMEWORKS.iter().map(|framework| framework.name).collect(),
        // Who keeps none has none of the code that the list names.
        "checkpoint-format" if !cfg!(feature = "store") => vec!["auto"],
        "checkpoint-format" => ["auto"].into_iter().chain(LAYOUTS.iter().map(|layout| layout.name)).collect(),
        _ => Vec::new(),
    }
}

/// `["leader", "group"]` of `leader|group`; `None` where a part stands for other words (`N|gpu`).
fn words(value: &'static str) -> Option<Vec<&'static str>> {
    let words: Vec<&str> = value.split('|').collect();
    let are_words = words.iter().all(|word| !word.contains(|c: char| c.is_ascii_uppercase() || !c.is_ascii_graphic()));
    (words.len() > 1 && are_words).then_some(words)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::defs::all;

    #[test]
    fn every_shell_is_offered_every_flag_and_subcommand() {
        for shell in SHELLS {
            let text = script(shell).expect(shell);
            for setting in all() {
                let in_fish = format!("-l {} ", setting.name);
                assert!(
                    text.contains(&format!("--{}", setting.name)) || text.contains(&in_fish),
                    "{shell}: {setting:?}"
                );
            }
            assert!(SUBS.iter().all(|sub| text.contains(sub.name)), "{shell}");
            assert!(text.contains("leader") && text.contains("prune"), "{shell} is not offered the choices");
        }
        assert!(script("tcsh").is_none());
    }

    #[test]
    fn choices_are_words_and_placeholders_are_not() {
        assert_eq!(words("leader|group").as_deref(), Some(&["leader", "group"][..]));
        assert_eq!(words("143|child").as_deref(), Some(&["143", "child"][..]));
        assert_eq!(words("N|gpu"), None);
        assert_eq!(words("DURATION"), None);
    }

    #[test]
    fn names_are_offered_where_there_is_a_list_of_them_and_files_only_where_one_is_wanted() {
        let bash = script("bash").expect("bash");
        let offered = |flag: &str| {
            let (_, after) = bash.split_once(&format!("--{flag})\n")).unwrap_or_else(|| panic!("no {flag}"));
            after.split(";;").next().unwrap_or_default().to_owned()
        };
        for (flag, name) in
            [("platform", "tf_config"), ("framework", "torch"), ("checkpoint-format", "orbax"), ("log-level", "debug")]
        {
            let words = offered(flag);
            assert!(words.contains("compgen -W") && words.contains(&format!(" {name}")), "{flag}: {words}");
        }
        assert!(!offered("stop-grace").contains("compgen"), "{}", offered("stop-grace"));
        assert!(offered("verdict-file").contains("compgen -f"), "{}", offered("verdict-file"));
    }

    #[test]
    fn the_deeds_are_those_of_the_help() {
        let mut tree = tree();
        let checkpoint = tree.find_subcommand_mut("checkpoint").expect("there is one");
        let help = checkpoint.get_arguments().find(|arg| arg.get_id() == "ACTION").and_then(Arg::get_help);
        assert_eq!(help.map(ToString::to_string).unwrap_or_default().replace(" or ", ", "), DEEDS.join(", "));
    }
}
