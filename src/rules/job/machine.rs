//! The state machine of one job. `step` is handed the time and an event and says what to do.
//!
//! ```text
//! Restoring -> (Gathering ->) Launching -> Running -> Draining -> Flushing -> Done
//!                                 ^                      |
//!                                 +- Waiting <- Refreshing   (a crash, while the budget lasts)
//! ```
//! Two laws hold throughout: an orphan's death never ends the job, and a deadline never moves later.

use std::time::Duration;

use super::event::{Action, Event, Resume, Timer, Uptime};
use super::hang::Watch;
use super::policy::Policy;
use super::restart::Memory;
use super::verdict::Reason;
use crate::rules::exit::{self, End};
use crate::rules::signal::Signal;
use leaders::Leaders;
use leaving::Far;
use starting::{NotStarted, Story};

mod ending;
mod flushing;
mod hanging;
mod leaders;
mod leaving;
mod restarting;
mod starting;
mod stopping;
mod told;

pub use flushing::COPY_AGAIN;
pub use told::{STATES, Told};

/// How long a process may resist SIGKILL before it is named and left behind.
const STUCK_AFTER: Duration = Duration::from_secs(2);
/// Why there is no other attempt then.
const STUCK: &str = "it is not started again beside processes of it that could not be ended";
/// Between two looks for new descendants while SIGTERM is at work.
const TERM_SWEEP: Duration = Duration::from_millis(200);
/// The same after a death, and while SIGKILL is at work.
const NEXT_SWEEP: Duration = Duration::from_millis(10);
/// Signals kept for a command that is not running yet; more than this nobody sends.
const HELD_SIGNALS: usize = 256;

/// Where a job is in its life.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum State {
    /// Looking for a checkpoint to go on from, before the first attempt.
    Restoring,
    /// Waiting for the peers to be there, before the first attempt.
    Gathering,
    /// Forked, not yet executing the command.
    Launching,
    /// The command runs (or is being stopped).
    Running,
    /// The main child is gone, or one of several has failed; others of the tree are not gone.
    Draining,
    /// The tree is empty after a crash: commit what is complete, find where to go on from.
    Refreshing,
    /// The pause before a restart.
    Waiting,
    /// The last commit.
    Flushing,
    /// Nothing more will happen.
    Done,
}

/// Why the job is being stopped.
#[derive(Debug, Clone)]
enum Cause {
    Signal { sender: Option<u32> },
    Notice { source: String },
    Gpu { detail: String },
    Fenced { detail: String, again: bool },
}

#[derive(Debug, Clone)]
struct Stop {
    cause: Cause,
    /// Notices and signals that mean the same event are told to the trainer once.
    told: bool,
}

