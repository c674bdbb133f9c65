//! The library, with one method for each line of the table.

use aliquot_abi::nvml::*;
use libloading::Library;

/// The environment variable with the path of the library that the test has built.
pub(crate) const LIBRARY_VARIABLE: &str = "FAKE_NVML_TEST_LIBRARY";

pub(crate) struct Nvml(Library);

macro_rules! methods {
    ($($class:ident $policy:ident: $symbol:ident($($argument:ident: $kind:ty),*);)*) => {
        #[allow(non_snake_case, dead_code, reason = "NVML's functions")]
        impl Nvml {
            $(pub(crate) fn $symbol(&self, $($argument: $kind),*) -> nvmlReturn_t {
                type Function = unsafe extern "C" fn($($kind),*) -> nvmlReturn_t;
                // SAFETY: the symbol has the type that the table gives it, and the tests pass what NVML allows or what
                // it must refuse.
                unsafe {
                    let function = self.0.get::<Function>(stringify!($symbol)).expect(stringify!($symbol));
                    function($($argument),*)
                }
            })*
        }
    };
}

aliquot_abi::nvml_api!(methods);

impl Nvml {
    pub(crate) fn load() -> Nvml {
        let path =
            std::env::var_os(LIBRARY_VARIABLE).expect("the test that started this process says where the library is");
        // SAFETY: loading the library runs no code of consequence.
        Nvml(unsafe { Library::new(path) }.expect("the library loads"))
    }
}

/// Expectations of a test about a result.
pub(crate) trait Expect {
    /// Fails the test unless the call has succeeded.
    fn ok(self);
    /// Fails the test unless the call was refused with this code.
    fn is(self, expected: nvmlReturn_t);
}

impl Expect for nvmlReturn_t {
    #[track_caller]
    fn ok(self) {
        self.is(nvmlReturn_t::SUCCESS);
    }

    #[track_caller]
    fn is(self, expected: nvmlReturn_t) {
        assert_eq!(self.text_with_nul(), expected.text_with_nul());
    }
}
