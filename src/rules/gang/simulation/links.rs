//! Links: messages stay in order, and a cut delays one direction.

use super::*;

impl World {
    pub(super) fn is_cut(&self, agent: usize, to_leader: bool) -> Option<Millis> {
        let seat = self.agents[agent].seat;
        let mut cuts = self
            .cuts
            .iter()
            .filter(|(cut, direction, until)| *cut == seat && *direction == to_leader && *until > self.now);
        cuts.next().map(|(_, _, until)| *until)
    }

    pub(super) fn dial(&mut self, agent: usize) {
        if !self.agents[agent].dials || self.agents[agent].link.is_some() {
            return;
        }
        let target = self.chief().filter(|chief| self.agents[*chief].leader.is_some());
        // The link of a leader to its own member is inside the process.
        let cut = self.is_cut(agent, true).or(self.is_cut(agent, false)).filter(|_| target != Some(agent));
        match (target, cut) {
            (Some(leader), None) => {
                self.count += 1;
                let link = self.count;
                self.links.insert(link, Conn { member: agent, leader, open: [true; 2], last: [self.now; 2] });
                self.agents[agent].link = Some(link);
                self.member(agent, member::Event::Linked);
            }
            _ => {
                let when = self.now + self.random.between(100, 1_000);
                self.at(when, WorldEvent::Dials(agent));
            }
        }
    }

    /// The member's end closes.
    pub(super) fn drop_link(&mut self, agent: usize) {
        if let Some(link) = self.agents[agent].link.take() {
            self.close(link, false);
        }
    }

    /// One end closes; the other detects it after a moment, or when the cut heals.
    pub(super) fn close(&mut self, link: u64, at_leader: bool) {
        let Some(conn) = self.links.get_mut(&link) else { return };
        let end = usize::from(at_leader);
        if !std::mem::replace(&mut conn.open[end], false) {
            return;
        }
        let (member, after, is_inside) = (conn.member, conn.last[end], conn.member == conn.leader);
        let delay = self.random.between(1, 20);
        let from = after.max(self.now + delay);
        let when = self.is_cut(member, !at_leader).filter(|_| !is_inside).map_or(from, |until| from.max(until));
        self.at(when, WorldEvent::Closed { link, to_leader: !at_leader, silent: false });
    }

    pub(super) fn closed(&mut self, link: u64, to_leader: bool, silent: bool) {
        let Some(conn) = self.links.get_mut(&link) else { return };
        if !std::mem::replace(&mut conn.open[usize::from(to_leader)], false) {
            return;
        }
        let (member, leader) = (conn.member, conn.leader);
        if to_leader {
            self.leader(leader, leader::Event::Closed(link));
        } else if self.agents[member].link == Some(link) {
            self.agents[member].link = None;
            self.member(member, member::Event::Unlinked { silent });
        }
    }

    pub(super) fn send(&mut self, agent: usize, to_leader: bool, message: Message, link: Option<u64>) {
        let Some(link) = link.or(self.agents[agent].link) else { return };
        let Some(conn) = self.links.get(&link) else { return };
        let end = usize::from(!to_leader);
        if !conn.open[end] {
            return;
        }
        let (member, last) = (conn.member, conn.last[end]);
        let same_machine = conn.member == conn.leader;
        let latency = if same_machine { 0 } else { self.random.between(1, 20) };
        let mut when = last.max(self.now + latency);
        if !same_machine && let Some(until) = self.is_cut(member, to_leader) {
            when = when.max(until + latency);
        }
        if let Some(conn) = self.links.get_mut(&link) {
            conn.last[end] = when;
        }
        self.at(when, WorldEvent::Arrives { link, to_leader, message });
    }

    pub(super) fn arrives(&mut self, link: u64, to_leader: bool, message: Message) {
        let Some(conn) = self.links.get(&link) else { return };
        if !conn.open[usize::from(to_leader)] {
            return;
        }
        let (member, leader) = (conn.member, conn.leader);
        match message {
            Message::Up(message) => {
                if !matches!(message, ToLeader::Beat(_)) {
                    self.note(|| format!("leader {leader} receives from {member}: {message:?}"));
                }
                self.leader(leader, leader::Event::Received(link, message));
            }
            Message::Down(message) => {
                let refused = matches!(message, ToMember::Refused { .. });
                if matches!(message, ToMember::Halt { .. }) && self.agents[member].has_closed {
                    self.member(member, member::Event::ConnectionsClosed);
                }
                self.member(member, member::Event::Received(message));
                if refused {
                    self.agents[member].refused = true;
                    self.drop_link(member);
                    self.member(member, member::Event::Unlinked { silent: false });
                }
            }
        }
    }
}
