//! The values that a platform's variables imply for settings that the user did not give: the stores for checkpoints and
//! the model.

use super::layers::Values;
use crate::rules::cluster;
use crate::rules::cluster::spec::Fact;
use crate::rules::process::env::Env;
use crate::rules::store::address::MOUNTED_BUCKETS;

/// If the first setting is given, the second one defaults to the platform's value.
const IMPLIED: [(&str, &str, Fact); 2] =
    [("checkpoint-dir", "checkpoint-store", Fact::CheckpointStore), ("model-dir", "model-store", Fact::ModelStore)];

/// Adds the implied values. `is_direct`: a subcommand that uses the store directly, with or without a directory.
pub fn imply(values: &mut Values, env: &Env, is_direct: bool) {
    for (with, name, fact) in IMPLIED {
        let is_wanted = values.get(with).is_some() || is_direct && fact == Fact::CheckpointStore;
        if let Some((variable, place)) = cluster::fact_variable(fact, env).filter(|_| is_wanted) {
            values.imply(name, url(place), variable);
        }
    }
}

/// The URL of a mounted bucket is used instead of the mount, because mounts have no hard links.
fn url(place: &str) -> String {
    match place.strip_prefix(MOUNTED_BUCKETS).and_then(|rest| rest.strip_prefix('/')) {
        Some(bucket) => format!("gs://{bucket}"),
        None if place.starts_with('/') => format!("file://{place}"),
        None => place.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::defs::on;
    use crate::settings::values::layers::Origin;

    fn store(pairs: &[(&str, &str)]) -> Option<(String, Origin)> {
        let env = Env::from_pairs(pairs.iter().copied());
        let mut values = Values::gather(on::RUN, Default::default(), &env, None, &mut Vec::new());
        imply(&mut values, &env, false);
        values.get("checkpoint-store").map(|given| (given.values[0].clone(), given.origin.clone()))
    }

    #[test]
    fn the_platforms_store_is_the_default_if_there_is_a_directory() {
        let (dir, place) = (("TRAINIT_CHECKPOINT_DIR", "/c"), ("AIP_CHECKPOINT_DIR", "gs://b/job/checkpoints/"));
        let platform = Origin::Platform("AIP_CHECKPOINT_DIR");
        assert_eq!(store(&[dir, place]), Some(("gs://b/job/checkpoints/".into(), platform.clone())));
        assert_eq!(store(&[place]), None);
        assert_eq!(store(&[dir]), None);
        let named = ("TRAINIT_CHECKPOINT_STORE", "file:///s");
        assert_eq!(store(&[dir, place, named]), Some(("file:///s".into(), Origin::Variable)));
    }

    #[test]
    fn a_mounted_bucket_becomes_the_bucket_and_another_path_a_directory() {
        for (place, expected) in [("/gcs/b/x/", "gs://b/x/"), ("/mnt/x", "file:///mnt/x"), ("s3://b/x", "s3://b/x")] {
            assert_eq!(url(place), expected);
        }
    }
}
