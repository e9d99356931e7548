//! The flags of `trainit simulate` as a plan.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use super::defs::{SIMULATE, Takes};
use super::values::layers::Complaint;
use super::values::suggest::one_of;
use crate::rules::cluster::spec::Role;
use crate::rules::cluster::written::{Notice, Simulated};
use crate::rules::simulate::fault::{self, Fault};
use crate::rules::simulate::{CLOUDS, Plan, platforms, seats};
use crate::rules::text::duration;

/// The plan of a simulation.
#[derive(Debug)]
pub struct SimulateSettings {
    /// The job.
    pub plan: Plan,
    /// The parent of its directories; `None`: a temporary directory.
    pub dir: Option<PathBuf>,
    /// Whether the replicas get a checkpoint directory.
    pub has_checkpoint_dir: bool,
    /// Whether to run the job again without faults.
    pub compare: bool,
    /// Whether each replica that lost its disk must resume.
    pub expect_resume: bool,
    /// The share by which equal results may differ.
    pub tolerance: f64,
    /// The file for the report as JSON.
    pub json: Option<PathBuf>,
    /// The file for the report as a page.
    pub page: Option<PathBuf>,
}

/// The word for notices by SIGTERM.
const SIGNAL: &str = "signal";

/// Reads the flags. `file` reads the schedule. Errors: every mistake.
pub fn read(
    flags: &BTreeMap<&'static str, Vec<String>>,
    file: impl Fn(&str) -> Result<String, String>,
) -> Result<SimulateSettings, Vec<Complaint>> {
    let mut flags = Flags { flags, complaints: Vec::new() };
    let platform = flags.parse("platform", platform);
    let [workers, servers, evaluators] = ["workers", "ps", "evaluators"].map(|name| flags.parse(name, count));
    let limit = flags.parse("limit", not_zero);
    let all = seats::seats(workers.unwrap_or(1), servers.unwrap_or(0), evaluators.unwrap_or(0));
    for (name, role, count) in [("ps", Role::Ps, servers), ("evaluators", Role::Evaluator, evaluators)] {
        if let Some(platform) = platform.filter(|platform| !platform.other_roles.contains(&role))
            && count > Some(0)
        {
            flags.complain(name, format!("{} has no {}; give none, or another --platform", platform.name, role.word()));
        }
    }
    if all.len() > seats::MOST {
        flags.complain("workers", format!("{} replicas are too many; at most {} run here", all.len(), seats::MOST));
    }
    let mut faults = Vec::new();
    if let Some(limit) = limit {
        for kind in ["preempt", "kill", "freeze", "hang"] {
            let kind = fault::kind(kind).into_iter();
            kind.for_each(|kind| faults.extend(flags.each(kind.word(), |text| fault::parse(kind, text, &all, limit))));
        }
        faults.extend(flags.schedule(file, |text| fault::schedule(text, &all, limit)));
        faults.extend(flags.random(all.len(), limit));
    }
    let notice = flags.parse("notice", not_zero);
    let replace_after = flags.parse("replace-after", duration::parse);
    let notice_by = flags.text("notice-by").map(|_| flags.parse("notice-by", notice_by));
    let path = |text: &str| if text.is_empty() { Err("expected a path".to_owned()) } else { Ok(PathBuf::from(text)) };
    let [dir, json, page] = ["dir", "json", "run-report"].map(|name| flags.parse_given(name, path));
    let tolerance = flags.parse("tolerance", share);
    let (lose_disk, expect_resume) = (flags.switch("lose-disk"), flags.switch("expect-resume"));
    if expect_resume && !lose_disk {
        flags.complain("expect-resume", "no replica loses its disk without --lose-disk; give that too".to_owned());
    }
    match (platform, limit, notice, replace_after, tolerance) {
        (Some(platform), Some(limit), Some(notice), Some(replace_after), Some(tolerance))
            if flags.complaints.is_empty() =>
        {
            let notice_by = notice_by.flatten().unwrap_or(platform.notice);
            Ok(SimulateSettings {
                plan: Plan { platform, notice_by, seats: all, faults, notice, lose_disk, replace_after, limit },
                dir,
                has_checkpoint_dir: !flags.switch("no-checkpoint-dir"),
                compare: flags.switch("compare") || expect_resume,
                expect_resume,
                tolerance,
                json,
                page,
            })
        }
        _ => Err(flags.complaints),
    }
}

