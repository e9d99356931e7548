//! All runs of a job together: the time by cause with the waits between runs, faults, recoveries, hosts and the advice.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;

use super::advice::{Advice, Saves, prior};
use super::run::Run;

/// The causes of time within a run, in the order of the report; then the waits between runs.
pub const CAUSES: [&str; 9] =
    ["start", "peers", "restore", "first_step", "repeated", "training", "commit", "stopped", BETWEEN];
const BETWEEN: &str = "between";
/// The causes that a start of the command costs.
const STARTING: [&str; 4] = ["start", "peers", "restore", "first_step"];
/// Faults of different seats within this time are one fault of the job, in seconds.
const TOGETHER: f64 = 60.0;
/// A host is suspect from this many faults on, if its share of the faults is this many times its share of the time.
const SUSPECT_FAULTS: u64 = 3;
const SUSPECT_SHARE: f64 = 1.5;

/// The whole life.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Life {
    /// The sum of [`Life::seconds`].
    pub wall_seconds: f64,
    /// The share of training.
    pub goodput: f64,
    /// Machine-seconds by cause.
    pub seconds: BTreeMap<&'static str, f64>,
    /// The runs, in the order of their attempts.
    pub runs: Vec<Shown>,
    /// The faults.
    pub faults: Faults,
    /// Mean seconds of a recovery.
    pub recovery: Recovery,
    /// What the faults cost.
    pub lost: Lost,
    /// The hosts, those with the most faults first.
    pub hosts: Vec<Host>,
    /// How often to save; absent without a step or a save.
    pub advice: Option<Advice>,
    /// Lines about what looks wrong.
    #[serde(skip)]
    pub notes: Vec<String>,
}

/// One run in the report.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[allow(missing_docs, reason = "each is the field of a run with this name")]
pub struct Shown {
    pub seat: String,
    pub attempt: u64,
    pub host: String,
    pub platform: String,
    pub started: String,
    pub ended: Option<String>,
    pub reason: String,
    pub exit_code: Option<u8>,
    pub resumed_step: Option<u64>,
    pub first_step: Option<u64>,
    pub last_step: Option<u64>,
    pub commits: u64,
    pub seconds: BTreeMap<String, f64>,
}

/// Faults: runs that did not finish, and failures after which a run started the command again.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Faults {
    /// Their number.
    pub count: u64,
    /// The mean time of the job between two of them; absent below two.
    pub mtbf_seconds: Option<f64>,
    /// Their number by reason.
    pub by_reason: BTreeMap<String, u64>,
}

/// Mean seconds; absent if there was none.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Recovery {
    /// From the request to stop, or the failure, until no process was left.
    pub stop: Option<f64>,
    /// From the end of a run to the start of the next one.
    pub between: Option<f64>,
    /// Of a restore, for each later start of the command.
    pub restore: Option<f64>,
    /// From the start of the command to its first step, for each later start.
    pub first_step: Option<f64>,
}

/// What the faults cost.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Lost {
    /// Repeated steps, waits between runs, stops, and the starts after the first.
    pub machine_seconds: f64,
    /// Repeated steps.
    pub steps: u64,
}

/// A host.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Host {
    /// Its name.
    pub host: String,
    /// Its runs.
    pub runs: u64,
    /// The faults there.
    pub faults: u64,
    /// Whether it failed more than its share.
    pub suspect: bool,
}

/// A fault of the job.
struct Fault<'a> {
    at: f64,
    seat: &'a str,
    host: &'a str,
    reason: &'a str,
}

