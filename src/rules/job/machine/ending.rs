//! How a life is summed up: reason, exit code, one sentence.

use super::{Cause, Machine, State, Stop};
use crate::rules::exit::{self, End};
use crate::rules::job::event::Action;
use crate::rules::job::policy::StoppedCode;
use crate::rules::job::verdict::{KILLED_FOR_MEMORY, Outcome, Reason};

impl Machine {
    /// The end of a life in which a command ran, or was stopped before it could.
    pub(super) fn finish(&mut self) -> Vec<Action> {
        let child_code = self.ended.map_or(exit::STOPPED, |(end, _)| end.code());
        let Some(Stop { cause, .. }) = self.stop.clone() else { return self.finish_unstopped(child_code) };
        let stopped_code = match self.policy.stopped_code {
            StoppedCode::Always143 => exit::STOPPED,
            StoppedCode::Child => child_code,
        };
        let mut ended = match self.ended {
            Some((end, _)) => format!("{} ended with {end}{}", self.who(), self.followed()),
            None if self.attempt == 0 || self.not_started.is_some() => "the command had not been started".to_owned(),
            None => "the command could not be ended".to_owned(),
        };
        if self.policy.model.is_some() && matches!(self.ended, Some((End::Code(0), _))) {
            ended.push_str("; its model is not copied, as the job was told to stop before it finished");
        }
        if !self.gave_up.is_empty() {
            ended = format!("{ended}; {}", self.gave_up);
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
        let suffix = if self.gave_up.is_empty() { String::new() } else { format!("; {}", self.gave_up) };
        if let Some(signal) = self.interrupted {
            let detail = format!("{signal} came while no attempt was running{suffix}");
            return self.exit(Reason::Signalled, End::Signal(signal).code(), detail);
        }
        let suffix = format!("{}{suffix}", self.followed());
        let who = self.who();
        if let Some(hung) = &self.hung {
            let ended = match self.ended {
                Some((end, _)) => format!("it was ended: {end}"),
                None => "it could not be ended".to_owned(),
            };
            let hint = if self.was_killed_for_memory() { format!("; {KILLED_FOR_MEMORY}") } else { String::new() };
            return self.exit(Reason::Hung, exit::HUNG, format!("the command hung: {hung}; {ended}{hint}{suffix}"));
        }
        match self.ended {
            Some((End::Code(0), _)) => {
                let who = self.ranks().map_or(who, |(first, last)| format!("each of the ranks {first} to {last}"));
                self.exit(Reason::Finished, code, format!("{who} finished with exit code 0{suffix}"))
            }
            Some((end, _)) if self.ran_out_of_memory() => self.exit(
                Reason::Oom,
                code,
                format!(
                    "out of memory: the kernel killed for the cgroup's memory limit, {who} ended with {end}{suffix}"
                ),
            ),
            Some((end @ End::Signal(_), _)) => {
                self.exit(Reason::Signalled, code, format!("{who} was ended by {end}{suffix}"))
            }
            Some((end @ End::Code(_), _)) => {
                self.exit(Reason::Failed, code, format!("{who} failed with {end}{suffix}"))
            }
            None => self.exit(Reason::NotStarted, exit::NOT_STARTED, format!("nothing was started{suffix}")),
        }
    }

    /// Whom the kernel killed is not known: a launcher or a data loader's parent fails because of it with a code of its own.
    pub(super) fn ran_out_of_memory(&self) -> bool {
        self.hung.is_none() && self.was_killed_for_memory() && self.ended.is_some_and(|(end, _)| end != End::Code(0))
    }

    fn was_killed_for_memory(&self) -> bool {
        matches!(self.ended, Some((_, Some(true))))
    }

    fn oom(&self) -> Option<bool> {
        match self.ended {
            Some((_, oom)) => oom,
            // There was nobody to kill.
            None if self.attempt == 0 || self.not_started.is_some() => Some(false),
            None => None,
        }
    }

    pub(super) fn exit(&mut self, reason: Reason, code: u8, detail: String) -> Vec<Action> {
        self.state = State::Done;
        vec![Action::Exit(Box::new(Outcome {
            reason,
            exit_code: self.policy.remapped(code),
            child: self.ended.map(|(end, _)| end),
            rank: self.whose_rank(),
            oom: self.oom(),
            attempts: self.attempt,
            resumed_step: self.resumed.as_ref().and_then(|r| r.step),
            committed_step: self.committed,
            detail,
        }))]
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{feed, outcome, running, secs};
    use super::*;
    use crate::rules::job::{Event, Policy};
    use crate::rules::signal::Signal;

    /// The verdict on a trainer that ended so, by what the counter of kills says of its attempt.
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
        let told = verdict(End::Code(1), Some(true));
        assert_eq!((told.reason, told.exit_code, told.oom), (Reason::Oom, 1, Some(true)), "a process of its own was");
        let well = verdict(End::Code(0), Some(true));
        assert_eq!((well.reason, well.detail.contains("memory")), (Reason::Finished, false));
    }

    #[test]
    fn where_nobody_ran_nobody_was_killed() {
        let mut machine = Machine::new(Policy::default());
        machine.step(secs(0.0), Event::Started);
        let missing = Event::NotSpawned { code: 127, detail: "not found".into(), passes: false, others: false };
        assert_eq!(outcome(machine.step(secs(0.0), missing)).oom, Some(false));
    }
}
