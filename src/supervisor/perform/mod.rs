//! Performs actions of the job machine. An effect that is known at once is returned as an event.

mod attempt;
mod saves;
mod timers;
mod tree;

use std::collections::HashSet;
use std::time::Duration;

use crate::edge::clock;
use crate::edge::fs::run_dir::{HOSTFILE, KEPT, PREEMPTION, RunDir, SAVE_AT_STEP, SAVE_STEP, SOCKET};
use crate::edge::io::stdio;
use crate::edge::process::descendants::{self, Descendant};
use crate::edge::process::{reaper, signals, sockets};
use crate::rules::cluster::complete::SIMULATED;
use crate::rules::cluster::framework::mpi::HOSTFILE_VARIABLE;
use crate::rules::gang::member::Event as MemberEvent;
use crate::rules::gang::message::Offer;
use crate::rules::job::{Action, Event, Outcome, Uptime};
use crate::rules::process::exit::End;
use crate::rules::status::Who;
use crate::rules::status::sibling::Kept;
use crate::supervisor::Job;
use crate::supervisor::background::Background;
use crate::supervisor::gang::GangMember;
use crate::supervisor::gpu::events::GpuEvents;
use crate::supervisor::job::error_files::ErrorFiles;
use crate::supervisor::job::liveness::Liveness;
use crate::supervisor::job::main_children::MainChildren;
use crate::supervisor::job::memory::MemoryWatch;
use crate::supervisor::job::terminal_stop::TerminalStop;
use crate::supervisor::job::tree_signals::TreeSignals;
use crate::supervisor::job::{death_clues, flight_recorder};
use crate::supervisor::output::Collectors;
use crate::supervisor::output::drain::{OutputThreads, Waits};
use crate::supervisor::output::ranks::Ranks;
use crate::supervisor::status::history::History;
use crate::supervisor::status::report::Report;
use crate::supervisor::status::socket::StatusEndpoint;
use attempt::HeldStart;
use saves::SaveRequests;
use timers::Timers;

/// The result of an action.
pub(super) enum Done {
    /// Nothing to report yet.
    Nothing,
    /// The action caused these events, in this order.
    Events(Vec<Event>),
    /// The job is over.
    Exit(Box<Outcome>),
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
    /// The last line of the main child that ended last.
    last_words: Option<String>,
    pub(super) status: StatusEndpoint,
    pub(super) history: History,
    pub(super) report: Option<Report>,
    pub(super) liveness: Liveness,
    pub(super) errors: ErrorFiles,
    pub(super) run_dir: Option<RunDir>,
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
    pub(super) gang: Option<GangMember>,
    saves: SaveRequests,
}

impl Performer {
    pub(super) fn new(
        mut job: Job,
        background: Background,
        collectors: Option<Collectors>,
        gang: Option<GangMember>,
        history: History,
    ) -> Performer {
        let mut run_dir = RunDir::make(job.env.given("TMPDIR"));
        let status = StatusEndpoint::open(run_dir.as_ref());
        job.facts.preemption_file = run_dir.as_ref().map(|dir| dir.file(PREEMPTION));
        let in_gang = run_dir.as_ref().filter(|_| gang.is_some());
        job.facts.save_at_step_file = in_gang.map(|dir| dir.file(SAVE_AT_STEP));
        job.facts.save_step_file = run_dir.as_ref().map(|dir| dir.file(SAVE_STEP));
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
        let errors = ErrorFiles::set(job.facts.heartbeat_file.as_deref(), &job.env, &mut job.changes);
        let several = job.changes.len() > 1;
        let passed_on = collectors.as_ref().map(Collectors::passed_on).unwrap_or_default();
        let saves = SaveRequests::new(job.save_interval, job.changes.len(), gang.as_ref());
        Performer {
            saves,
            liveness: Liveness::new(
                job.facts.heartbeat_file.clone(),
                passed_on,
                history.clone(),
                job.env.given(SIMULATED).is_none(),
            ),
            errors,
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
            last_words: None,
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

    /// Which replica of which job this is.
    pub(super) fn who(&self) -> Who {
        self.job.who.clone()
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
                self.background.survey(self.gang.as_ref().and_then(GangMember::leader));
            }
            Action::Survey => return Done::Events(vec![Event::Surveyed(Offer::default())]),
            Action::RestoreStep(choice) => self.background.restore_agreed(choice),
            Action::Keep(step) => self.background.keep(step),
            Action::ReportToGang(ref event) => return Done::Events(self.report_to_gang(now, event.clone())),
            Action::Spawn { attempt, generation, ref resume } => {
                self.job.facts.generation = generation;
                return self.start(now, attempt, resume.as_ref());
            }
            Action::WritePreemptionFile { deadline } => self.announce(deadline.saturating_sub(now)),
            Action::Signal { target, signal } => self.signal(now, target, signal),
            Action::Suspend { at_once } => self.terminal_stop.suspend(at_once),
            Action::LookAtTree(signal) => self.look_at_tree(signal),
            Action::SignalTree { grace, signal } => self.signal_tree(now, grace, signal),
            Action::KillTree => return Done::Events(self.kill_tree().map(Event::Left).into_iter().collect()),
            Action::SampleLiveness => return Done::Events(vec![self.liveness.sample(now, self.tree())]),
            Action::ReportTree => {
                let tree = self.liveness.tree_state(&self.tree().unwrap_or_default());
                return Done::Events(self.report_to_gang(now, MemberEvent::TreeReported(tree)));
            }
            Action::DumpStacks => self.dump_stacks(),
            Action::AskForDumps => {
                self.job.hang_forensics.clone().into_iter().for_each(flight_recorder::ask);
            }
            Action::AbortTree => self.signals.abort(self.tree(), &self.main_children),
            Action::NameStuck => self.name_stuck(),
            Action::Arm(timer, at) => self.timers.arm(timer, at),
            Action::Disarm(timer) => self.timers.disarm(timer),
            Action::Exit(ref outcome) => return Done::Exit(outcome.clone()),
        }
        Done::Nothing
    }

