//! DeepSpeed: directories `global_stepN` (or any tag) and the pointer `latest`, which holds the newest tag.
//!
//! Rank 0 writes `latest` before the last barrier, so with several ranks the pointer alone proves nothing: the files of
//! all ranks are counted. What Hugging Face's `checkpoint-N` and Accelerate's (tag `pytorch_model`) hold of such
//! directories is those layouts', which have it looked into here. Lightning's checkpoints are directories `epoch=E-step=S.ckpt`, each with a pointer of its own and a tag `checkpoint`.

use std::collections::{BTreeMap, BTreeSet};

use super::generic::with_rest;
use super::torch_file;
use crate::rules::checkpoint::layout::{Layout, Makeup, Pointer};
use crate::rules::checkpoint::listing::{Entry, Kind, join, name_of, parent_of};
use crate::rules::checkpoint::memo::Memo;
use crate::rules::checkpoint::pointing;
use crate::rules::checkpoint::steps::{number_after, step_in, step_in_stem};
use crate::rules::checkpoint::unit::{Candidate, Scan};

const POINTER: &str = "latest";
/// The head of the model's states is read up to here: it names each tensor, in some hundred bytes.
const MODEL_LIMIT: usize = 4 << 20;

pub(super) const DEEPSPEED: Layout = Layout {
    pointers,
    makeup: Makeup::SameAgain,
    cut_off,
    ..Layout::of(
        "deepspeed",
        "directories with files named *_optim_states.pt or mp_rank_*_model_states.pt",
        find,
        complete,
    )
};

fn find(scan: &Scan) -> Vec<Candidate> {
    let is_others = |path: &str| path.split('/').any(|part| number_after("checkpoint-", part).is_some());
    let may_be = |d: &&Entry| is_tag(scan, d) && !is_others(&d.path) && !is_accelerates(d.name());
    let tags: Vec<&Entry> = scan.listing.directories().filter(may_be).collect();
    // One directory with states makes those that are only called so, beside it, unfinished ones.
    let homes: BTreeSet<&str> = tags.iter().filter(|d| holds_states(scan, d)).map(|d| parent_of(&d.path)).collect();
    let is_asked = scan.options.format.is_some();
    let units = tags.into_iter().filter(|d| is_asked || homes.contains(parent_of(&d.path)));
    let unit = |path: &str| {
        let path = if is_lightnings(path) { parent_of(path) } else { path };
        Some(Candidate::directory(scan.listing, path, scan.step(path, step_in(name_of(path)))?))
    };
    with_rest(scan, units.filter_map(|d| unit(&d.path)).collect(), POINTER)
}

/// Whether states are in the directory, or its name is one that DeepSpeed gives.
pub(super) fn is_tag(scan: &Scan, directory: &Entry) -> bool {
    number_after("global_step", directory.name()).is_some() || holds_states(scan, directory)
}

fn holds_states(scan: &Scan, directory: &Entry) -> bool {
    let is_state = |name: &str| name.ends_with("_optim_states.pt") || name.ends_with("_model_states.pt");
    scan.listing.within(&directory.path).any(|e| is_state(e.name()))
}

/// Whether the tag is one that Accelerate gives: the first model's, or a later one's.
pub(super) fn is_accelerates(tag: &str) -> bool {
    tag == "pytorch_model" || number_after("pytorch_model_", tag).is_some()
}

/// What lies of ours in another library's checkpoint is whole: the pointer names a tag, and each has every rank's states.
pub(super) fn tags_whole(scan: &Scan, home: &str) -> Result<(), String> {
    let directories = scan.listing.within(home).filter(|e| e.kind == Kind::Directory);
    let tags: Vec<&Entry> = directories.filter(|d| is_tag(scan, d)).collect();
    let gives = |tag: &str| is_accelerates(tag) || number_after("global_step", tag).is_some();
    let (path, named) = match pointed_to(scan, home) {
        // There is nothing of ours, and a file of this name is another's.
        Ok((_, named)) if tags.is_empty() && !gives(&named) => return Ok(()),
        Err(_) if tags.is_empty() => return Ok(()),
        pointer => pointer?,
    };
    if !tags.iter().any(|tag| tag.name() == named) {
        return Err(format!("the pointer {path} names {named:?}, of which no states are there"));
    }
    tags.iter().try_for_each(|tag| states_whole(scan, &tag.path))
}

