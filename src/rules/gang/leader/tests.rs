use std::time::Duration;

use super::super::beat::Beat;
use super::super::claim::{Claim, JobState};
use super::super::message::{Choice, Class, Failure, FormerLeader, Hello, Offer, Record, Step, ToLeader, ToMember};
use super::super::{Generation, Incarnation};
use super::{Action, Config, Event, Leader, Link, OnNotice};
use crate::cluster::seat::Seat;
use crate::cluster::spec::Role;

const OWN: Incarnation = Incarnation(100);

pub(super) fn at(ms: u64) -> Duration {
    Duration::from_millis(1_000_000 + ms)
}

/// The seat of the member on this link: 0 is the chief.
pub(super) fn seat(number: u64) -> Seat {
    if number == 0 { Seat::new(Role::Chief, 0) } else { Seat::new(Role::Worker, number as u32 - 1) }
}

pub(super) fn leader(change: impl FnOnce(&mut Config)) -> Leader {
    let mut config = Config::of([seat(0), seat(1)], seat(0), OWN);
    change(&mut config);
    Leader::new(at(0), config)
}

/// A claim of another leader.
pub(super) fn claim_of(generation: Generation) -> Claim {
    Claim {
        generation,
        leader: Incarnation(99),
        host: "old".to_owned(),
        job_id: String::new(),
        job: JobState::default(),
    }
}

/// The job state in the claim of a job that starts without checkpoints.
pub(super) const NOTHING: JobState = JobState { from_nothing: true, from_scratch: false, has_finished: false };

/// Handles an event; the store grants each claim at once.
pub(super) fn step(leader: &mut Leader, ms: u64, event: Event) -> Vec<Action> {
    let mut actions = leader.step(at(ms), event);
    let requested =
        |action: &Action| if let Action::Claim { generation, .. } = action { Some(*generation) } else { None };
    while let Some(generation) = actions.iter().find_map(requested) {
        actions.retain(|action| requested(action).is_none());
        actions.extend(leader.step(at(ms), Event::Claimed(generation)));
    }
    actions
}

pub(super) fn hello(number: u64) -> Hello {
    Hello {
        seat: seat(number),
        incarnation: Incarnation(u128::from(number)),
        host: format!("host-{number}"),
        boot: String::new(),
        newest: 0,
        busy: None,
        former: None,
        record: Record::default(),
        settings: None,
    }
}

pub(super) fn receive(leader: &mut Leader, ms: u64, link: Link, message: ToLeader) -> Vec<Action> {
    step(leader, ms, Event::Received(link, message))
}

pub(super) fn offers(leader: &mut Leader, ms: u64, link: Link, after: Generation, steps: &[u64]) -> Vec<Action> {
    let steps = steps.iter().map(|step| Step { step: Some(*step), hash: *step, is_stored: true }).collect();
    receive(leader, ms, link, ToLeader::Offer { after, offer: Offer { steps, ..Offer::default() } })
}

pub(super) fn sent(actions: &[Action], link: Link) -> Vec<&ToMember> {
    let to = |action| match action {
        &Action::Send(to, ref message) if to == link => Some(message),
        _ => None,
    };
    actions.iter().filter_map(to).collect()
}

pub(super) fn starts(actions: &[Action]) -> bool {
    actions.iter().any(|action| matches!(action, Action::Send(_, ToMember::Agreed { .. })))
}

/// Both members join and offer. Returns the last actions.
pub(super) fn join(leader: &mut Leader, ms: u64) -> Vec<Action> {
    for number in [0, 1] {
        receive(leader, ms, number, ToLeader::Hello(hello(number)));
    }
    let newest = leader.generation();
    offers(leader, ms, 0, newest, &[20, 10]);
    offers(leader, ms, 1, newest, &[10])
}

pub(super) fn training() -> Leader {
    let mut leader = leader(|_| {});
    join(&mut leader, 0);
    receive(&mut leader, 1, 0, ToLeader::Armed { generation: 1 });
    let actions = receive(&mut leader, 2, 1, ToLeader::Armed { generation: 1 });
    assert!(actions.contains(&Action::Started(1)), "{actions:?}");
    leader
}

