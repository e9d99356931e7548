//! The threads that pass on the trainer's output, and how long the end of an attempt waits for them: until the deadline
//! at most, and only while the reader takes output. The event loop and the last commit continue during that time.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};
use std::sync::Arc;
use std::time::Duration;

use crate::edge::io::eventfd::{EventFd, NotifyOnDrop};
use crate::edge::process::signals;
use crate::rules::job::Uptime;
use crate::supervisor::output::writer::{OutputProgress, OutputWriter};

/// How long the end of an attempt waits for a reader that takes nothing, or for the trainer's files; and how long the
/// end of a run waits for its last metrics.
pub(in crate::supervisor) const TIMEOUT: Duration = Duration::from_secs(5);

/// The shortest wait at the end of an attempt, and the wait of the last commit. A stop ends within half a second of its
/// deadline.
pub(in crate::supervisor) const A_MOMENT: Duration = Duration::from_millis(250);

/// The kind of wait for the end of the output.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::supervisor) enum Waits {
    /// The last commit: it waits for a moment. The remaining output is passed on during the commit.
    Commit,
    /// The next attempt, or the end of trainit: output is dropped at this deadline, or when its reader takes nothing.
    End(Uptime),
}

/// One thread.
#[derive(Debug)]
struct OutputThread {
    /// Notified when no writer of the pipe is left, so that an empty pipe counts as ended even if another process holds
    /// it open.
    over: EventFd,
    /// Notified when the thread has ended.
    gone: EventFd,
    passage: Arc<OutputProgress>,
}

/// The threads of one attempt.
#[derive(Debug, Default)]
pub(in crate::supervisor) struct OutputThreads {
    output_threads: Vec<OutputThread>,
    ending: Option<Ending>,
}

/// State of the wait after the last writer has ended.
#[derive(Debug)]
struct Ending {
    at: Uptime,
    /// When the reader was last seen to take output, and how much it had taken by then.
    since: Uptime,
    taken: u64,
    /// Notified when the trainer's files have been read to their end; `None` afterwards.
    files: Option<EventFd>,
    /// The last commit has stopped waiting.
    is_reported: bool,
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

impl OutputThreads {
    /// Starts a thread that passes output on to one of trainit's streams until its input ends, or until the eventfd is
    /// notified and its input is empty. Errors: as eventfd(2) and pthread_create(3).
    pub(in crate::supervisor) fn start(
        &mut self,
        to: BorrowedFd<'static>,
        run: impl FnOnce(EventFd, OutputWriter) + Send + 'static,
    ) -> io::Result<()> {
        let pump = OutputThread { over: EventFd::new()?, gone: EventFd::new()?, passage: Arc::default() };
        let (over, farewell) = (pump.over.clone(), NotifyOnDrop(pump.gone.clone()));
        let writer = OutputWriter::new(to, Arc::clone(&pump.passage));
        signals::thread_without_signals("output", move || {
            let _farewell = farewell;
            run(over, writer);
        })?;
        self.output_threads.push(pump);
        Ok(())
    }

    /// No writer of the pipe is left. The remaining output is still passed on. `files` is notified when the trainer's
    /// files have been read.
    pub(in crate::supervisor) fn end(&mut self, now: Uptime, files: Option<EventFd>) {
        self.output_threads.iter().for_each(|pump| pump.over.notify());
        let taken = self.taken();
        self.ending.get_or_insert(Ending { at: now, since: now, taken, files, is_reported: false });
    }

    /// The last line on standard error, if it is captured.
    pub(in crate::supervisor) fn last_words(&self) -> Option<String> {
        self.output_threads.last()?.passage.last_line()
    }

    /// Whether no writer is left, while output may remain.
    pub(in crate::supervisor) fn is_ending(&self) -> bool {
        self.ending.is_some()
    }

    fn awaited(&self, waits: Waits) -> Option<&Ending> {
        self.ending.as_ref().filter(|ending| !ending.is_reported || waits != Waits::Commit)
    }

    /// Descriptors that become readable when a thread has ended.
    pub(in crate::supervisor) fn fds(&self, waits: Waits) -> Vec<RawFd> {
        let Some(ending) = self.awaited(waits) else { return Vec::new() };
        self.output_threads.iter().map(|pump| &pump.gone).chain(&ending.files).map(AsRawFd::as_raw_fd).collect()
    }

