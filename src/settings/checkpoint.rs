//! The settings of checkpoints and their store, typed.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::Duration;

use regex::Regex;

use super::Reader;
use super::nearest::one_of;
use crate::rules::checkpoint::address::Address;
use crate::rules::checkpoint::plan::Retention;
use crate::rules::checkpoint::{LAYOUTS, Options};
use crate::rules::duration;
use crate::rules::gpu::demand::parse_bytes;

/// What was said about checkpoints.
#[derive(Debug, Clone)]
pub struct Checkpoints {
    /// Where the trainer writes them; `None` leaves checkpoints alone altogether.
    pub dir: Option<PathBuf>,
    /// Where they are committed.
    pub store: Option<Address>,
    /// Whether a store may be asked by plain http wherever it is.
    pub allow_http: bool,
    /// Their form; the number of processes is for the caller to add.
    pub options: Options,
    /// Where the finished model is written, which is no checkpoint.
    pub model_dir: Option<PathBuf>,
    /// How long one must lie unchanged.
    pub settle: Duration,
    /// How often to look while training.
    pub interval: Duration,
    /// Bytes a second that commits may take from the trainer's network.
    pub bandwidth: Option<u64>,
    /// What to keep in the store.
    pub retention: Retention,
    /// Whether to resume.
    pub restore: Resuming,
    /// From which step.
    pub restore_step: Option<u64>,
    /// Whether to hash each file strongly, beside its checksum.
    pub strong: bool,
    /// Whether each is an object of its own in a bucket, however many and small they are.
    pub apart: bool,
    /// Which step to commit by hand.
    pub push_step: Option<u64>,
}

/// A name that is nothing but a step.
const A_STEP: &str = "1234567890";

/// Data of no commit is left alone for this long.
const ORPHAN_AGE: Duration = Duration::from_secs(24 * 3600);

/// `--restore`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs, reason = "the words of the flag")]
pub enum Resuming {
    Latest,
    Required,
    None,
}

impl Checkpoints {
    /// Reads the topic; mistakes go to the reader.
    pub fn read(reader: &mut Reader) -> Checkpoints {
        let dir = reader.path("checkpoint-dir");
        let store = reader.store("checkpoint-store");
        let format = reader.parse("checkpoint-format", format).flatten();
        let marker = reader.parse("marker", file_name);
        if marker.is_none() && format.as_deref() == Some("marker") {
            reader.complain_of_lack("checkpoint-format", "the format marker needs --marker NAME".to_owned());
        }
        let step = reader.parse("step-regex", regex);
        let every = reader.parse("keep-every", |text| from_one(text, "a number of steps"));
        let last = reader.parse("keep-last", |text| from_one(text, "a whole number"));
        let restore_step = reader.count("restore-step");
        let words = [("latest", Resuming::Latest), ("required", Resuming::Required), ("none", Resuming::None)];
        let restore = reader.choice("restore", &words).unwrap_or(Resuming::Latest);
        if restore == Resuming::None && restore_step.is_some() {
            reader.complain("restore-step", "with --restore none nothing is restored; give one of the two".to_owned());
        }
        Checkpoints {
            dir,
            store,
            allow_http: reader.switch("allow-http"),
            options: Options {
                format,
                marker,
                step,
                follow: reader.switch("follow-symlinks"),
                world_size: None,
                begun_ns: 0,
                has_other_nodes: false,
                left_out: None,
                restless: BTreeSet::new(),
            },
            model_dir: None,
            settle: reader.parse("settle", duration::parse).unwrap_or(Duration::from_secs(2)),
            interval: reader.parse("mirror-interval", duration::parse).unwrap_or(Duration::from_secs(30)),
            bandwidth: reader.parse("mirror-bandwidth", rate),
            retention: Retention {
                last: last.unwrap_or(3),
                every,
                orphan_age: reader.parse("orphan-age", duration::parse).unwrap_or(ORPHAN_AGE),
            },
            restore,
            restore_step,
            strong: reader.switch("strong-hash"),
            apart: reader.switch("one-object-per-file"),
            push_step: reader.count("push-step"),
        }
    }

    /// What a start would resume from, as far as it can be said without asking the store: `local` is the newest complete
    /// checkpoint that lies in the directory, of the step that is asked for if there is one.
    pub fn foreseen(&self, has_store: bool, local: Option<&str>) -> String {
        let of_step = self.restore_step.map_or(String::new(), |step| format!(" of step {step}"));
        let must = self.restore == Resuming::Required || self.restore_step.is_some();
        let without = if must { "refused with 204" } else { "from the beginning" };
        match (has_store, local) {
            _ if self.restore == Resuming::None => "from the beginning: --restore is none".to_owned(),
            (false, Some(unit)) => format!("from {unit}"),
            (false, None) => format!("{without}: no complete checkpoint{of_step} lies here, and there is no store"),
            (true, local) => {
                let here = local.map_or(String::new(), |unit| format!(", or from {unit} where that is newer"));
                let without =
                    if local.is_some() && !must { String::new() } else { format!("; {without} where there is none") };
                let ask = "the store was not asked, `trainit checkpoint list` does";
                format!("from the newest whole commit{of_step}{here}{without} ({ask})")
            }
        }
    }

