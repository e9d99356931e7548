//! The threads that pass the trainer's output on, and how long the end of an attempt waits for them: as long as somebody
//! reads what they write, but not beyond the deadline. The loop goes on meanwhile, so that a stop is heard, and so does the
//! last commit.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};
use std::sync::Arc;
use std::time::Duration;

use super::outlet::{Outlet, Passage};
use crate::edge::signals;
use crate::edge::wake::{Bell, Farewell};
use crate::rules::job::Uptime;

/// How long the end of an attempt waits for a reader that takes nothing, or for the trainer's files; and the end of a run for
/// its last metrics.
pub(super) const PATIENCE: Duration = Duration::from_secs(5);

/// How long it waits in any case, and how long the last commit does.
const A_MOMENT: Duration = Duration::from_secs(1);

/// Who waits for the end of the output.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Waits {
    /// The last commit: what is left after a moment is passed on beside it.
    Commit,
    /// The next attempt, or our own end: it is dropped at this deadline, or when nobody takes any of it.
    End(Uptime),
}

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

/// No writer is left.
#[derive(Debug)]
struct Ending {
    at: Uptime,
    /// When somebody was last seen to take something, and how much had been taken then.
    since: Uptime,
    taken: u64,
    /// Rings when the trainer's files have been read to their end; `None`: they have.
    files: Option<Bell>,
    /// The last commit waits no longer.
    told: bool,
}

impl Ending {
    fn until(&self, waits: Waits) -> Uptime {
        let moment = self.at + A_MOMENT;
        if let Waits::End(deadline) = waits { moment.max(deadline) } else { moment }
    }

    fn give_up_files(&mut self) {
        if self.files.take().is_some() {
            tracing::warn!("the last metrics in the trainer's files may be missing: they could not be read in time");
        }
    }
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

    /// No writer of ours is left: what there is is still passed on. `files` rings when the trainer's files have been read.
    pub(super) fn end(&mut self, now: Uptime, files: Option<Bell>) {
        self.pumps.iter().for_each(|pump| pump.over.ring());
        let taken = self.taken();
        self.ending.get_or_insert(Ending { at: now, since: now, taken, files, told: false });
    }

    /// Whether no writer is left, and maybe something to pass on.
    pub(super) fn is_ending(&self) -> bool {
        self.ending.is_some()
    }

    fn awaited(&self, waits: Waits) -> Option<&Ending> {
        self.ending.as_ref().filter(|ending| !ending.told || waits != Waits::Commit)
    }

    /// What is readable when one of them is through.
    pub(super) fn fds(&self, waits: Waits) -> Vec<RawFd> {
        let Some(ending) = self.awaited(waits) else { return Vec::new() };
        self.pumps.iter().map(|pump| &pump.gone).chain(&ending.files).map(AsRawFd::as_raw_fd).collect()
    }

    /// When to look again, whether or not one is.
    pub(super) fn due(&self, waits: Waits) -> Option<Uptime> {
        let ending = self.awaited(waits)?;
        let output = (!self.pumps.is_empty()).then_some(ending.since + PATIENCE);
        let files = ending.files.as_ref().map(|_| ending.at + PATIENCE);
        let next = output.into_iter().chain(files).min();
        Some(next.map_or(Uptime::ZERO, |at| at.min(ending.until(waits))))
    }

    /// Whether who waits has waited for long enough, told once: all was passed on, or the rest is dropped, or (for a commit)
    /// goes on.
    pub(super) fn are_through(&mut self, now: Uptime, waits: Waits) -> bool {
        self.look(now);
        let Some(ending) = self.ending.as_mut().filter(|ending| !ending.told || waits != Waits::Commit) else {
            return false;
        };
        let is_late = now >= ending.until(waits);
        if waits == Waits::Commit {
            ending.told = is_late || self.pumps.is_empty() && ending.files.is_none();
            return ending.told;
        }
        if is_late || now >= ending.at + PATIENCE {
            ending.give_up_files();
        }
        let (has_files, is_stalled) = (ending.files.is_some(), now >= ending.since + PATIENCE);
        if is_late || is_stalled {
            self.give_up();
        }
        let is_through = self.pumps.is_empty() && !has_files;
        self.ending.take_if(|_| is_through).is_some()
    }

    /// Who has gone, and whether anything was taken meanwhile.
    fn look(&mut self, now: Uptime) {
        let before = self.pumps.len();
        self.pumps.retain(|pump| !pump.gone.is_rung());
        let (has_ended, taken) = (self.pumps.len() < before, self.taken());
        let Some(ending) = &mut self.ending else { return };
        ending.files.take_if(|files| files.is_rung());
        if has_ended || now >= ending.since + PATIENCE && taken > ending.taken {
            (ending.since, ending.taken) = (now, taken);
        }
    }

    /// A thread that is left behind writes nothing more, or it would mix with the next attempt's.
    fn give_up(&mut self) {
        if self.pumps.is_empty() {
            return;
        }
        tracing::warn!(
            "the end of the trainer's output is not passed on: who reads trainit's output did not take it in time"
        );
        self.pumps.drain(..).for_each(|pump| pump.passage.close());
    }

