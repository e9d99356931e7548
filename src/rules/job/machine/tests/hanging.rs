//! Trainers that hang.

use super::*;
use crate::job::LivenessSample;

fn watched(max_restarts: u32) -> Policy {
    Policy { hang_timeout: Some(secs(80.0)), max_restarts, ..Policy::default() }
}

const SILENT: LivenessSample =
    LivenessSample { beat: false, step: None, output: false, moved: false, worked: false, spun: false, stopped: false };

/// Answers the samples until there is another action.
pub(super) fn silence(machine: &mut Machine, mut now: f64) -> (f64, Vec<Action>) {
    loop {
        now += 10.0;
        assert_eq!(machine.step(secs(now), Event::Due(Timer::SampleLiveness)), [Action::SampleLiveness]);
        let actions = machine.step(secs(now), Event::LivenessSampled(SILENT));
        if !matches!(actions[..], [Action::Arm(Timer::SampleLiveness, _)]) {
            return (now, actions);
        }
        assert!(now < 10_000.0);
    }
}

#[test]
fn no_samples_are_taken_without_a_hang_timeout() {
    let mut machine = Machine::new(Policy::default());
    machine.step(secs(0.0), Event::Started);
    assert_eq!(machine.step(secs(0.0), Event::Spawned { pids: vec![7] }), []);
}

#[test]
fn a_hung_trainer_is_dumped_aborted_and_in_the_end_killed_and_the_job_leaves_with_201() {
    let mut machine = running(watched(0));
    let (now, actions) = silence(&mut machine, 0.1);
    assert!(now >= 240.0, "{now}");
    assert_eq!(actions, [Action::DumpStacks, Action::AbortTree, Action::Arm(Timer::Grace, secs(now + 10.0))]);
    assert_eq!(machine.step(secs(now + 10.0), Event::Due(Timer::Grace))[0], Action::KillTree);
    let killed = Event::MainEnded { local_rank: 0, end: End::Signal(Signal::KILL), oom: Some(false) };
    let end = outcome(feed(&mut machine, now + 10.1, [killed, Event::TreeEmpty]));
    assert_eq!((end.reason, end.exit_code), (Reason::Hung, 201));
    assert!(end.detail.contains("no sign of life"), "{}", end.detail);
}

#[test]
fn before_sigabrt_the_flight_recorder_has_its_time_and_a_signal_to_end_the_job_needs_none() {
    let asks = || Policy { asks_for_dumps: true, ..watched(0) };
    let mut machine = running(asks());
    let (now, actions) = silence(&mut machine, 0.1);
    let abort = Action::Arm(Timer::Abort, secs(now + 5.0));
    assert_eq!(actions, [Action::DumpStacks, Action::AskForDumps, abort, Action::Arm(Timer::Grace, secs(now + 15.0))]);
    assert_eq!(machine.step(secs(now + 5.0), Event::Due(Timer::Abort)), [Action::AbortTree]);
    let mut stopped = running(asks());
    let (now, _) = silence(&mut stopped, 0.1);
    stopped.step(secs(now + 1.0), term());
    assert_eq!(stopped.step(secs(now + 5.0), Event::Due(Timer::Abort)), []);
}

#[test]
fn a_hang_is_reported_as_leaving_only_if_no_attempt_follows() {
    let mut last = running(watched(0));
    silence(&mut last, 0.1);
    assert!(last.snapshot().leaving.is_some_and(|why| why.starts_with("the command hung: ")));
    let mut machine = running(watched(1));
    let (now, _) = silence(&mut machine, 0.1);
    assert_eq!(machine.snapshot().leaving, None);
    let aborted = || Event::MainEnded { local_rank: 0, end: End::Signal(Signal::ABRT), oom: Some(false) };
    feed(&mut machine, now, [aborted(), Event::TreeEmpty]);
    assert_eq!((machine.snapshot().state, machine.snapshot().leaving), ("waiting", None));
}

#[test]
fn a_hung_trainer_that_cannot_be_ended_is_not_restarted_and_the_verdict_says_why() {
    let mut machine = running(watched(3));
    let (now, _) = silence(&mut machine, 0.1);
    machine.step(secs(now + 10.0), Event::Due(Timer::Grace));
    let end = outcome(machine.step(secs(now + 12.0), Event::Due(Timer::Stuck)));
    assert_eq!((end.reason, end.exit_code), (Reason::Hung, 201));
    assert!(end.detail.contains("it could not be ended; it is not restarted"), "{}", end.detail);
}

#[test]
fn a_hang_after_an_out_of_memory_kill_is_a_hang_and_mentions_the_kill() {
    let mut machine = running(watched(0));
    let (now, _) = silence(&mut machine, 0.1);
    let aborted = Event::MainEnded { local_rank: 0, end: End::Signal(Signal::ABRT), oom: Some(true) };
    let end = outcome(feed(&mut machine, now, [aborted, Event::TreeEmpty]));
    assert_eq!((end.reason, end.oom), (Reason::Hung, Some(true)));
    assert!(end.detail.contains("the kernel killed a process in this container for memory"), "{}", end.detail);
}

