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
    let disposition = Disposition::Default;
    Process {
        pid,
        parent,
        started: 50,
        terminal: 0,
        disposition,
        is_main: false,
        role: Role::default(),
        signalled: None,
    }
}

fn handler(pid: i32, parent: i32) -> Process {
    Process { disposition: Disposition::Handles, ..default_action(pid, parent) }
}

fn ignorer(pid: i32, parent: i32) -> Process {
    Process { disposition: Disposition::Ignores, ..default_action(pid, parent) }
}

fn on_terminal(terminal: i32, process: Process) -> Process {
    Process { terminal, ..process }
}

fn ranked(rank: u32, process: Process) -> Process {
    Process { role: Role { rank, ..process.role }, ..process }
}

fn reads(process: Process, from_handler: bool, from_service: bool) -> Process {
    Process { role: Role { input: Input::Pipe { from_handler, from_service }, ..process.role }, ..process }
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

#[test]
fn a_process_that_ignores_the_signal_is_transparent_also_if_it_is_the_main_child() {
    let tree = [signalled(main(ignorer(10, 1)), 100), handler(11, 10), default_action(12, 11)];
    assert_eq!(pids(&tree, 101), [11]);
    assert_eq!(pids(&[signalled(main(ignorer(10, 1)), 100), default_action(12, 10)], 101), [12]);
}

#[test]
fn the_end_of_a_signalled_process_makes_what_it_left_next_while_other_main_children_live() {
    let rank = signalled(main(handler(10, 1)), 100);
    let shell = signalled(main(default_action(20, 1)), 100);
    assert_eq!(pids(&[rank, shell, handler(21, 20)], 101), [0; 0]);
    assert_eq!(pids(&[rank, handler(21, 1), default_action(22, 21)], 102), [21]);
    assert_eq!(pids(&[rank, default_action(22, 1)], 103), [0; 0], "it may be part of the other rank's save");
}

#[test]
fn a_reader_of_a_pipe_ends_by_itself_and_gets_the_signal_in_the_last_third_after_late_handlers() {
    let tee = reads(default_action(12, 1), true, false);
    assert_eq!(pids(&[handler(11, 1), tee], 101), [11]);
    assert_eq!((pids(&[tee], 119), pids(&[tee], 120)), (vec![], vec![12]));
    let trapped = signalled(main(handler(10, 1)), 100);
    assert_eq!(pids(&[trapped, handler(11, 10), tee], 120), [11]);
    assert_eq!(pids(&[trapped, signalled(handler(11, 10), 120), tee], 129), [0; 0]);
    assert_eq!(pids(&[trapped, tee], 129), [12]);
}

#[test]
fn a_handler_with_a_pipe_as_its_input_is_left_alone_only_if_a_handler_writes_to_it() {
    let rotating = |from_handler| reads(handler(12, 1), from_handler, false);
    assert_eq!(pids(&[handler(11, 1), rotating(true)], 101), [11]);
    assert_eq!(pids(&[default_action(11, 1), rotating(false)], 101), [12]);
}

#[test]
fn a_holder_of_a_terminal_waits_for_what_lives_on_it_but_not_for_a_shell_that_ignores_the_signal() {
    let server = handler(10, 1);
    let shell = on_terminal(5, ignorer(11, 10));
    assert_eq!(pids(&[server, shell, on_terminal(5, handler(12, 11))], 101), [12]);
    assert_eq!(pids(&[server, shell, on_terminal(5, default_action(12, 11))], 101), [11, 12]);
    assert_eq!(pids(&[server, shell], 102), [10]);
    let background = on_terminal(5, ranked(1, handler(13, 11)));
    assert_eq!(pids(&[server, shell, background], 102), [10], "a service on the terminal waits for its holder");
    let trainer = signalled(on_terminal(5, handler(12, 10)), 101);
    for (now, next) in [(120, vec![]), (126, vec![]), (127, vec![10])] {
        assert_eq!(pids(&[main(server), trainer], now), next, "{now}");
    }
    assert_eq!(waiting_mains(&[main(server), trainer]), HashSet::from([10]));
    let same = [main(on_terminal(5, handler(10, 1))), on_terminal(5, handler(12, 10))];
    assert_eq!((pids(&same, 101), waiting_mains(&same)), (vec![10], HashSet::new()));
}

#[test]
fn what_serves_waits_for_what_it_serves_also_for_readers_but_not_for_one_of_its_own_output() {
    let (service, mount) = (ranked(1, handler(20, 1)), ranked(2, default_action(30, 1)));
    assert_eq!(pids(&[handler(10, 1), service, mount], 101), [10]);
    assert_eq!(pids(&[default_action(10, 1), service, mount], 101), [10], "a service does not delay what it serves");
    assert_eq!(pids(&[service, mount], 102), [20]);
    assert_eq!(pids(&[mount], 103), [30]);
    let tee = |from_service| reads(default_action(12, 1), true, from_service);
    assert_eq!((pids(&[tee(false), service], 102), pids(&[tee(true), service], 102)), (vec![], vec![20]));
    assert_eq!(pids(&[ignorer(10, 1), service], 102), [20], "it ignores the signal and may never end");
    let saving = signalled(main(handler(10, 1)), 100);
    assert_eq!((pids(&[saving, service], 126), pids(&[saving, service], 127)), (vec![], vec![20]));
}

#[test]
fn only_what_the_end_of_the_grace_brings_forward_is_late() {
    let shell = signalled(main(handler(10, 1)), 100);
    let late = |tree: &[Process], now| -> Vec<i32> {
        only_because_late(tree, GRACE, secs(now)).iter().map(|process| process.pid).collect()
    };
    assert_eq!(late(&[shell, handler(11, 10)], 120), [11]);
    assert_eq!(late(&[default_action(11, 1)], 120), [0; 0], "its turn has come in the order of the tree");
}

fn trees() -> impl Strategy<Value = Vec<Process>> {
    let dispositions = [Disposition::Default, Disposition::Ignores, Disposition::Handles];
    let inputs = [true, false].map(|from_handler| Input::Pipe { from_handler, from_service: false });
    let input = prop_oneof![4 => Just(Input::Other), 1 => prop::sample::select(inputs.to_vec())];
    let role = (0..3u32, input).prop_map(|(rank, input)| Role { rank, input });
    let process = move |pid: i32| {
        let role = role.clone();
        let what = (prop::sample::select(dispositions.to_vec()), 0..3i32, role);
        (0..pid, 0..130u64, what, any::<bool>(), proptest::option::of(100..130u64)).prop_map(
            move |(parent, started, (disposition, terminal, role), is_main, at)| {
                let process = Process { pid, parent, started, terminal, disposition, is_main, role, signalled: None };
                at.map_or(process, |at| signalled(process, at))
            },
        )
    };
    (1..12i32).prop_flat_map(move |count| (1..=count).map(process.clone()).collect::<Vec<_>>())
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
            if left.len() == before {
                // What is left reads, and its writers have ended.
                left.retain(|process| process.role.input == Input::Other);
            }
            prop_assert!(left.len() < before, "{left:?}");
        }
    }
}

#[test]
fn a_circle_of_process_ids_ends() {
    assert_eq!(pids(&[handler(10, 11), default_action(11, 10)], 101), [10]);
    assert_eq!(pids(&[default_action(10, 11), default_action(11, 10)], 101), [10, 11]);
}
