//! Copies and sets: every form writes the right bytes.

use std::ptr;

use aliquot_abi::cuda::{
    CUDA_ARRAY_DESCRIPTOR, CUDA_MEMCPY2D, CUDA_MEMCPY3D, CUarray, CUdeviceptr, CUstream, c_uint, c_void,
};

use crate::cuda::{Cuda, Done, call};
use crate::findings::Findings;
use crate::scene::Scene;

const BYTES: usize = 64 << 10;
/// Layout of the memory in rows.
const ROW_BYTES: usize = 256;
const ROWS: usize = BYTES / ROW_BYTES;
const ON_HOST: c_uint = 1;
const ON_DEVICE: c_uint = 2;
const IN_ARRAY: c_uint = 3;
const UNSIGNED_INT8: c_uint = 1;

/// Two pieces of device memory, and a stream.
struct Bench<'a> {
    cuda: &'a Cuda,
    stream: CUstream,
    from: CUdeviceptr,
    to: CUdeviceptr,
}

/// A way to copy the given bytes to `to`.
type Route = fn(&Bench<'_>, &[u8]) -> Done;

const ROUTES: [(&str, Route); 8] = [
    ("host to device", |bench, bytes| bench.host_to_device(bench.to, bytes)),
    ("host to device in a stream", |bench, bytes| {
        let (cuda, stream) = (bench.cuda, bench.stream);
        // SAFETY: the bytes live until the stream is finished.
        unsafe { call!(cuda, cuMemcpyHtoDAsync_v2(bench.to, bytes.as_ptr().cast(), bytes.len(), stream))? };
        cuda.finish(stream)
    }),
    ("device to device", |bench, bytes| {
        let cuda = bench.cuda;
        bench.host_to_device(bench.from, bytes)?;
        // SAFETY: both pieces have this length.
        unsafe { call!(cuda, cuMemcpyDtoD_v2(bench.to, bench.from, bytes.len())) }
    }),
    ("device to device in a stream", |bench, bytes| {
        let (cuda, stream) = (bench.cuda, bench.stream);
        bench.host_to_device(bench.from, bytes)?;
        // SAFETY: both pieces have this length.
        unsafe { call!(cuda, cuMemcpyDtoDAsync_v2(bench.to, bench.from, bytes.len(), stream))? };
        cuda.finish(stream)
    }),
    ("wherever both lie", |bench, bytes| {
        let cuda = bench.cuda;
        // SAFETY: as above; with unified addressing a host address is valid here.
        unsafe { call!(cuda, cuMemcpy(bench.to, bytes.as_ptr().expose_provenance() as CUdeviceptr, bytes.len())) }
    }),
    ("rows", |bench, bytes| {
        let cuda = bench.cuda;
        let rows = CUDA_MEMCPY2D {
            src_host: bytes.as_ptr().cast(),
            src_pitch: ROW_BYTES,
            dst_device: bench.to,
            dst_pitch: ROW_BYTES,
            ..rows(ON_HOST, ON_DEVICE)
        };
        // SAFETY: both pieces have this number of rows.
        unsafe { call!(cuda, cuMemcpy2D_v2(&rows)) }
    }),
    ("planes", |bench, bytes| {
        let cuda = bench.cuda;
        let planes = CUDA_MEMCPY3D {
            src_memory_type: ON_HOST,
            src_host: bytes.as_ptr().cast(),
            src_pitch: ROW_BYTES,
            src_height: ROWS / 4,
            dst_memory_type: ON_DEVICE,
            dst_device: bench.to,
            dst_pitch: ROW_BYTES,
            dst_height: ROWS / 4,
            width_in_bytes: ROW_BYTES,
            height: ROWS / 4,
            depth: 4,
            // SAFETY: numbers and pointers, for which zero is valid.
            ..unsafe { std::mem::zeroed() }
        };
        // SAFETY: both pieces have four planes of this number of rows.
        unsafe { call!(cuda, cuMemcpy3D_v2(&planes)) }
    }),
    ("into an array and out of it", |bench, bytes| {
        let cuda = bench.cuda;
        let shape = CUDA_ARRAY_DESCRIPTOR { width: ROW_BYTES, height: ROWS, format: UNSIGNED_INT8, num_channels: 1 };
        let mut array = CUarray::NULL;
        // SAFETY: the shape lives during the call; the output is a live local.
        unsafe { call!(cuda, cuArrayCreate_v2(&mut array, &shape))? };
        let into = CUDA_MEMCPY2D {
            src_host: bytes.as_ptr().cast(),
            src_pitch: ROW_BYTES,
            dst_array: array,
            ..rows(ON_HOST, IN_ARRAY)
        };
        let out =
            CUDA_MEMCPY2D { src_array: array, dst_device: bench.to, dst_pitch: ROW_BYTES, ..rows(IN_ARRAY, ON_DEVICE) };
        // SAFETY: array and memory have this number of rows, and the copies are complete before the array is destroyed.
        unsafe {
            let copied = call!(cuda, cuMemcpy2D_v2(&into)).and_then(|()| call!(cuda, cuMemcpy2D_v2(&out)));
            call!(cuda, cuCtxSynchronize())?;
            call!(cuda, cuArrayDestroy(array))?;
            copied
        }
    }),
];

impl Bench<'_> {
    fn host_to_device(&self, to: CUdeviceptr, bytes: &[u8]) -> Done {
        let cuda = self.cuda;
        // SAFETY: the memory at `to` has this length.
        unsafe { call!(cuda, cuMemcpyHtoD_v2(to, bytes.as_ptr().cast::<c_void>(), bytes.len())) }
    }

    /// The contents of `to`.
    fn result(&self) -> Done<Vec<u8>> {
        let (cuda, mut bytes) = (self.cuda, vec![0; BYTES]);
        // SAFETY: the buffer has the given length. Synchronises first, because sets and copies within the device may
        // still be under way.
        unsafe {
            call!(cuda, cuCtxSynchronize())?;
            call!(cuda, cuMemcpyDtoH_v2(bytes.as_mut_ptr().cast(), self.to, BYTES))?;
        }
        Ok(bytes)
    }
}

