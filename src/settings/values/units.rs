//! Warns about sizes without a unit, which are bytes, if a unit was almost certainly meant.

use super::layers::Complaint;
use super::reader::Reader;

/// The smallest sensible number of bytes for a setting: why, and the unit that is probably missing.
const LEAST: [(&str, u64, &str, &str); 2] = [
    ("min-gpu-memory", 1 << 20, "less than any GPU has, so every GPU would be accepted", "GiB"),
    ("commit-bandwidth", 1 << 10, "too slow for any checkpoint to reach the store during training", "MiB"),
];

/// A warning for each of these settings.
pub fn unitless(reader: &Reader<'_>) -> impl Iterator<Item = Complaint> {
    LEAST.into_iter().filter_map(|(name, least, why, unit)| {
        let text = reader.text(name)?;
        let bytes = text.trim().parse::<u64>().ok().filter(|bytes| (1..least).contains(bytes))?;
        let message = format!("{bytes} without a unit means bytes: {why}; write {bytes}{unit} if you mean that");
        Some(Complaint { place: reader.place(name), message })
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rules::process::env::Env;
    use crate::settings::defs::on;
    use crate::settings::values::layers::Values;

    #[test]
    fn a_number_that_needs_a_unit_causes_a_warning() {
        let warnings_for = |name: &str, value: &str| {
            let mut complaints = Vec::new();
            let env = Env::from_pairs([(name, value)]);
            let values = Values::gather(on::RUN, Default::default(), &env, None, &mut complaints);
            unitless(&Reader::new(&values, complaints)).map(|it| it.to_string()).collect::<Vec<_>>()
        };
        for (name, value, proposed) in
            [("TRAINIT_MIN_GPU_MEMORY", "70", "70GiB"), ("TRAINIT_COMMIT_BANDWIDTH", " 200 ", "200MiB")]
        {
            let lines = warnings_for(name, value);
            assert!(lines.len() == 1 && lines[0].contains(name) && lines[0].contains(proposed), "{lines:?}");
        }
        for value in ["70GiB", "0", "85899345920", "70 B", "many"] {
            assert_eq!(warnings_for("TRAINIT_MIN_GPU_MEMORY", value), [""; 0], "{value}");
        }
        assert_eq!(warnings_for("TRAINIT_COMMIT_BANDWIDTH", "100000000"), [""; 0]);
    }
}
