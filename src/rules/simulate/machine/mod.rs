//! The state machine of a simulated job: faults occur, replicas end, the platform starts them again or gives up.
//!
//! Feed it [`Event::Begin`] first, then every event as it happens, and [`Event::Due`] when the time of
//! [`Simulation::next_due`] has come. Perform the actions in order. After [`Action::Over`] nothing follows.

mod event;

pub use event::{Action, Event, FaultRecord, Outcome};

use std::time::Duration;

use serde_json::Value;

use super::Plan;
use super::account::Cause;
use super::fault::{Fault, Kind, When};
use super::progress;
use super::replica::{Phase, Replica};
use super::seats::name;
use crate::cluster::written::{Limit, Notice, Success};
use crate::process::signal::Signal;
use crate::text::safe_text::counted;

/// The job and its platform.
#[derive(Debug)]
pub struct Simulation {
    plan: Plan,
    replicas: Vec<Replica>,
    fault_records: Vec<FaultRecord>,
    outcome: Option<Outcome>,
    restarts: u32,
    job_restarts: u32,
    /// All replicas are being stopped, to be started again together.
    is_requeued: bool,
    generation: Option<u64>,
    is_over: bool,
}

impl Simulation {
    /// Before the start.
    pub fn new(plan: Plan) -> Simulation {
        let record = |fault: &Fault| FaultRecord { fault: *fault, at: None, is_missed: false };
        Simulation {
            replicas: vec![Replica::default(); plan.seats.len()],
            fault_records: plan.faults.iter().map(record).collect(),
            plan,
            outcome: None,
            restarts: 0,
            job_restarts: 0,
            is_requeued: false,
            generation: None,
            is_over: false,
        }
    }

    /// The configuration.
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// The replicas, in the order of the seats.
    pub fn replicas(&self) -> &[Replica] {
        &self.replicas
    }

    /// The faults.
    pub fn fault_records(&self) -> &[FaultRecord] {
        &self.fault_records
    }

    /// How the job ended, as soon as that is decided.
    pub fn outcome(&self) -> Option<&Outcome> {
        self.outcome.as_ref()
    }

    /// The newest generation of the gang that a replica has named.
    pub fn generation(&self) -> Option<u64> {
        self.generation
    }

    /// One line of progress.
    pub fn progress(&self, now: Duration) -> String {
        let step = self.replicas.iter().filter_map(|replica| replica.step).max();
        let step = step.map_or(String::new(), |step| format!(", step {step}"));
        let generation = self.generation.map_or(String::new(), |number| format!(", generation {number}"));
        let faults = counted(self.fault_records.iter().filter(|record| record.at.is_some()).count(), "fault");
        let (running, all) = (self.up().count(), self.replicas.len());
        format!("{:.0}s: {running} of {all} running{step}{generation}, {faults}", now.as_secs_f64())
    }

    /// The time of the next [`Event::Due`].
    pub fn next_due(&self) -> Option<Duration> {
        let faults = self.fault_records.iter().filter(|_| self.outcome.is_none()).filter_map(FaultRecord::due);
        let replicas = self.replicas.iter().flat_map(|replica| {
            let start = match replica.phase {
                Phase::DownUntil(at) => Some(at),
                _ => None,
            };
            [start, replica.kill_at, replica.frozen_until]
        });
        let limit = self.outcome.is_none().then_some(self.plan.limit);
        faults.chain(replicas.flatten()).chain(limit).min()
    }

    /// Handles an event.
    pub fn step(&mut self, now: Duration, event: Event<'_>) -> Vec<Action> {
        let mut actions = Vec::new();
        if self.is_over {
            return actions;
        }
        match event {
            Event::Begin => (0..self.replicas.len()).for_each(|at| self.start(now, at, &mut actions)),
            Event::Due => self.due(now, &mut actions),
            Event::Line(at, line) => self.line(now, at, line, &mut actions),
            Event::Ended(at, code, verdict) => self.ended(now, at, code, verdict, &mut actions),
            Event::Stop(signal) if self.outcome.is_none() => self.end(now, Outcome::Interrupted(signal), &mut actions),
            Event::Stop(_) => actions.extend(self.up().map(Action::Kill)),
        }
        if self.outcome.is_some() && self.up().next().is_none() {
            self.is_over = true;
            actions.push(Action::Over);
        }
        actions
    }

