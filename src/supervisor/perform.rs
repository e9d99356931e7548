//! Performs actions of the job machine. An effect that is known at once is returned as an event.

use std::collections::HashSet;
use std::time::Duration;

use crate::edge::clock;
use crate::edge::fs::run_dir::{HOSTFILE, KEPT, PREEMPTION, RunDir, SOCKET};
use crate::edge::io::eventfd::EventFd;
use crate::edge::io::stdio;
use crate::edge::process::descendants::{self, Descendant};
use crate::edge::process::spawn::{self, Launch, NotLaunched};
use crate::edge::process::{reaper, signals, threads};
use crate::rules::framework::mpi::HOSTFILE_VARIABLE;
use crate::rules::gang::member::Event as MemberEvent;
use crate::rules::gang::message::Offer;
use crate::rules::job::{Action, Event, Grace, Outcome, Resume, Target, Uptime, child_variables};
use crate::rules::process::env::Changes;
use crate::rules::process::exit::End;
use crate::rules::process::signal::Signal;
use crate::rules::status::sibling::Kept;
use crate::supervisor::Job;
use crate::supervisor::background::Background;
use crate::supervisor::gang::GangDesk;
use crate::supervisor::gpu::events::GpuEvents;
use crate::supervisor::job::liveness::Liveness;
use crate::supervisor::job::main_children::MainChildren;
use crate::supervisor::job::memory::MemoryWatch;
use crate::supervisor::job::terminal_stop::TerminalStop;
use crate::supervisor::job::tree_signals::{Remarks, TreeSignals};
use crate::supervisor::job::{death_clues, flight_recorder, not_launched};
use crate::supervisor::output::drain::{OutputThreads, TIMEOUT, Waits};
use crate::supervisor::output::ranks::Ranks;
use crate::supervisor::output::{ChildEnds, Collectors};
use crate::supervisor::status::history::History;
use crate::supervisor::status::report::Report;
use crate::supervisor::status::socket::StatusEndpoint;
use crate::supervisor::timers::Timers;

const FAULTHANDLER: &str = "PYTHONFAULTHANDLER";

/// The maximum number of processes in a dump of stacks.
const MOST_DUMPED: usize = 64;

/// The result of an action.
pub(super) enum Done {
    /// Nothing to report yet.
    Nothing,
    /// The action caused these events, in this order.
    Events(Vec<Event>),
    /// The job is over.
    Exit(Box<Outcome>),
}

/// A start that waits until the existing content of the trainer's files is recorded.
pub(super) struct HeldStart {
    attempt: u32,
    resume: Option<Resume>,
    pub(super) look: EventFd,
    pub(super) until: Uptime,
}

/// Performs the actions and holds the resources that they need.
pub(super) struct Performer {
    job: Job,
    pub(super) timers: Timers,
    pub(super) background: Background,
    pub(super) gpus: GpuEvents,
    pub(super) collectors: Option<Collectors>,
    /// The threads that pass on the attempt's output.
    pub(super) output_threads: OutputThreads,
    pub(super) status: StatusEndpoint,
    pub(super) history: History,
    pub(super) report: Option<Report>,
    pub(super) liveness: Liveness,
    run_dir: Option<RunDir>,
    terminal_stop: TerminalStop,
    /// SIGCHLD was ignored when trainit was started.
    ignore_chld: bool,
    pub(super) main_children: MainChildren,
    pub(super) held: Option<HeldStart>,
    /// Present if several processes share our streams.
    ranks: Option<Ranks>,
    tree_empty: bool,
    /// Processes below us that are older than the job, for example the `tee` of a script that then called exec. They
    /// are not part of the job and are not stopped.
    inherited: HashSet<Descendant>,
    signals: TreeSignals,
    pub(super) memory: MemoryWatch,
    pub(super) gang: Option<GangDesk>,
}

