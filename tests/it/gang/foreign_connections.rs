//! Connections of processes that are not agents of the gang: they do not keep the members out, cost the leader a bounded amount
//! of memory, and are closed after 5 s.

use std::fs;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpStream};
use std::time::{Duration, Instant};

use tokio::net::TcpSocket;

use crate::support::Running;
use crate::support::gang::{Cluster, TRAINS, all_train};

const CONNECTIONS: usize = 200;
/// A connection that is still open after this time was not closed by the leader.
const PATIENCE: Duration = Duration::from_secs(60);

struct ForeignConnection {
    stream: TcpStream,
    opened: Instant,
}

impl ForeignConnection {
    fn to(port: u16, bytes: &[u8]) -> ForeignConnection {
        let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
        // The write fails if the leader has closed the connection already.
        let _ = stream.write_all(bytes);
        ForeignConnection { stream, opened: Instant::now() }
    }

    /// A connection from another address of this machine.
    fn from(host: &str, port: u16) -> ForeignConnection {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build().unwrap();
        let stream = runtime.block_on(async {
            let socket = TcpSocket::new_v4().unwrap();
            socket.bind((host.parse::<Ipv4Addr>().unwrap(), 0).into()).unwrap();
            socket.connect((Ipv4Addr::LOCALHOST, port).into()).await.unwrap().into_std().unwrap()
        });
        stream.set_nonblocking(false).unwrap();
        ForeignConnection { stream, opened: Instant::now() }
    }

    /// Waits for the close. Returns how long the connection was open.
    fn lasted(mut self) -> Duration {
        self.stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let mut received = Vec::new();
        match self.stream.read_to_end(&mut received) {
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => panic!("it is still open"),
            _ => self.opened.elapsed(),
        }
    }
}

fn resident_kib(process: &Running) -> u64 {
    let status = fs::read_to_string(format!("/proc/{}/status", process.pid())).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}

#[test]
fn two_hundred_foreign_connections_do_not_keep_members_out_and_are_closed() {
    let cluster = Cluster::of_workers(3);
    let leader = cluster.replica("worker", 0, TRAINS).start();
    leader.after_log("leads the gang");
    let before = resident_kib(&leader);
    let half_a_message = [&100_u32.to_be_bytes()[..], b"{\"version\":1"].concat();
    let endless = [&u32::MAX.to_be_bytes()[..], &[b'x'; 1000]].concat();
    let payloads: [&[u8]; 4] = [b"", &half_a_message, b"GET / HTTP/1.1\r\n\r\n", &endless];
    let mut foreign: Vec<ForeignConnection> =
        (0..CONNECTIONS).map(|number| ForeignConnection::to(cluster.port, payloads[number % payloads.len()])).collect();
    let members = [1, 2].map(|index| cluster.replica("worker", index, TRAINS).start());
    all_train([&leader, &members[0], &members[1]], 1);
    let first = foreign.remove(0).lasted();
    assert!(first >= Duration::from_millis(1900), "the first, which sends nothing, stays open for 2 s: {first:?}");
    for connection in foreign {
        connection.lasted();
    }
    let more = resident_kib(&leader).saturating_sub(before);
    assert!(more < 16 << 10, "the leader holds {more} KiB more");
    assert_eq!(leader.log_so_far().matches("is no agent of this gang").count(), 1, "one line for each address");
}

#[test]
fn foreign_connections_of_one_address_take_no_slot_from_another_address() {
    let cluster = Cluster::of_workers(2);
    let leader = cluster.replica("worker", 0, TRAINS).start();
    leader.after_log("leads the gang");
    let foreign: Vec<ForeignConnection> =
        (0..CONNECTIONS).map(|_| ForeignConnection::from("127.0.0.2", cluster.port)).collect();
    let other = ForeignConnection::from("127.0.0.3", cluster.port);
    let lasted = other.lasted();
    assert!(lasted >= Duration::from_secs(4), "it stays open for the 5 s: {lasted:?}");
    for connection in foreign {
        connection.lasted();
    }
}

#[test]
fn a_wrong_token_is_reported_on_both_sides_even_from_the_address_of_a_foreign_connection() {
    let cluster = Cluster::of_workers(2);
    let with_token = |index, token| cluster.replica("worker", index, TRAINS).env("TRAINIT_GANG_TOKEN", token).start();
    let leader = with_token(0, "right");
    leader.after_log("leads the gang");
    let _foreign = ForeignConnection::to(cluster.port, b"GET / HTTP/1.1\r\n\r\n");
    leader.after_log("is no agent of this gang");
    let member = with_token(1, "wrong");
    leader.after_log("has another token or key than this gang");
    member.after_log("has another token or key, so this replica cannot join");
}
