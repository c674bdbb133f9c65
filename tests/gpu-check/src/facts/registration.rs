//! Which files' pages can be registered with the driver, so that the device can write into them. Regions must lie on
//! such a file system. On an H100 with driver 580.159.04 a page of a file in memory took 70 to 180 us, and one of a file
//! on a disk was refused.

use std::fs::File;
use std::num::NonZeroUsize;
use std::os::fd::AsFd;
use std::ptr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use aliquot_abi::cuda::{CU_MEMHOSTREGISTER_DEVICEMAP, CU_MEMHOSTREGISTER_PORTABLE, CUcontext, CUdeviceptr};
use anyhow::bail;
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::mman::{MapFlags, ProtFlags, mmap};

use crate::cuda::{Cuda, Shape, call};
use crate::findings::Findings;
use crate::scene::Scene;

const PAGE_BYTES: NonZeroUsize = NonZeroUsize::new(4096).unwrap();
const KERNEL_NS: u64 = 300_000_000;
const TIMEOUT: Duration = Duration::from_secs(10);

pub(super) fn run(scene: &Scene, findings: &mut Findings) -> anyhow::Result<()> {
    let cuda = &scene.cuda;
    let in_memory = tempfile::tempfile_in("/dev/shm")?;
    let anonymous = File::from(memfd_create(c"page", MFdFlags::MFD_CLOEXEC)?);
    for (name, file, must) in [
        ("a file in /dev/shm", &in_memory, true),
        ("a memory file", &anonymous, true),
        ("a file in the directory for temporary files", &tempfile::tempfile()?, false),
    ] {
        let start = Instant::now();
        match Page::register(cuda, file) {
            Ok(page) => {
                findings.figure(format!("registering a page of {name}"), start.elapsed().as_secs_f64() * 1e6, "us");
                let took = page.write(cuda)?;
                findings.expect(format!("the device writes into a page of {name}"), true, "");
                findings.figure(format!("until a write into {name} is seen"), took.as_secs_f64() * 1e6, "us");
            }
            Err(error) if must => {
                findings.expect(format!("a page of {name} can be registered"), false, error.to_string());
            }
            Err(error) => findings.skip(format!("a page of {name} can be registered"), error.to_string()),
        }
    }
    beside_a_kernel(cuda, findings)?;
    in_another_context(cuda, findings)
}

/// Whether registering waits for running kernels.
fn beside_a_kernel(cuda: &Cuda, findings: &mut Findings) -> anyhow::Result<()> {
    let (spin, stream) = (cuda.kernel(c"spin_ns")?, cuda.stream()?);
    cuda.launch(spin, Shape::ONE, stream, KERNEL_NS)?;
    let start = Instant::now();
    Page::register(cuda, &tempfile::tempfile_in("/dev/shm")?)?;
    let took = start.elapsed();
    findings.figure("registering a page beside a kernel of 300 ms", took.as_secs_f64() * 1e6, "us");
    findings.expect(
        "registering a page does not wait for kernels",
        took < Duration::from_nanos(KERNEL_NS / 2),
        format!("it took {} us", took.as_micros()),
    );
    Ok(cuda.finish(stream)?)
}

/// Whether the page has the same address in all contexts. The shim relies on this: it registers the page once.
fn in_another_context(cuda: &Cuda, findings: &mut Findings) -> anyhow::Result<()> {
    let page = Page::register(cuda, &tempfile::tempfile_in("/dev/shm")?)?;
    let (mut other, mut address) = (CUcontext::NULL, 0);
    // SAFETY: outputs are live locals; the page stays mapped for as long as the process lives.
    unsafe {
        call!(cuda, cuCtxCreate_v2(&mut other, 0, cuda.device))?;
        call!(cuda, cuMemHostGetDevicePointer_v2(&mut address, page.host.cast(), 0))?;
    }
    findings.expect(
        "a page has one address in all contexts",
        address == page.address,
        format!("{address:#x} and {:#x}", page.address),
    );
    page.write(cuda)?;
    // SAFETY: nothing uses the context any more.
    unsafe { call!(cuda, cuCtxDestroy_v2(other))? };
    Ok(cuda.bind()?)
}

/// A page of a file that is registered with the driver.
pub(super) struct Page {
    host: *mut AtomicU64,
    /// The page's device address.
    pub(super) address: CUdeviceptr,
}

impl Page {
    pub(super) fn register(cuda: &Cuda, file: &File) -> anyhow::Result<Page> {
        file.set_len(PAGE_BYTES.get() as u64)?;
        let access = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
        // SAFETY: a new mapping; it stays for as long as the process lives.
        let page = unsafe { mmap(None, PAGE_BYTES, access, MapFlags::MAP_SHARED, file.as_fd(), 0) }?;
        let flags = CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP;
        let mut address = 0;
        // SAFETY: the page is mapped for as long as the process lives; the output is a live local.
        unsafe {
            call!(cuda, cuMemHostRegister_v2(page.as_ptr(), PAGE_BYTES.get(), flags))?;
            call!(cuda, cuMemHostGetDevicePointer_v2(&mut address, page.as_ptr(), 0))?;
        }
        Ok(Page { host: page.as_ptr().cast(), address })
    }

    fn cell(&self) -> &AtomicU64 {
        // SAFETY: the page is aligned and stays mapped for as long as the process lives; the device writes it as one
        // word.
        unsafe { &*self.host }
    }

    /// Lets a stream write into the page. Returns the time until the write was seen.
    pub(super) fn write(&self, cuda: &Cuda) -> anyhow::Result<Duration> {
        let mut stream = aliquot_abi::cuda::CUstream(ptr::null_mut());
        let value = self.cell().load(Ordering::Relaxed) + 1;
        // SAFETY: a context is current, and the output is a live local; the driver checks the address.
        unsafe { call!(cuda, cuStreamCreate(&mut stream, 1))? };
        let start = Instant::now();
        write_value(cuda, stream, self.address, value)?;
        while self.cell().load(Ordering::Acquire) != value {
            if start.elapsed() > TIMEOUT {
                bail!("the device has written nothing after {} s", TIMEOUT.as_secs());
            }
            std::hint::spin_loop();
        }
        Ok(start.elapsed())
    }
}

/// Lets `stream` write `value`, with the newest function that the driver supports.
pub(super) fn write_value(
    cuda: &Cuda,
    stream: aliquot_abi::cuda::CUstream,
    address: CUdeviceptr,
    value: u64,
) -> crate::cuda::Done {
    // SAFETY: the driver checks the address.
    unsafe { call!(cuda, cuStreamWriteValue64_v2(stream, address, value, 0)) }
        // SAFETY: as above; drivers before CUDA 11.7 have only the first version.
        .or_else(|_| unsafe { call!(cuda, cuStreamWriteValue64(stream, address, value, 0)) })
}
