//! The events of the simulation, and the faults.

use super::*;

#[derive(Debug, Clone)]
pub(super) enum WorldEvent {
    ToAgent(usize, Input),
    /// A survey is complete. Only the newest survey of an agent counts.
    Surveyed {
        agent: usize,
        survey: u64,
        offer: Offer,
    },
    /// No trainer of this generation may run now. `soft`: unless another fault disturbs the halt.
    CheckHalt {
        generation: Generation,
        since: Millis,
        soft: bool,
    },
    /// A trainer ends by itself, if it still runs.
    TrainerEnds {
        agent: usize,
        run: u64,
    },
    /// A message arrives.
    Arrives {
        link: u64,
        to_leader: bool,
        message: Message,
    },
    /// One end of a link detects that it is closed.
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
    LastCommitEnds {
        agent: usize,
        run: u64,
    },
    TrainerGone {
        agent: usize,
        run: u64,
    },
    /// The store's answer to the request with this number of an agent's leader.
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
    /// The mark of a common step reaches the store.
    MarksCommon(Generation),
    /// A read reaches the store; the answer takes this long.
    ReadsClaim {
        agent: usize,
        generation: Generation,
        answer_delay: Millis,
    },
    Fault(Fault),
    Thaws(usize),
    Heals,
    Dies(usize),
    /// The machine of an agent goes away after a notice; the platform fills the seat this much later.
    MachineEnds {
        agent: usize,
        after: Millis,
    },
    /// A trainer of this generation fails, because a trainer of another seat is gone.
    CollectiveBreaks {
        generation: Generation,
        except: Seat,
    },
    /// An agent detects that its trainer hangs.
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
#[allow(clippy::large_enum_variant, reason = "one at a time, and most of them are events of members")]
pub(super) enum Input {
    Member(member::Event),
    Tick { leader: bool },
}

#[derive(Debug, Clone, Copy)]
pub(super) enum Fault {
    TrainerDies(Seat),
    /// Its agent reports the hang, or the leader detects it.
    TrainerHangs {
        seat: Seat,
        is_reported: bool,
    },
    AgentDies {
        seat: Seat,
        after: Option<Millis>,
    },
    /// Its machine fails, and nothing closes the connections.
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
    /// A trainer ends with 0 before its work is done, and the collective of the others breaks.
    EarlyExit(Seat),
    /// A trainer closes its connections, the collective of the others breaks, and the trainer ends later.
    ClosesConnections(Seat),
    /// The platform starts an agent whose settings contradict those of the others.
    OtherSettings {
        seat: Seat,
        lasts: Millis,
    },
    /// Only the leader's end of a link closes.
    OneSidedClose(Seat),
    /// An agent exits with this code, and the platform starts another.
    Leaves {
        seat: Seat,
        code: u8,
    },
    /// The platform starts all replicas a second time. The old ones die much later.
    SecondGang,
    /// The store does not answer.
    StoreAway(Millis),
    Notice {
        seat: Seat,
        lead: Millis,
    },
}
