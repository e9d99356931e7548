//! Checkpoints of several files side by side, each with the step in its name: `G_1000.pth` and `D_1000.pth`, a model and its
//! replay buffer. They are one unit, called by the shortest of their names.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::LazyLock;

use regex::Regex;

use super::check::is_weights;
use super::listing::{Listing, name_of, parent_of};
use super::unit::Candidate;

/// Makes one of those units of a file each that belong to the same step, or are the shards of one without.
pub(super) fn together(listing: &Listing, units: Vec<Candidate>) -> Vec<Candidate> {
    // What lies beside the weights may be cut short for ever, as a JSON file that is a log.
    let is_part =
        |unit: &Candidate| listing.file(&unit.unit).is_some_and(|f| is_weights(f.name()) && !is_json(f.name()));
    let (parts, mut all): (Vec<_>, Vec<_>) = units.into_iter().partition(is_part);
    let mut steps: BTreeMap<_, Vec<Candidate>> = BTreeMap::new();
    for part in parts {
        let name = name_of(&part.unit);
        let own = if part.step.is_none() { SHARD.replace_all(name, "") } else { "".into() };
        steps.entry((parent_of(&part.unit).to_owned(), part.step, own.into_owned())).or_default().push(part);
    }
    for mut files in steps.into_values() {
        files.sort_by_key(|file| std::cmp::Reverse(file.newest_ns(listing)));
        // Of the same kind they are versions (`epoch3_acc63.pth`, `epoch3_acc70.pth`), and only the newest belongs to it.
        let mut kinds = BTreeSet::new();
        let (mut newest, versions): (Vec<_>, Vec<_>) =
            files.into_iter().partition(|file| kinds.insert(kind(name_of(&file.unit))));
        all.extend(versions);
        newest.sort_by(|a, b| (a.unit.len(), &a.unit).cmp(&(b.unit.len(), &b.unit)));
        let mut paths: Vec<String> = newest.iter().flat_map(|file| file.paths.clone()).collect();
        paths.sort();
        all.extend(newest.into_iter().next().map(|first| Candidate { paths, ..first }));
    }
    all
}

fn is_json(name: &str) -> bool {
    name.ends_with(".json")
}

/// What numbers the files of one save, not its versions: `rank0`, `tp_1`, `shard_0_of_2`, `00001-of-00002`.
#[expect(clippy::unwrap_used, reason = "a constant expression, compiled by every test")]
static SHARD: LazyLock<Regex> = LazyLock::new(|| {
    let words = "(?i-u:rank|shard)|(?:^|[^a-zA-Z])(?i-u:tp|pp|dp|mp|part|node)";
    let of = "[_-](?i-u:of)[_-]";
    Regex::new(&format!("(?:{words})[=_-]*[0-9]+(?:{of}[0-9]+)?|0[0-9]{{4}}{of}0[0-9]{{4}}")).unwrap()
});

/// The name without its numbers, but for a rank's or a shard's.
fn kind(name: &str) -> String {
    let shards: Vec<_> = SHARD.find_iter(name).map(|found| found.range()).collect();
    let stays = |(at, c): &(usize, char)| !c.is_ascii_digit() || shards.iter().any(|shard| shard.contains(at));
    name.char_indices().filter(stays).map(|(_, c)| c).collect()
}

#[cfg(test)]
mod tests {
    use super::super::check::tests::zip_of;
    use super::super::listing::tests::Memory;
    use super::super::tests::{complete_units, reason};
    use super::super::{Options, Scan, recognise};

    fn saved(names: &[&str]) -> Memory {
        names.iter().fold(Memory::default(), |memory, name| memory.with(name, zip_of(b"w", b"")))
    }

    /// What is committed of the newest.
    fn newest(memory: &Memory) -> Vec<String> {
        let (listing, options) = (memory.listing(), Options::default());
        let scan = Scan { listing: &listing, peek: memory, options: &options };
        recognise(&scan).expect("something is recognised").candidates.remove(0).paths
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
