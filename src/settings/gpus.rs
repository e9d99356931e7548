//! What the GPU settings mean.

use std::time::Duration;

use super::Reader;
use crate::rules::duration;

/// How the GPUs are asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Gpus {
    /// The limit for one NVML call.
    pub timeout: Duration,
    /// How often they are sampled.
    pub interval: Duration,
}

/// Reads them. What is wrong is noted in the reader, and the default stands in.
pub fn read(reader: &mut Reader<'_>) -> Gpus {
    let mut positive = |name, default| {
        let parse = |text: &str| match duration::parse(text) {
            Ok(duration) if duration.is_zero() => Err("expected more than 0s".to_owned()),
            other => other,
        };
        reader.parse(name, parse).unwrap_or(default)
    };
    Gpus {
        timeout: positive("gpu-timeout", Duration::from_secs(5)),
        interval: positive("gpu-interval", Duration::from_secs(10)),
    }
}
