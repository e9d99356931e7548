//! The settings for GPUs, as types.

use std::time::Duration;

use super::Reader;
use super::defs::on;
use crate::rules::gpu::demand::{self, Demands};
use crate::rules::gpu::watch::WatchPolicy;
use crate::rules::gpu::xid::parse_override;
use crate::rules::process::env::Env;
use crate::rules::text::duration;

/// How the GPUs are queried, and the job's demands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Gpus {
    /// The limit for one NVML call.
    pub timeout: Duration,
    /// The interval between samples.
    pub interval: Duration,
    /// The demands before a job starts.
    pub demands: Demands,
    /// How incidents are judged.
    pub policy: WatchPolicy,
}

/// A shorter time would end every call, or keep a processor busy.
const LEAST: Duration = Duration::from_millis(10);

/// Reads the settings of the subcommand (a bit of [`on`]). Mistakes are collected in the reader, and the default is
/// used.
pub fn read(reader: &mut Reader<'_>, sub: u8, env: &Env) -> Gpus {
    let mut positive = |name, default| reader.parse(name, duration::at_least(LEAST)).unwrap_or(default);
    let timeout = positive("gpu-timeout", Duration::from_secs(5));
    let interval = if sub & (on::RUN | on::GPUS) == 0 { Duration::ZERO } else { positive("gpu-interval", INTERVAL) };
    let demands = Demands {
        number: reader.parse("require-gpus", demand::parse_number),
        driver: reader.parse("min-driver", demand::parse_driver),
        memory_bytes: reader.parse("min-gpu-memory", demand::parse_bytes),
    };
    let policy = WatchPolicy {
        cuda_visible: env.get("CUDA_VISIBLE_DEVICES").map(str::to_owned),
        cuda_order: env.get("CUDA_DEVICE_ORDER").map(str::to_owned),
        overrides: reader.each_once("xid", parse_override),
    };
    Gpus { timeout, interval, demands, policy }
}

const INTERVAL: Duration = Duration::from_secs(10);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rules::gpu::xid::Class;
    use crate::settings::Values;

    fn given(flags: &[(&'static str, &str)]) -> (Gpus, Vec<String>) {
        let flags = flags.iter().map(|(name, value)| (*name, value.lines().map(str::to_owned).collect())).collect();
        let mut complaints = Vec::new();
        let values = Values::gather(on::RUN, flags, &Env::default(), None, &mut complaints);
        let mut reader = Reader::new(&values, complaints);
        let gpus = read(&mut reader, on::RUN, &Env::default());
        (gpus, reader.complaints.iter().map(ToString::to_string).collect())
    }

    #[test]
    fn there_are_no_demands_without_settings() {
        let (gpus, complaints) = given(&[]);
        assert!(!gpus.demands.any() && complaints.is_empty());
        assert_eq!((gpus.timeout, gpus.interval), (Duration::from_secs(5), Duration::from_secs(10)));
    }

    #[test]
    fn settings_are_read_and_every_mistake_is_reported() {
        let (gpus, complaints) = given(&[("require-gpus", "ANY"), ("xid", "13=leave"), ("gpu-timeout", "1s")]);
        assert!(gpus.demands.any() && complaints.is_empty());
        assert_eq!(gpus.policy.overrides, [(13, Class::Leave)]);
        let wrong = [("require-gpus", "two"), ("min-driver", "new"), ("min-gpu-memory", "big"), ("xid", "13")];
        assert_eq!(given(&wrong).1.len(), 4);
        assert_eq!(given(&[("gpu-interval", "0")]).1.len(), 1);
        let (_, two) = given(&[("xid", "13=leave\n79=note\n 79=leave")]);
        assert_eq!(two, ["--xid: expected each CODE once, found 79=note and 79=leave"]);
        assert_eq!(given(&[("xid", "79=note\n79 = note")]).1, [""; 0], "the values are equal");
    }
}
