//! Which of the candidates wins: what of a layout's goes first, and when one layout gives way to a later one.
//!
//! The highest step does, where it surely is one; a copy never beats what it was copied from.

use std::cmp::Reverse;
use std::collections::BTreeSet;

use super::aside::is_copy;
use super::called::{is_best, is_hasty, is_last, series_of};
use super::generic::is_surely_weights;
use super::layout::Makeup;
use super::listing::{Listing, name_of};
use super::order::is_later;
use super::steps::is_steps;
use super::sure::{Sure, says_step};
use super::unit::{Candidate, Scan, taken};
use super::{Found, check, complete, halves, hasty, results, saved_over, siblings};

/// Leaves out the copies (in `wandb`) where there are others.
pub(super) fn without_copies(candidates: &mut Vec<Candidate>) {
    if !are_copies(candidates) {
        candidates.retain(|c| !is_copy(&c.unit));
    }
}

fn are_copies(candidates: &[Candidate]) -> bool {
    candidates.iter().all(|c| is_copy(&c.unit))
}

/// Whether what an earlier layout found is to give way to this.
pub(super) fn gives_way(scan: &Scan, first: &Found, other: &Found) -> bool {
    if are_copies(&first.candidates) {
        return !are_copies(&other.candidates) && holds_steps(scan, other, false);
    }
    let is_before = || first.layout.makeup != Makeup::OneFile && is_before(scan, first, other);
    let are_best = first.candidates.iter().all(|c| is_best(&c.unit));
    (is_stray(first) || is_before()) && holds_steps(scan, other, are_best)
        || saved_over::are_parts(scan, first, other)
        || hasty::are_over(scan, first, other)
        || halves::are_parts_of(scan, first, other)
        || is_overtaken(scan, first, other)
}

/// What is the first's is no checkpoint of the other's, nor a part of one.
pub(super) fn without(mut other: Found, first: &Found) -> Found {
    let taken = taken(&first.candidates);
    for c in &mut other.candidates {
        c.paths.retain(|path| !taken.contains(path.as_str()));
        if taken.contains(c.unit.as_str()) {
            c.unit = c.paths.first().cloned().unwrap_or_default();
        }
    }
    other.candidates.retain(|c| !c.paths.is_empty());
    other
}

/// Whether it may have to give way at all: looking for others costs time.
pub(super) fn is_doubtful(scan: &Scan, first: &Found) -> bool {
    let has_younger = |newest: i64| scan.listing.files().any(|f| is_later(f.mtime_ns, newest) && is_surely_weights(f));
    let may_be_overtaken = || newest_of_steps(scan, first).is_some_and(has_younger);
    let are_parts = halves::are_nothing_alone(first);
    are_copies(&first.candidates) || are_parts || is_stray(first) || is_a_beginning(scan, first) || may_be_overtaken()
}

/// Models as they are handed out: with neither a trainer's state nor a step that is finished.
fn is_a_beginning(scan: &Scan, first: &Found) -> bool {
    let is_begun = |c: &Candidate| match c.step {
        None => !is_last(&c.unit),
        Some(_) => complete(first, scan, c).is_err(),
    };
    first.layout.is_handed_out && first.candidates.iter().all(is_begun)
}

/// Files without a step (`best.pt`, `metrics.h5`, `encoder.pt` and `decoder.pt`), each whole in itself.
fn is_stray(first: &Found) -> bool {
    let is_whole = |path: &String| !siblings::is_of_a_rank(name_of(path)) && !path.ends_with(".json");
    let is_one = |c: &Candidate| c.step.is_none() && (c.paths == [c.unit.as_str()] || c.paths.iter().all(is_whole));
    first.layout.makeup == Makeup::OneFile && first.candidates.iter().all(is_one)
}

/// What there is to begin from (`pretrained`, `bert/bert_model.ckpt`) lies there before the first step of the other.
fn is_before(scan: &Scan, first: &Found, other: &Found) -> bool {
    let time = |c: &Candidate| c.newest_ns(scan.listing);
    let newest = first.candidates.iter().map(time).max();
    let oldest = other.candidates.iter().filter(|c| c.step.is_some()).map(time).min();
    newest.zip(oldest).is_some_and(|(first, other)| is_later(other, first))
}