impl Performer {
    pub(super) fn new(
        mut job: Job,
        background: Background,
        collectors: Option<Collectors>,
        gang: Option<GangDesk>,
        history: History,
    ) -> Performer {
        let mut run_dir = RunDir::make(job.env.given("TMPDIR"));
        let status = StatusEndpoint::open(run_dir.as_ref());
        job.facts.preemption_file = run_dir.as_ref().map(|dir| dir.file(PREEMPTION));
        job.facts.heartbeat_file = run_dir.as_mut().map(RunDir::heartbeat);
        if let Some(path) = &job.facts.heartbeat_file {
            background.heartbeat_is_at(path);
        }
        job.facts.socket = run_dir.as_ref().filter(|_| status.is_open()).map(|dir| dir.file(SOCKET));
        if let (Some(dir), Some(kept)) = (&mut run_dir, &job.kept) {
            // A process that waits for this file reports if it is missing.
            let _ = dir.publish(KEPT, &kept.text());
        }
        if let (Some(dir), Some(hosts)) = (&mut run_dir, &job.hostfile) {
            match dir.publish(HOSTFILE, hosts) {
                Ok(()) => job.changes.iter_mut().for_each(|c| c.set(HOSTFILE_VARIABLE, dir.file(HOSTFILE))),
                Err(error) => tracing::warn!(
                    "the host file for MPI could not be written: {error}; {HOSTFILE_VARIABLE} is not set: give the \
                     container a writable /tmp, or write a host file yourself"
                ),
            }
        }
        let several = job.changes.len() > 1;
        let heard = collectors.as_ref().map(Collectors::heard).unwrap_or_default();
        Performer {
            liveness: Liveness::new(job.facts.heartbeat_file.clone(), heard, history.clone()),
            report: job.report.take().and_then(|path| Report::start(path, history.clone())),
            history,
            gpus: GpuEvents::new(job.gpus.take()),
            terminal_stop: TerminalStop::new(job.policy.child_has_terminal.then_some(stdio::STDIN)),
            ignore_chld: signals::keep_children(),
            main_children: MainChildren::default(),
            held: None,
            ranks: several.then(|| Ranks::new(std::mem::take(&mut job.names))),
            job,
            timers: Timers::default(),
            background,
            collectors,
            output_threads: OutputThreads::default(),
            status,
            run_dir,
            tree_empty: true,
            inherited: if reaper::has_children() {
                descendants::all(|_| false).unwrap_or_default().into_iter().collect()
            } else {
                HashSet::new()
            },
            signals: TreeSignals::default(),
            memory: MemoryWatch::default(),
            gang,
        }
    }

    /// The checkpoints that this run commits.
    pub(super) fn kept(&self) -> Option<Kept> {
        self.job.kept.clone()
    }

