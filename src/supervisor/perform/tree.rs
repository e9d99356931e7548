//! The processes of the job: which they are, their signals, and the ones that cannot be stopped.

use super::Performer;
use crate::edge::process::descendants::{self, Descendant};
use crate::edge::process::threads;
use crate::rules::job::{Grace, Target, Uptime};
use crate::rules::process::signal::Signal;
use crate::supervisor::job::tree_signals::Remarks;

/// The maximum number of processes in a dump of stacks.
const MOST_DUMPED: usize = 64;

impl Performer {
    /// Remarks for the log about the signals that were sent.
    pub(in crate::supervisor) fn remarks(&mut self) -> Remarks {
        self.signals.remarks()
    }

    /// Logs the processes that cannot be signalled. Returns whether all main children are among them.
    pub(in crate::supervisor) fn complain(&mut self) -> bool {
        self.signals.complain();
        let alive = self.main_children.alive();
        !alive.is_empty() && alive.iter().all(|main| self.signals.is_refused(*main))
    }

    /// A direct child was stopped.
    pub(in crate::supervisor) fn stopped(&mut self, pid: i32, signal: Signal) {
        if self.main_children.alive().contains(&pid) {
            let local_rank = self.main_children.pids().iter().position(|p| *p == pid).unwrap_or_default();
            self.terminal_stop.stopped(pid, &format!("local rank {local_rank}"), signal);
        }
    }

    /// Whether processes older than the job exist.
    pub(in crate::supervisor) fn has_inherited(&self) -> bool {
        !self.inherited.is_empty()
    }

    /// Whether no child that wait(2) still reports belongs to the job.
    pub(in crate::supervisor) fn only_others_are_left(&self) -> bool {
        let there_are_others = !self.inherited.is_empty() || self.gpus.pid().is_some();
        let may_be = there_are_others && !self.tree_empty && self.main_children.alive().is_empty();
        may_be && descendants::are_all_apart(|d| self.is_apart(d))
    }

    /// The GPU probe and older processes are not part of the job.
    fn is_apart(&self, process: &Descendant) -> bool {
        Some(process.pid) == self.gpus.pid() || self.inherited.contains(process)
    }

    /// The processes of the job.
    pub(super) fn tree(&self) -> Option<Vec<Descendant>> {
        descendants::all(|d| self.is_apart(d))
    }

    pub(super) fn signal(&mut self, now: Uptime, target: Target, signal: Signal) {
        self.terminal_stop.forget();
        if target == Target::Group && signal == self.signals.stop_signal() {
            let mut signals = std::mem::take(&mut self.signals);
            signals.signal_groups(now, signal, &self.main_children, || self.tree());
            self.signals = signals;
            return;
        }
        let asks_to_leave = signal.asks_to_leave() || Some(signal) == self.job.policy.preempt_signal;
        for main in self.main_children.alive() {
            let to = if target == Target::Group { -main } else { *main };
            if signal == Signal::CONT {
                self.terminal_stop.wake(*main);
            }
            match target {
                Target::Leader => self.signals.send_main(now, to, signal),
                Target::Group => self.signals.send_to(to, signal),
            }
            // A stopped process cannot handle the signal before the deadline unless it is continued.
            if asks_to_leave && descendants::is_stopped(*main) {
                self.signals.send_to(to, Signal::CONT);
            }
        }
    }

    pub(super) fn look_at_tree(&mut self, signal: Signal) {
        let tree = self.tree();
        self.signals.look(signal, tree, &self.main_children);
    }

    pub(super) fn signal_tree(&mut self, now: Uptime, grace: Grace, signal: Signal) {
        if !self.tree_empty {
            let tree = self.tree();
            self.signals.signal_next(now, grace, signal, self.job.policy.signal_target, tree, &self.main_children);
        }
    }

    /// Returns the number of processes, if it can be known.
    pub(super) fn kill_tree(&mut self) -> Option<usize> {
        if self.tree_empty {
            return None;
        }
        let tree = descendants::tree(|d| self.is_apart(d));
        let count = tree.as_ref().map(|tree| tree.count);
        self.signals.kill(tree, &self.main_children, self.job.policy.signal_target);
        count
    }

    pub(super) fn dump_stacks(&self) {
        let tree = self.tree().unwrap_or_default();
        for process in tree.iter().take(MOST_DUMPED) {
            tracing::warn!(code = "hung", "{}", threads::stacks(process.pid));
        }
        if tree.len() > MOST_DUMPED {
            tracing::warn!(code = "hung", "{} more processes of the command are not shown", tree.len() - MOST_DUMPED);
        }
    }

    pub(super) fn name_stuck(&self) {
        let left = match self.tree() {
            None if let Some(probe) = self.gpus.pid() => format!(
                "the GPU probe (pid {probe}) outlived the command, and maybe processes that cannot be seen did too, as \
                 there is no /proc of this PID namespace"
            ),
            None => "processes that cannot be seen outlived the command, as there is no /proc of this PID namespace"
                .to_owned(),
            Some(tree) if tree.is_empty() => "dead processes are held by their tracer (a debugger?)".to_owned(),
            Some(tree) => {
                let left: Vec<i32> = tree.iter().map(|d| d.pid).chain(self.gpus.pid()).collect();
                self.signals.survival_reason(&left)
            }
        };
        tracing::error!("{left}; trainit exits without them, and the end of the container may hang");
    }
}
