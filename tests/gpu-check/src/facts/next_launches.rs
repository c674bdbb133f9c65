//! What a marker costs between two kernels of which the second may begin before the first has ended (programmatic stream
//! serialisation). The shim accepts that the marker ends this overlap.

use std::ffi::CStr;

use aliquot_abi::cuda::{CUfunction, CUlaunchConfig, CUmodule, CUstream, c_int, c_uint, c_void};

use crate::cuda::{Cuda, Done, call, one_thread};
use crate::facts::markers::{Mark, launches};
use crate::facts::registration::Page;
use crate::findings::Findings;
use crate::scene::Scene;

const MODULE: &CStr = match CStr::from_bytes_with_nul(concat!(include_str!("next_launches.ptx"), "\0").as_bytes()) {
    Ok(module) => module,
    Err(_) => panic!("the module has no NUL"),
};
/// `CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR`, and the first whose devices let kernels begin early.
const MAJOR: c_uint = 75;
const MAJOR_MIN: i32 = 9;
const KERNEL_NS: u64 = 30_000;
const COUNT: u32 = 200;

/// A `CUlaunchAttribute` whose value is a number.
#[repr(C)]
struct Attribute {
    id: c_uint,
    _padding: u32,
    value: c_int,
    _rest: [u8; 60],
}

impl Attribute {
    /// The kernel may begin when the one before it in its stream allows that.
    const EARLY: Attribute = Attribute { id: 6, _padding: 0, value: 1, _rest: [0; 60] };
}

pub(super) fn run(scene: &Scene, findings: &mut Findings) -> anyhow::Result<()> {
    const WHAT: &str = "kernels that begin before the one before has ended";
    let cuda = &scene.cuda;
    if cuda.attribute(MAJOR)? < MAJOR_MIN {
        findings.skip(WHAT, format!("the device's compute capability is below {MAJOR_MIN}.0"));
        return Ok(());
    }
    let kernel = match load(cuda) {
        Ok(kernel) => kernel,
        Err(error) => {
            findings.skip(WHAT, format!("the driver does not take their code: {error}"));
            return Ok(());
        }
    };
    let page = Page::register(cuda, &tempfile::tempfile_in("/dev/shm")?)?;
    let (stream, event) = (cuda.stream()?, cuda.event()?);
    let marks = [("no marker", Mark::None), ("a write", Mark::Write(page.address)), ("an event", Mark::Event(event))];
    for (order, early) in [("one after the other", false), ("begun early", true)] {
        for (mark_name, mark) in marks {
            let took = launches(cuda, stream, COUNT, mark, || launch(cuda, kernel, stream, early))?;
            took.note(findings, &format!("kernels of {} us, {order}, {mark_name} behind each", KERNEL_NS / 1000));
        }
    }
    Ok(())
}

fn load(cuda: &Cuda) -> Done<CUfunction> {
    let (mut module, mut function) = (CUmodule::NULL, CUfunction::NULL);
    // SAFETY: a context is current; the text ends with a NUL; the outputs are live locals.
    unsafe {
        call!(cuda, cuModuleLoadData(&mut module, MODULE.as_ptr().cast()))?;
        call!(cuda, cuModuleGetFunction(&mut function, module, c"spin_ns_beside_next".as_ptr()))?;
    }
    Ok(function)
}

fn launch(cuda: &Cuda, kernel: CUfunction, stream: CUstream, early: bool) -> Done {
    let mut attribute = Attribute::EARLY;
    let mut duration_ns = KERNEL_NS;
    let mut parameters: [*mut c_void; 1] = [(&raw mut duration_ns).cast()];
    let attrs = (&raw mut attribute).cast();
    let config = CUlaunchConfig { attrs, num_attrs: c_uint::from(early), ..one_thread(stream) };
    // SAFETY: the kernel has one parameter of eight bytes, which the driver copies before it returns, as the attribute.
    unsafe { call!(cuda, cuLaunchKernelEx(&config, kernel, parameters.as_mut_ptr(), std::ptr::null_mut())) }
}
