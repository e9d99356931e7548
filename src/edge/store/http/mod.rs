//! HTTP as `object_store` uses it here.

pub(super) mod body;
pub(super) mod connect;
pub(super) mod progress;
pub(super) mod response_check;
pub(super) mod tls;
