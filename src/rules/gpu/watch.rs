//! Reads a watching probe's lines: keeps the last samples, and turns events, losses and counters into findings.
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

/// Samples kept of each GPU: an hour at the default interval.
const SAMPLES: usize = 360;
/// Slowdowns are judged over this long.
const SLOW_WINDOW: Duration = Duration::from_secs(60);
/// Memory in use before the trainer starts that is worth a word. Old drivers count some of their own as used.
const FOREIGN_MEMORY_BYTES: u64 = 1 << 30;

/// One reading of a GPU.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Sample {
    /// When, since the start.
    pub at: Duration,
    /// As [`Gpu::utilization_percent`].
    pub utilization_percent: Option<u32>,
    /// As [`Gpu::memory_used_bytes`].
    pub memory_used_bytes: Option<u64>,
    /// As [`Gpu::power_watts`].
    pub power_watts: Option<f64>,
    /// As [`Gpu::temperature_celsius`].
    pub temperature_celsius: Option<u32>,
}

/// What a job wants of its watch.
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
    /// When each sample of the last minute was taken, and which slowdowns it showed.
    slow: VecDeque<(Duration, u64)>,
    /// Slowdowns that have been told and still last.
    slow_told: u64,
    pending_told: bool,
}

/// What is known of the GPUs while a job runs.
#[derive(Debug)]
pub struct Watch {
    policy: WatchPolicy,
    ledger: Ledger,
    gpus: BTreeMap<GpuId, Seen>,
    /// Those that a new probe has not named yet.
    awaited: Vec<Gpu>,
    /// Those that were lost before anything was known of them, and how.
    absent: BTreeMap<GpuId, String>,
    /// Whether the ledger has to be told the names anew.
    strangers: bool,
    deafness_told: bool,
}

impl Watch {
    /// Nothing is known yet.
    pub fn new(policy: WatchPolicy) -> Watch {
        let ledger = Ledger::new(policy.overrides.iter().copied());
        let (gpus, awaited, absent) = (BTreeMap::new(), Vec::new(), BTreeMap::new());
        Watch { policy, ledger, gpus, awaited, absent, strangers: false, deafness_told: false }
    }

    /// A new probe begins: it has to name every GPU that there was.
    pub fn begin(&mut self) {
        self.awaited = self.marked();
        self.awaited.retain(|gpu| gpu.uuid.is_some());
    }

    /// The probe has told of all GPUs once: those that it did not name are gone.
    pub fn listed(&mut self) -> Vec<Finding> {
        std::mem::take(&mut self.awaited).iter().filter_map(|gpu| self.ledger.gone(gpu)).collect()
    }

    /// Takes a line of the probe.
    pub fn line(&mut self, now: Duration, line: &Line) -> Vec<Finding> {
        match line {
            Line::Gpu { sampled, gpu } => {
                self.awaited.retain(|awaited| awaited.uuid != gpu.uuid);
                self.absent.remove(&gpu.index);
                self.gpu(now, gpu, *sampled)
            }
            Line::GpuError { index, uuid, function, code } => {
                self.awaited.retain(|gpu| if uuid.is_some() { gpu.uuid != *uuid } else { gpu.index != *index });
                self.lost(*index, function, *code)
            }
            Line::Event { index: Some(gpu), kind, data, recovery_action, .. } => {
                self.introduce();
                match *kind {
                    event::XID => {
                        let mut findings = self.ledger.xid(now, *gpu, *data, *recovery_action);
                        findings.extend(self.ledger.undecided(*gpu, *data));
                        findings
                    }
                    _ => self.ledger.action(now, *gpu, *recovery_action),
                }
            }
            Line::Event { index: None, kind: event::XID, data, .. } => self.ledger.stray(now, *data),
            Line::Deaf { function, code } => self.deaf(function, *code),
            _ => Vec::new(),
        }
    }

    /// Decides what only needed time.
    pub fn due(&mut self, now: Duration) -> Vec<Finding> {
        self.ledger.due(now)
    }

    /// When [`Watch::due`] has something to decide.
    pub fn deadline(&self) -> Option<Duration> {
        self.ledger.deadline()
    }

