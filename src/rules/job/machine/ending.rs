//! How a life is summed up: reason, exit code, one sentence.

use super::{Cause, Machine, State, Stop};
use crate::rules::exit::{self, End};
use crate::rules::job::event::Action;
use crate::rules::job::policy::StoppedCode;
use crate::rules::job::verdict::{Outcome, Reason};

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
        let suffix = format!("{}{suffix}", self.followed());
        let who = self.who();
        if let Some(hung) = &self.hung {
            let ended = match self.ended {
                Some((end, _)) => format!("it was ended: {end}"),
                None => "it could not be ended".to_owned(),
            };
            return self.exit(Reason::Hung, exit::HUNG, format!("the command hung: {hung}; {ended}{suffix}"));
        }
        match self.ended {
            Some((End::Code(0), _)) => {
                let who = self.ranks().map_or(who, |(first, last)| format!("each of the ranks {first} to {last}"));
                self.exit(Reason::Finished, code, format!("{who} finished with exit code 0{suffix}"))
            }
            Some((end, true)) => self.exit(
                Reason::Oom,
                code,
                format!(
                    "out of memory: the kernel killed for the cgroup's memory limit, {who} ended with {end}{suffix}"
                ),
            ),
            Some((end @ End::Signal(_), false)) => {
                self.exit(Reason::Signalled, code, format!("{who} was ended by {end}{suffix}"))
            }
            Some((end @ End::Code(_), false)) => {
                self.exit(Reason::Failed, code, format!("{who} failed with {end}{suffix}"))
            }
            None => self.exit(Reason::NotStarted, exit::NOT_STARTED, format!("nothing was started{suffix}")),
        }
    }

    pub(super) fn exit(&mut self, reason: Reason, code: u8, detail: String) -> Vec<Action> {
        self.state = State::Done;
        vec![Action::Exit(Box::new(Outcome {
            reason,
            exit_code: self.policy.remapped(code),
            child: self.ended.map(|(end, _)| end),
            rank: self.whose_rank(),
            oom: self.ended.is_some_and(|(_, oom)| oom),
            attempts: self.attempt,
            resumed_step: self.resumed.as_ref().and_then(|r| r.step),
            committed_step: self.committed,
            detail,
        }))]
    }
}