pub(super) fn run(scene: &Scene, findings: &mut Findings) -> anyhow::Result<()> {
    let cuda = &scene.cuda;
    let (from, to) = (cuda.allocate(BYTES as u64)?, cuda.allocate(BYTES as u64)?);
    let bench = Bench { cuda, stream: cuda.stream()?, from, to };
    for (number, (name, route)) in ROUTES.iter().enumerate() {
        // Different bytes each time, so that old contents are never right.
        let bytes: Vec<u8> = (0..BYTES).map(|index| (index / 3 + 17 * number) as u8).collect();
        let done = route(&bench, &bytes).and_then(|()| bench.result());
        let saw = done.as_ref().err().map(ToString::to_string).unwrap_or_default();
        findings.expect(*name, done.is_ok_and(|got| got == bytes), saw);
    }
    sets(&bench, findings)?;
    cuda.free(from)?;
    cuda.free(to)?;
    Ok(())
}

fn sets(bench: &Bench<'_>, findings: &mut Findings) -> Done {
    let (cuda, to) = (bench.cuda, bench.to);
    // SAFETY: each sets at most the length of the memory.
    let done = unsafe {
        [
            ("bytes", call!(cuda, cuMemsetD8_v2(to, 0x5a, BYTES)), bench.result()?, [0x5a; 4]),
            ("halves", call!(cuda, cuMemsetD16_v2(to, 0x1234, BYTES / 2)), bench.result()?, [0x34, 0x12, 0x34, 0x12]),
            (
                "words",
                call!(cuda, cuMemsetD32_v2(to, 0x1234_5678, BYTES / 4)),
                bench.result()?,
                [0x78, 0x56, 0x34, 0x12],
            ),
            ("rows of bytes", call!(cuda, cuMemsetD2D8_v2(to, ROW_BYTES, 7, ROW_BYTES, ROWS)), bench.result()?, [7; 4]),
        ]
    };
    for (name, done, got, pattern) in done {
        let holds = done.is_ok() && got.chunks(4).all(|word| word == pattern);
        findings.expect(format!("{name} are set"), holds, format!("{done:?}, the first are {:x?}", &got[..4]));
    }
    Ok(())
}

/// A copy of all rows between two kinds of memory; the caller fills in the addresses.
fn rows(from: c_uint, to: c_uint) -> CUDA_MEMCPY2D {
    CUDA_MEMCPY2D {
        src_x_in_bytes: 0,
        src_y: 0,
        src_memory_type: from,
        src_host: ptr::null(),
        src_device: 0,
        src_array: CUarray::NULL,
        src_pitch: 0,
        dst_x_in_bytes: 0,
        dst_y: 0,
        dst_memory_type: to,
        dst_host: ptr::null_mut(),
        dst_device: 0,
        dst_array: CUarray::NULL,
        dst_pitch: 0,
        width_in_bytes: ROW_BYTES,
        height: ROWS,
    }
}
