//! Each kind of memory: granted up to the cap, refused above it, and free again after its release.

mod kinds;

pub(in crate::cases) use kinds::{KINDS, Kind, allocation_properties};

use aliquot_abi::cuda::CUresult;

use crate::findings::Findings;
use crate::scene::{ROUNDING_BYTES, Scene, is_about};
use crate::way::Way;

/// Bytes that are allocated where there is no limit.
const SAMPLE_BYTES: u64 = 64 << 20;

pub(super) fn run(scene: &Scene, findings: &mut Findings) -> anyhow::Result<()> {
    for kind in KINDS {
        match kind.missing(&scene.cuda) {
            Some(why) => findings.skip(kind.name, why),
            None if scene.way == Way::Limited => refused_exactly_at_the_cap(scene, findings, kind)?,
            None => given_and_taken_back(scene, findings, kind),
        }
    }
    Ok(())
}

fn given_and_taken_back(scene: &Scene, findings: &mut Findings, kind: &Kind) {
    let got = (kind.take)(&scene.cuda, SAMPLE_BYTES).and_then(|held| (held.give_back)(&scene.cuda));
    findings.expect_ok(format!("{}: {} MiB are given and taken back", kind.name, SAMPLE_BYTES >> 20), got);
}

fn refused_exactly_at_the_cap(scene: &Scene, findings: &mut Findings, kind: &Kind) -> anyhow::Result<()> {
    let (cuda, name) = (&scene.cuda, kind.name);
    let free = scene.settled_free()?;
    let Some(room) = free.checked_sub(kind.slack_bytes) else {
        findings.expect(format!("{name}: there is room in the slice"), false, format!("{free} bytes are free"));
        return Ok(());
    };
    let fits = room / kind.granule_bytes * kind.granule_bytes;
    // The limit, not the free memory shown: a slice without working hooks shows the whole device, and refuses more than
    // that.
    let limit = scene.limits.memory_bytes;
    let too_much = (limit / kind.granule_bytes + 1) * kind.granule_bytes;

    let refusal = (kind.take)(cuda, too_much).map(|held| (held.give_back)(cuda)).err().map(|error| error.result);
    findings.expect(
        format!("{name}: more than the slice's memory is out of memory"),
        refusal == Some(CUresult::OUT_OF_MEMORY),
        format!("{too_much} bytes asked for, the slice has {limit}, the answer {refusal:?}"),
    );
    findings.expect(
        format!("{name}: no more is shown as free than the slice has"),
        free <= limit,
        format!("{free} bytes are free, the slice has {limit}"),
    );
    let now = cuda.memory()?.0;
    findings.expect(
        format!("{name}: a refusal takes nothing"),
        is_about(now, free),
        format!("{free} bytes free before, {now} after"),
    );

    let Some(held) = findings
        .expect_ok(format!("{name}: all but {} of the free bytes are given", free - fits), (kind.take)(cuda, fits))
    else {
        return Ok(());
    };
    let left = cuda.memory()?.0;
    findings.expect(
        format!("{name}: what is given is no longer free"),
        left <= free - fits + ROUNDING_BYTES && left + kind.slack_bytes + ROUNDING_BYTES >= free - fits,
        format!("{left} bytes are free, {} or up to {} less were expected", free - fits, kind.slack_bytes),
    );
    findings.expect_ok(format!("{name}: it can be given back"), (held.give_back)(cuda));
    let after = scene.wait_for_free(free)?;
    findings.expect(format!("{name}: and is free again"), is_about(after, free), format!("{after} of {free} bytes"));
    Ok(())
}
