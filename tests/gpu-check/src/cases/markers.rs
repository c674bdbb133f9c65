//! Progress markers: whether the device itself can write into a page of a shared file, and whether the shim lets it.

use std::ffi::OsStr;
use std::fs::File;
use std::num::NonZeroUsize;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use aliquot_abi::cuda::{CU_MEMHOSTREGISTER_DEVICEMAP, CU_MEMHOSTREGISTER_PORTABLE};
use aliquot_abi::ledger::identity;
use aliquot_abi::region::{LEDGER_FILE, LEDGER_FILE_BYTES, LEDGER_MAGIC, Ledger, SLOTS_MAX};
use anyhow::{Context, bail};
use nix::sys::mman::{MapFlags, ProtFlags, mmap};

use crate::cuda::{Cuda, Shape, call};
use crate::findings::Findings;
use crate::scene::Scene;
use crate::way::Way;

const PAGE_BYTES: NonZeroUsize = NonZeroUsize::new(4096).unwrap();
const WRITTEN: u64 = 0x00a1_1c07;
const TIMEOUT: Duration = Duration::from_secs(60);

pub(super) fn run(scene: &Scene, findings: &mut Findings) -> anyhow::Result<()> {
    let cuda = &scene.cuda;
    let by_device = match write_by_device(cuda) {
        Ok(after) => {
            let saw = format!("{} µs after the kernel before it was launched", after.as_micros());
            findings.expect("the device writes into a page of a shared file", true, saw);
            true
        }
        Err(error) => {
            findings
                .skip("the device writes into a page of a shared file", format!("{error:#}: events take its place"));
            false
        }
    };
    if scene.way == Way::Limited {
        markers_of_this_process(scene, findings, by_device)?;
    }
    Ok(())
}

/// Lets a stream memory operation behind a kernel write into a page of a file that others could map. Returns how long
/// it took.
fn write_by_device(cuda: &Cuda) -> anyhow::Result<Duration> {
    const CAN_USE_64_BIT_STREAM_MEM_OPS: u32 = 93;
    if cuda.attribute(CAN_USE_64_BIT_STREAM_MEM_OPS)? == 0 {
        bail!("the device has no stream memory operations of 64 bits");
    }
    let file = tempfile::tempfile()?;
    file.set_len(PAGE_BYTES.get() as u64)?;
    // SAFETY: a new mapping; it stays for as long as the process lives.
    let page = unsafe {
        mmap(None, PAGE_BYTES, ProtFlags::PROT_READ | ProtFlags::PROT_WRITE, MapFlags::MAP_SHARED, &file, 0)
    }?;
    let mut address = 0;
    let stream = cuda.stream()?;
    let flags = CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP;
    // SAFETY: the page is mapped for as long as the process lives; the output is a live local.
    unsafe {
        call!(cuda, cuMemHostRegister_v2(page.as_ptr(), PAGE_BYTES.get(), flags))?;
        call!(cuda, cuMemHostGetDevicePointer_v2(&mut address, page.as_ptr(), 0))?;
    }
    let start = Instant::now();
    cuda.launch(cuda.kernel(c"spin_ns")?, Shape::ONE, stream, 1_000_000)?;
    // SAFETY: the driver checks the address, which is that of the page.
    unsafe { call!(cuda, cuStreamWriteValue64_v2(stream, address, WRITTEN, 0)) }
        // SAFETY: as above; drivers before CUDA 11.7 have only the first version.
        .or_else(|_| unsafe { call!(cuda, cuStreamWriteValue64(stream, address, WRITTEN, 0)) })?;
    // SAFETY: the page is mapped and aligned; the device writes it as one word.
    let cell = unsafe { &*page.as_ptr().cast::<AtomicU64>() };
    while cell.load(Ordering::Acquire) != WRITTEN {
        if start.elapsed() > TIMEOUT {
            bail!("the device has written nothing after {} s", TIMEOUT.as_secs());
        }
        std::hint::spin_loop();
    }
    let took = start.elapsed();
    cuda.finish(stream)?;
    Ok(took)
}

/// What the shim of this very process does, as its slot in the ledger shows it.
fn markers_of_this_process(scene: &Scene, findings: &mut Findings, by_device: bool) -> anyhow::Result<()> {
    let cuda = &scene.cuda;
    let ledger = own_ledger()?;
    let (spin, stream) = (cuda.kernel(c"spin_ns")?, cuda.stream()?);
    for _ in 0..20 {
        cuda.launch(spin, Shape::ONE, stream, 1_000_000)?;
    }
    cuda.finish(stream)?;
    let pid = std::process::id();
    let slot = (1..SLOTS_MAX).find(|&index| identity(ledger, index).is_some_and(|owner| owner.pid == pid));
    findings.expect("this process has a slot in its slice's ledger", slot.is_some(), "");
    let Some(slot) = slot.and_then(|index| ledger.slots.get(index)) else { return Ok(()) };
    // A slice has parts in the order of its devices; this one has one.
    let (device, row) = (&slot.devices[0], &slot.markers[0]);
    let submitted = device.marker_submitted.load(Ordering::Acquire);
    findings.expect("launches in a slice leave markers", submitted > 0, format!("{submitted} markers"));
    let is_by_device = device.markers_by_device.load(Ordering::Relaxed) != 0;
    findings.expect(
        "markers are written by the device wherever it can",
        is_by_device == by_device,
        if is_by_device { "by the device" } else { "by the process, from events" },
    );
    if is_by_device {
        let newest = row.iter().map(|cell| cell.load(Ordering::Acquire)).max().unwrap_or(0);
        findings.expect(
            "all markers are written when the stream is done",
            newest == submitted,
            format!("{newest} of {submitted}"),
        );
    }
    Ok(())
}

/// The ledger beside the library that this process was started with.
fn own_ledger() -> anyhow::Result<&'static Ledger> {
    let preload = std::env::var_os("LD_PRELOAD").context("LD_PRELOAD is not set")?;
    let first = preload.as_bytes().split(|&byte| byte == b':').next().unwrap_or_default();
    let path = Path::new(OsStr::from_bytes(first)).with_file_name(LEDGER_FILE);
    let file = File::open(&path).with_context(|| format!("cannot open {}", path.display()))?;
    let bytes = NonZeroUsize::new(LEDGER_FILE_BYTES).context("a ledger has a size")?;
    if file.metadata()?.len() != LEDGER_FILE_BYTES as u64 {
        bail!("{} is of another version", path.display());
    }
    // SAFETY: a new mapping of a file of this size; it stays for as long as the process lives.
    let mapping: NonNull<_> = unsafe { mmap(None, bytes, ProtFlags::PROT_READ, MapFlags::MAP_SHARED, &file, 0) }?;
    // SAFETY: a ledger is valid whatever its bytes are, and smaller than its file; everything in it is an atomic.
    let ledger = unsafe { mapping.cast::<Ledger>().as_ref() };
    if let Err(error) = ledger.header.check(LEDGER_MAGIC, LEDGER_FILE_BYTES) {
        bail!("{} cannot be used: {error:?}", path.display());
    }
    Ok(ledger)
}