    /// The trainer died or hung: whether a GPU is to blame, and with which class.
    pub fn death(&mut self, now: Duration) -> Option<Finding> {
        let found = self.ledger.death(now);
        let leaves = found.as_ref().is_some_and(|finding| finding.class == Class::Leave);
        if leaves { found } else { self.missed().or(found) }
    }

    /// A GPU that was lost from the start, unless the trainer was given others. CUDA's numbers leave out a lost one.
    fn missed(&self) -> Option<Finding> {
        let (gpu, why) = self.absent.first_key_value()?;
        // Anything else (`NoDevFiles`) hides them all on purpose.
        let names_one = |entry: &&str| {
            let entry = entry.trim();
            entry.parse::<u32>().is_ok() || entry.starts_with("GPU-") || entry.starts_with("MIG-")
        };
        let wanted = self.policy.cuda_visible.as_deref().map(|list| list.split(',').take_while(names_one).count());
        let gpus: Vec<Gpu> = self.gpus.values().map(|seen| seen.gpu.clone()).collect();
        let given = cuda::visible_count(&gpus, self.policy.cuda_visible.as_deref());
        (wanted != Some(given)).then(|| Finding { class: Class::Leave, text: format!("GPU {gpu}: {why}") })
    }

    /// The restart budget is full again.
    pub fn refill(&mut self) {
        self.ledger.refill();
    }

