//! Keys that were written for a commit that is not there yet: what to take back should it never be.

use std::cell::RefCell;

use futures_util::{StreamExt, TryStreamExt, stream};

use super::mirror::{Mirror, beneath, blocking};
use super::pins::unpin;
use super::retention::unless_stuck;
use crate::edge::store::StoreError;

/// Keys that were written, and those of which the store has not said so: it may hold them all the same.
#[derive(Debug, Default)]
pub(super) struct Made {
    whole: RefCell<Vec<String>>,
    under_way: RefCell<Vec<String>>,
}

impl Made {
    /// The store is asked to write it.
    pub(super) fn begin(&self, key: &str) {
        self.under_way.borrow_mut().push(key.to_owned());
    }

    /// The store has answered. Errors: as it did.
    pub(super) fn end(&self, key: &str, put: Result<Option<String>, StoreError>) -> Result<Option<String>, StoreError> {
        self.under_way.borrow_mut().retain(|other| other != key);
        if put.is_ok() {
            self.whole.borrow_mut().push(key.to_owned());
        }
        put
    }

    /// How many are there for sure.
    pub(super) fn count(&self) -> usize {
        self.whole.borrow().len()
    }

    /// All of them, which are forgotten.
    pub(super) fn take(&self) -> Vec<String> {
        [self.whole.take(), self.under_way.take()].concat()
    }
}

impl Mirror {
    /// Deletes what was sent of a commit that is not to be: no manifest names it, and none ever will. What stays, a prune
    /// finds.
    pub(super) async fn discard(&self) {
        let (Some(store), made) = (&self.store, self.made.take()) else { return };
        let deletions = made.iter().map(|key| store.delete(key));
        let deletions = stream::iter(deletions).buffer_unordered(store.habits().at_once).try_collect::<()>();
        let _ = unless_stuck(store, deletions).await;
    }

    /// Lets go of what is held still for a commit.
    pub(super) async fn let_go(&self) {
        let (dir, pins) = (self.config.dir.clone(), self.pins());
        let _ = blocking(move || unpin(&*beneath(&dir)?, &pins)).await;
    }

    /// Takes back what was sent, after a commit that was broken off. Whether its manifest may be there all the same.
    pub async fn take_back(&self) -> bool {
        self.let_go().await;
        if let Some(store) = &self.store {
            store.all_given_up().await;
        }
        self.discard().await;
        self.naming.is_some()
    }
}
