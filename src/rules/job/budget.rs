//! How the time that a notice leaves is shared between the trainer, the last commit and our own leaving.
//!
//! A time that is past, on a machine that stands all the same, tells nothing of when it goes: 15 s are taken for it.
//!
//! | lead | kill the trainer | be gone |
//! |---|---|---|
//! | 15 s | 12 s | 14 s |
//! | 30 s | 25 s | 28 s |
//! | 120 s | 100 s | 115 s |

use std::time::Duration;

/// Notices that come this much ahead are acted upon at the next commit, at the latest [`LATEST`] before the end.
pub(super) const LATE: Duration = Duration::from_secs(600);
/// When a trainer is told of an end that was known long before.
pub(super) const LATEST: Duration = Duration::from_secs(120);
/// A commit further away from the end than this is no reason to leave a machine that still stands.
pub(super) const NATURAL: Duration = Duration::from_secs(3600);

/// The shortest notice that any cloud documents (GKE's Spot nodes).
const SHORTEST: Duration = Duration::from_secs(15);

/// The lead to go by: the one that was announced, unless it is over. A trainer killed in the instant in which it is told
/// saves nothing, and what it saved before is not committed either.
pub(super) fn believed(lead: Duration) -> Duration {
    if lead.is_zero() { SHORTEST } else { lead }
}

/// When SIGKILL is due after a notice of this lead. `commit` is what the last commit took: where there is room for it,
/// the trainer leaves that much; where there is not, the commit would not be begun and the trainer keeps the time.
pub(super) fn kill_after(lead: Duration, commit: Option<Duration>) -> Duration {
    let margin = (lead / 6).clamp(Duration::from_secs(3), Duration::from_secs(20)).min(lead / 2);
    let usual = lead - margin;
    let needed = commit.unwrap_or_default().mul_f64(1.25);
    let for_commit = leave_after(lead).saturating_sub(needed);
    if for_commit >= lead / 3 { usual.min(for_commit) } else { usual }
}

/// When trainit itself must be gone.
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
    fn the_table_of_the_contract_holds() {
        for (lead, kill, leave) in [(15, 12, 14), (30, 25, 28), (120, 100, 115)] {
            assert_eq!((kill_after(secs(lead), None), leave_after(secs(lead))), (secs(kill), secs(leave)));
        }
    }

    #[test]
    fn a_time_that_is_past_is_wrong_and_a_short_one_is_kept() {
        let shares = |lead| (kill_after(believed(lead), None), leave_after(believed(lead)));
        assert_eq!(shares(secs(0)), (secs(12), secs(14)));
        assert_eq!(believed(secs(1)), secs(1));
    }

    #[test]
    fn a_commit_that_fits_is_given_its_time_and_one_that_does_not_takes_none() {
        assert_eq!(kill_after(secs(30), Some(secs(1))), secs(25), "it fits in what is left anyway");
        assert_eq!(kill_after(secs(30), Some(secs(8))), secs(18));
        assert_eq!(kill_after(secs(30), Some(secs(60))), secs(25), "it would not be begun");
    }

    #[test]
    fn any_lead_is_shared_in_order() {
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
