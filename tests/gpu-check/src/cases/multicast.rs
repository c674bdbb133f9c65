//! Multicast objects take no memory of their own. Bound memory is charged as when it was made.

use aliquot_abi::cuda::{CUmulticastObjectProp, c_uint};

use crate::cases::memory::allocation_properties;
use crate::cuda::call;
use crate::findings::Findings;
use crate::scene::{Scene, answer_name};

const MULTICAST_SUPPORTED: c_uint = 132;
const GRANULARITY_RECOMMENDED: c_uint = 1;

pub(super) fn run(scene: &Scene, findings: &mut Findings) -> anyhow::Result<()> {
    let cuda = &scene.cuda;
    if cuda.attribute(MULTICAST_SUPPORTED).unwrap_or_default() == 0 || cuda.driver.cuMulticastCreate.is_none() {
        findings.skip("multicast objects", "the device or the driver has none");
        return Ok(());
    }
    let before = scene.steady_free()?;
    let mut properties = CUmulticastObjectProp { num_devices: 1, size: 0, handle_types: 0, flags: 0 };
    let (mut bytes, mut object, mut memory) = (0, 0, 0);
    // SAFETY: the properties live during the calls; the outputs are live locals; the driver checks the handles.
    unsafe {
        let granularity = call!(cuda, cuMulticastGetGranularity(&mut bytes, &properties, GRANULARITY_RECOMMENDED));
        findings.answer("the granularity of multicast objects", format!("{}, {bytes}", answer_name(&granularity)));
        properties.size = bytes;
        let made = call!(cuda, cuMulticastCreate(&mut object, &properties));
        findings.answer("a multicast object of one device", answer_name(&made));
        if let Err(error) = made {
            findings.skip("multicast objects", format!("none of one device: {error}"));
            return Ok(());
        }
        findings.answer("its device is added", answer_name(&call!(cuda, cuMulticastAddDevice(object, cuda.device))));
        scene.expect_charged(findings, "a multicast object costs nothing", before, 0)?;
        call!(cuda, cuMemCreate(&mut memory, bytes, &allocation_properties(cuda), 0))?;
        let bound = call!(cuda, cuMulticastBindMem(object, 0, memory, 0, bytes, 0));
        findings.answer("memory is bound to it", answer_name(&bound));
        scene.expect_charged(findings, "memory that is bound is charged once", before, bytes as u64)?;
        if bound.is_ok() {
            let unbound = call!(cuda, cuMulticastUnbind(object, cuda.device, 0, bytes));
            findings.answer("and unbound", answer_name(&unbound));
        }
        call!(cuda, cuMemRelease(memory))?;
        findings.expect_ok("a multicast object can be released", call!(cuda, cuMemRelease(object)));
    }
    scene.expect_charged(findings, "and all is free again", before, 0)?;
    Ok(())
}
