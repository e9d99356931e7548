//! The end of a job: reason, exit code, and one sentence.

use super::parts::{Cause, Stop};
use super::{Machine, State};
use crate::job::event::Action;
use crate::job::policy::StoppedCode;
use crate::job::verdict::{KILLED_FOR_MEMORY, Outcome, Reason};
use crate::process::exit;
use crate::process::exit::End;

impl Machine {
    /// The end of a job whose command ran, or was stopped before it ran.
    pub(super) fn finish(&mut self) -> Vec<Action> {
        if let Some(actions) = self.continue_with_gang() {
            return actions;
        }
        let child_code = self.attempt.ended.map_or(exit::STOPPED, |(end, _)| end.code());
        let Some(Stop { cause, .. }) = self.stopping.stop.clone() else { return self.finish_unstopped(child_code) };
        let stopped_code = match self.policy.stopped_code {
            StoppedCode::Always143 => exit::STOPPED,
            StoppedCode::Child => child_code,
        };
        let mut ended = match self.attempt.ended {
            Some((end, _)) => format!("{} ended with {end}{}", self.subject(), self.later_failures()),
            None if self.attempt.number == 0 || self.attempt.not_started.is_some() => {
                "the command had not been started".to_owned()
            }
            None => "the command could not be ended".to_owned(),
        };
        if self.policy.model.is_some() && matches!(self.attempt.ended, Some((End::Code(0), _))) {
            ended.push_str("; its model is not copied, because the job was stopped before it finished");
        }
        if !self.restarts.no_restart_reason.is_empty() {
            ended = format!("{ended}; {}", self.restarts.no_restart_reason);
        }
        match cause {
            Cause::Signal { sender } => {
                let by = match sender {
                    Some(0) => " from outside the container".to_owned(),
                    Some(pid) => format!(" from pid {pid}"),
                    None => String::new(),
                };
                self.exit(Reason::Stopped, stopped_code, format!("stopped by SIGTERM{by}; {ended}"))
            }
            Cause::Notice { source } => {
                self.exit(Reason::Preempted, stopped_code, format!("preempted ({source}); {ended}"))
            }
            Cause::Gpu { detail } => self.exit(Reason::Gpu, exit::GPU, format!("{detail}; {ended}")),
            Cause::Fenced { detail, .. } => self.exit(Reason::Fenced, exit::FENCED, detail),
        }
    }

    pub(super) fn finish_unstopped(&mut self, code: u8) -> Vec<Action> {
        let suffix = if self.restarts.no_restart_reason.is_empty() {
            String::new()
        } else {
            format!("; {}", self.restarts.no_restart_reason)
        };
        if let Some(signal) = self.stopping.interrupted {
            let detail = format!("{signal} arrived while no attempt was running{suffix}");
            return self.exit(Reason::Signalled, End::Signal(signal).code(), detail);
        }
        let clues = match self.attempt.ended {
            Some((end, _)) if end != End::Code(0) && self.attempt.hung.is_none() => self.explain(end),
            _ => Vec::new(),
        };
        let clues: String = clues.into_iter().map(|clue| format!("; {clue}")).collect();
        let suffix = format!("{}{clues}{suffix}", self.later_failures());
        let subject = self.subject();
        if let Some(hung) = &self.attempt.hung {
            let ended = match self.attempt.ended {
                Some((end, _)) => format!("it was ended: {end}"),
                None => "it could not be ended".to_owned(),
            };
            let hint = if self.was_killed_for_memory() { format!("; {KILLED_FOR_MEMORY}") } else { String::new() };
            return self.exit(Reason::Hung, exit::HUNG, format!("the command hung: {hung}; {ended}{hint}{suffix}"));
        }
        match self.attempt.ended {
            Some((End::Code(0), _)) => {
                let subject = self.ranks().map_or(subject, |(first, last)| format!("each of the ranks {first} to {last}"));
                self.exit(Reason::Finished, code, format!("{subject} finished with exit code 0{suffix}"))
            }
            Some((end, _)) if self.ran_out_of_memory() => self.exit(
                Reason::Oom,
                code,
                format!(
                    "out of memory: the kernel killed a process in this container at the cgroup's memory limit, {subject} ended with {end}{suffix}"
                ),
            ),
            Some((end @ End::Signal(_), _)) => {
                self.exit(Reason::Signalled, code, format!("{subject} was ended by {end}{suffix}"))
            }
            Some((end @ End::Code(_), _)) => {
                self.exit(Reason::Failed, code, format!("{subject} failed with {end}{suffix}"))
            }
            None => self.exit(Reason::NotStarted, exit::NOT_STARTED, format!("nothing was started{suffix}")),
        }
    }

