use std::time::Duration;

use super::super::beat::{Beat, Departure};
use super::super::hang::TreeState;
use super::super::message::{Choice, Class, Failure, Offer, Record, SaveAt, Step, ToLeader, ToMember};
use super::super::{Generation, Incarnation, Timing};
use super::{Action, Event, Leave, Member};
use crate::cluster::seat::Seat;
use crate::cluster::spec::Role;

pub(super) const LEADER: Incarnation = Incarnation(1);

pub(super) fn at(ms: u64) -> Duration {
    Duration::from_millis(1_000_000 + ms)
}

pub(super) fn offer(steps: &[u64]) -> Offer {
    Offer {
        steps: steps.iter().map(|step| Step { step: Some(*step), hash: *step, is_stored: true }).collect(),
        ..Offer::default()
    }
}

pub(super) fn member(role: Role) -> Member {
    let chief = Seat::new(Role::Chief, 0);
    Member::new(at(0), Seat::new(role, 0), chief, Incarnation(7), "host".to_owned(), Timing::default()).0
}

pub(super) fn receive(member: &mut Member, ms: u64, message: ToMember) -> Vec<Action> {
    member.step(at(ms), Event::Received(message))
}

pub(super) fn welcome(newest: Generation) -> ToMember {
    ToMember::Welcome { leader: LEADER, lease: 20_000, newest, timing: None }
}

fn echo(ms: u64) -> ToMember {
    ToMember::Echo { clock: at(ms).as_millis() as u64, save_at: None, save_step: None, missing: Vec::new() }
}

/// A worker that offers step 20 and has its seat at 0 ms.
pub(super) fn ready() -> Member {
    let mut member = member(Role::Worker);
    member.step(at(0), Event::TreeEmpty(offer(&[20])));
    member.step(at(0), Event::Linked);
    receive(&mut member, 0, welcome(0));
    receive(&mut member, 0, echo(0));
    member
}

/// The same in training, with a lease from 0 ms on.
pub(super) fn training() -> Member {
    let mut member = ready();
    receive(&mut member, 1, ToMember::Agreed { generation: 1, choice: Choice::Own(20) });
    member.step(at(2), Event::Restored);
    let actions = receive(&mut member, 3, ToMember::Go { generation: 1, record: Record::default() });
    assert!(actions.contains(&Action::Launch(1)), "{actions:?}");
    member
}

fn failure() -> Failure {
    Failure { class: Class::Code, code: Some(1), signal: None, step: None, detail: "x".repeat(999) }
}

#[test]
fn the_end_of_the_lease_kills_the_trainer_before_any_message_is_handled() {
    let mut member = training();
    assert!(!member.step(at(19_999), Event::Tick).contains(&Action::Kill));
    let actions = receive(&mut member, 20_000, echo(19_000));
    assert_eq!(actions[0], Action::Kill, "a late echo does not prolong a lease that has ended");
}

#[test]
fn an_echo_prolongs_the_lease_unless_its_clock_is_in_the_future() {
    let mut member = training();
    receive(&mut member, 10_000, echo(15_000));
    assert!(member.step(at(20_000), Event::Tick).contains(&Action::Kill));
    let mut member = training();
    receive(&mut member, 10_000, echo(9_000));
    assert!(!member.step(at(28_999), Event::Tick).contains(&Action::Kill));
    assert!(member.step(at(29_000), Event::Tick).contains(&Action::Kill));
}

#[test]
fn a_closed_connection_stops_the_trainer_after_the_grace_unless_the_member_has_its_seat_again() {
    let stop = Action::Stop(Duration::from_millis(500));
    let mut member = training();
    member.step(at(1_000), Event::Unlinked { silent: false });
    assert!(!member.step(at(1_499), Event::Tick).contains(&stop));
    member.step(at(1_499), Event::Linked);
    assert!(member.step(at(1_500), Event::Tick).contains(&stop), "a connection without a seat is not enough");
    let mut member = training();
    member.step(at(1_000), Event::Unlinked { silent: false });
    member.step(at(1_200), Event::Linked);
    receive(&mut member, 1_400, welcome(1));
    assert!(!member.step(at(1_600), Event::Tick).contains(&stop));
}

