//! Starts an attempt: the processes of the command, their output and their variables.

use super::{Done, Performer};
use crate::edge::fs::run_dir::{PREEMPTION, SAVE_AT_STEP};
use crate::edge::io::eventfd::EventFd;
use crate::edge::process::spawn::{self, Launch, NotLaunched};
use crate::rules::job::{Event, Resume, Target, Uptime, child_variables};
use crate::rules::process::env::Changes;
use crate::supervisor::job::main_children::MainChildren;
use crate::supervisor::job::not_launched;
use crate::supervisor::output::drain::{OutputThreads, TIMEOUT};
use crate::supervisor::output::{ChildEnds, Collectors};

const FAULTHANDLER: &str = "PYTHONFAULTHANDLER";

/// A start that waits until the existing content of the trainer's files is recorded.
pub(in crate::supervisor) struct HeldStart {
    attempt: u32,
    resume: Option<Resume>,
    pub(in crate::supervisor) look: EventFd,
    pub(in crate::supervisor) until: Uptime,
}

impl Performer {
    /// Starts the command. The first start is held back until the existing content of the followed files is recorded.
    pub(super) fn start(&mut self, now: Uptime, attempt: u32, resume: Option<&Resume>) -> Done {
        match self.collectors.as_mut().and_then(Collectors::begin) {
            None => Done::Events(vec![self.spawn(attempt, resume)]),
            Some(look) => {
                self.held = Some(HeldStart { attempt, resume: resume.cloned(), look, until: now + TIMEOUT });
                Done::Nothing
            }
        }
    }

    /// Starts the held command when it is time; at once if a stop was requested.
    pub(in crate::supervisor) fn start_held(&mut self, now: Uptime, is_stopping: bool) -> Option<Event> {
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
        self.status.recreate_if_missing(self.run_dir.as_mut());
        self.liveness.begin();
        self.errors.begin();
        if let Some(dir) = self.run_dir.as_mut().filter(|_| self.gang.is_some()) {
            // A notice to the previous attempt no longer applies.
            dir.withdraw(PREEMPTION);
            dir.withdraw(SAVE_AT_STEP);
        }
        self.begin_saves(self.history.now());
        let count = self.job.changes.len();
        self.main_children = MainChildren::of(count);
        let mut ends = self.capture(count).into_iter();
        let mut facts = self.job.facts.clone();
        facts.incarnation = self.background.incarnation();
        let mut about_attempt = child_variables(&facts, attempt, resume);
        // Makes Python print the stacks of its threads on SIGABRT.
        if self.job.policy.hang_timeout.is_some() && self.job.env.given(FAULTHANDLER).is_none() {
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
            terminal: self.terminal_stop.for_child(),
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
}
