//! Fetching the training data before the first start.

use super::*;
use crate::cluster::seat::Seat;
use crate::cluster::spec::Role;
use crate::gang::member::Action as Order;
use crate::job::InGang;

fn fetching(policy: Policy) -> Machine {
    let mut machine = Machine::new(Policy { fetches: true, ..policy });
    assert_eq!(machine.step(secs(0.0), Event::Started), [Action::Fetch]);
    assert_eq!((machine.state(), machine.snapshot().state), (&State::Fetching, "fetching"));
    machine
}

#[test]
fn the_restore_or_the_start_follows_the_data() {
    let start = [Action::Spawn { attempt: 1, generation: None, resume: None }];
    assert_eq!(fetching(Policy::default()).step(secs(9.0), Event::Fetched), start);
    let mut machine = fetching(super::with_store());
    assert_eq!(machine.step(secs(9.0), Event::Fetched), [Action::Restore]);
    assert_eq!(machine.step(secs(9.0), Event::Fetched), []);
    let peers = Some("h0:1".to_owned());
    let gather = fetching(Policy { peers, ..Policy::default() }).step(secs(9.0), Event::Fetched);
    assert_eq!(gather, [Action::AwaitPeers]);
}

#[test]
fn data_that_cannot_be_had_end_the_job_with_the_code_of_the_failure() {
    for (code, reason) in [(125, Reason::NotStarted), (204, Reason::Store)] {
        let missing = Event::NotFetched { code, detail: "gs://b/data".into() };
        let end = outcome(fetching(super::with_store()).step(secs(9.0), missing));
        assert_eq!((end.reason, end.exit_code, end.attempts), (reason, code, 0));
        assert_eq!(end.detail, "gs://b/data");
    }
}

#[test]
fn a_stop_while_data_are_fetched_ends_at_once() {
    for event in [term(), Event::Preempted { id: String::new(), source: "x".into(), lead: secs(30.0) }] {
        assert_eq!(outcome(fetching(super::with_store()).step(secs(2.0), event)).exit_code, 143);
    }
    let int = Event::Signal { signal: Signal::INT, sender: Some(0) };
    assert_eq!(outcome(fetching(Policy::default()).step(secs(2.0), int)).exit_code, 130);
}

#[test]
fn a_later_attempt_does_not_fetch_again() {
    let mut machine = fetching(Policy { max_restarts: 1, ..Policy::default() });
    feed(&mut machine, 10.0, [Event::Fetched, Event::Spawned { pids: vec![7] }, ended(3), Event::TreeEmpty]);
    let again = machine.step(secs(11.0), Event::Due(Timer::Backoff));
    assert_eq!(again, [Action::Spawn { attempt: 2, generation: None, resume: None }]);
}

#[test]
fn a_survey_that_the_gang_asks_for_meanwhile_is_made_when_the_data_are_there() {
    let gang = Some(InGang { seat: Seat::new(Role::Worker, 0), stop_grace: secs(1.0) });
    for is_asked_before in [true, false] {
        let mut machine = fetching(Policy { gang, ..Policy::default() });
        let survey = Event::Gang(Order::Survey);
        let events = if is_asked_before { [survey, Event::Fetched] } else { [Event::Fetched, survey] };
        let [first, second] = events.map(|event| machine.step(secs(9.0), event));
        assert_eq!((first, second), (vec![], vec![Action::Survey]));
    }
}
