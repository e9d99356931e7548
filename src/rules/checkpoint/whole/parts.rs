//! Which files a checkpoint must have, whatever its layout: as many as their own names count, those of the step before, those of
//! each rank, and those that an index names.

use std::cell::LazyCell;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::LazyLock;

use serde::Deserialize;

use super::check::is_weights;
use crate::rules::checkpoint::ascii::Pattern;
use crate::rules::checkpoint::called::series_of;
use crate::rules::checkpoint::deepspeed::Files;
use crate::rules::checkpoint::listing::{Entry, Kind, join, parent_of};
use crate::rules::checkpoint::siblings;
use crate::rules::checkpoint::unit::{Candidate, Scan};

/// What is made of a checkpoint some time after it was saved, or only of some of them.
const LATER: [&str; 7] = ["best", "eval", "metric", "pred", "result", "sample", "embed"];
/// What directories of several formats hold beside weights.
const RECORDS: [&str; 3] = [".metadata", "metadata.json", "_METADATA"];

/// Longer indexes of weights are not read.
const INDEX_LIMIT: u64 = 100 << 20;
/// Of a name that has its step in it over and over, no more are compared.
const MOST_LIKES: usize = 16;

/// One of so many files, as `model-00001-of-00003.safetensors` or `model_200_shard_0_of_2.pt` say.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
pub(in super::super) struct Counted<'a> {
    pub(in super::super) before: &'a str,
    after: &'a str,
    all: u64,
    pub(super) number: u64,
}

/// What a name counts; steps, and what each rank numbers for itself, do not.
pub(in super::super) fn counted(name: &str) -> Option<Counted<'_>> {
    static COUNTED: LazyLock<[Pattern; 2]> = LazyLock::new(|| {
        [
            r"^(.*?)(?:(?i-u:shard|part)[=_-]?([0-9]+)|(0[0-9]{4}))[_-]of[_-]([0-9]+)([^0-9].*|)$",
            r"(?i-u:rank|step|epoch|iter|iteration|batch)[=_-]?$|shard-[0-9]+-",
        ]
        .map(Pattern::new)
    });
    let found = COUNTED[0].groups(name)?;
    let number = if found[2].is_empty() { found[3] } else { found[2] };
    let (number, all) = (number.parse().ok()?, found[4].parse().ok()?);
    let counted = Counted { before: found[1], after: found[5], all, number };
    (!COUNTED[1].is_match(counted.before) && number <= all).then_some(counted)
}

/// Each file whose name says of how many it is one has all the others beside it, unless an index says which there are.
pub(in super::super) fn all_counted(scan: &Scan, candidate: &Candidate) -> Result<(), String> {
    let mut sets: BTreeMap<_, BTreeSet<u64>> = BTreeMap::new();
    for file in candidate.files(scan.listing).filter(|f| is_weights(f.name()) && !candidate.is_note(f)) {
        let Some(Counted { before, after, all, number }) = counted(file.name()) else { continue };
        let home = parent_of(&file.path);
        let index = format!("{}{after}.index.json", before.trim_end_matches(['-', '_']));
        if scan.listing.file(&join(home, &index)).is_none() {
            sets.entry((file.path.trim_end_matches(file.name()), before, after, all)).or_default().insert(number);
        }
    }
    for ((home, before, after, all), there) in sets {
        let first = u64::from(!there.contains(&0));
        if let Some(gap) = (first..first + all).find(|number| !there.contains(number)) {
            return Err(format!("number {gap} of {all} is missing of {home}{before}*{after}"));
        }
    }
    Ok(())
}

