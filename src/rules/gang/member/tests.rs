use std::time::Duration;

use super::super::hang::TreeState;
use super::super::message::{Choice, Class, Failure, Offer, Record, Step, ToLeader, ToMember};
use super::super::seat::{Incarnation, Seat};
use super::super::{Generation, Timing};
use super::{Action, Event, Leave, Member};
use crate::cluster::spec::Role;

const LEADER: Incarnation = Incarnation(1);

fn at(ms: u64) -> Duration {
    Duration::from_millis(1_000_000 + ms)
}

fn offer(steps: &[u64]) -> Offer {
    Offer {
        steps: steps.iter().map(|step| Step { step: Some(*step), hash: *step, is_stored: true }).collect(),
        ..Offer::default()
    }
}

fn member(role: Role) -> Member {
    let chief = Seat::new(Role::Chief, 0);
    Member::new(at(0), Seat::new(role, 0), chief, Incarnation(7), "host".to_owned(), Timing::default()).0
}

fn hear(member: &mut Member, ms: u64, message: ToMember) -> Vec<Action> {
    member.step(at(ms), Event::Received(message))
}

fn welcome(newest: Generation) -> ToMember {
    ToMember::Welcome { leader: LEADER, lease: 20_000, newest }
}

fn echo(ms: u64) -> ToMember {
    ToMember::Echo { clock: at(ms).as_millis() as u64 }
}

/// A worker that offers step 20 and has its seat at 0 ms.
fn ready() -> Member {
    let mut member = member(Role::Worker);
    member.step(at(0), Event::TreeEmpty(offer(&[20])));
    member.step(at(0), Event::Linked);
    hear(&mut member, 0, welcome(0));
    hear(&mut member, 0, echo(0));
    member
}

/// The same in training, with a lease from 0 ms on.
fn training() -> Member {
    let mut member = ready();
    hear(&mut member, 1, ToMember::Agreed { generation: 1, choice: Choice::Own(20) });
    member.step(at(2), Event::Restored);
    let actions = hear(&mut member, 3, ToMember::Go { generation: 1, record: Record::default() });
    assert!(actions.contains(&Action::Launch(1)), "{actions:?}");
    member
}

fn failure() -> Failure {
    Failure { class: Class::Code, code: Some(1), signal: None, step: None, detail: "x".repeat(999) }
}

#[test]
fn the_leases_end_kills_at_once_before_anything_else_is_read() {
    let mut member = training();
    assert!(!member.step(at(19_999), Event::Tick).contains(&Action::Kill));
    let actions = hear(&mut member, 20_000, echo(19_000));
    assert_eq!(actions[0], Action::Kill, "an echo that waited does not save a trainer whose lease has ended");
}

#[test]
fn an_echo_prolongs_the_lease_and_one_of_a_time_to_come_does_not() {
    let mut member = training();
    hear(&mut member, 10_000, echo(15_000));
    assert!(member.step(at(20_000), Event::Tick).contains(&Action::Kill));
    let mut member = training();
    hear(&mut member, 10_000, echo(9_000));
    assert!(!member.step(at(28_999), Event::Tick).contains(&Action::Kill));
    assert!(member.step(at(29_000), Event::Tick).contains(&Action::Kill));
}

#[test]
fn a_closed_connection_stops_the_trainer_after_the_grace_unless_the_seat_is_ours_again() {
    let stop = Action::Stop(Duration::from_millis(500));
    let mut member = training();
    member.step(at(1_000), Event::Unlinked { silent: false });
    assert!(!member.step(at(1_499), Event::Tick).contains(&stop));
    member.step(at(1_499), Event::Linked);
    assert!(member.step(at(1_500), Event::Tick).contains(&stop), "a connection without a seat is not enough");
    let mut member = training();
    member.step(at(1_000), Event::Unlinked { silent: false });
    member.step(at(1_200), Event::Linked);
    hear(&mut member, 1_400, welcome(1));
    assert!(!member.step(at(1_600), Event::Tick).contains(&stop));
}

#[test]
fn an_agent_that_stood_still_without_a_connection_kills_when_it_wakes() {
    let mut member = training();
    member.step(at(1_000), Event::Unlinked { silent: false });
    assert_eq!(member.step(at(9_000), Event::Tick)[0], Action::Kill, "although its lease has not ended");
}

