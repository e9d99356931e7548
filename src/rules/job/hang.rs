//! Decides when silence of the trainer is a hang.
//!
//! Signs of life are the heartbeat file, output, a commit, and activity of the process tree: working threads, and bytes
//! that it reads or writes. A thread that never sleeps is not a sign of life if the trainer has peers or GPUs, because a
//! rank that waits for a lost peer spins. Once the trainer has used the heartbeat file, its output and its threads no longer count.

use std::collections::BTreeMap;
use std::time::Duration;

use super::event::Uptime;

/// The limits for the time between two samples; inside of them it is an eighth of the timeout.
const LONGEST_TICK: Duration = Duration::from_secs(30);
const SHORTEST_TICK: Duration = Duration::from_millis(10);
/// An announced freeze of the machine may end this much late.
const AFTER_FREEZE: Duration = Duration::from_secs(30);
/// The share of time that a working thread runs. Below it a thread polls, above it a thread spins or computes.
const WORKING_SHARE: std::ops::Range<f64> = 0.05..0.95;
/// From this number on, the threads of one process that never sleep count as computing. A waiting rank has two: one of its
/// own and one of its network library.
const COMPUTING_THREADS: usize = 3;
/// The minimum rate in bytes a second, and the minimum number of bytes, that count as activity; less is bookkeeping. A
/// process's count includes its dead children.
const IO_BYTES_PER_SECOND: f64 = 65536.0;
/// No hang is reported before this many timeouts of an attempt have passed, unless there was a heartbeat: a start that
/// compiles or waits may be silent for longer than a step.
const STARTUP: u32 = 3;

/// A thread of the tree: process id, thread id, and start of the process.
pub(super) type ThreadId = (i32, i32, u64);

/// The counters of the tree at one time; they never decrease.
#[derive(Debug, Clone, Default)]
pub struct Sample {
    /// The time of the sample.
    pub at: Uptime,
    /// The mtime of the heartbeat file in nanoseconds; `None` if the file does not exist.
    pub beat: Option<i128>,
    /// The step in the heartbeat file.
    pub step: Option<u64>,
    /// Bytes of output so far.
    pub output: u64,
    /// The running or runnable time of each thread in nanoseconds.
    pub threads: BTreeMap<ThreadId, u64>,
    /// The bytes that each process (pid and start) has read and written.
    pub moved: BTreeMap<(i32, u64), u64>,
    /// A process of the tree is stopped, by a user or a debugger.
    pub stopped: bool,
}

/// The activity between two samples.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[allow(missing_docs, reason = "each is the sign of that name")]
pub struct LivenessSample {
    pub beat: bool,
    /// The step in the heartbeat file.
    pub step: Option<u64>,
    pub output: bool,
    pub moved: bool,
    pub worked: bool,
    /// A thread never slept: it computes, or it waits for a peer or a GPU.
    pub spun: bool,
    pub stopped: bool,
}

impl Sample {
    /// Per cent of a core that the threads used since `before`; those that began since count from their start.
    pub fn busy_percent(&self, before: &Sample) -> u32 {
        let used = |(id, now): (&ThreadId, &u64)| now.saturating_sub(before.threads.get(id).copied().unwrap_or(0));
        let nanos = self.threads.iter().map(used).fold(0, u64::saturating_add);
        let time = self.at.saturating_sub(before.at).as_nanos().max(1);
        u32::try_from(u128::from(nanos) * 100 / time).unwrap_or(u32::MAX)
    }

    /// Whether one of these threads has run since this sample. A new thread has.
    pub fn have_run_since(&self, threads: impl IntoIterator<Item = (ThreadId, u64)>) -> bool {
        threads.into_iter().any(|(id, ns)| self.threads.get(&id) != Some(&ns))
    }

    /// The activity since `before`.
    pub fn since(&self, before: &Sample) -> LivenessSample {
        let time = self.at.saturating_sub(before.at).as_secs_f64().max(1e-3);
        // Only processes of both samples count: the bytes that a process reads to start are no sign of life, and a
        // shell loop starts many.
        let old = self.moved.iter().filter_map(|(id, now)| Some((now, before.moved.get(id)?)));
        let moved: u64 = old.map(|(now, then)| now.saturating_sub(*then)).sum();
        let mut never_asleep: BTreeMap<i32, usize> = BTreeMap::new();
        let mut worked = false;
        for (id, now) in &self.threads {
            let Some(then) = before.threads.get(id) else { continue };
            let share = now.saturating_sub(*then) as f64 / 1e9 / time;
            worked |= WORKING_SHARE.contains(&share);
            if share >= WORKING_SHARE.end {
                *never_asleep.entry(id.0).or_default() += 1;
            }
        }
        LivenessSample {
            beat: self.beat.is_some() && self.beat != before.beat,
            step: self.step,
            output: self.output > before.output,
            moved: moved as f64 >= IO_BYTES_PER_SECOND * time.max(1.0),
            worked: worked || never_asleep.values().any(|threads| *threads >= COMPUTING_THREADS),
            spun: !never_asleep.is_empty(),
            stopped: self.stopped,
        }
    }
}

