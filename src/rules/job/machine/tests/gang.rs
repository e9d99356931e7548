//! A job whose replicas start and stop together.

use super::*;
use crate::cluster::seat::Seat;
use crate::cluster::spec::Role;
use crate::gang::beat::Departure;
use crate::gang::member::{Action as Order, Event as MemberEvent, Leave};
use crate::gang::message::{Choice, Class, Failure, FirstFailure, Offer};
use crate::job::{Flushed, InGang};

const GRACE: Duration = Duration::from_millis(500);

fn seat(role: Role) -> Seat {
    Seat::new(role, 0)
}

fn policy(role: Role) -> Policy {
    Policy { gang: Some(InGang { seat: seat(role), stop_grace: GRACE }), ..Policy::default() }
}

fn report(actions: &[Action]) -> Option<&MemberEvent> {
    actions.iter().find_map(|action| if let Action::ReportToGang(report) = action { Some(report) } else { None })
}

/// A machine whose command runs in a generation.
fn in_generation(policy: Policy, generation: u64) -> Machine {
    let mut machine = Machine::new(policy);
    assert_eq!(machine.step(secs(0.0), Event::Started), []);
    start(&mut machine, 0.0, generation);
    machine
}

fn start(machine: &mut Machine, at: f64, generation: u64) {
    machine.step(secs(at), Event::Gang(Order::Survey));
    while machine.gang.surveys > 1 {
        assert_eq!(machine.step(secs(at), Event::Surveyed(Offer::default())), [], "a newer survey runs");
    }
    machine.step(secs(at), Event::Surveyed(Offer::default()));
    feed(machine, at, [Event::Gang(Order::Restore(Choice::Start))]);
    if machine.state == State::Arming {
        let restored = Event::Restored { resume: None, committed: None, older: false, is_further: false };
        assert_eq!(machine.step(secs(at), restored), [Action::ReportToGang(MemberEvent::Restored)]);
    }
    let spawn = machine.step(secs(at), Event::Gang(Order::Launch(generation)));
    assert!(
        matches!(spawn[..], [Action::Spawn { generation: Some(started), .. }] if started == generation),
        "{spawn:?}"
    );
    machine.step(secs(at), Event::Spawned { pids: vec![7] });
}

fn give_up(first: Role) -> Order {
    let failure = Failure { class: Class::Code, code: Some(9), signal: None, step: None, detail: "code 9".into() };
    let first = Some(FirstFailure { seat: seat(first), host: "h".into(), failure });
    Order::Leave(Leave::GaveUp { why: "no restart is left".into(), no_common_step: false, first })
}

#[test]
fn the_gang_starts_the_command_and_after_a_halt_comes_another_survey() {
    let mut machine = in_generation(policy(Role::Worker), 4);
    let halt = machine.step(secs(5.0), Event::Gang(Order::Stop(GRACE)));
    assert!(halt.contains(&leader(Signal::TERM)) && halt.contains(&Action::Arm(Timer::Grace, secs(5.5))), "{halt:?}");
    let term = Event::MainEnded { local_rank: 0, end: End::Signal(Signal::TERM), oom: Some(false) };
    assert_eq!(report(&machine.step(secs(5.1), term)), None, "it is not this replica's failure");
    assert!(machine.step(secs(5.2), Event::TreeEmpty).contains(&Action::Survey));
    start(&mut machine, 6.0, 5);
    assert_eq!((machine.state(), machine.attempt(), machine.deadline()), (&State::Running, 2, None));
}

#[test]
fn the_end_of_the_lease_kills_at_once() {
    let mut machine = in_generation(policy(Role::Worker), 1);
    assert!(machine.step(secs(5.0), Event::Gang(Order::Kill)).contains(&Action::KillTree));
}

