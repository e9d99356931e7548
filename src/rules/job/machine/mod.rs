//! The state machine of one job. `step` takes the time and an event, and returns actions.
//!
//! ```text
//! (Fetching ->) Restoring -> (Gathering ->) Launching -> Running -> Draining -> Flushing -> Done
//!                                               ^                      |
//!                                               +- Waiting <- Refreshing   (a crash, while the budget lasts)
//! ```
//! In a gang (`machine/gang.rs`) Surveying, Assembling and Arming replace the states before and after an attempt.
//!
//! Two rules always hold: an orphan's death never ends the job, and a deadline never moves later.

use std::time::Duration;

use super::event::{Action, Event, Resume, Timer, Uptime};
use super::hang::Watchdog;
use super::policy::Policy;
use super::verdict::Reason;
use crate::process::exit;
use crate::process::exit::End;
use crate::process::signal::Signal;
use parts::{Attempt, Commits, NextAttempt, Notices, Restarts, Stopping};
use starting::NotStarted;

mod ending;
mod flushing;
mod gang;
mod gang_end;
mod hanging;
mod leaving;
mod main_children;
mod parts;
mod restoring;
mod snapshot;
mod starting;
mod stopping;

pub use flushing::COPY_AGAIN;
pub use snapshot::{STATES, Snapshot};

/// Processes whose number has not fallen for this long since SIGKILL are logged and left behind.
const STUCK_AFTER: Duration = Duration::from_secs(2);
/// The reason in the verdict for making no further attempt then.
const STUCK: &str = "it is not restarted, because some of its processes could not be ended";
/// The interval between two scans for new descendants after SIGTERM.
const TERM_SWEEP: Duration = Duration::from_millis(200);
/// The same interval after a death, and after SIGKILL.
const NEXT_SWEEP: Duration = Duration::from_millis(10);
/// The limit for signals that are held until the command runs. No sender sends more.
const HELD_SIGNALS: usize = 256;

/// The state of a job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum State {
    /// Fetching the training data, before anything else.
    Fetching,
    /// Looking for a checkpoint to resume from, before the first attempt.
    Restoring,
    /// Waiting until the peers can be reached, before the first attempt.
    Gathering,
    /// Forked, but the command has not been executed yet.
    Launching,
    /// The command runs, or is being stopped.
    Running,
    /// The main child has ended, or one of several has failed; other processes of the tree are left.
    Draining,
    /// The tree is empty after a crash: commit complete checkpoints, and find the one to resume from.
    Refreshing,
    /// The pause before a restart.
    Waiting,
    /// The tree is empty: finding the checkpoints that this replica of a gang can restore.
    Surveying,
    /// Nothing runs: waiting for an order of the gang.
    Assembling,
    /// Restoring the step that the gang has agreed on.
    Arming,
    /// The last commit.
    Flushing,
    /// Nothing more will happen.
    Done,
}

/// The job.
#[derive(Debug)]
pub struct Machine {
    policy: Policy,
    state: State,
    attempt: Attempt,
    next: NextAttempt,
    stopping: Stopping,
    notices: Notices,
    commits: Commits,
    restarts: Restarts,
    watchdog: Option<Watchdog>,
    gang: gang::Gang,
}

impl Machine {
    /// A job that has not started.
    pub fn new(policy: Policy) -> Machine {
        Machine {
            policy,
            state: State::Restoring,
            attempt: Attempt::default(),
            next: NextAttempt::default(),
            stopping: Stopping::default(),
            notices: Notices::default(),
            commits: Commits::default(),
            restarts: Restarts::default(),
            watchdog: None,
            gang: gang::Gang::default(),
        }
    }

    /// The present state.
    pub fn state(&self) -> &State {
        &self.state
    }

    /// Starts of the command so far.
    pub fn attempt(&self) -> u32 {
        self.attempt.number
    }

    /// When the machine goes away, if that was announced.
    pub fn leaves_by(&self) -> Option<Uptime> {
        self.notices.leave_by.map(|(end, _)| end)
    }

    /// Whether trainit has acted on an announced end.
    pub fn is_leaving(&self) -> bool {
        self.notices.acted_on.is_some()
    }

    /// Whether this signal announces the machine's end.
    pub fn announces(&self, signal: Signal) -> bool {
        self.policy.preempt_on.iter().any(|(s, _)| *s == signal)
    }

    /// The peers that must be reachable before the first start.
    pub fn peers(&self) -> Option<&str> {
        self.policy.peers.as_deref()
    }

    /// Whether a stop was requested from outside.
    pub fn is_stopping(&self) -> bool {
        self.stopping.stop.is_some()
    }

