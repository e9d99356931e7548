//! XGBoost's `TrainingCheckPoint`: files `NAME_N.ubj`, `.json` or `.pkl`, written in place: settling and the check of the
//! type decide.

use super::generic::is_in_step;
use crate::rules::checkpoint::layout::{Layout, Makeup};
use crate::rules::checkpoint::memo::Memo;
use crate::rules::checkpoint::siblings::together;
use crate::rules::checkpoint::steps::step_in;
use crate::rules::checkpoint::unit::{Candidate, Scan, is_temporary};

pub(super) const XGBOOST: Layout =
    Layout { makeup: Makeup::OneFile, ..Layout::of("xgboost", "files named NAME_N.ubj", find, complete) };

fn find(scan: &Scan) -> Vec<Candidate> {
    // JSON and pickles may be anybody's.
    let endings: &[&str] = if scan.options.format.is_some() { &[".ubj", ".json", ".pkl"] } else { &[".ubj"] };
    let is_model = |name: &str| endings.iter().any(|e| name.ends_with(e)) && !is_temporary(name);
    let models = scan.listing.files().filter(|f| is_model(f.name()) && !is_in_step(scan, f));
    let models = models.filter_map(|f| Some(Candidate::file(f, scan.step(&f.path, step_in(f.name()))?)));
    together(scan.listing, models.collect())
}

fn complete(scan: &Scan, candidate: &Candidate, _: &Memo) -> Result<(), String> {
    scan.all_whole(candidate)
}

#[cfg(test)]
mod tests {
    use crate::rules::checkpoint::listing::tests::Memory;
    use crate::rules::checkpoint::tests::{complete_units, complete_units_with};
    use crate::rules::checkpoint::unit::Options;

    #[test]
    fn a_model_that_ends_is_finished() {
        let memory = Memory::of(&[("model_10.ubj", "{i\x01aT}"), ("model_20.ubj", "{i\x01aT")]);
        assert_eq!(complete_units(&memory), [("model_10.ubj".into(), Some(10))]);
    }

    #[test]
    fn json_models_are_found_when_asked_for() {
        let memory = Memory::of(&[("out/model_10.json", "{}"), ("out/model_20.json", "{")]);
        let options = Options { format: Some("xgboost".into()), ..Options::default() };
        assert_eq!(complete_units_with(&memory, &options), [("out/model_10.json".into(), Some(10))]);
    }
}
