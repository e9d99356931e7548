//! Why a command that lies there cannot be executed, in words: told from the file, and from those that were to run it.
//!
//! Deliberately absent: looking at them (`edge/program.rs`), and exit codes.

pub mod head;
pub mod not_found;

use self::head::{Head, machine_name};
use super::plain::plain;

/// What lies at a path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Lies {
    /// Nothing.
    Nothing,
    /// A link to this, which is not there.
    LinkToNothing(String),
    /// What, nobody may know: a directory above may not be entered.
    Barred,
    /// A directory.
    Directory,
    /// A device, a socket, a FIFO.
    Special,
    /// A file.
    File {
        /// It has the permission to be executed by us.
        is_executable: bool,
        /// It lies on a file system that nothing may be executed from.
        is_noexec: bool,
        /// Its first bytes; `None` where they could not be read.
        head: Option<Head>,
    },
}

/// The command's file first, then who is to run it, then who is to run that.
pub type Chain = Vec<(String, Lies)>;

/// What execve(2) said.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refused {
    /// ENOENT
    Missing,
    /// EACCES
    Denied,
    /// ENOEXEC
    NoFormat,
}

/// Why it is refused, and what to do; `None` where the files do not tell. `name` is as it was typed, `machine` is ours.
pub fn why(name: &str, chain: &[(String, Lies)], refused: Refused, machine: &str) -> Option<String> {
    let (first, _) = chain.first()?;
    let (at, (path, lies)) = chain.iter().enumerate().find(|(_, (_, lies))| is_culprit(lies, refused))?;
    let runs = at.checked_sub(1).and_then(|before| chain.get(before));
    let shown = match first == name {
        true => plain(name),
        false => format!("{} ({})", plain(name), plain(first)),
    };
    let because = match runs {
        Some((script, Lies::File { head: Some(head), .. })) => of_interpreter(script, head, path, lies, machine),
        _ => of_file(path, lies, machine),
    };
    Some(format!("cannot execute {shown}: {because}"))
}

fn is_culprit(lies: &Lies, refused: Refused) -> bool {
    match (refused, lies) {
        (Refused::Missing, lies) => matches!(lies, Lies::Nothing | Lies::LinkToNothing(_)),
        (Refused::Denied, Lies::File { is_executable, is_noexec, .. }) => !is_executable || *is_noexec,
        (Refused::Denied, lies) => matches!(lies, Lies::Barred | Lies::Directory | Lies::Special),
        (Refused::NoFormat, Lies::File { head: Some(Head::Script(path)), .. }) => path.is_empty(),
        (Refused::NoFormat, lies) => matches!(lies, Lies::File { head: Some(_), .. }),
    }
}

fn of_interpreter(script: &str, head: &Head, path: &str, lies: &Lies, machine: &str) -> String {
    let is_script = matches!(head, Head::Script(_));
    let (script, shown) = (plain(script), plain(path));
    let absent = match lies {
        Lies::Nothing => "is not in this image".to_owned(),
        Lies::LinkToNothing(target) => format!("is a link to {}, which is not in this image", plain(target)),
        _ if is_script => {
            return format!(
                "its interpreter {shown}, named in its #! line, is no help: {}",
                of_file(path, lies, machine)
            );
        }
        _ => return format!("its dynamic loader {shown} is no help: {}", of_file(path, lies, machine)),
    };
    if is_script && path.ends_with('\r') {
        return format!(
            "its #! line ends in a carriage return (Windows line ends), so an interpreter called \"{shown}\" is looked for; \
             mend it with: sed -i 's/\\r$//' {script} (and have git leave line ends alone: core.autocrlf=input)"
        );
    }
    if is_script {
        return format!(
            "its interpreter {shown}, named in its #! line, {absent}; install it, mend the line, or name another \
             interpreter first, as in: python {script}"
        );
    }
    let libraries = if path.contains("ld-musl") {
        "it was built for musl (Alpine), and this image has another C library or none"
    } else if path.contains("/ld-linux") || path.contains("/ld64") {
        "it was built for glibc (Debian, Ubuntu), and this image has another C library (Alpine) or none"
    } else {
        "it was built for another image"
    };
    format!(
        "its dynamic loader {shown} {absent}: {libraries}; build it for this image, link it statically or change the base image"
    )
}

fn of_file(path: &str, lies: &Lies, machine: &str) -> String {
    let path = plain(path);
    match lies {
        Lies::Nothing => format!("{path} is not there"),
        Lies::LinkToNothing(target) => format!(
            "{path} is a link to {}, which is not in this image; copy that, too, or make the environment anew in the image",
            plain(target)
        ),
        Lies::Barred => format!(
            "nobody knows whether {path} is there, as a directory above it may not be entered by this user; check the spelling, \
             chmod that directory, or run as a user who may"
        ),
        Lies::Directory => format!("{path} is a directory; name the program in it that is to be started"),
        Lies::Special => format!("{path} is no regular file but a device, a pipe or a socket; name a program"),
        Lies::File { is_noexec: true, .. } => format!(
            "{path} lies on a file system mounted with noexec; copy it elsewhere, mount it without, or name its interpreter \
             first, as in: python {path}"
        ),
        Lies::File { is_executable: false, .. } => format!(
            "permission denied: {path} may not be executed by this user; chmod +x it when the image is built, or name its \
             interpreter first, as in: python {path}"
        ),
        Lies::File { head: Some(Head::Elf { machine: of, .. }), .. } => of_program(*of, machine),
        Lies::File { head: Some(Head::Other(what)), .. } => what.replace("FILE", &path),
        Lies::File { .. } => "its #! line names no interpreter; write one, as in: #!/bin/sh".to_owned(),
    }
}

