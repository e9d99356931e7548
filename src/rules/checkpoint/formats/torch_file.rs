//! Single files of `torch.save` and Lightning: `model_100.pt`, `checkpoint.pth.tar`, `epoch=3-step=1200.ckpt`, `last.ckpt`,
//! `hpc_ckpt_4.ckpt`.
//!
//! Lightning may move a file from another file system, which is a copy, so a partial one can be seen: the zip check
//! decides. A `last.ckpt` that is a symbolic link is a pointer. ESPnet goes on from `checkpoint.pth`, which each epoch saves
//! over, and wants the weights of epochs (`3epoch.pth`) that lie beside it.

use std::collections::BTreeSet;

use super::deeper::says_its_step;
use crate::rules::checkpoint::layout::{Layout, Makeup, Pointer};
use crate::rules::checkpoint::listing::{Entry, Kind, join, name_of, parent_of};
use crate::rules::checkpoint::memo::Memo;
use crate::rules::checkpoint::siblings::together;
use crate::rules::checkpoint::steps::{is_day, is_steps, number_after, step_in, step_in_stem};
use crate::rules::checkpoint::unit::{Candidate, Scan};
use crate::rules::checkpoint::{check, containers, order};

pub(super) const TORCH_FILE: Layout = Layout {
    pointers,
    makeup: Makeup::OneFile,
    ..Layout::of("torch", "files named *.pt, *.pth, *.pth.tar or *.ckpt", find, complete)
};

fn find(scan: &Scan) -> Vec<Candidate> {
    let is_file = |e: &&Entry| matches!(e.kind, Kind::File | Kind::Lost(_)) && check::is_torchs(e.name());
    let files = scan.listing.entries().iter().filter(is_file).filter(|f| !scan.is_aside(&f.path));
    let files: Vec<&Entry> = files.collect();
    let lightnings = files.iter().filter(|f| is_lightnings(f.name())).map(|f| parent_of(&f.path));
    let lightnings: BTreeSet<&str> = lightnings.collect();
    let runs =
        files.iter().filter(|f| is_runs(parent_of(&f.path)) && says_its_step(f.name())).map(|f| parent_of(&f.path));
    let runs: BTreeSet<&str> = runs.collect();
    let is_nested = |home: &str| !home.is_empty() && is_of_a_step(home) && !runs.contains(home);
    // Where there are directories of steps, a file in another directory is no checkpoint (`pretrained/vgg.pth`).
    let has_steps = files.iter().any(|f| is_steps(f.path.split('/').next().filter(|top| *top != f.path).unwrap_or("")));
    let is_beside = |home: &str| has_steps && scan.options.format.is_none() && !home.is_empty();
    let files = files.into_iter().filter(|f| {
        let home = parent_of(&f.path);
        lightnings.contains(home) || !is_nested(home) && !is_beside(home)
    });
    let (mut files, mut espnets): (Vec<&Entry>, Vec<Candidate>) = (files.collect(), Vec::new());
    if scan.options.step.is_none() {
        espnets = espnets_of(&files);
        // What else lies there is made of them (`valid.acc.ave_10best.pth`).
        files.retain(|f| !espnets.iter().any(|unit| parent_of(&unit.unit) == parent_of(&f.path)));
    }
    let units = files.into_iter().filter_map(|f| Some(Candidate::file(f, scan.step(&f.path, step(f.name()))?)));
    let (mut whole, parts): (Vec<_>, Vec<_>) = units.partition(|unit| is_lightnings(name_of(&unit.unit)));
    whole.extend(together(scan.listing, parts));
    whole.extend(espnets);
    whole
}

const ESPNETS: &str = "checkpoint.pth";

/// `N` from `Nepoch.pth`, as ESPnet calls the weights of an epoch.
fn epoch(path: &str) -> Option<u64> {
    number_after("", name_of(path).strip_suffix("epoch.pth")?)
}

/// Each `checkpoint.pth` that has weights of epochs beside it, with those.
fn espnets_of(files: &[&Entry]) -> Vec<Candidate> {
    let unit = |checkpoint: &&&Entry| {
        let home = parent_of(&checkpoint.path);
        let beside = files.iter().filter(|f| parent_of(&f.path) == home);
        let mut paths: Vec<String> = beside.filter(|f| epoch(&f.path).is_some()).map(|f| f.path.clone()).collect();
        let step = paths.iter().filter_map(|path| epoch(path)).max()?;
        paths.push(checkpoint.path.clone());
        paths.sort();
        Some(Candidate::of(checkpoint.path.clone(), Some(step), paths))
    };
    files.iter().filter(|f| f.name() == ESPNETS).filter_map(|f| unit(&f)).collect()
}

/// The weights of an epoch are written after what is gone on from.
fn espnets_in_order(scan: &Scan, candidate: &Candidate) -> Result<(), String> {
    let last = candidate.files(scan.listing).filter(|f| epoch(&f.path).is_some()).max_by_key(|f| epoch(&f.path));
    match (last, scan.listing.file(&candidate.unit)) {
        (Some(last), Some(state)) if state.name() == ESPNETS => order::written_before([state], last, 0),
        _ => Ok(()),
    }
}

