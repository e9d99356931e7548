//! How a child ended, and trainit's exit-code table.

use std::fmt;

use super::signal::Signal;

/// How a process ended, as reported by wait(2).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// It exited with this code, 0 to 255.
    Code(u8),
    /// A signal ended it.
    Signal(Signal),
}

impl End {
    /// The code that a shell reports for it: the exit code, or 128 + n.
    pub fn code(self) -> u8 {
        match self {
            End::Code(code) => code,
            End::Signal(signal) => 128u8.wrapping_add(signal.number() as u8),
        }
    }
}

impl fmt::Display for End {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            End::Code(code) => write!(f, "exit code {code}"),
            End::Signal(signal) => write!(f, "{signal}"),
        }
    }
}

/// trainit itself could not start the job: command line, configuration, malformed cluster, unmet demand.
pub const NOT_STARTED: u8 = 125;
/// The command cannot be executed.
pub const NOT_EXECUTABLE: u8 = 126;
/// The command was not found.
pub const NOT_FOUND: u8 = 127;
/// Stopped from outside: SIGTERM or a preemption, whatever the child's exit code.
pub const STOPPED: u8 = 143;
/// No sign of life for the time of `--hang-timeout`, and no restart left.
pub const HUNG: u8 = 201;
/// A GPU failed during training, or a broken GPU leaves a demand unmet: another machine may succeed.
pub const GPU: u8 = 202;
/// A peer could not be reached.
pub const PEER: u8 = 203;
/// A commit or a restore was necessary and failed.
pub const STORE: u8 = 204;
/// A newer incarnation of this job has taken over the store.
pub const FENCED: u8 = 205;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signal_death_is_128_and_its_number() {
        for number in 1..=64 {
            let signal = Signal::new(number).expect("in range");
            assert_eq!(i32::from(End::Signal(signal).code()), 128 + number);
        }
    }
}
