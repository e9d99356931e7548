//! `trainit simulate`: reads the flags, runs the job, runs it again without faults if `--compare` asks for it, and shows
//! the report.

use std::fs::{self, DirBuilder};
use std::io::{self, Write};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use nix::fcntl::OFlag;

use crate::cli::Parsed;
use crate::command::refuse;
use crate::edge::clock;
use crate::edge::fs::{small_file, trusted_open};
use crate::edge::io::stdio;
use crate::edge::process::program;
use crate::edge::process::signals::{Mask, SignalFd};
use crate::edge::process::spawn;
use crate::rules::process::env::Env;
use crate::rules::process::exit::End;
use crate::rules::process::signal::Signal;
use crate::rules::simulate::Plan;
use crate::rules::simulate::report::Report;
use crate::rules::text::safe_text::printable;
use crate::settings::Complaint;
use crate::settings::simulate::{self as settings, SimulateSettings};
use crate::supervisor::simulate::{self, Stage};

/// The exit code if the platform would report the job as failed, or something did not happen that was asked for.
const FAILED: u8 = 1;
/// The size limit of a schedule.
const SCHEDULE_BYTES: usize = 1 << 20;

/// Runs the simulation. Exits with 0 if the platform would report the job as succeeded and all happened that was asked for.
pub fn main(parsed: &Parsed, env: Env, mask: Mask) -> u8 {
    let settings = settings::read(&parsed.flags, read_schedule);
    let missing = missing_command(parsed, &env);
    let settings = match (settings, missing) {
        (Ok(settings), None) => settings,
        (settings, missing) => {
            return refuse(&settings.err().unwrap_or_default().into_iter().chain(missing).collect::<Vec<_>>());
        }
    };
    if let Some(complaint) = unwritable(&settings) {
        return refuse(&[complaint]);
    }
    let place = match Place::new(&settings, &env) {
        Ok(place) => place,
        Err(complaint) => return refuse(&[complaint]),
    };
    match simulated(parsed, env, mask, &settings, &place) {
        Ok(report) => finish(&report, &settings),
        Err(error) => refuse(&[format!("the simulation cannot continue: {error}; check {}", place.dir.display())]),
    }
}

fn simulated(parsed: &Parsed, env: Env, mask: Mask, settings: &SimulateSettings, place: &Place) -> io::Result<Report> {
    let signals = SignalFd::open()?;
    spawn::become_subreaper()?;
    let mut stage = Stage {
        argv: parsed.operands.clone(),
        env,
        mask,
        dir: place.dir.clone(),
        temporary: place.is_temporary.then(|| place.dir.clone()),
        has_checkpoint_dir: settings.has_checkpoint_dir,
    };
    let mut report = simulate::run(settings.plan.clone(), &stage, &signals)?;
    if settings.compare && report.signal.is_none() {
        stage.dir = place.dir.join("undisturbed");
        let plan = Plan { faults: Vec::new(), ..settings.plan.clone() };
        stdio::complain("simulate: the same job without faults, to compare");
        report.compare_with(simulate::run(plan, &stage, &signals)?, settings.tolerance);
    }
    if settings.expect_resume && report.signal.is_none() {
        report.expect_resume();
    }
    Ok(report)
}

/// Shows the report. A file that cannot be written does not change the exit code.
fn finish(report: &Report, settings: &SimulateSettings) -> u8 {
    let json = serde_json::to_string_pretty(report).unwrap_or_default() + "\n";
    for (path, text) in [(&settings.json, json), (&settings.page, report.page())] {
        if let Some(path) = path
            && let Err(error) = report_file(path).and_then(|mut file| file.write_all(text.as_bytes()))
        {
            stdio::complain(&format!("trainit: error: the report cannot be written to {}: {error}", path.display()));
        }
    }
    let _ = stdio::print(&format!("\n{}", report.table()));
    let signal = report.signal.or_else(|| report.undisturbed.as_ref()?.signal).and_then(Signal::new);
    match signal {
        Some(signal) => End::Signal(signal).code(),
        None if report.is_good() => 0,
        None => FAILED,
    }
}

/// Checks before the job runs that the files of the report can be written.
fn unwritable(settings: &SimulateSettings) -> Option<Complaint> {
    [("--json", &settings.json), ("--run-report", &settings.page)].into_iter().find_map(|(place, path)| {
        let path = path.as_ref()?;
        let error = report_file(path).err()?;
        let message = format!("{} cannot be written: {error}; name another file", path.display());
        Some(Complaint { place: place.to_owned(), message })
    })
}

/// Opens the file and empties it.
fn report_file(path: &Path) -> io::Result<fs::File> {
    trusted_open::open(path, OFlag::O_WRONLY | OFlag::O_CREAT | OFlag::O_TRUNC)
}

fn missing_command(parsed: &Parsed, env: &Env) -> Option<Complaint> {
    let complaint = |message: String| Some(Complaint { place: "command line".to_owned(), message });
    let Some(program) = parsed.operands.first() else {
        let example = "trainit simulate -- trainit run -- python -m trainer.task";
        return complaint(format!("no command given; write it after --, as in: {example}"));
    };
    if program == "trainit" || program::exists(program, env.bytes("PATH")) {
        return None;
    }
    let shown = printable(&program.to_string_lossy());
    complaint(format!("the command {shown} does not exist or is not executable; check its name and PATH"))
}

fn read_schedule(path: &str) -> Result<String, String> {
    match small_file::read_small(path, SCHEDULE_BYTES) {
        Ok(Some(text)) => Ok(text),
        Ok(None) => Err("there is no such file".to_owned()),
        Err(error) => Err(format!("cannot be read: {error}")),
    }
}

/// The directory of the simulation; a temporary one is removed at the end.
struct Place {
    dir: PathBuf,
    is_temporary: bool,
}

impl Place {
    fn new(settings: &SimulateSettings, env: &Env) -> Result<Place, Complaint> {
        let complaint = |dir: &Path, what: String| Complaint {
            place: "--dir".to_owned(),
            message: format!("{}: {what}; name another directory", dir.display()),
        };
        let is_temporary = settings.dir.is_none();
        let dir = settings.dir.clone().unwrap_or_else(|| {
            let nanos = clock::wall().duration_since(std::time::UNIX_EPOCH).unwrap_or_default().subsec_nanos();
            Path::new(env.given("TMPDIR").unwrap_or("/tmp"))
                .join(format!("trainit-simulate-{}-{nanos:08x}", spawn::own_pid()))
        });
        let dir = std::path::absolute(&dir).map_err(|error| complaint(&dir, error.to_string()))?;
        // A directory that exists already may be another user's.
        let made = if is_temporary { DirBuilder::new().mode(0o700).create(&dir) } else { fs::create_dir_all(&dir) };
        made.map_err(|error| complaint(&dir, format!("cannot be created: {error}")))?;
        let first = fs::read_dir(&dir).map_err(|error| complaint(&dir, format!("cannot be read: {error}")))?.next();
        if first.is_some() {
            return Err(complaint(&dir, "is not empty, and its checkpoints would be resumed".to_owned()));
        }
        Ok(Place { dir, is_temporary })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if self.is_temporary {
            let _ = fs::remove_dir_all(&self.dir);
        }
    }
}
