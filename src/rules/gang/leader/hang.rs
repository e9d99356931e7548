//! A hang: the leader requests the activity of all trainers, logs it with the suspicious replicas first, and halts once.

use std::collections::BTreeSet;
use std::time::Duration;

use super::super::first_failure::FailureReport;
use super::super::hang::{Findings, Row, findings};
use super::super::message::{Class, Failure, ToMember};
use super::{Action, Holder, Leader, State};
use crate::cluster::seat::Seat;

/// The limit for the answers of the members.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(2);

/// A running inquiry into a hang.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Inquiry {
    pub(super) until: Duration,
    /// Members that have not answered.
    pub(super) awaited: BTreeSet<Seat>,
    /// Hangs that members have reported; empty if the leader detected that no step advances.
    reported: Vec<FailureReport>,
    began: Duration,
}

impl Leader {
    /// Starts an inquiry if no training seat's step advances, and ends one that is complete or overdue.
    pub(super) fn detect_hang(&mut self, now: Duration, actions: &mut Vec<Action>) {
        if let Some(inquiry) = &self.inquiry {
            if inquiry.awaited.is_empty() || now >= inquiry.until {
                let reports = self.finish_inquiry(actions);
                self.end_generation(now, reports, actions);
            }
            return;
        }
        let Some(limit) = self.config.hang else { return };
        let all = || self.holders.iter().filter(|(seat, holder)| seat.trains() && holder.state == State::Training);
        // A trainer that reports no step may still be working.
        let advances = |holder: &Holder| holder.step.is_none() || now < holder.progressed + limit;
        if all().next().is_some() && !all().any(|(_, holder)| advances(holder)) {
            self.start_inquiry(now, None, actions);
        }
    }

    /// Requests the activity of all members that train, once. A second report of a hang is added.
    pub(super) fn start_inquiry(&mut self, now: Duration, report: Option<FailureReport>, actions: &mut Vec<Action>) {
        if let Some(inquiry) = &mut self.inquiry {
            inquiry.awaited.retain(|seat| report.as_ref().is_none_or(|report| report.first.seat != *seat));
            inquiry.reported.extend(report);
            return;
        }
        let mut awaited = BTreeSet::new();
        for (seat, holder) in &self.holders {
            let is_requested = holder.state == State::Training && holder.tree.is_none();
            if let Some(link) = holder.link.filter(|_| is_requested) {
                awaited.insert(*seat);
                actions.push(Action::Send(link, ToMember::ReportTree { generation: self.generation }));
            }
        }
        let reported = report.into_iter().collect();
        self.inquiry = Some(Inquiry { until: now + ANSWER_TIMEOUT, awaited, reported, began: now });
    }

    /// Logs the activity of the members, and adds the suspicious ones to the failures. Empty if no inquiry is running.
    pub(super) fn finish_inquiry(&mut self, actions: &mut Vec<Action>) -> Vec<FailureReport> {
        let Some(inquiry) = self.inquiry.take() else { return Vec::new() };
        let row = |seat: Seat| {
            let holder = self.holders.get(&seat)?;
            Some(Row { seat, host: holder.host.clone(), tree: holder.tree.clone() })
        };
        let rows: Vec<Row> = self.required().filter_map(row).collect();
        let Findings { most_suspicious, clause, lines } = findings(&rows);
        let mut reports = inquiry.reported;
        if reports.is_empty() {
            reports.extend(self.no_progress(most_suspicious, inquiry.began));
        }
        for report in &mut reports {
            let detail = &mut report.first.failure.detail;
            *detail = format!("{detail}; {clause}");
        }
        let first = reports.first().map(|report| format!("{}: {}", report.first.seat, report.first.failure.detail));
        let head = format!("the gang hangs, {}", first.unwrap_or_default());
        actions.push(Action::LogHang([vec![head], lines].concat()));
        reports
    }

