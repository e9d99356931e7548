//! The effect of each signal, and its receivers.

use super::leaving::{is_signalled, notice};
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
fn the_rest_of_the_tree_is_signalled_from_the_start_of_a_stop_with_the_same_signal() {
    let stopped = |policy: Policy| {
        let mut machine = running(Policy { stop_grace: secs(30.0), ..policy });
        let stop = machine.step(secs(1.0), term());
        (stop, machine.step(secs(1.0), Event::Due(Timer::Sweep)))
    };
    let grace = Grace { from: secs(1.0), until: secs(31.0) };
    let usr1 = Signal::parse("USR1").expect("a signal");
    for (policy, signal) in [
        (Policy::default(), Signal::TERM),
        (Policy { preempt_signal: Some(usr1), ..Policy::default() }, usr1),
        (Policy { rewrite: vec![(Signal::TERM, Some(Signal::INT))], ..Policy::default() }, Signal::INT),
    ] {
        let (stop, next) = stopped(policy);
        let look = stop.iter().position(|action| *action == Action::LookAtTree(signal));
        assert!(look < stop.iter().position(|action| *action == leader(signal)) && look.is_some(), "{stop:?}");
        assert!(stop.contains(&Action::Arm(Timer::Sweep, secs(1.0))), "{stop:?}");
        let again = Action::Arm(Timer::Sweep, secs(1.0) + TERM_SWEEP);
        assert_eq!(next, [Action::SignalTree { grace, signal }, again]);
    }
    for policy in [
        Policy { preempt_signal: None, ..Policy::default() },
        Policy { signal_target: Target::Group, ..Policy::default() },
    ] {
        assert_eq!(stopped(policy).1, []);
    }
}

#[test]
fn the_last_third_and_the_last_tenth_of_a_short_grace_are_not_missed() {
    let mut machine = running(Policy { stop_grace: Duration::from_millis(900), ..Policy::default() });
    machine.step(secs(0.0), term());
    let mut next = |now: f64| match machine.step(secs(now), Event::Due(Timer::Sweep)).as_slice() {
        [Action::SignalTree { .. }, Action::Arm(Timer::Sweep, at)] => *at,
        other => panic!("{other:?}"),
    };
    assert_eq!([next(0.2), next(0.5), next(0.6), next(0.7), next(0.82)], [0.4, 0.6, 0.8, 0.81, 1.02].map(secs));
}

#[test]
fn the_signal_of_a_stop_is_also_that_of_the_rest_after_the_main_child() {
    let usr1 = Signal::parse("USR1").expect("a signal");
    let mut machine = running(Policy { preempt_signal: Some(usr1), ..Policy::default() });
    machine.step(secs(1.0), term());
    let drain = machine.step(secs(2.0), ended(0));
    assert!(
        drain.iter().any(|action| matches!(action, Action::SignalTree { signal, .. } if *signal == usr1)),
        "{drain:?}"
    );
    let mut machine = running(Policy { preempt_signal: Some(usr1), ..Policy::default() });
    let drain = machine.step(secs(2.0), ended(0));
    let is_term = |action: &Action| matches!(action, Action::SignalTree { signal: Signal::TERM, .. });
    assert!(drain.iter().any(is_term), "nothing was stopped, so what is left gets SIGTERM: {drain:?}");
}

#[test]
fn during_a_stop_each_death_leads_to_a_new_look_at_the_tree_while_main_children_live() {
    let mut machine = running(Policy::default());
    let reaped = || Event::Reaped { pid: 9, end: End::Code(0) };
    assert_eq!(machine.step(secs(0.5), reaped()), []);
    machine.step(secs(1.0), term());
    machine.step(secs(1.0), Event::Due(Timer::Sweep));
    assert_eq!(machine.step(secs(1.1), reaped()), [Action::Arm(Timer::Sweep, secs(1.1) + NEXT_SWEEP)]);
}

