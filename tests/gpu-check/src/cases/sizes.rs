//! Allocations of every size and rows of every width: the charge must be what the driver takes.

use crate::cuda::call;
use crate::findings::Findings;
use crate::scene::{Scene, answer_name};

const GIB: u64 = 1 << 30;
/// The largest size is 2 to this power.
const LARGEST_SHIFT: u32 = 28;
/// Number of blocks of the largest size: more than fit into a small slice.
const LARGE_BLOCKS: usize = 10;
/// Rows of a pitched allocation: enough to detect a wrong pitch.
const ROWS: usize = 16_384;
const ELEMENT_BYTES: [u32; 3] = [4, 8, 16];
/// Widths around a size to which drivers align.
const WIDTHS: [usize; 6] = [1, 511, 4079, 4095, 4096, 4097];

pub(super) fn run(scene: &Scene, findings: &mut Findings) -> anyhow::Result<()> {
    let before = scene.steady_free()?;
    powers_of_two_and_their_neighbours(scene, findings);
    more_than_there_may_be(scene, findings)?;
    scene.expect_charged(findings, "nothing of it stays charged", before, 0)?;
    rows_are_as_long_as_the_driver_makes_them(scene, findings)
}

fn powers_of_two_and_their_neighbours(scene: &Scene, findings: &mut Findings) {
    let sizes = (0..=LARGEST_SHIFT).map(|shift| 1_u64 << shift).flat_map(|size| [size - 1, size, size + 1]);
    for bytes in sizes {
        let got = scene.cuda.allocate(bytes).and_then(|address| scene.cuda.free(address));
        findings.answer(format!("{bytes} bytes taken and given back"), answer_name(&got));
    }
}

/// After refusals, granted memory can be freed, and a refused call leaves no valid address.
fn more_than_there_may_be(scene: &Scene, findings: &mut Findings) -> anyhow::Result<()> {
    let cuda = &scene.cuda;
    let (mut given, mut refused) = (Vec::new(), 0);
    for _ in 0..LARGE_BLOCKS {
        match cuda.allocate(GIB) {
            Ok(address) => given.push(address),
            Err(_) => refused += 1,
        }
    }
    let (total, blocks) = (cuda.memory()?.1, given.len() as u64);
    findings.expect(
        format!("of {LARGE_BLOCKS} GiB as much is given as fits"),
        blocks * GIB <= total && (refused > 0) == (LARGE_BLOCKS as u64 > blocks),
        format!("{blocks} GiB given, {refused} refused, of {total} bytes"),
    );
    let freed = given.into_iter().try_for_each(|address| cuda.free(address));
    findings.expect_ok("and can be given back", freed);
    Ok(())
}

fn rows_are_as_long_as_the_driver_makes_them(scene: &Scene, findings: &mut Findings) -> anyhow::Result<()> {
    let cuda = &scene.cuda;
    for width in WIDTHS {
        for element_bytes in ELEMENT_BYTES {
            let what = format!("rows of {width} bytes in elements of {element_bytes}");
            let before = scene.steady_free()?;
            let (mut address, mut pitch) = (0, 0);
            // SAFETY: the outputs are live locals.
            let got = unsafe { call!(cuda, cuMemAllocPitch_v2(&mut address, &mut pitch, width, ROWS, element_bytes)) };
            findings.answer(&what, format!("{}, pitch {pitch}", answer_name(&got)));
            if got.is_ok() {
                findings.expect(format!("{what} fit"), pitch >= width, format!("the pitch is {pitch}"));
                scene.expect_charged(findings, &format!("{what} are charged"), before, (pitch * ROWS) as u64)?;
                cuda.free(address)?;
            }
        }
    }
    Ok(())
}
