//! The status socket in the event loop, and the requests of `page.rs`. Without a request there is no wake-up.

use std::cell::Cell;
use std::os::fd::{AsRawFd, RawFd};
use std::time::Duration;

use crate::edge::clock;
use crate::edge::fs::run_dir::{REPORTS, RunDir, SOCKET};
use crate::edge::host::limits;
use crate::edge::net::report_socket::ReportSocket;
use crate::edge::net::status_socket::{Caller, Listener};
use crate::edge::process::spawn;
use crate::rules::job::{Event, Machine, Uptime};
use crate::rules::metric::report::reported;
use crate::rules::status::html::RunView;
use crate::rules::status::tally::Tally;
use crate::rules::status::{self, Facts};
use crate::supervisor::Collectors;
use crate::supervisor::gang::GangMember;
use crate::supervisor::perform::Performer;
use crate::supervisor::status::history::History;
use crate::telemetry::log;

/// The maximum number of answers in one turn of the loop, so that signals are handled between them.
const ANSWERS: usize = 4;
/// The maximum number of messages with reports in one turn.
const REPORTS_AT_ONCE: usize = 16;
/// The pause after a failed accept(2), for example without free descriptors: the socket stays readable meanwhile.
const PAUSE: Duration = Duration::from_secs(1);

/// The socket, if it could be opened.
#[derive(Debug, Default)]
pub(in crate::supervisor) struct StatusEndpoint {
    listener: Option<Listener>,
    /// For the reports of the job's processes.
    reports: Option<ReportSocket>,
    /// No accept(2) before this time.
    paused_until: Cell<Option<Uptime>>,
    /// The results of the commits.
    tally: Tally,
}

impl StatusEndpoint {
    /// Opens the socket in the run's directory. Without a directory there is no socket, and the run continues.
    pub(in crate::supervisor) fn open(dir: Option<&RunDir>) -> StatusEndpoint {
        let Some(dir) = dir else {
            tracing::warn!(
                "no place for a small directory (tried /dev/shm, TMPDIR, /tmp, /run): the trainer is notified of a \
                 preemption by signal only, and trainit status cannot query this run; mount a tmpfs on /tmp"
            );
            return StatusEndpoint::default();
        };
        let (listener, reports) = listen(dir);
        StatusEndpoint { listener, reports, ..StatusEndpoint::default() }
    }

    /// Restores the run's directory and the socket in it if they are missing.
    pub(in crate::supervisor) fn recreate_if_missing(&mut self, dir: Option<&mut RunDir>) {
        let Some(dir) = dir else { return };
        if !dir.recreate_if_missing() {
            return;
        }
        tracing::warn!(
            "{} was removed with its directory, which is created again: until now neither \
             trainit status nor heartbeats worked; exclude trainit-* where the command clears that directory",
            dir.path(SOCKET).display()
        );
        if self.listener.is_some() {
            (self.listener, self.reports) = listen(dir);
        }
    }

    /// Whether the socket is open.
    pub(in crate::supervisor) fn is_open(&self) -> bool {
        self.listener.is_some()
    }

    /// The descriptors that are readable when a client waits, or reports.
    pub(in crate::supervisor) fn fds(&self) -> impl Iterator<Item = RawFd> {
        let listener = self.listener.as_ref().filter(|_| self.due().is_none()).map(AsRawFd::as_raw_fd);
        listener.into_iter().chain(self.reports.as_ref().map(AsRawFd::as_raw_fd))
    }

    /// Takes waiting reports. Returns whether there may be more.
    pub(in crate::supervisor) fn take_reports(&self, history: &History) -> bool {
        let messages = self.reports.as_ref().map(|socket| socket.next(REPORTS_AT_ONCE)).unwrap_or_default();
        messages.iter().flat_map(|lines| reported::reports(lines)).for_each(|report| history.reported(report));
        messages.len() == REPORTS_AT_ONCE
    }

    /// When the pause ends.
    pub(in crate::supervisor) fn due(&self) -> Option<Uptime> {
        self.paused_until.get()
    }

