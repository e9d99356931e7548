//! The claim on a generation, an object in the checkpoint store that is put only where none is.
//!
//! Claims are a log: a leader claims the number after the newest claim that it knows, so a put that succeeds shows that no
//! other leader has claimed this number or a later one. The newest claim leads. A leader that has claimed before and finds a
//! newer claim yields: it stops its members and leaves. A leader that has not claimed yet takes the next number, and starts
//! nothing before the owner of the claim below it is gone or has had the time to find the new claim (`Claims`).
//!
//! With a store that answers within seconds no number is used twice, and of two complete gangs (two agents in every seat)
//! one yields before the other starts. The end of the job is the last claim. A leader that finds it, and has not seen it at its
//! start, ends too; one that has seen it begins a new run. While the store answers the older gang more slowly, both can train until it does; the
//! attempt objects keep their commits apart. Without a store there is only the lease. Then three things are not guaranteed:
//! where every agent is new, a number can be used again; two complete gangs do not hear of each other; and a leader does not
//! hear that the job has finished under another one.

use serde::{Deserialize, Serialize};

use super::Generation;
use super::message::bounded_text;
use super::seat::Incarnation;

/// Where the claims lie below the store's prefix.
pub const FOLDER: &str = ".trainit/gang/";
/// Longest claim that is read, bytes.
pub const LIMIT: usize = 4 << 10;

/// What the object of a generation says.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Claim {
    /// The generation that is claimed.
    pub generation: Generation,
    /// The agent process of the leader that claims it.
    pub leader: Incarnation,
    /// The leader's host, for people.
    pub host: String,
    /// What it says of the job.
    #[serde(flatten)]
    pub job: JobState,
}

/// What a claim says of the job. A claim of an earlier version says nothing of it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(default)]
pub struct JobState {
    /// It began without any checkpoint, or from the beginning as it was asked to, and no step was common to all members since:
    /// a leader that finds no common step begins anew.
    pub from_nothing: bool,
    /// The leader was asked to begin from the beginning. Where a step was common since, it has done so.
    pub from_scratch: bool,
    /// It has finished: no generation starts under this claim.
    pub has_finished: bool,
}

impl Claim {
    /// Whether the job has begun from the beginning as it was asked to, has made a common step since, and goes on.
    pub fn has_started_over(&self) -> bool {
        self.job.from_scratch && !self.job.from_nothing && !self.job.has_finished
    }
}

/// The object's name in [`FOLDER`]. Names sort as their numbers do.
pub fn name(generation: Generation) -> String {
    format!("generation-{generation:010}.json")
}

/// The object in [`FOLDER`] which says that the gang of this generation has ended, and none of its trainers runs.
pub fn end_name(generation: Generation) -> String {
    format!("generation-{generation:010}.ended")
}

/// The object in [`FOLDER`] which says that all members have committed a step in this generation. From then on `from_nothing`
/// of its claim does not hold.
pub fn common_name(generation: Generation) -> String {
    format!("generation-{generation:010}.common")
}

/// The generation of a name in [`FOLDER`]; `None`: the object is no claim.
pub fn generation_of(object: &str) -> Option<Generation> {
    let digits = object.strip_prefix("generation-")?.strip_suffix(".json")?;
    let is_number = digits.len() >= 10 && digits.bytes().all(|byte| byte.is_ascii_digit());
    digits.parse().ok().filter(|generation| is_number && *generation > 0)
}

/// The claim that an object holds. Errors: it is too long, no claim, or of another generation than its name.
pub fn read(generation: Generation, bytes: &[u8]) -> Result<Claim, String> {
    if bytes.len() > LIMIT {
        return Err(format!("{FOLDER}{} is longer than {LIMIT} bytes", name(generation)));
    }
    let claim: Claim =
        serde_json::from_slice(bytes).map_err(|error| format!("{FOLDER}{} is no claim: {error}", name(generation)))?;
    if claim.generation != generation {
        return Err(format!("{FOLDER}{} claims generation {}", name(generation), claim.generation));
    }
    Ok(Claim { host: bounded_text(&claim.host), ..claim })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_sort_as_their_numbers_do_and_are_read_back() {
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