    /// When to check again without an event.
    pub(in crate::supervisor) fn due(&self, waits: Waits) -> Option<Uptime> {
        let ending = self.awaited(waits)?;
        let output = (!self.output_threads.is_empty()).then_some(ending.since + TIMEOUT);
        let files = ending.files.as_ref().map(|_| ending.at + TIMEOUT);
        let next = output.into_iter().chain(files).min();
        Some(next.map_or(Uptime::ZERO, |at| at.min(ending.until(waits))))
    }

    /// Returns true once, when the wait is over: all output was passed on, or the rest is dropped, or (for a commit) is
    /// passed on later.
    pub(in crate::supervisor) fn are_through(&mut self, now: Uptime, waits: Waits) -> bool {
        self.look(now);
        let Some(ending) = self.ending.as_mut().filter(|ending| !ending.is_reported || waits != Waits::Commit) else {
            return false;
        };
        let is_late = now >= ending.until(waits);
        if waits == Waits::Commit {
            ending.is_reported = is_late || self.output_threads.is_empty() && ending.files.is_none();
            return ending.is_reported;
        }
        if is_late || now >= ending.at + TIMEOUT {
            ending.give_up_files();
        }
        let (has_files, is_stalled) = (ending.files.is_some(), now >= ending.since + TIMEOUT);
        if is_late || is_stalled {
            self.give_up();
        }
        let is_through = self.output_threads.is_empty() && !has_files;
        self.ending.take_if(|_| is_through).is_some()
    }

    /// Removes threads that have ended, and records whether output was taken.
    fn look(&mut self, now: Uptime) {
        let before = self.output_threads.len();
        self.output_threads.retain(|pump| !pump.gone.is_notified());
        let (has_ended, taken) = (self.output_threads.len() < before, self.taken());
        let Some(ending) = &mut self.ending else { return };
        ending.files.take_if(|files| files.is_notified());
        if has_ended || now >= ending.since + TIMEOUT && taken > ending.taken {
            (ending.since, ending.taken) = (now, taken);
        }
    }

    /// Closes the remaining threads: their late output would mix with the next attempt's.
    fn give_up(&mut self) {
        if self.output_threads.is_empty() {
            return;
        }
        tracing::warn!(
            "the end of the trainer's output is not passed on: the reader of trainit's output did not take it in time"
        );
        self.output_threads.drain(..).for_each(|pump| pump.passage.close());
    }

