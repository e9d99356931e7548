//! The phases that all members enter together: halt, start, and the waits between them.

use std::time::Duration;

use super::super::budget::Decision;
use super::super::first_failure::{self, FailureReport};
use super::super::message::{Class, FirstFailure, ToMember};
use super::saves::Speed;
use super::{Action, Holder, LATE_EVALUATORS, Leader, Link, OnNotice, Phase, State, WAITING_REPORT_INTERVAL};
use crate::cluster::seat::Seat;
use crate::text::transfer_progress::words;

impl Leader {
    pub(super) fn on_failure(&mut self, now: Duration, report: FailureReport, actions: &mut Vec<Action>) {
        match self.phase {
            Phase::Training if report.first.failure.class == Class::Hung => {
                self.start_inquiry(now, Some(report), actions)
            }
            Phase::Arming | Phase::Training => {
                let mut reports = self.finish_inquiry(actions);
                reports.push(report);
                self.end_generation(now, reports, actions);
            }
            Phase::Collecting => {
                if self.name_at.is_some() {
                    self.failures.push(report);
                } else {
                    self.amend_first_failure(report, actions);
                }
            }
            Phase::Concluding | Phase::Ending | Phase::GivenUp | Phase::Parting | Phase::Yielded | Phase::Done => {}
        }
    }

    pub(super) fn is_over(&self) -> bool {
        !matches!(self.phase, Phase::Collecting | Phase::Arming | Phase::Training)
    }

    /// Halts the generation because of these failures. The first failure is named later.
    pub(super) fn end_generation(&mut self, now: Duration, reports: Vec<FailureReport>, actions: &mut Vec<Action>) {
        let is_training = self.phase == Phase::Training;
        self.lasted = if is_training { now.saturating_sub(self.since) } else { Duration::ZERO };
        let hung = reports.iter().any(|report| report.first.failure.class == Class::Hung);
        self.failures = reports;
        self.name_at = Some(now + self.config.timing.naming);
        self.halt(now, hung, actions);
    }

    pub(super) fn halt(&mut self, now: Duration, hung: bool, actions: &mut Vec<Action>) {
        self.collect(now);
        // A member that waited for its agreement must offer again.
        for holder in self.holders.values_mut() {
            if matches!(holder.state, State::Offered(_)) && holder.agreed < self.generation {
                (holder.state, holder.agreed) = (State::Joined, self.generation);
            }
        }
        self.send_to_all(&ToMember::Halt { generation: self.generation, hung }, actions);
    }

    pub(super) fn collect(&mut self, now: Duration) {
        (self.phase, self.since, self.inquiry) = (Phase::Collecting, now, None);
        for holder in self.holders.values_mut() {
            if !matches!(holder.state, State::Joined | State::Offered(_)) {
                holder.state = State::Stopping;
            }
        }
    }

    /// Handles a notice to one replica: the others save, and hold or leave.
    pub(super) fn on_notice(
        &mut self,
        now: Duration,
        from: Seat,
        (lead, save_at): (u64, Option<u64>),
        report: FailureReport,
        actions: &mut Vec<Action>,
    ) {
        if self.is_over() {
            return;
        }
        if !from.is_required() {
            let host = &report.first.host;
            return actions.push(Action::Log(format!(
                "a notice announced the end of the machine of {from} on {host}; the others go on, because it is not part of \
                 the common start"
            )));
        }
        let leave = self.config.on_notice == OnNotice::Leave;
        if self.phase == Phase::Arming && !leave {
            // No trainer runs, so nothing has to be saved.
            return self.on_failure(now, report, actions);
        }
        // Trainers that are stopping get an earlier deadline.
        let saves = |holder: &Holder| match self.phase {
            Phase::Collecting => leave || holder.state == State::Stopping,
            _ => true,
        };
        let others = self.holders.iter().filter(|(seat, holder)| **seat != from && saves(holder));
        let others: Vec<Link> = others.filter_map(|(_, holder)| holder.link).collect();
        if self.phase == Phase::Training {
            self.lasted = now.saturating_sub(self.since);
            self.failures = vec![report];
            self.name_at = Some(now + self.config.timing.naming);
            self.collect(now);
        }
        let save = ToMember::Save { lead, leave, save_at };
        actions.extend(others.into_iter().map(|link| Action::Send(link, save.clone())));
        if leave {
            (self.phase, self.since, self.parting) = (Phase::Parting, now, Duration::from_millis(lead));
            self.final_message = Some(save);
        }
    }

