//! What NVML lists for a process, and what its slice's ledger has for it, for memory of several kinds and sizes. NVML is
//! asked without the shim, and the ledger is read from its file.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use aliquot_abi::ledger::held_bytes;
use aliquot_abi::region::SlotDevice;
use anyhow::Context;

use crate::cases::markers::own_slot;
use crate::cases::memory::KINDS;
use crate::cuda::Done;
use crate::findings::Findings;
use crate::scene::{ROUNDING_BYTES, Scene};
use crate::truth::listed_bytes;
use crate::way::Way;

const MIB: u64 = 1 << 20;
/// Allocations of each size. Several, because small ones share the memory that the driver takes.
const COUNT: u64 = 8;
/// The kinds of memory, and the bytes of an allocation.
const TAKEN: [(&str, u64); 6] = [
    ("cuMemAlloc", 1),
    ("cuMemAlloc", MIB + MIB / 10),
    ("cuMemAlloc", 2 * MIB + 1),
    ("cuMemAllocAsync", 10 * MIB),
    ("cuMemAllocFromPoolAsync", 10 * MIB),
    ("cuMemCreate", 10 * MIB),
];
/// The longest time until the node manager has learned what the driver lists: it looks once per second.
const LOOK_TIMEOUT: Duration = Duration::from_secs(10);
const LOOK_INTERVAL: Duration = Duration::from_millis(50);

pub(super) fn run(scene: &Scene, findings: &mut Findings) -> anyhow::Result<()> {
    let cuda = &scene.cuda;
    let uuid = cuda.uuid()?;
    let listed = || listed_bytes(&uuid, std::process::id());
    let before = match listed() {
        Ok(bytes) => bytes,
        Err(error) => {
            findings.skip("what NVML lists for a process", format!("{error:#}"));
            return Ok(());
        }
    };
    // A context takes memory that NVML lists for no process, and the slice is charged for it.
    let unlisted = scene.limits.context_bytes.saturating_sub(before);
    // This slice has one device, so one part.
    let charged = match scene.way {
        Way::Bare => None,
        _ => {
            let slot = own_slot()?.context("this process has no slot in its slice's ledger")?;
            Some(Charged { part: &slot.devices[0], unlisted })
        }
    };
    let at_first = charged.as_ref().map(|charged| charged.settled(before)).unwrap_or_default();
    for (name, bytes) in TAKEN {
        let kind = KINDS.iter().find(|kind| kind.name == name).with_context(|| format!("there is no kind {name}"))?;
        let what = format!("{COUNT} times {bytes} bytes by {name}");
        if let Some(why) = kind.missing(cuda) {
            findings.skip(what, why);
            continue;
        }
        let taken = (0..COUNT).map(|_| (kind.take)(cuda, bytes)).collect::<Done<Vec<_>>>()?;
        let more = listed()?.saturating_sub(before);
        findings.figure(format!("{what}: listed by NVML"), more as f64 / MIB as f64, "MiB");
        if let Some(charged) = &charged {
            let asked = held_bytes(&charged.part.memory);
            let all = charged.settled(before + more);
            findings.figure(format!("{what}: charged in the ledger"), asked as f64 / MIB as f64, "MiB in all");
            findings.figure(
                format!("{what}: more charged, with what the driver takes beyond"),
                all.saturating_sub(at_first) as f64 / MIB as f64,
                "MiB",
            );
            findings.expect(
                format!("{what}: the slice is charged for what NVML lists"),
                charged.is_right(all, before + more),
                format!("{all} bytes are charged, {} are listed and {unlisted} of a context are not", before + more),
            );
        }
        taken.into_iter().try_for_each(|held| (held.give_back)(cuda))?;
        if let Some(charged) = &charged {
            charged.settled(before);
        }
    }
    Ok(())
}

/// What this process is charged for.
struct Charged {
    part: &'static SlotDevice,
    /// Bytes of a context that NVML does not list.
    unlisted: u64,
}

impl Charged {
    /// The bytes, with those that the driver takes beyond, when they are right for what is listed, or do not become so.
    fn settled(&self, listed: u64) -> u64 {
        let start = Instant::now();
        loop {
            let bytes = held_bytes(&self.part.memory) + self.part.overhead_bytes.load(Ordering::Acquire);
            if self.is_right(bytes, listed) || start.elapsed() > LOOK_TIMEOUT {
                return bytes;
            }
            std::thread::sleep(LOOK_INTERVAL);
        }
    }

    /// Whether `bytes` are those that are listed, or up to those of a context more.
    fn is_right(&self, bytes: u64, listed: u64) -> bool {
        (listed.saturating_sub(ROUNDING_BYTES)..=listed + self.unlisted + ROUNDING_BYTES).contains(&bytes)
    }
}