#[test]
fn an_agent_that_was_frozen_without_a_connection_kills_the_trainer_when_it_wakes() {
    let mut member = training();
    member.step(at(1_000), Event::Unlinked { silent: false });
    assert_eq!(member.step(at(9_000), Event::Tick)[0], Action::Kill, "although its lease has not ended");
}

#[test]
fn a_peer_can_choose_only_a_step_that_this_node_has_offered() {
    let mut member = ready();
    let actions = receive(&mut member, 1, ToMember::Agreed { generation: 1, choice: Choice::Own(30) });
    assert!(matches!(&actions[0], Action::Send(ToLeader::CannotRestore { generation: 1, .. })), "{actions:?}");
    assert_eq!(member.state(), "ready");
}

#[test]
fn go_starts_only_the_generation_that_is_armed() {
    let mut member = ready();
    receive(&mut member, 1, ToMember::Go { generation: 1, record: Record::default() });
    assert_ne!(member.state(), "training");
    receive(&mut member, 1, ToMember::Agreed { generation: 2, choice: Choice::Own(20) });
    member.step(at(2), Event::Restored);
    receive(&mut member, 3, ToMember::Go { generation: 1, record: Record::default() });
    assert_ne!(member.state(), "training");
    receive(&mut member, 20_000, ToMember::Go { generation: 2, record: Record::default() });
    assert_ne!(member.state(), "training", "the lease has ended");
}

#[test]
fn a_failure_is_reported_with_its_age_after_a_reconnect() {
    let mut member = training();
    member.step(at(1_000), Event::Unlinked { silent: false });
    member.step(at(1_010), Event::Failed(failure()));
    member.step(at(1_100), Event::Linked);
    let actions = receive(&mut member, 1_310, welcome(1));
    let sent = actions.iter().find_map(|action| match action {
        Action::Send(ToLeader::Failed { generation, age, failure, .. }) => {
            Some((*generation, *age, failure.detail.len()))
        }
        _ => None,
    });
    assert_eq!(sent, Some((1, 300, 300)));
}

#[test]
fn a_survey_is_repeated_if_another_agent_may_have_had_the_seat_since() {
    let mut member = member(Role::Worker);
    member.step(at(0), Event::TreeEmpty(offer(&[])));
    member.step(at(1), Event::Linked);
    receive(&mut member, 2, ToMember::Refused { why: "the seat is taken".to_owned(), contradicts: false });
    member.step(at(3), Event::Unlinked { silent: false });
    member.step(at(60_000), Event::Linked);
    let actions = receive(&mut member, 60_001, welcome(1));
    assert!(actions.contains(&Action::Survey), "{actions:?}");
    let is_offer = |action: &Action| matches!(action, Action::Send(ToLeader::Offer { .. }));
    assert!(!actions.iter().any(is_offer), "{actions:?}");
}

#[test]
fn the_kept_step_never_decreases() {
    let mut member = ready();
    assert!(receive(&mut member, 1, ToMember::Kept { step: 20 }).contains(&Action::Keep(20)));
    assert!(!receive(&mut member, 2, ToMember::Kept { step: 10 }).contains(&Action::Keep(10)));
}

#[test]
fn a_member_gives_up_after_the_limit_and_names_the_leader() {
    let mut member = member(Role::Worker);
    member.step(at(0), Event::TreeEmpty(offer(&[])));
    let actions = member.step(at(3_600_000), Event::Tick);
    let why = actions.iter().find_map(|action| match action {
        Action::Leave(Leave::GaveUp { why, .. }) => Some(why.as_str()),
        _ => None,
    });
    assert_eq!(why, Some("waited for 3600 s for: the leader, chief/0"));
}

