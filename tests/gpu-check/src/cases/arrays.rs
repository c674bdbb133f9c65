//! Arrays of every shape: the driver's answers, and the charge, which must be in bytes, not in elements or bits.

use aliquot_abi::cuda::{CUDA_ARRAY_DESCRIPTOR, CUDA_ARRAY3D_DESCRIPTOR, CUarray, CUmipmappedArray, CUresult, c_uint};

use crate::cuda::{Cuda, Done, call};
use crate::findings::Findings;
use crate::scene::{ROUNDING_BYTES, Scene, answer_name};
use crate::way::Way;

const UNSIGNED_INT8: c_uint = 1;
const UNSIGNED_INT32: c_uint = 3;
const HALF: c_uint = 0x10;
const FLOAT: c_uint = 0x20;
const LAYERED: c_uint = 1;
const SURFACE: c_uint = 2;
const CUBEMAP: c_uint = 4;

/// A shape of arrays, and the size of its elements.
struct Shape {
    name: &'static str,
    /// Width, height and depth in elements.
    extent: [usize; 3],
    format: c_uint,
    channels: c_uint,
    flags: c_uint,
    /// Mip levels; 0: a plain array.
    levels: c_uint,
    /// Number of arrays of this shape. A single small one could not be seen in the memory figures.
    count: usize,
    /// Bytes of all elements of one of them.
    bytes: u64,
}

const MIB: u64 = 1 << 20;

const SHAPES: &[Shape] = &[
    Shape::new("one-dimensional", [16_384, 0, 0], FLOAT, 4, 256, MIB / 4),
    Shape::new("two-dimensional, two channels of 32 bits", [2048, 2048, 0], UNSIGNED_INT32, 2, 2, 32 * MIB),
    Shape::new("two-dimensional, four channels of 16 bits", [2048, 2048, 0], HALF, 4, 2, 32 * MIB),
    Shape::new("two-dimensional, one channel of 8 bits", [8192, 8192, 0], UNSIGNED_INT8, 1, 1, 64 * MIB),
    Shape::new("three-dimensional", [256, 256, 256], FLOAT, 1, 1, 64 * MIB),
    Shape { flags: LAYERED, ..Shape::new("two-dimensional, 16 layers", [1024, 1024, 16], FLOAT, 1, 1, 64 * MIB) },
    Shape { flags: LAYERED, ..Shape::new("one-dimensional, 1024 layers", [4096, 0, 1024], FLOAT, 4, 1, 64 * MIB) },
    Shape { flags: CUBEMAP, ..Shape::new("a cube", [1024, 1024, 6], FLOAT, 2, 1, 48 * MIB) },
    Shape { flags: SURFACE, ..Shape::new("for surfaces", [2048, 2048, 0], FLOAT, 4, 1, 64 * MIB) },
    // All levels together take 4/3 of the first level.
    Shape { levels: 12, ..Shape::new("mip levels", [2048, 2048, 0], FLOAT, 4, 1, 64 * MIB * 4 / 3) },
];

impl Shape {
    const fn new(
        name: &'static str,
        extent: [usize; 3],
        format: c_uint,
        channels: c_uint,
        count: usize,
        bytes: u64,
    ) -> Shape {
        Shape { name, extent, format, channels, flags: 0, levels: 0, count, bytes }
    }

    fn descriptor(&self) -> CUDA_ARRAY3D_DESCRIPTOR {
        let [width, height, depth] = self.extent;
        let (format, num_channels, flags) = (self.format, self.channels, self.flags);
        CUDA_ARRAY3D_DESCRIPTOR { width, height, depth, format, num_channels, flags }
    }
}

/// An array of either kind.
enum Made {
    Plain(CUarray),
    Mipmapped(CUmipmappedArray),
}

