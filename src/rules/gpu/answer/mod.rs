//! Interprets a probe's report inside a container: the GPUs, and one line about the problem.
//!
//! The meanings follow the project's GPU contract (sections 2 and 4); numbers are NVML's `nvmlReturn_t`. Deliberately
//! absent: the reaction of a job during training, which the watch decides.

use std::time::Duration;

use super::health::health;
use super::protocol::{Findings, Overrun};
use super::{Discovery, Evidence, Gpu, Health};
use crate::process::exit::End;
use crate::text::quoted::shown;
use crate::text::safe_text::counted;

/// NVML return values with a meaning for trainit.
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
    /// It ended by itself.
    Ended(End),
    /// It was killed.
    Overrun(Overrun),
    /// It was killed, but is stuck in the kernel.
    Stuck(Overrun),
    /// It could not be started; the reason.
    NotStarted(String),
}

/// The result of one probe.
#[derive(Debug)]
pub struct Report {
    /// The name of the probe's program.
    pub program: String,
    /// The content of its lines.
    pub findings: Findings,
    /// How it ended.
    pub ending: Ending,
    /// The call that it announced last.
    pub last_call: String,
    /// The last line on its standard error.
    pub words: String,
}

/// Facts from outside NVML, found without opening a device.
#[derive(Debug, Clone, Default)]
pub struct Site {
    /// `/dev/nvidiactl` (or WSL's `/dev/dxg`) exists.
    pub control_node: bool,
    /// The number of `/dev/nvidiaN`.
    pub gpu_nodes: usize,
    /// `/proc/driver/nvidia` exists.
    pub module: bool,
    /// There are device nodes of GPUs, but not `/dev/nvidia-uvm`, which CUDA needs.
    pub lacks_uvm: bool,
    /// The first device node that this user may not read and write.
    pub forbidden_node: Option<String>,
    /// The effective user.
    pub uid: u32,
    /// Whether `TRAINIT_GPU_PROBE` is set.
    pub named_probe: bool,
    /// `TRAINIT_NVML_LIBRARY`, if set.
    pub named_library: Option<String>,
}

impl Site {
    /// Whether GPUs are expected here: there are device nodes, or the user named the library or the probe.
    fn is_expected(&self) -> bool {
        self.control_node || self.named_probe || self.named_library.is_some()
    }
}

/// The problem if there are GPUs but no NVML.
const NO_UTILITY: &str =
    "this container has GPUs but no NVML: set NVIDIA_DRIVER_CAPABILITIES=compute,utility for this container";

/// The problem if CUDA's own device node is missing.
pub const NO_UVM: &str = "this container has GPUs but no /dev/nvidia-uvm, so CUDA finds none: add that device (docker run \
                          --gpus all, or --device /dev/nvidia-uvm); where the host has none either, run nvidia-modprobe -u -c=0 \
                          there and start a new container";

/// Whether NVML gave no answer, so that the device nodes must be used.
pub fn is_silent(report: &Report) -> bool {
    let findings = &report.findings;
    findings.gpus.is_empty() && findings.gpu_errors.is_empty() && findings.count != Some(0)
}

