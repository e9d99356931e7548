//! Shared by the targets for the cluster.

use trainit_rules::cluster::parse::input::Input;
use trainit_rules::cluster::spec::ClusterOptions;
use trainit_rules::cluster::framework::resolve;
use trainit_rules::process::env::Env;

/// Resolves with default options. An error must be short, have a code, and contain no line break.
pub fn resolved(pairs: &[(&str, &str)], file: Option<&str>) {
    let env = Env::from_pairs(pairs.iter().copied());
    let files = |path: &str| Ok(file.filter(|_| path.ends_with("resourceconfig.json")).map(str::to_owned));
    let options = ClusterOptions::default();
    match resolve(&Input { env: &env, files: &files, options: &options }, &[]) {
        Ok(resolved) => {
            let spec = &resolved.spec.reading;
            if let (Some(rank), Some(nodes), false) = (spec.node_rank, spec.num_nodes, spec.hands_off) {
                assert!(rank < nodes, "{spec:?}");
            }
        }
        Err(error) => {
            assert!(!error.code.is_empty() && !error.variable.is_empty());
            assert!(error.message.chars().count() < 700 && !error.message.contains('\n'), "{error}");
        }
    }
}
