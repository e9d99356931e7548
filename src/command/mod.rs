//! The subcommands, one file each: they connect the other parts, and contain no rules.

pub mod checkpoint;
pub mod cluster;
pub mod env;
pub mod goodput;
pub mod gpu_probe;
pub mod gpus;
pub mod inspect;
pub mod report_metric;
pub mod run;
pub mod simulate;
pub mod status;
mod texts;

use std::ffi::{CStr, OsString};
use std::io::{self, ErrorKind, Read};
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::fcntl::OFlag;

use crate::cli::{self, Parsed, Refusal};
use crate::edge::fs::trusted_open;
use crate::edge::host::limits;
use crate::edge::io::stdio;
use crate::edge::process::signals::{self, Mask};
use crate::rules::cluster::spec::ClusterError;
use crate::rules::process::env::Env;
use crate::rules::process::exit;
use crate::rules::text::quoted::shown;
use crate::settings::values::layers::unknown_variables;
use crate::settings::values::platform;
use crate::settings::values::reader::unquoted;
use crate::settings::{Complaint, ConfigFile, Values};
use crate::supervisor::simulate::keeper;

/// The limit for reading the configuration file.
const CONFIG_LIMIT: Duration = Duration::from_secs(5);
/// The limit for the size of the configuration file.
const CONFIG_BYTES: u64 = 1 << 20;

const DEFAULT_CONFIG: &str = "/etc/trainit/config.toml";

/// The subcommands that start commands, and so block every signal before anything else.
pub const STARTS_COMMANDS: [&CStr; 3] = [c"run", c"simulate", c"simulated-replica"];

/// Executes the command line and returns the exit code. `mask` is the signal mask before trainit's own, for `run`.
pub fn dispatch(argv: Vec<OsString>, env: Env, mask: Option<Mask>) -> u8 {
    if argv.get(1).is_some_and(|word| word == gpu_probe::SUBCOMMAND) {
        gpu_probe::main(&argv, &env);
    }
    if let (Some(mask), true) = (mask, argv.get(1).is_some_and(|word| word == keeper::SUBCOMMAND)) {
        return keeper::main(argv.get(2..).unwrap_or_default(), &env, mask);
    }
    let parsed = match cli::parse(argv) {
        Ok(parsed) => parsed,
        Err(Refusal::Shown(text)) => return u8::from(stdio::print(&text).is_err()),
        Err(Refusal::Wrong(lines)) => return refuse(&lines),
    };
    match (parsed.command, mask) {
        ("run", Some(mask)) => run::main(parsed, env, mask),
        ("simulate", Some(mask)) => simulate::main(&parsed, env, mask),
        ("report-metric", _) => report_metric::main(&parsed, &env),
        ("status", _) => status::main(&parsed, &env),
        ("gpus", _) => gpus::main(&parsed, &env),
        ("checkpoint", _) => checkpoint::main(&parsed, &env),
        ("goodput", _) => goodput::main(&parsed, &env),
        ("inspect", _) => inspect::main(&parsed, &env),
        ("env", _) => env::main(&parsed, &env),
        ("completions", _) => texts::completions(&parsed),
        ("man", _) => texts::man(&parsed),
        ("licenses", _) => texts::licenses(),
        (other, _) => unreachable!("the command line knows no subcommand {other}"),
    }
}

/// Collects the settings of a subcommand, including the configuration file. Mistakes are in the complaints.
pub fn values(parsed: &Parsed, env: &Env) -> (Values, Vec<Complaint>) {
    let mut complaints = parsed.mistakes.clone();
    let file = match config_file(parsed, env) {
        Ok(file) => file,
        Err(complaint) => {
            complaints.push(complaint);
            None
        }
    };
    let mut values = Values::gather(parsed.on, parsed.flags.clone(), env, file.as_ref(), &mut complaints);
    // These subcommands report it with their other warnings; below a run, the run has reported it.
    if !["run", "inspect", "env"].contains(&parsed.command) && env.given("TRAINIT_ATTEMPT").is_none() {
        for unknown in unknown_variables(env) {
            stdio::complain(&format!("trainit: warning: {unknown}"));
        }
    }
    platform::imply(&mut values, env, ["checkpoint", "goodput"].contains(&parsed.command));
    (values, complaints)
}

