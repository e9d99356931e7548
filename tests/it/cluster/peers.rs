//! `run --wait-for-peers`: the start waits for the peers that the trainer needs.

use std::fs;
use std::net::TcpListener;
use std::time::Instant;

use crate::metrics::report_metric::folder;
use crate::support::{Trainit, assert_prompt, is_root};

/// Node 1 of two, with a leader at this address.
fn worker(leader: &str, flags: &[&str]) -> Trainit {
    let cluster = ["run", "--nnodes", "2", "--node-rank", "1", "--leader", leader, "--log-format", "json"];
    Trainit::new(cluster).args(flags).args(["--", "echo", "started"])
}

/// A port of this machine where no process listens.
fn closed_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

#[test]
fn the_command_starts_when_the_leader_listens_and_not_before() {
    let leader = format!("127.0.0.1:{}", closed_port());
    let running = worker(&leader, &["--wait-for-peers", "60s", "--log-level", "debug"]).start();
    running.after_log(&format!("waiting for {leader}"));
    running.after_log("no process listens");
    assert!(!running.log_so_far().contains("started echo"));
    let _listener = TcpListener::bind(&leader).unwrap();
    let done = running.finish().expect_code(0);
    assert_eq!(done.out(), "started\n");
    assert!(done.err().contains("can be reached"), "{}", done.err());
}

#[test]
fn a_leader_that_never_appears_is_named_with_the_last_reason() {
    let leader = format!("127.0.0.1:{}", closed_port());
    let done = worker(&leader, &["--wait-for-peers", "300ms"]).output().expect_code(203);
    let verdict = done.verdict();
    let detail = verdict["detail"].as_str().unwrap();
    assert_eq!((&verdict["reason"], &verdict["attempts"]), (&"peer".into(), &0.into()));
    assert!(detail.contains(&leader) && detail.contains("no process listens") && detail.contains("300ms"), "{detail}");
    assert!(done.out().is_empty());
}

#[test]
fn a_leader_that_listens_at_tensorflows_port_counts() {
    let tensorflow = TcpListener::bind("127.0.0.1:0").unwrap();
    let at = tensorflow.local_addr().unwrap();
    let run = || {
        let spec = format!(
            r#"{{"cluster":{{"workerpool0":["{at}"],"workerpool1":["h:2222"]}},"task":{{"type":"workerpool1","index":0}}}}"#
        );
        let closed = closed_port().to_string();
        Trainit::run(["echo", "started"])
            .env("CLUSTER_SPEC", spec)
            .env("MASTER_PORT", closed)
            .env("TRAINIT_WAIT_FOR_PEERS", "2s")
    };
    assert_eq!(run().output().expect_code(0).out(), "started\n");
    drop(tensorflow);
    let done = run().output().expect_code(203);
    let detail = done.verdict()["detail"].as_str().unwrap().to_owned();
    assert!(detail.contains("(MASTER_PORT)") && detail.contains(&format!("{} (TF_CONFIG)", at.port())), "{detail}");
}

#[test]
fn a_stop_while_waiting_ends_at_once_and_nothing_was_started() {
    let running = worker(&format!("127.0.0.1:{}", closed_port()), &["--wait-for-peers", "60s"]).start();
    running.after_log("waiting for");
    let start = Instant::now();
    let done = running.stop().expect_code(143);
    assert_prompt(start);
    assert!(done.out().is_empty());
    assert_eq!(done.verdict()["reason"], "stopped");
}

#[test]
fn the_leader_and_a_single_node_do_not_wait_for_peers() {
    let flags = ["--wait-for-peers", "60s", "--log-format", "json", "--", "echo", "started"];
    let leader = ["run", "--nnodes", "2", "--node-rank", "0", "--leader", "127.0.0.1:9"];
    for cluster in [&leader[..], &["run"]] {
        let done = Trainit::new(cluster).args(flags).output().expect_code(0);
        assert_eq!(done.out(), "started\n");
        assert!(!done.err().contains("waiting"), "{}", done.err());
    }
}

#[test]
fn with_all_the_other_nodes_must_answer() {
    let slurm = |rank: &str| {
        Trainit::run(["echo", "started"])
            .env("SLURM_JOB_ID", "7")
            .env("SLURM_NTASKS", "2")
            .env("SLURM_NNODES", "2")
            .env("SLURM_PROCID", rank)
            .env("SLURM_NODEID", rank)
            .env("SLURM_JOB_NODELIST", "localhost,127.0.0.1")
            .env("TRAINIT_WAIT_FOR_PEERS", "all:300ms")
            .env("MASTER_PORT", closed_port().to_string())
    };
    assert_eq!(slurm("0").output().expect_code(0).out(), "started\n");
    slurm("1").output().expect_code(203);
}

