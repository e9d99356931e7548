//! The holders of the seats: joining, loss, the time until which an earlier holder may train, and the view of them for the
//! status.

use std::hash::{Hash, Hasher};
use std::time::Duration;

use super::super::Incarnation;
use super::super::first_failure::FailureReport;
use super::super::message::{Class, Failure, FormerLeader, Hello, Record, ToMember, bounded_text, millis};
use super::super::view::{LeaderView, MOST_MEMBERS, MemberView};
use super::{Action, Holder, Leader, Link, Phase, State};
use crate::cluster::seat::Seat;

/// The start of a search through the seats: the seat that was found last, so that the search after each of ten thousand events
/// usually succeeds at once. It is a cache and not part of the leader's state.
#[derive(Debug, Clone)]
pub(super) struct SearchStart(pub(super) Seat);

impl PartialEq for SearchStart {
    fn eq(&self, _: &SearchStart) -> bool {
        true
    }
}

impl Eq for SearchStart {}

impl Hash for SearchStart {
    fn hash<H: Hasher>(&self, _: &mut H) {}
}

/// An agent that has lost its seat and may still train.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Fence {
    incarnation: Incarnation,
    host: (String, String),
    /// The time until which it may train, if its connection was closed at both ends.
    pub(super) after_close: Duration,
    /// The time until which it may train in any case.
    until: Duration,
}

impl Fence {
    /// The time until which another agent may not have the seat. The agent itself reports its process tree. On the same host,
    /// the connection was closed by the end of the agent; elsewhere, possibly by something between the two hosts.
    fn until(&self, hello: &Hello) -> Duration {
        if hello.incarnation == self.incarnation {
            return Duration::ZERO;
        }
        let is_same_host = self.host == (bounded_text(&hello.host), hello.boot.clone());
        if is_same_host { self.after_close } else { self.until }
    }
}

impl Leader {
    /// The members that have joined.
    pub fn view(&self) -> LeaderView {
        let members = self.holders.iter().take(MOST_MEMBERS).map(|(seat, holder)| MemberView {
            seat: *seat,
            host: holder.host.clone(),
            state: match &holder.state {
                _ if holder.link.is_none() => "away",
                State::Joined => "joined",
                State::Offered(_) => "ready",
                State::Restoring => "restoring",
                State::Armed => "armed",
                State::Training => "training",
                State::Stopping => "stopping",
                State::Finished => "finished",
            },
            step: holder.step,
        });
        LeaderView { members: members.collect() }
    }

    /// Whether the leader may listen at the port of its own replica's trainer: no trainer of this node runs or is about to
    /// start. When an event turns this to false, the caller closes the port before it performs the event's actions: one of
    /// them starts the trainer.
    pub fn may_borrow_port(&self) -> bool {
        self.holders.get(&self.config.own).is_some_and(|own| match own.state {
            State::Joined | State::Offered(_) | State::Restoring | State::Armed | State::Finished => true,
            State::Training | State::Stopping => false,
        })
    }

    /// Whether this is true for any seat.
    pub(super) fn any_seat(&mut self, holds: impl Fn(&Leader, Seat) -> bool) -> bool {
        let (start, roster) = (self.search.0, &self.config.roster);
        let found = roster.range(start..).chain(roster.range(..start)).find(|seat| holds(self, **seat)).copied();
        self.search.0 = found.unwrap_or(start);
        found.is_some()
    }

    /// Whether this is true for the holder of any required seat.
    pub(super) fn any_required(&mut self, holds: impl Fn(Option<&Holder>) -> bool) -> bool {
        self.any_seat(|leader, seat| seat.is_required() && holds(leader.holders.get(&seat)))
    }

