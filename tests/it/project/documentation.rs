//! The pages are correct: every command line, flag, variable and link in README, docs and Dockerfiles.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::path::Path;
use std::process::Command;

use crate::support::documents::{Found, code, files, in_dockerfile, in_manifest, in_shell, root, text, yaml};
use crate::support::{Trainit, binary};
use regex::Regex;
use trainit::cli::{self, Refusal};
use trainit::rules::checkpoint::LAYOUTS;
use trainit::rules::cluster;
use trainit::rules::cluster::framework::FRAMEWORKS;
use trainit::rules::preempt::SOURCES;
use trainit::rules::process::env::Env;
use trainit::settings::defs::{SIMULATE, find};
use trainit::settings::values::layers::unknown_variables;

fn pages() -> Vec<String> {
    let mut pages = files("docs", ".md");
    pages.push("README.md".to_owned());
    pages
}

/// Every trainit command line in the documentation.
fn command_lines() -> Vec<Found> {
    let mut found = Vec::new();
    for page in pages() {
        for (language, piece) in code(&text(&page)) {
            match language.as_str() {
                "sh" => found.extend(in_shell(&page, &piece)),
                "" if piece.starts_with("trainit ") => found.extend(in_shell(&page, &piece)),
                "Dockerfile" => found.extend(in_dockerfile(&page, &piece)),
                "" | "toml" | "json" | "python" | "yaml" => {}
                other => panic!("{page}: a block of {other:?}; say here how to check it"),
            }
        }
    }
    for file in ["Dockerfile.cpu", "Dockerfile.cuda"] {
        found.extend(in_dockerfile(file, &text(file)));
    }
    for file in files("docs/examples", ".yaml") {
        for document in yaml(&file) {
            found.extend(in_manifest(&file, &document));
        }
    }
    for file in files("docs/examples", ".json") {
        found.extend(in_manifest(&file, &serde_json::from_str(&text(&file)).unwrap()));
    }
    for file in files("docs/examples", ".sbatch") {
        found.extend(in_shell(&file, &text(&file)));
    }
    found
}

#[test]
fn every_command_line_in_the_documentation_is_understood() {
    let lines = command_lines();
    for (place, at_least) in
        [("README.md", 8), ("docs/reference/migrating.md", 3), ("docs/examples/job.yaml", 1), ("Dockerfile.cpu", 1)]
    {
        let count = lines.iter().filter(|line| line.place == place).count();
        assert!(count >= at_least, "only {count} command lines seen in {place}");
    }
    for Found { place, words } in lines {
        let line = words.join(" ");
        let parsed = match cli::parse(words.into_iter().map(OsString::from).collect()) {
            Ok(parsed) => parsed,
            Err(Refusal::Shown(_)) => continue,
            Err(Refusal::Wrong(why)) => panic!("{place}: {line}: {why:?}"),
        };
        // `inspect` reads every setting of `run` and starts nothing; the values of shell variables are unknown here.
        if parsed.command == "run" {
            let flags =
                parsed.flags.iter().flat_map(|(name, values)| values.iter().map(move |v| format!("--{name}={v}")));
            let flags: Vec<String> = flags.filter(|flag| !flag.contains(['$', '…'])).collect();
            let done = Trainit::new([&["inspect".to_owned()], &flags[..]].concat()).output();
            assert_eq!(done.code(), 0, "{place}: {line}: {}", done.err());
        }
    }
}

/// Flags of other programs that the pages name.
const OTHERS: &[&str] = &[
    "build-arg",
    "distribution",
    "env-file",
    "gpus",
    "het-group",
    "hostfile",
    "init",
    "kill-on-bad-exit",
    "learning-rate",
    "memory",
    "no-python",
    "npernode",
    "ntasks-per-node",
    "nv",
    "read-only",
    "requeue",
    "restart",
    "shm-size",
    "signal",
    "small",
    "standalone",
    "stop-timeout",
    "tmpfs",
    "user",
    "world",
];

