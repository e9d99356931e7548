//! A watch: events of the GPUs as they occur, and a sample of each GPU in every round.

use std::ffi::c_char;
use std::time::Duration;

use nvml_wrapper_sys::bindings::{nvmlDevice_t, nvmlEventSet_t};

use super::{Device, Nvml, SUCCESS, blank, text};
use crate::edge::clock::Clock;
use crate::edge::gpu::answer_line::LineWriter;
use crate::edge::io::eventfd;
use crate::rules::gpu::Gpu;
use crate::rules::gpu::answer::code::{FUNCTION_NOT_FOUND, GPU_IS_LOST, RESET_REQUIRED, TIMEOUT};
use crate::rules::gpu::protocol::{Line, event};
use crate::rules::process::env::Env;

/// The longest wait for an event, so that a hang is noticed soon.
const LONGEST_WAIT: Duration = Duration::from_secs(2);
/// How long a recovery action may take to follow its XID.
const RECHECK_AFTER: Duration = Duration::from_secs(2);

/// Reports the GPUs, then events, and a sample of each GPU every `interval`; runs until it is killed.
pub(in crate::edge::gpu) fn watch(lines: LineWriter, env: &Env, interval: Duration) {
    let Some(mut nvml) = Nvml::open(lines, env) else { return };
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
            nvml.lines.write(&Line::Event { index, kind, data: 0, gpu_instance: None, recovery_action });
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
    /// One round of a watch: the driver line, then a sample of each GPU. GPUs that are no longer listed are reported as
    /// lost.
    fn round(&mut self, devices: &[Device]) {
        let nvml = self;
        let mut count = 0;
        let code = ask!(nvml.nvmlDeviceGetCount_v2(&raw mut count));
        nvml.lost = None;
        let count = (code == SUCCESS).then_some(count);
        nvml.lines.write(&Line::Driver { driver_version: None, cuda_version: None, count });
        let listed = count.filter(|n| (*n as usize) < devices.len()).map(|n| nvml.listed(n));
        for device in devices {
            let Gpu { index, uuid, .. } = &device.identity;
            if listed.as_ref().is_some_and(|listed| uuid.is_some() && !listed.contains(uuid)) {
                let (index, uuid, function) = (*index, uuid.clone(), "nvmlDeviceGetCount_v2".to_owned());
                nvml.lines.write(&Line::GpuError { index, uuid, function, code: GPU_IS_LOST });
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
            return nvml.no_events("nvmlEventSetCreate", code);
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
                nvml.no_events(function, code);
            }
        }
        registered.then_some(set)
    }

    /// Reports that events are not available, and returns no event set.
    fn no_events(&mut self, function: &str, code: u32) -> Option<nvmlEventSet_t> {
        self.lines.write(&Line::EventsUnavailable { function: function.to_owned(), code });
        None
    }

    /// Waits for an event and reports it; returns the GPU whose recovery action must be read again.
    fn wait(&mut self, set: Option<nvmlEventSet_t>, devices: &[Device], wait: Duration) -> Option<usize> {
        let nvml = self;
        let ms = u32::try_from(wait.as_millis()).unwrap_or(u32::MAX).max(1);
        let Some(set) = set else {
            nvml.lines.wait("sleep", ms);
            eventfd::wait_readable(&[], Some(wait));
            return None;
        };
        let mut data = blank();
        // This announcement contains the length of the wait, so ask! is not used: it would announce the call again
        // without it.
        nvml.lines.wait("nvmlEventSetWait_v2", ms);
        let begun = Clock::start();
        // SAFETY: the set came from NVML, `data` lives for the call.
        let code = unsafe {
            match nvml.lib.nvmlEventSetWait_v2.as_ref().or(nvml.lib.nvmlEventSetWait.as_ref()) {
                Ok(function) => function(set, &raw mut data, ms),
                Err(_) => FUNCTION_NOT_FOUND,
            }
        };
        nvml.waits = if nvml.waits.0 == code { (code, nvml.waits.1.saturating_add(1)) } else { (code, 1) };
        // A single error may be chance. After two in a row, a sample of the GPUs shows the cause best.
        if !matches!(code, SUCCESS | TIMEOUT) && nvml.waits.1 == 2 {
            nvml.round(devices);
            nvml.no_events("nvmlEventSetWait_v2", code);
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
        nvml.lines.write(&Line::Event { index, kind, data, gpu_instance, recovery_action });
        at
    }
}
