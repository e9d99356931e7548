//! What moves all members at once: agreement, start, halt, the end.

use std::collections::BTreeMap;
use std::time::Duration;

use super::super::Generation;
use super::super::agreement::{self, Agreement, Beginning, Mode};
use super::super::budget::Answer;
use super::super::first_failure::{self, Fall};
use super::super::message::{Choice, Class, Offer, ToMember};
use super::super::seat::Seat;
use super::claims::Next;
use super::{Action, Holder, LATE_EVALUATORS, Leader, Link, MARGIN, OnNotice, Phase, SAY_WAITING, State};
use crate::text::transfer_progress::words;

impl Leader {
    pub(super) fn fell(&mut self, now: Duration, fall: Fall, actions: &mut Vec<Action>) {
        match self.phase {
            Phase::Training if fall.first.failure.class == Class::Hung => self.look_at_hang(now, Some(fall), actions),
            Phase::Arming | Phase::Training => {
                let mut falls = self.judge_hang(actions);
                falls.push(fall);
                self.end_generation(now, falls, actions);
            }
            Phase::Collecting => {
                if self.name_at.is_some() {
                    self.falls.push(fall);
                }
            }
            Phase::Ending | Phase::GivenUp | Phase::Parting | Phase::Yielded | Phase::Done => {}
        }
    }

    pub(super) fn is_over(&self) -> bool {
        matches!(self.phase, Phase::Ending | Phase::GivenUp | Phase::Parting | Phase::Yielded | Phase::Done)
    }

    /// All stop because of these failures. The first is named later.
    pub(super) fn end_generation(&mut self, now: Duration, falls: Vec<Fall>, actions: &mut Vec<Action>) {
        let is_training = self.phase == Phase::Training;
        self.lasted = if is_training { now.saturating_sub(self.since) } else { Duration::ZERO };
        let hung = falls.iter().any(|fall| fall.first.failure.class == Class::Hung);
        self.falls = falls;
        self.name_at = Some(now + self.config.timing.naming);
        self.halt(now, hung, actions);
    }

    pub(super) fn halt(&mut self, now: Duration, hung: bool, actions: &mut Vec<Action>) {
        self.collect(now);
        // A member that waits for its agreement surveys anew, or offers again: it is not ready before.
        for holder in self.holders.values_mut() {
            if matches!(holder.state, State::Offered(_)) && holder.agreed < self.generation {
                (holder.state, holder.agreed) = (State::Joined, self.generation);
            }
        }
        self.tell_all(&ToMember::Halt { generation: self.generation, hung }, actions);
    }

    pub(super) fn collect(&mut self, now: Duration) {
        (self.phase, self.since, self.look) = (Phase::Collecting, now, None);
        for holder in self.holders.values_mut() {
            if !matches!(holder.state, State::Joined | State::Offered(_)) {
                holder.state = State::Stopping;
            }
        }
    }

    /// One replica's machine goes: the others save, and hold or leave.
    pub(super) fn noticed(&mut self, now: Duration, from: Seat, lead: u64, fall: Fall, actions: &mut Vec<Action>) {
        if self.is_over() {
            return;
        }
        let leave = self.config.on_notice == OnNotice::Leave;
        if self.phase == Phase::Arming && !leave {
            // Nothing is lost: no trainer runs.
            return self.fell(now, fall, actions);
        }
        // While the trainers stop, an earlier deadline is passed on.
        let saves = |holder: &Holder| match self.phase {
            Phase::Collecting => leave || holder.state == State::Stopping,
            _ => true,
        };
        let others = self.holders.iter().filter(|(seat, holder)| **seat != from && saves(holder));
        let others: Vec<Link> = others.filter_map(|(_, holder)| holder.link).collect();
        if self.phase == Phase::Training {
            self.lasted = now.saturating_sub(self.since);
            self.falls = vec![fall];
            self.name_at = Some(now + self.config.timing.naming);
            self.collect(now);
        }
        let save = ToMember::Save { lead, leave };
        actions.extend(others.into_iter().map(|link| Action::Send(link, save.clone())));
        if leave {
            (self.phase, self.since, self.parting) = (Phase::Parting, now, Duration::from_millis(lead));
            self.last_word = Some(save);
        }
    }

