//! A free TCP port for the rendezvous of processes of one machine.

use std::net::{Ipv4Addr, Ipv6Addr, TcpListener};

/// A port that is free on every interface now, chosen by the kernel; `None` if there is none. It is not reserved until
/// a process listens there. The kernel chooses at random, so another process is unlikely to get the same port.
pub fn free() -> Option<u16> {
    let listener =
        TcpListener::bind((Ipv6Addr::UNSPECIFIED, 0)).or_else(|_| TcpListener::bind((Ipv4Addr::UNSPECIFIED, 0)));
    listener.ok()?.local_addr().ok().map(|address| address.port())
}