    pub(super) fn perform(&mut self, now: Uptime, action: &Action) -> Done {
        match *action {
            Action::Fetch => self.background.fetch(),
            Action::Restore => self.background.restore(),
            Action::Refresh => self.background.refresh(),
            Action::Publish => self.background.publish(),
            Action::FallBack => self.background.fall_back(),
            Action::MarkUnsure { at } => self.background.mark_unsure(now.saturating_sub(at)),
            Action::SetCommitDeadline { deadline } => self.background.set_commit_deadline(deadline.saturating_sub(now)),
            Action::CommitSoon { notice } => self.background.commit_soon(notice),
            Action::Flush { deadline, leaving, failed } => {
                self.background.flush(deadline.map(|at| at.saturating_sub(now)), leaving, failed);
            }
            Action::AwaitPeers => self.background.await_peers(),
            Action::Survey if self.job.policy.checkpoints => {
                self.background.survey(self.gang.as_ref().and_then(GangDesk::leader));
            }
            Action::Survey => return Done::Events(vec![Event::Surveyed(Offer::default())]),
            Action::RestoreStep(choice) => self.background.restore_agreed(choice),
            Action::Keep(step) => self.background.keep(step),
            Action::Tell(ref word) => return Done::Events(self.tell_gang(now, word.clone())),
            Action::Spawn { attempt, generation, ref resume } => {
                self.job.facts.generation = generation;
                return self.start(now, attempt, resume.as_ref());
            }
            Action::WritePreemptionFile { deadline } => self.announce(deadline.saturating_sub(now)),
            Action::Signal { target, signal } => self.signal(now, target, signal),
            Action::Suspend { at_once } => self.terminal_stop.suspend(at_once),
            Action::TermTree(grace) => self.term_tree(now, grace),
            Action::KillTree => self.kill_tree(),
            Action::SampleLiveness => return Done::Events(vec![self.liveness.sample(now, self.tree())]),
            Action::ReportTree => {
                let tree = self.liveness.tree_state(&self.tree().unwrap_or_default());
                return Done::Events(self.tell_gang(now, MemberEvent::TreeSeen(tree)));
            }
            Action::DumpStacks => self.dump_stacks(),
            Action::AskForDumps => {
                self.job.hang_forensics.clone().into_iter().for_each(flight_recorder::ask);
            }
            Action::AbortTree => self.signals.send_all(Signal::ABRT, self.tree(), &self.main_children),
            Action::NameStuck => self.name_stuck(),
            Action::Arm(timer, at) => self.timers.arm(timer, at),
            Action::Disarm(timer) => self.timers.disarm(timer),
            Action::Exit(ref outcome) => return Done::Exit(outcome.clone()),
        }
        Done::Nothing
    }

    /// Tells the gang's member what happened. What it wants of the job.
    pub(super) fn tell_gang(&mut self, now: Uptime, mut word: MemberEvent) -> Vec<Event> {
        let Some(gang) = &mut self.gang else { return Vec::new() };
        if let MemberEvent::Fell(failure) = &mut word {
            failure.step = self.liveness.step();
        }
        gang.tell(now, word)
    }

    /// What time and the gang's connections bring.
    pub(super) fn hear_gang(&mut self, now: Uptime) -> Vec<Event> {
        let Some(gang) = &mut self.gang else { return Vec::new() };
        let mut events = Vec::new();
        if now >= gang.due()
            && let Some(step) = self.liveness.step()
        {
            events.extend(gang.tell(now, MemberEvent::Stepped(step)));
        }
        events.extend(gang.receive(now));
        events
    }

    /// Remarks for the log about the signals that were sent.
    pub(super) fn remarks(&mut self) -> Remarks {
        self.signals.remarks()
    }

    /// Logs the processes that cannot be signalled. Returns whether all main children are among them.
    pub(super) fn complain(&mut self) -> bool {
        self.signals.complain();
        let alive = self.main_children.alive();
        !alive.is_empty() && alive.iter().all(|main| self.signals.is_refused(*main))
    }

    /// The live main children, by local rank.
    pub(super) fn children(&self) -> Vec<i32> {
        self.main_children.alive().to_vec()
    }

    /// Work that start-up postpones until the command runs.
    pub(super) fn do_postponed(&mut self) {
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
        if let Some(local_rank) = self.main_children.remove(pid) {
            self.terminal_stop.over();
            if end != End::Code(0) {
                events.extend(self.gpus.death(now));
                let path = self.job.env.bytes("PATH");
                events.extend(death_clues::of(&self.job.argv, path, end).into_iter().map(Event::Clue));
            }
            if self.main_children.alive().is_empty() {
                self.gpus.close(now);
            }
            events.push(Event::MainEnded { local_rank, end, oom: self.memory.killed(now) });
            if self.main_children.alive().is_empty() {
                events.extend(self.liveness.last_step());
            }
        } else {
            events.push(Event::Reaped { pid, end });
        }
        events
    }

    /// A direct child was stopped.
    pub(super) fn stopped(&mut self, pid: i32, signal: Signal) {
        if self.main_children.alive().contains(&pid) {
            let local_rank = self.main_children.pids().iter().position(|p| *p == pid).unwrap_or_default();
            self.terminal_stop.stopped(pid, &format!("local rank {local_rank}"), signal);
        }
    }

