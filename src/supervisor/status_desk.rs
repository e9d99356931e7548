//! Where a run is asked how it is: the status socket in the loop, and the questions of `page.rs`. Nobody asks: nothing wakes up.

use std::cell::Cell;
use std::os::fd::{AsRawFd, RawFd};
use std::time::Duration;

use super::effects::Effects;
use crate::edge::clock;
use crate::edge::control::{Caller, Listener};
use crate::edge::run_dir::{RunDir, SOCKET};
use crate::edge::{limits, process};
use crate::rules::job::{Event, Machine, Uptime};
use crate::rules::status::tally::Tally;
use crate::rules::status::{self, Facts};

/// Answered in one turn of the loop; who else waits is answered in the next, after the signals that came meanwhile.
const ANSWERS: usize = 4;
/// Before the next look where who waits cannot be let in, as without descriptors: the socket stays readable all the while.
const PAUSE: Duration = Duration::from_secs(1);

/// The socket, if there could be one.
#[derive(Debug, Default)]
pub(super) struct StatusDesk {
    listener: Option<Listener>,
    /// Nobody is let in before.
    paused_until: Cell<Option<Uptime>>,
    /// What has come of the commits.
    tally: Tally,
}

impl StatusDesk {
    /// Opens the socket in the run's directory; without one there is nobody to ask, and the run goes on.
    pub(super) fn open(dir: Option<&RunDir>) -> StatusDesk {
        let Some(dir) = dir else {
            tracing::warn!(
                "no place for a small directory (tried /dev/shm, TMPDIR, /tmp, /run): the trainer hears of a preemption \
                 by signal only, and trainit status cannot ask this run; mount a tmpfs on /tmp"
            );
            return StatusDesk::default();
        };
        StatusDesk { listener: listen(dir), ..StatusDesk::default() }
    }

    /// Sees that the run's directory is there, and the socket in it.
    pub(super) fn mend(&mut self, dir: Option<&mut RunDir>) {
        let Some(dir) = dir else { return };
        if !dir.mend() {
            return;
        }
        tracing::warn!(
            "{} was removed with its directory, which is made anew: until now neither trainit status nor a heartbeat got through; let the command \
             spare trainit-* where it clears that place",
            dir.path(SOCKET).display()
        );
        if self.listener.is_some() {
            self.listener = listen(dir);
        }
    }

    /// Whether somebody can ask.
    pub(super) fn is_open(&self) -> bool {
        self.listener.is_some()
    }

    /// What is readable when somebody asks.
    pub(super) fn fd(&self) -> Option<RawFd> {
        self.listener.as_ref().filter(|_| self.due().is_none()).map(AsRawFd::as_raw_fd)
    }

    /// When to look again, whether or not it is.
    pub(super) fn due(&self) -> Option<Uptime> {
        self.paused_until.get()
    }

    /// Something happened.
    pub(super) fn note(&mut self, now: Uptime, event: &Event) {
        self.tally.note(now, event);
    }

    fn next_caller(&self, now: Uptime) -> Option<Caller> {
        if self.due().is_some_and(|at| now < at) {
            return None;
        }
        self.paused_until.set(None);
        let caller = self.listener.as_ref()?.next();
        caller.inspect_err(|_| self.paused_until.set(Some(now + PAUSE))).ok().flatten()
    }

    /// Answers who asks.
    pub(super) fn serve(&self, now: Uptime, command: &str, machine: &Machine, effects: &Effects) {
        let facts = || Facts {
            version: env!("TRAINIT_VERSION"),
            pid: process::own_pid() as u32,
            command,
            children: effects.children(),
            now,
            wall: clock::wall().duration_since(std::time::UNIX_EPOCH).unwrap_or_default(),
            tally: self.tally.clone(),
            kept: effects.kept(),
            memory: effects.memory.facts(),
            metrics: effects.collectors.as_ref().map(super::Collectors::last_values).unwrap_or_default(),
            gpus: effects.gpus.told(),
        };
        for _ in 0..ANSWERS {
            let Some(caller) = self.next_caller(now) else { break };
            caller.tell(&status::answer(&machine.told(), &facts()));
        }
        for question in effects.background.questions(ANSWERS) {
            question.answer(|page| page.show(&machine.told(), &facts()));
        }
    }
}

fn listen(dir: &RunDir) -> Option<Listener> {
    let path = dir.path(SOCKET);
    let bound = Listener::bind(&path).inspect_err(|error| {
        let way_out = limits::way_out(error, "see that sockets can be made there");
        tracing::warn!("trainit status cannot ask this run, {} could not be made: {error}; {way_out}", path.display());
    });
    bound.ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn where_nobody_can_be_let_in_the_socket_is_left_alone_for_a_while_and_then_tried_again() {
        let desk = StatusDesk { listener: Some(Listener::broken()), ..StatusDesk::default() };
        let now = Duration::from_secs(100);
        assert!((desk.fd().is_some(), desk.due()) == (true, None));
        assert!(desk.next_caller(now).is_none());
        assert!((desk.fd(), desk.due()) == (None, Some(now + PAUSE)));
        assert!(desk.next_caller(now + PAUSE / 2).is_none());
        assert!((desk.fd(), desk.due()) == (None, Some(now + PAUSE)));
        assert!(desk.next_caller(now + PAUSE).is_none());
        assert_eq!(desk.due(), Some(now + 2 * PAUSE), "it was tried");
    }
}
