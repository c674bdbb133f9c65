//! The exported functions, expanded from the table of `aliquot-abi`; each calls the implementation of the same name.

#![allow(unreachable_pub, reason = "these functions are what the library exports")]
#![allow(clippy::missing_safety_doc, reason = "NVML's documentation says what each function may be given")]

use aliquot_abi::nvml::*;

/// The modules with the implementations.
mod implementations {
    pub(super) use crate::accounting::*;
    pub(super) use crate::devices::*;
    pub(super) use crate::events::*;
    pub(super) use crate::fields::*;
    pub(super) use crate::memory::*;
    pub(super) use crate::mig::*;
    pub(super) use crate::partition::*;
    pub(super) use crate::processes::*;
    pub(super) use crate::sensors::*;
    pub(super) use crate::session::*;
    pub(super) use crate::topology::*;
    pub(super) use crate::utilisation::*;
}

macro_rules! exports {
    ($($class:ident $policy:ident: $symbol:ident($($argument:ident: $kind:ty),*);)*) => {$(
        #[cfg_attr(not(test), unsafe(no_mangle))]
        pub unsafe extern "C" fn $symbol($($argument: $kind),*) -> nvmlReturn_t {
            match implementations::$symbol($($argument),*) {
                Ok(()) => nvmlReturn_t::SUCCESS,
                Err(error) => error,
            }
        }
    )*};
}

aliquot_abi::nvml_api!(exports);

/// The only function that does not return a code.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn nvmlErrorString(result: nvmlReturn_t) -> *const c_char {
    result.text_with_nul().as_ptr().cast()
}
