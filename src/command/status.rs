//! `trainit status`: finds the run that is here, asks it, and shows what it says.

use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::Value;

use crate::cli::Parsed;
use crate::command;
use crate::edge::run_dir::{self, SOCKET};
use crate::edge::{control, stdio};
use crate::rules::env::Env;
use crate::rules::status::{check, headline, parse, render};
use crate::settings::Reader;

/// An agent answers between two turns of its loop; one that has not after this long does not do its work.
const PATIENCE: Duration = Duration::from_secs(5);

/// A run: its socket, its process as we see it (0: of another PID namespace), and what it said.
struct Run {
    socket: PathBuf,
    pid: i32,
    said: io::Result<(String, Value)>,
}

/// Leaves with 0 when the run answered (and, with --check, is well), else with 1.
pub fn main(parsed: &Parsed, env: &Env) -> u8 {
    let (values, complaints) = command::values(parsed, env);
    let mut reader = Reader::new(&values, complaints);
    let (as_json, only_check) = (reader.switch("json"), reader.switch("check"));
    let socket = reader.path("socket");
    if !reader.complaints.is_empty() {
        return command::refuse(&reader.complaints);
    }
    let run = match socket {
        Some(socket) => ask(&socket).map_err(|error| why(&socket, &error)),
        None => find(env.given("TMPDIR")),
    };
    let (text, status) = match run.and_then(|run| run.said.map_err(|error| why(&run.socket, &error))) {
        Ok(said) => said,
        Err(line) if only_check => {
            let _ = stdio::print(&format!("unhealthy: {line}\n"));
            return 1;
        }
        Err(line) => {
            stdio::complain(&format!("trainit: error: {line}"));
            return 1;
        }
    };
    let (is_well, line) = check(&status);
    let shown = match (only_check, as_json) {
        (true, _) => line + "\n",
        (false, true) => text,
        (false, false) => render(&status),
    };
    let is_shown = stdio::print(&shown).is_ok();
    u8::from(!is_shown || (only_check && !is_well))
}

/// The run that is here. The container's init wins over runs inside it, and those of our container over others with which
/// a directory is shared; one that does not answer is there, too. Errors: none, or several that nothing tells apart.
fn find(tmp: Option<&str>) -> Result<Run, String> {
    let (mut refused, mut is_full) = (None, false);
    let mut runs = Vec::new();
    for dir in run_dir::all(tmp) {
        let socket = dir.join(SOCKET);
        // What is there without a socket cannot be asked, and what refuses is just leaving.
        match ask(&socket) {
            Ok(run) => runs.push(run),
            Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::ConnectionRefused) => {}
            Err(error) if is_full && error.kind() != ErrorKind::TimedOut => {}
            Err(error) => {
                is_full |= error.kind() == ErrorKind::TimedOut;
                refused = Some(why(&socket, &error));
            }
        }
    }
    let best = runs.iter().map(distance).min();
    // Whose it is cannot be asked: no other's answer may stand for it.
    if let Some(refused) = refused.take_if(|_| is_full && best > Some(1)) {
        return Err(refused);
    }
    runs.retain(|run| Some(distance(run)) == best);
    if runs.len() > 1 {
        let state = |run: &Run| match &run.said {
            Ok((_, status)) => headline(status),
            Err(_) => "without an answer".to_owned(),
        };
        let each = runs.iter().map(|run| format!("{} (pid {}, {})", run.socket.display(), run.pid, state(run)));
        return Err(format!(
            "several runs are here, choose one with --socket: {}",
            each.collect::<Vec<_>>().join("; ")
        ));
    }
    runs.pop().ok_or_else(|| {
        refused.unwrap_or_else(|| {
            "no trainit run is here (looked in /dev/shm, TMPDIR, /tmp, /run for one of this user); name its socket with \
             --socket or TRAINIT_SOCKET"
                .to_owned()
        })
    })
}

/// How far a run is from being the one that is meant: pods may share a PID namespace, /dev/shm or both.
fn distance(run: &Run) -> u8 {
    match (run.pid, control::is_of_our_root(run.pid)) {
        (0, _) | (_, Some(false)) => 3,
        (1, _) => 0,
        (_, Some(true)) => 1,
        (_, None) => 2,
    }
}

fn ask(socket: &Path) -> io::Result<Run> {
    let (pid, answer) = control::ask(socket, PATIENCE)?;
    let said = answer.and_then(|text| {
        let status = parse(&text).map_err(io::Error::other)?;
        Ok((text, status))
    });
    Ok(Run { socket: socket.to_owned(), pid, said })
}

fn why(socket: &Path, error: &io::Error) -> String {
    let place = socket.display();
    match error.kind() {
        ErrorKind::TimedOut => {
            format!("the run at {place} does not answer in {} s: it is stopped or hangs", PATIENCE.as_secs())
        }
        ErrorKind::NotFound | ErrorKind::ConnectionRefused => {
            format!("no run listens at {place}: it is over, or was never started")
        }
        ErrorKind::PermissionDenied => format!("the run at {place} is another user's: ask as that user, or as root"),
        _ => format!("the run at {place} cannot be asked: {error}"),
    }
}
