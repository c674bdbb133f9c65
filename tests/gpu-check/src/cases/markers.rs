//! Progress markers: whether the device itself can write into a page of a shared file, and whether the shim lets it.

use std::ffi::OsStr;
use std::fs::File;
use std::num::NonZeroUsize;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::ptr::NonNull;
use std::sync::atomic::Ordering;

use aliquot_abi::ledger::identity;
use aliquot_abi::region::{LEDGER_FILE, LEDGER_FILE_BYTES, LEDGER_MAGIC, Ledger, SLOTS_MAX, Slot};
use anyhow::{Context, bail};
use nix::sys::mman::{MapFlags, ProtFlags, mmap};

use crate::cuda::Shape;
use crate::facts::write_into_a_page;
use crate::findings::Findings;
use crate::manager::is_in_memory;
use crate::scene::Scene;
use crate::way::Way;

pub(super) fn run(scene: &Scene, findings: &mut Findings) -> anyhow::Result<()> {
    // The attributes are not reliable: on some devices the one for the calls' first version is 0 although the calls
    // exist.
    const WHAT: &str = "the device writes into a page of a shared file in memory";
    let by_device = match write_into_a_page(&scene.cuda) {
        Ok(after) => {
            findings.expect(WHAT, true, format!("{} us after the call", after.as_micros()));
            true
        }
        Err(error) => {
            findings.skip(WHAT, format!("{error:#}: events take its place"));
            false
        }
    };
    if scene.way == Way::Limited {
        markers_of_this_process(scene, findings, by_device)?;
    }
    Ok(())
}

/// The shim's use of markers in this process, as its slot in the ledger shows it.
fn markers_of_this_process(scene: &Scene, findings: &mut Findings, by_device: bool) -> anyhow::Result<()> {
    let cuda = &scene.cuda;
    let (spin, stream) = (cuda.kernel(c"spin_ns")?, cuda.stream()?);
    for _ in 0..20 {
        cuda.launch(spin, Shape::ONE, stream, 1_000_000)?;
    }
    cuda.finish(stream)?;
    let slot = own_slot()?;
    findings.expect("this process has a slot in its slice's ledger", slot.is_some(), "");
    let Some(slot) = slot else { return Ok(()) };
    // This slice has one device, so one part.
    let device = &slot.devices[0];
    let row = slot.row(0).context("the slot has no row of markers")?;
    let submitted = device.marker_submitted.load(Ordering::Acquire);
    findings.expect("launches in a slice leave markers", submitted > 0, format!("{submitted} markers"));
    let is_by_device = device.markers_by_device.load(Ordering::Relaxed) != 0;
    // The driver does not register pages of files on a disk, where the ledger is if no directory in memory can be used.
    let can_be = by_device && ledger_file()?.parent().is_some_and(is_in_memory);
    findings.expect(
        "markers are written by the device wherever it can",
        is_by_device == can_be,
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

/// This process's slot in its slice's ledger. `None`: it has not used the device.
pub(in crate::cases) fn own_slot() -> anyhow::Result<Option<&'static Slot>> {
    let (ledger, pid) = (own_ledger()?, std::process::id());
    let slot = (1..SLOTS_MAX).find(|&index| identity(ledger, index).is_some_and(|owner| owner.pid == pid));
    Ok(slot.and_then(|index| ledger.slots.get(index)))
}

/// The ledger's file, in the directory of the preloaded shim.
fn ledger_file() -> anyhow::Result<PathBuf> {
    let preload = std::env::var_os("LD_PRELOAD").context("LD_PRELOAD is not set")?;
    let first = preload.as_bytes().split(|&byte| byte == b':').next().unwrap_or_default();
    Ok(Path::new(OsStr::from_bytes(first)).with_file_name(LEDGER_FILE))
}

fn own_ledger() -> anyhow::Result<&'static Ledger> {
    let path = ledger_file()?;
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
