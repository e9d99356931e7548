//! Sends signals to the job's processes, records which have received the stop's signal so that none receives it twice, and
//! collects remarks for the log. [`tree_stop`] decides the order.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::io;

use crate::edge::clock;
use crate::edge::process::descendants::{self, Descendant, Moment, Tree};
use crate::edge::process::{facts, reaper, spawn};
use crate::rules::job::tree_stop::{self, Grace, Process, Signalled};
use crate::rules::job::{Target, Uptime};
use crate::rules::process::roles::{self, Role};
use crate::rules::process::signal::{Disposition, Signal};
use crate::supervisor::job::main_children::MainChildren;

/// More processes than this are counted instead of named.
const NAMED: usize = 16;

/// The signals sent to the processes of one attempt.
#[derive(Debug, Default)]
pub(in crate::supervisor) struct TreeSignals {
    /// The signal of the stop, once one is sent to the tree.
    stop_signal: Option<Signal>,
    /// Processes that we sent the stop's signal, and what they did with it then.
    signalled: HashMap<Descendant, (Signalled, Disposition)>,
    /// Main children that we sent a signal. Their PIDs cannot be reused until they are reaped.
    signalled_mains: HashMap<(i32, Signal), Signalled>,
    /// The living processes of the last scan, and their roles when the stop began.
    roles: Option<HashMap<Descendant, Role>>,
    /// Main children that must outlive others, and got no signal when the stop began.
    waiting_mains: HashSet<i32>,
    /// The stop's signal was sent to all of a tree that cannot be listed.
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
    /// A main child gets the stop's signal later, because others need it.
    pub(in crate::supervisor) main_waits: bool,
    /// The processes that got the stop's signal only now, because the grace is nearly over.
    pub(in crate::supervisor) late: Option<String>,
    /// The processes killed at the deadline, and which of them had not received the stop's signal.
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

    /// The signal of the stop. Until it has been sent, SIGTERM.
    pub(in crate::supervisor) fn stop_signal(&self) -> Signal {
        self.stop_signal.unwrap_or(Signal::TERM)
    }

    /// Records what the processes are to each other, before the first of them gets the stop's signal.
    pub(in crate::supervisor) fn look(
        &mut self,
        signal: Signal,
        tree: Option<Vec<Descendant>>,
        main_children: &MainChildren,
    ) {
        self.stop_signal.get_or_insert(signal);
        if let Some(tree) = tree {
            self.update_roles(&tree, main_children);
        }
    }

    /// A process that appears during the stop has the rank of its parent. If the parent is gone already, it is part of an
    /// answer to the signal and serves like a daemon.
    fn update_roles(&mut self, tree: &[Descendant], main_children: &MainChildren) {
        let Some(before) = self.roles.take() else {
            let facts = facts::of_tree(tree, main_children.alive(), self.stop_signal());
            let roles = roles::roles(&facts);
            self.roles = Some(tree.iter().map(|d| (*d, roles.get(&d.pid).copied().unwrap_or_default())).collect());
            let processes: Vec<Process> = tree.iter().map(|d| self.as_seen(d, main_children)).collect();
            self.waiting_mains = tree_stop::waiting_mains(&processes);
            return;
        };
        let mut ranks = HashMap::new();
        let mut now = HashMap::new();
        // A parent comes before its children.
        for process in tree {
            let of_parent = || match ranks.get(&process.parent) {
                Some(rank) => *rank,
                None => u32::from(!main_children.alive().contains(&process.pid)),
            };
            let role = before.get(process).copied().unwrap_or_else(|| Role { rank: of_parent(), ..Role::default() });
            ranks.insert(process.pid, role.rank);
            now.insert(*process, role);
        }
        self.roles = Some(now);
    }

    /// Sends a signal to a live main child. One that must outlive others gets the stop's signal in the order of the tree.
    pub(in crate::supervisor) fn send_main(&mut self, now: Uptime, main: i32, signal: Signal) {
        if self.stop_signal == Some(signal) && self.waiting_mains.contains(&main) {
            self.remarks.main_waits = true;
            return;
        }
        self.signalled_mains.entry((main, signal)).or_insert(Signalled { at: now, tick: clock::boot_ticks() });
        self.send_to(main, signal);
    }

