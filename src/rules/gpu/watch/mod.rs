//! Reads the lines of a watching probe: keeps the last samples, and turns events, losses and counters into findings.
//!
//! Deliberately absent: the probe's life ([`super::lifecycle`]), and whether a finding stops the job.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use super::answer::{code, failure};
use super::health::{SLOWDOWN, health};
use super::ledger::{Finding, GpuId, Ledger, XidCount};
use super::protocol::{Line, event};
use super::xid::Class;
use super::{Gpu, Health, cuda, throttle_names};

/// The limit for the samples of each GPU: an hour at the default interval.
const MOST_SAMPLES: usize = 360;
/// The period over which slowdowns are evaluated.
const SLOW_WINDOW: Duration = Duration::from_secs(60);
/// Memory in use before the trainer starts that causes a note. Old drivers include some of their own use.
const FOREIGN_MEMORY_BYTES: u64 = 1 << 30;

/// One reading of a GPU.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Sample {
    /// The time since the start.
    pub at: Duration,
    /// See [`Gpu::utilization_percent`].
    pub utilization_percent: Option<u32>,
    /// See [`Gpu::memory_used_bytes`].
    pub memory_used_bytes: Option<u64>,
    /// See [`Gpu::power_watts`].
    pub power_watts: Option<f64>,
    /// See [`Gpu::temperature_celsius`].
    pub temperature_celsius: Option<u32>,
}

/// The settings of a job's watch.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct WatchPolicy {
    /// `CUDA_VISIBLE_DEVICES`.
    pub cuda_visible: Option<String>,
    /// `CUDA_DEVICE_ORDER`.
    pub cuda_order: Option<String>,
    /// `--xid`: rows that the user overrides.
    pub overrides: Vec<(u64, Class)>,
}

#[derive(Debug, Default)]
struct Seen {
    gpu: Gpu,
    samples: VecDeque<Sample>,
    /// The times of the last minute's samples, with the slowdowns of each.
    slow: VecDeque<(Duration, u64)>,
    /// Slowdowns that were reported and still last.
    slow_reported: u64,
    pending_reported: bool,
}

/// The state of the GPUs while a job runs.
#[derive(Debug)]
pub struct Watch {
    policy: WatchPolicy,
    ledger: Ledger,
    gpus: BTreeMap<GpuId, Seen>,
    /// Known GPUs that a new probe has not listed yet.
    not_listed: Vec<Gpu>,
    /// GPUs that were lost before they were first seen, with the reason.
    absent: BTreeMap<GpuId, String>,
    /// Whether the ledger's names are out of date.
    names_are_stale: bool,
    deafness_reported: bool,
}

impl Watch {
    /// A watch that knows no GPU yet.
    pub fn new(policy: WatchPolicy) -> Watch {
        let ledger = Ledger::new(policy.overrides.iter().copied());
        let (gpus, not_listed, absent) = (BTreeMap::new(), Vec::new(), BTreeMap::new());
        Watch { policy, ledger, gpus, not_listed, absent, names_are_stale: false, deafness_reported: false }
    }

    /// A new probe has started. It must list every known GPU.
    pub fn begin(&mut self) {
        self.not_listed = self.marked();
        self.not_listed.retain(|gpu| gpu.uuid.is_some());
    }

    /// The probe has listed all GPUs once: the known ones that it did not list are lost.
    pub fn listed(&mut self) -> Vec<Finding> {
        std::mem::take(&mut self.not_listed).iter().filter_map(|gpu| self.ledger.gone(gpu)).collect()
    }

    /// Reads a line of the probe.
    pub fn line(&mut self, now: Duration, line: &Line) -> Vec<Finding> {
        match line {
            Line::Gpu { sampled, gpu } => {
                self.not_listed.retain(|not_listed| not_listed.uuid != gpu.uuid);
                self.absent.remove(&gpu.index);
                self.gpu(now, gpu, *sampled)
            }
            Line::GpuError { index, uuid, function, code } => {
                self.not_listed.retain(|gpu| if uuid.is_some() { gpu.uuid != *uuid } else { gpu.index != *index });
                self.lost(*index, function, *code)
            }
            Line::Event { index: Some(gpu), kind, data, recovery_action, .. } => {
                self.set_gpus();
                match *kind {
                    event::XID => {
                        let mut findings = self.ledger.xid(now, *gpu, *data, *recovery_action);
                        findings.extend(self.ledger.undecided(*gpu, *data));
                        findings
                    }
                    _ => self.ledger.action(now, *gpu, *recovery_action),
                }
            }
            Line::Event { index: None, kind: event::XID, data, .. } => self.ledger.xid_without_gpu(now, *data),
            Line::EventsUnavailable { function, code } => self.events_unavailable(function, *code),
            _ => Vec::new(),
        }
    }

    /// Decides what only needed time.
    pub fn due(&mut self, now: Duration) -> Vec<Finding> {
        self.ledger.due(now)
    }

