//! The metadata servers of a simulated job, one for each replica, on a thread of their own.

use std::io;
use std::net::TcpListener;

use tokio::sync::watch;

use crate::edge::net::metadata_server;
use crate::edge::process::signals;
use crate::edge::transfer::blocking;
use crate::rules::simulate::metadata::{Request, State, reply};

/// The servers, which answer until the process ends.
pub(super) struct Servers {
    ports: Vec<u16>,
    states: Vec<watch::Sender<State>>,
}

impl Servers {
    /// Starts this number of servers of a cloud on loopback. Errors: as bind(2) and pthread_create(3).
    pub(super) fn start(cloud: &'static str, count: usize) -> io::Result<Servers> {
        let listeners = (0..count).map(|_| TcpListener::bind("127.0.0.1:0")).collect::<io::Result<Vec<_>>>()?;
        let ports = listeners.iter().map(|listener| Ok(listener.local_addr()?.port())).collect::<io::Result<_>>()?;
        let (states, seen): (Vec<_>, Vec<_>) = (0..count).map(|_| watch::channel(State::default())).unzip();
        let runtime = blocking::runtime(false)?;
        signals::thread_without_signals("metadata", move || {
            let servers = listeners.into_iter().zip(seen);
            let answer = move |request: &Request<'_>, state| reply(cloud, request, state);
            runtime.block_on(metadata_server::serve_all(servers.collect(), answer));
        })?;
        Ok(Servers { ports, states })
    }

    /// The server's port.
    pub(super) fn port(&self, at: usize) -> u16 {
        self.ports[at]
    }

    /// Announces the end of a machine, in seconds since 1970, or withdraws it.
    pub(super) fn announce(&self, at: usize, ends_at: Option<u64>) {
        self.states[at].send_replace(State { ends_at });
    }
}
