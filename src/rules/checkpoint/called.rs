//! What a name says of a checkpoint besides its step: that it is the last, the best, or was saved in haste.

use super::listing::{name_of, parent_of};

/// `model_best.pth.tar`, `best/model.pt`
pub(super) fn is_best(path: &str) -> bool {
    is_called(path, &["best"])
}

/// What is saved over and over: `last.pt`, `model_latest.pt`, `checkpoint.pth.tar`.
pub(super) fn is_last(path: &str) -> bool {
    ["checkpoint", "ckpt"].iter().any(|word| name_of(path).starts_with(word)) || is_called(path, &["last", "latest"])
}

/// Whether a name says that its trainer was about to be stopped.
pub(super) fn is_hasty(path: &str) -> bool {
    let name = name_of(path).to_ascii_lowercase();
    ["preempt", "emergency", "interrupt", "sigterm"].iter().any(|word| name.contains(word))
}

/// Whether a name, of a file or a directory, says that checkpoints are in it.
pub(super) fn is_kept(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    ["ckpt", "checkpoint", "snapshot"].iter().any(|word| name.contains(word))
}

/// The path without its numbers, which those of one series have in common.
pub(super) fn series_of(path: &str) -> String {
    path.chars().filter(|c| !c.is_ascii_digit()).collect()
}

/// Whether one of the words is in the name, or is the name of the directory around.
fn is_called(path: &str, names: &[&str]) -> bool {
    let mut words = name_of(path).split(|c: char| !c.is_ascii_alphanumeric());
    words.any(|word| names.contains(&word)) || names.contains(&name_of(parent_of(path)))
}