pub(super) fn run(scene: &Scene, findings: &mut Findings) -> anyhow::Result<()> {
    for shape in SHAPES {
        made_and_charged(scene, findings, shape)?;
    }
    let cuda = &scene.cuda;
    let good = SHAPES[1].descriptor();
    for (asked, bad) in [
        ("an array without a width", CUDA_ARRAY3D_DESCRIPTOR { width: 0, ..good }),
        ("an array of three channels", CUDA_ARRAY3D_DESCRIPTOR { num_channels: 3, ..good }),
        ("an array of no channel", CUDA_ARRAY3D_DESCRIPTOR { num_channels: 0, ..good }),
        ("an array that is too wide", CUDA_ARRAY3D_DESCRIPTOR { width: 1 << 40, ..good }),
        ("a cube of five faces", CUDA_ARRAY3D_DESCRIPTOR { depth: 5, flags: CUBEMAP, ..good }),
    ] {
        let made = create(cuda, &bad, 0);
        findings.answer(asked, answer_name(&made));
        if let Ok(made) = made {
            destroy(cuda, made)?;
        }
    }
    both_calls_mean_the_same(scene, findings)
}

fn made_and_charged(scene: &Scene, findings: &mut Findings, shape: &Shape) -> anyhow::Result<()> {
    let cuda = &scene.cuda;
    let before = scene.steady_free()?;
    let made: Done<Vec<Made>> = (0..shape.count).map(|_| create(cuda, &shape.descriptor(), shape.levels)).collect();
    findings.answer(shape.name, answer_name(&made));
    let made = match made {
        Ok(made) => made,
        Err(error) if error.result == CUresult::OUT_OF_MEMORY => {
            findings.expect(shape.name, false, format!("out of memory with {before} bytes free"));
            return Ok(());
        }
        Err(error) => {
            findings.skip(shape.name, format!("{error}"));
            return Ok(());
        }
    };
    if scene.way == Way::Limited {
        let free = scene.steady_free()?;
        let (charged, bytes) = (before.saturating_sub(free), shape.bytes * shape.count as u64);
        // The driver lays arrays out in blocks and takes more memory than the elements: on an H100 eight times as much
        // for an array of many thin layers. That this is charged too is checked from outside of the slice.
        findings.expect(
            format!("{}: its bytes are charged", shape.name),
            charged >= bytes - ROUNDING_BYTES,
            format!("{charged} bytes charged for {bytes}"),
        );
    }
    made.into_iter().try_for_each(|made| destroy(cuda, made))?;
    scene.expect_charged(findings, &format!("{}: and given back", shape.name), before, 0)?;
    Ok(())
}

/// Arrays of fewer dimensions: without a height in the older call, without a depth in the newer call.
fn both_calls_mean_the_same(scene: &Scene, findings: &mut Findings) -> anyhow::Result<()> {
    let cuda = &scene.cuda;
    let flat = CUDA_ARRAY_DESCRIPTOR { width: 4096, height: 0, format: FLOAT, num_channels: 1 };
    let mut array = CUarray::NULL;
    // SAFETY: the descriptor lives during the call; the output is a live local.
    unsafe { call!(cuda, cuArrayCreate_v2(&mut array, &flat))? };
    let mut read = CUDA_ARRAY3D_DESCRIPTOR { width: 1, height: 1, depth: 1, format: 0, num_channels: 0, flags: 0 };
    // SAFETY: the array belongs to this function; the output is a live local.
    unsafe { call!(cuda, cuArray3DGetDescriptor_v2(&mut read, array))? };
    findings.answer("what a one-dimensional array says of itself", format!("{read:?}"));
    destroy(cuda, Made::Plain(array))?;
    Ok(())
}

fn create(cuda: &Cuda, descriptor: &CUDA_ARRAY3D_DESCRIPTOR, levels: c_uint) -> Done<Made> {
    // SAFETY: the descriptor lives during the calls; the outputs are live locals.
    unsafe {
        if levels == 0 {
            let mut array = CUarray::NULL;
            call!(cuda, cuArray3DCreate_v2(&mut array, descriptor))?;
            Ok(Made::Plain(array))
        } else {
            let mut array = CUmipmappedArray::NULL;
            call!(cuda, cuMipmappedArrayCreate(&mut array, descriptor, levels))?;
            Ok(Made::Mipmapped(array))
        }
    }
}

fn destroy(cuda: &Cuda, made: Made) -> Done {
    // SAFETY: nothing uses the array.
    unsafe {
        match made {
            Made::Plain(array) => call!(cuda, cuArrayDestroy(array)),
            Made::Mipmapped(array) => call!(cuda, cuMipmappedArrayDestroy(array)),
        }
    }
}
