//! Readers of the values: hosts, addresses, lists, JSON and the pools of a cluster.

pub mod address;
pub mod hostlist;
pub mod input;
pub mod json;
pub mod pools;
pub mod search_list;
