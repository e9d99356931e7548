//! Callers at the gang's port that are no agents: they neither keep the members out nor cost the leader more than a bounded
//! amount of memory, and each is cut off after its 5 s.

use std::fs;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpStream};
use std::time::{Duration, Instant};

use tokio::net::TcpSocket;

use crate::support::Running;
use crate::support::gang::{Cluster, TRAINS, all_train};

const STRANGERS: usize = 200;
/// A stranger that is still connected then has not been cut off.
const PATIENCE: Duration = Duration::from_secs(60);

struct Stranger {
    stream: TcpStream,
    came: Instant,
}

impl Stranger {
    fn at(port: u16, says: &[u8]) -> Stranger {
        let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
        // One that was hung up on cannot speak.
        let _ = stream.write_all(says);
        Stranger { stream, came: Instant::now() }
    }

    /// Comes from another address of this machine.
    fn from(host: &str, port: u16) -> Stranger {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build().unwrap();
        let stream = runtime.block_on(async {
            let socket = TcpSocket::new_v4().unwrap();
            socket.bind((host.parse::<Ipv4Addr>().unwrap(), 0).into()).unwrap();
            socket.connect((Ipv4Addr::LOCALHOST, port).into()).await.unwrap().into_std().unwrap()
        });
        stream.set_nonblocking(false).unwrap();
        Stranger { stream, came: Instant::now() }
    }

    /// How long it was connected.
    fn lasted(mut self) -> Duration {
        self.stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let mut heard = Vec::new();
        match self.stream.read_to_end(&mut heard) {
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => panic!("it is still connected"),
            _ => self.came.elapsed(),
        }
    }
}

fn resident_kib(process: &Running) -> u64 {
    let status = fs::read_to_string(format!("/proc/{}/status", process.pid())).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}

#[test]
fn two_hundred_strangers_keep_no_member_out_and_are_cut_off() {
    let cluster = Cluster::of_workers(3);
    let leader = cluster.replica("worker", 0, TRAINS).start();
    leader.after_log("leads the gang");
    let before = resident_kib(&leader);
    let half_a_message = [&100_u32.to_be_bytes()[..], b"{\"version\":1"].concat();
    let endless = [&u32::MAX.to_be_bytes()[..], &[b'x'; 1000]].concat();
    let sayings: [&[u8]; 4] = [b"", &half_a_message, b"GET / HTTP/1.1\r\n\r\n", &endless];
    let mut strangers: Vec<Stranger> =
        (0..STRANGERS).map(|number| Stranger::at(cluster.port, sayings[number % sayings.len()])).collect();
    let members = [1, 2].map(|index| cluster.replica("worker", index, TRAINS).start());
    all_train([&leader, &members[0], &members[1]], 1);
    let first = strangers.remove(0).lasted();
    assert!(first >= Duration::from_millis(1900), "the first, which says nothing, is not disturbed for 2 s: {first:?}");
    for stranger in strangers {
        stranger.lasted();
    }
    let more = resident_kib(&leader).saturating_sub(before);
    assert!(more < 16 << 10, "the leader holds {more} KiB more");
    assert_eq!(leader.log_so_far().matches("is no agent of this gang").count(), 1, "one line a host");
}

#[test]
fn strangers_of_one_address_take_no_place_from_another_address() {
    let cluster = Cluster::of_workers(2);
    let leader = cluster.replica("worker", 0, TRAINS).start();
    leader.after_log("leads the gang");
    let strangers: Vec<Stranger> = (0..STRANGERS).map(|_| Stranger::from("127.0.0.2", cluster.port)).collect();
    let other = Stranger::from("127.0.0.3", cluster.port);
    let lasted = other.lasted();
    assert!(lasted >= Duration::from_secs(4), "it has the whole 5 s: {lasted:?}");
    for stranger in strangers {
        stranger.lasted();
    }
}

#[test]
fn a_wrong_token_is_reported_on_both_sides_even_from_a_host_that_a_stranger_called_from() {
    let cluster = Cluster::of_workers(2);
    let with_token = |index, token| cluster.replica("worker", index, TRAINS).env("TRAINIT_GANG_TOKEN", token).start();
    let leader = with_token(0, "right");
    leader.after_log("leads the gang");
    let _stranger = Stranger::at(cluster.port, b"GET / HTTP/1.1\r\n\r\n");
    leader.after_log("is no agent of this gang");
    let member = with_token(1, "wrong");
    leader.after_log("has another token or key than this gang");
    member.after_log("has another token or key, so this replica cannot join");
}
