//! Why no command of a name is found, in words. Most often what stands there is no name of a program at all: a whole
//! command line in one word, something of a shell's own, a second `--`.

use crate::rules::plain::plain;

/// What only a shell can do.
const OF_A_SHELL: [&str; 38] = [
    ".", "[[", "alias", "bg", "break", "builtin", "case", "cd", "command", "continue", "declare", "do", "eval", "exec",
    "exit", "export", "fg", "for", "function", "hash", "if", "let", "local", "module", "pushd", "read", "readonly",
    "return", "set", "shift", "source", "trap", "typeset", "ulimit", "umask", "unset", "until", "while",
];

/// Whether it is something that a shell does itself. `.` is a directory, too, wherever it is looked for.
pub fn is_of_a_shell(name: &str) -> bool {
    OF_A_SHELL.contains(&name)
}

/// One line. `rest` are its arguments; `here`: a file of this name lies in the working directory.
pub fn why(name: &str, rest: &[String], here: bool) -> String {
    let shown = plain(name);
    let lack = format!("command not found: {shown}");
    if name.trim().is_empty() {
        return "command not found: the command is empty; the first word after -- is the program: is a variable unset that it \
                should come from?"
            .to_owned();
    }
    if name == "--" {
        return format!(
            "{lack}; one -- is too many: what follows the first is the command (an ENTRYPOINT may end in one already)"
        );
    }
    if name.starts_with('-') {
        return format!(
            "{lack}; what follows trainit run -- is the command: give a flag of trainit's before the --, or as its variable \
             (TRAINIT_HANG_TIMEOUT for --hang-timeout)"
        );
    }
    if name.trim() != name {
        let what = if name.ends_with('\r') { "the carriage return (Windows line ends)" } else { "the blank" };
        return format!("command not found: \"{shown}\"; {what} belongs to the name as it is given; take it away");
    }
    let is_quote = |c: char| matches!(c, '\'' | '"' | '`');
    if name.starts_with(is_quote) || name.ends_with(is_quote) {
        return format!(
            "{lack}; the quotes belong to the name as it is given, as no shell takes them away; leave them out"
        );
    }
    if name.contains(char::is_whitespace) {
        return in_one_word(&lack, name);
    }
    if is_assignment(name) {
        let command = if rest.is_empty() { "COMMAND".to_owned() } else { plain(&rest.join(" ")) };
        return format!(
            "{lack}; only a shell sets a variable in front of a command: write env {shown} {command}, or give it to the \
             container (docker run -e {shown})"
        );
    }
    if is_of_a_shell(name) {
        return of_a_shell(name, rest);
    }
    if matches!(name, "conda" | "mamba" | "micromamba") && rest.first().is_some_and(|word| word == "activate") {
        return format!(
            "{lack}; activate works in a shell only: put the environment's bin first in PATH, or start its python by its path"
        );
    }
    if name.contains('$') || name.starts_with('~') {
        let sign = if name.contains('$') { "variable" } else { "home directory" };
        return format!(
            "{lack}; only a shell fills in a {sign}, and none has read this (an ENTRYPOINT in JSON has none): write it out, or \
             let one run it, as in sh -c 'exec {}'",
            if rest.is_empty() { shown } else { format!("{shown} {}", plain(&rest.join(" "))) }
        );
    }
    if name.contains('/') {
        return format!("{lack}; check the path in the image, and that what it lies on is mounted there");
    }
    if here {
        let runs = match name.rsplit_once('.') {
            Some((_, "py")) => format!("write python {shown}, or ./{shown}"),
            Some((_, "sh")) => format!("write sh {shown}, or ./{shown}"),
            _ => format!("write ./{shown}"),
        };
        return format!("{lack}; a file of this name lies in the working directory, where PATH does not look: {runs}");
    }
    format!("{lack}; check the spelling and PATH in the image")
}

fn is_assignment(name: &str) -> bool {
    name.split_once('=').is_some_and(|(variable, _)| {
        !variable.is_empty()
            && !variable.starts_with(|c: char| c.is_ascii_digit())
            && variable.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
    })
}

