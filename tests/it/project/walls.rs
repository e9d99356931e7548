//! The dependencies between the directories of the source tree: which may name which (ARCHITECTURE.md).

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// The sources of a directory. A file of unit tests may name anything.
fn sources(dir: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            sources(&path, found);
        } else if path.extension().is_some_and(|e| e == "rs") && !path.ends_with("tests.rs") {
            found.push(path);
        }
    }
}

/// The lines of a directory that name something forbidden. Unit tests (the module at the end, or a file `tests.rs`) may name
/// anything.
fn violations(room: &str, forbidden: &[&str]) -> Vec<String> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut files = Vec::new();
    sources(&root.join("src").join(room), &mut files);
    assert!(!files.is_empty(), "no files in {room}");
    let mut complaints = Vec::new();
    for file in files {
        let text = fs::read_to_string(&file).unwrap();
        let code = text.split("#[cfg(test)]\nmod tests").next().unwrap();
        for (number, line) in code.lines().enumerate().filter(|(_, l)| !l.trim_start().starts_with("//")) {
            for word in forbidden.iter().filter(|w| line.contains(**w)) {
                let place = file.strip_prefix(root).unwrap().display();
                complaints.push(format!("{place}:{}: {room} must not name {word}", number + 1));
            }
        }
    }
    complaints
}

#[track_caller]
fn holds(room: &str, forbidden: &[&str]) {
    let complaints = violations(room, forbidden);
    assert!(complaints.is_empty(), "{}", complaints.join("\n"));
}

#[test]
fn rules_touch_nothing_and_know_no_other_room() {
    holds(
        "rules",
        &[
            "tokio",
            "nix::",
            "libc::",
            "std::fs",
            "std::env",
            "std::process",
            "std::thread",
            "std::net",
            "Instant",
            "SystemTime",
            "async ",
            "tracing::",
            "crate::edge",
            "crate::settings",
            "crate::supervisor",
            "crate::telemetry",
            "crate::command",
            "crate::cli",
        ],
    );
}

#[test]
fn no_room_of_the_rules_needs_itself_through_another() {
    let rooms = fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("src/rules")).unwrap();
    let rooms = rooms.map(Result::unwrap).filter(|entry| entry.path().is_dir());
    let mut left: BTreeSet<String> = rooms.map(|entry| entry.file_name().into_string().unwrap()).collect();
    let needs = |room: &String, other: &String| {
        other != room && !violations(&format!("rules/{room}"), &[&format!("crate::{other}::")]).is_empty()
    };
    // A room that needs no other is at the bottom. What is left when no room is at the bottom contains a circle.
    while let Some(bottom) = left.iter().find(|room| !left.iter().any(|other| needs(room, other))).cloned() {
        left.remove(&bottom);
    }
    assert!(left.is_empty(), "a circle of imports between rooms of src/rules: {left:?}");
}

#[test]
fn edges_know_no_setting_and_no_policy() {
    holds(
        "edge",
        &["crate::settings", "crate::supervisor", "crate::telemetry", "crate::command", "crate::cli", "rules::job"],
    );
}

#[test]
fn settings_know_only_rules() {
    holds("settings", &["crate::edge", "crate::supervisor", "crate::telemetry", "crate::command"]);
}

#[test]
fn the_supervisor_knows_no_subcommand_no_flag_and_no_variable() {
    holds("supervisor", &["crate::command", "crate::cli", "crate::settings"]);
}

#[test]
fn telemetry_only_reads_state() {
    holds("telemetry", &["crate::command", "crate::cli", "crate::settings", "crate::supervisor"]);
}

#[test]
fn only_the_rules_name_a_platform() {
    for room in ["command", "supervisor", "telemetry", "edge"] {
        holds(room, &["PlatformName"]);
    }
}

