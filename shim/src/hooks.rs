//! The hooks, as look-up uses them: each with its names, its real function and its address in the shim.
//!
//! Everything here expands from the tables in `aliquot-abi`.

use crate::driver::{Library, Slot};
use aliquot_abi::cuda::{CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM, CUresult, c_char, c_int};
use core::ffi::{CStr, c_void};

/// The real function of a table line, with its type; `None` if the library is not loaded or lacks it.
macro_rules! real {
    ($symbol:ident) => {{
        let address = $crate::hooks::slots::$symbol.get();
        if address.is_null() {
            None
        } else {
            // SAFETY: the address is that of the library's function of this name, whose type the table states.
            Some(unsafe { core::mem::transmute::<*mut core::ffi::c_void, $crate::hooks::types::$symbol>(address) })
        }
    }};
}
pub(crate) use real;

/// A hooked function of one ABI.
pub(crate) struct Hook {
    /// The real function, by its exported symbol.
    slot: &'static Slot,
    symbol_hash: u32,
    /// Hash of the name by which `cuGetProcAddress` finds it.
    name_hash: u32,
    /// First CUDA version whose callers get this function by that name.
    since: u32,
    /// Length of that name, which is a prefix of the symbol. A pointer instead would have to be relocated for each of
    /// the hundreds of hooks, in every process.
    name_bytes: u8,
    /// Whether this is the form with per-thread default streams.
    per_thread: bool,
    /// Address of the shim's function.
    export: Export,
}

struct Export(*const c_void);

// SAFETY: it is the address of a function, which may be shared.
unsafe impl Sync for Export {}

impl Hook {
    const fn new(
        slot: &'static Slot,
        symbol: &'static str,
        name: &'static str,
        since: u32,
        per_thread: bool,
        export: *const c_void,
    ) -> Hook {
        let (bytes, name) = (symbol.as_bytes(), name.as_bytes());
        assert!(name.len() < NAME_BYTES_MAX && begins_with(bytes, name), "a symbol begins with its name");
        Hook {
            slot,
            symbol_hash: hash(bytes),
            name_hash: hash(name),
            since,
            name_bytes: name.len() as u8,
            per_thread,
            export: Export(export),
        }
    }

    /// The hook's address, which hosts call.
    pub(crate) fn export(&self) -> *mut c_void {
        self.export.0.cast_mut()
    }

    /// The name by which `cuGetProcAddress` finds it.
    fn name(&self) -> &'static [u8] {
        self.symbol().to_bytes().get(..usize::from(self.name_bytes)).unwrap_or_default()
    }

    /// The symbol that the shim exports.
    pub(crate) fn symbol(&self) -> &'static CStr {
        self.slot.symbol()
    }

    /// The real function, or null if the library is not loaded or lacks it.
    pub(crate) fn real(&self) -> *mut c_void {
        self.slot.get()
    }

    pub(crate) fn library(&self) -> Library {
        self.slot.library()
    }
}

/// The first version with per-thread default streams.
const PER_THREAD_SINCE: u32 = 7000;

/// Greater than the length of the longest name.
const NAME_BYTES_MAX: usize = 96;

const fn begins_with(bytes: &[u8], start: &[u8]) -> bool {
    match (bytes, start) {
        (_, []) => true,
        ([byte, bytes @ ..], [first, start @ ..]) => *byte == *first && begins_with(bytes, start),
        ([], _) => false,
    }
}

/// The hash FNV-1a of `bytes`.
const fn hash(bytes: &[u8]) -> u32 {
    let mut hash = 0x811c_9dc5_u32;
    let mut rest = bytes;
    while let [byte, tail @ ..] = rest {
        hash = (hash ^ *byte as u32).wrapping_mul(0x0100_0193);
        rest = tail;
    }
    hash
}

/// The hook of the exported symbol `symbol`.
pub(crate) fn by_symbol(symbol: &CStr) -> Option<&'static Hook> {
    let wanted = hash(symbol.to_bytes());
    let matches = |hook: &&Hook| hook.symbol_hash == wanted && hook.slot.symbol() == symbol;
    CUDA_HOOKS.iter().chain(NVML_HOOKS).find(matches)
}

