//! The settings for checkpoints and their store, as types.

use std::path::PathBuf;
use std::time::Duration;

use regex::Regex;

use super::Reader;
use crate::rules::checkpoint::{Exclusions, Format, Options, format_names};
use crate::rules::gpu::demand::parse_bytes;
use crate::rules::store::address::Address;
use crate::rules::store::plan::Retention;
use crate::rules::text::duration;
use crate::settings::values::suggest::one_of;

/// The settings for checkpoints.
#[derive(Debug, Clone)]
pub struct Checkpoints {
    /// Where the trainer writes them; `None`: trainit handles no checkpoints.
    pub dir: Option<PathBuf>,
    /// The store for commits.
    pub store: Option<Address>,
    /// Whether plain http is allowed for stores on other machines.
    pub allow_http: bool,
    /// The time in which a store operation must transfer at least one byte.
    pub store_timeout: Duration,
    /// Their form. The caller adds the number of processes and the exclusions.
    pub options: Options,
    /// Globs of paths that are not committed.
    pub exclude: Vec<String>,
    /// Globs of paths that are committed although they are excluded by default.
    pub include: Vec<String>,
    /// Where the finished model is written. It is not a checkpoint.
    pub model_dir: Option<PathBuf>,
    /// How long a checkpoint must be unchanged.
    pub settle: Duration,
    /// The interval between scans during training.
    pub interval: Duration,
    /// The limit for commits during training, in bytes a second.
    pub bandwidth: Option<u64>,
    /// The commits to keep in the store.
    pub retention: Retention,
    /// Whether to restore.
    pub restore: Resuming,
    /// The step to restore.
    pub restore_step: Option<u64>,
}

/// A name that is only a step.
const A_STEP: &str = "1234567890";

/// Data without a commit is kept for this long.
const ORPHAN_AGE: Duration = Duration::from_secs(24 * 3600);

/// A store needs time to answer.
const LEAST_TIMEOUT: Duration = Duration::from_millis(100);

/// More frequent scans would keep a processor busy.
const LEAST_INTERVAL: Duration = Duration::from_millis(10);

/// `--restore`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs, reason = "the words of the flag")]
pub enum Resuming {
    Latest,
    Required,
    None,
}

impl Checkpoints {
    /// Reads the topic. Mistakes are collected in the reader.
    pub fn read(reader: &mut Reader) -> Checkpoints {
        let dir = reader.path("checkpoint-dir");
        let store = reader.store("checkpoint-store");
        let format = reader.parse("checkpoint-format", format).unwrap_or_default();
        let marker = reader.parse("marker", file_name);
        let (exclude, include) = (reader.each("checkpoint-exclude", glob), reader.each("checkpoint-include", glob));
        let keep_saves = reader.parse("keep-saves", |text| at_least_one(text, "a whole number"));
        let step = reader.parse("step-regex", regex);
        let every = reader.parse("keep-every", |text| at_least_one(text, "a number of steps"));
        let last = reader.parse("keep-last", |text| at_least_one(text, "a whole number"));
        let restore_step = reader.count("restore-step");
        let words = [("latest", Resuming::Latest), ("required", Resuming::Required), ("none", Resuming::None)];
        let restore = reader.choice("restore", &words).unwrap_or(Resuming::Latest);
        if restore == Resuming::None && restore_step.is_some() {
            reader
                .complain("restore-step", "it has no effect with --restore none; give only one of the two".to_owned());
        }
        Checkpoints {
            dir,
            store,
            allow_http: reader.switch("allow-http"),
            store_timeout: reader
                .parse("store-timeout", duration::at_least(LEAST_TIMEOUT))
                .unwrap_or(Duration::from_secs(30)),
            options: Options {
                format,
                marker,
                step,
                follow: reader.switch("follow-symlinks"),
                world_size: None,
                exclusions: Exclusions::default(),
                keep_saves: keep_saves.and_then(|count| u32::try_from(count).ok()),
            },
            exclude,
            include,
            model_dir: None,
            settle: reader.parse("settle", duration::parse).unwrap_or(Duration::from_secs(2)),
            interval: reader
                .parse("commit-interval", duration::at_least(LEAST_INTERVAL))
                .unwrap_or(Duration::from_secs(30)),
            bandwidth: reader.parse("commit-bandwidth", rate),
            retention: Retention {
                last: last.unwrap_or(3),
                every,
                orphan_age: reader.parse("orphan-age", duration::parse).unwrap_or(ORPHAN_AGE),
            },
            restore,
            restore_step,
        }
    }

