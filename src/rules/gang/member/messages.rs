//! The member's reactions to the messages of the leader.

use std::time::Duration;

use super::super::message::{Choice, MOST_REASON, Record, ToLeader, ToMember, bounded_text, millis, one_line};
use super::super::settings::other_times;
use super::super::{ENDING, Generation, Incarnation, Timing};
use super::{Action, Leave, Link, Member, Phase};
use crate::cluster::spec::Role;

impl Member {
    pub(super) fn on_message(&mut self, now: Duration, message: ToMember, actions: &mut Vec<Action>) {
        match message {
            ToMember::Welcome { leader, lease, newest, timing } => {
                self.take_times(
                    timing.unwrap_or(Timing { lease: Duration::from_millis(lease), ..self.timing }),
                    actions,
                );
                self.on_welcome(now, leader, newest, actions);
            }
            ToMember::Refused { why, contradicts } => {
                self.link = Link::Up;
                if contradicts {
                    self.contradiction.get_or_insert((now, bounded_text(&why)));
                }
            }
            // The connection follows a referral itself.
            ToMember::Refer(_) => {}
            ToMember::Echo { clock, save_at, save_step, missing } => {
                (self.next_save, self.save_step, self.missing) = (save_at, save_step, missing);
                let until = Duration::from_millis(clock).saturating_add(self.timing.lease);
                // A clock in the future was not sent by this member.
                if clock <= millis(now) {
                    self.lease = self.lease.max(Some(until));
                }
            }
            ToMember::Agreed { generation, choice } => self.on_agreed(now, generation, choice, actions),
            ToMember::Go { generation, record } => self.on_go(now, generation, record, actions),
            ToMember::Halt { generation, hung } => self.on_halt(now, generation, hung, actions),
            ToMember::ReportTree { generation } => {
                if self.phase == Phase::Training(generation) {
                    actions.push(Action::ReportTree);
                }
            }
            ToMember::Named { first, .. } => {
                self.record.first = Some(first.clone());
                actions.push(Action::FirstFailure(first));
            }
            ToMember::Save { lead, leave, save_at } => {
                self.save_at.get_or_insert(save_at);
                if matches!(self.phase, Phase::Training(_)) {
                    self.phase = Phase::Stopping;
                }
                // An evaluator does not save; it leaves only if all leave.
                if leave || self.phase != Phase::Beside {
                    actions.push(Action::Save { lead: Duration::from_millis(lead), leave });
                }
            }
            ToMember::Kept { step } => {
                if Some(step) > self.record.kept {
                    self.record.keep(step);
                    actions.push(Action::Keep(step));
                }
            }
            ToMember::Finish => self.on_finish(actions),
            ToMember::GiveUp { why, no_common_step, contradiction, first } => {
                let why = one_line(&why, MOST_REASON);
                let leave = if contradiction {
                    Leave::Contradiction(why)
                } else {
                    Leave::GaveUp { why, no_common_step, first }
                };
                self.stop_and_leave(leave, actions);
            }
            ToMember::Waiting { missing } => {
                self.missing = missing.clone();
                actions.push(Action::Waiting(missing));
            }
        }
    }

    /// Uses the leader's times.
    fn take_times(&mut self, timing: Timing, actions: &mut Vec<Action>) {
        let others = other_times(&self.timing, &timing);
        self.timing = timing;
        if !others.is_empty() {
            actions.push(Action::Log(format!("the gang's times are those of its leader: {others}")));
        }
    }

    fn on_welcome(&mut self, now: Duration, leader: Incarnation, newest: Generation, actions: &mut Vec<Action>) {
        if self.link == Link::Welcomed {
            return;
        }
        (self.link, self.contradiction) = (Link::Welcomed, None);
        // The first survey begins here, so that an agent without a seat does not claim the store.
        let is_first = self.last_survey.is_none() && self.phase == Phase::Surveying;
        let since = *self.last_survey.get_or_insert(now);
        // An earlier survey may be outdated, because another agent may have had the seat since, and committed.
        let is_long_ago = now >= since + self.timing.lease && matches!(self.phase, Phase::Ready(_));
        let is_old = is_long_ago || newest > self.newest && matches!(self.phase, Phase::Ready(_) | Phase::Surveying);
        self.newest = self.newest.max(newest);
        self.next_beat = now;
        (self.leader, self.disconnected) = (Some(leader), None);
        if is_old || is_first {
            self.phase = Phase::Surveying;
            actions.push(Action::Survey);
        }
        // Before the offer, because the last message determines the member's state at the leader.
        self.send_failure(now, actions);
        match self.phase.clone() {
            Phase::Ready(offer) => actions.push(Action::Send(ToLeader::Offer { after: self.newest, offer })),
            Phase::Armed(generation) => actions.push(Action::Send(ToLeader::Armed { generation })),
            Phase::Finished(generation) => actions.push(Action::Send(ToLeader::Finished { generation })),
            Phase::Surveying
            | Phase::Beside
            | Phase::Restoring(_)
            | Phase::Training(_)
            | Phase::Committing(_)
            | Phase::Stopping
            | Phase::Ending(_)
            | Phase::Left => {}
        }
    }

