//! The configuration of a simulation: the seats of the gang, the store, and the trainers.

use super::*;

#[derive(Debug, Clone)]
pub(super) struct Plan {
    pub(super) seats: Vec<Seat>,
    pub(super) mode: Mode,
    pub(super) on_notice: OnNotice,
    pub(super) timing: Timing,
    /// Whether there is a store for the claims.
    pub(super) store: bool,
    /// The platform's id of the job; empty if the platform gives none.
    pub(super) job_id: String,
    /// Whether each leader has `from_scratch`.
    pub(super) from_scratch: bool,
    /// Whether the leader has the mode in its configuration; otherwise it detects it.
    pub(super) is_mode_set: bool,
    /// The duration of a step.
    pub(super) step: Millis,
    /// The number of steps after which the trainers end.
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
            job_id: "job".to_owned(),
            from_scratch: false,
            is_mode_set: true,
            step: 100,
            steps: 600,
        }
    }

    pub(super) fn without_store(mut self) -> Plan {
        self.store = false;
        self
    }

    /// Whether two complete gangs are simulated. Without a store they do not detect each other, and with `from_scratch` each
    /// starts from the beginning.
    pub(super) fn has_two_gangs(&self) -> bool {
        self.store && !self.from_scratch
    }

    pub(super) fn with_from_scratch(mut self, from_scratch: bool) -> Plan {
        self.from_scratch = from_scratch;
        self
    }

    pub(super) fn without_job_id(mut self) -> Plan {
        self.job_id = String::new();
        self
    }

    pub(super) fn with_mode_detection(mut self) -> Plan {
        self.is_mode_set = false;
        self
    }

    /// With slow trainers, for large gangs.
    pub(super) fn slow(mut self) -> Plan {
        (self.step, self.steps) = (SECOND, 60);
        self
    }

    pub(super) fn with(mut self, role: Role, many: u32) -> Plan {
        self.seats.extend((0..many).map(|index| Seat::new(role, index)));
        self
    }
}