    /// Names the first failure after the time for reports of earlier ones, and charges it.
    pub(super) fn name_first_failure(&mut self, now: Duration, actions: &mut Vec<Action>) {
        let Some(at) = self.name_at else { return };
        let may_fail = |holder: Option<&Holder>| {
            holder.is_some_and(|holder| !matches!(holder.state, State::Offered(_) | State::Joined))
        };
        if now < at && self.any_required(may_fail) {
            return;
        }
        self.name_at = None;
        let Some(death) = first_failure::first(&self.failures).cloned() else { return };
        self.failures.clear();
        let first = self.early_success(&death).unwrap_or_else(|| death.first.clone());
        self.named = Some(death);
        let message = ToMember::Named { generation: self.generation, first: first.clone() };
        self.send_to_all(&message, actions);
        match self.record.ended(&self.config.limits, &first, self.lasted) {
            Decision::Restart(pause) => self.pause = pause,
            Decision::GiveUp(why) => {
                let why = format!("{} failed: {why}", first.seat);
                self.give_up(now, why, false, actions);
            }
        }
    }

    /// A replica whose trainer had ended with 0 before this failure, which has caused it.
    fn early_success(&self, death: &FailureReport) -> Option<FirstFailure> {
        let required = self.holders.iter().filter(|(seat, _)| seat.is_required());
        let early = required.filter_map(|(seat, holder)| holder.succeeded.map(|at| (at, *seat, &holder.host)));
        early.min().and_then(|(at, seat, host)| first_failure::after_early_success(at, seat, host, death))
    }

    /// The report of a replica that took longer to end may show an earlier failure than the named one.
    fn amend_first_failure(&mut self, report: FailureReport, actions: &mut Vec<Action>) {
        let Some(named) = self.named.clone() else { return };
        let reports = [named, report];
        let first = first_failure::first(&reports).filter(|first| **first == reports[1] && **first != reports[0]);
        if let Some(first) = first {
            let message = ToMember::Named { generation: self.generation, first: first.first.clone() };
            (self.record.first, self.named) = (Some(first.first.clone()), Some(first.clone()));
            self.send_to_all(&message, actions);
        }
    }

    pub(super) fn advance(&mut self, now: Duration, actions: &mut Vec<Action>) {
        match self.phase {
            Phase::Collecting => self.try_to_agree(now, actions),
            Phase::Arming => {
                let is_armed = |holder: &Holder| holder.state == State::Armed && holder.link.is_some();
                if self.any_required(|holder| !holder.is_some_and(is_armed)) {
                    self.report_waiting(now, actions);
                } else {
                    self.go(now, actions);
                }
            }
            Phase::Training => self.detect_hang(now, actions),
            Phase::Ending => {
                self.claim_job_end(actions);
                self.try_to_end(now, self.config.timing.finish_grace, actions);
            }
            Phase::GivenUp => self.try_to_end(now, self.config.timing.stop_grace + LATE_EVALUATORS, actions),
            Phase::Parting => self.try_to_end(now, self.parting, actions),
            Phase::Concluding | Phase::Yielded | Phase::Done => {}
        }
    }

    pub(super) fn go(&mut self, now: Duration, actions: &mut Vec<Action>) {
        (self.phase, self.since, self.former_lease_end, self.failed_restores) = (Phase::Training, now, None, 0);
        self.named = None;
        self.saw_former_close.clear();
        (self.speed, self.save_step) = (Speed::default(), None);
        self.last_started = self.holders.values().map(|holder| holder.incarnation).collect();
        actions.push(Action::Started(self.generation));
        for holder in self.holders.values_mut().filter(|holder| holder.state == State::Armed) {
            (holder.state, holder.progressed, holder.tree) = (State::Training, now, None);
            holder.succeeded = None;
            let go = ToMember::Go { generation: self.generation, record: self.record.clone() };
            actions.extend(holder.link.map(|link| Action::Send(link, go)));
        }
    }

    pub(super) fn report_waiting(&mut self, now: Duration, actions: &mut Vec<Action>) {
        if now < self.last_waiting_report.max(self.since) + WAITING_REPORT_INTERVAL {
            return;
        }
        self.last_waiting_report = now;
        if self.phase == Phase::Arming {
            actions.extend(self.slowest(now).map(Action::Log));
        }
        let missing = self.some_missing();
        if !missing.is_empty() {
            self.send_to_all(&ToMember::Waiting { missing }, actions);
        }
    }

