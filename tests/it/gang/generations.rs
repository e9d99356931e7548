//! The replicas of a job stop and start together: several real trainits on loopback, one for each replica.

use std::io::Write;
use std::net::TcpStream;

use crate::support::gang::{Cluster, TRAINS, all_train, finish, status, trains};
use crate::support::{Running, Trainit, eventually, is_alive, send};

#[test]
fn a_trainer_that_is_killed_stops_all_and_all_start_the_next_generation() {
    let cluster = Cluster::of_workers(3);
    let replicas = cluster.workers(3, TRAINS);
    let first: Vec<i32> = replicas.iter().map(|replica| trains(replica, 1)).collect();
    send(first[1], libc::SIGKILL);
    all_train(&replicas, 2);
    assert!(first.iter().all(|pid| !is_alive(*pid)), "no trainer of the first generation is left");
    for replica in &replicas {
        replica.after_log("the gang was halted by worker/1");
    }
    replicas[0].after_log("the gang halts: SIGTERM");
}

#[test]
fn a_replica_whose_agent_is_killed_is_replaced_and_all_start_again() {
    for lost in [1, 0] {
        let cluster = Cluster::of_workers(2);
        let mut replicas = cluster.workers(2, TRAINS);
        let trainers: Vec<i32> = replicas.iter().map(|replica| trains(replica, 1)).collect();
        send(replicas[lost].pid(), libc::SIGKILL);
        let survivor = &replicas[1 - lost];
        eventually("the survivor's trainer is stopped", || !is_alive(trainers[1 - lost]));
        assert!(is_alive(survivor.pid()), "its agent waits");
        replicas[lost] = cluster.replica("worker", lost, TRAINS).start();
        // A new leader without a store skips a number.
        let next = if lost == 0 { 3 } else { 2 };
        all_train(&replicas, next);
    }
}

#[test]
fn a_replica_that_counts_other_nodes_is_named_on_both_sides_and_nothing_starts() {
    let cluster = Cluster::of_workers(3);
    let leader = cluster.replica("worker", 0, TRAINS).env("TRAINIT_GANG_CHECKPOINTS", "each").start();
    let other = cluster.replica("worker", 1, TRAINS).start();
    for replica in [&leader, &other] {
        replica.after_log("worker/1 on");
        replica.after_log("it has --gang-checkpoints auto, and the leader each");
    }
}

#[test]
fn a_replica_with_a_frozen_agent_halts_the_others_and_joins_them_when_the_agent_continues() {
    let cluster = Cluster::of_workers(2);
    let replicas: Vec<Running> = (0..2)
        .map(|index| cluster.replica("worker", index, TRAINS).env("TRAINIT_GANG_TIMEOUT", "2s").start())
        .collect();
    let trainers: Vec<i32> = replicas.iter().map(|replica| trains(replica, 1)).collect();
    send(replicas[1].pid(), libc::SIGSTOP);
    eventually("the leader's trainer is stopped", || !is_alive(trainers[0]));
    send(replicas[1].pid(), libc::SIGCONT);
    all_train(&replicas, 2);
    assert!(!is_alive(trainers[1]), "its own trainer was killed before it joined");
}

#[test]
fn when_the_chief_has_finished_servers_and_evaluator_end_with_0_and_the_leader_ends_last() {
    let cluster = Cluster::with_servers();
    let ends = "echo generation=$TRAINIT_GENERATION pid=$$ .; read line < /dev/stdin; exit 0";
    let mut chief = cluster.replica("chief", 0, ends);
    let (reader, mut writer) = std::io::pipe().unwrap();
    // The leader's times apply to all.
    chief = chief.env("TRAINIT_FINISH_GRACE", "100ms").env("TRAINIT_EVALUATOR_GRACE", "100ms").stdin(reader);
    let chief = chief.start();
    let worker = cluster
        .replica(
            "worker",
            0,
            "trap 'exit 7' TERM; echo generation=$TRAINIT_GENERATION pid=$$ .; \
                                               while :; do sleep 0.05; done",
        )
        .start();
    let server = cluster.replica("ps", 0, TRAINS).start();
    let evaluator = cluster.replica("evaluator", 0, "echo evaluates; exec sleep 1000").start();
    evaluator.after_line("evaluates");
    all_train([&chief, &worker, &server], 1);
    writer.write_all(b"end\n").unwrap();
    for replica in finish(vec![worker, server, evaluator, chief]) {
        let verdict = replica.expect_code(0).verdict();
        assert_eq!((&verdict["reason"], &verdict["gang"]["first"]), (&"finished".into(), &serde_json::Value::Null));
        assert_eq!(verdict["gang"]["members"], 3);
    }
}

