//! The running trainer's connection to the rendezvous, and whether the trainer has closed it.
//!
//! Collective libraries keep this connection while they train. A trainer that closes it early fails, and the others fail
//! because of that. A trainer that keeps it for a short time only shows nothing.

use std::time::Duration;

use crate::edge::process::sockets::Connection;
use crate::rules::job::Uptime;

/// The pauses between two searches.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(60);
/// A connection that has lasted this long is kept while the trainer trains.
const LASTING: Duration = Duration::from_secs(5);
/// A trainer that goes on for longer than this after the end of its connection does not need it.
const RECENT: Duration = Duration::from_secs(60);

/// A search for a connection with a port at either end.
pub(in crate::supervisor) type Search<'a> = &'a dyn Fn(u16) -> Option<Connection>;

/// What is known about the connection of one attempt.
#[derive(Debug, Default)]
pub(super) struct TrainersConnection {
    open: Option<Connection>,
    /// The last one that has ended.
    ended: Option<Connection>,
    /// The first time that a connection was seen.
    since: Option<Uptime>,
    /// The end of the last one.
    lost: Option<Uptime>,
    is_logged: bool,
    pause: Duration,
    next_look: Uptime,
}

impl TrainersConnection {
    /// Looks at the connection, or searches one, with pauses.
    pub(super) fn look(&mut self, now: Uptime, port: u16, search: Search<'_>) {
        if now < self.next_look {
            return;
        }
        if let Some(ended) = self.open.take_if(|connection| !connection.is_open()) {
            (self.ended, self.lost, self.pause) = (Some(ended), Some(now), Duration::ZERO);
        }
        if self.open.is_none() {
            self.open = search(port);
            self.pause = (self.pause * 2).clamp(FIRST_PAUSE, LONGEST_PAUSE);
        }
        if self.open.is_some() {
            (self.lost, self.pause) = (None, FIRST_PAUSE);
            if Self::has_lasted(*self.since.get_or_insert(now), now) && !std::mem::replace(&mut self.is_logged, true) {
                tracing::debug!("the trainer keeps its connection at the rendezvous, port {port}");
            }
        }
        self.next_look = now + self.pause;
    }

    /// Whether the trainer has closed a connection that it had kept. The end of its process closes all, and is no evidence:
    /// a trainer that fails because of another one ends at the same time.
    pub(super) fn is_closed(&mut self, now: Uptime, port: u16, search: Search<'_>) -> bool {
        self.next_look = now;
        self.look(now, port, search);
        let (Some(ended), Some(lost), Some(since)) = (&self.ended, self.lost, self.since) else { return false };
        Self::has_lasted(since, lost) && now < lost + RECENT && !ended.is_of_ending_process()
    }

    fn has_lasted(since: Uptime, until: Uptime) -> bool {
        until >= since + LASTING
    }
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};

    use super::*;
    use crate::edge::process::sockets;
    use crate::edge::process::spawn::own_pid;

    /// Whether a connection counts as closed at the second time, if it was closed at the first one.
    fn is_closed(closed: u64, asked: u64) -> bool {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let port = listener.local_addr().expect("an address").port();
        let caller = TcpStream::connect(("127.0.0.1", port)).expect("a connection");
        let accepted = listener.accept().expect("a connection");
        let search = |port| sockets::connection(port, || vec![own_pid()], own_pid());
        let mut connection = TrainersConnection::default();
        for second in 0..closed {
            connection.look(Duration::from_secs(second), port, &search);
        }
        assert!(!connection.is_closed(Duration::from_secs(closed), port, &search), "it is open");
        drop((caller, accepted));
        for second in closed + 1..asked {
            connection.look(Duration::from_secs(second), port, &search);
        }
        connection.is_closed(Duration::from_secs(asked), port, &search)
    }

    #[test]
    fn a_lasting_connection_that_has_just_been_closed_counts_and_a_short_or_an_old_one_does_not() {
        assert!(is_closed(20, 21) && is_closed(20, 70));
        assert!(!is_closed(3, 4), "it was for the start only");
        assert!(!is_closed(20, 200), "the trainer goes on without it");
    }
}