    /// When [`Watch::due`] must be called again.
    pub fn deadline(&self) -> Option<Duration> {
        self.ledger.deadline()
    }

    /// The trainer died or hung: whether a GPU is to blame, and the class.
    pub fn death(&mut self, now: Duration) -> Option<Finding> {
        let found = self.ledger.death(now);
        let leaves = found.as_ref().is_some_and(|finding| finding.class == Class::Leave);
        if leaves { found } else { self.lost_from_start().or(found) }
    }

    /// A GPU that was lost from the start, unless the trainer uses other GPUs. CUDA's indices skip a lost one.
    fn lost_from_start(&self) -> Option<Finding> {
        let (gpu, why) = self.absent.first_key_value()?;
        // Any other value (`NoDevFiles`) hides all GPUs on purpose.
        let names_one = |entry: &&str| {
            let entry = entry.trim();
            entry.parse::<u32>().is_ok() || entry.starts_with("GPU-") || entry.starts_with("MIG-")
        };
        let wanted = self.policy.cuda_visible.as_deref().map(|list| list.split(',').take_while(names_one).count());
        let gpus: Vec<Gpu> = self.gpus.values().map(|seen| seen.gpu.clone()).collect();
        let given = cuda::visible_count(&gpus, self.policy.cuda_visible.as_deref());
        (wanted != Some(given)).then(|| Finding { class: Class::Leave, text: format!("GPU {gpu}: {why}") })
    }

    /// The restart budget was refilled.
    pub fn refill(&mut self) {
        self.ledger.refill();
    }

    /// The GPUs with their latest data and health.
    pub fn gpus(&self) -> Vec<Gpu> {
        let mut gpus = self.marked();
        for gpu in &mut gpus {
            (gpu.health, gpu.health_reason) = match self.ledger.unfit(gpu.index) {
                Some(why) => (Health::Bad, Some(why.to_owned())),
                None => health(gpu),
            };
        }
        gpus
    }

    /// The samples of a GPU, oldest first.
    pub fn samples(&self, gpu: GpuId) -> impl Iterator<Item = &Sample> {
        self.gpus.get(&gpu).into_iter().flat_map(|seen| &seen.samples)
    }

    /// All XIDs so far, for the verdict.
    pub fn xids(&self) -> Vec<XidCount> {
        self.ledger.history()
    }

    /// NVML's initialisation fails after a good start: the container lost its devices, or the driver was replaced. A
    /// live trainer may continue with its open devices; a dead one cannot start again.
    pub fn refused(&mut self, function: &str, code: u32) -> Vec<Finding> {
        if !matches!(code, code::UNKNOWN | code::OPERATING_SYSTEM | code::LIB_RM_VERSION_MISMATCH) {
            return Vec::new();
        }
        let why = format!("{} after a good start; start a new container", failure(function, code));
        let gpus: Vec<GpuId> = self.gpus.keys().copied().collect();
        gpus.into_iter().flat_map(|gpu| self.ledger.mark_unfit(gpu, Class::Note, &why)).collect()
    }

    fn gpu(&mut self, now: Duration, gpu: &Gpu, sampled: bool) -> Vec<Finding> {
        let mut findings = Vec::new();
        let known = self.gpus.entry(gpu.index).or_default();
        self.names_are_stale |= known.gpu.uuid != gpu.uuid || known.gpu.index != gpu.index || known.samples.is_empty();
        let before = std::mem::replace(&mut known.gpu, gpu.clone());
        if !sampled {
            return findings;
        }
        let first = known.samples.is_empty();
        if known.samples.len() == MOST_SAMPLES {
            known.samples.pop_front();
        }
        known.samples.push_back(Sample {
            at: now,
            utilization_percent: gpu.utilization_percent,
            memory_used_bytes: gpu.memory_used_bytes,
            power_watts: gpu.power_watts,
            temperature_celsius: gpu.temperature_celsius,
        });
        let label = gpu.label();
        let mut note = |text: String| findings.push(Finding { class: Class::Note, text: format!("{label}: {text}") });
        if let (Some(old), Some(new)) = (before.ecc_uncorrected, gpu.ecc_uncorrected)
            && new > old
        {
            note(format!("{} more uncorrectable memory errors, {new} since the driver was loaded", new - old));
        }
        if gpu.remap_pending == Some(true) && !std::mem::replace(&mut known.pending_reported, true) {
            note("memory repairs wait for a GPU reset".to_owned());
        }
        if let Some(slow) = known.slowdown(now, gpu.throttle_reasons.unwrap_or(0) & SLOWDOWN) {
            note(format!("slowed down for most of the last minute: {}", throttle_names(slow).join(", ")));
        }
        if first && let Some(text) = foreign_memory(gpu) {
            note(text);
        }
        self.set_gpus();
        if gpu.remap_failed == Some(true) {
            let why = "a faulty memory row could not be replaced; no further start here";
            findings.extend(self.ledger.mark_unfit(gpu.index, Class::Note, why));
        }
        findings.extend(self.ledger.action(now, gpu.index, gpu.recovery_action));
        findings
    }

