//! What is never a checkpoint, by its name: what is unfinished or hidden, and what lies beside checkpoints.

use std::sync::LazyLock;

use super::ascii::Pattern;
use super::listing::{Entry, Listing, extension_of, join, name_of, parent_of};
use super::steps::{number_after, step_in_stem};
use super::unit::{Candidate, Scan};

impl Scan<'_> {
    /// Whether something is unfinished or hidden, by its own name or by that of what it lies in: `step-5.tmp`,
    /// `.trash/step-5`. Whoever asks for a format may have a run called `tmp`.
    pub fn is_aside(&self, path: &str) -> bool {
        let is_asked = self.options.format.is_some();
        let mut around = parent_of(path).split('/');
        let is_hidden =
            around.any(|part| part.starts_with('.') || !is_asked && is_temporary(part) || is_installed(part));
        is_temporary(path) || is_moved(name_of(path)) || is_hidden
    }
}

/// Whether a directory is where Python keeps its libraries, with path files that are called as torch's are (`.pth`).
fn is_installed(part: &str) -> bool {
    ["site-packages", "dist-packages"].contains(&part)
}

/// Whether a directory is of no checkpoint, whatever lies in it and whoever asks for a format: TensorFlow and Keras have every
/// worker save, and those that are not the chief into `workertemp_N`, which they delete; DLRover notes in `N.done`, beside `N`,
/// which ranks are through. A `step-5.done` with no `step-5` beside it may be a checkpoint that was renamed when it was.
pub(super) fn is_nobodys(listing: &Listing, directory: &Entry) -> bool {
    let has_it_beside =
        |name: &str| step_in_stem(name).is_some() && listing.get(&join(parent_of(&directory.path), name)).is_some();
    number_after("workertemp_", directory.name()).is_some()
        || directory.name().strip_suffix(".done").is_some_and(has_it_beside)
}

/// Whether a name is of something unfinished or hidden, in any framework.
pub fn is_temporary(path: &str) -> bool {
    let name = name_of(path);
    name.starts_with(['.', '#'])
        || name.starts_with("tmp")
        || ["~", ".partial", ".bak", ".bkp", ".swp", ".download", ".crdownload"].iter().any(|end| name.ends_with(end))
        || [".tmp", "gstmp", ".incomplete", "tempstate", "-tmp", "_tmp"].iter().any(|w| name.contains(w))
        || is_copied(name)
        // No `chat_template`, no `partition`.
        || [".part", ".temp", "_temp"].iter().any(|w| {
            name.match_indices(w).any(|(at, _)| !name[at + w.len()..].starts_with(|c: char| c.is_ascii_alphabetic()))
        })
}

/// Whether a checkpoint's own name says that it is not finished, on its way out, or a copy: `step-5.saving`, `old-step-5`.
/// Runs and models have such words in their names (`story-writing`), so that a number must be near.
pub(super) fn is_moved(name: &str) -> bool {
    static MOVED: LazyLock<Pattern> = LazyLock::new(|| {
        let words = "partial|writing|saving|in-?progress|wip|unfinished|trash|deleted";
        let before = "(?:old|temp)[_.-](?:global_?)?(?:step|epoch|iter|checkpoint|ckpt)";
        Pattern::new(&format!(r"(?i-u:^{before}|^copy of | \(copy\)|\.(?:{words}|new|old)$|[0-9][_-](?:{words})$)"))
    });
    MOVED.is_match(name)
}

/// Nothing beside the unit says that it is not finished: `X-unfinished`, as NeMo has it.
pub(super) fn unmarked(scan: &Scan, candidate: &Candidate) -> Result<(), String> {
    let unit = candidate.unit.strip_suffix(".ckpt").unwrap_or(&candidate.unit);
    match scan.listing.get(&format!("{unit}-unfinished")) {
        Some(marker) => Err(format!("{} is there", marker.path)),
        None => Ok(()),
    }
}

/// Whether this lies in a directory of copies: of what a logger keeps, or a framework is about to delete.
pub(super) fn is_copy(path: &str) -> bool {
    parent_of(path).split('/').any(|part| ["wandb", "mlruns", "todelete", "trash"].contains(&part))
}

/// `model_6.bin.6eF5b5da`: as the cloud's tools call what they are fetching.
fn is_copied(name: &str) -> bool {
    let Some((before, end)) = name.rsplit_once('.') else { return false };
    let is_random = end.len() == 8 && end.bytes().all(|b| b.is_ascii_hexdigit());
    is_random && before.contains('.') && !end.bytes().all(|b| b.is_ascii_digit())
}

/// Whether a file lies beside checkpoints, so that its numbers are no steps.
pub fn is_bystander(name: &str) -> bool {
    const ENDINGS: &str =
        "log out err lock pid py md yaml yml csv tsv jsonl png jpg jpeg gif svg mp4 pdf html sh toml sha256 md5";
    // A log that was rotated: `train.log.3`.
    let rotated = name.rsplit_once('.').filter(|(_, end)| end.bytes().all(|b| b.is_ascii_digit()));
    let ending = extension_of(rotated.map_or(name, |(before, _)| before));
    let is_a_dump = number_after("core.", name).is_some();
    name.starts_with("events.out.tfevents") || is_a_dump || ENDINGS.split(' ').any(|known| known == ending)
}

