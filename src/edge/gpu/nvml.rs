//! The code of the probe: calls NVML and prints the answers. It runs in a separate process, which may be killed at any
//! time.
//!
//! It uses nvml-wrapper's bindings (nvml-wrapper-sys) directly instead of the wrapper. These are the reasons, found in
//! version 0.13 of the wrapper:
//! - Its `Nvml`, which every query needs, is created only by `init`, which also queries the driver's version: a second
//!   call under one announcement and one deadline.
//! - `name()`, `uuid()` and the like search for the NUL past the end of their buffer if the driver wrote none.
//! - `memory_info()` uses only the call that exists since R510.
//! - Dropping it calls nvmlShutdown, and dropping an event set calls nvmlEventSetFree; both may hang.
//!
//! Here every symbol is optional, every call is announced, and a failed value is null.
//! Deliberately absent: any judgement.

#![expect(unsafe_code, reason = "NVML is a C library")]

use std::ffi::{c_char, c_uint};
use std::mem::zeroed;
use std::time::Duration;

use nvml_wrapper_sys::bindings::{
    field_id::NVML_FI_DEV_GET_GPU_RECOVERY_ACTION, nvmlDevice_t, nvmlEventSet_t, nvmlGpuFabricInfo_v2_t,
    nvmlGpuFabricInfoV_t, nvmlMemory_v2_t,
};

use super::calls::Calls;
use super::library::{candidates, is_stub};
use crate::edge::clock::Clock;
use crate::edge::gpu::answer_line::Speech;
use crate::edge::io::eventfd;
use crate::rules::gpu::Gpu;
use crate::rules::gpu::answer::code::{
    FUNCTION_NOT_FOUND, GPU_IS_LOST, LIB_RM_VERSION_MISMATCH, LIBRARY_NOT_FOUND, NOT_SUPPORTED, OPERATING_SYSTEM,
    RESET_REQUIRED, TIMEOUT, UNKNOWN,
};
use crate::rules::gpu::protocol::{INDEX_LIMIT, Line, event};
use crate::rules::process::env::Env;

/// NVML's return value for success.
const SUCCESS: u32 = 0;
/// The longest wait for an event, so that a hang is noticed soon.
const LONGEST_WAIT: Duration = Duration::from_secs(2);
/// How long a recovery action may take to follow its XID.
const RECHECK_AFTER: Duration = Duration::from_secs(2);
/// More links than any GPU has.
const MAX_NVLINKS: c_uint = 36;

/// Announces and calls an NVML function by name, unless it is missing or the current GPU has already been found lost.
macro_rules! ask {
    ($nvml:ident.$name:ident($($arg:expr),*)) => {
        match $nvml.calls.$name {
            Some(_) if $nvml.lost.is_some() => GPU_IS_LOST,
            Some(function) => {
                $nvml.speech.call(stringify!($name));
                // SAFETY: the types are those of NVML's header; handles came from NVML, out-pointers live for the call.
                let code = unsafe { function($($arg),*) };
                if matches!(code, GPU_IS_LOST | RESET_REQUIRED) {
                    $nvml.lost = Some((stringify!($name), code));
                }
                code
            }
            None => FUNCTION_NOT_FOUND,
        }
    };
}

/// A zeroed structure or number for NVML to write to.
fn blank<T: Copy>() -> T {
    // SAFETY: used for integers and NVML's plain C structures of integers and pointers, for which zeros are a value.
    unsafe { zeroed() }
}

