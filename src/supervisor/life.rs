//! The loop: hear, decide, do, tell. Nothing here waits for anything but the poll, until all is over but the last metrics' way to
//! their file.

use std::collections::VecDeque;
use std::os::fd::AsRawFd;
use std::time::Duration;

use super::Job;
use super::background::Background;
use super::effects::{self, Effects};
use super::output::Collectors;
use super::pumps::Waits;
use crate::edge::clock::Clock;
use crate::edge::reaper::{self, Wait};
use crate::edge::signals::Inbox;
use crate::edge::{code_pages, process, wake};
use crate::rules::job::{Event, Machine, Outcome, Timer, Uptime};
use crate::rules::signal::Signal;
use crate::telemetry::view;

/// A running job: what decides, what does, and what has come in between.
pub(super) struct Supervisor {
    machine: Machine,
    command: String,
    clock: Clock,
    signals: Inbox,
    queue: VecDeque<Event>,
    pub(super) effects: Effects,
    /// When start-up's code is let go of.
    settles: Option<Uptime>,
    /// How it has ended; the last of the output may still be passed on.
    outcome: Option<Outcome>,
    /// The last deadline that this attempt's end was given: so long who reads its output has.
    patience_ends: Uptime,
}

/// A command that has run for this long has a supervisor with little left to do. The one wake-up of our own in a life.
const SETTLED_AFTER: Duration = Duration::from_millis(100);

impl Supervisor {
    pub(super) fn new(
        job: Job,
        background: Background,
        collectors: Option<Collectors>,
        clock: Clock,
        signals: Inbox,
    ) -> Supervisor {
        Supervisor {
            machine: Machine::new(job.policy.clone()),
            command: job.argv.first().map(|c| c.to_string_lossy().into_owned()).unwrap_or_default(),
            clock,
            signals,
            queue: VecDeque::from([Event::Started]),
            effects: Effects::new(job, background, collectors),
            settles: None,
            outcome: None,
            patience_ends: Uptime::ZERO,
        }
    }

    fn now(&self) -> Uptime {
        self.clock.now()
    }

    /// The whole life.
    pub(super) fn live(&mut self) -> Outcome {
        loop {
            while let Some(event) = self.queue.pop_front() {
                self.handle(event);
            }
            match self.outcome.take() {
                Some(outcome) if !self.effects.pumps.is_ending() => return outcome,
                outcome => self.outcome = outcome,
            }
            self.hear();
        }
    }

    /// Who waits for the end of the output.
    fn waits(&self) -> Waits {
        match self.outcome {
            None if self.machine.is_stopping() || !self.machine.would_restart(self.now()) => Waits::Commit,
            _ => Waits::End(self.patience_ends),
        }
    }

    /// Decides, does, tells. What a deed brings about at once is queued as a further event.
    fn handle(&mut self, event: Event) {
        let now = self.now();
        if matches!(event, Event::Spawned { .. }) {
            self.settles = Some(now + SETTLED_AFTER);
            self.patience_ends = Uptime::ZERO;
        }
        let before = self.machine.state().clone();
        if matches!(event, Event::Committed { .. }) {
            self.effects.gpus.refill();
        }
        self.effects.status.note(now, &event);
        let actions = self.machine.step(now, event.clone());
        self.patience_ends = self.machine.deadline().unwrap_or(self.patience_ends);
        view::forewarn(&self.command, &self.machine, &actions);
        for action in &actions {
            match self.effects.perform(now, action) {
                effects::Done::Nothing => {}
                effects::Done::Event(event) => self.queue.push_back(event),
                effects::Done::Exit(end) => {
                    self.outcome = Some(*end);
                    self.effects.end(now);
                }
            }
        }
        // Last: a log that is slow to read must not hold up a signal.
        let is_out_of_reach = self.effects.complain();
        view::tell(&self.command, now, &before, &event, &self.machine, &actions, is_out_of_reach);
    }

    /// Lets go of start-up's code when it is time; else the time until then.
    fn settle(&mut self) -> Option<Duration> {
        let left = self.settles?.saturating_sub(self.now());
        if left.is_zero() {
            self.settles = None;
            self.effects.tidy_up();
            code_pages::let_go();
            self.rehearse();
        }
        self.settles.map(|_| left)
    }

    /// Goes the way of a signal once, with two that bring nothing about, so that its code is in memory when one comes: read
    /// from the file again only then, a stop signal would reach the command after twice the time.
    fn rehearse(&mut self) {
        // Our own SIGPIPE ends the next wait and is passed over when it is read; of a child's end wait(2) knows.
        let _ = process::kill(process::own_pid(), Signal::PIPE);
        let _ = self.machine.step(self.now(), Event::Signal { signal: Signal::CHLD, sender: None });
    }

    /// Waits until something happens and queues what did.
    fn hear(&mut self) {
        self.effects.memory.look(self.now());
        // Who asks waits until what happened has been acted upon.
        self.effects.status.serve(self.now(), &self.command, &self.machine, &self.effects);
        let (waits, is_stopping) = (self.waits(), self.machine.is_stopping());
        let held = self.effects.held.as_ref();
        let dues = [
            self.effects.timers.next(),
            self.effects.gpus.deadline(),
            self.effects.status.due(),
            self.effects.pumps.due(waits),
            held.map(|held| if is_stopping { Uptime::ZERO } else { held.until }),
        ];
        let due = dues.into_iter().flatten().min();
        let timeout = match due {
            _ if self.effects.background.has_news() => Some(Duration::ZERO),
            due => due.map(|at| at.saturating_sub(self.now())),
        };
        let mut fds = vec![self.signals.as_raw_fd()];
        fds.extend(self.effects.background.fd());
        fds.extend(self.effects.gpus.fd());
        fds.extend(self.effects.status.fd());
        fds.extend(self.effects.pumps.fds(waits));
        fds.extend(held.map(|held| held.look.as_raw_fd()));
        let settle = self.settle();
        wake::wait_readable(&fds, [timeout, settle].into_iter().flatten().min());

        let now = self.now();
        self.queue.extend(self.effects.gpus.news(now));
        let due = self.effects.timers.due(now).into_iter();
        // With nobody left there is nobody to kill, whoever is slow to read what they wrote.
        let is_moot = |timer: &Timer| self.effects.pumps.is_ending() && timer.is_for_the_tree();
        self.queue.extend(due.filter(|timer| !is_moot(timer)).map(Event::Due));
        let mut may_reap = false;
        for arrival in self.signals.drain() {
            may_reap |= arrival.signal == Signal::CHLD;
            self.queue.push_back(Event::Signal { signal: arrival.signal, sender: arrival.sender });
        }
        if may_reap {
            self.reap();
        }
        self.queue.extend(self.effects.start_held(now, is_stopping));
        self.queue.extend(self.effects.is_heard_out(self.now(), waits));
        self.queue.extend(self.effects.background.events());
    }

    fn reap(&mut self) {
        let mut ended = Vec::new();
        let is_empty = loop {
            match reaper::wait() {
                Wait::Ended { pid, end } => ended.push((pid, end)),
                Wait::Stopped { pid, signal } => self.effects.stopped(pid, signal),
                Wait::Nothing => break false,
                Wait::Empty => break true,
            }
        };
        let now = self.now();
        self.effects.leaders.in_order(&mut ended);
        for (pid, end) in ended {
            self.queue.extend(self.effects.ended(now, pid, end));
        }
        if is_empty || self.effects.only_others_are_left() {
            self.effects.tree_is_empty(now);
        }
    }
}
