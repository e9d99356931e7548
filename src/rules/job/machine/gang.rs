//! A job that is part of a gang: the gang orders the start and the stop of the command. The protocol is in `rules/gang`;
//! this file connects it to the life of the process tree.
//!
//! ```text
//! Surveying -> Assembling -> (Arming -> Assembling ->) Launching -> Running -> Draining -> Surveying ...
//!                  ^                                                               |
//!                  +---- the trainer ended with 0 <- Flushing <--------------------+
//! ```
//! An evaluator or a reducer is not a full member: it starts and restarts by itself, and only the end of the job concerns
//! it.

use std::time::Duration;

use super::parts::Cause;
use super::{Machine, NEXT_SWEEP, STUCK_AFTER, State};
use crate::gang::Generation;
use crate::gang::member::{Action as Order, Event as MemberEvent, Leave};
use crate::gang::message::{Choice, Class, Failure, Offer};
use crate::job::budget;
use crate::job::event::{Action, Timer, Uptime};
use crate::process::exit::End;
use crate::process::signal::Signal;

/// The gang's influence on this attempt and on the job's end.
#[derive(Debug, Default)]
pub(super) struct Gang {
    /// The generation of the last start.
    generation: Option<Generation>,
    /// The gang ended the attempt, so the trainer's death is not a failure.
    pub(super) is_halting: bool,
    /// The trainer had closed its connections before the halt and may end by itself, which is its own failure.
    pub(super) ends_by_itself: bool,
    /// The job is over: the command is not started again.
    pub(super) is_ending: bool,
    /// The job has finished: this replica exits with 0, whatever stops it from now on.
    pub(super) is_job_finished: bool,
    /// A stop was requested after the trainer's success: this replica exits with 0 after its last commit.
    pub(super) is_leave_requested: bool,
    /// The reason and exit code to use when the tree is empty and the last commit has ended.
    pub(super) leave: Option<Leave>,
    /// All replicas exit, because the machine of one replica goes away.
    is_parting: bool,
    /// The trainer's success was reported.
    pub(super) has_finished: bool,
    /// The number of surveys without an answer. Only the answer of the last one is current.
    pub(super) surveys: u32,
    /// A survey was requested while the training data were being fetched.
    pub(super) is_survey_due: bool,
}

impl Machine {
    /// Whether the gang starts and stops the command.
    pub(super) fn is_in_gang(&self) -> bool {
        self.policy.gang.is_some_and(|gang| gang.seat.is_required())
    }

    /// The generation of the last start.
    pub fn generation(&self) -> Option<Generation> {
        self.gang.generation
    }

    /// Whether another generation may follow this attempt.
    pub(super) fn would_start_with_gang(&self, now: Uptime) -> bool {
        let is_over = self.stopping.stop.is_some() || self.gang.is_ending;
        self.is_in_gang() && !is_over && (self.gang.is_halting || self.crashed(now))
    }

    /// Whether the gang ended the attempt, or the job is over.
    pub fn is_ended_by_gang(&self) -> bool {
        self.gang.is_halting || self.gang.is_ending
    }

    pub(super) fn on_gang(&mut self, now: Uptime, order: Order) -> Vec<Action> {
        match order {
            Order::Survey if self.waits_for_gang() => self.survey(),
            Order::Survey if self.state == State::Fetching => {
                self.gang.is_survey_due = true;
                Vec::new()
            }
            Order::Restore(choice) if self.state == State::Assembling => self.arm(choice),
            Order::Launch(generation) if self.state == State::Assembling => {
                self.gang = Gang { generation: Some(generation), ..Gang::default() };
                self.spawn()
            }
            Order::Stop(grace) => self.halt(now, grace),
            Order::AwaitEnd(limit) => self.await_end(now, limit),
            Order::Kill => self.halt(now, Duration::ZERO),
            Order::Abort => self.abort_with_gang(now),
            Order::ReportTree => vec![Action::ReportTree],
            Order::End(grace) => self.end_in(now, grace),
            Order::Save { lead, leave: true } => {
                self.gang.is_parting = true;
                let source = "a replica's machine goes away, and all leave".to_owned();
                self.on_preempted(now, "gang".to_owned(), source, lead)
            }
            Order::Save { lead, leave: false } => self.save_and_hold(now, lead),
            Order::Leave(leave) => self.leave_gang(now, leave),
            Order::Keep(step) => vec![Action::Keep(step)],
            // The caller performs these actions.
            Order::Survey
            | Order::Restore(_)
            | Order::Launch(_)
            | Order::Dial
            | Order::Hangup
            | Order::Send(_)
            | Order::ReadClaim
            | Order::FirstFailure(_)
            | Order::Waiting(_)
            | Order::Log(_)
            | Order::Wake(_) => Vec::new(),
        }
    }

