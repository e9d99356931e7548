//! The only clock. All other code takes the time as an argument.

#![expect(clippy::disallowed_methods, reason = "this is the only place that reads a clock")]

use std::time::{Duration, SystemTime};

use nix::time::ClockId;
use nix::unistd::{SysconfVar, sysconf};

/// Time since [`Clock::start`]. It includes suspends of the machine, because the deadlines of a cloud do.
#[derive(Debug, Clone, Copy)]
pub struct Clock(Duration);

impl Default for Clock {
    fn default() -> Clock {
        Clock::start()
    }
}

impl Clock {
    /// Starts counting.
    pub fn start() -> Clock {
        Clock(since_boot())
    }

    /// Time since the start.
    pub fn now(&self) -> Duration {
        since_boot().saturating_sub(self.0)
    }
}

/// Wall-clock time. For logs, file stamps and RFC 3339 only, never for deadlines.
pub fn wall() -> SystemTime {
    SystemTime::now()
}

/// Clock ticks since boot, as /proc counts the starts of processes.
pub fn boot_ticks() -> u64 {
    let now = since_boot();
    let per_second =
        sysconf(SysconfVar::CLK_TCK).ok().flatten().and_then(|ticks| u64::try_from(ticks).ok()).unwrap_or(100);
    now.as_secs() * per_second + u64::from(now.subsec_nanos()) * per_second / 1_000_000_000
}

/// CLOCK_BOOTTIME: monotonic, and it includes the time that the machine was suspended. std does not have it.
fn since_boot() -> Duration {
    ClockId::CLOCK_BOOTTIME.now().map_or(Duration::ZERO, Duration::from)
}
