//! What follows from what is there: whose turn it is, what to restore, what to commit, what may go.

use std::time::Duration;

use super::names::{Attempt, CommitName, Stamp};

/// So much older than it is may a file look: its time is that of the kernel's last tick.
pub const TICK: Duration = Duration::from_millis(10);

/// How new a checkpoint is, where two can be compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Age {
    /// The training step, where known.
    pub step: Option<u64>,
    /// The newest modification time of its files, nanoseconds since 1970.
    pub newest_ns: i64,
}

/// The attempt to claim next.
pub fn next_number<'a>(attempts: impl IntoIterator<Item = &'a Attempt>) -> u64 {
    attempts.into_iter().map(|a| a.number).max().unwrap_or(0).saturating_add(1)
}

/// What the claims in a store say of ours.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Standing {
    /// It is the newest.
    Newest,
    /// This newer one has taken over, and we may commit no more.
    Overtaken(Attempt),
    /// It is not there: the store was emptied, or this is not the one that we claimed.
    Gone,
}

/// Where our attempt stands among those of the store.
pub fn standing(ours: &Attempt, attempts: &[Attempt]) -> Standing {
    match attempts.iter().max() {
        Some(newest) if newest > ours => Standing::Overtaken(newest.clone()),
        _ if attempts.contains(ours) => Standing::Newest,
        _ => Standing::Gone,
    }
}

/// Whether the local checkpoint is to be kept rather than the newest commit restored: it was written by a run that came
/// from that commit or made it (`lineage` is the attempt that last used the directory), and it is newer. A run may go
/// back on purpose, so neither the step nor the time is enough alone.
pub fn prefers_local(lineage: Option<&Attempt>, local: Age, commit: &Stamp, committed: Age) -> bool {
    if lineage.is_none_or(|l| *l < commit.attempt) {
        return false;
    }
    match (local.step, committed.step) {
        (Some(ours), Some(theirs)) if ours > theirs => local.newest_ns >= committed.newest_ns,
        (Some(ours), Some(theirs)) if ours < theirs => false,
        _ => local.newest_ns > committed.newest_ns,
    }
}

/// Whether a local checkpoint is to be committed after this one: a higher step, or written later. (When a framework
/// deletes its newest checkpoint, the older one that is left is neither.)
pub fn supersedes(local: Age, committed: Age) -> bool {
    let higher = matches!((local.step, committed.step), (Some(ours), Some(theirs)) if ours > theirs);
    higher || local.newest_ns > committed.newest_ns
}

/// Free bytes that a restore of this many needs.
pub fn space_needed(total: u64) -> u64 {
    total.saturating_add(total / 20)
}

/// What to keep in the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Retention {
    /// Newest good commits; at least 1 are kept whatever this says.
    pub last: u64,
    /// Also every commit whose step is a multiple of this.
    pub every: Option<u64>,
    /// Data that no commit names is left alone for this long.
    pub orphan_age: Duration,
}

/// Commits that may be deleted, oldest first. `newest_first` pairs each commit with whether it is good: all its objects
/// were seen to be there, and no trainer failed from it again and again. Only the good ones count among the last K. Nothing
/// goes while there are not K good ones and another, and the newest commit of the step `best` stays.
pub fn expendable(
    newest_first: &[(CommitName, bool)],
    retention: Retention,
    ours: &Attempt,
    spared: Option<&Stamp>,
    best: Option<u64>,
) -> Vec<CommitName> {
    let keep = usize::try_from(retention.last.max(1)).unwrap_or(usize::MAX);
    let good = newest_first.iter().enumerate().filter(|(_, (_, good))| *good);
    let Some((last_kept, _)) = good.take(keep).nth(keep - 1) else { return Vec::new() };
    let older = newest_first[last_kept + 1..].iter().map(|(name, _)| name);
    let best = newest_first.iter().map(|(name, _)| name).find(|name| best == Some(name.step));
    // 0 is the step of those that have none, too.
    let is_multiple = |name: &CommitName| name.step > 0 && retention.every.is_some_and(|n| name.step.is_multiple_of(n));
    let mut going: Vec<CommitName> = older
        .filter(|name| name.stamp.attempt <= *ours && spared != Some(&name.stamp))
        .filter(|name| best != Some(*name) && !is_multiple(name))
        .cloned()
        .collect();
    going.reverse();
    going
}

#[cfg(test)]
mod tests {
    use super::*;

    fn attempt(number: u64) -> Attempt {
        Attempt { number, tag: None }
    }

    fn commit(number: u64, seq: u64, step: u64) -> CommitName {
        CommitName { stamp: Stamp { attempt: attempt(number), seq }, step, hash: "0".repeat(16) }
    }

    fn age(step: u64, newest_ns: i64) -> Age {
        Age { step: Some(step), newest_ns }
    }

    #[test]
    fn a_larger_attempt_fences_ours_and_a_smaller_one_does_not() {
        assert_eq!(standing(&attempt(3), &[attempt(1), attempt(3)]), Standing::Newest);
        assert_eq!(standing(&attempt(3), &[attempt(5), attempt(4)]), Standing::Overtaken(attempt(5)));
        assert_eq!(standing(&attempt(3), &[attempt(2)]), Standing::Gone);
        assert_eq!(standing(&attempt(3), &[]), Standing::Gone);
        assert_eq!(next_number(&[attempt(2), attempt(7)]), 8);
        assert_eq!(next_number(&[]), 1);
    }

