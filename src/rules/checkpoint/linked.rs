//! Checkpoints that are symbolic links out of the checkpoint directory (`step-7 -> /scratch/step-7`): seen, so that it can
//! be said why they are not taken. A second name of what lies inside (`latest`), models and data are none.

use std::cmp::Reverse;
use std::collections::BTreeSet;

use super::aside::{is_bystander, is_copy};
use super::called::series_of;
use super::generic::says_word;
use super::listing::{Entry, Kind, parent_of};
use super::steps::{is_steps, step_in};
use super::sure::says_step;
use super::unit::{Candidate, Scan, end_of, taken};

/// Those called like what was found, or by a word for steps, the highest step first.
pub fn find(scan: &Scan, found: &[Candidate]) -> Vec<Candidate> {
    let mut links = leading_out(scan).peekable();
    if links.peek().is_none() {
        return Vec::new();
    }
    let taken = taken(found);
    let series: BTreeSet<String> = found.iter().filter(|c| c.step.is_some()).map(|c| series_of(&c.unit)).collect();
    let is_one = |link: &Candidate| {
        let is_deeper = link.unit.contains('/');
        let is_inside_one = parent_of(&link.unit).split('/').any(is_steps);
        let is_worded = || says_step(link) && !is_inside_one && (!is_deeper || says_word(&link.unit));
        link.step.is_some() && (series.contains(&series_of(&link.unit)) || is_worded())
    };
    let unit = |link: &Entry| Some(Candidate::file(link, scan.step(&link.path, step_in(link.name()))?));
    let links = links.filter(|link| !taken.contains(link.path.as_str())).filter_map(unit);
    let mut linked: Vec<Candidate> = links.filter(is_one).collect();
    linked.sort_by_key(|link| Reverse(link.step));
    linked
}

/// The links that lead out of the checkpoint directory and may be of checkpoints, where such are not followed.
pub fn leading_out<'a>(scan: &'a Scan) -> impl Iterator<Item = &'a Entry> {
    let is_aside = |link: &Entry| scan.is_aside(&link.path) || is_copy(&link.path) || is_bystander(link.name());
    let leads_out = move |e: &&Entry| matches!(&e.kind, Kind::Symlink(to) if !is_aside(e) && leaves(scan, &e.path, to));
    scan.listing.entries().iter().filter(|_| !scan.options.follow).filter(leads_out)
}

/// Where the checkpoint directory lies is not known here: a path that ends like one in it is taken to lead there.
fn leaves(scan: &Scan, path: &str, target: &str) -> bool {
    let is_there = |path: &str| scan.listing.get(path).is_some_and(|e| !matches!(e.kind, Kind::Symlink(_)));
    let mut ends = target.match_indices('/').map(|(at, _)| &target[at + 1..]);
    end_of(path, target).is_none() && !ends.any(is_there)
}

#[cfg(test)]
mod tests {
    use super::super::check::tests::zip_of;
    use super::super::listing::tests::Memory;
    use super::super::{Options, recognise};
    use super::*;

    /// The links that are found beside what is recognised, each with a reason why it is not complete.
    fn links(memory: &Memory) -> Vec<String> {
        memory.scanned(&Options::default(), |scan| {
            let found = recognise(scan).map(|found| found.candidates).unwrap_or_default();
            let named = |link: Candidate| {
                let why = scan.all_whole(&link).expect_err("it leads out");
                assert!(why.contains("leaves the checkpoint") && why.contains("--follow-symlinks"), "{why}");
                link.unit
            };
            find(scan, &found).into_iter().map(named).collect()
        })
    }

    fn saved(names: &[&str]) -> Memory {
        names.iter().fold(Memory::default(), |memory, name| match name.split_once(" -> ") {
            Some((name, target)) => memory.with(name, format!("-> {target}")),
            None => memory.with(name, zip_of(b"w", b"")),
        })
    }

    #[test]
    fn a_checkpoint_that_is_a_link_out_of_the_directory_is_found_and_said_to_be_incomplete() {
        for (names, found) in [
            (&["step-1/w.pt", "step-7 -> /scratch/step-7", "step-8 -> ../step-8"][..], &["step-8", "step-7"][..]),
            (&["model_3.pt", "model_9.pt -> ../real/model_9.pt"], &["model_9.pt"]),
            (&["step-7 -> /scratch/step-7", "step-8 -> /scratch/step-8"], &["step-8", "step-7"]),
            (&["epoch=0-step=5.ckpt -> /scratch/a.ckpt", "epoch=1-step=9.ckpt"], &["epoch=0-step=5.ckpt"]),
            (&["run/step-7 -> /scratch/step-7"], &["run/step-7"]),
            (&["10/w.pt", "20 -> /scratch/20"], &["20"]),
            (&["last.pt", "step-7 -> /scratch/step-7"], &["step-7"]),
        ] {
            assert_eq!(links(&saved(names)), found, "{names:?}");
        }
    }

    #[test]
    fn a_pointer_a_second_name_a_model_and_data_are_no_such_checkpoints() {
        let others = [
            "latest -> step-7",
            "latest -> /scratch/step-9",
            "step-9 -> step-7",
            "step-9 -> /checkpoints/step-7",
            "run/step-9 -> ../../checkpoints/step-7",
            "step-7/tokens_9 -> /scratch/tokens_9",
            "data -> /data/step-9",
            "resnet50.pth -> /models/resnet50.pth",
            "train/9 -> /data/train/9",
            "venv/lib/python3.11/site-packages/step-9 -> /usr/lib/step-9",
            ".cache/step-9 -> /scratch/step-9",
            "wandb/step-9 -> /scratch/step-9",
            "tmp-step-9 -> /scratch/step-9",
            "step-9.log -> /scratch/step-9.log",
            "2024-01-02 -> /scratch/2024-01-02",
        ];
        for other in others {
            assert_eq!(links(&saved(&["step-7/w.pt", other])), [""; 0], "{other}");
            assert!(other.contains("step-7") || links(&saved(&[other])).is_empty(), "{other}");
        }
    }
}
