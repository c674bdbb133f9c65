//! Page-locked host memory: it takes no device memory.

use std::ptr;

use aliquot_abi::cuda::c_uint;

use crate::cuda::{Cuda, Done, call};
use crate::findings::Findings;
use crate::scene::{Scene, answer_name};

const BYTES: usize = 128 << 20;
const PORTABLE: c_uint = 1;
const MAPPED: c_uint = 2;

pub(super) fn run(scene: &Scene, findings: &mut Findings) -> anyhow::Result<()> {
    let cuda = &scene.cuda;
    let before = scene.steady_free()?;
    for (name, flags) in
        [("plain", 0), ("portable", PORTABLE), ("mapped", MAPPED), ("portable and mapped", PORTABLE | MAPPED)]
    {
        let mut address = ptr::null_mut();
        // SAFETY: the output is a live local.
        let got = unsafe { call!(cuda, cuMemHostAlloc(&mut address, BYTES, flags)) };
        findings.answer(format!("{name} memory of the host"), answer_name(&got));
        if got.is_ok() {
            scene.expect_charged(findings, &format!("{name} memory of the host is none of the device's"), before, 0)?;
            // SAFETY: nothing uses the memory.
            findings.expect_ok(format!("{name}: it can be given back"), unsafe { call!(cuda, cuMemFreeHost(address)) });
        }
    }
    let sizes = (0..=24).map(|shift| 1_usize << shift).flat_map(|size| [size - 1, size, size + 1]);
    for bytes in sizes {
        let mut address = ptr::null_mut();
        // SAFETY: the output is a live local, and the memory is not used.
        let got = unsafe {
            call!(cuda, cuMemAllocHost_v2(&mut address, bytes)).and_then(|()| call!(cuda, cuMemFreeHost(address)))
        };
        findings.answer(format!("{bytes} bytes of the host's taken and given back"), answer_name(&got));
    }
    registered(scene, findings, before)
}

/// Registers a part of a program's own memory that is not page-aligned.
fn registered(scene: &Scene, findings: &mut Findings, before: u64) -> anyhow::Result<()> {
    let cuda = &scene.cuda;
    let mut own = vec![0_u8; BYTES + 4096];
    let address = own[100..].as_mut_ptr().cast();
    let ask = |findings: &mut Findings, asked: &str, got: Done| findings.answer(asked, answer_name(&got));
    // SAFETY: the range lies in `own`, which lives until it is not registered any more.
    unsafe {
        let got = call!(cuda, cuMemHostRegister_v2(address, BYTES, PORTABLE | MAPPED));
        ask(findings, "own memory registered", got);
        if got.is_err() {
            findings.skip("own memory registered", answer_name(&got));
            return Ok(());
        }
        ask(findings, "and once more", call!(cuda, cuMemHostRegister_v2(address, BYTES, PORTABLE | MAPPED)));
        scene.expect_charged(findings, "registered memory is none of the device's", before, 0)?;
        can_be_copied_from(cuda, findings, &own[100..100 + 4096])?;
        ask(findings, "what was never allocated, given back", call!(cuda, cuMemFreeHost(address)));
        ask(findings, "own memory let go", call!(cuda, cuMemHostUnregister(address)));
        ask(findings, "and once more let go", call!(cuda, cuMemHostUnregister(address)));
    }
    Ok(())
}

fn can_be_copied_from(cuda: &Cuda, findings: &mut Findings, bytes: &[u8]) -> Done {
    let (address, stream) = (cuda.allocate(bytes.len() as u64)?, cuda.stream()?);
    cuda.set(address, 0xee, bytes.len(), stream)?;
    // SAFETY: the bytes live until the stream is finished, below.
    unsafe { call!(cuda, cuMemcpyHtoDAsync_v2(address, bytes.as_ptr().cast(), bytes.len(), stream))? };
    let mut copy = vec![1; bytes.len()];
    cuda.read(&mut copy, address, stream)?;
    findings.expect("registered memory can be copied from", copy == bytes, "");
    cuda.free(address)
}