/// Of files with a number in the name, the newest's time.
fn newest_of_steps(scan: &Scan, first: &Found) -> Option<i64> {
    let stepped = first.candidates.iter().filter(|c| c.step.is_some() && first.layout.makeup == Makeup::OneFile);
    stepped.map(|c| c.newest_ns(scan.listing)).max()
}

/// Whether files are what the trainer began from (`resnet50.pth`) or what an earlier run left there, since it now writes
/// steps of another form. These are all younger; so that what is saved over does not win by turns with what is exported
/// beside it, several of them where the file is a step itself, or has no number. A file with a bare one gives way to two
/// younger ones that a word calls steps as well: it may have been fetched again after a restart.
fn is_overtaken(scan: &Scan, first: &Found, other: &Found) -> bool {
    let all = || first.candidates.iter().map(|c| c.newest_ns(scan.listing)).max();
    let newest = if is_stray(first) { all() } else { newest_of_steps(scan, first) };
    let Some(newest) = newest else { return false };
    let (ours, theirs) = (Sure::of(scan, &first.candidates), Sure::of(scan, &other.candidates));
    let is_of_several = first.candidates.iter().any(|c| c.step.is_some() && c.paths.len() > 1);
    let is_sure = ours.is_told || ours.is_said || !ours.series.is_empty() || is_of_several;
    let steps = || {
        let stepped = other.candidates.iter().filter(|c| c.step.is_some());
        stepped.filter(|c| c.files(scan.listing).any(is_surely_weights))
    };
    // Of a save of several files, the first's are a part (`optimizer_200.pt` and `model_200.safetensors`).
    let highest = first.candidates.iter().map(|c| c.step).max();
    let is_ours = |c: &Candidate| first.candidates.iter().any(|ours| ours.step == c.step);
    if steps().all(is_ours) && steps().any(|c| Some(c.step) == highest) {
        return false;
    }
    let time = |c: &Candidate| c.newest_ns(scan.listing);
    let is_file = |c: &Candidate| c.is_file(scan.listing);
    let is_worded = |c: &Candidate| says_step(c) && (is_file(c) || !c.unit.contains('/'));
    let is_counted = |c: &Candidate| match is_file(c) {
        true => theirs.series.contains(&series_of(&c.unit)),
        false => c.unit.contains('/'),
    };
    let times = |is_one: &dyn Fn(&Candidate) -> bool| {
        let mut times: Vec<i64> = steps().filter(|c| is_one(c)).map(time).collect();
        times.sort_unstable();
        times
    };
    let oldest_of_several = |times: Vec<i64>| times.first().copied().filter(|_| times.len() > 1);
    let since = if is_sure {
        oldest_of_several(times(&is_worded))
    } else if is_stray(first) {
        oldest_of_several(times(&|c| is_worded(c) || is_counted(c)))
    } else {
        let worded = times(&is_worded);
        worded.iter().nth_back(1).or(worded.first()).copied().max(times(&is_counted).first().copied())
    };
    since.is_some_and(|since| is_later(since, newest))
}

/// Whether these are checkpoints of steps. Of what has no format, only directories at the top that say so and hold weights
/// are sure to be: digits are in many names. `deeper`: so are others that are called by a word for steps.
fn holds_steps(scan: &Scan, found: &Found, deeper: bool) -> bool {
    let is_anybodys = found.layout.makeup == Makeup::Anybodys;
    found.candidates.iter().any(|c| {
        let is_at_top = !c.unit.contains('/');
        let is_sure = is_at_top || deeper && says_step(c) && !results::is_in_one(&c.unit);
        let is_sure =
            is_sure && is_steps(name_of(&c.unit)) && !c.is_file(scan.listing) && holds_weights(scan.listing, c);
        if is_anybodys { is_sure } else { c.step.is_some() }
    })
}

/// Whether it holds what is surely no log, text or picture. (JSON may be either.)
pub(super) fn holds_weights(listing: &Listing, candidate: &Candidate) -> bool {
    candidate.files(listing).any(|f| check::is_weights(f.name()) && !f.name().ends_with(".json"))
}

