//! Where a run is asked how it is: the status socket in the loop, and the questions of `page.rs`. Nobody asks: nothing wakes up.

use std::os::fd::{AsRawFd, RawFd};

use super::effects::Effects;
use crate::edge::clock;
use crate::edge::control::Listener;
use crate::edge::process;
use crate::edge::run_dir::{RunDir, SOCKET};
use crate::rules::job::{Event, Machine, Uptime};
use crate::rules::status::tally::Tally;
use crate::rules::status::{self, Facts};

/// Answered in one turn of the loop; who else waits is answered in the next, after the signals that came meanwhile.
const ANSWERS: usize = 4;

/// The socket, if there could be one.
#[derive(Debug, Default)]
pub(super) struct StatusDesk {
    listener: Option<Listener>,
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
        let path = dir.path(SOCKET);
        let listener = Listener::bind(&path)
            .inspect_err(|error| {
                tracing::warn!("trainit status cannot ask this run, {} could not be made: {error}", path.display());
            })
            .ok();
        StatusDesk { listener, tally: Tally::default() }
    }

    /// Whether somebody can ask.
    pub(super) fn is_open(&self) -> bool {
        self.listener.is_some()
    }

    pub(super) fn fd(&self) -> Option<RawFd> {
        self.listener.as_ref().map(AsRawFd::as_raw_fd)
    }

    /// Something happened.
    pub(super) fn note(&mut self, now: Uptime, event: &Event) {
        self.tally.note(now, event);
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
            memory: effects.memory(),
            metrics: effects.collectors.as_ref().map(super::Collectors::last_values).unwrap_or_default(),
            gpus: effects.gpus.told(),
        };
        for _ in 0..ANSWERS {
            let Some(caller) = self.listener.as_ref().and_then(Listener::next) else { break };
            caller.tell(&status::answer(&machine.told(), &facts()));
        }
        for question in effects.background.questions(ANSWERS) {
            question.answer(|page| page.show(&machine.told(), &facts()));
        }
    }
}
