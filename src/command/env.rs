//! `trainit env`: this replica's derived variables, for scripts: `vars=$(trainit env) || exit; eval "$vars"`.
//!
//! Standard output has only the variables, and nothing after a mistake.

use serde_json::{Map, Value};

use super::{cluster, refuse_all, values};
use crate::cli::Parsed;
use crate::edge::gpu;
use crate::edge::io::stdio;
use crate::rules::process::env::{Changes, Env};
use crate::settings::cluster::frameworks;
use crate::settings::{Reader, gpus};

/// The output format.
#[derive(Clone, Copy)]
enum Format {
    Shell,
    Dotenv,
    Json,
}

/// Prints them; 125 for a mistake in a setting or a variable, 1 if standard output is closed.
pub fn main(parsed: &Parsed, env: &Env) -> u8 {
    let (values, complaints) = values(parsed, env);
    let mut reader = Reader::new(&values, complaints);
    let wanted = cluster::Wanted::read(&mut reader, parsed.on);
    let gpu_timeout = gpus::read(&mut reader, parsed.on, env).timeout;
    let only = frameworks(&mut reader);
    let formats = [("shell", Format::Shell), ("dotenv", Format::Dotenv), ("json", Format::Json)];
    let format = reader.choice("format", &formats).unwrap_or(Format::Shell);
    let resolved = match wanted.resolve(&reader, env, &only, || gpu::discover(gpu_timeout, env)) {
        Ok(resolved) => resolved,
        Err(mistakes) => return refuse_all(&mistakes, env),
    };
    for warning in &resolved.warnings {
        stdio::complain(&format!("trainit: warning: {} [code={}]", warning.message, warning.code));
    }
    let changes = resolved.changes();
    let text = match format {
        Format::Shell => shell(&changes),
        Format::Dotenv => dotenv(&changes),
        Format::Json => json(&changes),
    };
    u8::from(stdio::print(&text).is_err())
}

/// For `eval` in any POSIX shell: within single quotes nothing but the quote itself is special.
fn shell(changes: &Changes) -> String {
    let set = changes.set.iter().filter(|(name, _)| is_identifier(name));
    let set = set.map(|(name, value)| format!("export {name}='{}'\n", value.replace('\'', "'\\''")));
    let removed = changes.removed.iter().filter(|name| is_identifier(name)).map(|name| format!("unset {name}\n"));
    set.chain(removed).collect()
}

/// For the many readers of `.env` files: bare if all readers agree on it, otherwise in single quotes (no interpolation)
/// if possible. A file cannot remove a variable, so a comment names the variables to remove.
fn dotenv(changes: &Changes) -> String {
    let set = changes.set.iter().filter(|(name, _)| is_identifier(name)).map(|(name, value)| {
        let is_plain = value.bytes().all(|b| b.is_ascii_alphanumeric() || b"_-./:,=@%+[]".contains(&b));
        let value = match value {
            value if is_plain => value.clone(),
            value if !value.contains(['\'', '\\', '\n', '\r']) => format!("'{value}'"),
            value => format!("\"{}\"", escaped(value)),
        };
        format!("{name}={value}\n")
    });
    let removed = changes.removed.iter().filter(|name| is_identifier(name)).map(|name| format!("# unset {name}\n"));
    set.chain(removed).collect()
}

fn escaped(value: &str) -> String {
    let mut text = String::with_capacity(value.len());
    for c in value.chars() {
        match c {
            '\n' => text.push_str("\\n"),
            '\r' => text.push_str("\\r"),
            '"' | '\\' | '$' | '`' => text.extend(['\\', c]),
            c => text.push(c),
        }
    }
    text
}

/// One object: name to value, null for a variable to remove.
fn json(changes: &Changes) -> String {
    let set = changes.set.iter().map(|(name, value)| (name.clone(), Value::from(value.as_str())));
    let removed = changes.removed.iter().map(|name| (name.clone(), Value::Null));
    format!("{:#}\n", Value::Object(set.chain(removed).collect::<Map<_, _>>()))
}

/// Whether a shell can have a variable with this name; SageMaker's channels may have other names.
fn is_identifier(name: &str) -> bool {
    let mut bytes = name.bytes();
    bytes.next().is_some_and(|b| b.is_ascii_alphabetic() || b == b'_')
        && bytes.all(|b| b.is_ascii_alphanumeric() || b == b'_')
}
