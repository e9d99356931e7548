//! The agreement: when every required seat has offered and the claim is held, what the generation starts from.

use std::collections::BTreeMap;
use std::time::Duration;

use super::super::Generation;
use super::super::agreement::{self, Agreement, FromScratch, Mode};
use super::super::budget::Decision;
use super::super::message::{Choice, Class, FirstFailure, Offer, ToMember};
use super::claims::NextClaim;
use super::{Action, Holder, Leader, Phase, State};
use crate::cluster::seat::Seat;

impl Leader {
    pub(super) fn try_to_agree(&mut self, now: Duration, actions: &mut Vec<Action>) {
        if self.is_contradicted(now, actions) {
            return;
        }
        let has_offered = |holder: &Holder| {
            // A member with a notice does not count; its replacement does.
            matches!(holder, Holder { state: State::Offered(_), link: Some(_), notice: None, .. })
        };
        if self.any_required(|holder| !holder.is_some_and(has_offered)) {
            self.empty_since = None;
            if now >= self.since + self.config.timing.wait {
                if self.found_end.is_some() && !self.has_met_other {
                    return self.end_as_replacement(now, actions);
                }
                let name = |seat: &Seat| match self.departed.get(seat) {
                    Some(why) => format!("{seat} ({why})"),
                    None => seat.to_string(),
                };
                let missing: Vec<String> = self.missing().iter().map(name).collect();
                let why = format!("waited for {} s for {}", self.config.timing.wait.as_secs(), missing.join(", "));
                return self.give_up(now, why, false, actions);
            }
            return self.report_waiting(now, actions);
        }
        if self.charges_former_leader(now, actions) {
            return;
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
        if std::mem::take(&mut self.has_former_generation) && self.survey_newcomers(generation, actions) {
            return;
        }
        self.agree(now, generation, actions);
    }

    /// Charges the loss of the leader that this one replaces, once, unless it was announced. Returns whether the gang gives up.
    fn charges_former_leader(&mut self, now: Duration, actions: &mut Vec<Action>) -> bool {
        let has_replaced = self.holders.values().any(|holder| holder.former_leader.is_some());
        let own = self.config.own;
        let was_announced = |first: &FirstFailure| first.seat == own && first.failure.class == Class::Preempted;
        if self.has_charged_former || !has_replaced || self.record.first.as_ref().is_some_and(was_announced) {
            return false;
        }
        self.has_charged_former = true;
        match self.record.lost(own, None) {
            Decision::Restart(pause) => {
                self.pause = self.pause.max(pause);
                false
            }
            Decision::GiveUp(why) => {
                self.give_up(now, format!("{own} failed: {why}"), false, actions);
                true
            }
        }
    }

    /// The mode, and the agreement that results from the offers.
    pub(super) fn agreement(&self) -> (Mode, Agreement) {
        let offers = self.offers();
        // Without a store, a member that joined later may have lost a common step.
        let was_started =
            |seat: &Seat| self.holders.get(seat).is_some_and(|holder| self.last_started.contains(&holder.incarnation));
        let are_the_same = || offers.keys().all(was_started);
        let is_requested = self.config.from_scratch && self.record.generation == 0;
        let from_scratch = if is_requested && !self.has_started_over {
            FromScratch::Requested
        } else if is_requested || self.record.from_nothing && (self.config.has_store || are_the_same()) {
            FromScratch::WithoutCommonStep
        } else {
            FromScratch::Never
        };
        let mode = match self.config.mode {
            Mode::Auto => agreement::mode_of(&offers, self.record.each_has_own),
            mode => mode,
        };
        (mode, agreement::agree(mode, from_scratch, &offers))
    }

    /// Agrees on a checkpoint, or requests new surveys or gives up.
    fn agree(&mut self, now: Duration, generation: Generation, actions: &mut Vec<Action>) {
        let (mode, agreement) = self.agreement();
        self.record.each_has_own |= mode == Mode::Each;
        // An old offer, or that of an agent which surveyed while another had its seat, may lack a step of that agent.
        let lacks_a_step = match &agreement {
            Agreement::NoCommonStep(_) => true,
            Agreement::On(choice) => choice.step() < self.record.kept,
        };
        let (lease, fenced, last) = (self.config.timing.lease, self.fenced_until(), self.record.generation);
        let is_old = |holder: &Holder| now >= holder.offered + lease || holder.offered < fenced || holder.agreed < last;
        if lacks_a_step && self.holders.iter().any(|(seat, holder)| seat.is_required() && is_old(holder)) {
            (self.generation, self.claims.next, self.pause) = (generation, NextClaim::Unclaimed, Duration::ZERO);
            self.request_surveys(is_old, actions);
            return;
        }
        match agreement {
            Agreement::NoCommonStep(table) => self.give_up(now, table, true, actions),
            Agreement::On(choice) => {
                (self.generation, self.claims.next) = (generation, NextClaim::Unclaimed);
                self.record.agreed_on(generation, choice);
                (self.phase, self.since, self.empty_since, self.pause) = (Phase::Arming, now, None, Duration::ZERO);
                self.choice = Some(choice);
                self.log_what_is_left_behind(choice, actions);
                let chief = self.chief();
                let is_first = |seat: Seat| !matches!(choice, Choice::Shared(_)) || Some(seat) == chief;
                self.send_agreement(is_first, actions);
            }
        }
    }

    /// Logs the offered steps that are newer than the agreed one, before the offers are dropped.
    fn log_what_is_left_behind(&self, choice: Choice, actions: &mut Vec<Action>) {
        let offers = self.offers();
        let newest = offers.values().flat_map(|offer| &offer.steps).map(|step| step.step).max();
        if choice == Choice::Start && newest.is_some() {
            let table = agreement::steps_of(&offers);
            actions.push(Action::Warn(format!(
                "the job starts from the beginning, although replicas have checkpoints: {table}; they are moved to \
                 .trainit/aside/; stop the job if that is wrong"
            )));
        } else if let Choice::Own(step) = choice
            && newest.flatten() > Some(step)
        {
            let table = agreement::steps_of(&offers);
            let lacking = |offer: &Offer| !offer.steps.iter().any(|other| other.step > Some(step));
            let behind: Vec<String> =
                offers.iter().filter(|(_, offer)| lacking(offer)).take(16).map(|(seat, _)| seat.to_string()).collect();
            let why = if behind.is_empty() {
                String::new()
            } else {
                format!(", because {} has no newer one", behind.join(", "))
            };
            actions.push(Action::Log(format!("all resume from step {step}{why}: {table}")));
        }
    }

    /// The offers of the training seats.
    fn offers(&self) -> BTreeMap<Seat, Offer> {
        let offer_of = |seat: Seat| match &self.holders.get(&seat)?.state {
            State::Offered(offer) => Some((seat, offer.clone())),
            _ => None,
        };
        self.required().filter(|seat| seat.trains()).filter_map(offer_of).collect()
    }

    /// Sends the agreement to these members.
    pub(super) fn send_agreement(&mut self, to: impl Fn(Seat) -> bool, actions: &mut Vec<Action>) {
        let (Some(choice), generation) = (self.choice, self.generation) else { return };
        for (seat, holder) in &mut self.holders {
            if seat.is_required() && to(*seat) && matches!(holder.state, State::Offered(_)) {
                (holder.state, holder.agreed) = (State::Restoring, generation);
                // Newer commits are poisoned.
                holder.committed.retain(|step| Some(*step) <= choice.step());
                let agreed = ToMember::Agreed { generation, choice };
                actions.extend(holder.link.map(|link| Action::Send(link, agreed)));
            }
        }
    }

    /// Whether the directory is shared and the chief has not restored it yet.
    pub(super) fn awaits_chief(&self) -> bool {
        let chief = self.chief().and_then(|chief| self.holders.get(&chief));
        matches!(self.choice, Some(Choice::Shared(_))) && chief.is_none_or(|chief| chief.state != State::Armed)
    }

    /// Requests new surveys from agents that were not in the newest generation, now that all trainers of earlier leaders are
    /// gone. The claimed number is used for the request, and starts nothing.
    fn survey_newcomers(&mut self, generation: Generation, actions: &mut Vec<Action>) -> bool {
        let newest = self.generation;
        let is_newcomer =
            |holder: &Holder| holder.agreed.max(holder.former_leader.map_or(0, |(_, seen)| seen)) < newest;
        if !self.holders.iter().any(|(seat, holder)| seat.is_required() && is_newcomer(holder)) {
            return false;
        }
        (self.generation, self.claims.next) = (generation, NextClaim::Unclaimed);
        self.request_surveys(is_newcomer, actions)
    }

    /// Requests new surveys from these members. Returns whether there are any.
    fn request_surveys(&mut self, selects: impl Fn(&Holder) -> bool, actions: &mut Vec<Action>) -> bool {
        let mut has_selected = false;
        for (seat, holder) in &mut self.holders {
            if !seat.is_required() || !matches!(holder.state, State::Joined | State::Offered(_)) || !selects(holder) {
                continue;
            }
            (holder.state, holder.agreed, has_selected) = (State::Joined, self.generation, true);
            let halt = ToMember::Halt { generation: self.generation, hung: false };
            actions.extend(holder.link.map(|link| Action::Send(link, halt)));
        }
        has_selected
    }

    pub(super) fn start_at(&self, empty_since: Duration) -> Duration {
        self.fenced_until().max(empty_since + self.pause)
    }

    /// Until this time, a trainer of an earlier agent may run and commit.
    fn fenced_until(&self) -> Duration {
        let fenced = self.fences.values().map(|fence| fence.after_close).max().unwrap_or_default();
        let own = self.config.own;
        let old_is_dead = self.required().all(|seat| seat == own || self.saw_former_close.contains(&seat));
        let former_lease_end = self.former_lease_end.filter(|_| !old_is_dead).unwrap_or_default();
        self.not_before.max(fenced).max(former_lease_end)
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::Incarnation;
    use super::super::super::claim::{Claim, JobState};
    use super::super::super::message::{Hello, ToLeader};
    use super::super::Event;
    use super::super::tests::{
        at, claim_of, failed, hello, join, leader, offers, receive, sent, starts, step, training,
    };
    use super::*;

    #[test]
    fn after_a_halt_a_member_that_waited_for_the_chief_must_offer_again() {
        let mut leader = leader(|config| config.mode = Mode::Shared);
        join(&mut leader, 0);
        assert_eq!(leader.state(), "arming");
        let mut actions = Vec::new();
        leader.halt(at(100), false, &mut actions);
        let offer = || ToLeader::Offer { after: 1, offer: Offer::default() };
        receive(&mut leader, 200, 0, offer());
        assert_eq!(leader.state(), "collecting", "the worker surveys");
        receive(&mut leader, 300, 1, offer());
        assert_eq!(leader.state(), "arming");
    }

    #[test]
    fn an_agent_whose_offer_lacks_the_kept_step_surveys_again_after_the_end_of_the_former_one() {
        let mut leader = training();
        leader.record.kept = Some(10);
        receive(&mut leader, 5_000, 1, failed(Class::Code, None));
        offers(&mut leader, 5_001, 1, 1, &[10]);
        step(&mut leader, 5_002, Event::Closed(1));
        receive(&mut leader, 6_000, 7, ToLeader::Hello(Hello { incarnation: Incarnation(50), ..hello(1) }));
        offers(&mut leader, 6_001, 0, 1, &[10]);
        offers(&mut leader, 6_002, 7, 1, &[]);
        let actions = step(&mut leader, 9_000, Event::Tick);
        assert!(
            !starts(&actions) && sent(&actions, 7).contains(&&ToMember::Halt { generation: 2, hung: false }),
            "{actions:?}"
        );
        assert!(starts(&offers(&mut leader, 9_001, 7, 2, &[10])));
    }

    #[test]
    fn a_job_starts_from_the_beginning_once_if_requested() {
        let starts = |job: JobState| {
            let mut leader = leader(|config| {
                config.from_scratch = true;
                (config.newest_claim, config.former_has_ended) = (Some(Claim { job, ..claim_of(4) }), true);
            });
            join(&mut leader, 0);
            leader.choice == Some(Choice::Start)
        };
        let requested = JobState { from_scratch: true, ..JobState::default() };
        assert!(starts(JobState::default()), "the earlier run had no such request");
        assert!(!starts(requested), "all agents were replaced");
        assert!(starts(JobState { from_nothing: true, ..requested }), "no step is common since");
        assert!(starts(JobState { has_finished: true, ..requested }), "another run");
    }

    #[test]
    fn a_start_from_the_beginning_while_a_member_has_a_checkpoint_is_a_warning_with_the_table() {
        let mut leader = leader(|config| config.from_scratch = true);
        let actions = join(&mut leader, 0);
        let warning = |action: &Action| if let Action::Warn(line) = action { Some(line.clone()) } else { None };
        let line = actions.iter().find_map(warning).expect("a warning");
        assert!(line.contains("chief/0 has 20, 10, worker/0 has 10"), "{line}");
    }

    #[test]
    fn the_log_says_which_member_lacks_the_newest_step() {
        let actions = join(&mut leader(|_| {}), 0);
        let line = |action: &Action| if let Action::Log(line) = action { Some(line.clone()) } else { None };
        let line = actions.iter().find_map(line).expect("a line");
        assert!(
            line.starts_with("all resume from step 10, because worker/0 has no newer one: chief/0 has 20, 10"),
            "{line}"
        );
    }
}
