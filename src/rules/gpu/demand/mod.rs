//! The demands of a job on its GPUs before it starts: `--require-gpus`, `--min-driver`, `--min-gpu-memory`.
//!
//! The job does not start with an unmet demand. The failure is permanent if the GPUs are missing, and can be retried on
//! another machine if they are broken or the driver fails. Deliberately absent: waiting.

use super::{Discovery, Gpu, Health};
use crate::text::safe_text::counted;

/// The advice if there is no GPU.
const NO_GPU: &str = "; give the container GPUs (docker run --gpus all; in Kubernetes nvidia.com/gpu in its limits, and the \
                      device plugin on the node); trainit gpus lists the GPUs";

/// A number of GPUs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Number {
    /// At least one.
    Any,
    /// At least this many.
    AtLeast(usize),
}

/// All demands.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Demands {
    /// `--require-gpus`
    pub number: Option<Number>,
    /// `--min-driver` as numbers.
    pub driver: Option<Vec<u64>>,
    /// `--min-gpu-memory` for each GPU.
    pub memory_bytes: Option<u64>,
}

impl Demands {
    /// Whether there is a demand, so that the probe must be awaited.
    pub fn any(&self) -> bool {
        *self != Demands::default()
    }

    /// Whether a number of GPUs is demanded.
    pub fn demands_number(&self) -> bool {
        !matches!(self.number, None | Some(Number::AtLeast(0)))
    }

    /// Every unmet demand, on one line with what was found. `visible` is `CUDA_VISIBLE_DEVICES`: a GPU that the trainer
    /// cannot see does not count, and neither does a broken one. A failing driver meets no demand.
    pub fn unmet(&self, found: &Discovery, visible: Option<&str>) -> Vec<String> {
        let (flags, unmet_by_gpus) = (self.flags(), self.unmet_by_gpus(found, visible));
        // A driver without an answer may only be slow to start (without persistence mode), so other evidence of GPUs
        // counts.
        let meets = unmet_by_gpus.is_empty() && found.driver != Health::Bad;
        match failing(found).filter(|_| !meets && !flags.is_empty() && self.unmet_by_faults(found, visible)) {
            Some(failing) => vec![format!("{}: {failing}", flags.join(", "))],
            None => unmet_by_gpus,
        }
    }

