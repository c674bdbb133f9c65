//! The device memory that the driver takes for allocations of various sizes. On an H100 with driver 580.159.04 eight
//! allocations of 1 B, 1 MiB, 1.125 MiB and 2 MiB + 1 B took 2, 8, 16 and 32 MiB.

use crate::cuda::{Done, call};
use crate::findings::Findings;
use crate::nvml::Nvml;
use crate::scene::Scene;

const MIB: u64 = 1 << 20;
/// Allocations of each size. Several, because small ones share the memory that the driver takes.
const COUNT: usize = 8;
const SIZES: [u64; 7] = [1, MIB, MIB + MIB / 8, 2 * MIB, 2 * MIB + 1, 10 * MIB + 1, 64 * MIB + 1];
const POOL_PIECES: [u64; 2] = [MIB, 100 * MIB];

pub(super) fn run(scene: &Scene, findings: &mut Findings) -> anyhow::Result<()> {
    let cuda = &scene.cuda;
    let nvml = match Nvml::open() {
        Ok(nvml) => nvml,
        Err(error) => {
            findings.skip("what the driver takes", format!("{error:#}"));
            return Ok(());
        }
    };
    let uuid = cuda.uuid()?;
    let used = || nvml.used_bytes(&uuid);
    for bytes in SIZES {
        let before = used()?;
        let taken = (0..COUNT).map(|_| cuda.allocate(bytes)).collect::<Done<Vec<_>>>()?;
        let more = used()?.saturating_sub(before);
        findings.figure(format!("{COUNT} allocations of {bytes} bytes take"), more as f64 / MIB as f64, "MiB");
        taken.into_iter().try_for_each(|address| cuda.free(address))?;
        let left = used()?;
        findings.expect(
            format!("{COUNT} allocations of {bytes} bytes give back what they took"),
            left <= before,
            format!("{before} bytes before, {left} after"),
        );
    }
    let stream = cuda.stream()?;
    let before = used()?;
    let mut addresses = Vec::new();
    for bytes in POOL_PIECES {
        let mut address = 0;
        // SAFETY: the output is a live local.
        unsafe { call!(cuda, cuMemAllocAsync(&mut address, bytes as usize, stream))? };
        cuda.finish(stream)?;
        addresses.push(address);
        let more = used()?.saturating_sub(before) as f64 / MIB as f64;
        findings.figure(format!("the default pool with {} MiB more takes in all", bytes / MIB), more, "MiB");
    }
    for address in addresses {
        // SAFETY: nothing uses the memory any more.
        unsafe { call!(cuda, cuMemFreeAsync(address, stream))? };
    }
    Ok(cuda.finish(stream)?)
}
