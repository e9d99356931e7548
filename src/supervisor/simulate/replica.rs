//! One replica of a simulated job: its directories, its keeper, the pipes to it.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, ErrorKind, Write};
use std::os::fd::{OwnedFd, RawFd};
use std::path::{Path, PathBuf};

use serde_json::Value;

use super::Stage;
use super::keeper::{Order, SUBCOMMAND};
use super::output::{Lines, Stream};
use crate::edge::fs::small_file;
use crate::edge::io::pipe;
use crate::edge::process::spawn::{self, Launch, NotLaunched};

/// This program, also after its file was replaced.
pub(super) const OWN_PROGRAM: &str = "/proc/self/exe";

/// The directories on a replica's disk.
const ON_DISK: [&str; 4] = ["home", "tmp", "checkpoints", "metrics"];
/// The limit of a verdict, in bytes.
const VERDICT_BYTES: usize = 1 << 20;

/// A replica, with or without processes.
#[derive(Debug)]
pub(super) struct Process {
    dir: PathBuf,
    kept: Option<Kept>,
}

#[derive(Debug)]
struct Kept {
    keeper: i32,
    orders: File,
    stdout: Lines,
    stderr: Lines,
}

impl Process {
    /// Makes its directories. Errors: as mkdir(2).
    pub(super) fn new(dir: PathBuf) -> io::Result<Process> {
        let process = Process { dir, kept: None };
        process.prepare_disk()?;
        Ok(process)
    }

    pub(super) fn disk(&self) -> PathBuf {
        self.dir.join("disk")
    }

    pub(super) fn verdict(&self) -> PathBuf {
        self.dir.join("verdict.json")
    }

    fn prepare_disk(&self) -> io::Result<()> {
        ON_DISK.iter().try_for_each(|name| fs::create_dir_all(self.disk().join(name)))
    }

    /// Replaces its disk by an empty one.
    pub(super) fn empty_disk(&self) -> io::Result<()> {
        remove(&self.disk())?;
        self.prepare_disk()
    }

    /// Starts the command below a keeper. Errors: no process can be started.
    pub(super) fn start(&mut self, command: &[OsString], env: Vec<Vec<u8>>, stage: &Stage) -> io::Result<()> {
        if let Err(error) = fs::remove_file(self.verdict())
            && error.kind() != ErrorKind::NotFound
        {
            return Err(error);
        }
        let own = [OWN_PROGRAM, SUBCOMMAND].map(OsString::from);
        let temporary = stage.temporary.clone().unwrap_or_default().into_os_string();
        let argv: Vec<OsString> = own.into_iter().chain([temporary]).chain(command.iter().cloned()).collect();
        let (orders, to_orders) = io::pipe()?;
        let (stdout, to_stdout) = pipe::pair()?;
        let (stderr, to_stderr) = pipe::pair()?;
        let launched = spawn::launch(Launch {
            argv: &argv,
            env,
            mask: stage.mask,
            ignore_chld: false,
            new_session: true,
            terminal: None,
            death_signal: None,
            stdin: Some(orders.into()),
            stdout: Some(to_stdout),
            stderr: Some(to_stderr),
        });
        let keeper = launched.map_err(|why| match why {
            NotLaunched::NoProcess(error) | NotLaunched::NoExec(error) => error,
        })?;
        let orders = File::from(OwnedFd::from(to_orders));
        self.kept = Some(Kept { keeper, orders, stdout: Lines::new(stdout), stderr: Lines::new(stderr) });
        Ok(())
    }

    /// The keeper's process.
    pub(super) fn pid(&self) -> Option<i32> {
        self.kept.as_ref().map(|kept| kept.keeper)
    }

    /// The descriptors that are readable when it has printed.
    pub(super) fn fds(&self) -> impl Iterator<Item = RawFd> {
        let streams = self.kept.iter().flat_map(|kept| [&kept.stdout, &kept.stderr]);
        streams.filter_map(Lines::fd)
    }

    /// Gives the keeper an order, unless it has ended.
    pub(super) fn tell(&mut self, order: Order) {
        if let Some(kept) = &mut self.kept {
            let _ = kept.orders.write_all(&[order.byte()]);
        }
    }

    /// At most this number of its lines, with their stream.
    pub(super) fn lines(&mut self, most: usize) -> Vec<(Stream, Vec<u8>)> {
        let Some(kept) = &mut self.kept else { return Vec::new() };
        let mut lines: Vec<_> = kept.stdout.next(most).into_iter().map(|line| (Stream::Out, line)).collect();
        lines.extend(kept.stderr.next(most).into_iter().map(|line| (Stream::Err, line)));
        lines
    }

    /// Called when it has no processes any more. Returns its verdict.
    pub(super) fn ended(&mut self) -> Option<Value> {
        self.kept = None;
        let text = small_file::read_small_itself(&self.verdict().to_string_lossy(), VERDICT_BYTES).ok()??;
        serde_json::from_str(&text).ok()
    }
}

/// Removes a directory with its content, if it exists.
pub(super) fn remove(dir: &Path) -> io::Result<()> {
    match fs::remove_dir_all(dir) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}