    /// Whether processes older than the job exist.
    pub(super) fn has_inherited(&self) -> bool {
        !self.inherited.is_empty()
    }

    /// Whether no child that wait(2) still reports belongs to the job.
    pub(super) fn only_others_are_left(&self) -> bool {
        let there_are_others = !self.inherited.is_empty() || self.gpus.pid().is_some();
        let may_be = there_are_others && !self.tree_empty && self.main_children.alive().is_empty();
        may_be && descendants::are_all_apart(|d| self.is_apart(d))
    }

    /// The GPU probe and older processes are not part of the job.
    fn is_apart(&self, process: &Descendant) -> bool {
        Some(process.pid) == self.gpus.pid() || self.inherited.contains(process)
    }

    /// No child of the job is left.
    pub(super) fn tree_is_empty(&mut self, now: Uptime) {
        if !std::mem::replace(&mut self.tree_empty, true) {
            self.output_threads.end(now, self.collectors.as_ref().and_then(Collectors::read_on));
        }
    }

    /// An event once the attempt's output has been passed on, or the wait for it has ended.
    pub(super) fn is_heard_out(&mut self, now: Uptime, waits: Waits) -> Option<Event> {
        let is_through = self.output_threads.are_through(now, waits);
        (is_through && self.main_children.alive().is_empty()).then_some(Event::TreeEmpty)
    }

    /// The run is over, even if processes are left.
    pub(super) fn end(&mut self, now: Uptime) {
        self.tree_is_empty(now);
        self.output_threads.end(now, None);
    }

    /// Starts the command. The first start is held back until the existing content of the followed files is recorded.
    fn start(&mut self, now: Uptime, attempt: u32, resume: Option<&Resume>) -> Done {
        match self.collectors.as_mut().and_then(Collectors::begin) {
            None => Done::Events(vec![self.spawn(attempt, resume)]),
            Some(look) => {
                self.held = Some(HeldStart { attempt, resume: resume.cloned(), look, until: now + TIMEOUT });
                Done::Nothing
            }
        }
    }

    /// Starts the held command when it is time; at once if a stop was requested.
    pub(super) fn start_held(&mut self, now: Uptime, is_stopping: bool) -> Option<Event> {
        let held = self.held.take_if(|held| is_stopping || held.look.is_notified() || now >= held.until)?;
        if !is_stopping && !held.look.is_notified() {
            tracing::warn!(
                "the trainer's files could not be read within {} before its start: lines written to them until \
                 they have been read count as an earlier run's and are not reported; check whether their file \
                 system is slow",
                humantime::format_duration(TIMEOUT)
            );
        }
        Some(self.spawn(held.attempt, held.resume.as_ref()))
    }

    /// Starts one process for each local rank.
    fn spawn(&mut self, attempt: u32, resume: Option<&Resume>) -> Event {
        self.signals.begin();
        self.status.mend(self.run_dir.as_mut());
        self.liveness.begin();
        if let Some(dir) = self.run_dir.as_mut().filter(|_| self.gang.is_some()) {
            // A notice that the attempt before was told of is over.
            dir.withdraw(PREEMPTION);
        }
        let count = self.job.changes.len();
        self.main_children = MainChildren::of(count);
        let mut ends = self.capture(count).into_iter();
        let mut facts = self.job.facts.clone();
        facts.incarnation = self.background.incarnation();
        let mut about_attempt = child_variables(&facts, attempt, resume);
        // Makes Python print the stacks of its threads on SIGABRT.
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
        // After the start, so that the command runs meanwhile.
        self.memory.begin();
        self.gpus.open();
        Event::Spawned { pids: self.main_children.pids().to_vec() }
    }

