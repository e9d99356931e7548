//! The job's memory use, from the cgroup and wait(2).

use std::time::Duration;

use crate::edge::host::cgroup::MemoryCgroup;
use crate::edge::process::spawn;
use crate::rules::job::{Kills, Uptime};
use crate::rules::status::Memory;

/// The minimum time between two reads of the count of OOM kills.
const PAUSE: Duration = Duration::from_secs(1);

/// The cgroup, and the OOM kills seen in it.
#[derive(Default)]
pub(in crate::supervisor) struct MemoryWatch {
    cgroup: Option<MemoryCgroup>,
    kills: Kills,
    looked: Uptime,
}

impl MemoryWatch {
    /// Before an attempt: starts a new count of kills.
    pub(in crate::supervisor) fn begin(&mut self) {
        self.kills = Kills::since(self.cgroup.get_or_insert_with(MemoryCgroup::find).oom_kills());
    }

    /// Called on every wake-up, so that a kill that the command survives has an early time and does not explain its
    /// later end.
    pub(in crate::supervisor) fn look(&mut self, now: Uptime) {
        if now.saturating_sub(self.looked) >= PAUSE {
            self.killed(now);
        }
    }

    /// Whether the kernel recently killed a process for the memory limit; `None` if there is no counter.
    pub(in crate::supervisor) fn killed(&mut self, now: Uptime) -> Option<bool> {
        self.looked = now;
        self.kills.note(now, self.cgroup.as_ref().and_then(MemoryCgroup::oom_kills));
        self.kills.is_recent(now)
    }

    /// The job's peak in bytes: the cgroup's if it has a limit, else the largest child's.
    pub(in crate::supervisor) fn peak(&self) -> Option<u64> {
        let of_cgroup = self.cgroup.as_ref().and_then(MemoryCgroup::peak_bytes);
        of_cgroup.or_else(|| Some(spawn::children_peak_memory()).filter(|peak| *peak > 0))
    }

    /// The memory figures that the cgroup provides.
    pub(in crate::supervisor) fn facts(&self) -> Memory {
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
    fn a_check_while_the_command_runs_gives_earlier_kills_their_time() {
        let dir = tempfile::tempdir().expect("a directory");
        let counts = |kills: u64| fs::write(dir.path().join("memory.events"), format!("oom_kill {kills}\n"));
        counts(1).expect("written");
        let mut desk = MemoryWatch { cgroup: MemoryCgroup::at(dir.path().to_owned()), ..MemoryWatch::default() };
        desk.begin();
        counts(2).expect("written");
        desk.look(Uptime::from_secs(10));
        assert_eq!(desk.killed(Uptime::from_secs(11)), Some(true));
        assert_eq!(desk.killed(Uptime::from_secs(2500)), Some(false));
    }
}
