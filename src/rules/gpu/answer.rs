//! What a probe's report means inside a container: the GPUs, and the one line that says what is wrong.
//!
//! The meanings are those of the project's GPU contract (sections 2 and 4); numbers are NVML's `nvmlReturn_t`.
//! Deliberately absent: what a job should do about it while it trains (that is a watch's affair).

use std::time::Duration;

use super::health::health;
use super::protocol::{Findings, Overrun};
use super::{Discovery, Evidence, Gpu, Health};
use crate::rules::exit::End;
use crate::rules::plain::counted;

/// NVML return values that decide something.
pub mod code {
    #![allow(missing_docs, reason = "each is NVML_ERROR_ of that name")]
    pub const NOT_SUPPORTED: u32 = 3;
    pub const NO_PERMISSION: u32 = 4;
    pub const DRIVER_NOT_LOADED: u32 = 9;
    pub const TIMEOUT: u32 = 10;
    pub const LIBRARY_NOT_FOUND: u32 = 12;
    pub const FUNCTION_NOT_FOUND: u32 = 13;
    pub const GPU_IS_LOST: u32 = 15;
    pub const RESET_REQUIRED: u32 = 16;
    pub const OPERATING_SYSTEM: u32 = 17;
    pub const LIB_RM_VERSION_MISMATCH: u32 = 18;
    pub const UNKNOWN: u32 = 999;
}

/// How a probe ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Ending {
    /// By itself.
    Ended(End),
    /// It was killed.
    Overrun(Overrun),
    /// It was killed, but is stuck in the kernel and still there.
    Stuck(Overrun),
    /// It never started; the reason.
    NotStarted(String),
}

/// All that came of one probe.
#[derive(Debug)]
pub struct Report {
    /// What the probe's program is called.
    pub program: String,
    /// What it said.
    pub findings: Findings,
    /// How it ended.
    pub ending: Ending,
    /// The call it announced last.
    pub last_call: String,
    /// The last line on its standard error.
    pub words: String,
}

/// What can be seen from outside NVML, without opening anything.
#[derive(Debug, Clone, Default)]
pub struct Site {
    /// `/dev/nvidiactl` (or WSL's `/dev/dxg`) exists.
    pub control_node: bool,
    /// How many `/dev/nvidiaN` exist.
    pub gpu_nodes: usize,
    /// `/proc/driver/nvidia` exists.
    pub module: bool,
    /// The first device node that this user may not read and write.
    pub forbidden_node: Option<String>,
    /// The effective user.
    pub uid: u32,
    /// Whether `TRAINIT_GPU_PROBE` is given.
    pub named_probe: bool,
    /// `TRAINIT_NVML_LIBRARY`, where given.
    pub named_library: Option<String>,
}

impl Site {
    /// Whether GPUs are to be expected here: there are device nodes, or somebody named the way to them.
    fn promised(&self) -> bool {
        self.control_node || self.named_probe || self.named_library.is_some()
    }
}

/// What to tell when there are GPUs but no NVML.
const NO_UTILITY: &str =
    "GPUs are here but NVML is not: set NVIDIA_DRIVER_CAPABILITIES=compute,utility for this container";

/// Whether NVML left something to be said by the device nodes.
pub fn is_silent(report: &Report) -> bool {
    let findings = &report.findings;
    findings.gpus.is_empty() && findings.gpu_errors.is_empty() && findings.count != Some(0)
}