pub(super) fn failed(class: Class, step: Option<u64>) -> ToLeader {
    let failure = Failure { class, code: Some(1), signal: None, step, detail: String::new() };
    ToLeader::Failed { generation: 1, age: 0, failure, is_early: false }
}

#[test]
fn a_generation_starts_when_all_have_offered_and_all_are_armed() {
    let mut leader = leader(|_| {});
    let actions = join(&mut leader, 0);
    let agreed = ToMember::Agreed { generation: 1, choice: Choice::Own(10) };
    assert!(sent(&actions, 0).contains(&&agreed) && sent(&actions, 1).contains(&&agreed), "{actions:?}");
    assert!(!receive(&mut leader, 1, 0, ToLeader::Armed { generation: 1 }).contains(&Action::Started(1)));
    assert!(receive(&mut leader, 2, 1, ToLeader::Armed { generation: 1 }).contains(&Action::Started(1)));
}

#[test]
fn a_gang_gives_up_at_the_third_failed_restore_in_a_row() {
    let mut leader = leader(|_| {});
    join(&mut leader, 0);
    for (generation, ms) in [(1, 100), (2, 2_100), (3, 4_100)] {
        let fails = ToLeader::CannotRestore { generation, why: "no space".to_owned() };
        let actions = receive(&mut leader, ms, 1, fails);
        let gives_up = format!("{actions:?}").contains("cannot restore the agreed step: no space");
        assert_eq!(gives_up, generation == 3, "{generation}: {actions:?}");
        offers(&mut leader, ms + 10, 0, generation, &[10]);
        offers(&mut leader, ms + 20, 1, generation, &[10]);
        step(&mut leader, ms + 1_900, Event::Tick);
    }
}

#[test]
fn a_member_whose_start_was_lost_with_its_connection_gets_it_again() {
    let mut leader = training();
    let reconnects = Hello { busy: Some(1), newest: 1, ..hello(1) };
    assert!(!receive(&mut leader, 10, 7, ToLeader::Hello(reconnects)).contains(&Action::Started(1)));
    let actions = receive(&mut leader, 11, 7, ToLeader::Armed { generation: 1 });
    assert!(matches!(sent(&actions, 7)[..], [ToMember::Go { generation: 1, .. }]), "{actions:?}");
    assert!(!actions.contains(&Action::Started(1)), "a generation starts once");
}

#[test]
fn a_failure_halts_all_at_once_and_is_named_when_all_trees_are_empty() {
    let mut leader = training();
    let actions = receive(&mut leader, 5_000, 1, failed(Class::Code, Some(7)));
    assert!(sent(&actions, 0).contains(&&ToMember::Halt { generation: 1, hung: false }), "{actions:?}");
    offers(&mut leader, 5_010, 0, 1, &[10]);
    let actions = offers(&mut leader, 5_020, 1, 1, &[10]);
    assert!(matches!(sent(&actions, 0)[..], [ToMember::Named { generation: 1, .. }]), "{actions:?}");
    assert_eq!(leader.record().charged, 1);
    assert!(!starts(&step(&mut leader, 6_019, Event::Tick)), "the pause starts when the last tree is empty");
    assert!(starts(&step(&mut leader, 6_020, Event::Tick)));
}

#[test]
fn the_leader_may_borrow_its_trainers_port_before_the_start_and_after_its_tree_is_empty() {
    let mut leader = leader(|_| {});
    join(&mut leader, 0);
    receive(&mut leader, 1, 0, ToLeader::Armed { generation: 1 });
    assert!(leader.may_borrow_port() && !training().may_borrow_port());
    let mut leader = training();
    receive(&mut leader, 5_000, 1, failed(Class::Code, None));
    assert!(!leader.may_borrow_port(), "its trainer is stopping");
    offers(&mut leader, 5_010, 0, 1, &[10]);
    assert!(leader.may_borrow_port());
}

#[test]
fn an_offer_from_before_the_agreement_does_not_prove_an_empty_tree() {
    let mut leader = training();
    offers(&mut leader, 3, 1, 0, &[10]);
    assert_eq!(leader.state(), "training");
}

