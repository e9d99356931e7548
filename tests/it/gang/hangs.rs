//! A gang that hangs: the leader logs the activity of each replica, suspicious ones first; every replica logs its stacks,
//! and all stop together.

use crate::support::gang::{Cluster, all_train, finish};
use crate::support::{Finished, Running, Trainit};

const START: &str = "echo generation=$TRAINIT_GENERATION pid=$$ .";

/// A trainer that reports this step for ever and stays alive. It starts many processes, and a shell is in state D for a moment
/// at each start: it must not look stuck in the kernel.
fn stays_at(step: u64) -> String {
    format!(
        "echo '{{\"step\": {step}}}' > $TRAINIT_HEARTBEAT_FILE; {START}; while :; do touch $TRAINIT_HEARTBEAT_FILE; sleep 0.01; done"
    )
}

fn with_hang(replica: Trainit, timeout: &str) -> Running {
    replica.env("TRAINIT_HANG_TIMEOUT", timeout).env("TRAINIT_MAX_RESTARTS", "0").start()
}

/// The first failure in the verdicts, which is the same in all.
fn first_of(ended: &[Finished]) -> serde_json::Value {
    let firsts: Vec<_> = ended.iter().map(|replica| replica.verdict()["gang"]["first"].clone()).collect();
    assert!(firsts.iter().all(|first| *first == firsts[0]), "{firsts:?}");
    firsts[0].clone()
}

#[test]
fn if_no_step_advances_the_leader_names_the_replica_that_is_behind_and_all_log_their_stacks() {
    let cluster = Cluster::of_workers(3);
    let start = |(index, step)| with_hang(cluster.replica("worker", index, &stays_at(step)), "2s");
    let ended = finish([(0, 5), (1, 4), (2, 5)].map(start).into());
    let first = first_of(&ended);
    assert_eq!((&first["seat"], &first["reason"], &first["step"]), (&"worker/1".into(), &"hung".into(), &4.into()));
    let detail = first["detail"].as_str().unwrap();
    assert!(detail.contains("suspicious: worker/1 at step 4 (") && detail.contains("most are at step 5"), "{first}");
    for replica in ended {
        let log = replica.expect_code(203).err();
        assert!(log.contains("hangs: the leader reports") && log.contains("(sh): 1 thread "), "{log}");
        let table: Vec<&str> = log.lines().filter(|line| line.contains("processes: ")).collect();
        let seats = ["worker/1 on ", "worker/0 on ", "worker/2 on "];
        let is_leader = log.contains("leads the gang");
        assert_eq!(table.len(), if is_leader { 3 } else { 0 }, "{log}");
        assert!(table.iter().zip(seats).all(|(line, seat)| line.contains(seat)), "{table:?}");
    }
}

#[test]
fn a_replica_that_detects_its_own_hang_stops_all_and_the_others_report_their_activity() {
    let cluster = Cluster::of_workers(2);
    let sleeps = format!("{START}; exec sleep 1000");
    let other = cluster.replica("worker", 0, &sleeps).env("TRAINIT_MAX_RESTARTS", "0").start();
    let hung = with_hang(cluster.replica("worker", 1, &sleeps), "400ms");
    all_train([&other, &hung], 1);
    let ended = finish(vec![other, hung]);
    let first = first_of(&ended);
    assert_eq!((&first["seat"], &first["reason"]), (&"worker/1".into(), &"hung".into()));
    let detail = first["detail"].as_str().unwrap();
    assert!(detail.contains("no sign of life") && detail.ends_with("no replica is suspicious"), "{detail}");
    let log = ended[0].err();
    assert!(log.contains("the gang hangs, worker/1: ") && log.contains("(sleep): 1 thread asleep"), "{log}");
    assert_eq!(ended[1].verdict()["reason"], "hung");
    ended.into_iter().zip([203, 201]).for_each(|(replica, code)| drop(replica.expect_code(code)));
}
