//! Seats: the role and the index of a replica.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::spec::Role;

/// One replica's place in the job, written `worker/3`, or `node/3` where the platform has no roles.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Seat {
    order: u8,
    /// The index within the role, from 0.
    pub index: u32,
}

/// The roles in the order of a roster. The first place is that of a replica without a role, which does a worker's part.
const ROLES: [Role; 6] = [Role::Worker, Role::Chief, Role::Worker, Role::Ps, Role::Evaluator, Role::Reducer];
/// The word for a replica without a role.
const NODE: &str = "node";

impl Seat {
    /// A seat from its role and index.
    pub fn new(role: Role, index: u32) -> Seat {
        let order = ROLES.iter().rposition(|other| *other == role).unwrap_or(0) as u8;
        Seat { order, index }
    }

    /// The seat of a rank on a platform without roles.
    pub fn node(rank: u32) -> Seat {
        Seat { order: 0, index: rank }
    }

    fn word(self) -> &'static str {
        if self.order == 0 { NODE } else { self.role().word() }
    }

    /// The role of the replica.
    pub fn role(self) -> Role {
        ROLES[usize::from(self.order)]
    }

    /// Whether a generation cannot start without it.
    pub fn is_required(self) -> bool {
        matches!(self.role(), Role::Chief | Role::Worker | Role::Ps)
    }

    /// Whether it has checkpoints and takes part in the agreement on the step.
    pub fn trains(self) -> bool {
        self.role().trains()
    }
}

impl fmt::Display for Seat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.word(), self.index)
    }
}

impl fmt::Debug for Seat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl From<Seat> for String {
    fn from(seat: Seat) -> String {
        seat.to_string()
    }
}

impl TryFrom<String> for Seat {
    type Error = String;

    fn try_from(text: String) -> Result<Seat, String> {
        let wrong = || "a seat is ROLE/INDEX, for example worker/3".to_owned();
        let (word, index) = text.split_once('/').ok_or_else(wrong)?;
        let index = index.parse().map_err(|_| wrong())?;
        if word == NODE {
            return Ok(Seat::node(index));
        }
        let role = ROLES.iter().find(|role| role.word() == word).ok_or_else(wrong)?;
        Ok(Seat::new(*role, index))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seat_is_written_as_role_and_index_and_read_back() {
        for (seat, text) in [(Seat::new(Role::Worker, 3), "\"worker/3\""), (Seat::node(2), "\"node/2\"")] {
            assert_eq!(serde_json::to_string(&seat).unwrap(), text);
            assert_eq!(serde_json::from_str::<Seat>(text).unwrap(), seat);
        }
        for wrong in ["\"worker\"", "\"boss/1\"", "\"worker/-1\"", "\"worker/4294967296\"", "3"] {
            assert!(serde_json::from_str::<Seat>(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn chief_workers_and_parameter_servers_are_required_and_the_chief_comes_first() {
        let all = [Role::Chief, Role::Worker, Role::Ps, Role::Evaluator, Role::Reducer].map(|role| Seat::new(role, 0));
        assert!(all.is_sorted());
        assert_eq!(all.map(Seat::is_required), [true, true, true, false, false]);
        assert!(Seat::node(0).is_required() && Seat::node(0).trains());
    }
}