    fn launch(&mut self, changes: &Changes, ends: ChildEnds) -> Result<(), NotLaunched> {
        self.main_children.add(spawn::launch(Launch {
            argv: &self.job.argv,
            env: self.job.env.with(changes),
            mask: self.job.mask,
            ignore_chld: self.ignore_chld,
            new_session: self.job.policy.signal_target == Target::Group && !self.terminal_stop.shares(),
            terminal: self.terminal_stop.hand_on(),
            death_signal: self.job.death_signal.filter(|_| spawn::own_pid() != 1),
            stdin: None,
            stdout: ends.stdout,
            stderr: ends.stderr,
        })?);
        self.tree_empty = false;
        Ok(())
    }

    fn not_launched(&mut self, why: &NotLaunched, others: bool) -> Event {
        self.terminal_stop.over();
        if !others {
            // Without a process these threads have no writer, and the next attempt would wait for them.
            self.output_threads = OutputThreads::default();
        }
        not_launched::event(&self.job.argv, self.job.env.bytes("PATH"), why, others)
    }

    /// The output pipes of each process. The child inherits our own descriptors if nothing is searched for, or if a
    /// pipe or thread cannot be created.
    fn capture(&mut self, count: usize) -> Vec<ChildEnds> {
        let output_threads = &mut self.output_threads;
        let captured = match (&self.ranks, &self.collectors) {
            (Some(ranks), collectors) => {
                let search = collectors.as_ref().map(Collectors::search).unwrap_or_default();
                ranks.capture(&search, output_threads)
            }
            (None, Some(collectors)) => collectors.capture(output_threads).map(|ends| vec![ends]),
            (None, None) => return Vec::new(),
        };
        captured.unwrap_or_else(|error| {
            let what = if count > 1 { "neither separated by rank nor" } else { "not" };
            tracing::warn!(
                "the command's output is {what} searched for metrics, because a pipe or thread could not be \
                 created: {error}"
            );
            Vec::new()
        })
    }

    /// Writes the preemption file. It must be complete before any signal is sent.
    fn announce(&mut self, left: Duration) {
        self.status.mend(self.run_dir.as_mut());
        let deadline = humantime::format_rfc3339_millis(clock::wall() + left);
        if let Some(dir) = &mut self.run_dir
            && let Err(error) = dir.publish(PREEMPTION, &format!("{deadline}\n"))
        {
            tracing::warn!("the preemption file cannot be written, so the trainer gets only the signal: {error}");
        }
    }

    fn signal(&mut self, now: Uptime, target: Target, signal: Signal) {
        self.terminal_stop.forget();
        if target == Target::Group && signal == Signal::TERM {
            let mut signals = std::mem::take(&mut self.signals);
            signals.term_groups(now, &self.main_children, || self.tree());
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

    fn term_tree(&mut self, now: Uptime, grace: Grace) {
        if !self.tree_empty {
            let tree = self.tree();
            self.signals.term(now, grace, self.job.policy.signal_target, tree, &self.main_children);
        }
    }

    /// The processes of the job.
    fn tree(&self) -> Option<Vec<Descendant>> {
        descendants::all(|d| self.is_apart(d))
    }

    fn kill_tree(&mut self) {
        if !self.tree_empty {
            let tree = descendants::tree(|d| self.is_apart(d));
            self.signals.kill(tree, &self.main_children, self.job.policy.signal_target);
        }
    }

    fn dump_stacks(&self) {
        let tree = self.tree().unwrap_or_default();
        for process in tree.iter().take(MOST_DUMPED) {
            tracing::warn!(code = "hung", "{}", threads::stacks(process.pid));
        }
        if tree.len() > MOST_DUMPED {
            tracing::warn!(code = "hung", "{} more processes of the command are not shown", tree.len() - MOST_DUMPED);
        }
    }

    fn name_stuck(&self) {
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
                self.signals.why_they_live(&left)
            }
        };
        tracing::error!("{left}; trainit exits without them, and the end of the container may hang");
    }
}