    /// Names the first failure once the deaths that may be earlier had their time, and charges it.
    pub(super) fn name_first(&mut self, now: Duration, actions: &mut Vec<Action>) {
        let Some(at) = self.name_at else { return };
        let may_fall = |holder: Option<&Holder>| {
            holder.is_some_and(|holder| !matches!(holder.state, State::Offered(_) | State::Joined))
        };
        if now < at && self.any_required(may_fall) {
            return;
        }
        self.name_at = None;
        let Some(first) = first_failure::first(&self.falls).cloned() else { return };
        self.falls.clear();
        let message = ToMember::Named { generation: self.generation, first: first.clone() };
        self.tell_all(&message, actions);
        match self.record.ended(&self.config.limits, &first, self.lasted) {
            Answer::Again(pause) => self.pause = pause,
            Answer::Stop(why) => {
                let why = format!("{} failed and {why}", first.seat);
                self.give_up(now, why, false, actions);
            }
        }
    }

    pub(super) fn advance(&mut self, now: Duration, actions: &mut Vec<Action>) {
        match self.phase {
            Phase::Collecting => self.try_to_agree(now, actions),
            Phase::Arming => {
                let is_armed = |holder: &Holder| holder.state == State::Armed && holder.link.is_some();
                if self.any_required(|holder| !holder.is_some_and(is_armed)) {
                    self.say_waiting(now, actions);
                } else {
                    self.go(now, actions);
                }
            }
            Phase::Training => self.find_hang(now, actions),
            Phase::Ending => {
                self.claim_end(actions);
                self.try_to_end(now, self.config.timing.finish_grace, actions);
            }
            Phase::GivenUp => self.try_to_end(now, self.config.timing.stop_grace + LATE_EVALUATORS, actions),
            Phase::Parting => self.try_to_end(now, self.parting, actions),
            Phase::Yielded | Phase::Done => {}
        }
    }

    pub(super) fn try_to_agree(&mut self, now: Duration, actions: &mut Vec<Action>) {
        let has_offered = |holder: &Holder| {
            // One whose machine goes is waited for: its replacement comes.
            matches!(holder, Holder { state: State::Offered(_), link: Some(_), notice: None, .. })
        };
        if self.any_required(|holder| !holder.is_some_and(has_offered)) {
            self.empty_since = None;
            if now >= self.since + self.config.timing.wait {
                let missing: Vec<String> = self.missing().iter().map(ToString::to_string).collect();
                let why = format!("waited for {} s for {}", self.config.timing.wait.as_secs(), missing.join(", "));
                return self.give_up(now, why, false, actions);
            }
            return self.say_waiting(now, actions);
        }
        let empty_since = *self.empty_since.get_or_insert(now);
        let Some(generation) = self.claimed_generation(now, actions) else {
            if now >= empty_since + self.config.timing.wait {
                let why = format!("the store did not take the claim of {} on a generation", self.config.own);
                return self.give_up(now, why, true, actions);
            }
            return;
        };
        if self.name_at.is_some() || now < self.start_at(empty_since) {
            return;
        }
        if std::mem::take(&mut self.old_generation) && self.survey_newcomers(generation, actions) {
            return;
        }
        self.agree(now, generation, actions);
    }

    /// What the offers of all members come to, and in which mode.
    pub(super) fn agreement(&self) -> (Mode, Agreement) {
        let offer_of = |seat: Seat| match &self.holders.get(&seat)?.state {
            State::Offered(offer) => Some((seat, offer.clone())),
            _ => None,
        };
        let offers: BTreeMap<Seat, Offer> = self.required().filter(|seat| seat.trains()).filter_map(offer_of).collect();
        // Without a store a member that has come since may have lost a step that was common.
        let were_there =
            |seat: &Seat| self.holders.get(seat).is_some_and(|holder| self.last_started.contains(&holder.incarnation));
        let are_the_same = || offers.keys().all(were_there);
        let is_asked = self.config.from_scratch && self.record.generation == 0;
        let beginning = if is_asked && !self.begun_anew {
            Beginning::Asked
        } else if is_asked || self.record.from_nothing && (self.config.has_store || are_the_same()) {
            Beginning::WithoutCommonStep
        } else {
            Beginning::Never
        };
        let mode = match self.config.mode {
            Mode::Auto => agreement::mode_of(&offers, self.record.each_has_own),
            mode => mode,
        };
        (mode, agreement::agree(mode, beginning, &offers))
    }

