//! Which connections the leader holds that have not proven themselves. Strangers may fill all places, but those of one address
//! give way to members of another.

use core::net::{IpAddr, Ipv6Addr};
use std::collections::BTreeMap;
use std::time::Duration;

/// So many are held at once.
pub const MOST: usize = 64;
/// A member behind a forwarder has the address of a stranger there. So one gives way to a newcomer of its own address too,
/// but only after this time: of a thousand members that come together from one address the first are not disturbed.
const UNDISTURBED: Duration = Duration::from_secs(2);

/// What becomes of a new connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Admission {
    /// It is held.
    Admitted,
    /// It is held in place of this one, which is to be closed.
    InPlaceOf(u64),
    /// It is to be closed; a member comes again.
    Refused,
}

/// The connections, by their numbers, which increase.
#[derive(Debug, Default)]
pub struct Unproven(BTreeMap<u64, (IpAddr, Duration)>);

impl Unproven {
    /// A connection comes. Where all places are taken, it gets that of the oldest connection of the address with the most.
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

    /// A connection has proven itself, or has ended.
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

/// What one caller cannot choose: of an IPv6 address the network, because a host has all addresses of it.
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

    fn full_of(strangers: &[&str]) -> Unproven {
        let mut unproven = Unproven::default();
        for number in 0..MOST {
            let from = address(strangers[number % strangers.len()]);
            assert_eq!(unproven.admit(AT, number as u64, from), Admission::Admitted);
        }
        unproven
    }

    #[test]
    fn the_oldest_of_the_address_with_the_most_gives_way_to_another_address() {
        let mut unproven = full_of(&["10.0.0.1", "10.0.0.1", "10.0.0.2"]);
        let member = address("10.0.0.3");
        assert_eq!(unproven.admit(AT, 100, member), Admission::InPlaceOf(0));
        assert_eq!(unproven.admit(AT, 101, member), Admission::InPlaceOf(1), "the next of the same");
        assert_eq!(unproven.admit(AT, 102, address("10.0.0.2")), Admission::InPlaceOf(3));
        assert_eq!(unproven.admit(AT, 103, address("10.0.0.1")), Admission::Refused, "the one with the most");
    }

    #[test]
    fn of_one_address_the_oldest_gives_way_after_a_time() {
        let mut unproven = full_of(&["10.0.0.1"]);
        let forwarded = address("10.0.0.1");
        assert_eq!(unproven.admit(AT + UNDISTURBED / 2, 100, forwarded), Admission::Refused);
        assert_eq!(unproven.admit(AT + UNDISTURBED, 101, forwarded), Admission::InPlaceOf(0));
    }

    #[test]
    fn a_place_that_is_released_is_free() {
        let mut unproven = full_of(&["10.0.0.1"]);
        unproven.release(7);
        assert_eq!(unproven.admit(AT, 100, address("10.0.0.1")), Admission::Admitted);
        assert_eq!(unproven.admit(AT, 101, address("10.0.0.1")), Admission::Refused);
    }

    #[test]
    fn all_addresses_of_an_ipv6_network_are_one_and_a_mapped_address_is_that_of_ipv4() {
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
