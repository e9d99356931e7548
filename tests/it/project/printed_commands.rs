//! The command lines that the first pages print run as printed, and print what the page shows.

use std::os::unix::fs::symlink;
use std::process::Command;

use regex::Regex;

use crate::support::documents::{code, root, text};
use crate::support::{Trainit, binary};

/// What a machine with trainit, Python and the clone cannot run: containers, clouds, clusters, builds.
const NOT_HERE: [&str; 5] = ["docker ", "cargo ", "mkdir layout", "gs://", "/checkpoints"];

/// The command lines of a page's blocks, each with the output that the block after it shows.
fn printed(page: &str) -> Vec<(String, Option<String>)> {
    let blocks: Vec<(String, String)> =
        code(&text(page)).into_iter().filter(|(language, piece)| language == "sh" || piece.contains('\n')).collect();
    let mut found: Vec<(String, Option<String>)> = Vec::new();
    for (at, (_, piece)) in blocks.iter().enumerate().filter(|(_, (language, _))| language == "sh") {
        let joined = piece.replace("\\\n", "");
        found.extend(joined.lines().filter(|line| !line.trim().is_empty()).map(|line| (line.to_owned(), None)));
        if let Some((_, output)) = blocks.get(at + 1).filter(|(language, _)| language.is_empty()) {
            found.last_mut().expect("a command line").1 = Some(output.clone());
        }
    }
    found
}

/// A line of output with its numbers as patterns, and any space for a space.
fn pattern(line: &str) -> Regex {
    let spaced = line.split_whitespace().map(regex::escape).collect::<Vec<_>>().join(" ");
    let number = Regex::new(r"(^|[^\w-])[0-9]+(?:\\\.[0-9]+)*").unwrap();
    Regex::new(&format!("^{}$", number.replace_all(&spaced, r"${1}[0-9]+(?:\.[0-9]+)*").replace(' ', r"\s+"))).unwrap()
}

/// Runs the lines of a page one after the other, in one directory that looks like the clone.
fn run_all(page: &str, at_least: usize) -> String {
    let dir = tempfile::tempdir().unwrap();
    for name in ["examples", "docs", "scripts"] {
        symlink(root().join(name), dir.path().join(name)).unwrap();
    }
    let path = format!("{}:/usr/local/bin:/usr/bin:/bin", binary().parent().unwrap().display());
    // For `trainit status`, which asks a run.
    let running = Trainit::run(["sh", "-c", "echo up; exec sleep 1000"]).start();
    running.after_line("up");
    let (mut count, mut all) = (0, String::new());
    for (line, shown) in printed(page) {
        if NOT_HERE.iter().any(|part| line.contains(part)) {
            continue;
        }
        let mut shell = Command::new("sh");
        shell.args(["-c", &format!("exec 2>&1\n{line}")]).current_dir(dir.path()).env_clear();
        shell.env("PATH", &path).env("HOME", dir.path()).env("TMPDIR", dir.path()).env("STEP_SECONDS", "0.1");
        shell.env("CLOUD_ML_HP_METRIC_FILE", dir.path().join("output.metrics"));
        let done = shell.output().unwrap();
        let out = String::from_utf8_lossy(&done.stdout).into_owned();
        assert!(done.status.success(), "{page}: {line}: {}\n{out}", done.status);
        let mut lines = out.lines().map(str::trim);
        for wanted in shown.iter().flat_map(|shown| shown.lines()).filter(|line| !line.trim().is_empty()) {
            let pattern = pattern(wanted);
            assert!(lines.any(|line| pattern.is_match(line)), "{page}: {line}: no line is like {wanted:?}:\n{out}");
        }
        count += 1;
        all += &out;
    }
    assert!(count >= at_least, "{page}: only {count} lines were run");
    all
}

#[test]
fn the_commands_of_the_readme_run_as_printed() {
    let out = run_all("README.md", 10);
    let resumed = Regex::new(r"worker-1 \| start resume_step=[1-9]").unwrap();
    assert!(resumed.is_match(&out), "worker-1 does not resume above step 0:\n{out}");
}

#[test]
fn the_commands_of_the_page_on_the_laptop_run_as_printed() {
    run_all("docs/platforms/laptop.md", 2);
}

#[test]
fn the_other_first_pages_print_only_commands_that_need_something_else() {
    for page in ["docs/platforms/docker.md", "docs/python.md"] {
        let own = printed(page).into_iter().filter(|(line, _)| !NOT_HERE.iter().any(|part| line.contains(part)));
        assert_eq!(own.collect::<Vec<_>>(), [], "{page}: run these, too");
    }
}