    /// The flags of the demands.
    fn flags(&self) -> Vec<&'static str> {
        let flags = [
            (self.demands_number(), "--require-gpus"),
            (self.driver.is_some(), "--min-driver"),
            (self.memory_bytes.is_some_and(|bytes| bytes > 0), "--min-gpu-memory"),
        ];
        flags.into_iter().filter(|(asks, _)| *asks).map(|(_, flag)| flag).collect()
    }

    /// Like [`Demands::unmet`], without the check of the driver.
    fn unmet_by_gpus(&self, found: &Discovery, visible: Option<&str>) -> Vec<String> {
        let problem = found
            .problem
            .as_ref()
            .or(found.absence.as_ref())
            .map(|problem| format!(" ({problem})"))
            .unwrap_or_default();
        let is_broken = |gpu: &&Gpu| gpu.health == Health::Bad || gpu.fabric_fault().is_some();
        let (broken, healthy): (Vec<&Gpu>, Vec<&Gpu>) = found.gpus.iter().partition(is_broken);
        let broken_seen = broken.iter().filter(|gpu| gpu.cuda_visible == Some(true)).count();
        let seen = super::cuda::visible_count(&found.gpus, visible);
        // Several MIG instances of one GPU count separately, as for --nproc gpu.
        let is_split = visible.is_some_and(|list| list.contains("MIG-")) && broken.is_empty() && !healthy.is_empty();
        let usable = if is_split { seen } else { seen.saturating_sub(broken_seen).min(healthy.len()) };
        let mut unmet = Vec::new();
        let wanted = match self.number {
            None => 0,
            Some(Number::Any) => 1,
            Some(Number::AtLeast(number)) => number,
        };
        if usable < wanted {
            let listed = match (found.gpus.len(), broken.len()) {
                (0, _) => "none was found".to_owned(),
                (_, 0) if is_split => format!("CUDA_VISIBLE_DEVICES lists {}", counted(usable, "MIG instance")),
                (all, 0) if all > usable => format!("{usable} usable of {all} (CUDA_VISIBLE_DEVICES)"),
                (all, 0) => format!("{all} found: {}", names(&found.gpus)),
                (all, bad) => format!("{usable} usable of {all}, {bad} broken: {}", fault_list(&broken)),
            };
            // Each fault is listed with its GPU.
            let problem = if broken.is_empty() { problem.as_str() } else { "" };
            let split = found.gpus.iter().find(|gpu| gpu.mig == Some(true)).map(Gpu::label);
            let way_out = match (found.gpus.len(), broken.len()) {
                (0, _) => NO_GPU,
                (_, 0) if is_split => "; list more of them, or require fewer; nvidia-smi -L shows them",
                (_, 0) if let Some(gpu) = &split => &format!(
                    "; {gpu} is split into MIG instances, each of which counts if CUDA_VISIBLE_DEVICES lists it (MIG-...; \
                     nvidia-smi -L shows them)"
                ),
                (all, 0) if all > usable && all >= wanted => "; add more of them to CUDA_VISIBLE_DEVICES",
                (_, 0) => "; give the container more of them, or require fewer; trainit gpus lists the GPUs",
                _ => "",
            };
            unmet.push(format!("--require-gpus: {wanted} needed, {listed}{problem}{way_out}"));
        }
        if wanted > 0
            && let Some(why) = &found.unusable
        {
            unmet.push(format!("--require-gpus: {why}"));
        }
        if let Some(wanted) = &self.driver {
            let needed = wanted.iter().map(u64::to_string).collect::<Vec<_>>().join(".");
            // 550.0 means the same as 550.
            let floor = &wanted[..wanted.iter().rposition(|number| *number > 0).map_or(0, |last| last + 1)];
            match found.driver_version.as_deref().map(|version| (version, numbers(version))) {
                Some((_, Ok(version))) if *version >= *floor => {}
                Some((version, _)) => unmet.push(format!(
                    "--min-driver: {needed} needed, the driver is {version}; the driver belongs to the host, not to the image: update it there, \
                     use another node, or an image with an older CUDA"
                )),
                None => unmet.push(format!(
                    "--min-driver: {needed} needed, the driver's version is unknown{problem}{}",
                    match found.gpus.is_empty() {
                        true if unmet.is_empty() => NO_GPU,
                        true => "",
                        false => "; trainit gpus lists the GPUs",
                    }
                )),
            }
        }
        unmet.extend(self.unmet_memory(&healthy, found.gpus.is_empty(), unmet.is_empty(), &problem));
        unmet
    }

    /// The unmet part of `--min-gpu-memory`. `is_none`: there is no GPU. `is_first`: no other demand has reported that.
    fn unmet_memory(&self, healthy: &[&Gpu], is_none: bool, is_first: bool, problem: &str) -> Vec<String> {
        let Some(wanted) = self.memory_bytes.filter(|bytes| *bytes > 0) else { return Vec::new() };
        let mut unmet = Vec::new();
        let seen: Vec<&&Gpu> = healthy.iter().filter(|gpu| gpu.cuda_visible != Some(false)).collect();
        if seen.is_empty() {
            let (lack, way_out) = match (is_none, healthy.is_empty()) {
                (true, _) if is_first => ("there is no GPU", NO_GPU),
                (true, _) => ("there is no GPU", ""),
                (_, true) => ("no GPU is healthy", ""),
                _ => ("no GPU is visible", "; add one to CUDA_VISIBLE_DEVICES"),
            };
            unmet.push(format!("--min-gpu-memory: {} needed, but {lack}{problem}{way_out}", size(wanted)));
        }
        for gpu in seen {
            // NVML reports the memory of the whole GPU.
            if gpu.mig == Some(true) && gpu.memory_total_bytes.is_some_and(|bytes| bytes >= wanted) {
                unmet.push(format!(
                    "--min-gpu-memory: {} needed, {} is split into MIG instances, whose memory is unknown; \
                     omit --min-gpu-memory, and request instances of that size from the platform",
                    size(wanted),
                    gpu.label()
                ));
                continue;
            }
            // It uses the machine's memory, and the job must find out how much is available.
            if gpu.memory_shared == Some(true) {
                continue;
            }
            let has = gpu.memory_total_bytes.map_or("an unknown amount".to_owned(), size);
            if gpu.memory_total_bytes.is_none_or(|bytes| bytes < wanted) {
                let label = gpu.label();
                unmet.push(format!(
                    "--min-gpu-memory: {} needed, {label} has {has}{problem}; use a machine with larger GPUs, or require less",
                    size(wanted)
                ));
            }
        }
        unmet
    }

    /// Whether only broken GPUs or a failing driver cause the unmet demands, so that a healthy machine of the same kind
    /// would meet them.
    pub fn unmet_by_faults(&self, found: &Discovery, visible: Option<&str>) -> bool {
        let fails = found.driver != Health::Ok;
        if fails && found.gpus.is_empty() {
            return true;
        }
        let mut mended = found.clone();
        mended.unusable = mended.unusable.filter(|_| !fails);
        let is_broken = |gpu: &Gpu| gpu.health == Health::Bad || gpu.fabric_fault().is_some();
        for gpu in mended.gpus.iter_mut().filter(|gpu| fails || is_broken(gpu)) {
            gpu.health = Health::Ok;
            gpu.fabric_state = None;
            gpu.memory_total_bytes.get_or_insert(u64::MAX);
        }
        let driver = self.driver.clone().filter(|_| !fails || found.driver_version.is_some());
        Demands { driver, ..self.clone() }.unmet_by_gpus(&mended, visible).is_empty()
    }
}