#[test]
fn a_death_is_reported_at_once_and_the_rest_of_the_tree_has_the_gangs_grace() {
    let mut machine = in_generation(policy(Role::Worker), 1);
    let died = machine.step(secs(5.0), ended(9));
    assert!(
        matches!(report(&died), Some(MemberEvent::Failed(Failure { class: Class::Code, code: Some(9), .. }))),
        "{died:?}"
    );
    assert!(died.contains(&Action::Arm(Timer::Grace, secs(5.5))), "{died:?}");
    assert!(machine.step(secs(5.1), Event::TreeEmpty).contains(&Action::Survey));
    machine.step(secs(5.2), Event::Surveyed(Offer::default()));
    let end = outcome(machine.step(secs(6.0), Event::Gang(give_up(Role::Worker))));
    assert_eq!((end.reason, end.exit_code), (Reason::Failed, 9));
    assert!(end.detail.ends_with("no restart is left"), "{}", end.detail);
}

#[test]
fn a_healthy_replica_of_a_gang_that_gives_up_exits_with_203_and_names_the_first_failure() {
    let mut machine = in_generation(policy(Role::Worker), 1);
    feed(&mut machine, 5.0, [Event::Gang(Order::Stop(GRACE)), ended(143), Event::TreeEmpty]);
    machine.step(secs(5.2), Event::Surveyed(Offer::default()));
    let end = outcome(machine.step(secs(6.0), Event::Gang(give_up(Role::Chief))));
    assert_eq!((end.reason, end.exit_code), (Reason::Peer, 203));
    assert!(end.detail.contains("chief/0 on h: code 9"), "{}", end.detail);
}

#[test]
fn a_replica_whose_trainer_has_finished_waits_for_the_order_to_leave_after_its_last_commit() {
    let mut machine = in_generation(Policy { checkpoints: true, store: true, ..policy(Role::Chief) }, 1);
    let flush = feed(&mut machine, 5.0, [ended(0), Event::TreeEmpty]);
    assert!(matches!(flush.last(), Some(Action::Flush { .. })), "{flush:?}");
    let actions = machine.step(secs(6.0), Event::Flushed(Flushed::Done { step: Some(3) }));
    assert_eq!(report(&actions), Some(&MemberEvent::Finished));
    let end = outcome(machine.step(secs(9.0), Event::Gang(Order::Leave(Leave::Finished))));
    assert_eq!((end.reason, end.exit_code), (Reason::Finished, 0));
}

#[test]
fn at_the_end_a_worker_has_the_finish_grace_and_then_the_gangs_grace_and_exits_with_0_in_any_case() {
    for role in [Role::Worker, Role::Evaluator] {
        let mut machine = match role {
            Role::Worker => in_generation(policy(role), 1),
            _ => running(policy(role)),
        };
        let end = machine.step(secs(5.0), Event::Gang(Order::End(secs(60.0))));
        assert_eq!(end, [Action::Arm(Timer::Finish, secs(65.0))]);
        let over = machine.step(secs(65.0), Event::Due(Timer::Finish));
        assert!(over.contains(&leader(Signal::TERM)), "{over:?}");
        let empty = feed(&mut machine, 65.1, [ended(1), Event::TreeEmpty]);
        assert!(matches!(report(&empty), Some(MemberEvent::TreeEmpty(_))), "{empty:?}");
        let end = outcome(machine.step(secs(65.2), Event::Gang(Order::Leave(Leave::Finished))));
        assert_eq!((end.reason, end.exit_code), (Reason::Finished, 0));
    }
}

#[test]
fn a_signal_to_one_replica_is_reported_to_the_gang_as_a_notice_and_ends_the_replica_as_without_a_gang() {
    let mut machine = in_generation(policy(Role::Worker), 1);
    let actions = machine.step(secs(5.0), term());
    assert_eq!(report(&actions), Some(&MemberEvent::Noticed(Policy::default().stop_grace)));
    let position = |is: fn(&Action) -> bool| actions.iter().position(is);
    let file = position(|action| matches!(action, Action::WritePreemptionFile { .. }));
    assert!(file.is_some() && file < position(|action| *action == leader(Signal::TERM)), "{actions:?}");
    assert_eq!(machine.step(secs(5.1), Event::Gang(Order::Stop(GRACE))), [], "its own deadline holds");
    let end = feed(&mut machine, 6.0, [ended(0), Event::TreeEmpty]);
    assert!(matches!(report(&end), Some(MemberEvent::Leaves(_))), "{end:?}");
    assert_eq!(outcome(end).exit_code, 143);
}

