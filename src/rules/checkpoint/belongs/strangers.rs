//! Files without a step whose names say nothing of a save that lies beside them: `losses.pt` beside `model.pt` and
//! `optimizer.pt`. By its time each would be the newest checkpoint, and there is no model in it. It is a part of the save,
//! then: what was saved by the same trainer it may want. (Beside steps, [`super::saved_over`] has them.)

use std::collections::BTreeMap;

use super::roles::{Role, Said};
use super::siblings::{is_a_save, said};
use crate::rules::checkpoint::listing::parent_of;
use crate::rules::checkpoint::sure;
use crate::rules::checkpoint::unit::Candidate;

/// Adds such files to the save in their directory, the newest of several: the units come newest first, and each save stays
/// where it was among them, so that what is added makes none newer than a step.
pub(in super::super) fn drawn_in(units: Vec<Candidate>) -> Vec<Candidate> {
    let units = added(units, &is_save, |_| true);
    // A model becomes such a save by an optimizer that is called otherwise (`muon_optimizer.pt`), and draws in the others.
    let is_model = |unit: &Candidate, _: &[Candidate]| unit.step.is_none() && has_model(unit);
    let units = added(units, &is_model, |said| said.role == Some(Role::Beside));
    added(units, &is_save, |_| true)
}

type IsHome<'a> = &'a dyn Fn(&Candidate, &[Candidate]) -> bool;

fn added(mut units: Vec<Candidate>, is_home: IsHome, is_part: fn(&Said) -> bool) -> Vec<Candidate> {
    let mut homes: BTreeMap<String, usize> = BTreeMap::new();
    for (at, unit) in units.iter().enumerate().filter(|(_, unit)| is_home(unit, &units)) {
        homes.entry(parent_of(&unit.unit).to_owned()).or_insert(at);
    }
    for at in 0..units.len() {
        let to = homes.get(parent_of(&units[at].unit)).filter(|_| is_stranger(&units[at], is_part));
        if let Some(to) = to {
            let paths = std::mem::take(&mut units[at].paths);
            units[*to].paths.extend(paths);
        }
    }
    homes.into_values().for_each(|at| units[at].paths.sort());
    units.retain(|unit| !unit.paths.is_empty());
    units
}

pub(super) fn is_stranger(unit: &Candidate, is_part: fn(&Said) -> bool) -> bool {
    let is_one = |said: Said| said.role != Some(Role::Model) && !said.may_be_whole && is_part(&said);
    unit.step.is_none() && !is_a_save(unit) && unit.paths.iter().all(|path| is_one(said(path)))
}

/// Whether the name of one of its files says that a model is in it.
pub(super) fn has_model(unit: &Candidate) -> bool {
    unit.paths.iter().any(|path| said(path).role == Some(Role::Model))
}

fn is_save(unit: &Candidate, _: &[Candidate]) -> bool {
    unit.step.is_none() && (is_a_save(unit) || unit.paths.len() > 1 && has_model(unit))
}

/// One of a step that is surely one (`epoch_4.pt`, `model_4.pt`, not `resnet50.pth`).
pub(in super::super) fn is_step(unit: &Candidate, all: &[Candidate]) -> bool {
    unit.step.is_some() && (has_model(unit) || sure::counts(unit, all))
}

#[cfg(test)]
mod tests {
    use crate::rules::checkpoint::check::tests::zip_of;
    use crate::rules::checkpoint::listing::tests::Memory;
    use crate::rules::checkpoint::tests::{self, complete_units, reason};

    fn saved(names: &[&str]) -> Memory {
        Memory::in_turn(names, 1)
    }

    /// What is committed of the newest, and what it is called.
    fn newest(names: &[&str]) -> (String, Vec<String>) {
        let newest = tests::newest(&saved(names));
        (newest.unit, newest.paths)
    }