impl Life {
    /// All runs; `None`: there is none.
    pub fn of(runs: Vec<Run>) -> Option<Life> {
        let (mut runs, mut notes) = of_one_job(runs);
        runs.sort_by(|a, b| (&a.identity.seat, a.attempt).cmp(&(&b.identity.seat, b.attempt)));
        if runs.is_empty() {
            return None;
        }
        let seats: Vec<&[Run]> = runs.chunk_by(|a, b| a.identity.seat == b.identity.seat).collect();
        let waits = waits(&seats, &mut notes);
        let mut seconds: BTreeMap<&str, f64> = CAUSES.map(|cause| (cause, 0.0)).into();
        for (cause, sum) in &mut seconds {
            *sum = runs.iter().map(|run| run.of(cause)).sum();
        }
        // A cause of a later version of this form.
        let known: f64 = seconds.values().sum();
        *seconds.entry("training").or_default() += runs.iter().map(Run::duration).sum::<f64>() - known;
        seconds.insert(BETWEEN, waits.iter().sum());
        seconds.values_mut().for_each(|sum| *sum = rounded(*sum));
        let wall = seconds.values().sum::<f64>();
        let job_seconds = (wall - seconds[BETWEEN]) / seats.len() as f64;
        let found = faults(&runs);
        let faults = Faults::of(&found, job_seconds);
        let accelerators =
            seats.iter().filter_map(|runs| runs.last()).map(|run| u64::from(run.identity.gpus.max(1))).sum();
        let advice = advice(&runs, &faults, job_seconds, accelerators);
        Some(Life {
            wall_seconds: rounded(wall),
            goodput: if wall > 0.0 { rounded(seconds["training"] / wall) } else { 0.0 },
            recovery: Recovery::of(&seats, &waits),
            lost: Lost::of(&seats, &seconds),
            hosts: hosts(&runs, &found),
            advice,
            faults,
            seconds,
            notes,
            runs: shown(runs),
        })
    }
}

fn rounded(seconds: f64) -> f64 {
    (seconds * 1000.0).round() / 1000.0
}

fn mean(sum: f64, count: usize) -> Option<f64> {
    (count > 0).then(|| rounded(sum / count as f64))
}

/// The runs of the job that most of them are of; a run with another id counts if it resumed from a checkpoint of this store.
fn of_one_job(runs: Vec<Run>) -> (Vec<Run>, Vec<String>) {
    let mut counts = BTreeMap::<&str, usize>::new();
    for run in runs.iter().filter(|run| !run.identity.job.is_empty()) {
        *counts.entry(&run.identity.job).or_default() += 1;
    }
    let Some(main) = counts.into_iter().max_by_key(|(_, count)| *count).map(|(job, _)| job.to_owned()) else {
        return (runs, Vec::new());
    };
    let is_own = |run: &Run| run.identity.job.is_empty() || run.identity.job == main || run.resumed_step.is_some();
    let (own, other): (Vec<Run>, Vec<Run>) = runs.into_iter().partition(is_own);
    let note = other.first().map(|run| {
        format!(
            "{} of another job ({:?}, and here {main:?}) and resumed from nothing here, so {} left out; give each job its own prefix",
            if other.len() == 1 { "1 run is".to_owned() } else { format!("{} runs are", other.len()) },
            run.identity.job,
            if other.len() == 1 { "it is" } else { "they are" },
        )
    });
    (own, note.into_iter().collect())
}

/// The waits between the runs of each seat. A clock that was set back makes a wait of 0.
fn waits(seats: &[&[Run]], notes: &mut Vec<String>) -> Vec<f64> {
    let mut back = 0;
    let pairs = seats.iter().flat_map(|runs| runs.windows(2));
    let waits = pairs.map(|pair| pair[1].span().0 - pair[0].span().1);
    // Times are in milliseconds.
    let waits = waits.inspect(|wait| back += usize::from(*wait < -0.002)).map(|wait| wait.max(0.0)).collect();
    if back > 0 {
        notes.push(format!(
            "{back} of the waits between runs would be negative, because a machine's clock was set back or is wrong: each counts as 0"
        ));
    }
    waits
}