struct Nvml {
    calls: Calls,
    speech: Speech,
    /// The call that found the current GPU lost, and its return value.
    lost: Option<(&'static str, u32)>,
    /// The return value of the last waits for events, and how many in a row returned it.
    waits: (u32, u32),
}

struct Device {
    handle: nvmlDevice_t,
    /// Constant data, and the memory at the start.
    identity: Gpu,
}

/// Reports the GPUs once.
pub(super) fn discover(speech: Speech, env: &Env) {
    let Some(mut nvml) = Nvml::open(speech, env) else { return };
    let Some(devices) = nvml.list() else { return };
    for device in &devices {
        nvml.sample(device);
    }
    nvml.speech.say(&Line::End);
}

/// Reports the GPUs, then events, and a sample of each GPU every `interval`; runs until it is killed.
pub(super) fn watch(speech: Speech, env: &Env, interval: Duration) {
    let Some(mut nvml) = Nvml::open(speech, env) else { return };
    let Some(devices) = nvml.list() else { return };
    let events = nvml.register(&devices);
    let clock = Clock::start();
    let mut next_round = Duration::ZERO;
    // For each GPU: the next time to read its recovery action, and the last time.
    let mut rechecks: Vec<Option<(Duration, Duration)>> = vec![None; devices.len()];
    loop {
        let now = clock.now();
        if now >= next_round {
            nvml.round(&devices);
            next_round = clock.now() + interval;
        }
        for (device, recheck) in devices.iter().zip(&mut rechecks) {
            let Some((_, last)) = recheck.take_if(|(next, _)| now >= *next) else { continue };
            *recheck = (last > now).then_some((last, last));
            let recovery_action = nvml.recovery_action(device.handle);
            nvml.lost = None;
            let (index, kind) = (Some(device.identity.index), event::RECOVERY_ACTION);
            nvml.speech.say(&Line::Event { index, kind, data: 0, gpu_instance: None, recovery_action });
        }
        let until = rechecks.iter().flatten().map(|(next, _)| *next).fold(next_round, Duration::min);
        let wait = until.saturating_sub(clock.now()).min(LONGEST_WAIT);
        if let Some(at) = nvml.wait(events, &devices, wait) {
            let after = clock.now() + RECHECK_AFTER;
            rechecks[at].get_or_insert((after, after)).1 = after;
        }
    }
}

impl Nvml {
    fn open(mut speech: Speech, env: &Env) -> Option<Nvml> {
        let named = env.given("TRAINIT_NVML_LIBRARY").is_some();
        let mut failure = None;
        for path in candidates(env) {
            speech.call("dlopen");
            // SAFETY: loading runs the library's constructors, which is the purpose of this process.
            match unsafe { Calls::load(&path) } {
                Ok(calls) if is_stub(&calls) => {
                    let message = format!("{} is the toolkit's link-time stub", path.display());
                    failure.get_or_insert((Some(LIBRARY_NOT_FOUND), message));
                }
                Ok(calls) => return Nvml { calls, speech, lost: None, waits: (SUCCESS, 0) }.init(),
                // An existing file that fails to load explains more than a missing file.
                Err(error) if path.is_absolute() && !named => failure = Some((None, error)),
                Err(error) => {
                    failure.get_or_insert((Some(LIBRARY_NOT_FOUND), error));
                }
            }
        }
        let (code, message) = failure.unwrap_or((Some(LIBRARY_NOT_FOUND), String::new()));
        speech.say(&Line::Error { function: "dlopen".into(), code, message: Some(message) });
        None
    }

    fn init(mut self) -> Option<Nvml> {
        let nvml = &mut self;
        let code = ask!(nvml.nvmlInit_v2());
        if code != SUCCESS {
            self.speech.say(&Line::Error { function: "nvmlInit_v2".into(), code: Some(code), message: None });
            return None;
        }
        Some(self)
    }

    /// Reports the driver, and the identity of each GPU.
    fn list(&mut self) -> Option<Vec<Device>> {
        let nvml = self;
        let mut buffer = [0 as c_char; 256];
        let driver = ask!(nvml.nvmlSystemGetDriverVersion(buffer.as_mut_ptr(), 80));
        let driver_version = (driver == SUCCESS).then(|| text(&buffer[..80]));
        nvml.lost = None;
        let mut cuda = 0;
        let mut code = ask!(nvml.nvmlSystemGetCudaDriverVersion_v2(&raw mut cuda));
        if code != SUCCESS {
            code = ask!(nvml.nvmlSystemGetCudaDriverVersion(&raw mut cuda));
        }
        let cuda_version = (code == SUCCESS).then(|| format!("{}.{}", cuda / 1000, cuda % 1000 / 10));
        nvml.lost = None;
        let mut count = 0;
        let code = ask!(nvml.nvmlDeviceGetCount_v2(&raw mut count));
        nvml.lost = None;
        if code != SUCCESS {
            let function = "nvmlDeviceGetCount_v2".into();
            nvml.speech.say(&Line::Error { function, code: Some(code), message: None });
            return None;
        }
        nvml.speech.say(&Line::Driver { driver_version, cuda_version, count: Some(count) });
        Some((0..count.min(INDEX_LIMIT)).filter_map(|index| nvml.identify(index)).collect())
    }

