//! Why a command that exists cannot be executed: an explanation from the file, its interpreter and its loader.
//!
//! Deliberately absent: reading the files (`edge/process/program.rs`), and exit codes.

pub mod head;
pub mod not_found;

use self::head::{Head, machine_name};
use crate::text::safe_text::printable;

/// The kind of file at a path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FileKind {
    /// No file.
    Missing,
    /// A symbolic link to this path, which does not exist.
    BrokenLink(String),
    /// Unknown: the user may not enter a directory above it.
    Unreachable,
    /// A directory.
    Directory,
    /// A device, a socket or a FIFO.
    Special,
    /// A file.
    File {
        /// This user may execute it.
        is_executable: bool,
        /// Its file system is mounted with noexec.
        is_noexec: bool,
        /// Its first bytes; `None` if they could not be read.
        head: Option<Head>,
    },
}

/// The command's file, then its interpreter, then the interpreter of that, and so on.
pub type Chain = Vec<(String, FileKind)>;

/// The error of execve(2).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ExecError {
    /// ENOENT
    Missing,
    /// EACCES
    Denied,
    /// ENOEXEC
    NoFormat,
}

/// The image in which the command runs.
#[derive(Debug, Clone, Copy)]
pub struct Image<'a> {
    /// Its processor architecture.
    pub machine: &'a str,
    /// The name of Python in it: `python3` if there is no `python`.
    pub python: &'a str,
}

/// Why execution failed, and what to do; `None` if the files do not explain it. `name` is the command as the user wrote
/// it.
pub fn why(name: &str, chain: &[(String, FileKind)], exec_error: ExecError, image: Image<'_>) -> Option<String> {
    let (first, _) = chain.first()?;
    let (at, (path, kind)) = chain.iter().enumerate().find(|(_, (_, kind))| explains(kind, exec_error))?;
    let runner = at.checked_sub(1).and_then(|before| chain.get(before));
    let shown = match first == name {
        true => printable(name),
        false => format!("{} ({})", printable(name), printable(first)),
    };
    let because = match runner {
        Some((script, FileKind::File { head: Some(head), .. })) => interpreter_reason(script, head, path, kind, image),
        _ => file_reason(path, kind, image),
    };
    Some(format!("cannot execute {shown}: {because}"))
}

fn explains(kind: &FileKind, exec_error: ExecError) -> bool {
    match (exec_error, kind) {
        (ExecError::Missing, kind) => matches!(kind, FileKind::Missing | FileKind::BrokenLink(_)),
        (ExecError::Denied, FileKind::File { is_executable, is_noexec, .. }) => !is_executable || *is_noexec,
        (ExecError::Denied, kind) => matches!(kind, FileKind::Unreachable | FileKind::Directory | FileKind::Special),
        (ExecError::NoFormat, FileKind::File { head: Some(Head::Script(path)), .. }) => path.is_empty(),
        (ExecError::NoFormat, kind) => matches!(kind, FileKind::File { head: Some(_), .. }),
    }
}

fn interpreter_reason(script: &str, head: &Head, path: &str, kind: &FileKind, image: Image<'_>) -> String {
    let is_script = matches!(head, Head::Script(_));
    let advice = advice(script, None, image);
    let (script, shown) = (printable(script), printable(path));
    let absent = match kind {
        FileKind::Missing => "is not in this image".to_owned(),
        FileKind::BrokenLink(target) => format!("is a link to {}, which is not in this image", printable(target)),
        _ if is_script => {
            return format!(
                "its interpreter {shown}, named in its #! line, cannot be executed: {}",
                file_reason(path, kind, image)
            );
        }
        _ => return format!("its dynamic loader {shown} cannot be executed: {}", file_reason(path, kind, image)),
    };
    if is_script && path.ends_with('\r') {
        return carriage_return_reason(&script, &shown);
    }
    if is_script {
        return format!(
            "its interpreter {shown}, named in its #! line, {absent}; install it, correct the line, or {advice}"
        );
    }
    let libraries = if path.contains("ld-musl") {
        "it was built for musl (Alpine), and this image does not have that C library"
    } else if path.contains("/ld-linux") || path.contains("/ld64") {
        "it was built for glibc (Debian, Ubuntu), and this image does not have that C library (is it Alpine?)"
    } else {
        "it was built for another image"
    };
    format!(
        "its dynamic loader {shown} {absent}: {libraries}; build it for this image, link it statically or change the base image"
    )
}

