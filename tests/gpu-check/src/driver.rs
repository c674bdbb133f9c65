//! The driver's functions, found as a plain program finds them: by `dlopen` and `dlsym`. No CUDA toolkit is needed.

use std::ffi::c_int;

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

aliquot_abi::cuda_api!(driver);
