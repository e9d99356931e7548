//! What was asked for: the settings that decide about a job's life, as plain data.

use std::time::Duration;

use super::event::Target;
use super::hang::Hang;
use crate::rules::signal::Signal;

/// Which code a stopped job leaves with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StoppedCode {
    /// 143 whatever the child left with: a 0 would be taken for finished.
    Always143,
    /// The child's own.
    Child,
}

/// The processes of one attempt: so many main children, each with a rank of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Processes {
    /// At least one.
    pub count: u32,
    /// The rank of local rank 0.
    pub first_rank: u32,
}

/// The rules of one `run`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Policy {
    /// From the first SIGTERM, or from the main child's end, to SIGKILL.
    pub stop_grace: Duration,
    /// Who gets forwarded signals.
    pub signal_target: Target,
    /// A stop from a terminal stops us too: at the signal, else only if the command stops of it.
    pub suspend_at_signal: bool,
    /// Forwarded as; `None` drops. The first match wins.
    pub rewrite: Vec<(Signal, Option<Signal>)>,
    /// Exit codes replaced at the very end. The first match wins.
    pub remap_exit: Vec<(u8, u8)>,
    /// Which code a stopped job leaves with.
    pub stopped_code: StoppedCode,
    /// What the trainer gets when the job is stopped or preempted; `None`: only the file tells it.
    pub preempt_signal: Option<Signal>,
    /// Signals that announce the machine's end, and how long before it.
    pub preempt_on: Vec<(Signal, Duration)>,
    /// Signals that are passed on and mean a checkpoint soon, too.
    pub checkpoint_on: Vec<Signal>,
    /// Restarts without a newer checkpoint in between.
    pub max_restarts: u32,
    /// Pause before the first restart; doubled each time.
    pub backoff_first: Duration,
    /// The longest pause.
    pub backoff_max: Duration,
    /// There is a checkpoint directory: restore first, look for the newest between attempts.
    pub checkpoints: bool,
    /// There is a store: a last commit is owed at the end.
    pub store: bool,
    /// Who must be reachable before the first start, in words; `None`: nobody.
    pub peers: Option<String>,
    /// What is started.
    pub processes: Processes,
    /// Where the model of a finished job is to be copied, in words; `None`: it leaves none.
    pub model: Option<String>,
    /// Spreads the pauses of many jobs; `None`: each is exact.
    pub seed: Option<u64>,
    /// When silence is a hang; `None`: never.
    pub hang: Option<Hang>,
    /// The child shares our terminal, and has it whenever we could: then its signals reach the child without us.
    pub child_has_terminal: bool,
    /// HUP was ignored when we were started, as nohup has it: it is passed on, and nobody asks to leave by it.
    pub outlives_hangup: bool,
}

impl Policy {
    /// What a signal is forwarded as; `None` drops it.
    pub fn rewritten(&self, signal: Signal) -> Option<Signal> {
        let asked = self.rewrite.iter().find(|(from, _)| *from == signal).map(|(_, to)| *to);
        // In a session of its own nobody could continue what a terminal's stop has stopped, so the kernel drops those.
        let own_session = self.signal_target == Target::Group && !self.child_has_terminal;
        let as_it_is = if own_session && signal.stops_a_job() { Signal::STOP } else { signal };
        asked.unwrap_or(Some(as_it_is))
    }

    /// Whether somebody who sends this wants the job to end.
    pub fn asks_to_leave(&self, signal: Signal) -> bool {
        signal.asks_to_leave() && !(self.outlives_hangup && signal == Signal::HUP)
    }

    /// The code trainit leaves with where it would leave with `code`.
    pub fn remapped(&self, code: u8) -> u8 {
        self.remap_exit.iter().find(|(from, _)| *from == code).map_or(code, |(_, to)| *to)
    }
}

/// Built-in defaults, the same as the settings'.
impl Default for Policy {
    fn default() -> Policy {
        Policy {
            stop_grace: Duration::from_secs(25),
            signal_target: Target::Leader,
            suspend_at_signal: false,
            rewrite: Vec::new(),
            remap_exit: Vec::new(),
            stopped_code: StoppedCode::Always143,
            preempt_signal: Some(Signal::TERM),
            preempt_on: Vec::new(),
            checkpoint_on: Vec::new(),
            max_restarts: 0,
            backoff_first: Duration::from_secs(1),
            backoff_max: Duration::from_secs(60),
            checkpoints: false,
            store: false,
            peers: None,
            processes: Processes { count: 1, first_rank: 0 },
            model: None,
            seed: None,
            hang: None,
            child_has_terminal: false,
            outlives_hangup: false,
        }
    }
}