/// The pointer in this directory, and the tag that it holds.
fn pointed_to(scan: &Scan, home: &str) -> Result<(String, String), String> {
    let path = join(home, POINTER);
    let named = scan.text(&path).ok_or_else(|| format!("the pointer {path} is not there yet"))?;
    Ok((path, named.trim().to_owned()))
}

/// Whether the directory is the one tag of a checkpoint of its own.
fn is_lightnings(tag: &str) -> bool {
    name_of(tag) == "checkpoint" && parent_of(tag).ends_with(".ckpt")
}

fn complete(scan: &Scan, candidate: &Candidate, _: &Memo) -> Result<(), String> {
    let inside = join(&candidate.unit, "checkpoint");
    let is_inside = is_lightnings(&inside) && scan.listing.get(&inside).is_some();
    let tag = if is_inside { &inside } else { &candidate.unit };
    // What saves without `latest` (MMEngine does) may have a pointer of its own.
    if scan.listing.get(&join(parent_of(tag), POINTER)).is_some() || !pointing::is_named(scan, candidate) {
        let (path, named) = pointed_to(scan, parent_of(tag))?;
        // An older tag was named once; a higher number proves it.
        let is_past = match step_in_stem(&named) {
            None if named.is_empty() => {
                let tags = scan.listing.within(parent_of(tag)).filter(|e| e.kind == Kind::Directory && is_tag(scan, e));
                pointing::was_named(scan, candidate, tags.filter_map(|d| Some((d, step_in_stem(d.name())?))))
            }
            newest => newest.zip(candidate.step).is_some_and(|(newest, ours)| newest > ours),
        };
        if named != name_of(tag) && !is_past {
            return Err(format!("the pointer {path} names {named:?}"));
        }
    }
    all_there(scan, candidate)
}

/// Every rank's states are there, and none is cut short.
fn all_there(scan: &Scan, candidate: &Candidate) -> Result<(), String> {
    states_whole(scan, &candidate.unit)?;
    scan.all_whole(candidate)
}

/// `latest` is written while other ranks still save: their states of a save before, below the same tag, would be taken for
/// this one's. One that is only not named is no such thing: `save_latest=False` never names any.
fn cut_off(scan: &Scan, candidate: &Candidate) -> Option<String> {
    all_there(scan, candidate).err()
}

/// Every rank's states are in the directory.
fn states_whole(scan: &Scan, directory: &str) -> Result<(), String> {
    let files = Files::of(scan, directory);
    files.match_up().map_err(|why| scan.lacks_rank(why))?;
    let count = files.shards.values().map(BTreeSet::len).sum::<usize>();
    match scan.lacking(scan.listing.newest_ns(directory), count) {
        Some(world) if count > 0 => Err(format!("{count} of {world} optimizer states are there")),
        _ => Ok(()),
    }
}

/// Whose states are there.
#[derive(Default)]
pub(in super::super) struct Files {
    /// Model ranks of `mp_rank_M_model_states.pt`.
    models: BTreeSet<u64>,
    /// Data and model ranks of `zero_pp_rank_D_mp_rank_M_model_states.pt` (ZeRO stage 3).
    parts: BTreeSet<(u64, u64)>,
    /// Data ranks, for each model rank, of `[bf16_]zero_pp_rank_D_mp_rank_M_optim_states.pt` (stages 1 to 3).
    shards: BTreeMap<u64, BTreeSet<u64>>,
    /// The number of data ranks, where the model's states say it.
    data_ranks: Option<u64>,
}

impl Files {
    pub(in super::super) fn of(scan: &Scan, directory: &str) -> Files {
        let mut files = Files::default();
        for file in scan.listing.below(directory).iter().filter(|e| e.kind == Kind::File) {
            let name = file.name();
            let is_model = name.ends_with("_model_states.pt");
            match ranks_of(name) {
                Some((None, model)) if is_model => drop(files.models.insert(model)),
                Some((Some(data), model)) if is_model => drop(files.parts.insert((data, model))),
                Some((Some(data), model)) if name.ends_with("_optim_states.pt") => {
                    files.shards.entry(model).or_default().insert(data);
                }
                _ => continue,
            }
            if is_model && files.data_ranks.is_none() {
                let head = scan.peek.read(&file.path, 0, MODEL_LIMIT);
                files.data_ranks = head.and_then(|head| data_ranks(&head));
            }
        }
        files
    }