/// `epoch=3-step=1200.ckpt`: as only Lightning writes them, each whole.
fn is_lightnings(name: &str) -> bool {
    name.ends_with(".ckpt") && (name.contains("step=") || name.contains("epoch="))
}

/// Files of a directory that carries a step are parts of that directory, not checkpoints of their own. Around a directory
/// `checkpoints` (`weights`, of Ultralytics'), digits are those of runs; in a day's name they are none.
fn is_of_a_step(home: &str) -> bool {
    let says_one = |part: &str| step_in_stem(part).is_some() || is_steps(part) || part.starts_with("rank");
    let carries_step = |part: &str| says_one(part) && !part.starts_with("version_") && !is_day(part);
    home.rsplit('/').take_while(|part| !["checkpoints", "weights"].contains(part)).any(carries_step)
}

/// Further down the digits of directories that say no step are those of a run (`output/vits-2/checkpoint_1000.pth`), where its
/// files say which step they are.
fn is_runs(home: &str) -> bool {
    home.contains('/') && !home.split('/').any(|part| is_steps(part) || part.starts_with("rank"))
}

fn step(name: &str) -> Option<u64> {
    // Lightning's `last` has no step in its name, and the number of an `hpc_ckpt` is a counter.
    // timm's `recovery-3-500` is of a batch of an epoch, and goes on from it until the next epoch is saved.
    let has_none = ["last", "hpc_ckpt_", "recovery-"].iter().any(|start| name.starts_with(start));
    if has_none { None } else { step_in(name) }
}

fn complete(scan: &Scan, candidate: &Candidate, _: &Memo) -> Result<(), String> {
    scan.listing.file(&candidate.unit).ok_or("it is gone")?;
    espnets_in_order(scan, candidate)?;
    let mut files = candidate.files(scan.listing).filter(|file| !candidate.is_note(file));
    files.try_for_each(|file| match check::is_torchs(file.name()) {
        true if file.path == candidate.unit => containers::torch(scan.peek, file),
        true => containers::torch(scan.peek, file).map_err(|why| format!("{}: {why}", file.path)),
        false => check::whole(scan.peek, file),
    })
}

