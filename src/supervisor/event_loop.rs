//! The event loop: collect events, step the job machine, perform its actions, log. It blocks only in poll, except at
//! the very end, while the last metrics are written to their file. Each outside source (signals, children, events,
//! questions) is drained by at most one batch per turn, and timers are checked between two batches, so that no flood
//! delays a deadline.

use std::collections::VecDeque;
use std::os::fd::AsRawFd;
use std::time::Duration;

use crate::edge::clock::Clock;
use crate::edge::io::eventfd::{self, Alarm};
use crate::edge::process::reaper::{self, Wait};
use crate::edge::process::signals::SignalFd;
use crate::rules::gang::member::Event as MemberEvent;
use crate::rules::job::{Action, Event, Machine, Mirrored, Outcome, Timer, Uptime};
use crate::rules::process::program::not_found::without_values;
use crate::rules::process::signal::Signal;
use crate::rules::status::html::RunView;
use crate::supervisor::Job;
use crate::supervisor::background::Background;
use crate::supervisor::gang::GangMember;
use crate::supervisor::job::tree_signals::Remarks;
use crate::supervisor::output::Collectors;
use crate::supervisor::output::drain::{TIMEOUT, Waits};
use crate::supervisor::perform::{self, Performer};
use crate::supervisor::status::history::History;
use crate::telemetry::view;

/// A running job: the job machine, the performer of its actions, and the queue of events between them.
pub(super) struct Supervisor {
    machine: Machine,
    command: String,
    clock: Clock,
    signals: SignalFd,
    queue: VecDeque<Event>,
    pub(super) performer: Performer,
    /// When the work postponed at start-up is due.
    postponed_until: Option<Uptime>,
    /// The outcome of the job. Its last output may still be in transit.
    outcome: Option<Outcome>,
    /// Wakes the loop for a distant deadline even if the machine was suspended meanwhile.
    alarm: Alarm,
    /// The last deadline of this attempt's end, which also limits the wait for readers of its output.
    wait_ends: Uptime,
    /// The last batch of children was full.
    has_more_children: bool,
}

/// Delay between the start of the command and the postponed work, which is trainit's only own wake-up in an idle run.
const POSTPONED_FOR: Duration = Duration::from_millis(100);

/// A timeout shorter than this needs no alarm: a suspend cannot delay it by much.
const SUSPENDED: Duration = Duration::from_secs(1);

/// The maximum number of children reaped in one turn of the loop.
const REAPED_AT_ONCE: usize = 2048;

impl Supervisor {
    pub(super) fn new(
        job: Job,
        background: Background,
        collectors: Option<Collectors>,
        gang: Option<(GangMember, Vec<Event>)>,
        history: History,
        clock: Clock,
        signals: SignalFd,
    ) -> Supervisor {
        let (gang, wanted) = gang.map_or((None, Vec::new()), |(member, wanted)| (Some(member), wanted));
        Supervisor {
            machine: Machine::new(job.policy.clone()),
            command: job.argv.first().map(|c| without_values(&c.to_string_lossy())).unwrap_or_default(),
            clock,
            signals,
            queue: [Event::Started].into_iter().chain(wanted).collect(),
            performer: Performer::new(job, background, collectors, gang, history),
            postponed_until: None,
            outcome: None,
            alarm: Alarm::default(),
            wait_ends: Uptime::ZERO,
            has_more_children: false,
        }
    }

    fn now(&self) -> Uptime {
        self.clock.now()
    }

    /// Runs the job to its end.
    pub(super) fn live(&mut self) -> Outcome {
        loop {
            while let Some(event) = self.queue.pop_front() {
                self.handle(event);
            }
            match self.outcome.take() {
                Some(outcome) if !self.performer.output_threads.is_ending() => return outcome,
                outcome => self.outcome = outcome,
            }
            self.hear();
        }
    }

    /// The kind of wait for the end of the output.
    fn waits(&self) -> Waits {
        match self.outcome {
            None if self.machine.is_stopping() || !self.machine.would_restart(self.now()) => Waits::Commit,
            _ => Waits::End(self.wait_ends),
        }
    }

    /// Steps the machine, performs its actions and logs. Events that an action causes at once are queued.
    fn handle(&mut self, event: Event) {
        let now = self.now();
        if matches!(event, Event::Spawned { .. }) {
            self.postponed_until = Some(now + POSTPONED_FOR);
            self.wait_ends = Uptime::ZERO;
        }
        let before = self.machine.state().clone();
        if matches!(event, Event::Committed { .. }) {
            self.performer.gpus.refill();
        }
        if let Event::Committed { lag, .. } = event {
            self.performer.has_saved(now.saturating_sub(lag));
        }
        if let Event::Committed { step: Some(step), .. } = event {
            self.queue.extend(self.performer.report_to_gang(now, MemberEvent::Committed(step)));
        }
        if let Event::Mirrored(Mirrored::Restoring { done, all }) = event {
            self.queue.extend(self.performer.report_to_gang(now, MemberEvent::Restoring(done, all)));
        }
        if let Event::Mirrored(Mirrored::Behind(Some(1..))) = event {
            self.queue.extend(self.performer.report_to_gang(now, MemberEvent::Saved));
        }
        self.performer.status.note(now, &event);
        let actions = self.machine.step(now, event.clone());
        self.performer.history.note(now, &event, &self.machine);
        if matches!(event, Event::Mirrored(Mirrored::Committed { .. })) {
            self.write_report();
        }
        self.wait_ends = self.machine.deadline().unwrap_or(self.wait_ends);
        view::log_before(&self.command, &self.machine, &actions);
        for action in &actions {
            let done = self.performer.perform(now, action);
            if matches!(action, Action::SignalTree { .. } | Action::KillTree) {
                self.performer.timers.looked(now, self.now());
            }
            match done {
                perform::Done::Nothing => {}
                perform::Done::Events(events) => self.queue.extend(events),
                perform::Done::Exit(end) => {
                    self.outcome = Some(*end);
                    self.performer.end(now);
                }
            }
        }
        // Last, because a slow reader of the log must not delay a signal.
        let is_out_of_reach = self.performer.complain();
        let Remarks { left_behind, main_waits, late, killed } = self.performer.remarks();
        let signalled = view::Signalled { is_out_of_reach, main_waits, left_behind, late, killed };
        view::log_step(&self.command, now, &before, &event, &self.machine, &actions, &signalled);
    }

