//! PyTorch's distributed checkpoints: directories of `__R_I.distcp` in which rank 0 writes `.metadata` last, by a rename,
//! after everybody is through.
//!
//! The metadata is a pickle; the names of the files it speaks of stand in it as plain text and are looked for.

use std::collections::BTreeSet;
use std::sync::LazyLock;

use regex::bytes::Regex;

use super::{composer, torch_file};
use crate::rules::checkpoint::ascii::ascii;
use crate::rules::checkpoint::layout::{Layout, Makeup, Pointer};
use crate::rules::checkpoint::listing::{Kind, around, is_below, join, name_of, parent_of};
use crate::rules::checkpoint::memo::Memo;
use crate::rules::checkpoint::order::{self, APART_NS};
use crate::rules::checkpoint::steps::{is_steps, number_after, step_in_stem};
use crate::rules::checkpoint::structure;
use crate::rules::checkpoint::unit::{Candidate, IN_ITSELF, Scan};

pub(super) const DCP: Layout = Layout {
    pointers,
    makeup: Makeup::SameAgain,
    is_handed_out: true,
    ..Layout::of("dcp", "directories with .metadata and files named __R_I.distcp", find, complete)
};

/// What Lightning (`epoch=E-step=S.ckpt`) and its Fabric (any name) write after everything else.
const LIGHTNINGS: &str = "meta.pt";

pub(in super::super) const METADATA: &str = ".metadata";
/// Its name until it is written.
const UNFINISHED: &str = ".metadata.tmp";
/// The metadata is read up to here.
const METADATA_LIMIT: usize = 64 << 20;

fn find(scan: &Scan) -> Vec<Candidate> {
    let is_ours = |name: &str| name.ends_with(".distcp") || name == METADATA || name == UNFINISHED;
    let parents = scan.listing.files().filter(|f| is_ours(f.name())).map(|f| parent_of(&f.path));
    let parents: BTreeSet<&str> = parents.filter(|p| !p.is_empty()).collect();
    let mut units: BTreeSet<&str> = parents.iter().map(|parent| unit_of(parent)).collect();
    let all = units.clone();
    units.retain(|unit| !all.iter().any(|outer| is_below(unit, outer)));
    let unit =
        |path: &str| Some(Candidate::directory(scan.listing, path, scan.step(path, step_in_stem(name_of(path)))?));
    let found: Vec<Candidate> = units.into_iter().filter_map(unit).collect();
    let in_itself: Vec<String> =
        scan.listing.within("").filter(|e| is_ours(e.name())).map(|e| e.path.clone()).collect();
    // Directories without a step beside it are parts of it.
    if !in_itself.iter().any(|path| path.ends_with(".distcp")) || found.iter().any(|unit| unit.step.is_some()) {
        return found;
    }
    vec![Candidate::of(METADATA.to_owned(), None, in_itself)]
}

/// A model and its optimizer may be two of them in the directory of one step: that one is the unit.
fn unit_of(home: &str) -> &str {
    let is_numbered = |path: &&str| step_in_stem(name_of(path)).is_some();
    let step = around(home).find(|path| is_steps(name_of(path)));
    step.or([home, parent_of(home)].into_iter().find(is_numbered)).unwrap_or(home)
}

static SHARD: LazyLock<Regex> = LazyLock::new(|| ascii(r"__(\d+)_\d+\.distcp"));

/// The metadata in this directory is there with every file it names, none of which was written after it.
pub(super) fn named_files_there(scan: &Scan, home: &str) -> Result<(), String> {
    let metadata = scan.listing.file(&join(home, METADATA));
    let metadata = metadata.ok_or_else(|| scan.lacks_rank(format!("{} is not there yet", join(home, METADATA))))?;
    if metadata.size == 0 {
        return Err(format!("{} is empty", metadata.path));
    }
    if scan.listing.get(&join(home, UNFINISHED)).is_some() {
        return Err(format!("{} is there: it is being saved again", join(home, UNFINISHED)));
    }
    structure::pickle(scan.peek, metadata).map_err(|why| format!("{}: {why}", metadata.path))?;
    let text = scan.peek.read(&metadata.path, 0, METADATA_LIMIT).ok_or(".metadata cannot be read")?;
    for shard in SHARD.find_iter(&text) {
        let name = String::from_utf8_lossy(shard.as_bytes());
        // A rank that had nothing to write leaves an empty file, which is not named.
        match scan.listing.file(&join(home, &name)) {
            Some(file) if file.size > 0 => {
                // Rank 0 writes the metadata; the others may lie on machines with other clocks.
                order::written_before([file], metadata, if name.starts_with("__0_") { 0 } else { APART_NS })?;
            }
            Some(_) => return Err(format!("{name} is empty, and .metadata names it")),
            None => return Err(scan.lacks_rank(format!("{name} is missing, which .metadata names"))),
        }
    }
    Ok(())
}