/// The result: NVML's answer, completed from the device nodes if NVML gave none.
pub fn interpret(report: Report, nodes: Option<Findings>, site: &Site) -> Discovery {
    let (problem, driver, absence) = (problem(&report, site), driver(&report, site), absence(&report));
    let findings = report.findings;
    let mut gpus: Vec<Gpu> = Vec::new();
    for index in 0..findings.count.unwrap_or_else(|| findings.gpus.keys().next_back().map_or(0, |last| last + 1)) {
        let failed = findings.gpu_errors.get(&index);
        let (mut gpu, sampled) = match findings.gpus.get(&index) {
            Some((gpu, sampled)) => (gpu.clone(), *sampled),
            // Listed by the driver, but not given to this container.
            None if failed.is_some_and(|(_, code)| *code == code::NO_PERMISSION) => continue,
            None => (Gpu { index, ..Gpu::default() }, false),
        };
        gpu.index = index;
        (gpu.health, gpu.health_reason) = match failed {
            // CUDA cannot use a GPU of which the driver gives no handle, whatever the reason.
            Some((call, code)) if !findings.gpus.contains_key(&index) => (Health::Bad, Some(failure(call, *code))),
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
    let unusable = (site.lacks_uvm && !gpus.is_empty()).then(|| NO_UVM.to_owned());
    let problem = problem.or_else(|| unusable.clone());
    Discovery { gpus, driver_version, cuda_version, source, problem, absence, unusable, driver }
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
        // It was slow, but its answer is valid.
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

/// The line about the problem, if there is one.
pub fn problem(report: &Report, site: &Site) -> Option<String> {
    let last = &report.last_call;
    let findings = &report.findings;
    match &report.ending {
        Ending::NotStarted(reason) => Some(not_started(report, reason)),
        Ending::Overrun(overrun) => Some(hang_text(overrun, last)),
        Ending::Stuck(overrun) => {
            Some(format!("{}; the probe is stuck in the kernel and cannot be killed", hang_text(overrun, last)))
        }
        Ending::Ended(_) if findings.ended || findings.error.is_some() => stated_problem(report, site),
        // It could not start: a loader without its libraries (Alpine's gcompat).
        Ending::Ended(End::Code(_)) if last.is_empty() && !site.is_expected() => None,
        Ending::Ended(end) => {
            let place = if last.is_empty() { String::new() } else { format!(" in {last}") };
            let words = if report.words.is_empty() { String::new() } else { format!(" ({})", report.words) };
            Some(match end {
                End::Signal(_) => format!(
                    "the GPU probe was killed by {end}{place}{words}: the NVIDIA driver library crashes here; GPU health is unknown"
                ),
                End::Code(_) => format!("the GPU probe ended early with {end}{place}{words}"),
            })
        }
    }
}

fn hang_text(overrun: &Overrun, last: &str) -> String {
    let seconds = |limit: &Duration| format!("{} s", limit.as_secs_f64());
    match overrun {
        Overrun::Call { function, limit } if function.is_empty() => {
            format!("the GPU probe was silent for {}; GPU health is unknown", seconds(limit))
        }
        Overrun::Call { function, limit } => {
            let limit = seconds(limit);
            format!("{function} did not return in {limit}: the NVIDIA driver hangs; GPU health is unknown")
        }
        Overrun::Whole { limit } => {
            let limit = seconds(limit);
            format!("the GPU queries took more than {limit} in all (last: {last}); raise --gpu-timeout")
        }
        Overrun::LongLine => {
            "the GPU probe wrote a line of more than 64 KiB and was killed; GPU health is unknown".into()
        }
    }
}

fn not_started(report: &Report, reason: &str) -> String {
    let words = if report.words.is_empty() { String::new() } else { format!(" ({})", report.words) };
    format!("the GPU probe {} could not be started: {reason}{words}", shown(&report.program))
}

/// ENOENT from exec.
const NO_LOADER: u32 = 2;

/// The meaning of an errno from exec for a probe.
fn exec_error_text(errno: u32) -> String {
    match errno {
        NO_LOADER => "it does not exist, or this image has no dynamic loader for it (NVML needs glibc)".to_owned(),
        8 => "it was built for another machine".to_owned(),
        13 => "it must not be executed (permission, or a noexec mount)".to_owned(),
        other => format!("exec failed with errno {other}"),
    }
}

fn stated_problem(report: &Report, site: &Site) -> Option<String> {
    let findings = &report.findings;
    if let Some((call, code, message)) = &findings.error {
        let message = message.as_deref().unwrap_or("no reason given");
        return match (call.as_str(), *code) {
            // If no GPU is expected, a probe that cannot run is not a problem.
            ("exec", errno) => {
                let why = not_started(report, &errno.map_or(message.to_owned(), exec_error_text));
                let is_missed = site.control_node && errno == Some(NO_LOADER);
                site.is_expected().then(|| if is_missed { format!("{NO_UTILITY}; {why}") } else { why })
            }
            ("dlopen", Some(code::LIBRARY_NOT_FOUND)) => match &site.named_library {
                Some(path) => {
                    let (library, message) = (shown(path), message.replace(path.as_str(), &shown(path)));
                    Some(format!("TRAINIT_NVML_LIBRARY is {library}, which cannot be loaded: {message}"))
                }
                None => site.control_node.then(|| NO_UTILITY.to_owned()),
            },
            ("dlopen", _) => Some(format!("NVML exists but cannot be loaded: {message}")),
            (call, code) => Some(init_failure_text(call, code.unwrap_or(code::UNKNOWN), site)),
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
            Some(0) | None => "lists no GPU: check nvidia-smi on the host".to_owned(),
            Some(count) => {
                format!("lists {} but grants access to none: {}", counted(count as usize, "GPU"), denied_text(site))
            }
        };
        let nodes = counted(site.gpu_nodes, "device node");
        return Some(format!("this container has {nodes} of GPUs, but NVML {listed}"));
    }
    (!failed.is_empty()).then(|| failed.join("; "))
}

/// Why there are no GPUs if that is not a problem: the container was given none.
fn absence(report: &Report) -> String {
    let findings = &report.findings;
    let why = match (&findings.error, findings.count) {
        (Some((call, errno, message)), _) if call == "exec" => {
            let reason = errno.map(exec_error_text).or(message.clone()).unwrap_or_default();
            not_started(report, &reason)
        }
        (Some(_), _) => "there is no NVIDIA driver library (libnvidia-ml.so.1)".to_owned(),
        (None, Some(0)) => "the NVIDIA driver lists none".to_owned(),
        (None, Some(count)) => format!("the NVIDIA driver lists {count} but grants access to none"),
        (None, None) if report.words.is_empty() => "the GPU probe cannot run here".to_owned(),
        (None, None) => format!("the GPU probe cannot run here ({})", report.words),
    };
    format!("{why}, and this container has no device node of a GPU (/dev/nvidia0, ...)")
}

/// Why access is denied.
fn denied_text(site: &Site) -> String {
    match &site.forbidden_node {
        Some(node) => format!("uid {} has no access to {node}; run as a user or group with access", site.uid),
        None => {
            "this user has access to all device nodes, so the device cgroup or the OS blocks them; start the container \
                 with GPUs"
                .to_owned()
        }
    }
}

/// The meaning of a failed NVML initialisation in a container.
fn init_failure_text(call: &str, code: u32, site: &Site) -> String {
    let cause = match code {
        code::DRIVER_NOT_LOADED if !site.module => {
            "no GPUs, the NVIDIA kernel module is not loaded on this host (no /proc/driver/nvidia)".to_owned()
        }
        code::DRIVER_NOT_LOADED if !site.control_node => {
            "no GPUs, the kernel module is loaded but this container has no device nodes (no /dev/nvidiactl); start it \
             with GPUs"
                .to_owned()
        }
        code::DRIVER_NOT_LOADED => "no GPUs, the driver does not respond on /dev/nvidiactl".to_owned(),
        code::NO_PERMISSION => denied_text(site),
        code::OPERATING_SYSTEM => {
            "the device cgroup or the OS blocks the GPUs; if the container lost its devices, start a new container"
                .into()
        }
        code::UNKNOWN => {
            "if GPUs worked here before, the container has lost its devices (a daemon-reload on the host causes \
                          that); start a new container"
                .to_owned()
        }
        code::LIB_RM_VERSION_MISMATCH => {
            "the host's driver was upgraded while this container ran; start a new container".to_owned()
        }
        code::GPU_IS_LOST | code::RESET_REQUIRED => "this node is unfit for training until it is repaired".to_owned(),
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
        _ => "unknown to this version of trainit",
    };
    format!("{call} failed with {code}, {meaning}")
}

#[cfg(test)]
mod tests;