#[test]
fn after_another_replicas_notice_the_trainer_saves_and_starts_again() {
    let mut machine = in_generation(policy(Role::Worker), 1);
    let saves = machine.step(secs(5.0), Event::Gang(Order::Save { lead: secs(30.0), leave: false }));
    assert!(saves.iter().any(|action| matches!(action, Action::WritePreemptionFile { .. })), "{saves:?}");
    assert!(saves.contains(&leader(Signal::TERM)));
    let empty = feed(&mut machine, 7.0, [ended(0), Event::TreeEmpty]);
    assert_eq!((report(&empty), empty.contains(&Action::Survey)), (None, true), "{empty:?}");
    let mut machine = in_generation(policy(Role::Worker), 1);
    machine.step(secs(5.0), Event::Gang(Order::Save { lead: secs(30.0), leave: true }));
    let end = outcome(feed(&mut machine, 7.0, [ended(0), Event::TreeEmpty]));
    assert_eq!((end.reason, end.exit_code), (Reason::Preempted, 143));
}

#[test]
fn after_a_transient_failure_to_start_the_command_the_gang_tries_again() {
    let mut machine = Machine::new(policy(Role::Worker));
    machine.step(secs(0.0), Event::Started);
    feed(&mut machine, 0.0, [Event::Gang(Order::Survey), Event::Surveyed(Offer::default())]);
    machine.step(secs(0.0), Event::Gang(Order::Launch(1)));
    let refused =
        |is_transient| Event::NotSpawned { code: 125, detail: "no process".into(), is_transient, others: false };
    let again = machine.step(secs(0.1), refused(true));
    assert!(matches!(report(&again), Some(MemberEvent::Failed(_))) && again.contains(&Action::Survey), "{again:?}");
    machine.step(secs(0.2), Event::Surveyed(Offer::default()));
    machine.step(secs(0.3), Event::Gang(Order::Launch(2)));
    assert_eq!(outcome(machine.step(secs(0.4), refused(false))).exit_code, 125);
}

#[test]
fn an_evaluator_starts_and_ends_without_the_gang() {
    let mut machine = running(Policy { max_restarts: 1, ..policy(Role::Evaluator) });
    feed(&mut machine, 100.0, [ended(1), Event::TreeEmpty]);
    assert_eq!(machine.state(), &State::Waiting);
    machine.step(secs(102.0), Event::Due(Timer::Backoff));
    machine.step(secs(102.0), Event::Spawned { pids: vec![8] });
    let end = feed(&mut machine, 103.0, [ended(0), Event::TreeEmpty]);
    let left = Action::ReportToGang(MemberEvent::Leaves(Departure {
        code: 0,
        reason: "finished".to_owned(),
        detail: "the command finished with exit code 0".to_owned(),
    }));
    assert!(end.contains(&left), "{end:?}");
    assert_eq!(outcome(end).exit_code, 0);
}

