//! Seats: the role and the index of a replica.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::spec::Role;

/// One replica's place in the job, written `worker/3`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Seat {
    order: u8,
    /// The index within the role, from 0.
    pub index: u32,
}

/// The roles in the order of a roster.
const ROLES: [Role; 5] = [Role::Chief, Role::Worker, Role::Ps, Role::Evaluator, Role::Reducer];

impl Seat {
    /// A seat from its role and index.
    pub fn new(role: Role, index: u32) -> Seat {
        let order = ROLES.iter().position(|other| *other == role).unwrap_or(0) as u8;
        Seat { order, index }
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
        write!(f, "{}/{}", self.role().word(), self.index)
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
        let role = ROLES.iter().find(|role| role.word() == word).ok_or_else(wrong)?;
        Ok(Seat::new(*role, index.parse().map_err(|_| wrong())?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seat_is_written_as_role_and_index_and_read_back() {
        let seat = Seat::new(Role::Worker, 3);
        assert_eq!(serde_json::to_string(&seat).unwrap(), "\"worker/3\"");
        assert_eq!(serde_json::from_str::<Seat>("\"worker/3\"").unwrap(), seat);
        for wrong in ["\"worker\"", "\"boss/1\"", "\"worker/-1\"", "\"worker/4294967296\"", "3"] {
            assert!(serde_json::from_str::<Seat>(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn chief_workers_and_parameter_servers_are_required_and_the_chief_comes_first() {
        let all = ROLES.map(|role| Seat::new(role, 0));
        assert!(all.is_sorted());
        assert_eq!(all.map(Seat::is_required), [true, true, true, false, false]);
    }
}
