//! Fills the slice's memory piece by piece, with each kind of memory: nearly all of the limit must be given, and not more.
//!
//! The judgement uses only the limit with which the check has made the slice, not the free or total memory shown to
//! programs. The driver's own figures are watched from outside of the slice at the same time (truth.rs).

use std::time::Duration;

use aliquot_abi::cuda::CUresult;

use crate::cases::memory::{KINDS, Kind};
use crate::findings::Findings;
use crate::scene::Scene;
use crate::truth::SLACK_BYTES;
use crate::way::Way;

const PIECE_BYTES: u64 = 64 << 20;
/// If nothing is refused, allocation stops this much above the limit: more than the tolerance for the driver's own
/// memory.
const BEYOND_BYTES: u64 = 4 * SLACK_BYTES;
/// How long all pieces are held. The process that watches the device may have to wait for a processor meanwhile.
const HOLD_TIME: Duration = Duration::from_millis(300);

pub(super) fn run(scene: &Scene, findings: &mut Findings) -> anyhow::Result<()> {
    let cuda = &scene.cuda;
    if scene.way != Way::Limited {
        let piece = cuda.allocate(PIECE_BYTES).and_then(|address| cuda.free(address));
        findings.expect_ok("memory can be taken and given back", piece);
        // What is missing without a slice may be missing in one, and only that.
        for kind in KINDS.iter().filter(|kind| !kind.is_array()) {
            if let Some(why) = kind.missing(cuda) {
                findings.skip(kind.name, why);
            }
        }
        return Ok(());
    }
    // The first context on a device is not reserved beforehand, because the node manager does not know its size yet. It
    // counts from the manager's next measurement on.
    let free = scene.settled_free()?;
    // An array takes up to half a piece more than its elements, so how many fit is not known.
    for kind in KINDS.iter().filter(|kind| !kind.is_array()) {
        match kind.missing(cuda) {
            Some(why) => findings.skip(kind.name, why),
            None => fill(scene, findings, kind)?,
        }
        scene.wait_for_free(free)?;
    }
    Ok(())
}

/// Takes memory of one kind until it is refused.
fn fill(scene: &Scene, findings: &mut Findings, kind: &Kind) -> anyhow::Result<()> {
    let (cuda, name) = (&scene.cuda, kind.name);
    let (limit, context) = (scene.limits.memory_bytes, scene.limits.context_bytes);
    let mut pieces = Vec::new();
    let refusal = loop {
        if pieces.len() as u64 * PIECE_BYTES > limit + BEYOND_BYTES {
            break None;
        }
        match (kind.take)(cuda, PIECE_BYTES) {
            Ok(piece) => pieces.push(piece),
            Err(error) => break Some(error.result),
        }
    };
    std::thread::sleep(HOLD_TIME);
    let given = pieces.len() as u64 * PIECE_BYTES;
    findings.expect(
        format!("{name}: the slice's memory comes to an end, as out of memory"),
        refusal == Some(CUresult::OUT_OF_MEMORY),
        format!("{given} bytes given of a limit of {limit}: {refusal:?}"),
    );
    findings.expect(
        format!("{name}: with its context a program gets no more than the slice has"),
        given + context <= limit + SLACK_BYTES,
        format!("{given} bytes given, {context} for the context, a limit of {limit}"),
    );
    findings.expect(
        format!("{name}: and nearly all that the slice has"),
        given + context + 2 * PIECE_BYTES + SLACK_BYTES >= limit,
        format!("{given} bytes given, {context} for the context, a limit of {limit}"),
    );
    let freed = pieces.into_iter().try_for_each(|piece| (piece.give_back)(cuda));
    findings.expect_ok(format!("{name}: and all can be given back"), freed);
    Ok(())
}
