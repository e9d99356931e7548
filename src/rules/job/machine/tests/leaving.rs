//! Notices in every state of a job, and the time of the last commit.

use super::*;
use crate::job::Flushed;

pub(super) fn notice(lead: f64) -> Event {
    Event::Preempted { id: String::new(), source: "azure reboot".into(), lead: secs(lead) }
}

fn notice_of(id: &str, lead: f64) -> Event {
    Event::Preempted { id: id.into(), source: format!("azure {id}"), lead: secs(lead) }
}

fn withdrawn(id: &str) -> Event {
    Event::Withdrawn { id: id.into(), source: format!("azure {id}") }
}

fn committed(step: u64, took: f64) -> Event {
    Event::Committed { unit: "u".into(), step: Some(step), took: secs(took), lag: secs(took), is_progress: true }
}

pub(super) fn is_signalled(actions: &[Action]) -> bool {
    actions.contains(&leader(Signal::TERM))
}

#[test]
fn the_duration_of_the_last_commit_is_reserved() {
    let mut machine = running(with_store());
    machine.step(secs(10.0), committed(10, 8.0));
    let actions = machine.step(secs(60.0), notice(30.0));
    assert!(actions.contains(&Action::Arm(Timer::Grace, secs(78.0))), "{actions:?}");
}

#[test]
fn a_machine_that_runs_past_its_announced_end_leaves_time_to_save_and_commit() {
    let mut machine = running(with_store());
    let actions = machine.step(secs(60.0), notice(0.0));
    assert!(is_signalled(&actions) && actions.contains(&Action::Arm(Timer::Grace, secs(72.0))), "{actions:?}");
    let flush = feed(&mut machine, 61.0, [ended(0), Event::TreeEmpty]);
    assert!(flush.contains(&Action::Flush { deadline: Some(secs(74.0)), leaving: true, failed: false }), "{flush:?}");
}

#[test]
fn an_announced_end_that_passed_during_a_freeze_is_no_reason_to_kill_at_once() {
    let mut machine = running(with_store());
    machine.step(secs(0.5), notice(900.0));
    let left = machine.step(secs(2000.0), Event::Due(Timer::Leave));
    assert!(is_signalled(&left) && left.contains(&Action::Arm(Timer::Grace, secs(2012.0))), "{left:?}");
    let flush = feed(&mut machine, 2001.0, [ended(0), Event::TreeEmpty]);
    assert!(flush.contains(&Action::Flush { deadline: Some(secs(2014.0)), leaving: true, failed: false }), "{flush:?}");
}

#[test]
fn a_commit_without_time_names_the_earlier_commit_only_if_there_is_one() {
    for (step, expected) in [(None, false), (Some(40), true)] {
        let mut machine = running(with_store());
        machine.step(
            secs(0.5),
            Event::Committed { unit: "u".into(), step, took: secs(1.0), lag: secs(1.0), is_progress: true },
        );
        feed(&mut machine, 1.0, [notice(30.0), ended(0), Event::TreeEmpty]);
        let end = outcome(machine.step(secs(29.5), Event::Due(Timer::FlushLimit)));
        assert_eq!(end.detail.contains("step 40, committed before, is kept"), expected, "{}", end.detail);
        assert!(!end.detail.contains("the last committed one"), "{}", end.detail);
    }
}

#[test]
fn a_distant_end_is_acted_on_at_the_next_commit() {
    let mut machine = running(with_store());
    let actions = machine.step(secs(0.5), notice(900.0));
    assert_eq!(actions, [Action::Arm(Timer::Leave, secs(780.5))]);
    assert!(!machine.is_stopping());
    let left = machine.step(secs(40.0), committed(10, 1.0));
    assert!(is_signalled(&left) && left.contains(&Action::Disarm(Timer::Leave)), "{left:?}");
}

#[test]
fn a_distant_end_is_acted_on_two_minutes_before_it_at_the_latest() {
    let mut machine = running(with_store());
    machine.step(secs(0.5), notice(900.0));
    let left = machine.step(secs(780.5), Event::Due(Timer::Leave));
    assert!(is_signalled(&left) && left.contains(&Action::Arm(Timer::Grace, secs(880.5))), "{left:?}");
}

#[test]
fn maintenance_days_ahead_stops_nothing_today() {
    let mut machine = running(with_store());
    machine.step(secs(0.5), notice(3.0 * 86_400.0));
    assert_eq!(machine.step(secs(40.0), committed(10, 1.0)), []);
    assert!(is_signalled(&machine.step(secs(3.0 * 86_400.0 - 1000.0), committed(20, 1.0))));
}

