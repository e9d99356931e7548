//! The rest: everything that belongs to no root. Which of its files never delay a commit, and which saves
//! `--keep-saves` keeps.

use std::collections::{BTreeSet, HashMap};

use super::ends::json;
use crate::checkpoint::history::History;
use crate::checkpoint::listing::{Entry, Peek, extension_of};

/// Extensions of text files, which are committed without waiting for them to settle.
const TEXTS: &[&str] = &["txt", "csv", "tsv", "jsonl", "md", "yaml", "yml", "out"];
/// A longer pause between the times of two files separates two saves that were found at the start.
const SAVE_GAP_NS: i64 = 1_000_000_000;

pub(in crate::checkpoint) fn is_text_name(name: &str) -> bool {
    TEXTS.contains(&extension_of(name).to_ascii_lowercase().as_str())
}

/// Whether the file is a text, which never delays a part. JSON counts as a text if it has one value on each line.
pub(in crate::checkpoint) fn is_text(peek: &dyn Peek, file: &Entry) -> bool {
    let is_json = || extension_of(file.name()).eq_ignore_ascii_case("json");
    is_text_name(file.name()) || is_json() && json::has_lines(peek, file)
}

/// The path with every number replaced by `#`.
pub(in crate::checkpoint) fn series(path: &str) -> String {
    with_numbers(path, |_| true)
}

/// The path with the chosen numbers replaced by `#`.
pub(in crate::checkpoint) fn with_numbers(path: &str, is_chosen: impl Fn(&str) -> bool) -> String {
    let mut text = String::with_capacity(path.len());
    let mut left = path;
    while let Some(from) = left.find(|c: char| c.is_ascii_digit()) {
        let digits = &left[from..];
        let digits = &digits[..digits.find(|c: char| !c.is_ascii_digit()).unwrap_or(digits.len())];
        text.push_str(&left[..from]);
        text.push_str(if is_chosen(digits) { "#" } else { digits });
        left = &left[from + digits.len()..];
    }
    text + left
}

/// The files of the rest without those of older saves, by `--keep-saves`.
pub(in crate::checkpoint) fn kept<'a>(
    keep_saves: Option<u32>,
    history: &History,
    rest: &[&'a Entry],
) -> Vec<&'a Entry> {
    let Some(count) = keep_saves.filter(|count| *count > 0) else { return rest.to_vec() };
    let saves = saves(history, rest);
    let save_of = |entry: &Entry| saves[entry.path.as_str()];
    let mut groups: HashMap<String, BTreeSet<(u64, u64)>> = HashMap::new();
    for entry in rest {
        groups.entry(series(&entry.path)).or_default().insert(save_of(entry));
    }
    let is_kept = |entry: &&Entry| {
        groups[&series(&entry.path)].iter().rev().take(count as usize).any(|save| *save == save_of(entry))
    };
    rest.iter().copied().filter(is_kept).collect()
}

/// The save of each file: (number of commits, number by the times of files before the first commit).
fn saves<'a>(history: &History, rest: &[&'a Entry]) -> HashMap<&'a str, (u64, u64)> {
    let mut sorted = rest.to_vec();
    sorted.sort_by_key(|entry| entry.mtime_ns);
    let (mut number, mut before) = (0, i64::MAX);
    let save_of = |entry: &'a Entry| {
        let save = history.seen(entry).map_or(0, |seen| seen.save);
        if save == 0 {
            number += u64::from(entry.mtime_ns.saturating_sub(before) > SAVE_GAP_NS);
            before = entry.mtime_ns;
        }
        (entry.path.as_str(), (save, if save == 0 { number } else { 0 }))
    };
    sorted.into_iter().map(save_of).collect()
}
