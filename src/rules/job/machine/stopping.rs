//! How a job is stopped: by signals, notices, a failing GPU, a newer run. There is one deadline, which never moves
//! later.

use super::parts::{Cause, Stop};
use super::{HELD_SIGNALS, Machine, NEXT_SWEEP, State, TERM_SWEEP};
use crate::job::event::{Action, Target, Timer, Uptime};
use crate::job::tree_stop::Grace;
use crate::process::signal::Signal;

impl Machine {
    pub(super) fn on_signal(&mut self, now: Uptime, signal: Signal, sender: Option<u32>) -> Vec<Action> {
        if signal == Signal::CHLD && sender.is_none() {
            return Vec::new();
        }
        if let Some((_, lead)) = self.policy.preempt_on.iter().find(|(s, _)| *s == signal).copied() {
            let source = format!("signal {signal}");
            return self.on_preempted(now, source.clone(), source, lead);
        }
        let Some(as_signal) = self.policy.rewritten(signal) else { return Vec::new() };
        // A rule that rewrites a signal to TERM makes it a stop, and a TERM that is rewritten stays a stop.
        let is_stop = [signal, as_signal].contains(&Signal::TERM);
        if self.policy.is_ignored(signal) {
            return self.checkpoint_on(signal);
        }
        let asks = self.policy.asks_to_leave(as_signal);
        if (is_stop || asks)
            && let Some(actions) = self.leave_after_success()
        {
            return actions;
        }
        if matches!(self.state, State::Running | State::Launching) && !is_stop {
            self.attempt.clues.passed_on(as_signal, sender);
        }
        match self.state {
            State::Running | State::Launching if is_stop => self.on_stop_signal(now, as_signal, sender),
            State::Running => {
                if asks {
                    self.attempt.keyboard_signal_at = Some(now);
                }
                let mut actions = vec![self.send(as_signal)];
                // A shell that waits for this process would otherwise never show its prompt again. If the command has
                // the terminal, its own stop is noticed elsewhere. If a deadline is set, this process must stay awake.
                if signal.stops_a_job() && !self.policy.child_has_terminal && self.stopping.deadline.is_none() {
                    // As dumb-init does for a group. A leader may handle the signal and continue.
                    actions.push(Action::Suspend { at_once: self.policy.signal_target == Target::Group });
                }
                actions.extend(self.checkpoint_on(signal));
                actions
            }
            State::Launching => {
                if asks {
                    self.attempt.keyboard_signal_at = Some(now);
                }
                self.hold(as_signal);
                Vec::new()
            }
            State::Fetching
            | State::Restoring
            | State::Gathering
            | State::Refreshing
            | State::Waiting
            | State::Surveying
            | State::Assembling
            | State::Arming
                if is_stop || asks =>
            {
                if is_stop {
                    self.stopping.stop.get_or_insert(Stop { cause: Cause::Signal { sender }, is_signalled: true });
                } else {
                    self.stopping.interrupted = Some(as_signal);
                }
                // Checkpoints of a crashed attempt may not be committed yet.
                self.flush(now)
            }
            State::Fetching | State::Restoring | State::Gathering => {
                self.hold(as_signal);
                Vec::new()
            }
            // The signal was meant for the previous attempt. The next attempt would die of it before it can install a
            // handler.
            State::Refreshing | State::Waiting | State::Surveying | State::Assembling | State::Arming => Vec::new(),
            // Commits what is complete without waiting longer; the next signal interrupts the commit.
            State::Flushing if self.commits.awaits_others && asks => {
                self.commits.awaits_others = false;
                vec![Action::CommitSoon { notice: true }]
            }
            State::Flushing if !is_stop && asks && !self.commits.is_deleting_old => {
                let (pending, advice) = self.pending_work();
                self.commit_failed(format!("{pending} was interrupted by {as_signal}; {advice}"))
            }
            State::Draining if self.would_restart(now) => {
                self.on_signal_while_draining(now, is_stop, as_signal, sender);
                Vec::new()
            }
            // The end of the job now waits only for the last commit.
            State::Flushing if (is_stop || asks) && self.policy.store => {
                vec![Action::CommitSoon { notice: true }]
            }
            State::Draining | State::Flushing | State::Done => Vec::new(),
        }
    }