/// Sorted, newest first: those with a step by it, those without by time; one of each by time, too. Times within a second of
/// each other (mounts that fake them) leave it to the step.
pub(super) fn sort(scan: &Scan, candidates: &mut Vec<Candidate>) {
    let listing = scan.listing;
    let time = |c: &Candidate| c.newest_ns(listing);
    let times = candidates.iter().map(time);
    let spread_ns = times.clone().max().unwrap_or(0).saturating_sub(times.min().unwrap_or(0));
    let sure = Sure::of(scan, candidates);
    let hasty: BTreeSet<String> = hasty(scan, candidates, &sure).map(|c| c.unit.clone()).collect();
    let has_step = |c: &Candidate| c.step.is_some() && !hasty.contains(&c.unit);
    candidates.sort_by_cached_key(|c| {
        // Of one step, a copy lies deeper, or is called the best.
        let own = c.step.filter(|_| has_step(c));
        let copied = own.map(|_| (c.unit.matches('/').count(), is_best(&c.unit)));
        let step = own.map(|step| (sure.is_step(c), step));
        Reverse((step, Reverse(copied), time(c), c.unit.clone()))
    });
    let is_copied = |c: &Candidate| c.step.is_none() && is_best(&c.unit) && sure.beside_best;
    let (best, others): (Vec<_>, Vec<_>) = std::mem::take(candidates).into_iter().partition(is_copied);
    *candidates = others;
    if spread_ns >= 1_000_000_000 {
        let stepless = candidates.partition_point(has_step);
        let mut stepless = candidates.split_off(stepless).into_iter().peekable();
        let mut sorted = Vec::with_capacity(candidates.len());
        for stepped in candidates.drain(..) {
            while let Some(newer) = stepless.next_if(|c| time(c) > time(&stepped)) {
                sorted.push(newer);
            }
            sorted.push(stepped);
        }
        sorted.extend(stepless);
        *candidates = sorted;
    }
    candidates.extend(best);
}

/// What a trainer saved in haste (`preempt_5000.pt`), later than everything else, although its bare number is none beside
/// the series (`epoch_2.pt`): it goes by its time. When the series goes on, it is over.
fn hasty<'a>(scan: &Scan, candidates: &'a [Candidate], sure: &Sure) -> impl Iterator<Item = &'a Candidate> {
    let time = |c: &Candidate| c.newest_ns(scan.listing);
    let newest = candidates.iter().filter(|c| !is_in_haste(&c.unit)).map(time).max().unwrap_or(i64::MAX);
    let is_last = |c: &Candidate| is_later(time(c), newest);
    let others = candidates.iter().filter(|c| c.step.is_some() && is_in_haste(&c.unit) && !sure.is_step(c));
    others.filter(|c| is_last(c)).collect::<Vec<_>>().into_iter()
}

/// Takes the number in the name of what was saved in haste for no step: it counts something else than the series' do.
pub(super) fn forget_steps(scan: &Scan, candidates: &mut [Candidate]) {
    let sure = Sure::of(scan, candidates);
    let hasty: BTreeSet<String> = hasty(scan, candidates, &sure).map(|c| c.unit.clone()).collect();
    candidates.iter_mut().filter(|c| hasty.contains(&c.unit)).for_each(|c| c.step = None);
}

/// A file of torch's that says that its trainer was about to be stopped.
fn is_in_haste(unit: &str) -> bool {
    let name = unit.to_ascii_lowercase();
    [".pt", ".pth", ".ckpt"].iter().any(|end| name.ends_with(end)) && is_hasty(unit)
}

#[cfg(test)]
mod tests {
    use super::super::Options;
    use super::super::check::tests::zip_of;
    use super::super::listing::tests::Memory;
    use super::super::tests::{complete_units, complete_units_with, newest};

    const SECOND: i64 = 1_000_000_000;

    fn saved(names: &[&str]) -> Memory {
        Memory::in_turn(names, 5)
    }

    #[track_caller]
    fn wins(name: &str, names: &[&str]) {
        assert_eq!(newest(&saved(names)).unit, name, "{names:?}");
    }

