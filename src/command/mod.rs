//! One file per subcommand: the wiring, and nothing that could be a rule.

mod asked;
#[cfg(feature = "store")]
pub mod checkpoint;
pub mod cluster;
pub mod completions;
pub mod env;
pub mod gpu_probe;
pub mod gpus;
pub mod inspect;
#[cfg_attr(not(feature = "store"), path = "keeping_without_store.rs")]
mod keeping;
pub mod licenses;
pub mod report_metric;
pub mod run;
pub mod status;

use std::ffi::OsString;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::cli::{self, Parsed, Refusal};
use crate::edge::signals::{self, Mask};
use crate::edge::{limits, stdio};
use crate::rules::cluster::spec::ClusterError;
use crate::rules::env::Env;
use crate::rules::exit;
use crate::settings::layers::unknown_variables;
use crate::settings::{Complaint, ConfigFile, Values, left_out, platform};

/// What reading the configuration file may take.
const PATIENCE: Duration = Duration::from_secs(5);

const DEFAULT_CONFIG: &str = "/etc/trainit/config.toml";

/// Does what the command line asks and returns the exit code. `mask` is the signal mask from before ours, for `run`.
pub fn dispatch(argv: Vec<OsString>, env: Env, mask: Option<Mask>) -> u8 {
    if argv.get(1).is_some_and(|word| word == gpu_probe::SUBCOMMAND) {
        gpu_probe::main(&argv, &env);
    }
    let parsed = match cli::parse(argv) {
        Ok(parsed) => parsed,
        Err(Refusal::Shown(text)) => return u8::from(stdio::print(&text).is_err()),
        Err(Refusal::Wrong(lines)) => return refuse(&lines),
    };
    match (parsed.command, mask) {
        ("run", Some(mask)) => run::main(parsed, env, mask),
        ("report-metric", _) => report_metric::main(&parsed, &env),
        ("status", _) => status::main(&parsed, &env),
        ("gpus", _) => gpus::main(&parsed, &env),
        #[cfg(feature = "store")]
        ("checkpoint", _) => checkpoint::main(&parsed, &env),
        ("inspect", _) => inspect::main(&parsed, &env),
        ("env", _) => env::main(&parsed, &env),
        ("completions", _) => completions::main(&parsed),
        ("licenses", _) => licenses::main(),
        (other, _) => refuse(&[format!("trainit {other}: {}", left_out::WHY)]),
    }
}

/// Layers the settings of a subcommand, the configuration file included. Mistakes land in the complaints.
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
    // These tell it with all else they warn of; under a run, that has told it.
    if !["run", "inspect", "env"].contains(&parsed.command) && env.given("TRAINIT_ATTEMPT").is_none() {
        for unknown in unknown_variables(env) {
            stdio::complain(&format!("trainit: warning: {unknown}"));
        }
    }
    left_out::refuse(&mut values, &mut complaints);
    platform::imply(&mut values, env, parsed.command == "checkpoint");
    (values, complaints)
}

fn config_file(parsed: &Parsed, env: &Env) -> Result<Option<ConfigFile>, Complaint> {
    let named = parsed
        .config
        .as_ref()
        .map(|path| ("--config", PathBuf::from(path)))
        .or_else(|| env.given("TRAINIT_CONFIG").map(|path| ("TRAINIT_CONFIG", PathBuf::from(path))));
    let path = named.as_ref().map_or(Path::new(DEFAULT_CONFIG), |(_, path)| path);
    let read = match (parsed.command, &named) {
        // It holds signals back, and must not for as long as a file system hangs or nobody writes to a FIFO.
        ("run", Some(_)) => {
            let path = path.to_owned();
            signals::in_time("config", PATIENCE, move || std::fs::read_to_string(path))
        }
        _ => std::fs::read_to_string(path),
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
                        "see that the path is right and the file in the image or mounted into it; without one, leave it out"
                    }
                    ErrorKind::IsADirectory => "name the file in it",
                    ErrorKind::PermissionDenied => "let the user that runs this read it",
                    ErrorKind::InvalidData => "it must be TOML, in UTF-8",
                    _ => limits::way_out(&error, "see what it lies on, or name another file"),
                };
                Err(Complaint { place, message: format!("cannot read {}: {error}; {way_out}", path.display()) })
            }
        },
    }
}

/// As [`refuse`], with the codes; and with what a start would warn of, which may be why.
fn refuse_all(mistakes: &[ClusterError], env: &Env) -> u8 {
    for unknown in cluster::unknown(env) {
        stdio::complain(&format!("trainit: warning: {}", unknown.message));
    }
    refuse(&mistakes.iter().map(|mistake| format!("{mistake} [code={}]", mistake.code)).collect::<Vec<_>>())
}

/// Prints each complaint on a line of its own and returns 125.
pub fn refuse<T: std::fmt::Display>(complaints: &[T]) -> u8 {
    for complaint in complaints {
        stdio::complain(&format!("trainit: error: {complaint}"));
    }
    exit::NOT_STARTED
}
