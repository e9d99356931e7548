//! One replica of a simulated job: its lives, its steps, its time.

use std::time::Duration;

use serde_json::Value;

use super::account::{Account, Cause};

/// One replica.
#[derive(Debug, Clone, Default)]
pub struct Replica {
    pub(super) phase: Phase,
    /// The platform has ended it, or will end it.
    pub(super) is_ended_by_platform: bool,
    /// The time of SIGKILL.
    pub(super) kill_at: Option<Duration>,
    /// The end of a freeze.
    pub(super) frozen_until: Option<Duration>,
    /// How often it was started.
    pub starts: u32,
    /// The exit codes of its lives.
    pub exits: Vec<u8>,
    /// The verdicts of its lives. A life without a verdict is skipped.
    pub verdicts: Vec<Value>,
    /// Its lives.
    pub lives: Vec<Life>,
    /// When a commit was complete.
    pub commits: Vec<Duration>,
    /// When trainit started the command again within a life.
    pub attempts: Vec<Duration>,
    /// The highest step that it has reported.
    pub step: Option<u64>,
    /// The last loss that it has reported.
    pub loss: Option<f64>,
    /// Steps that it reported although an earlier life had reported them.
    pub repeated_steps: u64,
    /// Its time by cause.
    pub account: Account,
}

/// From the start of its processes to their end.
#[derive(Debug, Clone, Default)]
pub struct Life {
    /// The start.
    pub from: Duration,
    /// The end; `None` while it runs.
    pub to: Option<Duration>,
    /// It began with an empty disk, because the platform had taken the one before.
    pub has_lost_disk: bool,
    /// The first step that it reported.
    pub first_step: Option<u64>,
    /// The step that it resumed from, by its verdict.
    pub resumed_step: Option<u64>,
    /// It has written a verdict.
    pub has_verdict: bool,
}

/// Whether it has processes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum Phase {
    /// Without processes; it is started when the others have ended, too.
    #[default]
    Down,
    /// Without processes; it is started at this time.
    DownUntil(Duration),
    /// With processes. The last step that it has reported in this life.
    Up { last_step: Option<u64> },
    /// It needs no further start.
    Done,
}

impl Replica {
    pub(super) fn is_up(&self) -> bool {
        matches!(self.phase, Phase::Up { .. })
    }

    /// Its processes start.
    pub(super) fn begin(&mut self, now: Duration, has_lost_disk: bool) {
        self.account.record(now, Cause::Waiting);
        self.phase = Phase::Up { last_step: None };
        self.starts += 1;
        self.lives.push(Life { from: now, has_lost_disk, ..Life::default() });
    }

    pub(super) fn stepped(&mut self, now: Duration, step: u64, loss: Option<f64>) {
        let is_repeated = self.step.is_some_and(|best| step <= best);
        let cause = match self.phase {
            // A trainer whose steps begin again was started again within this life.
            Phase::Up { last_step } if last_step.is_none_or(|last| step <= last) => Cause::Start,
            _ if is_repeated => Cause::Repeated,
            _ => Cause::Training,
        };
        self.account.record(now, cause);
        self.phase = Phase::Up { last_step: Some(step) };
        if let Some(life) = self.lives.last_mut() {
            life.first_step.get_or_insert(step);
        }
        self.repeated_steps += u64::from(is_repeated);
        self.step = self.step.max(Some(step));
        self.loss = loss.or(self.loss);
    }

    /// Books the time since the last step or start of this life.
    pub(super) fn record_life(&mut self, now: Duration) {
        let cause = match self.phase {
            _ if self.frozen_until.is_some() => Cause::Stopped,
            Phase::Up { last_step: None } => Cause::Start,
            Phase::Up { .. } => Cause::Training,
            _ => Cause::Waiting,
        };
        self.account.record(now, cause);
    }

    pub(super) fn thaw(&mut self, now: Duration) {
        self.account.record(now, Cause::Stopped);
        self.frozen_until = None;
    }

    /// Whether the platform has ended it.
    pub(super) fn ended(&mut self, now: Duration, code: u8, verdict: Option<Value>) -> bool {
        let cause = if self.phase == (Phase::Up { last_step: None }) { Cause::Start } else { Cause::Stopped };
        self.account.record(now, cause);
        (self.kill_at, self.frozen_until, self.phase) = (None, None, Phase::Down);
        // A replica that was killed has written no verdict.
        let of = |cause: &str| verdict.as_ref()?.get("goodput")?.get(cause)?.as_f64();
        self.account.rebook_start(of("restore").unwrap_or(0.0), Cause::Restore);
        self.account.rebook_start(of("peers").unwrap_or(0.0), Cause::Waiting);
        self.exits.push(code);
        if let Some(life) = self.lives.last_mut() {
            life.to = Some(now);
            life.has_verdict = verdict.is_some();
            life.resumed_step = verdict.as_ref().and_then(|verdict| verdict.get("resumed_step")?.as_u64());
        }
        self.verdicts.extend(verdict);
        self.is_ended_by_platform
    }
}
