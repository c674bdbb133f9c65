//! Virtual memory management: the charge and its end.

use aliquot_abi::cuda::{CUcontext, CUdeviceptr, CUmemAllocationProp, CUmemLocation, c_uint};

use crate::cases::memory::allocation_properties;
use crate::cuda::{Cuda, Done, call};
use crate::findings::Findings;
use crate::scene::{Scene, answer_name};

const BYTES: u64 = 128 << 20;
/// Memory that each thread allocates. It is a multiple of the granularity of every known device.
const THREAD_BYTES: usize = 64 << 20;
const THREADS: usize = 4;
const LOCATION_HOST: c_uint = 2;
const LOCATION_HOST_NUMA: c_uint = 3;

/// A step in the life of physical memory that can be mapped at two places.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Step {
    Create,
    Map(u64),
    /// Gets another handle of the memory mapped at the place.
    Retain(u64),
    Release,
    Unmap(u64),
}

use Step::{Create, Map, Release, Retain, Unmap};

/// Possible orders of the steps. The memory is charged from the first step until just before the last.
const ORDERS: [&[Step]; 7] = [
    &[Create, Release],
    &[Create, Map(0), Unmap(0), Release],
    &[Create, Map(0), Release, Unmap(0)],
    &[Create, Map(0), Map(1), Release, Unmap(1), Unmap(0)],
    &[Create, Map(0), Unmap(0), Map(1), Release, Unmap(1)],
    &[Create, Map(0), Retain(0), Release, Unmap(0), Release],
    &[Create, Map(0), Release, Retain(0), Unmap(0), Map(1), Release, Unmap(1)],
];

pub(super) fn run(scene: &Scene, findings: &mut Findings) -> anyhow::Result<()> {
    let cuda = &scene.cuda;
    if cuda.driver.cuMemCreate.is_none() {
        findings.skip("virtual memory management", "the driver has none");
        return Ok(());
    }
    let (mut range, bytes) = (0, BYTES as usize);
    // SAFETY: the output is a live local.
    unsafe { call!(cuda, cuMemAddressReserve(&mut range, 2 * bytes, 0, 0, 0))? };
    for order in ORDERS {
        if order.iter().any(|step| matches!(step, Retain(_))) && cuda.driver.cuMemRetainAllocationHandle.is_none() {
            findings.skip(format!("{order:?}"), "the driver has no cuMemRetainAllocationHandle");
            continue;
        }
        charged_until_the_last_step(scene, findings, range, order)?;
    }
    // SAFETY: nothing is mapped there any more.
    findings.expect_ok("the addresses can be given back", unsafe { call!(cuda, cuMemAddressFree(range, 2 * bytes)) });
    host_memory(scene, findings)?;
    threads_without_a_context(scene, findings)
}

fn charged_until_the_last_step(
    scene: &Scene,
    findings: &mut Findings,
    range: CUdeviceptr,
    order: &[Step],
) -> anyhow::Result<()> {
    let (cuda, bytes) = (&scene.cuda, BYTES as usize);
    let before = scene.steady_free()?;
    let (last, all_before) = order.split_last().map_or((&Create, &[][..]), |(last, all_before)| (last, all_before));
    let mut handle = 0;
    let mut take = |step: &Step| -> Done {
        // SAFETY: the outputs are live locals; the driver checks places and handles, and nothing accesses the mapped
        // memory.
        unsafe {
            match *step {
                Create => call!(cuda, cuMemCreate(&mut handle, bytes, &allocation_properties(cuda), 0)),
                Map(place) => call!(cuda, cuMemMap(range + place * BYTES, bytes, 0, handle, 0)),
                Retain(place) => {
                    let address = std::ptr::with_exposed_provenance_mut((range + place * BYTES) as usize);
                    call!(cuda, cuMemRetainAllocationHandle(&mut handle, address))
                }
                Release => call!(cuda, cuMemRelease(handle)),
                Unmap(place) => call!(cuda, cuMemUnmap(range + place * BYTES, bytes)),
            }
        }
    };
    all_before.iter().try_for_each(&mut take)?;
    scene.expect_charged(findings, &format!("{all_before:?}: charged"), before, BYTES)?;
    findings.expect_ok(format!("{all_before:?}, then {last:?}"), take(last));
    scene.expect_charged(findings, &format!("{all_before:?}, then {last:?}: given back"), before, 0)?;
    Ok(())
}

/// Physical memory of the host takes no device memory.
fn host_memory(scene: &Scene, findings: &mut Findings) -> anyhow::Result<()> {
    let cuda = &scene.cuda;
    let before = scene.steady_free()?;
    for (name, kind) in [("the host", LOCATION_HOST), ("a NUMA node of the host", LOCATION_HOST_NUMA)] {
        let location = CUmemLocation { kind, id: 0 };
        let properties = CUmemAllocationProp { location, ..allocation_properties(cuda) };
        let mut handle = 0;
        // SAFETY: the properties live during the call; the output is a live local.
        let got = unsafe { call!(cuda, cuMemCreate(&mut handle, BYTES as usize, &properties, 0)) };
        findings.answer(format!("physical memory of {name}"), answer_name(&got));
        match got {
            Err(error) => findings.skip(format!("physical memory of {name}"), error.to_string()),
            Ok(()) => {
                let what = format!("physical memory of {name} is none of the device's");
                scene.expect_charged(findings, &what, before, 0)?;
                // SAFETY: nothing uses the memory.
                unsafe { call!(cuda, cuMemRelease(handle))? };
            }
        }
    }
    Ok(())
}

/// The properties name the device, so a thread needs no context.
fn threads_without_a_context(scene: &Scene, findings: &mut Findings) -> anyhow::Result<()> {
    let cuda = &scene.cuda;
    let before = scene.steady_free()?;
    let handles = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS).map(|_| scope.spawn(|| create_without_a_context(cuda))).collect();
        threads.into_iter().map(|thread| thread.join().map_err(|_| "a thread panicked".to_owned())?).collect()
    });
    let handles: Result<Vec<u64>, String> = handles;
    let Some(handles) = findings.expect_ok(format!("{THREADS} threads without a context"), handles) else {
        return Ok(());
    };
    scene.expect_charged(findings, "what they take is charged", before, (THREADS * THREAD_BYTES) as u64)?;
    // SAFETY: nothing uses the memory.
    handles.into_iter().try_for_each(|handle| unsafe { call!(cuda, cuMemRelease(handle)) })?;
    scene.expect_charged(findings, "and given back", before, 0)?;
    Ok(())
}

fn create_without_a_context(cuda: &Cuda) -> Result<u64, String> {
    let (mut current, mut handle) = (CUcontext::NULL, 0);
    // SAFETY: the outputs are live locals.
    let done = unsafe {
        call!(cuda, cuCtxGetCurrent(&mut current))
            .and_then(|()| call!(cuda, cuMemCreate(&mut handle, THREAD_BYTES, &allocation_properties(cuda), 0)))
    };
    done.map_err(|error| error.to_string())?;
    if current.is_null() { Ok(handle) } else { Err("a new thread has a context".to_owned()) }
}