fn in_one_word(lack: &str, line: &str) -> String {
    let words: Vec<&str> = line.split_whitespace().collect();
    let first = words.first().copied().unwrap_or_default();
    let needs_shell = line.contains(['&', '|', ';', '<', '>', '$', '"', '\'', '*', '\n']);
    let way_out = if needs_shell || is_assignment(first) || is_of_a_shell(first) {
        "let a shell read it: trainit run -- sh -c '...'".to_owned()
    } else {
        let list = words.iter().map(|word| format!("\"{}\"", plain(word))).collect::<Vec<_>>().join(", ");
        format!("give the program and each argument by itself, in JSON [{list}], or let a shell split it: sh -c '...'")
    };
    format!("{lack}; all of it is given as one word, as if it were a program's name; {way_out}")
}

fn of_a_shell(name: &str, rest: &[String]) -> String {
    let line = if rest.is_empty() { format!("{name} ...") } else { format!("{name} {}", plain(&rest.join(" "))) };
    let more = match name {
        "exec" | "command" | "builtin" => "; or leave it out",
        "export" => "; or give the variable with env NAME=value COMMAND, or to the container (docker run -e)",
        _ => "",
    };
    let shell = if matches!(name, "source" | "module" | "pushd" | "[[" | "declare") { "bash" } else { "sh" };
    format!(
        "command not found: {name}; that is a shell's own, no program: let one run it, as in {shell} -c '{line} && COMMAND'{more}"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_name_of_a_program_is_told_for_what_it_is() {
        let cases: [(&[&str], &str); 24] = [
            (&["pyhton", "x"], "command not found: pyhton; check the spelling and PATH in the image"),
            (&["/app/x"], "command not found: /app/x; check the path in the image"),
            (&["${VENV}/bin/python", "x"], "only a shell fills in a variable, and none has read this"),
            (
                &["~/venv/bin/python", "x"],
                "home directory, and none has read this (an ENTRYPOINT in JSON has none): write",
            ),
            (&[""], "the command is empty"),
            (&[" "], "the command is empty"),
            (&["--", "true"], "command not found: --; one -- is too many"),
            (&["--hang-timeout", "5s"], "command not found: --hang-timeout; what follows trainit run -- is"),
            (&["python train.py --x 1"], "one word, as if"),
            (&["python train.py --x 1"], "in JSON [\"python\", \"train.py\", \"--x\", \"1\"], or"),
            (&["cd /app && python x"], "one word, as if it were a program's name; let a shell read it"),
            (&["A=1 python x"], "let a shell read it"),
            (&["train.sh\r"], "\"train.sh\\r\"; the carriage return (Windows line ends)"),
            (&["python ", "x"], "\"python \"; the blank"),
            (&["'python'", "x"], "the quotes belong to the name"),
            (&["\"python x\""], "the quotes belong to the name"),
            (&["OMP_NUM_THREADS=4", "python", "x"], "write env OMP_NUM_THREADS=4 python x, or give it"),
            (&["A=1"], "write env A=1 COMMAND"),
            (&["--a=b"], "what follows trainit run"),
            (
                &["cd", "/app"],
                "command not found: cd; that is a shell's own, no program: let one run it, as in sh -c 'cd /app &&",
            ),
            (&["source", "env.sh"], "bash -c 'source env.sh && COMMAND'"),
            (&["exec", "python"], "or leave it out"),
            (&["export", "A=1"], "env NAME=value COMMAND"),
            (&["conda", "activate", "ml"], "activate works in a shell only"),
        ];
        for (words, expected) in cases {
            let rest: Vec<String> = words[1..].iter().map(|word| (*word).to_owned()).collect();
            let told = why(words[0], &rest, false);
            assert!(told.starts_with("command not found: ") && told.contains(expected), "{words:?}: {told}");
            assert!(!told.contains(char::is_control), "{told:?}");
        }
    }

    #[test]
    fn a_file_in_the_working_directory_is_named_as_it_must_be() {
        for (name, way) in [("train", "write ./train"), ("train.py", "write python train.py, or ./train.py")] {
            assert!(why(name, &[], true).ends_with(way), "{}", why(name, &[], true));
        }
    }

    #[test]
    fn every_word_of_a_shell_is_known() {
        for name in OF_A_SHELL {
            assert!(why(name, &[], false).contains("a shell's own"), "{name}");
        }
    }
}
