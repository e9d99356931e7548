//! When silence is a hang.
//!
//! Signs of life are the heartbeat file, bytes of output, a commit, and what the process tree does: threads that work,
//! bytes that it reads or writes. A thread that never sleeps is none, for so a rank waits for a peer that is gone. Once a
//! trainer beats, its output and its threads count no more: it has said what to go by.

use std::collections::BTreeMap;
use std::time::Duration;

use super::event::Uptime;

/// Between two looks, at most and at least; else an eighth of the timeout.
const LONGEST_TICK: Duration = Duration::from_secs(30);
const SHORTEST_TICK: Duration = Duration::from_millis(10);
/// A machine that was announced to stand still may be a while late.
const AFTER_FREEZE: Duration = Duration::from_secs(30);
/// Of a thread that does anything: parts of the time that it runs. Below it polls, above it spins or computes.
const WORKS: std::ops::Range<f64> = 0.05..0.95;
/// So many threads of one process that never sleep compute; a waiting rank has its own and its network's.
const COMPUTES: usize = 3;
/// Bytes a second (and so many at least) that are no mere bookkeeping; a process's own include those of its dead children.
const MOVES: f64 = 65536.0;

/// What was asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Hang {
    /// Silence for this long is a hang.
    pub timeout: Duration,
    /// Nothing is one before this much of an attempt is over, unless the heart has begun to beat.
    pub startup: Duration,
}

/// One thread of the tree: its process, itself, and when the process started.
pub(super) type ThreadId = (i32, i32, u64);

/// What the tree looked like at one instant; counters only ever rise.
#[derive(Debug, Clone, Default)]
pub struct Sample {
    /// When.
    pub at: Uptime,
    /// The heartbeat file's modification time in nanoseconds; `None`: it is not there.
    pub beat: Option<i128>,
    /// The step that it names.
    pub step: Option<u64>,
    /// Bytes of output so far.
    pub output: u64,
    /// Nanoseconds that each thread has been running or ready to.
    pub threads: BTreeMap<ThreadId, u64>,
    /// Bytes that each process (pid and start) has read and written.
    pub moved: BTreeMap<(i32, u64), u64>,
    /// Some process of the tree is stopped: somebody looks at it.
    pub stopped: bool,
}

/// What happened between two samples.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[allow(missing_docs, reason = "each is the sign of that name")]
pub struct Pulse {
    pub beat: bool,
    /// The step in the heartbeat file.
    pub step: Option<u64>,
    pub output: bool,
    pub moved: bool,
    pub worked: bool,
    pub stopped: bool,
}

impl Sample {
    /// What happened since `before`.
    pub fn since(&self, before: &Sample) -> Pulse {
        let time = self.at.saturating_sub(before.at).as_secs_f64().max(1e-3);
        // What a process reads to start is no life: a loop of a shell's starts many.
        let old = self.moved.iter().filter_map(|(id, now)| Some((now, before.moved.get(id)?)));
        let moved: u64 = old.map(|(now, then)| now.saturating_sub(*then)).sum();
        let mut ceaseless: BTreeMap<i32, usize> = BTreeMap::new();
        let mut worked = false;
        for (id, now) in &self.threads {
            let Some(then) = before.threads.get(id) else { continue };
            let share = now.saturating_sub(*then) as f64 / 1e9 / time;
            worked |= WORKS.contains(&share);
            if share >= WORKS.end {
                *ceaseless.entry(id.0).or_default() += 1;
            }
        }
        Pulse {
            beat: self.beat.is_some() && self.beat != before.beat,
            step: self.step,
            output: self.output > before.output,
            moved: moved as f64 >= MOVES * time.max(1.0),
            worked: worked || ceaseless.values().any(|threads| *threads >= COMPUTES),
            stopped: self.stopped,
        }
    }
}

/// Watches one attempt.
#[derive(Debug, Clone)]
pub(super) struct Watch {
    hang: Hang,
    started: Uptime,
    last: Uptime,
    /// What was seen last.
    sign: &'static str,
    beats: bool,
    next: Uptime,
}

impl Watch {
    pub(super) fn begin(hang: Hang, now: Uptime) -> Watch {
        let mut watch = Watch { hang, started: now, last: now, sign: "its start", beats: false, next: now };
        watch.next_look(now);
        watch
    }

    /// When to look next.
    pub(super) fn next_look(&mut self, now: Uptime) -> Uptime {
        self.next = (now + self.tick()).min(self.due().max(now + SHORTEST_TICK));
        self.next
    }

    fn tick(&self) -> Duration {
        (self.hang.timeout / 8).clamp(SHORTEST_TICK, LONGEST_TICK)
    }

    /// It is time to look. Where we come much too late we stood still ourselves (a frozen container), and so did the
    /// trainer: that is no silence.
    pub(super) fn wake(&mut self, now: Uptime) {
        let late = now.saturating_sub(self.next);
        if late > self.tick() {
            self.last += late;
            self.started += late;
        }
    }

