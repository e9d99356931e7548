//! The main children of an attempt. If there is one, its end is the attempt's end. If there are several, the first
//! failure is the attempt's result and stops the others; a success does not stop the others.

use super::{Machine, State};
use crate::job::event::{Action, Timer, Uptime};
use crate::job::policy::Processes;
use crate::process::exit::End;
use crate::process::signal::Signal;

/// The limit for names in the verdict's sentence.
const MOST_NAMED: usize = 8;

/// The main children of one attempt.
#[derive(Debug, Clone, Default)]
pub(super) struct MainChildren {
    /// The number that has not ended.
    alive: u32,
    /// The local rank of the child whose end is the attempt's result.
    first: u32,
    /// Local ranks that ended after it, in order.
    followers: Vec<(u32, End)>,
}

impl MainChildren {
    /// All main children, alive.
    pub(super) fn of(processes: Processes) -> MainChildren {
        MainChildren { alive: processes.count, ..MainChildren::default() }
    }
}

impl Machine {
    /// The name of a main child, if there are several: `rank 5 (local rank 1)`.
    pub fn main_child_name(&self, local_rank: u32) -> Option<String> {
        let rank = self.rank_of(local_rank)?;
        Some(format!("rank {rank} (local rank {local_rank})"))
    }

    /// The first and the last rank of this process, if there are several.
    pub fn ranks(&self) -> Option<(u32, u32)> {
        Some((self.rank_of(0)?, self.rank_of(self.policy.processes.count - 1)?))
    }

    fn rank_of(&self, local_rank: u32) -> Option<u32> {
        let processes = self.policy.processes;
        (processes.count > 1).then(|| processes.first_rank.saturating_add(local_rank))
    }

    pub(super) fn on_main_ended(&mut self, now: Uptime, local_rank: u32, end: End, oom: Option<bool>) -> Vec<Action> {
        self.note_end(now, local_rank, end, oom);
        // The terminal sends Ctrl-C and Ctrl-\ to the command, not to this process.
        if self.policy.child_has_terminal && matches!(end, End::Signal(Signal::INT | Signal::QUIT) | End::Code(130)) {
            self.attempt.keyboard_signal_at = Some(now);
        }
        match self.state {
            State::Running | State::Launching => {}
            _ => return Vec::new(),
        }
        if self.attempt.main_children.alive > 0 {
            if end == End::Code(0) || self.stopping.stop.is_some() || self.attempt.hung.is_some() {
                return self.sweep_soon(now).into_iter().collect();
            }
            if self.answered_a_request(now) {
                // The others received it too. They have time, but not without limit.
                return self.set_deadline(now, now + self.policy.stop_grace).into_iter().collect();
            }
        }
        let report = self.report_failure().or_else(|| self.report_success());
        report.into_iter().chain(self.drain(now)).collect()
    }

    /// Waits for the rest of the tree, which has until the deadline.
    pub(super) fn drain(&mut self, now: Uptime) -> Vec<Action> {
        self.state = State::Draining;
        let mut actions = Vec::new();
        if self.watchdog.take().is_some() {
            actions.push(Action::Disarm(Timer::SampleLiveness));
        }
        if self.stopping.deadline.is_none() {
            actions.extend(self.set_deadline(now, now + self.rest_grace()));
        }
        if self.stopping.kill_from.is_none() {
            actions.extend(self.signal_tree(now));
        }
        actions
    }

    fn note_end(&mut self, now: Uptime, local_rank: u32, end: End, oom: Option<bool>) {
        self.attempt.main_children.alive = self.attempt.main_children.alive.saturating_sub(1);
        match self.attempt.ended {
            Some((first, _)) if first != End::Code(0) => self.attempt.main_children.followers.push((local_rank, end)),
            _ => {
                self.attempt.ended = Some((end, oom));
                self.attempt.ended_at = now;
                self.attempt.main_children.first = local_rank;
            }
        }
    }