    /// When the remaining processes of the tree get SIGKILL, if a deadline is set.
    pub fn deadline(&self) -> Option<Uptime> {
        self.stopping.deadline
    }

    /// The end of the time for the rest of the tree, for the log, with the setting if it decided.
    pub fn grace_in_words(&self) -> String {
        let length = self.grace().map(|grace| grace.until.saturating_sub(grace.from));
        match length {
            Some(length) if length == self.policy.stop_grace => {
                format!(
                    "the stop grace is over (--stop-grace {})",
                    humantime::format_duration(length).to_string().replace(' ', "")
                )
            }
            _ => "the stop grace is over".to_owned(),
        }
    }

    /// Handles an event.
    pub fn step(&mut self, now: Uptime, event: Event) -> Vec<Action> {
        if self.state == State::Done {
            return Vec::new();
        }
        let was_stopping = self.stopping.stop.is_some();
        let mut actions = self.react(now, event);
        if !was_stopping && let Some(report) = self.report_stop(now) {
            actions.insert(0, report);
        }
        actions
    }

    fn react(&mut self, now: Uptime, event: Event) -> Vec<Action> {
        match event {
            Event::Started if self.state != State::Restoring => Vec::new(),
            Event::Started if self.policy.fetches => {
                self.state = State::Fetching;
                vec![Action::Fetch]
            }
            Event::Started => self.begin(),
            Event::Fetched if self.state == State::Fetching => {
                self.state = State::Restoring;
                self.begin()
            }
            Event::NotFetched { code, detail } if self.state == State::Fetching => {
                let reason = if code == exit::STORE { Reason::Store } else { Reason::NotStarted };
                self.exit(reason, code, detail)
            }
            Event::Fetched | Event::NotFetched { .. } => Vec::new(),
            Event::Gang(order) => self.on_gang(now, order),
            Event::Surveyed(offer) => self.on_surveyed(offer),
            Event::Restored { resume, committed, older, is_further } => {
                if is_further {
                    self.on_progress(committed);
                }
                self.restarts.budget.note_older_commit(older);
                self.on_restored(now, resume, committed)
            }
            Event::Found { committed } => self.on_found(committed),
            Event::KeptBeside => {
                self.policy.store = false;
                Vec::new()
            }
            Event::NotRestored { code, detail } => self.on_not_restored(code, detail),
            Event::PeersReached if self.state == State::Gathering => self.spawn(),
            Event::PeersMissing { detail } if self.state == State::Gathering => {
                self.exit(Reason::Peer, exit::PEER, detail)
            }
            Event::PeersReached | Event::PeersMissing { .. } => Vec::new(),
            Event::Spawned { .. } => self.on_spawned(now),
            Event::NotSpawned { code, detail, is_transient, others } => {
                self.on_not_spawned(now, NotStarted { code, detail, is_transient }, others)
            }
            Event::MainEnded { local_rank, end, oom } => self.on_main_ended(now, local_rank, end, oom),
            Event::Clue(clue) => {
                self.attempt.clues.found(clue);
                Vec::new()
            }
            Event::Reaped { .. } => self.sweep_soon(now).into_iter().collect(),
            Event::Left(count) => self.on_left(now, count),
            Event::TreeEmpty => self.on_tree_empty(now),
            Event::Signal { signal, sender } => self.on_signal(now, signal, sender),
            Event::Preempted { id, source, lead } => self.on_preempted(now, id, source, lead),
            Event::Withdrawn { id, .. } => self.on_withdrawn(&id),
            Event::Warned { .. } => self.commit_soon(false),
            Event::Frozen { length, .. } => self.on_frozen(now, length),
            Event::LivenessSampled(sample) => self.on_liveness_sample(now, sample),
            Event::Due(timer) => self.on_due(now, timer),
            Event::Committed { step, took, is_progress, .. } => {
                self.commits.step = step;
                if is_progress {
                    self.on_progress(step);
                }
                self.commits.last_took = Some(took);
                self.alive(now, "a commit");
                self.on_commit_before_end(now)
            }
            Event::Transferring if self.state == State::Flushing => vec![self.flush_limit(now)],
            Event::AwaitsOthers(awaits) => {
                self.commits.awaits_others = awaits.is_some();
                Vec::new()
            }
            Event::Tidying => {
                self.commits.is_deleting_old = self.state == State::Flushing;
                Vec::new()
            }
            Event::Transferring | Event::Mirrored(_) => Vec::new(),
            Event::Flushed(flushed) => self.on_flushed(now, flushed),
            Event::GpuFailed { detail } => self.on_gpu_failed(now, detail),
            Event::Fenced { detail } => self.on_fenced(now, detail),
        }
    }

