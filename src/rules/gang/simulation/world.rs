//! The agents, and the effects of their actions.

use super::*;

impl World {
    pub(super) fn new(seed: u64, plan: Plan) -> World {
        let trainers = plan.seats.iter().filter(|seat| seat.trains()).count();
        let mut world = World {
            now: 0,
            heap: BinaryHeap::new(),
            events: BTreeMap::new(),
            count: 0,
            random: Random(seed),
            agents: Vec::new(),
            links: BTreeMap::new(),
            cuts: Vec::new(),
            plan,
            started: BTreeMap::new(),
            deaths: 0,
            charges: 0,
            runs: 0,
            disturbed_until: 0,
            saving_until: 0,
            misconfigured: None,
            store: store::Store::default(),
            two_gangs: false,
            finished: None,
            end_written: None,
            gave_up: false,
            violation: None,
            commits: BTreeMap::new(),
            trainers,
            done: BTreeMap::new(),
            timelines: BTreeMap::new(),
            kept: BTreeMap::new(),
            kept_by: BTreeMap::new(),
            hung: BTreeSet::new(),
            leaders: Vec::new(),
            traced: false,
            trace: Vec::new(),
            milestones: Vec::new(),
        };
        for seat in world.plan.seats.clone() {
            let at = world.random.below(20 * SECOND);
            world.at(at, WorldEvent::Replaces { seat });
        }
        world
    }

    pub(super) fn record_violation(&mut self, what: String) {
        if self.violation.is_none() {
            self.violation = Some(format!("{} ms: {what}", self.now));
        }
    }

    /// Writes a line of the trace, if there is one.
    pub(super) fn note(&mut self, what: impl FnOnce() -> String) {
        if !self.traced {
            return;
        }
        let line = format!("{:>8} {}", self.now, what());
        self.trace.push(line);
        if self.trace.len() > 400 {
            self.trace.drain(..200);
        }
    }

    /// Writes a line of the trace that is never dropped.
    pub(super) fn milestone(&mut self, what: impl FnOnce() -> String) {
        if self.traced {
            let line = format!("{:>8} {}", self.now, what());
            self.milestones.push(line.clone());
            self.trace.push(line);
        }
    }

    /// The agent at the leader's address: the one that the platform started last.
    pub(super) fn chief(&self) -> Option<usize> {
        self.leaders.iter().copied().rev().find(|at| self.agents[*at].alive)
    }

    pub(super) fn holder(&self, seat: Seat) -> Option<usize> {
        (0..self.agents.len()).rev().find(|at| self.agents[*at].seat == seat && self.agents[*at].alive)
    }