/// The answer: NVML's, completed by what the device nodes say where NVML said nothing.
pub fn conclude(report: Report, nodes: Option<Findings>, site: &Site) -> Discovery {
    let (problem, driver, absence) = (problem(&report, site), driver(&report, site), absence(&report));
    let findings = report.findings;
    let mut gpus: Vec<Gpu> = Vec::new();
    for index in 0..findings.count.unwrap_or_else(|| findings.gpus.keys().next_back().map_or(0, |last| last + 1)) {
        let failed = findings.gpu_errors.get(&index);
        let (mut gpu, sampled) = match findings.gpus.get(&index) {
            Some((gpu, sampled)) => (gpu.clone(), *sampled),
            // Listed, but not given to this container.
            None if failed.is_some_and(|(_, code)| *code == code::NO_PERMISSION) => continue,
            None => (Gpu { index, ..Gpu::default() }, false),
        };
        gpu.index = index;
        (gpu.health, gpu.health_reason) = match failed {
            Some((call, code)) => (lost(*code), Some(failure(call, *code))),
            None if sampled => health(&gpu),
            None => (Health::Unknown, problem.clone()),
        };
        gpus.push(gpu);
    }
    let mut source = if findings.count.is_some() || !gpus.is_empty() { Evidence::Nvml } else { Evidence::None };
    if let Some(nodes) = nodes.filter(|nodes| !nodes.gpus.is_empty() && nodes.gpus.len() >= gpus.len()) {
        let unknown = |gpu| Gpu { health: Health::Unknown, health_reason: problem.clone(), ..gpu };
        gpus = nodes.gpus.into_values().map(|(gpu, _)| unknown(gpu)).collect();
        source = Evidence::Procfs;
    }
    let (driver_version, cuda_version) = (findings.driver_version, findings.cuda_version);
    let absence = (gpus.is_empty() && problem.is_none()).then_some(absence);
    Discovery { gpus, driver_version, cuda_version, source, problem, absence, driver }
}

/// See [`Discovery::driver`].
fn driver(report: &Report, site: &Site) -> Health {
    let Report { findings, ending, last_call, .. } = report;
    match (&findings.error, ending) {
        (Some((call, ..)), _) if matches!(call.as_str(), "exec" | "dlopen") => Health::Ok,
        (Some((_, Some(code::UNKNOWN), _)), _) => Health::Bad,
        (Some((_, Some(code::DRIVER_NOT_LOADED), _)), _) if site.gpu_nodes > 0 => Health::Bad,
        (Some((_, Some(code), _)), _) if lost(*code) == Health::Bad => Health::Bad,
        (Some(_), _) => Health::Ok,
        // Slow, and what it said holds.
        (None, Ending::Overrun(Overrun::Whole { .. })) if !is_silent(report) => Health::Ok,
        (None, Ending::Overrun(_) | Ending::Stuck(_)) if !last_call.is_empty() => Health::Unknown,
        (None, Ending::Ended(_)) if !findings.ended && !last_call.is_empty() => Health::Unknown,
        (None, _) => Health::Ok,
    }
}

fn lost(code: u32) -> Health {
    match code {
        code::GPU_IS_LOST | code::RESET_REQUIRED | code::OPERATING_SYSTEM | code::LIB_RM_VERSION_MISMATCH => {
            Health::Bad
        }
        _ => Health::Unknown,
    }
}

/// The line about what is wrong, or nothing.
pub fn problem(report: &Report, site: &Site) -> Option<String> {
    let last = &report.last_call;
    let findings = &report.findings;
    match &report.ending {
        Ending::NotStarted(reason) => Some(not_started(report, reason)),
        Ending::Overrun(overrun) => Some(hang(overrun, last)),
        Ending::Stuck(overrun) => {
            Some(format!("{}; the probe is stuck in the kernel and cannot be killed", hang(overrun, last)))
        }
        Ending::Ended(_) if findings.ended || findings.error.is_some() => said(report, site),
        // It could not even begin: a loader without its libraries (Alpine's gcompat).
        Ending::Ended(End::Code(_)) if last.is_empty() && !site.promised() => None,
        Ending::Ended(end) => {
            let place = if last.is_empty() { String::new() } else { format!(" in {last}") };
            let words = if report.words.is_empty() { String::new() } else { format!(" ({})", report.words) };
            Some(match end {
                End::Signal(_) => format!(
                    "the GPU probe died of {end}{place}{words}: the NVIDIA driver library crashes here; GPU health is unknown"
                ),
                End::Code(_) => format!("the GPU probe left with {end}{place} before it was through{words}"),
            })
        }
    }
}

