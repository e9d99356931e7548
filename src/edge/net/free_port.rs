//! A TCP port that nothing uses, for processes of one machine to meet at.

use std::net::{Ipv4Addr, Ipv6Addr, TcpListener};

/// A port that is free on every interface at this moment, of the kernel's choice; `None` where none can be had. Nothing
/// holds it until a process listens there: the kernel's choice is random, so another is unlikely to be given the same.
pub fn free() -> Option<u16> {
    let listener =
        TcpListener::bind((Ipv6Addr::UNSPECIFIED, 0)).or_else(|_| TcpListener::bind((Ipv4Addr::UNSPECIFIED, 0)));
    listener.ok()?.local_addr().ok().map(|address| address.port())
}
