//! The changing values of one GPU.

use std::ffi::c_uint;

use nvml_wrapper_sys::bindings::{
    field_id::NVML_FI_DEV_GET_GPU_RECOVERY_ACTION, nvmlDevice_t, nvmlFieldValue_t, nvmlGpuFabricInfo_v2_t,
    nvmlGpuFabricInfoV_t, nvmlMemory_v2_t,
};

use super::{Device, Nvml, SUCCESS, blank};
use crate::rules::gpu::Gpu;
use crate::rules::gpu::answer::code::{
    FUNCTION_NOT_FOUND, GPU_IS_LOST, LIB_RM_VERSION_MISMATCH, NOT_SUPPORTED, OPERATING_SYSTEM, RESET_REQUIRED, UNKNOWN,
};
use crate::rules::gpu::protocol::Line;

/// More links than any GPU has.
const MAX_NVLINKS: c_uint = 36;

impl Nvml {
    /// Reports all changing values as one line.
    pub(super) fn sample(&mut self, device: &Device) {
        let nvml = self;
        let handle = device.handle;
        let mut gpu = device.identity.clone();
        let code = nvml.memory(handle, &mut gpu);
        let is_taken = matches!(code, UNKNOWN | OPERATING_SYSTEM | LIB_RM_VERSION_MISMATCH);
        if is_taken && device.identity.memory_total_bytes.is_some() {
            nvml.lost = Some(("nvmlDeviceGetMemoryInfo", code));
        }
        gpu.recovery_action = nvml.recovery_action(handle);
        let mut rates = blank();
        if ask!(nvml.nvmlDeviceGetUtilizationRates(handle, &raw mut rates)) == SUCCESS {
            gpu.utilization_percent = Some(rates.gpu);
            gpu.memory_utilization_percent = Some(rates.memory);
        }
        let mut celsius = 0;
        if ask!(nvml.nvmlDeviceGetTemperature(handle, 0, &raw mut celsius)) == SUCCESS {
            gpu.temperature_celsius = Some(celsius);
        }
        let mut milliwatts = 0;
        if ask!(nvml.nvmlDeviceGetPowerUsage(handle, &raw mut milliwatts)) == SUCCESS {
            gpu.power_watts = Some(f64::from(milliwatts) / 1000.0);
        }
        if ask!(nvml.nvmlDeviceGetEnforcedPowerLimit(handle, &raw mut milliwatts)) == SUCCESS {
            gpu.power_limit_watts = Some(f64::from(milliwatts) / 1000.0);
        }
        let mut bits = 0;
        let mut code = ask!(nvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle, &raw mut bits));
        if code == FUNCTION_NOT_FOUND {
            code = ask!(nvml.nvmlDeviceGetCurrentClocksEventReasons(handle, &raw mut bits));
        }
        gpu.throttle_reasons = (code == SUCCESS).then_some(bits);
        let mut errors = 0;
        // Uncorrected (1), since the driver was loaded (0).
        if ask!(nvml.nvmlDeviceGetTotalEccErrors(handle, 1, 0, &raw mut errors)) == SUCCESS {
            gpu.ecc_uncorrected = Some(errors);
        }
        nvml.fabric(handle, &mut gpu);
        nvml.repairs(handle, &mut gpu);
        let (mut mode, mut pending_mode) = (0, 0);
        if ask!(nvml.nvmlDeviceGetMigMode(handle, &raw mut mode, &raw mut pending_mode)) == SUCCESS {
            gpu.mig = Some(mode == 1);
        }
        for link in 0..MAX_NVLINKS {
            let mut active = 0;
            if ask!(nvml.nvmlDeviceGetNvLinkState(handle, link, &raw mut active)) != SUCCESS {
                break;
            }
            gpu.nvlinks_active = Some(gpu.nvlinks_active.unwrap_or(0) + u32::from(active == 1));
        }
        if !nvml.report_loss(&gpu) {
            nvml.lines.write(&Line::Gpu { sampled: true, gpu: Box::new(gpu) });
        }
    }

    /// Tries the newest call first; drivers before R510 and WSL have only the old one.
    pub(super) fn memory(&mut self, handle: nvmlDevice_t, gpu: &mut Gpu) -> u32 {
        let nvml = self;
        let mut memory: nvmlMemory_v2_t = blank();
        memory.version = (size_of::<nvmlMemory_v2_t>() | (2 << 24)) as c_uint;
        if ask!(nvml.nvmlDeviceGetMemoryInfo_v2(handle, &raw mut memory)) == SUCCESS && memory.total > 0 {
            gpu.memory_total_bytes = Some(memory.total);
            gpu.memory_used_bytes = Some(memory.used);
            gpu.memory_reserved_bytes = Some(memory.reserved);
            return SUCCESS;
        }
        let mut memory = blank();
        let code = ask!(nvml.nvmlDeviceGetMemoryInfo(handle, &raw mut memory));
        if code == SUCCESS && memory.total > 0 {
            gpu.memory_total_bytes = Some(memory.total);
            gpu.memory_used_bytes = Some(memory.used);
        } else if matches!(code, SUCCESS | NOT_SUPPORTED) {
            gpu.memory_shared = Some(true);
        }
        code
    }

    /// Reads the fabric manager's state of the GPU's NVLinks. Drivers before R550 support only the second version of
    /// the newer call, those before R535 only the older call.
    fn fabric(&mut self, handle: nvmlDevice_t, gpu: &mut Gpu) {
        let nvml = self;
        let mut info: nvmlGpuFabricInfoV_t = blank();
        for (version, size) in [(3, size_of::<nvmlGpuFabricInfoV_t>()), (2, size_of::<nvmlGpuFabricInfo_v2_t>())] {
            info.version = (size | (version << 24)) as c_uint;
            // The second version is a prefix of the third.
            if ask!(nvml.nvmlDeviceGetGpuFabricInfoV(handle, &raw mut info)) == SUCCESS {
                (gpu.fabric_state, gpu.fabric_status) = fabric(info.state.into(), info.status);
                return;
            }
        }
        let mut info = blank();
        if ask!(nvml.nvmlDeviceGetGpuFabricInfo(handle, &raw mut info)) == SUCCESS {
            (gpu.fabric_state, gpu.fabric_status) = fabric(info.state.into(), info.status);
        }
    }

    /// Reads memory repairs: remapped rows (Ampere and later), or retired pages (earlier).
    fn repairs(&mut self, handle: nvmlDevice_t, gpu: &mut Gpu) {
        let nvml = self;
        let (mut corrected, mut uncorrected, mut pending, mut failed) = (0, 0, 0, 0);
        let [c, u, p, f] = [&raw mut corrected, &raw mut uncorrected, &raw mut pending, &raw mut failed];
        if ask!(nvml.nvmlDeviceGetRemappedRows(handle, c, u, p, f)) == SUCCESS {
            (gpu.remap_pending, gpu.remap_failed) = (Some(pending != 0), Some(failed != 0));
        } else if ask!(nvml.nvmlDeviceGetRetiredPagesPendingStatus(handle, &raw mut pending)) == SUCCESS {
            gpu.remap_pending = Some(pending != 0);
        }
    }

    /// Reads field 230, which has different integer types in different drivers.
    pub(super) fn recovery_action(&mut self, handle: nvmlDevice_t) -> Option<u32> {
        let nvml = self;
        let mut field: nvmlFieldValue_t = blank();
        field.fieldId = NVML_FI_DEV_GET_GPU_RECOVERY_ACTION;
        if ask!(nvml.nvmlDeviceGetFieldValues(handle, 1, &raw mut field)) != SUCCESS || field.nvmlReturn != SUCCESS {
            return None;
        }
        // SAFETY: every member is a plain number inside the union, which was zeroed before NVML wrote to it.
        let value = unsafe {
            match field.valueType {
                1 => u64::from(field.value.uiVal),
                2..=4 => field.value.ullVal,
                5 => u64::try_from(field.value.siVal).ok()?,
                6 => u64::from(field.value.usVal),
                _ => return None,
            }
        };
        u32::try_from(value).ok()
    }
}

/// State and status; state 0 means that the machine has no such fabric.
fn fabric(state: u32, status: u32) -> (Option<u32>, Option<u32>) {
    if state == 0 { (None, None) } else { (Some(state), Some(status)) }
}
