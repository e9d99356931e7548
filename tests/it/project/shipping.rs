//! Parts of the shipped file: completions for shells, licences, the version.

use std::collections::BTreeSet;
use std::process::Command;

use crate::support::Trainit;

fn script(shell: &str) -> String {
    Trainit::new(["completions", shell]).output().expect_code(0).out()
}

/// The completions that bash offers after these words.
fn offered(words: &[&str]) -> Vec<String> {
    let quoted: Vec<String> = words.iter().map(|word| format!("'{word}'")).collect();
    let (last, before) = (words[words.len() - 1], words[words.len() - 2]);
    let ask = format!(
        "{}\nCOMP_WORDS=({}); COMP_CWORD={}; asked=$(complete -p trainit); asked=${{asked##*-F }}; \
         \"${{asked%% *}}\" trainit '{last}' '{before}'; printf '%s\\n' \"${{COMPREPLY[@]}}\"",
        script("bash"),
        quoted.join(" "),
        words.len() - 1
    );
    let output = Command::new("bash").args(["--norc", "-c", &ask]).output().unwrap();
    assert!(output.stderr.is_empty(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap().split_whitespace().map(str::to_owned).collect()
}

#[test]
fn bash_completes_subcommands_flags_and_their_values() {
    assert_eq!(offered(&["trainit", "rep"]), ["report-metric"]);
    assert_eq!(offered(&["trainit", "run", "--stop-g"]), ["--stop-grace"]);
    assert_eq!(offered(&["trainit", "run", "--signal-target", ""]), ["leader", "group"]);
}

#[test]
fn bash_completes_the_command_of_run() {
    assert!(offered(&["trainit", "run", "--signal-target", "group", "--", "bas"]).contains(&"bash".to_owned()));
    assert_eq!(offered(&["trainit", "run", "--", "python", "--stop-g"]), [""; 0], "a flag of the command's");
    assert_eq!(offered(&["trainit", "run", "--", "cat", "Carg"]), [""; 0], "left to bash, which offers files");
}

#[test]
fn bash_completes_the_actions_of_checkpoint() {
    assert!(offered(&["trainit", "checkpoint", "pr"]).contains(&"prune".to_owned()));
}

#[test]
fn fish_offers_the_actions_and_no_files() {
    let offered = |line: &str| {
        let script = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(script.path(), self::script("fish")).unwrap();
        let asked = format!("source {}; complete -C '{line}'", script.path().display());
        let output = Command::new("fish").args(["--no-config", "-c", &asked]).output().ok()?;
        Some(String::from_utf8(output.stdout).unwrap().lines().map(str::to_owned).collect::<Vec<_>>())
    };
    let Some(shells) = offered("trainit completions ") else {
        return crate::support::skip("fish is not there to complete anything");
    };
    assert_eq!(shells, ["bash", "fish", "zsh"]);
    assert_eq!(offered("trainit completions bash ").unwrap(), [""; 0]);
    assert_eq!(offered("trainit checkpoint ").unwrap(), ["list", "prune", "pull", "push", "verify"]);
    assert_eq!(offered("trainit checkpoint list ").unwrap(), [""; 0]);
    assert_eq!(offered("trainit checkpoint --restore n").unwrap(), ["none"]);
    let files = offered("trainit checkpoint list --config ").unwrap();
    assert!(files.iter().any(|file| file == "Cargo.toml"), "{files:?}");
}

#[test]
fn there_is_a_manual_page_for_each_subcommand_only() {
    for words in [&["man"][..], &["man", "run"], &["man", "man"]] {
        let page = Trainit::new(words).output().expect_code(0).out();
        assert!(page.contains(".TH trainit") && page.contains("SYNOPSIS"), "{words:?}: {page}");
    }
    assert!(Trainit::new(["man", "fly"]).output().expect_code(125).err().contains("no manual page for \"fly\""));
}

#[test]
fn each_shell_can_read_its_completions() {
    for shell in ["bash", "zsh", "fish"] {
        let script = script(shell);
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), &script).unwrap();
        match Command::new(shell).arg("-n").arg(file.path()).output() {
            Ok(output) => assert!(output.status.success() && output.stderr.is_empty(), "{shell}: {output:?}"),
            Err(_) => crate::support::skip(format!("{shell} is not there to read its completions")),
        }
        assert!(script.contains("stop-grace"), "{shell}");
    }
}