/// The job.
#[derive(Debug)]
pub struct Machine {
    policy: Policy,
    state: State,
    attempt: u32,
    started_at: Uptime,
    resume: Option<Resume>,
    /// Where the last attempt went on from.
    resumed: Option<Resume>,
    /// An older checkpoint is looked for; the pause before it is tried.
    falling_back: Option<Duration>,
    /// What the next attempt does not go on from, although it is newer.
    passed_over: Option<String>,
    /// The step of the newest commit, which is not the highest where training went back.
    committed: Option<u64>,
    stop: Option<Stop>,
    /// When everything left gets SIGKILL, once that is set.
    deadline: Option<Uptime>,
    /// The trainer was told of a deadline.
    announced: bool,
    /// When the machine itself goes away, where a notice said so, and when we must be gone.
    leave_by: Option<(Uptime, Uptime)>,
    /// Ends that were announced and are far away: the trainer is not told yet.
    far: Vec<Far>,
    /// Who announced the end that was acted upon; what is withdrawn now comes too late.
    leaving: Option<String>,
    /// When the last commit is given up, if it moves nothing until then.
    flush_by: Uptime,
    /// What the last commit took.
    commit_took: Option<Duration>,
    /// How this attempt ended: its main child, or of several the first that failed; and whether the kernel had killed for
    /// memory by then.
    ended: Option<(End, Option<bool>)>,
    /// When that was; its tree may take long to follow.
    ended_at: Uptime,
    /// Whose end that is, who else has ended since, and who is left.
    leaders: Leaders,
    /// Why the attempt could not be started.
    not_started: Option<NotStarted>,
    /// How the attempt before went, which is the story where no other can be started.
    before: Story,
    /// INT, HUP or QUIT was passed on at this time, or came from the terminal: a death soon after is an answer.
    asked: Option<Uptime>,
    /// What ended the job between two attempts, but for the last commit.
    interrupted: Option<Signal>,
    /// Since when whatever is left gets SIGKILL.
    killing: Option<Uptime>,
    /// When the tree is looked at again.
    sweep_at: Option<Uptime>,
    /// Signals for a command that is not running yet.
    held: Vec<Signal>,
    memory: Memory,
    watch: Option<Watch>,
    /// Until when the machine was said to stand still. It is said once, whether an attempt runs then or not.
    frozen_until: Option<Uptime>,
    /// The copy of the finished model was begun.
    published: bool,
    /// Only what need not stay is still being deleted.
    is_tidying: bool,
    /// The last commit waits for the other processes of the node.
    awaits_others: bool,
    /// Why this attempt was ended as hung.
    hung: Option<String>,
    /// Why there was no further attempt.
    gave_up: String,
}

impl Machine {
    /// A job that has not begun.
    pub fn new(policy: Policy) -> Machine {
        Machine {
            policy,
            state: State::Restoring,
            attempt: 0,
            started_at: Uptime::ZERO,
            resume: None,
            resumed: None,
            falling_back: None,
            passed_over: None,
            committed: None,
            stop: None,
            deadline: None,
            announced: false,
            leave_by: None,
            far: Vec::new(),
            leaving: None,
            flush_by: Uptime::ZERO,
            commit_took: None,
            ended: None,
            ended_at: Uptime::ZERO,
            leaders: Leaders::default(),
            not_started: None,
            before: Story::default(),
            asked: None,
            interrupted: None,
            killing: None,
            sweep_at: None,
            held: Vec::new(),
            memory: Memory::default(),
            watch: None,
            frozen_until: None,
            hung: None,
            published: false,
            is_tidying: false,
            awaits_others: false,
            gave_up: String::new(),
        }
    }

    /// Where it is.
    pub fn state(&self) -> &State {
        &self.state
    }

    /// Starts of the command so far.
    pub fn attempt(&self) -> u32 {
        self.attempt
    }

    /// When the machine goes away, where that was announced.
    pub fn leaves_by(&self) -> Option<Uptime> {
        self.leave_by.map(|(end, _)| end)
    }

    /// Whether an announced end was acted upon already.
    pub fn is_leaving(&self) -> bool {
        self.leaving.is_some()
    }

    /// Whether this signal announces the machine's end.
    pub fn announces(&self, signal: Signal) -> bool {
        self.policy.preempt_on.iter().any(|(s, _)| *s == signal)
    }

    /// Who must be reachable before the first start.
    pub fn peers(&self) -> Option<&str> {
        self.policy.peers.as_deref()
    }

    /// Whether the end has been asked for from outside.
    pub fn is_stopping(&self) -> bool {
        self.stop.is_some()
    }

    /// When whatever is left of the tree gets SIGKILL, once that is set.
    pub fn deadline(&self) -> Option<Uptime> {
        self.deadline
    }

