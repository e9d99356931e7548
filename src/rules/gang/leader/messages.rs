//! The leader's reactions to the messages of members.

use std::time::Duration;

use super::super::ENDING;
use super::super::agreement::Mode;
use super::super::beat::{Beat, Departure};
use super::super::first_failure::FailureReport;
use super::super::message::{Class, Failure, MOST_REMEMBERED, MOST_STEPS, ToLeader, ToMember, bounded_text};
use super::{Action, Leader, Link, MARGIN, MOST_FAILED_RESTORES, Phase, State};

impl Leader {
    pub(super) fn on_message(&mut self, now: Duration, link: Link, message: ToLeader, actions: &mut Vec<Action>) {
        let (generation, phase, chief) = (self.generation, self.phase, self.chief());
        // None for a link that was replaced or never had a seat.
        let Some((seat, holder)) = self.holder_of(link) else { return };
        holder.last_received = now;
        match message {
            ToLeader::Hello(_) => {}
            ToLeader::Beat(Beat {
                clock,
                step,
                restoring,
                committed,
                succeeded,
                commits,
                ends,
                has_own,
                save_step,
                leaves,
            }) => {
                if step != holder.step || holder.restoring != restoring {
                    holder.progressed = now;
                }
                (holder.step, holder.restoring, holder.commits) = (step, restoring, commits);
                holder.leaves = leaves.map(Departure::bounded);
                let ends_now = ends && !std::mem::replace(&mut holder.ends, ends);
                if succeeded == Some(generation) {
                    holder.succeeded.get_or_insert(now);
                }
                let new: Vec<u64> = committed.into_iter().take(MOST_STEPS).collect();
                let new: Vec<u64> = new.into_iter().filter(|step| holder.committed.insert(*step)).collect();
                while holder.committed.len() > MOST_REMEMBERED {
                    holder.committed.pop_first();
                }
                self.record.each_has_own |=
                    has_own && seat.trains() && Some(seat) != chief && self.config.mode == Mode::Auto;
                if let Some(at) = self.name_at.as_mut().filter(|_| ends_now) {
                    *at = now + ENDING + MARGIN;
                }
                let (mut save_at, mut missing) = (None, Vec::new());
                match phase {
                    Phase::Training => {
                        step.into_iter().for_each(|step| self.speed.note(now, step));
                        self.save_step = self.save_step.max(save_step);
                        save_at = self.speed.save_at(now, self.config.timing.beat);
                    }
                    Phase::Collecting | Phase::Arming => missing = self.recently_missing(now),
                    Phase::Concluding
                    | Phase::Ending
                    | Phase::GivenUp
                    | Phase::Parting
                    | Phase::Yielded
                    | Phase::Done => {}
                }
                actions.push(Action::Send(link, ToMember::Echo { clock, save_at, save_step: self.save_step, missing }));
                if !new.is_empty() {
                    self.keep(&new, actions);
                }
                if succeeded == Some(generation) && Some(seat) == chief {
                    self.conclude(now);
                }
            }
            ToLeader::Offer { after, offer } => {
                // An offer from before the last agreement does not prove an empty tree.
                if after < holder.agreed {
                    return;
                }
                let was_active = holder.is_active();
                (holder.state, holder.offered) = (State::Offered(offer), now);
                // A member that offers after the agreement has missed it: its connection was lost, or it is another agent.
                if (was_active && phase != Phase::Concluding) || phase == Phase::Arming {
                    self.halt(now, false, actions);
                }
            }
            ToLeader::Armed { generation: of } if of == generation => match holder.state {
                State::Restoring => {
                    holder.state = State::Armed;
                    // With a shared directory, the other members restore after the chief.
                    if Some(seat) == chief {
                        self.send_agreement(|_| true, actions);
                    }
                }
                // The start was lost with the member's connection.
                State::Training if phase == Phase::Training => {
                    actions.push(Action::Send(link, ToMember::Go { generation, record: self.record.clone() }))
                }
                _ => {}
            },
            ToLeader::Armed { .. } => {}
            ToLeader::CannotRestore { generation: of, why } => {
                if of == generation && phase == Phase::Arming {
                    holder.state = State::Stopping;
                    // The member does not offer that step again.
                    self.failed_restores += 1;
                    if self.failed_restores < MOST_FAILED_RESTORES {
                        return self.halt(now, false, actions);
                    }
                    let why = format!("{seat} cannot restore the agreed step: {}", bounded_text(&why));
                    self.give_up(now, why, true, actions);
                }
            }
            ToLeader::Failed { generation: of, age, failure, is_early } => {
                if of == generation && phase == Phase::Concluding {
                    holder.state = State::Stopping;
                    actions.push(Action::Log(format!(
                        "the failure of {seat} on {} halts nobody, because the chief's trainer has ended with 0: {}",
                        holder.host,
                        failure.bounded().detail
                    )));
                } else if of == generation && matches!(phase, Phase::Training | Phase::Collecting | Phase::Arming) {
                    holder.state = State::Stopping;
                    let mut failure = failure;
                    if holder.notice.is_some() {
                        failure.class = Class::Preempted;
                    }
                    let report = FailureReport::new(now, age, seat, &holder.host, failure);
                    self.on_failure(now, FailureReport { is_early, ..report }, actions);
                }
            }
            ToLeader::Tree { generation: of, tree } => {
                if of == generation && phase == Phase::Training {
                    holder.tree = Some(tree.bounded());
                    if let Some(inquiry) = &mut self.inquiry {
                        inquiry.awaited.remove(&seat);
                    }
                }
            }
            ToLeader::Finished { generation: of } => {
                // The chief's end is the end of the job, even if its agent was lost before it could report it.
                let is_chief = Some(seat) == chief;
                match phase {
                    Phase::Training | Phase::Collecting | Phase::Concluding if of == generation && is_chief => {
                        self.end(now, actions);
                    }
                    Phase::Training | Phase::Concluding if of == generation => holder.state = State::Finished,
                    Phase::Collecting | Phase::Arming | Phase::Training | Phase::Concluding => {
                        actions.push(Action::Send(link, ToMember::Halt { generation, hung: false }));
                    }
                    Phase::Ending | Phase::GivenUp | Phase::Parting | Phase::Yielded | Phase::Done => {}
                }
            }
            ToLeader::Notice { lead, save_at } => {
                holder.notice = Some(now + Duration::from_millis(lead));
                let failure = Failure::new(Class::Preempted, holder.step, "a notice announced the end of its machine");
                let report = FailureReport::new(now, 0, seat, &holder.host, failure);
                self.on_notice(now, seat, (lead, save_at), report, actions);
            }
            ToLeader::Leaving => {
                self.on_leaving(now, seat, actions);
                actions.push(Action::Close(link));
            }
        }
    }
}
