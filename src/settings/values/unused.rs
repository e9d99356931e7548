//! Warns about settings that have no effect because another setting is missing.

use crate::settings::defs::all;
use crate::settings::values::layers::{Complaint, Origin};
use crate::settings::values::reader::{Reader, switch_value};

/// A warning for each of these settings. Only for `run`: the subcommands for checkpoints accept unused settings.
pub fn unused(reader: &Reader<'_>) -> impl Iterator<Item = Complaint> {
    let is_given = |name: &str| {
        reader.values.get(name).is_some_and(|given| {
            let is_off = given.values.last().is_some_and(|word| word == "off" || switch_value(word) == Some(false));
            given.origin != Origin::Default && !is_off
        })
    };
    let unused =
        all().filter(move |s| !s.needs.is_empty() && is_given(s.name) && !s.needs.iter().any(|name| is_given(name)));
    unused.map(|setting| {
        let needs: Vec<String> = setting.needs.iter().map(|name| format!("--{name}")).collect();
        let message = format!("it has no effect without {}; give that too, or omit this", needs.join(" or "));
        Complaint { place: reader.place(setting.name), message }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rules::process::env::Env;
    use crate::settings::defs::on;
    use crate::settings::values::layers::Values;

    fn warnings(pairs: &[(&str, &str)]) -> Vec<String> {
        let mut complaints = Vec::new();
        let env = Env::from_pairs(pairs.iter().copied());
        let values = Values::gather(on::RUN, Default::default(), &env, None, &mut complaints);
        unused(&Reader::new(&values, complaints)).map(|warning| warning.to_string()).collect()
    }

    #[test]
    fn a_setting_without_effect_is_reported_with_the_missing_one() {
        let prefix = "TRAINIT_OUTPUT_PREFIX: it has no effect without --nproc; give that too, or omit this";
        assert_eq!(warnings(&[("TRAINIT_OUTPUT_PREFIX", "none")]), [prefix]);
        let off = warnings(&[("TRAINIT_GANG_PORT", "5000"), ("TRAINIT_GANG", "off")]);
        assert_eq!(off, ["TRAINIT_GANG_PORT: it has no effect without --gang; give that too, or omit this"]);
        let both = warnings(&[("TRAINIT_GANG_PORT", "5000"), ("TRAINIT_RESTART_BACKOFF", "1s")]);
        assert!(
            both.len() == 2 && both.iter().any(|line| line.contains("--max-restarts or --checkpoint-dir")),
            "{both:?}"
        );
    }

    #[test]
    fn a_setting_that_is_off_or_a_default_or_has_the_other_one_causes_no_warning() {
        assert_eq!(warnings(&[]), [""; 0]);
        assert_eq!(warnings(&[("TRAINIT_OUTPUT_PREFIX", "none"), ("TRAINIT_NPROC", "2")]), [""; 0]);
        assert_eq!(warnings(&[("TRAINIT_RESTART_BACKOFF", "1s"), ("TRAINIT_CHECKPOINT_DIR", "/c")]), [""; 0]);
        assert_eq!(warnings(&[("TRAINIT_ALLOW_HTTP", "false")]), [""; 0]);
        assert_eq!(warnings(&[("TRAINIT_GANG_PORT", "5000"), ("TRAINIT_GANG", "auto")]), [""; 0]);
    }
}
