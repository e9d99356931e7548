//! The report of a simulated job: one value for the JSON file, and the table for people.

use std::fmt::Write as _;
use std::time::Duration;

use serde::Serialize;
use serde_json::Value;

use super::account::Seconds;
use super::findings;
use super::machine::{Outcome, Simulation};
use super::replica::{Life, Replica};
use super::seats::name;
use crate::cluster::seat::Seat;
use crate::process::exit;

/// The report.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Report {
    /// The platform's name.
    pub platform: &'static str,
    /// Whether the platform reports the job as succeeded.
    pub succeeded: bool,
    /// The signal by which the user ended it.
    pub signal: Option<i32>,
    /// Why the job failed.
    pub why: Option<String>,
    /// The duration of the job.
    pub seconds: f64,
    /// The time of all training replicas, by cause.
    pub time: Seconds,
    /// The share of productive time.
    pub goodput: Option<f64>,
    /// The newest generation of the gang.
    pub generation: Option<u64>,
    /// The faults, in the order of time.
    pub faults: Vec<FaultReport>,
    /// The replicas.
    pub replicas: Vec<ReplicaReport>,
    /// What was asked for and did not happen, a sentence for each.
    pub problems: Vec<String>,
    /// The same job without faults.
    pub undisturbed: Option<Box<Report>>,
}

/// The lives of a replica, for the page.
#[derive(Debug, Clone, Default)]
pub(super) struct Track {
    /// From the start of each attempt to its end, and whether it failed.
    pub(super) attempts: Vec<(f64, f64, bool)>,
    pub(super) commits: Vec<f64>,
}

/// A fault that happened.
#[derive(Debug, Clone, Serialize)]
pub struct FaultReport {
    /// `preempt`, `kill` or `freeze`.
    pub kind: &'static str,
    /// The replica.
    pub replica: String,
    /// Seconds after the start.
    pub seconds: f64,
    /// The replica was not running.
    pub missed: bool,
}

/// One replica.
#[derive(Debug, Clone, Default, Serialize)]
pub struct ReplicaReport {
    /// `worker-1`.
    pub name: String,
    /// How often it was started.
    pub starts: u32,
    /// Its exit codes.
    pub exits: Vec<u8>,
    /// The highest step that it reported.
    pub step: Option<u64>,
    /// Steps that it repeated.
    pub repeated_steps: u64,
    /// The newest step in the store, by its last verdict.
    pub committed_step: Option<u64>,
    /// Its last loss.
    pub loss: Option<f64>,
    /// Its time by cause.
    pub time: Seconds,
    /// Of each life that began with an empty disk: the step that it resumed from.
    pub resumed_steps: Vec<Option<u64>>,
    /// The verdicts of its lives.
    pub verdicts: Vec<Value>,
    #[serde(skip)]
    pub(super) track: Track,
}

impl Report {
    /// The report of a job that is over.
    pub fn of(simulation: &Simulation, now: Duration) -> Report {
        let plan = simulation.plan();
        let why = match simulation.outcome() {
            Some(Outcome::Succeeded) => None,
            Some(Outcome::Failed(why)) => Some(why.clone()),
            Some(Outcome::Interrupted(_)) => Some("it was interrupted".to_owned()),
            None => Some("it was not finished".to_owned()),
        };
        let mut time = Seconds::default();
        let pairs = || plan.seats.iter().zip(simulation.replicas());
        pairs().filter(|(seat, _)| seat.trains()).for_each(|(_, replica)| time.add(&replica.account.seconds()));
        let mut faults: Vec<FaultReport> = simulation
            .fault_records()
            .iter()
            .filter_map(|record| {
                Some(FaultReport {
                    kind: record.fault.kind.word(),
                    replica: name(plan.seats[record.fault.replica]),
                    seconds: rounded(record.at?.as_secs_f64()),
                    missed: record.is_missed,
                })
            })
            .collect();
        faults.sort_by(|one, other| one.seconds.total_cmp(&other.seconds));
        Report {
            platform: plan.platform.name,
            succeeded: why.is_none(),
            signal: match simulation.outcome() {
                Some(Outcome::Interrupted(signal)) => Some(signal.number()),
                _ => None,
            },
            why,
            seconds: rounded(now.as_secs_f64()),
            time: time.rounded(),
            goodput: time.goodput().map(rounded),
            generation: simulation.generation(),
            faults,
            replicas: pairs().map(|(seat, replica)| ReplicaReport::of(*seat, replica, now)).collect(),
            problems: findings::of(simulation),
            undisturbed: None,
        }
    }

    /// Whether the platform reports success, and everything happened that was asked for.
    pub fn is_good(&self) -> bool {
        self.succeeded && self.problems.is_empty()
    }

    /// The table for people.
    pub fn table(&self) -> String {
        let mut text = String::new();
        let mut rows = vec![HEADS.map(str::to_owned)];
        rows.extend(self.replicas.iter().map(ReplicaReport::row));
        let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
        let widths: Vec<usize> = (0..HEADS.len()).map(width).collect();
        for row in &rows {
            let cells = row.iter().zip(&widths).map(|(cell, width)| format!("{cell:width$}"));
            let _ = writeln!(text, "{}", cells.collect::<Vec<_>>().join("  ").trim_end());
        }
        let _ = writeln!(text, "\n{}", self.summary());
        text
    }