/// Nothing is missing that the step before has, and each other step beside it too: what is still being written, or was
/// cut off, looks so. A trainer that leaves something out for good shows it by the next step without. `only_ranks`: the
/// trainer is free to leave out what it likes, but for the files of its ranks.
pub(in super::super) fn as_before<'a>(
    scan: &'a Scan,
    candidate: &Candidate,
    all: &'a [Candidate],
    only_ranks: bool,
) -> Result<(), String> {
    let is_directory = |c: &Candidate| !c.is_file(scan.listing);
    let (inside, home) = (is_directory(candidate), siblings::without_ranks(parent_of(&candidate.unit)));
    // Directories that are called by days follow each other by their times.
    let series = Some(series_of(&candidate.unit)).filter(|_| candidate.step.is_none());
    let count = |c: &Candidate| match &series {
        None => c.step,
        Some(series) if inside && c.step.is_none() && series_of(&c.unit) == *series => {
            u64::try_from(c.newest_ns(scan.listing)).ok()
        }
        Some(_) => None,
    };
    let Some(step) = count(candidate) else { return Ok(()) };
    let is_alike =
        |other: &Candidate| is_directory(other) == inside && siblings::without_ranks(parent_of(&other.unit)) == home;
    let nearer = |nearest: Option<u64>, other: &Candidate| {
        count(other).filter(|at| *at < step && Some(*at) > nearest && is_alike(other)).or(nearest)
    };
    let Some(before) = all.iter().fold(None, nearer) else { return Ok(()) };
    // There may be several of one step.
    let of = |step: u64| all.iter().filter(|o| count(o) == Some(step) && is_alike(o)).collect::<Vec<_>>();
    let saved = |step: u64, units: Vec<&'a Candidate>| {
        let files = units.into_iter().flat_map(|o| {
            let within = move |path: &'a str| path.strip_prefix(o.unit.as_str())?.strip_prefix('/');
            // What lies elsewhere is called by its whole path.
            let name = move |f: &'a Entry| within(&f.path).filter(|_| inside).unwrap_or(&f.path);
            // What each save writes over is of one of them only.
            o.entries(scan.listing).filter(matters).filter(|f| !o.is_fixed(&f.path)).map(name)
        });
        Saved { names: files.filter(|name| !only_ranks || siblings::is_of_a_rank(name)).collect(), step }
    };
    let (ours, theirs) = (saved(step, of(step)), saved(before, of(before)));
    let mut lacking = ours.lacks(&theirs);
    // What has something of its own is another kind of checkpoint.
    if lacking.is_empty() || !theirs.lacks(&ours).is_empty() {
        return Ok(());
    }
    let counted = LazyCell::new(|| Files::of(scan, &candidate.unit));
    lacking.retain(|name| counts(scan, name) && !counted.count(name));
    let mut others: BTreeMap<u64, Vec<&Candidate>> = BTreeMap::new();
    for (other, at) in all.iter().filter_map(|o| Some((o, count(o)?))) {
        if !lacking.is_empty() && at != step && at != before && is_alike(other) {
            others.entry(at).or_default().push(other);
        }
    }
    for (step, units) in others {
        if lacking.is_empty() {
            break;
        }
        lacking = &lacking - &saved(step, units).lacks(&theirs);
    }
    match lacking.first() {
        None => Ok(()),
        Some(name) => {
            let before = if series.is_none() { format!("step {before}") } else { "the one before".to_owned() };
            Err(format!(
                "nothing in it is like {name} of {before}: still being written, or left out from now on if the next one lacks it, too"
            ))
        }
    }
}

/// What was saved of one step.
struct Saved<'a> {
    names: BTreeSet<&'a str>,
    step: u64,
}