    /// Nothing runs, and the gang decides the next step.
    fn waits_for_gang(&self) -> bool {
        matches!(self.state, State::Surveying | State::Assembling | State::Arming)
    }

    pub(super) fn survey(&mut self) -> Vec<Action> {
        self.state = State::Surveying;
        self.gang.has_finished = false;
        self.gang.surveys += 1;
        vec![Action::Survey]
    }

    pub(super) fn on_surveyed(&mut self, offer: Offer) -> Vec<Action> {
        self.gang.surveys = self.gang.surveys.saturating_sub(1);
        if self.state != State::Surveying || self.gang.surveys > 0 {
            return Vec::new();
        }
        self.state = State::Assembling;
        vec![Action::ReportToGang(MemberEvent::TreeEmpty(offer))]
    }

    fn arm(&mut self, choice: Choice) -> Vec<Action> {
        if !self.policy.checkpoints {
            return vec![Action::ReportToGang(MemberEvent::Restored)];
        }
        self.state = State::Arming;
        vec![Action::RestoreStep(choice)]
    }

    /// The agreed step is in place.
    pub(super) fn on_armed(&mut self) -> Vec<Action> {
        self.state = State::Assembling;
        vec![Action::ReportToGang(MemberEvent::Restored)]
    }

    /// The agreed step cannot be restored; the gang requests another survey.
    pub(super) fn on_not_armed(&mut self, detail: String) -> Vec<Action> {
        self.state = State::Assembling;
        vec![Action::ReportToGang(MemberEvent::NotRestored(detail))]
    }

    /// Stops the trainer for the gang. The trainer does not need to save.
    pub(super) fn halt(&mut self, now: Uptime, grace: Duration) -> Vec<Action> {
        self.gang.is_halting = true;
        // An evaluator or a reducer is not halted with the gang.
        self.gang.is_ending |= !self.is_in_gang();
        let is_kill = grace.is_zero();
        // A replica that leaves by itself has its own deadline, and the gang waits for it.
        if self.stopping.stop.is_some() && !is_kill {
            return Vec::new();
        }
        match self.state {
            State::Running | State::Launching | State::Draining if is_kill => {
                let _ = self.set_deadline(now, now);
                self.kill(now)
            }
            State::Running | State::Launching => {
                let mut actions: Vec<Action> = self.set_deadline(now, now + grace).into_iter().collect();
                actions.extend(self.deliver(now, Signal::TERM));
                actions
            }
            State::Draining => self.set_deadline(now, now + grace).into_iter().collect(),
            // The result of a running restore is no longer needed.
            State::Arming | State::Assembling => self.survey(),
            State::Waiting | State::Restoring | State::Gathering | State::Refreshing => self.flush(now),
            State::Fetching | State::Surveying | State::Flushing | State::Done => Vec::new(),
        }
    }

    /// The gang is halted, and the trainer is about to end by itself.
    fn await_end(&mut self, now: Uptime, limit: Duration) -> Vec<Action> {
        if self.state != State::Running || self.stopping.stop.is_some() {
            return self.halt(now, self.gang_stop_grace());
        }
        (self.gang.is_halting, self.gang.ends_by_itself) = (true, true);
        self.set_deadline(now, now + limit).into_iter().collect()
    }

    /// The gang hangs: ends the trainer like one that hangs itself.
    fn abort_with_gang(&mut self, now: Uptime) -> Vec<Action> {
        if self.state != State::Running || self.stopping.stop.is_some() {
            return self.halt(now, self.gang_stop_grace());
        }
        self.gang.is_halting = true;
        self.abort(now, "the leader reports that the gang hangs".to_owned())
    }