/// The text about a failing driver, if it fails. Another machine may meet the demands.
pub fn failing(found: &Discovery) -> Option<String> {
    let way_out = match found.driver {
        Health::Unknown => "; another machine may succeed; if the driver is only slow, raise --gpu-timeout",
        Health::Bad => "; another machine may succeed",
        Health::Ok | Health::Warn => return None,
    };
    let problem = found.problem.as_deref().unwrap_or("the cause is unknown");
    Some(format!("the NVIDIA driver fails here, so the GPUs are unreliable: {problem}{way_out}"))
}

/// Each broken GPU with its fault.
fn fault_list(broken: &[&Gpu]) -> String {
    let why = |gpu: &Gpu| gpu.health_reason.clone().or(gpu.fabric_fault()).unwrap_or_else(|| "broken".to_owned());
    let fault = |gpu: &&Gpu| format!("{}: {}", gpu.label(), why(gpu));
    broken.iter().map(fault).collect::<Vec<_>>().join("; ")
}

fn names(gpus: &[Gpu]) -> String {
    gpus.iter().map(|gpu| gpu.name.as_deref().unwrap_or("unnamed")).collect::<Vec<_>>().join(", ")
}

fn size(bytes: u64) -> String {
    format!("{:.1} GiB", bytes as f64 / f64::from(1 << 30))
}

/// `N` or `any`. Errors: the expected form.
pub fn parse_number(text: &str) -> Result<Number, String> {
    match text.trim() {
        word if word.eq_ignore_ascii_case("any") => Ok(Number::Any),
        digits => {
            let number = digits.parse().map_err(|_| format!("expected a number of GPUs or any, found {text:?}"))?;
            Ok(Number::AtLeast(number))
        }
    }
}

/// `550.54.15` as numbers. Errors: the expected form.
pub fn parse_driver(text: &str) -> Result<Vec<u64>, String> {
    numbers(text).map_err(|()| format!("expected a driver version such as 535 or 550.54.15, found {text:?}"))
}

fn numbers(text: &str) -> Result<Vec<u64>, ()> {
    text.trim().split('.').map(|part| part.parse().map_err(|_| ())).collect()
}

/// `40GiB`, `80GB`, `16384MiB`, or bytes. Errors: the expected form.
pub fn parse_bytes(text: &str) -> Result<u64, String> {
    const UNITS: [(&str, u64); 15] = [
        ("KiB", 1 << 10),
        ("MiB", 1 << 20),
        ("GiB", 1 << 30),
        ("TiB", 1 << 40),
        ("KB", 1_000),
        ("MB", 1_000_000),
        ("GB", 1_000_000_000),
        ("TB", 1_000_000_000_000),
        // In Kubernetes' form.
        ("Ki", 1 << 10),
        ("Mi", 1 << 20),
        ("Gi", 1 << 30),
        ("Ti", 1 << 40),
        ("M", 1 << 20),
        ("G", 1 << 30),
        ("B", 1),
    ];
    let expected = || format!("expected a size such as 40GiB, 80GB or 16384MiB, found {text:?}");
    let trimmed = text.trim();
    let split = trimmed.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(trimmed.len());
    let (number, unit) = trimmed.split_at(split);
    let unit = unit.trim();
    let factor = match UNITS.iter().find(|(name, _)| name.eq_ignore_ascii_case(unit)) {
        Some((_, factor)) => *factor,
        None if unit.is_empty() => 1,
        None => return Err(expected()),
    };
    let bytes = number.parse::<f64>().map_err(|_| expected())? * factor as f64;
    if bytes < u64::MAX as f64 { Ok(bytes as u64) } else { Err(expected()) }
}

#[cfg(test)]
mod tests;
