//! Modules and libraries: loaded images.

use core::ffi::{CStr, c_char, c_uint, c_void};
use std::os::unix::ffi::OsStrExt;
use std::sync::{Mutex, MutexGuard, PoisonError};

use aliquot_abi::cuda::{CUdeviceptr, CUfunction, CUkernel, CUlibrary, CUmodule, CUresult};

use crate::Done;
use crate::arena::Use;
use crate::caller::{not_null, put, put_all, put_if_wanted, text};
use crate::context::{Context, Owner, current};
use crate::handles::{self, Kind, Object};
use crate::images::{self, Entry, Image};
use crate::kernels::{Function, Kernel};
use crate::memory;
use crate::process::process;

/// `CU_MODULE_LAZY_LOADING`: modules are loaded when they are needed.
const LAZY_LOADING: c_uint = 2;

/// An image loaded into a context.
pub(crate) struct Module {
    pub(crate) owner: Owner,
    handle: Mutex<CUmodule>,
    entries: Option<Vec<Entry>>,
    functions: Mutex<Vec<CUfunction>>,
    variables: Vec<Global>,
}

struct Global {
    name: String,
    address: u64,
    bytes: u64,
}

/// An image that is loaded into a context when it is first needed there.
pub(crate) struct Library {
    image: Image,
    state: Mutex<LibraryState>,
}

#[derive(Default)]
struct LibraryState {
    kernels: Vec<CUkernel>,
    modules: Vec<(Owner, CUmodule)>,
}

impl Object for Module {
    const KIND: Kind = Kind::Module;
}

impl Object for Library {
    const KIND: Kind = Kind::Library;
}

fn find_entry<'a>(entries: &'a Option<Vec<Entry>>, name: &str) -> Done<Option<&'a Entry>> {
    match entries {
        None => Ok(None),
        Some(entries) => entries.iter().find(|entry| entry.name == name).map(Some).ok_or(CUresult::NOT_FOUND),
    }
}

fn utf8(name: &CStr) -> Done<&str> {
    name.to_str().map_err(|_| CUresult::NOT_FOUND)
}

impl Module {
    fn load(context: &'static Context, image: Image) -> Done<(CUmodule, &'static Module)> {
        let mut variables = Vec::new();
        for variable in image.variables {
            let address = memory::take(context, variable.bytes, Use::Global)?;
            variables.push(Global { name: variable.name, address, bytes: variable.bytes });
        }
        let (handle, module) = handles::register(Module {
            owner: context.owner(),
            handle: Mutex::new(CUmodule::NULL),
            entries: image.entries,
            functions: Mutex::new(Vec::new()),
            variables,
        });
        *module.handle.lock().unwrap_or_else(PoisonError::into_inner) = CUmodule(handle);
        Ok((CUmodule(handle), module))
    }