    fn identify(&mut self, index: u32) -> Option<Device> {
        let nvml = self;
        let mut handle: nvmlDevice_t = blank();
        let code = ask!(nvml.nvmlDeviceGetHandleByIndex_v2(index, &raw mut handle));
        if code != SUCCESS {
            nvml.lost = Some(("nvmlDeviceGetHandleByIndex_v2", code));
            nvml.report_loss(&Gpu { index, ..Gpu::default() });
            return None;
        }
        let mut identity = Gpu { index, ..Gpu::default() };
        let mut buffer = [0 as c_char; 256];
        if ask!(nvml.nvmlDeviceGetUUID(handle, buffer.as_mut_ptr(), 96)) == SUCCESS {
            identity.uuid = Some(text(&buffer[..96]));
        }
        let mut buffer = [0 as c_char; 256];
        if ask!(nvml.nvmlDeviceGetName(handle, buffer.as_mut_ptr(), 96)) == SUCCESS {
            identity.name = Some(text(&buffer[..96]));
        }
        let mut pci = blank();
        if ask!(nvml.nvmlDeviceGetPciInfo_v3(handle, &raw mut pci)) == SUCCESS {
            identity.pci_bus_id = Some(text(&pci.busId));
        }
        let mut minor = 0;
        if ask!(nvml.nvmlDeviceGetMinorNumber(handle, &raw mut minor)) == SUCCESS {
            identity.minor = Some(minor);
        }
        nvml.memory(handle, &mut identity);
        if nvml.report_loss(&identity) {
            return None;
        }
        nvml.speech.say(&Line::Gpu { sampled: false, gpu: Box::new(identity.clone()) });
        Some(Device { handle, identity })
    }

