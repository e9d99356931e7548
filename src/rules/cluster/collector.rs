//! Whether the collector of a platform's logs parses JSON. Everywhere else a person reads the lines.

use super::PLATFORMS;
use crate::process::env::Env;

/// A variable of every pod. GKE has no variable of its own, but its machines are Google's.
const OF_PODS: &str = "KUBERNETES_SERVICE_HOST";

/// Whether the collector parses JSON. `is_google` is only called in a pod.
pub fn parses_json(env: &Env, is_google: impl FnOnce() -> bool) -> bool {
    let is_set = |variable: &&str| match variable.strip_suffix('*') {
        Some(start) => env.iter().any(|(name, text)| name.starts_with(start) && !text.is_empty()),
        None => env.given(variable).is_some(),
    };
    PLATFORMS.iter().flat_map(|platform| platform.collector).any(is_set) || env.given(OF_PODS).is_some() && is_google()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_platforms_whose_collector_parses_json_get_it() {
        let parses = |name: &str, is_google| parses_json(&Env::from_pairs([(name, "x")]), || is_google);
        for name in ["CLOUD_ML_JOB_ID", "AIP_MODEL_DIR", "CLUSTER_SPEC", "TRAINING_JOB_ARN", "SM_HOSTS"] {
            assert!(parses(name, false), "{name}");
        }
        assert!(parses(OF_PODS, true) && !parses(OF_PODS, false));
        for name in ["SLURM_JOB_ID", "CLOUD_ML_HP_METRIC_FILE", "TF_CONFIG"] {
            assert!(!parses(name, true), "{name}");
        }
    }
}
