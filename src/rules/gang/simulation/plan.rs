//! What a seed is tried on: the seats of the gang, the store, and the trainers.

use super::*;

/// What a seed is tried on.
#[derive(Debug, Clone)]
pub(super) struct Plan {
    pub(super) seats: Vec<Seat>,
    pub(super) mode: Mode,
    pub(super) on_notice: OnNotice,
    pub(super) timing: Timing,
    /// Whether there is a store for the claims.
    pub(super) store: bool,
    /// Whether each leader is told to begin from the beginning.
    pub(super) from_scratch: bool,
    /// Whether the leader is told the mode; else it finds out.
    pub(super) is_told: bool,
    /// A step of the trainers takes so long.
    pub(super) step: Millis,
    /// The trainers end after so many.
    pub(super) steps: u64,
}

impl Plan {
    pub(super) fn of(trainers: usize, mode: Mode) -> Plan {
        let seats = (0..trainers).map(seat_of).collect();
        Plan {
            seats,
            mode,
            on_notice: OnNotice::Hold,
            timing: Timing::default(),
            store: true,
            from_scratch: false,
            is_told: true,
            step: 100,
            steps: 600,
        }
    }

    pub(super) fn without_store(mut self) -> Plan {
        self.store = false;
        self
    }

    /// Whether two whole gangs are tried. Without a store they never hear of each other, and each begins from the beginning if it
    /// is told to.
    pub(super) fn has_two_gangs(&self) -> bool {
        self.store && !self.from_scratch
    }

    pub(super) fn told_to_begin_anew(mut self, is_told_so: bool) -> Plan {
        self.from_scratch = is_told_so;
        self
    }

    pub(super) fn untold(mut self) -> Plan {
        self.is_told = false;
        self
    }

    /// With slow trainers, for many of them.
    pub(super) fn slow(mut self) -> Plan {
        (self.step, self.steps) = (SECOND, 60);
        self
    }

    pub(super) fn with(mut self, role: Role, many: u32) -> Plan {
        self.seats.extend((0..many).map(|index| Seat::new(role, index)));
        self
    }
}
