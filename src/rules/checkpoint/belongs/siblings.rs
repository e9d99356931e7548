//! Checkpoints of several files side by side, each with the step in its name: `G_1000.pth` and `D_1000.pth`, a model and its
//! replay buffer. They are one unit, called by the shortest of their names, a model's first. So are those without a step that
//! only say what is in them ([`super::roles`]).

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::LazyLock;

use super::roles::{Role, Said};
use crate::rules::checkpoint::ascii::Pattern;
use crate::rules::checkpoint::listing::{Entry, Kind, Listing, name_of, parent_of};
use crate::rules::checkpoint::steps::step_in;
use crate::rules::checkpoint::unit::{Candidate, Scan, is_bystander, taken};

/// Makes one of those units of a file each that belong to the same step, or are the shards of one without.
pub(in super::super) fn together(listing: &Listing, units: Vec<Candidate>) -> Vec<Candidate> {
    // What lies beside the weights may be cut short for ever, as a JSON file that is a log.
    let is_part = |unit: &Candidate| {
        let is_file = |e: &&Entry| matches!(e.kind, Kind::File | Kind::Lost(_));
        listing.get(&unit.unit).filter(is_file).is_some_and(|f| !f.name().ends_with(".json"))
    };
    let (mut parts, mut all): (Vec<_>, Vec<_>) = units.into_iter().partition(is_part);
    let saves = saves(&parts);
    let mut steps: BTreeMap<_, Vec<Candidate>> = BTreeMap::new();
    for part in &mut parts {
        part.step = part.step.filter(|_| !is_a_twin(&saves, &part.unit));
    }
    for part in parts {
        let own = if part.step.is_none() { own(&saves, &part.unit) } else { String::new() };
        steps.entry((parent_of(&part.unit).to_owned(), part.step, own)).or_default().push(part);
    }
    for mut files in steps.into_values() {
        files.sort_by_key(|file| std::cmp::Reverse(file.newest_ns(listing)));
        // Of the same kind they are versions (`epoch3_acc63.pth`, `epoch3_acc70.pth`), and only the newest belongs to it.
        let mut kinds = BTreeSet::new();
        let (mut newest, versions): (Vec<_>, Vec<_>) = files.into_iter().partition(|file| kinds.insert(kind(file)));
        all.extend(versions);
        newest.sort_by_cached_key(|file| (said(&file.unit).role, file.unit.len(), file.unit.clone()));
        let mut paths: Vec<String> = newest.iter().flat_map(|file| file.paths.clone()).collect();
        paths.sort();
        all.extend(newest.into_iter().next().map(|first| Candidate { paths, ..first }));
    }
    all
}

pub(in super::super) fn said(path: &str) -> Said {
    Said::by(&without_ranks(name_of(path)))
}

/// Saves without a step, by their directory and what their names have in common, and what there is of them.
type Saves = BTreeMap<(String, String), Role>;

fn saves(parts: &[Candidate]) -> Saves {
    let mut saves = Saves::new();
    for part in parts.iter().filter(|part| part.step.is_none()) {
        let Said { role: Some(role), rest, .. } = said(&part.unit) else { continue };
        let first = saves.entry((parent_of(&part.unit).to_owned(), rest)).or_insert(role);
        *first = role.min(*first);
    }
    saves
}

/// `critic_1.pt` beside `actor.pt` is of no step.
fn is_a_twin(saves: &Saves, path: &str) -> bool {
    let said = said(path);
    said.is_twin && saves.contains_key(&(parent_of(path).to_owned(), said.rest))
}

/// What the files of one save without a step have in common. One that does not say what is in it is of the save only where
/// that would be nothing without it: `last.pt` and `last_optimizer.pt`.
fn own(saves: &Saves, path: &str) -> String {
    let said = said(path);
    let key = (parent_of(path).to_owned(), said.rest);
    let first = saves.get(&key);
    if said.role.is_some() || first == Some(&Role::Beside) && !key.1.is_empty() {
        return format!("/{}", key.1);
    }
    without_ranks(name_of(path)).into_owned()
}