#[test]
fn a_hang_uses_a_restart_and_the_next_attempt_is_watched_from_its_start() {
    let mut machine = running(watched(1));
    let (now, _) = silence(&mut machine, 0.1);
    let aborted = Event::MainEnded { local_rank: 0, end: End::Signal(Signal::ABRT), oom: Some(false) };
    let actions = feed(&mut machine, now, [aborted.clone(), Event::TreeEmpty]);
    assert!(matches!(actions.last(), Some(Action::Arm(Timer::Backoff, _))), "{actions:?}");
    machine.step(secs(now + 1.0), Event::Due(Timer::Backoff));
    machine.step(secs(now + 1.0), Event::Spawned { pids: vec![8] });
    let (again, _) = silence(&mut machine, now + 1.0);
    assert!(again >= now + 240.0);
    let end = outcome(feed(&mut machine, again, [aborted, Event::TreeEmpty]));
    assert_eq!((end.reason, end.exit_code, end.attempts), (Reason::Hung, 201, 2));
}

#[test]
fn a_heartbeat_is_a_sign_of_life_and_a_higher_step_in_it_refills_the_budget() {
    let mut machine = running(watched(1));
    for attempt in 1..5u32 {
        let now = f64::from(attempt) * 1000.0;
        let beat = LivenessSample { beat: true, step: Some(u64::from(attempt)), ..SILENT };
        for at in 1..20 {
            let look = feed(
                &mut machine,
                now - 1000.0 + f64::from(at) * 10.0,
                [Event::Due(Timer::SampleLiveness), Event::LivenessSampled(beat)],
            );
            assert!(matches!(look[..], [Action::SampleLiveness, Action::Arm(Timer::SampleLiveness, _)]), "{look:?}");
        }
        feed(&mut machine, now - 800.0, [ended(1), Event::TreeEmpty]);
        assert_eq!(machine.state, State::Waiting, "{attempt}");
        feed(&mut machine, now, [Event::Due(Timer::Backoff), Event::Spawned { pids: vec![7] }]);
    }
}

#[test]
fn a_hung_trainer_that_leaves_with_0_on_sigabrt_has_not_finished() {
    let mut machine = running(watched(0));
    let (now, _) = silence(&mut machine, 0.1);
    assert_eq!(outcome(feed(&mut machine, now, [ended(0), Event::TreeEmpty])).exit_code, 201);
}

#[test]
fn a_job_that_is_being_stopped_does_not_hang() {
    let mut machine = running(watched(0));
    machine.step(secs(1.0), term());
    assert_eq!(machine.step(secs(500.0), Event::Due(Timer::SampleLiveness)), []);
    let end = outcome(feed(&mut machine, 501.0, [ended(0), Event::TreeEmpty]));
    assert_eq!((end.reason, end.exit_code), (Reason::Stopped, 143));
}

#[test]
fn a_stop_between_a_sample_and_its_result_leaves_the_trainer_to_save() {
    let mut machine = running(watched(0));
    let (due, _) = silence(&mut running(watched(0)), 0.1);
    let mut now = 0.1;
    while now + 10.0 < due {
        now += 10.0;
        feed(&mut machine, now, [Event::Due(Timer::SampleLiveness), Event::LivenessSampled(SILENT)]);
    }
    now += 10.0;
    assert_eq!(machine.step(secs(now), Event::Due(Timer::SampleLiveness)), [Action::SampleLiveness]);
    machine.step(secs(now), term());
    assert_eq!(machine.step(secs(now), Event::LivenessSampled(SILENT)), []);
    assert_eq!(machine.deadline(), Some(secs(now) + Policy::default().stop_grace));
    let end = outcome(feed(&mut machine, now + 20.0, [ended(0), Event::TreeEmpty]));
    assert_eq!((end.reason, end.exit_code), (Reason::Stopped, 143));
}

#[test]
fn a_preemption_while_a_hung_trainer_dies_is_a_preemption() {
    let mut machine = running(watched(3));
    let (now, _) = silence(&mut machine, 0.1);
    let notice = Event::Preempted { id: String::new(), source: "gce preempted".into(), lead: secs(30.0) };
    let actions = machine.step(secs(now), notice);
    assert_eq!(
        actions,
        [
            Action::WritePreemptionFile { deadline: secs(now + 10.0) },
            Action::LookAtTree(Signal::TERM),
            leader(Signal::TERM),
            Action::Arm(Timer::Sweep, secs(now))
        ],
        "the file is written first"
    );
    let end = outcome(feed(&mut machine, now, [ended(134), Event::TreeEmpty]));
    assert_eq!((end.reason, end.exit_code), (Reason::Preempted, 143));
}

#[test]
fn ctrl_c_while_a_hung_trainer_dies_prevents_a_restart() {
    let mut machine = running(watched(3));
    let (now, _) = silence(&mut machine, 0.1);
    let int = Event::Signal { signal: Signal::INT, sender: Some(0) };
    let end = outcome(feed(&mut machine, now, [int, ended(134), Event::TreeEmpty]));
    assert_eq!((end.reason, end.exit_code), (Reason::Hung, 201));
}

