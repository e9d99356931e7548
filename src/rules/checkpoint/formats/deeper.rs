//! Files of steps further down that no library's layout knows, one or more a save: `models/model_200.safetensors`,
//! `checkpoints/ckpt_200.npz`. Digits are in many names there (`data/train_001.bin`, `hub/bert-110.safetensors`), so that the name
//! must say that it is a step's, or be that of a model and a number and nothing else; and what results are written as, too,
//! must lie where checkpoints do.

use super::generic::{is_surely_weights, says_word};
use crate::rules::checkpoint::aside::is_copy;
use crate::rules::checkpoint::called::{is_best, is_kept};
use crate::rules::checkpoint::check::is_weights;
use crate::rules::checkpoint::halves::{is_begun, of_directory};
use crate::rules::checkpoint::listing::{Entry, Kind, extension_of, name_of, parent_of};
use crate::rules::checkpoint::parts::is_made_later;
use crate::rules::checkpoint::roles::Role;
use crate::rules::checkpoint::siblings::{is_exported, said};
use crate::rules::checkpoint::steps::{is_steps, step_in};
use crate::rules::checkpoint::unit::{Candidate, Scan, is_bystander};

/// What directories of data and of models to begin from are called.
const OTHERS: &str = "data dataset datasets cache hub pretrained tokenizer assets";

/// Each such file, and what has its step in the same directory.
pub(in super::super) fn files(scan: &Scan) -> Vec<Candidate> {
    let may_be = |f: &&Entry| f.path.contains('/') && f.kind == Kind::File && f.size > 0 && is_plain(scan, f);
    let stepped = scan.listing.files().filter(may_be).filter_map(|f| {
        let step = scan.step(&f.path, step_in(f.name()))?;
        step.map(|_| Candidate::file(f, step))
    });
    let (models, others): (Vec<_>, Vec<_>) =
        stepped.partition(|c| scan.listing.file(&c.unit).is_some_and(|f| is_model(scan, f)));
    let is_beside = |c: &Candidate| {
        let has_state = matches!(said(&c.unit).role, Some(Role::Beside | Role::Some | Role::Model));
        has_state && models.iter().any(|model| model.step == c.step && parent_of(&model.unit) == parent_of(&c.unit))
    };
    let beside: Vec<Candidate> = others.into_iter().filter(is_beside).collect();
    models.into_iter().chain(beside).collect()
}

/// Whether nothing around it says that it is of something else.
fn is_plain(scan: &Scan, file: &Entry) -> bool {
    let (home, name) = (parent_of(&file.path), file.name());
    let is_other = |part: &str| is_steps(part) || is_begun(part) || OTHERS.split(' ').any(|other| other == part);
    let is_text = ["json", "npy", "index"].contains(&extension_of(name));
    is_weights(name)
        && !is_text
        && !is_exported(name)
        && !is_bystander(name)
        && !scan.is_aside(&file.path)
        && !is_copy(&file.path)
        && !is_best(&file.path)
        && !is_made_later(home)
        && !home.split('/').any(is_other)
}

/// Whether a file's name is a word and the number of its step, or a model's and a number and nothing else.
pub(in super::super) fn says_its_step(name: &str) -> bool {
    let said = said(name);
    let is_named = said.role == Some(Role::Model) && (is_number(&said.rest) || is_counted(stem(name)));
    is_named || is_steps(stem(name)) && says_word(stem(name)) && said.role != Some(Role::Beside)
}

/// `rl_model_1000_steps.zip`, as Stable-Baselines3 has it.
fn is_counted(stem: &str) -> bool {
    stem.strip_suffix("_steps").is_some_and(|rest| rest.rsplit('_').next().is_some_and(is_number))
}

fn is_number(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())
}

fn stem(name: &str) -> &str {
    name.split('.').next().unwrap_or(name)
}

fn is_model(scan: &Scan, file: &Entry) -> bool {
    let (home, name) = (parent_of(&file.path), file.name());
    let is_in_kept = is_kept(name_of(home));
    let holds_models = of_directory(home) == Some(Role::Model);
    let is_numbered = is_number(stem(name)) && (is_in_kept || holds_models);
    let is_one = scan.options.step.is_some() || says_its_step(name) || is_numbered;
    // Samples and features are called by steps as well, and by what made them.
    let is_sure = || {
        let is_called = ["model", "models", "weights", "params"].contains(&name_of(home));
        is_in_kept || is_kept(name) || is_counted(stem(name)) || is_called
    };
    is_one && of_directory(home) != Some(Role::Beside) && (is_surely_weights(file) || is_sure())
}