#[test]
fn the_success_is_reported_before_the_last_commit_and_a_stop_after_it_does_not_change_the_code() {
    let kept = || Policy { store: true, checkpoints: true, ..policy(Role::Worker) };
    let succeeded = || {
        let mut machine = in_generation(kept(), 4);
        let end = machine.step(secs(5.0), ended(0));
        assert_eq!(report(&end), Some(&MemberEvent::Succeeded));
        let empty = machine.step(secs(5.1), Event::TreeEmpty);
        assert_eq!((report(&empty), machine.state()), (Some(&MemberEvent::Committing), &State::Flushing));
        machine
    };
    let done = || Event::Flushed(Flushed::Done { step: Some(4) });
    let notice = Event::Preempted { id: "a".into(), source: "a".into(), lead: secs(30.0) };
    for stop in [term(), notice] {
        // During the commit.
        let mut machine = succeeded();
        machine.step(secs(5.2), stop.clone());
        let end = machine.step(secs(6.0), done());
        assert_eq!(report(&end), Some(&MemberEvent::Finished), "{end:?}");
        let end = outcome(end);
        assert_eq!((end.reason, end.exit_code), (Reason::Finished, 0));
        // While it waits for the others.
        let mut machine = succeeded();
        machine.step(secs(6.0), done());
        let end = outcome(machine.step(secs(7.0), stop.clone()));
        assert_eq!((end.reason, end.exit_code), (Reason::Finished, 0));
        // The job has finished, and the trainer still runs.
        let mut machine = in_generation(kept(), 4);
        machine.step(secs(5.0), Event::Gang(Order::End(secs(60.0))));
        machine.step(secs(6.0), stop);
        let end = outcome(feed(&mut machine, 7.0, [ended(143), Event::TreeEmpty, done()]));
        assert_eq!((end.reason, end.exit_code), (Reason::Finished, 0));
    }
    // Its generation was halted, so it has to train again.
    let mut machine = succeeded();
    machine.step(secs(6.0), done());
    machine.step(secs(6.1), Event::Gang(Order::Survey));
    machine.step(secs(6.2), Event::Surveyed(Offer::default()));
    feed(&mut machine, 7.0, [term()]);
    assert_eq!(outcome(machine.step(secs(7.1), done())).exit_code, 143);
}

#[test]
fn a_hang_of_the_gang_ends_the_trainer_like_its_own_hang_and_then_comes_another_survey() {
    let mut machine = in_generation(policy(Role::Worker), 1);
    assert_eq!(machine.step(secs(4.0), Event::Gang(Order::ReportTree)), [Action::ReportTree]);
    let abort = machine.step(secs(5.0), Event::Gang(Order::Abort));
    assert_eq!(abort, [Action::DumpStacks, Action::AbortTree, Action::Arm(Timer::Grace, secs(15.0))]);
    let died = Event::MainEnded { local_rank: 0, end: End::Signal(Signal::ABRT), oom: Some(false) };
    assert_eq!(report(&machine.step(secs(5.1), died)), None, "it is no failure of this replica");
    assert!(machine.step(secs(5.2), Event::TreeEmpty).contains(&Action::Survey));
}

#[test]
fn a_hang_is_reported_with_the_activity_of_the_processes() {
    let hang_timeout = Some(secs(80.0));
    let mut machine = in_generation(Policy { hang_timeout, ..policy(Role::Worker) }, 1);
    let (_, actions) = super::hanging::silence(&mut machine, 0.1);
    let [
        Action::ReportTree,
        Action::ReportToGang(MemberEvent::Failed(failure)),
        Action::DumpStacks,
        Action::AbortTree,
        ..,
    ] = &actions[..]
    else {
        panic!("{actions:?}")
    };
    assert_eq!(failure.class, Class::Hung);
}

#[test]
fn a_trainer_that_has_closed_its_connections_gets_no_signal_at_a_halt_and_its_end_is_reported() {
    for (end, known) in
        [(End::Code(7), "exit code 7"), (End::Code(0), "exit code 0"), (End::Signal(Signal::KILL), "SIGKILL")]
    {
        let mut machine = in_generation(policy(Role::Worker), 1);
        let halt = machine.step(secs(5.0), Event::Gang(Order::AwaitEnd(secs(5.0))));
        assert_eq!(halt, [Action::Arm(Timer::Grace, secs(10.0))]);
        let died = machine.step(secs(7.0), Event::MainEnded { local_rank: 0, end, oom: Some(false) });
        let Some(MemberEvent::Failed(failure)) = report(&died) else { panic!("{died:?}") };
        assert!(failure.detail.contains(known) && failure.detail.contains("had closed"), "{}", failure.detail);
        assert!(machine.step(secs(7.1), Event::TreeEmpty).contains(&Action::Survey));
    }
}
