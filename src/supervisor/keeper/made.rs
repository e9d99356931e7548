//! Keys that were written for a commit that is not there yet: what to take back should it never be.

use std::cell::RefCell;

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