/// Makes one of files of the same name in a directory for each rank: `mp_rank_00/step=20.ckpt`, `mp_rank_01/step=20.ckpt`.
pub(in super::super) fn of_ranks(units: Vec<Candidate>) -> Vec<Candidate> {
    let mut saves: Vec<Candidate> = Vec::with_capacity(units.len());
    let mut at: BTreeMap<String, usize> = BTreeMap::new();
    for unit in units {
        let (home, name) = (parent_of(&unit.unit), name_of(&unit.unit));
        let save = format!("{}/{name}", without_ranks(home));
        match at.get(&save).and_then(|at| saves.get_mut(*at)) {
            Some(first) if name_of(home).contains("rank") => {
                first.unit = std::cmp::min(&first.unit, &unit.unit).clone();
                first.paths.extend(unit.paths);
                first.paths.sort();
            }
            _ => {
                at.insert(save, saves.len());
                saves.push(unit);
            }
        }
    }
    saves
}

/// Adds to single files what other libraries wrote beside them in the same save: `optimizer_200.pt` and
/// `model_200.safetensors`, or `optimizer.pt` and `model.safetensors`. It is called by a model here, too.
pub(in super::super) fn with_others(scan: &Scan, units: Vec<Candidate>) -> Vec<Candidate> {
    let taken = taken(&units);
    let mut others: BTreeMap<(&str, Option<u64>), Vec<&Entry>> = BTreeMap::new();
    for file in scan.listing.files().filter(|f| is_state(f.name()) && !taken.contains(f.path.as_str())) {
        let is_aside = scan.is_aside(&file.path) || is_bystander(file.name());
        if let (false, Some(step)) = (is_aside, scan.step(&file.path, step_in(file.name()))) {
            others.entry((parent_of(&file.path), step)).or_default().push(file);
        }
    }
    let add = |unit: &Candidate| {
        let (home, name) = (parent_of(&unit.unit), name_of(&unit.unit));
        // Under the same name it was made of this one.
        let is_of_it = |other: &&&Entry| match unit.step {
            Some(_) => step_in(name).is_some() && stem(other.name()) != stem(name),
            None => goes_with(unit, other.name()),
        };
        let added = others.get(&(home, unit.step)).into_iter().flatten().filter(is_of_it).map(|f| f.path.clone());
        let added: Vec<String> = added.collect();
        let is_first =
            |path: &&String| said(path).role == Some(Role::Model) && said(&unit.unit).role > Some(Role::Model);
        let first = added.iter().filter(is_first).min_by_key(|path| (path.len(), *path));
        let called = first.unwrap_or(&unit.unit).clone();
        let mut paths: Vec<String> = unit.paths.iter().cloned().chain(added).collect();
        paths.sort();
        Candidate { unit: called, paths, ..unit.clone() }
    };
    units.iter().map(add).collect()
}

/// Whether a file is weights or state by its name, of any type that is not for exported or derived ones.
fn is_state(name: &str) -> bool {
    const WORDS: &str = "model optim opt state weights sched scaler rng ema buffer policy actor critic adapter params";
    let before = name.rsplit_once('.').map_or(name, |(before, _)| before);
    !is_exported(name) && WORDS.split(' ').any(|word| before.contains(word))
}

pub(in super::super) fn is_exported(name: &str) -> bool {
    const EXPORTED: &str = "onnx pb tflite mlmodel engine trt plan gguf ggml ptl pte htm dot ini cfg json txt";
    let extension = name.rsplit_once('.').map_or("", |(_, extension)| extension);
    EXPORTED.split(' ').any(|known| known == extension)
}

fn stem(name: &str) -> &str {
    name.split('.').next().unwrap_or(name)
}

fn is_a_model(name: &str) -> bool {
    ["model", "pytorch_model", "adapter_model"].contains(&name.split(['.', '-']).next().unwrap_or_default())
}

/// Whether what another library wrote is of this save without a step: what a model is trained with, or the model where there
/// is none.
fn goes_with(unit: &Candidate, other: &str) -> bool {
    let (ours, theirs) = (said(&unit.unit), said(other));
    let has_model = || unit.paths.iter().any(|path| said(path).role.is_none_or(|role| role == Role::Model));
    match theirs.role {
        _ if is_a_model(other) && ours.rest.is_empty() => !has_model(),
        Some(Role::Model) => theirs.rest == ours.rest && !has_model(),
        role => role.is_some() && theirs.rest == ours.rest,
    }
}

