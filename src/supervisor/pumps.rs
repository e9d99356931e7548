//! The threads that pass the trainer's output on, and how long the end of an attempt waits for them: as long as somebody
//! reads what they write. The loop goes on meanwhile, so that a stop is heard and its deadline kept.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};
use std::sync::Arc;
use std::time::Duration;

use super::outlet::{Outlet, Passage};
use crate::edge::clock::Clock;
use crate::edge::signals;
use crate::edge::wake::{self, Bell, Farewell};
use crate::rules::job::Uptime;

/// How long the end of an attempt waits for a reader that takes nothing, and the end of a run for its last metrics.
pub(super) const PATIENCE: Duration = Duration::from_secs(5);

/// How long the end of a stopped run waits for it: who stops it does not wait for who reads it.
const HURRIED: Duration = Duration::from_secs(1);

/// One thread.
#[derive(Debug)]
struct Pump {
    /// Rung when no writer of ours is left, so that an empty pipe is at its end even if somebody holds it open.
    over: Bell,
    /// Rung when the thread has gone.
    gone: Bell,
    passage: Arc<Passage>,
}

/// Those of one attempt.
#[derive(Debug, Default)]
pub(super) struct Pumps {
    pumps: Vec<Pump>,
    ending: Option<Ending>,
}

/// No writer is left; what had been taken when.
#[derive(Debug)]
struct Ending {
    at: Uptime,
    taken: u64,
}

impl Pumps {
    /// A thread that passes on to one of our streams until the end of its own, or until the bell is rung and nothing is
    /// left. Errors: as eventfd(2) and pthread_create(3).
    pub(super) fn start(
        &mut self,
        to: BorrowedFd<'static>,
        run: impl FnOnce(Bell, Outlet) + Send + 'static,
    ) -> io::Result<()> {
        let pump = Pump { over: Bell::new()?, gone: Bell::new()?, passage: Arc::default() };
        let (over, farewell) = (pump.over.clone(), Farewell(pump.gone.clone()));
        let outlet = Outlet::new(to, Arc::clone(&pump.passage));
        signals::deaf_thread("output", move || {
            let _farewell = farewell;
            run(over, outlet);
        })?;
        self.pumps.push(pump);
        Ok(())
    }

    /// No writer of ours is left: what there is is still passed on.
    pub(super) fn end(&mut self, now: Uptime) {
        self.pumps.iter().for_each(|pump| pump.over.ring());
        let taken = self.taken();
        self.ending.get_or_insert(Ending { at: now, taken });
    }

    /// What is readable when one of them is through.
    pub(super) fn fds(&self) -> Vec<RawFd> {
        let ending = self.ending.iter().flat_map(|_| &self.pumps);
        ending.map(|pump| pump.gone.as_raw_fd()).collect()
    }

    /// When to look again, whether or not one is.
    pub(super) fn due(&self, hurried: bool) -> Option<Uptime> {
        let ending = self.ending.as_ref()?;
        Some(if self.pumps.is_empty() { Uptime::ZERO } else { ending.at + patience(hurried) })
    }

    /// Whether the output has ended, told once: all was passed on, or nobody has taken any of it for too long. `hurried`:
    /// there is no time for a slow reader.
    pub(super) fn are_through(&mut self, now: Uptime, hurried: bool) -> bool {
        let before = self.pumps.len();
        self.pumps.retain(|pump| !pump.gone.is_rung());
        let (has_ended, taken) = (self.pumps.len() < before, self.taken());
        let Some(ending) = &mut self.ending else { return false };
        if !self.pumps.is_empty() {
            let is_due = now >= ending.at + patience(hurried);
            if !hurried && (has_ended || is_due && taken > ending.taken) {
                *ending = Ending { at: now, taken };
                return false;
            }
            if !is_due {
                return false;
            }
            self.give_up();
        }
        self.ending = None;
        true
    }

