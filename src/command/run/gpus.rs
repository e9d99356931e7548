//! The GPUs of a run: their number, the demands on them, and the watch.

use super::host;
use crate::edge::gpu;
use crate::rules::gpu::answer::NO_UVM;
use crate::rules::gpu::{Discovery, Health};
use crate::rules::process::env::Env;
use crate::settings::gpus::Gpus;
use crate::supervisor::GpuWatch;

/// Unmet demands on the GPUs.
pub(super) struct Unmet {
    pub demands: Vec<String>,
    /// Only because GPUs are broken or the driver fails, so another machine may meet them.
    pub by_faults: bool,
}

/// The number of GPUs for the command: from the device nodes, which need no waiting; or from NVML if there is a demand
/// on GPUs or their number is needed anyway. Errors: the unmet demands.
pub(super) fn gpu_count(gpus: &Gpus, env: &Env, found: Option<&Discovery>) -> Result<usize, Unmet> {
    if gpu::lacks_uvm() && !gpus.demands.demands_number() {
        tracing::warn!(code = "gpu", "{NO_UVM}");
    }
    let Some(found) = found else { return Ok(gpu::device_count() as usize) };
    let visible = env.get("CUDA_VISIBLE_DEVICES");
    let demands = gpus.demands.unmet(found, visible);
    if demands.is_empty() {
        if let (Health::Unknown, Some(problem)) = (found.driver, &found.problem) {
            tracing::warn!("the GPUs are only counted: {problem}; if the driver starts slowly, raise --gpu-timeout");
        }
        return Ok(found.gpus.len());
    }
    Err(Unmet { demands, by_faults: gpus.demands.unmet_by_faults(found, visible) })
}

/// The GPUs to watch while the command runs, if there are any or the user names a library for them.
pub(super) fn watched(gpus: Gpus, env: &Env) -> Option<(GpuWatch, String)> {
    let is_worth_it = gpu::device_count() > 0 || env.given("TRAINIT_NVML_LIBRARY").is_some();
    is_worth_it.then(|| {
        let watch = GpuWatch::new(gpus.timeout, gpus.interval, gpus.policy, env);
        (watch, host())
    })
}
