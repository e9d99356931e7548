//! Experiment trackers: with `--track` every attempt of a job continues the same run, on any machine.
//!
//! The id comes from the job's identity: the address of its checkpoint store, else the platform's job id with the trial. It
//! is a hash, because an address may contain secrets.
//!
//! W&B creates or resumes the run `WANDB_RUN_ID` with `WANDB_RESUME=allow`
//! (<https://docs.wandb.ai/guides/track/environment-variables>). MLflow cannot: `MLFLOW_RUN_ID` names an existing run, whose
//! id the server chose. It copies the tags in `MLFLOW_RUN_CONTEXT` to a new run, by which a trainer finds it again.

use super::Framework;
use super::vars::{Context, Derived, Precedence};
use crate::cluster::fact_variable;
use crate::cluster::spec::{Fact, Tracker, Tracking, Warning};

pub(super) const TRACKING: Framework = Framework::of("tracking", &[], derive);

/// Hexadecimal digits of the hash in an id.
const DIGITS: usize = 20;

fn derive(context: &Context<'_>) -> Derived {
    let mut derived = Derived::default();
    let Tracking { trackers, store } = &context.options.tracking;
    if trackers.is_empty() {
        return derived;
    }
    let trial = context.spec.reading.trial.as_deref().unwrap_or_default();
    let job = fact_variable(Fact::Job, context.env).map(|(_, id)| format!("{id} {trial}"));
    let Some(identity) = store.as_ref().map(|store| store.trim_end_matches('/').to_owned()).or(job) else {
        let message = "--track has no effect: without --checkpoint-store and without a job id of the platform, nothing is the same \
                       after a restart on another machine; each attempt is a run of its own, unless WANDB_RUN_ID or MLFLOW_RUN_ID is set";
        derived.warnings.push(Warning::new("no_tracking_id", message));
        return derived;
    };
    let id = format!("trainit-{}", &blake3::hash(identity.as_bytes()).to_hex()[..DIGITS]);
    derived.put("TRAINIT_TRACKING_ID", &id, Precedence::Derived);
    for tracker in trackers {
        match tracker {
            Tracker::Wandb => {
                derived.put("WANDB_RUN_ID", &id, Precedence::IfUnset);
                derived.put("WANDB_RESUME", "allow", Precedence::IfUnset);
            }
            Tracker::Mlflow => {
                let tags = format!("{{\"trainit.id\":\"{id}\"}}");
                derived.put("MLFLOW_RUN_CONTEXT", tags, Precedence::IfUnset);
            }
        }
    }
    derived
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::framework::{Resolved, resolve};
    use crate::cluster::parse::input::Input;
    use crate::cluster::spec::ClusterOptions;
    use crate::process::env::Env;

    fn resolved(trackers: &[Tracker], store: Option<&str>, env: &[(&str, &str)]) -> Resolved {
        let tracking = Tracking { trackers: trackers.to_vec(), store: store.map(str::to_owned) };
        let options = ClusterOptions { tracking, ..ClusterOptions::default() };
        let env = Env::from_pairs(env.iter().copied());
        resolve(&Input { env: &env, files: &|_| Ok(None), options: &options }, &[]).expect("resolved")
    }

    fn set(resolved: &Resolved, name: &str) -> Option<String> {
        resolved.changes().set.get(name).cloned()
    }

    #[test]
    fn the_id_is_the_same_for_the_same_store_and_hides_its_address() {
        let id = |store| set(&resolved(&[Tracker::Wandb], Some(store), &[]), "WANDB_RUN_ID").expect("an id");
        assert_eq!(id("gs://bucket/job"), id("gs://bucket/job/"));
        assert_ne!(id("gs://bucket/job"), id("gs://bucket/other"));
        assert!(id("gs://bucket/job").starts_with("trainit-") && id("gs://bucket/job").len() == 8 + DIGITS);
    }

    #[test]
    fn wandb_resumes_and_mlflow_gets_a_tag() {
        let both = resolved(&[Tracker::Wandb, Tracker::Mlflow], Some("file:///s"), &[]);
        let id = set(&both, "TRAINIT_TRACKING_ID").expect("an id");
        assert_eq!(set(&both, "WANDB_RESUME").as_deref(), Some("allow"));
        assert_eq!(set(&both, "MLFLOW_RUN_CONTEXT"), Some(format!("{{\"trainit.id\":\"{id}\"}}")));
        assert_eq!(set(&both, "MLFLOW_RUN_ID"), None, "MLflow refuses a run id that it did not choose");
    }

    #[test]
    fn what_the_user_set_is_kept_and_without_the_setting_nothing_is_set() {
        let given = resolved(&[Tracker::Wandb], Some("file:///s"), &[("WANDB_RUN_ID", "mine")]);
        assert_eq!((set(&given, "WANDB_RUN_ID"), set(&given, "WANDB_RESUME").as_deref()), (None, Some("allow")));
        assert!(given.warnings.is_empty(), "{:?}", given.warnings);
        let none = resolved(&[], Some("file:///s"), &[]);
        assert_eq!(set(&none, "TRAINIT_TRACKING_ID"), None);
    }

    #[test]
    fn without_a_store_the_platforms_job_id_counts_and_without_both_there_is_a_warning() {
        let by_job = |id| set(&resolved(&[Tracker::Wandb], None, &[("CLOUD_ML_JOB_ID", id)]), "WANDB_RUN_ID");
        assert!(by_job("7").is_some() && by_job("7") != by_job("8"));
        let without = resolved(&[Tracker::Wandb], None, &[]);
        assert_eq!(set(&without, "WANDB_RUN_ID"), None);
        assert_eq!(without.warnings.iter().map(|w| w.code).collect::<Vec<_>>(), ["no_tracking_id"]);
    }
}