/// A request to `cuGetProcAddress`.
pub(crate) struct Request<'a> {
    pub(crate) name: &'a CStr,
    /// The CUDA version of the caller.
    pub(crate) version: c_int,
    /// Whether the form with per-thread default streams is wanted, if there is one.
    pub(crate) per_thread: bool,
}

impl Request<'_> {
    /// The hook of exactly the function with which the driver answered, which is at `address`.
    pub(crate) fn answered_by(&self, address: *mut c_void) -> Option<&'static Hook> {
        let name = self.name.to_bytes();
        self.version_at(name, address).or_else(|| {
            // The only function that headers (of CUDA 12 and 13) request by another function's name.
            let is_it = name == b"cuGraphInstantiate";
            if is_it { self.version_at(b"cuGraphInstantiateWithFlags", address) } else { None }
        })
    }

    /// The hook of the version of `name` that is at `address`. If a driver has one function for several symbols,
    /// several versions match. Then it is the version with which a driver with separate functions would have answered,
    /// because the caller's arguments follow from its request.
    fn version_at(&self, name: &[u8], address: *mut c_void) -> Option<&'static Hook> {
        let wanted = hash(name);
        let is_version = |hook: &&Hook| hook.name_hash == wanted && hook.name() == name;
        // A hook can stand only for a function that the driver has.
        let versions = || CUDA_HOOKS.iter().filter(is_version).filter(|hook| !hook.real().is_null());
        let per_thread = self.per_thread && i64::from(self.version) >= i64::from(PER_THREAD_SINCE);
        // Order of preference: the wanted form; then versions that the caller can know, newest first; then newer ones,
        // oldest first.
        let fit = |hook: &&Hook| {
            let is_known = i64::from(hook.since) <= i64::from(self.version);
            let nearness = if is_known { i64::from(hook.since) } else { -i64::from(hook.since) };
            (hook.per_thread == per_thread, is_known, nearness)
        };
        if let Some(hook) = versions().filter(|hook| hook.slot.is_at(address)).max_by_key(fit) {
            return Some(hook);
        }
        // A driver may hand out another address than that in its symbol table. So it is asked for each hooked version:
        // the address that it returns for a version is that version.
        let is_handed_out = |hook: &&Hook| {
            let also = handed_out(hook);
            hook.slot.note_alias(also);
            !also.is_null() && also == address
        };
        versions().filter(is_handed_out).max_by_key(fit)
    }
}

/// The address that the driver hands out for exactly this hook's version and form, or null.
fn handed_out(hook: &Hook) -> *mut c_void {
    let mut address = core::ptr::null_mut();
    let flags = if hook.per_thread { CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM } else { 0 };
    let mut name = [0; NAME_BYTES_MAX];
    for (to, &from) in name.iter_mut().zip(hook.name()) {
        *to = from as c_char;
    }
    let name = name.as_ptr();
    let version = hook.since as c_int;
    let result = if let Some(real) = real!(cuGetProcAddress_v2) {
        // SAFETY: the arguments are what the function takes; a null status pointer is allowed.
        unsafe { real(name, &raw mut address, version, flags, core::ptr::null_mut()) }
    } else if let Some(real) = real!(cuGetProcAddress) {
        // SAFETY: as above.
        unsafe { real(name, &raw mut address, version, flags) }
    } else {
        CUresult::NOT_FOUND
    };
    if result.is_ok() { address } else { core::ptr::null_mut() }
}

