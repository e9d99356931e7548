//! Counts what a run's object tells besides its time: starts, commits, restores, failures, saves.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use super::advice::prior;
use super::run::{Earlier, Identity, MOST_RESTORES, Restored, Run, SCHEMA, rfc3339};
use super::save_plan::Measured;
use super::stall::{Stalls, median};
use crate::job::goodput::{Cause, Goodput, Totals};
use crate::job::{Event, Machine, Mirrored, Uptime};
use crate::process::exit::End;

/// The intervals between saves that are remembered.
const INTERVALS: usize = 31;

/// The account of a run.
#[derive(Debug, Clone, Default)]
pub struct Account {
    starts: u32,
    resumed_step: Option<u64>,
    commits: u64,
    commit_bytes: u64,
    commit_time: Duration,
    restores: VecDeque<Restored>,
    /// The time of restores that are counted.
    restored: Duration,
    failures: BTreeMap<String, u64>,
    /// Why the present attempt failed, if it did.
    failed: Option<&'static str>,
    stalls: Stalls,
    saved: Option<(Uptime, Option<u64>)>,
    intervals: VecDeque<Duration>,
    /// The runs before this one, once they are known.
    earlier: Earlier,
}

/// How a run ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ending {
    /// The verdict's word.
    pub reason: String,
    /// trainit's exit code.
    pub exit_code: u8,
    /// The job's highest memory use.
    pub peak_memory_bytes: Option<u64>,
}

/// The place of a run's object: its number, and the start of the run since 1970.
#[derive(Debug, Clone, Copy, Default)]
pub struct Began {
    /// From 1.
    pub attempt: u64,
    /// The time since 1970.
    pub at: Duration,
}

impl Account {
    /// The machine has handled an event.
    pub fn note(&mut self, now: Uptime, event: &Event, machine: &Machine, goodput: &mut Goodput) {
        match event {
            Event::Spawned { .. } => {
                let resumed = machine.snapshot().resumed_step;
                if self.starts == 0 {
                    self.resumed_step = resumed;
                }
                if let Some(step) = resumed {
                    goodput.resumes_from(step);
                }
                if let Some(reason) = self.failed.take() {
                    *self.failures.entry(reason.to_owned()).or_default() += 1;
                }
                self.starts += 1;
                self.saved = None;
                self.stalls.begin();
            }
            Event::MainEnded { end, oom, .. }
                if *end != End::Code(0) && !machine.is_stopping() && !machine.is_ended_by_gang() =>
            {
                self.failed.get_or_insert(match end {
                    _ if machine.hung().is_some() => "hung",
                    _ if *oom == Some(true) => "oom",
                    End::Code(_) => "failed",
                    End::Signal(_) => "signalled",
                });
            }
            Event::Committed { step, lag, .. } => self.saved(now.saturating_sub(*lag), *step),
            Event::Mirrored(Mirrored::Committed { bytes, took }) => {
                self.commits += 1;
                self.commit_bytes += bytes;
                self.commit_time += *took;
            }
            Event::Mirrored(Mirrored::Restored { bytes }) => {
                let took = goodput.totals(now).of(Cause::Restore);
                let seconds = took.saturating_sub(self.restored).as_secs_f64();
                self.restored = took;
                self.restores.push_back(Restored { bytes_store: *bytes, bytes_peers: 0, seconds });
                if self.restores.len() > MOST_RESTORES {
                    self.restores.pop_front();
                }
            }
            _ => {}
        }
    }

    fn saved(&mut self, at: Uptime, step: Option<u64>) {
        if let Some((last, last_step)) = self.saved
            && (step.is_none() || step != last_step)
        {
            self.intervals.push_back(at.saturating_sub(last));
            if self.intervals.len() > INTERVALS {
                self.intervals.pop_front();
            }
        }
        self.saved = Some((at, step));
        if let Some(step) = step {
            self.stalls.saved(step);
        }
    }

    /// The trainer reached this step.
    pub fn step(&mut self, at: Uptime, step: u64) {
        self.stalls.step(at, step);
    }

    /// What the runs before this one tell.
    pub fn follows(&mut self, earlier: Earlier) {
        self.earlier = earlier;
    }

    /// What is known about saves and faults now; `accelerators`: those of the job.
    pub fn measured(&self, now: Uptime, accelerators: u64) -> Measured {
        let faults = self.earlier.faults + self.failures.values().sum::<u64>();
        let seconds = self.earlier.seconds + now.as_secs_f64();
        let between_faults = match faults {
            0 => prior(accelerators),
            1 => prior(accelerators).min(seconds),
            many => seconds / many as f64,
        };
        Measured { stall: self.stalls.median(), between_faults }
    }