    /// Commits soon, if the platform sends this signal some time before the end.
    fn checkpoint_on(&self, signal: Signal) -> Vec<Action> {
        let is_wanted = self.state == State::Running && self.policy.checkpoint_on.contains(&signal);
        if is_wanted { self.commit_soon(false) } else { Vec::new() }
    }

    /// Another attempt would follow, unless this signal asks the job to end.
    fn on_signal_while_draining(&mut self, now: Uptime, is_stop: bool, as_signal: Signal, sender: Option<u32>) {
        if is_stop {
            self.stopping.stop = Some(Stop { cause: Cause::Signal { sender }, is_signalled: true });
        } else if self.policy.asks_to_leave(as_signal) {
            self.attempt.keyboard_signal_at = Some(now);
            self.restarts.no_restart_reason = format!("{as_signal} arrived before the next attempt");
        }
    }

    fn on_stop_signal(&mut self, now: Uptime, as_signal: Signal, sender: Option<u32>) -> Vec<Action> {
        let preempt_signal = if as_signal == Signal::TERM { self.policy.preempt_signal } else { Some(as_signal) };
        // A stop whose signal the trainer got, and the SIGTERM that follows it (a node with a failed GPU is drained),
        // are one event.
        let already_signalled = self.stopping.stop.as_mut().is_some_and(|stop| std::mem::take(&mut stop.is_signalled));
        let start = self.begin_stop(now, now + self.policy.stop_grace);
        self.stopping.stop.get_or_insert(Stop { cause: Cause::Signal { sender }, is_signalled: false });
        let preempt_signal = preempt_signal.filter(|_| !already_signalled);
        let signal = preempt_signal.map(|signal| self.deliver(now, signal)).unwrap_or_default();
        // A trainer with checkpoints, or one of a gang, may read the deadline or the common step in its handler, so the file is
        // written first, as for every notice. For any other command the signal comes first.
        if self.policy.checkpoints || self.is_in_gang() {
            file_then_signal(start, signal)
        } else {
            signal.into_iter().chain(start).collect()
        }
    }

    /// A running trainer is stopped as for a preemption. A job that has ended, or is already being stopped, keeps its
    /// reason.
    pub(super) fn on_gpu_failed(&mut self, now: Uptime, detail: String) -> Vec<Action> {
        let is_alive = matches!(self.state, State::Running | State::Launching);
        if !is_alive || self.stopping.stop.is_some() {
            return Vec::new();
        }
        self.stopping.stop = Some(Stop { cause: Cause::Gpu { detail }, is_signalled: true });
        let start = self.begin_stop(now, now + self.policy.stop_grace);
        let signal = self.policy.preempt_signal.map(|signal| self.deliver(now, signal));
        file_then_signal(start, signal.unwrap_or_default())
    }

    pub(super) fn on_fenced(&mut self, now: Uptime, detail: String) -> Vec<Action> {
        let was_signalled = self.stopping.stop.is_some() && self.policy.preempt_signal.is_some();
        let again = self.stopping.stop.as_ref().is_some_and(|stop| matches!(stop.cause, Cause::Fenced { .. }));
        let is_signalled = !was_signalled || self.stopping.stop.as_ref().is_some_and(|stop| stop.is_signalled);
        self.stopping.stop = Some(Stop { cause: Cause::Fenced { detail, again }, is_signalled });
        match self.state {
            State::Running | State::Launching if again => Vec::new(),
            State::Running | State::Launching => {
                let start = self.begin_stop(now, now + self.policy.stop_grace);
                // Many trainers treat a second signal as a request not to save.
                let signal = (!was_signalled).then(|| self.deliver(now, Signal::TERM));
                file_then_signal(start, signal.unwrap_or_default())
            }
            State::Draining | State::Done => Vec::new(),
            _ => self.finish(),
        }
    }

    /// Whether the newer run was reported before. Every access to the store reports it.
    pub fn is_fenced_again(&self) -> bool {
        matches!(self.stopping.stop, Some(Stop { cause: Cause::Fenced { again: true, .. }, .. }))
    }