macro_rules! cuda_slots {
    ($($class:ident $policy:ident : $symbol:ident $(| $per_thread:ident)? = $name:ident @ $since:literal
        ($($argument:ident : $type:ty),* $(,)?);)*) => {
        /// The real functions, looked up at their first use.
        #[allow(non_upper_case_globals, dead_code, reason = "one for each table line, named as the driver names it")]
        pub(crate) mod slots {
            use crate::driver::{Library, Slot};
            $(
                pub(crate) static $symbol: Slot = Slot::new(Library::Cuda, concat!(stringify!($symbol), "\0"));
                $(pub(crate) static $per_thread: Slot = Slot::new(Library::Cuda, concat!(stringify!($per_thread), "\0"));)?
            )*
            aliquot_abi::nvml_api!(nvml_slots);
        }

        /// The types of the real functions.
        #[allow(non_camel_case_types, dead_code, reason = "one for each table line, named as the driver names it")]
        pub(crate) mod types {
            #[allow(clippy::wildcard_imports, reason = "the table uses all the driver's types")]
            use aliquot_abi::cuda::*;
            $(
                pub(crate) type $symbol = unsafe extern "C" fn($($type),*) -> CUresult;
                $(pub(crate) type $per_thread = $symbol;)?
            )*
            pub(crate) use super::nvml_function_types::*;
        }

        static CUDA_HOOKS: &[Hook] = &cuda_hooks!([] $($class $symbol $(| $per_thread)? = $name @ $since;)*);
    };
}

macro_rules! nvml_slots {
    ($($class:ident $policy:ident : $symbol:ident $arguments:tt;)*) => {
        $(pub(crate) static $symbol: Slot = Slot::new(Library::Nvml, concat!(stringify!($symbol), "\0"));)*
    };
}

macro_rules! nvml_types {
    ($($class:ident $policy:ident : $symbol:ident ($($argument:ident : $type:ty),* $(,)?);)*) => {
        /// The types of NVML's real functions.
        #[allow(non_camel_case_types, dead_code, reason = "one for each table line, named as NVML names it")]
        mod nvml_function_types {
            #[allow(clippy::wildcard_imports, reason = "the table uses all of NVML's types")]
            use aliquot_abi::nvml::*;
            $(pub(crate) type $symbol = unsafe extern "C" fn($($type),*) -> nvmlReturn_t;)*
        }

        static NVML_HOOKS: &[Hook] = &nvml_hooks!([] $($class $symbol;)*);
    };
}

/// One [`Hook`] for each line whose class is not `forward`, and another one for its per-thread form.
macro_rules! cuda_hooks {
    ([$($done:tt)*]) => { [$($done)*] };
    ([$($done:tt)*] forward $symbol:ident $(| $per_thread:ident)? = $name:ident @ $since:literal; $($rest:tt)*) => {
        cuda_hooks!([$($done)*] $($rest)*)
    };
    ([$($done:tt)*] $class:ident $symbol:ident = $name:ident @ $since:literal; $($rest:tt)*) => {
        cuda_hooks!([$($done)* hook!($symbol, $name, $since, false),] $($rest)*)
    };
    ([$($done:tt)*] $class:ident $symbol:ident | $per_thread:ident = $name:ident @ $since:literal; $($rest:tt)*) => {
        cuda_hooks!([
            $($done)*
            hook!($symbol, $name, $since, false),
            hook!($per_thread, $name, if $since > PER_THREAD_SINCE { $since } else { PER_THREAD_SINCE }, true),
        ] $($rest)*)
    };
}

macro_rules! nvml_hooks {
    ([$($done:tt)*]) => { [$($done)*] };
    ([$($done:tt)*] forward $symbol:ident; $($rest:tt)*) => { nvml_hooks!([$($done)*] $($rest)*) };
    ([$($done:tt)*] $class:ident $symbol:ident; $($rest:tt)*) => {
        nvml_hooks!([$($done)* hook!($symbol, $symbol, 0, false),] $($rest)*)
    };
}

macro_rules! hook {
    ($symbol:ident, $name:ident, $since:expr, $per_thread:literal) => {
        Hook::new(
            &slots::$symbol,
            stringify!($symbol),
            stringify!($name),
            $since,
            $per_thread,
            crate::exports::$symbol as *const c_void,
        )
    };
}

aliquot_abi::cuda_api!(cuda_slots);
aliquot_abi::nvml_api!(nvml_types);
