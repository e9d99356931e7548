//! Whether a command ended for want of memory: the kernel counts the kills of the cgroup, and says neither whom nor when.

use std::time::Duration;

use super::event::Uptime;

/// A command that fails because one of its processes was killed does so by then: the others wait for it in a collective for
/// half an hour at most by default (gloo's time-out), and a launcher gives them a while. One that fails later has lived with it.
const LATELY: Duration = Duration::from_secs(40 * 60);

/// What was seen of the count since an attempt began.
#[derive(Debug, Default)]
pub struct Kills {
    /// `None`: nobody counts.
    count: Option<u64>,
    /// When it was seen to have risen, the last time.
    risen: Option<Uptime>,
}

impl Kills {
    /// An attempt begins, and so many were killed before.
    pub fn since(count: Option<u64>) -> Kills {
        Kills { count, risen: None }
    }

    /// So many were killed by now.
    pub fn note(&mut self, now: Uptime, count: Option<u64>) {
        let Some((before, count)) = self.count.zip(count) else {
            self.count = None;
            return;
        };
        if count > before {
            self.risen = Some(now);
        }
        self.count = Some(count);
    }

    /// Whether somebody was killed so recently that a command which ends now may end of it; `None`: nobody counts.
    pub fn lately(&self, now: Uptime) -> Option<bool> {
        self.count.map(|_| self.risen.is_some_and(|risen| now.saturating_sub(risen) <= LATELY))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn secs(secs: u64) -> Uptime {
        Uptime::from_secs(secs)
    }

    #[test]
    fn a_kill_that_the_command_outlived_for_long_is_not_what_it_dies_of() {
        let mut kills = Kills::since(Some(4));
        assert_eq!(kills.lately(secs(1)), Some(false), "those of earlier attempts are not its own");
        kills.note(secs(60), Some(5));
        kills.note(secs(120), Some(5));
        assert_eq!((kills.lately(secs(120)), kills.lately(secs(60 + 1800))), (Some(true), Some(true)));
        assert_eq!(kills.lately(secs(60 + 2401)), Some(false));
        kills.note(secs(7200), Some(6));
        assert_eq!(kills.lately(secs(7200)), Some(true), "nobody looked before it died");
    }

    #[test]
    fn where_nobody_counts_nothing_is_said() {
        let mut kills = Kills::since(None);
        kills.note(secs(1), Some(1));
        assert_eq!(kills.lately(secs(1)), None);
        let mut kills = Kills::since(Some(1));
        kills.note(secs(1), None);
        assert_eq!(kills.lately(secs(1)), None);
    }
}