    pub(super) fn replace(&mut self, seat: Seat) {
        // A replica that has exited with 0 is complete.
        let is_complete = |agent: &Agent| agent.seat == seat && matches!(agent.left, Some((_, Leave::Finished)));
        if self.agents.iter().any(is_complete) {
            return;
        }
        let second = self.would_be_two_gangs(seat);
        self.two_gangs |= second;
        if second && !self.plan.has_two_gangs() {
            let when = self.now + 30 * SECOND;
            return self.at(when, WorldEvent::Replaces { seat });
        }
        // The platform ends the older agents later.
        let is_old = |at: &usize| self.agents[*at].alive && self.agents[*at].seat == seat;
        let old: Vec<usize> = (0..self.agents.len()).filter(is_old).collect();
        for old in old {
            let when = self.now + self.random.between(100, if second { 600 } else { 120 } * SECOND);
            self.at(when, WorldEvent::Dies(old));
        }
        let at = self.agents.len();
        let (offset, clock_excess) = (self.random.below(1_000_000), self.random.between(0, 1_000) as i64 - 500);
        let incarnation = Incarnation(u128::from(self.random.next()));
        let clock = Duration::from_millis(self.now * (100_000 + clock_excess) as u64 / 100_000 + offset);
        let is_alone = !self.agents.iter().any(|agent| agent.alive && agent.seat == seat);
        let is_same_host = is_alone && self.random.below(2) == 0;
        let host = if is_same_host { format!("host-of-{seat}") } else { format!("host-{at}") };
        let (mut member, actions) = Member::new(clock, seat, seat_of(0), incarnation, host, self.plan.timing);
        member.of_job(self.plan.job_id.clone());
        let wrong_until = self.misconfigured.filter(|(other, until)| *other == seat && self.now < *until);
        let is_misconfigured = wrong_until.is_some();
        if let Some((_, until)) = wrong_until {
            self.at(until, WorldEvent::Dies(at));
        }
        let settings = self.settings_of(incarnation, is_misconfigured);
        settings.clone().into_iter().for_each(|settings| member.announce(settings));
        let own = seat == seat_of(0);
        let config = || Config {
            settings: settings.unwrap_or_else(|| self.settings("1", false)),
            timing: self.plan.timing,
            mode: if self.plan.is_mode_set { self.plan.mode } else { Mode::Auto },
            from_scratch: self.plan.from_scratch,
            on_notice: self.plan.on_notice,
            limits: Limits { max_restarts: 1_000, ..Limits::default() },
            hang: Some(HANG),
            newest_claim: self.newest_claim(),
            job_id: self.plan.job_id.clone(),
            ..Config::of(self.plan.seats.iter().copied(), seat, incarnation)
        };
        let leader = own.then(|| Leader::new(clock, config()));
        if own {
            self.leaders.push(at);
        }
        self.agents.push(Agent {
            seat,
            started: self.now,
            incarnation,
            claim: 0,
            member,
            leader,
            alive: true,
            frozen: None,
            waiting: Vec::new(),
            offset,
            clock_excess,
            link: None,
            dials: false,
            run: None,
            last_commit: None,
            has_closed: false,
            is_misconfigured,
            restored: None,
            left: None,
            offered: Vec::new(),
            ticks: [None; 2],
            survey: 0,
            leaves_after_stop: false,
            refused: false,
        });
        self.milestone(|| format!("agent {at} starts for {seat}"));
        self.member_actions(at, actions);
    }

    fn settings(&self, version: &str, is_misconfigured: bool) -> Settings {
        let mut roster: BTreeSet<Seat> = self.plan.seats.iter().copied().collect();
        if is_misconfigured {
            roster.insert(seat_of(99));
        }
        Settings::new(version, &roster, self.plan.mode)
    }

    /// The settings that an agent announces. A quarter of the agents are of a version that announces none, and a quarter of
    /// one with fewer features.
    fn settings_of(&self, incarnation: Incarnation, is_misconfigured: bool) -> Option<Settings> {
        match incarnation.0 % 4 {
            0 if !is_misconfigured => None,
            1 => Some(Settings { features: BTreeSet::new(), ..self.settings("0", is_misconfigured) }),
            _ => Some(self.settings("1", is_misconfigured)),
        }
    }

    pub(super) fn offer(&mut self, agent: usize) -> Offer {
        let own = self.commits.get(&self.agents[agent].seat).cloned().unwrap_or_default();
        let chiefs = self.commits.get(&seat_of(0)).cloned().unwrap_or_default();
        let steps = if self.plan.mode == Mode::Each { &own } else { &chiefs };
        let step =
            |(step, of): (&u64, &Generation)| Step { step: Some(*step), hash: hash_of(*step, *of), is_stored: true };
        let steps = steps.iter().rev().map(step).collect();
        let kept = self.kept_by(self.agents[agent].seat);
        let steps = offered(steps, kept);
        self.check_offer(agent, &steps);
        self.agents[agent].offered = steps.clone();
        let sees_leaders_file = self.plan.mode == Mode::Shared;
        Offer { steps, has_own_checkpoints: self.plan.mode == Mode::Each && !own.is_empty(), sees_leaders_file }
    }