    #[test]
    fn a_number_after_a_word_for_steps_outranks_a_bare_one_of_another_name() {
        for other in ["resnet50.pth", "best_acc_95.pt", "yolov8n.pt", "sam_vit_h_4b8939.pth"] {
            wins("epoch_2.pt", &["epoch_1.pt", "epoch_2.pt", other]);
        }
        wins("epoch_1.pt", &["resnet50.pth", "epoch_1.pt"]);
        wins("step-2", &["step-1/w.bin", "step-2/w.bin", "spm_32000.model"]);
        wins("model_20.pt", &["model_10.pt", "model_20.pt", "backbone_epoch_3.pt"]);
        wins("model_20.pt", &["model_20.pt", "model_10.pt"]);
        wins("epoch_1_step_500.pt", &["epoch_1_step_500.pt", "epoch_2_step_100.pt"]);
    }

    #[test]
    fn a_number_that_only_a_models_name_has_is_no_step_once_what_surely_has_one_is_saved() {
        for model in ["resnet50.pth", "resnet50-19c8e357.pth", "m50_best.pt", "sam_vit_h_4b8939.pth"] {
            wins("model_2.pt", &[model, "model_1.pt", "model_2.pt"]);
            wins("model_2.pt", &["model_1.pt", model, "model_2.pt"]);
            wins("model_2.pt", &[model, "model_2.pt"]);
            wins("m_2.pt", &[model, "m_1.pt", "m_2.pt"]);
        }
        wins("resnet50_2.pth", &["resnet50_1.pth", "resnet50_best.pth", "resnet50_2.pth"]);
        wins("vgg16_02.weights.h5", &["vgg16_01.weights.h5", "vgg16_best.weights.h5", "vgg16_02.weights.h5"]);
        wins("m_2.safetensors", &["llama70b.safetensors", "m_1.safetensors", "m_2.safetensors"]);
        // What is younger may be a step of another name.
        wins("final_300.pt", &["model_100.pt", "model_200.pt", "final_300.pt"]);
        wins("best_250.pt", &["model_100.pt", "model_200.pt", "best_250.pt"]);
        let at_once = ["m_1.pt", "m_2.pt", "resnet50.pth"];
        let at_once = at_once.iter().fold(saved(&at_once), |memory, name| memory.at(name, SECOND));
        assert_eq!(complete_units(&at_once)[0].0, "resnet50.pth", "times that tell nothing");
    }

    #[test]
    fn a_copy_of_the_best_gives_way_to_directories_of_steps_further_down() {
        wins("runs/a/step-2", &["runs/a/step-1/w.safetensors", "runs/a/step-2/w.safetensors", "runs/a/best/model.pt"]);
        wins("1000_checkpoint", &["1000_checkpoint/model.pt", "best/model.pt"]);
        wins("best.pt", &["eval/step-1/out.safetensors", "best.pt"]);
        wins("last.pt", &["runs/a/step-1/w.safetensors", "last.pt"]);
    }

    #[test]
    fn what_was_saved_in_haste_wins_as_long_as_it_is_the_newest() {
        for name in ["preempt_5000.pt", "emergency-5000.ckpt", "model_interrupted_5000.pth", "SIGTERM_5000.pt"] {
            wins(name, &["epoch_1.pt", "epoch_2.pt", name]);
            wins("epoch_3.pt", &["epoch_1.pt", "epoch_2.pt", name, "epoch_3.pt"]);
        }
        wins("preempt_40.pt", &["epoch_1.pt", "epoch_2.pt", "preempt_50.pt", "preempt_40.pt"]);
        wins("epoch_2.pt", &["epoch_1.pt", "epoch_2.pt", "best_5000.pt"]);
        wins("model_200.pt", &["model_100.pt", "model_200.pt", "preempt_150.pt"]);
        // What its number counts is not known, so that it is none of the steps, and one that was cut short is passed over.
        let names = ["epoch_1.pt", "preempt_5000.pt"];
        assert_eq!(complete_units(&saved(&names)), [("preempt_5000.pt".into(), None), ("epoch_1.pt".into(), Some(1))]);
        let torn = saved(&names).with("preempt_5000.pt", &zip_of(b"w", b"")[..40]);
        assert_eq!(complete_units(&torn), [("epoch_1.pt".into(), Some(1))]);
        let at_once = names.iter().fold(saved(&names), |memory, name| memory.at(name, SECOND));
        assert_eq!(complete_units(&at_once)[0].0, "epoch_1.pt", "times that tell nothing");
    }

