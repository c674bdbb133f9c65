//! Fills the slice's memory piece by piece: nearly all of the limit must be given, and not more.
//!
//! The judgement uses only the limit with which the check has made the slice, not the free or total memory shown to
//! programs. The driver's own figures are watched from outside of the slice at the same time (truth.rs).

use crate::findings::Findings;
use crate::scene::Scene;
use crate::truth::SLACK_BYTES;
use crate::way::Way;
use aliquot_abi::cuda::CUresult;

const PIECE_BYTES: u64 = 64 << 20;
/// If nothing is refused, allocation stops this much above the limit: more than the tolerance for the driver's own
/// memory.
const BEYOND_BYTES: u64 = 4 * SLACK_BYTES;

pub(super) fn run(scene: &Scene, findings: &mut Findings) -> anyhow::Result<()> {
    let cuda = &scene.cuda;
    if scene.way != Way::Limited {
        let piece = cuda.allocate(PIECE_BYTES).and_then(|address| cuda.free(address));
        findings.expect_ok("memory can be taken and given back", piece);
        return Ok(());
    }
    let (limit, context) = (scene.limits.memory_bytes, scene.limits.context_bytes);
    let stream = cuda.stream()?;
    // The first context on a device is not reserved beforehand, because the node manager does not know its size yet. It
    // counts from the manager's next measurement on.
    scene.settled_free()?;
    let mut pieces = Vec::new();
    let refusal = loop {
        if pieces.len() as u64 * PIECE_BYTES > limit + BEYOND_BYTES {
            break None;
        }
        match cuda.allocate(PIECE_BYTES) {
            Ok(address) => {
                cuda.set(address, 1, PIECE_BYTES as usize, stream)?;
                pieces.push(address);
            }
            Err(error) => break Some(error.result),
        }
    };
    cuda.finish(stream)?;
    let given = pieces.len() as u64 * PIECE_BYTES;
    findings.expect(
        "the slice's memory comes to an end, as out of memory",
        refusal == Some(CUresult::OUT_OF_MEMORY),
        format!("{given} bytes given of a limit of {limit}: {refusal:?}"),
    );
    findings.expect(
        "with its context a program gets no more than the slice has",
        given + context <= limit + SLACK_BYTES,
        format!("{given} bytes given, {context} for the context, a limit of {limit}"),
    );
    findings.expect(
        "and nearly all that the slice has",
        given + context + 2 * PIECE_BYTES + SLACK_BYTES >= limit,
        format!("{given} bytes given, {context} for the context, a limit of {limit}"),
    );
    let freed = pieces.into_iter().try_for_each(|address| cuda.free(address));
    findings.expect_ok("and all can be given back", freed);
    Ok(())
}
