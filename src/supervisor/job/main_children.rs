//! The main children of an attempt: one, or one for each local rank. Records which are alive, and the order of deaths
//! that wait(2) reports together.

use crate::edge::process::exit_order::Deaths;
use crate::rules::process::exit::End;

/// The main children.
#[derive(Debug, Default)]
pub(in crate::supervisor) struct MainChildren {
    /// The PIDs of the attempt by local rank, dead ones included.
    pids: Vec<i32>,
    /// The PIDs that have not been reaped.
    alive: Vec<i32>,
    /// Present if there are several children.
    deaths: Option<Deaths>,
}

impl MainChildren {
    /// An empty list for `count` children.
    pub(in crate::supervisor) fn of(count: usize) -> MainChildren {
        // Without this watch the order is that of wait(2).
        let deaths = if count > 1 { Deaths::new().ok() } else { None };
        MainChildren { deaths, ..MainChildren::default() }
    }

    /// Adds the child of the next local rank.
    pub(in crate::supervisor) fn add(&mut self, pid: i32) {
        if let Some(deaths) = &mut self.deaths
            && let Err(error) = deaths.watch(pid)
        {
            tracing::debug!("which rank died first may be reported wrong: {error}");
            self.deaths = None;
        }
        self.pids.push(pid);
        self.alive.push(pid);
    }

    /// All PIDs of the attempt, by local rank. Each child leads a process group, which exists as long as one member
    /// lives.
    pub(in crate::supervisor) fn pids(&self) -> &[i32] {
        &self.pids
    }

    /// The live children, by local rank.
    pub(in crate::supervisor) fn alive(&self) -> &[i32] {
        &self.alive
    }

    /// Removes a reaped process. Returns its local rank if it was a main child.
    pub(in crate::supervisor) fn remove(&mut self, pid: i32) -> Option<u32> {
        let at = self.alive.iter().position(|alive| *alive == pid)?;
        self.alive.remove(at);
        u32::try_from(self.pids.iter().position(|p| *p == pid)?).ok()
    }

    /// Sorts main children that were reaped together by the order of their deaths.
    pub(in crate::supervisor) fn in_order(&mut self, ended: &mut [(i32, End)]) {
        if ended.len() < 2 {
            return;
        }
        let Some(deaths) = &mut self.deaths else { return };
        let order = deaths.so_far();
        let alive = &self.alive;
        ended.sort_by_key(|(pid, _)| match alive.contains(pid) {
            true => order.iter().position(|dead| dead == pid).unwrap_or(usize::MAX),
            false => 0,
        });
    }
}
