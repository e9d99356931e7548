//! The checkpoint directory: what is committed and restored, and the messages about it.

mod beside_later;
mod by_hand;
mod caches;
mod links;
mod lives;
mod messages;
mod odd_files;
mod permissions;
mod random_lives;
mod restore;
mod shared;
mod snapshots;
mod trouble;