    #[test]
    fn a_newer_local_checkpoint_of_our_own_line_is_kept() {
        let stamp = commit(2, 1, 40).stamp;
        let (two, one) = (attempt(2), attempt(1));
        assert!(prefers_local(Some(&two), age(50, 9), &stamp, age(40, 5)));
        assert!(prefers_local(Some(&attempt(3)), age(50, 9), &stamp, age(40, 5)));
        assert!(!prefers_local(Some(&one), age(50, 9), &stamp, age(40, 5)), "another incarnation has gone on");
        assert!(!prefers_local(None, age(50, 9), &stamp, age(40, 5)), "nobody knows where it came from");
        assert!(!prefers_local(Some(&two), age(50, 4), &stamp, age(40, 5)), "left over from before going back");
        assert!(!prefers_local(Some(&two), age(30, 9), &stamp, age(40, 5)));
        assert!(prefers_local(Some(&two), age(50, 5), &stamp, age(40, 5)), "clocks are coarse");
        let unknown = |newest_ns| Age { step: None, newest_ns };
        for (local, committed) in [(age(40, 9), age(40, 5)), (unknown(9), age(40, 5)), (unknown(9), unknown(5))] {
            assert!(prefers_local(Some(&two), local, &stamp, committed), "no step tells: saved over since {local:?}");
            assert!(!prefers_local(Some(&two), committed, &stamp, committed), "it is what was committed");
            assert!(!supersedes(committed, committed));
        }
    }

    #[test]
    fn what_is_left_when_the_newest_was_deleted_is_not_committed_again() {
        assert!(!supersedes(age(30, 3), age(40, 5)));
        assert!(supersedes(age(50, 9), age(40, 5)));
        assert!(supersedes(age(35, 9), age(40, 5)), "written later: the run went back");
        assert!(supersedes(age(50, 4), age(40, 5)), "a clock that was set back");
    }

    #[test]
    fn the_newest_k_whole_commits_stay() {
        let all: Vec<(CommitName, bool)> = (1..=6).rev().map(|s| (commit(1, s, s * 10), true)).collect();
        let keep = |last, every| Retention { last, every, orphan_age: Duration::ZERO };
        let steps = |list: Vec<CommitName>| list.iter().map(|c| c.step).collect::<Vec<u64>>();
        let us = attempt(1);
        assert_eq!(steps(expendable(&all, keep(3, None), &us, None, None)), [10, 20, 30]);
        assert_eq!(steps(expendable(&all, keep(6, None), &us, None, None)), [0; 0]);
        assert_eq!(steps(expendable(&all, keep(0, None), &us, None, None)).len(), 5, "one is always kept");
        assert_eq!(steps(expendable(&all, keep(3, Some(20)), &us, None, None)), [10, 30]);
        assert_eq!(steps(expendable(&all, keep(3, None), &us, Some(&all[5].0.stamp), None)), [20, 30]);
    }

    #[test]
    fn commits_without_a_step_are_no_multiple_of_anything() {
        let all: Vec<(CommitName, bool)> = (1..=6).rev().map(|s| (commit(1, s, 0), true)).collect();
        let keep = Retention { last: 2, every: Some(1000), orphan_age: Duration::ZERO };
        assert_eq!(expendable(&all, keep, &attempt(1), None, None).len(), 4);
    }

    #[test]
    fn the_best_stays_in_its_newest_commit() {
        let mut all: Vec<(CommitName, bool)> = (1..=6).rev().map(|s| (commit(1, s, s * 10), true)).collect();
        all[4].0.step = 10;
        let keep = Retention { last: 2, every: None, orphan_age: Duration::ZERO };
        let going =
            |best| expendable(&all, keep, &attempt(1), None, best).iter().map(|c| c.stamp.seq).collect::<Vec<_>>();
        assert_eq!(going(None), [1, 2, 3, 4]);
        assert_eq!(going(Some(10)), [1, 3, 4]);
        assert_eq!(going(Some(60)), [1, 2, 3, 4], "among the newest it stays anyway, and costs no other's place");
        assert_eq!(going(Some(7)), [1, 2, 3, 4], "never committed");
    }

    #[test]
    fn torn_commits_do_not_count_as_kept_and_later_attempts_are_not_ours_to_delete() {
        let mut all: Vec<(CommitName, bool)> = (1..=4).rev().map(|s| (commit(1, s, s * 10), true)).collect();
        all[0].1 = false;
        let keep = Retention { last: 2, every: None, orphan_age: Duration::ZERO };
        assert_eq!(expendable(&all, keep, &attempt(1), None, None).len(), 1);
        all[1].1 = false;
        assert_eq!(expendable(&all, keep, &attempt(1), None, None), []);
        let later: Vec<(CommitName, bool)> = (1..=3).rev().map(|s| (commit(9, s, s), true)).collect();
        assert_eq!(expendable(&later, keep, &attempt(8), None, None), []);
    }
}
