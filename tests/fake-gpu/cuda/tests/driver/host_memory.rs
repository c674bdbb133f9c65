//! Host memory that the driver allocates or registers.

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd};

use aliquot_abi::cuda::*;

use crate::library::{Driver, Expect};
use crate::scenario::alone;

const PAGE_BYTES: usize = 4096;

/// Maps a page of a file, and never unmaps it.
fn mapped(file: &File, flags: i32) -> *mut c_void {
    file.set_len(PAGE_BYTES as u64).expect("a file of one page");
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: a fresh mapping, at an address that the kernel chooses.
    let page = unsafe { libc::mmap(core::ptr::null_mut(), PAGE_BYTES, protection, flags, file.as_raw_fd(), 0) };
    assert_ne!(page, libc::MAP_FAILED, "{}", io::Error::last_os_error());
    page
}

fn is_in_memory(file: &File) -> bool {
    // SAFETY: the structure is plain numbers, and the call fills it in.
    let kind = unsafe {
        let mut of: libc::statfs = core::mem::zeroed();
        assert_eq!(libc::fstatfs(file.as_raw_fd(), &raw mut of), 0);
        of.f_type
    };
    kind == libc::TMPFS_MAGIC
}

#[test]
fn a_device_cannot_use_shared_pages_of_files_on_disks() {
    alone("host_memory::a_device_cannot_use_shared_pages_of_files_on_disks", "", || {
        let driver = Driver::with_context();
        for folder in [env!("CARGO_TARGET_TMPDIR"), "/dev/shm"] {
            let file = tempfile::tempfile_in(folder).expect("a file");
            let expected = if is_in_memory(&file) { CUresult::SUCCESS } else { CUresult::INVALID_VALUE };
            driver.cuMemHostRegister_v2(mapped(&file, libc::MAP_SHARED), PAGE_BYTES, 0).is(expected);
            driver.cuMemHostRegister_v2(mapped(&file, libc::MAP_PRIVATE), PAGE_BYTES, 0).ok();
        }
        // SAFETY: the name is NUL-terminated, and the new descriptor has no other owner.
        let file = unsafe { File::from_raw_fd(libc::memfd_create(c"pages".as_ptr(), libc::MFD_CLOEXEC)) };
        driver.cuMemHostRegister_v2(mapped(&file, libc::MAP_SHARED), PAGE_BYTES, 0).ok();
    });
}

#[test]
fn host_memory_is_known_by_its_address() {
    alone("host_memory::host_memory_is_known_by_its_address", "", || {
        let driver = Driver::with_context();
        let mut page = vec![0_u8; 8192];
        let start = page.as_mut_ptr().cast::<c_void>();
        let mut address = 0;
        driver.cuMemHostGetDevicePointer_v2(&mut address, start, 0).is(CUresult::INVALID_VALUE);
        driver.cuMemHostRegister_v2(start, 8192, 0).ok();
        driver.cuMemHostRegister_v2(start, 10, 0).is(CUresult::HOST_MEMORY_ALREADY_REGISTERED);
        driver.cuMemHostGetDevicePointer_v2(&mut address, start, 0).ok();
        assert_eq!(address, start as u64);
        let mut kind = 0_u32;
        driver.cuPointerGetAttribute((&raw mut kind).cast(), 2, address + 5).ok();
        assert_eq!(kind, 1);
        driver.cuMemHostUnregister(start).ok();
        driver.cuMemHostUnregister(start).is(CUresult::HOST_MEMORY_NOT_REGISTERED);
        driver.cuMemHostRegister_v2(core::ptr::without_provenance_mut(0x1000), 4096, 0).is(CUresult::INVALID_VALUE);
        driver.cuPointerGetAttribute((&raw mut kind).cast(), 2, address).is(CUresult::INVALID_VALUE);
    });
}
