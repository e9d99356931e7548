//! The terminal belongs to the child. When the child is stopped from the keyboard, trainit stops too, so that the shell
//! that started it gets its prompt back. Without such a shell the child is continued at once.

use std::os::fd::BorrowedFd;

use crate::edge::process::{signals, spawn, terminal};
use crate::rules::process::signal::Signal;

pub(in crate::supervisor) struct TerminalStop {
    terminal: Option<BorrowedFd<'static>>,
    /// The terminal was given to the child.
    is_handed_on: bool,
    /// A stop was sent to the child. If the child stops, trainit stops too.
    follows: bool,
    /// The warning about a process that waits for the terminal was logged.
    is_logged: bool,
}

impl TerminalStop {
    pub(in crate::supervisor) fn new(terminal: Option<BorrowedFd<'static>>) -> TerminalStop {
        TerminalStop { terminal, is_handed_on: false, follows: false, is_logged: false }
    }

    /// Whether the child shares a terminal with trainit.
    pub(in crate::supervisor) fn shares(&self) -> bool {
        self.terminal.is_some()
    }

    /// The terminal for a child that is about to start; `None` while trainit is in the background.
    pub(in crate::supervisor) fn for_child(&mut self) -> Option<BorrowedFd<'static>> {
        let terminal = self.terminal.filter(|terminal| terminal::is_ours(*terminal));
        self.is_handed_on = terminal.is_some();
        terminal
    }

    /// The child with this name was stopped by `signal`.
    pub(in crate::supervisor) fn stopped(&mut self, child: i32, name: &str, signal: Signal) {
        let Some(terminal) = self.terminal else {
            if self.follows {
                self.suspend(true);
            } else if matches!(signal, Signal::TTIN | Signal::TTOU) && !std::mem::replace(&mut self.is_logged, true) {
                tracing::warn!(
                    pid = child,
                    "{name} was stopped by {signal}, as a background process that uses the terminal: it stays \
                     stopped until a SIGCONT arrives; ranks share no terminal, so start trainit without \
                     one (setsid -w, </dev/null)"
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
            tracing::info!("{signal} from the keyboard is undone: there is no shell to continue the command");
        } else if !wants_it {
            return;
        }
        self.wake(child);
        let _ = spawn::kill(-child, Signal::CONT);
    }

    /// The child is continued. After `fg` trainit is in the foreground and gives the terminal to the child; after `bg`
    /// it does not.
    pub(in crate::supervisor) fn wake(&mut self, child: i32) {
        if let Some(terminal) = self.terminal.filter(|terminal| terminal::is_ours(*terminal)) {
            self.is_handed_on = terminal::give_to(terminal, child).is_ok();
        }
    }

    /// The child was sent another signal.
    pub(in crate::supervisor) fn forget(&mut self) {
        self.follows = false;
    }

    /// The child was sent a stop, and trainit stops too: now, or when the child does. PID 1 never stops, because
    /// nothing could continue it.
    pub(in crate::supervisor) fn suspend(&mut self, at_once: bool) {
        self.follows = !at_once;
        // A stop would discard a pending SIGCONT, and its sender wants trainit to run.
        if at_once && spawn::own_pid() != 1 && !signals::is_waiting(Signal::CONT) {
            terminal::stop_ourselves();
        }
    }

    /// The child has ended or is stopped: trainit takes the terminal back.
    pub(in crate::supervisor) fn over(&mut self) {
        if let Some(terminal) = self.terminal
            && std::mem::take(&mut self.is_handed_on)
        {
            let _ = terminal::take_back(terminal);
        }
    }
}
