//! The code of the probe: calls NVML and prints the answers. It runs in a separate process, which may be killed at any
//! time.
//!
//! It uses nvml-wrapper's bindings (nvml-wrapper-sys) and their loader, but not the wrapper. A call of NVML may hang, and
//! trainit names the call that did. So each call needs its own announcement and its own deadline. These are the reasons,
//! found in version 0.13 of the wrapper:
//! - Every query needs its `Nvml`, and only `init` creates one. `init` loads the library, calls nvmlInit_v2 and calls
//!   nvmlSystemGetDriverVersion. A hang in one of the three cannot be told from a hang in another.
//! - Dropping `Nvml` calls nvmlShutdown, and dropping an event set calls nvmlEventSetFree. Both may hang, and neither can be
//!   announced.
//! - `memory_info()` uses only the call that exists since R510, and `wait()` only the second version of the event wait.
//! - `name()` and `uuid()` read past the end of their buffer if the driver wrote no NUL.
//!
//! Here every symbol is optional, every call is announced, and a failed value is null.
//! Deliberately absent: any judgement.

#![expect(unsafe_code, reason = "NVML is a C library")]

use std::ffi::c_char;
use std::mem::zeroed;

use nvml_wrapper_sys::bindings::{NvmlLib, nvmlDevice_t};

use crate::edge::gpu::answer_line::LineWriter;
use crate::rules::gpu::Gpu;
use crate::rules::gpu::answer::code::{FUNCTION_NOT_FOUND, GPU_IS_LOST, LIBRARY_NOT_FOUND, RESET_REQUIRED};
use crate::rules::gpu::protocol::{INDEX_LIMIT, Line};
use crate::rules::process::env::Env;
use library::{candidates, is_stub};
pub(super) use watch::watch;

/// NVML's return value for success.
const SUCCESS: u32 = 0;

/// Announces and calls an NVML function by name, unless it is missing or the current GPU has already been found lost.
macro_rules! ask {
    ($nvml:ident.$name:ident($($arg:expr),*)) => {
        match &$nvml.lib.$name {
            Ok(_) if $nvml.lost.is_some() => GPU_IS_LOST,
            Ok(function) => {
                $nvml.lines.call(stringify!($name));
                // SAFETY: the types are those of NVML's header; handles came from NVML, out-pointers live for the call.
                let code = unsafe { function($($arg),*) };
                if matches!(code, GPU_IS_LOST | RESET_REQUIRED) {
                    $nvml.lost = Some((stringify!($name), code));
                }
                code
            }
            Err(_) => FUNCTION_NOT_FOUND,
        }
    };
}

mod library;
mod sample;
mod watch;

/// A zeroed structure or number for NVML to write to.
fn blank<T: Copy>() -> T {
    // SAFETY: used for integers and NVML's plain C structures of numbers and pointers, for which zeros are a value.
    unsafe { zeroed() }
}

struct Nvml {
    /// Never unloaded, because the library's destructors may hang.
    lib: &'static NvmlLib,
    lines: LineWriter,
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
pub(super) fn discover(lines: LineWriter, env: &Env) {
    let Some(mut nvml) = Nvml::open(lines, env) else { return };
    let Some(devices) = nvml.list() else { return };
    for device in &devices {
        nvml.sample(device);
    }
    nvml.lines.write(&Line::End);
}

impl Nvml {
    fn open(mut lines: LineWriter, env: &Env) -> Option<Nvml> {
        let named = env.given("TRAINIT_NVML_LIBRARY").is_some();
        let mut failure = None;
        for path in candidates(env) {
            lines.call("dlopen");
            // SAFETY: loading runs the library's constructors, which is the purpose of this process.
            match unsafe { NvmlLib::new(&path) }.map(|lib| &*Box::leak(Box::new(lib))) {
                Ok(lib) if is_stub(lib) => {
                    let message = format!("{} is the toolkit's link-time stub", path.display());
                    failure.get_or_insert((Some(LIBRARY_NOT_FOUND), message));
                }
                Ok(lib) => return Nvml { lib, lines, lost: None, waits: (SUCCESS, 0) }.init(),
                // An existing file that fails to load explains more than a missing file.
                Err(error) if path.is_absolute() && !named => failure = Some((None, error.to_string())),
                Err(error) => {
                    failure.get_or_insert((Some(LIBRARY_NOT_FOUND), error.to_string()));
                }
            }
        }
        let (code, message) = failure.unwrap_or((Some(LIBRARY_NOT_FOUND), String::new()));
        lines.write(&Line::Error { function: "dlopen".into(), code, message: Some(message) });
        None
    }

    fn init(mut self) -> Option<Nvml> {
        let nvml = &mut self;
        let code = ask!(nvml.nvmlInit_v2());
        if code != SUCCESS {
            self.lines.write(&Line::Error { function: "nvmlInit_v2".into(), code: Some(code), message: None });
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
            nvml.lines.write(&Line::Error { function, code: Some(code), message: None });
            return None;
        }
        nvml.lines.write(&Line::Driver { driver_version, cuda_version, count: Some(count) });
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
        nvml.lines.write(&Line::Gpu { sampled: false, gpu: Box::new(identity.clone()) });
        Some(Device { handle, identity })
    }

    /// Reports the GPU as lost if a call found it so.
    fn report_loss(&mut self, gpu: &Gpu) -> bool {
        let Some((function, code)) = self.lost.take() else { return false };
        let (index, uuid, function) = (gpu.index, gpu.uuid.clone(), function.to_owned());
        self.lines.write(&Line::GpuError { index, uuid, function, code });
        true
    }
}

/// Converts a C string that may lack its NUL or be invalid UTF-8.
fn text(buffer: &[c_char]) -> String {
    let bytes: Vec<u8> = buffer.iter().take_while(|c| **c != 0).map(|c| c.to_ne_bytes()[0]).collect();
    String::from_utf8_lossy(&bytes).trim().to_owned()
}