#[test]
fn a_script_that_evaluates_trainit_env_as_documented_stops_at_a_malformed_cluster() {
    let takes = |text: String| text.lines().filter(|line| line.contains("$(trainit env)")).map(str::to_owned).collect();
    let shown =
        |page: String| code(&text(&page)).into_iter().filter(|(language, _)| language == "sh").map(|(_, it)| it);
    let mut found: Vec<String> = pages().into_iter().flat_map(shown).flat_map::<Vec<_>, _>(takes).collect();
    let help: Vec<String> = takes(Trainit::new(["--help"]).output().expect_code(0).out());
    found.extend(help.iter().map(|line| line.split_once(": ").unwrap().1.to_owned()));
    assert!(found.len() >= 3, "{found:?}");
    let path = format!("{}:/usr/bin:/bin", binary().parent().unwrap().display());
    for (line, begin) in found.iter().flat_map(|line| ["", "set -e\n"].map(|begin| (line, begin))) {
        let mut shell = Command::new("sh");
        shell
            .args(["-c", &format!("{begin}{line}\necho went on")])
            .env_clear()
            .env("PATH", &path)
            .env("CLUSTER_SPEC", "{");
        let done = shell.output().unwrap();
        assert_eq!((done.status.code(), &done.stdout[..]), (Some(125), &b""[..]), "{begin}{line}");
    }
}

#[test]
fn every_flag_that_a_page_names_exists() {
    let flag = Regex::new("^--([a-z][a-z0-9-]*)").unwrap();
    let mut seen = BTreeSet::new();
    for page in pages() {
        let spans =
            code(&text(&page)).into_iter().filter(|(language, span)| language.is_empty() && !span.contains("cargo "));
        for (_, span) in spans {
            for name in span.split(' ').filter_map(|word| Some(flag.captures(word)?[1].to_owned())) {
                let is_own = SIMULATE.iter().any(|flag| flag.name == name);
                let is_known =
                    is_own || find(&name).is_some() || ["config", "help", "version"].contains(&name.as_str());
                assert!(is_known || OTHERS.contains(&name.as_str()), "{page} names --{name}, which is no flag");
                seen.insert(name);
            }
        }
    }
    assert!(seen.len() > 30, "{seen:?}");
}

/// Variables of the build and of the tests.
const BUILDING: &[&str] = &["TRAINIT_COMMIT", "TRAINIT_GPU_PROBE_ELF", "TRAINIT_WRITE_DOCS", "TRAINIT"];

#[test]
fn every_trainit_variable_in_the_documents_is_read() {
    let variable = Regex::new("TRAINIT_[A-Z0-9_]*[A-Z0-9]").unwrap();
    let examples = files("docs/examples", "").into_iter().chain(files("examples", ""));
    let others = ["Dockerfile.cpu", "Dockerfile.cuda", "scripts/demo"].map(str::to_owned);
    for file in pages().into_iter().chain(examples).chain(others) {
        for name in variable.find_iter(&text(&file)).map(|m| m.as_str()).filter(|name| !BUILDING.contains(name)) {
            let complaints = unknown_variables(&Env::from_pairs([(name, "x")]));
            assert!(complaints.is_empty(), "{file}: {}", complaints[0]);
        }
    }
}

/// The anchors of a page's headings, as GitHub makes them.
fn anchors(text: &str) -> BTreeSet<String> {
    let headings = text.lines().filter(|line| line.starts_with('#')).map(|line| line.trim_start_matches('#').trim());
    let in_anchor = |letter: &char| letter.is_alphanumeric() || ['-', '_', ' '].contains(letter);
    headings
        .map(|heading| heading.to_lowercase().chars().filter(in_anchor).collect::<String>().replace(' ', "-"))
        .collect()
}