#[test]
fn a_silent_seat_is_lost_and_can_be_filled_only_after_the_lease() {
    let mut leader = training();
    receive(&mut leader, 19_000, 0, ToLeader::Beat(Beat::default()));
    step(&mut leader, 20_001, Event::Tick);
    assert_eq!(leader.state(), "training", "its last message was 2 ms after the start");
    let actions = step(&mut leader, 20_002, Event::Tick);
    assert!(sent(&actions, 0).contains(&&ToMember::Halt { generation: 1, hung: false }), "{actions:?}");
    let new = |ms| Event::Received(ms, ToLeader::Hello(Hello { incarnation: Incarnation(50), ..hello(1) }));
    let refused = |actions: &[Action], link| matches!(sent(actions, link)[..], [ToMember::Refused { .. }]);
    assert!(refused(&leader.step(at(20_901), new(20_901)), 20_901));
    assert!(!refused(&leader.step(at(20_902), new(20_902)), 20_902));
}

#[test]
fn a_second_agent_gets_the_seat_only_after_two_silent_beats_of_the_holder() {
    let mut leader = leader(|_| {});
    receive(&mut leader, 0, 1, ToLeader::Hello(hello(1)));
    let second = Hello { incarnation: Incarnation(50), ..hello(1) };
    let early = receive(&mut leader, 3_999, 5, ToLeader::Hello(second.clone()));
    assert!(matches!(sent(&early, 5)[..], [ToMember::Refused { .. }]), "{early:?}");
    let late = receive(&mut leader, 4_000, 6, ToLeader::Hello(second));
    assert!(matches!(sent(&late, 6)[..], [ToMember::Welcome { .. }]), "{late:?}");
}

#[test]
fn a_new_leader_waits_for_the_end_of_the_old_lease_unless_every_member_saw_its_connection_close() {
    let first_start = |former: Option<FormerLeader>| {
        let mut leader = leader(|config| config.newest_claim = Some(claim_of(4)));
        receive(&mut leader, 0, 0, ToLeader::Hello(hello(0)));
        receive(&mut leader, 0, 1, ToLeader::Hello(Hello { newest: 4, former, ..hello(1) }));
        for ms in (0..30_000).step_by(100) {
            receive(&mut leader, ms, 0, ToLeader::Beat(Beat::default()));
            let own = offers(&mut leader, ms, 0, 9, &[10]);
            if starts(&own) || starts(&offers(&mut leader, ms, 1, 9, &[10])) {
                return ms;
            }
        }
        panic!("it does not start")
    };
    let old = Incarnation(99);
    assert_eq!(first_start(Some(FormerLeader { leader: old, silent_for: None })), 1_500);
    assert_eq!(first_start(Some(FormerLeader { leader: old, silent_for: Some(5_000) })), 20_900);
    assert_eq!(first_start(None), 29_900, "new members: the old leader finds the claim, and the lease ends");
}

#[test]
fn a_new_leader_does_not_wait_for_a_gang_that_has_ended() {
    let mut leader = leader(|config| (config.newest_claim, config.former_has_ended) = (Some(claim_of(4)), true));
    let actions = join(&mut leader, 0);
    assert!(starts(&actions) && leader.generation() == 5, "{actions:?}");
}

#[test]
fn a_gang_has_ended_when_all_but_the_leader_have_left() {
    let mut leader = training();
    assert!(leader.ended_generation().is_none() && !leader.is_waiting_to_end(), "a member is still in the gang");
    receive(&mut leader, 5_000, 1, ToLeader::Notice { lead: 9_000, save_at: None });
    assert!(leader.is_waiting_to_end());
    receive(&mut leader, 5_000, 1, ToLeader::Leaving);
    assert!(!leader.is_waiting_to_end());
    assert_eq!(leader.ended_generation(), Some(1));
    receive(&mut leader, 6_000, 7, ToLeader::Hello(Hello { incarnation: Incarnation(50), ..hello(1) }));
    assert_eq!(leader.ended_generation(), None, "its seat is filled again");
}

