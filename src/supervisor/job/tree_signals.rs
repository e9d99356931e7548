//! Sends signals to the job's processes, records which have received SIGTERM so that none receives it twice, and
//! collects remarks for the log. [`tree_stop`] decides the order.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::io;

use crate::edge::clock;
use crate::edge::process::descendants::{self, Descendant, Disposition, Moment, Tree};
use crate::edge::process::{reaper, spawn};
use crate::rules::job::tree_stop::{self, Grace, Process, Signalled};
use crate::rules::job::{Target, Uptime};
use crate::rules::process::signal::Signal;
use crate::supervisor::job::main_children::MainChildren;

/// More processes than this are counted instead of named.
const NAMED: usize = 16;

/// The signals sent to the processes of one attempt.
#[derive(Debug, Default)]
pub(in crate::supervisor) struct TreeSignals {
    /// Processes that we sent SIGTERM, and whether they handle it.
    signalled: HashMap<Descendant, (Signalled, bool)>,
    /// The same for main children. Their PIDs cannot be reused until they are reaped.
    signalled_mains: HashMap<i32, Signalled>,
    /// SIGTERM was sent to all of a tree that cannot be listed.
    has_signalled_unseen: bool,
    /// The start of the last third of the grace period, once the tree has been signalled.
    last_third: Option<Uptime>,
    /// Processes that we lack the permission to signal.
    refused: HashSet<i32>,
    /// The first refused signal, until it is logged.
    why: Option<(Signal, io::Error)>,
    complained: bool,
    /// SIGKILL was sent.
    killed: bool,
    remarks: Remarks,
}

/// Remarks for the log about the signals that were sent.
#[derive(Debug, Default)]
pub(in crate::supervisor) struct Remarks {
    /// The processes left when the last main child had ended.
    pub(in crate::supervisor) left_behind: Option<String>,
    /// The processes killed at the deadline, and which of them had not received SIGTERM.
    pub(in crate::supervisor) killed: Option<String>,
}

impl TreeSignals {
    /// Resets the state for a new attempt.
    pub(in crate::supervisor) fn begin(&mut self) {
        *self = TreeSignals::default();
    }

    /// The remarks since the last call.
    pub(in crate::supervisor) fn remarks(&mut self) -> Remarks {
        std::mem::take(&mut self.remarks)
    }

    /// Sends a signal to a live main child.
    pub(in crate::supervisor) fn send_main(&mut self, now: Uptime, main: i32, signal: Signal) {
        if signal == Signal::TERM {
            self.signalled_mains.entry(main).or_insert(Signalled { at: now, tick: clock::boot_ticks() });
        }
        self.send_to(main, signal);
    }

    /// Sends SIGTERM to each present member of the command's process groups.
    ///
    /// One by one, the main child first: after a kill(2) of the whole group it is unknown which processes were reached.
    /// A member that was forked between our scan and the signal may have left the group in its handler by the next
    /// scan, and would get a second signal. A process younger than this call is signalled after the main children have
    /// ended.
    ///
    /// `tree` scans for the job's processes. Processes outside the job are excluded, because the ID of an empty group
    /// may have been reused.
    pub(in crate::supervisor) fn term_groups(
        &mut self,
        now: Uptime,
        main_children: &MainChildren,
        tree: impl Fn() -> Option<Vec<Descendant>>,
    ) {
        let Some(moment) = Moment::now() else {
            // As init, other processes may need the signal after the main child has ended. Group members then get it
            // twice, because without /proc no process can be excluded from a signal to all.
            self.has_signalled_unseen = spawn::own_pid() != 1;
            return main_children.alive().iter().for_each(|main| self.send_to(-main, Signal::TERM));
        };
        main_children.alive().iter().for_each(|main| self.send_main(now, *main, Signal::TERM));
        let mut signalled = HashSet::new();
        while let Some(tree) = tree() {
            // A fork in progress is visible at the latest after its parent was signalled: scan until no new member
            // appears.
            let members = tree.into_iter().filter(|d| main_children.pids().contains(&d.group));
            let older = members.filter(|d| d.existed_at(moment) && !signalled.contains(d));
            let new: Vec<Descendant> = older.collect();
            if new.is_empty() {
                break;
            }
            for member in new {
                signalled.insert(member);
                if !main_children.alive().contains(&member.pid) {
                    self.send(&member, Signal::TERM);
                }
                if member.is_stopped {
                    self.send(&member, Signal::CONT);
                }
            }
        }
        let when = Signalled { at: now, tick: clock::boot_ticks() };
        self.signalled.extend(signalled.into_iter().map(|member| (member, (when, true))));
    }

