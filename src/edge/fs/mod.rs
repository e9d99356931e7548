//! Files and directories.

pub mod follow;
pub mod links;
pub mod metrics_file;
pub mod named_pipe;
pub mod real_path;
pub mod replace;
pub mod rooted_dir;
pub mod run_dir;
pub mod small_file;
pub mod trusted_open;
pub mod walk;
