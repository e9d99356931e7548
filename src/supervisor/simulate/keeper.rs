//! The keeper of a simulated replica: a process between the simulator and the replica's command, like a container
//! runtime. It starts the command and signals it. It stops, continues and kills all processes of the command, and exits
//! with the command's code when none is left.
//!
//! Orders are single bytes on standard input. End of file means that the simulator has died; then everything is killed.
//! The keeper is a subreaper, so no process of the replica can leave it.

use std::ffi::OsString;
use std::fs;
use std::io::{self, ErrorKind};
use std::os::fd::AsRawFd;
use std::path::Path;
use std::time::Duration;

use crate::edge::clock::Clock;
use crate::edge::io::pipe;
use crate::edge::io::{eventfd, stdio};
use crate::edge::process::descendants;
use crate::edge::process::reaper::{self, Wait};
use crate::edge::process::signals::{Mask, SignalFd};
use crate::edge::process::spawn::{self, Launch, NotLaunched};
use crate::rules::process::env::{Changes, Env};
use crate::rules::process::exit::{self, End};
use crate::rules::process::signal::Signal;

/// The hidden subcommand.
pub const SUBCOMMAND: &str = "simulated-replica";

/// The pause between two rounds of signals to all processes.
const ROUND: Duration = Duration::from_millis(2);
/// A process that SIGKILL does not end within this time is stuck in the kernel and is left behind.
const TO_DIE: Duration = Duration::from_secs(10);
/// Rounds of SIGSTOP: a process may start another while it is stopped.
const ROUNDS_OF_STOP: usize = 50;
/// The limit of children to reap in one turn.
const ENDS_A_TURN: usize = 64;
/// The limit of tries to remove a directory that other keepers empty, too.
const TRIES_TO_CLEAR: usize = 100;
/// The code of a container that was killed.
const KILLED: u8 = 137;

/// An order of the simulator.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Order {
    /// Send the command this signal.
    Signal(Signal),
    /// Kill everything.
    Kill,
    /// Stop everything.
    Freeze,
    /// Continue everything.
    Thaw,
    /// Stop everything below the command.
    Hang,
}

impl Order {
    /// The byte of an order; a signal is its number.
    pub(super) fn byte(self) -> u8 {
        match self {
            Order::Signal(signal) => signal.number() as u8,
            Order::Kill => 101,
            Order::Freeze => 102,
            Order::Thaw => 103,
            Order::Hang => 104,
        }
    }

    fn read(byte: u8) -> Option<Order> {
        let others = [Order::Kill, Order::Freeze, Order::Thaw, Order::Hang];
        others.into_iter().find(|order| order.byte() == byte).or_else(|| Signal::new(byte.into()).map(Order::Signal))
    }
}

/// Runs the command until none of its processes is left. The first word is a directory to remove if the simulator dies,
/// or empty. Returns the exit code.
pub fn main(words: &[OsString], env: &Env, mask: Mask) -> u8 {
    let (temporary, command) = words.split_first().map_or((Path::new(""), words), |(dir, rest)| (Path::new(dir), rest));
    match keep(temporary, command, env, mask) {
        Ok(code) => code,
        Err(error) => {
            stdio::complain(&format!("trainit: error: the simulated replica cannot be kept: {error}"));
            exit::NOT_STARTED
        }
    }
}