    fn up(&self) -> impl Iterator<Item = usize> {
        (0..self.replicas.len()).filter(|at| self.replicas[*at].is_up())
    }

    fn name(&self, at: usize) -> String {
        name(self.plan.seats[at])
    }

    fn start(&mut self, now: Duration, at: usize, actions: &mut Vec<Action>) {
        let replica = &mut self.replicas[at];
        let has_lost_disk = replica.is_ended_by_platform && self.plan.lose_disk;
        replica.begin(now, has_lost_disk);
        if has_lost_disk {
            actions.push(Action::EmptyDisk(at));
        }
        replica.is_ended_by_platform = false;
        actions.push(Action::Start(at, self.job_restarts));
    }

    fn due(&mut self, now: Duration, actions: &mut Vec<Action>) {
        for at in 0..self.replicas.len() {
            let replica = &mut self.replicas[at];
            if replica.frozen_until.is_some_and(|until| until <= now) {
                replica.thaw(now);
                actions.push(Action::Thaw(at));
            }
            if replica.kill_at.is_some_and(|kill_at| kill_at <= now) {
                replica.kill_at = None;
                actions.extend([Action::Say(format!("{}: time is over, SIGKILL", self.name(at))), Action::Kill(at)]);
            }
            if matches!(self.replicas[at].phase, Phase::DownUntil(until) if until <= now) {
                let text = format!("{} is started again", self.name(at));
                actions.push(Action::Say(text));
                self.start(now, at, actions);
            }
        }
        if self.outcome.is_some() {
            return;
        }
        for index in 0..self.fault_records.len() {
            if self.fault_records[index].due().is_some_and(|due| due <= now) {
                self.inject(now, index, actions);
            }
        }
        if now >= self.plan.limit && self.outcome.is_none() {
            let why = format!("it did not finish within its time limit of {}s", self.plan.limit.as_secs_f64());
            self.end(now, Outcome::Failed(why), actions);
        }
    }

    fn line(&mut self, now: Duration, at: usize, line: &str, actions: &mut Vec<Action>) {
        let said = progress::read(line);
        self.generation = self.generation.max(said.generation);
        let replica = &mut self.replicas[at];
        if said.is_commit {
            replica.commits.push(now);
        }
        if said.attempt > Some(1) {
            replica.attempts.push(now);
        }
        let Some(step) = said.step else { return };
        replica.stepped(now, step, said.loss);
        for index in 0..self.fault_records.len() {
            let found = &self.fault_records[index];
            let is_reached = matches!(found.fault.when, When::Step(wanted) if step >= wanted);
            if is_reached && found.fault.replica == at && found.at.is_none() && self.outcome.is_none() {
                self.inject(now, index, actions);
            }
        }
    }

    fn inject(&mut self, now: Duration, index: usize, actions: &mut Vec<Action>) {
        let Fault { kind, replica: at, .. } = self.fault_records[index].fault;
        let is_missed = !self.replicas[at].is_up();
        (self.fault_records[index].at, self.fault_records[index].is_missed) = (Some(now), is_missed);
        let name = self.name(at);
        if is_missed {
            actions.push(Action::Say(format!("no {} of {name}: it is not running", kind.word())));
            return;
        }
        match kind {
            Kind::Preempt => {
                let seconds = self.plan.notice.as_secs_f64();
                actions.push(Action::Say(format!("{name} is preempted, its machine ends in {seconds}s")));
                self.take_machine_away(now, at, Loss::Announced, actions);
            }
            Kind::Kill => {
                actions.push(Action::Say(format!("{name} is killed")));
                self.take_machine_away(now, at, Loss::AtOnce, actions);
            }
            Kind::Freeze(length) => {
                actions.push(Action::Say(format!("{name} is frozen for {}s", length.as_secs_f64())));
                let replica = &mut self.replicas[at];
                replica.record_life(now);
                replica.frozen_until = Some(replica.frozen_until.unwrap_or_default().max(now + length));
                actions.push(Action::Freeze(at));
            }
            Kind::Hang => {
                actions.push(Action::Say(format!("the trainer of {name} hangs")));
                actions.push(Action::Hang(at));
            }
        }
    }

    /// The platform takes the machine of a replica away. On some platforms that ends the whole job.
    fn take_machine_away(&mut self, now: Duration, at: usize, loss: Loss, actions: &mut Vec<Action>) {
        self.replicas[at].is_ended_by_platform = true;
        match loss {
            Loss::AtOnce => actions.push(Action::Kill(at)),
            Loss::Announced => self.announce(now, at, actions),
        }
        if self.plan.platform.restarts.whole_job {
            self.requeue(now, actions);
        }
    }

