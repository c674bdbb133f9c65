//! What of the host's driver a container needs: device nodes and libraries.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::inventory::Inventory;
use crate::slices::Slice;

/// The driver's libraries that a CUDA program loads.
const LIBRARIES: [&str; 4] =
    ["libcuda.so.1", "libnvidia-ml.so.1", "libnvidia-ptxjitcompiler.so.1", "libnvidia-nvvm.so.4"];
/// Where the loaders of Debian's and Red Hat's families look without being told. A container's own loader cache does not know
/// what is mounted.
const CONTAINER_DIRS: [&str; 2] = ["/usr/lib/x86_64-linux-gnu", "/usr/lib64"];

/// The parts of the driver that are there.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct HostDriver {
    /// Device nodes.
    pub(super) device_nodes: Vec<PathBuf>,
    /// Libraries: the file on this machine, and its place in the container.
    pub(super) libraries: Vec<(PathBuf, PathBuf)>,
}

impl HostDriver {
    /// What the devices of `slice` need.
    pub(super) fn find(slice: &Slice, inventory: &Inventory) -> HostDriver {
        let minors = slice.parts.iter().filter_map(|part| inventory.device(&part.device)?.minor);
        let nodes = minors.map(|minor| format!("/dev/nvidia{minor}"));
        let shared = ["/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools"].map(String::from);
        let device_nodes = nodes.chain(shared).map(PathBuf::from).filter(|node| node.exists()).collect();
        HostDriver { device_nodes, libraries: libraries(&loader_cache()) }
    }
}

fn libraries(cache: &BTreeMap<String, PathBuf>) -> Vec<(PathBuf, PathBuf)> {
    let found = LIBRARIES.into_iter().filter_map(|name| Some((name, fs::canonicalize(cache.get(name)?).ok()?)));
    found.flat_map(|(name, file)| CONTAINER_DIRS.map(|dir| (file.clone(), Path::new(dir).join(name)))).collect()
}

/// The libraries that the host's loader knows. Where its tool is missing none are known, and nothing is mounted.
fn loader_cache() -> BTreeMap<String, PathBuf> {
    let tools = ["/sbin/ldconfig", "/usr/sbin/ldconfig"];
    let output = tools.into_iter().find_map(|tool| Command::new(tool).arg("-p").output().ok());
    output.map(|output| parse(&String::from_utf8_lossy(&output.stdout))).unwrap_or_default()
}

/// Lines such as `libcuda.so.1 (libc6,x86-64) => /lib/x86_64-linux-gnu/libcuda.so.1`.
fn parse(text: &str) -> BTreeMap<String, PathBuf> {
    let entry = |line: &str| {
        let (name, path) = line.split_once(" => ")?;
        let (name, kind) = name.trim().split_once(" (")?;
        kind.contains("x86-64").then(|| (name.to_owned(), PathBuf::from(path.trim())))
    };
    let mut cache = BTreeMap::new();
    for (name, path) in text.lines().filter_map(entry) {
        // The loader takes the first.
        cache.entry(name).or_insert(path);
    }
    cache
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_loader_s_first_library_of_this_machine_counts() {
        let cache = parse(
            "2 libs found in cache `/etc/ld.so.cache'\n\
             \tlibcuda.so.1 (libc6) => /usr/lib32/libcuda.so.1\n\
             \tlibcuda.so.1 (libc6,x86-64) => /a/libcuda.so.1\n\
             \tlibcuda.so.1 (libc6,x86-64) => /b/libcuda.so.1\n\
             \tlibc.so.6 (libc6,x86-64, OS ABI: Linux 3.2.0) => /lib/libc.so.6\n",
        );
        assert_eq!(cache.get("libcuda.so.1"), Some(&PathBuf::from("/a/libcuda.so.1")));
        assert_eq!(cache.get("libc.so.6"), Some(&PathBuf::from("/lib/libc.so.6")));
    }

    #[test]
    fn a_library_goes_where_both_families_look_and_one_that_is_missing_nowhere() {
        let dir = tempfile::tempdir().unwrap();
        let (file, link) = (dir.path().join("libcuda.so.570.1"), dir.path().join("libcuda.so.1"));
        fs::write(&file, "").unwrap();
        std::os::unix::fs::symlink(&file, &link).unwrap();
        let cache = BTreeMap::from([("libcuda.so.1".into(), link), ("libnvidia-ml.so.1".into(), "/missing".into())]);
        let file = fs::canonicalize(file).unwrap();
        assert_eq!(
            libraries(&cache),
            [(file.clone(), "/usr/lib/x86_64-linux-gnu/libcuda.so.1".into()), (file, "/usr/lib64/libcuda.so.1".into())]
        );
    }
}
