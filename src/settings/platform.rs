//! What a platform's own variables imply for settings that nobody gave: where it wants checkpoints and the model.

use super::layers::Values;
use crate::rules::checkpoint::address::MOUNTED_BUCKETS;
use crate::rules::cluster::{self, spec::Fact};
use crate::rules::env::Env;

/// With this setting given, the second one defaults to what the platform tells.
const IMPLIED: [(&str, &str, Fact); 2] =
    [("checkpoint-dir", "checkpoint-store", Fact::CheckpointStore), ("model-dir", "model-store", Fact::ModelStore)];

/// Fills in what follows from the environment. `by_hand`: the store is asked for its own sake, with a directory or without.
pub fn imply(values: &mut Values, env: &Env, by_hand: bool) {
    for (with, name, fact) in IMPLIED {
        let is_wanted = values.get(with).is_some() || by_hand && fact == Fact::CheckpointStore;
        if let Some((variable, place)) = cluster::told(fact, env).filter(|_| is_wanted) {
            values.imply(name, url(place), variable);
        }
    }
}

/// What lies in a mounted bucket can be had without the mount, which has no hard links.
fn url(place: &str) -> String {
    match place.strip_prefix(MOUNTED_BUCKETS).and_then(|rest| rest.strip_prefix('/')) {
        Some(bucket) => format!("gs://{bucket}"),
        None if place.starts_with('/') => format!("file://{place}"),
        None => place.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::super::defs::on;
    use super::super::layers::Origin;
    use super::*;

    fn store(pairs: &[(&str, &str)]) -> Option<(String, Origin)> {
        let env = Env::from_pairs(pairs.iter().copied());
        let mut values = Values::gather(on::RUN, Default::default(), &env, None, &mut Vec::new());
        imply(&mut values, &env, false);
        values.get("checkpoint-store").map(|given| (given.values[0].clone(), given.origin.clone()))
    }

    #[test]
    fn the_platforms_place_is_the_store_where_there_is_a_directory_and_nobody_named_another() {
        let (dir, place) = (("TRAINIT_CHECKPOINT_DIR", "/c"), ("AIP_CHECKPOINT_DIR", "gs://b/job/checkpoints/"));
        let platform = Origin::Platform("AIP_CHECKPOINT_DIR");
        assert_eq!(store(&[dir, place]), Some(("gs://b/job/checkpoints/".into(), platform.clone())));
        assert_eq!(store(&[place]), None);
        assert_eq!(store(&[dir]), None);
        let named = ("TRAINIT_CHECKPOINT_STORE", "file:///s");
        assert_eq!(store(&[dir, place, named]), Some(("file:///s".into(), Origin::Variable)));
    }

    #[test]
    fn a_mounted_bucket_is_the_bucket_and_another_path_a_directory() {
        for (place, expected) in [("/gcs/b/x/", "gs://b/x/"), ("/mnt/x", "file:///mnt/x"), ("s3://b/x", "s3://b/x")] {
            assert_eq!(url(place), expected);
        }
    }
}
