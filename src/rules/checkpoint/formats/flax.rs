//! Flax before Orbax: a file `checkpoint_N`, renamed from `checkpoint_tmp*`, with a directory `checkpoint_N_gda` beside it
//! where arrays live on several devices; that one has `commit_success.txt` when finished.

use super::generic::is_in_step;
use crate::rules::checkpoint::layout::Layout;
use crate::rules::checkpoint::listing::{Kind, join};
use crate::rules::checkpoint::memo::Memo;
use crate::rules::checkpoint::steps::number_after;
use crate::rules::checkpoint::unit::{Candidate, Scan};

pub(super) const FLAX: Layout = Layout::of("flax", "files named checkpoint_N", find, complete);

fn find(scan: &Scan) -> Vec<Candidate> {
    let files = scan.listing.files().filter(|f| !is_in_step(scan, f));
    let files = files.filter_map(|f| Some((f, number_after("checkpoint_", f.name())?)));
    let unit = |(file, number): (&crate::rules::checkpoint::Entry, u64)| {
        let mut unit = Candidate::file(file, scan.step(&file.path, Some(number))?);
        let arrays = format!("{}_gda", file.path);
        // As for all units that are no directory, a commit knows of no directories but those that its files lie in.
        let parts = scan.listing.below(&arrays).iter().filter(|e| e.kind != Kind::Directory);
        unit.paths.extend(parts.map(|e| e.path.clone()));
        Some(unit)
    };
    files.filter_map(unit).collect()
}

fn complete(scan: &Scan, candidate: &Candidate, _: &Memo) -> Result<(), String> {
    if candidate.entries(scan.listing).next().is_none_or(|e| e.size == 0) {
        return Err("it is empty".to_owned());
    }
    let arrays = format!("{}_gda", candidate.unit);
    let has_arrays = scan.listing.get(&arrays).is_some();
    if has_arrays && scan.listing.file(&join(&arrays, "commit_success.txt")).is_none() {
        return Err(format!("{arrays}/commit_success.txt is not there yet"));
    }
    scan.all_whole(candidate)
}

#[cfg(test)]
mod tests {
    use crate::rules::checkpoint::listing::tests::Memory;
    use crate::rules::checkpoint::tests::complete_units;
    use crate::rules::checkpoint::unit::Options;

    #[test]
    fn a_file_under_its_final_name_is_finished_with_its_arrays() {
        let memory = Memory::of(&[("checkpoint_10", "m"), ("checkpoint_tmp20", "m"), ("checkpoint_30", "m")])
            .with("checkpoint_30_gda/a", "x");
        assert_eq!(complete_units(&memory), [("checkpoint_10".into(), Some(10))]);
        let memory = memory.with("checkpoint_30_gda/commit_success.txt", "x");
        assert_eq!(complete_units(&memory)[0], ("checkpoint_30".into(), Some(30)));
        assert_eq!(complete_units(&memory.clone().with("checkpoint_30", "")), [("checkpoint_10".into(), Some(10))]);
        let found = memory.scanned(&Options::default(), super::find);
        let paths = ["checkpoint_30", "checkpoint_30_gda/a", "checkpoint_30_gda/commit_success.txt"];
        assert_eq!(found[1].paths, paths, "its arrays go with it");
    }
}
