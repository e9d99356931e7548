//! The output of the GPU probe, and its reader: one JSON object on each line, with the kind in `t`.
//!
//! A `call` line comes before every NVML call, so that a hanging call can be named: `{"t":"call","fn":"nvmlInit_v2"}`.
//! Silence beyond the deadline is a hang. Deliberately absent: the process and the clock; bytes and times are
//! arguments, so that a supervisor can call this from its own loop.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::Gpu;

/// A longer line ends the probe.
pub const LINE_LIMIT_BYTES: usize = 64 * 1024;

/// More GPUs than any machine has. Higher indices are ignored.
pub const INDEX_LIMIT: u32 = 1024;

/// One line. Unknown kinds and fields are ignored.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(tag = "t", rename_all = "snake_case")]
pub enum Line {
    /// The probe has started.
    Hello {
        /// trainit's version.
        version: String,
    },
    /// A call that may block follows.
    Call {
        /// Its name.
        #[serde(rename = "fn")]
        function: String,
        /// The time that it may block in addition to the deadline (the wait for events).
        #[serde(skip_serializing_if = "Option::is_none")]
        wait_ms: Option<u32>,
    },
    /// The driver. In a watch this is repeated with every round of samples.
    Driver {
        /// `550.54.15`.
        driver_version: Option<String>,
        /// `12.4`.
        cuda_version: Option<String>,
        /// The number of GPUs that NVML lists.
        count: Option<u32>,
    },
    /// A GPU. A later line with the same index replaces an earlier one.
    Gpu {
        /// Whether it has more than identity and memory.
        sampled: bool,
        /// The values.
        #[serde(flatten)]
        gpu: Box<Gpu>,
    },
    /// A GPU that cannot be queried, or no longer.
    GpuError {
        /// NVML's index.
        index: u32,
        /// The UUID, if it was known before.
        uuid: Option<String>,
        /// The failed call.
        #[serde(rename = "fn")]
        function: String,
        /// NVML's return value.
        code: u32,
    },
    /// Something happened on a GPU (watch only).
    Event {
        /// NVML's index, if the GPU is listed.
        index: Option<u32>,
        /// One of [`event`].
        kind: u64,
        /// The XID, for an XID.
        data: u64,
        /// The MIG instance.
        gpu_instance: Option<u32>,
        /// Field 230, read directly after the event.
        recovery_action: Option<u32>,
    },
    /// Events on the GPUs cannot be received (watch only).
    EventsUnavailable {
        /// The failed call.
        #[serde(rename = "fn")]
        function: String,
        /// NVML's return value.
        code: u32,
    },
    /// No query is possible.
    Error {
        /// The failed call: `dlopen`, `exec`, or an NVML call.
        #[serde(rename = "fn")]
        function: String,
        /// NVML's return value (for `exec` errno).
        code: Option<u32>,
        /// The loader's message.
        message: Option<String>,
    },
    /// The discovery is complete.
    End,
    /// Unknown to this version.
    Unknown,
}

/// All fields of all kinds except the GPU. A separate type for each kind would need much more code.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Fields {
    t: String,
    version: String,
    #[serde(rename = "fn")]
    function: String,
    wait_ms: Option<u32>,
    driver_version: Option<String>,
    cuda_version: Option<String>,
    count: Option<u32>,
    sampled: bool,
    index: Option<u32>,
    uuid: Option<String>,
    code: Option<u32>,
    kind: Option<u64>,
    data: u64,
    gpu_instance: Option<u32>,
    recovery_action: Option<u32>,
    message: Option<String>,
}

impl Line {
    /// Reads a line; `None` if it is invalid.
    pub fn read(text: &[u8]) -> Option<Line> {
        let it: Fields = serde_json::from_slice(text).ok()?;
        Some(match it.t.as_str() {
            "hello" => Line::Hello { version: it.version },
            "call" => Line::Call { function: it.function, wait_ms: it.wait_ms },
            "driver" => {
                let (driver_version, cuda_version) = (it.driver_version, it.cuda_version);
                Line::Driver { driver_version, cuda_version, count: it.count.filter(|n| *n <= INDEX_LIMIT) }
            }
            "gpu" | "gpu_error" | "event" if it.index.is_some_and(|index| index >= INDEX_LIMIT) => Line::Unknown,
            "gpu" => Line::Gpu { sampled: it.sampled, gpu: serde_json::from_slice(text).ok()? },
            "gpu_error" => {
                let (index, code) = (it.index?, it.code?);
                Line::GpuError { index, uuid: it.uuid, function: it.function, code }
            }
            "event" => {
                let (index, gpu_instance, recovery_action) = (it.index, it.gpu_instance, it.recovery_action);
                Line::Event { index, kind: it.kind?, data: it.data, gpu_instance, recovery_action }
            }
            "events_unavailable" => Line::EventsUnavailable { function: it.function, code: it.code? },
            "error" => Line::Error { function: it.function, code: it.code, message: it.message },
            "end" => Line::End,
            "" => return None,
            _ => Line::Unknown,
        })
    }
}

/// NVML's bits for kinds of events.
pub mod event {
    /// An XID.
    pub const XID: u64 = 0x8;
    /// The GPU is unavailable.
    pub const UNAVAILABLE: u64 = 0x4000;
    /// The recovery action (field 230) changed, or was read again.
    pub const RECOVERY_ACTION: u64 = 0x8000;
}

