//! Decisions from a store's keys: which attempt is the newest, and which commits may be deleted.

use std::time::Duration;

use super::names::{Attempt, CommitName, Stamp};

/// The attempt to claim next.
pub fn next_number<'a>(attempts: impl IntoIterator<Item = &'a Attempt>) -> u64 {
    attempts.into_iter().map(|a| a.number).max().unwrap_or(0).saturating_add(1)
}

/// The state of the own claim among those of a store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ClaimState {
    /// The own claim is the newest.
    Newest,
    /// This newer attempt has taken over, so the own attempt may not commit any more.
    Overtaken(Attempt),
    /// The claim does not exist: the store was emptied, or it is another store.
    Gone,
}

/// The state of the own attempt's claim.
pub fn standing(own: &Attempt, attempts: &[Attempt]) -> ClaimState {
    match attempts.iter().max() {
        Some(newest) if newest > own => ClaimState::Overtaken(newest.clone()),
        _ if attempts.contains(own) => ClaimState::Newest,
        _ => ClaimState::Gone,
    }
}

/// The free bytes that a restore of `total` bytes needs.
pub fn space_needed(total: u64) -> u64 {
    total.saturating_add(total / 20)
}

/// The commits to keep in the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Retention {
    /// The number of newest good commits; 0 counts as 1.
    pub last: u64,
    /// Also every commit whose step is a multiple of this.
    pub every: Option<u64>,
    /// Data that no commit names is kept for this long.
    pub orphan_age: Duration,
}

/// Commits that a gang protects from retention: the newest step that all its members have must stay restorable.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Hold {
    /// Nothing: there is no gang.
    #[default]
    Nothing,
    /// Every commit with a step, because no common step is known yet.
    EveryStep,
    /// Commits of this step and of later steps.
    From(u64),
}

impl Hold {
    /// Whether a commit of this step stays; 0: it has no step. `is_offered`: it is one of the newest, which can still become
    /// common to all members. Older commits are not protected, because nodes may never commit the same step and the store would fill up.
    pub fn keeps(self, step: u64, is_offered: bool) -> bool {
        match self {
            Hold::Nothing => false,
            Hold::EveryStep => step > 0 && is_offered,
            Hold::From(kept) => step > 0 && (step == kept || step > kept && is_offered),
        }
    }

    /// As a commit's manifest records it; `None`: there is no gang.
    pub fn recorded(self) -> Option<u64> {
        match self {
            Hold::Nothing => None,
            Hold::EveryStep => Some(0),
            Hold::From(kept) => Some(kept),
        }
    }

    /// Reads what [`Hold::recorded`] wrote.
    pub fn of_record(kept: Option<u64>) -> Hold {
        match kept {
            None => Hold::Nothing,
            Some(0) => Hold::EveryStep,
            Some(kept) => Hold::From(kept),
        }
    }

    /// All members have this step.
    pub fn raise(&mut self, kept: u64) {
        *self = match *self {
            Hold::From(before) => Hold::From(before.max(kept)),
            Hold::Nothing | Hold::EveryStep => Hold::From(kept),
        };
    }
}

/// Commits that may be deleted, oldest first. `newest_first` pairs each commit with whether it is good: all its objects
/// exist, and no trainer failed from it repeatedly. Only good commits count among the last K. Nothing is deleted unless
/// there are more than K good commits.
pub fn expendable(
    newest_first: &[(CommitName, bool)],
    retention: Retention,
    own: &Attempt,
    spared: Option<&Stamp>,
) -> Vec<CommitName> {
    let keep = usize::try_from(retention.last.max(1)).unwrap_or(usize::MAX);
    let good = newest_first.iter().enumerate().filter(|(_, (_, good))| *good);
    let Some((last_kept, _)) = good.take(keep).nth(keep - 1) else { return Vec::new() };
    let older = newest_first[last_kept + 1..].iter().map(|(name, _)| name);
    // Step 0 may mean that the commit has no step.
    let is_multiple = |name: &CommitName| name.step > 0 && retention.every.is_some_and(|n| name.step.is_multiple_of(n));
    let mut going: Vec<CommitName> = older
        .filter(|name| name.stamp.attempt <= *own && spared != Some(&name.stamp))
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
        assert_eq!(
            [30, 40].map(|step| hold.keeps(step, false)),
            [true, false],
            "a commit that is not offered is not protected"
        );
    }

    #[test]
    fn a_hold_is_read_from_its_record() {
        for hold in [Hold::Nothing, Hold::EveryStep, Hold::From(30)] {
            assert_eq!(Hold::of_record(hold.recorded()), hold);
        }
    }

    #[test]
    fn a_newer_attempt_fences_this_one_and_an_older_one_does_not() {
        for (attempts, expected, next) in [
            (&[1, 3][..], ClaimState::Newest, 4),
            (&[5, 4], ClaimState::Overtaken(attempt(5)), 6),
            (&[2], ClaimState::Gone, 3),
            (&[], ClaimState::Gone, 1),
        ] {
            let attempts: Vec<Attempt> = attempts.iter().copied().map(attempt).collect();
            assert_eq!((standing(&attempt(3), &attempts), next_number(&attempts)), (expected, next));
        }
    }

    #[test]
    fn the_newest_good_commits_stay_and_so_do_those_of_later_attempts_and_of_chosen_steps() {
        let steps = [60, 50, 40, 30, 20, 10];
        for (name, last, every, torn, own, expected) in [
            ("the last three stay", 3, None, 0, 1, &[10, 20, 30][..]),
            ("there are fewer", 6, None, 0, 1, &[]),
            ("one is always kept", 0, None, 0, 1, &[10, 20, 30, 40, 50]),
            ("multiples stay", 3, Some(20), 0, 1, &[10, 30]),
            ("torn commits do not count", 3, None, 1, 1, &[10, 20]),
            ("too few are whole", 3, None, 4, 1, &[]),
            ("a later attempt's commits stay", 1, None, 0, 0, &[]),
        ] {
            let commit = |(at, step): (usize, &u64)| (commit(1, *step, *step), at >= torn);
            let all: Vec<(CommitName, bool)> = steps.iter().enumerate().map(commit).collect();
            let keep = Retention { last, every, orphan_age: Duration::ZERO };
            let going = |spared| expendable(&all, keep, &attempt(own), spared);
            assert!(going(None).iter().map(|commit| &commit.step).eq(expected), "{name}: {:?}", going(None));
            let spared = &all[5].0.stamp;
            assert!(!going(Some(spared)).iter().any(|commit| commit.stamp == *spared), "{name}");
        }
        let no_steps: Vec<(CommitName, bool)> = (1..=6).rev().map(|seq| (commit(1, seq, 0), true)).collect();
        let keep = Retention { last: 2, every: Some(1000), orphan_age: Duration::ZERO };
        assert_eq!(
            expendable(&no_steps, keep, &attempt(1), None).len(),
            4,
            "a commit without a step is not a multiple"
        );
    }
}