    /// What a start would resume from, if this is known without the store. `local` is the checkpoint in the
    /// directory that would be used, with the requested step if there is one.
    pub fn resume_forecast(&self, has_store: bool, local: Option<&str>) -> String {
        let of_step = self.restore_step.map_or(String::new(), |step| format!(" of step {step}"));
        let must = self.restore == Resuming::Required || self.restore_step.is_some();
        let without = if must { "refused with 204" } else { "from scratch" };
        match (has_store, local) {
            _ if self.restore == Resuming::None => "from scratch: --restore is none".to_owned(),
            (false, Some(unit)) => format!("from {unit}"),
            (false, None) => format!("{without}: there is no complete checkpoint{of_step} here, and no store"),
            (true, local) => {
                let here = local.map_or(String::new(), |unit| format!(", or from {unit} if that is newer"));
                let without =
                    if local.is_some() && !must { String::new() } else { format!("; {without} if there is none") };
                let ask = "the store was not read; use `trainit checkpoint list`";
                format!("from the newest complete commit{of_step}{here}{without} ({ask})")
            }
        }
    }

    /// Commits need a directory to commit from, and a required restore needs one to restore into: without it the job
    /// would start from scratch.
    pub fn needs_directory(&self, reader: &mut Reader) {
        if reader.text("checkpoint-dir").is_some() {
            return;
        }
        let needs = [
            ("checkpoint-store", "a store", self.store.is_some()),
            ("restore", "a required restore", self.restore == Resuming::Required),
            ("restore-step", "a restore", self.restore_step.is_some()),
        ];
        for (name, what, _) in needs.into_iter().filter(|(_, _, is_asked)| *is_asked) {
            let why = "needs --checkpoint-dir, the directory where the trainer writes its checkpoints";
            reader.complain_of_missing(name, format!("{what} {why}"));
        }
    }
}

fn format(text: &str) -> Result<Format, String> {
    let known: Vec<&str> = std::iter::once("auto").chain(format_names()).collect();
    Format::parse(one_of(text, &known)?)
}

fn glob(text: &str) -> Result<String, String> {
    Exclusions::new(&[text.to_owned()], &[], None).map(|_| text.to_owned())
}

fn file_name(text: &str) -> Result<String, String> {
    let is_name = !text.is_empty() && !text.contains('/') && text != "." && text != "..";
    if is_name { Ok(text.to_owned()) } else { Err(format!("expected the name of a file, found {text:?}")) }
}

/// Reads a regular expression that finds a step.
fn regex(text: &str) -> Result<Regex, String> {
    let regex = Regex::new(text).map_err(|error| {
        let why = error.to_string();
        let why = why.lines().last().unwrap_or_default().trim_start_matches("error: ").to_owned();
        format!("{text:?} is not a regular expression: {why}")
    })?;
    let found = regex.captures(A_STEP);
    if found.is_some_and(|found| found.get(1).or(found.get(0)).is_none_or(|found| found.is_empty())) {
        return Err(format!(
            "{text:?} matches only empty text even in {A_STEP}, so no checkpoint would have a step; expected an expression that matches the digits, such as step-(\\d+)"
        ));
    }
    Ok(regex)
}

fn at_least_one(text: &str, what: &str) -> Result<u64, String> {
    match text.trim().parse() {
        Ok(n) if n > 0 => Ok(n),
        _ => Err(format!("expected {what} from 1, found {text:?}")),
    }
}

/// Reads a number of bytes a second.
fn rate(text: &str) -> Result<u64, String> {
    let bytes = parse_bytes(text.trim().trim_end_matches("/s")).ok();
    bytes.filter(|n| *n > 0).ok_or_else(|| format!("expected bytes a second such as 100MiB, found {text:?}"))
}

#[cfg(test)]
mod tests {
    use super::super::defs::on;
    use super::super::{Complaint, Values};
    use super::*;
    use crate::rules::process::env::Env;

