//! Functions of modules, kernels of libraries, and their attributes.

use core::ffi::{c_char, c_int, c_uint};
use core::sync::atomic::{AtomicI32, Ordering};
use std::ffi::CString;
use std::sync::{Mutex, PoisonError};

use aliquot_abi::cuda::{CUdevice, CUfunction, CUkernel, CUlibrary, CUmodule, CUresult};
use aliquot_fake_machine::is_spin_kernel;

use crate::Done;
use crate::attributes::{SHARED_MEMORY_PER_BLOCK, SHARED_MEMORY_PER_BLOCK_OPTIN};
use crate::caller::{put, put_if_wanted};
use crate::context::current;
use crate::device::device;
use crate::handles::{self, Kind, Object};
use crate::interface_v1::LegacyLaunch;
use crate::modules::{Library, Module};
use crate::process::process;

/// Maximum number of threads of a block.
pub(crate) const THREADS_PER_BLOCK_MAX: c_int = 1024;
const REGISTERS_PER_THREAD: c_int = 32;

const MAX_THREADS: c_uint = 0;
const REGISTERS: c_uint = 4;
const PTX_VERSION: c_uint = 5;
const BINARY_VERSION: c_uint = 6;
const MAX_DYNAMIC_SHARED: c_uint = 8;
const SHARED_CARVEOUT: c_uint = 9;
/// Shared, constant, local and required cluster sizes, cache mode, scheduling policy: all 0 until set.
const ATTRIBUTE_COUNT: usize = 16;
/// Attributes that can be set.
const SETTABLE: [c_uint; 7] = [MAX_DYNAMIC_SHARED, SHARED_CARVEOUT, 11, 12, 13, 14, 15];

/// The settings of a function.
pub(crate) struct Settings([AtomicI32; ATTRIBUTE_COUNT]);

impl Settings {
    fn new() -> Settings {
        let settings = Settings([const { AtomicI32::new(0) }; ATTRIBUTE_COUNT]);
        settings.0[MAX_DYNAMIC_SHARED as usize].store(SHARED_MEMORY_PER_BLOCK, Ordering::Relaxed);
        settings.0[SHARED_CARVEOUT as usize].store(-1, Ordering::Relaxed);
        settings
    }

    fn get(&self, attribute: c_uint, compute_capability: (u32, u32)) -> Done<c_int> {
        let version = (compute_capability.0 * 10 + compute_capability.1) as c_int;
        match attribute {
            MAX_THREADS => Ok(THREADS_PER_BLOCK_MAX),
            REGISTERS => Ok(REGISTERS_PER_THREAD),
            PTX_VERSION | BINARY_VERSION => Ok(version),
            _ => {
                let setting = self.0.get(attribute as usize).ok_or(CUresult::INVALID_VALUE)?;
                Ok(setting.load(Ordering::Relaxed))
            }
        }
    }

    fn set(&self, attribute: c_uint, value: c_int) -> Done {
        let allowed = match attribute {
            MAX_DYNAMIC_SHARED => (0..=SHARED_MEMORY_PER_BLOCK_OPTIN).contains(&value),
            SHARED_CARVEOUT => (-1..=100).contains(&value),
            _ => value >= 0,
        };
        if !SETTABLE.contains(&attribute) || !allowed {
            return Err(CUresult::INVALID_VALUE);
        }
        self.0[attribute as usize].store(value, Ordering::Relaxed);
        Ok(())
    }

    pub(crate) fn max_dynamic_shared_bytes(&self) -> c_uint {
        self.0[MAX_DYNAMIC_SHARED as usize].load(Ordering::Relaxed) as c_uint
    }
}

/// A function of a module.
pub(crate) struct Function {
    pub(crate) module: &'static Module,
    pub(crate) name: CString,
    /// Whether its first parameter is its duration.
    pub(crate) spins: bool,
    /// Whether it waits for a kernel on another device.
    pub(crate) meets: bool,
    pub(crate) settings: Settings,
    /// Offset and size of each parameter, if the image contains them.
    pub(crate) parameters: Option<Vec<(usize, usize)>>,
    /// Shape and arguments for the launch functions before CUDA 4.
    pub(crate) legacy_launch: Mutex<LegacyLaunch>,
}

/// A function of a library.
pub(crate) struct Kernel {
    library: &'static Library,
    library_handle: CUlibrary,
    pub(crate) name: CString,
    settings: Settings,
    parameters: Option<Vec<(usize, usize)>>,
}

impl Object for Function {
    const KIND: Kind = Kind::Function;
}

impl Object for Kernel {
    const KIND: Kind = Kind::Kernel;
}

impl Function {
    pub(crate) fn new(module: &'static Module, name: CString, parameters: Option<Vec<(usize, usize)>>) -> Function {
        Function {
            module,
            spins: is_spin_kernel(name.to_bytes()),
            meets: name.to_bytes().starts_with(b"rendezvous"),
            name,
            settings: Settings::new(),
            parameters,
            legacy_launch: Mutex::new(LegacyLaunch::default()),
        }
    }
}

impl Kernel {
    pub(crate) fn new(
        library: &'static Library,
        library_handle: CUlibrary,
        name: CString,
        parameters: Option<Vec<(usize, usize)>>,
    ) -> Kernel {
        Kernel { library, library_handle, name, settings: Settings::new(), parameters }
    }

    /// The kernel's function in the current context.
    fn function(&self) -> Done<CUfunction> {
        let handle = self.library.module(current()?)?.function(&self.name)?;
        if let Some(function) = handles::find::<Function>(handle.0) {
            // The kernel's setting applies to its function, unless the function's own is larger.
            let dynamic = self.settings.max_dynamic_shared_bytes() as c_int;
            function.settings.0[MAX_DYNAMIC_SHARED as usize].fetch_max(dynamic, Ordering::Relaxed);
        }
        Ok(handle)
    }
}

