//! Waiting for the peers.

use super::*;

fn gathering(policy: Policy) -> Machine {
    let mut machine = Machine::new(Policy { peers: Some("h0:1".to_owned()), ..policy });
    let begun = machine.step(secs(0.0), Event::Started);
    let begun = match machine.policy.checkpoints {
        true => {
            machine.step(secs(9.0), Event::Restored { resume: None, committed: None, older: false, is_further: false })
        }
        false => begun,
    };
    assert_eq!((begun, machine.state()), (vec![Action::AwaitPeers], &State::Gathering));
    machine
}

#[test]
fn the_command_starts_when_the_peers_are_reached_after_the_restore() {
    for policy in [Policy::default(), super::with_store()] {
        let mut machine = gathering(policy);
        assert_eq!(
            machine.step(secs(10.0), Event::PeersReached),
            [Action::Spawn { attempt: 1, generation: None, resume: None }]
        );
        assert_eq!(machine.step(secs(10.0), Event::PeersReached), []);
    }
}

#[test]
fn missing_peers_end_the_job_with_a_retryable_code() {
    let mut machine = gathering(Policy::default());
    let end = outcome(machine.step(secs(60.0), Event::PeersMissing { detail: "h0:1".into() }));
    assert_eq!((end.reason, end.exit_code, end.attempts), (Reason::Peer, 203, 0));
}

#[test]
fn a_stop_while_waiting_ends_at_once() {
    for event in [term(), Event::Preempted { id: String::new(), source: "x".into(), lead: secs(30.0) }] {
        let end = outcome(gathering(super::with_store()).step(secs(12.0), event));
        assert_eq!(end.exit_code, 143);
    }
    let int = Event::Signal { signal: Signal::INT, sender: Some(0) };
    assert_eq!(outcome(gathering(Policy::default()).step(secs(1.0), int)).exit_code, 130);
}

#[test]
fn later_attempts_do_not_wait_for_peers() {
    let mut machine = gathering(Policy { max_restarts: 1, ..Policy::default() });
    machine.step(secs(10.0), Event::PeersReached);
    machine.step(secs(10.1), Event::Spawned { pids: vec![7] });
    machine.step(secs(100.0), Event::MainEnded { local_rank: 0, end: End::Code(3), oom: Some(false) });
    machine.step(secs(100.0), Event::TreeEmpty);
    let again = machine.step(secs(101.0), Event::Due(Timer::Backoff));
    assert_eq!(again, [Action::Spawn { attempt: 2, generation: None, resume: None }]);
}
