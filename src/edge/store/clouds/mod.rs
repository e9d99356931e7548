//! The clouds whose buckets can be a store: their addresses and credentials.

use std::sync::Arc;

use object_store::ObjectStore;

pub(super) mod access;
pub(super) mod amazon;
pub(super) mod azure;
pub(super) mod google;
pub(super) mod values;

/// A bucket, opened with the current credentials.
pub(super) struct Opened {
    pub(super) client: Arc<dyn ObjectStore>,
    /// Whether opening it again may find other credentials.
    pub(super) renews: bool,
}
