//! Whole jobs, and the rules that hold in all of them.

mod fetching;
mod gang;
mod gathering;
mod hanging;
mod leaving;
mod model;
mod restarting;
mod signals;

use super::*;
use crate::job::{Flushed, Outcome, StoppedCode, Target};

pub(super) fn secs(s: f64) -> Uptime {
    Duration::from_secs_f64(s)
}

pub(super) fn with_store() -> Policy {
    Policy { checkpoints: true, store: true, max_restarts: 3, ..Policy::default() }
}

pub(super) fn running(policy: Policy) -> Machine {
    let mut machine = Machine::new(policy);
    machine.step(secs(0.0), Event::Started);
    if machine.policy.checkpoints {
        machine.step(secs(0.0), Event::Restored { resume: None, committed: None, older: false, is_further: false });
    }
    machine.step(secs(0.1), Event::Spawned { pids: vec![7] });
    assert_eq!(machine.state, State::Running);
    machine
}

pub(super) fn term() -> Event {
    Event::Signal { signal: Signal::TERM, sender: Some(0) }
}

pub(super) fn ended(code: u8) -> Event {
    Event::MainEnded { local_rank: 0, end: End::Code(code), oom: Some(false) }
}

pub(super) fn outcome(actions: Vec<Action>) -> Outcome {
    match actions.into_iter().next_back() {
        Some(Action::Exit(outcome)) => *outcome,
        other => panic!("no exit but {other:?}"),
    }
}

pub(super) fn leader(signal: Signal) -> Action {
    Action::Signal { target: Target::Leader, signal }
}

pub(super) fn is_term_tree(action: &Action) -> bool {
    matches!(action, Action::SignalTree { .. })
}

/// Feeds events to a machine, all at the same time.
pub(super) fn feed(machine: &mut Machine, now: f64, events: impl IntoIterator<Item = Event>) -> Vec<Action> {
    events.into_iter().flat_map(|event| machine.step(secs(now), event)).collect()
}

#[test]
fn a_simple_job_spawns_runs_drains_and_exits() {
    let mut machine = Machine::new(Policy::default());
    assert_eq!(machine.step(secs(0.0), Event::Started), [Action::Spawn { attempt: 1, generation: None, resume: None }]);
    assert_eq!(machine.step(secs(0.0), Event::Spawned { pids: vec![7] }), []);
    machine.step(secs(5.0), ended(0));
    let end = outcome(machine.step(secs(5.0), Event::TreeEmpty));
    assert_eq!((end.reason, end.exit_code, end.attempts), (Reason::Finished, 0, 1));
}

#[test]
fn a_preempted_job_saves_commits_and_exits_with_143() {
    let mut machine = running(with_store());
    let actions = machine
        .step(secs(60.0), Event::Preempted { id: String::new(), source: "gce preempted".into(), lead: secs(30.0) });
    assert_eq!(
        actions,
        [
            Action::WritePreemptionFile { deadline: secs(85.0) },
            Action::Arm(Timer::Grace, secs(85.0)),
            Action::LookAtTree(Signal::TERM),
            leader(Signal::TERM),
            Action::Arm(Timer::Sweep, secs(60.0)),
            Action::CommitSoon { notice: true }
        ]
    );
    machine.step(secs(63.4), ended(0));
    let flush = machine.step(secs(63.4), Event::TreeEmpty);
    assert_eq!(flush.last(), Some(&Action::Flush { deadline: Some(secs(88.0)), leaving: true, failed: false }));
    let end = outcome(machine.step(secs(65.0), Event::Flushed(Flushed::Done { step: Some(40) })));
    assert_eq!((end.reason, end.exit_code, end.committed_step), (Reason::Preempted, 143, Some(40)));
}

#[test]
fn only_the_preemption_file_of_a_trainer_with_checkpoints_comes_before_the_signal() {
    let actions = running(Policy::default()).step(secs(60.0), term());
    let (announce, arm) = (Action::WritePreemptionFile { deadline: secs(85.0) }, Action::Arm(Timer::Grace, secs(85.0)));
    let (look, sweep) = (Action::LookAtTree(Signal::TERM), Action::Arm(Timer::Sweep, secs(60.0)));
    assert_eq!(actions, [look.clone(), leader(Signal::TERM), sweep.clone(), announce.clone(), arm.clone()]);
    let actions = running(Policy { checkpoints: true, ..Policy::default() }).step(secs(60.0), term());
    assert_eq!(actions, [look, announce, arm, leader(Signal::TERM), sweep]);
}

