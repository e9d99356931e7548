//! The address to which a member connects next.
//!
//! Some platforms forward only the ports of the trainers to a replica's name. There, the leader listens at the rendezvous port
//! while no trainer of its node runs, and answers with a [`Referral`]: the address of its machine and a permanent port.
//! Members reach that address without the platform's forwarding, like trainers whose collectives choose their own ports.

use std::time::Duration;

use super::super::message::Referral;

/// The store is read after the published port has failed for this long.
const STORE_AFTER: Duration = Duration::from_secs(5);

/// The next address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Route {
    /// The leader's published name and port. A borrowed one answers with a referral.
    Published,
    /// The leader's own address.
    Own(Referral),
    /// The leader's own address must be read from the store first.
    Stored,
}

/// The routes to one leader, tried in turn.
#[derive(Debug, Clone)]
pub struct Routes {
    is_borrowed: bool,
    has_store: bool,
    own: Option<Referral>,
    failing_since: Option<Duration>,
    last: Turn,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Turn {
    Own,
    Published,
    Stored,
}

impl Routes {
    /// Untried routes. `is_borrowed`: the published port is borrowed.
    pub fn new(is_borrowed: bool, has_store: bool) -> Routes {
        Routes { is_borrowed, has_store, own: None, failing_since: None, last: Turn::Stored }
    }

    /// The next route.
    pub fn next(&mut self, now: Duration) -> Route {
        let uses_store =
            self.is_borrowed && self.has_store && self.failing_since.is_some_and(|since| now >= since + STORE_AFTER);
        let (turn, route) = match (self.last, self.own) {
            (Turn::Stored, Some(own)) => (Turn::Own, Route::Own(own)),
            (Turn::Published, _) if uses_store => (Turn::Stored, Route::Stored),
            (Turn::Published, Some(own)) => (Turn::Own, Route::Own(own)),
            _ => (Turn::Published, Route::Published),
        };
        self.last = turn;
        route
    }

    /// Sets the leader's own address, which becomes the next route.
    pub fn refer(&mut self, own: Referral) {
        (self.own, self.last) = (Some(own), Turn::Stored);
    }

    /// The last route failed.
    pub fn failed(&mut self, now: Duration) {
        self.failing_since.get_or_insert(now);
    }

    /// The last route succeeded; after this connection, the leader's own address is tried first.
    pub fn succeeded(&mut self) {
        (self.failing_since, self.last) = (None, Turn::Stored);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OWN: Referral = Referral { ip: core::net::IpAddr::V4(core::net::Ipv4Addr::LOCALHOST), port: 1 };

    fn failing(routes: &mut Routes, seconds: impl IntoIterator<Item = u64>) -> Vec<Route> {
        let try_at = |second| {
            let now = Duration::from_secs(second);
            let route = routes.next(now);
            routes.failed(now);
            route
        };
        seconds.into_iter().map(try_at).collect()
    }

    #[test]
    fn without_a_borrowed_port_the_published_address_is_the_only_route() {
        assert_eq!(failing(&mut Routes::new(false, true), 0..9), [Route::Published; 9]);
    }

    #[test]
    fn the_leaders_own_address_is_tried_first_and_then_alternates_with_the_published_one() {
        let mut routes = Routes::new(true, false);
        assert_eq!(routes.next(Duration::ZERO), Route::Published);
        routes.refer(OWN);
        assert_eq!(routes.next(Duration::ZERO), Route::Own(OWN));
        routes.succeeded();
        let tried = failing(&mut routes, 100..104);
        assert_eq!(tried, [Route::Own(OWN), Route::Published, Route::Own(OWN), Route::Published]);
    }

    #[test]
    fn the_store_is_read_when_the_published_port_has_failed_for_five_seconds() {
        let mut routes = Routes::new(true, true);
        let tried = failing(&mut routes, [0, 4, 5, 6, 7]);
        let (published, stored) = (Route::Published, Route::Stored);
        assert_eq!(tried, [published, published, stored, published, stored]);
        routes.refer(OWN);
        assert_eq!(failing(&mut routes, [8, 9, 10, 11]), [Route::Own(OWN), published, stored, Route::Own(OWN)]);
        assert_eq!(failing(&mut Routes::new(true, false), 0..9), [Route::Published; 9]);
    }
}
