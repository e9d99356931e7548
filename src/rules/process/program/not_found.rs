//! Why a command is not found, in words. Often the word is not the name of a program at all: a whole command line in
//! one word, a shell builtin, a second `--`.

use crate::text::safe_text::printable;

/// Builtins and keywords of shells.
const SHELL_WORDS: [&str; 38] = [
    ".", "[[", "alias", "bg", "break", "builtin", "case", "cd", "command", "continue", "declare", "do", "eval", "exec",
    "exit", "export", "fg", "for", "function", "hash", "if", "let", "local", "module", "pushd", "read", "readonly",
    "return", "set", "shift", "source", "trap", "typeset", "ulimit", "umask", "unset", "until", "while",
];

/// Whether a shell handles this word itself. `.` would otherwise be found as a directory.
fn is_shell_word(name: &str) -> bool {
    SHELL_WORDS.contains(&name)
}

/// The part of a word that may be logged: the name of a variable or a flag, the program of a command line in one word.
pub fn without_values(word: &str) -> String {
    let is_quote = |c: char| matches!(c, '\'' | '"' | '`');
    let mut words = word.split_whitespace();
    let (Some(first), more) = (words.next(), words.next()) else { return word.to_owned() };
    let named = |word: &str| match word.split_once('=') {
        Some((name, _)) if is_assignment(word.trim_start_matches(is_quote)) || name.starts_with('-') => {
            format!("{name}=...")
        }
        _ => word.to_owned(),
    };
    match more {
        None if first == word => named(word),
        // The blanks around it are the mistake, so they are kept.
        None => word.replace(first, &named(first)),
        Some(_) => {
            let program = word.split_whitespace().find(|word| !is_assignment(word.trim_start_matches(is_quote)));
            let before = named(first);
            match program {
                Some(program) if program != first && is_assignment(first.trim_start_matches(is_quote)) => {
                    format!("{before} {} ...", named(program))
                }
                _ => format!("{before} ..."),
            }
        }
    }
}

/// Other names of the same program: `python3` for `python`, and the reverse.
pub fn other_names(name: &str) -> Vec<String> {
    let bare = name.trim_end_matches(|c: char| c.is_ascii_digit() || c == '.');
    let major = format!("{bare}3");
    [major, bare.to_owned()].into_iter().filter(|other| other != name && !bare.is_empty()).collect()
}

/// One line. `here`: the working directory has a file of this name. `is_there` says whether PATH has a program of a
/// name. Values are omitted, because they may be secrets.
pub fn why(name: &str, arguments: &[String], here: bool, is_there: impl Fn(&str) -> bool) -> String {
    let shown = printable(&without_values(name));
    let not_found = format!("command not found: {shown}");
    let rest = if arguments.is_empty() { "" } else { " ..." };
    if name.trim().is_empty() {
        return "command not found: the command is empty; the first word after -- is the program: is the variable \
                that contains it unset?"
            .to_owned();
    }
    if name == "--" {
        return format!(
            "{not_found}; one -- is too many: the command follows the first one (the ENTRYPOINT may end in -- already)"
        );
    }
    if name.starts_with('-') {
        return format!(
            "{not_found}; the command follows trainit run --: put a flag of trainit before the --, or set its variable \
             (TRAINIT_HANG_TIMEOUT for --hang-timeout)"
        );
    }
    if name.trim() != name {
        let what = if name.ends_with('\r') { "the carriage return (Windows line endings)" } else { "a blank" };
        return format!("command not found: \"{shown}\"; the name contains {what}; remove it");
    }
    let is_quote = |c: char| matches!(c, '\'' | '"' | '`');
    if name.starts_with(is_quote) || name.ends_with(is_quote) {
        return format!("{not_found}; the name contains the quotes, because no shell removes them; omit them");
    }
    if name.contains(char::is_whitespace) {
        return one_word_reason(&not_found, name);
    }
    if let Some((variable, _)) = name.split_once('=').filter(|_| is_assignment(name)) {
        let program = arguments.iter().find(|word| !is_assignment(word));
        let program =
            program.map_or("COMMAND".to_owned(), |program| format!("{} ...", printable(&without_values(program))));
        return format!(
            "{not_found}; only a shell sets a variable in front of a command: write env {variable}=... {program}, or set it for the \
             container (docker run -e {variable}=...)"
        );
    }
    if is_shell_word(name) {
        return shell_word_reason(name, rest);
    }
    if matches!(name, "conda" | "mamba" | "micromamba") && arguments.first().is_some_and(|word| word == "activate") {
        return format!(
            "{not_found}; activate works in a shell only: put the environment's bin first in PATH, or start its python by its path"
        );
    }
    if name.contains('$') || name.starts_with('~') {
        let sign = if name.contains('$') { "variable" } else { "home directory" };
        return format!(
            "{not_found}; only a shell expands a {sign}, and no shell has read this (an ENTRYPOINT in JSON has none): write the value, or \
             use a shell, as in sh -c 'exec {shown}{rest}'"
        );
    }
    let (folder, file) = name.rsplit_once('/').unwrap_or(("", name));
    let in_path = [file.to_owned()].into_iter().chain(other_names(file)).filter(|_| !folder.is_empty());
    let other_name = other_names(name).into_iter().chain(in_path).find(|other| is_there(other));
    if name.contains('/') && other_name.is_none() {
        return format!("{not_found}; check the path in the image, and that its file system is mounted");
    }
    if here && folder.is_empty() {
        let python = if !is_there("python") && is_there("python3") { "python3" } else { "python" };
        let runs = match name.rsplit_once('.') {
            Some((_, "py")) => format!("write {python} {shown}, or ./{shown}"),
            Some((_, "sh")) => format!("write sh {shown}, or ./{shown}"),
            _ => format!("write ./{shown}"),
        };
        return format!("{not_found}; the working directory has a file of this name, but is not in PATH: {runs}");
    }
    if let Some(other_name) = other_name {
        return format!(
            "{not_found}; {other_name} is installed: write {other_name}{rest}, or link {shown} to it in the image"
        );
    }
    format!("{not_found}; check the spelling and PATH in the image")
}

