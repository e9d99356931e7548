use std::time::Duration;

use proptest::prelude::*;

use super::*;

/// 30 s, from second 100 on; the last third begins at 120.
const GRACE: Grace = Grace { from: secs(100), until: secs(130) };

const fn secs(seconds: u64) -> Uptime {
    Duration::from_secs(seconds)
}

/// A process with the default action, started long before the stop.
fn default_action(pid: i32, parent: i32) -> Process {
    Process { pid, parent, started: 50, handles: false, is_main: false, signalled: None }
}

fn handler(pid: i32, parent: i32) -> Process {
    Process { handles: true, ..default_action(pid, parent) }
}

/// The tick is of the same second.
fn signalled(process: Process, at: u64) -> Process {
    Process { signalled: Some(Signalled { at: secs(at), tick: at }), ..process }
}

fn main(process: Process) -> Process {
    Process { is_main: true, ..process }
}

fn pids(tree: &[Process], now: u64) -> Vec<i32> {
    next_to_signal(tree, GRACE, secs(now)).iter().map(|process| process.pid).collect()
}

#[test]
fn workers_get_sigterm_only_after_the_trainer_that_started_them_has_ended() {
    let tree = [handler(10, 1), default_action(11, 10), default_action(12, 10)];
    assert_eq!(pids(&tree, 101), [10]);
    let tree = [signalled(handler(10, 1), 101), default_action(11, 10), default_action(12, 10)];
    assert_eq!(pids(&tree, 102), [0; 0]);
    assert_eq!(pids(&[default_action(11, 1), default_action(12, 1)], 103), [11, 12]);
}

#[test]
fn a_handler_below_a_handler_waits_until_that_one_has_ended() {
    let launcher = [handler(10, 1), default_action(11, 10), handler(12, 11), handler(13, 12)];
    assert_eq!(pids(&launcher, 101), [10]);
    assert_eq!(pids(&[handler(12, 1), handler(13, 12)], 102), [12]);
}

#[test]
fn the_reader_of_a_pipe_gets_sigterm_after_the_trainer_that_writes_to_it_has_ended() {
    assert_eq!(pids(&[handler(10, 1), default_action(11, 1)], 101), [10]);
    assert_eq!(pids(&[signalled(handler(10, 1), 101), default_action(11, 1)], 102), [0; 0]);
    assert_eq!(pids(&[default_action(11, 1)], 103), [11]);
}

#[test]
fn without_handlers_all_processes_get_sigterm_at_once() {
    assert_eq!(pids(&[default_action(10, 1), default_action(11, 10), default_action(12, 1)], 101), [10, 11, 12]);
}

#[test]
fn a_process_started_after_the_signal_is_left_alone_while_its_starter_lives() {
    let saver = Process { started: 101, ..default_action(11, 10) };
    let below = Process { started: 102, ..handler(12, 11) };
    let tree = [signalled(handler(10, 1), 101), saver, below];
    for (now, next) in [(102, vec![]), (119, vec![]), (120, vec![12]), (129, vec![12])] {
        assert_eq!(pids(&tree, now), next, "{now}: a process that needs no signal is left alone to the end");
    }
    assert_eq!(pids(&[Process { parent: 1, ..saver }], 103), [11]);
}

#[test]
fn in_the_last_third_the_rest_gets_sigterm_while_the_main_child_lives() {
    let shell = signalled(main(handler(10, 1)), 100);
    let tree = [shell, default_action(11, 10), handler(12, 11), default_action(20, 1)];
    assert_eq!(pids(&tree, 119), [0; 0]);
    assert_eq!(pids(&tree, 120), [11, 12, 20]);
}

#[test]
fn a_trainer_that_is_signalled_late_keeps_its_workers() {
    let shell = signalled(main(handler(10, 1)), 100);
    let tree = [shell, handler(11, 10), default_action(12, 11)];
    assert_eq!(pids(&tree, 120), [11]);
    let tree = [shell, signalled(handler(11, 10), 121), default_action(12, 11)];
    assert_eq!(pids(&tree, 129), [0; 0]);
    assert_eq!(pids(&[shell, default_action(12, 1)], 129), [12]);
}

#[test]
fn a_trainer_behind_shells_that_do_not_forward_is_signalled_at_the_last_third() {
    let tree = [signalled(main(handler(10, 1)), 100), handler(11, 10), handler(12, 11)];
    assert_eq!(pids(&tree, 120), [11, 12]);
}

#[test]
fn main_children_are_signalled_before_their_descendants_with_or_without_a_handler() {
    let tree = [main(default_action(10, 1)), handler(11, 10), handler(20, 1)];
    assert_eq!(pids(&tree, 101), [10, 20]);
}

#[test]
fn a_process_that_was_signalled_late_is_named_with_the_process_that_held_it_back() {
    let shell = signalled(main(handler(10, 1)), 100);
    let answer = Process { started: 110, ..default_action(13, 10) };
    let tree = [shell, signalled(handler(11, 10), 120), handler(12, 11), answer, signalled(default_action(14, 1), 120)];
    let names: Vec<(i32, i32)> =
        signalled_late(&tree, GRACE.last_third()).iter().map(|(late, holding)| (late.pid, holding.pid)).collect();
    assert_eq!(names, [(11, 10), (12, 10)]);
    assert!(
        signalled_late(&[signalled(handler(10, 1), 101), signalled(default_action(11, 10), 119)], GRACE.last_third())
            .is_empty()
    );
}

#[test]
fn an_empty_grace_is_all_last_third() {
    let nothing = Grace { from: secs(5), until: secs(5) };
    let tree = [handler(10, 1), default_action(11, 1)];
    assert_eq!(next_to_signal(&tree, nothing, secs(5)).len(), 2);
}

fn trees() -> impl Strategy<Value = Vec<Process>> {
    let process = |pid: i32| {
        (0..pid, 0..130u64, any::<bool>(), any::<bool>(), proptest::option::of(100..130u64)).prop_map(
            move |(parent, started, handles, is_main, at)| {
                let process = Process { pid, parent, started, handles, is_main, signalled: None };
                at.map_or(process, |at| signalled(process, at))
            },
        )
    };
    (1..12i32).prop_flat_map(move |count| (1..=count).map(process).collect::<Vec<_>>())
}

proptest! {
    #[test]
    fn no_process_is_signalled_twice_and_if_each_ends_all_are_signalled(tree in trees(), now in 100..119u64) {
        prop_assert!(next_to_signal(&tree, GRACE, secs(now)).iter().all(|process| process.signalled.is_none()));
        let mut left = tree;
        while !left.is_empty() {
            let next = pids(&left, now);
            let before = left.len();
            left.retain(|process| process.signalled.is_none() && !next.contains(&process.pid));
            prop_assert!(left.len() < before, "{left:?}");
        }
    }
}

#[test]
fn a_circle_of_process_ids_ends() {
    assert_eq!(pids(&[handler(10, 11), default_action(11, 10)], 101), [10]);
    assert_eq!(pids(&[default_action(10, 11), default_action(11, 10)], 101), [10, 11]);
}