/// Whether several files without a step are a whole save, of a model and what it is trained with.
pub(in super::super) fn is_a_save(unit: &Candidate) -> bool {
    let is_beside = |path: &String| said(path).role == Some(Role::Beside);
    unit.step.is_none() && unit.paths.iter().any(is_beside) && !unit.paths.iter().all(is_beside)
}

/// What numbers the files of one save, not its versions: `rank0`, `tp_1`, `shard_0_of_2`, `00001-of-00002`.
static SHARD: LazyLock<Pattern> = LazyLock::new(|| {
    let words = "(?i-u:rank|shard)|(?:^|[^a-zA-Z])(?i-u:tp|pp|dp|mp|part|node)";
    let of = "[_-](?i-u:of)[_-]";
    Pattern::new(&format!("(?:{words})[=_-]*[0-9]+(?:{of}[0-9]+)?|0[0-9]{{4}}{of}0[0-9]{{4}}"))
});

/// Where a name says which rank's or shard it is.
pub(in super::super) fn ranks(name: &str) -> Vec<Range<usize>> {
    SHARD.find_iter(name).collect()
}

pub(in super::super) fn is_of_a_rank(name: &str) -> bool {
    SHARD.is_match(name)
}

pub(in super::super) fn without_ranks(path: &str) -> Cow<'_, str> {
    SHARD.replaced(path, "")
}

/// The name without its numbers, but for a rank's or a shard's; without a step, the name without its extension.
fn kind(file: &Candidate) -> String {
    let name = name_of(&file.unit);
    if file.step.is_none() {
        return name.rsplit_once('.').map_or(name, |(stem, _)| stem).to_owned();
    }
    let shards = ranks(name);
    let stays = |(at, c): &(usize, char)| !c.is_ascii_digit() || shards.iter().any(|shard| shard.contains(at));
    name.char_indices().filter(stays).map(|(_, c)| c).collect()
}

#[cfg(test)]
mod tests {
    use crate::rules::checkpoint::check::tests::{safetensors_of, whole_file, zip_of};
    use crate::rules::checkpoint::listing::tests::Memory;
    use crate::rules::checkpoint::tests::{self, complete_units, reason};
    use crate::rules::checkpoint::{Entry, Kind, Listing, Options, Scan, complete, recognise};

    fn saved(names: &[&str]) -> Memory {
        Memory::default().saved(names)
    }

    /// What is committed of the newest.
    fn newest(memory: &Memory) -> Vec<String> {
        tests::newest(memory).paths
    }

    #[test]
    fn the_files_of_one_step_side_by_side_are_one_checkpoint_called_by_the_shortest() {
        for step in [
            &["D_1000.pth", "G_1000.pth"][..],
            &["model_1000.pt", "optimizer_1000.pt"],
            &["rl_model_1000_steps.zip", "rl_model_replay_buffer_1000_steps.zip"],
            &["a/ckpt_100_rank0.pt", "a/ckpt_100_rank1.pt"],
            &["ckpt_step_200_tp_0.pt", "ckpt_step_200_tp_1.pt"],
            &["checkpoint_2_2000-shard0.pt", "checkpoint_2_2000-shard1.pt"],
            &["checkpoint_last-shard0.pt", "checkpoint_last-shard1.pt"],
            &["model_200_shard_0_of_2.pt", "model_200_shard_1_of_2.pt"],
            &["model-00001-of-00002.pt", "model-00002-of-00002.pt"],
        ] {
            let memory = saved(step);
            assert_eq!(newest(&memory), step);
            assert_eq!(complete_units(&memory).len(), 1);
            assert_eq!(complete_units(&memory)[0].0, step[0]);
            let torn = memory.with(step[1], &zip_of(b"w", b"")[..40]);
            assert_eq!(complete_units(&torn), []);
            assert!(reason(&torn, step[0]).contains(step[1]), "{}", reason(&torn, step[0]));
        }
    }