    /// Sets the deadline, and writes the preemption file if the trainer does not know this deadline.
    pub(super) fn begin_stop(&mut self, now: Uptime, at: Uptime) -> Vec<Action> {
        let arm = self.set_deadline(now, at);
        let is_new = !std::mem::replace(&mut self.stopping.has_announced, true) || arm.is_some();
        let preemption_file =
            self.stopping.deadline.filter(|_| is_new).map(|deadline| Action::WritePreemptionFile { deadline });
        preemption_file.into_iter().chain(arm).collect()
    }

    /// The period of the stop, if a deadline is set.
    pub(super) fn grace(&self) -> Option<Grace> {
        Some(Grace { from: self.stopping.grace_from, until: self.stopping.deadline? })
    }

    /// Signals the processes of the tree that are next, and looks again soon.
    pub(super) fn signal_tree(&mut self, now: Uptime) -> Vec<Action> {
        let Some(grace) = self.grace() else { return Vec::new() };
        let signal = self.attempt.stop_signal.unwrap_or(Signal::TERM);
        // The last third and the last tenth of a short grace may be shorter than the period.
        let limits = [grace.last_third(), grace.last_tenth()].into_iter().filter(|limit| *limit > now);
        let next = limits.chain([now + TERM_SWEEP]).min().unwrap_or(now);
        vec![Action::SignalTree { grace, signal }, self.sweep(next)]
    }

    /// Whether the rest of the tree is signalled while main children live. A trainer that gets no signal is left alone until
    /// the deadline.
    pub(super) fn signals_tree(&self) -> bool {
        match self.state {
            State::Draining => true,
            State::Running => self.attempt.stop_signal.is_some() && self.policy.signal_target == Target::Leader,
            _ => false,
        }
    }

    /// A death may make other processes next, and may reveal grandchildren that the last scan could not see. The tree is
    /// scanned again soon; many deaths share one scan.
    pub(super) fn sweep_soon(&mut self, now: Uptime) -> Option<Action> {
        let soon = now + NEXT_SWEEP;
        let is_sooner = self.stopping.sweep_at.is_none_or(|at| soon < at);
        (self.signals_tree() && is_sooner).then(|| self.sweep(soon))
    }

    /// Sets the deadline, or brings it forward; never later.
    pub(super) fn set_deadline(&mut self, now: Uptime, at: Uptime) -> Option<Action> {
        match self.stopping.deadline {
            Some(set) if set <= at => return None,
            Some(_) => {}
            None => self.stopping.grace_from = now,
        }
        self.stopping.deadline = Some(at);
        Some(Action::Arm(Timer::Grace, at))
    }

    /// Sends the signal of a stop now, or when the command runs. The rest of the tree follows.
    pub(super) fn deliver(&mut self, now: Uptime, signal: Signal) -> Vec<Action> {
        let is_first = self.attempt.stop_signal.is_none();
        self.attempt.stop_signal.get_or_insert(signal);
        if self.state == State::Launching {
            self.hold(signal);
            return Vec::new();
        }
        let mut actions = Vec::from_iter(is_first.then_some(Action::LookAtTree(signal)));
        actions.push(self.send(signal));
        if is_first && self.signals_tree() {
            actions.push(self.sweep(now));
        }
        actions
    }

    pub(super) fn send(&self, signal: Signal) -> Action {
        Action::Signal { target: self.policy.signal_target, signal }
    }

    pub(super) fn hold(&mut self, signal: Signal) {
        // Standard signals do not queue in the kernel either.
        let queues = signal.number() > 31;
        if self.next.held_signals.len() < HELD_SIGNALS && (queues || !self.next.held_signals.contains(&signal)) {
            self.next.held_signals.push(signal);
        }
    }
}

/// The preemption file directly before the signal. The look at the tree takes time, in which a trainer that reads the file
/// could save and end without the signal.
fn file_then_signal(start: Vec<Action>, signal: Vec<Action>) -> Vec<Action> {
    let (looks, signal): (Vec<_>, Vec<_>) =
        signal.into_iter().partition(|action| matches!(action, Action::LookAtTree(_)));
    looks.into_iter().chain(start).chain(signal).collect()
}
