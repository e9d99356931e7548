//! How the time before the end of a machine is divided between the trainer, the last commit and trainit's own exit.
//!
//! If the announced time has passed but the machine still runs, its end is unknown, and 15 s are assumed.
//!
//! | time left | kill the trainer after | exit after |
//! |---|---|---|
//! | 15 s | 12 s | 14 s |
//! | 30 s | 25 s | 28 s |
//! | 120 s | 100 s | 115 s |

use std::time::Duration;

/// Notices with more time left than this are acted on at the next commit, and at the latest [`LATEST`] before the end.
pub(super) const LATE: Duration = Duration::from_secs(600);
/// The time left at which the trainer is signalled for an end that was announced long before.
pub(super) const LATEST: Duration = Duration::from_secs(120);
/// A commit is used to leave the machine early only if the end is nearer than this.
pub(super) const NATURAL: Duration = Duration::from_secs(3600);

/// The shortest notice that any cloud documents (GKE's Spot nodes).
const SHORTEST: Duration = Duration::from_secs(15);

/// The time left to plan with: the announced time, unless it has passed. A trainer that is killed at once saves
/// nothing, and its earlier saves are not committed either.
pub(super) fn usable_lead(lead: Duration) -> Duration {
    if lead.is_zero() { SHORTEST } else { lead }
}

/// When SIGKILL is due after a notice with this time left. `commit` is the duration of the previous commit. The trainer
/// must leave that much time if there is room for it; if there is not, the commit would not be started, so the trainer
/// keeps the time.
pub(super) fn kill_after(lead: Duration, commit: Option<Duration>) -> Duration {
    let margin = (lead / 6).clamp(Duration::from_secs(3), Duration::from_secs(20)).min(lead / 2);
    let usual = lead - margin;
    let needed = commit.unwrap_or_default().mul_f64(1.25);
    let for_commit = leave_after(lead).saturating_sub(needed);
    if for_commit >= lead / 3 { usual.min(for_commit) } else { usual }
}

/// When trainit itself must have exited.
pub(super) fn leave_after(lead: Duration) -> Duration {
    let margin = (lead / 15).clamp(Duration::from_secs(1), Duration::from_secs(5)).min(lead / 4);
    lead - margin
}

#[cfg(test)]
mod tests {
    use super::*;

    fn secs(s: u64) -> Duration {
        Duration::from_secs(s)
    }

    #[test]
    fn the_table_in_the_head_comment_holds() {
        for (lead, kill, leave) in [(15, 12, 14), (30, 25, 28), (120, 100, 115)] {
            assert_eq!((kill_after(secs(lead), None), leave_after(secs(lead))), (secs(kill), secs(leave)));
        }
    }

    #[test]
    fn a_time_in_the_past_becomes_15_s_and_a_short_one_is_kept() {
        let shares = |lead| (kill_after(usable_lead(lead), None), leave_after(usable_lead(lead)));
        assert_eq!(shares(secs(0)), (secs(12), secs(14)));
        assert_eq!(usable_lead(secs(1)), secs(1));
    }

    #[test]
    fn a_commit_that_fits_gets_its_time_and_any_other_gets_none() {
        assert_eq!(kill_after(secs(30), Some(secs(1))), secs(25), "it fits into the remaining time anyway");
        assert_eq!(kill_after(secs(30), Some(secs(8))), secs(18));
        assert_eq!(kill_after(secs(30), Some(secs(60))), secs(25), "it would not be started");
    }

    #[test]
    fn every_lead_is_divided_in_order() {
        for lead in [0, 1, 2, 3, 5, 10, 14, 59, 299, 3600, 86_400].map(secs) {
            for commit in [None, Some(secs(0)), Some(secs(7)), Some(secs(10_000))] {
                assert!(
                    kill_after(lead, commit) <= leave_after(lead) && leave_after(lead) <= lead,
                    "{lead:?} {commit:?}"
                );
            }
        }
    }
}