    #[test]
    fn files_without_a_step_that_only_say_what_is_in_them_are_one_checkpoint_called_by_the_model() {
        for save in [
            &["model.pt", "optimizer.pt"][..],
            &["model.pt", "opt.pt", "rng_state.pth", "scaler.pt"],
            &["last/model.pt", "last/optimizer.pt"],
            &["latest_net_G_A.pth", "latest_net_D_A.pth", "latest_net_G_B.pth", "latest_net_D_B.pth"],
            &["netG_A2B.pth", "netG_B2A.pth", "netD_A.pth", "netD_B.pth"],
            &["actor.pt", "critic.pt", "critic_target.pt", "actor_optimizer.pt"],
            &["actor.pt", "qf1.pt", "qf2.pt", "qf1_target.pt", "critic_1.pt"],
            &["decoder.pt", "encoder.pt"],
            &["latest_model.pth", "latest_optim.pth"],
            &["model_rank0.pt", "model_rank1.pt", "optim_rank0.pt", "optim_rank1.pt"],
            &["last.pt", "last_optim.pt", "last_ema.pt"],
            &["encoder.h5", "decoder_A.h5", "decoder_B.h5"],
        ] {
            let memory = saved(save);
            let mut names = save.to_vec();
            names.sort_unstable();
            assert_eq!(newest(&memory), names);
            let of_models = |name: &&&str| !["opt", "rng", "scaler", "target", "ema"].iter().any(|w| name.contains(w));
            let model = save.iter().filter(of_models).min_by_key(|name| (name.len(), **name)).expect("one is a model");
            assert_eq!(complete_units(&memory), [((*model).to_owned(), None)]);
            // One of them is as old as can be, and another is being written.
            assert_eq!(newest(&memory.clone().at(save[0], 9_000_000_000_000)), names);
            let torn = memory.with(save[1], &whole_file(save[1])[..30]);
            assert_eq!(complete_units(&torn), [], "{save:?}");
        }
    }

    #[test]
    fn files_without_a_step_that_say_more_than_what_is_in_them_are_checkpoints_each() {
        for alone in [
            &["last.pt", "best.pt", "checkpoint_last.pt", "final.pt"][..],
            &["model.pt", "model_best.pt"],
            &["model.pt", "model_v3.pt", "model1.pt", "model2.pt"],
            &["model.pt", "model.ckpt"],
            &["a/model.pt", "b/optimizer.pt"],
            &["last.pt", "last_model.pt"],
            &["optimizer.pt", "train.pt"],
            &["model.pt", "optimizer_20.pt"],
            &["critic_1.pt", "critic_2.pt"],
        ] {
            assert_eq!(complete_units(&saved(alone)).len(), alone.len(), "{alone:?}");
        }
        let both = ["best_model.pt", "best_optim.pt", "last_model.pt", "last_optim.pt"];
        let memory = both.iter().zip([9, 9, 5, 5]).fold(saved(&both), |m, (name, at)| m.at(name, at * 1_000_000_000));
        let units: Vec<String> = complete_units(&memory).into_iter().map(|unit| unit.0).collect();
        assert_eq!(units, ["last_model.pt", "best_model.pt"], "the best is a copy, however young");
        let best = saved(&["model.pt", "optimizer.pt", "model_best.pt"]).at("model_best.pt", 9_000_000_000);
        assert_eq!(newest(&best), ["model.pt", "optimizer.pt"], "and so it is beside a save");
    }

    #[test]
    fn one_of_them_that_cannot_be_copied_makes_the_checkpoint_incomplete() {
        let memory = saved(&["D_1000.pth", "G_1000.pth", "D_900.pth"]);
        let lost = |e: &Entry| if e.path == "G_1000.pth" { Kind::Lost("it is lost") } else { e.kind.clone() };
        let entries = memory.listing().entries().iter().map(|e| Entry { kind: lost(e), ..e.clone() }).collect();
        let (listing, options) = (Listing::new(entries), Options::default());
        let scan = Scan { listing: &listing, peek: &memory, options: &options };
        let found = recognise(&scan).expect("they are recognised");
        assert_eq!(found.candidates[0].paths, ["D_1000.pth", "G_1000.pth"]);
        assert_eq!(complete(&found, &scan, &found.candidates[0]), Err("G_1000.pth: it is lost".into()));
        assert_eq!(complete(&found, &scan, &found.candidates[1]), Ok(()));
    }

    #[test]
    fn the_files_of_ranks_in_a_directory_each_are_one_checkpoint() {
        let names = ["mp_rank_00/loss=0.5-step=20.ckpt", "mp_rank_01/loss=0.5-step=20.ckpt"];
        let memory = saved(&names).with("mp_rank_00/loss=0.9-step=10.ckpt", zip_of(b"w", b""));
        assert_eq!(newest(&memory), names);
        assert_eq!(complete_units(&memory)[0], (names[0].into(), Some(20)));
        assert_eq!(complete_units(&saved(&["a/step=20.ckpt", "b/step=20.ckpt"])).len(), 2);
    }

