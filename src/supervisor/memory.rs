//! The job's memory, as the cgroup and wait(2) tell it.

use std::time::Duration;

use crate::edge::cgroup::MemoryCgroup;
use crate::edge::process;
use crate::rules::job::{Kills, Uptime};
use crate::rules::status::Memory;

/// The count of kills is not looked at again sooner.
const PAUSE: Duration = Duration::from_secs(1);

/// What is known of it.
#[derive(Default)]
pub(super) struct MemoryDesk {
    cgroup: Option<MemoryCgroup>,
    kills: Kills,
    looked: Uptime,
}

impl MemoryDesk {
    /// An attempt has begun.
    pub(super) fn begin(&mut self) {
        self.kills = Kills::since(self.cgroup.get_or_insert_with(MemoryCgroup::find).oom_kills());
    }

    /// Whenever we are awake anyway: so a kill that the command lives with is known to be old when it ends.
    pub(super) fn look(&mut self, now: Uptime) {
        if now.saturating_sub(self.looked) >= PAUSE {
            self.killed(now);
        }
    }

    /// Whether the kernel has lately killed for the memory limit; `None`: nobody counts.
    pub(super) fn killed(&mut self, now: Uptime) -> Option<bool> {
        self.looked = now;
        self.kills.note(now, self.cgroup.as_ref().and_then(MemoryCgroup::oom_kills));
        self.kills.lately(now)
    }

    /// The job's peak in bytes: the cgroup's where it has a limit, else the largest child's.
    pub(super) fn peak(&self) -> Option<u64> {
        let of_cgroup = self.cgroup.as_ref().and_then(MemoryCgroup::peak_bytes);
        of_cgroup.or_else(|| Some(process::children_peak_memory()).filter(|peak| *peak > 0))
    }

    /// As far as anybody counts it.
    pub(super) fn facts(&self) -> Memory {
        let cgroup = self.cgroup.as_ref();
        Memory {
            current_bytes: cgroup.and_then(MemoryCgroup::current_bytes),
            peak_bytes: self.peak(),
            limit_bytes: cgroup.and_then(MemoryCgroup::limit_bytes),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn a_look_while_the_command_lives_dates_the_kills_before_it() {
        let dir = tempfile::tempdir().expect("a directory");
        let counts = |kills: u64| fs::write(dir.path().join("memory.events"), format!("oom_kill {kills}\n"));
        counts(1).expect("written");
        let mut desk = MemoryDesk { cgroup: MemoryCgroup::at(dir.path().to_owned()), ..MemoryDesk::default() };
        desk.begin();
        counts(2).expect("written");
        desk.look(Uptime::from_secs(10));
        assert_eq!(desk.killed(Uptime::from_secs(11)), Some(true));
        assert_eq!(desk.killed(Uptime::from_secs(2500)), Some(false));
    }
}
