//! Actions become deeds. What a deed brings about at once comes back as an event.

use std::collections::HashSet;
use std::time::Duration;

use super::Job;
use super::background::Background;
use super::gpu_desk::GpuDesk;
use super::job_control::JobControl;
use super::leaders::Leaders;
use super::memory::MemoryDesk;
use super::not_launched;
use super::output::{ChildEnds, Collectors};
use super::pulse::PulseDesk;
use super::pumps::{PATIENCE, Pumps, Waits};
use super::ranks::Ranks;
use super::status_desk::StatusDesk;
use super::sweep::Sweep;
use super::timers::Timers;
use crate::edge::descendants::{self, Descendant};
use crate::edge::process::{self, Launch, NotLaunched};
use crate::edge::run_dir::{HOSTFILE, KEPT, PREEMPTION, RunDir, SOCKET};
use crate::edge::wake::Bell;
use crate::edge::{clock, reaper, signals, terminal, threads};
use crate::rules::env::Changes;
use crate::rules::exit::End;
use crate::rules::framework::mpi::HOSTFILE_VARIABLE;
use crate::rules::job::{Action, Event, Outcome, Resume, Target, Uptime, child_variables};
use crate::rules::signal::Signal;
use crate::rules::status::sibling::Kept;

const FAULTHANDLER: &str = "PYTHONFAULTHANDLER";

/// Processes whose stacks are shown.
const MOST_DUMPED: usize = 64;

/// What became of an action.
pub(super) enum Done {
    /// Nothing to report yet.
    Nothing,
    /// It brought this about.
    Event(Event),
    /// The end.
    Exit(Box<Outcome>),
}

/// A start that waits until it is known what was in the trainer's files before.
pub(super) struct HeldStart {
    attempt: u32,
    resume: Option<Resume>,
    pub(super) look: Bell,
    pub(super) until: Uptime,
}

/// The hands of the supervisor.
pub(super) struct Effects {
    job: Job,
    pub(super) timers: Timers,
    pub(super) background: Background,
    pub(super) gpus: GpuDesk,
    pub(super) collectors: Option<Collectors>,
    /// Pass the attempt's output on.
    pub(super) pumps: Pumps,
    pub(super) status: StatusDesk,
    pulse: PulseDesk,
    run_dir: Option<RunDir>,
    job_control: JobControl,
    /// SIGCHLD was ignored when trainit was started.
    ignore_chld: bool,
    pub(super) leaders: Leaders,
    pub(super) held: Option<HeldStart>,
    /// Where several processes share our streams.
    ranks: Option<Ranks>,
    tree_empty: bool,
    /// What was below us before there was a job, as the `tee` of a script that then became us: not the job's to end.
    inherited: HashSet<Descendant>,
    sweep: Sweep,
    pub(super) memory: MemoryDesk,
}

impl Effects {
    pub(super) fn new(mut job: Job, background: Background, collectors: Option<Collectors>) -> Effects {
        let mut run_dir = RunDir::make(job.env.given("TMPDIR"));
        let status = StatusDesk::open(run_dir.as_ref());
        job.facts.preemption_file = run_dir.as_ref().map(|dir| dir.file(PREEMPTION));
        job.facts.heartbeat_file = run_dir.as_mut().map(RunDir::heartbeat);
        job.facts.socket = run_dir.as_ref().filter(|_| status.is_open()).map(|dir| dir.file(SOCKET));
        if let (Some(dir), Some(kept)) = (&mut run_dir, &job.kept) {
            // Who waits for it and does not find it says so.
            let _ = dir.publish(KEPT, &kept.text());
        }
        if let (Some(dir), Some(hosts)) = (&mut run_dir, &job.hostfile) {
            match dir.publish(HOSTFILE, hosts) {
                Ok(()) => job.changes.iter_mut().for_each(|c| c.set(HOSTFILE_VARIABLE, dir.file(HOSTFILE))),
                Err(error) => tracing::warn!(
                    "the host file for MPI could not be written: {error}; {HOSTFILE_VARIABLE} is not set: give the container a /tmp that can be written, or write a host file yourself"
                ),
            }
        }
        let several = job.changes.len() > 1;
        let heard = collectors.as_ref().map(Collectors::heard).unwrap_or_default();
        Effects {
            pulse: PulseDesk::new(job.facts.heartbeat_file.clone(), heard),
            gpus: GpuDesk::new(job.gpus.take()),
            job_control: JobControl::new(terminal::of_session().filter(|_| job.policy.child_has_terminal)),
            ignore_chld: signals::keep_children(),
            leaders: Leaders::default(),
            held: None,
            ranks: several.then(|| Ranks::new(std::mem::take(&mut job.names))),
            job,
            timers: Timers::default(),
            background,
            collectors,
            pumps: Pumps::default(),
            status,
            run_dir,
            tree_empty: true,
            inherited: if reaper::has_children() {
                descendants::all(|_| false).unwrap_or_default().into_iter().collect()
            } else {
                HashSet::new()
            },
            sweep: Sweep::default(),
            memory: MemoryDesk::default(),
        }
    }