    #[test]
    fn formats_that_nothing_can_be_looked_up_in_are_weights_too() {
        for step in [
            &["epoch_2.pdopt", "epoch_2.pdparams", "epoch_2.pdstates"][..],
            &["model-0002.params", "model-0002.states"],
            &["snap_iter_2000.caffemodel", "snap_iter_2000.solverstate"],
            &["opt_1000.eqx", "model_1000.eqx"],
            &["model_state_epoch_1.th", "training_state_epoch_1.th"],
            &["model_20.cbm", "state_20.pkl"],
            &["model_20.tar", "optim_20.tar"],
            &["model_20.joblib", "state_20.pkl.gz"],
            &["net_20", "opt_20"],
            &["disc_20.keras", "gen_20.keras"],
            &["actor_20.weights.h5", "critic_20.weights.h5"],
            &["a_20.ubj", "b_20.ubj"],
        ] {
            let memory = saved(step);
            assert_eq!((complete_units(&memory).len(), newest(&memory).len()), (1, step.len()), "{step:?}");
        }
    }

    #[test]
    fn what_another_library_wrote_in_the_same_save_belongs_to_it() {
        for (unit, other) in [
            ("model_200.safetensors", "optimizer_200.pt"),
            ("model_20.th", "optim_20.pt"),
            ("ckpt_20.pt", "model_20.th"),
            ("run/w-20.weights.h5", "run/opt-20.npz"),
            ("m_2.ubj", "state_2.pkl"),
            ("best/model.safetensors", "best/optimizer.pt"),
            ("pytorch_model-00001-of-00001.bin", "optimizer.pt"),
            ("last_model.safetensors", "last_optimizer.pt"),
            ("model.pt", "rng.pkl"),
        ] {
            let both = saved(&[unit, other]);
            assert_eq!(
                complete_units(&both).iter().map(|unit| &unit.0).collect::<Vec<_>>(),
                [unit],
                "a model goes first"
            );
            let mut paths = newest(&both);
            paths.sort();
            let mut names = [unit, other];
            names.sort_unstable();
            assert_eq!(paths, names);
            assert!(reason(&both.clone().with(other, ""), unit).contains(other), "{other}");
            assert_eq!(complete_units(&both.with(unit, "")), [], "{unit}");
        }
        for other in
            ["predictions_200.npz", "model_200.onnx", "model_100.safetensors", "a/model_200.npz", "ckpt_200.bin"]
        {
            let memory = saved(&["ckpt_200.pt"]).with(other, zip_of(b"w", b""));
            assert_eq!(newest(&memory), ["ckpt_200.pt"], "{other}");
        }
        assert_eq!(newest(&saved(&["last.pt"]).with("model.safetensors", "x")), ["last.pt"]);
        assert_eq!(newest(&saved(&["model.pt"]).with("model.safetensors", "x")), ["model.pt"]);
        let beside = saved(&["rng.pt", "optimizer.pt"]).with("model.safetensors", safetensors_of(b"w"));
        assert_eq!(newest(&beside), ["model.safetensors", "optimizer.pt", "rng.pt"]);
    }

    #[test]
    fn versions_other_directories_and_what_holds_no_weights_are_not_drawn_in() {
        let versions = saved(&["epoch3_acc63.pth", "epoch3_acc70.pth"]).at("epoch3_acc70.pth", 5_000_000_000);
        assert_eq!(newest(&versions), ["epoch3_acc70.pth"]);
        assert_eq!(complete_units(&versions).len(), 2);
        assert_eq!(complete_units(&saved(&["a/model_5.pt", "b/net_5.pt"])).len(), 2);
        assert_eq!(complete_units(&saved(&["epoch=1-step=5.ckpt", "epoch=1-step=5-v1.ckpt"])).len(), 2);
        let logged = saved(&["model_5.zip"]).with("metrics_5.json", "{\"loss\": 1");
        assert_eq!(complete_units(&logged), [("model_5.zip".into(), Some(5))]);
    }
}