#[test]
fn an_orphans_death_does_not_end_the_job() {
    let mut machine = running(Policy::default());
    assert_eq!(machine.step(secs(1.0), Event::Reaped { pid: 9, end: End::Code(1) }), []);
    assert_eq!(machine.state, State::Running);
}

#[test]
fn ten_thousand_deaths_while_draining_cause_one_scan() {
    let mut machine = running(Policy::default());
    machine.step(secs(1.0), ended(0));
    let reaped = (0..10_000).map(|pid| Event::Reaped { pid, end: End::Code(0) });
    assert_eq!(feed(&mut machine, 1.0, reaped), [Action::Arm(Timer::Sweep, secs(1.01))]);
}

#[test]
fn the_main_childs_code_is_kept_while_its_tree_is_stopped() {
    let mut machine = running(Policy::default());
    let actions = machine.step(secs(1.0), ended(3));
    assert!(actions.iter().any(is_term_tree) && actions.contains(&Action::Arm(Timer::Grace, secs(26.0))));
    let killed = machine.step(secs(26.0), Event::Due(Timer::Grace));
    assert_eq!(killed[0], Action::KillTree);
    machine.step(secs(26.0), Event::Reaped { pid: 9, end: End::Signal(Signal::KILL) });
    assert_eq!(outcome(machine.step(secs(26.0), Event::TreeEmpty)).exit_code, 3);
}

#[test]
fn a_second_notice_never_extends_the_deadline_and_may_bring_it_forward() {
    let mut machine = running(Policy::default());
    let notice = |lead: f64| Event::Preempted { id: String::new(), source: "x".into(), lead: secs(lead) };
    machine.step(secs(1.0), notice(20.0));
    assert!(!machine.step(secs(2.0), notice(60.0)).iter().any(|a| matches!(a, Action::Arm(..))));
    let sooner = machine.step(secs(3.0), notice(6.0));
    assert!(sooner.contains(&Action::Arm(Timer::Grace, secs(6.0))), "{sooner:?}");
}

#[test]
fn a_notice_and_the_sigterm_after_it_are_one_event_for_the_trainer() {
    let mut machine = running(Policy::default());
    machine.step(secs(1.0), Event::Preempted { id: String::new(), source: "gce".into(), lead: secs(30.0) });
    assert!(!machine.step(secs(2.0), term()).contains(&leader(Signal::TERM)));
    assert_eq!(machine.step(secs(3.0), term()), [leader(Signal::TERM)]);
}

#[test]
fn a_stopped_job_leaves_with_143_whatever_the_child_left_with() {
    for code in [0, 3, 137] {
        let mut machine = running(Policy::default());
        feed(&mut machine, 1.0, [term(), ended(code)]);
        let end = outcome(machine.step(secs(1.0), Event::TreeEmpty));
        assert_eq!((end.reason, end.exit_code), (Reason::Stopped, 143));
    }
    let mut machine = running(Policy { stopped_code: StoppedCode::Child, ..Policy::default() });
    feed(&mut machine, 1.0, [term(), ended(3)]);
    assert_eq!(outcome(machine.step(secs(1.0), Event::TreeEmpty)).exit_code, 3);
}

#[test]
fn a_job_that_ended_before_the_sigterm_keeps_its_own_code() {
    let mut machine = running(Policy::default());
    feed(&mut machine, 1.0, [ended(0), term()]);
    assert_eq!(outcome(machine.step(secs(1.0), Event::TreeEmpty)).exit_code, 0);
}