/// Watches one attempt.
#[derive(Debug, Clone)]
pub(super) struct Watchdog {
    /// Silence for this long is a hang.
    timeout: Duration,
    started: Uptime,
    last: Uptime,
    /// The last sign of life.
    sign: &'static str,
    beats: bool,
    /// A thread that never sleeps may be waiting.
    may_spin: bool,
    next: Uptime,
}

impl Watchdog {
    pub(super) fn begin(timeout: Duration, may_spin: bool, now: Uptime) -> Watchdog {
        let sign = "its start";
        let mut watch = Watchdog { timeout, started: now, last: now, sign, beats: false, may_spin, next: now };
        watch.next_look(now);
        watch
    }

    /// Sets the time of the next sample.
    pub(super) fn next_look(&mut self, now: Uptime) -> Uptime {
        self.next = (now + self.tick()).min(self.due().max(now + SHORTEST_TICK));
        self.next
    }

    fn tick(&self) -> Duration {
        (self.timeout / 8).clamp(SHORTEST_TICK, LONGEST_TICK)
    }

    /// The time of a sample has come. If it comes much too late, this process was frozen, and so was the trainer: that
    /// time does not count as silence.
    pub(super) fn wake(&mut self, now: Uptime) {
        let late = now.saturating_sub(self.next);
        if late > self.tick() {
            self.last += late;
            self.started += late;
        }
    }

    /// Evaluates a sample.
    pub(super) fn on_sample(&mut self, now: Uptime, sample: &LivenessSample) {
        self.beats |= sample.beat;
        let signs = [
            (sample.beat, "a heartbeat"),
            (sample.output && !self.beats, "output"),
            (sample.moved, "reading or writing"),
            ((sample.worked || sample.spun && !self.may_spin) && !self.beats, "a working thread"),
            (sample.stopped, "that it was stopped"),
        ];
        if let Some((_, sign)) = signs.into_iter().find(|(seen, _)| *seen) {
            self.alive(now, sign);
        }
    }

    /// A sign of life that needs no sample.
    pub(super) fn alive(&mut self, now: Uptime, sign: &'static str) {
        self.last = self.last.max(now);
        self.sign = sign;
    }

    /// The machine is frozen until then. The time may be in the past.
    pub(super) fn frozen(&mut self, until: Uptime) {
        let over = until + AFTER_FREEZE;
        if over > self.last {
            self.alive(over, "that the machine was frozen");
        }
    }

    fn due(&self) -> Uptime {
        let silent = self.last + self.timeout;
        if self.beats { silent } else { silent.max(self.started + self.timeout.saturating_mul(STARTUP)) }
    }