    /// Which checkpoints this run commits.
    pub(super) fn kept(&self) -> Option<Kept> {
        self.job.kept.clone()
    }

    pub(super) fn perform(&mut self, now: Uptime, action: &Action) -> Done {
        match *action {
            Action::Restore => self.background.restore(),
            Action::Refresh => self.background.refresh(),
            Action::Publish => self.background.publish(),
            Action::FallBack => self.background.fall_back(),
            Action::Doubt { at, most } => self.background.doubt(now.saturating_sub(at), most),
            Action::Hurry { deadline } => self.background.hurry(deadline.saturating_sub(now)),
            Action::Hasten { notice } => self.background.hasten(notice),
            Action::Flush { deadline, leaving, failed } => {
                self.background.flush(deadline.map(|at| at.saturating_sub(now)), leaving, failed);
            }
            Action::AwaitPeers => self.background.await_peers(),
            Action::Spawn { attempt, ref resume } => return self.start(now, attempt, resume.as_ref()),
            Action::Announce { deadline } => self.announce(deadline.saturating_sub(now)),
            Action::Signal { target, signal } => self.signal(target, signal),
            Action::Suspend { at_once } => self.job_control.suspend(at_once),
            Action::TermTree => self.term_tree(),
            Action::KillTree => self.kill_tree(),
            Action::Feel => return Done::Event(self.pulse.feel(now, self.tree())),
            Action::DumpStacks => self.dump_stacks(),
            Action::AbortTree => self.sweep.send_all(Signal::ABRT, self.tree(), &self.leaders),
            Action::NameStuck => self.name_stuck(),
            Action::Arm(timer, at) => self.timers.arm(timer, at),
            Action::Disarm(timer) => self.timers.disarm(timer),
            Action::Exit(ref outcome) => return Done::Exit(outcome.clone()),
        }
        Done::Nothing
    }

    /// Tells of whom no signal reaches; whether the main children are among them.
    pub(super) fn complain(&mut self) -> bool {
        self.sweep.complain();
        let alive = self.leaders.alive();
        !alive.is_empty() && alive.iter().all(|main| self.sweep.is_refused(*main))
    }

    /// The main children that live, by local rank.
    pub(super) fn children(&self) -> Vec<i32> {
        self.leaders.alive().to_vec()
    }

    /// What can wait until the command has run for a while.
    pub(super) fn tidy_up(&mut self) {
        self.status.mend(self.run_dir.as_mut());
        if let Some(dir) = &self.run_dir {
            dir.reserve(PREEMPTION);
            dir.clear_others();
        }
    }

    /// A process of the tree ended.
    pub(super) fn ended(&mut self, now: Uptime, pid: i32, end: End) -> Vec<Event> {
        if let Some(events) = self.gpus.ended(now, pid, end) {
            return events;
        }
        let mut events = Vec::new();
        if let Some(local_rank) = self.leaders.remove(pid) {
            self.job_control.over();
            if end != End::Code(0) {
                events.extend(self.gpus.death(now));
            }
            if self.leaders.alive().is_empty() {
                self.gpus.close(now);
            }
            events.push(Event::MainEnded { local_rank, end, oom: self.memory.killed(now) });
            if self.leaders.alive().is_empty() {
                events.extend(self.pulse.last_step());
            }
        } else {
            events.push(Event::Reaped { pid, end });
        }
        events
    }

    /// A direct child was stopped.
    pub(super) fn stopped(&mut self, pid: i32, signal: Signal) {
        if self.leaders.alive().contains(&pid) {
            let local_rank = self.leaders.pids().iter().position(|p| *p == pid).unwrap_or_default();
            self.job_control.stopped(pid, &format!("local rank {local_rank}"), signal);
        }
    }