fn is_assignment(name: &str) -> bool {
    name.split_once('=').is_some_and(|(variable, _)| {
        !variable.is_empty()
            && !variable.starts_with(|c: char| c.is_ascii_digit())
            && variable.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
    })
}

fn one_word_reason(not_found: &str, line: &str) -> String {
    let first = line.split_whitespace().next().unwrap_or_default();
    let needs_shell = line.contains(['&', '|', ';', '<', '>', '$', '"', '\'', '*', '\n']);
    let way_out = if needs_shell || is_assignment(first) || is_shell_word(first) {
        "use a shell: trainit run -- sh -c '...'".to_owned()
    } else {
        format!(
            "give the program and each argument as a word of its own, in JSON [\"{}\", \"...\"], or use a shell: sh -c '...'",
            printable(&without_values(first))
        )
    };
    format!("{not_found}; the whole command line is one word, so it is taken as the name of a program; {way_out}")
}

fn shell_word_reason(name: &str, rest: &str) -> String {
    let rest = if rest.is_empty() { " ..." } else { rest };
    let more = match name {
        "exec" | "command" | "builtin" => "; or omit it",
        "export" => "; or set the variable with env NAME=value COMMAND, or for the container (docker run -e)",
        _ => "",
    };
    let shell = if matches!(name, "source" | "module" | "pushd" | "[[" | "declare") { "bash" } else { "sh" };
    format!(
        "command not found: {name}; it is a shell builtin, not a program: use a shell, as in {shell} -c '{name}{rest} && COMMAND'{more}"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_that_is_not_the_name_of_a_program_is_explained() {
        let cases: [(&[&str], &str); 24] = [
            (&["pyhton", "x"], "command not found: pyhton; check the spelling and PATH in the image"),
            (&["/app/x"], "command not found: /app/x; check the path in the image"),
            (&["${VENV}/bin/python", "x"], "only a shell expands a variable, and no shell has read this"),
            (
                &["~/venv/bin/python", "x"],
                "home directory, and no shell has read this (an ENTRYPOINT in JSON has none): write",
            ),
            (&[""], "the command is empty"),
            (&[" "], "the command is empty"),
            (&["--", "true"], "command not found: --; one -- is too many"),
            (&["--hang-timeout", "5s"], "command not found: --hang-timeout; the command follows trainit run --"),
            (&["python train.py --x 1"], "is one word, so"),
            (&["python train.py --x 1"], "in JSON [\"python\", \"...\"], or"),
            (&["cd /app && python x"], "is one word, so it is taken as the name of a program; use a shell"),
            (&["A=1 python x"], "use a shell"),
            (&["train.sh\r"], "\"train.sh\\r\"; the name contains the carriage return (Windows line endings)"),
            (&["python ", "x"], "\"python \"; the name contains a blank"),
            (&["'python'", "x"], "the name contains the quotes"),
            (&["\"python x\""], "the name contains the quotes"),
            (&["OMP_NUM_THREADS=4", "python", "x"], "write env OMP_NUM_THREADS=... python ..., or set it"),
            (&["A=1"], "write env A=... COMMAND"),
            (&["--a=b"], "the command follows trainit run"),
            (
                &["cd", "/app"],
                "command not found: cd; it is a shell builtin, not a program: use a shell, as in sh -c 'cd ... &&",
            ),
            (&["source", "env.sh"], "bash -c 'source ... && COMMAND'"),
            (&["exec", "python"], "or omit it"),
            (&["export", "A=1"], "env NAME=value COMMAND"),
            (&["conda", "activate", "ml"], "activate works in a shell only"),
        ];
        for (words, expected) in cases {
            let rest: Vec<String> = words[1..].iter().map(|word| (*word).to_owned()).collect();
            let reason = why(words[0], &rest, false, |_| false);
            assert!(reason.starts_with("command not found: ") && reason.contains(expected), "{words:?}: {reason}");
            assert!(!reason.contains(char::is_control), "{reason:?}");
        }
    }

    #[test]
    fn an_installed_program_of_a_similar_name_is_named() {
        let reason = |name: &str, there: &str| why(name, &["x".to_owned()], false, |other| other == there);
        for (name, there) in [("python", "python3"), ("python3", "python"), ("python3.12", "python3"), ("pip", "pip3")]
        {
            let reason = reason(name, there);
            assert!(reason.contains(&format!("{there} is installed: write {there} ...")), "{reason}");
        }
        assert!(reason("python", "ruby").ends_with("check the spelling and PATH in the image"));
        let sibling = reason("/usr/bin/python", "/usr/bin/python3");
        assert!(sibling.contains("/usr/bin/python3 is installed: write /usr/bin/python3 ..."), "{sibling}");
        for in_path in ["python", "python3"] {
            let elsewhere = reason("/opt/venv/bin/python", in_path);
            assert!(elsewhere.contains(&format!("{in_path} is installed: write {in_path} ...")), "{elsewhere}");
        }
    }

    #[test]
    fn no_value_of_a_variable_a_flag_or_an_argument_is_shown() {
        let secret = "hunter2";
        for words in [
            vec!["PASSWORD=hunter2", "python", "--token", "hunter2"],
            vec!["PASSWORD=hunter2 python train.py --token=hunter2"],
            vec!["'PASSWORD=hunter2 python'"],
            vec!["\"PASSWORD=hunter2\" python"],
            vec!["PASSWORD=hunter2 TOKEN=hunter2"],
            vec!["PASSWORD=hunter2\r"],
            vec!["python train.py --token hunter2"],
            vec!["--token=hunter2", "x"],
            vec!["export", "PASSWORD=hunter2"],
            vec!["exec", "env", "PASSWORD=hunter2", "python"],
            vec!["$VENV/python", "--token", "hunter2"],
            vec!["cd /app && PASSWORD=hunter2 python x"],
        ] {
            let rest: Vec<String> = words[1..].iter().map(|word| (*word).to_owned()).collect();
            let reason = why(words[0], &rest, false, |_| false);
            assert!(!reason.contains(secret), "{reason}");
            assert!(!without_values(words[0]).contains(secret), "{}", without_values(words[0]));
        }
        assert!(why("PASSWORD=x", &[], false, |_| false).contains("PASSWORD=..."));
        for whole in ["python", "/data/lr=0.1/run.sh", "", " "] {
            assert_eq!(without_values(whole), whole);
        }
        assert_eq!(without_values("A=1 python x"), "A=... python ...");
    }

    #[test]
    fn a_file_in_the_working_directory_is_named_with_its_path() {
        for (name, way) in [("train", "write ./train"), ("train.py", "write python train.py, or ./train.py")] {
            assert!(why(name, &[], true, |_| false).ends_with(way), "{}", why(name, &[], true, |_| false));
        }
    }

    #[test]
    fn every_builtin_of_a_shell_is_known() {
        for name in SHELL_WORDS {
            assert!(why(name, &[], false, |_| false).contains("a shell builtin"), "{name}");
        }
    }
}