    /// Why the attempt hangs, if it does.
    pub(super) fn verdict(&self, now: Uptime) -> Option<String> {
        (now >= self.due()).then(|| {
            let heartbeat = if self.beats { " and no heartbeat" } else { "" };
            let silent = now.saturating_sub(self.last).as_secs_f64();
            format!("no sign of life{heartbeat} for {silent:.1} s, the last was {}", self.sign)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn secs(s: f64) -> Duration {
        Duration::from_secs_f64(s)
    }

    fn watch() -> Watchdog {
        Watchdog::begin(secs(80.0), true, secs(0.0))
    }

    const OUTPUT: LivenessSample = LivenessSample {
        beat: false,
        step: None,
        output: true,
        moved: false,
        worked: false,
        spun: false,
        stopped: false,
    };
    const BEAT: LivenessSample = LivenessSample { beat: true, output: false, ..OUTPUT };

    /// Takes samples without a sign of life until there is a verdict.
    fn silent_until(watch: &mut Watchdog, mut now: Uptime) -> Uptime {
        while watch.verdict(now).is_none() {
            now = watch.next_look(now);
            watch.wake(now);
            watch.on_sample(now, &LivenessSample::default());
            assert!(now < secs(100_000.0));
        }
        now
    }

    #[test]
    fn a_process_has_run_since_a_sample_if_a_thread_used_time_or_is_new() {
        let sample = Sample { threads: [((7, 7, 1), 100), ((7, 8, 1), 5)].into(), ..Sample::default() };
        assert!(!sample.have_run_since([((7, 7, 1), 100), ((7, 8, 1), 5)]));
        assert!(sample.have_run_since([((7, 7, 1), 100), ((7, 8, 1), 6)]));
        assert!(sample.have_run_since([((7, 9, 1), 0)]), "a new thread");
        assert!(sample.have_run_since([((7, 7, 2), 100)]), "a later process with the same id");
    }

    #[test]
    fn start_up_has_its_own_longer_limit_and_silence_counts_from_the_last_sign() {
        assert_eq!(silent_until(&mut watch(), secs(0.0)), secs(240.0));
        let mut watch = watch();
        watch.on_sample(secs(190.0), &OUTPUT);
        assert_eq!(silent_until(&mut watch, secs(190.0)), secs(270.0));
        assert!(watch.verdict(secs(270.0)).is_some_and(|why| why.contains("80.0 s") && why.contains("output")));
    }

    #[test]
    fn after_a_heartbeat_the_startup_limit_output_and_threads_no_longer_count() {
        let mut watch = watch();
        watch.on_sample(secs(5.0), &BEAT);
        for second in 6..85 {
            watch.on_sample(secs(f64::from(second)), &LivenessSample { worked: true, ..OUTPUT });
        }
        assert_eq!(watch.verdict(secs(84.9)), None);
        assert!(watch.verdict(secs(85.0)).is_some_and(|why| why.contains("no heartbeat")));
        watch.on_sample(secs(84.0), &LivenessSample { moved: true, ..LivenessSample::default() });
        assert_eq!(watch.verdict(secs(86.0)), None, "writing a checkpoint is a sign of life");
    }

    #[test]
    fn a_thread_that_never_sleeps_is_a_sign_of_life_only_without_peers_and_gpus() {
        let spins = |may_spin| {
            let mut watch = Watchdog::begin(secs(80.0), may_spin, secs(0.0));
            let before = sample(0.0, &[(7, 7, 0.0)]);
            watch.on_sample(secs(300.0), &sample(300.0, &[(7, 7, 300.0)]).since(&before));
            watch.verdict(secs(300.0)).is_some()
        };
        assert_eq!([spins(true), spins(false)], [true, false]);
    }

    #[test]
    fn a_supervisor_that_was_frozen_reports_no_hang() {
        let mut watch = watch();
        watch.on_sample(secs(300.0), &OUTPUT);
        let next = watch.next_look(secs(300.0));
        let late = next + secs(3600.0);
        watch.wake(late);
        assert_eq!(watch.verdict(late), None);
        assert!(silent_until(&mut watch, late) >= late + secs(60.0));
    }

    #[test]
    fn a_frozen_machine_gets_its_announced_time_and_30_s_more() {
        let mut watch = watch();
        watch.frozen(secs(200.0 + 9.0));
        assert_eq!(silent_until(&mut watch, secs(200.0)), secs(200.0 + 9.0 + 30.0 + 80.0));
    }

    fn sample(at: f64, busy: &[(i32, i32, f64)]) -> Sample {
        let threads = busy.iter().map(|(pid, tid, s)| ((*pid, *tid, 0), (s * 1e9) as u64)).collect();
        Sample { at: secs(at), threads, ..Sample::default() }
    }

    #[test]
    fn threads_that_sleep_or_spin_are_silent_and_threads_that_work_are_not() {
        let before = sample(0.0, &[(7, 7, 0.0), (7, 8, 0.0), (7, 9, 0.0)]);
        let worked = |a, b, c| sample(10.0, &[(7, 7, a), (7, 8, b), (7, 9, c)]).since(&before).worked;
        assert!(!worked(0.0, 0.1, 0.2), "asleep, or polling");
        assert!(!worked(10.0, 10.0, 0.0), "a rank and its network wait for a peer");
        assert!(worked(10.0, 10.0, 10.0), "many threads compute");
        assert!(worked(10.0, 0.0, 5.0), "one thread works and sleeps");
        let other = sample(10.0, &[(7, 7, 10.0), (8, 8, 10.0), (9, 9, 10.0)]);
        assert!(!other.since(&sample(0.0, &[(7, 7, 0.0), (8, 8, 0.0), (9, 9, 0.0)])).worked, "three ranks wait");
    }

    #[test]
    fn the_busy_threads_are_added_up() {
        let before = sample(0.0, &[(7, 7, 1.0), (7, 8, 0.0)]);
        let after = sample(10.0, &[(7, 7, 6.0), (7, 8, 0.5), (9, 9, 10.0)]);
        assert_eq!((after.busy_percent(&before), before.busy_percent(&after)), (155, 0));
    }

    #[test]
    fn bookkeeping_is_no_sign_of_life_and_writing_a_checkpoint_is() {
        let moved = |bytes| {
            let after = Sample { at: secs(10.0), moved: [((7, 0), bytes)].into(), ..Sample::default() };
            after.since(&Sample { moved: [((7, 0), 100)].into(), ..Sample::default() }).moved
        };
        assert!(!moved(100_000) && moved(1_000_000));
    }

    #[test]
    fn a_heartbeat_is_any_change_of_the_mtime() {
        let at = |beat| Sample { beat, ..Sample::default() };
        assert!(at(Some(5)).since(&at(None)).beat && at(Some(4)).since(&at(Some(5))).beat);
        assert!(!at(Some(5)).since(&at(Some(5))).beat && !at(None).since(&at(Some(5))).beat);
    }
}
