//! `trainit status`: finds the run of this container, queries its status, and prints it.

use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::Value;

use crate::cli::Parsed;
use crate::command;
use crate::edge::clock::Clock;
use crate::edge::fs::run_dir::{self, SOCKET};
use crate::edge::io::{eventfd, stdio};
use crate::edge::net::status_socket::{self, PendingAnswer};
use crate::rules::process::env::Env;
use crate::rules::status::{check, headline, parse, render};
use crate::settings::Reader;

/// An agent answers between two turns of its loop; without an answer in this time it does not work. A HEALTHCHECK has
/// 10 s in total.
const ANSWER_LIMIT: Duration = Duration::from_secs(5);

/// The pause before a run with too many callers is queried again.
const RETRY_PAUSE: Duration = Duration::from_millis(20);

/// A run: its socket, its process in this PID namespace (0: another namespace), and its answer.
struct Run {
    socket: PathBuf,
    pid: i32,
    answer: io::Result<(String, Value)>,
}

/// Exits with 0 if the run answered (and, with --check, is healthy), or else with 1.
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
    let (text, status) = match run.and_then(|run| run.answer.map_err(|error| why(&run.socket, &error))) {
        Ok(answer) => answer,
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

/// The run of this container. The container's init comes first, then runs of the same user, then runs of this container, then
/// runs of containers that share a directory with it. All are queried at once, and only answers that can decide are awaited.
/// Errors: there is none, or several that cannot be distinguished.
fn find(tmp: Option<&str>) -> Result<Run, String> {
    let (clock, own) = (Clock::start(), run_dir::own_uid());
    let mut refused = None;
    let mut full = Vec::new();
    let mut nearest = Nearest { own, distance: u8::MAX, runs: Vec::new() };
    for dir in run_dir::all(tmp) {
        let socket = dir.join(SOCKET);
        // A run without a socket cannot be queried, and one that refuses is exiting.
        match status_socket::begin(&socket) {
            Ok(pending) => nearest.take(socket, pending),
            Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::ConnectionRefused) => {}
            Err(error) if error.kind() == ErrorKind::WouldBlock => full.push((run_dir::owner(&dir), socket)),
            Err(error) => refused = Some(why(&socket, &error)),
        }
    }
    // These runs have too many callers. The init's and those of the same user can decide, so they are queried again.
    let init = status_socket::user_of(1);
    full.retain(|(owner, _)| *owner == Some(own) || (init.is_some() && *owner == init));
    while let Some((_, socket)) = full.pop() {
        match status_socket::begin(&socket) {
            Ok(pending) => nearest.take(socket, pending),
            Err(error) if error.kind() != ErrorKind::WouldBlock => {}
            Err(_) if clock.now() >= ANSWER_LIMIT => {
                // The owner cannot be determined, so no other answer may replace it.
                if nearest.distance > 1 {
                    return Err(why(&socket, &ErrorKind::TimedOut.into()));
                }
            }
            Err(_) => {
                full.insert(0, (None, socket));
                eventfd::wait_readable(&[], Some(RETRY_PAUSE));
            }
        }
    }
    let (sockets, pending): (Vec<PathBuf>, Vec<PendingAnswer>) = nearest.runs.into_iter().unzip();
    let answer = status_socket::answers(&pending, ANSWER_LIMIT.saturating_sub(clock.now()).max(RETRY_PAUSE));
    let mut runs: Vec<Run> = sockets
        .into_iter()
        .zip(&pending)
        .zip(answer)
        .map(|((socket, pending), answer)| Run { socket, pid: pending.pid, answer: answer.and_then(parsed) })
        .collect();
    if runs.len() > 1 {
        let state = |run: &Run| match &run.answer {
            Ok((_, status)) => headline(status),
            Err(_) => "without an answer".to_owned(),
        };
        let each = runs.iter().map(|run| format!("{} (pid {}, {})", run.socket.display(), run.pid, state(run)));
        return Err(format!(
            "there are several runs, select one with --socket: {}",
            each.collect::<Vec<_>>().join("; ")
        ));
    }
    runs.pop().ok_or_else(|| {
        refused.unwrap_or_else(|| {
            "there is no trainit run here (searched /dev/shm, TMPDIR, /tmp, /run for one of this user); name its socket with \
             --socket or TRAINIT_SOCKET"
                .to_owned()
        })
    })
}

/// The nearest runs so far; the connections to the others are closed.
struct Nearest {
    own: u32,
    distance: u8,
    runs: Vec<(PathBuf, PendingAnswer)>,
}

impl Nearest {
    fn take(&mut self, socket: PathBuf, pending: PendingAnswer) {
        let distance = distance(pending.pid, pending.uid == self.own);
        if distance < self.distance {
            (self.distance, self.runs) = (distance, Vec::new());
        }
        if distance == self.distance {
            self.runs.push((socket, pending));
        }
    }
}

/// The distance of a run from the wanted one, 0 for the init: pods may share a PID namespace, /dev/shm or both, and
/// other users may pretend to be a run.
fn distance(pid: i32, is_own: bool) -> u8 {
    match (pid, status_socket::is_of_our_root(pid), is_own) {
        (1, ..) => 0,
        (0, ..) | (_, Some(false), _) if is_own => 5,
        (0, ..) | (_, Some(false), _) => 6,
        (_, Some(true), true) => 1,
        (_, None, true) => 2,
        (_, Some(true), false) => 3,
        (_, None, false) => 4,
    }
}

fn ask(socket: &Path) -> io::Result<Run> {
    let (pid, answer) = status_socket::ask(socket, ANSWER_LIMIT)?;
    Ok(Run { socket: socket.to_owned(), pid, answer: answer.and_then(parsed) })
}

fn parsed(text: String) -> io::Result<(String, Value)> {
    let status = parse(&text).map_err(io::Error::other)?;
    Ok((text, status))
}

fn why(socket: &Path, error: &io::Error) -> String {
    let place = socket.display();
    match error.kind() {
        ErrorKind::TimedOut => {
            format!("the run at {place} does not answer in {} s: it is stopped or hangs", ANSWER_LIMIT.as_secs())
        }
        ErrorKind::NotFound | ErrorKind::ConnectionRefused => {
            format!("no run listens at {place}: it has ended, or was never started")
        }
        ErrorKind::PermissionDenied => {
            format!("the run at {place} belongs to another user: run this as that user, or as root")
        }
        _ => format!("the run at {place} cannot be queried: {error}"),
    }
}