    #[track_caller]
    fn is_one(unit: &str, names: &[&str]) {
        let mut sorted = names.to_vec();
        sorted.sort_unstable();
        let (called, paths) = newest(names);
        assert_eq!((called.as_str(), paths), (unit, sorted.iter().map(|name| (*name).to_owned()).collect()));
        assert_eq!(complete_units(&saved(names)), [(unit.to_owned(), None)]);
    }

    #[test]
    fn what_is_saved_over_beside_steps_is_a_part_of_the_newest_and_never_a_checkpoint_without_a_model() {
        for stranger in ["optimizer", "training_state", "losses", "rng_state", "scheduler", "ema"] {
            let other = format!("{stranger}.pt");
            for model in ["model", "epoch", "net"] {
                let [one, two] = [format!("{model}_1.pt"), format!("{model}_2.pt")];
                for (names, step) in [(&[&one, &two, &other][..], &two), (&[&one, &other], &one)] {
                    let mut both = vec![step.clone(), other.clone()];
                    both.sort();
                    let names: Vec<&str> = names.iter().map(|name| name.as_str()).collect();
                    assert_eq!(newest(&names), (step.clone(), both));
                }
                // What is newer by its name stays what it was.
                assert_eq!(newest(&[&one, &two, &other, "last.pt"]).0, "last.pt");
                assert_eq!(newest(&[&one, &two, "model.pt", &other]).0, "model.pt");
            }
        }
        assert_eq!(newest(&["resnet50.pth", "mine.pt"]).0, "mine.pt");
        assert_eq!(newest(&["a/model_1.pt", "b/optimizer.pt"]).0, "b/optimizer.pt");
        let torn = saved(&["model_1.pt", "model_2.pt"]).with("optimizer.pt", &zip_of(b"w", b"")[..40]);
        assert_eq!(complete_units(&torn), [("model_1.pt".to_owned(), Some(1))]);
    }

    #[test]
    fn state_that_is_called_the_last_is_a_part_of_the_newest_step_and_of_the_save_without_one() {
        for state in ["optimizer_latest.pt", "last_optim.pth", "scheduler.last.pt", "recent_ema.ckpt"] {
            for [one, two] in [["model_1.pt", "model_2.pt"], ["epoch_1.pth", "epoch_2.pth"], ["G_1.h5.pt", "G_2.h5.pt"]]
            {
                let (unit, paths) = newest(&[one, two, state]);
                assert_eq!((unit.as_str(), paths.len(), paths.contains(&state.to_owned())), (two, 2, true), "{state}");
            }
            assert_eq!(newest(&["model_1.safetensors", "model_2.safetensors", state]).1.len(), 2, "{state}");
            let directories = ["step-1/model.safetensors", "step-2/model.safetensors", state];
            assert!(newest(&directories).1.contains(&state.to_owned()), "{state}");
            is_one("model.pt", &["model.pt", "optimizer.pt", state]);
        }
        assert_eq!(newest(&["model_1.pt", "model_2.pt", "last.pt", "last_optim.pt"]).1, ["last.pt", "last_optim.pt"]);
        let best = newest(&["model_1.pt", "model_2.pt", "best_optim.pt"]);
        assert_eq!(best.1, ["model_2.pt"], "the best is another save's");
    }

