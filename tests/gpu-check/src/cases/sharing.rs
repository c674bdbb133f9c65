//! Memory shared by two processes, in every possible way: the process that made it is charged, a process that opens it
//! is not.

use std::io::Write;
use std::os::fd::{BorrowedFd, RawFd};
use std::process::{Command, Stdio};

use aliquot_abi::cuda::{
    CU_MEM_LOCATION_TYPE_DEVICE, CUdeviceptr, CUipcMemHandle, CUmemAccessDesc, CUmemAllocationProp, CUmemLocation,
    CUmemPoolProps, CUmemPoolPtrExportData, CUmemoryPool, c_int, c_uint, c_void,
};
use anyhow::{Context, bail};
use nix::fcntl::{FcntlArg, FdFlag, fcntl};
use serde::{Deserialize, Serialize};

use crate::cases::memory::allocation_properties;
use crate::cuda::{Cuda, Done, call};
use crate::findings::Findings;
use crate::scene::{ROUNDING_BYTES, Scene, answer_name, settled_free};
use crate::truth::listed_bytes;
use crate::way::Way;

const BYTES: usize = 128 << 20;
/// The memory's contents.
const PATTERN: u8 = 0xa5;
const ALLOCATION_PINNED: c_uint = 1;
const FILE_DESCRIPTOR: c_uint = 1;
const READ_WRITE: c_uint = 3;
const IPC_LAZY_PEER_ACCESS: c_uint = 1;
const DESCRIPTORS_SUPPORTED: c_uint = 103;
const POOL_HANDLE_TYPES: c_uint = 119;

/// The message to the second process: how to open the memory.
#[derive(Clone, Serialize, Deserialize)]
enum Shared {
    /// The bytes of a `CUipcMemHandle`.
    Ipc(Vec<u8>),
    /// A descriptor of physical memory.
    Physical(RawFd),
    /// A descriptor of a pool, and the bytes of a `CUmemPoolPtrExportData`.
    Pool(RawFd, Vec<u8>),
}

/// The second process's results.
#[derive(Debug, Serialize, Deserialize)]
struct Seen {
    /// The result of opening the memory.
    opened: String,
    /// Whether the memory contains what the first process wrote.
    is_right: bool,
    /// Free bytes without the memory, and with it.
    free_without: u64,
    free_with: u64,
    /// What NVML lists for the second process more with the memory; absent if it cannot be asked.
    listed_more: Option<u64>,
    /// The result of closing the memory.
    closed: String,
}

pub(super) fn run(scene: &Scene, findings: &mut Findings) -> anyhow::Result<()> {
    by_ipc(scene, findings)?;
    physical_memory(scene, findings)?;
    a_pool(scene, findings)
}

fn by_ipc(scene: &Scene, findings: &mut Findings) -> anyhow::Result<()> {
    let cuda = &scene.cuda;
    let before = scene.settled_free()?;
    let address = filled(cuda, cuda.allocate(BYTES as u64)?)?;
    let mut handle = CUipcMemHandle { reserved: [0; 64] };
    // SAFETY: the output is a live local.
    let got = unsafe { call!(cuda, cuIpcGetMemHandle(&mut handle, address)) };
    match got {
        Err(error) => findings.skip("sharing by cuIpcGetMemHandle", error.to_string()),
        Ok(()) => opened_elsewhere(scene, findings, "cuIpcGetMemHandle", Shared::Ipc(handle.reserved.to_vec()))?,
    }
    findings.expect_ok("memory that was shared by IPC can be given back", cuda.free(address));
    scene.expect_charged(findings, "and is free again", before, 0)?;
    Ok(())
}

