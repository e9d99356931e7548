//! The text of `trainit licenses`: every compiled crate, its licence, its copyright lines, and each licence text once.
//!
//! The list is from `cargo tree` for this build (target, features, and the embedded probe's target), without the
//! network; the texts are the files of the crates. If a crate offers several licences, the first of [`PREFERRED`] is
//! used. Deliberately absent: `cargo metadata`, which would also download the tests' crates.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

/// If a crate offers several licences, the first of these with a text is used.
const PREFERRED: &[&str] = &["MIT", "BSD", "ISC", "Zlib", "Unicode-3.0", "Apache-2.0", "CC0-1.0", "Unlicense"];

/// One crate in the form of `cargo tree`.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Package {
    name: String,
    version: String,
    expression: String,
    note: Vec<String>,
}

/// The whole text. Errors: which program failed.
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
        for file in relevant(&package.expression, files(package)) {
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

/// The crates that `cargo tree` lists for a target, except those of this repository. Procedural macros run only in the
/// compiler, so they do not count.
fn tree(target: &str) -> Result<Vec<Package>, String> {
    let mut cargo = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.args(["tree", "--offline", "--locked", "--edges=normal,no-proc-macro", "--prefix=none"]);
    cargo.args(["--format={p}|{l}", "--color=never", "--target", target]);
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

/// Linked libraries that are not crates.
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

/// The directory where a registry's crate is unpacked.
fn directory(package: &Package) -> Option<PathBuf> {
    let home = env::var_os("CARGO_HOME").map(PathBuf::from);
    let home = home.or_else(|| Some(PathBuf::from(env::var_os("HOME")?).join(".cargo")))?;
    let name = format!("{}-{}", package.name, package.version);
    let registries = fs::read_dir(home.join("registry/src")).ok()?;
    registries.filter_map(|entry| Some(entry.ok()?.path().join(&name))).find(|path| path.is_dir())
}

/// The licence files of a crate, sorted by name.
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

/// The relevant files: all, or those of the licence that is used.
fn relevant(expression: &str, files: Vec<String>) -> Vec<String> {
    if !expression.contains(" OR ") || expression.contains(" AND ") {
        return files;
    }
    let taken = PREFERRED.iter().find(|kind| {
        expression.contains(kind.trim_end_matches("-3.0")) && files.iter().any(|file| kind_of(file) == Some(kind))
    });
    // Other files are notices that belong to every licence.
    files.into_iter().filter(|file| kind_of(file).is_none_or(|kind| Some(&kind) == taken.or(Some(&kind)))).collect()
}

/// The licence of a text, recognised by words that occur only in it.
fn kind_of(text: &str) -> Option<&'static str> {
    let normalised = normalised(text);
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
    marks.into_iter().find(|(_, mark)| normalised.contains(mark)).map(|(kind, _)| kind)
}

/// Only words, in lower case, so that copies of one licence are equal.
fn normalised(text: &str) -> String {
    let words = text.split(|c: char| !c.is_alphanumeric()).filter(|word| !word.is_empty());
    words.map(str::to_lowercase).collect::<Vec<_>>().join(" ")
}

/// Splits a licence file into its copyright lines and the rest, which many crates share.
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
        } else if !TITLES.contains(&normalised(bare).as_str()) {
            body.push_str(line.trim_end());
            body.push('\n');
        }
    }
    (notices, body.trim_matches('\n').to_owned())
}

/// The `authors` of a crate's manifest, if its licence names no copyright holder.
fn authors(package: &Package) -> Vec<String> {
    let manifest = directory(package).map(|dir| dir.join(Path::new("Cargo.toml")));
    let manifest = manifest.and_then(|path| fs::read_to_string(path).ok()).unwrap_or_default();
    let Some((_, rest)) = manifest.split_once("\nauthors = [") else { return Vec::new() };
    let list = rest.split(']').next().unwrap_or("");
    list.split('"').skip(1).step_by(2).map(|author| format!("by {author}")).collect()
}

/// All licence texts, each once.
#[derive(Default)]
struct Texts {
    numbers: BTreeMap<String, usize>,
    bodies: Vec<String>,
}

impl Texts {
    /// The number of a text, which may be new; `None` for an empty one.
    fn number(&mut self, body: &str) -> Option<usize> {
        if body.is_empty() {
            return None;
        }
        let mut key = normalised(body);
        // The Apache licence with and without its appendix "how to apply" is the same.
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
