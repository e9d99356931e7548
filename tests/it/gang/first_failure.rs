//! The first failure of a gang whose trainers are connected to each other.

use crate::support::Trainit;
use crate::support::gang::Cluster;

/// Worker 0 listens at the rendezvous, and the others connect. A worker that loses its connection exits with 1. Worker 1 closes
/// its connection after a line of input, and exits with 7 later.
const TRAINER: &str = r#"
import json, os, socket, sys, time
config = json.loads(os.environ["TF_CONFIG"])
host, port = config["cluster"]["worker"][0].split(":")
index = config["task"]["index"]
if index == 0:
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind((host, int(port)))
    listener.listen()
    connection, _ = listener.accept()
else:
    while True:
        try:
            connection = socket.create_connection((host, int(port)))
            break
        except OSError:
            time.sleep(0.01)
if index == 1:
    sys.stdin.readline()
    connection.close()
    print("ValueError: no data", file=sys.stderr, flush=True)
    time.sleep(1)
    os._exit(7)
connection.recv(1)
os._exit(1)
"#;

#[test]
fn a_trainer_that_closes_its_connections_and_ends_later_is_the_first_failure_and_keeps_its_own_exit_code() {
    let cluster = Cluster::of_workers(2);
    let replica = |index| -> Trainit {
        let script = "exec python3 -c \"$TRAINER\"";
        let replica = cluster.replica("worker", index, script).env("TRAINER", TRAINER);
        replica.env("TRAINIT_HANG_TIMEOUT", "1h").env("TRAINIT_MAX_RESTARTS", "0").env("TRAINIT_LOG_LEVEL", "debug")
    };
    let (reader, mut writer) = std::io::pipe().unwrap();
    let leader = replica(0).start();
    let closing = replica(1).stdin(reader).start();
    closing.after_log("the trainer keeps its connection at the rendezvous");
    std::io::Write::write_all(&mut writer, b"close\n").unwrap();
    let first = closing.finish().expect_code(7).verdict()["gang"]["first"].clone();
    assert_eq!((&first["seat"], &first["code"]), (&"worker/1".into(), &7.into()));
    let detail = first["detail"].as_str().unwrap_or_default();
    assert!(detail.contains("had closed its connections") && detail.ends_with("ValueError: no data"), "{first}");
    assert_eq!(leader.finish().expect_code(203).verdict()["gang"]["first"], first);
}
