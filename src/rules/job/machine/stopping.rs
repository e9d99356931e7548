//! How a job is asked to stop: signals, notices, a failing GPU, a newer run. One deadline, which never moves later.

use super::{Cause, HELD_SIGNALS, Machine, State, Stop};
use crate::rules::job::event::{Action, Timer, Uptime};
use crate::rules::signal::Signal;

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
        // Whoever has it rewritten to that, or that to another, asks for the end.
        let is_stop = [signal, as_signal].contains(&Signal::TERM);
        let asks = self.policy.asks_to_leave(as_signal);
        match self.state {
            State::Running | State::Launching if is_stop => self.on_stop_signal(now, as_signal, sender),
            State::Running => {
                if asks {
                    self.asked = Some(now);
                }
                let mut actions = vec![self.send(as_signal)];
                // Else a shell that waits for us would never have its prompt back. Where the command has the terminal we hear
                // of it otherwise; a deadline that is set has to be watched.
                if signal.stops_a_job() && !self.policy.child_has_terminal && self.deadline.is_none() {
                    actions.push(Action::Suspend { at_once: self.policy.suspend_at_signal });
                }
                if self.policy.checkpoint_on.contains(&signal) {
                    actions.extend(self.hasten(false));
                }
                actions
            }
            State::Launching => {
                if asks {
                    self.asked = Some(now);
                }
                self.hold(as_signal);
                Vec::new()
            }
            State::Restoring | State::Gathering | State::Refreshing | State::Waiting if is_stop => {
                self.stop.get_or_insert(Stop { cause: Cause::Signal { sender }, told: true });
                self.flush(now)
            }
            // What the crash has left may not be committed yet.
            State::Restoring | State::Gathering | State::Refreshing | State::Waiting if asks => {
                self.interrupted = Some(as_signal);
                self.flush(now)
            }
            State::Restoring | State::Gathering => {
                self.hold(as_signal);
                Vec::new()
            }
            // It was meant for the attempt that is over; the next one would die of it before it can install a handler.
            State::Refreshing | State::Waiting => Vec::new(),
            // It commits what there is, and waits no longer; the next signal is for the commit.
            State::Flushing if self.awaits_others && asks => {
                self.awaits_others = false;
                vec![Action::Hasten { notice: true }]
            }
            State::Flushing if !is_stop && asks && !self.is_tidying => {
                let (deed, lost) = self.owed();
                self.lost_commit(format!("{deed} was broken off by {as_signal}; {lost}"))
            }
            State::Draining if self.would_restart(now) => {
                self.on_signal_while_draining(now, is_stop, as_signal, sender);
                Vec::new()
            }
            // Whoever waits for the end waits for nothing but the last commit.
            State::Flushing if (is_stop || asks) && self.policy.store => {
                vec![Action::Hasten { notice: true }]
            }
            State::Draining | State::Flushing | State::Done => Vec::new(),
        }
    }

    /// Another attempt would follow: it does not where somebody wants the end.
    fn on_signal_while_draining(&mut self, now: Uptime, is_stop: bool, as_signal: Signal, sender: Option<u32>) {
        if is_stop {
            self.stop = Some(Stop { cause: Cause::Signal { sender }, told: true });
        } else if self.policy.asks_to_leave(as_signal) {
            self.asked = Some(now);
            self.gave_up = format!("{as_signal} came before the next attempt");
        }
    }

    pub(super) fn on_stop_signal(&mut self, now: Uptime, as_signal: Signal, sender: Option<u32>) -> Vec<Action> {
        let preempt_signal = if as_signal == Signal::TERM { self.policy.preempt_signal } else { Some(as_signal) };
        // What the trainer was told of already and the SIGTERM that follows it (a node with a failed GPU is drained) are one
        // event.
        let already_told = self.stop.as_mut().is_some_and(|stop| std::mem::take(&mut stop.told));
        let begun = self.begin_stop(now + self.policy.stop_grace);
        self.stop.get_or_insert(Stop { cause: Cause::Signal { sender }, told: false });
        let signal = preempt_signal.filter(|_| !already_told).and_then(|signal| self.deliver(signal));
        // A trainer with checkpoints may read the deadline in its handler: the file is there first, as with every notice.
        // For any other command this is an init, and nothing comes before the signal.
        if self.policy.checkpoints {
            begun.into_iter().chain(signal).collect()
        } else {
            signal.into_iter().chain(begun).collect()
        }
    }

    /// A running trainer is stopped as by a preemption; what is over or stopping already keeps its own reason.
    pub(super) fn on_gpu_failed(&mut self, now: Uptime, detail: String) -> Vec<Action> {
        let is_alive = matches!(self.state, State::Running | State::Launching);
        if !is_alive || self.stop.is_some() {
            return Vec::new();
        }
        self.stop = Some(Stop { cause: Cause::Gpu { detail }, told: true });
        let mut actions = self.begin_stop(now + self.policy.stop_grace);
        if let Some(signal) = self.policy.preempt_signal {
            actions.extend(self.deliver(signal));
        }
        actions
    }

    pub(super) fn on_fenced(&mut self, now: Uptime, detail: String) -> Vec<Action> {
        let is_told = self.stop.is_some() && self.policy.preempt_signal.is_some();
        let again = self.stop.as_ref().is_some_and(|stop| matches!(stop.cause, Cause::Fenced { .. }));
        let told = !is_told || self.stop.as_ref().is_some_and(|stop| stop.told);
        self.stop = Some(Stop { cause: Cause::Fenced { detail, again }, told });
        match self.state {
            State::Running | State::Launching if again => Vec::new(),
            State::Running | State::Launching => {
                let mut actions = self.begin_stop(now + self.policy.stop_grace);
                // To many a trainer a second signal says that it shall not even save.
                if !is_told {
                    actions.extend(self.deliver(Signal::TERM));
                }
                actions
            }
            State::Draining | State::Done => Vec::new(),
            _ => self.finish(),
        }
    }

    /// Whether the newer run was heard of before: it is, whenever the store is looked at.
    pub fn is_fenced_again(&self) -> bool {
        matches!(self.stop, Some(Stop { cause: Cause::Fenced { again: true, .. }, .. }))
    }

    /// The deadline and the word of it to the trainer, who knows of none yet or of a later one.
    pub(super) fn begin_stop(&mut self, at: Uptime) -> Vec<Action> {
        let arm = self.set_deadline(at);
        let is_news = !std::mem::replace(&mut self.announced, true) || arm.is_some();
        let told = self.deadline.filter(|_| is_news).map(|deadline| Action::Announce { deadline });
        told.into_iter().chain(arm).collect()
    }

    /// Sets the one deadline, or brings it forward; never later.
    pub(super) fn set_deadline(&mut self, at: Uptime) -> Option<Action> {
        if self.deadline.is_some_and(|set| set <= at) {
            return None;
        }
        self.deadline = Some(at);
        Some(Action::Arm(Timer::Grace, at))
    }

    /// Sends now, or once the command runs.
    pub(super) fn deliver(&mut self, signal: Signal) -> Option<Action> {
        if self.state == State::Launching {
            self.hold(signal);
            return None;
        }
        Some(self.send(signal))
    }

    pub(super) fn send(&self, signal: Signal) -> Action {
        Action::Signal { target: self.policy.signal_target, signal }
    }

    pub(super) fn hold(&mut self, signal: Signal) {
        // Standard signals do not queue in the kernel either.
        let queues = signal.number() > 31;
        if self.held.len() < HELD_SIGNALS && (queues || !self.held.contains(&signal)) {
            self.held.push(signal);
        }
    }
}