#[test]
fn an_absent_leader_is_reported_every_30_seconds() {
    let mut member = member(Role::Worker);
    let is_named = |actions: &[Action]| actions.contains(&Action::Waiting(vec![Seat::new(Role::Chief, 0)]));
    let named = [29_999, 30_000, 59_999, 60_000].map(|ms| is_named(&member.step(at(ms), Event::Tick)));
    assert_eq!(named, [false, true, false, true]);
    member.step(at(61_000), Event::Linked);
    receive(&mut member, 61_000, welcome(0));
    assert!(!is_named(&member.step(at(95_000), Event::Tick)), "the leader names the missing members");
}

#[test]
fn at_the_end_each_role_has_its_own_grace() {
    let (minute, ten) = (Duration::from_secs(60), Duration::from_secs(600));
    assert!(receive(&mut training(), 4, ToMember::Finish).contains(&Action::End(minute)));
    assert!(receive(&mut member(Role::Evaluator), 4, ToMember::Finish).contains(&Action::End(ten)));
    let reducer = receive(&mut member(Role::Reducer), 4, ToMember::Finish);
    assert!(reducer.contains(&Action::End(Duration::ZERO)), "{reducer:?}");
}

#[test]
fn an_evaluator_is_not_part_of_the_barrier_and_ends_with_the_job() {
    let mut member = member(Role::Evaluator);
    member.step(at(0), Event::Linked);
    receive(&mut member, 1, welcome(0));
    for message in [
        ToMember::Agreed { generation: 1, choice: Choice::Start },
        ToMember::Go { generation: 1, record: Record::default() },
        ToMember::Halt { generation: 1, hung: false },
        ToMember::Save { lead: 1, leave: false, save_at: None },
    ] {
        let actions = receive(&mut member, 2, message);
        let quiet = |action: &Action| matches!(action, Action::Wake(_) | Action::Send(ToLeader::Beat(_)));
        assert!(actions.iter().all(quiet), "{actions:?}");
    }
    receive(&mut member, 3, ToMember::Finish);
    assert!(member.step(at(4), Event::TreeEmpty(offer(&[]))).contains(&Action::Leave(Leave::Finished)));
}

#[test]
fn the_hello_has_the_former_leader_and_the_time_of_its_silence() {
    let former = |silent: bool| {
        let mut member = training();
        member.step(at(1_000), Event::Unlinked { silent });
        // A refused connection does not change the former leader.
        member.step(at(2_000), Event::Linked);
        receive(&mut member, 2_000, ToMember::Refused { why: String::new(), contradicts: false });
        member.step(at(2_000), Event::Unlinked { silent: false });
        let actions = member.step(at(4_000), Event::Linked);
        let Some(Action::Send(ToLeader::Hello(hello))) = actions.first() else { panic!("{actions:?}") };
        hello.former.map(|former| (former.leader, former.silent_for))
    };
    assert_eq!(former(true), Some((LEADER, Some(3_000))));
    assert_eq!(former(false), Some((LEADER, None)));
}

#[test]
fn the_trainer_of_a_gang_that_hangs_is_aborted_and_needs_the_lease_until_its_tree_is_empty() {
    let hung = || ToMember::Halt { generation: 1, hung: true };
    let mut member = training();
    assert!(receive(&mut member, 4, ToMember::ReportTree { generation: 1 }).contains(&Action::ReportTree));
    assert!(!receive(&mut member, 4, ToMember::ReportTree { generation: 2 }).contains(&Action::ReportTree));
    assert!(receive(&mut member, 5, hung()).contains(&Action::Abort));
    assert!(!member.step(at(19_999), Event::Tick).contains(&Action::Kill));
    assert!(member.step(at(20_000), Event::Tick).contains(&Action::Kill));
    assert!(!member.step(at(20_001), Event::Tick).contains(&Action::Kill), "once");

    let mut member = training();
    receive(&mut member, 5, hung());
    member.step(at(1_000), Event::Unlinked { silent: false });
    assert!(member.step(at(1_500), Event::Tick).contains(&Action::Stop(Duration::from_millis(500))));

    let mut member = training();
    receive(&mut member, 5, hung());
    member.step(at(1_000), Event::Unlinked { silent: false });
    let busy = |actions: Vec<Action>| match actions.first() {
        Some(Action::Send(ToLeader::Hello(hello))) => hello.busy,
        _ => panic!("{actions:?}"),
    };
    assert_eq!(busy(member.step(at(1_100), Event::Linked)), Some(1), "its tree is not empty");
    member.step(at(1_200), Event::TreeEmpty(offer(&[20])));
    assert_eq!(busy(member.step(at(1_300), Event::Linked)), None);
}