    fn taken(&self) -> u64 {
        self.pumps.iter().map(|pump| pump.passage.taken()).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::edge::pipe::{self, Reader};
    use crate::edge::wake;
    use std::os::fd::{AsFd, OwnedFd};
    use std::thread;

    const SECOND: Duration = Duration::from_secs(1);
    const FAR: Waits = Waits::End(Duration::from_secs(1000));

    /// A pump with more to say than its pipe holds, and who may read it.
    fn stalled() -> (Pumps, Reader) {
        let (ours, to) = pipe::pair().expect("a pipe");
        let to: &'static OwnedFd = Box::leak(Box::new(to));
        let mut pumps = Pumps::default();
        let talk = |_: Bell, mut outlet: Outlet| while outlet.pass_on(&[b'x'; 4096]) {};
        pumps.start(to.as_fd(), talk).expect("a thread");
        until_it_stalls(&pumps, 0);
        pumps.end(Uptime::ZERO, None);
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

    fn takes_something(pumps: &Pumps, ours: &mut Reader) {
        let before = pumps.taken();
        ours.read(&mut [0; 16384]).expect("output");
        until_it_stalls(pumps, before);
    }

    #[test]
    fn a_stalled_reader_is_waited_for_only_so_long_and_what_is_left_is_dropped() {
        let (mut pumps, mut ours) = stalled();
        let gone = pumps.pumps[0].gone.clone();
        assert!(!pumps.are_through(4 * SECOND, FAR));
        assert_eq!(pumps.due(Waits::Commit), Some(A_MOMENT));
        assert_eq!(pumps.due(FAR), Some(PATIENCE));
        assert!(pumps.are_through(PATIENCE, FAR));
        assert!(!pumps.are_through(PATIENCE, FAR), "told once");
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
        for look in 1..5 {
            takes_something(&pumps, &mut ours);
            assert!(!pumps.are_through(look * PATIENCE, FAR), "{look}");
        }
        assert!(pumps.are_through(5 * PATIENCE, Waits::Commit));
    }

    #[test]
    fn what_a_commit_waits_for_no_longer_goes_on_until_the_end_and_its_deadline() {
        let (mut pumps, mut ours) = stalled();
        assert!(!pumps.are_through(Uptime::ZERO, Waits::Commit));
        assert!(pumps.are_through(A_MOMENT, Waits::Commit));
        assert!(!pumps.are_through(2 * SECOND, Waits::Commit), "told once");
        assert_eq!((pumps.due(Waits::Commit), pumps.fds(Waits::Commit)), (None, vec![]), "nothing to wake up for");
        let end = Waits::End(8 * SECOND);
        for at in [3, 7] {
            takes_something(&pumps, &mut ours);
            assert!(!pumps.are_through(at * SECOND, end), "{at}");
        }
        assert_eq!(pumps.due(end), Some(8 * SECOND));
        assert!(pumps.are_through(8 * SECOND, end));
        assert!(pumps.pumps.is_empty() && !pumps.is_ending());
    }

    #[test]
    fn where_the_deadline_has_come_nobody_is_waited_for() {
        let (mut pumps, _ours) = stalled();
        assert_eq!(pumps.due(Waits::End(2 * SECOND)), Some(2 * SECOND));
        assert!(pumps.are_through(2 * SECOND, Waits::End(2 * SECOND)));
        assert_eq!((pumps.due(FAR), pumps.fds(FAR)), (None, vec![]));
    }

    #[test]
    fn a_deadline_that_is_past_leaves_a_moment() {
        let (mut pumps, _ours) = stalled();
        assert!(!pumps.are_through(A_MOMENT / 2, Waits::End(Uptime::ZERO)));
        assert!(pumps.are_through(A_MOMENT, Waits::End(Uptime::ZERO)));
    }

    #[test]
    fn the_trainers_files_are_waited_for_until_they_are_read_but_not_for_long() {
        let files = Bell::new().expect("a bell");
        let ending = || {
            let mut pumps = Pumps::default();
            pumps.end(Uptime::ZERO, Some(files.clone()));
            pumps
        };
        let mut pumps = ending();
        assert_eq!((pumps.due(FAR), pumps.fds(FAR)), (Some(PATIENCE), vec![files.as_raw_fd()]));
        assert!(!pumps.are_through(4 * SECOND, FAR));
        assert!(pumps.are_through(PATIENCE, FAR));
        let (mut pumps, mut hurried) = (ending(), ending());
        assert!(hurried.are_through(A_MOMENT, Waits::Commit) && hurried.is_ending());
        files.ring();
        assert!(pumps.are_through(SECOND, FAR) && hurried.are_through(2 * SECOND, FAR));
    }

    #[test]
    fn without_output_there_is_nothing_to_wait_for() {
        let mut pumps = Pumps::default();
        assert!(!pumps.are_through(SECOND, FAR), "nothing has ended");
        pumps.end(SECOND, None);
        assert_eq!(pumps.due(FAR), Some(Uptime::ZERO));
        assert!(pumps.are_through(SECOND, FAR));
    }
}