    /// Tries the newest call first; drivers before R510 and WSL have only the old one.
    fn memory(&mut self, handle: nvmlDevice_t, gpu: &mut Gpu) -> u32 {
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

    /// Reports all changing values as one line.
    fn sample(&mut self, device: &Device) {
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
            nvml.speech.say(&Line::Gpu { sampled: true, gpu: Box::new(gpu) });
        }
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
    fn recovery_action(&mut self, handle: nvmlDevice_t) -> Option<u32> {
        let nvml = self;
        // SAFETY: a C structure of integers and a union of numbers.
        let mut field: nvml_wrapper_sys::bindings::nvmlFieldValue_t = unsafe { zeroed() };
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

    /// Reports the GPU as lost if a call found it so.
    fn report_loss(&mut self, gpu: &Gpu) -> bool {
        let Some((function, code)) = self.lost.take() else { return false };
        let (index, uuid, function) = (gpu.index, gpu.uuid.clone(), function.to_owned());
        self.speech.say(&Line::GpuError { index, uuid, function, code });
        true
    }

    /// One round of a watch: the driver line, then a sample of each GPU. GPUs that are no longer listed are reported as
    /// lost.
    fn round(&mut self, devices: &[Device]) {
        let nvml = self;
        let mut count = 0;
        let code = ask!(nvml.nvmlDeviceGetCount_v2(&raw mut count));
        nvml.lost = None;
        let count = (code == SUCCESS).then_some(count);
        nvml.speech.say(&Line::Driver { driver_version: None, cuda_version: None, count });
        let listed = count.filter(|n| (*n as usize) < devices.len()).map(|n| nvml.listed(n));
        for device in devices {
            let Gpu { index, uuid, .. } = &device.identity;
            if listed.as_ref().is_some_and(|listed| uuid.is_some() && !listed.contains(uuid)) {
                let (index, uuid, function) = (*index, uuid.clone(), "nvmlDeviceGetCount_v2".to_owned());
                nvml.speech.say(&Line::GpuError { index, uuid, function, code: GPU_IS_LOST });
            } else {
                nvml.sample(device);
            }
        }
    }

    fn listed(&mut self, count: u32) -> Vec<Option<String>> {
        let nvml = self;
        let mut uuids = Vec::new();
        for index in 0..count {
            let mut handle: nvmlDevice_t = blank();
            let mut buffer = [0 as c_char; 256];
            if ask!(nvml.nvmlDeviceGetHandleByIndex_v2(index, &raw mut handle)) == SUCCESS
                && ask!(nvml.nvmlDeviceGetUUID(handle, buffer.as_mut_ptr(), 96)) == SUCCESS
            {
                uuids.push(Some(text(&buffer[..96])));
            }
            nvml.lost = None;
        }
        uuids
    }

    /// Subscribes to the events that each GPU supports and the rules understand.
    fn register(&mut self, devices: &[Device]) -> Option<nvmlEventSet_t> {
        let (nvml, mut set) = (self, blank());
        let code = ask!(nvml.nvmlEventSetCreate(&raw mut set));
        nvml.lost = None;
        if code != SUCCESS {
            return nvml.deaf("nvmlEventSetCreate", code);
        }
        let mut registered = false;
        for device in devices {
            let (mut supported, mut function) = (0, "nvmlDeviceGetSupportedEventTypes");
            let mut code = ask!(nvml.nvmlDeviceGetSupportedEventTypes(device.handle, &raw mut supported));
            let wanted = supported & (event::XID | event::UNAVAILABLE | event::RECOVERY_ACTION);
            if code == SUCCESS && wanted != 0 {
                function = "nvmlDeviceRegisterEvents";
                code = ask!(nvml.nvmlDeviceRegisterEvents(device.handle, wanted, set));
                registered |= code == SUCCESS;
            }
            if !nvml.report_loss(&device.identity) && code != SUCCESS {
                nvml.deaf(function, code);
            }
        }
        registered.then_some(set)
    }

    /// Reports that events are not available, and returns no event set.
    fn deaf(&mut self, function: &str, code: u32) -> Option<nvmlEventSet_t> {
        self.speech.say(&Line::EventsUnavailable { function: function.to_owned(), code });
        None
    }

    /// Waits for an event and reports it; returns the GPU whose recovery action must be read again.
    fn wait(&mut self, set: Option<nvmlEventSet_t>, devices: &[Device], wait: Duration) -> Option<usize> {
        let nvml = self;
        let ms = u32::try_from(wait.as_millis()).unwrap_or(u32::MAX).max(1);
        let Some(set) = set else {
            nvml.speech.wait("sleep", ms);
            eventfd::wait_readable(&[], Some(wait));
            return None;
        };
        let mut data = blank();
        // This announcement contains the length of the wait, so ask! is not used: it would announce the call again
        // without it.
        nvml.speech.wait("nvmlEventSetWait_v2", ms);
        let begun = Clock::start();
        // SAFETY: the set came from NVML, `data` lives for the call.
        let code = unsafe {
            match nvml.calls.nvmlEventSetWait_v2.or(nvml.calls.nvmlEventSetWait) {
                Some(function) => function(set, &raw mut data, ms),
                None => FUNCTION_NOT_FOUND,
            }
        };
        nvml.waits = if nvml.waits.0 == code { (code, nvml.waits.1.saturating_add(1)) } else { (code, 1) };
        // A single error may be chance. After two in a row, a sample of the GPUs shows the cause best.
        if !matches!(code, SUCCESS | TIMEOUT) && nvml.waits.1 == 2 {
            nvml.round(devices);
            nvml.deaf("nvmlEventSetWait_v2", code);
        }
        if code != SUCCESS {
            // Sleep for the rest, because a driver that returns at once would cause a busy loop.
            eventfd::wait_readable(&[], Some(wait.saturating_sub(begun.now())));
            return None;
        }
        let at = devices.iter().position(|device| device.handle == data.device);
        let recovery_action = at.and_then(|at| nvml.recovery_action(devices[at].handle));
        nvml.lost = None;
        let index = at.map(|at| devices[at].identity.index);
        let gpu_instance = Some(data.gpuInstanceId).filter(|id| *id != u32::MAX);
        let (kind, data) = (data.eventType, data.eventData);
        nvml.speech.say(&Line::Event { index, kind, data, gpu_instance, recovery_action });
        at
    }
}

/// State and status; state 0 means that the machine has no such fabric.
fn fabric(state: u32, status: u32) -> (Option<u32>, Option<u32>) {
    if state == 0 { (None, None) } else { (Some(state), Some(status)) }
}

/// Converts a C string that may lack its NUL or be invalid UTF-8.
fn text(buffer: &[c_char]) -> String {
    let bytes: Vec<u8> = buffer.iter().take_while(|c| **c != 0).map(|c| c.to_ne_bytes()[0]).collect();
    String::from_utf8_lossy(&bytes).trim().to_owned()
}
