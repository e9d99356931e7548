//! Counters of the commits of a run, from its events.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::job::{Event, Flushed, Mirrored, Uptime};

/// Counters since trainit started.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Tally {
    /// The age of the content of the last commit: when that commit began.
    pub committed_at: Option<Uptime>,
    /// The name of its checkpoint in the checkpoint directory.
    pub committed_unit: Option<String>,
    /// Steps that the newest complete checkpoint is ahead of the store, if known.
    pub behind: Option<u64>,
    /// Commits made.
    pub commits: u64,
    /// Bytes of the committed files.
    pub bytes: u64,
    /// The total time of the commits.
    pub took: Duration,
    /// When the last commit was complete.
    pub last_at: Option<Uptime>,
    /// The number of failed commits, by cause.
    pub failures: BTreeMap<&'static str, u64>,
}

impl Tally {
    /// Counts an event.
    pub fn note(&mut self, now: Uptime, event: &Event) {
        match *event {
            Event::Committed { ref unit, took, .. } => {
                self.committed_at = Some(now.saturating_sub(took));
                self.committed_unit = Some(unit.clone());
            }
            Event::Flushed(Flushed::Done { step: Some(_) } | Flushed::Stepless) => self.committed_at = Some(now),
            Event::Mirrored(Mirrored::Behind(steps)) => self.behind = steps,
            Event::Mirrored(Mirrored::Committed { bytes, took }) => {
                self.commits += 1;
                self.bytes += bytes;
                self.took += took;
                self.last_at = Some(now);
            }
            Event::Mirrored(Mirrored::Failed(cause)) => *self.failures.entry(cause).or_default() += 1,
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn commits_and_failures_are_counted_the_latter_by_cause() {
        let mut tally = Tally::default();
        let news = [
            Mirrored::Behind(Some(20)),
            Mirrored::Failed("unreachable"),
            Mirrored::Failed("unreachable"),
            Mirrored::Failed("denied"),
            Mirrored::Committed { bytes: 100, took: 2 * SECOND },
            Mirrored::Committed { bytes: 11, took: SECOND },
            Mirrored::Behind(Some(0)),
        ];
        for (at, news) in (1..).zip(news) {
            tally.note(at * SECOND, &Event::Mirrored(news));
        }
        assert_eq!((tally.commits, tally.bytes, tally.took), (2, 111, 3 * SECOND));
        assert_eq!((tally.last_at, tally.behind), (Some(6 * SECOND), Some(0)));
        assert_eq!(tally.failures, BTreeMap::from([("denied", 1), ("unreachable", 2)]));
    }

    #[test]
    fn the_content_of_a_commit_is_as_old_as_its_start() {
        let mut tally = Tally::default();
        let committed =
            Event::Committed { unit: "u".into(), step: None, took: 2 * SECOND, lag: SECOND, is_progress: true };
        tally.note(10 * SECOND, &committed);
        assert_eq!((tally.committed_at, tally.committed_unit.as_deref()), (Some(8 * SECOND), Some("u")));
        tally.note(20 * SECOND, &Event::Flushed(Flushed::Done { step: None }));
        assert_eq!(tally.committed_at, Some(8 * SECOND), "nothing was committed");
        tally.note(30 * SECOND, &Event::Flushed(Flushed::Done { step: Some(5) }));
        assert_eq!(tally.committed_at, Some(30 * SECOND));
    }
}