    pub(crate) fn handle(&self) -> CUmodule {
        *self.handle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn functions(&self) -> MutexGuard<'_, Vec<CUfunction>> {
        self.functions.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The function with this name. Returns the same handle each time.
    pub(crate) fn function(&'static self, name: &CStr) -> Done<CUfunction> {
        let entry = find_entry(&self.entries, utf8(name)?)?;
        let mut functions = self.functions();
        let known = |handle: &&CUfunction| {
            handles::find::<Function>(handle.0).is_some_and(|function| function.name.as_c_str() == name)
        };
        if let Some(handle) = functions.iter().find(known) {
            return Ok(*handle);
        }
        let parameters = entry.and_then(|entry| entry.parameters.clone());
        let (handle, _) = handles::register(Function::new(self, name.to_owned(), parameters));
        functions.push(CUfunction(handle));
        Ok(CUfunction(handle))
    }

    fn variable(&self, name: &str) -> Done<&Global> {
        self.variables.iter().find(|variable| variable.name == name).ok_or(CUresult::NOT_FOUND)
    }

    fn unload(&self) {
        for function in self.functions().drain(..) {
            handles::retire::<Function>(function.0);
        }
        for variable in &self.variables {
            // Fails if the context has ended, and the variable with it.
            let _ = memory::give_back(variable.address, &[Use::Global]);
        }
    }
}

impl Library {
    fn state(&self) -> MutexGuard<'_, LibraryState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The library's module in a context.
    pub(crate) fn module(&self, context: &'static Context) -> Done<&'static Module> {
        let mut state = self.state();
        state.modules.retain(|(owner, _)| owner.is_alive());
        let known = state.modules.iter().find(|(owner, _)| owner.is(context)).map(|(_, handle)| *handle);
        if let Some(module) = known.and_then(|handle| handles::find::<Module>(handle.0)) {
            return Ok(module);
        }
        let (handle, module) = Module::load(context, self.image.copied())?;
        state.modules.push((context.owner(), handle));
        Ok(module)
    }

    fn kernel(&'static self, library: CUlibrary, name: &CStr) -> Done<CUkernel> {
        let entry = find_entry(&self.image.entries, utf8(name)?)?;
        let mut state = self.state();
        let known =
            |handle: &&CUkernel| handles::find::<Kernel>(handle.0).is_some_and(|kernel| kernel.name.as_c_str() == name);
        if let Some(handle) = state.kernels.iter().find(known) {
            return Ok(*handle);
        }
        let parameters = entry.and_then(|entry| entry.parameters.clone());
        let (handle, _) = handles::register(Kernel::new(self, library, name.to_owned(), parameters));
        state.kernels.push(CUkernel(handle));
        Ok(CUkernel(handle))
    }
}

impl Image {
    fn copied(&self) -> Image {
        let entry = |entry: &Entry| Entry { name: entry.name.clone(), parameters: entry.parameters.clone() };
        let variable = |v: &images::Variable| images::Variable { name: v.name.clone(), bytes: v.bytes };
        Image {
            entries: self.entries.as_ref().map(|entries| entries.iter().map(entry).collect()),
            variables: self.variables.iter().map(variable).collect(),
        }
    }
}

pub(crate) fn module(handle: CUmodule) -> Done<&'static Module> {
    process()?;
    handles::find::<Module>(handle.0).filter(|module| module.owner.is_alive()).ok_or(CUresult::INVALID_HANDLE)
}

fn library(handle: CUlibrary) -> Done<&'static Library> {
    process()?;
    handles::find(handle.0).ok_or(CUresult::INVALID_HANDLE)
}

fn read_file(path: *const c_char) -> Done<Image> {
    let path = std::ffi::OsStr::from_bytes(text(path)?.to_bytes());
    images::read_file(&std::fs::read(path).map_err(|_| CUresult::FILE_NOT_FOUND)?)
}

pub(crate) fn cuModuleLoad(target: *mut CUmodule, path: *const c_char) -> Done {
    let context = current()?;
    not_null(target)?;
    put(target, Module::load(context, read_file(path)?)?.0)
}

pub(crate) fn cuModuleLoadData(target: *mut CUmodule, image: *const c_void) -> Done {
    let context = current()?;
    not_null(target)?;
    put(target, Module::load(context, images::read_at(image.cast())?)?.0)
}

/// Ignores the options, which concern compilation. Requested logs stay empty.
pub(crate) fn cuModuleLoadDataEx(
    target: *mut CUmodule,
    image: *const c_void,
    option_count: c_uint,
    options: *mut c_uint,
    values: *mut *mut c_void,
) -> Done {
    current()?;
    check_options(option_count, options, values)?;
    cuModuleLoadData(target, image)
}

pub(crate) fn check_options(count: c_uint, options: *mut c_uint, values: *mut *mut c_void) -> Done {
    if count == 0 {
        return Ok(());
    }
    not_null(options)?;
    not_null(values)
}

pub(crate) fn cuModuleLoadFatBinary(target: *mut CUmodule, image: *const c_void) -> Done {
    cuModuleLoadData(target, image)
}

pub(crate) fn cuModuleUnload(handle: CUmodule) -> Done {
    current()?;
    module(handle)?;
    let module = handles::retire::<Module>(handle.0).ok_or(CUresult::INVALID_HANDLE)?;
    crate::queue::wait_for_device(module.owner.device());
    module.unload();
    Ok(())
}

pub(crate) fn cuModuleGetLoadingMode(mode: *mut c_uint) -> Done {
    put(mode, LAZY_LOADING)
}

pub(crate) fn cuModuleGetFunction(target: *mut CUfunction, handle: CUmodule, name: *const c_char) -> Done {
    current()?;
    let module = module(handle)?;
    not_null(target)?;
    put(target, module.function(text(name)?)?)
}

pub(crate) fn cuModuleGetFunctionCount(count: *mut c_uint, handle: CUmodule) -> Done {
    put(count, module(handle)?.entries.as_ref().map_or(0, Vec::len) as c_uint)
}

