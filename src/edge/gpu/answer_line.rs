//! The probe's output: one JSON object per line on its original standard output, each line in one write.

use std::os::fd::{AsFd, OwnedFd};

use crate::edge::io::stdio;
use crate::rules::gpu::protocol::Line;

/// Writes the lines. Output of libraries cannot mix with them, because it goes to standard error.
pub(super) struct LineWriter {
    fd: Option<OwnedFd>,
}

impl LineWriter {
    /// A writer to a descriptor that has no other writer; `None`: the lines are dropped.
    pub(super) fn on(fd: Option<OwnedFd>) -> LineWriter {
        LineWriter { fd }
    }

    /// Writes a line. If the reader has gone, SIGPIPE ends the probe.
    pub(super) fn write(&mut self, line: &Line) {
        if let (Some(fd), Ok(mut text)) = (&self.fd, serde_json::to_vec(line)) {
            text.push(b'\n');
            let _ = stdio::write_all(fd.as_fd(), &text);
        }
    }

    /// Announces a call that may block.
    pub(super) fn call(&mut self, function: &str) {
        self.write(&Line::Call { function: function.to_owned(), wait_ms: None });
    }

    #[cfg(all(target_env = "gnu", not(target_feature = "crt-static")))]
    /// Announces a call that is meant to block for `ms` milliseconds.
    pub(super) fn wait(&mut self, function: &str, ms: u32) {
        self.write(&Line::Call { function: function.to_owned(), wait_ms: Some(ms) });
    }
}
