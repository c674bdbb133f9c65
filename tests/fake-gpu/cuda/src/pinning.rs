//! Decides which host memory can be registered: only pages that the kernel lets a driver pin for a long time.
//!
//! Linux refuses to pin pages of a shared mapping of a file on a disk, because they could be written back while the
//! device changes them. It allows it for shmem (tmpfs, memfd, shared anonymous memory) and hugetlbfs. A private mapping
//! gets its own copies of the pages.

use std::fs;

/// The file systems whose pages may be pinned.
const IN_MEMORY: [&str; 3] = ["tmpfs", "devtmpfs", "hugetlbfs"];

/// Whether this range can be pinned. If a file's file system is not mounted in this process's mount namespace, it is
/// assumed to be the kernel's internal one for memfds.
pub(crate) fn is_possible(start: u64, bytes: u64) -> bool {
    let Ok(maps) = fs::read_to_string("/proc/self/maps") else { return true };
    let mut shared = shared_files(&maps, start, start.saturating_add(bytes)).peekable();
    if shared.peek().is_none() {
        return true;
    }
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    shared.all(|device| file_system(&mounts, device).is_none_or(|name| IN_MEMORY.contains(&name)))
}

/// Device numbers (major, minor) of the files that are mapped shared between two addresses.
fn shared_files(maps: &str, start: u64, end: u64) -> impl Iterator<Item = (u32, u32)> {
    maps.lines().filter_map(move |line| {
        let mut words = line.split_ascii_whitespace();
        let (first, behind) = words.next()?.split_once('-')?;
        let (first, behind) = (u64::from_str_radix(first, 16).ok()?, u64::from_str_radix(behind, 16).ok()?);
        let is_shared = words.next()?.ends_with('s');
        let (major, minor) = words.nth(1)?.split_once(':')?;
        let device = (u32::from_str_radix(major, 16).ok()?, u32::from_str_radix(minor, 16).ok()?);
        let is_file = words.next()? != "0";
        (is_shared && is_file && first < end && start < behind).then_some(device)
    })
}

/// The name of the file system of a mounted device.
fn file_system(mounts: &str, device: (u32, u32)) -> Option<&str> {
    mounts.lines().find_map(|line| {
        let (place, kind) = line.split_once(" - ")?;
        let (major, minor) = place.split_ascii_whitespace().nth(2)?.split_once(':')?;
        let mounted = (major.parse().ok()?, minor.parse().ok()?);
        kind.split_ascii_whitespace().next().filter(|_| mounted == device)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAPS: &str = "1000-3000 rw-s 00000000 fe:00 12 /var/a file\n3000-4000 rw-p 00000000 fe:00 12 /var/a file\n\
                        4000-5000 rw-s 00000000 00:1a 7 /dev/shm/b (deleted)\n5000-6000 rw-s 00000000 00:01 9 /memfd:c\n\
                        6000-7000 rw-p 00000000 00:00 0 \n";
    const MOUNTS: &str =
        "22 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw\n23 22 0:26 / /dev/shm rw - tmpfs tmpfs rw\n";

    #[test]
    fn shared_files_of_a_range_are_found_with_their_file_systems() {
        let devices = |start, end| shared_files(MAPS, start, end).collect::<Vec<_>>();
        assert_eq!(devices(0x2000, 0x2001), [(0xfe, 0)]);
        assert_eq!(devices(0x2fff, 0x5000), [(0xfe, 0), (0, 0x1a)]);
        assert_eq!(devices(0x3000, 0x4000), []);
        assert_eq!(devices(0x5000, 0x7000), [(0, 1)]);
        assert_eq!(file_system(MOUNTS, (0xfe, 0)), Some("ext4"));
        assert_eq!(file_system(MOUNTS, (0, 0x1a)), Some("tmpfs"));
        assert_eq!(file_system(MOUNTS, (0, 1)), None);
    }
}