#[test]
fn a_peer_chooses_only_among_this_nodes_own_steps() {
    let mut member = ready();
    let actions = hear(&mut member, 1, ToMember::Agreed { generation: 1, choice: Choice::Own(30) });
    assert!(matches!(&actions[0], Action::Send(ToLeader::CannotRestore { generation: 1, .. })), "{actions:?}");
    assert_eq!(member.state(), "ready");
}

#[test]
fn go_starts_nothing_that_is_not_armed_or_of_another_generation() {
    let mut member = ready();
    hear(&mut member, 1, ToMember::Go { generation: 1, record: Record::default() });
    assert_eq!(member.training(), None);
    hear(&mut member, 1, ToMember::Agreed { generation: 2, choice: Choice::Own(20) });
    member.step(at(2), Event::Restored);
    hear(&mut member, 3, ToMember::Go { generation: 1, record: Record::default() });
    assert_eq!(member.training(), None);
    hear(&mut member, 20_000, ToMember::Go { generation: 2, record: Record::default() });
    assert_eq!(member.training(), None, "without a living lease");
}

#[test]
fn a_death_is_reported_with_its_age_even_after_the_connection_was_away() {
    let mut member = training();
    member.step(at(1_000), Event::Unlinked { silent: false });
    member.step(at(1_010), Event::Failed(failure()));
    member.step(at(1_100), Event::Linked);
    let actions = hear(&mut member, 1_310, welcome(1));
    let told = actions.iter().find_map(|action| match action {
        Action::Send(ToLeader::Failed { generation, age, failure }) => Some((*generation, *age, failure.detail.len())),
        _ => None,
    });
    assert_eq!(told, Some((1, 300, 300)));
}

#[test]
fn a_survey_from_before_another_agent_had_the_seat_is_repeated() {
    let mut member = member(Role::Worker);
    member.step(at(0), Event::TreeEmpty(offer(&[])));
    member.step(at(1), Event::Linked);
    hear(&mut member, 2, ToMember::Refused { why: "the seat is taken".to_owned() });
    member.step(at(3), Event::Unlinked { silent: false });
    member.step(at(60_000), Event::Linked);
    let actions = hear(&mut member, 60_001, welcome(1));
    assert!(actions.contains(&Action::Survey), "{actions:?}");
    let is_offer = |action: &Action| matches!(action, Action::Send(ToLeader::Offer { .. }));
    assert!(!actions.iter().any(is_offer), "{actions:?}");
}

#[test]
fn the_kept_step_never_goes_back() {
    let mut member = ready();
    assert!(hear(&mut member, 1, ToMember::Kept { step: 20 }).contains(&Action::Keep(20)));
    assert!(!hear(&mut member, 2, ToMember::Kept { step: 10 }).contains(&Action::Keep(10)));
}