    pub(super) fn on_hello(&mut self, now: Duration, link: Link, hello: Hello, actions: &mut Vec<Action>) {
        let refuse =
            |why: String| [Action::Send(link, ToMember::Refused { why, contradicts: false }), Action::Close(link)];
        let seat = hello.seat;
        if !seat.is_required() {
            // Platforms start evaluators that are not in the list of replicas.
            self.config.roster.insert(seat);
        }
        if self.phase == Phase::Yielded {
            return actions.extend(refuse("another agent leads this job".to_owned()));
        }
        // The record counts even if the seat is refused below.
        self.merge_record(&hello.record);
        if self.contradicts(now, link, &hello, actions) {
            return;
        }
        let two_beats = self.config.timing.beat * 2;
        if let Some(holder) = self.holders.get(&seat).filter(|holder| holder.incarnation != hello.incarnation) {
            if holder.link.is_some() && now < holder.last_received + two_beats {
                let host = holder.host.clone();
                return self.refuse_taken_seat(now, link, &hello, &host, actions);
            }
            let (host, silent) = (holder.host.clone(), holder.link.is_some());
            self.remove_holder(now, seat, silent, &host, "another agent has taken its seat", actions);
        }
        if let Some(until) = self.fences.get(&seat).map(|fence| fence.until(&hello)).filter(|until| now < *until) {
            let wait = (until - now).as_millis();
            return actions
                .extend(refuse(format!("the agent that held the seat {seat} may still train for {wait} ms")));
        }
        self.fences.remove(&seat);
        self.refusals.remove(&seat);
        let is_new = !self.holders.contains_key(&seat);
        let former_leader = self.check_former_leader(now, seat, hello.former).map(|leader| (leader, hello.newest));
        let resumes = !is_new && hello.busy == Some(self.generation);
        self.generation = self.generation.max(hello.newest);
        self.drop_outdated_claim();
        let holder = self.holders.entry(seat).or_insert_with(|| Holder {
            incarnation: hello.incarnation,
            host: bounded_text(&hello.host),
            boot: hello.boot.clone(),
            agreed: hello.busy.unwrap_or(0),
            offered: now,
            link: None,
            last_received: now,
            closed: None,
            state: State::Joined,
            step: None,
            progressed: now,
            committed: Default::default(),
            former_leader,
            notice: None,
            restoring: None,
            succeeded: None,
            commits: false,
            ends: false,
            leaves: None,
            tree: None,
        });
        if let Some(old) = holder.link.replace(link) {
            self.links.remove(&old);
            actions.push(Action::Close(old));
        }
        self.links.insert(link, seat);
        self.left.remove(&seat);
        self.departed.remove(&seat);
        self.has_met_other |= seat != self.config.own;
        (holder.last_received, holder.closed) = (now, None);
        let continues = resumes && holder.is_active();
        let has_lost_trainer = !continues && holder.is_active();
        if !continues && holder.state != State::Finished {
            holder.state = if hello.busy.is_some() { State::Stopping } else { State::Joined };
        }
        let lease = millis(self.config.timing.lease);
        actions.push(Action::Send(
            link,
            ToMember::Welcome {
                leader: self.config.incarnation,
                lease,
                newest: self.generation,
                timing: Some(self.config.timing),
            },
        ));
        if let Some(busy) = hello.busy.filter(|_| !continues) {
            actions.push(Action::Send(link, ToMember::Halt { generation: busy.max(self.generation), hung: false }));
        }
        if let Some(step) = self.record.kept {
            actions.push(Action::Send(link, ToMember::Kept { step }));
        }
        if let Some(message) = &self.final_message {
            actions.push(Action::Send(link, message.clone()));
        } else if self.phase == Phase::Collecting
            && !self.claims.has_claimed
            && self.found_end.is_some_and(|end| hello.former.is_some() && hello.newest < end)
        {
            // The member's run has ended, so this leader is a replacement.
            self.end_as_replacement(now, actions);
        }
        if has_lost_trainer && matches!(self.phase, Phase::Arming | Phase::Training) {
            // The report of its trainer's end may have been lost with the connection. The member repeats it.
            let failure = Failure::new(Class::Lost, None, "its agent reconnected without its trainer");
            self.on_failure(now, FailureReport::new(now, 0, seat, &hello.host, failure), actions);
        }
    }

    /// Returns the earlier leader of a member, and records until when trainers of that leader may run.
    fn check_former_leader(&mut self, now: Duration, seat: Seat, former: Option<FormerLeader>) -> Option<Incarnation> {
        let former = former.filter(|former| former.leader != self.config.incarnation);
        match former {
            None => {}
            Some(FormerLeader { silent_for: Some(silent_for), .. }) => {
                let end = self.lease_end(now.saturating_sub(Duration::from_millis(silent_for)));
                self.not_before = self.not_before.max(end);
            }
            Some(FormerLeader { silent_for: None, .. }) => {
                self.not_before = self.not_before.max(self.lease_end_after_close(now));
                self.former_lease_end = self.former_lease_end.max(Some(self.lease_end(now)));
                self.saw_former_close.insert(seat);
            }
        }
        self.has_former_generation |= former.is_some();
        former.map(|former| former.leader)
    }

    /// Merges the record of an earlier leader.
    fn merge_record(&mut self, record: &Record) {
        let each_has_own = self.record.each_has_own || record.each_has_own;
        let kept = self.record.kept.max(record.kept);
        if record.generation > self.record.generation {
            self.record = record.clone();
        }
        self.record.each_has_own = each_has_own;
        kept.into_iter().for_each(|step| self.record.keep(step));
    }

    /// Removes the holder of a seat whose agent is gone.
    pub(super) fn remove_holder(
        &mut self,
        now: Duration,
        seat: Seat,
        silent: bool,
        host: &str,
        why: &str,
        actions: &mut Vec<Action>,
    ) {
        let Some(holder) = self.holders.remove(&seat) else { return };
        if let Some(link) = holder.link {
            self.links.remove(&link);
            actions.push(Action::Close(link));
        }
        let may_train = !matches!(holder.state, State::Joined | State::Offered(_));
        if may_train {
            let until = self.lease_end(holder.last_received);
            let after_close =
                if silent { until } else { self.lease_end_after_close(holder.closed.unwrap_or(now)).min(until) };
            let (incarnation, host) = (holder.incarnation, (holder.host.clone(), holder.boot.clone()));
            self.fences.insert(seat, Fence { incarnation, host, after_close, until });
        }
        let is_part = holder.is_active() || holder.state == State::Finished;
        if seat.is_required() && is_part && matches!(self.phase, Phase::Arming | Phase::Training) {
            let class = if holder.notice.is_some() { Class::Preempted } else { Class::Lost };
            let failure = Failure::new(class, holder.step, why);
            let since = holder.closed.unwrap_or(holder.last_received);
            let age = millis(now.saturating_sub(since));
            let report = FailureReport { is_close: !silent, ..FailureReport::new(now, age, seat, host, failure) };
            self.on_failure(now, report, actions);
        }
    }