    /// Reads the restorable steps now, and reports them after a while.
    pub(super) fn survey(&mut self, agent: usize, after: Millis) {
        let slow = self.random.below(20) == 0;
        let takes = self.random.between(1, if slow { 30 * SECOND } else { 300 });
        let offer = self.offer(agent);
        self.agents[agent].survey += 1;
        let (when, survey) = (self.now + after + takes, self.agents[agent].survey);
        self.at(when, WorldEvent::Surveyed { agent, survey, offer });
    }

    pub(super) fn member(&mut self, agent: usize, event: member::Event) {
        let clock = self.clock(agent);
        let shown =
            if !self.traced || matches!(event, member::Event::Tick) { String::new() } else { format!("{event:?}") };
        let actions = self.agents[agent].member.step(clock, event);
        if !shown.is_empty() && !shown.contains("Echo") && !shown.contains("Stepped") {
            let state = self.agents[agent].member.state();
            self.note(|| format!("member {agent}: {shown} -> {state}"));
        }
        self.member_actions(agent, actions);
    }

    fn member_actions(&mut self, agent: usize, actions: Vec<member::Action>) {
        for action in actions {
            match action {
                member::Action::Wake(clock) => self.wake(agent, clock, false),
                member::Action::Dial => {
                    self.agents[agent].dials = true;
                    self.drop_link(agent);
                    let pause = if std::mem::take(&mut self.agents[agent].refused) { SECOND } else { 50 };
                    let when = self.now + self.random.between(1, pause);
                    self.at(when, WorldEvent::Dials(agent));
                }
                member::Action::Hangup => {
                    self.agents[agent].dials = false;
                    self.drop_link(agent);
                }
                member::Action::Send(message) => self.send(agent, true, Message::Up(message), None),
                member::Action::Survey => self.survey(agent, 0),
                member::Action::ReadClaim => self.read_newest_claim(agent),
                member::Action::Restore(choice) => self.restore(agent, choice),
                member::Action::Launch(generation) => self.launch(agent, generation),
                member::Action::End(grace) => self.end(agent, grace.as_millis() as u64),
                member::Action::Stop(grace) => self.stop(agent, grace.as_millis() as u64),
                member::Action::AwaitEnd(limit) => self.stop(agent, limit.as_millis() as u64),
                member::Action::Kill => self.stop(agent, 0),
                member::Action::Abort => self.stop(agent, 10 * SECOND),
                member::Action::ReportTree => self.report_tree(agent),
                member::Action::Save { lead, leave } => {
                    self.agents[agent].leaves_after_stop |= leave;
                    self.stop(agent, lead.as_millis() as u64);
                }
                member::Action::Keep(step) => {
                    let kept = self.kept_by.entry(self.agents[agent].seat).or_default();
                    *kept = step.max(*kept);
                    if self.kept.insert(agent, step).is_some_and(|before| before > step) {
                        self.record_violation(format!("the kept step of agent {agent} went back to {step}"));
                    }
                }
                member::Action::FirstFailure(_) | member::Action::Waiting(_) | member::Action::Log(_) => {}
                member::Action::Leave(leave) => {
                    let yields = self.agents[agent].leader.as_ref().is_some_and(|leader| leader.state() == "yielded");
                    if let Leave::GaveUp { why, .. } = &leave {
                        self.gave_up |= !yields && !self.two_gangs;
                        // Without an id of the job, a new agent may take the end for that of an earlier run.
                        let knows = |end: Millis| !self.plan.job_id.is_empty() || self.agents[agent].started < end;
                        if self.end_written.is_some_and(|end| self.now > end + 60 * SECOND && knows(end)) && !yields {
                            self.record_violation(format!(
                                "agent {agent} gives up although the job has finished: {why}"
                            ));
                        }
                        if !self.plan.seats.iter().any(|seat| why.contains(&seat.to_string())) {
                            self.record_violation(format!("no seat is named: {why}"));
                        }
                    }
                    self.milestone(|| format!("agent {agent} leaves: {leave:?}"));
                    if self.agents[agent].run.is_some() {
                        self.record_violation(format!("agent {agent} leaves with a trainer"));
                    }
                    self.agents[agent].left = Some((self.now, leave));
                    if self.agents[agent].leader.is_none() {
                        self.agents[agent].alive = false;
                    } else if yields {
                        self.kill_agent(agent);
                        if self.chief().is_none() {
                            let when = self.now + 10 * SECOND;
                            self.at(when, WorldEvent::Replaces { seat: seat_of(0) });
                        }
                    }
                }
            }
        }
    }

