//! Virtual memory management: what is charged, and until when.

use crate::cases::memory::allocation_properties;
use crate::cuda::call;
use crate::findings::Findings;
use crate::scene::{Scene, is_about};
use crate::way::Way;

const BYTES: u64 = 128 << 20;

pub(super) fn run(scene: &Scene, findings: &mut Findings) -> anyhow::Result<()> {
    let cuda = &scene.cuda;
    if cuda.driver.cuMemCreate.is_none() {
        findings.skip("virtual memory management", "the driver has none");
        return Ok(());
    }
    let before = scene.steady_free()?;
    let (mut handle, mut address, bytes) = (0, 0, BYTES as usize);
    // SAFETY: the outputs are live locals; the driver checks ranges and handles.
    unsafe {
        call!(cuda, cuMemCreate(&mut handle, bytes, &allocation_properties(cuda), 0))?;
        call!(cuda, cuMemAddressReserve(&mut address, bytes, 0, 0, 0))?;
        call!(cuda, cuMemMap(address, bytes, 0, handle, 0))?;
        call!(cuda, cuMemRelease(handle))?;
    }
    if scene.way == Way::Limited {
        let free = cuda.memory()?.0;
        findings.expect(
            "a mapping keeps the memory charged after its handle was released",
            is_about(before.saturating_sub(free), BYTES),
            format!("{before} bytes free before, {free} while mapped"),
        );
    }
    // SAFETY: nothing uses the mapping any more.
    unsafe {
        findings.expect_ok("it can be unmapped", call!(cuda, cuMemUnmap(address, bytes)));
        findings.expect_ok("the addresses can be given back", call!(cuda, cuMemAddressFree(address, bytes)));
    }
    if scene.way == Way::Limited {
        let free = scene.wait_for_free(before)?;
        findings.expect("and the memory is free again", is_about(free, before), format!("{free} of {before} bytes"));
    }
    Ok(())
}
