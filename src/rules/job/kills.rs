//! Whether a command ended because of an out-of-memory kill. The cgroup counts kills, but reports neither the process
//! nor the time.

use std::time::Duration;

use super::event::Uptime;

/// A command that fails because one of its processes was killed fails within this time: the other ranks wait for the
/// dead one in a collective for at most half an hour by default (gloo's timeout), and a launcher allows some more. A
/// later failure has another cause.
const RECENT: Duration = Duration::from_secs(40 * 60);

/// The count of kills during one attempt.
#[derive(Debug, Default)]
pub struct Kills {
    /// `None` if there is no counter.
    count: Option<u64>,
    /// When the count was last seen to rise.
    rose_at: Option<Uptime>,
}

impl Kills {
    /// A new attempt, with the count at its start.
    pub fn since(count: Option<u64>) -> Kills {
        Kills { count, rose_at: None }
    }

    /// The count now.
    pub fn note(&mut self, now: Uptime, count: Option<u64>) {
        let Some((before, count)) = self.count.zip(count) else {
            self.count = None;
            return;
        };
        if count > before {
            self.rose_at = Some(now);
        }
        self.count = Some(count);
    }

    /// Whether a kill is so recent that it may be the cause of an end now; `None` if there is no counter.
    pub fn is_recent(&self, now: Uptime) -> Option<bool> {
        self.count.map(|_| self.rose_at.is_some_and(|rose_at| now.saturating_sub(rose_at) <= RECENT))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn secs(secs: u64) -> Uptime {
        Uptime::from_secs(secs)
    }

    #[test]
    fn a_kill_long_before_the_death_is_not_its_cause() {
        let mut kills = Kills::since(Some(4));
        assert_eq!(kills.is_recent(secs(1)), Some(false), "kills during earlier attempts do not count");
        kills.note(secs(60), Some(5));
        kills.note(secs(120), Some(5));
        assert_eq!((kills.is_recent(secs(120)), kills.is_recent(secs(60 + 1800))), (Some(true), Some(true)));
        assert_eq!(kills.is_recent(secs(60 + 2401)), Some(false));
        kills.note(secs(7200), Some(6));
        assert_eq!(kills.is_recent(secs(7200)), Some(true), "the count was not read before the death");
    }

    #[test]
    fn without_a_counter_the_answer_is_unknown() {
        let mut kills = Kills::since(None);
        kills.note(secs(1), Some(1));
        assert_eq!(kills.is_recent(secs(1)), None);
        let mut kills = Kills::since(Some(1));
        kills.note(secs(1), None);
        assert_eq!(kills.is_recent(secs(1)), None);
    }
}