fn keep(temporary: &Path, command: &[OsString], env: &Env, mask: Mask) -> io::Result<u8> {
    let mut orders = pipe::take_stdin()?;
    let signals = SignalFd::open()?;
    spawn::become_subreaper()?;
    let launched = spawn::launch(Launch {
        argv: command,
        env: env.with(&Changes::default()),
        mask,
        ignore_chld: false,
        new_session: true,
        terminal: None,
        // If this keeper is killed, the simulator kills the processes that are left.
        death_signal: Some(Signal::KILL),
        stdin: None,
        stdout: None,
        stderr: None,
    });
    let main = match launched {
        Ok(pid) => pid,
        Err(NotLaunched::NoExec(error)) => {
            let program = command.first().map(|word| word.to_string_lossy()).unwrap_or_default();
            stdio::complain(&format!("trainit: error: cannot execute {program}: {error}"));
            let is_missing = error.kind() == io::ErrorKind::NotFound;
            return Ok(if is_missing { exit::NOT_FOUND } else { exit::NOT_EXECUTABLE });
        }
        Err(NotLaunched::NoProcess(error)) => return Err(error),
    };
    loop {
        eventfd::wait_readable(&[signals.as_raw_fd(), orders.as_raw_fd()], None);
        for arrival in signals.next_batch() {
            if arrival.signal != Signal::CHLD {
                let _ = spawn::kill(main, arrival.signal);
            }
        }
        if let Some(end) = reap(main) {
            kill_all(main);
            return Ok(end.code());
        }
        let mut bytes = [0; 16];
        let count = match orders.read(&mut bytes) {
            Ok(None) => continue,
            Ok(Some(count)) => count,
            Err(_) => 0,
        };
        if count == 0 {
            kill_all(main);
            clear(temporary);
            return Ok(KILLED);
        }
        for order in bytes[..count].iter().filter_map(|byte| Order::read(*byte)) {
            match order {
                Order::Signal(signal) => spawn::kill(main, signal)?,
                Order::Freeze => freeze(None),
                Order::Hang => freeze(Some(main)),
                Order::Thaw => to_all(Signal::CONT),
                Order::Kill => {
                    kill_all(main);
                    return Ok(KILLED);
                }
            }
        }
    }
}

/// Reaps ended children; returns the end of the command.
fn reap(main: i32) -> Option<End> {
    for _ in 0..ENDS_A_TURN {
        match reaper::wait() {
            Wait::Ended { pid, end } if pid == main => return Some(end),
            Wait::Ended { .. } | Wait::Stopped { .. } => {}
            Wait::Nothing | Wait::Empty => break,
        }
    }
    None
}

fn to_all(signal: Signal) {
    for process in descendants::all(|_| false).unwrap_or_default() {
        let _ = descendants::send(&process, signal);
    }
}

/// Stops everything except this process.
fn freeze(except: Option<i32>) {
    for _ in 0..ROUNDS_OF_STOP {
        let mut running = descendants::all(|_| false).unwrap_or_default();
        running.retain(|process| !process.is_stopped && Some(process.pid) != except);
        if running.is_empty() {
            return;
        }
        for process in running {
            let _ = descendants::send(&process, Signal::STOP);
        }
        std::thread::sleep(ROUND);
    }
}

/// Kills all remaining processes and waits until wait(2) reports none.
fn kill_all(main: i32) {
    let clock = Clock::start();
    loop {
        // Without a usable /proc, at least the command's process group.
        let _ = spawn::kill(-main, Signal::KILL);
        to_all(Signal::KILL);
        while let Wait::Ended { .. } | Wait::Stopped { .. } = reaper::wait() {}
        if !reaper::has_children() || clock.now() > TO_DIE {
            return;
        }
        std::thread::sleep(ROUND);
    }
}

/// Removes the directory. All keepers do this; the last one removes files that other replicas still wrote.
fn clear(temporary: &Path) {
    if !temporary.as_os_str().is_empty() {
        let is_left = |_: &usize| fs::remove_dir_all(temporary).is_err_and(|error| error.kind() != ErrorKind::NotFound);
        let _ = (0..TRIES_TO_CLEAR).take_while(is_left).count();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_order_is_read_as_it_was_written() {
        let signals = (1..=64).filter_map(Signal::new).map(Order::Signal);
        for order in signals.chain([Order::Kill, Order::Freeze, Order::Thaw, Order::Hang]) {
            assert_eq!(Order::read(order.byte()), Some(order));
        }
        assert_eq!((Order::read(0), Order::read(200)), (None, None));
    }
}
