//! The build script: embeds the GPU probe into a static trainit, and adds the commit and the target to `--version`.
//!
//! `build/licenses.rs` collects the licences of the compiled crates. The probe is the file in `TRAINIT_GPU_PROBE_ELF`,
//! which is verified and embedded. Without the variable nothing is embedded: a dynamic build is its own probe, and a
//! static build counts device nodes. Deliberately absent: building the probe, because a cargo inside of cargo would
//! wait for its own lock; `scripts/build-static` builds both.

#![allow(clippy::disallowed_methods, reason = "a build script's settings are variables")]

#[path = "build/licenses.rs"]
mod licenses;

use std::path::PathBuf;
use std::process::Command;
use std::{env, fs};

fn main() {
    println!("cargo::rustc-check-cfg=cfg(gpu_probe_embedded)");
    for path in ["build.rs", "build", "Cargo.toml", "Cargo.lock"] {
        println!("cargo::rerun-if-changed={path}");
    }
    println!("cargo::rerun-if-env-changed=TRAINIT_GPU_PROBE_ELF");
    let probe = env::var_os("TRAINIT_GPU_PROBE_ELF").filter(|path| !path.is_empty()).map(PathBuf::from);
    println!("cargo::rustc-env=TRAINIT_VERSION={}", version(probe.is_some()));
    write_licenses(probe.is_some());
    let Some(path) = probe else { return };
    println!("cargo::rerun-if-changed={}", path.display());
    match embed(&path) {
        Ok(loader) => {
            println!("cargo::rustc-cfg=gpu_probe_embedded");
            println!("cargo::rustc-env=TRAINIT_GPU_PROBE_LOADER={loader}");
        }
        Err(reason) => println!("cargo::error=TRAINIT_GPU_PROBE_ELF={}: {reason}", path.display()),
    }
}

/// The text of `trainit licenses`, for `include_str!`. If it cannot be determined, the text says so, and the build
/// continues.
fn write_licenses(probe: bool) {
    let mut targets = vec![env::var("TARGET").unwrap_or_default()];
    if probe {
        let arch = env::var("CARGO_CFG_TARGET_ARCH").unwrap_or_default();
        targets.push(format!("{arch}-unknown-linux-gnu"));
    }
    let text = licenses::text(&targets).unwrap_or_else(|reason| {
        println!("cargo::warning=trainit licenses will not list the built-in crates: {reason}");
        format!("The build could not list the built-in crates ({reason}).\n")
    });
    let path = PathBuf::from(env::var_os("OUT_DIR").unwrap_or_default()).join("licenses.txt");
    if let Err(error) = fs::write(&path, text) {
        println!("cargo::error={} cannot be written: {error}", path.display());
    }
}

/// `0.1.0 (1a2b3c4d5e6f, x86_64-unknown-linux-musl, gpu probe inside)`; a Cargo feature adds another word.
fn version(probe: bool) -> String {
    let mut words = vec![commit(), env::var("TARGET").unwrap_or_default()];
    if probe {
        words.push("gpu probe inside".to_owned());
    }
    let mut features: Vec<String> =
        env::vars().filter_map(|(k, _)| Some(k.strip_prefix("CARGO_FEATURE_")?.into())).collect();
    features.sort_unstable();
    words.extend(features.into_iter().filter(|f: &String| f != "DEFAULT").map(|f| f.to_lowercase().replace('_', "-")));
    format!("{} ({})", env::var("CARGO_PKG_VERSION").unwrap_or_default(), words.join(", "))
}

/// The commit: `TRAINIT_COMMIT` if a build has no .git, or else from git. A development build has none, because every
/// commit would recompile everything.
fn commit() -> String {
    println!("cargo::rerun-if-env-changed=TRAINIT_COMMIT");
    if let Some(given) = env::var("TRAINIT_COMMIT").ok().filter(|given| !given.trim().is_empty()) {
        return given.trim().chars().filter(char::is_ascii_alphanumeric).take(40).collect();
    }
    if env::var("PROFILE").as_deref() != Ok("release") {
        return "development build".to_owned();
    }
    // If the sources are unpacked inside another repository, its commit is not trainit's.
    let top = git(&["rev-parse", "--show-toplevel"]).map(PathBuf::from);
    if top.is_none() || top != env::var_os("CARGO_MANIFEST_DIR").map(PathBuf::from) {
        return "unknown commit".to_owned();
    }
    // A worktree's HEAD is elsewhere, and a branch may be packed, so git resolves the path.
    for name in ["HEAD", "logs/HEAD"] {
        if let Some(path) = git(&["rev-parse", "--git-path", name]).filter(|path| fs::exists(path).unwrap_or(false)) {
            println!("cargo::rerun-if-changed={path}");
        }
    }
    let sources = ["src", "build.rs", "Cargo.toml", "Cargo.lock"];
    for source in sources {
        println!("cargo::rerun-if-changed={source}");
    }
    let Some(commit) = git(&["rev-parse", "--short=12", "HEAD"]) else { return "unknown commit".to_owned() };
    match git(&[&["status", "--porcelain", "--"], &sources[..]].concat()) {
        Some(changed) if changed.is_empty() => commit,
        _ => format!("{commit} with changes"),
    }
}

/// The output of git; `None` without git, or outside of trainit's repository.
fn git(args: &[&str]) -> Option<String> {
    let output = Command::new("git").args(args).output().ok().filter(|output| output.status.success())?;
    Some(String::from_utf8(output.stdout).ok()?.trim().to_owned())
}

/// Copies the file to the place of `include_bytes!`, and returns its dynamic loader.
fn embed(path: &PathBuf) -> Result<String, String> {
    let elf = fs::read(path).map_err(|e| format!("cannot be read: {e}"))?;
    let loader = loader_of(&elf).ok_or("is not a dynamically linked, position-independent 64-bit ELF program")?;
    let machine = match env::var("CARGO_CFG_TARGET_ARCH").as_deref() {
        Ok("x86_64") => 62,
        Ok("aarch64") => 183,
        _ => return Err("there is no GPU probe for this architecture; leave the variable unset".to_owned()),
    };
    if number(&elf, 18, 2) != Some(machine) {
        return Err("is built for another machine than trainit".to_owned());
    }
    let out = env::var_os("OUT_DIR").ok_or("cargo gave no OUT_DIR")?;
    fs::write(PathBuf::from(out).join("gpu-probe"), &elf).map_err(|e| format!("cannot be copied: {e}"))?;
    Ok(loader)
}

/// A little-endian number with this many bytes.
fn number(elf: &[u8], at: usize, bytes: usize) -> Option<usize> {
    elf.get(at..at.checked_add(bytes)?)?.iter().rev().try_fold(0usize, |sum, b| Some(sum << 8 | usize::from(*b)))
}

/// The text of PT_INTERP of an ET_DYN (see elf(5)).
fn loader_of(elf: &[u8]) -> Option<String> {
    const ET_DYN: usize = 3;
    const PT_INTERP: usize = 3;
    if elf.get(..6)? != b"\x7fELF\x02\x01" || number(elf, 16, 2)? != ET_DYN {
        return None;
    }
    let (table, size, count) = (number(elf, 32, 8)?, number(elf, 54, 2)?, number(elf, 56, 2)?);
    let header = (0..count).map(|n| table + n * size).find(|at| number(elf, *at, 4) == Some(PT_INTERP))?;
    let (offset, length) = (number(elf, header + 8, 8)?, number(elf, header + 32, 8)?);
    let text = elf.get(offset..offset.checked_add(length)?)?;
    Some(String::from_utf8_lossy(text).trim_end_matches('\0').to_owned())
}