    /// The time at which all that follows the run must be done: last metrics, report and verdict. A stop does not prolong its
    /// deadline.
    pub(super) fn end_by(&self) -> Uptime {
        let latest = self.now() + TIMEOUT;
        if self.machine.is_stopping() { self.wait_ends.min(latest) } else { latest }
    }

    /// The facts of this moment.
    pub(super) fn view(&self) -> RunView {
        self.performer.status.view(self.now(), &self.command, &self.machine, &self.performer)
    }

    fn write_report(&self) {
        if let Some(report) = &self.performer.report {
            report.write(self.view());
        }
    }

    /// Does the postponed work if it is due; otherwise returns the time left.
    fn do_postponed(&mut self) -> Option<Duration> {
        let left = self.postponed_until?.saturating_sub(self.now());
        if left.is_zero() {
            self.postponed_until = None;
            self.performer.do_postponed();
        }
        self.postponed_until.map(|_| left)
    }

    /// Waits for events and queues them.
    fn hear(&mut self) {
        self.performer.memory.look(self.now());
        // Status requests are answered after the queued events were handled.
        self.performer.status.serve(self.now(), &self.command, &self.machine, &self.performer);
        let (waits, is_stopping) = (self.waits(), self.machine.is_stopping());
        let held = self.performer.held.as_ref();
        let dues = [
            self.performer.timers.next(),
            self.performer.liveness.look_at(),
            self.performer.saves_due(),
            self.performer.gpus.deadline(),
            self.performer.status.due(),
            self.performer.output_threads.due(waits),
            self.performer.gang.as_ref().map(GangMember::due),
            held.map(|held| if is_stopping { Uptime::ZERO } else { held.until }),
        ];
        let due = dues.into_iter().flatten().min();
        let timeout = match due {
            _ if self.performer.background.has_news() || self.has_more_children => Some(Duration::ZERO),
            due => due.map(|at| at.saturating_sub(self.now())),
        };
        let mut fds = vec![self.signals.as_raw_fd()];
        fds.extend(self.performer.background.fd());
        fds.extend(self.performer.gpus.fd());
        fds.extend(self.performer.status.fds());
        fds.extend(self.performer.gang.as_ref().map(GangMember::fd));
        fds.extend(self.performer.output_threads.fds(waits));
        fds.extend(held.map(|held| held.look.as_raw_fd()));
        let postponed = self.do_postponed();
        fds.extend(self.alarm.set(timeout.filter(|left| *left >= SUSPENDED)));
        eventfd::wait_readable(&fds, [timeout, postponed].into_iter().flatten().min());

        let now = self.now();
        // First, because an expired lease must be handled before messages that arrived in the meantime.
        self.queue.extend(self.performer.gang_events(now));
        self.queue.extend(self.performer.gpus.news(now));
        self.performer.liveness.look(now);
        self.performer.ask_for_saves(now);
        let due = self.performer.timers.due(now).into_iter();
        // After the tree is empty no process is left to kill, even if a reader of its output is slow.
        let is_moot = |timer: &Timer| self.performer.output_threads.is_ending() && timer.is_for_the_tree();
        self.queue.extend(due.filter(|timer| !is_moot(timer)).map(Event::Due));
        let mut may_reap = std::mem::take(&mut self.has_more_children);
        for arrival in self.signals.next_batch() {
            may_reap |= arrival.signal == Signal::CHLD;
            self.queue.push_back(Event::Signal { signal: arrival.signal, sender: arrival.sender });
        }
        if may_reap {
            self.reap();
        }
        self.queue.extend(self.performer.start_held(now, is_stopping));
        self.queue.extend(self.performer.after_output(self.now(), waits));
        self.queue.extend(self.performer.background.events());
    }

    /// Reaps one batch of children: forks that end faster than they are reaped must not delay timers and signals.
    fn reap(&mut self) {
        let mut ended = Vec::new();
        let mut last = None;
        for _ in 0..REAPED_AT_ONCE {
            match reaper::wait() {
                Wait::Ended { pid, end } => ended.push((pid, end)),
                Wait::Stopped { pid, signal } => self.performer.stopped(pid, signal),
                end @ (Wait::Nothing | Wait::Empty) => {
                    last = Some(end);
                    break;
                }
            }
        }
        self.has_more_children = last.is_none();
        let now = self.now();
        self.performer.main_children.in_order(&mut ended);
        // One of these deaths has the effect of all, and thousands would delay the timers.
        let mut has_orphan = false;
        for (pid, end) in ended {
            for event in self.performer.ended(now, pid, end) {
                match event {
                    Event::Reaped { pid, end } if std::mem::replace(&mut has_orphan, true) => {
                        view::log_reaped(pid, end)
                    }
                    event => self.queue.push_back(event),
                }
            }
        }
        if last == Some(Wait::Empty) || last.is_some() && self.performer.only_others_are_left() {
            self.performer.tree_is_empty(now);
        }
    }
}
