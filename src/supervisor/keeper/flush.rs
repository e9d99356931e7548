//! The last commit of a run: when it is tried again, and how long a store is waited for that does not answer.

use std::time::Duration;

use super::Keeper;
use super::commit::Outcome;
use super::mirror::Mirror;
use super::vigil::{PROBE_PAUSE, patience};
use crate::rules::checkpoint::names::Attempt;
use crate::rules::job::Flushed;

/// How long to wait before looking again at a checkpoint that changed under the last commit of a run, and before what
/// failed is tried again.
pub(super) const LAST_LOOK_PAUSE: Duration = Duration::from_millis(500);
/// So often; with an empty process tree only somebody outside can be writing.
const LAST_LOOKS: u32 = 4;
/// So often what another try may do is tried; what takes longer than the patience, twice.
pub(super) const LAST_TRIES: u32 = 4;

impl Keeper {
    /// The last commit of the run. Nobody of ours writes any more. `silent`: what the store was found to be already.
    /// Errors: the newer run that has taken over.
    pub(super) async fn flush(&mut self, by: Option<Duration>, silent: Option<String>) -> Result<Flushed, Attempt> {
        let vigil = self.vigil();
        let silence = async {
            match (silent, vigil) {
                (Some(silent), _) => silent,
                (None, Some(vigil)) => vigil.silence(by).await,
                (None, None) => std::future::pending().await,
            }
        };
        let flushed = tokio::select! {
            biased;
            why = silence => {
                // What it holds on to is let go of.
                match self.commit(None, Some(Duration::ZERO)).await {
                    Some(Outcome::UpToDate { step }) => Ok(safe(step)),
                    _ => Ok(self.kept_waiting(&why)),
                }
            }
            flushed = self.commit_the_last(by) => flushed,
        };
        self.tell_notes();
        flushed
    }

    fn kept_waiting(&self, why: &str) -> Flushed {
        let stands = self.mirror.as_ref().map_or(String::new(), Mirror::what_stands);
        Flushed::Failed(format!(
            "{why}; the newest checkpoint is not committed; {stands}; see that it is well and can be reached from here, then start again"
        ))
    }

    /// Errors: the newer run that has taken over.
    async fn commit_the_last(&mut self, by: Option<Duration>) -> Result<Flushed, Attempt> {
        // A store that answers nobody is the vigil's, which begins a little later.
        let (mut looks, mut tries, patience) = (0, 0, self.clock.now() + patience(by) + 2 * PROBE_PAUSE);
        loop {
            let left = by.map(|by| by.saturating_sub(self.clock.now()));
            return Ok(match self.commit(None, left).await {
                None => Flushed::Done { step: None },
                Some(Outcome::Committed { step, bytes, seconds, .. }) => {
                    tracing::debug!(bytes, seconds, "the last commit is through");
                    safe(step)
                }
                Some(Outcome::UpToDate { step }) => safe(step),
                Some(Outcome::NothingComplete { why }) => {
                    tracing::info!("no complete checkpoint to commit: {why}");
                    Flushed::Done { step: None }
                }
                Some(Outcome::Fenced { by }) => return Err(by),
                Some(Outcome::Failed { message, is_away: true, .. }) if self.clock.now() < patience => {
                    self.complain(message);
                    tokio::time::sleep(LAST_LOOK_PAUSE).await;
                    continue;
                }
                Some(Outcome::Failed { message, again: true, .. })
                    if tries + 1 < if self.clock.now() < patience { LAST_TRIES } else { 2 } =>
                {
                    self.complain(message);
                    tokio::time::sleep(LAST_LOOK_PAUSE * 2_u32.pow(tries)).await;
                    tries += 1;
                    continue;
                }
                Some(Outcome::Failed { message, .. }) => Flushed::Failed(message),
                Some(Outcome::OutOfTime { why }) => Flushed::OutOfTime(why),
                Some(Outcome::Changed { why }) if looks + 1 == LAST_LOOKS => Flushed::Failed(format!(
                    "the newest checkpoint keeps changing although no process of the job is left ({why}), so it is not \
                     committed; {}; find out who else writes to the checkpoint directory",
                    self.mirror.as_ref().map_or(String::new(), Mirror::what_stands)
                )),
                Some(Outcome::Changed { .. }) => {
                    looks += 1;
                    tokio::time::sleep(LAST_LOOK_PAUSE).await;
                    continue;
                }
            });
        }
    }
}

/// The newest checkpoint is in the store, whether it has a step or not.
fn safe(step: Option<u64>) -> Flushed {
    step.map_or(Flushed::Stepless, |step| Flushed::Done { step: Some(step) })
}