    /// The subject of the verdict's sentence: the child whose end is the attempt's result.
    pub(super) fn subject(&self) -> String {
        self.main_child_name(self.attempt.main_children.first).unwrap_or_else(|| "the command".to_owned())
    }

    /// The rank of that child, if there are several and one failed.
    pub(super) fn failed_rank(&self) -> Option<u32> {
        self.rank_of(self.attempt.main_children.first)
            .filter(|_| self.attempt.ended.is_some_and(|(end, _)| end != End::Code(0)))
    }

    /// The later failures, which are mostly consequences. Ends by TERM and KILL are omitted, because trainit sent them.
    pub(super) fn later_failures(&self) -> String {
        let followers: Vec<String> = self
            .attempt
            .main_children
            .followers
            .iter()
            .filter(|(_, end)| !matches!(end, End::Code(0) | End::Signal(Signal::TERM | Signal::KILL)))
            .map(|(local_rank, end)| format!("rank {}: {end}", self.rank_of(*local_rank).unwrap_or(*local_rank)))
            .collect();
        match followers.len() {
            0 => String::new(),
            n if n > MOST_NAMED => {
                format!("; after it {} and {} others", followers[..MOST_NAMED].join(", "), n - MOST_NAMED)
            }
            _ => format!("; after it {}", followers.join(", ")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{is_term_tree, outcome, secs, term};
    use super::*;
    use crate::job::{Event, Outcome, Policy, Processes, Reason, Timer};
    use proptest::prelude::*;

    fn four() -> Policy {
        Policy { processes: Processes { count: 4, first_rank: 4 }, ..Policy::default() }
    }

    fn running(policy: Policy) -> Machine {
        let mut machine = Machine::new(policy);
        machine.step(secs(0.0), Event::Started);
        machine.step(secs(0.1), Event::Spawned { pids: vec![10, 11, 12, 13] });
        machine
    }

    fn ended(local_rank: u32, end: End) -> Event {
        Event::MainEnded { local_rank, end, oom: Some(false) }
    }

    fn code(local_rank: u32, code: u8) -> Event {
        ended(local_rank, End::Code(code))
    }

    fn over(machine: &mut Machine, now: f64, events: impl IntoIterator<Item = Event>) -> Outcome {
        for event in events {
            machine.step(secs(now), event);
        }
        outcome(machine.step(secs(now), Event::TreeEmpty))
    }

    #[test]
    fn the_job_has_finished_when_the_last_main_child_has() {
        let mut machine = running(four());
        for rank in [2, 0, 1] {
            assert_eq!(machine.step(secs(5.0), code(rank, 0)), [], "{rank}");
        }
        assert_eq!(machine.state(), &State::Running);
        let end = over(&mut machine, 9.0, [code(3, 0)]);
        assert_eq!((end.reason, end.exit_code), (Reason::Finished, 0));
        assert!(end.detail.contains("ranks 4 to 7") && end.rank.is_none(), "{end:?}");
    }

    #[test]
    fn one_failure_stops_the_others_with_one_deadline() {
        let mut machine = running(four());
        machine.step(secs(4.0), code(0, 0));
        let stop = machine.step(secs(5.0), code(2, 7));
        assert!(stop.iter().any(is_term_tree) && stop.contains(&Action::Arm(Timer::Grace, secs(30.0))), "{stop:?}");
        let end = over(&mut machine, 6.0, [code(1, 1), ended(3, End::Signal(Signal::TERM))]);
        assert_eq!((end.reason, end.exit_code, end.rank), (Reason::Failed, 7, Some(6)));
        assert!(end.detail.starts_with("rank 6 (local rank 2) failed with exit code 7; after it rank 5: exit code 1"));
        assert!(!end.detail.contains("TERM"), "{}", end.detail);
    }

    #[test]
    fn the_abort_of_a_survivor_is_not_the_result() {
        let killed = || ended(1, End::Signal(Signal::KILL));
        let mut machine = running(four());
        let abort = Signal::new(6).expect("a signal");
        let end = over(&mut machine, 5.0, [killed(), ended(0, End::Signal(abort)), code(2, 1), code(3, 1)]);
        assert_eq!((end.reason, end.exit_code, end.rank), (Reason::Signalled, 137, Some(5)));
    }

    #[test]
    fn while_being_stopped_each_saves_in_its_own_time() {
        let mut machine = running(four());
        machine.step(secs(5.0), term());
        for (rank, left_with) in [(3, 0), (1, 9), (0, 0)] {
            assert_eq!(machine.step(secs(6.0), code(rank, left_with)), [], "{rank}");
        }
        let end = over(&mut machine, 8.0, [code(2, 0)]);
        assert_eq!((end.reason, end.exit_code, end.child), (Reason::Stopped, 143, Some(End::Code(9))));
    }

    #[test]
    fn an_interrupt_leaves_each_its_time_but_not_for_ever() {
        let mut machine = running(four());
        machine.step(secs(5.0), Event::Signal { signal: Signal::INT, sender: Some(0) });
        assert_eq!(machine.step(secs(6.0), code(0, 130)), [Action::Arm(Timer::Grace, secs(31.0))]);
        assert_eq!(machine.step(secs(7.0), code(1, 130)), []);
        assert!(machine.step(secs(8.0), term()).contains(&Action::WritePreemptionFile { deadline: secs(31.0) }));
        assert!(machine.step(secs(31.0), Event::Due(Timer::Grace)).contains(&Action::KillTree));
    }

    #[test]
    fn a_main_child_that_cannot_be_started_stops_the_others() {
        let mut machine = Machine::new(four());
        machine.step(secs(0.0), Event::Started);
        let failed = Event::NotSpawned { code: 125, detail: "no process".into(), is_transient: true, others: true };
        assert!(machine.step(secs(0.0), failed.clone()).iter().any(is_term_tree));
        assert_eq!(machine.step(secs(0.0), failed), []);
        machine.step(secs(0.1), ended(0, End::Signal(Signal::TERM)));
        let end = outcome(machine.step(secs(0.2), Event::TreeEmpty));
        assert_eq!((end.reason, end.exit_code, end.detail.as_str()), (Reason::NotStarted, 125, "no process"));
    }

    #[test]
    fn all_start_again_together_when_the_tree_is_empty_and_not_before() {
        let mut machine = running(Policy { max_restarts: 1, ..four() });
        machine.step(secs(100.0), code(1, 3));
        for rank in [0, 2, 3] {
            assert_eq!(machine.step(secs(101.0), ended(rank, End::Signal(Signal::TERM))), []);
        }
        machine.step(secs(102.0), Event::TreeEmpty);
        assert_eq!(machine.state(), &State::Waiting);
        let again = machine.step(secs(103.0), Event::Due(Timer::Backoff));
        assert_eq!(again, [Action::Spawn { attempt: 2, generation: None, resume: None }]);
        machine.step(secs(103.1), Event::Spawned { pids: vec![20, 21, 22, 23] });
        let end = over(&mut machine, 110.0, (0..4).map(|rank| code(rank, 0)));
        assert_eq!((end.reason, end.attempts), (Reason::Finished, 2));
    }

    proptest! {
        #[test]
        fn the_first_failure_is_named_for_any_order_of_ends(ends in prop::array::uniform4(0u8..4), order in Just([0u32, 1, 2, 3]).prop_shuffle()) {
            let mut machine = running(four());
            let events = order.map(|rank| code(rank, ends[rank as usize]));
            let end = over(&mut machine, 5.0, events);
            let first = order.into_iter().find(|rank| ends[*rank as usize] != 0);
            prop_assert_eq!(end.exit_code, first.map_or(0, |rank| ends[rank as usize]));
            if let Some(first) = first {
                prop_assert_eq!(end.rank, Some(4 + first));
            }
        }
    }
}
