//! The settings for the cluster. Explicit ranks and addresses stay text here: the cluster's rules read them like
//! variables, and report mistakes with their codes.

use std::time::Duration;

use super::values::reader::Reader;
use crate::rules::cluster;
use crate::rules::cluster::framework::FRAMEWORKS;
use crate::rules::cluster::peers::Scope;
use crate::rules::cluster::spec::{ClusterOptions, Explicit, Nproc, PlatformName, Role, Tracker, Tracking};
use crate::rules::text::duration;
use crate::settings::values::suggest::one_of;

/// More processes than this on one node are a mistake.
const MAX_NPROC: u32 = 4096;

/// Reads the settings. Mistakes are collected in the reader. The caller adds the facts about the machine (its name,
/// processors, GPUs).
pub fn read(reader: &mut Reader<'_>) -> ClusterOptions {
    let platforms: Vec<(&str, PlatformName)> = cluster::names().map(|name| (name.word(), name)).collect();
    let explicit = |reader: &Reader<'_>, name: &str| {
        let text = reader.text(name).filter(|text| !text.trim().is_empty())?;
        Some(Explicit { place: reader.place(name), text })
    };
    ClusterOptions {
        platform: reader.choice("platform", &platforms),
        nnodes: explicit(reader, "nnodes"),
        node_rank: explicit(reader, "node-rank"),
        leader: explicit(reader, "leader"),
        hostname: None,
        pool2: reader
            .choice("pool2", &[("ps", Role::Ps), ("reducer", Role::Reducer), ("worker", Role::Worker)])
            .unwrap_or(Role::Ps),
        keep_tf_config: reader.choice("tf-config", &[("rewrite", false), ("keep", true)]).unwrap_or(false),
        keep_leader_name: reader.choice("leader-self", &[("own-name", false), ("keep", true)]).unwrap_or(false),
        rank_all_pools: reader.choice("rank-pools", &[("training", false), ("all", true)]).unwrap_or(false),
        nproc: reader.parse("nproc", nproc),
        free_port: None,
        gpu_count: 0,
        gpu_failure: None,
        cores: 0,
        tracking: Tracking { trackers: reader.each("track", tracker), store: reader.text("checkpoint-store") },
    }
}

/// The peers to wait for before the start, and the limit; `None`: no waiting.
pub fn peers(reader: &mut Reader<'_>) -> Option<(Duration, Scope)> {
    let waiting = reader.parse("wait-for-peers", |text| {
        let of_all = text.trim().strip_prefix("all:");
        let scope = if of_all.is_some() { Scope::All } else { Scope::Leader };
        duration::parse(of_all.unwrap_or(text)).map(|limit| (limit, scope))
    });
    waiting.filter(|(limit, _)| !limit.is_zero())
}

/// The frameworks that `env` prints; empty means all.
pub fn frameworks(reader: &mut Reader<'_>) -> Vec<String> {
    let known: Vec<&str> = FRAMEWORKS.iter().map(|f| f.name).collect();
    reader.each("framework", |name| one_of(name, &known).map(str::to_owned))
}

fn tracker(name: &str) -> Result<Tracker, String> {
    one_of(name, &["wandb", "mlflow"]).map(|name| if name == "wandb" { Tracker::Wandb } else { Tracker::Mlflow })
}

fn nproc(text: &str) -> Result<Nproc, String> {
    match text.trim() {
        word if word.eq_ignore_ascii_case("gpu") => Ok(Nproc::Gpu),
        number => match number.parse() {
            Ok(count) if (1..=MAX_NPROC).contains(&count) => Ok(Nproc::Count(count)),
            _ => Err(format!("expected gpu or a number from 1 to {MAX_NPROC}, found {text:?}")),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::super::defs::on;
    use super::super::values::layers::Values;
    use super::*;
    use crate::rules::process::env::Env;

    fn complaints(pairs: &[(&str, &str)]) -> Vec<String> {
        let mut complaints = Vec::new();
        let env = Env::from_pairs(pairs.iter().copied());
        let values = Values::gather(on::ENV, Default::default(), &env, None, &mut complaints);
        let mut reader = Reader::new(&values, complaints);
        read(&mut reader);
        frameworks(&mut reader);
        reader.complaints.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn every_wrong_word_is_reported_with_the_valid_ones() {
        let wrong = complaints(&[
            ("TRAINIT_PLATFORM", "vertx"),
            ("TRAINIT_POOL2", "x"),
            ("TRAINIT_NPROC", "0"),
            ("TRAINIT_FRAMEWORK", "torch\npytorch"),
        ]);
        assert_eq!(wrong.len(), 4, "{wrong:?}");
        assert!(wrong[0].contains("did you mean vertex?"), "{wrong:?}");
        assert!(wrong[3].contains("tensorflow, torch"), "{wrong:?}");
    }

    #[test]
    fn the_case_of_words_does_not_matter() {
        for words in [["GPU", "Torch\nTENSORFLOW", "VERTEX", "Worker"], ["gpu", "torch", "vertex", "worker"]] {
            let [nproc, framework, platform, pool2] = words;
            let pairs = [
                ("TRAINIT_NPROC", nproc),
                ("TRAINIT_FRAMEWORK", framework),
                ("TRAINIT_PLATFORM", platform),
                ("TRAINIT_POOL2", pool2),
            ];
            assert_eq!(complaints(&pairs), Vec::<String>::new());
        }
    }

    #[test]
    fn the_defaults_are_valid() {
        assert_eq!(complaints(&[]), Vec::<String>::new());
    }
}
