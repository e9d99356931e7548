//! From the end of the fetch to the first start: the restore, its result, and the wait for the peers. Restores between
//! attempts report here, too.

use super::*;

impl Machine {
    /// Restores, or starts the command if there is no checkpoint directory. In a gang the member asks for a survey.
    pub(super) fn begin(&mut self) -> Vec<Action> {
        if self.is_in_gang() {
            self.state = State::Surveying;
            return if std::mem::take(&mut self.gang.is_survey_due) { self.survey() } else { Vec::new() };
        }
        if self.policy.checkpoints { vec![Action::Restore] } else { self.start_or_gather() }
    }

    /// The restore is complete: starts the first attempt, after waiting for the peers if necessary.
    fn start_or_gather(&mut self) -> Vec<Action> {
        if self.policy.peers.is_none() {
            return self.spawn();
        }
        self.state = State::Gathering;
        vec![Action::AwaitPeers]
    }

    /// New content was committed.
    pub(super) fn on_progress(&mut self, step: Option<u64>) {
        self.attempt.has_saved = true;
        self.restarts.budget.progressed(step);
    }

    pub(super) fn on_restored(&mut self, now: Uptime, resume: Option<Resume>, committed: Option<u64>) -> Vec<Action> {
        if self.next.falling_back.is_none() {
            self.note_newest(committed);
        }
        let step = resume.as_ref().and_then(|r| r.step);
        self.next.resume = resume;
        match self.state {
            State::Restoring => {
                self.restarts.budget.starts_from(step.max(committed));
                self.start_or_gather()
            }
            State::Arming => self.on_armed(),
            State::Refreshing if self.next.falling_back.is_some() => self.on_fallen_back(now),
            State::Refreshing => self.decide(now),
            _ => Vec::new(),
        }
    }

    /// The next restore of this job starts with this commit.
    pub(super) fn on_found(&mut self, committed: Option<u64>) -> Vec<Action> {
        if matches!(self.state, State::Restoring | State::Flushing) {
            self.commits.step = committed;
        }
        Vec::new()
    }

    pub(super) fn on_not_restored(&mut self, code: u8, detail: String) -> Vec<Action> {
        match (&self.state, code) {
            (State::Arming, exit::STORE) => self.on_not_armed(detail),
            (State::Surveying | State::Arming, exit::FENCED) => self.exit(Reason::Fenced, code, detail),
            (State::Surveying, exit::STORE) => self.exit(Reason::Store, code, detail),
            (State::Surveying | State::Arming, _) => self.exit(Reason::NotStarted, code, detail),
            (State::Restoring | State::Refreshing, exit::STORE) => self.exit(Reason::Store, code, detail),
            (State::Restoring | State::Refreshing, exit::FENCED) => self.exit(Reason::Fenced, code, detail),
            (State::Restoring | State::Refreshing, _) => self.exit(Reason::NotStarted, code, detail),
            _ => Vec::new(),
        }
    }
}