/// The function of a handle. For a kernel's handle, the kernel's function in the current context: the driver accepts
/// both.
#[inline]
pub(crate) fn function(handle: CUfunction) -> Done<&'static Function> {
    process()?;
    known_function(handle)
}

/// As [`function`], for a process that is known to be initialised.
#[inline]
pub(crate) fn known_function(handle: CUfunction) -> Done<&'static Function> {
    match handles::find::<Function>(handle.0) {
        Some(function) if function.module.owner.is_alive() => Ok(function),
        Some(_) => Err(CUresult::CONTEXT_IS_DESTROYED),
        None => function_of_kernel(CUkernel(handle.0)),
    }
}

#[cold]
fn function_of_kernel(handle: CUkernel) -> Done<&'static Function> {
    let function = kernel(handle)?.function()?;
    handles::find(function.0).ok_or(CUresult::INVALID_HANDLE)
}

fn kernel(handle: CUkernel) -> Done<&'static Kernel> {
    process()?;
    handles::find(handle.0).ok_or(CUresult::INVALID_HANDLE)
}

pub(crate) fn cuKernelGetFunction(target: *mut CUfunction, handle: CUkernel) -> Done {
    put(target, kernel(handle)?.function()?)
}

pub(crate) fn cuKernelGetLibrary(target: *mut CUlibrary, handle: CUkernel) -> Done {
    put(target, kernel(handle)?.library_handle)
}

pub(crate) fn cuKernelGetAttribute(value: *mut c_int, attribute: c_uint, handle: CUkernel, ordinal: CUdevice) -> Done {
    let capability = device(ordinal)?.config.compute_capability;
    put(value, kernel(handle)?.settings.get(attribute, capability)?)
}

pub(crate) fn cuKernelSetAttribute(attribute: c_uint, value: c_int, handle: CUkernel, ordinal: CUdevice) -> Done {
    device(ordinal)?;
    kernel(handle)?.settings.set(attribute, value)
}

pub(crate) fn cuKernelSetCacheConfig(handle: CUkernel, config: c_uint, ordinal: CUdevice) -> Done {
    device(ordinal)?;
    kernel(handle)?;
    check_config(config, 3)
}

fn check_config(config: c_uint, greatest: c_uint) -> Done {
    if config <= greatest { Ok(()) } else { Err(CUresult::INVALID_VALUE) }
}

pub(crate) fn cuKernelGetName(name: *mut *const c_char, handle: CUkernel) -> Done {
    put(name, kernel(handle)?.name.as_ptr())
}

fn put_parameter(
    parameters: Option<&Vec<(usize, usize)>>,
    index: usize,
    offset: *mut usize,
    bytes: *mut usize,
) -> Done {
    let parameter = parameters.and_then(|parameters| parameters.get(index)).ok_or(CUresult::INVALID_VALUE)?;
    put(offset, parameter.0)?;
    put_if_wanted(bytes, parameter.1);
    Ok(())
}

pub(crate) fn cuKernelGetParamInfo(handle: CUkernel, index: usize, offset: *mut usize, bytes: *mut usize) -> Done {
    put_parameter(kernel(handle)?.parameters.as_ref(), index, offset, bytes)
}

pub(crate) fn cuFuncGetParamInfo(handle: CUfunction, index: usize, offset: *mut usize, bytes: *mut usize) -> Done {
    put_parameter(function(handle)?.parameters.as_ref(), index, offset, bytes)
}

fn put_parameter_count(parameters: Option<&Vec<(usize, usize)>>, count: *mut usize) -> Done {
    // An image without its kernels' parameters does not give their number either.
    put(count, parameters.ok_or(CUresult::NOT_SUPPORTED)?.len())
}

pub(crate) fn cuKernelGetParamCount(handle: CUkernel, count: *mut usize) -> Done {
    put_parameter_count(kernel(handle)?.parameters.as_ref(), count)
}

pub(crate) fn cuFuncGetParamCount(handle: CUfunction, count: *mut usize) -> Done {
    put_parameter_count(function(handle)?.parameters.as_ref(), count)
}

pub(crate) fn cuFuncGetAttribute(value: *mut c_int, attribute: c_uint, handle: CUfunction) -> Done {
    let function = function(handle)?;
    let capability = function.module.owner.device().config.compute_capability;
    put(value, function.settings.get(attribute, capability)?)
}

pub(crate) fn cuFuncSetAttribute(handle: CUfunction, attribute: c_uint, value: c_int) -> Done {
    function(handle)?.settings.set(attribute, value)
}

pub(crate) fn cuFuncSetCacheConfig(handle: CUfunction, config: c_uint) -> Done {
    function(handle)?;
    check_config(config, 3)
}

pub(crate) fn cuFuncSetSharedMemConfig(handle: CUfunction, config: c_uint) -> Done {
    function(handle)?;
    check_config(config, 2)
}

pub(crate) fn cuFuncGetModule(target: *mut CUmodule, handle: CUfunction) -> Done {
    put(target, function(handle)?.module.handle())
}

pub(crate) fn cuFuncGetName(name: *mut *const c_char, handle: CUfunction) -> Done {
    put(name, function(handle)?.name.as_ptr())
}

pub(crate) fn cuFuncIsLoaded(state: *mut c_uint, handle: CUfunction) -> Done {
    function(handle)?;
    // A function that has a handle is loaded.
    put(state, 1)
}

pub(crate) fn cuFuncLoad(handle: CUfunction) -> Done {
    function(handle).map(|_| ())
}

impl Function {
    pub(crate) fn legacy_launch(&self) -> std::sync::MutexGuard<'_, LegacyLaunch> {
        self.legacy_launch.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