    /// What a look has shown.
    pub(super) fn hear(&mut self, now: Uptime, pulse: &Pulse) {
        self.beats |= pulse.beat;
        let signs = [
            (pulse.beat, "a heartbeat"),
            (pulse.output && !self.beats, "output"),
            (pulse.moved, "reading or writing"),
            (pulse.worked && !self.beats, "a thread at work"),
            (pulse.stopped, "that somebody had stopped it"),
        ];
        if let Some((_, sign)) = signs.into_iter().find(|(seen, _)| *seen) {
            self.alive(now, sign);
        }
    }

    /// A sign that no look is needed for.
    pub(super) fn alive(&mut self, now: Uptime, sign: &'static str) {
        self.last = self.last.max(now);
        self.sign = sign;
    }

    /// The machine stands still until then, which may be past.
    pub(super) fn frozen(&mut self, until: Uptime) {
        let over = until + AFTER_FREEZE;
        if over > self.last {
            self.alive(over, "that the machine stood still");
        }
    }

    fn due(&self) -> Uptime {
        let silent = self.last + self.hang.timeout;
        if self.beats { silent } else { silent.max(self.started + self.hang.startup) }
    }

    /// Why it hangs, if it does.
    pub(super) fn verdict(&self, now: Uptime) -> Option<String> {
        (now >= self.due()).then(|| {
            let heart = if self.beats { " and no heartbeat" } else { "" };
            let silent = now.saturating_sub(self.last).as_secs_f64();
            format!("no sign of life{heart} for {silent:.1} s, the last was {}", self.sign)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn secs(s: f64) -> Duration {
        Duration::from_secs_f64(s)
    }

    fn watch() -> Watch {
        Watch::begin(Hang { timeout: secs(80.0), startup: secs(200.0) }, secs(0.0))
    }

    const OUTPUT: Pulse = Pulse { beat: false, step: None, output: true, moved: false, worked: false, stopped: false };
    const BEAT: Pulse = Pulse { beat: true, output: false, ..OUTPUT };

    /// Looks as often as it is told to until the verdict, with no sign of life.
    fn silent_until(watch: &mut Watch, mut now: Uptime) -> Uptime {
        while watch.verdict(now).is_none() {
            now = watch.next_look(now);
            watch.wake(now);
            watch.hear(now, &Pulse::default());
            assert!(now < secs(100_000.0));
        }
        now
    }

    #[test]
    fn start_up_has_its_own_longer_limit_and_silence_counts_from_the_last_sign() {
        assert_eq!(silent_until(&mut watch(), secs(0.0)), secs(200.0));
        let mut watch = watch();
        watch.hear(secs(190.0), &OUTPUT);
        assert_eq!(silent_until(&mut watch, secs(190.0)), secs(270.0));
        assert!(watch.verdict(secs(270.0)).is_some_and(|why| why.contains("80.0 s") && why.contains("output")));
    }

    #[test]
    fn a_heart_that_beats_ends_the_start_up_and_then_output_and_work_count_no_more() {
        let mut watch = watch();
        watch.hear(secs(5.0), &BEAT);
        for second in 6..85 {
            watch.hear(secs(f64::from(second)), &Pulse { worked: true, ..OUTPUT });
        }
        assert_eq!(watch.verdict(secs(84.9)), None);
        assert!(watch.verdict(secs(85.0)).is_some_and(|why| why.contains("no heartbeat")));
        watch.hear(secs(84.0), &Pulse { moved: true, ..Pulse::default() });
        assert_eq!(watch.verdict(secs(86.0)), None, "a checkpoint being written is life");
    }

    #[test]
    fn a_supervisor_that_stood_still_itself_calls_nothing_a_hang() {
        let mut watch = watch();
        watch.hear(secs(300.0), &OUTPUT);
        let next = watch.next_look(secs(300.0));
        let late = next + secs(3600.0);
        watch.wake(late);
        assert_eq!(watch.verdict(late), None);
        assert!(silent_until(&mut watch, late) >= late + secs(60.0));
    }

    #[test]
    fn a_frozen_machine_is_given_its_time_and_half_a_minute() {
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
        assert!(worked(10.0, 0.0, 5.0), "one works in pieces");
        let other = sample(10.0, &[(7, 7, 10.0), (8, 8, 10.0), (9, 9, 10.0)]);
        assert!(!other.since(&sample(0.0, &[(7, 7, 0.0), (8, 8, 0.0), (9, 9, 0.0)])).worked, "three ranks wait");
    }

    #[test]
    fn bookkeeping_is_no_life_and_a_checkpoint_on_its_way_is() {
        let moved = |bytes| {
            let after = Sample { at: secs(10.0), moved: [((7, 0), bytes)].into(), ..Sample::default() };
            after.since(&Sample { moved: [((7, 0), 100)].into(), ..Sample::default() }).moved
        };
        assert!(!moved(100_000) && moved(1_000_000));
    }

    #[test]
    fn a_heartbeat_is_a_change_of_the_file_whatever_the_clock_says() {
        let at = |beat| Sample { beat, ..Sample::default() };
        assert!(at(Some(5)).since(&at(None)).beat && at(Some(4)).since(&at(Some(5))).beat);
        assert!(!at(Some(5)).since(&at(Some(5))).beat && !at(None).since(&at(Some(5))).beat);
    }
}
