//! The claim on a generation: an object in the checkpoint store that is created only if it does not exist.
//!
//! Claims are a log. A leader claims the number after the newest claim that it has read, so a successful put shows that no
//! other leader has claimed this number or a later one. The owner of the newest claim leads. A leader that has claimed a
//! generation and finds a newer claim of another leader yields: it stops its members and exits. A leader that has not
//! claimed yet takes the next number. It starts nothing until the owner of the claim below it is gone or has had the time to
//! find the new claim (`Claims`).
//!
//! With a store that answers within seconds, no number is used twice, and of two complete gangs (two agents in every seat)
//! one yields before the other starts. If the store answers the older gang later, both can train until it does; the attempt
//! objects keep their commits apart.
//!
//! The end of the job is the last claim. A leader that read it at its start begins a new run. A leader that finds it later
//! ends.
//!
//! Without a store there is only the lease, with three consequences: a number can be used again if every agent was replaced;
//! two complete gangs do not detect each other; and a leader does not detect that the job has finished under another leader.

use serde::{Deserialize, Serialize};

use super::message::bounded_text;
use super::{Generation, Incarnation};

/// The folder of the claims, relative to the prefix of the store.
pub const FOLDER: &str = ".trainit/gang/";
/// The longest claim that is read, in bytes.
pub const LIMIT: usize = 4 << 10;

/// The content of a generation's object.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Claim {
    /// The claimed generation.
    pub generation: Generation,
    /// The agent process of the leader that claims it.
    pub leader: Incarnation,
    /// The leader's host, for people.
    pub host: String,
    /// The platform's id of the job; empty if the platform gives none.
    #[serde(default)]
    pub job_id: String,
    /// The state of the job.
    #[serde(flatten)]
    pub job: JobState,
}

/// The state of the job in a claim. A claim of an earlier version has the defaults.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(default)]
pub struct JobState {
    /// The job started without a checkpoint, or with `--gang-from-scratch`, and no step was common to all members since. A
    /// leader that finds no common step starts from the beginning.
    pub from_nothing: bool,
    /// The leader had `--gang-from-scratch`.
    pub from_scratch: bool,
    /// The job has finished: no generation starts under this claim.
    pub has_finished: bool,
}

impl Claim {
    /// Whether the job has started from the beginning as `--gang-from-scratch` requires, has reached a common step since, and
    /// has not finished.
    pub fn has_started_over(&self) -> bool {
        self.job.from_scratch && !self.job.from_nothing && !self.job.has_finished
    }
}

/// The object's name in [`FOLDER`]. The names sort like their numbers.
pub fn name(generation: Generation) -> String {
    format!("generation-{generation:010}.json")
}

/// The object in [`FOLDER`] that marks the end of this generation's gang: none of its trainers runs.
pub fn end_name(generation: Generation) -> String {
    format!("generation-{generation:010}.ended")
}

/// The object in [`FOLDER`] that marks a step as committed by all members in this generation. Then `from_nothing` of the claim
/// counts as false.
pub fn common_name(generation: Generation) -> String {
    format!("generation-{generation:010}.common")
}

/// The generation of a name in [`FOLDER`]; `None`: the object is not a claim.
pub fn generation_of(object: &str) -> Option<Generation> {
    let digits = object.strip_prefix("generation-")?.strip_suffix(".json")?;
    let is_number = digits.len() >= 10 && digits.bytes().all(|byte| byte.is_ascii_digit());
    digits.parse().ok().filter(|generation| is_number && *generation > 0)
}

/// Reads a claim. Errors: it is too long, not a claim, or of another generation than its name.
pub fn read(generation: Generation, bytes: &[u8]) -> Result<Claim, String> {
    if bytes.len() > LIMIT {
        return Err(format!("{FOLDER}{} is longer than {LIMIT} bytes", name(generation)));
    }
    let claim: Claim = serde_json::from_slice(bytes)
        .map_err(|error| format!("{FOLDER}{} is not a claim: {error}", name(generation)))?;
    if claim.generation != generation {
        return Err(format!("{FOLDER}{} claims generation {}", name(generation), claim.generation));
    }
    Ok(Claim { host: bounded_text(&claim.host), job_id: bounded_text(&claim.job_id), ..claim })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_sort_like_their_numbers_and_are_read_back() {
        assert!(name(9) < name(10));
        assert_eq!(generation_of(&name(12)), Some(12));
        for other in ["generation-12.json", "generation-0000000000.json", "generation-+000000001.json", "leader.json"] {
            assert_eq!(generation_of(other), None, "{other}");
        }
    }

    #[test]
    fn a_claim_is_read_back_and_one_of_another_generation_is_refused() {
        let claim = Claim {
            generation: 3,
            leader: Incarnation(7),
            host: "a\nb".to_owned(),
            job_id: String::new(),
            job: JobState { from_nothing: true, ..JobState::default() },
        };
        let bytes = serde_json::to_vec(&claim).unwrap();
        let expected = Claim { host: "a b".to_owned(), ..claim };
        assert_eq!(read(3, &bytes), Ok(expected), "a host's name is one line");
        assert!(read(4, &bytes).unwrap_err().contains("claims generation 3"));
        assert!(read(3, b"{}").is_err());
        assert!(read(3, &vec![b' '; LIMIT + 1]).is_err());
    }
}