    /// Sends the stop's signal to each present member of the command's process groups.
    ///
    /// One by one, the main child first: after a kill(2) of the whole group it is unknown which processes were reached.
    /// A member that was forked between our scan and the signal may have left the group in its handler by the next
    /// scan, and would get a second signal. A process younger than this call is signalled after the main children have
    /// ended.
    ///
    /// `tree` scans for the job's processes. Processes outside the job are excluded, because the ID of an empty group
    /// may have been reused.
    pub(in crate::supervisor) fn signal_groups(
        &mut self,
        now: Uptime,
        signal: Signal,
        main_children: &MainChildren,
        tree: impl Fn() -> Option<Vec<Descendant>>,
    ) {
        let Some(moment) = Moment::now() else {
            // As init, other processes may need the signal after the main child has ended. Group members then get it
            // twice, because without /proc no process can be excluded from a signal to all.
            self.has_signalled_unseen = spawn::own_pid() != 1;
            return main_children.alive().iter().for_each(|main| self.send_to(-main, signal));
        };
        main_children.alive().iter().for_each(|main| self.send_main(now, *main, signal));
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
                    self.send(&member, signal);
                }
                if member.is_stopped {
                    self.send(&member, Signal::CONT);
                }
            }
        }
        let when = Signalled { at: now, tick: clock::boot_ticks() };
        self.signalled.extend(signalled.into_iter().map(|member| (member, (when, Disposition::Handles))));
    }

    /// Sends the stop's signal to the processes that are next in order; if the target is the group, to all that have not
    /// received it.
    pub(in crate::supervisor) fn signal_next(
        &mut self,
        now: Uptime,
        grace: Grace,
        signal: Signal,
        target: Target,
        tree: Option<Vec<Descendant>>,
        main_children: &MainChildren,
    ) {
        let Some(tree) = tree else {
            // A live main child that already got the signal would get it again.
            let are_signalled =
                main_children.alive().iter().any(|main| self.signalled_mains.contains_key(&(*main, signal)));
            if !are_signalled && !std::mem::replace(&mut self.has_signalled_unseen, true) {
                self.send_unseen(signal, main_children);
            }
            return;
        };
        self.stop_signal.get_or_insert(signal);
        self.update_roles(&tree, main_children);
        let is_first = self.last_third.replace(grace.last_third()).is_none();
        let processes: Vec<Process> = tree.iter().map(|d| self.as_seen(d, main_children)).collect();
        let next: HashSet<i32> = match target {
            Target::Leader => {
                self.remark_late(&processes, grace, now);
                tree_stop::next_to_signal(&processes, grace, now).iter().map(|p| p.pid).collect()
            }
            Target::Group => processes.iter().filter(|p| p.signalled.is_none()).map(|p| p.pid).collect(),
        };
        if is_first && main_children.alive().is_empty() {
            // A process that ignores SIGTERM is a helper that ends by itself, like multiprocessing's resource tracker.
            let stays = |process: &&Process| process.disposition != Disposition::Ignores;
            let left: Vec<i32> = processes.iter().filter(stays).map(|process| process.pid).collect();
            self.remarks.left_behind = names(&left);
        }
        for (descendant, process) in tree.iter().zip(&processes) {
            if next.contains(&process.pid) {
                // Take the time before the signal: processes started in response are younger.
                let sent = Signalled { at: now, tick: clock::boot_ticks() };
                match (process.is_main, process.disposition) {
                    (true, _) => {
                        self.waiting_mains.remove(&process.pid);
                        self.send_main(now, process.pid, signal);
                    }
                    // A shell's background job ignores SIGINT, and would stay to the end of the grace.
                    (false, Disposition::Ignores) => self.send(descendant, Signal::TERM),
                    (false, _) => self.send(descendant, signal),
                }
                self.signalled.insert(*descendant, (sent, process.disposition));
            }
            if descendant.is_stopped && (process.signalled.is_some() || next.contains(&process.pid)) {
                self.send(descendant, Signal::CONT);
            }
        }
    }

    fn as_seen(&self, descendant: &Descendant, main_children: &MainChildren) -> Process {
        let Descendant { pid, parent, started, terminal, .. } = *descendant;
        let is_main = main_children.alive().contains(&pid);
        let role = self.roles.as_ref().and_then(|roles| roles.get(descendant)).copied().unwrap_or_default();
        let of_main = || self.signalled_mains.get(&(pid, self.stop_signal())).filter(|_| is_main).copied();
        let (signalled, disposition) = match self.signalled.get(descendant) {
            Some((sent, disposition)) => (Some(*sent), *disposition),
            None => (of_main(), facts::disposition(pid, self.stop_signal())),
        };
        Process { pid, parent, started, terminal, disposition, is_main, role, signalled }
    }

    /// Sends SIGABRT to the processes that handle it, so that a reader of their last output lives; to all if none does.
    pub(in crate::supervisor) fn abort(&mut self, tree: Option<Vec<Descendant>>, main_children: &MainChildren) {
        let Some(tree) = tree else { return self.send_unseen(Signal::ABRT, main_children) };
        let handles = |d: &&Descendant| facts::disposition(d.pid, Signal::ABRT) == Disposition::Handles;
        let handlers: Vec<&Descendant> = tree.iter().filter(handles).collect();
        let receivers = if handlers.is_empty() { tree.iter().collect() } else { handlers };
        receivers.into_iter().for_each(|d| self.send(d, Signal::ABRT));
    }

    /// Sends SIGKILL to every process of the tree. For processes that fork faster than they can be listed, one call
    /// kills many: all processes of a PID namespace if we are its init and it holds only the job, otherwise each group.
    pub(in crate::supervisor) fn kill(&mut self, tree: Option<Tree>, main_children: &MainChildren, target: Target) {
        let is_first = !std::mem::replace(&mut self.killed, true);
        let Some(tree) = tree else { return self.send_unseen(Signal::KILL, main_children) };
        if is_first {
            // Before the signal, because a dead process may have no name.
            self.remark_killed(&tree.processes, main_children, target);
        }
        if spawn::own_pid() == 1 && tree.is_alone {
            // An error is reported by the loop below.
            let _ = spawn::kill(-1, Signal::KILL);
        } else {
            tree.groups.iter().for_each(|group| drop(spawn::kill(-group, Signal::KILL)));
        }
        tree.processes.iter().for_each(|process| self.send(process, Signal::KILL));
    }

    fn remark_late(&mut self, processes: &[Process], grace: Grace, now: Uptime) {
        if now < grace.last_third() {
            return;
        }
        let late: Vec<i32> = tree_stop::only_because_late(processes, grace, now).iter().map(|p| p.pid).collect();
        let is_late = |process: &Process| late.contains(&process.pid);
        let blocked = tree_stop::signalled_late(processes, grace.last_third());
        let held_back = self.held_back(blocked.into_iter().filter(|(process, _)| is_late(process)));
        self.remarks.late = names(&late).map(|names| {
            let signal = self.stop_signal();
            let why = held_back.map(|why| format!("; {why}")).unwrap_or_default();
            format!("the grace is nearly over: {signal} only now for {names}{why}")
        });
    }

    fn remark_killed(&mut self, tree: &[Descendant], main_children: &MainChildren, target: Target) {
        let pids: Vec<i32> = tree.iter().map(|process| process.pid).collect();
        let processes = || -> Vec<Process> { tree.iter().map(|d| self.as_seen(d, main_children)).collect() };
        let held_back = match target {
            Target::Leader => self
                .held_back(tree_stop::signalled_late(&processes(), self.last_third.unwrap_or(Uptime::MAX)).into_iter()),
            Target::Group => None,
        };
        self.remarks.killed = names(&pids).map(|names| match held_back {
            Some(why) => format!("{names}; {why}"),
            None => names,
        });
    }

    /// Lists the processes that did not receive the stop's signal in time, each with what held it back, with advice.
    fn held_back(&self, late: impl Iterator<Item = (Process, Process)>) -> Option<String> {
        let mut by_blocker = BTreeMap::<(i32, bool, bool), Vec<i32>>::new();
        for (process, blocker) in late {
            let key = (blocker.pid, process.parent == blocker.pid, process.signalled.is_some());
            by_blocker.entry(key).or_default().push(process.pid);
        }
        let signal = self.stop_signal();
        let clause = |((blocker, is_parent, is_late), pids): ((i32, bool, bool), Vec<i32>)| {
            let when = if is_late { " before the last third of the grace" } else { "" };
            let blocker = match is_parent {
                true => format!("its parent {}", descendants::name(blocker)),
                false => format!("{} above it", descendants::name(blocker)),
            };
            Some(format!("{} never got {signal}{when}: {blocker} does not forward it", names(&pids)?))
        };
        let clauses: Vec<String> = by_blocker.into_iter().filter_map(clause).collect();
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
