//! What is never a checkpoint, by its name: what is unfinished or hidden, and what lies beside checkpoints.

use super::listing::{name_of, parent_of};
use super::unit::{Scan, number_after};

impl Scan<'_> {
    /// Whether something is unfinished or hidden, by its own name or by that of what it lies in: `step-5.tmp`,
    /// `.trash/step-5`. Whoever asks for a format may have a run called `tmp`.
    pub fn is_aside(&self, path: &str) -> bool {
        let is_asked = self.options.format.is_some();
        let mut around = parent_of(path).split('/');
        is_temporary(path) || around.any(|part| part.starts_with('.') || !is_asked && is_temporary(part))
    }
}

/// Whether a name is of something unfinished or hidden, in any framework.
pub fn is_temporary(path: &str) -> bool {
    let name = name_of(path);
    name.starts_with(['.', '#'])
        || name.starts_with("tmp")
        || ["~", ".partial", ".bak", ".swp", ".download", ".crdownload"].iter().any(|end| name.ends_with(end))
        || [".tmp", "gstmp", ".incomplete", "tempstate", "-tmp", "_tmp"].iter().any(|w| name.contains(w))
        || is_copied(name)
        // No `chat_template`, no `partition`.
        || [".part", ".temp", "_temp"].iter().any(|w| {
            name.match_indices(w).any(|(at, _)| !name[at + w.len()..].starts_with(|c: char| c.is_ascii_alphabetic()))
        })
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
    let ending = name.rsplit_once('.').map_or("", |(_, ending)| ending);
    let is_a_dump = number_after("core.", name).is_some();
    name.starts_with("events.out.tfevents") || is_a_dump || ENDINGS.split(' ').any(|known| known == ending)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_ends_in_a_word_for_it_is_temporary_and_not_what_only_begins_like_one() {
        for name in [
            "a.tmp",
            "a.tmp12",
            "a.pt.part",
            "a.part3",
            "x_temp",
            "x_temp-1",
            ".a",
            "tmpab3",
            "a~",
            "a.tmpk3j",
            "#a#",
            "a.json_.gstmp",
            "a.crdownload",
            "a.bin.6eF5b5da",
        ] {
            assert!(is_temporary(name), "{name}");
        }
        for name in [
            "spatio_temporal_100.pt",
            "net.partition_3.pt",
            "chat_template_5.pt",
            "part-3.pt",
            "a.bin.20240630",
            "w-6eF5b5da.pt",
        ] {
            assert!(!is_temporary(name), "{name}");
        }
    }
}
