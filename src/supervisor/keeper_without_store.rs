//! A build without stores keeps nothing: there is no [`Keep`] to be had, and so nobody who takes orders. `settings` says so
//! to whoever asks for one.

use tokio::sync::mpsc::UnboundedReceiver;

use super::background::{Order, Teller};
use crate::edge::clock::Clock;
use crate::rules::status::sibling::Kept;

/// What to keep of a run: there is none.
#[derive(Debug)]
pub enum Keep {}

impl Keep {
    /// Where the model is to be copied when the job has finished: there is none.
    pub fn model_goes_to(&self) -> Option<String> {
        match *self {}
    }

    /// Whether checkpoints are committed.
    pub fn has_store(&self) -> bool {
        match *self {}
    }

    /// Which checkpoints are committed: none.
    pub fn kept(&self) -> Option<Kept> {
        match *self {}
    }

    pub(super) async fn work(self, _: UnboundedReceiver<Order>, _: Teller, _: Clock) {
        match self {}
    }
}