    #[test]
    fn what_has_no_step_and_is_newer_by_less_than_a_second_does_not_outrank_a_step() {
        for (apart, newest) in [(SECOND / 2, "model_1.pt"), (2 * SECOND, "final.pt")] {
            let memory = saved(&["model_1.pt", "final.pt"]).at("model_1.pt", SECOND).at("final.pt", SECOND + apart);
            assert_eq!(complete_units(&memory)[0].0, newest, "{apart} ns apart");
        }
    }

    #[test]
    fn where_the_user_says_how_a_step_is_read_a_bare_number_is_one() {
        let memory = saved(&["epoch_1.pt", "epoch_2.pt", "resnet_50.pth"]);
        assert_eq!(complete_units(&memory)[0].0, "epoch_2.pt");
        let options = Options { step: regex::Regex::new("_([0-9]+)").ok(), ..Options::default() };
        assert_eq!(complete_units_with(&memory, &options)[0].0, "resnet_50.pth");
    }

    #[test]
    fn a_copy_in_a_deeper_directory_or_one_called_the_best_wins_no_tie() {
        wins("epoch=1-step=20.ckpt", &["epoch=1-step=20.ckpt", "best/epoch=1-step=20.ckpt"]);
        wins("w.02.keras", &["w.02.keras", "best.02.keras"]);
        wins("checkpoint.pth.tar", &["checkpoint.pth.tar", "model_best.pth.tar"]);
        wins("last.pt", &["last.pt", "best.pt"]);
        wins("last/model.pt", &["last/model.pt", "best/model.pt"]);
        wins("m.05.keras", &["m.04.keras", "m.05.keras", "best.keras"]);
        wins("model_2.ubj", &["model_1.ubj", "model_2.ubj", "model_best.ubj"]);
        wins("best.pt", &["pretrained.pt", "best.pt"]);
        wins("best.pt", &["resnet50.pth", "best.pt"]);
        wins("final.pt", &["model_1.pt", "model_2.pt", "final.pt"]);
    }

    #[test]
    fn what_a_logger_keeps_or_is_about_to_be_deleted_is_taken_where_there_is_nothing_else() {
        wins("ckpt_200.pt", &["ckpt_100.pt", "ckpt_200.pt", "wandb/run-a/files/ckpt_999.pt"]);
        wins("w.02.weights.h5", &["w.01.weights.h5", "w.02.weights.h5", "wandb/run-1/files/model-99.h5"]);
        wins("ckpt_2.pt", &["ckpt_1.pt", "ckpt_2.pt", "wandb/run-1/files/model-99.h5"]);
        let own = "mlruns/1/abc/checkpoints/epoch=1-step=20.ckpt";
        wins(own, &["mlruns/1/abc/checkpoints/epoch=0-step=10.ckpt", own]);
    }

    #[test]
    fn a_model_to_begin_from_gives_way_to_the_first_step() {
        let begun: [&[&str]; 3] = [
            &["bert/bert_model.ckpt.index", "bert/bert_model.ckpt.data-00000-of-00001"],
            &["base/checkpoint-5000/pytorch_model.bin"],
            &["pretrained/__0_0.distcp", "pretrained/.metadata"],
        ];
        for model in begun {
            wins("ckpt_200.pt", &[model, &["ckpt_100.pt", "ckpt_200.pt"]].concat());
        }
        wins("checkpoints/last", &["checkpoints/last/__0_0.distcp", "checkpoints/last/.metadata", "model_1.pt"]);
        wins("state", &["state/random_states_0.pkl", "state/model.safetensors", "model_1.pt"]);
        wins("final", &["model_1.pt", "final/__0_0.distcp", "final/.metadata"]);
    }