#[test]
fn a_notice_withdrawn_before_it_reached_the_trainer_stops_nothing() {
    let mut machine = running(with_store());
    machine.step(secs(0.5), notice_of("e1", 900.0));
    assert_eq!(machine.step(secs(5.0), withdrawn("e1")), [Action::Disarm(Timer::Leave)]);
    assert_eq!((machine.leaves_by(), machine.snapshot().leaving), (None, None));
    assert_eq!(machine.step(secs(40.0), committed(10, 1.0)), []);
    assert_eq!(machine.step(secs(780.5), Event::Due(Timer::Leave)), []);
    let again = machine.step(secs(800.0), notice_of("e1", 900.0));
    assert_eq!(again, [Action::Arm(Timer::Leave, secs(1580.0))], "it can be announced again");
}

#[test]
fn a_withdrawal_cancels_no_other_end() {
    let mut machine = running(with_store());
    feed(&mut machine, 0.5, [notice_of("e1", 900.0), notice_of("e2", 1800.0), notice_of("e2", 1900.0)]);
    assert_eq!(machine.step(secs(1.0), withdrawn("e3")), []);
    assert_eq!(machine.step(secs(1.0), withdrawn("e1")), [Action::Arm(Timer::Leave, secs(1680.5))]);
    assert!(machine.snapshot().leaving.is_some_and(|why| why.contains("azure e2")));
    assert!(is_signalled(&machine.step(secs(1680.5), Event::Due(Timer::Leave))));
}

#[test]
fn a_stop_that_reached_the_trainer_is_not_cancelled() {
    let mut machine = running(with_store());
    feed(&mut machine, 0.5, [notice_of("e1", 900.0), committed(10, 1.0)]);
    assert!(machine.is_stopping());
    assert_eq!(machine.step(secs(1.0), withdrawn("e1")), []);
    let flush = feed(&mut machine, 2.0, [ended(0), Event::TreeEmpty]);
    assert!(flush.contains(&Action::Flush { deadline: Some(secs(895.5)), leaving: true, failed: false }), "{flush:?}");
    let end = outcome(machine.step(secs(3.0), Event::Flushed(Flushed::Done { step: Some(10) })));
    assert_eq!((end.reason, end.exit_code), (Reason::Preempted, 143));
}

#[test]
fn a_near_notice_after_a_distant_one_is_acted_on_at_once() {
    let mut machine = running(with_store());
    machine.step(secs(0.5), notice(900.0));
    assert!(is_signalled(&machine.step(secs(5.0), notice(30.0))));
    assert_eq!(machine.step(secs(780.5), Event::Due(Timer::Leave)), []);
}

#[test]
fn a_restart_continues_if_the_end_is_distant_and_not_if_it_is_near() {
    let mut machine = running(Policy { max_restarts: 2, ..Policy::default() });
    machine.step(secs(0.5), notice(900.0));
    feed(&mut machine, 100.0, [ended(1), Event::TreeEmpty]);
    assert_eq!(machine.state, State::Waiting);
    let end = outcome(machine.step(secs(101.0), notice(30.0)));
    assert_eq!((end.reason, end.exit_code, end.attempts), (Reason::Preempted, 143, 1));
}

#[test]
fn a_notice_while_restoring_starts_nothing() {
    let mut machine = Machine::new(with_store());
    machine.step(secs(0.0), Event::Started);
    let end = outcome(machine.step(secs(0.5), notice(30.0)));
    assert_eq!((end.reason, end.exit_code, end.attempts), (Reason::Preempted, 143, 0));
}

#[test]
fn a_notice_in_the_pause_or_the_scan_before_a_restart_still_commits() {
    for events in [vec![], vec![Event::Restored { resume: None, committed: None, older: false, is_further: false }]] {
        let mut machine = running(with_store());
        feed(&mut machine, 100.0, [ended(1), Event::TreeEmpty]);
        feed(&mut machine, 100.0, events);
        let actions = machine.step(secs(100.0), notice(30.0));
        assert!(
            actions.contains(&Action::Flush { deadline: Some(secs(128.0)), leaving: true, failed: false }),
            "{actions:?}"
        );
        let end = outcome(machine.step(secs(101.0), Event::Flushed(Flushed::Done { step: Some(7) })));
        assert_eq!((end.reason, end.committed_step), (Reason::Preempted, Some(7)));
    }
}