/// Directories of shards at or below this one.
fn homes<'a>(scan: &Scan<'a>, unit: &str) -> BTreeSet<&'a str> {
    let shards = scan.listing.below(unit).iter().filter(|e| e.name().ends_with(".distcp"));
    shards.map(|e| parent_of(&e.path)).collect()
}

/// Each directory of shards has its metadata, the files that names, and those of everybody who writes.
fn shards_whole(scan: &Scan, homes: BTreeSet<&str>) -> Result<(), String> {
    let rank = |name: &str| str::from_utf8(&SHARD.captures(name.as_bytes())?[1]).ok()?.parse().ok();
    homes.into_iter().try_for_each(|home| {
        named_files_there(scan, home)?;
        scan.everybody(
            scan.listing.newest_ns(home),
            &scan.listing.within(home).filter_map(|e| rank(e.name())).collect(),
        )
    })
}

/// What lies of ours in another library's checkpoint is whole: FSDP's directories, and any with shards.
pub(super) fn parts_whole(scan: &Scan, unit: &str) -> Result<(), String> {
    let mut homes = homes(scan, unit);
    let within = scan.listing.within(unit).filter(|e| e.kind == Kind::Directory && is_fsdps(e.name()));
    homes.extend(within.map(|e| e.path.as_str()));
    shards_whole(scan, homes)
}

/// `pytorch_model_fsdp_0` and `optimizer_0`, as Accelerate calls them.
fn is_fsdps(name: &str) -> bool {
    number_after("pytorch_model_fsdp_", name).is_some() || number_after("optimizer_", name).is_some()
}

fn complete(scan: &Scan, candidate: &Candidate, memo: &Memo) -> Result<(), String> {
    if candidate.unit == METADATA {
        return Err(IN_ITSELF.to_owned());
    }
    let mut homes = homes(scan, &candidate.unit);
    if homes.is_empty() {
        homes.insert(&candidate.unit);
    }
    shards_whole(scan, homes)?;
    let has_meta = |unit: &str| scan.listing.file(&join(unit, LIGHTNINGS)).is_some();
    let name = name_of(&candidate.unit);
    let is_named_so = name.ends_with(".ckpt") && (name.contains("step=") || name.starts_with("last"));
    // Directories in which one of Lightning's lies.
    let homes = memo.names(|| {
        let metas = scan.listing.files().filter(|f| f.name() == LIGHTNINGS && f.path != LIGHTNINGS);
        metas.map(|meta| (parent_of(parent_of(&meta.path)).to_owned(), String::new())).collect()
    });
    let is_lightnings = is_named_so || homes.contains_key(parent_of(&candidate.unit));
    if is_lightnings && !has_meta(&candidate.unit) {
        return Err(format!("{} is not there yet", join(&candidate.unit, LIGHTNINGS)));
    }
    scan.all_whole(candidate)
}

/// Lightning's link, and Composer's.
fn pointers(scan: &Scan, candidate: &Candidate) -> Vec<Pointer> {
    let mut all = torch_file::pointers(scan, candidate);
    all.extend(composer::links_to_sharded(scan, &candidate.unit));
    all
}

#[cfg(test)]
mod tests {
    use super::Pointer;
    use crate::rules::checkpoint::check::tests::zip_of;
    use crate::rules::checkpoint::listing::tests::Memory;
    use crate::rules::checkpoint::tests::{complete_units, complete_units_with, reason};
    use crate::rules::checkpoint::unit::Options;

    fn saved() -> Memory {
        Memory::of(&[("step_10/__0_0.distcp", "x"), ("step_10/__1_0.distcp", "y")])
            .with("step_10/.metadata", "\u{80}..__0_0.distcp..__1_0.distcp..")
    }

    #[test]
    fn the_metadata_completes_it_with_every_file_it_names() {
        assert_eq!(complete_units(&saved()), [("step_10".into(), Some(10))]);
        assert!(reason(&saved().without("step_10/__1_0.distcp"), "step_10").contains("__1_0.distcp"));
        let unfinished = saved().without("step_10/.metadata").with("step_10/.metadata.tmp", "x");
        assert_eq!(complete_units(&unfinished), []);
    }