/// Both arguments are ready for display, the interpreter with its carriage return escaped.
fn carriage_return_reason(script: &str, interpreter: &str) -> String {
    format!(
        "its #! line ends in a carriage return (Windows line endings), so Linux looks for an interpreter called \"{interpreter}\"; \
         correct it with: sed -i 's/\\r$//' {script} (and prevent git from changing line endings: core.autocrlf=input)"
    )
}

/// Why a script that was executed exited with an error that its `#!` line explains. `bytes` are the first bytes of the
/// file at `path`; `is_there` says whether PATH has a program of a name.
pub fn why_it_left(path: &str, bytes: &[u8], is_there: impl Fn(&str) -> bool) -> Option<String> {
    let script = printable(path);
    if let Some(interpreter) = head::with_carriage_return(bytes) {
        return Some(format!("{script}: {}", carriage_return_reason(&script, &printable(&interpreter))));
    }
    let name = head::env_argument(bytes).filter(|name| !is_there(name))?;
    let other = match not_found::other_names(&name).into_iter().find(|other| is_there(other)) {
        Some(other) => format!("{other} is installed: use it in the line, or create a link"),
        None => "install it, or correct the line".to_owned(),
    };
    Some(format!("{script}: its #! line makes env look for {}, which is not in PATH; {other}", printable(&name)))
}

/// Advice to name the interpreter, if the file's first bytes or its name tell it.
fn advice(path: &str, head: Option<&Head>, image: Image<'_>) -> String {
    let interpreter = match (head, path.rsplit_once('.').map(|(_, end)| end)) {
        (Some(Head::Script(interpreter)), _) if !interpreter.is_empty() => {
            String::from_utf8_lossy(interpreter).into_owned()
        }
        (_, Some("py" | "pyz")) => image.python.to_owned(),
        (_, Some("sh")) => "sh".to_owned(),
        (_, Some("bash")) => "bash".to_owned(),
        (_, Some("jar")) => "java -jar".to_owned(),
        _ => return "name its interpreter first".to_owned(),
    };
    format!("name its interpreter first, as in: {} {}", printable(&interpreter), printable(path))
}

fn file_reason(path: &str, kind: &FileKind, image: Image<'_>) -> String {
    let head = match kind {
        FileKind::File { head, .. } => head.as_ref(),
        _ => None,
    };
    // A compiled program needs no interpreter.
    let or_interpreter = match head {
        Some(Head::Elf { .. }) => String::new(),
        head => format!(", or {}", advice(path, head, image)),
    };
    let advice = advice(path, head, image);
    let path = printable(path);
    match kind {
        FileKind::Missing => format!("{path} does not exist"),
        FileKind::BrokenLink(target) => format!(
            "{path} is a link to {}, which is not in this image; copy that too, or create the environment again in the image",
            printable(target)
        ),
        FileKind::Unreachable => format!(
            "{path} cannot be reached: this user may not enter a directory above it; check the spelling, \
             chmod that directory, or run as another user"
        ),
        FileKind::Directory => format!("{path} is a directory; name a program in it"),
        FileKind::Special => format!("{path} is a device, a pipe or a socket, not a regular file; name a program"),
        FileKind::File { is_noexec: true, .. } => format!(
            "{path} is on a file system mounted with noexec; copy it elsewhere, or mount the file system without noexec{or_interpreter}"
        ),
        FileKind::File { is_executable: false, .. } => format!(
            "permission denied: this user may not execute {path}; chmod +x it when the image is built{or_interpreter}"
        ),
        FileKind::File { head: Some(Head::Elf { machine: of, .. }), .. } => program_reason(*of, image.machine),
        FileKind::File { head: Some(Head::Other(what)), .. } => what.replace("ADVICE", &advice),
        FileKind::File { .. } => "its #! line names no interpreter; add one, for example: #!/bin/sh".to_owned(),
    }
}

