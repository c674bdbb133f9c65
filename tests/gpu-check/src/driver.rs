//! The driver's functions, found as a plain program finds them: by `dlopen` and `dlsym`. No CUDA toolkit is needed.

use std::ffi::{c_int, c_void};
use std::{mem, ptr};

use aliquot_abi::cuda::{CU_GET_PROC_ADDRESS_LEGACY_STREAM, CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM, CUresult};
use anyhow::Context;
use libloading::Library;
use libloading::os::unix;

/// The driver's library, by the name that every program uses.
const LIBRARY: &str = "libcuda.so.1";

/// The CUDA version that brought the forms for per-thread default streams.
const PER_THREAD_SINCE: c_int = 7000;

/// A line of the table of driver functions, with the names for looking it up.
pub(crate) struct Line {
    /// The exported symbol.
    pub(crate) symbol: &'static str,
    /// The name for `cuGetProcAddress`.
    pub(crate) name: &'static str,
    /// The first CUDA version whose programs get this symbol for the name.
    pub(crate) since: c_int,
    /// Whether it is the form for per-thread default streams.
    pub(crate) is_per_thread: bool,
}

macro_rules! driver {
    ($($class:ident $policy:ident: $symbol:ident $(| $per_thread:ident)? = $name:ident @ $since:literal ($($argument:ident: $type:ty),*);)*) => {
        /// The functions' types, by symbol.
        #[allow(non_camel_case_types, reason = "the names are those of the driver API")]
        pub(crate) mod types {
            use aliquot_abi::cuda::*;

            $(pub(crate) type $symbol = unsafe extern "C" fn($($type),*) -> CUresult;)*
        }

        /// The driver's functions; `None` for functions that this driver lacks.
        #[allow(non_snake_case, reason = "the names are those of the driver API")]
        #[allow(dead_code, reason = "the table holds more functions than the check calls")]
        pub(crate) struct Driver {
            $(
                pub(crate) $symbol: Option<types::$symbol>,
                $(pub(crate) $per_thread: Option<types::$symbol>,)?
            )*
            /// The library. It must stay loaded as long as its functions are called.
            pub(crate) library: Library,
        }

        impl Driver {
            /// Loads the driver.
            pub(crate) fn load() -> anyhow::Result<Driver> {
                // Into the process's global scope, as for a program linked to the driver.
                // SAFETY: the driver's initialisers are made to run in any process.
                let library = unsafe { unix::Library::open(Some(LIBRARY), unix::RTLD_NOW | unix::RTLD_GLOBAL) };
                let library = Library::from(library.with_context(|| format!("cannot load {LIBRARY}"))?);
                // SAFETY: each type is that of NVIDIA's documentation for exactly this symbol, and the library stays
                // loaded beside the functions.
                unsafe {
                    Ok(Driver {
                        $(
                            $symbol: find(&library, concat!(stringify!($symbol), "\0")),
                            $($per_thread: find(&library, concat!(stringify!($per_thread), "\0")),)?
                        )*
                        library,
                    })
                }
            }
        }

        impl Driver {
            /// Takes the functions that `cuGetProcAddress` gives, where it gives one, as programs of the CUDA runtime do.
            /// Returns the symbols of these functions.
            pub(crate) fn take_given(&mut self) -> Vec<&'static str> {
                let get = Get { v1: self.cuGetProcAddress, v2: self.cuGetProcAddress_v2 };
                let mut taken = Vec::new();
                $(
                    if let Some(address) = get.ask(concat!(stringify!($name), "\0"), $since, false) {
                        // SAFETY: for this version the name stands for exactly this symbol, so the type is its type.
                        let function = unsafe { mem::transmute::<*mut c_void, types::$symbol>(address) };
                        self.$symbol = Some(function);
                        taken.push(stringify!($symbol));
                    }
                    $(
                        let since = if $since > PER_THREAD_SINCE { $since } else { PER_THREAD_SINCE };
                        if let Some(address) = get.ask(concat!(stringify!($name), "\0"), since, true) {
                            // SAFETY: as above; the forms for per-thread default streams have the same type.
                            let function = unsafe { mem::transmute::<*mut c_void, types::$symbol>(address) };
                            self.$per_thread = Some(function);
                            taken.push(stringify!($per_thread));
                        }
                    )?
                )*
                taken
            }
        }

        /// The whole table.
        pub(crate) const TABLE: &[Line] = &[
            $(
                Line {
                    symbol: concat!(stringify!($symbol), "\0"),
                    name: concat!(stringify!($name), "\0"),
                    since: $since,
                    is_per_thread: false,
                },
                $(Line {
                    symbol: concat!(stringify!($per_thread), "\0"),
                    name: concat!(stringify!($name), "\0"),
                    since: if $since > PER_THREAD_SINCE { $since } else { PER_THREAD_SINCE },
                    is_per_thread: true,
                },)?
            )*
        ];
    };
}

/// The function `symbol`, a name with a closing NUL.
///
/// # Safety
/// `F` must be the function's type.
unsafe fn find<F: Copy>(library: &Library, symbol: &str) -> Option<F> {
    // SAFETY: by this function's contract.
    unsafe { library.get::<F>(symbol.as_bytes()) }.ok().map(|function| *function)
}

/// The driver's versions of `cuGetProcAddress`.
struct Get {
    v1: Option<types::cuGetProcAddress>,
    v2: Option<types::cuGetProcAddress_v2>,
}

impl Get {
    /// The address that programs of CUDA `version` get for `name`, which has a closing NUL.
    fn ask(&self, name: &str, version: c_int, is_per_thread: bool) -> Option<*mut c_void> {
        let flags = match is_per_thread {
            true => CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM,
            false => CU_GET_PROC_ADDRESS_LEGACY_STREAM,
        };
        let (name, mut found, mut status) = (name.as_ptr().cast(), ptr::null_mut(), 0);
        let result = match (self.v2, self.v1) {
            // SAFETY: the name ends with a NUL; the outputs are live locals.
            (Some(get), _) => unsafe { get(name, &mut found, version, flags, &mut status) },
            // SAFETY: the name ends with a NUL; the output is a live local.
            (None, Some(get)) => unsafe { get(name, &mut found, version, flags) },
            (None, None) => CUresult::NOT_FOUND,
        };
        (result.is_ok() && !found.is_null()).then_some(found)
    }
}

aliquot_abi::cuda_api!(driver);