struct Flags<'a> {
    flags: &'a BTreeMap<&'static str, Vec<String>>,
    complaints: Vec<Complaint>,
}

impl Flags<'_> {
    fn text(&self, name: &str) -> Option<String> {
        let given = self.flags.get(name).and_then(|values| values.last()).cloned();
        let default = SIMULATE.iter().find(|flag| flag.name == name).map(|flag| flag.default);
        given.or_else(|| default.filter(|default| !default.is_empty()).map(str::to_owned))
    }

    fn switch(&self, name: &str) -> bool {
        debug_assert!(SIMULATE.iter().any(|flag| flag.name == name && flag.takes == Takes::Switch));
        self.flags.contains_key(name)
    }

    fn parse<T>(&mut self, name: &str, parse: impl FnOnce(&str) -> Result<T, String>) -> Option<T> {
        let text = self.text(name)?;
        parse(&text).map_err(|message| self.complain(name, message)).ok()
    }

    /// A flag without a default.
    fn parse_given<T>(&mut self, name: &str, parse: impl FnOnce(&str) -> Result<T, String>) -> Option<T> {
        self.text(name).and_then(|_| self.parse(name, parse))
    }

    fn each<T>(&mut self, name: &str, parse: impl Fn(&str) -> Result<T, String>) -> Vec<T> {
        let texts = self.flags.get(name).cloned().unwrap_or_default();
        let read = texts.iter().map(|text| parse(text));
        let (good, bad): (Vec<_>, Vec<_>) = read.partition(Result::is_ok);
        bad.into_iter().filter_map(Result::err).for_each(|message| self.complain(name, message));
        good.into_iter().flatten().collect()
    }

    fn schedule(
        &mut self,
        file: impl Fn(&str) -> Result<String, String>,
        parse: impl Fn(&str) -> Result<Vec<Fault>, Vec<String>>,
    ) -> Vec<Fault> {
        let Some(path) = self.text("schedule") else { return Vec::new() };
        match file(&path).map_err(|why| vec![why]).and_then(|text| parse(&text)) {
            Ok(faults) => faults,
            Err(mistakes) => {
                mistakes.into_iter().for_each(|mistake| self.complain("schedule", format!("{path}: {mistake}")));
                Vec::new()
            }
        }
    }

    fn random(&mut self, seats: usize, limit: Duration) -> Vec<Fault> {
        let whole = |text: &str| text.trim().parse().map_err(|_| format!("expected a whole number, found {text:?}"));
        let seed = self.parse("seed", whole);
        let rate = self.parse_given("random", fault::rate);
        let (Some(rate), Some(seed)) = (rate, seed) else { return Vec::new() };
        self.parse("random", |_| fault::random(rate, seed, seats, limit)).unwrap_or_default()
    }

    fn complain(&mut self, name: &str, message: String) {
        self.complaints.push(Complaint { place: format!("--{name}"), message });
    }
}

fn platform(text: &str) -> Result<&'static Simulated, String> {
    let names: Vec<&str> = platforms().map(|platform| platform.name).collect();
    let name = one_of(text, &names)?;
    platforms().find(|platform| platform.name == name).ok_or_else(|| format!("{name} cannot be simulated"))
}

fn notice_by(text: &str) -> Result<Notice, String> {
    let words: Vec<&str> = [SIGNAL].into_iter().chain(CLOUDS).collect();
    let word = one_of(text, &words)?;
    let cloud = CLOUDS.into_iter().find(|cloud| *cloud == word);
    Ok(cloud.map_or(Notice::Signal, Notice::Cloud))
}