#[test]
fn every_link_has_a_target_and_every_page_is_linked() {
    let link = Regex::new(r"\]\(([^)#\s]*)(?:#([^)\s]+))?\)").unwrap();
    let others = ["ARCHITECTURE.md", "CHANGELOG.md", "CONTRIBUTING.md"].map(str::to_owned);
    let mut linked = BTreeSet::new();
    for page in pages().into_iter().chain(others) {
        let page_path = root().join(&page);
        for found in link.captures_iter(&text(&page)).filter(|found| !found[1].starts_with("http")) {
            let to = if found[1].is_empty() { page_path.clone() } else { page_path.with_file_name(&found[1]) };
            let target =
                to.canonicalize().unwrap_or_else(|_| panic!("{page} links to {}, which does not exist", &found[1]));
            if let Some(anchor) = found.get(2).map(|anchor| anchor.as_str()) {
                let headings = anchors(&std::fs::read_to_string(&target).unwrap());
                assert!(headings.contains(anchor), "{page} links to {}#{anchor}, which does not exist", &found[1]);
            }
            linked.insert(target);
        }
    }
    for file in files("docs", ".md").into_iter().chain(files("docs/examples", "")) {
        let is_linked = linked.contains(&Path::new(&root()).join(&file).canonicalize().unwrap());
        assert!(is_linked, "nothing leads to {file}");
    }
}

#[test]
fn every_layout_and_preemption_source_is_documented() {
    let page = text("docs/checkpoints.md");
    LAYOUTS.iter().for_each(|layout| assert!(page.contains(&format!("`{}`", layout.name)), "{}", layout.name));
    let words: Vec<&str> = ["auto", "off"].into_iter().chain(SOURCES.iter().map(|source| source.name)).collect();
    let run = text("docs/reference/settings.md");
    assert!(run.contains(&words.join("|")), "--preemption {words:?}");
}

#[test]
fn the_page_on_the_cluster_names_every_platform_framework_and_variable() {
    let page = text("docs/cluster.md");
    let named = |word: &str| assert!(page.contains(&format!("`{word}`")), "docs/cluster.md does not name {word}");
    FRAMEWORKS.iter().for_each(|framework| named(framework.name));
    cluster::names().for_each(|platform| named(platform.word()));
    let vertex = r#"{"cluster":{"workerpool0":["h0:2222"],"workerpool1":["h1:2222"]},"environment":"cloud",
                     "task":{"type":"workerpool1","index":0,"trial":"4"}}"#;
    let sagemaker =
        [("SM_HOSTS", r#"["algo-1","algo-2"]"#), ("SM_CURRENT_HOST", "algo-2"), ("SM_NETWORK_INTERFACE_NAME", "eth0")];
    let mut seen = BTreeSet::new();
    for nproc in ["1", "2"] {
        for platform in [&[("CLUSTER_SPEC", vertex)][..], &sagemaker] {
            let nproc: &[&str] = if nproc == "1" { &[] } else { &["--nproc", nproc] };
            let mut env = Trainit::new([&["env", "--format", "json"], nproc].concat());
            for (name, value) in platform {
                env = env.env(name, value);
            }
            let found: BTreeMap<String, serde_json::Value> = serde_json::from_str(&env.output().out()).unwrap();
            seen.extend(found.into_keys());
        }
    }
    seen.iter().for_each(|name| named(name));
    assert!(seen.len() > 20, "{seen:?}");
}

#[test]
fn the_dashboard_and_the_alerts_use_only_series_that_exist() {
    let (page, series) = (text("docs/status-page.md"), Regex::new("trainit_[a-z_]+").unwrap());
    let mut count = 0;
    for file in files("docs/examples/monitoring", "") {
        let shown = text(&file);
        for name in series.find_iter(&shown).map(|found| found.as_str()) {
            assert!(page.contains(&format!("`{name}`")), "{file}: {name} is no series of docs/status-page.md");
            count += 1;
        }
    }
    assert!(count >= 15, "{count}");
}