    /// The failure if no step advances: of the most suspicious replica, else of one with the lowest step.
    fn no_progress(&self, most_suspicious: Option<Seat>, since: Duration) -> Option<FailureReport> {
        let trains = self.holders.iter().filter(|(seat, holder)| seat.trains() && holder.state == State::Training);
        let lowest = trains.min_by_key(|(_, holder)| holder.step).map(|(seat, _)| *seat);
        let seat = most_suspicious.or(lowest)?;
        let holder = self.holders.get(&seat)?;
        let limit = self.config.hang.unwrap_or_default();
        let detail = format!("no step moved for {} s", limit.as_secs());
        let failure = Failure::new(Class::Hung, holder.step, detail);
        Some(FailureReport::new(since, 0, seat, &holder.host, failure))
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::beat::Beat;
    use super::super::super::hang::TreeState;
    use super::super::super::message::ToLeader;
    use super::super::Event;
    use super::super::tests::{failed, receive, seat, sent, step, training};
    use super::*;

    const REQUEST: ToMember = ToMember::ReportTree { generation: 1 };
    const HALT: ToMember = ToMember::Halt { generation: 1, hung: true };

    fn tree(step: u64) -> ToLeader {
        let tree = TreeState::of(Some(step), Some(1), [('S', "futex_wait_queue".to_owned())]);
        ToLeader::Tree { generation: 1, tree }
    }

    fn lines(actions: &[Action]) -> &[String] {
        actions
            .iter()
            .find_map(|action| if let Action::LogHang(lines) = action { Some(&lines[..]) } else { None })
            .unwrap()
    }

    /// Both report a step; after 10 s without progress, the leader requests the activity of both.
    fn inquiring() -> Leader {
        let mut leader = training();
        leader.config.hang = Some(Duration::from_secs(10));
        let beat = |step| ToLeader::Beat(Beat { step: Some(step), ..Beat::default() });
        receive(&mut leader, 9_000, 0, beat(5));
        receive(&mut leader, 12_000, 1, beat(4));
        assert!(sent(&step(&mut leader, 21_999, Event::Tick), 0).is_empty(), "one step has advanced");
        let actions = step(&mut leader, 22_000, Event::Tick);
        assert_eq!((sent(&actions, 0), sent(&actions, 1)), (vec![&REQUEST], vec![&REQUEST]));
        assert!(actions.contains(&Action::Wake(Duration::from_millis(1_024_000))), "{actions:?}");
        leader
    }

    #[test]
    fn if_no_step_advances_all_report_their_activity_and_halt_after_the_last_answer() {
        let mut leader = inquiring();
        assert!(sent(&receive(&mut leader, 22_001, 0, tree(5)), 0).is_empty());
        assert!(sent(&receive(&mut leader, 22_002, 0, tree(5)), 0).is_empty(), "a repeated answer");
        let actions = receive(&mut leader, 22_003, 1, tree(4));
        assert_eq!((sent(&actions, 0), sent(&actions, 1)), (vec![&HALT], vec![&HALT]));
        let lines = lines(&actions);
        let head =
            "the gang hangs, worker/0: no step moved for 10 s; suspicious: worker/0 at step 4 (most are at step 5)";
        assert_eq!(lines[0], head);
        assert!(lines[1].starts_with("worker/0 on host-1: step 4, ") && lines.len() == 3, "{lines:?}");
        step(&mut leader, 22_503, Event::Tick);
        let first = leader.record().first.as_ref().unwrap();
        assert_eq!((first.seat, first.failure.class, first.failure.step), (seat(1), Class::Hung, Some(4)));
        assert!(first.failure.detail.contains("suspicious: worker/0"), "{}", first.failure.detail);
    }

    #[test]
    fn a_member_that_does_not_answer_in_time_is_suspicious() {
        let mut leader = inquiring();
        receive(&mut leader, 22_001, 1, tree(4));
        assert_eq!(leader.state(), "training");
        let actions = step(&mut leader, 24_000, Event::Tick);
        assert_eq!(sent(&actions, 0), [&HALT]);
        assert_eq!(lines(&actions)[1], "chief/0 on host-0; suspicious: it has not answered");
    }

    #[test]
    fn after_the_report_of_a_hang_the_others_report_their_activity_and_the_failure_stays_that_members() {
        let mut leader = training();
        receive(&mut leader, 5_000, 1, tree(7));
        let actions = receive(&mut leader, 5_000, 1, failed(Class::Hung, Some(7)));
        assert_eq!((sent(&actions, 0), sent(&actions, 1)), (vec![&REQUEST], vec![]));
        let actions = receive(&mut leader, 5_001, 0, tree(6));
        assert_eq!(sent(&actions, 0), [&HALT]);
        step(&mut leader, 5_501, Event::Tick);
        let first = leader.record().first.as_ref().unwrap();
        assert_eq!((first.seat, first.failure.class), (seat(1), Class::Hung));
        assert!(first.failure.detail.contains("suspicious: chief/0 at step 6"), "{}", first.failure.detail);
        assert_eq!(leader.record().charged, 1);
    }

    #[test]
    fn a_second_hang_is_added_to_the_first_and_a_death_halts_all_at_once() {
        let mut leader = inquiring();
        assert!(sent(&receive(&mut leader, 22_100, 1, failed(Class::Hung, Some(4))), 0).is_empty());
        let actions = receive(&mut leader, 22_200, 0, failed(Class::Code, Some(5)));
        assert_eq!(sent(&actions, 1), [&HALT]);
        step(&mut leader, 22_700, Event::Tick);
        assert_eq!(leader.record().first.as_ref().unwrap().failure.class, Class::Hung);
    }
}