    fn lost(&mut self, gpu: GpuId, function: &str, code: u32) -> Vec<Finding> {
        let Some(seen) = self.gpus.get(&gpu) else {
            // Never seen healthy: it belongs to another container, or was bad from the start, which the discovery
            // reports.
            if matches!(code, code::GPU_IS_LOST | code::RESET_REQUIRED) {
                self.absent.insert(gpu, format!("unfit for training from the start, {}", failure(function, code)));
            }
            return Vec::new();
        };
        let class = match code {
            code::GPU_IS_LOST | code::RESET_REQUIRED => Class::Leave,
            code::UNKNOWN | code::OPERATING_SYSTEM | code::LIB_RM_VERSION_MISMATCH => Class::Note,
            _ => return Vec::new(),
        };
        // One text for each loss, whichever call found it.
        let found_by = if seen.samples.is_empty() { "" } else { " after a good start" };
        let why = match code {
            code::GPU_IS_LOST => format!("lost{found_by}"),
            code::RESET_REQUIRED => format!("needs a reset{found_by}"),
            _ => format!("{}{found_by}", failure(function, code)),
        };
        self.set_gpus();
        self.ledger.mark_unfit(gpu, class, &why)
    }

    /// Events cannot be received. Other errors of the GPUs were reported before.
    fn events_unavailable(&mut self, function: &str, code: u32) -> Vec<Finding> {
        let failure = failure(function, code);
        match code {
            code::NOT_SUPPORTED | code::FUNCTION_NOT_FOUND => Vec::new(),
            code::GPU_IS_LOST | code::RESET_REQUIRED => {
                self.set_gpus();
                let gpus: Vec<GpuId> = self.gpus.keys().copied().collect();
                if gpus.iter().any(|gpu| self.ledger.unfit(*gpu).is_some()) {
                    return Vec::new();
                }
                let which = if gpus.len() > 1 { ", and the driver does not say which GPU it means" } else { "" };
                let why = format!("{failure}{which}");
                gpus.into_iter().flat_map(|gpu| self.ledger.mark_unfit(gpu, Class::Leave, &why)).collect()
            }
            _ if std::mem::replace(&mut self.deafness_reported, true) => Vec::new(),
            _ => {
                let text = format!(
                    "XIDs cannot be seen: {failure}; training continues, but a fault of a GPU may be missed: if the trainer \
                     fails, look for XIDs in the host's kernel log, and update its driver or replace the host"
                );
                vec![Finding { class: Class::Note, text }]
            }
        }
    }

    /// The GPUs with their latest data, with whether the trainer can see them.
    fn marked(&self) -> Vec<Gpu> {
        let mut gpus: Vec<Gpu> = self.gpus.values().map(|seen| seen.gpu.clone()).collect();
        cuda::mark(&mut gpus, self.policy.cuda_visible.as_deref(), self.policy.cuda_order.as_deref());
        gpus
    }

    /// Updates the names of all GPUs in the ledger, and whether the trainer can see them.
    fn set_gpus(&mut self) {
        if !std::mem::take(&mut self.names_are_stale) {
            return;
        }
        let gpus = self.marked();
        self.ledger.several = cuda::visible_count(&gpus, self.policy.cuda_visible.as_deref()) > 1;
        for gpu in gpus {
            self.ledger.set_gpu(gpu.index, gpu.label(), gpu.cuda_visible != Some(false));
        }
    }
}

impl Seen {
    /// Adds a sample's slowdowns. Returns those in most samples of a full minute that were not reported yet.
    fn slowdown(&mut self, now: Duration, bits: u64) -> Option<u64> {
        self.slow.push_back((now, bits));
        // The newest sample that is at least a minute old is kept, because it proves that the minute is full.
        while self.slow.get(1).is_some_and(|(at, _)| now.saturating_sub(*at) >= SLOW_WINDOW) {
            self.slow.pop_front();
        }
        let full = self.slow.front().is_some_and(|(at, _)| now.saturating_sub(*at) >= SLOW_WINDOW);
        let often = |bit: &u64| 2 * self.slow.iter().filter(|(_, bits)| bits & bit != 0).count() > self.slow.len();
        let lasting: u64 = (0..64).map(|n| 1 << n).filter(|bit| SLOWDOWN & bit != 0).filter(often).sum();
        if !full {
            return None;
        }
        let new = lasting & !self.slow_reported;
        self.slow_reported = lasting;
        (new != 0).then_some(new)
    }
}

/// A note about memory that is in use on a GPU before the trainer starts.
fn foreign_memory(gpu: &Gpu) -> Option<String> {
    let used = gpu.memory_used_bytes.filter(|used| *used > FOREIGN_MEMORY_BYTES)?;
    Some(format!("{} MiB of its memory are in use at the start, by other processes", used >> 20))
}

#[cfg(test)]
mod tests;
