//! What can happen in the world, and the faults.

use super::*;

#[derive(Debug, Clone)]
pub(super) enum Happening {
    ToAgent(usize, Input),
    /// A survey is done; the caller answers the newest alone.
    Surveyed {
        agent: usize,
        survey: u64,
        offer: Offer,
    },
    /// No trainer of this generation may run by now. `soft`: unless something else is wrong.
    Judge {
        generation: Generation,
        since: Millis,
        soft: bool,
    },
    /// A trainer finds out whether it ends by itself.
    TrainerEnds {
        agent: usize,
        run: u64,
    },
    /// A link's message arrives.
    Arrives {
        link: u64,
        to_leader: bool,
        message: Message,
    },
    /// A link's end finds out that it is closed.
    Closed {
        link: u64,
        to_leader: bool,
        silent: bool,
    },
    Dials(usize),
    TrainerSteps {
        agent: usize,
        run: u64,
    },
    TrainerGone {
        agent: usize,
        run: u64,
    },
    /// The store's answer to the leader of an agent, to its request of this number.
    ToLeader {
        agent: usize,
        claim: u64,
        event: leader::Event,
    },
    /// A put reaches the store.
    Put {
        agent: usize,
        claim: u64,
        object: Claim,
    },
    /// The mark of a generation with a common step reaches the store.
    MarksCommon(Generation),
    /// A read reaches the store; its answer takes so long.
    Looks {
        agent: usize,
        generation: Generation,
        back: Millis,
    },
    Fault(Fault),
    Thaws(usize),
    Heals,
    Dies(usize),
    /// The machine of an agent goes after a notice; the platform fills its seat so much later.
    MachineGoes {
        agent: usize,
        after: Millis,
    },
    /// An agent finds that its trainer hangs.
    FindsHang {
        agent: usize,
        run: u64,
    },
    /// The platform starts an agent for this seat.
    Replaces {
        seat: Seat,
    },
}

#[derive(Debug, Clone)]
pub(super) enum Message {
    Up(ToLeader),
    Down(ToMember),
}

#[derive(Debug, Clone)]
pub(super) enum Input {
    Member(member::Event),
    Tick { leader: bool },
}

#[derive(Debug, Clone, Copy)]
pub(super) enum Fault {
    TrainerDies(Seat),
    /// Its agent finds out, or the leader.
    TrainerHangs {
        seat: Seat,
        is_reported: bool,
    },
    AgentDies {
        seat: Seat,
        after: Option<Millis>,
    },
    /// Its machine is gone: nothing closes the connections.
    Vanishes {
        seat: Seat,
        after: Millis,
    },
    Freeze {
        seat: Seat,
        lasts: Millis,
    },
    Reset(Seat),
    Cut {
        seat: Seat,
        to_leader: bool,
        lasts: Millis,
    },
    SecondAgent(Seat),
    /// The platform starts all replicas a second time. The old ones die much later.
    SecondGang,
    /// The store does not answer.
    StoreAway(Millis),
    Notice {
        seat: Seat,
        lead: Millis,
    },
}