    /// Agrees on what all members have offered.
    fn agree(&mut self, now: Duration, generation: Generation, actions: &mut Vec<Action>) {
        let (mode, agreement) = self.agreement();
        self.record.each_has_own |= mode == Mode::Each;
        // An offer that waited long may lack what another agent of its seat has committed since.
        let lacks_a_step = match &agreement {
            Agreement::NoCommonStep(_) => true,
            Agreement::On(choice) => choice.step() < self.record.kept,
        };
        let (lease, fenced) = (self.config.timing.lease, self.fenced_until());
        let is_old = |holder: &Holder| now >= holder.offered + lease || holder.offered < fenced;
        if lacks_a_step && self.holders.iter().any(|(seat, holder)| seat.is_required() && is_old(holder)) {
            (self.generation, self.claims.next, self.pause) = (generation, Next::Unclaimed, Duration::ZERO);
            self.survey_again(is_old, actions);
            return;
        }
        match agreement {
            Agreement::NoCommonStep(table) => self.give_up(now, table, true, actions),
            Agreement::On(choice) => {
                (self.generation, self.claims.next) = (generation, Next::Unclaimed);
                self.record.agreed_on(generation, choice);
                (self.phase, self.since, self.empty_since, self.pause) = (Phase::Arming, now, None, Duration::ZERO);
                self.choice = Some(choice);
                let chief = self.chief();
                let is_first = |seat: Seat| !matches!(choice, Choice::Shared(_)) || Some(seat) == chief;
                self.send_agreement(is_first, actions);
            }
        }
    }

    /// Tells these members what to restore.
    pub(super) fn send_agreement(&mut self, to: impl Fn(Seat) -> bool, actions: &mut Vec<Action>) {
        let (Some(choice), generation) = (self.choice, self.generation) else { return };
        for (seat, holder) in &mut self.holders {
            if seat.is_required() && to(*seat) && matches!(holder.state, State::Offered(_)) {
                (holder.state, holder.agreed) = (State::Restoring, generation);
                // What was committed after the agreed step is passed over.
                holder.committed.retain(|step| Some(*step) <= choice.step());
                let agreed = ToMember::Agreed { generation, choice };
                actions.extend(holder.link.map(|link| Action::Send(link, agreed)));
            }
        }
    }

    /// Whether all see one directory, and the chief has not restored it yet.
    pub(super) fn awaits_chief(&self) -> bool {
        let chief = self.chief().and_then(|chief| self.holders.get(&chief));
        matches!(self.choice, Some(Choice::Shared(_))) && chief.is_none_or(|chief| chief.state != State::Armed)
    }

    /// Agents that were not in the newest generation survey anew, now that all trainers of earlier leaders are gone. They are
    /// told so by a generation that starts nothing.
    fn survey_newcomers(&mut self, generation: Generation, actions: &mut Vec<Action>) -> bool {
        let newest = self.generation;
        let is_newcomer = |holder: &Holder| holder.agreed.max(holder.came_from.map_or(0, |(_, seen)| seen)) < newest;
        if !self.holders.iter().any(|(seat, holder)| seat.is_required() && is_newcomer(holder)) {
            return false;
        }
        (self.generation, self.claims.next) = (generation, Next::Unclaimed);
        self.survey_again(is_newcomer, actions)
    }

    pub(super) fn start_at(&self, empty_since: Duration) -> Duration {
        self.fenced_until().max(empty_since + self.pause)
    }

    /// Until then a trainer of another agent may live, and commit.
    fn fenced_until(&self) -> Duration {
        let fenced = self.fences.values().copied().max().unwrap_or_default();
        let own = self.config.own;
        let old_is_dead = self.required().all(|seat| seat == own || self.saw_closed.contains(&seat));
        let old_lease = self.old_lease.filter(|_| !old_is_dead).unwrap_or_default();
        self.not_before.max(fenced).max(old_lease)
    }

    pub(super) fn go(&mut self, now: Duration, actions: &mut Vec<Action>) {
        (self.phase, self.since, self.old_lease, self.failed_restores) = (Phase::Training, now, None, 0);
        self.saw_closed.clear();
        self.last_started = self.holders.values().map(|holder| holder.incarnation).collect();
        actions.push(Action::Started(self.generation));
        for holder in self.holders.values_mut().filter(|holder| holder.state == State::Armed) {
            (holder.state, holder.moved, holder.tree) = (State::Training, now, None);
            let go = ToMember::Go { generation: self.generation, record: self.record.clone() };
            actions.extend(holder.link.map(|link| Action::Send(link, go)));
        }
    }

    pub(super) fn say_waiting(&mut self, now: Duration, actions: &mut Vec<Action>) {
        if now < self.said_waiting.max(self.since) + SAY_WAITING {
            return;
        }
        self.said_waiting = now;
        if self.phase == Phase::Arming {
            actions.extend(self.slowest(now).map(Action::Log));
        }
        let missing: Vec<Seat> = self.missing().into_iter().take(16).collect();
        if !missing.is_empty() {
            self.tell_all(&ToMember::Waiting { missing }, actions);
        }
    }

