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
            return self.record_violation(format!(
                "agent {agent} trains in generation {generation} although {newer} has started"
            ));
        }
        if self.agents.len() < MANY || self.agents[agent].seat == seat_of(0) {
            self.check_runs();
        }
        // A collective: no rank is more than a step ahead of another.
        let done = self.done.entry(generation).or_default();
        if step < self.plan.steps && done.get(&(step - 1)).is_none_or(|done| *done < self.trainers) {
            let when = self.now + self.plan.step / 5;
            return self.at(when, WorldEvent::TrainerSteps { agent, run: id });
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
            // Deletes as much as retention may.
            commits.retain(|step, _| kept.is_none_or(|kept| *step >= kept));
            self.member(agent, member::Event::Committed(step));
        }
        if step >= self.plan.steps {
            return self.succeed(agent);
        }
        let when = self.now + self.plan.step;
        self.at(when, WorldEvent::TrainerSteps { agent, run: id });
    }

    /// A trainer ends with 0, and its last commit begins.
    pub(super) fn succeed(&mut self, agent: usize) {
        let Some(run) = self.agents[agent].run.take() else { return };
        self.milestone(|| format!("the trainer of agent {agent} ends with 0"));
        self.agents[agent].last_commit = Some(run.id);
        self.member(agent, member::Event::Succeeded);
        let slow = self.random.below(5) == 0;
        let when = self.now + self.random.between(1, if slow { 60 } else { 2 } * SECOND);
        self.at(when, WorldEvent::LastCommitEnds { agent, run: run.id });
    }

    /// The last commit has ended. It may fail, and then the agent exits with 204.
    pub(super) fn end_last_commit(&mut self, agent: usize, id: u64) {
        if self.agents[agent].last_commit != Some(id) {
            return;
        }
        self.agents[agent].last_commit = None;
        match self.agents[agent].member.state() {
            "committing" if self.random.below(20) == 0 => {
                self.deaths += 1;
                self.leave_with(agent, 204);
            }
            "committing" => self.member(agent, member::Event::Finished),
            _ => self.emptied(agent, 1),
        }
    }

    /// An agent exits with this code, and the platform starts another.
    pub(super) fn leave_with(&mut self, agent: usize, code: u8) {
        self.milestone(|| format!("agent {agent} leaves with {code}"));
        let departure = Departure { code, reason: "store".to_owned(), detail: "the store is full".to_owned() };
        self.member(agent, member::Event::Leaves(departure));
        self.disturbed_until = self.disturbed_until.max(self.now + SECOND);
        // The thread with the connections sends its last messages.
        self.at(self.now + 500, WorldEvent::Dies(agent));
    }

    /// The trainer of another seat fails, because a trainer of this generation is gone.
    pub(super) fn break_collective(&mut self, generation: Generation, except: Seat) {
        let runs = |agent: &Agent| agent.run.as_ref().is_some_and(|run| run.generation == generation && !run.stopping);
        let is_next = |agent: &Agent| agent.alive && agent.frozen.is_none() && agent.seat != except && runs(agent);
        let Some(agent) = self.agents.iter().position(is_next) else { return };
        self.agents[agent].run = None;
        let failure = Failure { code: Some(1), ..Failure::new(Class::Code, None, "connection closed by peer") };
        self.member(agent, member::Event::Failed(failure));
        self.emptied(agent, 1);
    }

    /// Reports the activity of a trainer.
    pub(super) fn report_tree(&mut self, agent: usize) {
        let step = self.agents[agent].run.as_ref().map(|run| run.step);
        let tree = TreeState::of(step, None, [('S', "futex_wait_queue".to_owned())]);
        self.member(agent, member::Event::TreeReported(tree));
    }

    /// A trainer hangs, and all others wait for it.
    pub(super) fn hang(&mut self, agent: usize, is_reported: bool) {
        let Some(run) = &mut self.agents[agent].run else { return };
        run.hangs = true;
        let (run, generation, step, now) = (run.id, run.generation, run.step, self.now);
        self.deaths += 1;
        self.hung.insert(generation);
        // The leader compares steps, so only its own agent detects a trainer that has reported none.
        let first = self.started.get(&generation).and_then(|(step, _)| *step).unwrap_or(0);
        if is_reported {
            self.find_hang(agent, run);
        } else if step <= first {
            self.at(now + HANG.as_millis() as u64, WorldEvent::FindsHang { agent, run });
        }
        // Beats may be delayed by up to the lease.
        let found = HANG.as_millis() as u64 + 20 * SECOND;
        // Until then, a death need not end all within a second, because a trainer that hangs has time for its stacks.
        self.disturbed_until = self.disturbed_until.max(now + found);
        self.at(now + found + 20 * SECOND, WorldEvent::CheckHalt { generation, since: now, soft: false });
    }

    /// The agent detects that its trainer hangs.
    pub(super) fn find_hang(&mut self, agent: usize, id: u64) {
        if self.agents[agent].run.as_ref().is_none_or(|run| run.id != id || run.stopping) {
            return;
        }
        self.report_tree(agent);
        let failure = Failure::new(Class::Hung, None, "hung");
        self.member(agent, member::Event::Failed(failure));
        self.stop(agent, 10 * SECOND);
    }

    /// A trainer ends by itself, or is stopped after its grace.
    pub(super) fn end(&mut self, agent: usize, grace: Millis) {
        let Some(run) = self.agents[agent].run.as_ref().map(|run| run.id) else { return self.stop(agent, 0) };
        let when = self.now + self.random.between(1, grace + 500);
        self.at(when, WorldEvent::TrainerEnds { agent, run });
    }

    /// Stops a trainer. One that ignores signals takes the whole grace.
    pub(super) fn stop(&mut self, agent: usize, grace: Millis) {
        let takes = self.random.between(1, 2 * SECOND).min(grace);
        let commits = self.agents[agent].last_commit.is_some();
        match &mut self.agents[agent].run {
            Some(run) if grace == 0 => {
                let run = run.id;
                self.trainer_gone(agent, run);
            }
            Some(run) => {
                run.stopping = true;
                let (run, takes) = (run.id, if run.ignores_signals { grace } else { takes });
                let when = self.now + takes;
                self.at(when, WorldEvent::TrainerGone { agent, run });
            }
            // The survey follows the last commit.
            None if commits => {}
            None => self.emptied(agent, takes),
        }
    }

    pub(super) fn trainer_gone(&mut self, agent: usize, id: u64) {
        if self.agents[agent].run.as_ref().is_some_and(|run| run.id == id) {
            self.agents[agent].run = None;
            if std::mem::take(&mut self.agents[agent].has_closed) {
                let failure =
                    Failure { code: Some(7), ..Failure::new(Class::Code, None, "it has closed its connections") };
                self.member(agent, member::Event::Failed(failure));
            }
            self.emptied(agent, 5);
        }
    }

    /// The tree is empty: the agent surveys, or leaves after a notice.
    pub(super) fn emptied(&mut self, agent: usize, after: Millis) {
        if !std::mem::take(&mut self.agents[agent].leaves_after_stop) {
            return self.survey(agent, after);
        }
        let departure = Departure { code: 143, reason: "preempted".to_owned(), detail: "a notice".to_owned() };
        self.member(agent, member::Event::Leaves(departure));
        let (seat, now) = (self.agents[agent].seat, self.now);
        self.milestone(|| format!("agent {agent} leaves after a notice"));
        // The platform restarts all replicas once they are gone.
        if self.agents[agent].leader.is_none() {
            self.agents[agent].alive = false;
            self.at(now + 60 * SECOND, WorldEvent::Replaces { seat });
        }
    }
}