#[test]
fn an_agent_that_surveyed_while_the_old_leader_lived_surveys_again() {
    let mut leader = leader(|_| {});
    receive(&mut leader, 0, 0, ToLeader::Hello(hello(0)));
    offers(&mut leader, 0, 0, 0, &[10]);
    let former = Some(FormerLeader { leader: Incarnation(99), silent_for: None });
    receive(&mut leader, 1, 1, ToLeader::Hello(Hello { newest: 4, former, ..hello(1) }));
    offers(&mut leader, 1, 1, 4, &[20, 10]);
    let actions = step(&mut leader, 1_501, Event::Tick);
    assert_eq!(sent(&actions, 0), [&ToMember::Halt { generation: 5, hung: false }]);
    assert!(starts(&offers(&mut leader, 1_502, 0, 5, &[20, 10])));
}

#[test]
fn after_the_limit_for_waiting_the_leader_gives_up_and_names_the_missing_seats() {
    let mut leader = leader(|config| config.timing.wait = Duration::from_secs(10));
    receive(&mut leader, 0, 5, ToLeader::Hello(Hello { seat: seat(0), ..hello(0) }));
    step(&mut leader, 10_000, Event::Tick);
    assert!(
        matches!(&leader.final_message, Some(ToMember::GiveUp { why, no_common_step: false, .. }) if why.contains("worker/0"))
    );
}

#[test]
fn without_a_common_step_the_leader_gives_up_with_a_table_unless_the_job_started_without_checkpoints() {
    let mut leader = leader(|_| {});
    for number in [0, 1] {
        receive(&mut leader, 0, number, ToLeader::Hello(hello(number)));
    }
    offers(&mut leader, 0, 0, 0, &[20]);
    offers(&mut leader, 0, 1, 0, &[]);
    let table = "chief/0 has 20, worker/0 has nothing";
    assert!(
        matches!(&leader.final_message, Some(ToMember::GiveUp { why, no_common_step: true, .. }) if why.contains(table))
    );
    // One has committed and the other has not: no step was ever common, so the job may start again.
    let mut leader = self::leader(|_| {});
    for number in [0, 1] {
        receive(&mut leader, 0, number, ToLeader::Hello(hello(number)));
        offers(&mut leader, 0, number, 0, &[]);
    }
    for number in [0, 1] {
        receive(&mut leader, 1, number, ToLeader::Armed { generation: 1 });
    }
    receive(&mut leader, 5_000, 1, failed(Class::Code, None));
    offers(&mut leader, 5_001, 0, 1, &[20]);
    offers(&mut leader, 5_001, 1, 1, &[]);
    let actions = step(&mut leader, 7_000, Event::Tick);
    assert!(sent(&actions, 1).contains(&&ToMember::Agreed { generation: 2, choice: Choice::Start }), "{actions:?}");
}

#[test]
fn after_the_same_failure_at_the_same_step_the_leader_gives_up_and_names_the_seat() {
    let mut leader = training();
    leader.record.last = Some((Class::Code, Some(7)));
    receive(&mut leader, 5_000, 1, failed(Class::Code, Some(7)));
    step(&mut leader, 5_500, Event::Tick);
    assert!(matches!(&leader.final_message, Some(ToMember::GiveUp { why, first: Some(first), .. })
        if why.starts_with("worker/0 failed") && first.seat == seat(1)));
}

#[test]
fn after_a_notice_the_others_save_and_hold_or_leave() {
    let notice = || ToLeader::Notice { lead: 9_000, save_at: Some(70) };
    let mut leader = training();
    let actions = receive(&mut leader, 5_000, 1, notice());
    assert_eq!(sent(&actions, 0), [&ToMember::Save { lead: 9_000, leave: false, save_at: Some(70) }]);
    assert!(sent(&actions, 1).is_empty(), "its own agent has the notice: {actions:?}");
    assert_eq!(leader.state(), "collecting");
    let mut leader = training();
    leader.config.on_notice = OnNotice::Leave;
    let actions = receive(&mut leader, 5_000, 1, notice());
    assert_eq!(sent(&actions, 0), [&ToMember::Save { lead: 9_000, leave: true, save_at: Some(70) }]);
    assert_eq!(leader.state(), "parting");
    receive(&mut leader, 6_000, 1, ToLeader::Leaving);
    assert_eq!(leader.state(), "done", "the leader's agent leaves last");
}

