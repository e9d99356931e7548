//! The main children of an attempt: one, or one for each local rank. Which live, and in which order those died that wait(2)
//! tells of at once.

use crate::edge::deaths::Deaths;
use crate::rules::exit::End;

/// The main children.
#[derive(Debug, Default)]
pub(super) struct Leaders {
    /// Each of the attempt's, by local rank, whether it lives or not.
    pids: Vec<i32>,
    /// Those that have not been reaped.
    alive: Vec<i32>,
    /// Kept where there are several.
    deaths: Option<Deaths>,
}

impl Leaders {
    /// None yet, of so many.
    pub(super) fn of(count: usize) -> Leaders {
        // Without it the order is wait(2)'s.
        let deaths = if count > 1 { Deaths::new().ok() } else { None };
        Leaders { deaths, ..Leaders::default() }
    }

    /// The next local rank's.
    pub(super) fn add(&mut self, pid: i32) {
        if let Some(deaths) = &mut self.deaths
            && let Err(error) = deaths.watch(pid)
        {
            tracing::debug!("which rank died first may be told wrong: {error}");
            self.deaths = None;
        }
        self.pids.push(pid);
        self.alive.push(pid);
    }

    /// All of the attempt, by local rank. Each was made the leader of a process group, which lives as long as one member.
    pub(super) fn pids(&self) -> &[i32] {
        &self.pids
    }

    /// The living, by local rank.
    pub(super) fn alive(&self) -> &[i32] {
        &self.alive
    }

    /// Takes a process out that was reaped; its local rank, if it was one of these.
    pub(super) fn remove(&mut self, pid: i32) -> Option<u32> {
        let at = self.alive.iter().position(|alive| *alive == pid)?;
        self.alive.remove(at);
        u32::try_from(self.pids.iter().position(|p| *p == pid)?).ok()
    }

    /// Puts what was reaped at once into the order of the deaths, as far as it matters.
    pub(super) fn in_order(&mut self, ended: &mut [(i32, End)]) {
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