fn hang(overrun: &Overrun, last: &str) -> String {
    let seconds = |limit: &Duration| format!("{} s", limit.as_secs_f64());
    match overrun {
        Overrun::Call { function, limit } if function.is_empty() => {
            format!("the GPU probe said nothing for {}; GPU health is unknown", seconds(limit))
        }
        Overrun::Call { function, limit } => {
            let limit = seconds(limit);
            format!("{function} did not return in {limit}: the NVIDIA driver hangs; GPU health is unknown")
        }
        Overrun::Whole { limit } => {
            let limit = seconds(limit);
            format!("asking the GPUs took more than {limit} in all (last: {last}); raise --gpu-timeout")
        }
        Overrun::LongLine => {
            "the GPU probe wrote a line of more than 64 KiB and was ended; GPU health is unknown".into()
        }
    }
}

fn not_started(report: &Report, reason: &str) -> String {
    let words = if report.words.is_empty() { String::new() } else { format!(" ({})", report.words) };
    format!("the GPU probe {} could not be started: {reason}{words}", report.program)
}

/// ENOENT of an exec.
const NO_LOADER: u32 = 2;

/// What errno of an exec means for a probe.
fn exec_error(errno: u32) -> String {
    match errno {
        NO_LOADER => "it is not there, or this image has no dynamic loader for it (NVML needs glibc)".to_owned(),
        8 => "it is built for another kind of machine".to_owned(),
        13 => "it may not be executed (permission, or a noexec mount)".to_owned(),
        other => format!("exec failed with errno {other}"),
    }
}

fn said(report: &Report, site: &Site) -> Option<String> {
    let findings = &report.findings;
    if let Some((call, code, message)) = &findings.error {
        let message = message.as_deref().unwrap_or("no reason given");
        return match (call.as_str(), *code) {
            // Where nobody promised a GPU, a probe that cannot run here is missed by nobody.
            ("exec", errno) => {
                let why = not_started(report, &errno.map_or(message.to_owned(), exec_error));
                let is_missed = site.control_node && errno == Some(NO_LOADER);
                site.promised().then(|| if is_missed { format!("{NO_UTILITY}; {why}") } else { why })
            }
            ("dlopen", Some(code::LIBRARY_NOT_FOUND)) => match &site.named_library {
                Some(path) => Some(format!("TRAINIT_NVML_LIBRARY names {path}, which cannot be loaded: {message}")),
                None => site.control_node.then(|| NO_UTILITY.to_owned()),
            },
            ("dlopen", _) => Some(format!("NVML is here but cannot be loaded: {message}")),
            (call, code) => Some(refusal(call, code.unwrap_or(code::UNKNOWN), site)),
        };
    }
    let failed: Vec<String> = findings
        .gpu_errors
        .iter()
        .filter(|(index, (_, code))| *code != code::NO_PERMISSION || findings.gpus.contains_key(index))
        .map(|(index, (call, code))| format!("GPU {index}: {}", failure(call, *code)))
        .collect();
    if failed.is_empty() && findings.gpus.is_empty() && site.gpu_nodes > 0 {
        let listed = match findings.count {
            Some(0) | None => "lists no GPU: look whether nvidia-smi on the host shows any".to_owned(),
            Some(count) => {
                format!("lists {} and hands out none, no permission: {}", counted(count as usize, "GPU"), denied(site))
            }
        };
        let nodes = counted(site.gpu_nodes, "device node");
        return Some(format!("this container has {nodes} of GPUs, and NVML {listed}"));
    }
    (!failed.is_empty()).then(|| failed.join("; "))
}