#[test]
fn a_failure_without_remaining_restarts_ends_all_and_each_verdict_names_the_failed_replica() {
    let cluster = Cluster::of_workers(2);
    let fails = "echo generation=$TRAINIT_GENERATION pid=$$ .; read line; exit 9";
    let (reader, mut writer) = std::io::pipe().unwrap();
    let survivor = cluster.replica("worker", 0, TRAINS).env("TRAINIT_MAX_RESTARTS", "0").start();
    let failing = cluster.replica("worker", 1, fails).stdin(reader).start();
    trains(&survivor, 1);
    trains(&failing, 1);
    writer.write_all(b"fail\n").unwrap();
    let failed = failing.finish().expect_code(9).verdict();
    assert_eq!(failed["reason"], "failed");
    let verdict = survivor.finish().expect_code(203).verdict();
    assert_eq!((&verdict["reason"], &verdict["gang"]["generation"]), (&"peer".into(), &1.into()));
    let first = &verdict["gang"]["first"];
    assert_eq!((&first["seat"], &first["code"], &first["reason"]), (&"worker/1".into(), &9.into(), &"code".into()));
    assert_eq!(failed["gang"]["first"], *first);
}

#[test]
fn a_replica_with_another_token_reports_it_and_exits_with_203() {
    let cluster = Cluster::of_workers(2);
    let leader = cluster.replica("worker", 0, TRAINS).env("TRAINIT_GANG_TOKEN", "right").start();
    let other = cluster.replica("worker", 1, TRAINS).env("TRAINIT_GANG_TOKEN", "wrong").env("TRAINIT_GANG_WAIT", "2s");
    let other = other.start();
    leader.after_log("has another token or key than this gang");
    let ended = other.finish().expect_code(203);
    assert!(ended.verdict()["detail"].as_str().is_some_and(|detail| detail.contains("token")), "{}", ended.err());
    for log in [leader.log_so_far(), ended.err()] {
        assert!(!log.contains("right") && !log.contains("wrong"), "{log}");
    }
}

#[test]
fn a_foreign_connection_at_the_port_is_reported_and_blocks_nothing() {
    let cluster = Cluster::of_workers(2);
    let leader = cluster.replica("worker", 0, TRAINS).start();
    leader.after_log("leads the gang");
    let mut foreign = TcpStream::connect(("127.0.0.1", cluster.port)).unwrap();
    foreign.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
    leader.after_log("is no agent of this gang");
    let member = cluster.replica("worker", 1, TRAINS).start();
    all_train([&leader, &member], 1);
}

#[test]
fn after_the_wait_a_missing_replica_is_named_and_nothing_was_started() {
    let cluster = Cluster::of_workers(2);
    let alone = cluster.replica("worker", 0, "echo started").env("TRAINIT_GANG_WAIT", "1s").output().expect_code(203);
    assert!(alone.verdict()["detail"].as_str().is_some_and(|detail| detail.contains("worker/1")), "{}", alone.err());
    assert_eq!(alone.out(), "");
}

#[test]
fn the_trainer_does_not_see_the_token() {
    let cluster = Cluster::of_workers(2);
    let script = "echo token=${TRAINIT_GANG_TOKEN-none}; exec sleep 1000";
    let start = |index| cluster.replica("worker", index, script).env("TRAINIT_GANG_TOKEN", "secret").start();
    let replicas = [start(0), start(1)];
    replicas.iter().for_each(|replica| drop(replica.after_line("token=none")));
}

#[test]
fn after_a_notice_to_one_replica_the_others_save_and_start_again_with_its_replacement() {
    let cluster = Cluster::of_workers(2);
    let saves = "trap 'test -e \"$TRAINIT_PREEMPTION_FILE\" && echo saved; exit 0' TERM; \
                 echo generation=$TRAINIT_GENERATION pid=$$ .; while :; do sleep 0.05; done";
    let mut replicas = cluster.workers(2, saves);
    all_train(&replicas, 1);
    let noticed = replicas.remove(1);
    noticed.signal(libc::SIGTERM);
    let noticed = noticed.finish().expect_code(143);
    assert!(noticed.out().contains("saved"), "{}", noticed.out());
    replicas[0].after_line("saved");
    replicas.push(cluster.replica("worker", 1, saves).start());
    all_train(&replicas, 2);
}