#[test]
fn a_commit_and_a_frozen_machine_do_not_count_as_silence() {
    let frozen = Event::Frozen { length: secs(60.0), why: String::new() };
    for (event, silent) in [
        (
            Event::Committed { unit: "u".into(), step: Some(5), took: secs(1.0), lag: secs(2.0), is_progress: true },
            80.0,
        ),
        (frozen, 60.0 + 30.0 + 80.0),
    ] {
        let mut machine = running(watched(0));
        let loud = LivenessSample { output: true, ..SILENT };
        for look in 1..29 {
            feed(
                &mut machine,
                f64::from(look) * 10.0,
                [Event::Due(Timer::SampleLiveness), Event::LivenessSampled(loud)],
            );
        }
        machine.step(secs(290.0), event);
        let (hung, _) = silence(&mut machine, 290.0);
        assert!((290.0 + silent..290.0 + silent + 10.1).contains(&hung), "{hung}");
    }
}

/// An announcement that the machine will freeze within the next ten minutes.
fn freeze() -> Event {
    Event::Frozen { length: secs(600.0), why: String::new() }
}

/// Asserts that an attempt that has run silently since `start` hangs after a freeze announced at `announced`.
fn assert_hangs_after_the_freeze(machine: &mut Machine, start: f64, announced: f64) {
    let (hung, _) = silence(machine, start);
    let due = (announced + 600.0 + 30.0 + 80.0).max(start + 240.0);
    assert!((due..due + 10.1).contains(&hung), "hung at {hung}, due at {due}");
}

#[test]
fn a_freeze_announced_before_the_first_attempt_applies_to_it() {
    let restored = || Event::Restored { resume: None, committed: None, older: false, is_further: false };
    let peers = Some("h0:1".to_owned());
    for (policy, before, after) in [
        (watched(0), vec![], vec![]),
        (watched(0), vec![Event::Started], vec![]),
        (Policy { checkpoints: true, ..watched(0) }, vec![Event::Started], vec![restored()]),
        (Policy { peers, ..watched(0) }, vec![Event::Started], vec![Event::PeersReached]),
    ] {
        let mut machine = Machine::new(policy);
        let is_begun = !before.is_empty();
        feed(&mut machine, 1.0, before);
        let state = machine.state().clone();
        assert_eq!(machine.step(secs(1.0), freeze()), []);
        let started = (!is_begun).then_some(Event::Started);
        feed(&mut machine, 5.0, started.into_iter().chain(after));
        machine.step(secs(5.0), Event::Spawned { pids: vec![7] });
        assert_eq!(machine.state(), &State::Running, "{state:?}");
        assert_hangs_after_the_freeze(&mut machine, 5.0, 1.0);
    }
}

#[test]
fn a_freeze_announced_between_two_attempts_applies_to_the_next() {
    let restored = || Event::Restored { resume: None, committed: None, older: false, is_further: false };
    let with_checkpoints = Policy { checkpoints: true, ..watched(1) };
    for (policy, before, expected, after) in [
        (watched(1), vec![ended(1)], State::Draining, vec![Event::TreeEmpty]),
        (watched(1), vec![ended(1), Event::TreeEmpty], State::Waiting, vec![]),
        (with_checkpoints, vec![ended(1), Event::TreeEmpty], State::Refreshing, vec![restored()]),
    ] {
        let mut machine = running(policy);
        feed(&mut machine, 20.0, before);
        assert_eq!(machine.state(), &expected);
        machine.step(secs(20.0), freeze());
        feed(&mut machine, 21.0, after);
        feed(&mut machine, 25.0, [Event::Due(Timer::Backoff), Event::Spawned { pids: vec![8] }]);
        assert_eq!((machine.state(), machine.attempt()), (&State::Running, 2), "{expected:?}");
        assert_hangs_after_the_freeze(&mut machine, 25.0, 20.0);
    }
}

#[test]
fn a_freeze_applies_after_a_restart_within_it_and_to_no_attempt_after_it() {
    for (restart, announced) in [(30.0, 20.0), (640.0, 20.0), (2000.0, 20.0)] {
        let mut machine = running(watched(1));
        machine.step(secs(announced), freeze());
        feed(&mut machine, restart, [ended(1), Event::TreeEmpty]);
        feed(&mut machine, restart + 1.0, [Event::Due(Timer::Backoff), Event::Spawned { pids: vec![8] }]);
        assert_hangs_after_the_freeze(&mut machine, restart + 1.0, announced);
    }
}

#[test]
fn a_shorter_freeze_does_not_end_a_longer_one_early() {
    let short = Event::Frozen { length: secs(10.0), why: String::new() };
    let mut machine = running(watched(0));
    feed(&mut machine, 1.0, [freeze(), short.clone()]);
    assert_hangs_after_the_freeze(&mut machine, 0.1, 1.0);
    let mut machine = running(watched(1));
    feed(&mut machine, 1.0, [freeze(), short, ended(1), Event::TreeEmpty]);
    feed(&mut machine, 2.0, [Event::Due(Timer::Backoff), Event::Spawned { pids: vec![8] }]);
    assert_hangs_after_the_freeze(&mut machine, 2.0, 1.0);
}