#[test]
fn a_member_waits_for_the_leader_for_the_limit_and_leaves_with_its_name() {
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
fn a_leader_that_is_not_there_is_named_every_30_seconds() {
    let mut member = member(Role::Worker);
    let is_named = |actions: &[Action]| actions.contains(&Action::Waiting(vec![Seat::new(Role::Chief, 0)]));
    let named = [29_999, 30_000, 59_999, 60_000].map(|ms| is_named(&member.step(at(ms), Event::Tick)));
    assert_eq!(named, [false, true, false, true]);
    member.step(at(61_000), Event::Linked);
    hear(&mut member, 61_000, welcome(0));
    assert!(!is_named(&member.step(at(95_000), Event::Tick)), "the leader names the missing members");
}

#[test]
fn at_the_end_each_role_has_its_own_time() {
    let (minute, ten) = (Duration::from_secs(60), Duration::from_secs(600));
    assert!(hear(&mut training(), 4, ToMember::Finish).contains(&Action::End(minute)));
    assert!(hear(&mut member(Role::Evaluator), 4, ToMember::Finish).contains(&Action::End(ten)));
    let reducer = hear(&mut member(Role::Reducer), 4, ToMember::Finish);
    assert!(reducer.contains(&Action::Stop(Duration::from_millis(500))), "{reducer:?}");
}

#[test]
fn an_evaluator_stands_beside_the_barrier_until_the_end() {
    let mut member = member(Role::Evaluator);
    member.step(at(0), Event::Linked);
    hear(&mut member, 1, welcome(0));
    for message in [
        ToMember::Agreed { generation: 1, choice: Choice::Start },
        ToMember::Go { generation: 1, record: Record::default() },
        ToMember::Halt { generation: 1, hung: false },
        ToMember::Save { lead: 1, leave: false },
    ] {
        let actions = hear(&mut member, 2, message);
        let quiet = |action: &Action| matches!(action, Action::Wake(_) | Action::Send(ToLeader::Beat { .. }));
        assert!(actions.iter().all(quiet), "{actions:?}");
    }
    hear(&mut member, 3, ToMember::Finish);
    assert!(member.step(at(4), Event::TreeEmpty(offer(&[]))).contains(&Action::Leave(Leave::Finished)));
}

#[test]
fn a_new_leader_hears_which_leader_was_before_and_since_when_it_was_silent() {
    let former = |silent: bool| {
        let mut member = training();
        member.step(at(1_000), Event::Unlinked { silent });
        // A connection that was refused says nothing of the leader before.
        member.step(at(2_000), Event::Linked);
        hear(&mut member, 2_000, ToMember::Refused { why: String::new() });
        member.step(at(2_000), Event::Unlinked { silent: false });
        let actions = member.step(at(4_000), Event::Linked);
        let Some(Action::Send(ToLeader::Hello(hello))) = actions.first() else { panic!("{actions:?}") };
        hello.former.map(|former| (former.leader, former.silent_for))
    };
    assert_eq!(former(true), Some((LEADER, Some(3_000))));
    assert_eq!(former(false), Some((LEADER, None)));
}

#[test]
fn a_trainer_of_a_gang_that_hangs_is_aborted_and_the_lease_holds_for_it_until_its_tree_is_empty() {
    let hung = || ToMember::Halt { generation: 1, hung: true };
    let mut member = training();
    assert!(hear(&mut member, 4, ToMember::ReportTree { generation: 1 }).contains(&Action::ReportTree));
    assert!(!hear(&mut member, 4, ToMember::ReportTree { generation: 2 }).contains(&Action::ReportTree));
    assert!(hear(&mut member, 5, hung()).contains(&Action::Abort));
    assert!(!member.step(at(19_999), Event::Tick).contains(&Action::Kill));
    assert!(member.step(at(20_000), Event::Tick).contains(&Action::Kill));
    assert!(!member.step(at(20_001), Event::Tick).contains(&Action::Kill), "once");

    let mut member = training();
    hear(&mut member, 5, hung());
    member.step(at(1_000), Event::Unlinked { silent: false });
    assert!(member.step(at(1_500), Event::Tick).contains(&Action::Stop(Duration::from_millis(500))));

    let mut member = training();
    hear(&mut member, 5, hung());
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
fn what_the_processes_do_is_told_before_the_hang_of_its_own() {
    let mut member = training();
    let tree = TreeState::of(Some(3), None, [('D', "nfs_wait".to_owned())]);
    let actions = member.step(at(4), Event::TreeReported(tree.clone()));
    assert!(actions.contains(&Action::Send(ToLeader::Tree { generation: 1, tree })), "{actions:?}");
    member.step(at(4), Event::Failed(Failure { class: Class::Hung, ..failure() }));
    assert!(member.step(at(20_000), Event::Tick).contains(&Action::Kill), "it may train until then");
}

#[test]
fn a_death_is_said_again_on_a_new_connection_until_the_leader_halts_the_generation() {
    let mut member = training();
    member.step(at(10), Event::Failed(failure()));
    let again = |ms, member: &mut Member| {
        member.step(at(ms), Event::Unlinked { silent: false });
        member.step(at(ms), Event::Linked);
        let said = hear(member, ms, welcome(1));
        said.iter().any(|action| matches!(action, Action::Send(ToLeader::Failed { generation: 1, .. })))
    };
    assert!(again(20, &mut member), "the first may have been lost");
    hear(&mut member, 30, ToMember::Halt { generation: 1, hung: false });
    assert!(!again(40, &mut member));
}

#[test]
fn a_death_is_said_before_what_can_be_restored() {
    let mut member = training();
    member.step(at(10), Event::Unlinked { silent: false });
    member.step(at(20), Event::Failed(failure()));
    member.step(at(30), Event::TreeEmpty(offer(&[20])));
    member.step(at(40), Event::Linked);
    let actions = hear(&mut member, 50, welcome(1));
    let place = |is_it: fn(&Action) -> bool| actions.iter().position(is_it);
    let fell = place(|action| matches!(action, Action::Send(ToLeader::Failed { .. })));
    let offered = place(|action| matches!(action, Action::Send(ToLeader::Offer { .. })));
    assert!(fell.is_some() && fell < offered, "{actions:?}");
}
