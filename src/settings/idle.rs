//! What somebody gave and nothing will ask for, because another setting is missing: nothing else would tell of it.

use super::defs::all;
use super::layers::{Complaint, Origin};
use super::reader::{Reader, switched};

/// A warning for each. Those of `run` alone: by hand a deed takes what belongs to another.
pub fn idle(reader: &Reader<'_>) -> impl Iterator<Item = Complaint> {
    let is_given = |name: &str| {
        reader.values.get(name).is_some_and(|given| {
            let is_off = given.values.last().and_then(|word| switched(word)) == Some(false);
            given.origin != Origin::Default && !is_off
        })
    };
    let idle =
        all().filter(move |s| !s.needs.is_empty() && is_given(s.name) && !s.needs.iter().any(|name| is_given(name)));
    idle.map(|setting| {
        let needs: Vec<String> = setting.needs.iter().map(|name| format!("--{name}")).collect();
        let message = format!("it has no effect without {}; give that too, or leave it out", needs.join(" or "));
        Complaint { place: reader.place(setting.name), message }
    })
}

#[cfg(test)]
mod tests {
    use super::super::defs::on;
    use super::super::layers::Values;
    use super::*;
    use crate::rules::env::Env;

    fn told(pairs: &[(&str, &str)]) -> Vec<String> {
        let mut complaints = Vec::new();
        let env = Env::from_pairs(pairs.iter().copied());
        let values = Values::gather(on::RUN, Default::default(), &env, None, &mut complaints);
        idle(&Reader::new(&values, complaints)).map(|warning| warning.to_string()).collect()
    }

    #[test]
    fn what_has_no_effect_is_told_with_what_is_missing() {
        let peers = "TRAINIT_PEERS: it has no effect without --wait-for-peers; give that too, or leave it out";
        assert_eq!(told(&[("TRAINIT_PEERS", "all")]), [peers]);
        let both = told(&[("TRAINIT_HANG_STARTUP", "5m"), ("TRAINIT_RESTART_BACKOFF", "1s")]);
        assert!(
            both.len() == 2 && both.iter().any(|line| line.contains("--max-restarts or --checkpoint-dir")),
            "{both:?}"
        );
    }

    #[test]
    fn what_has_one_of_the_others_beside_it_is_off_or_is_a_default_is_no_matter() {
        assert_eq!(told(&[]), [""; 0]);
        assert_eq!(told(&[("TRAINIT_PEERS", "all"), ("TRAINIT_WAIT_FOR_PEERS", "5m")]), [""; 0]);
        assert_eq!(told(&[("TRAINIT_RESTART_BACKOFF", "1s"), ("TRAINIT_CHECKPOINT_DIR", "/c")]), [""; 0]);
        assert_eq!(told(&[("TRAINIT_STRONG_HASH", "false")]), [""; 0]);
    }
}