#[test]
fn a_signal_before_exec_is_delivered_after_it() {
    let mut machine = Machine::new(Policy::default());
    machine.step(secs(0.0), Event::Started);
    let usr1 = Signal::parse("USR1").expect("a signal");
    feed(&mut machine, 0.0, [term(), Event::Signal { signal: usr1, sender: Some(1) }]);
    let sweep = Action::Arm(Timer::Sweep, secs(0.1) + NEXT_SWEEP);
    assert_eq!(machine.step(secs(0.1), Event::Spawned { pids: vec![7] }), [leader(Signal::TERM), leader(usr1), sweep]);
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
        let group = Policy { signal_target: Target::Group, ..Policy::default() };
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
fn a_signal_that_was_ignored_at_the_start_is_not_passed_on_and_stops_nothing() {
    let hup = || Event::Signal { signal: Signal::HUP, sender: Some(1) };
    let policy = || Policy { max_restarts: 2, ignored: vec![Signal::HUP, Signal::TERM], ..Policy::default() };
    let mut machine = Machine::new(policy());
    machine.step(secs(0.0), Event::Started);
    assert_eq!(machine.step(secs(0.1), hup()), [], "and before the start, too");
    let mut machine = running(policy());
    assert_eq!(machine.step(secs(1.0), hup()), []);
    feed(&mut machine, 2.0, [ended(3), hup(), Event::TreeEmpty]);
    assert_eq!(machine.state, State::Waiting, "a crash soon after is a crash");
    assert_eq!(machine.step(secs(2.1), hup()), []);
    let int = Event::Signal { signal: Signal::INT, sender: Some(1) };
    assert_eq!(outcome(machine.step(secs(2.2), int)).exit_code, 130);
    let rewritten = Policy { rewrite: vec![(Signal::HUP, Some(Signal::INT))], ..policy() };
    let mut machine = running(rewritten);
    feed(&mut machine, 1.0, [hup(), ended(3), Event::TreeEmpty]);
    assert_eq!(machine.state, State::Done, "a rewritten signal is meant");
    let mut machine = running(policy());
    assert!(machine.step(secs(1.0), term()).contains(&leader(Signal::TERM)), "a stop is always meant");
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

#[test]
fn a_sigterm_while_a_crash_drains_prevents_a_restart_and_still_commits() {
    let mut machine = running(with_store());
    feed(&mut machine, 1.0, [ended(1), term()]);
    let flush = machine.step(secs(2.0), Event::TreeEmpty);
    assert_eq!(flush.last(), Some(&Action::Flush { deadline: None, leaving: true, failed: false }));
    let end = outcome(machine.step(secs(3.0), Event::Flushed(Flushed::Done { step: Some(7) })));
    assert_eq!((end.reason, end.exit_code, end.attempts), (Reason::Stopped, 143, 1));
}

#[test]
fn ctrl_c_while_a_crash_drains_prevents_a_restart_and_keeps_the_code() {
    let mut machine = running(Policy { max_restarts: 3, ..Policy::default() });
    feed(&mut machine, 1.0, [ended(3), Event::Signal { signal: Signal::INT, sender: Some(0) }]);
    let end = outcome(machine.step(secs(2.0), Event::TreeEmpty));
    assert_eq!((end.reason, end.exit_code), (Reason::Failed, 3));
    assert!(end.detail.contains("SIGINT arrived"), "{}", end.detail);
}

#[test]
fn another_signal_between_two_attempts_does_not_kill_the_next_one() {
    let mut machine = running(Policy { max_restarts: 3, ..Policy::default() });
    let usr1 = || Event::Signal { signal: Signal::USR1, sender: Some(1) };
    feed(&mut machine, 1.0, [ended(1), usr1(), Event::TreeEmpty, usr1()]);
    machine.step(secs(2.0), Event::Due(Timer::Backoff));
    feed(&mut machine, 2.0, [usr1()]);
    assert_eq!(machine.step(secs(2.0), Event::Spawned { pids: vec![8] }), [leader(Signal::USR1)], "the last of three");
}

#[test]
fn a_signal_can_announce_the_end_and_is_then_a_notice() {
    let usr1 = Signal::USR1;
    let mut machine = running(Policy { preempt_on: vec![(usr1, secs(120.0))], ..with_store() });
    let usr2 = machine.step(secs(0.5), Event::Signal { signal: Signal::USR2, sender: Some(1) });
    assert_eq!(usr2, [leader(Signal::USR2)], "any other signal is passed on");
    let actions = machine.step(secs(1.0), Event::Signal { signal: usr1, sender: Some(1) });
    assert!(is_signalled(&actions) && actions.contains(&Action::Arm(Timer::Grace, secs(101.0))), "{actions:?}");
    feed(&mut machine, 2.0, [ended(0), Event::TreeEmpty]);
    let end = outcome(machine.step(secs(2.0), Event::Flushed(Flushed::Done { step: None })));
    assert_eq!((end.reason, end.exit_code), (Reason::Preempted, 143));
    assert!(end.detail.contains("SIGUSR1"), "{}", end.detail);
}

#[test]
fn a_crash_after_a_signal_that_does_not_ask_to_leave_is_restarted() {
    for is_held in [false, true] {
        let mut machine = Machine::new(Policy { max_restarts: 1, ..Policy::default() });
        machine.step(secs(0.0), Event::Started);
        let (usr1, spawned) =
            (Event::Signal { signal: Signal::USR1, sender: Some(1) }, Event::Spawned { pids: vec![7] });
        feed(&mut machine, 0.1, if is_held { [usr1, spawned] } else { [spawned, usr1] });
        feed(&mut machine, 1.0, [ended(1), Event::TreeEmpty]);
        assert_eq!(machine.state, State::Waiting, "held before the start: {is_held}");
    }
}

#[test]
fn a_command_that_dies_of_ctrl_c_in_its_own_terminal_is_not_restarted() {
    for (child_has_terminal, state) in [(true, State::Done), (false, State::Waiting)] {
        let mut machine = running(Policy { max_restarts: 1, child_has_terminal, ..Policy::default() });
        let killed = Event::MainEnded { local_rank: 0, end: End::Signal(Signal::INT), oom: Some(false) };
        feed(&mut machine, 1.0, [killed, Event::TreeEmpty]);
        assert_eq!(machine.state, state);
    }
}

#[test]
fn a_signal_for_a_checkpoint_is_passed_on_as_well() {
    let mut machine = running(Policy { checkpoint_on: vec![Signal::USR1], ..with_store() });
    let actions = machine.step(secs(1.0), Event::Signal { signal: Signal::USR1, sender: Some(1) });
    assert_eq!(actions, [leader(Signal::USR1), Action::CommitSoon { notice: false }]);
    let other = machine.step(secs(2.0), Event::Signal { signal: Signal::USR2, sender: Some(1) });
    assert_eq!(other, [leader(Signal::USR2)]);
}

#[test]
fn the_sigterm_that_follows_a_stop_is_not_sent_to_the_trainer_twice() {
    let gpu = Event::GpuFailed { detail: "GPU-1 fell off the bus".into() };
    let fenced = Event::Fenced { detail: "attempt 3 owns the store".into() };
    for stop in [notice(30.0), gpu, fenced] {
        let mut machine = running(with_store());
        assert!(is_signalled(&machine.step(secs(1.0), stop.clone())), "{stop:?}");
        machine.step(secs(1.5), stop.clone());
        assert!(
            !is_signalled(&machine.step(secs(2.0), term())),
            "{stop:?}: many trainers would not save after a second one"
        );
        assert!(is_signalled(&machine.step(secs(3.0), term())), "{stop:?}: this one is passed on");
    }
}

#[test]
fn a_signal_that_is_rewritten_to_sigterm_stops_the_job_as_sigterm_does() {
    let policy = Policy { rewrite: vec![(Signal::INT, Some(Signal::TERM))], max_restarts: 3, ..Policy::default() };
    let int = || Event::Signal { signal: Signal::INT, sender: Some(7) };
    let mut machine = running(policy.clone());
    assert!(machine.step(secs(1.0), int()).contains(&leader(Signal::TERM)));
    assert!(machine.is_stopping(), "the grace has started");
    feed(&mut machine, 2.0, [ended(0)]);
    assert_eq!(
        outcome(machine.step(secs(2.0), Event::TreeEmpty)).exit_code,
        143,
        "a trainer that saved has not finished"
    );
    let mut machine = running(policy);
    feed(&mut machine, 1.0, [ended(3), Event::TreeEmpty]);
    assert_eq!(machine.state, State::Waiting);
    assert_eq!(outcome(machine.step(secs(1.1), int())).exit_code, 143);
}

#[test]
fn ctrl_c_in_the_scan_or_the_pause_before_a_restart_still_commits() {
    let int = || Event::Signal { signal: Signal::INT, sender: Some(1) };
    let found = Event::Restored { resume: None, committed: Some(3), older: false, is_further: false };
    for is_found in [false, true] {
        let mut machine = running(Policy { max_restarts: 3, ..with_store() });
        feed(&mut machine, 100.0, [ended(9), Event::TreeEmpty]);
        feed(&mut machine, 101.0, is_found.then(|| found.clone()));
        assert_eq!(machine.state(), if is_found { &State::Waiting } else { &State::Refreshing });
        let flush = machine.step(secs(102.0), int());
        assert!(matches!(flush[..], [_, Action::Flush { leaving: true, failed: true, .. }]), "{flush:?}");
        let end = outcome(machine.step(secs(103.0), Event::Flushed(Flushed::Done { step: Some(4) })));
        assert_eq!((end.reason, end.exit_code, end.committed_step), (Reason::Signalled, 130, Some(4)));
        assert_eq!(
            (end.child, end.detail.as_str()),
            (Some(End::Code(9)), "SIGINT arrived while no attempt was running")
        );
    }
    let mut machine = running(Policy { max_restarts: 3, ..with_store() });
    feed(&mut machine, 100.0, [ended(9), Event::TreeEmpty, int()]);
    let end = outcome(machine.step(secs(101.0), int()));
    assert_eq!((end.reason, end.exit_code), (Reason::Signalled, 130));
    assert!(end.detail.contains("the last commit was interrupted by SIGINT"), "{}", end.detail);
}