impl<'a> Saved<'a> {
    /// What is here neither under the name that it has there nor under one with the other step in it.
    fn lacks(&self, there: &Saved<'a>) -> BTreeSet<&'a str> {
        let others = self.names.difference(&there.names);
        let others: BTreeSet<String> = others.flat_map(|name| likes(name, self.step)).collect();
        let lacking = there.names.difference(&self.names);
        lacking.copied().filter(|name| likes(name, there.step).iter().all(|like| !others.contains(like))).collect()
    }
}

/// The name with its step left out, wherever that may be: in `w2v_2.model` of step 2 one of them is no step. A rank is
/// none.
fn likes(name: &str, step: u64) -> Vec<String> {
    let (ranks, is_digit) = (siblings::ranks(name), |c: char| c.is_ascii_digit());
    let (mut likes, mut at) = (vec![String::new()], 0);
    while let Some(digits) = name[at..].find(is_digit) {
        let from = at + digits;
        let to = name[from..].find(|c| !is_digit(c)).map_or(name.len(), |digits| from + digits);
        let is_step = name[from..to].parse() == Ok(step) && !ranks.iter().any(|rank| rank.contains(&from));
        let (before, number) = (&name[at..from], &name[from..to]);
        let shown: &[&str] = match is_step {
            true if likes.len() < MOST_LIKES => &["#", number],
            true => &["#"],
            false => &[number],
        };
        likes = likes.iter().flat_map(|like| shown.iter().map(move |shown| format!("{like}{before}{shown}"))).collect();
        at = to;
    }
    likes.iter_mut().for_each(|like| like.push_str(&name[at..]));
    likes
}

fn matters(entry: &&Entry) -> bool {
    let name = entry.name();
    entry.kind != Kind::Directory
        && (RECORDS.contains(&name) || is_weights(name) && !name.ends_with(".json") && counted(name).is_none())
}

/// Whether a name says that it is made of a checkpoint, and is none.
pub(in super::super) fn is_made_later(name: &str) -> bool {
    LATER.iter().any(|word| name.contains(word))
}

/// Whether this may not be missing. Ranks that are known not to be there save nothing.
fn counts(scan: &Scan, name: &str) -> bool {
    let world = scan.options.world_size.map_or(u64::MAX, u64::from);
    let stem = name.rsplit_once('.').map_or(name, |(stem, _)| stem);
    let mut numbers = stem.split(|c: char| !c.is_ascii_digit()).filter_map(|digits| digits.parse::<u64>().ok());
    !is_made_later(name) && numbers.all(|number| number < world)
}

impl Scan<'_> {
    /// Whether everybody who writes has written: so many ranks' files are there, numbered from 0. Where rank 0 saves for
    /// all, its alone.
    pub fn everybody(&self, written_ns: i64, ranks: &BTreeSet<u64>) -> Result<(), String> {
        if ranks.len() == 1 && ranks.contains(&0) {
            return Ok(());
        }
        let lacking = self.lacking(written_ns, ranks.len());
        lacking.map_or(Ok(()), |world| Err(format!("the files of {} of {world} ranks are there", ranks.len())))
    }

    /// How many there are to be, where that is known and so many are fewer; what lies there of a larger run counts for
    /// nothing. Before this run, another with another number of processes may have `written` it.
    pub fn lacking(&self, written_ns: i64, found: usize) -> Option<u32> {
        let is_ours = written_ns >= self.options.begun_ns;
        self.options.world_size.filter(|world| is_ours && found < *world as usize)
    }

    /// That a rank's file is missing, and what to do where it may lie on another node's disk. A directory that all share may
    /// still be waiting for it, so that nothing proves a node's share to be whole.
    pub fn lacks_rank(&self, why: String) -> String {
        if !self.options.has_other_nodes {
            return why;
        }
        format!(
            "{why} (a directory that one node has to itself holds its own ranks' files only, and that is never complete: save to one that all nodes share, or write a file last into each node's part and name it with --marker)"
        )
    }

    /// Nobody is deleting the unit, which goes file by file in any order: none is missing that the next newer or the newest
    /// one of `saved` has, which are in order. Names with digits come and go with ranks and shards and do not count, nor those that do not `matter`.
    pub fn nothing_lost(
        &self,
        candidate: &Candidate,
        saved: &[Candidate],
        matter: impl Fn(&Entry) -> bool,
    ) -> Result<(), String> {
        let lasts =
            |e: &&Entry| e.kind == Kind::File && matter(e) && !e.name().bytes().any(|byte| byte.is_ascii_digit());
        let newer = &saved[saved.partition_point(|other| other.step <= candidate.step)..];
        for newer in newer.first().into_iter().chain(newer.last()) {
            let names = self.listing.below(&newer.unit).iter().filter(lasts).map(|e| &e.path[newer.unit.len() + 1..]);
            for name in names {
                if self.listing.get(&join(&candidate.unit, name)).is_none() {
                    return Err(format!("{name} is missing, which {} has", newer.unit));
                }
            }
        }
        Ok(())
    }