    /// The sentences below the table.
    pub fn summary(&self) -> String {
        let mut lines = vec![match &self.why {
            None => format!("{} would call this job succeeded, after {:.1}s.", self.platform, self.seconds),
            Some(why) => format!("{} would not call this job succeeded: {why}.", self.platform),
        }];
        lines.extend(self.problems.iter().map(|problem| format!("Not as asked: {problem}.")));
        if !self.faults.is_empty() {
            let shown = self.faults.iter().map(|fault| {
                let missed = if fault.missed { ", missed" } else { "" };
                format!("{} {} ({:.1}s{missed})", fault.kind, fault.replica, fault.seconds)
            });
            lines.push(format!("Faults: {}.", shown.collect::<Vec<_>>().join(", ")));
        }
        if let Some(generation) = self.generation {
            lines.push(format!("The gang has reached generation {generation}."));
        }
        let share = |part: f64| format!("{:.0}%", 100.0 * part / self.time.total().max(f64::MIN_POSITIVE));
        let causes = self.time.named().map(|(cause, seconds)| format!("{cause} {}", share(seconds)));
        lines.push(format!("Time of the training replicas: {}.", causes.join(", ")));
        if let Some(undisturbed) = &self.undisturbed {
            let losses = |report: &Report| {
                let of = |of: &ReplicaReport| Some(format!("{} {}", of.name, of.loss?));
                let losses: Vec<String> = report.replicas.iter().filter_map(of).collect();
                if losses.is_empty() { "none reported".to_owned() } else { losses.join(", ") }
            };
            lines.push(format!("Final losses: {}.", losses(self)));
            lines.push(format!("Undisturbed, in {:.1}s: {}.", undisturbed.seconds, losses(undisturbed)));
        }
        lines.join("\n")
    }
}

/// Of each life that began with an empty disk: the step before its first one, or the one that its verdict names. A life
/// that ended before it could tell is skipped, unless it is the last.
fn resumed_steps(replica: &Replica) -> Vec<Option<u64>> {
    let first = replica.lives.iter().find_map(|life| life.first_step).unwrap_or(0);
    let step = |life: &Life| life.resumed_step.or_else(|| Some(life.first_step?.saturating_sub(first)));
    let count = replica.lives.len();
    let lives = replica.lives.iter().enumerate().filter(|(_, life)| life.has_lost_disk);
    let told = lives.filter(|(at, life)| life.has_verdict || life.first_step.is_some() || at + 1 == count);
    told.map(|(_, life)| step(life)).collect()
}

impl Track {
    fn of(replica: &Replica, now: Duration) -> Track {
        let mut attempts = Vec::new();
        for (number, life) in replica.lives.iter().enumerate() {
            let to = life.to.unwrap_or(now);
            let has_failed = !matches!(replica.exits.get(number).copied(), None | Some(0 | exit::STOPPED));
            let again = replica.attempts.iter().filter(|at| life.from < **at && **at < to);
            let starts: Vec<Duration> = [life.from].into_iter().chain(again.copied()).collect();
            let ends = starts.iter().skip(1).copied().chain([to]);
            // Only a failed attempt has a next one within a life.
            let spans =
                starts.iter().zip(ends).enumerate().map(|(at, (from, to))| {
                    (from.as_secs_f64(), to.as_secs_f64(), at + 1 < starts.len() || has_failed)
                });
            attempts.extend(spans);
        }
        Track { attempts, commits: replica.commits.iter().map(Duration::as_secs_f64).collect() }
    }
}

pub(super) const HEADS: [&str; 8] =
    ["replica", "starts", "exits", "step", "repeated", "committed", "loss", "last verdict"];

impl ReplicaReport {
    fn of(seat: Seat, replica: &Replica, now: Duration) -> ReplicaReport {
        let committed = |verdict: &Value| verdict.get("committed_step").and_then(Value::as_u64);
        ReplicaReport {
            name: name(seat),
            starts: replica.starts,
            exits: replica.exits.clone(),
            step: replica.step,
            repeated_steps: replica.repeated_steps,
            committed_step: replica.verdicts.iter().filter_map(committed).max(),
            loss: replica.loss,
            time: replica.account.seconds().rounded(),
            verdicts: replica.verdicts.clone(),
            resumed_steps: resumed_steps(replica),
            track: Track::of(replica, now),
        }
    }

    pub(super) fn row(&self) -> [String; 8] {
        let or_dash = |text: Option<String>| text.unwrap_or_else(|| "-".to_owned());
        let exits: Vec<String> = self.exits.iter().map(u8::to_string).collect();
        let reason = self.verdicts.last().and_then(|verdict| verdict.get("reason")?.as_str().map(str::to_owned));
        [
            self.name.clone(),
            self.starts.to_string(),
            or_dash((!exits.is_empty()).then(|| exits.join(" "))),
            or_dash(self.step.map(|step| step.to_string())),
            self.repeated_steps.to_string(),
            or_dash(self.committed_step.map(|step| step.to_string())),
            or_dash(self.loss.map(|loss| loss.to_string())),
            or_dash(reason),
        ]
    }
}

impl Seconds {
    fn named(&self) -> [(&'static str, f64); 6] {
        let Seconds { start, restore, waiting, training, repeated, stopped } = *self;
        [
            ("training", training),
            ("repeated", repeated),
            ("start", start),
            ("restore", restore),
            ("waiting", waiting),
            ("stopped", stopped),
        ]
    }

    fn rounded(self) -> Seconds {
        Seconds {
            start: rounded(self.start),
            restore: rounded(self.restore),
            waiting: rounded(self.waiting),
            training: rounded(self.training),
            repeated: rounded(self.repeated),
            stopped: rounded(self.stopped),
        }
    }
}

/// Rounds to milliseconds.
fn rounded(number: f64) -> f64 {
    (number * 1000.0).round() / 1000.0
}