#[test]
fn waiting_for_all_peers_without_their_names_is_refused() {
    let done = worker("127.0.0.1:9", &["--wait-for-peers", "all:1s"]).output().expect_code(125);
    assert!(done.err().contains("bad_setting") && done.err().contains("--wait-for-peers"), "{}", done.err());
}

#[test]
fn a_name_that_resolves_only_later_is_tried_again() {
    if !is_root() {
        return;
    }
    let (dir, _) = folder();
    let hosts = dir.path().join("hosts");
    fs::write(&hosts, "127.0.0.1 localhost\n").unwrap();
    // A network with a loopback interface alone, and a listener on it.
    let listen = "import socket,time; s=socket.create_server(('127.0.0.1',29400)); time.sleep(60)";
    let script = format!(
        "ip link set lo up; mount --bind '{}' /etc/hosts; python3 -c \"{listen}\" & exec \"$@\"",
        hosts.display()
    );
    let prefix = ["unshare", "--net", "--mount", "--pid", "--fork", "--kill-child=SIGKILL", "sh", "-c", &script, "sh"];
    let cluster = ["run", "--nnodes", "2", "--node-rank", "1", "--leader", "job-0.svc:29400", "--log-level", "debug"];
    let run = Trainit::through(&prefix, cluster).args(["--wait-for-peers", "60s", "--", "echo", "started"]);
    let running = run.start();
    // The text depends on the C library of the build.
    running.after_log("job-0.svc:29400: ");
    fs::write(&hosts, "127.0.0.1 localhost job-0.svc\n").unwrap();
    assert_eq!(running.finish().expect_code(0).out(), "started\n");
}

/// Two names with a dot, which glibc finds by its search list and as they are.
const NAMES: &str = r#"
import socket, struct, sys
rcode, ready = int(sys.argv[1]), sys.argv[2]
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.bind(("127.0.0.1", 53))
listener = socket.create_server(("127.0.0.1", 29500))
open(ready, "w").close()
while True:
    data, sender = s.recvfrom(2048)
    at, labels = 12, []
    while data[at]:
        labels.append(data[at + 1:at + 1 + data[at]])
        at += 1 + data[at]
    name, kind = b".".join(labels).lower(), struct.unpack(">H", data[at + 1:at + 3])[0]
    known = name in (b"train-0.train.ns.svc.cluster.local", b"other.test")
    answer = b"\xc0\x0c" + struct.pack(">HHIH", 1, 1, 5, 4) + bytes([127, 0, 0, 1]) if known and kind == 1 else b""
    code = 0 if known else rcode if name.endswith(b".corp.example") else 3
    s.sendto(data[:2] + bytes([0x81, 0x80 | code]) + struct.pack(">HHHH", 1, bool(answer), 0, 0) + data[12:at + 5] + answer, sender)
"#;

#[test]
fn a_name_that_glibc_finds_by_its_search_list_is_found() {
    if !is_root() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let servers = folder.path().join("servers.py");
    fs::write(&servers, NAMES).unwrap();
    // A name with a dot under ndots:1; and a domain in the list that answers "no such name", "no data" or "server failure".
    for (name, domains, ndots, rcode) in [
        ("train-0.train", "ns.svc.cluster.local", "1", "3"),
        ("train-0.train", "corp.example ns.svc.cluster.local", "5", "0"),
        ("other.test", "corp.example", "5", "0"),
        ("other.test", "corp.example", "5", "2"),
    ] {
        let at = folder.path().join(format!("{name}-{ndots}-{rcode}"));
        fs::create_dir(&at).unwrap();
        let conf = format!("nameserver 127.0.0.1\nsearch {domains}\noptions ndots:{ndots} timeout:1 attempts:2\n");
        fs::write(at.join("resolv.conf"), conf).unwrap();
        let script = r#"
ip link set lo up && mount --bind "$2/resolv.conf" /etc/resolv.conf || exit 99
python3 "$1" "$3" "$2/ready" & servers=$!
until [ -e "$2/ready" ]; do kill -0 $servers || exit 99; sleep 0.05; done
shift 3
"$@"; code=$?
kill $servers
exit $code"#;
        let (servers, at) = (servers.to_str().unwrap(), at.to_str().unwrap());
        let prefix = ["unshare", "--net", "--mount", "sh", "-c", script, "sh", servers, at, rcode];
        let run = ["run", "--nnodes", "2", "--node-rank", "1", "--leader", &format!("{name}:29500")];
        let run = Trainit::through(&prefix, run).args(["--wait-for-peers", "30s", "--", "echo", "started"]);
        let done = run.output().expect_code(0);
        assert_eq!(done.out(), "started\n", "{name} {domains} {ndots} {rcode}: {}", done.err());
    }
}