    /// Whether these states are counted: a rank of the model is there, and it is known how many ranks share its data.
    pub(in super::super) fn count(&self, name: &str) -> bool {
        let rank = ranks_of(name_of(name)).filter(|_| name.ends_with("_states.pt"));
        rank.is_some_and(|(data, model)| {
            let is_there = self.models.contains(&model) || self.shards.contains_key(&model);
            is_there && (data.is_none() || self.data_ranks.is_some())
        })
    }

    /// Every rank has its states of the model and, unless nobody has any, of the optimizer.
    fn match_up(&self) -> Result<(), String> {
        gapless(&self.models, "mp_rank").map_err(|gap| format!("the model states of {gap} are missing"))?;
        let lacks = |model: &&u64| !self.shards.is_empty() && !self.shards.contains_key(model);
        if let Some(model) = self.models.iter().find(lacks) {
            return Err(format!("the optimizer states of zero_pp_rank_0_mp_rank_{model:02} are missing"));
        }
        let widest = self.shards.values().filter_map(|s| s.last().copied()).max().unwrap_or(0);
        let last = self.data_ranks.map_or(widest, |ranks| ranks.saturating_sub(1).max(widest));
        for (model, data) in &self.shards {
            if let Some(gap) = (0..=last).find(|rank| !data.contains(rank)) {
                return Err(format!("the optimizer states of zero_pp_rank_{gap}_mp_rank_{model:02} are missing"));
            }
            let lacks = |rank: &&u64| !self.models.contains(model) && !self.parts.contains(&(**rank, *model));
            if let Some(rank) = data.iter().find(lacks) {
                return Err(format!("the model states of zero_pp_rank_{rank}_mp_rank_{model:02} are missing"));
            }
        }
        if let Some((data, model)) =
            self.parts.iter().find(|(data, m)| !self.shards.get(m).is_some_and(|s| s.contains(data)))
        {
            return Err(format!("the optimizer states of zero_pp_rank_{data}_mp_rank_{model:02} are missing"));
        }
        if self.models.is_empty() && self.shards.is_empty() {
            Err("no rank's states are in it".to_owned())
        } else {
            Ok(())
        }
    }
}

/// Data rank (where it is a shard) and model rank: `mp_rank_00_model_states.pt`,
/// `bf16_zero_pp_rank_3_mp_rank_00_optim_states.pt`.
pub(super) fn ranks_of(name: &str) -> Option<(Option<u64>, u64)> {
    let (before, rest) = name.split_once("mp_rank_")?;
    let model = rest.split('_').next()?.parse().ok()?;
    match before.split_once("zero_pp_rank_") {
        Some((_, data)) => Some((Some(data.trim_end_matches('_').parse().ok()?), model)),
        None => before.is_empty().then_some((None, model)),
    }
}

