//! The settings that decide about a job, as plain data.

use std::time::Duration;

use super::event::Target;
use crate::cluster::seat::Seat;
use crate::process::signal::Signal;

/// The exit code of a stopped job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StoppedCode {
    /// 143 for any code of the child, because 0 would look like a finished job.
    Always143,
    /// The child's own.
    Child,
}

/// The processes of one attempt: a number of main children with consecutive ranks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Processes {
    /// At least one.
    pub count: u32,
    /// The rank of local rank 0.
    pub first_rank: u32,
}

/// The part of a replica in its gang.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct InGang {
    /// Its seat.
    pub seat: Seat,
    /// From SIGTERM to SIGKILL if the gang halts the command.
    pub stop_grace: Duration,
}

/// The settings of one `run`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Policy {
    /// From the first SIGTERM, or from the main child's end, to SIGKILL.
    pub stop_grace: Duration,
    /// The receiver of forwarded signals.
    pub signal_target: Target,
    /// Replacements for forwarded signals; `None` drops the signal. The first match wins.
    pub rewrite: Vec<(Signal, Option<Signal>)>,
    /// Replacements for trainit's exit code, applied last. The first match wins.
    pub remap_exit: Vec<(u8, u8)>,
    /// The exit code of a stopped job.
    pub stopped_code: StoppedCode,
    /// The signal sent to the trainer for a stop or a preemption; `None`: only the preemption file is written.
    pub preempt_signal: Option<Signal>,
    /// Signals that announce the machine's end, and the time before it.
    pub preempt_on: Vec<(Signal, Duration)>,
    /// Signals that ask for a checkpoint soon, and are also passed on.
    pub checkpoint_on: Vec<Signal>,
    /// The limit of restarts without progress.
    pub max_restarts: u32,
    /// The pause before the first restart, doubled each time.
    pub backoff_first: Duration,
    /// The longest pause.
    pub backoff_max: Duration,
    /// There are training data to fetch before the first attempt.
    pub fetches: bool,
    /// There is a checkpoint directory: restore before the first attempt, and scan for the newest checkpoint between
    /// attempts.
    pub checkpoints: bool,
    /// There is a store: the job ends with a last commit.
    pub store: bool,
    /// The peers that must be reachable before the first start, in words; `None`: no peers.
    pub peers: Option<String>,
    /// The processes of an attempt.
    pub processes: Processes,
    /// Where the model of a finished job is copied, in words; `None`: it has no model.
    pub model: Option<String>,
    /// The seed that spreads the pauses of many jobs; `None`: exact pauses.
    pub seed: Option<u64>,
    /// Silence for this long is a hang; `None`: no silence is.
    pub hang_timeout: Option<Duration>,
    /// Before a trainer that hangs is ended, PyTorch is asked for the dumps of its flight recorder.
    pub asks_for_dumps: bool,
    /// The child is in the foreground of trainit's terminal, so the terminal's signals reach the child directly.
    pub child_has_terminal: bool,
    /// The replicas of the job start and stop together; `None`: this replica is supervised alone.
    pub gang: Option<InGang>,
    /// Signals that trainit was started to ignore, as nohup does with HUP: they are neither passed on nor requests to
    /// leave. A SIGTERM is a stop all the same.
    pub ignored: Vec<Signal>,
    /// The trainer has peers or GPUs, so a thread that never sleeps may be waiting for one of them.
    pub may_spin: bool,
}

impl Policy {
    /// The signal to forward instead; `None` drops it.
    pub fn rewritten(&self, signal: Signal) -> Option<Signal> {
        let asked = self.rewrite.iter().find(|(from, _)| *from == signal).map(|(_, to)| *to);
        // In a session of its own a stopped process could not be continued, so the kernel drops stops by a terminal.
        let own_session = self.signal_target == Target::Group && !self.child_has_terminal;
        let as_it_is = if own_session && signal.stops_a_job() { Signal::STOP } else { signal };
        asked.unwrap_or(Some(as_it_is))
    }

    /// Whether this signal has no effect, because trainit was started to ignore it and no rule rewrites it.
    pub fn is_ignored(&self, signal: Signal) -> bool {
        let is_rewritten = self.rewrite.iter().any(|(from, _)| *from == signal);
        self.ignored.contains(&signal) && signal != Signal::TERM && !is_rewritten
    }

    /// Whether this signal asks the job to end.
    pub fn asks_to_leave(&self, signal: Signal) -> bool {
        signal.asks_to_leave() && !self.is_ignored(signal)
    }

    /// The exit code after the replacements.
    pub fn remapped(&self, code: u8) -> u8 {
        self.remap_exit.iter().find(|(from, _)| *from == code).map_or(code, |(_, to)| *to)
    }
}

/// Built-in defaults, the same as those of the settings.
impl Default for Policy {
    fn default() -> Policy {
        Policy {
            stop_grace: Duration::from_secs(25),
            signal_target: Target::Leader,
            rewrite: Vec::new(),
            remap_exit: Vec::new(),
            stopped_code: StoppedCode::Always143,
            preempt_signal: Some(Signal::TERM),
            preempt_on: Vec::new(),
            checkpoint_on: Vec::new(),
            max_restarts: 0,
            backoff_first: Duration::from_secs(1),
            backoff_max: Duration::from_secs(60),
            fetches: false,
            checkpoints: false,
            store: false,
            peers: None,
            processes: Processes { count: 1, first_rank: 0 },
            model: None,
            seed: None,
            hang_timeout: None,
            asks_for_dumps: false,
            child_has_terminal: false,
            gang: None,
            ignored: Vec::new(),
            may_spin: true,
        }
    }
}