    /// Whether there was anybody before the job.
    pub(super) fn has_inherited(&self) -> bool {
        !self.inherited.is_empty()
    }

    /// Whether none of the children that wait(2) still knows of is the job's.
    pub(super) fn only_others_are_left(&self) -> bool {
        let there_are_others = !self.inherited.is_empty() || self.gpus.pid().is_some();
        let may_be = there_are_others && !self.tree_empty && self.leaders.alive().is_empty();
        may_be && descendants::are_all_apart(|d| self.is_apart(d))
    }

    /// The GPU probe is not the job's, nor is what was there before.
    fn is_apart(&self, process: &Descendant) -> bool {
        Some(process.pid) == self.gpus.pid() || self.inherited.contains(process)
    }

    /// There is no child of the job's left.
    pub(super) fn tree_is_empty(&mut self, now: Uptime) {
        if !std::mem::replace(&mut self.tree_empty, true) {
            self.pumps.end(now, self.collectors.as_ref().and_then(Collectors::read_on));
        }
    }

    /// Whether the last of an attempt's output has been passed on, too, as far as anybody waits for that.
    pub(super) fn is_heard_out(&mut self, now: Uptime, waits: Waits) -> Option<Event> {
        let is_through = self.pumps.are_through(now, waits);
        (is_through && self.leaders.alive().is_empty()).then_some(Event::TreeEmpty)
    }

    /// The run is over, whoever is left.
    pub(super) fn end(&mut self, now: Uptime) {
        self.tree_is_empty(now);
        self.pumps.end(now, None);
    }

    /// Starts the command; the first time, when it is known what was in the files to follow before it.
    fn start(&mut self, now: Uptime, attempt: u32, resume: Option<&Resume>) -> Done {
        match self.collectors.as_mut().and_then(Collectors::begin) {
            None => Done::Event(self.spawn(attempt, resume)),
            Some(look) => {
                self.held = Some(HeldStart { attempt, resume: resume.cloned(), look, until: now + PATIENCE });
                Done::Nothing
            }
        }
    }

    /// Starts what was held back when it is time; at once where the end has been asked for.
    pub(super) fn start_held(&mut self, now: Uptime, is_stopping: bool) -> Option<Event> {
        let held = self.held.take_if(|held| is_stopping || held.look.is_rung() || now >= held.until)?;
        if !is_stopping && !held.look.is_rung() {
            tracing::warn!(
                "the trainer's files could not be looked at within {} before its start: what is written to them until that is \
                 done counts as an earlier run's and is not reported; is their file system slow?",
                humantime::format_duration(PATIENCE)
            );
        }
        Some(self.spawn(held.attempt, held.resume.as_ref()))
    }

    /// One process for each local rank.
    fn spawn(&mut self, attempt: u32, resume: Option<&Resume>) -> Event {
        self.sweep.begin();
        self.status.mend(self.run_dir.as_mut());
        self.pulse.begin();
        let count = self.job.changes.len();
        self.leaders = Leaders::of(count);
        let mut ends = self.capture(count).into_iter();
        let mut facts = self.job.facts.clone();
        facts.incarnation = self.background.incarnation();
        let mut about_attempt = child_variables(&facts, attempt, resume);
        // Python then says on SIGABRT where each of its threads is.
        if self.job.policy.hang.is_some() && self.job.env.given(FAULTHANDLER).is_none() {
            about_attempt.set(FAULTHANDLER, "1".to_owned());
        }
        for local_rank in 0..count {
            let mut changes = self.job.changes[local_rank].clone();
            changes.extend(about_attempt.clone());
            if let Err(why) = self.launch(&changes, ends.next().unwrap_or_default()) {
                return self.not_launched(&why, local_rank > 0);
            }
        }
        // Only now: the command runs meanwhile.
        self.memory.begin();
        self.gpus.open();
        Event::Spawned { pids: self.leaders.pids().to_vec() }
    }

    fn launch(&mut self, changes: &Changes, ends: ChildEnds) -> Result<(), NotLaunched> {
        self.leaders.add(process::launch(Launch {
            argv: &self.job.argv,
            env: self.job.env.with(changes),
            mask: self.job.mask,
            ignore_chld: self.ignore_chld,
            new_session: self.job.policy.signal_target == Target::Group && !self.job_control.shares(),
            terminal: self.job_control.hand_on(),
            death_signal: self.job.death_signal.filter(|_| process::own_pid() != 1),
            stdout: ends.stdout,
            stderr: ends.stderr,
        })?);
        self.tree_empty = false;
        Ok(())
    }