fn physical_memory(scene: &Scene, findings: &mut Findings) -> anyhow::Result<()> {
    const WHAT: &str = "cuMemExportToShareableHandle";
    let cuda = &scene.cuda;
    if cuda.attribute(DESCRIPTORS_SUPPORTED).unwrap_or_default() == 0 {
        findings.skip(WHAT, "the device does not share memory by file descriptors");
        return Ok(());
    }
    let before = scene.settled_free()?;
    let properties = CUmemAllocationProp { requested_handle_types: FILE_DESCRIPTOR, ..allocation_properties(cuda) };
    let (mut handle, mut descriptor): (u64, RawFd) = (0, -1);
    // SAFETY: the properties live during the call; the outputs are live locals, the second as long as a descriptor.
    unsafe {
        call!(cuda, cuMemCreate(&mut handle, BYTES, &properties, 0))?;
        let shared = (&raw mut descriptor).cast::<c_void>();
        let exported = call!(cuda, cuMemExportToShareableHandle(shared, handle, FILE_DESCRIPTOR, 0));
        if let Err(error) = exported {
            findings.skip(WHAT, error.to_string());
            call!(cuda, cuMemRelease(handle))?;
            return Ok(());
        }
    }
    let address = filled(cuda, mapped(cuda, handle)?)?;
    scene.expect_charged(findings, "memory that is exported is charged once", before, BYTES as u64)?;
    opened_elsewhere(scene, findings, WHAT, Shared::Physical(descriptor))?;

    let mut again = 0;
    // SAFETY: the descriptor is the exported memory's; the output is a live local.
    let imported = unsafe {
        let descriptor = std::ptr::without_provenance_mut(descriptor as usize);
        call!(cuda, cuMemImportFromShareableHandle(&mut again, descriptor, FILE_DESCRIPTOR))
    };
    findings.answer("own memory imported again", answer_name(&imported));
    scene.expect_charged(findings, "and is not charged again", before, BYTES as u64)?;
    // SAFETY: nothing uses the mapping or the handles any more; the descriptor belongs to this function.
    unsafe {
        findings.expect_ok(
            "a second handle can be released",
            match imported {
                Ok(()) => call!(cuda, cuMemRelease(again)),
                Err(_) => Ok(()),
            },
        );
        call!(cuda, cuMemRelease(handle))?;
        call!(cuda, cuMemUnmap(address, BYTES))?;
        call!(cuda, cuMemAddressFree(address, BYTES))?;
        // As long as the descriptor is open, the memory stays, the driver counts it, and the slice is charged.
        libc::close(descriptor);
    }
    scene.expect_charged(findings, "with the last handle, mapping and descriptor it is free again", before, 0)?;
    Ok(())
}

fn a_pool(scene: &Scene, findings: &mut Findings) -> anyhow::Result<()> {
    const WHAT: &str = "cuMemPoolExportToShareableHandle";
    let cuda = &scene.cuda;
    let types = cuda.attribute(POOL_HANDLE_TYPES).unwrap_or_default();
    if types as c_uint & FILE_DESCRIPTOR == 0 {
        findings.skip(WHAT, "the device does not share pools by file descriptors");
        return Ok(());
    }
    let before = scene.settled_free()?;
    let properties = CUmemPoolProps {
        alloc_kind: ALLOCATION_PINNED,
        handle_types: FILE_DESCRIPTOR,
        location: CUmemLocation { kind: CU_MEM_LOCATION_TYPE_DEVICE, id: cuda.device },
        win32_security_attributes: std::ptr::null_mut(),
        max_size_bytes: 0,
        reserved: [0; 56],
    };
    let (mut pool, mut address, stream) = (CUmemoryPool::NULL, 0, cuda.stream()?);
    let (mut descriptor, mut pointer): (RawFd, _) = (-1, CUmemPoolPtrExportData { reserved: [0; 64] });
    // SAFETY: the properties live during the call; the outputs are live locals, the descriptor as long as one.
    let exported = unsafe {
        call!(cuda, cuMemPoolCreate(&mut pool, &properties))?;
        call!(cuda, cuMemAllocFromPoolAsync(&mut address, BYTES, pool, stream))?;
        cuda.finish(stream)?;
        let shared = (&raw mut descriptor).cast::<c_void>();
        call!(cuda, cuMemPoolExportToShareableHandle(shared, pool, FILE_DESCRIPTOR, 0))
            .and_then(|()| call!(cuda, cuMemPoolExportPointer(&mut pointer, address)))
    };
    filled(cuda, address)?;
    match exported {
        Err(error) => findings.skip(WHAT, error.to_string()),
        Ok(()) => opened_elsewhere(scene, findings, WHAT, Shared::Pool(descriptor, pointer.reserved.to_vec()))?,
    }
    // SAFETY: nothing uses the memory or the pool any more; the descriptor belongs to this function, or is none.
    unsafe {
        call!(cuda, cuMemFreeAsync(address, stream))?;
        cuda.finish(stream)?;
        call!(cuda, cuMemPoolDestroy(pool))?;
        libc::close(descriptor);
    }
    scene.expect_charged(findings, "a pool that was shared is free again", before, 0)?;
    Ok(())
}

