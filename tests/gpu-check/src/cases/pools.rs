//! Pools of stream-ordered memory: a pool's reserve is charged, used or not.

use std::ptr;

use aliquot_abi::cuda::{
    CU_MEM_LOCATION_TYPE_DEVICE, CUdeviceptr, CUmemLocation, CUmemPoolProps, CUmemoryPool, CUresult, CUstream, c_uint,
};

use crate::cuda::{Cuda, Done, Shape, call};
use crate::findings::Findings;
use crate::scene::{ROUNDING_BYTES, Scene, is_about};
use crate::way::Way;

const PIECE_BYTES: u64 = 64 << 20;
const PIECES: usize = 3;
/// Duration of the stream's work before an allocation.
const BUSY_NS: u64 = 50_000_000;
const POOLS_SUPPORTED: c_uint = 115;
const ALLOCATION_PINNED: c_uint = 1;
/// `CUmemPool_attribute`s.
const RELEASE_THRESHOLD: c_uint = 4;
const RESERVED_BYTES: c_uint = 5;
const RESERVED_BYTES_HIGH: c_uint = 6;
const USED_BYTES: c_uint = 7;

/// A new pool, with a stream.
struct Pool<'a> {
    cuda: &'a Cuda,
    handle: CUmemoryPool,
    stream: CUstream,
}

impl Pool<'_> {
    /// Makes a pool that keeps up to `threshold_bytes` of unused memory.
    fn create(cuda: &Cuda, threshold_bytes: u64) -> Done<Pool<'_>> {
        let properties = CUmemPoolProps {
            alloc_kind: ALLOCATION_PINNED,
            handle_types: 0,
            location: CUmemLocation { kind: CU_MEM_LOCATION_TYPE_DEVICE, id: cuda.device },
            win32_security_attributes: ptr::null_mut(),
            max_size_bytes: 0,
            reserved: [0; 56],
        };
        let (mut handle, mut threshold_bytes) = (CUmemoryPool::NULL, threshold_bytes);
        // SAFETY: the properties and the value live during the calls; the output is a live local.
        unsafe {
            call!(cuda, cuMemPoolCreate(&mut handle, &properties))?;
            let value = (&raw mut threshold_bytes).cast();
            call!(cuda, cuMemPoolSetAttribute(handle, RELEASE_THRESHOLD, value))?;
        }
        Ok(Pool { cuda, handle, stream: cuda.stream()? })
    }

    /// Allocates memory and waits until it can be used.
    fn take(&self, bytes: u64) -> Done<CUdeviceptr> {
        let (cuda, mut address) = (self.cuda, 0);
        // SAFETY: the output is a live local.
        unsafe { call!(cuda, cuMemAllocFromPoolAsync(&mut address, bytes as usize, self.handle, self.stream))? };
        cuda.finish(self.stream)?;
        Ok(address)
    }

    /// Frees memory and waits until the pool has it back.
    fn put(&self, address: CUdeviceptr) -> Done {
        let cuda = self.cuda;
        // SAFETY: nothing uses the memory any more.
        unsafe { call!(cuda, cuMemFreeAsync(address, self.stream))? };
        cuda.finish(self.stream)
    }

    fn trim(&self, kept_bytes: u64) -> Done {
        let cuda = self.cuda;
        // SAFETY: the pool belongs to this value.
        unsafe { call!(cuda, cuMemPoolTrimTo(self.handle, kept_bytes as usize)) }
    }

    /// An attribute of the pool, in bytes.
    fn bytes(&self, attribute: c_uint) -> Done<u64> {
        let (cuda, mut value) = (self.cuda, 0_u64);
        // SAFETY: each attribute that is read here is a number of 64 bits.
        unsafe { call!(cuda, cuMemPoolGetAttribute(self.handle, attribute, (&raw mut value).cast()))? };
        Ok(value)
    }

    fn destroy(self) -> Done {
        let cuda = self.cuda;
        // SAFETY: nothing uses the pool any more.
        unsafe { call!(cuda, cuMemPoolDestroy(self.handle)) }
    }
}

pub(super) fn run(scene: &Scene, findings: &mut Findings) -> anyhow::Result<()> {
    if scene.cuda.attribute(POOLS_SUPPORTED).unwrap_or_default() == 0 {
        findings.skip("pools", "the device or the driver has none");
        return Ok(());
    }
    what_is_reserved_is_charged(scene, findings)?;
    several_pools_add_up(scene, findings)?;
    a_pool_that_gives_back_at_once(scene, findings)?;
    under_way(scene, findings)?;
    if scene.way == Way::Limited {
        unused_reserve_makes_way(scene, findings)?;
    }
    Ok(())
}