    fn on_agreed(&mut self, now: Duration, generation: Generation, choice: Choice, actions: &mut Vec<Action>) {
        let Phase::Ready(offer) = &self.phase else { return };
        if generation <= self.newest {
            return;
        }
        let is_offered = |step: u64| offer.steps.iter().any(|offered| offered.step == Some(step));
        self.newest = generation;
        match choice {
            // A peer can choose only a step that this node has offered.
            Choice::Own(step) if self.seat.trains() && !is_offered(step) => {
                let why = format!("step {step} was not offered by this node");
                self.send(ToLeader::CannotRestore { generation, why }, actions);
            }
            // A parameter server has no steps.
            _ if !self.seat.trains() => {
                self.phase = Phase::Armed(generation);
                self.send(ToLeader::Armed { generation }, actions);
            }
            _ => {
                self.committed.retain(|step| Some(*step) <= choice.step());
                (self.phase, self.restore_moved) = (Phase::Restoring(generation), now);
                actions.push(Action::Restore(choice));
            }
        }
    }

    fn on_go(&mut self, now: Duration, generation: Generation, record: Record, actions: &mut Vec<Action>) {
        if self.phase != Phase::Armed(generation) {
            return;
        }
        let kept = self.record.kept;
        self.record = record;
        kept.into_iter().for_each(|step| self.record.keep(step));
        // After the end of the lease, the leader treats this member as lost.
        if self.lease.is_none_or(|until| now >= until) {
            self.phase = Phase::Surveying;
            actions.push(Action::Survey);
            return;
        }
        (self.phase, self.commits) = (Phase::Training(generation), false);
        (self.next_save, self.save_at, self.has_own) = (None, None, false);
        (self.wanted_save, self.save_step) = (None, None);
        actions.push(Action::Launch(generation));
    }

    fn on_halt(&mut self, now: Duration, generation: Generation, hung: bool, actions: &mut Vec<Action>) {
        let is_old = generation > self.newest;
        self.unconfirmed_failure = self.unconfirmed_failure.take().filter(|(_, of, _)| *of > generation);
        self.newest = self.newest.max(generation);
        match self.phase.clone() {
            // The success of the chief's trainer is the end of the job, unless its last commit fails.
            Phase::Committing(_) | Phase::Finished(_) if self.seat == self.leader_seat => {}
            Phase::Training(own) if hung && own <= generation => {
                (self.phase, self.aborting) = (Phase::Stopping, Some(own));
                actions.push(Action::Abort);
            }
            Phase::Training(own) if self.has_closed && own <= generation => {
                (self.phase, self.aborting) = (Phase::Stopping, Some(own));
                self.send(ToLeader::Beat(self.beat(now)), actions);
                actions.push(Action::AwaitEnd(ENDING));
            }
            Phase::Training(own) | Phase::Restoring(own) | Phase::Committing(own) if own <= generation => {
                self.restoring = None;
                self.phase = Phase::Stopping;
                actions.push(Action::Stop(self.timing.stop_grace));
            }
            Phase::Armed(own) | Phase::Finished(own) if own <= generation => {
                self.phase = Phase::Surveying;
                actions.push(Action::Survey);
            }
            // A later generation than that of this survey exists.
            Phase::Ready(_) if is_old => {
                self.phase = Phase::Surveying;
                actions.push(Action::Survey);
            }
            Phase::Ready(offer) => self.send(ToLeader::Offer { after: self.newest, offer }, actions),
            Phase::Training(_)
            | Phase::Restoring(_)
            | Phase::Armed(_)
            | Phase::Committing(_)
            | Phase::Finished(_)
            | Phase::Surveying
            | Phase::Beside
            | Phase::Stopping
            | Phase::Ending(_)
            | Phase::Left => {}
        }
    }

    /// Stops the trainer, and leaves when the tree is empty.
    pub(super) fn stop_and_leave(&mut self, leave: Leave, actions: &mut Vec<Action>) {
        match self.phase {
            Phase::Training(_) | Phase::Restoring(_) | Phase::Beside => {
                self.phase = Phase::Ending(leave);
                actions.push(Action::Stop(self.timing.stop_grace));
            }
            Phase::Stopping | Phase::Committing(_) => self.phase = Phase::Ending(leave),
            Phase::Surveying | Phase::Ready(_) | Phase::Armed(_) | Phase::Finished(_) => self.leave(leave, actions),
            Phase::Ending(_) | Phase::Left => {}
        }
    }

    /// The job has finished: the trainer may end by itself, and this agent leaves with 0.
    pub(super) fn on_finish(&mut self, actions: &mut Vec<Action>) {
        let has_trainer = matches!(self.phase, Phase::Training(_) | Phase::Beside);
        let grace = match self.seat.role() {
            Role::Chief | Role::Worker if has_trainer => self.timing.finish_grace,
            Role::Evaluator if has_trainer => self.timing.evaluator_grace,
            _ => Duration::ZERO,
        };
        match self.phase {
            Phase::Training(_) | Phase::Beside | Phase::Restoring(_) | Phase::Stopping | Phase::Committing(_) => {
                self.phase = Phase::Ending(Leave::Finished);
                actions.push(Action::End(grace));
            }
            Phase::Surveying | Phase::Ready(_) | Phase::Armed(_) | Phase::Finished(_) => {
                self.leave(Leave::Finished, actions)
            }
            Phase::Ending(_) | Phase::Left => {}
        }
    }
}