    /// A failure after an out-of-memory kill. The killed process is unknown: a launcher or the parent of a data loader
    /// fails with a code of its own.
    pub(super) fn ran_out_of_memory(&self) -> bool {
        self.attempt.hung.is_none()
            && self.was_killed_for_memory()
            && self.attempt.ended.is_some_and(|(end, _)| end != End::Code(0))
    }

    fn was_killed_for_memory(&self) -> bool {
        matches!(self.attempt.ended, Some((_, Some(true))))
    }

    fn oom(&self) -> Option<bool> {
        match self.attempt.ended {
            Some((_, oom)) => oom,
            // No process existed.
            None if self.attempt.number == 0 || self.attempt.not_started.is_some() => Some(false),
            None => None,
        }
    }

    pub(super) fn exit(&mut self, reason: Reason, code: u8, detail: String) -> Vec<Action> {
        self.state = State::Done;
        let left = self.report_leaving(reason, self.policy.remapped(code), &detail);
        let exit = Action::Exit(Box::new(Outcome {
            reason,
            exit_code: self.policy.remapped(code),
            child: self.attempt.ended.map(|(end, _)| end),
            rank: self.failed_rank(),
            oom: self.oom(),
            attempts: self.attempt.number,
            resumed_step: self.attempt.resumed.as_ref().and_then(|r| r.step),
            committed_step: self.commits.step,
            detail,
        }));
        left.into_iter().chain([exit]).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{feed, outcome, running, secs};
    use super::*;
    use crate::job::{Event, Policy};
    use crate::process::signal::Signal;

    /// The verdict on a trainer with this end and this answer of the kill counter.
    fn verdict(end: End, oom: Option<bool>) -> Outcome {
        let mut machine = running(Policy::default());
        outcome(feed(&mut machine, 1.0, [Event::MainEnded { local_rank: 0, end, oom }, Event::TreeEmpty]))
    }

    #[test]
    fn out_of_memory_is_the_reason_only_when_the_counter_says_so() {
        let killed = End::Signal(Signal::KILL);
        for (oom, reason) in [(Some(true), Reason::Oom), (Some(false), Reason::Signalled), (None, Reason::Signalled)] {
            let end = verdict(killed, oom);
            assert_eq!((end.reason, end.exit_code, end.oom), (reason, 137, oom));
        }
        let outcome = verdict(End::Code(1), Some(true));
        assert_eq!(
            (outcome.reason, outcome.exit_code, outcome.oom),
            (Reason::Oom, 1, Some(true)),
            "one of its processes was killed"
        );
        let well = verdict(End::Code(0), Some(true));
        assert_eq!((well.reason, well.detail.contains("memory")), (Reason::Finished, false));
    }

    #[test]
    fn without_a_process_there_was_no_kill() {
        let mut machine = Machine::new(Policy::default());
        machine.step(secs(0.0), Event::Started);
        let missing = Event::NotSpawned { code: 127, detail: "not found".into(), is_transient: false, others: false };
        assert_eq!(outcome(machine.step(secs(0.0), missing)).oom, Some(false));
    }
}