pub(crate) fn cuModuleEnumerateFunctions(functions: *mut CUfunction, count: c_uint, handle: CUmodule) -> Done {
    let module = module(handle)?;
    not_null(functions)?;
    let entries = module.entries.iter().flatten().take(count as usize);
    let names = entries.map(|entry| std::ffi::CString::new(entry.name.as_str()).unwrap_or_default());
    put_all(functions, names.map(|name| module.function(&name)).collect::<Done<Vec<_>>>()?)
}

fn put_variable(address: *mut CUdeviceptr, bytes: *mut usize, variable: &Global) -> Done {
    if address.is_null() && bytes.is_null() {
        return Err(CUresult::INVALID_VALUE);
    }
    put_if_wanted(address, variable.address);
    put_if_wanted(bytes, variable.bytes as usize);
    Ok(())
}

pub(crate) fn cuModuleGetGlobal_v2(
    address: *mut CUdeviceptr,
    bytes: *mut usize,
    handle: CUmodule,
    name: *const c_char,
) -> Done {
    current()?;
    let module = module(handle)?;
    put_variable(address, bytes, module.variable(utf8(text(name)?)?)?)
}

fn load_library(target: *mut CUlibrary, image: Image) -> Done {
    let (handle, _) = handles::register(Library { image, state: Mutex::new(LibraryState::default()) });
    put(target, CUlibrary(handle))
}

#[expect(clippy::too_many_arguments, reason = "the driver API's signature")]
pub(crate) fn cuLibraryLoadData(
    target: *mut CUlibrary,
    image: *const c_void,
    jit_options: *mut c_uint,
    jit_values: *mut *mut c_void,
    jit_count: c_uint,
    options: *mut c_uint,
    values: *mut *mut c_void,
    count: c_uint,
) -> Done {
    process()?;
    not_null(target)?;
    check_options(jit_count, jit_options, jit_values)?;
    check_options(count, options, values)?;
    load_library(target, images::read_at(image.cast())?)
}

#[expect(clippy::too_many_arguments, reason = "the driver API's signature")]
pub(crate) fn cuLibraryLoadFromFile(
    target: *mut CUlibrary,
    path: *const c_char,
    jit_options: *mut c_uint,
    jit_values: *mut *mut c_void,
    jit_count: c_uint,
    options: *mut c_uint,
    values: *mut *mut c_void,
    count: c_uint,
) -> Done {
    process()?;
    not_null(target)?;
    check_options(jit_count, jit_options, jit_values)?;
    check_options(count, options, values)?;
    load_library(target, read_file(path)?)
}

pub(crate) fn cuLibraryUnload(handle: CUlibrary) -> Done {
    library(handle)?;
    let library = handles::retire::<Library>(handle.0).ok_or(CUresult::INVALID_HANDLE)?;
    let LibraryState { kernels, modules } = std::mem::take(&mut *library.state());
    for kernel in kernels {
        handles::retire::<Kernel>(kernel.0);
    }
    for (owner, module) in modules {
        if let Some(module) = handles::retire::<Module>(module.0).filter(|_| owner.is_alive()) {
            crate::queue::wait_for_device(owner.device());
            module.unload();
        }
    }
    Ok(())
}

pub(crate) fn cuLibraryGetKernel(target: *mut CUkernel, handle: CUlibrary, name: *const c_char) -> Done {
    let library = library(handle)?;
    not_null(target)?;
    put(target, library.kernel(handle, text(name)?)?)
}

pub(crate) fn cuLibraryGetKernelCount(count: *mut c_uint, handle: CUlibrary) -> Done {
    put(count, library(handle)?.image.entries.as_ref().map_or(0, Vec::len) as c_uint)
}

pub(crate) fn cuLibraryEnumerateKernels(kernels: *mut CUkernel, count: c_uint, handle: CUlibrary) -> Done {
    let library = library(handle)?;
    not_null(kernels)?;
    let entries = library.image.entries.iter().flatten().take(count as usize);
    let names = entries.map(|entry| std::ffi::CString::new(entry.name.as_str()).unwrap_or_default());
    put_all(kernels, names.map(|name| library.kernel(handle, &name)).collect::<Done<Vec<_>>>()?)
}

pub(crate) fn cuLibraryGetModule(target: *mut CUmodule, handle: CUlibrary) -> Done {
    let context = current()?;
    put(target, library(handle)?.module(context)?.handle())
}

pub(crate) fn cuLibraryGetGlobal(
    address: *mut CUdeviceptr,
    bytes: *mut usize,
    handle: CUlibrary,
    name: *const c_char,
) -> Done {
    let context = current()?;
    let module = library(handle)?.module(context)?;
    put_variable(address, bytes, module.variable(utf8(text(name)?)?)?)
}