    /// Sends SIGTERM to the processes that are next in order; if the target is the group, to all that have not received
    /// it.
    pub(in crate::supervisor) fn term(
        &mut self,
        now: Uptime,
        grace: Grace,
        target: Target,
        tree: Option<Vec<Descendant>>,
        main_children: &MainChildren,
    ) {
        let Some(tree) = tree else {
            // A live main child that already got the signal would get it again.
            let are_signalled = main_children.alive().iter().any(|main| self.signalled_mains.contains_key(main));
            if !are_signalled && !std::mem::replace(&mut self.has_signalled_unseen, true) {
                self.send_unseen(Signal::TERM, main_children);
            }
            return;
        };
        let is_first = self.last_third.replace(grace.last_third()).is_none();
        let mut ignores = HashSet::new();
        let processes: Vec<Process> = tree.iter().map(|d| self.as_seen(d, main_children, &mut ignores)).collect();
        let next: HashSet<i32> = match target {
            Target::Leader => tree_stop::next_to_signal(&processes, grace, now).iter().map(|p| p.pid).collect(),
            Target::Group => processes.iter().filter(|p| p.signalled.is_none()).map(|p| p.pid).collect(),
        };
        for (descendant, process) in tree.iter().zip(&processes) {
            if next.contains(&process.pid) {
                // Take the time before the signal: processes started in response are younger.
                let sent = Signalled { at: now, tick: clock::boot_ticks() };
                match process.is_main {
                    true => self.send_main(now, process.pid, Signal::TERM),
                    false => self.send(descendant, Signal::TERM),
                }
                self.signalled.insert(*descendant, (sent, process.handles));
            }
            if descendant.is_stopped && (process.signalled.is_some() || next.contains(&process.pid)) {
                self.send(descendant, Signal::CONT);
            }
        }
        if is_first && main_children.alive().is_empty() {
            // A process that ignores SIGTERM is a helper that ends by itself, like multiprocessing's resource tracker.
            let left: Vec<i32> = processes.iter().map(|p| p.pid).filter(|pid| !ignores.contains(pid)).collect();
            self.remarks.left_behind = names(&left);
        }
    }

    fn as_seen(&self, descendant: &Descendant, main_children: &MainChildren, ignores: &mut HashSet<i32>) -> Process {
        let Descendant { pid, parent, started, .. } = *descendant;
        let is_main = main_children.alive().contains(&pid);
        let (sent, handles) = match self.signalled.get(descendant) {
            Some((sent, handles)) => (Some(*sent), *handles),
            None => {
                let disposition = descendants::disposition(pid, Signal::TERM);
                if disposition == Disposition::Ignores {
                    ignores.insert(pid);
                }
                (self.signalled_mains.get(&pid).filter(|_| is_main).copied(), disposition == Disposition::Handles)
            }
        };
        Process { pid, parent, started, handles, is_main, signalled: sent }
    }

    /// Sends SIGABRT to the processes that handle it, so that a reader of their last output lives; to all if none does.
    pub(in crate::supervisor) fn abort(&mut self, tree: Option<Vec<Descendant>>, main_children: &MainChildren) {
        let Some(tree) = tree else { return self.send_unseen(Signal::ABRT, main_children) };
        let handles = |d: &&Descendant| descendants::disposition(d.pid, Signal::ABRT) == Disposition::Handles;
        let handlers: Vec<&Descendant> = tree.iter().filter(handles).collect();
        let receivers = if handlers.is_empty() { tree.iter().collect() } else { handlers };
        receivers.into_iter().for_each(|d| self.send(d, Signal::ABRT));
    }

    /// Sends SIGKILL to every process of the tree. For processes that fork faster than they can be listed, one call
    /// kills many: all processes of a PID namespace if we are its init and it holds only the job, otherwise each group.
    pub(in crate::supervisor) fn kill(&mut self, tree: Option<Tree>, main_children: &MainChildren, target: Target) {
        let is_first = !std::mem::replace(&mut self.killed, true);
        let Some(tree) = tree else { return self.send_unseen(Signal::KILL, main_children) };
        if spawn::own_pid() == 1 && tree.is_alone {
            // An error is reported by the loop below.
            let _ = spawn::kill(-1, Signal::KILL);
        } else {
            tree.groups.iter().for_each(|group| drop(spawn::kill(-group, Signal::KILL)));
        }
        tree.processes.iter().for_each(|process| self.send(process, Signal::KILL));
        if is_first {
            let pids: Vec<i32> = tree.processes.iter().map(|process| process.pid).collect();
            self.remarks.killed =
                names(&pids).map(|names| match self.signalled_late(&tree.processes, main_children, target) {
                    Some(signalled_late) => format!("{names}; {signalled_late}"),
                    None => names,
                });
        }
    }

