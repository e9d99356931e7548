//! The limit on connections that have not proven the key. Foreign connections may fill all slots, but those of one address
//! give way to members at another.

use core::net::{IpAddr, Ipv6Addr};
use std::collections::BTreeMap;
use std::time::Duration;

/// The maximum number of unproven connections.
pub const MOST: usize = 64;
/// A member behind a forwarder has the same address as a foreign connection there, so a connection gives way to a new one of
/// its own address, too. It does so only after this time, so that the first of a thousand members at one address can finish
/// the handshake.
const UNDISTURBED: Duration = Duration::from_secs(2);

/// The decision about a new connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Admission {
    /// It gets a free slot.
    Admitted,
    /// It gets the slot of this connection, which must be closed.
    InPlaceOf(u64),
    /// It must be closed; a member tries again.
    Refused,
}

/// The connections by number. Numbers increase.
#[derive(Debug, Default)]
pub struct Unproven(BTreeMap<u64, (IpAddr, Duration)>);

impl Unproven {
    /// Decides about a new connection. If no slot is free, it may replace the oldest connection of the address with the most
    /// connections.
    pub fn admit(&mut self, now: Duration, number: u64, from: IpAddr) -> Admission {
        let from = origin(from);
        let admission = match self.gives_way(now, from) {
            _ if self.0.len() < MOST => Admission::Admitted,
            Some(oldest) => {
                self.0.remove(&oldest);
                Admission::InPlaceOf(oldest)
            }
            None => return Admission::Refused,
        };
        self.0.insert(number, (from, now));
        admission
    }

    /// Frees the slot of a connection that has proven the key or has ended.
    pub fn release(&mut self, number: u64) {
        self.0.remove(&number);
    }

    fn gives_way(&self, now: Duration, from: IpAddr) -> Option<u64> {
        let of = |address: IpAddr| self.0.values().filter(|(other, _)| *other == address).count();
        let (_, (crowded, _)) = self.0.iter().max_by_key(|(_, (address, _))| of(*address))?;
        let (oldest, (_, since)) = self.0.iter().find(|(_, (address, _))| address == crowded)?;
        let has_fewer = of(from) < of(*crowded);
        (has_fewer || now >= *since + UNDISTURBED).then_some(*oldest)
    }
}

/// The part of the address that a host cannot choose freely: an IPv6 host can use any address of its /64 network.
fn origin(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => IpAddr::V6(Ipv6Addr::from_bits(address.to_bits() >> 64 << 64)),
        address => address,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const AT: Duration = Duration::from_secs(100);

    fn address(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    fn full_of(addresses: &[&str]) -> Unproven {
        let mut unproven = Unproven::default();
        for number in 0..MOST {
            let from = address(addresses[number % addresses.len()]);
            assert_eq!(unproven.admit(AT, number as u64, from), Admission::Admitted);
        }
        unproven
    }

    #[test]
    fn the_oldest_connection_of_the_address_with_the_most_gives_way_to_another_address() {
        let mut unproven = full_of(&["10.0.0.1", "10.0.0.1", "10.0.0.2"]);
        let member = address("10.0.0.3");
        assert_eq!(unproven.admit(AT, 100, member), Admission::InPlaceOf(0));
        assert_eq!(unproven.admit(AT, 101, member), Admission::InPlaceOf(1), "the next of the same");
        assert_eq!(unproven.admit(AT, 102, address("10.0.0.2")), Admission::InPlaceOf(3));
        assert_eq!(unproven.admit(AT, 103, address("10.0.0.1")), Admission::Refused, "the one with the most");
    }

    #[test]
    fn the_oldest_connection_gives_way_to_its_own_address_after_a_time() {
        let mut unproven = full_of(&["10.0.0.1"]);
        let forwarded = address("10.0.0.1");
        assert_eq!(unproven.admit(AT + UNDISTURBED / 2, 100, forwarded), Admission::Refused);
        assert_eq!(unproven.admit(AT + UNDISTURBED, 101, forwarded), Admission::InPlaceOf(0));
    }

    #[test]
    fn a_released_slot_is_free() {
        let mut unproven = full_of(&["10.0.0.1"]);
        unproven.release(7);
        assert_eq!(unproven.admit(AT, 100, address("10.0.0.1")), Admission::Admitted);
        assert_eq!(unproven.admit(AT, 101, address("10.0.0.1")), Admission::Refused);
    }

    #[test]
    fn an_ipv6_network_counts_as_one_address_and_a_mapped_address_as_its_ipv4_address() {
        let mut unproven = full_of(&["2001:db8::1", "2001:db8::2"]);
        assert_eq!(unproven.admit(AT, 100, address("2001:db8::3")), Admission::Refused);
        assert_eq!(unproven.admit(AT, 101, address("2001:db8:0:1::3")), Admission::InPlaceOf(0));
        let mut unproven = full_of(&["::ffff:10.0.0.1"]);
        assert_eq!(unproven.admit(AT, 100, address("10.0.0.1")), Admission::Refused);
        assert_eq!(
            unproven.admit(AT, 101, address("::ffff:10.0.0.2")),
            Admission::InPlaceOf(0),
            "a network of its own"
        );
    }
}