#[test]
fn a_notice_after_the_trainer_finished_sets_a_commit_deadline_and_keeps_the_reason() {
    let mut machine = running(with_store());
    feed(&mut machine, 1.0, [ended(0), Event::TreeEmpty]);
    let actions = machine.step(secs(2.0), notice(30.0));
    assert_eq!(
        actions,
        [Action::Arm(Timer::FlushLimit, secs(30.5)), Action::SetCommitDeadline { deadline: secs(30.0) }]
    );
    let end = outcome(machine.step(secs(3.0), Event::Flushed(Flushed::Done { step: Some(7) })));
    assert_eq!((end.reason, end.exit_code), (Reason::Finished, 0));
}

#[test]
fn a_second_notice_while_committing_changes_the_deadline_only_if_it_is_sooner() {
    let mut machine = running(with_store());
    feed(&mut machine, 1.0, [notice(30.0), ended(0), Event::TreeEmpty]);
    assert!(
        machine.step(secs(2.0), notice(120.0)).contains(&Action::SetCommitDeadline { deadline: secs(29.0) }),
        "never later"
    );
    assert!(machine.step(secs(2.0), notice(15.0)).contains(&Action::SetCommitDeadline { deadline: secs(16.0) }));
}

#[test]
fn a_notice_while_a_crash_drains_prevents_a_restart() {
    let mut machine = running(Policy { max_restarts: 3, ..Policy::default() });
    feed(&mut machine, 1.0, [ended(1), notice(30.0)]);
    let end = outcome(machine.step(secs(2.0), Event::TreeEmpty));
    assert_eq!((end.reason, end.exit_code), (Reason::Preempted, 143));
}

#[test]
fn a_final_failure_keeps_its_code_if_a_sigterm_arrives_while_it_drains() {
    let mut machine = running(Policy::default());
    feed(&mut machine, 1.0, [ended(3), term()]);
    let end = outcome(machine.step(secs(2.0), Event::TreeEmpty));
    assert_eq!((end.reason, end.exit_code), (Reason::Failed, 3));
}

#[test]
fn a_success_stays_a_success_if_a_notice_arrives_while_it_drains() {
    let mut machine = running(Policy::default());
    feed(&mut machine, 1.0, [ended(0), notice(30.0)]);
    assert_eq!(outcome(machine.step(secs(2.0), Event::TreeEmpty)).exit_code, 0);
}

#[test]
fn a_commit_without_time_stays_a_preemption_and_names_the_committed_step() {
    let mut machine = running(with_store());
    machine.step(secs(0.5), committed(40, 1.0));
    feed(&mut machine, 1.0, [notice(30.0), ended(0), Event::TreeEmpty]);
    let late = Flushed::OutOfTime("step-50 needs 90 s".into());
    let end = outcome(machine.step(secs(2.0), Event::Flushed(late)));
    assert_eq!((end.reason, end.exit_code, end.committed_step), (Reason::Preempted, 143, Some(40)));
    assert!(end.detail.contains("step-50 needs 90 s"), "{}", end.detail);
}

#[test]
fn a_notice_that_cuts_the_last_commit_of_a_finished_job_short_is_named() {
    for events in [[ended(0), Event::TreeEmpty, notice(30.0)], [ended(0), notice(30.0), Event::TreeEmpty]] {
        for late in [Event::Flushed(Flushed::OutOfTime("step-50 needs 90 s".into())), Event::Due(Timer::FlushLimit)] {
            let mut machine = running(with_store());
            feed(&mut machine, 1.0, events.clone());
            let end = outcome(machine.step(secs(30.5), late));
            assert_eq!((end.reason, end.exit_code), (Reason::Store, 204));
            assert!(
                end.detail.starts_with("preempted (azure reboot) before the last commit was complete: "),
                "{}",
                end.detail
            );
        }
    }
}

#[test]
fn a_silent_commit_is_not_awaited_beyond_the_end() {
    let mut machine = running(with_store());
    let actions = feed(&mut machine, 1.0, [notice(30.0), ended(0), Event::TreeEmpty, Event::Transferring]);
    let limits = actions.iter().filter(|a| **a == Action::Arm(Timer::FlushLimit, secs(29.5))).count();
    assert_eq!(limits, 2, "{actions:?}");
    let end = outcome(machine.step(secs(29.5), Event::Due(Timer::FlushLimit)));
    assert_eq!((end.reason, end.exit_code), (Reason::Preempted, 143));
}

