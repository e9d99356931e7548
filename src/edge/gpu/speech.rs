//! The probe's mouth: one JSON object a line on what was its standard output, each line in one write.

use std::os::fd::RawFd;

use crate::edge::stdio;
use crate::rules::gpu::protocol::Line;

/// Where the lines go. Libraries that print cannot get between them: their standard output is standard error.
pub(super) struct Speech {
    fd: RawFd,
}

impl Speech {
    /// Speaks on a descriptor that nobody else writes to.
    pub(super) fn on(fd: RawFd) -> Speech {
        Speech { fd }
    }

    /// Writes a line. When nobody listens there is nobody to tell: SIGPIPE ends the probe.
    pub(super) fn say(&mut self, line: &Line) {
        if let Ok(mut text) = serde_json::to_vec(line) {
            text.push(b'\n');
            let _ = stdio::write_all(self.fd, &text);
        }
    }

    /// Announces a call that may block.
    pub(super) fn call(&mut self, function: &str) {
        self.say(&Line::Call { function: function.to_owned(), wait_ms: None });
    }

    #[cfg(all(target_env = "gnu", not(target_feature = "crt-static")))]
    /// Announces a call that is meant to block for so long.
    pub(super) fn wait(&mut self, function: &str, ms: u32) {
        self.say(&Line::Call { function: function.to_owned(), wait_ms: Some(ms) });
    }
}