    /// Adds an event to the tally.
    pub(in crate::supervisor) fn note(&mut self, now: Uptime, event: &Event) {
        self.tally.note(now, event);
    }

    fn next_caller(&self, now: Uptime) -> Option<Caller> {
        if self.due().is_some_and(|at| now < at) {
            return None;
        }
        self.paused_until.set(None);
        let caller = self.listener.as_ref()?.next();
        caller.inspect_err(|_| self.paused_until.set(Some(now + PAUSE))).ok().flatten()
    }

    /// Answers waiting clients.
    pub(in crate::supervisor) fn serve(&self, now: Uptime, command: &str, machine: &Machine, performer: &Performer) {
        self.take_reports(&performer.history);
        for _ in 0..ANSWERS {
            let Some(caller) = self.next_caller(now) else { break };
            caller.tell(&status::answer(&machine.snapshot(), &self.facts(now, command, performer)));
        }
        for question in performer.background.questions(ANSWERS) {
            question.answer(self.view(now, command, machine, performer));
        }
    }

    /// The facts of this moment.
    pub(in crate::supervisor) fn view(
        &self,
        now: Uptime,
        command: &str,
        machine: &Machine,
        performer: &Performer,
    ) -> RunView {
        let facts = self.facts(now, command, performer);
        RunView { snapshot: machine.snapshot(), facts, log: log::recent(), verdict: None }
    }

    fn facts(&self, now: Uptime, command: &str, performer: &Performer) -> Facts {
        // The heartbeat may have a newer step.
        performer.liveness.step();
        let (step, steps_per_second) = performer.history.pace();
        let mut metrics = performer.history.reported_values();
        metrics.extend(performer.collectors.as_ref().map(Collectors::last_values).unwrap_or_default());
        Facts {
            version: env!("TRAINIT_VERSION"),
            pid: spawn::own_pid() as u32,
            command: command.to_owned(),
            who: performer.who(),
            children: performer.children(),
            now,
            wall: clock::wall().duration_since(std::time::UNIX_EPOCH).unwrap_or_default(),
            goodput: performer.history.totals(now),
            tally: self.tally.clone(),
            kept: performer.kept(),
            memory: performer.memory.facts(),
            metrics,
            step,
            steps_per_second,
            total_steps: performer.history.total_steps(),
            gpus: performer.gpus.state(),
            gang: performer.gang.as_ref().map(GangMember::view),
        }
    }
}

fn listen(dir: &RunDir) -> (Option<Listener>, Option<ReportSocket>) {
    let path = dir.path(SOCKET);
    let bound = Listener::bind(&path).inspect_err(|error| {
        let way_out = limits::way_out(error, "check that sockets can be created there");
        tracing::warn!(
            "trainit status cannot query this run, {} could not be created: {error}; {way_out}",
            path.display()
        );
    });
    let reports = bound.is_ok().then(|| ReportSocket::bind(&dir.path(REPORTS)));
    let reports = reports.and_then(|bound| {
        let log = |error: &std::io::Error| {
            tracing::warn!(
                "metrics that the trainer reports are missing in the status and the verdict, because {} could not be \
                 created: {error}; the metrics file has them",
                dir.path(REPORTS).display()
            );
        };
        bound.inspect_err(log).ok()
    });
    (bound.ok(), reports)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn after_a_failed_accept_the_socket_is_ignored_for_a_pause_and_then_tried_again() {
        let desk = StatusEndpoint { listener: Some(Listener::broken()), ..StatusEndpoint::default() };
        let now = Duration::from_secs(100);
        assert!((desk.fds().next().is_some(), desk.due()) == (true, None));
        assert!(desk.next_caller(now).is_none());
        assert!((desk.fds().next(), desk.due()) == (None, Some(now + PAUSE)));
        assert!(desk.next_caller(now + PAUSE / 2).is_none());
        assert!((desk.fds().next(), desk.due()) == (None, Some(now + PAUSE)));
        assert!(desk.next_caller(now + PAUSE).is_none());
        assert_eq!(desk.due(), Some(now + 2 * PAUSE), "it was tried");
    }
}
