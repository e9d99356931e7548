//! The trainers: a collective that commits twelve times.

use super::*;

impl World {
    pub(super) fn trainer_steps(&mut self, agent: usize, id: u64) {
        let Some(run) = self.agents[agent].run.as_mut().filter(|run| run.id == id && !run.stopping && !run.hangs)
        else {
            return;
        };
        let (step, generation) = (run.step + 1, run.generation);
        let newer = self.started.range(generation + 1..).next().filter(|_| !self.two_gangs_may_train());
        if let Some((newer, _)) = newer {
            let newer = *newer;
            return self.wrong(format!("agent {agent} trains in generation {generation} although {newer} has started"));
        }
        if self.agents.len() < MANY || self.agents[agent].seat == seat_of(0) {
            self.judge_runs();
        }
        // A collective: no rank is more than a step ahead of another.
        let done = self.done.entry(generation).or_default();
        if step < self.plan.steps && done.get(&(step - 1)).is_none_or(|done| *done < self.trainers) {
            let when = self.now + self.plan.step / 5;
            return self.at(when, Happening::TrainerSteps { agent, run: id });
        }
        *done.entry(step).or_default() += 1;
        done.retain(|before, _| before + 2 >= step);
        if let Some(run) = &mut self.agents[agent].run {
            run.step = step;
        }
        self.member(agent, member::Event::Stepped(step));
        if step.is_multiple_of(self.plan.steps / 12)
            && (self.plan.mode == Mode::Each || self.agents[agent].seat == seat_of(0))
        {
            let seat = self.agents[agent].seat;
            let kept = self.kept_by(seat);
            let commits = self.commits.entry(seat).or_default();
            commits.insert(step, generation);
            // As sparing as retention may be.
            commits.retain(|step, _| kept.is_none_or(|kept| *step >= kept));
            self.member(agent, member::Event::Committed(step));
        }
        if step >= self.plan.steps {
            self.agents[agent].run = None;
            self.member(agent, member::Event::Finished);
            if self.agents[agent].member.state() == "ending" {
                self.emptied(agent, 1);
            }
            return;
        }
        let when = self.now + self.plan.step;
        self.at(when, Happening::TrainerSteps { agent, run: id });
    }

    /// What the processes of a trainer do.
    pub(super) fn report_tree(&mut self, agent: usize) {
        let step = self.agents[agent].run.as_ref().map(|run| run.step);
        let tree = TreeState::of(step, None, [('S', "futex_wait_queue".to_owned())]);
        self.member(agent, member::Event::TreeReported(tree));
    }

    /// A trainer hangs, and so do all that wait for it.
    pub(super) fn hang(&mut self, agent: usize, is_reported: bool) {
        let Some(run) = &mut self.agents[agent].run else { return };
        run.hangs = true;
        let (run, generation, step, now) = (run.id, run.generation, run.step, self.now);
        self.deaths += 1;
        self.hung.insert(generation);
        // The leader judges steps: a trainer that has named none is found by its own agent alone.
        let first = self.started.get(&generation).and_then(|(step, _)| *step).unwrap_or(0);
        if is_reported {
            self.find_hang(agent, run);
        } else if step <= first {
            self.at(now + HANG.as_millis() as u64, Happening::FindsHang { agent, run });
        }
        // Beats may be as late as a lease.
        let found = HANG.as_millis() as u64 + 20 * SECOND;
        // Until then a death does not end all within a second: a trainer that hangs has time for its stacks.
        self.disturbed = self.disturbed.max(now + found);
        self.at(now + found + 20 * SECOND, Happening::Judge { generation, since: now, soft: false });
    }

    /// The agent finds that its trainer hangs.
    pub(super) fn find_hang(&mut self, agent: usize, id: u64) {
        if self.agents[agent].run.as_ref().is_none_or(|run| run.id != id || run.stopping) {
            return;
        }
        self.report_tree(agent);
        let failure = Failure { class: Class::Hung, code: None, signal: None, step: None, detail: "hung".to_owned() };
        self.member(agent, member::Event::Failed(failure));
        self.stop(agent, 10 * SECOND);
    }

    /// A trainer ends by itself, or is stopped at the end of its grace.
    pub(super) fn end(&mut self, agent: usize, grace: Millis) {
        let Some(run) = self.agents[agent].run.as_ref().map(|run| run.id) else { return self.stop(agent, 0) };
        let when = self.now + self.random.between(1, grace + 500);
        self.at(when, Happening::TrainerEnds { agent, run });
    }

    /// One that ignores SIGTERM takes the whole grace.
    pub(super) fn stop(&mut self, agent: usize, grace: Millis) {
        let takes = self.random.between(1, 2 * SECOND).min(grace);
        match &mut self.agents[agent].run {
            Some(run) if grace == 0 => {
                let run = run.id;
                self.trainer_gone(agent, run);
            }
            Some(run) => {
                run.stopping = true;
                let (run, takes) = (run.id, if run.stubborn { grace } else { takes });
                let when = self.now + takes;
                self.at(when, Happening::TrainerGone { agent, run });
            }
            None => self.emptied(agent, takes),
        }
    }

    pub(super) fn trainer_gone(&mut self, agent: usize, id: u64) {
        if self.agents[agent].run.as_ref().is_some_and(|run| run.id == id) {
            self.agents[agent].run = None;
            self.emptied(agent, 5);
        }
    }

    /// The tree is empty: the agent surveys, or leaves after a notice.
    pub(super) fn emptied(&mut self, agent: usize, after: Millis) {
        if !std::mem::take(&mut self.agents[agent].parts) {
            return self.survey(agent, after);
        }
        self.member(agent, member::Event::Leaves);
        let (seat, now) = (self.agents[agent].seat, self.now);
        self.milestone(|| format!("agent {agent} leaves after a notice"));
        // The platform restarts all replicas once they are gone.
        if self.agents[agent].leader.is_none() {
            self.agents[agent].alive = false;
            self.at(now + 60 * SECOND, Happening::Replaces { seat });
        }
    }
}
