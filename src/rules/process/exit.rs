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

/// What an exit code of a trainer or a trainit means for another attempt. The table is the same for a gang and a single run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Prospect {
    /// Another attempt would end the same way.
    Permanent,
    /// The trainer has saved, and asks for a restart.
    Asked,
    /// The cause goes away by itself.
    Transient,
    /// At the second time, the cause is the program.
    Once,
    /// SIGKILL from outside.
    Killed,
    /// Any other failure.
    Unknown,
}

/// The usual exit code for wrong usage.
const USAGE: u8 = 2;

/// The prospect of another attempt after this exit code.
pub fn prospect(code: u8) -> Prospect {
    match code {
        USAGE | NOT_STARTED | NOT_EXECUTABLE | NOT_FOUND | FENCED => Prospect::Permanent,
        // TensorFlow's preemption handler exits with 42.
        42 | STOPPED => Prospect::Asked,
        // EX_TEMPFAIL, and SIGINT from another process.
        75 | 130 => Prospect::Transient,
        // ILL, BUS and FPE. Their cause is the program or a full disk.
        132 | 135 | 136 => Prospect::Once,
        // SIGKILL in a shell, and in Composer's launcher, which exits with Python's -9.
        137 | 247 => Prospect::Killed,
        _ => Prospect::Unknown,
    }
}

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