    /// Passes an event to the gang's member. Returns its requests to the job.
    pub(super) fn report_to_gang(&mut self, now: Uptime, mut event: MemberEvent) -> Vec<Event> {
        let Some(gang) = &mut self.gang else { return Vec::new() };
        if let MemberEvent::Failed(failure) = &mut event {
            failure.step = self.liveness.step();
            let words = self.last_words.take().filter(|_| failure.code.is_some());
            words.into_iter().for_each(|words| failure.quote(&words));
        }
        gang.step(now, event)
    }

    /// The events of the gang's timers and connections.
    pub(super) fn gang_events(&mut self, now: Uptime) -> Vec<Event> {
        let Some(mut gang) = self.gang.take() else { return Vec::new() };
        let mut events = Vec::new();
        if now >= gang.due()
            && let Some(step) = self.liveness.step()
        {
            events.extend(gang.step(now, MemberEvent::Stepped(step)));
        }
        events.extend(gang.receive(now, &|port| self.connection(port)));
        self.gang = Some(gang);
        events
    }

    /// A connection of the tree with this port at either end.
    fn connection(&self, port: u16) -> Option<sockets::Connection> {
        let tree = || self.tree().unwrap_or_default().into_iter().map(|process| process.pid).collect();
        self.main_children.alive().first().and_then(|first| sockets::connection(port, tree, *first))
    }

    /// The live main children, by local rank.
    pub(super) fn children(&self) -> Vec<i32> {
        self.main_children.alive().to_vec()
    }

    /// Work that start-up postpones until the command runs.
    pub(super) fn do_postponed(&mut self) {
        self.status.recreate_if_missing(self.run_dir.as_mut());
        if self.saves.is_unpublished() {
            self.publish_save_step(None);
        }
        if let Some(dir) = &mut self.run_dir {
            dir.reserve(PREEMPTION);
            dir.reserve(SAVE_STEP);
            if self.gang.is_some() {
                dir.reserve(SAVE_AT_STEP);
            }
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
            // Now, because the threads may have ended before the death is handled.
            self.last_words = self.output_threads.last_words();
            if end != End::Code(0) {
                events.extend(self.gpus.death(now));
                events.extend(self.errors.clue(local_rank as usize).map(Event::Clue));
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

    /// No child of the job is left.
    pub(super) fn tree_is_empty(&mut self, now: Uptime) {
        if !std::mem::replace(&mut self.tree_empty, true) {
            self.output_threads.end(now, self.collectors.as_ref().and_then(Collectors::read_on));
        }
    }

    /// An event once the attempt's output has been passed on, or the wait for it has ended.
    pub(super) fn after_output(&mut self, now: Uptime, waits: Waits) -> Option<Event> {
        let has_ended = self.output_threads.are_through(now, waits);
        (has_ended && self.main_children.alive().is_empty()).then_some(Event::TreeEmpty)
    }

    /// The run is over, even if processes are left.
    pub(super) fn end(&mut self, now: Uptime) {
        self.tree_is_empty(now);
        self.output_threads.end(now, None);
    }

    /// Writes the preemption file. It must be complete before any signal is sent. In a gang, the step at which all ranks save is
    /// written first.
    fn announce(&mut self, left: Duration) {
        self.status.recreate_if_missing(self.run_dir.as_mut());
        let save_at = self.gang.as_mut().and_then(|gang| gang.save_at(left));
        if let (Some(step), Some(dir)) = (save_at, &mut self.run_dir)
            && let Err(error) = dir.publish(SAVE_AT_STEP, &format!("{step}\n"))
        {
            tracing::warn!(
                "the file with the step at which all replicas save cannot be written: {error}; this one may save another step"
            );
        }
        self.save_after_notice(save_at, left);
        let deadline = humantime::format_rfc3339_millis(clock::wall() + left);
        if let Some(dir) = &mut self.run_dir
            && let Err(error) = dir.publish(PREEMPTION, &format!("{deadline}\n"))
        {
            tracing::warn!("the preemption file cannot be written, so the trainer gets only the signal: {error}");
        }
    }
}