#[test]
fn the_activity_of_the_processes_is_sent_before_the_report_of_a_hang() {
    let mut member = training();
    let tree = TreeState::of(Some(3), None, [('D', "nfs_wait".to_owned())]);
    let actions = member.step(at(4), Event::TreeReported(tree.clone()));
    assert!(actions.contains(&Action::Send(ToLeader::Tree { generation: 1, tree })), "{actions:?}");
    member.step(at(4), Event::Failed(Failure { class: Class::Hung, ..failure() }));
    assert!(member.step(at(20_000), Event::Tick).contains(&Action::Kill), "it may train until then");
}

#[test]
fn a_failure_is_sent_again_on_a_new_connection_until_the_leader_halts_the_generation() {
    let mut member = training();
    member.step(at(10), Event::Failed(failure()));
    let again = |ms, member: &mut Member| {
        member.step(at(ms), Event::Unlinked { silent: false });
        member.step(at(ms), Event::Linked);
        let sent = receive(member, ms, welcome(1));
        sent.iter().any(|action| matches!(action, Action::Send(ToLeader::Failed { generation: 1, .. })))
    };
    assert!(again(20, &mut member), "the first may have been lost");
    receive(&mut member, 30, ToMember::Halt { generation: 1, hung: false });
    assert!(!again(40, &mut member));
}

#[test]
fn a_failure_is_sent_before_the_offer() {
    let mut member = training();
    member.step(at(10), Event::Unlinked { silent: false });
    member.step(at(20), Event::Failed(failure()));
    member.step(at(30), Event::TreeEmpty(offer(&[20])));
    member.step(at(40), Event::Linked);
    let actions = receive(&mut member, 50, welcome(1));
    let place = |is_it: fn(&Action) -> bool| actions.iter().position(is_it);
    let failed = place(|action| matches!(action, Action::Send(ToLeader::Failed { .. })));
    let offered = place(|action| matches!(action, Action::Send(ToLeader::Offer { .. })));
    assert!(failed.is_some() && failed < offered, "{actions:?}");
}

fn beats(actions: &[Action]) -> Vec<&Beat> {
    let beat = |action| if let &Action::Send(ToLeader::Beat(ref beat)) = action { Some(beat) } else { None };
    actions.iter().filter_map(beat).collect()
}

#[test]
fn the_success_of_a_trainer_is_reported_before_its_last_commit() {
    let mut member = training();
    let actions = member.step(at(10), Event::Succeeded);
    assert!(matches!(beats(&actions)[..], [Beat { succeeded: Some(1), commits: true, .. }]), "{actions:?}");
    member.step(at(20), Event::Unlinked { silent: false });
    let later = member.step(at(19_000), Event::Tick);
    assert!(!later.iter().any(|action| matches!(action, Action::Stop(_) | Action::Kill)), "{later:?}");
    member.step(at(19_001), Event::Finished);
    assert_eq!(member.state(), "finished");
}

#[test]
fn a_success_is_lost_with_its_generation_unless_it_is_the_chiefs() {
    let halt = || ToMember::Halt { generation: 1, hung: false };
    let mut worker = training();
    worker.step(at(10), Event::Succeeded);
    assert!(receive(&mut worker, 20, halt()).iter().any(|action| matches!(action, Action::Stop(_))));
    let mut chief = training();
    chief.leader_seat = chief.seat;
    chief.step(at(10), Event::Succeeded);
    receive(&mut chief, 20, halt());
    assert_eq!(chief.state(), "committing");
}