    /// What to do about an event.
    pub fn step(&mut self, now: Uptime, event: Event) -> Vec<Action> {
        if self.state == State::Done {
            return Vec::new();
        }
        match event {
            Event::Started if self.policy.checkpoints => vec![Action::Restore],
            Event::Started => self.begin(),
            Event::Restored { resume, committed, older } => self.on_restored(now, resume, committed, older),
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
            Event::NotSpawned { code, detail, passes, others } => {
                self.on_not_spawned(now, NotStarted { code, detail, passes }, others)
            }
            Event::MainEnded { local_rank, end, oom } => self.on_main_ended(now, local_rank, end, oom),
            Event::Reaped { .. } => self.on_reaped(now),
            Event::TreeEmpty => self.on_tree_empty(now),
            Event::Signal { signal, sender } => self.on_signal(now, signal, sender),
            Event::Preempted { id, source, lead } => self.on_preempted(now, id, source, lead),
            Event::Withdrawn { id, .. } => self.on_withdrawn(&id),
            Event::Warned { .. } => self.hasten(false),
            Event::Frozen { length, .. } => self.on_frozen(now, length),
            Event::Pulse(pulse) => self.on_pulse(now, pulse),
            Event::Due(timer) => self.on_due(now, timer),
            Event::Committed { step, took, .. } => {
                self.committed = step;
                self.memory.progressed(step);
                self.commit_took = Some(took);
                self.alive(now, "a commit");
                self.on_natural_end(now)
            }
            Event::Transferring if self.state == State::Flushing => vec![self.flush_limit(now)],
            Event::AwaitsOthers(awaits) => {
                self.awaits_others = awaits.is_some();
                Vec::new()
            }
            Event::Tidying => {
                self.is_tidying = self.state == State::Flushing;
                Vec::new()
            }
            Event::Transferring | Event::Mirrored(_) => Vec::new(),
            Event::Flushed(flushed) => self.on_flushed(now, flushed),
            Event::GpuFailed { detail } => self.on_gpu_failed(now, detail),
            Event::Fenced { detail } => self.on_fenced(now, detail),
        }
    }

    /// Everything is there for the first attempt but, maybe, the peers.
    fn begin(&mut self) -> Vec<Action> {
        if self.policy.peers.is_none() {
            return self.spawn();
        }
        self.state = State::Gathering;
        vec![Action::AwaitPeers]
    }

    fn on_restored(&mut self, now: Uptime, resume: Option<Resume>, committed: Option<u64>, older: bool) -> Vec<Action> {
        if self.falling_back.is_none() {
            self.note_newest(committed);
        }
        let step = resume.as_ref().and_then(|r| r.step);
        self.resume = resume;
        match self.state {
            State::Restoring => {
                self.memory.starts_from(step.max(committed));
                self.begin()
            }
            State::Refreshing if self.falling_back.is_some() => self.on_fallen_back(now),
            State::Refreshing => {
                self.memory.progressed(step.max(committed));
                self.memory.sees_older(older);
                self.judge(now)
            }
            _ => Vec::new(),
        }
    }

    /// Later restores begin with what is known to be committed.
    fn on_found(&mut self, committed: Option<u64>) -> Vec<Action> {
        if matches!(self.state, State::Restoring | State::Flushing) {
            self.committed = committed;
        }
        Vec::new()
    }

    fn on_not_restored(&mut self, code: u8, detail: String) -> Vec<Action> {
        match (&self.state, code) {
            (State::Restoring | State::Refreshing, exit::STORE) => self.exit(Reason::Store, code, detail),
            (State::Restoring | State::Refreshing, exit::FENCED) => self.exit(Reason::Fenced, code, detail),
            (State::Restoring | State::Refreshing, _) => self.exit(Reason::NotStarted, code, detail),
            _ => Vec::new(),
        }
    }

    /// A death may leave grandchildren behind that were not to be seen before: look again soon, but not at each of ten
    /// thousand deaths.
    fn on_reaped(&mut self, now: Uptime) -> Vec<Action> {
        let soon = now + NEXT_SWEEP;
        let is_sooner = self.sweep_at.is_none_or(|at| soon < at);
        if self.state == State::Draining && is_sooner { vec![self.sweep(soon)] } else { Vec::new() }
    }