fn config_file(parsed: &Parsed, env: &Env) -> Result<Option<ConfigFile>, Complaint> {
    let named = parsed
        .config
        .as_ref()
        .map(|path| ("--config", PathBuf::from(path)))
        .or_else(|| env.given("TRAINIT_CONFIG").map(|path| ("TRAINIT_CONFIG", PathBuf::from(path))));
    let path = named.as_ref().map_or(Path::new(DEFAULT_CONFIG), |(_, path)| path);
    if let Some((place, Err(message))) =
        named.as_ref().map(|(place, path)| (*place, unquoted(&path.to_string_lossy()).map(drop)))
    {
        return Err(Complaint { place: place.to_owned(), message });
    }
    let read = match (parsed.command, &named) {
        // `run` blocks signals here, so it must not wait for a hanging file system.
        ("run", Some(_)) => {
            let path = path.to_owned();
            signals::in_time("config", CONFIG_LIMIT, move || read_text(&path))
        }
        _ => read_text(path),
    };
    match read {
        Ok(text) => Ok(Some(ConfigFile { path: path.to_owned(), text })),
        Err(_) if path.as_os_str().is_empty() => {
            Err(Complaint { place: "--config".to_owned(), message: "expected a file, found nothing".to_owned() })
        }
        Err(error) => match named {
            None if error.kind() == ErrorKind::NotFound => Ok(None),
            _ => {
                let place = named.as_ref().map_or(DEFAULT_CONFIG, |(place, _)| place).to_owned();
                let way_out = match error.kind() {
                    ErrorKind::NotFound => {
                        "check the path, and that the file is in the image or mounted into it; or omit the setting"
                    }
                    ErrorKind::IsADirectory => "name a file in it",
                    ErrorKind::PermissionDenied => "make it readable for this user",
                    ErrorKind::InvalidData => "it must be TOML, in UTF-8",
                    ErrorKind::InvalidInput => "name a regular file of at most 1 MiB",
                    _ => limits::way_out(&error, "check its file system, or name another file"),
                };
                Err(Complaint {
                    place,
                    message: format!("cannot read {}: {error}; {way_out}", shown(&path.to_string_lossy())),
                })
            }
        },
    }
}

/// Reads a regular file of limited size. Errors: also `InvalidInput` for any other file.
fn read_text(path: &Path) -> io::Result<String> {
    let file = trusted_open::open(path, OFlag::O_RDONLY | OFlag::O_NONBLOCK)?;
    let kind = file.metadata()?.file_type();
    if !kind.is_file() && !kind.is_dir() {
        return Err(io::Error::new(ErrorKind::InvalidInput, "it is a pipe, a socket or a device"));
    }
    let mut text = String::new();
    if file.take(CONFIG_BYTES + 1).read_to_string(&mut text)? as u64 > CONFIG_BYTES {
        return Err(io::Error::new(ErrorKind::InvalidInput, "it is too large"));
    }
    Ok(text)
}

/// Like [`refuse`], with codes; and with the warnings of a start, which may explain the mistakes.
fn refuse_all(mistakes: &[ClusterError], env: &Env) -> u8 {
    for unknown in cluster::unknown(env) {
        stdio::complain(&format!("trainit: warning: {}", unknown.message));
    }
    refuse(&mistakes.iter().map(|mistake| format!("{mistake} [code={}]", mistake.code)).collect::<Vec<_>>())
}

/// Prints each complaint on its own line and returns 125.
pub fn refuse<T: std::fmt::Display>(complaints: &[T]) -> u8 {
    for complaint in complaints {
        stdio::complain(&format!("trainit: error: {complaint}"));
    }
    exit::NOT_STARTED
}