    fn announce(&mut self, now: Duration, at: usize, actions: &mut Vec<Action>) {
        match self.plan.notice_by {
            Notice::Cloud(_) => actions.push(Action::Announce(at, self.plan.notice)),
            Notice::Signal => actions.push(Action::Signal(at, Signal::TERM)),
        }
        let kill_at = &mut self.replicas[at].kill_at;
        *kill_at = Some(kill_at.unwrap_or(Duration::MAX).min(now + self.plan.notice));
    }

    /// The platform stops all replicas, to start them again together.
    fn requeue(&mut self, now: Duration, actions: &mut Vec<Action>) {
        if !self.is_requeued {
            self.is_requeued = true;
            actions.push(Action::Say("the platform stops the whole job, to start it again".to_owned()));
        }
        for at in self.up().collect::<Vec<_>>() {
            if self.replicas[at].kill_at.is_none() && !self.replicas[at].is_ended_by_platform {
                self.announce(now, at, actions);
            }
        }
    }

    fn ended(&mut self, now: Duration, at: usize, code: u8, verdict: Option<Value>, actions: &mut Vec<Action>) {
        let is_ended_by_platform = self.replicas[at].ended(now, code, verdict);
        let name = self.name(at);
        actions.push(Action::Say(format!("{name} ended with {code}")));
        if self.outcome.is_some() {
            self.replicas[at].phase = Phase::Done;
            return;
        }
        let restarts = self.plan.platform.restarts;
        if self.is_requeued {
            self.requeue_when_all_are_down(now);
        } else if code == 0 {
            self.replicas[at].phase = Phase::Done;
            if self.has_succeeded(at) {
                self.end(now, Outcome::Succeeded, actions);
            }
        } else if !is_ended_by_platform && restarts.permanent.has(code) {
            let why = format!("{name} ended with {code}, after which the platform starts nothing again");
            self.end(now, Outcome::Failed(why), actions);
        } else {
            self.restarts += 1;
            let is_too_often = match restarts.limit {
                Limit::Each(most) => self.replicas[at].starts > most,
                Limit::Together(most) => self.restarts > most,
                Limit::None => false,
            };
            if is_too_often {
                let why = format!("{name} ended with {code}, and the platform's restarts are used up");
                self.end(now, Outcome::Failed(why), actions);
            } else {
                self.replicas[at].phase = Phase::DownUntil(now + self.plan.replace_after);
            }
        }
    }

    fn requeue_when_all_are_down(&mut self, now: Duration) {
        if self.up().next().is_some() {
            return;
        }
        self.is_requeued = false;
        self.job_restarts += 1;
        for replica in &mut self.replicas {
            replica.phase = Phase::DownUntil(now + self.plan.replace_after);
        }
    }

    fn has_succeeded(&self, ended: usize) -> bool {
        match self.plan.platform.success {
            Success::OfChief => ended == 0,
            Success::OfAll => self.replicas.iter().all(|replica| replica.phase == Phase::Done),
        }
    }

    /// The outcome is known: stops the replicas that still run.
    fn end(&mut self, now: Duration, outcome: Outcome, actions: &mut Vec<Action>) {
        actions.push(Action::Say(match &outcome {
            Outcome::Succeeded => "the job has succeeded".to_owned(),
            Outcome::Failed(why) => format!("the job has failed: {why}"),
            Outcome::Interrupted(_) => "interrupted: all replicas are stopped; once more kills them at once".to_owned(),
        }));
        self.outcome = Some(outcome);
        for (at, replica) in self.replicas.iter_mut().enumerate() {
            if !replica.is_up() {
                if replica.phase != Phase::Done {
                    replica.account.record(now, Cause::Waiting);
                }
                replica.phase = Phase::Done;
                continue;
            }
            if replica.frozen_until.is_some() {
                replica.thaw(now);
                actions.push(Action::Thaw(at));
            }
            replica.kill_at = Some(replica.kill_at.unwrap_or(Duration::MAX).min(now + self.plan.notice));
            actions.push(Action::Signal(at, Signal::TERM));
        }
    }
}

enum Loss {
    AtOnce,
    Announced,
}

#[cfg(test)]
mod tests;