    /// Whoever commits needs a directory to commit from, and whoever must restore one to restore into: without it the job
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
            reader.complain_of_lack(name, format!("{what} {why}"));
        }
    }
}

/// `None`: it is found out.
fn format(text: &str) -> Result<Option<String>, String> {
    let known: Vec<&str> = std::iter::once("auto").chain(LAYOUTS.iter().map(|l| l.name)).collect();
    Ok(Some(one_of(text, &known)?).filter(|word| *word != "auto").map(str::to_owned))
}

fn file_name(text: &str) -> Result<String, String> {
    let is_name = !text.is_empty() && !text.contains('/') && text != "." && text != "..";
    if is_name { Ok(text.to_owned()) } else { Err(format!("expected the name of a file, found {text:?}")) }
}

/// Finds a step.
fn regex(text: &str) -> Result<Regex, String> {
    let regex = Regex::new(text).map_err(|error| {
        let why = error.to_string();
        let why = why.lines().last().unwrap_or_default().trim_start_matches("error: ").to_owned();
        format!("{text:?} is no regular expression: {why}")
    })?;
    let found = regex.captures(A_STEP);
    if found.is_some_and(|found| found.get(1).or(found.get(0)).is_none_or(|found| found.is_empty())) {
        return Err(format!(
            "{text:?} finds the empty text even in {A_STEP}, so no checkpoint would have a step; expected one that finds its digits, such as step-(\\d+)"
        ));
    }
    Ok(regex)
}

fn from_one(text: &str, what: &str) -> Result<u64, String> {
    match text.trim().parse() {
        Ok(n) if n > 0 => Ok(n),
        _ => Err(format!("expected {what} from 1, found {text:?}")),
    }
}

/// Bytes a second.
fn rate(text: &str) -> Result<u64, String> {
    let bytes = parse_bytes(text.trim().trim_end_matches("/s")).ok();
    bytes.filter(|n| *n > 0).ok_or_else(|| format!("expected bytes a second such as 100MiB, found {text:?}"))
}

#[cfg(test)]
mod tests {
    use super::super::defs::on;
    use super::super::{Complaint, Values};
    use super::*;
    use crate::rules::env::Env;

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
    fn from_scratch_and_from_a_step_are_not_asked_for_together() {
        let (_, complaints) = read(&[("restore", "none"), ("restore-step", "10")]);
        assert!(complaints[0].message.contains("give one of the two"), "{complaints:?}");
    }

    #[test]
    fn what_a_start_resumes_from_is_foreseen_as_far_as_this_machine_knows() {
        let foreseen = |flags: &[(&'static str, &str)], store, local| read(flags).0.foreseen(store, local);
        assert_eq!(foreseen(&[], false, Some("ckpt-3")), "from ckpt-3");
        assert!(foreseen(&[], false, None).starts_with("from the beginning: no complete checkpoint lies here"));
        assert!(foreseen(&[("restore", "none")], true, Some("ckpt-3")).contains("--restore is none"));
        assert!(foreseen(&[], true, Some("ckpt-3")).starts_with("from the newest whole commit, or from ckpt-3 where"));
        assert!(
            foreseen(&[], true, None).contains("; from the beginning where there is none (the store was not asked")
        );
        let step = foreseen(&[("restore-step", "7")], false, None);
        assert!(step.starts_with("refused with 204: no complete checkpoint of step 7 lies here"), "{step}");
        assert!(foreseen(&[("restore", "required")], true, None).contains("refused with 204 where there is none"));
    }

    #[test]
    fn a_step_is_looked_for_by_what_can_find_a_number() {
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
    fn nothing_said_is_the_defaults() {
        let (checkpoints, complaints) = read(&[]);
        assert_eq!(complaints, []);
        assert_eq!(checkpoints.dir, None);
        assert_eq!((checkpoints.settle.as_secs(), checkpoints.interval.as_secs()), (2, 30));
        assert_eq!(checkpoints.retention, Retention { last: 3, every: None, orphan_age: ORPHAN_AGE });
    }

    #[test]
    fn the_case_of_a_format_does_not_matter() {
        for (given, format) in [("AUTO", None), ("auto", None), ("DeepSpeed", Some("deepspeed")), ("DCP", Some("dcp"))]
        {
            let (checkpoints, complaints) = read(&[("checkpoint-format", given)]);
            assert_eq!((checkpoints.options.format.as_deref(), complaints.len()), (format, 0), "{given}");
        }
    }

    #[test]
    fn every_mistake_is_named_with_the_way_out() {
        for (name, value, expected) in [
            ("checkpoint-store", "https://b/p", "AWS_ENDPOINT_URL"),
            ("checkpoint-store", "file:///s", "--checkpoint-dir"),
            ("checkpoint-format", "tensorflo", "did you mean tensorflow?"),
            ("checkpoint-format", "marker", "--marker"),
            ("marker", "a/b", "name of a file"),
            ("step-regex", "(", "regular expression"),
            ("keep-last", "0", "from 1"),
            ("keep-every", "0", "from 1"),
            ("mirror-bandwidth", "0", "bytes a second"),
            ("mirror-bandwidth", "fast", "bytes a second"),
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