    pub(super) fn gang_stop_grace(&self) -> Duration {
        self.policy.gang.map(|gang| gang.stop_grace).unwrap_or_default()
    }

    /// The time for the remaining processes of a tree after its main child has ended.
    pub(super) fn rest_grace(&self) -> Duration {
        let of_gang = self.policy.gang.filter(|_| self.is_in_gang() && !self.ended_well());
        of_gang.map_or(self.policy.stop_grace, |gang| gang.stop_grace)
    }

    /// Sends SIGKILL to the remaining processes, repeatedly until none is left.
    pub(super) fn kill(&mut self, now: Uptime) -> Vec<Action> {
        self.stopping.kill_from = Some(now);
        vec![Action::KillTree, Action::Arm(Timer::Stuck, now + STUCK_AFTER), self.sweep(now + NEXT_SWEEP)]
    }

    /// Another replica's machine goes away: the trainer saves as for its own notice, and starts again with the others.
    fn save_and_hold(&mut self, now: Uptime, lead: Duration) -> Vec<Action> {
        if self.stopping.stop.is_some() || !matches!(self.state, State::Running | State::Launching) {
            return Vec::new();
        }
        self.gang.is_halting = true;
        let mut actions = self.begin_stop(now, now + budget::kill_after(lead, self.commits.last_took));
        if let Some(signal) = self.policy.preempt_signal {
            actions.extend(self.deliver(now, signal));
        }
        actions.extend(self.commit_soon(true));
        actions
    }

    /// The report to the gang of a main child's end that is this replica's failure.
    pub(super) fn report_failure(&self) -> Option<Action> {
        let ends_by_itself = self.gang.ends_by_itself && !self.gang.is_ending;
        let is_expected =
            self.stopping.stop.is_some() || self.attempt.hung.is_some() || self.is_ended_by_gang() && !ends_by_itself;
        if !self.is_in_gang() || is_expected {
            return None;
        }
        let (end, _) = self.attempt.ended.filter(|(end, _)| ends_by_itself || *end != End::Code(0))?;
        let closed = if ends_by_itself { "; it had closed its connections to the other replicas before" } else { "" };
        let class = match end {
            _ if self.ran_out_of_memory() => Class::OutOfMemory,
            End::Signal(_) => Class::Signal,
            End::Code(_) => Class::Code,
        };
        let clues: String = self.explain(end).into_iter().map(|clue| format!("; {clue}")).collect();
        let detail = format!("{} ended with {end}{closed}{clues}", self.subject());
        Some(self.failure_report(class, Some(end), detail))
    }

    /// The failure of the running generation, as reported to the leader. The caller adds the step.
    pub(super) fn failure_report(&self, class: Class, end: Option<End>, detail: String) -> Action {
        let signal = match end {
            Some(End::Signal(signal)) => u8::try_from(signal.number()).ok(),
            _ => None,
        };
        let code = end.map(End::code);
        Action::ReportToGang(MemberEvent::Failed(Failure { class, code, signal, step: None, detail }))
    }

    /// An attempt could not be started, and the cause is transient: the gang starts it again.
    pub(super) fn start_again_with_gang(&mut self, report: Action) -> Vec<Action> {
        let mut actions = vec![report];
        actions.extend(self.survey());
        actions
    }

    /// The report to the gang of why this job is being stopped, sent when the stop begins.
    pub(super) fn report_stop(&self, now: Uptime) -> Option<Action> {
        self.policy.gang?;
        let event = match &self.stopping.stop.as_ref()?.cause {
            Cause::Signal { .. } => MemberEvent::Noticed(self.policy.stop_grace),
            Cause::Notice { .. } if self.gang.is_parting => return None,
            Cause::Notice { .. } => {
                let left = self.notices.leave_by.map(|(end, _)| end.saturating_sub(now));
                MemberEvent::Noticed(left.unwrap_or(self.policy.stop_grace))
            }
            Cause::Gpu { detail } => return Some(self.failure_report(Class::Gpu, None, detail.clone())),
            Cause::Fenced { detail, .. } => return Some(self.failure_report(Class::Lost, None, detail.clone())),
        };
        Some(Action::ReportToGang(event))
    }
}