fn of_program(of: u16, machine: &str) -> String {
    let name = machine_name(of).map_or_else(|| format!("machine number {of}"), str::to_owned);
    if name == machine {
        return "it is a program for this machine, but damaged, cut short or not linked; build or copy it again"
            .to_owned();
    }
    let platform = match machine {
        "x86_64" => " (docker build --platform linux/amd64)",
        "aarch64" => " (docker build --platform linux/arm64)",
        _ => "",
    };
    format!("it was built for {name}, and this machine is {machine}; build or pull the image for this one{platform}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use head::tests::program;

    fn file(bytes: &[u8]) -> Lies {
        Lies::File { is_executable: true, is_noexec: false, head: Some(Head::of(bytes)) }
    }

    fn told(name: &str, links: &[(&str, Lies)], refused: Refused) -> String {
        let chain: Chain = links.iter().map(|(path, lies)| ((*path).to_owned(), lies.clone())).collect();
        why(name, &chain, refused, "x86_64").expect("told")
    }

    #[test]
    fn what_is_missing_of_a_command_that_lies_there_is_named() {
        let script = |text: &str| file(text.as_bytes());
        let glibc = file(&program(62, "/lib64/ld-linux-x86-64.so.2"));
        let musl = file(&program(62, "/lib/ld-musl-x86_64.so.1"));
        let cases = [
            (
                "./a",
                ("./a", script("#!/bin/sh\r\n")),
                ("/bin/sh\r", Lies::Nothing),
                "\"/bin/sh\\r\" is looked for; mend it",
            ),
            ("./a", ("./a", script("#!/c/py\n")), ("/c/py", Lies::Nothing), "./a: its interpreter /c/py, named"),
            ("a", ("/b/a", script("#!/c/py\n")), ("/c/py", Lies::Nothing), "cannot execute a (/b/a): its interpreter"),
            ("./a", ("./a", glibc), ("/lib64/ld-linux-x86-64.so.2", Lies::Nothing), "built for glibc"),
            ("./a", ("./a", musl), ("/lib/ld-musl-x86_64.so.1", Lies::Nothing), "built for musl (Alpine)"),
            (
                "./a",
                ("./a", script("#!/venv/python\n")),
                ("/venv/python", Lies::LinkToNothing("/usr/bin/python3".into())),
                "/venv/python, named in its #! line, is a link to /usr/bin/python3, which",
            ),
        ];
        for (name, script, interpreter, words) in cases {
            let told = told(name, &[script, interpreter], Refused::Missing);
            assert!(told.contains(words) && !told.contains('\r'), "{words}: {told}");
        }
        let link = Lies::LinkToNothing("/usr/bin/python3".into());
        let told = told("python", &[("/venv/bin/python", link)], Refused::Missing);
        assert!(told.contains("/venv/bin/python is a link to /usr/bin/python3, which"), "{told}");
    }

    #[test]
    fn what_may_not_be_executed_is_told_by_what_it_is() {
        let of = |is_executable, is_noexec| Lies::File { is_executable, is_noexec, head: None };
        let cases = [
            (Lies::Directory, "./a: ./a is a directory; name the program in it"),
            (Lies::Special, "no regular file"),
            (Lies::Barred, "a directory above it may not"),
            (of(false, false), "permission denied: ./a may not be executed by this user; chmod +x"),
            (of(true, true), "mounted with noexec"),
        ];
        for (lies, words) in cases {
            let told_of = told("./a", &[("./a", lies.clone())], Refused::Denied);
            assert!(told_of.contains(words), "{words}: {told_of}");
            let script = ("./script", file(b"#!./a\n"));
            let told = told("./script", &[script, ("./a", lies)], Refused::Denied);
            assert!(told.contains("its interpreter ./a, named in its #! line, is no help: "), "{told}");
        }
        let fine = ("./a".to_owned(), of(true, false));
        assert_eq!(why("./a", &[fine], Refused::Denied, "x86_64"), None, "a security module's word, say");
    }

    #[test]
    fn what_is_no_program_here_is_told_by_what_it_looks_like() {
        let lacking = "not a program for this machine and no script with a #! line; name its interpreter first";
        let cases: [(&[u8], &str); 11] = [
            (&program(183, ""), "built for aarch64, and this machine is x86_64; build or pull the image for this"),
            (&program(22, "/lib/ld64.so.1"), "built for s390x"),
            (&program(9999, ""), "built for machine number 9999"),
            (&program(62, ""), "a program for this machine, but damaged"),
            (b"", "it is empty"),
            (b"import torch\n", lacking),
            (b"\n#!/bin/sh\n", "not the very first thing"),
            (b"\xef\xbb\xbf#!/bin/sh\n", "byte order mark"),
            (b"#! \n", "names no interpreter"),
            (b"MZ\x90", "for Windows"),
            (b"version https://git-lfs.github.com/spec/v1\n", "git lfs pull"),
        ];
        for (bytes, words) in cases {
            let told = told("./a", &[("./a", file(bytes))], Refused::NoFormat);
            assert!(told.starts_with("cannot execute ./a: ") && told.contains(words), "{words}: {told}");
        }
    }
}