    /// The member whose restore is the least far, of those that say how far it is.
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
        let far = words(done, all, now.saturating_sub(self.since));
        Some(format!("{seat} on {host} is the slowest to restore: {far}"))
    }

    pub(super) fn end(&mut self, now: Duration, actions: &mut Vec<Action>) {
        (self.phase, self.since, self.name_at, self.look) = (Phase::Ending, now, None, None);
        self.last_word(ToMember::Finish, actions);
    }

    pub(super) fn give_up(&mut self, now: Duration, why: String, no_common_step: bool, actions: &mut Vec<Action>) {
        (self.phase, self.since, self.name_at, self.look) = (Phase::GivenUp, now, None, None);
        let first = self.record.first.clone();
        self.last_word(ToMember::GiveUp { why, no_common_step, first }, actions);
    }

    /// To all but the leader's own replica, which leaves last.
    pub(super) fn last_word(&mut self, word: ToMember, actions: &mut Vec<Action>) {
        let others = self.holders.iter().filter(|(seat, _)| **seat != self.config.own);
        let links: Vec<Link> = others.filter_map(|(_, holder)| holder.link).collect();
        actions.extend(links.into_iter().map(|link| Action::Send(link, word.clone())));
        self.last_word = Some(word);
    }

    pub(super) fn try_to_end(&mut self, now: Duration, grace: Duration, actions: &mut Vec<Action>) {
        let timing = self.config.timing;
        // One that is cut off for a moment comes back for the last word; others are gone.
        let until = |leader: &Leader, seat: Seat| match (leader.holders.contains_key(&seat), seat.is_required()) {
            (true, true) => grace + timing.stop_grace + MARGIN,
            (true, false) => timing.evaluator_grace.max(LATE_EVALUATORS),
            (false, true) => timing.lease.min(grace + timing.stop_grace + MARGIN),
            (false, false) => LATE_EVALUATORS,
        };
        let own = self.config.own;
        if self.any_seat(|leader, seat| {
            seat != own && !leader.left.contains(&seat) && now < leader.since + until(leader, seat)
        }) {
            return;
        }
        self.phase = Phase::Done;
        if let (Some(word), Some(link)) = (&self.last_word, self.holders.get(&self.config.own).and_then(|own| own.link))
        {
            actions.push(Action::Send(link, word.clone()));
        }
        actions.push(Action::Done);
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::message::ToLeader;
    use super::super::Event;
    use super::super::tests::{at, fell, join, leader, says, sent, step, training};
    use super::*;

    #[test]
    fn a_member_that_waits_for_the_chief_is_ready_again_only_once_it_has_offered_after_a_halt() {
        let mut leader = leader(|config| config.mode = Mode::Shared);
        join(&mut leader, 0);
        assert_eq!(leader.state(), "arming");
        let mut actions = Vec::new();
        leader.halt(at(100), false, &mut actions);
        let offer = || ToLeader::Offer { after: 1, offer: Offer::default() };
        says(&mut leader, 200, 0, offer());
        assert_eq!(leader.state(), "collecting", "the worker surveys");
        says(&mut leader, 300, 1, offer());
        assert_eq!(leader.state(), "arming");
    }

    #[test]
    fn a_halt_is_no_reason_to_name_the_members_at_once() {
        let mut leader = training();
        let waiting = |actions: &[Action]| !sent(actions, 0).is_empty();
        for ms in (1_000..=40_000).step_by(1_000) {
            let beat = || ToLeader::Beat { clock: 0, step: None, restoring: None, committed: Vec::new() };
            says(&mut leader, ms, 0, beat());
            says(&mut leader, ms, 1, beat());
        }
        says(&mut leader, 40_000, 1, fell(Class::Code, None));
        assert!(!waiting(&step(&mut leader, 40_001, Event::Tick)), "the trainers are about to stop");
    }

    #[test]
    fn the_member_that_is_the_least_far_in_its_restore_is_named_now_and_then() {
        let mut leader = leader(|_| {});
        join(&mut leader, 0);
        let beat =
            |done| ToLeader::Beat { clock: 0, step: None, restoring: Some((done, 8 << 30)), committed: Vec::new() };
        let named = |actions: Vec<Action>| {
            actions.into_iter().find_map(|action| if let Action::Log(line) = action { Some(line) } else { None })
        };
        for (ms, at) in [(15_000, 1), (29_000, 2)] {
            says(&mut leader, ms, 0, beat(at << 31));
            says(&mut leader, ms, 1, beat(at << 30));
        }
        let line = named(step(&mut leader, 30_000, Event::Tick));
        assert!(
            line.as_ref()
                .is_some_and(|line| line.starts_with("worker/0 on host-1 is the slowest to restore: 2.0 of 8.0 GiB")),
            "{line:?}"
        );
        assert_eq!(named(step(&mut leader, 31_000, Event::Tick)), None, "once in 30 s");
    }
}
