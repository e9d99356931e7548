//! What a member does when time passes: beats, and the limits of its waits.

use std::time::Duration;

use super::super::message::ToLeader;
use super::super::settings::PERMANENT;
use super::{Action, Leave, Link, Member, Phase};
use crate::cluster::seat::Seat;

/// The interval between two log lines about an absent leader.
pub(super) const WAITING_REPORT_INTERVAL: Duration = Duration::from_secs(30);

/// A restore without progress for this long has failed.
const MOST_SILENT_RESTORE: Duration = Duration::from_secs(60);

impl Member {
    /// The seats for which the gang waits, as far as this member knows.
    pub fn waiting_for(&self) -> Vec<Seat> {
        match self.phase {
            Phase::Surveying | Phase::Ready(_) | Phase::Restoring(_) | Phase::Armed(_) | Phase::Stopping => {
                if self.link == Link::Welcomed { self.missing.clone() } else { vec![self.leader_seat] }
            }
            Phase::Beside
            | Phase::Training(_)
            | Phase::Committing(_)
            | Phase::Finished(_)
            | Phase::Ending(_)
            | Phase::Left => Vec::new(),
        }
    }

    pub(super) fn on_time(&mut self, now: Duration, actions: &mut Vec<Action>) {
        // Only a new welcome prevents the stop: a connection alone does not mean that the leader has given the seat.
        if let Some((since, _)) = self.disconnected.filter(|_| self.may_train())
            && now >= since + self.timing.return_grace
        {
            self.mark_stopping();
            actions.push(Action::Stop(self.timing.stop_grace));
        }
        if self.link == Link::Welcomed && now >= self.next_beat && !matches!(self.phase, Phase::Left) {
            self.next_beat = now + self.timing.beat;
            actions.push(Action::Send(ToLeader::Beat(self.beat(now))));
        }
        if let Phase::Restoring(generation) = self.phase
            && now >= self.restore_moved + MOST_SILENT_RESTORE
        {
            let at = self.restoring.take().map_or(String::new(), |(done, all)| format!(" at {done} of {all} bytes"));
            let why = format!("no progress for {} s{at}", MOST_SILENT_RESTORE.as_secs());
            self.phase = Phase::Surveying;
            self.send(ToLeader::CannotRestore { generation, why }, actions);
            actions.push(Action::Survey);
        }
        let is_idle = matches!(self.phase, Phase::Surveying | Phase::Ready(_) | Phase::Stopping);
        if let Some((_, why)) = self.contradiction.take_if(|(since, _)| is_idle && now >= *since + PERMANENT) {
            self.stop_and_leave(Leave::Contradiction(why), actions);
        }
        // With a seat, the leader gives up and names the missing seats.
        if self.link == Link::Welcomed || matches!(self.phase, Phase::Ending(_) | Phase::Left) {
            (self.waiting, self.last_waiting_report) = (now, now);
            self.store.next_read = None;
        } else {
            self.wait_for_leader(now, actions);
        }
        actions.push(Action::Wake(self.next_wake(now)));
    }

    fn next_wake(&self, now: Duration) -> Duration {
        let mut next = now + self.timing.wait;
        if self.phase == Phase::Left {
            return next;
        }
        if self.link == Link::Welcomed {
            next = next.min(self.next_beat);
        }
        if self.may_train() {
            next = next.min(self.lease.unwrap_or(now));
            if let Some((since, _)) = self.disconnected {
                next = next.min(since + self.timing.return_grace);
            }
        }
        if let Phase::Restoring(_) = self.phase {
            next = next.min(self.restore_moved + MOST_SILENT_RESTORE);
        }
        if let Some((since, _)) = &self.contradiction {
            next = next.min((*since + PERMANENT).max(now + Duration::from_secs(1)));
        }
        if let Some(at) = self.store.next_read {
            next = next.min(at);
        }
        next.min(self.waiting + self.timing.wait).min(self.last_waiting_report + WAITING_REPORT_INTERVAL).max(now)
    }
}