#[test]
fn the_reason_for_leaving_is_sent_before_the_last_message() {
    let departure = Departure { code: 204, reason: "store".to_owned(), detail: "full".to_owned() };
    let actions = training().step(at(10), Event::Leaves(departure.clone()));
    assert_eq!(beats(&actions)[0].leaves, Some(departure));
    assert_eq!(actions[1], Action::Send(ToLeader::Leaving));
}

#[test]
fn a_restore_without_progress_for_a_minute_has_failed() {
    let mut member = member(Role::Worker);
    member.step(at(0), Event::Linked);
    receive(&mut member, 1, welcome(0));
    let steps = vec![Step { step: Some(10), hash: 10, is_stored: true }];
    member.step(at(2), Event::TreeEmpty(Offer { steps, ..Offer::default() }));
    receive(&mut member, 3, ToMember::Agreed { generation: 1, choice: Choice::Own(10) });
    let failed = |actions: &[Action]| {
        actions.iter().find_map(|action| match action {
            Action::Send(ToLeader::CannotRestore { generation: 1, why }) => Some(why.clone()),
            _ => None,
        })
    };
    assert_eq!(failed(&member.step(at(50_000), Event::Restoring(5, 9))), None);
    assert_eq!(failed(&member.step(at(109_000), Event::Tick)), None, "it made progress in the last minute");
    let actions = member.step(at(110_000), Event::Tick);
    assert_eq!(failed(&actions).as_deref(), Some("no progress for 60 s at 5 of 9 bytes"));
    assert!(actions.contains(&Action::Survey), "the restore is cancelled");
}

#[test]
fn a_member_knows_from_the_first_moment_for_whom_it_waits() {
    let mut member = member(Role::Worker);
    assert_eq!(member.waiting_for(), [Seat::new(Role::Chief, 0)], "the leader");
    member.step(at(0), Event::Linked);
    receive(&mut member, 1, welcome(0));
    let missing = vec![Seat::new(Role::Worker, 7)];
    receive(&mut member, 2, ToMember::Echo { clock: 0, save_at: None, save_step: None, missing: missing.clone() });
    assert_eq!(member.waiting_for(), missing);
}

#[test]
fn after_a_notice_all_save_at_the_leaders_step_if_it_comes_in_time() {
    let next = |within| ToMember::Echo {
        clock: 0,
        save_at: Some(SaveAt { step: 70, within }),
        save_step: None,
        missing: Vec::new(),
    };
    let lead = Duration::from_secs(30);
    let told = |actions: Vec<Action>| {
        actions.into_iter().find_map(|action| match action {
            Action::Send(ToLeader::Notice { save_at, .. }) => Some(save_at),
            _ => None,
        })
    };
    let mut noticed = training();
    receive(&mut noticed, 5_000, next(10_000));
    assert_eq!(noticed.save_at(lead), Some(70));
    receive(&mut noticed, 5_001, ToMember::Echo { clock: 0, save_at: None, save_step: None, missing: Vec::new() });
    assert_eq!(told(noticed.step(at(5_002), Event::Noticed(lead))), Some(Some(70)), "the first answer is final");
    let mut slow = training();
    receive(&mut slow, 5_000, next(10_001));
    assert_eq!(told(slow.step(at(5_001), Event::Noticed(lead))), Some(None));
    let mut other = training();
    receive(&mut other, 5_000, ToMember::Save { lead: 1, leave: false, save_at: Some(70) });
    assert_eq!(other.save_at(Duration::ZERO), Some(70));
}

#[test]
fn a_save_that_the_leaders_replica_asks_for_is_named_to_all() {
    let mut member = training();
    member.ask_to_save(500);
    assert!(matches!(beats(&member.step(at(2_500), Event::Tick))[..], [Beat { save_step: Some(500), .. }]));
    receive(&mut member, 2_501, ToMember::Echo { clock: 0, save_at: None, save_step: Some(500), missing: Vec::new() });
    assert_eq!(member.save_step(), Some(500));
}
