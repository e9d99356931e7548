//! What follows from a store's keys: which attempt is the newest, and which commits may be deleted.

use std::time::Duration;

use super::names::{Attempt, CommitName, Stamp};

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

/// What a gang holds back from retention: the newest step that all its members have must stay restorable.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Hold {
    /// Nothing: there is no gang.
    #[default]
    Nothing,
    /// Every commit that has a step: none is known to be common yet.
    EveryStep,
    /// Commits of this step and later ones.
    From(u64),
}

impl Hold {
    /// Whether a commit of this step stays; 0: it has none. `is_offered`: it is one of the newest, which members offer. Older
    /// ones go even where nodes never commit the same step, or the store would fill up.
    pub fn keeps(self, step: u64, is_offered: bool) -> bool {
        match self {
            Hold::Nothing => false,
            Hold::EveryStep => step > 0 && is_offered,
            Hold::From(kept) => step > 0 && (step == kept || step > kept && is_offered),
        }
    }

    /// All members have this step now.
    pub fn raise(&mut self, kept: u64) {
        *self = match *self {
            Hold::From(before) => Hold::From(before.max(kept)),
            Hold::Nothing | Hold::EveryStep => Hold::From(kept),
        };
    }
}

/// Commits that may be deleted, oldest first. `newest_first` pairs each commit with whether it is good: all its objects
/// were seen to be there, and no trainer failed from it again and again. Only the good ones count among the last K. Nothing
/// goes while there are not K good ones and another.
pub fn expendable(
    newest_first: &[(CommitName, bool)],
    retention: Retention,
    ours: &Attempt,
    spared: Option<&Stamp>,
) -> Vec<CommitName> {
    let keep = usize::try_from(retention.last.max(1)).unwrap_or(usize::MAX);
    let good = newest_first.iter().enumerate().filter(|(_, (_, good))| *good);
    let Some((last_kept, _)) = good.take(keep).nth(keep - 1) else { return Vec::new() };
    let older = newest_first[last_kept + 1..].iter().map(|(name, _)| name);
    // 0 is the step of those that have none, too.
    let is_multiple = |name: &CommitName| name.step > 0 && retention.every.is_some_and(|n| name.step.is_multiple_of(n));
    let mut going: Vec<CommitName> = older
        .filter(|name| name.stamp.attempt <= *ours && spared != Some(&name.stamp))
        .filter(|name| !is_multiple(name))
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

    #[test]
    fn a_gang_holds_every_step_until_one_is_common_and_later_ones_from_then_on() {
        let mut hold = Hold::EveryStep;
        assert_eq!([0, 1, 40].map(|step| hold.keeps(step, true)), [false, true, true]);
        hold.raise(30);
        hold.raise(20);
        assert_eq!([0, 20, 30, 40].map(|step| hold.keeps(step, true)), [false, false, true, true]);
        assert!(!Hold::Nothing.keeps(40, true));
        assert_eq!([30, 40].map(|step| hold.keeps(step, false)), [true, false], "what is not offered is of no use");
    }

    #[test]
    fn a_larger_attempt_fences_ours_and_a_smaller_one_does_not() {
        for (attempts, expected, next) in [
            (&[1, 3][..], Standing::Newest, 4),
            (&[5, 4], Standing::Overtaken(attempt(5)), 6),
            (&[2], Standing::Gone, 3),
            (&[], Standing::Gone, 1),
        ] {
            let attempts: Vec<Attempt> = attempts.iter().copied().map(attempt).collect();
            assert_eq!((standing(&attempt(3), &attempts), next_number(&attempts)), (expected, next));
        }
    }

    #[test]
    fn the_newest_whole_commits_stay_and_those_of_later_attempts_and_of_chosen_steps() {
        let steps = [60, 50, 40, 30, 20, 10];
        for (name, last, every, torn, ours, expected) in [
            ("the last three stay", 3, None, 0, 1, &[10, 20, 30][..]),
            ("there are no more", 6, None, 0, 1, &[]),
            ("one is always kept", 0, None, 0, 1, &[10, 20, 30, 40, 50]),
            ("multiples stay", 3, Some(20), 0, 1, &[10, 30]),
            ("the torn do not count", 3, None, 1, 1, &[10, 20]),
            ("too few are whole", 3, None, 4, 1, &[]),
            ("a later attempt's are not ours", 1, None, 0, 0, &[]),
        ] {
            let commit = |(at, step): (usize, &u64)| (commit(1, *step, *step), at >= torn);
            let all: Vec<(CommitName, bool)> = steps.iter().enumerate().map(commit).collect();
            let keep = Retention { last, every, orphan_age: Duration::ZERO };
            let going = |spared| expendable(&all, keep, &attempt(ours), spared);
            assert!(going(None).iter().map(|commit| &commit.step).eq(expected), "{name}: {:?}", going(None));
            let spared = &all[5].0.stamp;
            assert!(!going(Some(spared)).iter().any(|commit| commit.stamp == *spared), "{name}");
        }
        let no_steps: Vec<(CommitName, bool)> = (1..=6).rev().map(|seq| (commit(1, seq, 0), true)).collect();
        let keep = Retention { last: 2, every: Some(1000), orphan_age: Duration::ZERO };
        assert_eq!(expendable(&no_steps, keep, &attempt(1), None).len(), 4, "no step is no multiple of anything");
    }
}
