//! What `trainit licenses` prints: every crate that is compiled in, its licence, its copyright lines, and each text once.
//!
//! The list is `cargo tree`'s for this very build (target, features, the embedded probe's target too), without the network;
//! the texts are the files that the crates ship. Where a crate offers a choice, the first of [`PREFERRED`] is taken.
//! Deliberately absent: `cargo metadata`, which wants the tests' crates downloaded as well.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

/// Of several licences that a crate offers, the first of these that it has a text for.
const PREFERRED: &[&str] = &["MIT", "BSD", "ISC", "Zlib", "Unicode-3.0", "Apache-2.0", "CC0-1.0", "Unlicense"];

/// One crate, as `cargo tree` names it.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Package {
    name: String,
    version: String,
    expression: String,
    note: Vec<String>,
}

/// The whole text; an error says what could not be asked.
pub(crate) fn text(targets: &[String]) -> Result<String, String> {
    let mut packages = BTreeSet::new();
    for target in targets {
        packages.extend(tree(target)?);
    }
    packages.extend(runtime(targets));
    let mut texts = Texts::default();
    let own_mit = fs::read_to_string("LICENSE-MIT").map_err(|e| format!("LICENSE-MIT: {e}"))?;
    let mut list = String::new();
    for package in &packages {
        let (mut copyright, mut numbers) = (package.note.clone(), BTreeSet::new());
        for file in chosen(&package.expression, files(package)) {
            let (notices, body) = split(&file);
            copyright.extend(notices);
            numbers.extend(texts.number(&body));
        }
        if numbers.is_empty() && package.expression.contains("MIT") {
            numbers.extend(texts.number(&split(&own_mit).1));
        }
        if copyright.is_empty() {
            copyright = authors(package);
        }
        let numbers: Vec<String> = numbers.iter().map(|n| format!("[{n}]")).collect();
        list.push_str(&format!("{} {}, {} {}\n", package.name, package.version, package.expression, numbers.join(" ")));
        let mut told = BTreeSet::new();
        let fresh = copyright.into_iter().filter(|line| told.insert(line.clone()));
        list.extend(fresh.map(|line| format!("    {line}\n")));
    }
    Ok(format!("{list}{}", texts.printed()))
}

/// What `cargo tree` says is compiled into this build for a target, but for what lies in this repository. Procedural macros
/// run in the compiler only.
fn tree(target: &str) -> Result<Vec<Package>, String> {
    let mut cargo = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.args(["tree", "--offline", "--locked", "--edges=normal,no-proc-macro", "--prefix=none"]);
    cargo.args(["--format={p}|{l}", "--color=never", "--target", target, "--no-default-features"]);
    let features = env::vars().filter_map(|(k, _)| Some(k.strip_prefix("CARGO_FEATURE_")?.to_owned()));
    let features: Vec<String> =
        features.filter(|f| f != "DEFAULT").map(|f| f.to_lowercase().replace('_', "-")).collect();
    cargo.args(["--features", &features.join(",")]);
    for name in ["RUSTC_WRAPPER", "RUSTC_WORKSPACE_WRAPPER", "CARGO_ENCODED_RUSTFLAGS"] {
        cargo.env_remove(name);
    }
    let output = cargo.output().map_err(|e| format!("cargo tree: {e}"))?;
    if !output.status.success() {
        let words = String::from_utf8_lossy(&output.stderr);
        return Err(format!("cargo tree: {}", words.trim().replace('\n', " ")));
    }
    let lines = String::from_utf8_lossy(&output.stdout).into_owned();
    let packages = lines.lines().filter_map(|line| {
        let (id, expression) = line.trim().trim_end_matches(" (*)").split_once('|')?;
        let (name, version) = id.split_once(" v")?;
        let (version, is_ours) = (version.split(' ').next()?, version.contains(" (/"));
        let expression = expression.replace('/', " OR ");
        let package = Package { name: name.to_owned(), version: version.to_owned(), expression, note: Vec::new() };
        (!is_ours).then_some(package)
    });
    Ok(packages.collect())
}

/// What is linked in without being a crate of ours.
fn runtime(targets: &[String]) -> Vec<Package> {
    let of = |name: &str, version: &str, expression: &str, note: &str| Package {
        name: name.to_owned(),
        version: version.to_owned(),
        expression: expression.to_owned(),
        note: vec![note.to_owned()],
    };
    let mut found = vec![of(
        "Rust's standard library",
        &rustc_version(),
        "MIT OR Apache-2.0",
        "Copyright (c) The Rust Project Developers",
    )];
    if targets.iter().any(|target| target.ends_with("-musl")) {
        found.push(of("musl", "libc", "MIT", "Copyright (c) 2005-2020 Rich Felker, et al."));
        let note = "Copyright (c) the LLVM Project; the exception frees what a compiler embeds of its conditions";
        found.push(of("LLVM", "libunwind and compiler-rt", "Apache-2.0 WITH LLVM-exception", note));
    }
    found
}

fn rustc_version() -> String {
    let rustc = env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let told = Command::new(rustc).arg("--version").output().map(|o| o.stdout).unwrap_or_default();
    String::from_utf8_lossy(&told).split(' ').nth(1).unwrap_or("").to_owned()
}