fn program_reason(of: u16, machine: &str) -> String {
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

    const IMAGE: Image<'_> = Image { machine: "x86_64", python: "python3" };

    fn file(bytes: &[u8]) -> FileKind {
        FileKind::File { is_executable: true, is_noexec: false, head: Some(Head::of(bytes)) }
    }

    fn reason(name: &str, links: &[(&str, FileKind)], exec_error: ExecError) -> String {
        let chain: Chain = links.iter().map(|(path, kind)| ((*path).to_owned(), kind.clone())).collect();
        why(name, &chain, exec_error, IMAGE).expect("a reason")
    }

    #[test]
    fn a_missing_interpreter_or_loader_is_named() {
        let script = |text: &str| file(text.as_bytes());
        let glibc = file(&program(62, "/lib64/ld-linux-x86-64.so.2"));
        let musl = file(&program(62, "/lib/ld-musl-x86_64.so.1"));
        let cases = [
            ("./a", ("./a", script("#!/bin/sh\r\n")), ("/bin/sh\r", FileKind::Missing), "\"/bin/sh\\r\"; correct it"),
            ("./a", ("./a", script("#!/c/py\n")), ("/c/py", FileKind::Missing), "./a: its interpreter /c/py, named"),
            (
                "a",
                ("/b/a", script("#!/c/py\n")),
                ("/c/py", FileKind::Missing),
                "cannot execute a (/b/a): its interpreter",
            ),
            ("./a", ("./a", glibc), ("/lib64/ld-linux-x86-64.so.2", FileKind::Missing), "built for glibc"),
            ("./a", ("./a", musl), ("/lib/ld-musl-x86_64.so.1", FileKind::Missing), "built for musl (Alpine)"),
            (
                "./a",
                ("./a", script("#!/venv/python\n")),
                ("/venv/python", FileKind::BrokenLink("/usr/bin/python3".into())),
                "/venv/python, named in its #! line, is a link to /usr/bin/python3, which",
            ),
        ];
        for (name, script, interpreter, words) in cases {
            let reason = reason(name, &[script, interpreter], ExecError::Missing);
            assert!(reason.contains(words) && !reason.contains('\r'), "{words}: {reason}");
        }
        let link = FileKind::BrokenLink("/usr/bin/python3".into());
        let reason = reason("python", &[("/venv/bin/python", link)], ExecError::Missing);
        assert!(reason.contains("/venv/bin/python is a link to /usr/bin/python3, which"), "{reason}");
    }

    #[test]
    fn a_file_that_may_not_be_executed_is_described() {
        let of = |is_executable, is_noexec| FileKind::File { is_executable, is_noexec, head: None };
        let cases = [
            (FileKind::Directory, "./a: ./a is a directory; name a program in it"),
            (FileKind::Special, "not a regular file"),
            (FileKind::Unreachable, "this user may not enter a directory above it"),
            (of(false, false), "permission denied: this user may not execute ./a; chmod +x"),
            (of(true, true), "mounted with noexec"),
        ];
        for (kind, words) in cases {
            let reason_of = reason("./a", &[("./a", kind.clone())], ExecError::Denied);
            assert!(reason_of.contains(words), "{words}: {reason_of}");
            let script = ("./script", file(b"#!./a\n"));
            let reason = reason("./script", &[script, ("./a", kind)], ExecError::Denied);
            assert!(reason.contains("its interpreter ./a, named in its #! line, cannot be executed: "), "{reason}");
        }
        let fine = ("./a".to_owned(), of(true, false));
        assert_eq!(why("./a", &[fine], ExecError::Denied, IMAGE), None, "for example, a security module refused it");
    }

    #[test]
    fn a_file_of_another_type_is_described() {
        let lacking =
            "it is neither a program for this machine nor a script with a #! line; name its interpreter first";
        let cases: [(&[u8], &str); 11] = [
            (&program(183, ""), "built for aarch64, and this machine is x86_64; build or pull the image for this"),
            (&program(22, "/lib/ld64.so.1"), "built for s390x"),
            (&program(9999, ""), "built for machine number 9999"),
            (&program(62, ""), "a program for this machine, but damaged"),
            (b"", "it is empty"),
            (b"import torch\n", lacking),
            (b"\n#!/bin/sh\n", "not at the very beginning"),
            (b"\xef\xbb\xbf#!/bin/sh\n", "byte order mark"),
            (b"#! \n", "names no interpreter"),
            (b"MZ\x90", "for Windows"),
            (b"version https://git-lfs.github.com/spec/v1\n", "git lfs pull"),
        ];
        for (bytes, words) in cases {
            let reason = reason("./a", &[("./a", file(bytes))], ExecError::NoFormat);
            assert!(reason.starts_with("cannot execute ./a: ") && reason.contains(words), "{words}: {reason}");
        }
    }

    #[test]
    fn advice_names_the_right_interpreter_and_none_for_a_compiled_program() {
        let of = |name: &str, bytes: &[u8], is_executable, is_noexec, exec_error| {
            let head = Some(Head::of(bytes));
            reason(name, &[(name, FileKind::File { is_executable, is_noexec, head })], exec_error)
        };
        let elf = program(62, "");
        for (is_executable, is_noexec) in [(false, false), (true, true)] {
            let denied = |name, bytes| of(name, bytes, is_executable, is_noexec, ExecError::Denied);
            assert!(!denied("./train", &elf).contains("interpreter"), "{}", denied("./train", &elf));
            assert!(denied("./a.py", b"import torch").ends_with("as in: python3 ./a.py"));
            assert!(denied("./a.sh", b"echo").ends_with("as in: sh ./a.sh"));
            assert!(denied("./a", b"#!/bin/bash -e\n").ends_with("as in: /bin/bash ./a"));
            assert!(denied("./a", b"echo").ends_with("name its interpreter first"));
        }
        let without = |name| of(name, b"echo hi\n", true, false, ExecError::NoFormat);
        assert!(without("./train.sh").ends_with("as in: sh ./train.sh"), "{}", without("./train.sh"));
        assert!(without("./train.py").ends_with("as in: python3 ./train.py"), "{}", without("./train.py"));
        let absent =
            reason("./a.sh", &[("./a.sh", file(b"#!/x/sh\n")), ("/x/sh", FileKind::Missing)], ExecError::Missing);
        assert!(absent.ends_with("as in: sh ./a.sh"), "{absent}");
    }

    #[test]
    fn a_script_that_env_could_not_start_is_explained() {
        let why = |text: &str| why_it_left("./a", text.as_bytes(), |name| name == "python3");
        let cut = why("#!/usr/bin/env python3\r\n").expect("a reason");
        assert!(cut.contains("called \"python3\\r\"; correct it with: sed"), "{cut}");
        let absent = why("#!/usr/bin/env python\n").expect("a reason");
        assert!(absent.contains("look for python, which is not in PATH; python3 is installed"), "{absent}");
        assert!(why("#!/usr/bin/env ruby\n").expect("a reason").contains("install it"));
        assert_eq!((why("#!/usr/bin/env python3\n"), why("#!/bin/sh\n"), why("")), (None, None, None));
    }
}
