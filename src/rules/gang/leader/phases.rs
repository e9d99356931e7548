//! What moves all members at once: agreement, start, halt, the end.

use std::collections::BTreeMap;
use std::time::Duration;

use super::super::Generation;
use super::super::agreement::{self, Agreement, Beginning, Mode};
use super::super::budget::Answer;
use super::super::first_failure::{self, Fall};
use super::super::message::{Choice, Class, Failure, Offer, ToMember};
use super::super::seat::Seat;
use super::claims::Next;
use super::{Action, Holder, LATE_EVALUATORS, Leader, Link, MARGIN, OnNotice, Phase, SAY_WAITING, State};

impl Leader {
    pub(super) fn fell(&mut self, now: Duration, fall: Fall, actions: &mut Vec<Action>) {
        match self.phase {
            Phase::Arming | Phase::Training => {
                let lasted =
                    if self.phase == Phase::Training { now.saturating_sub(self.since) } else { Duration::ZERO };
                self.falls = vec![fall];
                self.name_at = Some(now + self.config.timing.naming);
                self.lasted = lasted;
                self.halt(now, actions);
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

    pub(super) fn halt(&mut self, now: Duration, actions: &mut Vec<Action>) {
        self.collect(now);
        self.tell_all(&ToMember::Halt { generation: self.generation }, actions);
    }

    pub(super) fn collect(&mut self, now: Duration) {
        self.phase = Phase::Collecting;
        self.since = now;
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
        let is_known = |seat: Seat| {
            let holder = self.holders.get(&seat);
            holder.is_none_or(|holder| matches!(holder.state, State::Offered(_) | State::Joined))
        };
        if now < at && !self.required().all(is_known) {
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
                if !self.awaits_chief() {
                    self.send_agreement(|_| true, actions);
                }
                let is_armed =
                    |seat: Seat| self.holders.get(&seat).is_some_and(|h| h.state == State::Armed && h.link.is_some());
                if self.required().all(is_armed) {
                    self.go(now, actions);
                } else {
                    self.say_waiting(now, actions);
                }
            }
            Phase::Training => self.find_hang(now, actions),
            Phase::Ending => self.try_to_end(now, self.config.timing.finish_grace, actions),
            Phase::GivenUp => self.try_to_end(now, self.config.timing.stop_grace + LATE_EVALUATORS, actions),
            Phase::Parting => self.try_to_end(now, self.parting, actions),
            Phase::Yielded | Phase::Done => {}
        }
    }

    pub(super) fn try_to_agree(&mut self, now: Duration, actions: &mut Vec<Action>) {
        let offer_of = |seat: Seat| match self.holders.get(&seat) {
            // One whose machine goes is waited for: its replacement comes.
            Some(Holder { state: State::Offered(offer), link: Some(_), notice: None, .. }) => Some((seat, offer)),
            _ => None,
        };
        let offers: Option<BTreeMap<Seat, &Offer>> = self.required().map(offer_of).collect();
        let Some(offers) = offers else {
            self.empty_since = None;
            if now >= self.since + self.config.timing.wait {
                let missing: Vec<String> = self.missing().iter().map(ToString::to_string).collect();
                let why = format!("waited for {} s for {}", self.config.timing.wait.as_secs(), missing.join(", "));
                return self.give_up(now, why, false, actions);
            }
            return self.say_waiting(now, actions);
        };
        let offers: BTreeMap<Seat, Offer> = offers.into_iter().map(|(seat, offer)| (seat, offer.clone())).collect();
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
        self.agree(now, generation, &agreement::of_training(&offers), actions);
    }

    /// Agrees on what all members have offered.
    fn agree(
        &mut self,
        now: Duration,
        generation: Generation,
        offers: &BTreeMap<Seat, Offer>,
        actions: &mut Vec<Action>,
    ) {
        // Without a store a member that has come since may have lost a step that was common.
        let were_there =
            |seat: &Seat| self.holders.get(seat).is_some_and(|holder| self.last_started.contains(&holder.incarnation));
        let are_the_same = || offers.keys().all(were_there);
        let beginning = if self.config.from_scratch && !self.record.has_started {
            Beginning::Asked
        } else if self.record.from_nothing && (self.config.has_store || are_the_same()) {
            Beginning::WithoutCommonStep
        } else {
            Beginning::Never
        };
        let mode = match self.config.mode {
            Mode::Auto => agreement::mode_of(offers, self.record.each_has_own),
            mode => mode,
        };
        self.record.each_has_own |= mode == Mode::Each;
        match agreement::agree(mode, beginning, offers) {
            Agreement::NoCommonStep(table) => {
                // An offer that waited long may be older than what another agent of its seat committed since.
                let lease = self.config.timing.lease;
                let is_old = |holder: &Holder| now >= holder.offered + lease;
                if self.holders.iter().any(|(seat, holder)| seat.is_required() && is_old(holder)) {
                    (self.generation, self.claims.next) = (generation, Next::Unclaimed);
                    self.survey_again(is_old, actions);
                    return;
                }
                self.give_up(now, table, true, actions);
            }
            Agreement::On(choice) => {
                (self.generation, self.claims.next) = (generation, Next::Unclaimed);
                self.record.agreed_on(choice);
                (self.phase, self.since, self.empty_since, self.pause) = (Phase::Arming, now, None, Duration::ZERO);
                self.choice = Some(choice);
                let chief = self.chief();
                let is_first = |seat: Seat| !matches!(choice, Choice::Shared(_)) || Some(seat) == chief;
                self.send_agreement(is_first, actions);
            }
        }
    }

    /// Tells these members what to restore.
    fn send_agreement(&mut self, to: impl Fn(Seat) -> bool, actions: &mut Vec<Action>) {
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
        let fenced = self.fences.values().copied().max().unwrap_or_default();
        let own = self.config.own;
        let old_is_dead = self.required().all(|seat| seat == own || self.saw_closed.contains(&seat));
        let old_lease = self.old_lease.filter(|_| !old_is_dead).unwrap_or_default();
        self.not_before.max(empty_since + self.pause).max(fenced).max(old_lease)
    }

    pub(super) fn go(&mut self, now: Duration, actions: &mut Vec<Action>) {
        (self.phase, self.since, self.old_lease, self.failed_restores) = (Phase::Training, now, None, 0);
        self.saw_closed.clear();
        self.last_started = self.holders.values().map(|holder| holder.incarnation).collect();
        actions.push(Action::Started(self.generation));
        for holder in self.holders.values_mut().filter(|holder| holder.state == State::Armed) {
            (holder.state, holder.moved) = (State::Training, now);
            let go = ToMember::Go { generation: self.generation, record: self.record.clone() };
            actions.extend(holder.link.map(|link| Action::Send(link, go)));
        }
    }

    /// No training seat's step moves: the seats with the lowest step are the odd ones.
    pub(super) fn find_hang(&mut self, now: Duration, actions: &mut Vec<Action>) {
        let Some(limit) = self.config.hang else { return };
        let all = || self.holders.iter().filter(|(seat, holder)| seat.trains() && holder.state == State::Training);
        // A trainer that names no step may be at work all the same.
        let moves = |holder: &Holder| holder.step.is_none() || now < holder.moved + limit;
        if all().next().is_none() || all().any(|(_, holder)| moves(holder)) {
            return;
        }
        let Some((seat, holder)) = all().min_by_key(|(_, holder)| holder.step) else { return };
        let mut by_step: Vec<(Seat, Option<u64>)> = all().map(|(seat, holder)| (*seat, holder.step)).collect();
        by_step.sort_by_key(|(_, step)| *step);
        let shown = by_step.iter().take(8).map(|(seat, step)| format!("{seat} at {}", step.unwrap_or_default()));
        let shown: Vec<String> = shown.collect();
        let detail = format!("no step moved for {} s; the lowest are {}", limit.as_secs(), shown.join(", "));
        let failure = Failure { class: Class::Hung, code: None, signal: None, step: holder.step, detail };
        let fall = Fall::new(now, 0, *seat, &holder.host, failure);
        self.fell(now, fall, actions);
    }

    pub(super) fn say_waiting(&mut self, now: Duration, actions: &mut Vec<Action>) {
        if now < self.said_waiting + SAY_WAITING {
            return;
        }
        self.said_waiting = now;
        let missing: Vec<Seat> = self.missing().into_iter().take(16).collect();
        if !missing.is_empty() {
            self.tell_all(&ToMember::Waiting { missing }, actions);
        }
    }

    pub(super) fn end(&mut self, now: Duration, actions: &mut Vec<Action>) {
        (self.phase, self.since) = (Phase::Ending, now);
        self.last_word(ToMember::Finish, actions);
    }

    pub(super) fn give_up(&mut self, now: Duration, why: String, no_common_step: bool, actions: &mut Vec<Action>) {
        (self.phase, self.since, self.name_at) = (Phase::GivenUp, now, None);
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
        let until = |seat: Seat| match (self.holders.contains_key(&seat), seat.is_required()) {
            (true, true) => grace + timing.stop_grace + MARGIN,
            (true, false) => timing.evaluator_grace.max(LATE_EVALUATORS),
            (false, true) => timing.lease.min(grace + timing.stop_grace + MARGIN),
            (false, false) => LATE_EVALUATORS,
        };
        let others = self.config.roster.iter().filter(|seat| **seat != self.config.own && !self.left.contains(seat));
        if others.into_iter().any(|seat| now < self.since + until(*seat)) {
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