    /// The GPUs as of their last line, with their health.
    pub fn gpus(&self) -> Vec<Gpu> {
        let mut gpus = self.marked();
        for gpu in &mut gpus {
            (gpu.health, gpu.health_reason) = match self.ledger.condemned(gpu.index) {
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

    /// XIDs so far, for the verdict.
    pub fn xids(&self) -> Vec<XidCount> {
        self.ledger.history()
    }

    /// After a good start NVML's very beginning fails: the devices were taken from the container, or the driver was
    /// exchanged under it. A live trainer may go on with what it has open; a dead one cannot start again.
    pub fn refused(&mut self, function: &str, code: u32) -> Vec<Finding> {
        if !matches!(code, code::UNKNOWN | code::OPERATING_SYSTEM | code::LIB_RM_VERSION_MISMATCH) {
            return Vec::new();
        }
        let why = format!("{} after a good start; only a new container cures it", failure(function, code));
        let gpus: Vec<GpuId> = self.gpus.keys().copied().collect();
        gpus.into_iter().flat_map(|gpu| self.ledger.condemn(gpu, Class::Note, &why)).collect()
    }

    fn gpu(&mut self, now: Duration, gpu: &Gpu, sampled: bool) -> Vec<Finding> {
        let mut findings = Vec::new();
        let known = self.gpus.entry(gpu.index).or_default();
        self.strangers |= known.gpu.uuid != gpu.uuid || known.gpu.index != gpu.index || known.samples.is_empty();
        let before = std::mem::replace(&mut known.gpu, gpu.clone());
        if !sampled {
            return findings;
        }
        let first = known.samples.is_empty();
        if known.samples.len() == SAMPLES {
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
        if gpu.remap_pending == Some(true) && !std::mem::replace(&mut known.pending_told, true) {
            note("memory repairs wait for a GPU reset".to_owned());
        }
        if let Some(slow) = known.slowdown(now, gpu.throttle_reasons.unwrap_or(0) & SLOWDOWN) {
            note(format!("slowed down for most of the last minute: {}", throttle_names(slow).join(", ")));
        }
        if first && let Some(text) = foreign_memory(gpu) {
            note(text);
        }
        self.introduce();
        if gpu.remap_failed == Some(true) {
            let why = "a faulty memory row could not be replaced; no further start here";
            findings.extend(self.ledger.condemn(gpu.index, Class::Note, why));
        }
        findings.extend(self.ledger.action(now, gpu.index, gpu.recovery_action));
        findings
    }

    fn lost(&mut self, gpu: GpuId, function: &str, code: u32) -> Vec<Finding> {
        let Some(seen) = self.gpus.get(&gpu) else {
            // Never seen well: not ours, or bad from the start, which the discovery tells.
            if matches!(code, code::GPU_IS_LOST | code::RESET_REQUIRED) {
                self.absent.insert(gpu, format!("no place to train from the start, {}", failure(function, code)));
            }
            return Vec::new();
        };
        let class = match code {
            code::GPU_IS_LOST | code::RESET_REQUIRED => Class::Leave,
            code::UNKNOWN | code::OPERATING_SYSTEM | code::LIB_RM_VERSION_MISMATCH => Class::Note,
            _ => return Vec::new(),
        };
        // One word for one loss, whichever call happened to find it.
        let found_by = if seen.samples.is_empty() { "" } else { " after a good start" };
        let why = match code {
            code::GPU_IS_LOST => format!("lost{found_by}"),
            code::RESET_REQUIRED => format!("needs a reset{found_by}"),
            _ => format!("{}{found_by}", failure(function, code)),
        };
        self.introduce();
        self.ledger.condemn(gpu, class, &why)
    }

    /// Events cannot be heard. What the GPUs answer for themselves has been told before.
    fn deaf(&mut self, function: &str, code: u32) -> Vec<Finding> {
        let failure = failure(function, code);
        match code {
            code::NOT_SUPPORTED | code::FUNCTION_NOT_FOUND => Vec::new(),
            code::GPU_IS_LOST | code::RESET_REQUIRED => {
                self.introduce();
                let gpus: Vec<GpuId> = self.gpus.keys().copied().collect();
                if gpus.iter().any(|gpu| self.ledger.condemned(*gpu).is_some()) {
                    return Vec::new();
                }
                let which = if gpus.len() > 1 { ", and the driver does not say which GPU it means" } else { "" };
                let why = format!("{failure}{which}");
                gpus.into_iter().flat_map(|gpu| self.ledger.condemn(gpu, Class::Leave, &why)).collect()
            }
            _ if std::mem::replace(&mut self.deafness_told, true) => Vec::new(),
            _ => {
                let text = format!(
                    "XIDs cannot be seen: {failure}; training goes on, but a GPU's fault may be missed: if the trainer \
                     fails, look for XIDs in the host's kernel log, and have its driver updated or the host replaced"
                );
                vec![Finding { class: Class::Note, text }]
            }
        }
    }

    /// The GPUs as of their last line, with whether the trainer can see them.
    fn marked(&self) -> Vec<Gpu> {
        let mut gpus: Vec<Gpu> = self.gpus.values().map(|seen| seen.gpu.clone()).collect();
        cuda::mark(&mut gpus, self.policy.cuda_visible.as_deref(), self.policy.cuda_order.as_deref());
        gpus
    }

    /// Tells the ledger the names of all GPUs, and which of them the trainer can see.
    fn introduce(&mut self) {
        if !std::mem::take(&mut self.strangers) {
            return;
        }
        let gpus = self.marked();
        self.ledger.several = cuda::visible_count(&gpus, self.policy.cuda_visible.as_deref()) > 1;
        for gpu in gpus {
            self.ledger.introduce(gpu.index, gpu.label(), gpu.cuda_visible != Some(false));
        }
    }
}

impl Seen {
    /// Adds a sample's slowdowns; returns those that most samples of a full minute show and that were not told yet.
    fn slowdown(&mut self, now: Duration, bits: u64) -> Option<u64> {
        self.slow.push_back((now, bits));
        // The newest sample that is a minute old stays: it shows that the minute is full.
        while self.slow.get(1).is_some_and(|(at, _)| now.saturating_sub(*at) >= SLOW_WINDOW) {
            self.slow.pop_front();
        }
        let full = self.slow.front().is_some_and(|(at, _)| now.saturating_sub(*at) >= SLOW_WINDOW);
        let often = |bit: &u64| 2 * self.slow.iter().filter(|(_, bits)| bits & bit != 0).count() > self.slow.len();
        let lasting: u64 = (0..64).map(|n| 1 << n).filter(|bit| SLOWDOWN & bit != 0).filter(often).sum();
        if !full {
            return None;
        }
        let new = lasting & !self.slow_told;
        self.slow_told = lasting;
        (new != 0).then_some(new)
    }
}

/// A word about memory that is in use on a GPU before the trainer starts.
pub fn foreign_memory(gpu: &Gpu) -> Option<String> {
    let used = gpu.memory_used_bytes.filter(|used| *used > FOREIGN_MEMORY_BYTES)?;
    Some(format!("{} MiB of its memory are in use at the start, by other processes", used >> 20))
}

#[cfg(test)]
mod tests;