/// Why there are no GPUs where that is no problem: nobody gave the container any.
fn absence(report: &Report) -> String {
    let findings = &report.findings;
    let why = match (&findings.error, findings.count) {
        (Some((call, errno, message)), _) if call == "exec" => {
            let reason = errno.map(exec_error).or(message.clone()).unwrap_or_default();
            not_started(report, &reason)
        }
        (Some(_), _) => "there is no NVIDIA driver library (libnvidia-ml.so.1)".to_owned(),
        (None, Some(0)) => "the NVIDIA driver lists none".to_owned(),
        (None, Some(count)) => format!("the NVIDIA driver lists {count} and hands out none"),
        (None, None) if report.words.is_empty() => "the GPU probe cannot run here".to_owned(),
        (None, None) => format!("the GPU probe cannot run here ({})", report.words),
    };
    format!("{why}, and this container has no device node of a GPU (/dev/nvidia0, ...)")
}

/// Who may not use which node.
fn denied(site: &Site) -> String {
    match &site.forbidden_node {
        Some(node) => format!("uid {} may not use {node}; run as a user or group that may", site.uid),
        None => {
            "no device node is closed to this user, so the device cgroup or the OS blocks them; start the container \
                 with GPUs"
                .to_owned()
        }
    }
}

/// What a failed start of NVML means in a container.
fn refusal(call: &str, code: u32, site: &Site) -> String {
    let cause = match code {
        code::DRIVER_NOT_LOADED if !site.module => {
            "no GPUs, the NVIDIA kernel module is not loaded on this host (no /proc/driver/nvidia)".to_owned()
        }
        code::DRIVER_NOT_LOADED if !site.control_node => {
            "no GPUs, the kernel module is loaded but this container has no device nodes (no /dev/nvidiactl); start it \
             with GPUs"
                .to_owned()
        }
        code::DRIVER_NOT_LOADED => "no GPUs, the driver does not answer on /dev/nvidiactl".to_owned(),
        code::NO_PERMISSION => denied(site),
        code::OPERATING_SYSTEM => {
            "the device cgroup or the OS blocks the GPUs; a new container cures a container that lost its devices"
                .into()
        }
        code::UNKNOWN => {
            "if GPUs worked here before, the container has lost its devices (a daemon-reload on the host does \
                          that); only a new container cures it"
                .to_owned()
        }
        code::LIB_RM_VERSION_MISMATCH => {
            "the host's driver was upgraded under this container; only a new container cures it".to_owned()
        }
        code::GPU_IS_LOST | code::RESET_REQUIRED => "this node is no place to train until it is repaired".to_owned(),
        _ => "GPU health is unknown".to_owned(),
    };
    format!("{}: {cause}", failure(call, code))
}

/// `nvmlInit_v2 failed with 999, unknown error`.
pub fn failure(call: &str, code: u32) -> String {
    let meaning = match code {
        1 => "not initialized",
        2 => "invalid argument",
        code::NOT_SUPPORTED => "not supported",
        code::NO_PERMISSION => "no permission",
        6 => "not found",
        7 => "buffer too small",
        8 => "power cables not attached",
        code::DRIVER_NOT_LOADED => "driver not loaded",
        code::TIMEOUT => "timeout",
        11 => "interrupt problem",
        code::LIBRARY_NOT_FOUND => "library not found",
        code::FUNCTION_NOT_FOUND => "function not found",
        14 => "corrupted infoROM",
        code::GPU_IS_LOST => "GPU is lost",
        code::RESET_REQUIRED => "GPU needs a reset",
        code::OPERATING_SYSTEM => "blocked by the operating system",
        code::LIB_RM_VERSION_MISMATCH => "driver/library version mismatch",
        19 => "in use",
        20 => "out of memory",
        21 => "no data",
        code::UNKNOWN => "unknown error",
        _ => "newer than this trainit knows",
    };
    format!("{call} failed with {code}, {meaning}")
}

#[cfg(test)]
mod tests;
