//! GPUs as data: what is known of each, and what the answers of the driver mean.
//!
//! The facts come from NVML through a probe process ([`protocol`]), or from device nodes alone ([`nodes`]).
//! Absent knowledge is `None`, never a guess. Deliberately absent: how anything is asked, and the PIDs that NVML knows:
//! inside a container they are the host's.

pub mod answer;
pub mod cuda;
pub mod demand;
pub mod health;
pub mod ledger;
pub mod lifecycle;
pub mod nodes;
pub mod protocol;
pub mod table;
pub mod watch;
pub mod xid;

use serde::{Deserialize, Serialize};

/// One GPU. Field names are those of `trainit gpus --json`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Gpu {
    /// NVML's index (PCI order), not CUDA's.
    pub index: u32,
    /// `GPU-…`; the one name that every tool agrees on.
    pub uuid: Option<String>,
    /// The product's name.
    pub name: Option<String>,
    /// `00000000:3B:00.0`.
    pub pci_bus_id: Option<String>,
    /// The N of `/dev/nvidiaN`; not the index.
    pub minor: Option<u32>,
    /// All memory of the board.
    pub memory_total_bytes: Option<u64>,
    /// In use by processes; drivers before R510 count what they keep for themselves too.
    pub memory_used_bytes: Option<u64>,
    /// Kept by the driver and firmware (R510 and later).
    pub memory_reserved_bytes: Option<u64>,
    /// Share of time with a kernel running.
    pub utilization_percent: Option<u32>,
    /// Share of time with memory being read or written.
    pub memory_utilization_percent: Option<u32>,
    /// Of the GPU die.
    pub temperature_celsius: Option<u32>,
    /// Drawn now.
    pub power_watts: Option<f64>,
    /// Enforced limit.
    pub power_limit_watts: Option<f64>,
    /// Uncorrectable memory errors since the driver was loaded; `None` without ECC.
    pub ecc_uncorrected: Option<u64>,
    /// NVML's bits, see [`throttle_names`].
    pub throttle_reasons: Option<u64>,
    /// Whether the GPU is split into instances.
    pub mig: Option<bool>,
    /// NVLinks that are up; `None` on boards without.
    pub nvlinks_active: Option<u32>,
    /// Memory rows (or pages) wait for a reset to be replaced.
    pub remap_pending: Option<bool>,
    /// A faulty row could not be replaced.
    pub remap_failed: Option<bool>,
    /// The driver's own verdict (field 230); see [`health::recovery`].
    pub recovery_action: Option<u32>,
    /// Whether `CUDA_VISIBLE_DEVICES` lets the trainer see it; `None` when that cannot be told.
    pub cuda_visible: Option<bool>,
    /// Our verdict.
    pub health: Health,
    /// Why it is not [`Health::Ok`].
    pub health_reason: Option<String>,
}

impl Gpu {
    /// `GPU 1 (GPU-5d3e…, 00000000:3B:00.0)`: as much as is known, for one log line.
    pub fn label(&self) -> String {
        let known: Vec<&str> = [&self.uuid, &self.pci_bus_id].into_iter().flatten().map(String::as_str).collect();
        match known.is_empty() {
            true => format!("GPU {}", self.index),
            false => format!("GPU {} ({})", self.index, known.join(", ")),
        }
    }
}

/// What trainit thinks of a GPU.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Health {
    /// Nothing speaks against it.
    Ok,
    /// It works, but somebody should know the reason.
    Warn,
    /// No place to train.
    Bad,
    /// Nobody could say. Never a reason to stop a job.
    #[default]
    #[serde(other)]
    Unknown,
}

/// Where the answer came from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Evidence {
    /// The driver's library, in full.
    Nvml,
    /// Device nodes and `/proc/driver/nvidia`: how many and which, no more.
    Procfs,
    /// No GPU to be seen.
    None,
}

/// Everything that could be found out. Serialised, it is the object of `trainit gpus --json`.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Discovery {
    /// By index.
    pub gpus: Vec<Gpu>,
    /// `550.54.15`.
    pub driver_version: Option<String>,
    /// The highest CUDA version that the driver runs: `12.4`.
    pub cuda_version: Option<String>,
    /// Where it came from.
    pub source: Evidence,
    /// What is wrong, where NVML or GPUs were to be expected; one line.
    pub problem: Option<String>,
    /// Why there is no GPU, where none was to be expected; one line, for people.
    #[serde(skip)]
    pub absence: Option<String>,
    /// The driver itself: bad where it says so, unknown where it hangs or crashes. Without a driver there is nothing wrong.
    #[serde(skip)]
    pub driver: Health,
}

/// Names of the throttle bits that slow a trainer down, in the order of the bits. Idle and application clocks are none.
pub fn throttle_names(bits: u64) -> Vec<&'static str> {
    const NAMES: [(u64, &str); 7] = [
        (0x4, "sw-power-cap"),
        (0x8, "hw-slowdown"),
        (0x10, "sync-boost"),
        (0x20, "sw-thermal"),
        (0x40, "hw-thermal"),
        (0x80, "power-brake"),
        (0x100, "display-clocks"),
    ];
    NAMES.iter().filter(|(bit, _)| bits & bit != 0).map(|(_, name)| *name).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_json_names_what_is_not_known_as_null() {
        let text = serde_json::to_string(&Gpu { index: 3, ..Gpu::default() }).unwrap();
        assert!(text.starts_with(r#"{"index":3,"uuid":null,"name":null,"#), "{text}");
        assert!(text.contains(r#""memory_total_bytes":null,"memory_used_bytes":null"#), "{text}");
        assert!(text.ends_with(r#""health":"unknown","health_reason":null}"#), "{text}");
    }

    #[test]
    fn an_idle_gpu_is_not_throttled() {
        assert!(throttle_names(0x1 | 0x2).is_empty());
        assert_eq!(throttle_names(0x8 | 0x40), ["hw-slowdown", "hw-thermal"]);
    }
}