    #[test]
    fn a_numbered_file_of_before_gives_way_to_the_steps_of_another_form() {
        wins("step-12", &["resnet50.pth", "step-11/model.pt", "step-12/model.pt"]);
        wins("x_3.bin", &["init_1.pt", "x_1.bin", "x_2.bin", "x_3.bin"]);
        wins("params_20.msgpack", &["vae_16.ckpt", "params_10.msgpack", "params_20.msgpack"]);
        wins("step-7.bin", &["resnet50.pth", "step-7.bin"]);
        wins("x_2.bin", &["init_50.pt", "x_1.bin", "x_2.bin"]);
        wins("epoch_1", &["vgg16.pt", "epoch_1/model.pt"]);
        wins("epoch_2", &["vgg16.pt", "vgg19.pt", "epoch_1/model.pt", "epoch_2/model.pt"]);
        wins("run/step-2", &["resnet50.pth", "run/step-1/model.safetensors", "run/step-2/model.safetensors"]);
        wins("run/step-2", &["resnet.pth", "run/step-1/model.safetensors", "run/step-2/model.safetensors"]);
        wins("step-2.bin", &["resnet.pth", "step-1.bin", "step-2.bin"]);
        wins("run/step-2", &["vgg16.h5", "run/step-1/model.safetensors", "run/step-2/model.safetensors"]);
        wins("m_2.pt", &["vgg16_weights.h5", "m_1.pt", "m_2.pt"]);
        // What was fetched again after a restart lies between the steps, and an earlier run may have left steps as well.
        wins("step-13", &["step-11/model.pt", "resnet50.pth", "last.pt", "step-12/model.pt", "step-13/model.pt"]);
        wins("step-3", &["epoch_1.pt", "epoch_2.pt", "step-1/model.pt", "step-3/model.pt"]);
        assert_eq!(complete_units(&saved(&["resnet50.pth", "step-50.bin", "step-51.bin"]))[0].0, "step-51.bin");
    }

    #[test]
    fn a_numbered_file_that_is_saved_over_or_goes_on_gives_way_to_nothing_beside_it() {
        wins("model_100.pt", &["samples_3/a.pt", "model_100.pt", "samples_4/a.pt", "metrics_5.json", "out_6.npy"]);
        wins("model_100.pt", &["epoch_1/model.pt", "epoch_2/model.pt", "model_100.pt"]);
        wins("model_100.pt", &["cache_1.bin", "model_100.pt", "cache_2.bin", "cache_3.bin"]);
        wins("model_100.pt", &["model_100.pt", "vocab_32000.bin", "step-5/a.png"]);
        wins("model_100.pt", &["eval/step-1/out.bin", "model_100.pt", "eval/step-2/out.bin"]);
        wins("model_100.pt", &["epoch_1/model.pt", "model_100.pt", "epoch_2/model.pt"]);
        wins("ckpt_100.pt", &["ckpt_100.pt", "epoch_1/model.pt"]);
        wins("last.pt", &["last.pt", "epoch_1.bin"]);
        wins("model_100.pt", &["model_100.pt", "run_2/w.bin", "run_3/w.bin"]);
        wins("D_50.pth", &["ep_1/w.pt", "D_50.pth", "G_50.pth", "ep_2/w.pt", "ep_3/w.pt"]);
        wins("last.pt", &["step-1.bin", "last.pt", "step-2.bin"]);
        wins("model_20.pt", &["model_10.pt", "model_20.pt", "eval/step-1/out.bin"]);
        wins("model_20.pt", &["epoch_1/model.pt", "model_10.pt", "model_20.pt", "epoch_2/model.pt"]);
        wins("model_20.pt", &["model_10.pt", "model_20.pt", "cache_1.bin", "cache_2.bin"]);
        wins("optim_step_200.pt", &["optim_step_200.pt", "net_step_200.safetensors"]);
        wins("model_2.pt", &["model_2.pt", "epoch_2/model.pt"]);
        let at_once = ["resnet50.pth", "step-1.bin", "step-2.bin"];
        let at_once = at_once.iter().fold(saved(&at_once), |memory, name| memory.at(name, SECOND));
        assert_eq!(complete_units(&at_once)[0].0, "resnet50.pth", "times that tell nothing");
    }
}
