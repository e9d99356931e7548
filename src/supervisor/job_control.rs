//! The terminal belongs to the child. When the child is stopped from the keyboard, we stop with it, so that the shell
//! that started us gets its prompt back; where there is no such shell, the child is continued at once.

use std::os::fd::RawFd;

use crate::edge::{process, signals, terminal};
use crate::rules::signal::Signal;

pub(super) struct JobControl {
    terminal: Option<RawFd>,
    /// It was handed on to the child.
    is_handed_on: bool,
    /// The child was sent a stop, and takes us with it if it does stop.
    follows: bool,
    /// It was said that one waits for the terminal.
    told: bool,
}

impl JobControl {
    pub(super) fn new(terminal: Option<RawFd>) -> JobControl {
        JobControl { terminal, is_handed_on: false, follows: false, told: false }
    }

    /// Whether the child shares a terminal with us.
    pub(super) fn shares(&self) -> bool {
        self.terminal.is_some()
    }

    /// The terminal for a child that is about to start; none while we are in the background ourselves.
    pub(super) fn hand_on(&mut self) -> Option<RawFd> {
        let terminal = self.terminal.filter(|terminal| terminal::is_ours(*terminal));
        self.is_handed_on = terminal.is_some();
        terminal
    }

    /// The child, which is called that, was stopped by `signal`.
    pub(super) fn stopped(&mut self, child: i32, who: &str, signal: Signal) {
        let Some(terminal) = self.terminal else {
            if self.follows {
                self.suspend(true);
            } else if matches!(signal, Signal::TTIN | Signal::TTOU) && !std::mem::replace(&mut self.told, true) {
                tracing::warn!(
                    pid = child,
                    "{who} was stopped by {signal}, as a background process is that touches the terminal: it stays so until \
                     a SIGCONT comes; several ranks share no terminal, start trainit without one (setsid -w, </dev/null)"
                );
            }
            return;
        };
        if !signal.stops_a_job() {
            return;
        }
        let wants_it = signal != Signal::TSTP && terminal::is_ours(terminal);
        if !wants_it && terminal::has_shell() {
            self.over();
            terminal::stop_ourselves();
        } else if !wants_it && self.is_handed_on {
            tracing::info!("{signal} from the keyboard is undone: nobody here could continue the command");
        } else if !wants_it {
            return;
        }
        self.wake(child);
        let _ = process::kill(-child, Signal::CONT);
    }

    /// The child goes on. By fg we are in the foreground and hand it on, by bg we are not and the child must not have it.
    pub(super) fn wake(&mut self, child: i32) {
        if let Some(terminal) = self.terminal.filter(|terminal| terminal::is_ours(*terminal)) {
            self.is_handed_on = terminal::give_to(terminal, child).is_ok();
        }
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

    /// The child is gone, or is stopped: the terminal is ours again.
    pub(super) fn over(&mut self) {
        if let Some(terminal) = self.terminal
            && std::mem::take(&mut self.is_handed_on)
        {
            let _ = terminal::take_back(terminal);
        }
    }
}
