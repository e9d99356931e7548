//! Agents that do not get a seat: their settings contradict the leader's, or another agent has their seat.

use std::time::Duration;

use super::super::message::{Hello, ToMember, bounded_text};
use super::super::settings::PERMANENT;
use super::{Action, Leader, Link, Phase};
use crate::cluster::seat::Seat;

/// An agent that has not asked again for this time is gone. Agents ask every two seconds.
const GONE_AFTER: Duration = Duration::from_secs(10);
/// A replaced agent may take this long to end, so that two agents for one seat are usual.
const USUAL: Duration = Duration::from_secs(10);

/// The refusal of one agent.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Refusal {
    contradicts: bool,
    why: String,
    since: Duration,
    last: Duration,
    is_logged: bool,
}

impl Leader {
    /// Refuses an agent whose settings contradict the leader's. Returns whether they do.
    pub(super) fn contradicts(&mut self, now: Duration, link: Link, hello: &Hello, actions: &mut Vec<Action>) -> bool {
        let (seat, host) = (hello.seat, bounded_text(&hello.host));
        let settings = hello.settings.as_ref().filter(|_| seat.is_required());
        let contradiction = settings.and_then(|settings| self.config.settings.contradiction(settings));
        let unknown = || {
            let seats = &self.config.settings.seats;
            let is_unknown = !self.config.roster.contains(&seat);
            is_unknown
                .then(|| format!("this job has the seats {seats}: give all replicas the same number of nodes (NNODES)"))
        };
        let Some(what) = contradiction.or_else(unknown) else {
            if let Some(other) = settings.and_then(|settings| self.config.settings.other_version(settings))
                && !self.holders.contains_key(&seat)
            {
                actions.push(Action::Log(format!("{seat} on {host}: {other}")));
            }
            return false;
        };
        let why = format!("{seat} on {host} cannot join the gang: {what}");
        self.refuse(now, link, hello, why, Duration::ZERO, actions);
        true
    }

    /// Refuses an agent whose seat another agent has.
    pub(super) fn refuse_taken_seat(
        &mut self,
        now: Duration,
        link: Link,
        hello: &Hello,
        holder: &str,
        actions: &mut Vec<Action>,
    ) {
        let (seat, host) = (hello.seat, bounded_text(&hello.host));
        let why = format!(
            "the seat {seat} is taken by an agent on {holder}, and an agent on {host} asks for it, too: give each replica a \
             rank of its own, or end the one that was replaced"
        );
        self.refuse(now, link, hello, why, USUAL, actions);
    }

    fn refuse(
        &mut self,
        now: Duration,
        link: Link,
        hello: &Hello,
        why: String,
        log_after: Duration,
        actions: &mut Vec<Action>,
    ) {
        let contradicts = log_after.is_zero();
        let before =
            self.refusals.remove(&hello.seat).filter(|before| before.why == why && now < before.last + GONE_AFTER);
        let (since, was_logged) = before.as_ref().map_or((now, false), |before| (before.since, before.is_logged));
        let is_logged = now >= since + log_after;
        if is_logged && !was_logged {
            actions.push(Action::Warn(why.clone()));
        }
        let message = match &self.final_message {
            Some(message) if self.phase == Phase::GivenUp => message.clone(),
            _ => ToMember::Refused { why: why.clone(), contradicts },
        };
        actions.extend([Action::Send(link, message), Action::Close(link)]);
        let refusal = Refusal { contradicts, why, since, last: now, is_logged };
        self.refusals.insert(hello.seat, refusal);
    }

