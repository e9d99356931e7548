//! DeepSpeed: the states of each rank. Rank 0 writes the pointer `latest` before the last barrier, so with several ranks the
//! pointer alone proves nothing. The states of each model rank and each optimizer shard must exist.

use std::collections::BTreeSet;

use crate::checkpoint::formats::units::{Case, Scan};
use crate::checkpoint::listing::{join, name_of};

/// At most this many bytes of the model's states are read. The head names each tensor, in some hundred bytes.
const HEAD: u64 = 4 << 20;
/// The maximum number of ranks. A larger number in a file is not used.
const MOST_RANKS: u64 = 1 << 20;

pub(in crate::checkpoint) fn is_state(name: &str) -> bool {
    name.ends_with("_optim_states.pt") || name.ends_with("_model_states.pt")
}

/// Checks that the unit has any states. [`whole`] checks which ones.
pub(in crate::checkpoint) fn any_states(case: &Case) -> Result<(), String> {
    if case.files().any(|(_, path)| is_state(name_of(path))) {
        return Ok(());
    }
    Err(format!("{} has no rank's states yet", case.unit().path))
}

/// Checks that the pointer `latest` within a unit names a sibling directory that holds states.
pub(in crate::checkpoint) fn named(scan: &Scan, home: &str) -> Result<(), String> {
    let path = join(home, "latest");
    let tag = scan.text(&path).unwrap_or_default();
    let is_there = !tag.trim().is_empty() && scan.listing.within(&join(home, tag.trim())).any(|e| is_state(e.name()));
    if is_there { Ok(()) } else { Err(format!("{path} names {:?}, which has no states", tag.trim())) }
}

/// Checks that every rank's states are in the directory. With ZeRO each data rank has a shard of the optimizer, and from stage
/// 3 on also a part of the model.
pub(in crate::checkpoint) fn whole(scan: &Scan, home: &str) -> Result<(), String> {
    // Whether it holds model states, its data rank if it is a shard or part, its model rank.
    let mut found: BTreeSet<(bool, Option<u64>, u64)> = BTreeSet::new();
    let mut data_ranks = None;
    for file in scan.listing.within(home).filter(|file| is_state(file.name())) {
        let is_model = file.name().ends_with("_model_states.pt");
        let Some((data, model)) = ranks(file.name()) else { continue };
        found.insert((is_model, data, model));
        if is_model && data_ranks.is_none() {
            let head = scan.peek.read(&file.path, 0, HEAD.min(file.size) as usize);
            data_ranks = head.and_then(|head| data_ranks_in(&head));
        }
    }
    let Some(last_model) = found.iter().map(|(_, _, model)| *model).max() else { return Ok(()) };
    let widest = found.iter().filter_map(|(_, data, _)| *data).max();
    let last_data = widest.map_or(0, |widest| data_ranks.unwrap_or(0).saturating_sub(1).max(widest).min(MOST_RANKS));
    for model in 0..=last_model {
        for data in 0..=last_data {
            let has = |is_model: bool, data: Option<u64>| found.contains(&(is_model, data, model));
            let what = match () {
                () if !has(true, None) && !has(true, Some(data)) => "model",
                () if widest.is_some() && !has(false, Some(data)) => "optimizer",
                () => continue,
            };
            let shard = widest.map_or(String::new(), |_| format!("zero_pp_rank_{data}_"));
            return Err(format!("{home} lacks the {what} states of {shard}mp_rank_{model:02}"));
        }
    }
    Ok(())
}

/// Data rank (only for a shard) and model rank: `mp_rank_00_model_states.pt`,
/// `bf16_zero_pp_rank_3_mp_rank_00_optim_states.pt`.
fn ranks(name: &str) -> Option<(Option<u64>, u64)> {
    let (before, rest) = name.split_once("mp_rank_")?;
    let model = rest.split('_').next()?.parse().ok()?;
    match before.split_once("zero_pp_rank_") {
        Some((_, data)) => Some((Some(data.trim_end_matches('_').parse().ok()?), model)),
        None => before.is_empty().then_some((None, model)),
    }
}

/// `dp_world_size` in the pickle at the head of the model's states: a string, its memo number, and an integer of one, two
/// or four bytes (Python's pickletools, protocol 2).
fn data_ranks_in(head: &[u8]) -> Option<u64> {
    let key = b"\x0d\0\0\0dp_world_size";
    let at = head.windows(key.len()).position(|window| window == key)?;
    let rest = match &head[at + key.len()..] {
        [b'q', _, rest @ ..] | [b'r', _, _, _, _, rest @ ..] => rest,
        rest => rest,
    };
    match *rest {
        [b'K', one, ..] => Some(u64::from(one)),
        [b'M', low, high, ..] => Some(u64::from(u16::from_le_bytes([low, high]))),
        [b'J', a, b, c, d, ..] => Some(u64::from(u32::from_le_bytes([a, b, c, d]))),
        _ => None,
    }
}
