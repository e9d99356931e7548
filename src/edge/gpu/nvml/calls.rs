//! The loaded NVML: the functions that the probe calls. A function is `None` if the driver does not export it.
//!
//! The loader of the bindings looks up all of some 400 functions and is four fifths of a small probe. Only its types
//! are used, and the compiler checks each signature here against it.
//!
//! libc is used because nix has no dlopen(3).

#![expect(unsafe_code, reason = "NVML is a C library")]
#![expect(non_snake_case, reason = "the functions have NVML's names")]

use std::ffi::{CStr, CString, c_char, c_int, c_uint, c_ulonglong, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use nvml_wrapper_sys::bindings::{
    NvmlLib, nvmlDevice_t, nvmlEccCounterType_t, nvmlEnableState_t, nvmlEventData_t, nvmlEventSet_t, nvmlFieldValue_t,
    nvmlGpuFabricInfo_t, nvmlGpuFabricInfoV_t, nvmlMemory_t, nvmlMemory_v2_t, nvmlMemoryErrorType_t, nvmlPciInfo_t,
    nvmlReturn_t, nvmlTemperatureSensors_t, nvmlUtilization_t,
};

macro_rules! calls {
    ($($name:ident($($arg:ty),*);)*) => {
        /// The functions by name. The library stays loaded until the process exits.
        pub(super) struct Calls {
            $(pub(super) $name: Option<unsafe extern "C" fn($($arg),*) -> nvmlReturn_t>,)*
        }

        $(
            const _: fn(&NvmlLib) -> Option<&unsafe extern "C" fn($($arg),*) -> nvmlReturn_t> =
                |lib| lib.$name.as_ref().ok();
        )*

        impl Calls {
            /// # Safety
            /// `library` is a handle from dlopen(3).
            unsafe fn find(library: *mut c_void) -> Calls {
                let address = |name: &CStr| {
                    // SAFETY: by the contract above; the name is a C string.
                    let address = unsafe { libc::dlsym(library, name.as_ptr()) };
                    (!address.is_null()).then_some(address)
                };
                Calls {
                    $($name: address(named(concat!(stringify!($name), "\0"))).map(|address| {
                        // SAFETY: the header of NVML declares this type for the symbol of this name.
                        unsafe {
                            std::mem::transmute::<*mut c_void, unsafe extern "C" fn($($arg),*) -> nvmlReturn_t>(address)
                        }
                    }),)*
                }
            }
        }
    };
}

calls! {
    nvmlInit_v2();
    nvmlSystemGetDriverVersion(*mut c_char, c_uint);
    nvmlSystemGetCudaDriverVersion_v2(*mut c_int);
    nvmlSystemGetCudaDriverVersion(*mut c_int);
    nvmlDeviceGetCount_v2(*mut c_uint);
    nvmlDeviceGetHandleByIndex_v2(c_uint, *mut nvmlDevice_t);
    nvmlDeviceGetUUID(nvmlDevice_t, *mut c_char, c_uint);
    nvmlDeviceGetName(nvmlDevice_t, *mut c_char, c_uint);
    nvmlDeviceGetPciInfo_v3(nvmlDevice_t, *mut nvmlPciInfo_t);
    nvmlDeviceGetMinorNumber(nvmlDevice_t, *mut c_uint);
    nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t, *mut nvmlMemory_v2_t);
    nvmlDeviceGetMemoryInfo(nvmlDevice_t, *mut nvmlMemory_t);
    nvmlDeviceGetUtilizationRates(nvmlDevice_t, *mut nvmlUtilization_t);
    nvmlDeviceGetTemperature(nvmlDevice_t, nvmlTemperatureSensors_t, *mut c_uint);
    nvmlDeviceGetPowerUsage(nvmlDevice_t, *mut c_uint);
    nvmlDeviceGetEnforcedPowerLimit(nvmlDevice_t, *mut c_uint);
    nvmlDeviceGetCurrentClocksThrottleReasons(nvmlDevice_t, *mut c_ulonglong);
    nvmlDeviceGetCurrentClocksEventReasons(nvmlDevice_t, *mut c_ulonglong);
    nvmlDeviceGetTotalEccErrors(nvmlDevice_t, nvmlMemoryErrorType_t, nvmlEccCounterType_t, *mut c_ulonglong);
    nvmlDeviceGetMigMode(nvmlDevice_t, *mut c_uint, *mut c_uint);
    nvmlDeviceGetNvLinkState(nvmlDevice_t, c_uint, *mut nvmlEnableState_t);
    nvmlDeviceGetGpuFabricInfoV(nvmlDevice_t, *mut nvmlGpuFabricInfoV_t);
    nvmlDeviceGetGpuFabricInfo(nvmlDevice_t, *mut nvmlGpuFabricInfo_t);
    nvmlDeviceGetRemappedRows(nvmlDevice_t, *mut c_uint, *mut c_uint, *mut c_uint, *mut c_uint);
    nvmlDeviceGetRetiredPagesPendingStatus(nvmlDevice_t, *mut nvmlEnableState_t);
    nvmlDeviceGetFieldValues(nvmlDevice_t, c_int, *mut nvmlFieldValue_t);
    nvmlEventSetCreate(*mut nvmlEventSet_t);
    nvmlDeviceGetSupportedEventTypes(nvmlDevice_t, *mut c_ulonglong);
    nvmlDeviceRegisterEvents(nvmlDevice_t, c_ulonglong, nvmlEventSet_t);
    nvmlEventSetWait_v2(nvmlEventSet_t, *mut nvmlEventData_t, c_uint);
    nvmlEventSetWait(nvmlEventSet_t, *mut nvmlEventData_t, c_uint);
}

/// A name that ends with NUL.
fn named(name: &'static str) -> &'static CStr {
    CStr::from_bytes_with_nul(name.as_bytes()).unwrap_or_default()
}

impl Calls {
    /// Loads a library. Errors: the text of the loader.
    ///
    /// # Safety
    /// The library's constructors run.
    pub(super) unsafe fn load(path: &Path) -> Result<Calls, String> {
        let name = CString::new(path.as_os_str().as_bytes()).map_err(|error| error.to_string())?;
        // SAFETY: the name is a C string; the text of dlerror is valid until its next call, and is copied before.
        unsafe {
            let library = libc::dlopen(name.as_ptr(), libc::RTLD_LAZY | libc::RTLD_LOCAL);
            if !library.is_null() {
                return Ok(Calls::find(library));
            }
            let words = libc::dlerror();
            let unknown = || format!("{} cannot be loaded", path.display());
            Err(if words.is_null() { unknown() } else { CStr::from_ptr(words).to_string_lossy().into_owned() })
        }
    }
}