    /// Hugging Face's libraries name the parts of a model in an index `*.index.json`: each is there.
    pub(in super::super) fn indexed_files_there(&self, candidate: &Candidate) -> Result<(), String> {
        #[derive(Deserialize)]
        struct Index {
            weight_map: BTreeMap<String, String>,
        }
        for index in candidate.files(self.listing).filter(|f| f.name().ends_with(".index.json") && f.size < INDEX_LIMIT)
        {
            let text = self.peek.read(&index.path, 0, index.size as usize).ok_or("an index cannot be read")?;
            let index_of_ours = serde_json::from_slice::<Index>(&text);
            // What has no such map is another's, and no index of weights.
            let files: BTreeSet<String> =
                index_of_ours.map_or(BTreeSet::new(), |i| i.weight_map.into_values().collect());
            let missing = files.iter().find(|f| self.listing.file(&join(parent_of(&index.path), f)).is_none());
            if let Some(missing) = missing {
                return Err(format!("{missing} is missing, which {} names", index.name()));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use crate::rules::checkpoint::listing::tests::Memory;
    use crate::rules::checkpoint::tests::{complete_units, reason, recognised};
    use crate::rules::checkpoint::{Options, is_as_before};

    fn saved(names: &[&str]) -> Memory {
        let memory = Memory::default().saved(names);
        if names.contains(&"dlrover_latest.txt") { memory.with("dlrover_latest.txt", "2") } else { memory }
    }

    fn whole(memory: &Memory) -> Vec<String> {
        complete_units(memory).into_iter().map(|unit| unit.0).collect()
    }

    #[test]
    fn a_name_that_says_of_how_many_it_is_one_wants_the_others() {
        for (there, other) in [
            ("step-200/model-00001-of-00002.safetensors", "step-200/model-00002-of-00002.safetensors"),
            ("step-200/model_00001_of_00002.pt", "step-200/model_00000_of_00002.pt"),
            ("step-200/a/model_shard_0_of_2.pt", "step-200/a/model_shard_1_of_2.pt"),
        ] {
            assert!(reason(&saved(&[there]), "step-200").contains("of 2 is missing"), "{there}");
            assert_eq!(whole(&saved(&[there, other])), ["step-200"], "{there}");
        }
        for alone in [
            "step-200/epoch_3_of_10.pt",
            "step-200/step_00500_of_01000.pt",
            "step-200/rank-00001-of-00002.pt",
            "step-200/shard-00000-model-00002-of-00002.safetensors",
        ] {
            assert_eq!(whole(&saved(&[alone])), ["step-200"], "{alone}");
        }
    }

    #[test]
    fn a_part_that_the_step_before_has_is_still_being_written_until_another_step_lacks_it_too() {
        let of = |step: u64, parts: &[&str]| {
            let names: Vec<String> = parts.iter().map(|part| format!("checkpoint_{step}/{part}")).collect();
            names
        };
        let all = |steps: &[&[&str]]| {
            let names: Vec<String> = (1..).zip(steps).flat_map(|(step, parts)| of(step, parts)).collect();
            saved(&names.iter().map(String::as_str).collect::<Vec<_>>())
        };
        let (whole_one, torn) = (
            ["model.safetensors", "optimizer.bin", "random_states_0.pkl"],
            ["model.safetensors", "random_states_0.pkl"],
        );
        assert_eq!(whole(&all(&[&whole_one, &torn])), ["checkpoint_1"]);
        assert!(
            reason(&all(&[&whole_one, &torn]), "checkpoint_2")
                .contains("like optimizer.bin of step 1: still being written")
        );
        assert_eq!(whole(&all(&[&whole_one, &torn, &torn])).len(), 3, "it is left out for good");
    }

    #[test]
    fn a_number_in_the_name_that_happens_to_be_the_step_does_not_hide_what_is_missing() {
        let of = |step: u64| ["", ".syn1neg.npy", ".wv.vectors.npy"].map(|end| format!("w2v_{step}.model{end}"));
        let sure = |names: &[&str]| {
            recognised(&Memory::in_turn(names, 5), &Options::default(), |found, scan| {
                let (before, newest) = (found.candidates[1].step, &found.candidates[0]);
                assert!(before < newest.step, "{names:?}");
                is_as_before(found, scan, newest)
            })
        };
        for (step, next) in [(1, 2), (2, 3), (3, 4)] {
            let names = [of(step), of(next)].concat();
            let names: Vec<&str> = names.iter().map(String::as_str).collect();
            assert_eq!((sure(&names[..4]), sure(&names)), (false, true), "{names:?}");
        }
    }

    #[test]
    fn directories_that_are_called_by_days_follow_each_other_by_their_times() {
        for name in ["checkpoint_2026-04-11_22-0#-58.250113", "save/CKPT+2024-05-01+12-0#-00+00", "ckpt_2024_06_0#"] {
            let of = |files: &[(u64, &str)]| {
                let name = |(day, file): &(u64, &str)| format!("{}/{file}", name.replace('#', &day.to_string()));
                let names: Vec<String> = files.iter().map(name).collect();
                Memory::in_turn(&names.iter().map(String::as_str).collect::<Vec<_>>(), 5)
            };
            let one = [(1, "model.pt"), (1, "optimizer.pt")];
            let sure = |memory: &Memory| {
                recognised(memory, &Options::default(), |found, scan| {
                    assert_eq!(found.candidates[0].step, None, "{name}");
                    is_as_before(found, scan, &found.candidates[0])
                })
            };
            assert!(!sure(&of(&[&one[..], &[(2, "model.pt")]].concat())), "{name}");
            assert!(sure(&of(&[&one[..], &[(2, "model.pt"), (2, "optimizer.pt")]].concat())), "{name}");
            assert!(sure(&of(&[&one[..], &[(2, "model.pt"), (3, "model.pt")]].concat())), "it is left out now: {name}");
        }
    }

    #[test]
    fn a_trainer_of_ones_own_may_leave_out_what_it_likes() {
        for names in [
            &["G_1.pth", "D_1.pth", "G_2.pth"][..],
            &["step-1/model.pt", "step-1/optim.pt", "step-2/model.pt"],
            &["epoch_1.pth", "best_epoch_1.pth", "epoch_2.pth"],
            &["net_1_rank0.pt", "net_1_rank1.pt", "model_2_rank0.pt"],
            &["a/step_1_rank0.pt", "a/step_1_rank1.pt", "step_2_rank0.pt"],
            &["step-1/model.pt", "step-1/best_rank1.pt", "step-2/model.pt"],
            &["a/step-1/model.pt", "a/step-1/optim.pt", "step-2/model.pt"],
            &["dlrover_latest.txt", "optim_1.pt", "model_1.pt", "model_2.pt"],
        ] {
            let last = names[names.len() - 1];
            let newest = last.split('/').next().expect("a name has a part");
            assert_eq!(whole(&saved(names))[0], newest, "{names:?}");
        }
    }

    #[test]
    fn a_rank_that_the_step_before_has_is_still_writing_until_another_step_lacks_it_too() {
        for [rank, other] in [
            ["ckpt_#_rank0.pt", "ckpt_#_rank1.pt"],
            ["ckpt-#/rank_0.pth", "ckpt-#/rank_1.pth"],
            ["global_step_#/actor/model_world_size_2_rank_0.pt", "global_step_#/actor/model_world_size_2_rank_1.pt"],
            ["mp_rank_00/step=#.ckpt", "mp_rank_01/step=#.ckpt"],
        ] {
            let of = |steps: &[(u64, &[&str])]| {
                let files = steps.iter().flat_map(|(step, parts)| parts.iter().map(move |part| (step, part)));
                let names: Vec<String> = files.map(|(step, part)| part.replace('#', &step.to_string())).collect();
                saved(&names.iter().map(String::as_str).collect::<Vec<_>>())
            };
            let (both, unit) = ([rank, other], |step: &str| {
                let unit = rank.replace('#', step);
                unit.strip_suffix(rank.split_once("#/").map_or("", |(_, inside)| inside))
                    .unwrap_or(&unit)
                    .trim_end_matches('/')
                    .to_owned()
            });
            assert_eq!(whole(&of(&[(0, &both), (1, &both)])), [unit("1"), unit("0")], "{rank}");
            let torn = of(&[(0, &both), (1, &[rank])]);
            assert_eq!(whole(&torn), [unit("0")], "{rank}");
            assert!(reason(&torn, &unit("1")).contains("still being written"), "{rank}");
            let fewer = of(&[(0, &both), (1, &[rank]), (2, &[rank])]);
            assert_eq!(whole(&fewer), [unit("2"), unit("1"), unit("0")], "there are fewer ranks now: {rank}");
            assert_eq!(whole(&of(&[(0, &[rank]), (1, &both)])), [unit("1"), unit("0")], "there are more now: {rank}");
        }
    }

    #[test]
    fn a_link_in_a_checkpoint_that_leads_to_nothing_makes_it_incomplete() {
        let linked =
            |to: &str| saved(&["step-1/blobs/w.safetensors"]).with("step-1/model.safetensors", format!("-> {to}"));
        assert!(reason(&linked("blobs/gone"), "step-1").contains("what this link leads to, blobs/gone, is not there"));
        assert_eq!(whole(&linked("blobs/w.safetensors")), ["step-1"]);
        let through = linked("now/w.safetensors").with("step-1/now", "-> blobs");
        assert_eq!(whole(&through), ["step-1"], "what lies behind another link is not known");
    }
}