    fn sweep(&mut self, at: Uptime) -> Action {
        self.sweep_at = Some(at);
        Action::Arm(Timer::Sweep, at)
    }

    fn on_tree_empty(&mut self, now: Uptime) -> Vec<Action> {
        if self.state != State::Draining {
            return Vec::new();
        }
        let doubt = self.doubt(now);
        (self.killing, self.sweep_at) = (None, None);
        let mut actions: Vec<Action> =
            [Timer::Grace, Timer::Stuck, Timer::Sweep].into_iter().map(Action::Disarm).collect();
        actions.extend(doubt);
        if self.stop.is_none() {
            self.deadline = None;
        }
        if self.not_started.is_some() {
            actions.extend(self.not_begun(now));
            return actions;
        }
        let crashed = self.crashed(now);
        if crashed && self.policy.max_restarts > 0 && self.policy.checkpoints {
            self.state = State::Refreshing;
            actions.push(Action::Refresh);
        } else if crashed {
            actions.extend(self.judge(now));
        } else {
            actions.extend(self.flush(now));
        }
        actions
    }

    /// The attempt failed, and nobody wanted its end.
    fn crashed(&self, now: Uptime) -> bool {
        self.stop.is_none() && !self.ended_well() && !self.answered_a_request(now)
    }

    /// Whether another attempt would follow this one's end, if the budget lasts.
    pub fn would_restart(&self, now: Uptime) -> bool {
        self.policy.max_restarts > 0 && self.crashed(now)
    }

    /// The trainer did what it was to do, and nobody stopped it.
    fn succeeded(&self) -> bool {
        self.stop.is_none() && self.ended_well()
    }

    /// Of its own accord: what a hung one leaves with tells nothing.
    fn ended_well(&self) -> bool {
        self.hung.is_none() && matches!(self.ended, Some((End::Code(0), _)))
    }

    /// A main child died soon after a signal that asks to leave, and that somebody sent.
    fn answered_a_request(&self, now: Uptime) -> bool {
        self.asked.is_some_and(|asked| now.saturating_sub(asked) <= self.policy.stop_grace + STUCK_AFTER)
    }

    fn on_due(&mut self, now: Uptime, timer: Timer) -> Vec<Action> {
        match (timer, &self.state) {
            (Timer::Grace, State::Launching | State::Running | State::Draining) => {
                self.killing = Some(now);
                vec![Action::KillTree, Action::Arm(Timer::Stuck, now + STUCK_AFTER), self.sweep(now + NEXT_SWEEP)]
            }
            (Timer::Sweep, State::Launching | State::Running | State::Draining) if self.killing.is_some() => {
                vec![Action::KillTree, self.sweep(now + NEXT_SWEEP)]
            }
            (Timer::Sweep, State::Draining) => vec![Action::TermTree, self.sweep(now + TERM_SWEEP)],
            (Timer::Stuck, State::Launching | State::Running | State::Draining) => {
                let mut actions = vec![Action::NameStuck, Action::Disarm(Timer::Sweep)];
                actions.extend(self.doubt(now));
                // Whatever is stuck cannot write a checkpoint any more: go on as if it were gone, but never restart.
                if self.would_restart(now) {
                    self.gave_up = STUCK.to_owned();
                }
                actions.extend(if self.not_started.is_some() { self.not_begun(now) } else { self.flush(now) });
                actions
            }
            (Timer::Backoff, State::Waiting) => self.spawn(),
            (Timer::Pulse, _) => self.on_look_due(now),
            (Timer::Leave, _) => self.on_end_near(now),
            (Timer::FlushLimit, State::Flushing) => self.on_flush_limit(now),
            _ => Vec::new(),
        }
    }
}

#[cfg(test)]
mod tests;
#[cfg(test)]
mod tests_gathering;
#[cfg(test)]
mod tests_hanging;
#[cfg(test)]
mod tests_leaving;
#[cfg(test)]
mod tests_model;
#[cfg(test)]
mod tests_signals;
