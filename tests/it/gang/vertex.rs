//! A gang on a platform that forwards only the trainers' port to the leader's name, such as Vertex AI: real trainits on
//! loopback, and a forwarder from the published name of node rank 0 to its own address.

use std::io::{Write, copy};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicU16, Ordering};
use std::thread;

use crate::support::gang::{TRAINS, all_train, status, trains};
use crate::support::{Running, Trainit, eventually, is_alive, send};

/// The published name of node rank 0, and the own address of its machine.
const PUBLISHED: &str = "127.0.0.2";
const OWN: &str = "127.0.0.1";

/// The trainer of node rank 0: binds the rendezvous port once, without SO_REUSEADDR, and fails if a connection still uses it.
const BINDS: &str = "
import os, socket, time
server = socket.socket()
server.bind(('127.0.0.1', int(os.environ['MASTER_PORT'])))
server.listen()
print('generation=' + os.environ['TRAINIT_GENERATION'], 'pid=%d' % os.getpid(), '.', flush=True)
time.sleep(1000)
";

/// A job of a chief, two workers and an evaluator.
struct Job {
    /// The rendezvous port, the only forwarded one.
    port: u16,
    root: tempfile::TempDir,
}

impl Job {
    fn new() -> Job {
        // Below the ephemeral ports.
        static TRIED: AtomicU16 = AtomicU16::new(0);
        let first = 20_000 + (std::process::id() * 16 % 8_000) as u16;
        let (port, published) = loop {
            let port = first + TRIED.fetch_add(1, Ordering::Relaxed);
            let is_free = TcpListener::bind((OWN, port)).is_ok();
            if let Some(published) = TcpListener::bind((PUBLISHED, port)).ok().filter(|_| is_free) {
                break (port, published);
            }
        };
        thread::spawn(move || forward(&published, port));
        Job { port, root: tempfile::tempdir().unwrap() }
    }

    fn replica(&self, pool: u32, index: usize) -> Trainit {
        let cluster = r#"{"workerpool0":["127.0.0.2:1"],"workerpool1":["127.0.0.3:1","127.0.0.4:1"],"workerpool3":["127.0.0.5:1"]}"#;
        let task = format!("{{\"type\":\"workerpool{pool}\",\"index\":{index}}}");
        Trainit::new(["run", "--gang", "auto", "--restart-backoff", "1ms", "--max-restarts", "5", "--"])
            .args(if pool == 0 { ["python3", "-c", BINDS] } else { ["sh", "-c", TRAINS] })
            .env("CLUSTER_SPEC", format!("{{\"cluster\":{cluster},\"task\":{task}}}"))
            .env("CLOUD_ML_JOB_ID", "1")
            .env("MASTER_PORT", self.port.to_string())
            .env("TRAINIT_LOG_FORMAT", "json")
    }

    fn replica_with_store(&self, pool: u32, index: usize) -> Trainit {
        let place = self.root.path();
        self.replica(pool, index)
            .env("TRAINIT_CHECKPOINT_DIR", place.join(format!("disk-{pool}-{index}")))
            .env("AIP_CHECKPOINT_DIR", format!("file://{}", place.join("store").display()))
    }
}

fn forward(published: &TcpListener, port: u16) {
    for caller in published.incoming().flatten() {
        thread::spawn(move || {
            let Ok(leader) = TcpStream::connect((OWN, port)) else { return };
            let (Ok(mut from), Ok(mut to)) = (leader.try_clone(), caller.try_clone()) else { return };
            let back = thread::spawn(move || {
                let _ = copy(&mut from, &mut to);
                let _ = to.shutdown(Shutdown::Write);
            });
            let _ = copy(&mut &caller, &mut &leader);
            let _ = leader.shutdown(Shutdown::Write);
            let _ = back.join();
        });
    }
}

fn start(replicas: [Trainit; 3]) -> Vec<Running> {
    replicas.into_iter().map(Trainit::start).collect()
}

#[test]
fn the_gang_meets_at_the_trainers_port_and_the_trainer_binds_it_in_every_generation() {
    let job = Job::new();
    let mut replicas = start([job.replica(0, 0), job.replica(1, 0), job.replica(1, 1)]);
    let first: Vec<i32> = replicas.iter().map(|replica| trains(replica, 1)).collect();
    send(first[1], libc::SIGKILL);
    all_train(&replicas, 2);
    assert!(first.iter().all(|pid| !is_alive(*pid)), "no trainer of the first generation is left");
    let replaced = replicas.remove(2);
    send(replaced.pid(), libc::SIGKILL);
    replicas.push(job.replica(1, 1).start());
    all_train(&replicas, 3);
    let lead = replicas.remove(0);
    send(lead.pid(), libc::SIGKILL);
    eventually("the old leader is gone", || TcpListener::bind((OWN, job.port)).is_ok());
    replicas.insert(0, job.replica(0, 0).start());
    // A new leader without a store skips a number.
    all_train(&replicas, 5);
}

#[test]
fn foreign_connections_at_the_borrowed_port_neither_join_nor_keep_the_trainer_from_it() {
    let job = Job::new();
    let leader = job.replica(0, 0).start();
    leader.after_log("leads the gang");
    let connect = |host| {
        let mut connection = None;
        eventually("the port is borrowed", || {
            connection = TcpStream::connect((host, job.port)).ok();
            connection.is_some()
        });
        connection.unwrap()
    };
    let foreign = [connect(OWN), connect(OWN), connect(PUBLISHED)];
    (&foreign[1]).write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
    leader.after_log("is no agent of this gang");
    let members = [job.replica(1, 0).start(), job.replica(1, 1).start()];
    all_train([&leader, &members[0], &members[1]], 1);
    drop(foreign);
}

#[test]
fn a_replica_that_starts_while_the_trainer_has_the_port_finds_the_leader_in_the_store() {
    let job = Job::new();
    let replica = |pool, index| job.replica_with_store(pool, index);
    let replicas = start([replica(0, 0), replica(1, 0), replica(1, 1)]);
    all_train(&replicas, 1);
    let _evaluator = replica(3, 0).start();
    eventually("the evaluator has joined", || {
        let members = status(&replicas[0])["gang"]["members"].as_array().cloned().unwrap_or_default();
        members.iter().any(|member| member["seat"] == "evaluator/0")
    });
    assert_eq!(status(&replicas[0])["gang"]["generation"], 1, "nothing was halted");
}

#[test]
fn inspect_shows_that_the_port_is_borrowed() {
    let inspected = |port: &str| -> serde_json::Value {
        let cluster = r#"{"workerpool0":["a:2222"],"workerpool1":["b:2222"]}"#;
        let spec = format!("{{\"cluster\":{cluster},\"task\":{{\"type\":\"workerpool1\",\"index\":0}}}}");
        let inspect = Trainit::new(["inspect", "--json", "--gang", "on"]).env("CLUSTER_SPEC", spec);
        serde_json::from_str(&inspect.env("TRAINIT_GANG_PORT", port).output().out()).unwrap()
    };
    let seen = |port| (inspected(port)["gang"]["port"].clone(), inspected(port)["gang"]["port_is_borrowed"].clone());
    assert_eq!(seen(""), (3333.into(), true.into()));
    assert_eq!(seen("6000"), (6000.into(), false.into()));
}