    #[test]
    fn one_that_is_saved_again_is_not_finished_before_its_metadata_is() {
        let again = saved().with("step_10/.metadata.tmp", "x");
        assert!(reason(&again, "step_10").contains("being saved again"));
    }

    #[test]
    fn one_that_is_saved_over_again_has_shards_younger_than_its_metadata() {
        let at = |shard: &str, ns: i64| saved().at("step_10/.metadata", 10).at(&format!("step_10/{shard}"), 10 + ns);
        assert_eq!(complete_units(&at("__0_0.distcp", 0)).len(), 1);
        assert!(reason(&at("__0_0.distcp", 1), "step_10").contains("step_10/__0_0.distcp is younger than"));
        let second = 1_000_000_000;
        assert_eq!(complete_units(&at("__1_0.distcp", second)).len(), 1, "by another machine's clock");
        assert!(reason(&at("__1_0.distcp", second + 1), "step_10").contains("saved over again and not finished"));
        let unnamed = saved().with("step_10/__2_0.distcp", "old").at("step_10/__2_0.distcp", 5 * second);
        assert_eq!(complete_units(&unnamed).len(), 1, "of a larger run before");
    }

    #[test]
    fn a_metadata_that_was_cut_or_never_reached_the_disk_is_none() {
        let whole = b"\x80\x04\x8c\x0c__0_0.distcp\x94.";
        let with = |metadata: &[u8]| {
            let memory = Memory::of(&[("step_10/__0_0.distcp", "x")]);
            memory.with("step_10/.metadata", metadata)
        };
        assert_eq!(complete_units(&with(whole)).len(), 1);
        for length in 1..whole.len() {
            assert!(reason(&with(&whole[..length]), "step_10").contains("step_10/.metadata: its pickle"), "{length}");
        }
        assert!(reason(&with(&[0; 99]), "step_10").contains("zeros"));
    }

    #[test]
    fn the_empty_file_of_a_rank_that_had_nothing_to_write_is_no_flaw_and_a_named_one_is() {
        assert_eq!(complete_units(&saved().with("step_10/__2_0.distcp", "")).len(), 1);
        assert!(reason(&saved().with("step_10/__1_0.distcp", ""), "step_10").contains("is empty"));
    }

    #[test]
    fn with_a_known_number_of_ranks_each_must_have_written() {
        let options = |world| Options { world_size: Some(world), ..Options::default() };
        assert_eq!(complete_units_with(&saved(), &options(4)), []);
        assert_eq!(complete_units_with(&saved(), &options(2)).len(), 1);
        let by_rank_0 = Memory::of(&[("step_10/__0_0.distcp", "x"), ("step_10/.metadata", "__0_0.distcp")]);
        assert_eq!(complete_units_with(&by_rank_0, &options(2)).len(), 1, "it saves for all");
    }

    #[test]
    fn what_a_run_with_another_number_of_ranks_saved_before_counts() {
        let written =
            |ns| saved().at("step_10/__0_0.distcp", ns).at("step_10/__1_0.distcp", ns).at("step_10/.metadata", ns);
        let count = |ns, world| {
            let options = Options { world_size: Some(world), begun_ns: 500, ..Options::default() };
            complete_units_with(&written(ns), &options).len()
        };
        assert_eq!([count(499, 4), count(500, 4)], [1, 0], "fewer ranks");
        assert_eq!(complete_units_with(&saved(), &Options { world_size: Some(1), ..Options::default() }).len(), 1);
    }

    #[test]
    fn a_model_and_its_optimizer_are_one_checkpoint() {
        let memory = Memory::of(&[("step-5/model/__0_0.distcp", "x"), ("step-5/model/.metadata", "__0_0.distcp")])
            .with("step-5/optim/__0_0.distcp", "x");
        assert!(reason(&memory, "step-5").contains("step-5/optim/.metadata"));
        let memory = memory.with("step-5/optim/.metadata", "__0_0.distcp");
        assert_eq!(complete_units(&memory), [("step-5".into(), Some(5))]);
    }

