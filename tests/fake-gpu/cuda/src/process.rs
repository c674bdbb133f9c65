//! This process's state: made by `cuInit`, lost in the child of a fork.

use core::ffi::{c_int, c_uint, c_void};
use core::sync::atomic::{AtomicPtr, Ordering};
use std::sync::{Mutex, PoisonError};

use aliquot_abi::cuda::CUresult;
use aliquot_fake_machine::{Config, Machine, Member, Mode, now_ns};

use crate::Done;
use crate::device::{Device, visible_devices};

/// The state that `cuInit` makes.
pub(crate) struct Process {
    pub(crate) member: Member,
    pub(crate) config: &'static Config,
    /// The devices selected by `CUDA_VISIBLE_DEVICES`, in its order.
    pub(crate) devices: Vec<Device>,
    pub(crate) instant: bool,
    /// Whether `CUDA_LAUNCH_BLOCKING` is 1: the launch of a kernel returns when the kernel has ended.
    pub(crate) launches_block: bool,
}

/// A page with the address of the [`Process`], which the kernel wipes in the child of a fork. Null before `cuInit`.
static PAGE: AtomicPtr<AtomicPtr<Process>> = AtomicPtr::new(core::ptr::null_mut());
static STARTING: Mutex<()> = Mutex::new(());

/// The process's state, if it is initialised. The child of an initialised process is not.
#[inline]
pub(crate) fn process() -> Done<&'static Process> {
    let page = PAGE.load(Ordering::Acquire);
    if page.is_null() {
        return Err(CUresult::NOT_INITIALIZED);
    }
    // SAFETY: the page is never unmapped and holds one pointer.
    let process = unsafe { &*page }.load(Ordering::Acquire);
    if process.is_null() {
        return Err(CUresult::NOT_INITIALIZED);
    }
    // SAFETY: the pointer is to a leaked Process; it is cleared only in the child of a fork, which has its own copy.
    Ok(unsafe { &*process })
}

/// The process's state, for code that only an initialised process can reach.
pub(crate) fn initialised() -> &'static Process {
    match process() {
        Ok(process) => process,
        // Only the child of a fork gets here, if it uses objects of its parent.
        Err(_) => std::process::abort(),
    }
}

/// Whether the parent of this process was initialised when it forked.
fn is_forked_child() -> bool {
    !PAGE.load(Ordering::Acquire).is_null() && process().is_err()
}

pub(crate) fn cuInit(flags: c_uint) -> Done {
    if flags != 0 {
        return Err(CUresult::INVALID_VALUE);
    }
    if process().is_ok() {
        return Ok(());
    }
    if is_forked_child() {
        return Err(CUresult::NOT_INITIALIZED);
    }
    let _starting = STARTING.lock().unwrap_or_else(PoisonError::into_inner);
    if process().is_ok() { Ok(()) } else { start() }
}

/// There are no checkpoints, so none is restored.
pub(crate) fn cuCheckpointProcessRestore(_: c_int, _: *mut c_void) -> Done {
    process()?;
    Err(CUresult::NOT_SUPPORTED)
}

fn start() -> Done {
    let config = Config::from_env().map_err(report)?;
    let machine: &'static Machine = Box::leak(Box::new(Machine::open(config).map_err(report)?));
    let config = machine.config();
    let visible = visible_devices(machine, std::env::var("CUDA_VISIBLE_DEVICES").ok().as_deref());
    if visible.is_empty() {
        return Err(CUresult::NO_DEVICE);
    }
    let member = machine.join().map_err(report)?;
    let page = reserve_memory_range(4096).ok_or(CUresult::OUT_OF_MEMORY)?;
    // SAFETY: the page was mapped just now and is not used elsewhere.
    if unsafe { libc::madvise(page, 4096, libc::MADV_WIPEONFORK) } != 0 || !crate::handles::prepare() {
        return Err(CUresult::OUT_OF_MEMORY);
    }
    let devices = visible.into_iter().enumerate().map(|(ordinal, index)| Device::new(ordinal, index, config));
    let devices = devices.collect::<Option<Vec<_>>>().ok_or(CUresult::OUT_OF_MEMORY)?;
    let instant = config.mode == Mode::Instant;
    let launches_block = std::env::var("CUDA_LAUNCH_BLOCKING").is_ok_and(|value| value == "1");
    let process: &'static Process = Box::leak(Box::new(Process { member, config, devices, instant, launches_block }));
    // Before any other thread takes the process for initialised.
    crate::device::make_primary_contexts(process);
    let page = page.cast::<AtomicPtr<Process>>();
    // SAFETY: a new zeroed page holds a null pointer.
    unsafe { &*page }.store(core::ptr::from_ref(process).cast_mut(), Ordering::Release);
    PAGE.store(page, Ordering::Release);
    Ok(())
}

/// Prints once why there is no device.
fn report(error: aliquot_fake_machine::MachineError) -> CUresult {
    static SAID: std::sync::Once = std::sync::Once::new();
    SAID.call_once(|| eprintln!("simulated GPU: {error}"));
    CUresult::NO_DEVICE
}

/// Ends the process when it uses a stale handle, as NVIDIA's driver does by following a pointer into freed memory.
#[cold]
pub(crate) fn die_of_stale(what: &str) -> ! {
    eprintln!("simulated GPU: the program uses {what}, which ends it on NVIDIA's driver");
    // Twice, because a signal handler may only remove itself and return, as Rust's does.
    for _ in 0..2 {
        // SAFETY: raising a signal runs the program's own handler, if it has one; if that returns, the process ends
        // below.
        unsafe { libc::raise(libc::SIGSEGV) };
    }
    std::process::abort()
}

/// Keeps the calling thread busy for as long as a call takes in NVIDIA's driver.
#[inline]
pub(crate) fn keep_processor(duration_ns: u64) {
    if duration_ns > 0 {
        let end_ns = now_ns() + duration_ns;
        while now_ns() < end_ns {
            core::hint::spin_loop();
        }
    }
}

/// Reserves zeroed address space, which takes no memory until it is touched. It is never unmapped.
pub(crate) fn reserve_memory_range(bytes: usize) -> Option<*mut c_void> {
    // SAFETY: a fresh anonymous mapping.
    let address = unsafe {
        libc::mmap(
            core::ptr::null_mut(),
            bytes,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
            -1,
            0,
        )
    };
    (address != libc::MAP_FAILED).then_some(address)
}
