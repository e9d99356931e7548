//! The end of a job in a gang: the trainer's success, the end of the job, and the exit of this replica.

use std::time::Duration;

use super::parts::{Cause, Stop};
use super::{Machine, STUCK, State};
use crate::gang::beat::Departure;
use crate::gang::member::{Event as MemberEvent, Leave};
use crate::gang::message::Offer;
use crate::job::event::{Action, Timer, Uptime};
use crate::job::verdict::Reason;
use crate::process::exit::{self, End};

impl Machine {
    /// The report to the gang that the trainer ended with 0. Its last files are not committed yet.
    pub(super) fn report_success(&self) -> Option<Action> {
        let is_own = self.policy.gang.is_some() && self.succeeded() && !self.gang.is_halting;
        is_own.then_some(Action::ReportToGang(MemberEvent::Succeeded))
    }

    /// The report to the gang that the last commit begins.
    pub(super) fn report_last_commit(&self) -> Option<Action> {
        self.policy.gang.map(|_| Action::ReportToGang(MemberEvent::Committing))
    }

    /// Handles a request to stop after the trainer's success: this replica exits with 0, now or after its last commit.
    /// `None`: the trainer has not succeeded.
    pub(super) fn leave_after_success(&mut self) -> Option<Vec<Action>> {
        if !self.is_in_gang() || !self.succeeded() || self.gang.is_halting {
            return None;
        }
        match self.state {
            State::Draining | State::Flushing => {
                self.gang.is_leave_requested = true;
                None
            }
            State::Assembling if self.gang.has_finished => Some(self.finish_unstopped(0)),
            _ => None,
        }
    }

    /// The chief has finished: the trainer gets this much time to end by itself.
    pub(super) fn end_in(&mut self, now: Uptime, grace: Duration) -> Vec<Action> {
        (self.gang.is_ending, self.gang.is_job_finished) = (true, true);
        match self.state {
            State::Running | State::Launching => vec![Action::Arm(Timer::Finish, now + grace)],
            State::Waiting | State::Restoring | State::Gathering | State::Refreshing => self.flush(now),
            State::Assembling | State::Arming => self.survey(),
            State::Fetching | State::Surveying | State::Draining | State::Flushing | State::Done => Vec::new(),
        }
    }

    /// The time to end by itself is over.
    pub(super) fn on_finish_over(&mut self, now: Uptime) -> Vec<Action> {
        if self.gang.is_ending { self.halt(now, self.gang_stop_grace()) } else { Vec::new() }
    }

    pub(super) fn leave_gang(&mut self, now: Uptime, leave: Leave) -> Vec<Action> {
        let has_finished = self.gang.has_finished;
        self.gang.is_job_finished |= leave == Leave::Finished;
        self.gang.leave = Some(leave);
        self.gang.is_ending = true;
        match self.state {
            State::Assembling if has_finished => self.finish(),
            State::Fetching
            | State::Surveying
            | State::Assembling
            | State::Arming
            | State::Restoring
            | State::Gathering
            | State::Refreshing
            | State::Waiting => self.flush(now),
            State::Running | State::Launching => self.halt(now, self.gang_stop_grace()),
            State::Draining | State::Flushing | State::Done => Vec::new(),
        }
    }

    /// Called when this process would exit: in a gang it continues until the gang orders the exit. `None`: it exits.
    pub(super) fn continue_with_gang(&mut self) -> Option<Vec<Action>> {
        self.policy.gang?;
        if let Some(Stop { cause, .. }) = &self.stopping.stop {
            // A stop from outside does not change the result of a job that has finished.
            let is_from_outside = matches!(cause, Cause::Signal { .. } | Cause::Notice { .. });
            let exits_well = self.gang.is_job_finished && is_from_outside && self.restarts.no_restart_reason.is_empty();
            return exits_well.then(|| self.exit_with_gang(Leave::Finished));
        }
        if self.stopping.kill_from.is_some() {
            // The remaining processes cannot be ended, and no attempt may start while they run.
            let is_halted = self.gang.is_halting && self.attempt.ended.is_none();
            return is_halted.then(|| self.exit(Reason::Peer, exit::PEER, format!("halted with the gang; {STUCK}")));
        }
        if let Some(leave) = self.gang.leave.clone() {
            return Some(self.exit_with_gang(leave));
        }
        if self.gang.is_ending {
            // It waits for an empty tree, and then leaves.
            self.gang.has_finished = true;
            self.state = State::Assembling;
            return Some(vec![Action::ReportToGang(MemberEvent::TreeEmpty(Offer::default()))]);
        }
        if !self.is_in_gang() {
            return None;
        }
        if self.gang.is_halting {
            return Some(self.survey());
        }
        if self.ended_well() && !self.gang.has_finished {
            self.gang.has_finished = true;
            self.state = State::Assembling;
            let mut actions = vec![Action::ReportToGang(MemberEvent::Finished)];
            if self.gang.is_leave_requested {
                actions.extend(self.finish_unstopped(0));
            }
            return Some(actions);
        }
        None
    }

    fn exit_with_gang(&mut self, leave: Leave) -> Vec<Action> {
        let ended = match self.attempt.ended {
            Some((end, _)) => format!("{} ended with {end}{}", self.subject(), self.later_failures()),
            None => "the command does not run".to_owned(),
        };
        match leave {
            Leave::Finished if matches!(self.attempt.ended, Some((End::Code(0), _))) => self.finish_unstopped(0),
            Leave::Finished => self.exit(Reason::Finished, 0, format!("the chief has finished; {ended}")),
            Leave::Contradiction(why) => self.exit(Reason::NotStarted, exit::NOT_STARTED, why),
            Leave::GaveUp { why, no_common_step: true, .. } => self.exit(Reason::Store, exit::STORE, why),
            Leave::GaveUp { why, first, .. } => {
                let own = self.policy.gang.map(|gang| gang.seat);
                // After an early success of another, each trainer that failed by itself shows how.
                let is_first =
                    first.as_ref().is_some_and(|first| Some(first.seat) == own || first.failure.code == Some(0));
                let is_halted = self.gang.is_halting && !self.gang.ends_by_itself;
                let failed = self.attempt.ended.filter(|(end, _)| *end != End::Code(0) && !is_halted);
                if let Some((end, _)) = failed.filter(|_| is_first) {
                    self.restarts.no_restart_reason = why;
                    return self.finish_unstopped(end.code());
                }
                let cause = first.map(|first| {
                    let (seat, host, detail) = (first.seat, first.host, first.failure.detail);
                    format!("; the first failure was {seat} on {host}: {detail}")
                });
                let detail = format!("the gang gave up: {why}{}; {ended}", cause.unwrap_or_default());
                self.exit(Reason::Peer, exit::PEER, detail)
            }
        }
    }

    /// The last report, when the tree is empty.
    pub(super) fn report_leaving(&self, reason: Reason, code: u8, detail: &str) -> Option<Action> {
        self.policy.gang.filter(|_| self.stopping.kill_from.is_none())?;
        let departure = Departure { code, reason: reason.word().to_owned(), detail: detail.to_owned() };
        Some(Action::ReportToGang(MemberEvent::Leaves(departure)))
    }
}