    fn not_launched(&mut self, why: &NotLaunched, others: bool) -> Event {
        self.job_control.over();
        if !others {
            // They have no writer; left here, they would be the next attempt's to wait for.
            self.pumps = Pumps::default();
        }
        not_launched::event(&self.job.argv, self.job.env.bytes("PATH"), why, others)
    }

    /// What each process writes to. Without anything to look for, or where that is not possible, the child inherits our
    /// own descriptors.
    fn capture(&mut self, count: usize) -> Vec<ChildEnds> {
        let pumps = &mut self.pumps;
        let captured = match (&self.ranks, &self.collectors) {
            (Some(ranks), collectors) => {
                let search = collectors.as_ref().map(Collectors::search).unwrap_or_default();
                ranks.capture(&search, pumps)
            }
            (None, Some(collectors)) => collectors.capture(pumps).map(|ends| vec![ends]),
            (None, None) => return Vec::new(),
        };
        captured.unwrap_or_else(|error| {
            let what = if count > 1 { "neither kept apart by rank nor" } else { "not" };
            tracing::warn!(
                "the command's output is {what} searched for metrics, there is no pipe or thread for it: {error}"
            );
            Vec::new()
        })
    }

    /// The file exists, whole, before any signal is sent.
    fn announce(&mut self, left: Duration) {
        self.status.mend(self.run_dir.as_mut());
        let deadline = humantime::format_rfc3339_millis(clock::wall() + left);
        if let Some(dir) = &mut self.run_dir
            && let Err(error) = dir.publish(PREEMPTION, &format!("{deadline}\n"))
        {
            tracing::warn!(
                "the trainer is told of the stop by signal only, its preemption file cannot be written: {error}"
            );
        }
    }

    fn signal(&mut self, target: Target, signal: Signal) {
        self.job_control.forget();
        if target == Target::Group && signal == Signal::TERM {
            let mut sweep = std::mem::take(&mut self.sweep);
            sweep.term_groups(&self.leaders, || self.tree());
            self.sweep = sweep;
            return;
        }
        let asks_to_leave = signal.asks_to_leave() || Some(signal) == self.job.policy.preempt_signal;
        for main in self.leaders.alive() {
            let to = if target == Target::Group { -main } else { *main };
            if signal == Signal::CONT {
                self.job_control.wake(*main);
            }
            self.sweep.send(to, signal);
            // What is stopped hears nothing, and nobody would continue it before the deadline.
            if asks_to_leave && descendants::is_stopped(*main) {
                self.sweep.send(to, Signal::CONT);
            }
        }
    }

    fn term_tree(&mut self) {
        if !self.tree_empty {
            let tree = self.tree();
            self.sweep.term(tree, &self.leaders);
        }
    }

    /// The job's processes.
    fn tree(&self) -> Option<Vec<Descendant>> {
        descendants::all(|d| self.is_apart(d))
    }

    fn kill_tree(&mut self) {
        if !self.tree_empty {
            self.sweep.send_all(Signal::KILL, self.tree(), &self.leaders);
        }
    }

    fn dump_stacks(&self) {
        let tree = self.tree().unwrap_or_default();
        for process in tree.iter().take(MOST_DUMPED) {
            tracing::warn!(code = "hung", "{}", threads::stacks(process.pid));
        }
        if tree.len() > MOST_DUMPED {
            tracing::warn!(code = "hung", "{} more of its processes not shown", tree.len() - MOST_DUMPED);
        }
    }

    fn name_stuck(&self) {
        let left = match self.tree() {
            None if let Some(probe) = self.gpus.pid() => format!(
                "the GPU probe (pid {probe}) outlived it, and maybe processes that cannot be seen, as there is no /proc of \
                 this PID namespace"
            ),
            None => "processes outlived it that cannot be seen, as there is no /proc of this PID namespace".to_owned(),
            Some(tree) if tree.is_empty() => {
                "dead processes are not given up by who traces them (a debugger?)".to_owned()
            }
            Some(tree) => {
                let left: Vec<i32> = tree.iter().map(|d| d.pid).chain(self.gpus.pid()).collect();
                self.sweep.why_they_live(&left)
            }
        };
        tracing::error!("{left}; trainit leaves without them, the container's end may hang on them");
    }
}
