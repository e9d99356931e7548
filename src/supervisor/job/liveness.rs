//! Samples the trainer's signs of life when the machine requests it, and reports the changes since the last sample.
//! `rules/job/hang.rs` interprets them.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::edge::fs::trusted_open;
use crate::edge::process::descendants::Descendant;
use crate::edge::process::threads;
use crate::rules::gang::hang::{TreeState, lasting_state};
use crate::rules::job::{Event, LivenessSample, Sample, Uptime};
use crate::supervisor::job::heartbeat;
use crate::supervisor::status::history::History;

/// The state of the last sample.
#[derive(Debug)]
pub(in crate::supervisor) struct Liveness {
    heartbeat: Option<String>,
    history: History,
    /// Bytes of output so far.
    passed_on: Arc<AtomicU64>,
    last: Option<Sample>,
    /// Per cent of a core that the trainer used between the last two samples.
    cpu: Option<u32>,
    /// A stopped process is a sign of life: a debugger stops it. A simulated platform stops a trainer to let it hang.
    stop_is_life: bool,
    /// The warning about invisible processes was logged.
    is_blindness_logged: bool,
}

impl Liveness {
    pub(in crate::supervisor) fn new(
        heartbeat: Option<String>,
        passed_on: Arc<AtomicU64>,
        history: History,
        stop_is_life: bool,
    ) -> Liveness {
        Liveness { heartbeat, history, passed_on, last: None, cpu: None, stop_is_life, is_blindness_logged: false }
    }

    /// Before an attempt: removes the heartbeat of the previous one.
    pub(in crate::supervisor) fn begin(&mut self) {
        if let Some(path) = &self.heartbeat {
            let _ = trusted_open::remove_file(Path::new(path));
        }
        (self.last, self.cpu) = (None, None);
    }

    /// Samples the heartbeat file, the output and the processes. The first sample of an attempt has no earlier
    /// processes to compare with.
    pub(in crate::supervisor) fn sample(&mut self, now: Uptime, tree: Option<Vec<Descendant>>) -> Event {
        if tree.is_none() && !std::mem::replace(&mut self.is_blindness_logged, true) {
            tracing::warn!(
                "without a /proc of its own PID namespace, the hang watch cannot see the threads, reads and writes of \
                 the trainer: only heartbeats, output and commits are signs of life; mount /proc, or let the trainer \
                 touch TRAINIT_HEARTBEAT_FILE"
            );
        }
        let (beat, step) = self.beat();
        let output = self.passed_on.load(Ordering::Relaxed);
        let mut sample = Sample { at: now, beat, step, output, ..Sample::default() };
        for process in tree.unwrap_or_default() {
            let counters = threads::counters(process.pid);
            sample.threads.extend(busy(&process, counters.busy_ns));
            sample.moved.insert((process.pid, process.started), counters.moved_bytes);
            sample.stopped |= counters.is_stopped && self.stop_is_life;
        }
        let first =
            || Sample { at: now, output, moved: sample.moved.clone(), threads: BTreeMap::new(), ..Sample::default() };
        let change = sample.since(self.last.as_ref().unwrap_or(&first()));
        self.cpu = self.last.as_ref().map(|last| sample.busy_percent(last));
        self.last = Some(sample);
        Event::LivenessSampled(change)
    }

    /// The step in an attempt's last heartbeat, which may be newer than the last sample.
    pub(in crate::supervisor) fn last_step(&self) -> Option<Event> {
        let (_, step) = self.beat();
        step.map(|_| Event::LivenessSampled(LivenessSample { step, ..LivenessSample::default() }))
    }

    /// The step that the attempt's heartbeat names.
    pub(in crate::supervisor) fn step(&self) -> Option<u64> {
        self.beat().1
    }

    /// The activity of the processes, for the other replicas of the gang.
    pub(in crate::supervisor) fn tree_state(&self, tree: &[Descendant]) -> TreeState {
        let activity = |process: &Descendant| {
            let (state, place) = threads::activity(process.pid);
            let busy = busy(process, threads::counters(process.pid).busy_ns);
            let has_run = self.last.as_ref().is_some_and(|last| last.have_run_since(busy));
            (lasting_state(state, has_run), place)
        };
        TreeState::of(self.step(), self.cpu, tree.iter().map(activity))
    }

    /// When the heartbeat must be read for the time of a step.
    pub(in crate::supervisor) fn look_at(&self) -> Option<Uptime> {
        self.history.look_at()
    }

    /// Reads the heartbeat for the time of a step, if that is due.
    pub(in crate::supervisor) fn look(&self, now: Uptime) {
        if self.look_at().is_some_and(|at| now >= at) {
            self.beat();
            self.history.looked(now);
        }
    }

    /// The time of the last heartbeat, and its step, which the history gets.
    fn beat(&self) -> (Option<i128>, Option<u64>) {
        let beat = self.heartbeat.as_deref().map_or((None, None), heartbeat::read);
        if let (Some(nanos), Some(step)) = beat {
            self.history.step(nanos as f64 / 1e9, step);
        }
        beat
    }
}

/// The running time of a process's threads, as a sample has it.
fn busy(process: &Descendant, busy_ns: Vec<(i32, u64)>) -> impl Iterator<Item = ((i32, i32, u64), u64)> {
    let (pid, started) = (process.pid, process.started);
    busy_ns.into_iter().map(move |(tid, ns)| ((pid, tid, started), ns))
}
