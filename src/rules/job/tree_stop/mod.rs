//! Which processes of a tree get the signal of a stop, and when: from the top down, and what serves others last.
//!
//! A process that handles the signal may need other processes for its answer: a pool of workers for the save, an upload
//! that the handler has started, the end of a pipe that takes the last lines, a file system. So:
//!
//! 1. A process that handles the signal gets it when no process above it handles it.
//! 2. A process with the default action gets it when no process that handles the signal is left.
//! 3. A process that ignores the signal is transparent: what it started does not wait for it.
//! 4. A process that was started by a signalled process is left alone while that process lives.
//! 5. A process whose standard input is a pipe ends by itself, at the end of its input.
//! 6. A process that started others on another terminal waits for them, because the terminal ends with it.
//! 7. What serves ([`crate::process::roles`]) waits for what it serves.
//! 8. In the last third of the grace the remaining processes get the signal, although the processes above them live. So a
//!    shell with a trap that does not forward the signal costs the trainer two thirds of the time, not all of it. Some
//!    are left alone even then: those that rule 4 protects, those below a handler that itself gets the signal in the last
//!    third, and readers of pipes while such a handler lives. Rules 6 and 7 hold until the last tenth.
//!
//! Deliberately absent: /proc and signals, which the caller reads and sends. The machine sets the end of the grace.

use std::collections::{HashMap, HashSet};

use super::event::Uptime;
use crate::process::roles::{Input, Role};
use crate::process::signal::Disposition;

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
        self.until - self.length() / 3
    }

    /// The start of its last tenth.
    pub fn last_tenth(&self) -> Uptime {
        self.until - self.length() / 10
    }

    fn length(&self) -> Uptime {
        self.until.saturating_sub(self.from)
    }
}

/// When a process was sent the signal.
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
    /// Its controlling terminal; 0 for none.
    pub terminal: i32,
    /// What it does with the signal.
    pub disposition: Disposition,
    /// One of the command's main children.
    pub is_main: bool,
    /// What it was to others.
    pub role: Role,
    /// When it was sent the signal, if it was.
    pub signalled: Option<Signalled>,
}

impl Process {
    fn ignores(&self) -> bool {
        self.disposition == Disposition::Ignores
    }

    fn handles(&self) -> bool {
        self.disposition == Disposition::Handles
    }

    /// Whether it ends when its input does. A process that handles the signal may have an input that it does not read to
    /// the end; only if that is a handler's output, it is there for it.
    fn reads_to_the_end(&self) -> bool {
        matches!(self.role.input, Input::Pipe { from_handler, .. } if from_handler || !self.handles())
    }
}

/// The tree, with parents by process id.
struct Tree<'a> {
    tree: &'a [Process],
    by_pid: HashMap<i32, usize>,
    /// The processes that wait for one on a terminal which they hold.
    holders: HashSet<i32>,
    /// The lowest rank of a process that others may serve. Whether a service is needed by the reader of its own output
    /// is ignored, because that reader waits for the service.
    lowest_rank: u32,
}

impl<'a> Tree<'a> {
    fn of(tree: &'a [Process]) -> Tree<'a> {
        let by_pid = tree.iter().enumerate().map(|(at, process)| (process.pid, at)).collect();
        let mut view = Tree { tree, by_pid, holders: HashSet::new(), lowest_rank: u32::MAX };
        view.holders = tree.iter().filter_map(|process| view.holder(process)).collect();
        let reads_from_service = |process: &Process| {
            process.reads_to_the_end() && matches!(process.role.input, Input::Pipe { from_service: true, .. })
        };
        let is_served = |p: &&Process| (p.is_main || !p.ignores()) && !reads_from_service(p);
        view.lowest_rank = tree.iter().filter(is_served).map(|p| p.role.rank).min().unwrap_or(u32::MAX);
        view
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

    /// The process that holds the terminal of this one and waits for it: the nearest above it that is on another terminal,
    /// or on none. It waits neither for a shell that ignores the signal nor for a service, which waits for it.
    fn holder(&self, of: &'a Process) -> Option<i32> {
        let holder = self.ancestors(of).find(|above| above.terminal != of.terminal)?;
        let waits = of.terminal != 0 && !of.ignores() && of.role.rank <= holder.role.rank;
        waits.then_some(holder.pid)
    }

    /// Whether the process must live for others, whatever it does with the signal.
    fn is_needed(&self, process: &Process) -> bool {
        process.role.rank > self.lowest_rank || self.holders.contains(&process.pid)
    }

    /// Whether it may do work after the signal before it ends, now or later.
    fn may_work(&self, process: &Process) -> bool {
        (process.handles() || process.is_main && !process.ignores())
            && !process.reads_to_the_end()
            && !self.is_needed(process)
    }

    /// Whether the process, or a process above it, was started by a process that had been signalled before.
    fn is_started_after_signal(&self, process: &'a Process) -> bool {
        let starter = |process: &Process| self.parent(process).and_then(|parent| parent.signalled);
        self.with_ancestors(process)
            .any(|process| starter(process).is_some_and(|signalled| signalled.tick <= process.started))
    }
}

/// The processes to send the signal to now, without those that have had it. Call this again after the end of a process,
/// and after a while.
pub fn next_to_signal(tree: &[Process], grace: Grace, now: Uptime) -> Vec<Process> {
    let view = Tree::of(tree);
    let is_late = now >= grace.last_third();
    let handlers_are_left = tree.iter().any(|process| view.may_work(process));
    let works_after_late_signal = |process: &Process| {
        view.may_work(process) && process.signalled.is_none_or(|signalled| signalled.at >= grace.last_third())
    };
    let late_handlers_are_left = tree.iter().any(works_after_late_signal);
    let is_next = |process: &&Process| match process {
        _ if process.signalled.is_some() => false,
        _ if view.is_needed(process) => now >= grace.last_tenth(),
        _ if process.is_main => true,
        _ if process.reads_to_the_end() => is_late && !late_handlers_are_left,
        _ if is_late && process.handles() => true,
        _ if view.is_started_after_signal(process) => false,
        _ if process.handles() => !view.ancestors(process).any(|above| view.may_work(above)),
        _ if is_late => !view.ancestors(process).any(works_after_late_signal),
        _ => !handlers_are_left,
    };
    tree.iter().filter(is_next).copied().collect()
}

/// The main children that must live for others when the stop begins.
pub fn waiting_mains(tree: &[Process]) -> HashSet<i32> {
    let view = Tree::of(tree);
    tree.iter().filter(|process| process.is_main && view.is_needed(process)).map(|process| process.pid).collect()
}

/// The processes that get the signal only because the grace is nearly over.
pub fn only_because_late(tree: &[Process], grace: Grace, now: Uptime) -> Vec<Process> {
    let in_time: HashSet<i32> = next_to_signal(tree, grace, grace.from).iter().map(|process| process.pid).collect();
    next_to_signal(tree, grace, now).into_iter().filter(|process| !in_time.contains(&process.pid)).collect()
}

/// The processes that got no signal before the last third of the grace, each with the process above it that got it and did
/// not end.
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