fn count(text: &str) -> Result<u32, String> {
    let found = text.trim().parse().ok().filter(|count| *count as usize <= seats::MOST);
    found.ok_or_else(|| format!("expected a number from 0 to {}, found {text:?}", seats::MOST))
}

fn share(text: &str) -> Result<f64, String> {
    let found = text.trim().parse().ok().filter(|share| (0.0..=1.0).contains(share));
    found.ok_or_else(|| format!("expected a share from 0 to 1, as 0.01, found {text:?}"))
}

fn not_zero(text: &str) -> Result<Duration, String> {
    match duration::parse(text)? {
        Duration::ZERO => Err(format!("expected a time above 0, found {text:?}")),
        time => Ok(time),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read_from(flags: &[(&'static str, &str)]) -> Result<SimulateSettings, Vec<String>> {
        let mut all: BTreeMap<&'static str, Vec<String>> = BTreeMap::new();
        flags.iter().for_each(|(name, value)| all.entry(name).or_default().push((*value).to_owned()));
        let file = |path: &str| match path {
            "drill" => Ok("kill chief@1s\n".to_owned()),
            _ => Err("no such file".to_owned()),
        };
        read(&all, file).map_err(|complaints| complaints.iter().map(ToString::to_string).collect())
    }

    #[test]
    fn without_flags_it_is_a_chief_and_a_worker_on_vertex_without_faults() {
        let settings = read_from(&[]).expect("nothing is needed");
        let plan = &settings.plan;
        assert_eq!((plan.platform.name, plan.seats.len(), plan.faults.len()), ("vertex", 2, 0));
        assert_eq!((plan.notice_by, plan.notice), (Notice::Cloud("gce"), Duration::from_secs(30)));
        assert!(settings.has_checkpoint_dir && settings.dir.is_none());
    }

    #[test]
    fn faults_come_from_flags_the_schedule_and_the_seed() {
        let flags = [
            ("preempt", "worker-0@1s"),
            ("preempt", "worker-0@2s"),
            ("freeze", "chief@1s+1s"),
            ("schedule", "drill"),
            ("random", "60/10m"),
        ];
        let faults = read_from(&flags).expect("sound").plan.faults;
        assert!(faults.len() > 20, "{}", faults.len());
        let again = read_from(&flags).expect("sound").plan.faults;
        assert_eq!(faults, again);
        let other = read_from(&[&flags[..], &[("seed", "2")]].concat()).expect("sound").plan.faults;
        assert_ne!(faults, other);
    }

    #[test]
    fn every_mistake_is_reported_at_once() {
        let wrong = [
            ("platform", "vertx"),
            ("workers", "many"),
            ("limit", "1m"),
            ("kill", "worker-3@1s"),
            ("preempt", "chief@2m"),
            ("schedule", "absent"),
            ("random", "often"),
            ("seed", "x"),
            ("notice", "0s"),
            ("notice-by", "mail"),
            ("tolerance", "2"),
            ("expect-resume", ""),
        ];
        let lines = read_from(&wrong).expect_err("all of it");
        let texts = lines.join("\n");
        for (name, part) in [
            ("platform", "did you mean vertex?"),
            ("workers", "expected a number"),
            ("kill", "no replica \"worker-3\""),
            ("preempt", "beyond the time limit"),
            ("schedule", "absent: no such file"),
            ("random", "2/5m"),
            ("seed", "whole number"),
            ("notice", "above 0"),
            ("notice-by", "signal, gce, aws, azure"),
            ("tolerance", "from 0 to 1"),
            ("expect-resume", "--lose-disk"),
        ] {
            let is_it = |line: &&String| line.starts_with(&format!("--{name}: ")) && line.contains(part);
            assert!(lines.iter().any(|line| is_it(&line)), "{name}: {texts}");
        }
        let lines = read_from(&[("platform", "slurm"), ("ps", "1")]).expect_err("Slurm has none");
        assert!(lines.len() == 1 && lines[0].contains("slurm has no ps"), "{lines:?}");
    }
}
