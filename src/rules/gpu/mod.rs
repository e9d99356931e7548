//! GPUs as data: the state of each, and the meaning of the driver's answers.
//!
//! The facts come from NVML through a probe process ([`protocol`]), or only from device nodes ([`nodes`]). An unknown
//! value is `None`, never a guess. Deliberately absent: the queries themselves, and NVML's PIDs, which are the host's
//! inside a container.

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
    /// `GPU-…`, the one name that all tools share.
    pub uuid: Option<String>,
    /// The product's name.
    pub name: Option<String>,
    /// `00000000:3B:00.0`.
    pub pci_bus_id: Option<String>,
    /// The N of `/dev/nvidiaN`; not the index.
    pub minor: Option<u32>,
    /// The total memory.
    pub memory_total_bytes: Option<u64>,
    /// Memory in use by processes. Drivers before R510 include their own use.
    pub memory_used_bytes: Option<u64>,
    /// Memory reserved by the driver and firmware (R510 and later).
    pub memory_reserved_bytes: Option<u64>,
    /// The GPU uses the machine's memory, of which the driver reports no amount. Omitted if it has its own.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_shared: Option<bool>,
    /// Share of time in which a kernel ran.
    pub utilization_percent: Option<u32>,
    /// Share of time in which memory was read or written.
    pub memory_utilization_percent: Option<u32>,
    /// Temperature of the GPU die.
    pub temperature_celsius: Option<u32>,
    /// Power drawn now.
    pub power_watts: Option<f64>,
    /// Enforced power limit.
    pub power_limit_watts: Option<f64>,
    /// Uncorrectable memory errors since the driver was loaded; `None` without ECC.
    pub ecc_uncorrected: Option<u64>,
    /// NVML's bits, see [`throttle_names`].
    pub throttle_reasons: Option<u64>,
    /// Whether the GPU is split into MIG instances.
    pub mig: Option<bool>,
    /// Active NVLinks; `None` on GPUs without NVLink.
    pub nvlinks_active: Option<u32>,
    /// The progress of the fabric manager of an NVSwitch machine with the NVLinks: 1 not started, 2 in progress, 3
    /// complete; `None` on other machines.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fabric_state: Option<u32>,
    /// NVML's return value for that configuration, once it is complete.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fabric_status: Option<u32>,
    /// Memory rows (or pages) will be replaced at the next reset.
    pub remap_pending: Option<bool>,
    /// A faulty row could not be replaced.
    pub remap_failed: Option<bool>,
    /// The driver's own verdict (field 230); see [`health::recovery`].
    pub recovery_action: Option<u32>,
    /// Whether the trainer can see it according to `CUDA_VISIBLE_DEVICES`; `None` if that is unknown.
    pub cuda_visible: Option<bool>,
    /// trainit's verdict.
    pub health: Health,
    /// Why it is not [`Health::Ok`].
    pub health_reason: Option<String>,
}

impl Gpu {
    /// `GPU 1 (GPU-5d3e…, 00000000:3B:00.0)`: the known names, for one log line.
    pub fn label(&self) -> String {
        let known: Vec<&str> = [&self.uuid, &self.pci_bus_id].into_iter().flatten().map(String::as_str).collect();
        match known.is_empty() {
            true => format!("GPU {}", self.index),
            false => format!("GPU {} ({})", self.index, known.join(", ")),
        }
    }
}

impl Gpu {
    /// Why CUDA cannot use it on an NVSwitch machine: the fabric manager has not configured its NVLinks.
    pub fn fabric_fault(&self) -> Option<String> {
        let why = match (self.fabric_state?, self.fabric_status) {
            (1, _) => {
                "the fabric manager has not begun to set up its NVLinks; start nvidia-fabricmanager on the node".into()
            }
            (2, _) => "the fabric manager is still setting up its NVLinks; see nvidia-fabricmanager on the node".into(),
            (3, Some(status)) if status != 0 => {
                format!("{}; see nvidia-fabricmanager on the node", answer::failure("setting up its NVLinks", status))
            }
            _ => return None,
        };
        Some(why)
    }
}

/// trainit's verdict on a GPU.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Health {
    /// No problem is known.
    Ok,
    /// It works, but with a problem to look into.
    Warn,
    /// Unfit for training.
    Bad,
    /// Unknown. Never a reason to stop a job.
    #[default]
    #[serde(other)]
    Unknown,
}

/// The source of an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Evidence {
    /// The driver's library, completely.
    Nvml,
    /// Device nodes and `/proc/driver/nvidia`: only the number of GPUs and their names.
    Procfs,
    /// No GPU is visible.
    None,
}

/// The result of a discovery. Serialised, it is the object of `trainit gpus --json`.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Discovery {
    /// By index.
    pub gpus: Vec<Gpu>,
    /// `550.54.15`.
    pub driver_version: Option<String>,
    /// The highest CUDA version that the driver runs: `12.4`.
    pub cuda_version: Option<String>,
    /// The source.
    pub source: Evidence,
    /// The problem, if NVML or GPUs are expected; one line.
    pub problem: Option<String>,
    /// Why there is no GPU, if none is expected; one line, for people.
    #[serde(skip)]
    pub absence: Option<String>,
    /// Why CUDA can use none of the existing GPUs; one line.
    #[serde(skip)]
    pub unusable: Option<String>,
    /// The driver itself: bad if it reports an error, unknown if it hangs or crashes. A missing driver is ok.
    #[serde(skip)]
    pub driver: Health,
}

/// Names of the throttle bits that slow a trainer down, in the order of the bits. Idle and application clocks do not
/// count.
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
    fn unknown_values_are_null_in_the_json() {
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