    /// The member with the least progress in its restore, of those that report it.
    fn slowest(&self, now: Duration) -> Option<String> {
        let restores = |(seat, holder): (&Seat, &Holder)| {
            let (done, all) = holder.restoring.filter(|_| holder.state == State::Restoring)?;
            Some((*seat, holder.host.clone(), done, all))
        };
        let share = |done: u64, all: u64| done as f64 / all.max(1) as f64;
        let (seat, host, done, all) = self
            .holders
            .iter()
            .filter_map(restores)
            .min_by(|(.., done, all), (.., other, of)| share(*done, *all).total_cmp(&share(*other, *of)))?;
        let progress = words(done, all, now.saturating_sub(self.since));
        Some(format!("{seat} on {host} is the slowest to restore: {progress}"))
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::beat::Beat;
    use super::super::super::message::{Failure, Hello, ToLeader};
    use super::super::Event;
    use super::super::tests::{failed, hello, join, leader, receive, seat, sent, step, training};
    use super::*;
    use crate::cluster::spec::Role;

    #[test]
    fn after_a_halt_the_missing_members_are_not_reported_at_once() {
        let mut leader = training();
        let waiting = |actions: &[Action]| !sent(actions, 0).is_empty();
        for ms in (1_000..=40_000).step_by(1_000) {
            let beat = || ToLeader::Beat(Beat::default());
            receive(&mut leader, ms, 0, beat());
            receive(&mut leader, ms, 1, beat());
        }
        receive(&mut leader, 40_000, 1, failed(Class::Code, None));
        assert!(!waiting(&step(&mut leader, 40_001, Event::Tick)), "the trainers are about to stop");
    }

    #[test]
    fn a_worker_that_ended_with_0_before_the_others_failed_is_named() {
        let mut leader = training();
        receive(&mut leader, 5_000, 1, ToLeader::Beat(Beat { succeeded: Some(1), commits: true, ..Beat::default() }));
        receive(&mut leader, 6_000, 0, failed(Class::Code, Some(7)));
        step(&mut leader, 6_500, Event::Tick);
        let first = leader.record().first.clone().expect("it is named");
        assert_eq!((first.seat, first.failure.code, leader.record().charged), (seat(1), Some(0), 1));
    }

    #[test]
    fn a_late_report_of_an_earlier_failure_replaces_the_named_one_and_is_charged_once() {
        let mut leader = training();
        receive(&mut leader, 6_000, 0, failed(Class::Code, None));
        step(&mut leader, 6_500, Event::Tick);
        assert_eq!(leader.record().first.as_ref().map(|first| first.seat), Some(seat(0)));
        let failure = Failure::new(Class::Code, None, "the cause");
        let actions =
            receive(&mut leader, 7_000, 1, ToLeader::Failed { generation: 1, age: 1_500, failure, is_early: false });
        assert!(matches!(sent(&actions, 0)[..], [ToMember::Named { .. }]), "{actions:?}");
        assert_eq!(leader.record().first.as_ref().map(|first| first.seat), Some(seat(1)));
        assert_eq!(leader.record().charged, 1);
    }

    #[test]
    fn a_trainer_that_closed_its_connections_and_ends_after_the_halt_is_the_first_failure() {
        let mut leader = training();
        receive(&mut leader, 6_000, 0, failed(Class::Code, None));
        receive(&mut leader, 6_010, 1, ToLeader::Beat(Beat { ends: true, ..Beat::default() }));
        step(&mut leader, 8_000, Event::Tick);
        assert_eq!(leader.record().first, None, "it has time to end by itself");
        let failure = Failure { code: Some(7), ..Failure::new(Class::Code, None, "the cause") };
        receive(&mut leader, 8_100, 1, ToLeader::Failed { generation: 1, age: 0, failure, is_early: true });
        step(&mut leader, 12_000, Event::Tick);
        let first = leader.record().first.clone().expect("it is named");
        assert_eq!((first.seat, first.failure.code, leader.record().charged), (seat(1), Some(7), 1));
    }

    #[test]
    fn the_member_with_the_slowest_restore_is_logged_periodically() {
        let mut leader = leader(|_| {});
        join(&mut leader, 0);
        let beat = |done| ToLeader::Beat(Beat { restoring: Some((done, 8 << 30)), ..Beat::default() });
        let named = |actions: Vec<Action>| {
            actions.into_iter().find_map(|action| if let Action::Log(line) = action { Some(line) } else { None })
        };
        for (ms, at) in [(15_000, 1), (29_000, 2)] {
            receive(&mut leader, ms, 0, beat(at << 31));
            receive(&mut leader, ms, 1, beat(at << 30));
        }
        let line = named(step(&mut leader, 30_000, Event::Tick));
        assert!(
            line.as_ref()
                .is_some_and(|line| line.starts_with("worker/0 on host-1 is the slowest to restore: 2.0 of 8.0 GiB")),
            "{line:?}"
        );
        assert_eq!(named(step(&mut leader, 31_000, Event::Tick)), None, "once in 30 s");
    }

    #[test]
    fn a_notice_to_an_evaluator_halts_nothing() {
        let mut leader = training();
        let evaluator = Hello { seat: Seat::new(Role::Evaluator, 0), ..hello(9) };
        receive(&mut leader, 100, 9, ToLeader::Hello(evaluator));
        let actions = receive(&mut leader, 200, 9, ToLeader::Notice { lead: 9_000, save_at: None });
        assert!(sent(&actions, 0).is_empty() && sent(&actions, 1).is_empty(), "{actions:?}");
        assert!(
            actions.iter().any(|action| matches!(action, Action::Log(line) if line.contains("evaluator/0 on host-9")))
        );
        assert_eq!(leader.state(), "training");
    }
}
