//! Which processes of a tree get SIGTERM, and when: from the top down.
//!
//! A process that handles SIGTERM may need its descendants for its answer: a pool of workers for the save, an upload
//! that the handler has started, the end of a pipe that takes the last lines. So:
//!
//! 1. A process that handles SIGTERM gets it when no process above it handles it.
//! 2. A process with the default action gets it when no process that handles SIGTERM is left.
//! 3. A process that was started by a signalled process is left alone while that process lives.
//! 4. From the last third of the grace on, the remaining processes get it, although the processes above them live. So a shell
//!    with a trap that does not forward the signal costs the trainer two thirds of the time, not all of it. Two kinds of
//!    processes with the default action are still left alone: those that rule 3 protects, and those below a handler that
//!    itself gets the signal in the last third.
//!
//! Deliberately absent: /proc and signals, which the caller reads and sends. The machine sets the end of the grace.

use std::collections::HashMap;

use super::event::Uptime;

/// The period from the start of a stop to SIGKILL.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Grace {
    /// When the stop began.
    pub from: Uptime,
    /// When the remaining processes get SIGKILL.
    pub until: Uptime,
}

impl Grace {
    /// The start of its last third.
    pub fn last_third(&self) -> Uptime {
        self.until - self.until.saturating_sub(self.from) / 3
    }
}

/// When a process was sent SIGTERM.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Signalled {
    /// In trainit's uptime.
    pub at: Uptime,
    /// In the unit of [`Process::started`].
    pub tick: u64,
}

/// A living process of the tree, from one scan.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Process {
    /// Its process id.
    pub pid: i32,
    /// Its parent's process id. A process whose parent is not in the scan is at the top.
    pub parent: i32,
    /// When it started, in clock ticks since boot.
    pub started: u64,
    /// Whether it handles SIGTERM: by a handler, or by a mask that keeps the signal for sigwait(3) or signalfd(2).
    pub handles: bool,
    /// One of the command's main children.
    pub is_main: bool,
    /// When it was sent SIGTERM, if it was.
    pub signalled: Option<Signalled>,
}

impl Process {
    /// Whether it may do work after SIGTERM before it ends.
    fn may_work_after_sigterm(&self) -> bool {
        self.handles || self.is_main
    }
}

/// The tree, with parents by process id.
struct Tree<'a> {
    tree: &'a [Process],
    by_pid: HashMap<i32, usize>,
}

impl<'a> Tree<'a> {
    fn of(tree: &'a [Process]) -> Tree<'a> {
        Tree { tree, by_pid: tree.iter().enumerate().map(|(at, process)| (process.pid, at)).collect() }
    }

    fn parent(&self, of: &Process) -> Option<&'a Process> {
        self.by_pid.get(&of.parent).map(|at| &self.tree[*at])
    }

    /// The process itself and the living processes above it, nearest first. Process ids that were read one after
    /// another may form a circle, so the length is limited.
    fn with_ancestors(&self, of: &'a Process) -> impl Iterator<Item = &'a Process> {
        std::iter::successors(Some(of), |process| self.parent(process)).take(self.tree.len())
    }

    /// The processes above it, nearest first.
    fn ancestors(&self, of: &'a Process) -> impl Iterator<Item = &'a Process> {
        self.with_ancestors(of).skip(1)
    }

    /// Whether the process, or a process above it, was started by a process that had been signalled before.
    fn is_started_after_signal(&self, process: &'a Process) -> bool {
        let starter = |process: &Process| self.parent(process).and_then(|parent| parent.signalled);
        self.with_ancestors(process)
            .any(|process| starter(process).is_some_and(|signalled| signalled.tick <= process.started))
    }
}

/// The processes to send SIGTERM to now, without those that have had it. Call this again after the end of a process,
/// and after a while.
///
/// Main children are signalled at once. While signalled main children live, call this only in the last third.
pub fn next_to_signal(tree: &[Process], grace: Grace, now: Uptime) -> Vec<Process> {
    let view = Tree::of(tree);
    let is_late = now >= grace.last_third();
    let handlers_are_left = tree.iter().any(Process::may_work_after_sigterm);
    let works_after_late_signal = |ancestors: &Process| {
        ancestors.may_work_after_sigterm()
            && ancestors.signalled.is_none_or(|signalled| signalled.at >= grace.last_third())
    };
    let is_next = |process: &&Process| match process {
        _ if process.signalled.is_some() => false,
        _ if process.is_main => true,
        _ if is_late && process.handles => true,
        _ if view.is_started_after_signal(process) => false,
        _ if process.handles => !view.ancestors(process).any(Process::may_work_after_sigterm),
        _ if is_late => !view.ancestors(process).any(works_after_late_signal),
        _ => !handlers_are_left,
    };
    tree.iter().filter(is_next).copied().collect()
}

/// The processes that got no SIGTERM before the last third of the grace, each with the process above it that got it and
/// did not end.
pub fn signalled_late(tree: &[Process], last_third: Uptime) -> Vec<(Process, Process)> {
    let view = Tree::of(tree);
    let in_time = |process: &Process| process.signalled.is_some_and(|signalled| signalled.at < last_third);
    let held_back = |process| {
        if in_time(process) || view.is_started_after_signal(process) {
            return None;
        }
        let holding = view.ancestors(process).find(|ancestors| in_time(ancestors))?;
        Some((*process, *holding))
    };
    tree.iter().filter_map(held_back).collect()
}

#[cfg(test)]
mod tests;
