//! The TCP connections of a process tree at a port, from /proc/PID/net/tcp, /proc/PID/net/tcp6 and /proc/PID/fd (proc(5)).
//! Without a readable /proc there are none.

use std::collections::HashSet;
use std::fs;
use std::path::PathBuf;

/// The states of the kernel's table (include/net/tcp_states.h).
const ESTABLISHED: &str = "01";
/// The other side has closed, and this side has not.
const CLOSE_WAIT: &str = "08";

/// A connection that a process had open when it was found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Connection {
    /// The link in /proc of the process's descriptor.
    descriptor: PathBuf,
    /// What it leads to.
    socket: PathBuf,
}

impl Connection {
    /// Whether the process still has it open, whatever the other side has done.
    pub fn is_open(&self) -> bool {
        fs::read_link(&self.descriptor).is_ok_and(|socket| socket == self.socket)
    }

    /// Whether its process is about to end: the kernel takes all descriptors from it before it closes them.
    pub fn is_of_ending_process(&self) -> bool {
        let descriptors = self.descriptor.parent().and_then(|all| fs::read_dir(all).ok());
        descriptors.is_none_or(|mut all| all.next().is_none())
    }
}

/// A connection of one of these processes with this port at either end. The network of `first` is searched.
pub fn connection(port: u16, processes: impl FnOnce() -> Vec<i32>, first: i32) -> Option<Connection> {
    let mut sockets = HashSet::new();
    for table in ["tcp", "tcp6"] {
        let text = fs::read_to_string(format!("/proc/{first}/net/{table}")).unwrap_or_default();
        sockets.extend(text.lines().skip(1).filter_map(|line| connection_at(port, line)));
    }
    if sockets.is_empty() {
        return None;
    }
    processes().into_iter().find_map(|pid| open_in(pid, &sockets))
}

/// The link of the descriptor of a connection with this port, from a line such as
/// ` 0: 0100007F:733C 0100007F:A1B2 01 00000000:00000000 00:00000000 00000000 0 0 4711 1 ...`.
fn connection_at(port: u16, line: &str) -> Option<PathBuf> {
    let mut fields = line.split_ascii_whitespace().skip(1);
    let (local, remote, state) = (fields.next()?, fields.next()?, fields.next()?);
    let is_at =
        |address: &str| address.rsplit(':').next().and_then(|hex| u16::from_str_radix(hex, 16).ok()) == Some(port);
    let is_connection = matches!(state, ESTABLISHED | CLOSE_WAIT) && (is_at(local) || is_at(remote));
    let inode = fields.nth(5)?;
    is_connection.then(|| format!("socket:[{inode}]").into())
}

/// The first of these sockets that the process has open. The links are read and not followed.
fn open_in(pid: i32, sockets: &HashSet<PathBuf>) -> Option<Connection> {
    let descriptors = fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten().map(|fd| fd.path());
    let mut links = descriptors.filter_map(|descriptor| Some((fs::read_link(&descriptor).ok()?, descriptor)));
    let (socket, descriptor) = links.find(|(socket, _)| sockets.contains(socket))?;
    Some(Connection { descriptor, socket })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::edge::process::spawn::own_pid;
    use std::net::{TcpListener, TcpStream};

    #[test]
    fn a_connection_is_found_at_both_ends_until_both_are_closed() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let port = listener.local_addr().expect("an address").port();
        let found = || connection(port, || vec![own_pid()], own_pid());
        assert_eq!(found(), None, "a listener is no connection");
        let caller = TcpStream::connect(("127.0.0.1", port)).expect("a connection");
        let accepted = listener.accept().expect("a connection");
        assert!(found().is_some_and(|found| found.is_open()));
        assert_eq!(connection(port, Vec::new, own_pid()), None, "no process of the tree has it");
        drop(caller);
        let half = found().expect("this end is open");
        drop(accepted);
        assert!(!half.is_open() && found().is_none() && !half.is_of_ending_process());
        let no_process = Connection { descriptor: "/proc/0/fd/1".into(), socket: "socket:[1]".into() };
        assert!(no_process.is_of_ending_process());
    }
}