#[test]
fn the_end_of_the_chief_ends_all_and_the_leaders_agent_leaves_last() {
    let mut leader = training();
    let actions = receive(&mut leader, 5_000, 0, ToLeader::Finished { generation: 1 });
    assert_eq!(sent(&actions, 1), [&ToMember::Finish]);
    assert!(sent(&actions, 0).is_empty(), "{actions:?}");
    let actions = receive(&mut leader, 6_000, 1, ToLeader::Leaving);
    assert_eq!(sent(&actions, 0), [&ToMember::Finish]);
    assert!(actions.contains(&Action::Done));
}

#[test]
fn the_kept_step_is_the_newest_common_commit() {
    let mut leader = training();
    let beat = |committed| ToLeader::Beat(Beat { committed, ..Beat::default() });
    receive(&mut leader, 10, 0, beat(vec![20, 40]));
    let kept = |actions: &[Action]| sent(actions, 0).contains(&&ToMember::Kept { step: 40 });
    assert!(!kept(&receive(&mut leader, 20, 1, beat(vec![30, 50]))), "none is common");
    assert!(kept(&receive(&mut leader, 30, 1, beat(vec![30, 40, 50]))));
}

#[test]
fn no_agreement_is_sent_before_the_store_has_the_claim() {
    let mut leader = leader(|_| {});
    for number in [0, 1] {
        leader.step(at(0), Event::Received(number, ToLeader::Hello(hello(number))));
    }
    let offer = |number| Event::Received(number, ToLeader::Offer { after: 0, offer: Offer::default() });
    leader.step(at(0), offer(0));
    let actions = leader.step(at(0), offer(1));
    assert!(actions.contains(&Action::Claim { generation: 1, job: NOTHING }) && !starts(&actions), "{actions:?}");
    assert!(!starts(&leader.step(at(9_000), Event::Tick)));
    assert!(!starts(&leader.step(at(9_000), Event::Claimed(2))), "a claim that was not requested");
    assert!(starts(&leader.step(at(9_000), Event::Claimed(1))));
}

#[test]
fn a_leader_without_a_claim_takes_the_number_after_the_claimed_one() {
    let mut leader = leader(|_| {});
    for number in [0, 1] {
        leader.step(at(0), Event::Received(number, ToLeader::Hello(hello(number))));
        let offer = ToLeader::Offer { after: 0, offer: Offer::default() };
        leader.step(at(0), Event::Received(number, offer));
    }
    let actions = leader.step(at(100), Event::ClaimedByOther(claim_of(3)));
    assert!(actions.contains(&Action::Claim { generation: 4, job: NOTHING }), "{actions:?}");
    leader.step(at(100), Event::Claimed(4));
    let beat = || ToLeader::Beat(Beat::default());
    for ms in (200..40_000).step_by(100) {
        receive(&mut leader, ms, 0, beat());
        for number in [0, 1] {
            if starts(&offers(&mut leader, ms, number, 9, &[])) {
                // The number 4 was used to request new surveys.
                assert_eq!((ms, leader.generation()), (30_000, 5), "the owner of 3 had the time to find 4");
                return;
            }
        }
    }
    panic!("it does not start");
}

#[test]
fn a_leader_that_finds_a_newer_claim_halts_and_disconnects_its_members_and_leaves() {
    let mut leader = training();
    let checks = |actions: &[Action]| actions.contains(&Action::CheckForNewerClaim(2));
    assert!(checks(&leader.step(at(4_000), Event::Tick)) && !checks(&leader.step(at(7_999), Event::Tick)));
    leader.step(at(8_000), Event::ClaimedByOther(claim_of(1)));
    assert_eq!(leader.state(), "training", "the claim is not newer");
    let actions = leader.step(at(8_100), Event::ClaimedByOther(claim_of(2)));
    assert_eq!(sent(&actions, 1), [&ToMember::Halt { generation: 1, hung: false }]);
    assert!(actions.contains(&Action::Close(1)) && actions.contains(&Action::Done), "{actions:?}");
    let [ToMember::GiveUp { why, .. }] = sent(&actions, 0)[..] else { panic!("{actions:?}") };
    assert_eq!(why, "another agent of chief/0, on old, leads this job: it has claimed generation 2");
    let again = leader.step(at(9_000), Event::Received(7, ToLeader::Hello(hello(1))));
    assert!(matches!(sent(&again, 7)[..], [ToMember::Refused { .. }]), "{again:?}");
}
