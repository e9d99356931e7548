//! What a trainer makes of its checkpoints and saves as it saves those: `eval/latest.pth` (DETR), Detectron2's
//! `inference/instances_predictions.pth`, `losses.pt`. By its time it would be the newest checkpoint, and no model is in it.

use super::siblings::said;
use crate::rules::checkpoint::listing::{name_of, parent_of};
use crate::rules::checkpoint::unit::Candidate;

/// What its directories are called.
const HOMES: &str = "eval evals evaluation evaluations inference prediction predictions preds samples";
/// What is in its name, where nothing there says that it may be a checkpoint.
const NAMES: &str = "eval evaluation prediction predictions pred preds result results metric metrics loss losses history logits \
     score scores sample samples";

/// Leaves it out where there is anything else.
pub(in super::super) fn left_out(units: &mut Vec<Candidate>) {
    if !units.iter().all(are_results) {
        units.retain(|unit| !are_results(unit));
    }
}

fn are_results(unit: &Candidate) -> bool {
    unit.paths.iter().all(|path| is_result(path))
}

/// Whether it lies in a directory that is called so.
pub(in super::super) fn is_in_one(path: &str) -> bool {
    parent_of(path).split('/').any(|part| is_in(HOMES, part))
}

fn is_in(words: &str, word: &str) -> bool {
    words.split(' ').any(|known| known.eq_ignore_ascii_case(word))
}

fn is_result(path: &str) -> bool {
    let is_named = || {
        let said = said(path);
        let mut words = name_of(path).split(|c: char| !c.is_ascii_alphanumeric());
        said.role.is_none() && !said.may_be_whole && words.any(|word| is_in(NAMES, word))
    };
    is_in_one(path) || is_named()
}

#[cfg(test)]
mod tests {
    use crate::rules::checkpoint::listing::tests::Memory;
    use crate::rules::checkpoint::tests::{complete_units, newest};

    #[track_caller]
    fn wins(name: &str, names: &[&str]) {
        assert_eq!(newest(&Memory::in_turn(names, 5)).unit, name, "{names:?}");
    }

    #[test]
    fn what_is_made_of_a_checkpoint_is_none_however_late_it_is_saved() {
        wins("checkpoint.pth", &["checkpoint.pth", "eval/latest.pth"]);
        wins("checkpoint.pth", &["checkpoint0049.pth", "checkpoint.pth", "eval/050.pth", "eval/latest.pth"]);
        let detectron = ["model_0000999.pth", "model_0001999.pth", "inference/instances_predictions.pth"];
        wins("model_0001999.pth", &detectron);
        wins("out/model_9.pth", &["out/model_9.pth", "out/inference/coco_2017_val/instances_predictions.pth"]);
        for result in ["losses.pt", "val_logits.pth", "outputs/Results.pt", "samples/last.pt", "a/b/history.ckpt"] {
            wins("checkpoint.pt", &["checkpoint.pt", result]);
            wins("epoch_2.pt", &["epoch_1.pt", "epoch_2.pt", result]);
        }
        wins("m.h5", &["m.h5", "predictions/a.h5"]);
    }

    #[test]
    fn what_only_sounds_like_it_or_is_all_that_there_is_stays_a_checkpoint() {
        for name in ["retrieval/ckpt.pt", "results/run.pt", "sampler.pt", "predictor.pt", "best_results/last.pt"] {
            wins(name, &["checkpoint.pt", name]);
        }
        for names in [&["eval/latest.pth"][..], &["results.pt", "losses.pt"]] {
            assert_eq!(complete_units(&Memory::in_turn(names, 5)).len(), names.len());
        }
        let save = newest(&Memory::in_turn(&["model.pt", "optimizer.pt", "losses.pt"], 5));
        assert_eq!(save.paths.len(), 3, "a part of a save");
        let halves = newest(&Memory::in_turn(&["inference/step_5.pt", "optimizer/step_5.pt"], 5));
        assert_eq!(halves.paths.len(), 2, "half of one");
    }
}
