//! The effect of each signal, and its receivers.

use super::*;
use crate::job::{Grace, Target};

#[test]
fn a_second_sigterm_reaches_the_child_but_never_moves_the_deadline() {
    let mut machine = running(Policy::default());
    let first = machine.step(secs(1.0), term());
    assert!(first.contains(&Action::Arm(Timer::Grace, secs(26.0))));
    assert_eq!(machine.step(secs(10.0), term()), [leader(Signal::TERM)]);
}

#[test]
fn in_the_last_third_of_the_grace_the_rest_of_the_tree_gets_sigterm_if_the_main_child_got_it() {
    let third = secs(31.0) - secs(30.0) / 3;
    let stopped = |policy: Policy| {
        let mut machine = running(Policy { stop_grace: secs(30.0), ..policy });
        let stop = machine.step(secs(1.0), term());
        assert!(stop.contains(&Action::Arm(Timer::Sweep, third)), "{stop:?}");
        assert_eq!(machine.step(secs(20.9), Event::Due(Timer::Sweep)), [], "too early");
        machine.step(third, Event::Due(Timer::Sweep))
    };
    let again = Action::Arm(Timer::Sweep, third + TERM_SWEEP);
    let grace = Grace { from: secs(1.0), until: secs(31.0) };
    assert_eq!(stopped(Policy::default()), [Action::TermTree(grace), again]);
    let usr1 = Signal::parse("USR1");
    for policy in [
        Policy { preempt_signal: usr1, ..Policy::default() },
        Policy { preempt_signal: None, ..Policy::default() },
        Policy { signal_target: Target::Group, ..Policy::default() },
    ] {
        assert_eq!(stopped(policy), []);
    }
}

#[test]
fn a_signal_before_exec_is_delivered_after_it() {
    let mut machine = Machine::new(Policy::default());
    machine.step(secs(0.0), Event::Started);
    let usr1 = Signal::parse("USR1").expect("a signal");
    feed(&mut machine, 0.0, [term(), Event::Signal { signal: usr1, sender: Some(1) }]);
    assert_eq!(machine.step(secs(0.1), Event::Spawned { pids: vec![7] }), [leader(Signal::TERM), leader(usr1)]);
}

#[test]
fn a_stop_from_a_terminal_stops_us_too_unless_a_deadline_runs_or_the_command_has_the_terminal() {
    let stop = |signal| Event::Signal { signal, sender: Some(7) };
    for signal in [Signal::TSTP, Signal::TTIN, Signal::TTOU] {
        let mut machine = running(Policy::default());
        let with_it = Action::Suspend { at_once: false };
        assert_eq!(machine.step(secs(1.0), stop(signal)), [leader(signal), with_it]);
        machine.step(secs(2.0), term());
        assert_eq!(machine.step(secs(3.0), stop(signal)), [leader(signal)], "the deadline must be kept");
        let mut machine = running(Policy { child_has_terminal: true, ..Policy::default() });
        assert_eq!(machine.step(secs(1.0), stop(signal)), [leader(signal)]);
        let group = Policy { signal_target: Target::Group, suspend_at_signal: true, ..Policy::default() };
        let sent = |signal| Action::Signal { target: Target::Group, signal };
        let now = || Action::Suspend { at_once: true };
        let mut machine = running(group.clone());
        assert_eq!(machine.step(secs(1.0), stop(signal)), [sent(Signal::STOP), now()]);
        let mut machine = running(Policy { rewrite: vec![(signal, Some(Signal::INT))], ..group });
        assert_eq!(machine.step(secs(1.0), stop(signal)), [sent(Signal::INT), now()]);
    }
}

#[test]
fn a_signal_from_the_kernel_is_passed_on_to_the_command() {
    let policy = Policy { child_has_terminal: true, max_restarts: 1, ..Policy::default() };
    let from_terminal = |signal| Event::Signal { signal, sender: None };
    let mut machine = running(policy);
    for signal in [Signal::HUP, Signal::INT] {
        assert_eq!(machine.step(secs(1.0), from_terminal(signal)), [leader(signal)]);
    }
    feed(&mut machine, 100.0, [ended(3), Event::TreeEmpty]);
    assert_eq!(machine.state, State::Waiting);
    assert_eq!(outcome(machine.step(secs(100.5), from_terminal(Signal::INT))).exit_code, 130);
}

#[test]
fn a_hangup_that_was_ignored_at_the_start_is_passed_on_and_stops_nothing() {
    let hup = || Event::Signal { signal: Signal::HUP, sender: Some(1) };
    let policy = || Policy { max_restarts: 2, outlives_hangup: true, ..Policy::default() };
    let mut machine = Machine::new(policy());
    machine.step(secs(0.0), Event::Started);
    assert_eq!(machine.step(secs(0.1), hup()), [], "and before the start, too");
    let mut machine = running(policy());
    assert_eq!(machine.step(secs(1.0), hup()), [leader(Signal::HUP)]);
    feed(&mut machine, 2.0, [ended(3), hup(), Event::TreeEmpty]);
    assert_eq!(machine.state, State::Waiting, "a crash soon after is a crash");
    assert_eq!(machine.step(secs(2.1), hup()), []);
    let int = Event::Signal { signal: Signal::INT, sender: Some(1) };
    assert_eq!(outcome(machine.step(secs(2.2), int)).exit_code, 130);
    let rewritten = Policy { rewrite: vec![(Signal::HUP, Some(Signal::INT))], ..policy() };
    let mut machine = running(rewritten);
    feed(&mut machine, 1.0, [hup(), ended(3), Event::TreeEmpty]);
    assert_eq!(machine.state, State::Done, "a rewritten signal is meant");
}

#[test]
fn rewritten_signals_are_forwarded_and_dropped_on_zero() {
    let usr1 = Signal::parse("USR1").expect("a signal");
    let policy = Policy { rewrite: vec![(Signal::TERM, Some(Signal::INT)), (usr1, None)], ..Policy::default() };
    let mut machine = running(policy);
    assert_eq!(feed(&mut machine, 1.0, [Event::Signal { signal: usr1, sender: Some(1) }]), []);
    assert!(machine.step(secs(1.0), term()).contains(&leader(Signal::INT)));
}

#[test]
fn a_dropped_sigterm_is_no_stop() {
    let policy = Policy { rewrite: vec![(Signal::TERM, None)], ..Policy::default() };
    let mut machine = running(policy);
    assert_eq!(machine.step(secs(1.0), term()), []);
    assert!(!machine.is_stopping());
}

#[test]
fn a_sigchld_of_the_kernel_is_not_forwarded_and_one_of_a_user_is() {
    let mut machine = running(Policy::default());
    assert_eq!(machine.step(secs(1.0), Event::Signal { signal: Signal::CHLD, sender: None }), []);
    let user = Event::Signal { signal: Signal::CHLD, sender: Some(1) };
    assert_eq!(machine.step(secs(1.0), user), [leader(Signal::CHLD)]);
}