#[test]
fn a_finished_job_whose_commit_fails_is_204_and_a_failed_one_keeps_its_code() {
    let lost = || Event::Flushed(Flushed::Failed("store away".into()));
    let mut machine = running(with_store());
    feed(&mut machine, 1.0, [ended(0), Event::TreeEmpty]);
    let end = outcome(machine.step(secs(2.0), lost()));
    assert_eq!((end.reason, end.exit_code), (Reason::Store, 204));
    let mut machine = running(Policy { max_restarts: 0, ..with_store() });
    feed(&mut machine, 1.0, [ended(3), Event::TreeEmpty]);
    let end = outcome(machine.step(secs(2.0), lost()));
    assert_eq!((end.reason, end.exit_code), (Reason::Failed, 3));
    assert!(end.detail.contains("store away"), "{}", end.detail);
}

#[test]
fn being_fenced_stops_the_child_commits_nothing_and_leaves_with_205() {
    let mut machine = running(with_store());
    let actions = machine.step(secs(1.0), Event::Fenced { detail: "attempt 3 owns the store".into() });
    assert!(actions.contains(&leader(Signal::TERM)));
    machine.step(secs(2.0), ended(0));
    let end = outcome(machine.step(secs(2.0), Event::TreeEmpty));
    assert_eq!((end.reason, end.exit_code), (Reason::Fenced, 205));
}

#[test]
fn a_process_that_resists_sigkill_is_named_and_left_behind() {
    let mut machine = running(Policy::default());
    feed(&mut machine, 1.0, [term()]);
    machine.step(secs(26.0), Event::Due(Timer::Grace));
    let actions = machine.step(secs(28.0), Event::Due(Timer::Stuck));
    assert!(actions.contains(&Action::NameStuck));
    assert_eq!(outcome(actions).exit_code, 143);
}

#[test]
fn while_the_number_of_processes_falls_after_sigkill_none_is_stuck() {
    let mut machine = running(Policy::default());
    assert_eq!(machine.step(secs(0.5), Event::Left(3)), []);
    feed(&mut machine, 1.0, [term()]);
    machine.step(secs(26.0), Event::Due(Timer::Grace));
    for (at, count) in [(26.5, 15_000), (28.0, 9_000), (29.9, 8_999)] {
        assert_eq!(machine.step(secs(at), Event::Left(count)), [Action::Arm(Timer::Stuck, secs(at + 2.0))]);
    }
    assert_eq!(machine.step(secs(30.0), Event::Left(8_999)), []);
    assert_eq!(machine.step(secs(30.1), Event::Left(9_500)), [], "new ones are no end of the old ones");
    assert!(machine.step(secs(31.9), Event::Due(Timer::Stuck)).contains(&Action::NameStuck));
}

#[test]
fn a_crash_whose_tree_cannot_be_ended_is_not_restarted_and_the_verdict_says_why() {
    for (max_restarts, why) in [(3, "; it is not restarted, because"), (0, "failed with exit code 7")] {
        let mut machine = running(Policy { max_restarts, ..Policy::default() });
        feed(&mut machine, 1.0, [ended(7), Event::Due(Timer::Grace)]);
        let end = outcome(machine.step(secs(28.0), Event::Due(Timer::Stuck)));
        assert_eq!((end.reason, end.exit_code), (Reason::Failed, 7));
        assert_eq!(
            (end.detail.contains(why), end.detail.contains("not restarted")),
            (true, max_restarts > 0),
            "{end:?}"
        );
    }
}

#[test]
fn a_finished_job_keeps_its_code_when_a_straggler_is_stuck_in_the_kernel() {
    let mut machine = running(Policy { max_restarts: 3, ..Policy::default() });
    machine.step(secs(1.0), ended(0));
    machine.step(secs(26.0), Event::Due(Timer::Grace));
    let end = outcome(machine.step(secs(28.0), Event::Due(Timer::Stuck)));
    assert_eq!((end.reason, end.exit_code), (Reason::Finished, 0));
}

#[test]
fn a_failed_gpu_ends_the_job_with_202_after_a_checkpoint() {
    let mut machine = running(with_store());
    let actions = machine.step(secs(1.0), Event::GpuFailed { detail: "GPU-1 fell off the bus".into() });
    assert!(actions.contains(&leader(Signal::TERM)) && actions.contains(&Action::Arm(Timer::Grace, secs(26.0))));
    feed(&mut machine, 2.0, [ended(0), Event::TreeEmpty]);
    assert_eq!(machine.state, State::Flushing);
    let end = outcome(machine.step(secs(3.0), Event::Flushed(Flushed::Done { step: Some(9) })));
    assert_eq!((end.reason, end.exit_code, end.committed_step), (Reason::Gpu, 202, Some(9)));
}