/// Lets a second process of the same slice open the memory, and records its results.
fn opened_elsewhere(scene: &Scene, findings: &mut Findings, how: &str, shared: Shared) -> anyhow::Result<()> {
    let seen = in_second_process(&shared)?;
    findings.answer(format!("{how}: another process opens the memory"), seen.opened.clone());
    findings.answer(format!("{how}: and closes it"), seen.closed.clone());
    if seen.opened != "CUDA_SUCCESS" {
        findings.skip(format!("{how}: memory shared with another process"), seen.opened);
        return Ok(());
    }
    findings.expect(format!("{how}: the other process reads what this one wrote"), seen.is_right, "");
    if let Some(bytes) = seen.listed_more {
        let what = format!("{how}: more listed by NVML for the process that opens it");
        findings.figure(what, bytes as f64 / f64::from(1 << 20), "MiB");
    }
    if scene.way == Way::Limited {
        let charged = seen.free_without.saturating_sub(seen.free_with);
        findings.expect(
            format!("{how}: opening it costs nothing"),
            charged <= ROUNDING_BYTES,
            format!("{} bytes free without it, {} with it", seen.free_without, seen.free_with),
        );
    }
    Ok(())
}

fn in_second_process(shared: &Shared) -> anyhow::Result<Seen> {
    if let Shared::Physical(descriptor) | Shared::Pool(descriptor, _) = *shared {
        // SAFETY: the driver has just opened it for this process.
        let descriptor = unsafe { BorrowedFd::borrow_raw(descriptor) };
        fcntl(descriptor, FcntlArg::F_SETFD(FdFlag::empty())).context("a descriptor for the second process")?;
    }
    let mut command = Command::new(std::env::current_exe()?);
    command.args(["worker", "open-shared"]).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = command.spawn().context("cannot start a second process")?;
    // The pipe is closed at the end of the statement, which ends the process's input.
    child.stdin.take().context("no pipe")?.write_all(serde_json::to_string(shared)?.as_bytes())?;
    let output = child.wait_with_output()?;
    if !output.status.success() {
        bail!("the second process ended with {}", output.status);
    }
    Ok(serde_json::from_slice(&output.stdout)?)
}

/// The second process: opens the memory described on its standard input, and prints its results.
pub(crate) fn open_shared() -> anyhow::Result<()> {
    let shared: Shared = serde_json::from_reader(std::io::stdin())?;
    let cuda = &Cuda::open()?;
    let free_without = settled_free(cuda)?;
    let (uuid, pid) = (cuda.uuid()?, std::process::id());
    let listed_without = listed_bytes(&uuid, pid).ok();
    let opened = open(cuda, &shared);
    let mut seen = Seen {
        opened: answer_name(&opened),
        is_right: false,
        free_without,
        free_with: settled_free(cuda)?,
        listed_more: listed_without
            .zip(listed_bytes(&uuid, pid).ok())
            .map(|(without, with)| with.saturating_sub(without)),
        closed: String::new(),
    };
    if let Ok(address) = opened {
        let mut bytes = vec![0; BYTES];
        cuda.read(&mut bytes, address, cuda.stream()?)?;
        seen.is_right = bytes.iter().all(|&byte| byte == PATTERN);
        seen.closed = answer_name(&close(cuda, &shared, address));
    }
    println!("{}", serde_json::to_string(&seen)?);
    Ok(())
}

