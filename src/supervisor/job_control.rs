//! The terminal belongs to the child. When the child is stopped from the keyboard, we stop with it, so that the shell
//! that started us gets its prompt back; where there is no such shell, the child is continued at once.

use std::os::fd::RawFd;

use crate::edge::{process, signals, terminal};
use crate::rules::signal::Signal;

pub(super) struct JobControl {
    terminal: Option<RawFd>,
    /// The child was sent a stop, and takes us with it if it does stop.
    follows: bool,
}

impl JobControl {
    pub(super) fn new(terminal: Option<RawFd>) -> JobControl {
        JobControl { terminal, follows: false }
    }

    pub(super) fn terminal(&self) -> Option<RawFd> {
        self.terminal
    }

    /// The child was stopped by `signal`.
    pub(super) fn stopped(&mut self, child: i32, signal: Signal) {
        let Some(terminal) = self.terminal else {
            if self.follows {
                self.suspend(true);
            }
            return;
        };
        if !signal.stops_a_job() {
            return;
        }
        if terminal::has_shell() {
            let _ = terminal::take_back(terminal);
            terminal::stop_ourselves();
            // Continued: by fg we are in the foreground and hand it on, by bg we are not and the child must not have it.
            if terminal::to_hand_on().is_some() {
                let _ = terminal::give_to(terminal, child);
            }
        } else {
            tracing::info!("{signal} from the keyboard is undone: nobody here could continue the command");
        }
        let _ = process::kill(-child, Signal::CONT);
    }

    /// The child was sent another signal.
    pub(super) fn forget(&mut self) {
        self.follows = false;
    }

    /// The child was sent a stop, and we are to stop too: now, or when it does. PID 1 would have no way back.
    pub(super) fn suspend(&mut self, at_once: bool) {
        self.follows = !at_once;
        // A stop takes back a SIGCONT that has not been read: who has sent one already does not want it any more.
        if at_once && process::own_pid() != 1 && !signals::is_waiting(Signal::CONT) {
            terminal::stop_ourselves();
        }
    }

    /// The child is gone: the terminal is ours again.
    pub(super) fn over(&self) {
        if let Some(terminal) = self.terminal {
            let _ = terminal::take_back(terminal);
        }
    }
}
