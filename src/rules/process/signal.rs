//! Signals as data: numbers and names on Linux, and their meaning. No signal is sent or received here.

use std::fmt;

/// A signal number, 1 to 64.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Signal(u8);

/// x86-64 and aarch64 numbers; real-time signals follow from 34 (glibc's and musl's SIGRTMIN) to 64.
const NAMES: [&str; 31] = [
    "HUP", "INT", "QUIT", "ILL", "TRAP", "ABRT", "BUS", "FPE", "KILL", "USR1", "SEGV", "USR2", "PIPE", "ALRM", "TERM",
    "STKFLT", "CHLD", "CONT", "STOP", "TSTP", "TTIN", "TTOU", "URG", "XCPU", "XFSZ", "VTALRM", "PROF", "WINCH", "IO",
    "PWR", "SYS",
];
const RTMIN: u8 = 34;
const RTMAX: u8 = 64;

/// A process's handling of a signal.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Disposition {
    /// Nothing of its own: the kernel's default action.
    #[default]
    Default,
    /// It is ignored.
    Ignores,
    /// It has a handler, or blocks the signal to wait for it (sigwait, signalfd).
    Handles,
}

#[allow(missing_docs, reason = "the names are signal(7)'s")]
impl Signal {
    pub const HUP: Signal = Signal(1);
    pub const INT: Signal = Signal(2);
    pub const QUIT: Signal = Signal(3);
    pub const ABRT: Signal = Signal(6);
    pub const KILL: Signal = Signal(9);
    pub const USR1: Signal = Signal(10);
    pub const USR2: Signal = Signal(12);
    pub const TERM: Signal = Signal(15);
    pub const CHLD: Signal = Signal(17);
    pub const CONT: Signal = Signal(18);
    pub const STOP: Signal = Signal(19);
    pub const TSTP: Signal = Signal(20);
    pub const TTIN: Signal = Signal(21);
    pub const TTOU: Signal = Signal(22);

    /// `None` outside 1 to 64.
    pub fn new(number: i32) -> Option<Signal> {
        u8::try_from(number).ok().filter(|n| (1..=RTMAX).contains(n)).map(Signal)
    }

    /// The number.
    pub fn number(self) -> i32 {
        i32::from(self.0)
    }

    /// `TERM`, `SIGTERM`, `term`, `15`, `RTMIN+3`, `RTMAX-1`.
    pub fn parse(text: &str) -> Option<Signal> {
        let text = text.trim();
        if let Ok(number) = text.parse::<i32>() {
            return Signal::new(number);
        }
        let upper = text.to_ascii_uppercase();
        let name = upper.strip_prefix("SIG").unwrap_or(&upper);
        if let Some(at) = NAMES.iter().position(|n| *n == name) {
            return Signal::new(at as i32 + 1);
        }
        let offset = |rest: &str, sign: char| -> Option<u8> {
            if rest.is_empty() {
                return Some(0);
            }
            rest.strip_prefix(sign)?.parse().ok()
        };
        let number = match name {
            "POLL" => 29,
            "IOT" => 6,
            "CLD" => 17,
            _ if name.starts_with("RTMIN") => RTMIN.checked_add(offset(&name[5..], '+')?)?,
            _ if name.starts_with("RTMAX") => RTMAX.checked_sub(offset(&name[5..], '-')?).filter(|n| *n >= RTMIN)?,
            _ => return None,
        };
        Signal::new(i32::from(number))
    }

    /// Whether a terminal stops a job with this signal.
    pub fn stops_a_job(self) -> bool {
        matches!(self, Signal::TSTP | Signal::TTIN | Signal::TTOU)
    }

    /// Signals that a person or a platform sends to end a program. A death soon after one of these is not a crash.
    pub fn asks_to_leave(self) -> bool {
        matches!(self, Signal::TERM | Signal::INT | Signal::HUP | Signal::QUIT)
    }
}

impl fmt::Display for Signal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match NAMES.get(usize::from(self.0) - 1) {
            Some(name) => write!(f, "SIG{name}"),
            None if self.0 < RTMIN => write!(f, "signal {}", self.0),
            None => write!(f, "SIGRTMIN+{}", self.0 - RTMIN),
        }
    }
}

impl fmt::Debug for Signal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_signal_reads_back_from_its_own_name_and_number() {
        for number in 1..=64 {
            let signal = Signal::new(number).expect("in range");
            assert_eq!(Signal::parse(&number.to_string()), Some(signal));
            if !(32..34).contains(&number) {
                assert_eq!(Signal::parse(&signal.to_string()), Some(signal), "{signal}");
            }
        }
    }

    #[test]
    fn an_invalid_signal_is_refused() {
        for text in ["0", "65", "-1", "", "SIG", "FOO", "RTMIN+31", "RTMAX-31", "RTMIN-1", "15x"] {
            assert_eq!(Signal::parse(text), None, "{text:?}");
        }
    }

    #[test]
    fn numbers_are_the_kernels() {
        assert_eq!(Signal::parse("usr1").map(Signal::number), Some(libc::SIGUSR1));
        assert_eq!(Signal::parse("SIGWINCH").map(Signal::number), Some(libc::SIGWINCH));
        assert_eq!(Signal::parse("SYS").map(Signal::number), Some(libc::SIGSYS));
        assert_eq!(Signal::parse("RTMIN+1").map(Signal::number), Some(35));
        assert_eq!(["RTMAX", "RTMAX-1"].map(|name| Signal::parse(name).map(Signal::number)), [Some(64), Some(63)]);
        let second_names = [("POLL", libc::SIGPOLL), ("IOT", libc::SIGABRT), ("CLD", libc::SIGCHLD)];
        for (name, number) in second_names {
            assert_eq!(Signal::parse(name).map(Signal::number), Some(number), "{name}");
        }
    }
}