    pub(super) fn leader(&mut self, agent: usize, event: leader::Event) {
        let clock = self.clock(agent);
        // The charges in a member's record were counted before.
        let merges_record = matches!(&event, leader::Event::Received(_, ToLeader::Hello(_)));
        let Some(leader) = &mut self.agents[agent].leader else { return };
        let charged = leader.record().charged;
        let state_was = leader.state();
        let actions = leader.step(clock, event);
        let is_outside = leader.record().first.as_ref().is_some_and(|first| !first.seat.is_required());
        let (state, more) = (leader.state(), leader.record().charged.saturating_sub(charged));
        self.gave_up |= state == "given_up";
        // A single replica is done at once.
        if self.finished.is_none() && (state == "ending" || state == "done" && state_was == "concluding") {
            self.finished = Some(agent);
        }
        if is_outside {
            self.record_violation("a generation was halted for a seat outside the barrier".to_owned());
        }
        if !merges_record {
            self.charges += more;
            if self.charges > self.deaths {
                self.record_violation(format!("{} deaths were charged {} times", self.deaths, self.charges));
            }
        }
        for action in actions {
            match action {
                leader::Action::Send(link, message) => {
                    if matches!(message, ToMember::Welcome { .. }) {
                        self.check_seat(link);
                    }
                    self.send(agent, false, Message::Down(message), Some(link));
                }
                leader::Action::Close(link) => self.close(link, true),
                leader::Action::Claim { generation, job } => self.claim(agent, generation, job),
                leader::Action::MarkCommon(generation) => self.mark_common(generation),
                leader::Action::CheckForNewerClaim(generation) => self.check_claim(agent, generation),
                leader::Action::Started(generation) => self.starts(agent, generation),
                leader::Action::Log(line) | leader::Action::Warn(line) => self.milestone(|| line),
                leader::Action::LogHang(lines) => self.milestone(|| lines.join("\n    ")),
                leader::Action::Done => {
                    self.milestone(|| format!("leader {agent} is done"));
                    if state == "yielded" {
                        continue;
                    }
                    if state_was == "parting" {
                        self.agents[agent].alive = false;
                        let (seat, when) = (self.agents[agent].seat, self.now + 60 * SECOND);
                        self.at(when, WorldEvent::Replaces { seat });
                        self.agents[agent].leader = None;
                        self.kill_agent(agent);
                        return;
                    }
                    // A leader that ends because of another leader's end does not wait for that leader's members.
                    let is_ended_by_other = self.finished.is_some_and(|ended| ended != agent);
                    let of_it =
                        self.agents[agent].leader.as_ref().map(Leader::generation).filter(|_| !is_ended_by_other);
                    let cut: BTreeSet<Seat> = self.cuts.iter().map(|(seat, ..)| *seat).collect();
                    let reached = |other: &&Agent| other.alive && other.frozen.is_none() && !cut.contains(&other.seat);
                    let training = self
                        .agents
                        .iter()
                        .filter(|other| other.seat != seat_of(0))
                        .filter(reached)
                        .filter(|other| other.run.as_ref().is_some_and(|run| Some(run.generation) == of_it))
                        .count();
                    if training > 0 {
                        self.record_violation("the leader is done before the trainers".to_owned());
                    }
                }
                leader::Action::Wake(clock) => self.wake(agent, clock, true),
            }
        }
    }
}
