//! Look-up of every function in the table: by `dlsym`, and by both versions of `cuGetProcAddress`.

use std::ffi::{CStr, c_int, c_uint, c_void};
use std::ptr;

use aliquot_abi::cuda::{CU_GET_PROC_ADDRESS_LEGACY_STREAM, CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM, CUresult};

use crate::driver::{TABLE, types};
use crate::findings::Findings;
use crate::scene::Scene;

/// CUDA versions that programs are built for.
const VERSIONS: [c_int; 4] = [11_030, 11_080, 12_080, 13_000];
const FLAGS: [u64; 3] = [0, CU_GET_PROC_ADDRESS_LEGACY_STREAM, CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM];
/// A name that no driver has.
const UNKNOWN: &CStr = c"cuNoSuchFunction";

pub(super) fn run(scene: &Scene, findings: &mut Findings) -> anyhow::Result<()> {
    let missing: Vec<&str> =
        TABLE.iter().filter(|line| by_dlsym(scene, line.symbol).is_none()).map(|line| bare(line.symbol)).collect();
    findings.answer("dlsym finds all but", missing.join(" "));
    findings.expect("dlsym finds no unknown name", by_dlsym(scene, "cuNoSuchFunction\0").is_none(), "");

    let driver_version = scene.cuda.version()?;
    let mut names: Vec<&str> = TABLE.iter().map(|line| line.name).collect();
    names.dedup();
    for version in VERSIONS.into_iter().filter(|&version| version <= driver_version) {
        for flags in FLAGS {
            let missing: Vec<&str> = names
                .iter()
                .filter(|name| by_proc_address(scene, text(name), version, flags).is_none())
                .map(|name| bare(name))
                .collect();
            findings
                .answer(format!("cuGetProcAddress, CUDA {version}, flags {flags}, finds all but"), missing.join(" "));
        }
    }
    findings.expect(
        "cuGetProcAddress finds no unknown name",
        by_proc_address(scene, UNKNOWN, VERSIONS[0], 0).is_none(),
        "",
    );

    every_route_leads_to_the_same_view(scene, findings)
}

/// `cuMemGetInfo` must show the same device, however it was looked up.
fn every_route_leads_to_the_same_view(scene: &Scene, findings: &mut Findings) -> anyhow::Result<()> {
    let (_, total) = scene.cuda.memory()?;
    let name = c"cuMemGetInfo";
    let mut routes = vec![
        ("the process's scope".to_owned(), in_process_scope(c"cuMemGetInfo_v2")),
        ("cuGetProcAddress v1".to_owned(), by_proc_address_v1(scene, name)),
        ("cuGetProcAddress, found by itself".to_owned(), by_itself(scene, name)),
    ];
    for version in VERSIONS {
        routes.push((format!("cuGetProcAddress v2 for CUDA {version}"), by_proc_address(scene, name, version, 0)));
    }
    for (route, address) in routes {
        let what = format!("cuMemGetInfo by {route}");
        match address {
            None => findings.skip(what, "this driver does not offer it"),
            Some(address) => {
                let seen = total_by(address);
                findings.expect(what, seen == Ok(total), format!("{seen:?} where the linked function shows {total}"));
            }
        }
    }
    Ok(())
}

/// The address of `symbol` by `dlsym`.
pub(crate) fn by_dlsym(scene: &Scene, symbol: &str) -> Option<*mut c_void> {
    // SAFETY: the address is only compared and, for a known symbol, called by its type.
    unsafe { scene.cuda.driver.library.get::<*mut c_void>(symbol.as_bytes()) }
        .ok()
        .map(|found| *found)
        .filter(|found| !found.is_null())
}

/// `dlsym` without a library: the address that a program linked to the driver gets.
fn in_process_scope(symbol: &CStr) -> Option<*mut c_void> {
    // SAFETY: the name ends with a NUL.
    let found = unsafe { libc::dlsym(libc::RTLD_DEFAULT, symbol.as_ptr()) };
    (!found.is_null()).then_some(found)
}

/// The address that programs for this CUDA version get for `name`.
pub(crate) fn by_proc_address(scene: &Scene, name: &CStr, version: c_int, flags: u64) -> Option<*mut c_void> {
    proc_address(scene.cuda.driver.cuGetProcAddress_v2?, name, version, flags)
}

fn proc_address(get: types::cuGetProcAddress_v2, name: &CStr, version: c_int, flags: u64) -> Option<*mut c_void> {
    let (mut found, mut status): (_, c_uint) = (ptr::null_mut(), 0);
    // SAFETY: the name ends with a NUL; the outputs are live locals.
    let result = unsafe { get(name.as_ptr(), &mut found, version, flags, &mut status) };
    (result.is_ok() && !found.is_null()).then_some(found)
}

fn by_proc_address_v1(scene: &Scene, name: &CStr) -> Option<*mut c_void> {
    let get = scene.cuda.driver.cuGetProcAddress?;
    let mut found = ptr::null_mut();
    // SAFETY: the name ends with a NUL; the output is a live local.
    let result = unsafe { get(name.as_ptr(), &mut found, VERSIONS[1], 0) };
    (result.is_ok() && !found.is_null()).then_some(found)
}

/// Looks up as the CUDA runtime does: gets the second version of `cuGetProcAddress` from `cuGetProcAddress`.
fn by_itself(scene: &Scene, name: &CStr) -> Option<*mut c_void> {
    let own = by_proc_address(scene, c"cuGetProcAddress", 12_000, 0)?;
    // SAFETY: for CUDA 12 the name stands for the function's second version.
    let own = unsafe { std::mem::transmute::<*mut c_void, types::cuGetProcAddress_v2>(own) };
    proc_address(own, name, 12_000, 0)
}

/// The device's total bytes by the `cuMemGetInfo` at `address`.
fn total_by(address: *mut c_void) -> Result<u64, CUresult> {
    // SAFETY: all versions of the name from CUDA 3.2 on are this function.
    let get = unsafe { std::mem::transmute::<*mut c_void, types::cuMemGetInfo_v2>(address) };
    let (mut free, mut total) = (0, 0);
    // SAFETY: the outputs are live locals.
    match unsafe { get(&mut free, &mut total) } {
        CUresult::SUCCESS => Ok(total as u64),
        error => Err(error),
    }
}

/// The name as a C string.
pub(crate) fn text(name: &str) -> &CStr {
    CStr::from_bytes_with_nul(name.as_bytes()).unwrap_or(UNKNOWN)
}

/// The name without its closing NUL.
pub(crate) fn bare(name: &str) -> &str {
    name.trim_end_matches('\0')
}