    fn read(flags: &[(&'static str, &str)]) -> (Checkpoints, Vec<Complaint>) {
        let flags = flags.iter().map(|(k, v)| (*k, vec![(*v).to_owned()])).collect();
        let mut complaints = Vec::new();
        let values = Values::gather(on::RUN, flags, &Env::default(), None, &mut complaints);
        let mut reader = Reader::new(&values, complaints);
        let read = Checkpoints::read(&mut reader);
        read.needs_directory(&mut reader);
        (read, reader.complaints)
    }

    #[test]
    fn restore_none_and_a_step_exclude_each_other() {
        let (_, complaints) = read(&[("restore", "none"), ("restore-step", "10")]);
        assert!(complaints[0].message.contains("give only one of the two"), "{complaints:?}");
    }

    #[test]
    fn the_forecast_uses_what_this_machine_knows() {
        let resume_forecast =
            |flags: &[(&'static str, &str)], store, local| read(flags).0.resume_forecast(store, local);
        assert_eq!(resume_forecast(&[], false, Some("ckpt-3")), "from ckpt-3");
        assert!(resume_forecast(&[], false, None).starts_with("from scratch: there is no complete checkpoint here"));
        assert!(resume_forecast(&[("restore", "none")], true, Some("ckpt-3")).contains("--restore is none"));
        assert!(
            resume_forecast(&[], true, Some("ckpt-3"))
                .starts_with("from the newest complete commit, or from ckpt-3 if")
        );
        assert!(resume_forecast(&[], true, None).contains("; from scratch if there is none (the store was not read"));
        let step = resume_forecast(&[("restore-step", "7")], false, None);
        assert!(step.starts_with("refused with 204: there is no complete checkpoint of step 7 here"), "{step}");
        assert!(resume_forecast(&[("restore", "required")], true, None).contains("refused with 204 if there is none"));
    }

    #[test]
    fn a_step_expression_must_be_able_to_match_a_number() {
        for useless in ["", "()", "x*", r"(step-)?", r"\d*?"] {
            let (read, complaints) = read(&[("step-regex", useless)]);
            assert!(read.options.step.is_none(), "{useless:?}");
            assert!(complaints[0].message.contains(r"such as step-(\d+)"), "{complaints:?}");
        }
        for useful in [r"\d+", r"step-(\d+)", r"(\d*)$", r"^ckpt_(\d*)", "[0-9]*"] {
            assert_eq!(read(&[("step-regex", useful)]).1, [], "{useful:?}");
        }
    }

    #[test]
    fn without_settings_the_defaults_apply() {
        let (checkpoints, complaints) = read(&[]);
        assert_eq!(complaints, []);
        assert_eq!(checkpoints.dir, None);
        assert_eq!((checkpoints.settle.as_secs(), checkpoints.interval.as_secs()), (2, 30));
        assert_eq!(checkpoints.retention, Retention { last: 3, every: None, orphan_age: ORPHAN_AGE });
    }

    #[test]
    fn the_case_of_a_format_does_not_matter() {
        for (given, format) in [
            ("AUTO", Format::Auto),
            ("tree", Format::Tree),
            ("DeepSpeed", Format::Only("deepspeed")),
            ("DCP", Format::Only("dcp")),
        ] {
            let (checkpoints, complaints) = read(&[("checkpoint-format", given)]);
            assert_eq!((checkpoints.options.format, complaints.len()), (format, 0), "{given}");
        }
    }

    #[test]
    fn every_mistake_is_reported_with_advice() {
        for (name, value, expected) in [
            ("checkpoint-store", "https://b/p", "AWS_ENDPOINT_URL"),
            ("checkpoint-store", "file:///s", "--checkpoint-dir"),
            ("checkpoint-format", "tensorflo", "did you mean tensorflow?"),
            ("checkpoint-exclude", "a[", "not a glob"),
            ("checkpoint-include", "/", "matches nothing"),
            ("keep-saves", "0", "from 1"),
            ("marker", "a/b", "name of a file"),
            ("step-regex", "(", "regular expression"),
            ("keep-last", "0", "from 1"),
            ("keep-every", "0", "from 1"),
            ("commit-bandwidth", "0", "bytes a second"),
            ("commit-bandwidth", "fast", "bytes a second"),
            ("restore", "lastest", "did you mean latest?"),
            ("restore-step", "-1", "whole number"),
            ("restore-step", "5", "--checkpoint-dir"),
            ("restore", "required", "--checkpoint-dir"),
            ("checkpoint-dir", " ", "found nothing"),
            ("checkpoint-store", "gs://bucket/$JOB_ID", "the variable \"JOB_ID\""),
        ] {
            let (_, complaints) = read(&[(name, value)]);
            assert_eq!(complaints.len(), 1, "{name}={value}: {complaints:?}");
            let line = complaints[0].to_string();
            assert!(line.contains(expected) && !line.contains('\n'), "{line}");
        }
    }
}
