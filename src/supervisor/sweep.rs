//! Who is told to leave, and that nobody is told twice.

use std::collections::HashSet;
use std::io;

use super::leaders::Leaders;
use crate::edge::descendants::{self, Descendant, Moment};
use crate::edge::{process, reaper};
use crate::rules::signal::Signal;

/// Stands for all of a tree that cannot be listed.
const EVERYBODY: Descendant = Descendant { pid: -1, group: 0, started: 0, is_stopped: false };

/// The end of one attempt's processes.
#[derive(Debug, Default)]
pub(super) struct Sweep {
    /// Who has had a SIGTERM from us.
    told: HashSet<Descendant>,
    /// Who we may not signal.
    refused: HashSet<i32>,
    /// The first refusal, until it is told.
    why: Option<(Signal, io::Error)>,
    complained: bool,
}

impl Sweep {
    /// For an attempt of which nobody has been told anything.
    pub(super) fn begin(&mut self) {
        *self = Sweep::default();
    }

    /// SIGTERM to each member of the command's groups that is there at this moment.
    ///
    /// One by one, the main child first: who had a kill(2) of the whole group is not to be known afterwards. A member that was
    /// forked between our look and the signal may have left the group in its handler by the next look, and would be told
    /// again. Who is younger than this moment is told when the main children have gone, as everybody else is.
    ///
    /// `tree` looks for the job's processes. The number of a group that has died out may be a stranger's by now, so nobody
    /// else is a member.
    pub(super) fn term_groups(&mut self, leaders: &Leaders, tree: impl Fn() -> Option<Vec<Descendant>>) {
        let Some(moment) = Moment::now() else {
            // As init there may be others to tell when the main child has gone, and then members hear it twice: without
            // /proc nobody can be left out of a signal to all.
            if process::own_pid() != 1 {
                self.told.insert(EVERYBODY);
            }
            return leaders.alive().iter().for_each(|main| self.send(-main, Signal::TERM));
        };
        leaders.alive().iter().for_each(|main| self.send(*main, Signal::TERM));
        let mut told = HashSet::new();
        while let Some(tree) = tree() {
            // A fork that was under way shows itself at the latest when its parent has been told: look again until then.
            let members = tree.into_iter().filter(|d| leaders.pids().contains(&d.group));
            let older = members.filter(|d| d.was_there(moment) && !told.contains(d));
            let new: Vec<Descendant> = older.collect();
            if new.is_empty() {
                break;
            }
            for member in new {
                told.insert(member);
                if !leaders.alive().contains(&member.pid) {
                    self.send(member.pid, Signal::TERM);
                }
                if member.is_stopped {
                    self.send(member.pid, Signal::CONT);
                }
            }
        }
        self.told.extend(told);
    }

    /// SIGTERM to everybody who has had none.
    pub(super) fn term(&mut self, tree: Option<Vec<Descendant>>, leaders: &Leaders) {
        let Some(tree) = tree else {
            if self.told.insert(EVERYBODY) {
                self.send_unseen(Signal::TERM, leaders);
            }
            return;
        };
        for descendant in tree {
            if self.told.insert(descendant) {
                self.send(descendant.pid, Signal::TERM);
            }
            if descendant.is_stopped {
                self.send(descendant.pid, Signal::CONT);
            }
        }
    }

    /// A signal to everybody, told or not.
    pub(super) fn send_all(&mut self, signal: Signal, tree: Option<Vec<Descendant>>, leaders: &Leaders) {
        match tree {
            Some(tree) => tree.iter().for_each(|d| self.send(d.pid, signal)),
            None => self.send_unseen(signal, leaders),
        }
    }

    /// Without /proc: everything in our PID namespace where we are its init, else the command's process groups, as far as
    /// they are still ours.
    fn send_unseen(&mut self, signal: Signal, leaders: &Leaders) {
        if process::own_pid() == 1 {
            return self.send(-1, signal);
        }
        let ours = leaders.pids().iter().filter(|group| reaper::has_child_in(**group));
        ours.for_each(|group| self.send(-group, signal));
    }

    /// kill(2); who could not be reached is kept for [`Sweep::complain`].
    pub(super) fn send(&mut self, pid: i32, signal: Signal) {
        if let Err(error) = process::kill(pid, signal)
            && self.refused.insert(pid.abs())
        {
            self.why.get_or_insert((signal, error));
        }
    }

    /// Whether it was not to be reached.
    pub(super) fn is_refused(&self, pid: i32) -> bool {
        self.refused.contains(&pid)
    }

    /// One warning of all who could not be reached at first; of who is left in the end there is a line anyway.
    pub(super) fn complain(&mut self) {
        let Some((signal, error)) = self.why.take().filter(|_| !self.complained) else { return };
        self.complained = true;
        let who = match self.refused.len() {
            1 => "a process".to_owned(),
            count => format!("{count} processes"),
        };
        tracing::warn!(
            "{signal} could not be sent to {who} of the command's: {error}; what does not end by itself may last until the \
             container ends; let trainit run as the user of what it starts, or as root with CAP_KILL"
        );
    }

    /// Why these have outlived SIGKILL.
    pub(super) fn why_they_live(&self, pids: &[i32]) -> String {
        let (refused, stuck): (Vec<i32>, Vec<i32>) = pids.iter().partition(|pid| self.refused.contains(*pid));
        let told = |why: &str, who: Vec<i32>| {
            let who: Vec<String> = who.into_iter().map(descendants::describe).collect();
            (!who.is_empty()).then(|| format!("{why}: {}", who.join(", ")))
        };
        let clauses = [
            told("stuck in the kernel, SIGKILL does not end", stuck),
            told("may not be killed by trainit's user (a setuid program?)", refused),
        ];
        clauses.into_iter().flatten().collect::<Vec<_>>().join("; ")
    }
}