fn what_is_reserved_is_charged(scene: &Scene, findings: &mut Findings) -> anyhow::Result<()> {
    let before = scene.steady_free()?;
    let pool = Pool::create(&scene.cuda, u64::MAX)?;
    let mut pieces = (0..PIECES).map(|_| pool.take(PIECE_BYTES)).collect::<Done<Vec<_>>>()?;
    let all_bytes = PIECE_BYTES * PIECES as u64;
    let (used, reserved) = (pool.bytes(USED_BYTES)?, pool.bytes(RESERVED_BYTES)?);
    findings.expect(
        "a pool says what is used of it",
        used >= all_bytes && reserved >= used && pool.bytes(RESERVED_BYTES_HIGH)? >= reserved,
        format!("{used} of {reserved} bytes"),
    );
    scene.expect_charged(findings, "what a pool reserves is charged", before, reserved)?;

    for piece in pieces.drain(1..) {
        pool.put(piece)?;
    }
    findings.expect("what is kept stays reserved", pool.bytes(RESERVED_BYTES)? == reserved, "");
    scene.expect_charged(findings, "what a pool keeps stays charged", before, reserved)?;
    pieces.push(pool.take(PIECE_BYTES)?);
    scene.expect_charged(findings, "and is not charged twice when it is used again", before, reserved)?;

    pool.put(pieces[1])?;
    pool.trim(0)?;
    let left = pool.bytes(RESERVED_BYTES)?;
    findings.expect(
        "a trim gives back what is not used",
        left >= PIECE_BYTES && left < reserved,
        format!("{left} bytes of {reserved} are left"),
    );
    scene.expect_charged(findings, "and then it is not charged any more", before, left)?;

    pool.put(pieces[0])?;
    findings.expect_ok("a pool can be destroyed", pool.destroy());
    scene.expect_charged(findings, "a destroyed pool costs nothing", before, 0)?;
    Ok(())
}

fn several_pools_add_up(scene: &Scene, findings: &mut Findings) -> anyhow::Result<()> {
    let before = scene.steady_free()?;
    let (first, second) = (Pool::create(&scene.cuda, u64::MAX)?, Pool::create(&scene.cuda, u64::MAX)?);
    let pieces = (first.take(PIECE_BYTES)?, second.take(PIECE_BYTES)?);
    let reserved = first.bytes(RESERVED_BYTES)? + second.bytes(RESERVED_BYTES)?;
    scene.expect_charged(findings, "two pools are charged for both", before, reserved)?;
    first.put(pieces.0)?;
    // `cuMemFree` accepts memory of pools too.
    findings.expect_ok("cuMemFree takes a pool's memory", scene.cuda.free(pieces.1));
    first.destroy()?;
    second.destroy()?;
    scene.expect_charged(findings, "and both are given back", before, 0)?;
    Ok(())
}

fn a_pool_that_gives_back_at_once(scene: &Scene, findings: &mut Findings) -> anyhow::Result<()> {
    let before = scene.steady_free()?;
    let pool = Pool::create(&scene.cuda, 0)?;
    let piece = pool.take(PIECE_BYTES)?;
    pool.put(piece)?;
    let left = pool.bytes(RESERVED_BYTES)?;
    scene.expect_charged(findings, "at a synchronisation a pool gives back what it does not keep", before, left)?;
    pool.destroy()?;
    Ok(())
}

/// An allocation queued behind other work of a stream is charged from the call on, visibly for all threads.
fn under_way(scene: &Scene, findings: &mut Findings) -> anyhow::Result<()> {
    let cuda = &scene.cuda;
    let spin = cuda.kernel(c"spin_ns")?;
    let before = scene.steady_free()?;
    let pool = Pool::create(cuda, u64::MAX)?;
    let mut address = 0;
    cuda.launch(spin, Shape::ONE, pool.stream, BUSY_NS)?;
    // SAFETY: the output is a live local.
    unsafe { call!(cuda, cuMemAllocFromPoolAsync(&mut address, PIECE_BYTES as usize, pool.handle, pool.stream))? };
    let seen = std::thread::scope(|scope| {
        let look = || cuda.bind().and_then(|()| cuda.memory());
        scope.spawn(look).join().map_err(|_| "a thread panicked".to_owned())?.map_err(|error| error.to_string())
    });
    match seen {
        Ok((free, _)) if scene.way == Way::Limited => findings.expect(
            "another thread sees what an allocation under way takes",
            before.saturating_sub(free) >= PIECE_BYTES - ROUNDING_BYTES,
            format!("{before} bytes free before, {free} at once after the call"),
        ),
        Ok(_) => {}
        Err(error) => findings.expect("another thread can ask meanwhile", false, error),
    }
    pool.put(address)?;
    pool.destroy()?;
    scene.expect_charged(findings, "and then it is free again", before, 0)?;
    Ok(())
}

/// A pool's unused memory is released for another allocation, as far as the driver does so. Allocations above the limit
/// are refused.
fn unused_reserve_makes_way(scene: &Scene, findings: &mut Findings) -> anyhow::Result<()> {
    let cuda = &scene.cuda;
    let before = scene.steady_free()?;
    let pool = Pool::create(cuda, u64::MAX)?;
    let piece = pool.take(before / 2)?;
    let refusal = pool.take(before).err().map(|error| error.result);
    findings.expect(
        "a pool does not grow past the cap",
        refusal == Some(CUresult::OUT_OF_MEMORY),
        format!("{before} bytes asked for with half of them free: {refusal:?}"),
    );
    findings
        .expect_ok("a refused allocation leaves the pool in order", pool.take(4096).and_then(|small| pool.put(small)));
    pool.put(piece)?;
    let needed = before - before / 4;
    let got = cuda.allocate(needed);
    findings.expect(
        "what a pool keeps unused is there for other memory",
        got.is_ok(),
        format!("{needed} of {before} bytes: {got:?}"),
    );
    if let Ok(address) = got {
        cuda.free(address)?;
    }
    pool.destroy()?;
    let free = scene.wait_for_free(before)?;
    findings.expect("all is free again", is_about(free, before), format!("{free} of {before} bytes"));
    Ok(())
}