#[test]
fn a_warning_asks_for_a_checkpoint_and_for_nothing_else() {
    let mut machine = running(with_store());
    let warned = machine.step(secs(1.0), Event::Warned { why: "rebalance".into() });
    assert_eq!(warned, [Action::CommitSoon { notice: false }]);
    assert!(!machine.is_stopping());
    assert_eq!(running(Policy::default()).step(secs(1.0), Event::Warned { why: String::new() }), []);
}

#[test]
fn the_verdict_names_the_step_of_the_last_attempt_that_started() {
    let mut machine = running(with_store());
    feed(&mut machine, 100.0, [ended(1), Event::TreeEmpty]);
    let resume = Some(Resume { from: "/ck/5".into(), step: Some(5) });
    machine.step(secs(101.0), Event::Restored { resume, committed: Some(5), older: false, is_further: false });
    machine.step(secs(101.0), term());
    let end = outcome(machine.step(secs(101.0), Event::Flushed(Flushed::Done { step: Some(5) })));
    assert_eq!((end.reason, end.resumed_step), (Reason::Stopped, None));
}

#[test]
fn a_job_stopped_during_its_restore_names_the_commit_that_was_found() {
    let stopped_after = |found: &[Option<u64>]| {
        let mut machine = Machine::new(with_store());
        machine.step(secs(0.0), Event::Started);
        feed(&mut machine, 0.1, found.iter().map(|committed| Event::Found { committed: *committed }));
        let end = outcome(machine.step(secs(0.2), term()));
        assert_eq!((end.exit_code, end.attempts), (143, 0));
        end.committed_step
    };
    assert_eq!(stopped_after(&[]), None);
    assert_eq!(stopped_after(&[Some(400)]), Some(400));
    assert_eq!(stopped_after(&[Some(400), None, Some(300)]), Some(300), "the newer commit is invalid");
    let mut machine = running(with_store());
    machine.step(
        secs(1.0),
        Event::Committed { unit: "u".into(), step: Some(5), took: secs(1.0), lag: secs(0.0), is_progress: true },
    );
    machine.step(secs(1.0), Event::Found { committed: Some(4) });
    assert_eq!(machine.commits.step, Some(5), "later restores start with the known commit");
}

#[test]
fn a_newer_run_that_is_reported_often_stops_the_trainer_once() {
    let fenced = || Event::Fenced { detail: "attempt 3 owns the store".into() };
    let signals = |actions: &[Action]| actions.iter().filter(|a| matches!(a, Action::Signal { .. })).count();
    let mut machine = running(with_store());
    assert_eq!(signals(&machine.step(secs(1.0), fenced())), 1);
    assert!(!machine.is_fenced_again());
    for at in [2.0, 3.0] {
        assert_eq!(machine.step(secs(at), fenced()), []);
        assert!(machine.is_fenced_again(), "it is not logged again");
    }
    let mut machine = running(with_store());
    assert_eq!(signals(&feed(&mut machine, 1.0, [term()])), 1);
    assert_eq!(signals(&machine.step(secs(2.0), fenced())), 0, "it is saving already");
    assert!(!machine.is_fenced_again());
    let mut machine = running(Policy { preempt_signal: None, ..with_store() });
    assert_eq!(signals(&feed(&mut machine, 1.0, [term()])), 0);
    assert_eq!(signals(&machine.step(secs(2.0), fenced())), 1, "it has had no signal");
}

#[test]
fn a_gpu_that_fails_while_the_job_is_stopping_changes_no_reason() {
    let mut machine = running(Policy::default());
    machine.step(secs(1.0), term());
    assert_eq!(machine.step(secs(2.0), Event::GpuFailed { detail: "GPU-1 fell off the bus".into() }), []);
    let end = outcome(feed(&mut machine, 3.0, [ended(0), Event::TreeEmpty]));
    assert_eq!((end.reason, end.exit_code), (Reason::Stopped, 143));
}

#[test]
fn a_process_that_starts_while_the_tree_ends_gets_sigterm_and_after_the_deadline_sigkill() {
    let mut machine = running(Policy::default());
    machine.step(secs(1.0), ended(0));
    assert!(is_term_tree(&machine.step(secs(1.5), Event::Due(Timer::Sweep))[0]));
    machine.step(secs(26.0), Event::Due(Timer::Grace));
    assert_eq!(machine.step(secs(26.5), Event::Due(Timer::Sweep))[0], Action::KillTree);
}
