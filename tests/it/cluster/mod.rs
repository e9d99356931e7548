//! The cluster: what trainit reads from each platform, and the environment of each rank.

mod env_command;
mod golden_cases;
mod inspect;
mod launched_ranks;
mod nproc;
mod peers;
mod properties;
mod simulate;