#[cfg(test)]
mod tests {
    use super::super::Options;
    use super::super::check::tests::{hdf5_of, zip_of};
    use super::super::listing::tests::Memory;
    use super::super::tests::{complete_units, complete_units_with, newest, reason};
    use super::*;

    #[test]
    fn what_ends_in_a_word_for_it_is_temporary_and_not_what_only_begins_like_one() {
        let temporary = "a.tmp a.tmp12 a.pt.part a.part3 x_temp x_temp-1 .a tmpab3 a~ a.tmpk3j #a# a.json_.gstmp a.crdownload \
                         a.bin.6eF5b5da";
        assert_eq!(temporary.split(' ').find(|name| !is_temporary(name)), None);
        let others =
            "spatio_temporal_100.pt net.partition_3.pt chat_template_5.pt part-3.pt a.bin.20240630 w-6eF5b5da.pt";
        assert_eq!(others.split(' ').find(|name| is_temporary(name)), None);
    }

    #[test]
    fn what_workers_other_than_the_chief_must_save_is_no_checkpoint_in_any_format() {
        let files = |home: &str| {
            [
                ("model_7.pt", zip_of(b"w", b"")),
                ("w-7.weights.h5", hdf5_of(0, b"w", 0)),
                ("step-7/w.bin", b"x".to_vec()),
            ]
            .map(|(name, content)| Memory::default().with(&format!("{home}{name}"), content))
        };
        assert!(files("").iter().all(|memory| complete_units(memory).len() == 1));
        for (format, at) in [("torch", 0), ("keras", 1), ("generic", 2)] {
            let asked = Options { format: Some(format.into()), ..Options::default() };
            for home in ["workertemp_1/", "run/workertemp_12/"] {
                let memory = &files(home)[at];
                assert_eq!(complete_units(memory), [], "{home} {format}");
                assert_eq!(complete_units_with(memory, &asked), [], "{home} {format}");
            }
        }
        let model = Memory::of(&[("workertemp_3/a", "x"), ("step-5/workertemp_1/w", "x"), ("step-5/w", "x")]);
        assert_eq!(complete_units(&model), [("step-5".into(), Some(5))]);
        assert_eq!(newest(&model).paths, ["step-5/w"]);
        assert_eq!(complete_units(&files("workertemp_old/")[0]).len(), 1, "anybody's");
    }

    #[test]
    fn what_notes_which_ranks_are_through_is_none_and_what_may_be_a_checkpoint_under_its_last_name_is_one() {
        let units = |files: &[&str]| {
            let memory = files.iter().fold(Memory::default(), |memory, path| memory.with(path, "x"));
            complete_units(&memory).into_iter().map(|unit| unit.0).collect::<Vec<String>>()
        };
        assert_eq!(units(&["20/w.bin", "20.done/0", "20.done/1"]), ["20"]);
        assert_eq!(units(&["run/step-5/w.bin", "run/step-5.done/w.bin"]), ["run/step-5"]);
        assert_eq!(units(&["step-5.done/w.bin"]), ["step-5.done"]);
        assert_eq!(units(&["step-5.done/w.bin", "step-6/w.bin"]), ["step-6", "step-5.done"]);
    }

    #[test]
    fn what_python_installed_is_none() {
        let path = "venv/lib/python3.11/site-packages/distutils-precedence.pth";
        assert_eq!(complete_units(&Memory::of(&[(path, "import os"), ("step-5/w.bin", "x")])).len(), 1);
        assert_eq!(complete_units(&Memory::of(&[(path, "import os")])), []);
    }

    #[test]
    fn a_checkpoint_that_is_moved_aside_is_told_from_a_run_or_a_model_called_so() {
        let moved = "step-7-unfinished step-7-partial step-7_deleted step-7.old ckpt_7.bin.new step-7.wip step-7.saving \
                     step-7.Writing step-7-in-progress step-7.trash old-step-7 temp_step-7";
        assert!(moved.split(' ').chain(["Copy of step-7", "step-7 (copy)"]).all(is_moved));
        let kept = "story-writing weight_saving-7 model_2_new.pt threshold-7 old-english template_7 new_run gpt2-old temp_0.7_step_7";
        assert!(!kept.split(' ').any(is_moved));
    }

    #[test]
    fn what_a_marker_beside_it_calls_unfinished_is_not_finished() {
        let memory = Memory::of(&[("a-step=5/w", "x"), ("a-step=7/w", "x"), ("a-step=7-unfinished", "")]);
        assert_eq!(complete_units(&memory), [("a-step=5".into(), Some(5))]);
        assert!(reason(&memory, "a-step=7").contains("a-step=7-unfinished is there"));
        let file = Memory::default().with("a-step=7.ckpt", zip_of(b"w", b""));
        assert_eq!(complete_units(&file).len(), 1);
        assert_eq!(complete_units(&file.with("a-step=7-unfinished", "")), []);
    }

    #[test]
    fn a_rotated_log_is_a_log_and_a_numbered_checkpoint_none() {
        assert!(["train.log.3", "train.log", "a.out.12"].into_iter().all(is_bystander));
        assert!(!["checkpoint.30", "model.ckpt.3", "step.400"].into_iter().any(is_bystander));
    }
}