#[test]
fn exit_codes_are_remapped_last() {
    let ending = |events: &[Event]| {
        let mut machine = running(Policy { remap_exit: vec![(143, 0)], ..Policy::default() });
        feed(&mut machine, 1.0, events.iter().cloned());
        outcome(machine.step(secs(1.0), Event::TreeEmpty)).exit_code
    };
    assert_eq!([ending(&[term(), ended(143)]), ending(&[ended(3)])], [0, 3]);
}

#[test]
fn every_exit_code_of_the_child_is_passed_through() {
    for code in 0..=255 {
        let mut machine = running(Policy::default());
        machine.step(secs(1.0), ended(code));
        assert_eq!(outcome(machine.step(secs(1.0), Event::TreeEmpty)).exit_code, code);
    }
}

mod any_job {
    use super::*;
    use proptest::prelude::*;

    fn event() -> impl Strategy<Value = Event> {
        let signal = (1..=64i32).prop_filter_map("a signal", Signal::new);
        prop_oneof![
            Just(Event::Started),
            Just(Event::Restored { resume: None, committed: None, older: false, is_further: false }),
            (0..9u64).prop_map(|s| Event::Restored {
                resume: Some(Resume { from: "/c".into(), step: Some(s) }),
                committed: Some(s),
                older: s > 4,
                is_further: s > 6
            }),
            Just(Event::NotRestored { code: 204, detail: String::new() }),
            Just(Event::Spawned { pids: vec![7] }),
            (any::<u8>(), any::<Option<bool>>()).prop_map(|(c, oom)| Event::MainEnded {
                local_rank: 0,
                end: End::Code(c),
                oom
            }),
            Just(Event::Reaped { pid: 9, end: End::Code(0) }),
            Just(Event::TreeEmpty),
            (signal, proptest::option::of(0..9u32)).prop_map(|(signal, sender)| Event::Signal { signal, sender }),
            (0..900u64).prop_map(|s| Event::Preempted {
                id: (s % 3).to_string(),
                source: "x".into(),
                lead: Duration::from_secs(s)
            }),
            (0..3u64).prop_map(|id| Event::Withdrawn { id: id.to_string(), source: "x".into() }),
            prop_oneof![
                Just(Timer::Grace),
                Just(Timer::Stuck),
                Just(Timer::Sweep),
                Just(Timer::Backoff),
                Just(Timer::FlushLimit),
                Just(Timer::Leave)
            ]
            .prop_map(Event::Due),
            Just(Event::Committed {
                unit: "u".into(),
                step: Some(3),
                took: Duration::from_secs(1),
                lag: Duration::ZERO,
                is_progress: true
            }),
            Just(Event::Transferring),
            Just(Event::Found { committed: Some(7) }),
            Just(Event::Flushed(Flushed::Done { step: None })),
            Just(Event::Flushed(Flushed::OutOfTime(String::new()))),
            Just(Event::Warned { why: String::new() }),
            Just(Event::Fenced { detail: String::new() }),
        ]
    }

    proptest! {
        #[test]
        fn exits_at_most_once_and_no_grace_deadline_moves_later_within_an_attempt(
            events in proptest::collection::vec((event(), 0..2000u64), 1..60),
        ) {
            let mut machine = Machine::new(with_store());
            machine.step(secs(0.0), Event::Started);
            let (mut now, mut exits, mut grace) = (Duration::ZERO, 0, None::<Uptime>);
            for (event, pause) in events.into_iter().filter(|(e, _)| *e != Event::Started) {
                now += Duration::from_millis(pause);
                for action in machine.step(now, event) {
                    match action {
                        Action::Exit(_) => exits += 1,
                        Action::Arm(Timer::Grace, at) => {
                            prop_assert!(grace.is_none_or(|set| at < set));
                            grace = Some(at);
                        }
                        Action::Disarm(Timer::Grace) => grace = None,
                        _ => {}
                    }
                }
            }
            prop_assert!(exits <= 1);
            prop_assert_eq!(exits == 1, *machine.state() == State::Done);
        }
    }
}