    /// Removes holders that have not reconnected in time, or were silent for the lease.
    pub(super) fn remove_lost_holders(&mut self, now: Duration, actions: &mut Vec<Action>) {
        if now < self.next_loss {
            return;
        }
        let timing = self.config.timing;
        let ends = |holder: &Holder| {
            holder.closed.map_or(holder.last_received + timing.lease, |closed| closed + timing.return_grace)
        };
        let is_lost = |holder: &Holder| now >= ends(holder);
        let lost: Vec<Seat> =
            self.holders.iter().filter(|(_, holder)| is_lost(holder)).map(|(seat, _)| *seat).collect();
        for seat in lost {
            let Some(holder) = self.holders.get(&seat) else { continue };
            let (silent, host) = (holder.closed.is_none(), holder.host.clone());
            let why = if silent { "its agent has not answered" } else { "its agent's connection was closed" };
            self.remove_holder(now, seat, silent, &host, why, actions);
        }
        let next = self.holders.values().map(ends).min();
        self.next_loss = next.unwrap_or(now + timing.lease).min(now + timing.lease);
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::message::ToLeader;
    use super::super::Event;
    use super::super::tests::{claim_of, failed, hello, leader, receive, sent, step, training};
    use super::*;

    #[test]
    fn a_new_leader_takes_the_record_of_a_replica_that_it_refuses() {
        let mut leader = leader(|config| config.newest_claim = Some(claim_of(4)));
        receive(&mut leader, 0, 1, ToLeader::Hello(hello(1)));
        let record = Record { generation: 4, from_nothing: true, ..Record::default() };
        let second = Hello { incarnation: Incarnation(50), newest: 4, record: record.clone(), ..hello(1) };
        let actions = receive(&mut leader, 1, 5, ToLeader::Hello(second));
        assert!(matches!(sent(&actions, 5)[..], [ToMember::Refused { .. }]), "{actions:?}");
        assert_eq!(leader.record(), &record);
    }

    #[test]
    fn a_member_that_reconnects_without_its_trainer_halts_all_and_its_report_is_the_first_failure() {
        let mut leader = training();
        receive(&mut leader, 5_000, 7, ToLeader::Hello(Hello { newest: 1, ..hello(1) }));
        assert_eq!(leader.state(), "collecting");
        receive(&mut leader, 5_010, 7, failed(Class::Code, Some(7)));
        step(&mut leader, 5_500, Event::Tick);
        assert_eq!(leader.record().first.as_ref().map(|first| first.failure.class), Some(Class::Code));
        assert_eq!(leader.record().charged, 1);
    }

    #[test]
    fn the_record_of_the_later_generation_is_used_whatever_generation_its_member_has_seen() {
        let mut leader = leader(|_| {});
        let record = Record { generation: 1, from_nothing: true, charged: 2, ..Record::default() };
        receive(&mut leader, 0, 1, ToLeader::Hello(Hello { newest: 1, record: record.clone(), ..hello(1) }));
        // An earlier leader has sent this member the newest number, and has started no trainer in it.
        receive(&mut leader, 1, 0, ToLeader::Hello(Hello { newest: 2, ..hello(0) }));
        assert_eq!((leader.generation(), leader.record()), (2, &record));
    }

    #[test]
    fn after_a_close_the_seat_waits_for_the_lease_unless_the_next_agent_is_on_the_same_host_or_the_former_one() {
        let joins = |ms: u64, hello: Hello| {
            let mut leader = training();
            step(&mut leader, 5_000, Event::Closed(1));
            step(&mut leader, 5_500, Event::Tick);
            let actions = receive(&mut leader, ms, 7, ToLeader::Hello(hello));
            matches!(sent(&actions, 7).first(), Some(ToMember::Welcome { .. }))
        };
        let next = || Hello { incarnation: Incarnation(50), ..hello(1) };
        let elsewhere = Hello { host: "host-9".to_owned(), ..next() };
        let rebooted = Hello { boot: "other".to_owned(), ..next() };
        assert!(!joins(6_400, next()) && joins(6_600, next()));
        for other in [elsewhere, rebooted] {
            assert!(!joins(20_800, other.clone()) && joins(21_000, other), "its last message was 2 ms after the start");
        }
        assert!(joins(5_600, hello(1)), "the agent itself");
    }
}