    #[test]
    fn the_steps_of_a_model_are_the_checkpoints_and_not_the_model() {
        let step = |memory: Memory, unit: &str| {
            memory.with(&format!("{unit}/__0_0.distcp"), "x").with(&format!("{unit}/.metadata"), "__0_0.distcp")
        };
        let root = "llama3-8b/checkpoint";
        let memory = ["step-100", "step-200"].iter().fold(Memory::default(), |m, s| step(m, &format!("{root}/{s}")));
        let memory = memory.with(&format!("{root}/step-300/__0_0.distcp"), "x");
        let units = [(format!("{root}/step-200"), Some(200)), (format!("{root}/step-100"), Some(100))];
        assert_eq!(complete_units(&memory), units);
        assert!(reason(&memory, &format!("{root}/step-300")).contains(".metadata is not there yet"));
        let parts = step(step(Memory::default(), "exp_1/step-5/model"), "exp_1/step-5/optimizer_0");
        assert_eq!(complete_units(&parts), [("exp_1/step-5".into(), Some(5))]);
        let parts = step(step(Memory::default(), "model_100/model"), "model_100/optim");
        assert_eq!(complete_units(&parts), [("model_100".into(), Some(100))]);
        assert_eq!(complete_units(&step(step(Memory::default(), "last"), "last/optim")), [("last".into(), None)]);
    }

    #[test]
    fn one_saved_into_the_checkpoint_directory_itself_is_never_taken_in_parts() {
        let memory = Memory::of(&[("__0_0.distcp", "x"), ("__1_0.distcp", "y")]);
        assert!(reason(&memory, ".metadata").contains("in the checkpoint directory itself"));
        let memory = memory.with(".metadata", "__0_0.distcp..__1_0.distcp");
        assert_eq!(complete_units(&memory), []);
        let generic = Options { format: Some("generic".into()), ..Options::default() };
        assert_eq!(complete_units_with(&memory, &generic), []);
        let anybodys = Memory::of(&[(".metadata", "x".as_bytes())]).with("model_5.pt", zip_of(b"w", b""));
        assert_eq!(complete_units(&anybodys).len(), 1);
        let parts = Memory::of(&[
            (".metadata", "__0_0.distcp"),
            ("__0_0.distcp", "x"),
            ("optim/.metadata", ""),
            ("optim/__0_0.distcp", ""),
        ]);
        assert!(reason(&parts, ".metadata").contains("in the checkpoint directory itself"));
        let beside = memory.with("step-5/__0_0.distcp", "x").with("step-5/.metadata", "__0_0.distcp");
        assert_eq!(complete_units(&beside), [("step-5".into(), Some(5))]);
    }

    #[test]
    fn lightning_writes_meta_pt_after_the_metadata() {
        let of = |unit: &str| {
            let memory = Memory::of(&[(format!("{unit}/__0_0.distcp").as_str(), "x")]);
            memory.with(&format!("{unit}/.metadata"), "__0_0.distcp")
        };
        let lightnings = of("epoch=0-step=10.ckpt");
        assert!(reason(&lightnings, "epoch=0-step=10.ckpt").contains("meta.pt is not there yet"));
        let meta = zip_of(b"m", b"");
        let lightnings = lightnings.with("epoch=0-step=10.ckpt/meta.pt", &meta);
        assert_eq!(complete_units(&lightnings), [("epoch=0-step=10.ckpt".into(), Some(10))]);
        assert_eq!(complete_units(&of("mine-10.ckpt")).len(), 1, "somebody else's");
        let fabrics = of("step-10").with("step-5/.metadata", "..").with("step-5/meta.pt", &meta);
        assert_eq!(complete_units(&fabrics), [("step-5".into(), Some(5))]);
    }

    #[test]
    fn composers_links_to_the_newest_lead_to_it() {
        let of = |unit: &str| {
            Memory::of(&[(&format!("{unit}/__0_0.distcp"), "x"), (&format!("{unit}/.metadata"), "__0_0.distcp")])
        };
        let pointers = |memory: &Memory| {
            memory.scanned(&Options::default(), |scan| (super::DCP.pointers)(scan, &super::find(scan)[0]))
        };
        let link = |to: &str| Pointer { path: "run/latest-rank0.pt".into(), content: to.into(), symlink: true };
        let linked = of("run/ep1-ba20").with("run/latest-rank0.pt", "-> ep1-ba10");
        assert_eq!(complete_units(&linked), [("run/ep1-ba20".into(), Some(20))]);
        assert_eq!(pointers(&linked), [link("ep1-ba20")]);
        assert_eq!(pointers(&of("run/ep1-ba20")), [link("ep1-ba20")], "it begins at 0 without one");
        assert_eq!(pointers(&of("run/ep1-ba20").with("run/latest-rank0.pt", "w")), [], "a checkpoint, and no link");
        assert_eq!(pointers(&of("run/step-20")), [], "another's");
        assert_eq!(pointers(&of("run/step-20").with("run/latest-rank0.pt", "-> step-10")), [link("step-20")]);
    }
}
