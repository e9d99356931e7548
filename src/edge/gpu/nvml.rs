//! The probe's own code: asks NVML and prints what it hears. It runs in a process of its own, which anybody may kill.
//!
//! Straight over nvml-wrapper's bindings (nvml-wrapper-sys) rather than the wrapper, whose 0.13 was read for this: its
//! `Nvml`, without which none of its queries can be called, is made by `init` only, and that asks for the driver's version
//! behind the caller's back: a second call under one announcement and one deadline. `name()`, `uuid()` and the like look
//! for the NUL past the end of their buffer where a driver wrote none; `memory_info()` knows only the call since R510;
//! dropping it calls nvmlShutdown, and dropping an event set nvmlEventSetFree, which may hang. Here every symbol is
//! optional, every call announced, and what fails is null.
//! Deliberately absent: any judgement.

#![expect(unsafe_code, reason = "NVML is a C library")]

use std::ffi::{c_char, c_uint};
use std::mem::zeroed;
use std::time::Duration;

use nvml_wrapper_sys::bindings::{
    field_id::NVML_FI_DEV_GET_GPU_RECOVERY_ACTION, nvmlDevice_t, nvmlEventSet_t, nvmlMemory_v2_t,
};

use super::calls::Calls;
use super::library::{candidates, is_stub};
use super::speech::Speech;
use crate::edge::clock::Clock;
use crate::edge::wake;
use crate::rules::env::Env;
use crate::rules::gpu::Gpu;
use crate::rules::gpu::answer::code::{
    FUNCTION_NOT_FOUND, GPU_IS_LOST, LIB_RM_VERSION_MISMATCH, LIBRARY_NOT_FOUND, OPERATING_SYSTEM, RESET_REQUIRED,
    TIMEOUT, UNKNOWN,
};
use crate::rules::gpu::protocol::{INDEX_LIMIT, Line, event};

/// NVML's return value for a call that went well.
const SUCCESS: u32 = 0;
/// The event wait is never longer than this, so that a hang shows soon.
const LONGEST_WAIT: Duration = Duration::from_secs(2);
/// A recovery action may take this long to follow its XID.
const RECHECK_AFTER: Duration = Duration::from_secs(2);
/// More links than any GPU has.
const MAX_NVLINKS: c_uint = 36;

/// Calls an NVML function by name: announced, unless it is missing or the GPU at hand has already been found lost.
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

/// A structure or number for NVML to write to.
fn blank<T: Copy>() -> T {
    // SAFETY: used for integers and NVML's plain C structures of integers and pointers, for which zeros are a value.
    unsafe { zeroed() }
}

struct Nvml {
    calls: Calls,
    speech: Speech,
    /// The call that found the GPU at hand gone, and what it returned.
    lost: Option<(&'static str, u32)>,
    /// What the last waits for events returned, and how many in a row.
    waits: (u32, u32),
}

struct Device {
    handle: nvmlDevice_t,
    /// What does not change, and the memory of the start.
    identity: Gpu,
}

/// Says what is there, once.
pub(super) fn discover(speech: Speech, env: &Env) {
    let Some(mut nvml) = Nvml::open(speech, env) else { return };
    let Some(devices) = nvml.list() else { return };
    for device in &devices {
        nvml.sample(device);
    }
    nvml.speech.say(&Line::End);
}

/// Says what is there, then what happens, with a sample of each GPU every `interval`; until it is killed.
pub(super) fn watch(speech: Speech, env: &Env, interval: Duration) {
    let Some(mut nvml) = Nvml::open(speech, env) else { return };
    let Some(devices) = nvml.list() else { return };
    let events = nvml.register(&devices);
    let clock = Clock::start();
    let mut next_round = Duration::ZERO;
    // For each GPU: when its recovery action is read again, and when for the last time.
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
            // SAFETY: loading runs the library's constructors; that is what this process is for.
            match unsafe { Calls::load(&path) } {
                Ok(calls) if is_stub(&calls) => {
                    let message = format!("{} is the toolkit's link-time stub", path.display());
                    failure.get_or_insert((Some(LIBRARY_NOT_FOUND), message));
                }
                Ok(calls) => return Nvml { calls, speech, lost: None, waits: (SUCCESS, 0) }.init(),
                // A file that is there but does not load is worth more words than names that were not found.
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

    /// The driver and the identity of each GPU.
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

    /// The newest call first; drivers before R510 and WSL have only the old one.
    fn memory(&mut self, handle: nvmlDevice_t, gpu: &mut Gpu) -> u32 {
        let nvml = self;
        let mut memory: nvmlMemory_v2_t = blank();
        memory.version = (size_of::<nvmlMemory_v2_t>() | (2 << 24)) as c_uint;
        if ask!(nvml.nvmlDeviceGetMemoryInfo_v2(handle, &raw mut memory)) == SUCCESS {
            gpu.memory_total_bytes = Some(memory.total);
            gpu.memory_used_bytes = Some(memory.used);
            gpu.memory_reserved_bytes = Some(memory.reserved);
            return SUCCESS;
        }
        let mut memory = blank();
        let code = ask!(nvml.nvmlDeviceGetMemoryInfo(handle, &raw mut memory));
        if code == SUCCESS {
            gpu.memory_total_bytes = Some(memory.total);
            gpu.memory_used_bytes = Some(memory.used);
        }
        code
    }

    /// Everything that changes, as one line.
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

    /// Memory repairs: remapped rows (Ampere and later), retired pages before.
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

    /// Field 230, whatever integer type the driver gives it.
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

    /// If a call found the GPU gone, says so.
    fn report_loss(&mut self, gpu: &Gpu) -> bool {
        let Some((function, code)) = self.lost.take() else { return false };
        let (index, uuid, function) = (gpu.index, gpu.uuid.clone(), function.to_owned());
        self.speech.say(&Line::GpuError { index, uuid, function, code });
        true
    }

    /// One round of a watch: the driver line, then a sample of each GPU. GPUs that are no longer listed are lost.
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

    /// Subscribes to what each GPU supports of what we understand.
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

    /// Says that no events can be heard, and so gives no set of them.
    fn deaf(&mut self, function: &str, code: u32) -> Option<nvmlEventSet_t> {
        self.speech.say(&Line::Deaf { function: function.to_owned(), code });
        None
    }

    /// Waits for an event and tells it; returns which GPU's recovery action to read again.
    fn wait(&mut self, set: Option<nvmlEventSet_t>, devices: &[Device], wait: Duration) -> Option<usize> {
        let nvml = self;
        let ms = u32::try_from(wait.as_millis()).unwrap_or(u32::MAX).max(1);
        let Some(set) = set else {
            nvml.speech.wait("sleep", ms);
            wake::wait_readable(&[], Some(wait));
            return None;
        };
        let mut data = blank();
        // The call was announced by this, with its length; ask! would announce it again, without.
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
        // Once may be chance. The GPUs themselves say best what is behind it.
        if !matches!(code, SUCCESS | TIMEOUT) && nvml.waits.1 == 2 {
            nvml.round(devices);
            nvml.deaf("nvmlEventSetWait_v2", code);
        }
        if code != SUCCESS {
            // A driver that does not wait must not keep us busy.
            wake::wait_readable(&[], Some(wait.saturating_sub(begun.now())));
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

/// A C string that may lack its NUL or be no UTF-8.
fn text(buffer: &[c_char]) -> String {
    let bytes: Vec<u8> = buffer.iter().take_while(|c| **c != 0).map(|c| c.to_ne_bytes()[0]).collect();
    String::from_utf8_lossy(&bytes).trim().to_owned()
}