    #[test]
    fn a_file_that_says_nothing_of_a_save_is_a_part_of_the_one_beside_it() {
        let strangers = "losses history metrics vocab tokenizer stats obs_rms running_mean_std step epoch temperature dataloader \
                      sampler criterion projector embeddings value_function memory muon_optimizer sampler_state log_alpha";
        for stranger in strangers.split(' ') {
            let name = format!("{stranger}.pt");
            for at in 0..3 {
                let mut names = vec!["model.pt", "optimizer.pt"];
                names.insert(at, &name);
                is_one("model.pt", &names);
            }
            let in_a_folder = format!("run/{name}");
            is_one("run/model.pt", &["run/model.pt", "run/optimizer.pt", &in_a_folder]);
        }
        is_one(
            "model.pt",
            &["model.pt", "optimizer.pt", "losses.pt", "vocab.pt", "losses_rank0.pt", "losses_rank1.pt"],
        );
        is_one("model.safetensors", &["model.safetensors", "optimizer.pt", "losses.pt"]);
        is_one("last_model.pt", &["last_model.pt", "last_optim.pt", "losses.pt"]);
        is_one("last.pt", &["last.pt", "last_optim.pt", "losses.pt"]);
        is_one("model.pt", &["model.pt", "muon_optimizer.pt", "losses.pt"]);
        is_one("model.pt", &["model.pt", "losses.pt", "muon_optimizer.pt"]);
        let (unit, paths) = newest(&["model.pt", "optimizer.pt", "model_best.pt", "muon_optimizer.pt"]);
        assert_eq!((unit.as_str(), paths.len()), ("model.pt", 3), "a save comes before a model alone");
    }

    #[test]
    fn what_sac_saves_is_one_checkpoint() {
        for alpha in
            ["log_alpha.pt", "alpha_optimizer.pt", "alpha.pt", "ent_coef.pt", "log_ent_coef_optim.pt", "temp.pt"]
        {
            is_one("actor.pt", &["actor.pt", "critic1.pt", "critic2.pt", "actor_optimizer.pt", alpha]);
        }
        is_one("actor.pt", &["actor.pt", "log_alpha.pt"]);
    }

    #[test]
    fn of_several_saves_it_belongs_to_the_newest() {
        let names = ["old_model.pt", "old_optim.pt", "last_model.pt", "last_optim.pt", "losses.pt"];
        let (unit, paths) = newest(&names);
        assert_eq!((unit.as_str(), paths), ("last_model.pt", names[2..].iter().map(|n| (*n).to_owned()).collect()));
        let best = ["last_model.pt", "last_optim.pt", "best_model.pt", "best_optim.pt", "losses.pt"];
        assert_eq!(newest(&best).1, ["last_model.pt", "last_optim.pt", "losses.pt"], "the best is a copy");
    }

    #[test]
    fn a_part_that_is_cut_short_makes_the_save_incomplete() {
        let torn = saved(&["model.pt", "optimizer.pt", "losses.pt"]).with("losses.pt", &zip_of(b"w", b"")[..40]);
        assert_eq!(complete_units(&torn), []);
        assert!(reason(&torn, "model.pt").contains("losses.pt"));
    }

    #[test]
    fn what_may_be_a_checkpoint_in_itself_stays_one() {
        let wholes = "last latest best final checkpoint my_checkpoints ckpt snapshot save saved resume backup pretrained init \
                   initial model_best interrupted resnet50 vocab_v2 foo_20";
        for whole in wholes.split(' ') {
            let name = format!("{whole}.pt");
            let names = ["model.pt", "optimizer.pt", &name];
            assert_eq!(complete_units(&saved(&names)).len(), 2, "{whole}");
        }
        let foo = ["model.pt", "optimizer.pt", "foo.pt", "foo_optimizer.pt"];
        assert_eq!(newest(&foo).1, foo[2..], "a save is no part of another");
    }

    #[test]
    fn beside_a_model_alone_or_in_another_directory_it_is_a_checkpoint_as_it_was() {
        for names in
            [&["model.pt", "last.pt"][..], &["model.pt", "agent.pt"], &["model.pt", "optimizer.pt", "b/agent.pt"]]
        {
            let last = *names.last().expect("there is one");
            assert_eq!(newest(names), (last.to_owned(), vec![last.to_owned()]));
            assert_eq!(complete_units(&saved(names)).len(), 2);
        }
    }

    #[test]
    fn it_makes_an_old_save_no_newer_than_a_step() {
        let names = ["model.pt", "optimizer.pt", "ckpt_10.pt", "losses.pt"];
        assert_eq!(newest(&names), ("ckpt_10.pt".to_owned(), vec!["ckpt_10.pt".to_owned()]));
    }
}