    /// While the number of processes falls, the kernel is at work, and nothing is stuck.
    fn on_left(&mut self, now: Uptime, count: usize) -> Vec<Action> {
        let falls = self.stopping.fewest_left.is_none_or(|fewest| count < fewest);
        if self.stopping.kill_from.is_none() || !falls {
            return Vec::new();
        }
        self.stopping.fewest_left = Some(count);
        vec![Action::Arm(Timer::Stuck, now + STUCK_AFTER)]
    }

    fn sweep(&mut self, at: Uptime) -> Action {
        self.stopping.sweep_at = Some(at);
        Action::Arm(Timer::Sweep, at)
    }

    fn on_tree_empty(&mut self, now: Uptime) -> Vec<Action> {
        if self.state != State::Draining {
            return Vec::new();
        }
        let unsure = self.mark_unsure(now);
        (self.stopping.kill_from, self.stopping.fewest_left, self.stopping.sweep_at) = (None, None, None);
        let mut actions: Vec<Action> =
            [Timer::Grace, Timer::Stuck, Timer::Sweep].into_iter().map(Action::Disarm).collect();
        actions.extend(unsure);
        if self.stopping.stop.is_none() {
            self.stopping.deadline = None;
        }
        if self.attempt.not_started.is_some() {
            actions.extend(self.after_failed_start(now));
            return actions;
        }
        if self.would_start_with_gang(now) {
            actions.extend(self.survey());
            return actions;
        }
        let crashed = self.crashed(now);
        if crashed && self.policy.max_restarts > 0 && self.policy.checkpoints {
            self.state = State::Refreshing;
            actions.push(Action::Refresh);
        } else if crashed {
            actions.extend(self.decide(now));
        } else {
            actions.extend(self.flush(now));
        }
        actions
    }

    /// The attempt failed, and no stop was requested.
    fn crashed(&self, now: Uptime) -> bool {
        let is_wanted = self.stopping.stop.is_some() || self.answered_a_request(now) || self.is_ended_by_gang();
        !is_wanted && !self.ended_well()
    }

    /// Explanations for this end of a main child, as clauses.
    pub fn explain(&self, end: End) -> Vec<String> {
        self.attempt.clues.explain(end, &self.policy)
    }

    /// Whether another attempt would follow the end of this one, if the budget lasts.
    pub fn would_restart(&self, now: Uptime) -> bool {
        if self.is_in_gang() {
            return self.would_start_with_gang(now);
        }
        self.policy.max_restarts > 0 && self.crashed(now)
    }

    /// The trainer completed its work, and no stop was requested.
    fn succeeded(&self) -> bool {
        self.stopping.stop.is_none() && self.ended_well()
    }

    /// The exit code of a hung attempt does not count, because trainit ended it.
    fn ended_well(&self) -> bool {
        self.attempt.hung.is_none() && matches!(self.attempt.ended, Some((End::Code(0), _)))
    }

    /// A main child died soon after a user's signal that asks it to leave.
    fn answered_a_request(&self, now: Uptime) -> bool {
        self.attempt
            .keyboard_signal_at
            .is_some_and(|signal_at| now.saturating_sub(signal_at) <= self.policy.stop_grace + STUCK_AFTER)
    }

    fn on_due(&mut self, now: Uptime, timer: Timer) -> Vec<Action> {
        match (timer, &self.state) {
            (Timer::Grace, State::Launching | State::Running | State::Draining) => self.kill(now),
            (Timer::Sweep, State::Launching | State::Running | State::Draining)
                if self.stopping.kill_from.is_some() =>
            {
                vec![Action::KillTree, self.sweep(now + NEXT_SWEEP)]
            }
            (Timer::Sweep, _) if self.signals_tree() => self.signal_tree(now),
            (Timer::Stuck, State::Launching | State::Running | State::Draining) => {
                let mut actions = vec![Action::NameStuck, Action::Disarm(Timer::Sweep)];
                actions.extend(self.mark_unsure(now));
                // A stuck process cannot write checkpoints any more: continue as if it had ended, but do not restart.
                if self.would_restart(now) {
                    self.restarts.no_restart_reason = STUCK.to_owned();
                }
                actions.extend(if self.attempt.not_started.is_some() {
                    self.after_failed_start(now)
                } else {
                    self.flush(now)
                });
                actions
            }
            (Timer::Backoff, State::Waiting) => self.spawn(),
            (Timer::SampleLiveness, _) => self.on_look_due(now),
            (Timer::Abort, _) => self.on_abort_due(),
            (Timer::Leave, _) => self.on_end_near(now),
            (Timer::Finish, _) => self.on_finish_over(now),
            (Timer::FlushLimit, State::Flushing) => self.on_flush_limit(now),
            _ => Vec::new(),
        }
    }
}

#[cfg(test)]
mod tests;