/// The files that list or remove by path, and why no trainer can lead them elsewhere.
const BY_PATH: [(&str, &str); 8] = [
    ("src/edge/process/proc_listing.rs", "/proc"),
    ("src/edge/process/open_files.rs", "/proc"),
    ("src/edge/process/sockets.rs", "/proc"),
    ("src/edge/gpu/proc.rs", "/dev and /proc"),
    ("src/edge/gpu/nvml/library.rs", "the directories of libraries"),
    ("src/edge/gpu/program.rs", "a file of the probe, before any trainer runs"),
    ("src/supervisor/simulate/", "the simulation and its replicas have one user"),
    ("src/command/simulate.rs", "the simulation and its replicas have one user"),
];

#[test]
fn a_directory_that_a_trainer_can_write_is_listed_and_emptied_by_descriptors_only() {
    let by_path = ["read_dir(", "remove_dir_all(", "fs::remove_dir(", "fs::remove_file(", "ReadDir", "WalkDir"];
    let mut others = violations("", &by_path);
    others.retain(|place| !BY_PATH.iter().any(|(file, _)| place.starts_with(file)));
    assert!(others.is_empty(), "use edge/fs/rooted_dir/open_dir or trusted_open:\n{}", others.join("\n"));
    let unused =
        BY_PATH.iter().filter(|(file, _)| !violations("", &by_path).iter().any(|place| place.starts_with(file)));
    assert_eq!(unused.count(), 0, "a file of the list lists and removes nothing by path");
}

/// The variables that the code of a source names.
fn variables(code: &str) -> BTreeSet<&str> {
    let is_one = |word: &&str| {
        let is_of = |c: char| c.is_ascii_uppercase() || c.is_ascii_digit() || c == '_';
        word.contains('_') && word.chars().all(is_of)
    };
    code.split('"').filter(is_one).collect()
}

#[test]
fn a_platforms_variables_are_named_in_its_own_file_only() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let list = fs::read_to_string(root.join("src/rules/cluster/mod.rs")).unwrap();
    let lines = list.split("pub const PLATFORMS").nth(1).unwrap().split("];").next().unwrap();
    let files: Vec<String> = lines
        .lines()
        .filter_map(|line| line.trim().strip_prefix('&')?.rsplit_once("::"))
        .map(|(module, _)| module.replace("::", "/"))
        .collect();
    assert!(files.len() > 9, "{files:?}");
    let code =
        |path: &Path| fs::read_to_string(path).unwrap().split("#[cfg(test)]\nmod tests").next().unwrap().to_owned();
    // A variable that a framework reads belongs to the framework; a platform only sets it.
    let mut frameworks = Vec::new();
    sources(&root.join("src/rules/cluster/framework"), &mut frameworks);
    let frameworks: Vec<String> = frameworks.iter().map(|path| code(path)).collect();
    let of_frameworks: BTreeSet<&str> = frameworks.iter().flat_map(|code| variables(code)).collect();
    let mut seen = 0;
    for file in files {
        let own = root.join(format!("src/rules/cluster/{file}.rs"));
        let text = code(&own);
        let quoted = |is_frameworks: bool| {
            let one_of = |variable: &&&str| of_frameworks.contains(**variable) == is_frameworks;
            variables(&text).iter().filter(one_of).map(|variable| format!("\"{variable}\"")).collect::<Vec<String>>()
        };
        let elsewhere = |words: &[String], rooms: &[&str]| {
            let words: Vec<&str> = words.iter().map(String::as_str).collect();
            let mut others = violations("", &words);
            others.retain(|place| !rooms.iter().any(|room| place.starts_with(room)));
            others
        };
        let own_words = quoted(false);
        seen += own_words.len();
        let mut others = elsewhere(&own_words, &[&format!("src/rules/cluster/{file}.rs:")]);
        others.extend(elsewhere(&quoted(true), &["src/rules/cluster/"]));
        assert!(others.is_empty(), "{}", others.join("\n"));
    }
    assert!(seen > 40, "only {seen} variables were found");
}
