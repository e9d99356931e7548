//! Attempts after a crash.

use super::*;

#[test]
fn a_crash_is_restarted_from_the_newest_checkpoint_after_a_pause() {
    let mut machine = running(with_store());
    machine.step(secs(100.0), ended(1));
    assert_eq!(machine.step(secs(100.0), Event::TreeEmpty).last(), Some(&Action::Refresh));
    let resume = Some(Resume { from: "/ck/5".into(), step: Some(5) });
    let wait = machine.step(
        secs(101.0),
        Event::Restored { resume: resume.clone(), committed: Some(5), older: false, is_further: false },
    );
    assert_eq!(wait, [Action::Arm(Timer::Backoff, secs(102.0))]);
    assert_eq!(
        machine.step(secs(102.0), Event::Due(Timer::Backoff)),
        [Action::Spawn { attempt: 2, generation: None, resume }]
    );
}

#[test]
fn a_commit_with_new_content_and_no_step_keeps_the_budget_full() {
    let mut machine = running(Policy { max_restarts: 1, ..with_store() });
    for attempt in 1..9u32 {
        let now = f64::from(attempt) * 1000.0;
        feed(&mut machine, now, [ended(1), Event::TreeEmpty]);
        let resume = Some(Resume { from: "/ck/last.ckpt".into(), step: None });
        machine.step(secs(now), Event::Restored { resume, committed: None, older: false, is_further: true });
        assert_eq!(machine.state, State::Waiting, "{attempt}");
        feed(&mut machine, now, [Event::Due(Timer::Backoff), Event::Spawned { pids: vec![7] }]);
    }
}

#[test]
fn a_restart_waits_until_the_old_tree_is_empty() {
    let mut machine = running(Policy { max_restarts: 1, ..Policy::default() });
    let actions = machine.step(secs(1.0), ended(1));
    assert!(!actions.iter().any(|a| matches!(a, Action::Spawn { .. } | Action::Arm(Timer::Backoff, _))));
    let actions = machine.step(secs(9.0), Event::TreeEmpty);
    assert!(actions.contains(&Action::Arm(Timer::Backoff, secs(10.0))), "{actions:?}");
}

#[test]
fn sigterm_during_the_pause_ends_at_once() {
    let mut machine = running(Policy { max_restarts: 1, ..Policy::default() });
    feed(&mut machine, 1.0, [ended(1), Event::TreeEmpty]);
    assert_eq!(machine.state, State::Waiting);
    let end = outcome(machine.step(secs(1.5), term()));
    assert_eq!((end.reason, end.exit_code), (Reason::Stopped, 143));
}

#[test]
fn sigterm_before_the_first_attempt_starts_nothing() {
    let mut machine = Machine::new(with_store());
    machine.step(secs(0.0), Event::Started);
    let end = outcome(machine.step(secs(0.5), term()));
    assert_eq!((end.reason, end.exit_code, end.attempts), (Reason::Stopped, 143, 0));
}

#[test]
fn a_death_that_answers_ctrl_c_is_not_restarted() {
    let mut machine = running(Policy { max_restarts: 3, ..Policy::default() });
    feed(&mut machine, 1.0, [Event::Signal { signal: Signal::INT, sender: Some(0) }]);
    machine.step(secs(1.0), Event::MainEnded { local_rank: 0, end: End::Signal(Signal::INT), oom: Some(false) });
    let end = outcome(machine.step(secs(1.0), Event::TreeEmpty));
    assert_eq!((end.reason, end.exit_code, end.attempts), (Reason::Signalled, 130, 1));
}