#[test]
fn if_the_platform_restarts_all_replicas_they_leave_together_after_a_notice_to_one() {
    let cluster = Cluster::of_workers(2);
    let start = |index| cluster.replica("worker", index, TRAINS).env("TRAINIT_GANG_ON_NOTICE", "leave").start();
    let replicas = vec![start(0), start(1)];
    all_train(&replicas, 1);
    replicas[1].signal(libc::SIGTERM);
    for replica in finish(replicas) {
        replica.expect_code(143);
    }
}

#[test]
fn the_status_of_the_leader_shows_the_members_and_the_missing_ones() {
    let cluster = Cluster::of_workers(2);
    let leader = cluster.replica("worker", 0, TRAINS).start();
    eventually("the missing replica is named", || {
        status(&leader)["gang"]["waiting_for"] == serde_json::json!(["worker/1"])
    });
    let member = cluster.replica("worker", 1, TRAINS).start();
    all_train([&leader, &member], 1);
    eventually("both members are shown as they train", || {
        let gang = &status(&leader)["gang"];
        let states: Vec<&str> =
            gang["members"].as_array().into_iter().flatten().filter_map(|member| member["state"].as_str()).collect();
        gang["generation"] == 1 && states == ["training", "training"]
    });
    let gang = &status(&member)["gang"];
    assert_eq!((&gang["seat"], &gang["members"]), (&"worker/1".into(), &serde_json::Value::Null));
}

#[test]
fn inspect_shows_whether_a_gang_forms_and_the_kind_of_its_key() {
    let cluster = Cluster::of_workers(2);
    let config = format!("{{\"cluster\":{},\"task\":{{\"type\":\"worker\",\"index\":1}}}}", cluster.json);
    let seen = |gang: &str, token: &str| -> serde_json::Value {
        let inspect = Trainit::new(["inspect", "--json", "--gang", gang]).env("TF_CONFIG", &config);
        serde_json::from_str(&inspect.env("TRAINIT_GANG_TOKEN", token).output().out()).unwrap()
    };
    let forms = &seen("auto", "secret")["gang"];
    assert_eq!((&forms["forms"], &forms["seat"]), (&true.into(), &"worker/1".into()));
    assert_eq!((&forms["key"], &forms["leader"]), (&"token".into(), &"worker/0".into()));
    assert_eq!(seen("auto", "")["gang"]["key"], "cluster");
    assert_eq!(seen("off", "")["gang"]["forms"], false);
}

#[test]
fn a_replica_that_restarts_alone_logs_how_all_could_restart_together() {
    let cluster = Cluster::of_workers(2);
    let config = format!("{{\"cluster\":{},\"task\":{{\"type\":\"worker\",\"index\":1}}}}", cluster.json);
    let log = |config: &str, gang: &str| {
        Trainit::run(["true"])
            .env("TF_CONFIG", config)
            .env("TRAINIT_GANG", gang)
            .env("TRAINIT_MAX_RESTARTS", "1")
            .output()
            .err()
    };
    assert!(
        log(&config, "").contains("--gang is off, so each of the 2 replicas restarts alone"),
        "{}",
        log(&config, "")
    );
    assert!(log("", "auto").contains("no gang forms: there are no two training replicas"), "{}", log("", "auto"));
    assert!(!log("", "").contains("gang"), "a lone replica's log does not mention it");
}

#[test]
fn after_a_notice_all_replicas_find_the_same_step_to_save() {
    let cluster = Cluster::of_workers(2);
    let steps = "trap 'echo \"saves at $(cat $TRAINIT_SAVE_AT_STEP_FILE).\"; exit 0' TERM; n=0; \
                 while :; do n=$((n + 1)); echo \"{\\\"step\\\": $n}\" > $TRAINIT_HEARTBEAT_FILE; sleep 0.05; done";
    let replicas = cluster.workers(2, steps);
    eventually("the leader knows the speed of the steps", || {
        let members = status(&replicas[0])["gang"]["members"].as_array().cloned().unwrap_or_default();
        members.len() == 2 && members.iter().all(|member| member["step"].as_u64() >= Some(100))
    });
    replicas[1].signal(libc::SIGTERM);
    let lines: Vec<String> = replicas.iter().map(|replica| replica.after_line("saves at ")).collect();
    assert_eq!(lines[0], lines[1]);
    let step: u64 = lines[0].trim().trim_start_matches("saves at ").trim_end_matches('.').parse().expect("a step");
    assert!(step > 100, "{step}");
}

#[test]
fn a_replica_without_its_leader_shows_for_whom_it_waits() {
    let cluster = Cluster::of_workers(2);
    let alone = cluster.replica("worker", 1, TRAINS).start();
    eventually("the leader is named", || status(&alone)["gang"]["waiting_for"] == serde_json::json!(["worker/0"]));
}