    fn taken(&self) -> u64 {
        self.output_threads.iter().map(|pump| pump.passage.taken()).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::edge::io::eventfd;
    use crate::edge::io::pipe;
    use crate::edge::io::pipe::Reader;
    use std::os::fd::{AsFd, OwnedFd};
    use std::thread;

    const SECOND: Duration = Duration::from_secs(1);
    const FAR: Waits = Waits::End(Duration::from_secs(1000));

    /// An output thread with more output than its pipe holds, and the pipe's reader.
    fn stalled() -> (OutputThreads, Reader) {
        let (reader, to) = pipe::pair().expect("a pipe");
        let to: &'static OwnedFd = Box::leak(Box::new(to));
        let mut output_threads = OutputThreads::default();
        let talk = |_: EventFd, mut writer: OutputWriter| while writer.pass_on(&[b'x'; 4096]) {};
        output_threads.start(to.as_fd(), talk).expect("a thread");
        until_it_stalls(&output_threads, 0);
        output_threads.end(Uptime::ZERO, None);
        (output_threads, reader)
    }

    fn until_it_stalls(output_threads: &OutputThreads, before: u64) {
        let (mut taken, mut still) = (before, 0);
        while taken == before || still < 20 {
            thread::park_timeout(Duration::from_millis(5));
            let now = output_threads.taken();
            still = if now == taken { still + 1 } else { 0 };
            taken = now;
        }
    }

    fn takes_something(output_threads: &OutputThreads, reader: &mut Reader) {
        let before = output_threads.taken();
        reader.read(&mut [0; 16384]).expect("output");
        until_it_stalls(output_threads, before);
    }

    #[test]
    fn a_stalled_reader_is_waited_for_until_a_limit_and_the_rest_is_dropped() {
        let (mut output_threads, mut reader) = stalled();
        let gone = output_threads.output_threads[0].gone.clone();
        assert!(!output_threads.are_through(4 * SECOND, FAR));
        assert_eq!(output_threads.due(Waits::Commit), Some(A_MOMENT));
        assert_eq!(output_threads.due(FAR), Some(TIMEOUT));
        assert!(output_threads.are_through(TIMEOUT, FAR));
        assert!(!output_threads.are_through(TIMEOUT, FAR), "reported once");
        let (mut buffer, mut left) = ([0; 4096], 0);
        while !gone.is_notified() {
            eventfd::wait_readable(&[reader.as_raw_fd(), gone.as_raw_fd()], None);
            left += reader.read(&mut buffer).expect("output").unwrap_or(0);
            assert!(left < 4 << 20, "the output does not end");
        }
    }

    #[test]
    fn a_slow_reader_is_waited_for_while_it_takes_output_except_by_a_commit() {
        let (mut output_threads, mut reader) = stalled();
        for look in 1..5 {
            takes_something(&output_threads, &mut reader);
            assert!(!output_threads.are_through(look * TIMEOUT, FAR), "{look}");
        }
        assert!(output_threads.are_through(5 * TIMEOUT, Waits::Commit));
    }

    #[test]
    fn output_that_a_commit_no_longer_waits_for_is_passed_on_until_the_deadline() {
        let (mut output_threads, mut reader) = stalled();
        assert!(!output_threads.are_through(Uptime::ZERO, Waits::Commit));
        assert!(output_threads.are_through(A_MOMENT, Waits::Commit));
        assert!(!output_threads.are_through(2 * SECOND, Waits::Commit), "reported once");
        assert_eq!(
            (output_threads.due(Waits::Commit), output_threads.fds(Waits::Commit)),
            (None, vec![]),
            "no wake-up is needed"
        );
        let end = Waits::End(8 * SECOND);
        for at in [3, 7] {
            takes_something(&output_threads, &mut reader);
            assert!(!output_threads.are_through(at * SECOND, end), "{at}");
        }
        assert_eq!(output_threads.due(end), Some(8 * SECOND));
        assert!(output_threads.are_through(8 * SECOND, end));
        assert!(output_threads.output_threads.is_empty() && !output_threads.is_ending());
    }

    #[test]
    fn after_the_deadline_no_reader_is_waited_for() {
        let (mut output_threads, _ours) = stalled();
        assert_eq!(output_threads.due(Waits::End(2 * SECOND)), Some(2 * SECOND));
        assert!(output_threads.are_through(2 * SECOND, Waits::End(2 * SECOND)));
        assert_eq!((output_threads.due(FAR), output_threads.fds(FAR)), (None, vec![]));
    }

    #[test]
    fn a_past_deadline_still_leaves_a_moment() {
        let (mut output_threads, _ours) = stalled();
        assert!(!output_threads.are_through(A_MOMENT / 2, Waits::End(Uptime::ZERO)));
        assert!(output_threads.are_through(SECOND / 2, Waits::End(Uptime::ZERO)), "a stop is no later than that");
    }

    #[test]
    fn the_trainers_files_are_waited_for_until_they_are_read_or_a_limit() {
        let files = EventFd::new().expect("an eventfd");
        let ending = || {
            let mut output_threads = OutputThreads::default();
            output_threads.end(Uptime::ZERO, Some(files.clone()));
            output_threads
        };
        let mut output_threads = ending();
        assert_eq!((output_threads.due(FAR), output_threads.fds(FAR)), (Some(TIMEOUT), vec![files.as_raw_fd()]));
        assert!(!output_threads.are_through(4 * SECOND, FAR));
        assert!(output_threads.are_through(TIMEOUT, FAR));
        let (mut output_threads, mut hurried) = (ending(), ending());
        assert!(hurried.are_through(A_MOMENT, Waits::Commit) && hurried.is_ending());
        files.notify();
        assert!(output_threads.are_through(SECOND, FAR) && hurried.are_through(2 * SECOND, FAR));
    }

    #[test]
    fn without_output_there_is_nothing_to_wait_for() {
        let mut output_threads = OutputThreads::default();
        assert!(!output_threads.are_through(SECOND, FAR), "nothing has ended");
        output_threads.end(SECOND, None);
        assert_eq!(output_threads.due(FAR), Some(Uptime::ZERO));
        assert!(output_threads.are_through(SECOND, FAR));
    }
}
