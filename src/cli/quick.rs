//! The usual form of `report-metric`, read without clap: scripts call it in loops, and building clap's tree costs as much as
//! all the rest of the program. What is not plainly usual (help, `--config`, an unknown flag, a missing value, odd bytes) is
//! left to clap, which also words the mistakes. A test holds that the two agree.

use std::collections::BTreeMap;
use std::ffi::OsString;

use super::Parsed;
use crate::settings::defs::{Takes, find, on};

/// Splits `trainit report-metric ...`; `None` where clap should.
pub(super) fn parse(argv: &[OsString]) -> Option<Parsed> {
    let mut words = argv.iter().skip(1).map(|word| word.to_str());
    if words.next()?? != "report-metric" {
        return None;
    }
    let mut flags: BTreeMap<&'static str, Vec<String>> = BTreeMap::new();
    let mut operands = Vec::new();
    while let Some(word) = words.next() {
        let word = word?;
        let Some(flag) = word.strip_prefix("--") else {
            // The tag may not begin with a dash, and of values that do only those like numbers are plainly values.
            let begins_well = !word.starts_with('-') || (operands.len() == 1 && is_like_a_number(&word[1..]));
            if !begins_well || operands.len() == 2 {
                return None;
            }
            operands.push(OsString::from(word));
            continue;
        };
        let (name, value) = flag.split_once('=').map_or((flag, None), |(name, value)| (name, Some(value)));
        let setting = find(name).filter(|s| s.on & on::REPORT_METRIC != 0)?;
        let value = match (setting.takes, value) {
            (Takes::Switch, None) if !flags.contains_key(setting.name) => "true",
            (Takes::One(_), Some(value)) if !value.is_empty() => value,
            (Takes::One(_), None) => words.next()??,
            _ => return None,
        };
        if value.starts_with('-') && !is_like_a_number(&value[1..]) {
            return None;
        }
        flags.entry(setting.name).or_default().push(value.to_owned());
    }
    Some(Parsed { command: "report-metric", on: on::REPORT_METRIC, flags, operands, config: None })
}

/// A digit, a point, `inf` or `nan`.
fn is_like_a_number(text: &str) -> bool {
    text.starts_with(|c: char| c.is_ascii_digit() || c == '.') || ["inf", "nan"].contains(&text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn words(line: &str) -> Vec<OsString> {
        line.split(' ').map(OsString::from).collect()
    }

    #[test]
    fn the_usual_forms_need_no_clap() {
        for line in [
            "trainit report-metric loss 0.3",
            "trainit report-metric loss -1e-5 --step 3",
            "trainit report-metric --tag loss --value -inf --step=-3 --keep 0 --fsync",
            "trainit report-metric --stdin --file /m",
            "trainit report-metric loss 1 --best-effort --checkpoint-path gs://b/c",
        ] {
            assert!(parse(&words(line)).is_some(), "{line}");
        }
        for line in
            ["trainit report-metric --help", "trainit report-metric loss 1 --stepp 3", "trainit run a b", "trainit"]
        {
            assert!(parse(&words(line)).is_none(), "{line}");
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(3000))]
        #[test]
        fn what_it_reads_clap_reads_alike(
            args in prop::collection::vec(prop::sample::select(vec![
                "loss", "0.5", "-1e-5", "-.5", "-inf", "", "-", "--", "--step", "--step=3", "--step=", "--step=-3", "--value",
                "--value=-nan", "--tag", "--tag=a=b", "--stdin", "--fsync", "--fsync=true", "--keep", "--config", "--help",
                "-h", "--json", "--metric", "--file", "/m", "a b", "é", "--best-effort", "-x", "-1x", "--rank0-only",
            ]), 0..7),
        ) {
            let argv: Vec<OsString> = ["trainit", "report-metric"].into_iter().chain(args).map(OsString::from).collect();
            if let Some(quick) = parse(&argv) {
                let slow = super::super::parse_with_clap(argv.clone());
                let Ok(slow) = slow else { panic!("{argv:?}: clap refuses: {slow:?}") };
                prop_assert_eq!((quick.command, quick.on, quick.flags), (slow.command, slow.on, slow.flags), "{:?}", argv);
                prop_assert_eq!((quick.operands, quick.config), (slow.operands, slow.config), "{:?}", argv);
            }
        }
    }
}
