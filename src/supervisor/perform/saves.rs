//! Asks the trainer to save: publishes the step in a file of the run's directory.

use std::time::Duration;

use super::Performer;
use crate::edge::fs::run_dir::SAVE_STEP;
use crate::rules::job::Uptime;
use crate::rules::life::save_plan::{Pace, SaveInterval, SavePlan, step_after_notice};
use crate::supervisor::gang::GangMember;

/// The requests of a run.
#[derive(Debug)]
pub(in crate::supervisor) struct SaveRequests {
    /// `None`: no interval is set, or the leader of the gang has the plan.
    plan: Option<SavePlan>,
    is_on: bool,
    /// The time until all ranks of this replica know a step; `None`: there is only one.
    reach: Option<Duration>,
    /// The published step.
    published: Option<u64>,
    /// A notice has set the step, which stays.
    is_final: bool,
}

impl SaveRequests {
    pub(super) fn new(interval: Option<SaveInterval>, ranks: usize, gang: Option<&GangMember>) -> SaveRequests {
        let reach = (ranks > 1).then_some(Duration::ZERO);
        let plan = interval.filter(|_| gang.is_none_or(GangMember::leads));
        let plan = plan.map(|interval| SavePlan::new(interval, gang.map(GangMember::reach).or(reach)));
        SaveRequests { plan, is_on: interval.is_some(), reach, published: None, is_final: false }
    }

    /// Whether the file may not exist yet.
    pub(super) fn is_unpublished(&self) -> bool {
        !self.is_on && self.published.is_none()
    }
}

impl Performer {
    /// A new attempt begins without a request.
    pub(super) fn begin_saves(&mut self, now: Uptime) {
        self.saves.is_final = false;
        if let Some(plan) = &mut self.saves.plan {
            plan.begin(now);
        }
        if self.saves.is_on || self.saves.published.take().is_some() {
            self.publish_save_step(None);
        }
    }

    /// Publishes the step; `None`: an empty file.
    pub(super) fn publish_save_step(&mut self, step: Option<u64>) {
        self.saves.published = step;
        if let Some(dir) = &mut self.run_dir
            && let Err(error) = dir.publish(SAVE_STEP, &step.map_or(String::new(), |step| format!("{step}\n")))
        {
            tracing::warn!(
                "the file with the step at which to save cannot be written: {error}; the trainer is not asked to save"
            );
        }
    }

    /// When the step must be read for the next request.
    pub(in crate::supervisor) fn saves_due(&self) -> Option<Uptime> {
        let is_training = !self.main_children.alive().is_empty() && !self.saves.is_final;
        self.saves.plan.as_ref().filter(|_| is_training).map(SavePlan::look_at)
    }

    /// The trainer saved a checkpoint.
    pub(in crate::supervisor) fn has_saved(&mut self, at: Uptime) {
        if let Some(plan) = &mut self.saves.plan {
            plan.saved(at);
        }
    }

    /// Asks for a save if one is due. In a gang the leader's replica asks the leader, which names the step to all.
    pub(in crate::supervisor) fn ask_for_saves(&mut self, now: Uptime) {
        let mut step = None;
        if self.saves_due().is_some_and(|at| now >= at) {
            self.liveness.step();
            let (pace, measured) = (self.pace(), self.history.measured_saves(self.job.accelerators));
            step = self.saves.plan.as_mut().and_then(|plan| plan.look(now, pace, measured));
        }
        if let Some(gang) = &mut self.gang {
            if let Some(step) = step {
                gang.ask_to_save(step);
            }
            step = gang.save_step().filter(|_| self.saves.is_on);
        }
        if step.is_some() && step != self.saves.published && !self.saves.is_final {
            self.publish_save_step(step);
        }
    }

    /// After a notice the trainer saves at the gang's step, or as soon as all ranks of this replica can save the same one.
    pub(super) fn save_after_notice(&mut self, of_gang: Option<u64>, left: Duration) {
        self.liveness.step();
        let reach = self.saves.reach.filter(|_| self.gang.is_none());
        let step = of_gang.unwrap_or_else(|| step_after_notice(self.pace(), reach, left));
        self.publish_save_step(Some(step));
        self.saves.is_final = true;
    }

    fn pace(&self) -> Pace {
        let (step, per_second) = self.history.pace();
        Pace { step, per_second }
    }
}