/// The limits for the probe's silence and for its total time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// The limit for one call.
    pub call: Duration,
    /// The limit for the total time; `None` in a watch.
    pub whole: Option<Duration>,
}

impl Limits {
    /// For a discovery: the limit for one call, and three times that in total.
    pub fn discovery(call: Duration) -> Limits {
        Limits { call, whole: Some(call.saturating_mul(3)) }
    }

    /// For a watch: no total limit, but a limit for each call.
    pub fn watch(call: Duration) -> Limits {
        Limits { call, whole: None }
    }
}

/// Why a probe has to be killed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Overrun {
    /// A call did not return.
    Call {
        /// Its name; empty before the first line.
        function: String,
        /// The exceeded limit.
        limit: Duration,
    },
    /// Every call returned, but the total time was too long.
    Whole {
        /// The exceeded limit.
        limit: Duration,
    },
    /// A line was too long.
    LongLine,
}

/// Reads a probe's output in pieces. Times have any common origin.
#[derive(Debug)]
pub struct Reader {
    limits: Limits,
    started: Duration,
    /// When the last line arrived, and the time that it announced.
    last_line_at: Duration,
    call: String,
    wait: Duration,
    partial: Vec<u8>,
    long: bool,
}

impl Reader {
    /// A reader for a probe that starts now.
    pub fn new(now: Duration, limits: Limits) -> Reader {
        let (call, wait) = (String::new(), Duration::ZERO);
        Reader { limits, started: now, last_line_at: now, call, wait, partial: Vec::new(), long: false }
    }

    /// Adds output and returns the lines in it, calls included. Lines that are not JSON of a known kind (a library that
    /// prints) are dropped, and are not a sign of life.
    pub fn feed(&mut self, now: Duration, bytes: &[u8]) -> Vec<Line> {
        let mut lines = Vec::new();
        for piece in bytes.split_inclusive(|b| *b == b'\n') {
            if self.long || self.partial.len() + piece.len() > LINE_LIMIT_BYTES {
                self.long = true;
                self.partial = Vec::new();
                return lines;
            }
            self.partial.extend_from_slice(piece);
            if piece.ends_with(b"\n")
                && let Some(line) = Line::read(&std::mem::take(&mut self.partial))
            {
                self.note_line(now, &line);
                lines.push(line);
            }
        }
        lines
    }

    fn note_line(&mut self, now: Duration, line: &Line) {
        self.last_line_at = now;
        self.wait = Duration::ZERO;
        if let Line::Call { function, wait_ms } = line {
            self.call.clone_from(function);
            self.wait = Duration::from_millis(wait_ms.unwrap_or(0).into());
        }
    }

    /// When the probe must be killed, if it stays silent.
    pub fn deadline(&self) -> Duration {
        let call = self.last_line_at.saturating_add(self.wait).saturating_add(self.limits.call);
        match self.limits.whole {
            Some(whole) => call.min(self.started.saturating_add(whole)),
            None => call,
        }
    }

    /// Why the probe must be killed now, if so.
    pub fn overrun(&self, now: Duration) -> Option<Overrun> {
        if self.long {
            return Some(Overrun::LongLine);
        }
        let call = self.last_line_at.saturating_add(self.wait).saturating_add(self.limits.call);
        if now >= call {
            return Some(Overrun::Call { function: self.call.clone(), limit: self.limits.call });
        }
        let whole = self.limits.whole.filter(|whole| now >= self.started.saturating_add(*whole));
        whole.map(|limit| Overrun::Whole { limit })
    }

    /// The call that was announced last.
    pub fn last_call(&self) -> &str {
        &self.call
    }
}

/// The combined lines of a discovery.
#[derive(Debug, Default)]
pub struct Findings {
    /// See [`Line::Driver`].
    pub driver_version: Option<String>,
    /// See [`Line::Driver`].
    pub cuda_version: Option<String>,
    /// The number of GPUs that NVML lists, once known.
    pub count: Option<u32>,
    /// By index, with whether each was sampled.
    pub gpus: BTreeMap<u32, (Gpu, bool)>,
    /// By index: the call that failed and its return value.
    pub gpu_errors: BTreeMap<u32, (String, u32)>,
    /// The failed call that ended the discovery, NVML's return value, the loader's message.
    pub error: Option<(String, Option<u32>, Option<String>)>,
    /// Whether the probe reported that it is complete.
    pub ended: bool,
}

impl Findings {
    /// Adds a line.
    pub fn add(&mut self, line: Line) {
        match line {
            Line::Driver { driver_version, cuda_version, count } => {
                self.driver_version = driver_version.or(self.driver_version.take());
                self.cuda_version = cuda_version.or(self.cuda_version.take());
                self.count = count.or(self.count);
            }
            Line::Gpu { sampled, gpu } => {
                self.gpus.insert(gpu.index, (*gpu, sampled));
            }
            Line::GpuError { index, function, code, .. } => {
                self.gpu_errors.insert(index, (function, code));
            }
            Line::Error { function, code, message } => self.error = Some((function, code, message)),
            Line::End => self.ended = true,
            Line::Hello { .. }
            | Line::Call { .. }
            | Line::Event { .. }
            | Line::EventsUnavailable { .. }
            | Line::Unknown => {}
        }
    }
}

#[cfg(test)]
mod tests;