/// The faults of the job in the order of time. Faults of several seats at about the same time are one: the first.
fn faults(runs: &[Run]) -> Vec<Fault<'_>> {
    let mut found = Vec::new();
    for run in runs {
        let fault = |at, reason| Fault { at, seat: &run.identity.seat, host: &run.identity.host, reason };
        let (started, ended) = run.span();
        for (reason, count) in &run.failures {
            // The object does not tell when they were.
            found.extend((0..(*count).min(10_000)).map(|_| fault(started, reason)));
        }
        found.extend(run.is_fault().then(|| fault(ended, run.why())));
    }
    found.sort_by(|a, b| a.at.total_cmp(&b.at));
    let (mut last, mut seats): (f64, BTreeSet<&str>) = (f64::MIN, BTreeSet::new());
    found.retain(|fault| {
        if fault.at - last > TOGETHER {
            seats.clear();
        }
        // Each seat takes part in one fault once.
        if !seats.insert(fault.seat) {
            seats = [fault.seat].into();
        }
        let is_first = seats.len() == 1;
        last = if is_first { fault.at } else { last };
        is_first
    });
    found
}

impl Faults {
    fn of(found: &[Fault<'_>], job_seconds: f64) -> Faults {
        let mut by_reason = BTreeMap::new();
        for fault in found {
            *by_reason.entry(fault.reason.to_owned()).or_default() += 1;
        }
        let mtbf_seconds = mean(job_seconds, found.len()).filter(|_| found.len() > 1);
        Faults { count: found.len() as u64, mtbf_seconds, by_reason }
    }
}

/// Starts of the command after the first one of a seat, and the seconds of a cause in them. A run does not tell the seconds of
/// each start, so each has the same share of its run.
fn later_starts(seats: &[&[Run]], cause: &str) -> (usize, f64) {
    let runs = seats.iter().flat_map(|runs| runs.iter().enumerate());
    runs.fold((0, 0.0), |(count, sum), (at, run)| {
        let (starts, later) = (run.starts as usize, run.starts.saturating_sub(u32::from(at == 0)) as usize);
        (count + later, sum + run.of(cause) * if starts > 0 { later as f64 / starts as f64 } else { 0.0 })
    })
}

impl Recovery {
    fn of(seats: &[&[Run]], waits: &[f64]) -> Recovery {
        let later = |cause| {
            let (count, sum) = later_starts(seats, cause);
            mean(sum, count)
        };
        let runs = || seats.iter().flat_map(|runs| runs.iter());
        let stops = runs().filter(|run| run.is_fault() && run.ended.is_some()).count();
        let restarts: usize = runs().map(|run| run.starts.saturating_sub(1) as usize).sum();
        let stopped = runs().filter(|run| run.is_fault() || run.starts > 1).map(|run| run.of("stopped")).sum();
        Recovery {
            stop: mean(stopped, stops + restarts),
            between: mean(waits.iter().sum(), waits.len()),
            restore: later("restore"),
            first_step: later("first_step"),
        }
    }
}

impl Lost {
    fn of(seats: &[&[Run]], seconds: &BTreeMap<&str, f64>) -> Lost {
        let finished = seats.iter().flat_map(|runs| runs.iter()).filter(|run| !run.is_fault() && run.starts < 2);
        let starts: f64 = STARTING.map(|cause| later_starts(seats, cause).1).iter().sum();
        let stops = seconds["stopped"] - finished.map(|run| run.of("stopped")).sum::<f64>();
        Lost {
            machine_seconds: rounded(seconds["repeated"] + seconds[BETWEEN] + starts + stops.max(0.0)),
            steps: seats.iter().map(|runs| repeated_steps(runs)).sum(),
        }
    }
}

/// The repeated steps of a seat: as its runs counted them, or, if a run did not know the earlier ones, from its first step.
fn repeated_steps(runs: &[Run]) -> u64 {
    let mut reached: Option<u64> = None;
    let mut sum = 0u64;
    for run in runs {
        let again = match (run.first_step, run.last_step, reached) {
            (Some(first), Some(last), Some(reached)) => (last.min(reached).saturating_add(1)).saturating_sub(first),
            _ => 0,
        };
        sum = sum.saturating_add(again.max(run.repeated_steps));
        reached = reached.max(run.last_step).max(run.resumed_step);
    }
    sum
}

fn hosts(runs: &[Run], faults: &[Fault<'_>]) -> Vec<Host> {
    let mut hosts = BTreeMap::<&str, (u64, u64, f64)>::new();
    for run in runs {
        let of = hosts.entry(&run.identity.host).or_default();
        (of.0, of.2) = (of.0 + 1, of.2 + run.duration());
    }
    for fault in faults {
        hosts.entry(fault.host).or_default().1 += 1;
    }
    let (all_faults, time) = (faults.len() as f64, hosts.values().map(|(_, _, time)| time).sum::<f64>());
    let is_suspect = |faults: u64, own: f64| {
        faults >= SUSPECT_FAULTS && faults as f64 / all_faults > SUSPECT_SHARE * own / time.max(1e-9)
    };
    let host = |(host, (runs, faults, own)): (&str, (u64, u64, f64))| Host {
        host: host.to_owned(),
        runs,
        faults,
        suspect: is_suspect(faults, own),
    };
    let mut hosts: Vec<Host> = hosts.into_iter().map(host).collect();
    hosts.sort_by(|a, b| b.faults.cmp(&a.faults).then_with(|| a.host.cmp(&b.host)));
    hosts
}

/// The advice, from the newest run that measured its saves.
fn advice(runs: &[Run], faults: &Faults, job_seconds: f64, accelerators: u64) -> Option<Advice> {
    if runs.iter().all(|run| run.last_step.is_none()) {
        return None;
    }
    let saved: Vec<&Run> = runs.iter().filter(|run| run.commits > 0).collect();
    let newest = saved.iter().max_by_key(|run| run.attempt)?;
    let newest_of = |value: fn(&Run) -> Option<f64>| {
        saved
            .iter()
            .filter_map(|run| Some((run.attempt, value(run)?)))
            .max_by_key(|(attempt, _)| *attempt)
            .map(|it| it.1)
    };
    let written = newest.commit_seconds / newest.commits as f64;
    let one = if faults.count == 1 { job_seconds } else { f64::MAX };
    let between_faults = faults.mtbf_seconds.unwrap_or_else(|| prior(accelerators).min(one));
    let saves = Saves {
        stall: newest_of(|run| run.stall_seconds).unwrap_or(written),
        interval: newest_of(|run| run.save_interval_seconds),
        between_faults,
    };
    Some(saves.advice())
}

impl Run {
    /// The advice that this run alone can give, with what the runs before it told.
    pub fn advice(&self) -> Option<Advice> {
        let all = self.tells();
        let faults = Faults {
            count: all.faults,
            mtbf_seconds: (all.faults > 1).then(|| all.seconds / all.faults as f64),
            by_reason: BTreeMap::new(),
        };
        let accelerators = u64::from(self.identity.nodes.max(1)) * u64::from(self.identity.gpus.max(1));
        advice(std::slice::from_ref(self), &faults, all.seconds, accelerators)
    }
}

fn shown(mut runs: Vec<Run>) -> Vec<Shown> {
    runs.sort_by(|a, b| (a.attempt, &a.identity.seat).cmp(&(b.attempt, &b.identity.seat)));
    let one = |run: Run| Shown {
        reason: run.why().to_owned(),
        seat: run.identity.seat,
        attempt: run.attempt,
        host: run.identity.host,
        platform: run.identity.platform,
        started: run.started,
        ended: run.ended,
        exit_code: run.exit_code,
        resumed_step: run.resumed_step,
        first_step: run.first_step,
        last_step: run.last_step,
        commits: run.commits,
        seconds: run.seconds,
    };
    runs.into_iter().map(one).collect()
}

#[cfg(test)]
mod tests;