    /// The object of this moment.
    pub fn run(&self, identity: &Identity, began: Began, now: Uptime, goodput: &Goodput, end: Option<&Ending>) -> Run {
        let totals = goodput.totals(now);
        let (first_step, last_step) = goodput.steps();
        let last_seen = rfc3339(began.at + now);
        let seconds = |time: Duration| (time.as_secs_f64() * 1000.0).round() / 1000.0;
        Run {
            schema: SCHEMA.to_owned(),
            identity: identity.clone(),
            attempt: began.attempt,
            started: rfc3339(began.at),
            ended: end.map(|_| last_seen.clone()),
            last_seen,
            reason: end.map(|end| end.reason.clone()),
            exit_code: end.map(|end| end.exit_code),
            seconds: by_word(&totals),
            resumed_step: self.resumed_step,
            first_step,
            last_step,
            repeated_steps: goodput.repeated_steps(),
            starts: self.starts,
            commits: self.commits,
            commit_bytes: self.commit_bytes,
            commit_seconds: seconds(self.commit_time),
            restores: self.restores.iter().cloned().collect(),
            failures: self.failures.clone(),
            stall_seconds: self.stalls.median().map(seconds),
            save_interval_seconds: median(self.intervals.iter().copied().collect()).map(seconds),
            peak_memory_bytes: end.and_then(|end| end.peak_memory_bytes),
            earlier: self.earlier.clone(),
        }
    }
}

fn by_word(totals: &Totals) -> BTreeMap<String, f64> {
    totals.millis().map(|(cause, millis)| (cause.word().to_owned(), millis as f64 / 1000.0)).into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::job::Policy;

    const SECOND: Duration = Duration::from_secs(1);

    /// Feeds events at seconds to a machine and an account.
    fn account(events: Vec<(u32, Event)>) -> (Account, Goodput) {
        let mut machine = Machine::new(Policy { max_restarts: 3, checkpoints: true, ..Policy::default() });
        let (mut account, mut goodput) = (Account::default(), Goodput::default());
        for (at, event) in events {
            let now = SECOND * at;
            machine.step(now, event.clone());
            goodput.enter(now, Cause::of(&machine));
            account.note(now, &event, &machine, &mut goodput);
        }
        (account, goodput)
    }

    fn restored(step: Option<u64>) -> Event {
        let resume = step.map(|step| crate::job::Resume { from: "/ck".into(), step: Some(step) });
        Event::Restored { resume, committed: step, older: false, is_further: false }
    }

    fn committed(step: u64) -> Event {
        Event::Committed { unit: "u".into(), step: Some(step), took: SECOND, lag: SECOND, is_progress: true }
    }

    #[test]
    fn a_run_tells_its_starts_commits_restores_and_failures() {
        let (account, goodput) = account(vec![
            (0, Event::Started),
            (3, Event::Mirrored(Mirrored::Restored { bytes: 70 })),
            (3, restored(Some(9))),
            (4, Event::Spawned { pids: vec![7] }),
            (10, committed(10)),
            (10, Event::Mirrored(Mirrored::Committed { bytes: 5, took: SECOND })),
            (30, committed(20)),
            (31, Event::MainEnded { local_rank: 0, end: End::Code(1), oom: Some(false) }),
            (31, Event::TreeEmpty),
            (33, restored(Some(20))),
            (35, Event::Due(crate::job::Timer::Backoff)),
            (35, Event::Spawned { pids: vec![8] }),
        ]);
        let began = Began { attempt: 4, at: SECOND * 1000 };
        let identity = Identity { seat: "node/0".into(), ..Identity::default() };
        let run = account.run(&identity, began, SECOND * 40, &goodput, None);
        assert_eq!((run.attempt, run.starts, run.resumed_step, run.commits, run.commit_bytes), (4, 2, Some(9), 1, 5));
        assert_eq!(run.restores, [Restored { bytes_store: 70, bytes_peers: 0, seconds: 3.0 }]);
        assert_eq!((run.failures.get("failed"), run.save_interval_seconds), (Some(&1), Some(20.0)));
        assert_eq!((run.duration(), run.ended.is_none(), run.why()), (40.0, true, "killed"));
        let end = Ending { reason: "finished".into(), exit_code: 0, peak_memory_bytes: Some(1) };
        let ended = account.run(&identity, began, SECOND * 41, &goodput, Some(&end));
        assert_eq!((ended.ended.as_deref(), ended.why()), (Some("1970-01-01T00:17:21.000Z"), "finished"));
        assert_eq!(Run::read(4, &ended.bytes()), Ok(ended));
    }
}
