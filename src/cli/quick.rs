//! Reads the usual forms of `run` and `report-metric` without clap: every container starts with the former, scripts
//! call the latter in loops, and building clap's definition costs as much as the rest of the program. All unusual forms
//! (help, `--config`, an unknown flag, a missing value, invalid UTF-8, `run` without its dashes) are left to clap,
//! which also reports the mistakes. A test checks that both agree.

use std::collections::BTreeMap;
use std::ffi::OsString;

use super::Parsed;
use crate::settings::defs::{Takes, find, on};

type Flags = BTreeMap<&'static str, Vec<String>>;

/// Splits `trainit run ... -- ...` and `trainit report-metric ...`; `None` if clap must read it.
pub(super) fn parse(argv: &[OsString]) -> Option<Parsed> {
    match argv.get(1)?.to_str()? {
        "run" => run(argv.get(2..)?),
        "report-metric" => report_metric(argv.get(2..)?),
        _ => None,
    }
}

/// `[FLAGS] -- COMMAND [ARG...]`.
fn run(args: &[OsString]) -> Option<Parsed> {
    let dashes = args.iter().position(|word| word == "--")?;
    let (before, command) = (&args[..dashes], &args[dashes + 1..]);
    let mut words = before.iter().map(|word| word.to_str());
    let mut flags = Flags::new();
    while let Some(word) = words.next() {
        read_flag(word?.strip_prefix("--")?, &mut words, on::RUN, &mut flags)?;
    }
    let is_usual = !command.is_empty();
    let (config, mistakes) = Default::default();
    let operands = command.to_vec();
    is_usual.then_some(Parsed { command: "run", on: on::RUN, flags, operands, config, mistakes })
}

/// Reads flags and at most two operands, in any order.
fn report_metric(args: &[OsString]) -> Option<Parsed> {
    let mut words = args.iter().map(|word| word.to_str());
    let mut flags = Flags::new();
    let mut operands = Vec::new();
    while let Some(word) = words.next() {
        let word = word?;
        if let Some(flag) = word.strip_prefix("--") {
            read_flag(flag, &mut words, on::REPORT_METRIC, &mut flags)?;
            continue;
        }
        // The tag must not begin with a dash, and a value only if it looks like a number.
        let is_operand = !word.starts_with('-') || (operands.len() == 1 && is_like_a_number(&word[1..]));
        if !is_operand || operands.len() == 2 {
            return None;
        }
        operands.push(OsString::from(word));
    }
    let (config, mistakes) = Default::default();
    Some(Parsed { command: "report-metric", on: on::REPORT_METRIC, flags, operands, config, mistakes })
}

/// Reads one flag without its dashes, with its value after `=` or in the next word.
fn read_flag<'a>(
    flag: &'a str,
    words: &mut impl Iterator<Item = Option<&'a str>>,
    on: u8,
    flags: &mut Flags,
) -> Option<()> {
    let (name, value) = flag.split_once('=').map_or((flag, None), |(name, value)| (name, Some(value)));
    let setting = find(name).filter(|s| s.on & on != 0)?;
    let value = match (setting.takes, value) {
        (Takes::Switch, None) if !flags.contains_key(setting.name) => "true",
        (Takes::One(_) | Takes::Many(_), Some(value)) if !value.is_empty() => value,
        (Takes::One(_) | Takes::Many(_), None) => words.next()??,
        _ => return None,
    };
    if value.starts_with('-') && !is_like_a_number(&value[1..]) {
        return None;
    }
    flags.entry(setting.name).or_default().push(value.to_owned());
    Some(())
}

/// Whether it begins with a digit, a point, `inf` or `nan`.
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
            "trainit run -- python -m trainer.task --epochs 3",
            "trainit run --stop-grace 9s --rewrite-signal=TERM:INT --rewrite-signal HUP:0 -- sh -c -- x",
        ] {
            assert!(parse(&words(line)).is_some(), "{line}");
        }
        for line in [
            "trainit report-metric --help",
            "trainit report-metric loss 1 --stepp 3",
            "trainit run a b",
            "trainit run --help -- true",
            "trainit run --",
            "trainit run --config x -- true",
            "trainit",
        ] {
            assert!(parse(&words(line)).is_none(), "{line}");
        }
    }

    fn agree(command: &str, args: Vec<&str>) {
        let argv: Vec<OsString> = ["trainit", command].into_iter().chain(args).map(OsString::from).collect();
        if let Some(quick) = parse(&argv) {
            let slow = super::super::parse_with_clap(argv.clone());
            let Ok(slow) = slow else { panic!("{argv:?}: clap refuses: {slow:?}") };
            assert_eq!((quick.command, quick.on, quick.flags), (slow.command, slow.on, slow.flags), "{argv:?}");
            assert_eq!((quick.operands, quick.config), (slow.operands, slow.config), "{argv:?}");
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(3000))]
        #[test]
        fn clap_reads_the_same_as_the_quick_parser(
            args in prop::collection::vec(prop::sample::select(vec![
                "loss", "0.5", "-1e-5", "-.5", "-inf", "", "-", "--", "--step", "--step=3", "--step=", "--step=-3", "--value",
                "--value=-nan", "--tag", "--tag=a=b", "--stdin", "--fsync", "--fsync=true", "--keep", "--config", "--help",
                "-h", "--json", "--metric", "--file", "/m", "a b", "é", "--best-effort", "-x", "-1x", "--rank0-only",
            ]), 0..7),
        ) {
            agree("report-metric", args);
        }

        #[test]
        fn clap_reads_the_same_of_run_as_the_quick_parser(
            before in prop::collection::vec(prop::sample::select(vec![
                "--stop-grace", "--stop-grace=3s", "--stop-grace=", "9s", "--rewrite-signal", "--rewrite-signal=A:B", "-1",
                "--metric", "--metric=a=b", "--log-level=", "--checkpoint-dir", "/c", "", "-", "-x", "-1x", "--config=c",
                "--help", "-h", "--version", "é", "--json", "--step=3", "--stop-gr", "--require-gpus", "--gang", "python",
            ]), 0..5),
            after in prop::collection::vec(prop::sample::select(vec![
                "--", "python", "-m", "--help", "-h", "--stop-grace", "", "é", "--version", "help", "run",
            ]), 0..4),
        ) {
            agree("run", before.into_iter().chain(["--"]).chain(after).collect());
        }
    }
}