    /// There is no more time at all. A thread that is left behind writes nothing more, or it would mix with the next
    /// attempt's.
    pub(super) fn give_up(&mut self) {
        if self.pumps.is_empty() {
            return;
        }
        tracing::warn!(
            "the end of the trainer's output is not passed on: who reads trainit's output did not take it in time"
        );
        self.pumps.drain(..).for_each(|pump| pump.passage.close());
    }

    /// The end of a run, which waits for nobody else.
    pub(super) fn finish(&mut self, clock: Clock) {
        self.end(clock.now());
        while !self.are_through(clock.now(), true) {
            wake::wait_readable(&self.fds(), self.due(true).map(|at| at.saturating_sub(clock.now())));
        }
    }

    fn taken(&self) -> u64 {
        self.pumps.iter().map(|pump| pump.passage.taken()).sum()
    }
}

fn patience(hurried: bool) -> Duration {
    if hurried { HURRIED } else { PATIENCE }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::edge::pipe::{self, Reader};
    use std::os::fd::{AsFd, OwnedFd};
    use std::thread;

    const SECOND: Duration = Duration::from_secs(1);

    /// A pump with more to say than its pipe holds, and who may read it.
    fn stalled() -> (Pumps, Reader) {
        let (ours, to) = pipe::pair().expect("a pipe");
        let to: &'static OwnedFd = Box::leak(Box::new(to));
        let mut pumps = Pumps::default();
        let talk = |_: Bell, mut outlet: Outlet| while outlet.pass_on(&[b'x'; 4096]) {};
        pumps.start(to.as_fd(), talk).expect("a thread");
        until_it_stalls(&pumps, 0);
        pumps.end(Uptime::ZERO);
        (pumps, ours)
    }

    fn until_it_stalls(pumps: &Pumps, before: u64) {
        let (mut taken, mut still) = (before, 0);
        while taken == before || still < 20 {
            thread::park_timeout(Duration::from_millis(5));
            let now = pumps.taken();
            still = if now == taken { still + 1 } else { 0 };
            taken = now;
        }
    }

    #[test]
    fn a_stalled_reader_is_waited_for_only_so_long_and_what_is_left_is_dropped() {
        let (mut pumps, mut ours) = stalled();
        let gone = pumps.pumps[0].gone.clone();
        assert!(!pumps.are_through(4 * SECOND, false));
        assert_eq!(pumps.due(true), Some(HURRIED));
        assert_eq!(pumps.due(false), Some(PATIENCE));
        assert!(pumps.are_through(PATIENCE, false));
        assert!(!pumps.are_through(PATIENCE, false), "told once");
        let (mut buffer, mut left) = ([0; 4096], 0);
        while !gone.is_rung() {
            wake::wait_readable(&[ours.as_raw_fd(), gone.as_raw_fd()], None);
            left += ours.read(&mut buffer).expect("output").unwrap_or(0);
            assert!(left < 4 << 20, "it goes on and on");
        }
    }

    #[test]
    fn a_slow_reader_is_waited_for_as_long_as_it_takes_something_unless_time_is_short() {
        let (mut pumps, mut ours) = stalled();
        let mut buffer = [0; 16384];
        for look in 1..5 {
            let before = pumps.taken();
            ours.read(&mut buffer).expect("output");
            until_it_stalls(&pumps, before);
            assert!(!pumps.are_through(look * PATIENCE, false), "{look}");
        }
        assert!(pumps.are_through(5 * PATIENCE, true));
    }

    #[test]
    fn where_the_deadline_has_come_nobody_is_waited_for() {
        let (mut pumps, _ours) = stalled();
        pumps.give_up();
        assert_eq!((pumps.due(false), pumps.fds()), (Some(Uptime::ZERO), vec![]));
        assert!(pumps.are_through(SECOND, false));
    }

    #[test]
    fn without_output_there_is_nothing_to_wait_for() {
        let mut pumps = Pumps::default();
        assert!(!pumps.are_through(SECOND, false), "nothing has ended");
        pumps.end(SECOND);
        assert!(pumps.are_through(SECOND, false));
    }
}
