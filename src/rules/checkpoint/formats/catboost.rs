//! CatBoost's `save_snapshot=True`: one file `*.cbsnapshot`, by default in `catboost_info`, written under another name and
//! renamed over the one before, so that what has the name is whole. It begins with the kind of machine that trains.

use super::generic::is_in_step;
use crate::rules::checkpoint::layout::{Layout, Makeup};
use crate::rules::checkpoint::listing::{Entry, Kind};
use crate::rules::checkpoint::memo::Memo;
use crate::rules::checkpoint::unit::{Candidate, Scan};

pub(super) const CATBOOST: Layout =
    Layout { makeup: Makeup::Told, ..Layout::of("catboost", "files named *.cbsnapshot", find, complete) };

/// The length of a word, and the word.
const HEADS: [&[u8]; 2] = [b"\x03\0\0\0CPU", b"\x03\0\0\0GPU"];

fn find(scan: &Scan) -> Vec<Candidate> {
    let is_ours = |f: &&Entry| matches!(f.kind, Kind::File | Kind::Lost(_)) && f.name().ends_with(".cbsnapshot");
    let files =
        scan.listing.entries().iter().filter(is_ours).filter(|f| !scan.is_aside(&f.path) && !is_in_step(scan, f));
    files.filter_map(|f| Some(Candidate::file(f, scan.step(&f.path, None)?))).collect()
}

fn complete(scan: &Scan, candidate: &Candidate, _: &Memo) -> Result<(), String> {
    let file = scan.listing.file(&candidate.unit).ok_or("it is gone")?;
    let head = scan.peek.read(&file.path, 0, HEADS[0].len()).ok_or("it cannot be read")?;
    let is_one = HEADS.iter().any(|known| *known == head);
    if is_one { Ok(()) } else { Err("it does not begin as CatBoost's snapshots do".to_owned()) }
}

#[cfg(test)]
mod tests {
    use crate::rules::checkpoint::listing::tests::Memory;
    use crate::rules::checkpoint::tests::{complete_units, reason, recognised};
    use crate::rules::checkpoint::{Found, Options, Scan, is_sure};

    const SNAPSHOT: &[u8] = b"\x03\0\0\0CPU\x8a\x11\0\0{\"boosting_options\":{}}";

    #[test]
    fn a_snapshot_is_a_checkpoint_without_a_step_and_surely_whole_under_its_name() {
        let logs = [("catboost_info/catboost_training.json", "{"), ("catboost_info/learn_error.tsv", "0")];
        for name in ["catboost_info/experiment.cbsnapshot", "run_3.cbsnapshot"] {
            let memory = Memory::of(&logs).with(name, SNAPSHOT);
            assert_eq!(complete_units(&memory), [(name.into(), None)]);
            let is_sure = |found: &Found, scan: &Scan| is_sure(found, scan, &found.candidates[0], 0);
            assert!(recognised(&memory, &Options::default(), is_sure));
        }
        for torn in [&SNAPSHOT[..5], b"", &[0; 40]] {
            assert!(reason(&Memory::of(&[("a.cbsnapshot", torn)]), "a.cbsnapshot").contains("does not begin"));
        }
    }

    #[test]
    fn what_catboost_has_not_renamed_yet_is_none() {
        let names = ["97de4ba5-ebe24aba-94a405c-69a5ea31.tmp", "experiment.cbsnapshot.bak", ".trash/a.cbsnapshot"];
        assert_eq!(complete_units(&names.iter().fold(Memory::default(), |m, name| m.with(name, SNAPSHOT))), []);
    }
}