#[cfg(test)]
mod tests {
    use crate::rules::checkpoint::check::tests::{safetensors_of, zip_of};
    use crate::rules::checkpoint::listing::tests::Memory;
    use crate::rules::checkpoint::tests::{complete_units, newest};
    use crate::rules::checkpoint::{Options, Scan, recognise};

    fn saved(names: &[&str]) -> Memory {
        (1..).zip(names).fold(Memory::default(), |memory, (at, name)| {
            let bytes = if name.ends_with(".npz") { zip_of(b"w", b"") } else { safetensors_of(b"w") };
            memory.with(name, bytes).at(name, at * 1_000_000_000)
        })
    }

    #[test]
    fn a_file_further_down_that_says_of_which_step_it_is_is_a_checkpoint_with_all_beside_it() {
        for names in [
            &["models/model_2.safetensors"][..],
            &["weights/step_2.safetensors"],
            &["out/ckpts/2.safetensors"],
            &["model/2.msgpack", "optim/2.msgpack"],
            &["runs/a/epoch_2.eqx"],
            &["checkpoints/ckpt_2.npz"],
            &["checkpoints/model_2.safetensors", "checkpoints/optimizer_2.safetensors", "checkpoints/rng_2.npz"],
            &["models/model_2.safetensors", "optims/optim_2.safetensors"],
            &["params/params_2.npz", "opt_state/opt_state_2.npz"],
            &["unet/step_2.safetensors", "text_encoder/step_2.safetensors", "optimizer/step_2.safetensors"],
        ] {
            let memory = saved(names);
            let (listing, options) = (memory.listing(), Options::default());
            let found = recognise(&Scan { listing: &listing, peek: &memory, options: &options }).expect("is known");
            let units: Vec<_> = found.candidates.iter().map(|unit| (unit.step, unit.paths.len())).collect();
            assert_eq!(units, [(Some(2), names.len())], "{names:?}");
            assert_eq!(complete_units(&memory).len(), 1, "{names:?}");
        }
    }

    #[test]
    fn what_stable_baselines_saves_in_a_folder_of_logs_is_one_checkpoint() {
        let of = |step: u32| {
            ["", "replay_buffer_", "vecnormalize_"]
                .map(|part| format!("logs/rl_model_{part}{step}_steps.{}", if part.is_empty() { "zip" } else { "pkl" }))
        };
        let names = [&of(1000)[..], &of(2000), &["logs/best_model.zip".to_owned()]].concat();
        let memory = saved(&names.iter().map(String::as_str).collect::<Vec<_>>());
        let newest = newest(&memory);
        assert_eq!((newest.unit.as_str(), newest.paths.len()), ("logs/rl_model_2000_steps.zip", 3));
    }

    #[test]
    fn what_merely_has_a_number_further_down_is_no_checkpoint() {
        for name in [
            "models/base.safetensors",
            "models/llama-3-8b.safetensors",
            "models/vae-ft-mse-840000-ema-pruned.safetensors",
            "hub/model_7.safetensors",
            "pretrained/step_200.safetensors",
            "data/train_001.bin",
            "data/step_1.bin",
            "train/shard_001.safetensors",
            "encoder/step_5.npz",
            "eval/step_5.safetensors",
            "features/epoch_5.npz",
            "samples/ckpt_5.npz",
            "optim/optim_5.safetensors",
            "checkpoints/model-00001-of-00002.safetensors",
            "checkpoints/ckpt_5.json",
            "wandb/run/model_5.safetensors",
            "tmp/model_5.safetensors",
        ] {
            assert_eq!(complete_units(&saved(&[name])), [], "{name}");
        }
    }

    #[test]
    fn steps_at_the_top_and_directories_of_steps_go_before() {
        for (names, unit) in [
            (["models/model_300.safetensors", "step-200/w.safetensors"], "step-200"),
            (["models/model_300.safetensors", "model_200.safetensors"], "model_200.safetensors"),
            (["runs/ema/ema_300.safetensors", "runs/step-200/w.safetensors"], "runs/step-200"),
        ] {
            let units = complete_units(&saved(&names));
            assert_eq!(units, [(unit.to_owned(), Some(200))], "{names:?}");
        }
    }
}
