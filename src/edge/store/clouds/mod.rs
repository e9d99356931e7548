//! The clouds whose buckets can be a store: their addresses and credentials.

pub(super) mod access;
pub(super) mod amazon;
pub(super) mod azure;
pub(super) mod google;
pub(super) mod values;