/// Lightning's link to the newest, be that a file or a directory.
pub(super) fn pointers(scan: &Scan, candidate: &Candidate) -> Vec<Pointer> {
    let path = join(parent_of(&candidate.unit), "last.ckpt");
    let is_link = scan.listing.get(&path).is_some_and(|e| matches!(e.kind, Kind::Symlink(_)));
    let content = name_of(&candidate.unit).to_owned();
    if is_link { vec![Pointer { path, content, symlink: true }] } else { Vec::new() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rules::checkpoint::Options;
    use crate::rules::checkpoint::check::tests::zip_of;
    use crate::rules::checkpoint::listing::tests::Memory;
    use crate::rules::checkpoint::tests::{complete_units, newest, reason};

    #[test]
    fn what_espnet_goes_on_from_is_committed_with_the_weights_of_its_epochs() {
        let names = ["exp/1epoch.pth", "exp/checkpoint.pth", "exp/2epoch.pth"];
        let memory = Memory::in_turn(&names, 1).saved(&["exp/valid.acc.ave_10best.pth"]);
        let memory = memory.with("exp/latest.pth", "-> 2epoch.pth");
        assert_eq!(complete_units(&memory), [("exp/checkpoint.pth".into(), Some(2))]);
        let units = memory.scanned(&Options::default(), find);
        assert_eq!(units[0].paths, ["exp/1epoch.pth", "exp/2epoch.pth", "exp/checkpoint.pth"]);
        let memory = memory.at("exp/checkpoint.pth", 9_000_000_000);
        assert!(reason(&memory, "exp/checkpoint.pth").contains("saved over again and not finished"));
        let other = Memory::default().saved(&["checkpoint.pth"]);
        assert_eq!(complete_units(&other), [("checkpoint.pth".into(), None)]);
    }

    #[test]
    fn the_weights_beside_directories_of_steps_are_none_of_them() {
        let steps = ["pretrained/vgg.pth", "step-1/lit_model.pth", "step-2/lit_model.pth"];
        let units = complete_units(&Memory::default().saved(&steps));
        assert_eq!(units, [("step-2".into(), Some(2)), ("step-1".into(), Some(1))]);
        let runs = ["runs/detect/train2/weights/epoch10.pt", "runs/detect/train2/weights/last.pt"];
        assert_eq!(complete_units(&Memory::default().saved(&runs)).len(), 2);
    }

    #[test]
    fn it_goes_by_other_endings_too() {
        for (name, step) in [("checkpoint.pth.tar", None), ("model_5.pth.tar", Some(5)), ("MODEL_5.PT", Some(5))] {
            let whole = zip_of(b"a", b"");
            assert_eq!(complete_units(&Memory::default().with(name, &whole)), [(name.into(), step)]);
            assert_eq!(complete_units(&Memory::default().with(name, &whole[..40])), [], "{name}");
        }
    }

    #[test]
    fn the_digits_of_a_run_further_down_are_no_step_where_its_files_say_theirs() {
        for home in ["output/ljspeech-May-01-2024_12+00PM-abc1234", "logs/x/logs_s2", "results/resnet50", "runs/exp_1"]
        {
            for name in ["checkpoint_1000.pth", "model_1000.pt", "G_1000.pth", "epoch_1000.ckpt"] {
                let file = |name: &str| format!("{home}/{name}");
                let memory = Memory::in_turn(&[&file("best.pt"), &file("DUR_1000.pth"), &file(name)], 5);
                let newest = newest(&memory);
                assert_eq!((newest.step, newest.paths.len()), (Some(1000), 2), "{home}/{name}");
            }
            let alone = Memory::default().saved(&[&format!("{home}/model.pt")]);
            assert_eq!(complete_units(&alone), [], "{home} may be a step");
        }
        let step = Memory::default().saved(&["runs/exp_1/step_5/epoch_1000.ckpt"]);
        assert_eq!(newest(&step).unit, "runs/exp_1/step_5");
        for home in ["runs/5", "runs/rank0"] {
            assert_eq!(complete_units(&Memory::default().saved(&[&format!("{home}/epoch_1000.ckpt")])), [], "{home}");
        }
    }

    #[test]
    fn what_timm_can_recover_an_epoch_from_goes_by_its_time() {
        let names =
            ["checkpoint-1.pth.tar", "recovery-2-500.pth.tar", "checkpoint-2.pth.tar", "recovery-3-100.pth.tar"];
        for (saved, newest) in
            [(4, "recovery-3-100.pth.tar"), (3, "checkpoint-2.pth.tar"), (2, "recovery-2-500.pth.tar")]
        {
            assert_eq!(complete_units(&Memory::in_turn(&names[..saved], 5))[0].0, newest);
        }
    }

    #[test]
    fn the_highest_step_is_the_newest() {
        let memory = Memory::default().saved(&["epoch=1-step=900.ckpt", "epoch=1-step=1000.ckpt"]);
        assert_eq!(complete_units(&memory)[0], ("epoch=1-step=1000.ckpt".into(), Some(1000)));
    }

    #[test]
    fn a_file_without_a_step_makes_time_decide() {
        let memory = Memory::in_turn(&["epoch=1-step=1000.ckpt", "hpc_ckpt_7.ckpt", "last.ckpt"], 10);
        let units: Vec<String> = complete_units(&memory).into_iter().map(|u| u.0).collect();
        assert_eq!(units, ["last.ckpt", "hpc_ckpt_7.ckpt", "epoch=1-step=1000.ckpt"]);
    }

    #[test]
    fn a_copy_that_stopped_half_way_is_not_finished() {
        let whole = zip_of(b"a lot of weights", b"");
        let memory = Memory::default().with("model_10.pt", &whole).with("model_20.pt", &whole[..whole.len() - 1]);
        assert_eq!(complete_units(&memory), [("model_10.pt".into(), Some(10))]);
    }

    #[test]
    fn the_link_last_is_a_pointer_and_no_checkpoint() {
        let memory = Memory::of(&[("last.ckpt", "-> step=1.ckpt")]).with("step=2.ckpt", zip_of(b"a", b""));
        let pointer = Pointer { path: "last.ckpt".into(), content: "step=2.ckpt".into(), symlink: true };
        memory.scanned(&Options::default(), |scan| {
            let found = find(scan);
            assert_eq!((found.len(), pointers(scan, &found[0])), (1, vec![pointer]));
        });
    }

    #[test]
    fn digits_in_the_names_of_runs_and_days_make_no_step_of_them() {
        for home in ["proj/3k2j9x1z/checkpoints", "2024-01-02/12-30-00/checkpoints", "2024-01-02/12-30-00", "run_5"] {
            let unit = |step: u64| format!("{home}/epoch=0-step={step}.ckpt");
            let memory =
                Memory::default().with(&unit(100), zip_of(b"a", b"")).with(&unit(200), &zip_of(b"a", b"")[..40]);
            let memory = memory.with(&format!("{home}/last.ckpt"), "-> epoch=0-step=200.ckpt");
            assert_eq!(complete_units(&memory), [(unit(100), Some(100))], "{home}");
        }
        for home in ["3k2j9x1z/checkpoints", "2024-01-02/12-30-00"] {
            let file = format!("{home}/model_7.pt");
            assert_eq!(complete_units(&Memory::default().with(&file, zip_of(b"a", b""))), [(file, Some(7))]);
        }
    }

    #[test]
    fn the_files_of_one_step_are_no_checkpoints_of_their_own() {
        for home in ["step-100", "step-100/models", "100", "model_7b", "run_5", "rank_0"] {
            let memory = Memory::default().saved(&[&format!("{home}/model_0.pt")]);
            assert_eq!(memory.scanned(&Options::default(), find), [], "{home}");
        }
    }
}