#[test]
fn another_shell_is_one_line_and_125() {
    let done = Trainit::new(["completions", "tcsh"]).output().expect_code(125);
    assert_eq!(done.err().lines().count(), 1);
    assert!(done.err().contains("bash, zsh, fish"), "{}", done.err());
    Trainit::new(["completions"]).output().expect_code(125);
}

#[test]
fn licenses_name_every_crate_that_is_in_the_lock_file_and_each_text_once() {
    let text = Trainit::new(["licenses"]).output().expect_code(0).out();
    let lock = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.lock")).unwrap();
    let (list, texts) = text.split_once("\n==== [1]").unwrap();
    let entries: Vec<&str> = list.lines().filter(|line| line.contains('[') && !line.starts_with(' ')).collect();
    for must in ["clap ", "tokio ", "serde ", "Rust's standard library "] {
        assert!(entries.iter().any(|entry| entry.starts_with(must)), "{must}is not in: {list}");
    }
    for entry in entries.iter().filter(|entry| !entry.starts_with("Rust's") && !entry.starts_with("musl")) {
        let (name, version) = entry.split_once(',').unwrap().0.split_once(' ').unwrap();
        assert!(lock.contains(&format!("name = \"{name}\"\nversion = \"{version}\"")), "{entry} is not in Cargo.lock");
    }
    // Test tools are not part of the file.
    assert!(!entries.iter().any(|entry| entry.starts_with("proptest") || entry.starts_with("tempfile")), "{list}");
    let named: BTreeSet<&str> =
        entries.iter().flat_map(|e| e.split(' ')).filter(|word| word.starts_with('[')).collect();
    for number in named.iter().filter(|number| **number != "[1]") {
        assert!(texts.contains(&format!("\n==== {number} ")), "{number} has no text");
    }
}

#[test]
fn the_version_names_commit_target_and_features() {
    let out = Trainit::new(["--version"]).output().expect_code(0).out();
    assert!(out.starts_with(concat!("trainit ", env!("CARGO_PKG_VERSION"), " (")), "{out}");
    assert!(
        out.contains("unknown-linux-") && out.contains(if cfg!(debug_assertions) { "development build" } else { "," })
    );
}

#[test]
fn the_bill_of_materials_has_every_crate_that_is_built_in_and_no_test_tool() {
    let root = env!("CARGO_MANIFEST_DIR");
    let Ok(output) =
        Command::new("python3").arg("scripts/release/sbom").current_dir(root).env("SOURCE_DATE_EPOCH", "0").output()
    else {
        crate::support::skip("no python3 to run scripts/release/sbom");
        return;
    };
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let bill: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(bill["metadata"]["timestamp"], "1970-01-01T00:00:00Z");
    let required = bill["components"].as_array().unwrap().iter().filter(|c| c["scope"] == "required");
    let listed: BTreeSet<String> =
        required.map(|c| format!("{} {}", c["name"].as_str().unwrap(), c["version"].as_str().unwrap_or(""))).collect();
    let text = Trainit::new(["licenses"]).output().expect_code(0).out();
    let list = text.split_once("\n==== [1]").unwrap().0;
    let entries =
        list.lines().filter(|line| line.contains('[') && !line.starts_with([' ', 'R']) && !line.starts_with("musl"));
    let entries: Vec<&str> = entries.map(|entry| entry.split_once(',').unwrap().0).collect();
    for entry in &entries {
        assert!(listed.contains(*entry), "{entry} is not in the bill");
    }
    assert!(entries.len() > 50 && listed.iter().any(|c| c.starts_with("rust-std ")), "{entries:?}");
    assert!(!listed.iter().any(|c| c.starts_with("proptest ") || c.starts_with("serde_derive ")), "{listed:?}");
}