/// Where a registry's crate is unpacked.
fn directory(package: &Package) -> Option<PathBuf> {
    let home = env::var_os("CARGO_HOME").map(PathBuf::from);
    let home = home.or_else(|| Some(PathBuf::from(env::var_os("HOME")?).join(".cargo")))?;
    let name = format!("{}-{}", package.name, package.version);
    let registries = fs::read_dir(home.join("registry/src")).ok()?;
    registries.filter_map(|entry| Some(entry.ok()?.path().join(&name))).find(|path| path.is_dir())
}

/// The licence files of a crate, in the order of their names.
fn files(package: &Package) -> Vec<String> {
    const STEMS: &[&str] = &["LICENSE", "LICENCE", "COPYING", "COPYRIGHT", "NOTICE", "UNLICENSE"];
    let Some(Ok(entries)) = directory(package).map(fs::read_dir) else { return Vec::new() };
    let mut paths: Vec<PathBuf> = entries.filter_map(|entry| Some(entry.ok()?.path())).collect();
    paths.retain(|path| {
        let name = path.file_name().map(|name| name.to_string_lossy().to_uppercase()).unwrap_or_default();
        STEMS.iter().any(|stem| name.starts_with(stem)) && path.is_file()
    });
    paths.sort();
    paths.iter().filter_map(|path| fs::read_to_string(path).ok()).collect()
}

/// The files that matter: all of them, or those of the one licence that is taken where there is a choice.
fn chosen(expression: &str, files: Vec<String>) -> Vec<String> {
    if !expression.contains(" OR ") || expression.contains(" AND ") {
        return files;
    }
    let taken = PREFERRED.iter().find(|kind| {
        expression.contains(kind.trim_end_matches("-3.0")) && files.iter().any(|file| kind_of(file) == Some(kind))
    });
    // What is no licence is a notice that goes with any of them.
    files.into_iter().filter(|file| kind_of(file).is_none_or(|kind| Some(&kind) == taken.or(Some(&kind)))).collect()
}

/// Which licence a text is, by words that only it has.
fn kind_of(text: &str) -> Option<&'static str> {
    let flat = flat(text);
    let marks = [
        ("Unicode-3.0", "to any person obtaining a copy of data files"),
        ("MIT", "permission is hereby granted free of charge to any person obtaining"),
        ("BSD", "redistribution and use in source and binary forms with or without"),
        ("ISC", "permission to use copy modify and or distribute this software for any purpose"),
        ("Zlib", "the origin of this software must not be misrepresented"),
        ("Apache-2.0", "apache license version 2 0 january 2004"),
        ("CC0-1.0", "cc0 1 0 universal"),
        ("Unlicense", "this is free and unencumbered software"),
    ];
    marks.into_iter().find(|(_, mark)| flat.contains(mark)).map(|(kind, _)| kind)
}

/// Words only, in small letters: what makes two copies of one licence the same.
fn flat(text: &str) -> String {
    let words = text.split(|c: char| !c.is_alphanumeric()).filter(|word| !word.is_empty());
    words.map(str::to_lowercase).collect::<Vec<_>>().join(" ")
}

/// A licence file in its copyright lines and the rest, which many crates share.
fn split(text: &str) -> (Vec<String>, String) {
    const TITLES: &[&str] =
        &["mit license", "the mit license", "the mit license mit", "license", "all rights reserved"];
    let (mut notices, mut body) = (Vec::new(), String::new());
    for line in text.lines() {
        let bare = line.trim().trim_start_matches(['#', '*', '/']).trim();
        let has_year = bare.contains(|c: char| c.is_ascii_digit());
        let is_notice = bare.starts_with("Copyright ") || (has_year && bare.starts_with(['\u{a9}']));
        let is_form = ["[yyyy]", "{yyyy}", "<year>", "notice"].iter().any(|mark| bare.contains(mark));
        if is_notice && !is_form {
            notices.push(bare.replace('\u{a9}', "(c)"));
        } else if !TITLES.contains(&flat(bare).as_str()) {
            body.push_str(line.trim_end());
            body.push('\n');
        }
    }
    (notices, body.trim_matches('\n').to_owned())
}

/// The `authors` of a crate's manifest, for one whose licence names nobody.
fn authors(package: &Package) -> Vec<String> {
    let manifest = directory(package).map(|dir| dir.join(Path::new("Cargo.toml")));
    let manifest = manifest.and_then(|path| fs::read_to_string(path).ok()).unwrap_or_default();
    let Some((_, rest)) = manifest.split_once("\nauthors = [") else { return Vec::new() };
    let list = rest.split(']').next().unwrap_or("");
    list.split('"').skip(1).step_by(2).map(|author| format!("by {author}")).collect()
}

/// Licence texts, each once.
#[derive(Default)]
struct Texts {
    numbers: BTreeMap<String, usize>,
    bodies: Vec<String>,
}

impl Texts {
    /// The number of a text, new or known; none for an empty one.
    fn number(&mut self, body: &str) -> Option<usize> {
        if body.is_empty() {
            return None;
        }
        let mut key = flat(body);
        // With and without its appendix, "how to apply", it is the same licence.
        if let Some(at) = key.find(" end of terms and conditions").filter(|_| !key.contains("llvm")) {
            key.truncate(at);
        }
        let next = self.bodies.len() + 1;
        let number = *self.numbers.entry(key).or_insert(next);
        if number == next {
            self.bodies.push(body.to_owned());
        }
        Some(number)
    }

    fn printed(&self) -> String {
        let texts = self.bodies.iter().zip(1..).map(|(body, number)| {
            let name = kind_of(body).unwrap_or("notice");
            format!("\n==== [{number}] {name}\n\n{body}\n")
        });
        texts.collect()
    }
}