    /// Lists the processes that did not receive SIGTERM in time, with advice.
    fn signalled_late(&self, tree: &[Descendant], main_children: &MainChildren, target: Target) -> Option<String> {
        if target == Target::Group {
            return None;
        }
        let processes: Vec<Process> =
            tree.iter().map(|d| self.as_seen(d, main_children, &mut HashSet::new())).collect();
        let mut by_keeper = BTreeMap::<(i32, bool, bool), Vec<i32>>::new();
        for (process, blocker) in tree_stop::signalled_late(&processes, self.last_third.unwrap_or(Uptime::MAX)) {
            let key = (blocker.pid, process.parent == blocker.pid, process.signalled.is_some());
            by_keeper.entry(key).or_default().push(process.pid);
        }
        let clause = |((blocker, is_parent, is_late), pids): ((i32, bool, bool), Vec<i32>)| {
            let when = if is_late { " before the last third of the grace" } else { "" };
            let blocker = match is_parent {
                true => format!("its parent {}", descendants::name(blocker)),
                false => format!("{} above it", descendants::name(blocker)),
            };
            Some(format!("{} never got SIGTERM{when}: {blocker} does not forward it", names(&pids)?))
        };
        let clauses: Vec<String> = by_keeper.into_iter().filter_map(clause).collect();
        let way_out = "start it with exec, or use --signal-target group";
        (!clauses.is_empty()).then(|| format!("{}: {way_out}", clauses.join("; ")))
    }

    /// Without /proc: signals every process of the PID namespace if we are its init, otherwise the command's process
    /// groups that still contain a child of ours.
    fn send_unseen(&mut self, signal: Signal, main_children: &MainChildren) {
        if spawn::own_pid() == 1 {
            return self.send_to(-1, signal);
        }
        let groups = main_children.pids().iter().filter(|group| reaper::has_child_in(**group));
        groups.for_each(|group| self.send_to(-group, signal));
    }

    /// Sends a signal to this process only, never to a later one with the same PID.
    fn send(&mut self, to: &Descendant, signal: Signal) {
        let sent = descendants::send(to, signal);
        self.note(to.pid, signal, sent);
    }

    /// kill(2) for IDs that cannot have been reused: main children that were not reaped, and groups.
    pub(in crate::supervisor) fn send_to(&mut self, pid: i32, signal: Signal) {
        let sent = spawn::kill(pid, signal);
        self.note(pid, signal, sent);
    }

    /// Records a process that could not be signalled, for [`TreeSignals::complain`]. A process with a full queue of
    /// signals still receives other signals.
    fn note(&mut self, pid: i32, signal: Signal, sent: io::Result<()>) {
        if let Err(error) = sent
            && error.kind() != io::ErrorKind::WouldBlock
            && self.refused.insert(pid.abs())
        {
            self.why.get_or_insert((signal, error));
        }
    }

    /// Whether a signal to it was refused.
    pub(in crate::supervisor) fn is_refused(&self, pid: i32) -> bool {
        self.refused.contains(&pid)
    }

    /// Logs one warning for all processes that could not be signalled. Those left at the end get a line of their own.
    pub(in crate::supervisor) fn complain(&mut self) {
        let Some((signal, error)) = self.why.take().filter(|_| !self.complained) else { return };
        self.complained = true;
        let processes = match self.refused.len() {
            1 => "a process".to_owned(),
            count => format!("{count} processes"),
        };
        tracing::warn!(
            "{signal} could not be sent to {processes} of the command's: {error}; a process that does not end by itself \
             may live until the container ends; run trainit as the user of the command, or as root with CAP_KILL"
        );
    }

    /// The reason why these processes have survived SIGKILL.
    pub(in crate::supervisor) fn survival_reason(&self, pids: &[i32]) -> String {
        let (refused, stuck): (Vec<i32>, Vec<i32>) = pids.iter().partition(|pid| self.refused.contains(*pid));
        let clause = |why: &str, pids: Vec<i32>| {
            let names: Vec<String> = pids.into_iter().map(descendants::describe).collect();
            (!names.is_empty()).then(|| format!("{why}: {}", names.join(", ")))
        };
        let clauses = [
            clause("stuck in the kernel, not ended by SIGKILL", stuck),
            clause("may not be killed by trainit's user (a setuid program?)", refused),
        ];
        clauses.into_iter().flatten().collect::<Vec<_>>().join("; ")
    }
}

/// `python3 (pid 7), sleep (pid 9)`; `None` for an empty list.
fn names(pids: &[i32]) -> Option<String> {
    let first = pids.iter().take(NAMED).map(|pid| format!("{} (pid {pid})", descendants::name(*pid)));
    let first = first.collect::<Vec<_>>().join(", ");
    match pids.len() {
        0 => None,
        count if count > NAMED => Some(format!("{first} and {} more", count - NAMED)),
        _ => Some(first),
    }
}