/// `dp_world_size` in the pickle at the head of the model's states: a string, its number among the pickle's memos, and an
/// integer of one, two or four bytes (Python's pickletools, protocol 2).
fn data_ranks(head: &[u8]) -> Option<u64> {
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

/// Errors: the first number missing below the highest.
pub(super) fn gapless(numbers: &BTreeSet<u64>, what: &str) -> Result<(), String> {
    let top = numbers.last().copied().unwrap_or(0);
    match (0..=top).find(|n| !numbers.is_empty() && !numbers.contains(n)) {
        Some(gap) => Err(format!("{what} {gap}")),
        None => Ok(()),
    }
}

fn pointers(scan: &Scan, candidate: &Candidate) -> Vec<Pointer> {
    if candidate.unit.ends_with(".ckpt") {
        return torch_file::pointers(scan, candidate);
    }
    Pointer::file(scan, candidate, POINTER, name_of(&candidate.unit).to_owned()).into_iter().collect()
}

#[cfg(test)]
mod tests {
    use crate::rules::checkpoint::check::tests::zip_of;
    use crate::rules::checkpoint::listing::tests::Memory;
    use crate::rules::checkpoint::tests::{complete_units, complete_units_with, reason};
    use crate::rules::checkpoint::unit::Options;

    fn saved(tags: &[u64]) -> Memory {
        let mut memory = Memory::of(&[("latest", "global_step20")]);
        for tag in tags {
            memory = memory.with(&format!("global_step{tag}/mp_rank_00_model_states.pt"), zip_of(b"m", b""));
            for rank in 0..2 {
                let name = format!("global_step{tag}/bf16_zero_pp_rank_{rank}_mp_rank_00_optim_states.pt");
                memory = memory.with(&name, zip_of(b"o", b""));
            }
        }
        memory
    }

    #[test]
    fn the_pointers_tag_and_those_before_it_are_finished() {
        let units = complete_units(&saved(&[10, 20, 30]));
        assert_eq!(units, [("global_step20".into(), Some(20)), ("global_step10".into(), Some(10))]);
        assert!(reason(&saved(&[30]), "global_step30").contains("names"));
    }

    #[test]
    fn an_empty_pointer_named_the_tags_before_the_one_that_was_written_last() {
        let emptied = |last: u64| {
            let name = format!("global_step{last}/mp_rank_00_model_states.pt");
            saved(&[10, 20, 30]).with("latest", "").at(&name, 5)
        };
        assert_eq!(
            complete_units(&emptied(30)),
            [("global_step20".into(), Some(20)), ("global_step10".into(), Some(10))]
        );
        let why = reason(&emptied(30), "global_step30");
        assert!(why.contains("names \"\""), "{why}");
        assert_eq!(complete_units(&emptied(20)), [("global_step10".into(), Some(10))], "30 is of a life before");
        let copied = saved(&[10, 20, 30]).with("latest", "");
        assert_eq!(complete_units(&copied), [], "nothing says which was the last");
    }

    #[test]
    fn anybodys_directories_may_be_called_so() {
        let whole = zip_of(b"w", b"");
        let memory = Memory::default().with("global_step10/model.pt", &whole).with("latest", "global_step10");
        assert_eq!(complete_units(&memory), [("global_step10".into(), Some(10))]);
        let begun = saved(&[20]).with("global_step30/", "");
        assert!(reason(&begun, "global_step30").contains("the pointer latest names"));
    }

    #[test]
    fn a_missing_ranks_file_is_named() {
        let memory = saved(&[20]).without("global_step20/bf16_zero_pp_rank_0_mp_rank_00_optim_states.pt");
        assert!(reason(&memory, "global_step20").contains("zero_pp_rank_0_mp_rank_00"));
        let options = Options { world_size: Some(4), ..Options::default() };
        assert_eq!(complete_units_with(&saved(&[20]), &options), []);
    }

    #[test]
    fn without_the_pointer_nothing_is_finished() {
        assert_eq!(complete_units(&saved(&[20]).without("latest")), []);
    }

    #[test]
    fn a_pointer_of_what_saves_without_ours_stands_for_it() {
        let pointed = |to: &str| saved(&[10, 20]).without("latest").with("last_checkpoint", to);
        assert_eq!(complete_units(&pointed("/out/global_step20")).len(), 2);
        assert_eq!(complete_units(&pointed("/out/global_step10")), [("global_step10".into(), Some(10))]);
        assert_eq!(complete_units(&pointed("other")), []);
        assert_eq!(complete_units(&pointed("global_step20").with("latest", "global_step10")).len(), 1);
    }

    #[test]
    fn the_models_states_say_how_many_ranks_there_are() {
        let model = |ranks: &[u8]| zip_of(&[b"X\x0d\0\0\0dp_world_sizeq\x04".as_slice(), ranks].concat(), b"");
        let of = |ranks: &[u8]| saved(&[20]).with("global_step20/mp_rank_00_model_states.pt", model(ranks));
        assert_eq!(complete_units(&of(b"K\x02X")).len(), 1);
        for ranks in [b"K\x03X".as_slice(), b"M\x03\x01X", b"J\xff\xff\xff\xffX"] {
            assert!(reason(&of(ranks), "global_step20").contains("zero_pp_rank_2_mp_rank_00"), "{ranks:?}");
        }
        assert_eq!(complete_units(&of(b"?")).len(), 1, "of another version");
    }

    #[test]
    fn where_nothing_says_how_many_ranks_there_are_the_step_before_does() {
        let optim = "global_step20/bf16_zero_pp_rank_1_mp_rank_00_optim_states.pt";
        let torn = saved(&[10, 20]).without(optim);
        assert!(reason(&torn, "global_step20").contains("zero_pp_rank_1_mp_rank_00_optim_states.pt of step 10"));
        let next = torn.with("global_step30/mp_rank_00_model_states.pt", zip_of(b"m", b""));
        let next = next.with("global_step30/bf16_zero_pp_rank_0_mp_rank_00_optim_states.pt", zip_of(b"o", b""));
        let next = next.with("latest", "global_step30");
        assert_eq!(complete_units(&next).len(), 3, "there are fewer ranks now");
        let said = zip_of(b"X\x0d\0\0\0dp_world_sizeq\x04K\x01X", b"");
        let told = saved(&[10, 20]).without(optim).with("global_step20/mp_rank_00_model_states.pt", said);
        assert_eq!(complete_units(&told).len(), 2, "and it is said");
        let of_two = ["mp_rank_01_model_states.pt", "bf16_zero_pp_rank_0_mp_rank_01_optim_states.pt"];
        let of_two = of_two.iter().fold(saved(&[10, 20]).without(optim), |memory, name| {
            memory.with(&format!("global_step10/{name}"), zip_of(b"m", b""))
        });
        assert!(reason(&of_two, "global_step20").contains("still being written"));
    }

    #[test]
    fn each_ranks_optimizer_has_a_model_and_the_other_way_round() {
        let model = "global_step20/mp_rank_00_model_states.pt";
        assert!(reason(&saved(&[20]).without(model), "global_step20").contains("the model states of zero_pp_rank_0"));
        let stage_3 = |ranks: &[u64]| {
            ranks.iter().fold(saved(&[20]).without(model), |memory, rank| {
                let part = format!("global_step20/zero_pp_rank_{rank}_mp_rank_00_model_states.pt");
                memory.with(&part, zip_of(b"m", b""))
            })
        };
        assert_eq!(complete_units(&stage_3(&[0, 1])).len(), 1);
        assert!(reason(&stage_3(&[0]), "global_step20").contains("the model states of zero_pp_rank_1"));
        assert!(reason(&stage_3(&[0, 1, 2]), "global_step20").contains("the optimizer states of zero_pp_rank_2"));
        let of_two = saved(&[20]).with("global_step20/mp_rank_01_model_states.pt", zip_of(b"m", b""));
        assert!(reason(&of_two, "global_step20").contains("the optimizer states of zero_pp_rank_0_mp_rank_01"));
        let stage_0 = Memory::of(&[("latest", "global_step20")]).with(model, zip_of(b"m", b""));
        assert_eq!(complete_units(&stage_0).len(), 1);
    }

    #[test]
    fn each_expert_that_the_step_before_has_is_there() {
        let experts = ["layer_0_expert_1_mp_rank_00_model_states.pt", "expp_rank_1_mp_rank_00_optim_states.pt"];
        let file = |tag: u64, name: &str| format!("global_step{tag}/{name}");
        let of =
            |memory: Memory, tag| experts.iter().fold(memory, |m, name| m.with(&file(tag, name), zip_of(b"e", b"")));
        let whole = of(of(saved(&[10, 20]), 10), 20);
        assert_eq!(complete_units(&whole).len(), 2);
        for name in experts {
            let why = reason(&whole.clone().without(&file(20, name)), "global_step20");
            assert!(why.contains(name), "{why}");
        }
    }

    #[test]
    fn a_checkpoint_of_lightnings_is_its_whole_directory_with_the_link_to_it() {
        let unit = "epoch=0-step=10.ckpt";
        let memory = Memory::of(&[("last.ckpt", "-> epoch=0-step=5.ckpt")])
            .with(&format!("{unit}/checkpoint/mp_rank_00_model_states.pt"), zip_of(b"m", b""))
            .with(&format!("{unit}/zero_to_fp32.py"), "x");
        assert!(reason(&memory, unit).contains("the pointer epoch=0-step=10.ckpt/latest is not there"));
        let memory = memory.with(&format!("{unit}/latest"), "checkpoint");
        assert_eq!(complete_units(&memory), [(unit.into(), Some(10))]);
        memory.scanned(&Options::default(), |scan| {
            let found = super::find(scan);
            assert!(found[0].paths.contains(&format!("{unit}/latest")));
            let link = super::Pointer { path: "last.ckpt".into(), content: unit.into(), symlink: true };
            assert_eq!(super::pointers(scan, &found[0]), [link]);
        });
    }
}