fn open(cuda: &Cuda, shared: &Shared) -> Done<CUdeviceptr> {
    let mut address = 0;
    // SAFETY: the handles are what the first process got from the driver; the outputs are live locals.
    unsafe {
        match shared {
            Shared::Ipc(bytes) => {
                let handle = CUipcMemHandle { reserved: fixed(bytes) };
                call!(cuda, cuIpcOpenMemHandle_v2(&mut address, handle, IPC_LAZY_PEER_ACCESS))?;
            }
            Shared::Physical(descriptor) => {
                let (mut handle, descriptor) = (0, std::ptr::without_provenance_mut(*descriptor as usize));
                call!(cuda, cuMemImportFromShareableHandle(&mut handle, descriptor, FILE_DESCRIPTOR))?;
                address = mapped(cuda, handle)?;
                call!(cuda, cuMemRelease(handle))?;
            }
            Shared::Pool(descriptor, bytes) => {
                let (mut pool, descriptor) =
                    (CUmemoryPool::NULL, std::ptr::without_provenance_mut(*descriptor as usize));
                let mut pointer = CUmemPoolPtrExportData { reserved: fixed(bytes) };
                call!(cuda, cuMemPoolImportFromShareableHandle(&mut pool, descriptor, FILE_DESCRIPTOR, 0))?;
                let access = access(cuda);
                call!(cuda, cuMemPoolSetAccess(pool, &access, 1))?;
                call!(cuda, cuMemPoolImportPointer(&mut address, pool, &mut pointer))?;
            }
        }
    }
    Ok(address)
}

fn close(cuda: &Cuda, shared: &Shared, address: CUdeviceptr) -> Done {
    // SAFETY: nothing uses the memory any more.
    unsafe {
        match shared {
            Shared::Ipc(_) => call!(cuda, cuIpcCloseMemHandle(address)),
            Shared::Physical(_) => {
                call!(cuda, cuMemUnmap(address, BYTES))?;
                call!(cuda, cuMemAddressFree(address, BYTES))
            }
            Shared::Pool(..) => cuda.free(address),
        }
    }
}

/// Maps physical memory at a new address.
fn mapped(cuda: &Cuda, handle: u64) -> Done<CUdeviceptr> {
    let (mut address, access) = (0, access(cuda));
    // SAFETY: the output is a live local; the driver checks the handle.
    unsafe {
        call!(cuda, cuMemAddressReserve(&mut address, BYTES, 0, 0, 0))?;
        call!(cuda, cuMemMap(address, BYTES, 0, handle, 0))?;
        call!(cuda, cuMemSetAccess(address, BYTES, &access, 1))?;
    }
    Ok(address)
}

fn access(cuda: &Cuda) -> CUmemAccessDesc {
    CUmemAccessDesc {
        location: CUmemLocation { kind: CU_MEM_LOCATION_TYPE_DEVICE, id: cuda.device as c_int },
        flags: READ_WRITE,
    }
}

/// Fills memory with the pattern.
fn filled(cuda: &Cuda, address: CUdeviceptr) -> Done<CUdeviceptr> {
    let stream = cuda.stream()?;
    cuda.set(address, PATTERN, BYTES, stream)?;
    cuda.finish(stream)?;
    Ok(address)
}

/// The bytes as an array of 64, the length of the driver's handles.
fn fixed<T: Copy + Default>(bytes: &[T]) -> [T; 64] {
    std::array::from_fn(|index| bytes.get(index).copied().unwrap_or_default())
}