    /// Whether no generation may start, because an agent's settings contradict the leader's. After a time the gang gives up.
    /// Two agents for one seat are no contradiction: the platform may have started all replicas again.
    pub(super) fn is_contradicted(&mut self, now: Duration, actions: &mut Vec<Action>) -> bool {
        // Later, an agent that does not belong to the gang may not end it.
        let is_first = self.record.generation == 0;
        self.refusals.retain(|_, refusal| now < refusal.last + GONE_AFTER);
        let matters = |(seat, refusal): &(&Seat, &Refusal)| {
            refusal.contradicts && (is_first || self.config.roster.contains(seat) && !self.holders.contains_key(seat))
        };
        let Some((_, refusal)) = self.refusals.iter().find(matters) else { return false };
        if now >= refusal.since + PERMANENT {
            let (why, first) = (refusal.why.clone(), self.record.first.clone());
            let why = format!("{why}; this has not changed for {} s", PERMANENT.as_secs());
            self.give_up_with(
                now,
                ToMember::GiveUp { why, no_common_step: false, contradiction: true, first },
                actions,
            );
        } else {
            self.report_waiting(now, actions);
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::super::super::Incarnation;
    use super::super::super::agreement::Mode;
    use super::super::super::beat::Beat;
    use super::super::super::message::ToLeader;
    use super::super::super::settings::Settings;
    use super::super::Event;
    use super::super::tests::{hello, leader, offers, receive, seat, sent, starts, step, training};
    use super::*;

    fn settings(nodes: u64, mode: Mode) -> Option<Box<Settings>> {
        Some(Box::new(Settings::new("1", &(0..nodes).map(seat).collect::<BTreeSet<_>>(), mode)))
    }

    fn with(number: u64, settings: Option<Box<Settings>>) -> ToLeader {
        ToLeader::Hello(Hello { settings, ..hello(number) })
    }

    fn warnings(actions: &[Action]) -> Vec<&str> {
        actions
            .iter()
            .filter_map(|action| if let Action::Warn(line) = action { Some(&line[..]) } else { None })
            .collect()
    }

    fn contradiction(actions: &[Action], link: Link) -> Option<String> {
        sent(actions, link).into_iter().find_map(|message| match message {
            ToMember::GiveUp { why, contradiction: true, .. } => Some(why.clone()),
            _ => None,
        })
    }

    #[test]
    fn a_member_that_counts_other_nodes_is_refused_with_both_values_and_after_a_minute_all_leave() {
        let mut leader = leader(|_| {});
        receive(&mut leader, 0, 0, with(0, settings(2, Mode::Each)));
        offers(&mut leader, 0, 0, 0, &[]);
        let actions = receive(&mut leader, 1, 1, with(1, settings(3, Mode::Each)));
        let [line] = warnings(&actions)[..] else { panic!("{actions:?}") };
        assert!(line.contains("worker/0 on host-1") && line.contains("3 nodes, and the leader 2"), "{line}");
        assert!(matches!(sent(&actions, 1)[..], [ToMember::Refused { contradicts: true, .. }]), "{actions:?}");
        for ms in (2_000..60_000).step_by(2_000) {
            let actions = receive(&mut leader, ms, 1, with(1, settings(3, Mode::Each)));
            assert!(warnings(&actions).is_empty() && contradiction(&actions, 1).is_none(), "{actions:?}");
        }
        step(&mut leader, 60_001, Event::Tick);
        let actions = receive(&mut leader, 60_002, 1, with(1, settings(3, Mode::Each)));
        assert!(contradiction(&actions, 1).is_some(), "{actions:?}");
    }

    #[test]
    fn a_replica_of_another_size_prevents_the_first_start_and_does_not_end_a_running_gang() {
        let mut first = leader(|_| {});
        receive(&mut first, 0, 5, with(2, settings(3, Mode::Each)));
        for number in [0, 1] {
            receive(&mut first, 1, number, with(number, settings(2, Mode::Each)));
        }
        offers(&mut first, 2, 0, 0, &[]);
        assert!(!starts(&offers(&mut first, 3, 1, 0, &[])));
        assert!(starts(&step(&mut first, 11_000, Event::Tick)), "the other replica is gone");
        let mut running = training();
        for ms in (1_000..100_000).step_by(1_000) {
            for number in [0, 1] {
                let beat = ToLeader::Beat(Beat::default());
                receive(&mut running, ms, number, beat);
            }
            receive(&mut running, ms, 5, with(2, settings(3, Mode::Each)));
        }
        assert_eq!(running.state(), "training");
    }

    #[test]
    fn two_agents_for_one_seat_are_named_on_both_sides_if_that_lasts() {
        let mut leader = leader(|_| {});
        let beat = || ToLeader::Beat(Beat::default());
        receive(&mut leader, 0, 1, with(1, None));
        let second = || ToLeader::Hello(Hello { incarnation: Incarnation(50), host: "other".to_owned(), ..hello(1) });
        let mut lines = Vec::new();
        for ms in (1_000..70_000).step_by(1_000) {
            receive(&mut leader, ms, 1, beat());
            let actions = receive(&mut leader, ms, 7, second());
            assert!(matches!(sent(&actions, 7)[..], [ToMember::Refused { contradicts: false, .. }]), "{actions:?}");
            lines.extend(warnings(&actions).into_iter().map(|line| (ms, line.to_owned())));
        }
        let [(11_000, line)] = &lines[..] else { panic!("{lines:?}") };
        assert!(line.contains("worker/0 is taken by an agent on host-1, and an agent on other"), "{line}");
    }
}
