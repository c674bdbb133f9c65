//! The parts of the host's driver that a container needs: device nodes, libraries and programs. They are the same that
//! NVIDIA's runtime gives for the capabilities *compute* and *utility*, without the programs that only a node's
//! administrator needs, and without OpenCL, which the shim does not limit.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use super::device_nodes::DeviceNodes;
use crate::driver_root::DriverRoot;
use crate::inventory::{Device, Inventory};
use crate::slices::Slice;

/// The driver's libraries, without the suffix `.so.` and a number or the driver's version. Two are only in old drivers:
/// `fatbinaryloader` and `compiler`. `nvvm70` is for programs of CUDA 11, since R575.
const LIBRARIES: [&str; 14] = [
    "libcuda",
    "libcudadebugger",
    "libnvidia-allocator",
    "libnvidia-cfg",
    "libnvidia-compiler",
    "libnvidia-fatbinaryloader",
    "libnvidia-gpucomp",
    "libnvidia-ml",
    "libnvidia-nvvm",
    "libnvidia-nvvm70",
    "libnvidia-pkcs11",
    "libnvidia-pkcs11-openssl3",
    "libnvidia-ptxjitcompiler",
    "libnvidia-tileiras",
];
/// Names that programs load, with the names that programs are linked against.
const LINKED: [(&str, &str); 1] = [("libcuda.so.1", "libcuda.so")];
/// The directories where the loaders of the Debian and Red Hat families look by default.
const CONTAINER_DIRS: [&str; 2] = if cfg!(target_arch = "aarch64") {
    ["/usr/lib/aarch64-linux-gnu", "/usr/lib64"]
} else {
    ["/usr/lib/x86_64-linux-gnu", "/usr/lib64"]
};
/// The driver's programs that show a container its devices.
const PROGRAMS: [&str; 2] = ["nvidia-smi", "nvidia-debugdump"];
/// The directories where drivers install their programs.
const PROGRAM_DIRS: [&str; 4] = ["/usr/bin", "/usr/local/bin", "/opt/bin", "/bin"];
const CONTAINER_PROGRAM_DIR: &str = "/usr/bin";
/// The socket of the daemon that keeps devices initialised.
const PERSISTENCE_SOCKET: &str = "/run/nvidia-persistenced/socket";
/// NVIDIA's programs that update a container's loader cache, and their first arguments.
const HOOKS: [(&str, &[&str]); 3] = [
    ("/usr/bin/nvidia-cdi-hook", &["nvidia-cdi-hook", "update-ldcache"]),
    ("/usr/local/nvidia/toolkit/nvidia-cdi-hook", &["nvidia-cdi-hook", "update-ldcache"]),
    ("/usr/bin/nvidia-ctk", &["nvidia-ctk", "hook", "update-ldcache"]),
];

/// The parts of the driver that exist on the node.
#[derive(Debug, Default)]
pub(super) struct HostDriver {
    pub(super) nodes: DeviceNodes,
    /// Libraries, programs and sockets: the file on the node, and its place in the container.
    pub(super) files: Vec<(PathBuf, PathBuf)>,
    /// A way to find the driver, for programs that look it up in the loader's cache, which does not know the mounted
    /// files: Triton, and with it torch.compile.
    pub(super) finder: Option<Finder>,
}

/// How programs that use the loader's cache find the driver.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Finder {
    /// A program on the node that updates the cache before the container starts.
    Hook {
        /// The path of the program on the node.
        path: PathBuf,
        /// Its arguments, its name first.
        arguments: Vec<String>,
    },
    /// A variable that tells Triton where the driver is.
    Variable(String),
}

impl HostDriver {
    /// Finds what the devices of `slice` need of the driver at `root`, whose loader finds `loadable`. Makes device nodes
    /// that are missing where that is possible.
    pub(super) fn find(
        slice: &Slice,
        inventory: &Inventory,
        root: &DriverRoot,
        loadable: &BTreeMap<String, PathBuf>,
    ) -> HostDriver {
        let devices: Vec<&Device> = slice.parts.iter().filter_map(|part| inventory.device(&part.device)).collect();
        let nodes = DeviceNodes::find(&devices, root);
        let mut files = libraries(root, loadable);
        let finder = (!files.is_empty()).then(|| finder(|path| root.seen_on_node(path).exists()));
        files.extend(PROGRAMS.into_iter().filter_map(|name| program(root, name)));
        let socket = Path::new(PERSISTENCE_SOCKET);
        files.extend(root.seen_on_node(socket).exists().then(|| (socket.to_owned(), socket.to_owned())));
        HostDriver { nodes, files, finder }
    }
}

fn libraries(root: &DriverRoot, cache: &BTreeMap<String, PathBuf>) -> Vec<(PathBuf, PathBuf)> {
    let is_needed = |name: &str| name.split_once(".so.").is_some_and(|(stem, _)| LIBRARIES.contains(&stem));
    let known = cache.iter().filter(|(name, _)| is_needed(name));
    let found = known.filter_map(|(name, path)| Some((name.as_str(), root.resolve(path).ok()?)));
    let linked = |name: &str| LINKED.into_iter().find(|(loaded, _)| *loaded == name).map(|(_, linked)| linked);
    let names = |(name, file): (&str, PathBuf)| {
        let names: Vec<String> = [Some(name), linked(name)].into_iter().flatten().map(str::to_owned).collect();
        names.into_iter().map(move |name| (name, file.clone()))
    };
    let named = found.flat_map(names);
    named.flat_map(|(name, file)| CONTAINER_DIRS.map(|dir| (file.clone(), Path::new(dir).join(&name)))).collect()
}

/// A program of the driver, and its place in the container.
fn program(root: &DriverRoot, name: &str) -> Option<(PathBuf, PathBuf)> {
    let mut found = PROGRAM_DIRS.into_iter().filter_map(|dir| root.resolve(&Path::new(dir).join(name)).ok());
    Some((found.next()?, Path::new(CONTAINER_PROGRAM_DIR).join(name)))
}

/// NVIDIA's hook program if the node has it: it runs on the node with a container's root directory, and is written to
/// do that safely. Otherwise the one variable that helps Triton.
fn finder(exists: impl Fn(&Path) -> bool) -> Finder {
    let Some((path, arguments)) = HOOKS.into_iter().find(|(path, _)| exists(Path::new(path))) else {
        return Finder::Variable(format!("TRITON_LIBCUDA_PATH={}", CONTAINER_DIRS[1]));
    };
    let directories = CONTAINER_DIRS.into_iter().flat_map(|dir| ["--folder", dir]);
    let arguments = arguments.iter().copied().chain(directories).map(str::to_owned).collect();
    Finder::Hook { path: path.into(), arguments }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::fs;

    use super::*;

    #[test]
    fn the_libraries_that_the_shim_limits_are_found_in_any_version() {
        let dir = tempfile::tempdir().unwrap();
        let entry = |name: &str| {
            let path = dir.path().join(name);
            fs::write(&path, "").unwrap();
            (name.to_owned(), path)
        };
        let names = [
            "libnvidia-compiler.so.470.1",
            "libnvidia-gpucomp.so.580.1",
            "libnvidia-nvvm.so.4",
            "libnvidia-nvvm70.so.4",
            "libnvidia-pkcs11-openssl3.so.580.1",
        ];
        let others = ["libnvidia-glcore.so.580.1", "libnvidia-opencl.so.1", "libcudart.so.13", "libcuda.so"];
        let cache: BTreeMap<String, PathBuf> = names.into_iter().chain(others).map(entry).collect();
        let found = libraries(&DriverRoot::default(), &cache);
        let found: BTreeSet<&str> = found.iter().filter_map(|(_, place)| place.file_name()?.to_str()).collect();
        assert_eq!(found, BTreeSet::from(names));
    }

    #[test]
    fn nvidias_program_updates_the_loader_cache_where_it_exists() {
        let with = |there: &'static str| finder(move |path| path == Path::new(there));
        let hook = |path: &str, start: &[&str]| {
            let directories = CONTAINER_DIRS.iter().flat_map(|dir| ["--folder", dir]);
            let arguments = start.iter().copied().chain(directories).map(str::to_owned).collect();
            Finder::Hook { path: path.into(), arguments }
        };
        let path = "/usr/local/nvidia/toolkit/nvidia-cdi-hook";
        assert_eq!(with(path), hook(path, &["nvidia-cdi-hook", "update-ldcache"]));
        assert_eq!(with("/usr/bin/nvidia-ctk"), hook("/usr/bin/nvidia-ctk", &["nvidia-ctk", "hook", "update-ldcache"]));
        assert_eq!(with("/nowhere"), Finder::Variable("TRITON_LIBCUDA_PATH=/usr/lib64".into()));
    }

    #[test]
    fn libraries_go_to_the_directories_of_both_families_of_distributions() {
        let dir = tempfile::tempdir().unwrap();
        let (file, link) = (dir.path().join("libcuda.so.570.1"), dir.path().join("libcuda.so.1"));
        fs::write(&file, "").unwrap();
        std::os::unix::fs::symlink(&file, &link).unwrap();
        let cache = BTreeMap::from([("libcuda.so.1".into(), link), ("libnvidia-ml.so.1".into(), "/missing".into())]);
        let file = fs::canonicalize(file).unwrap();
        let places = ["libcuda.so.1", "libcuda.so"].into_iter();
        let places = places.flat_map(|name| CONTAINER_DIRS.map(|dir| (file.clone(), Path::new(dir).join(name))));
        assert_eq!(libraries(&DriverRoot::default(), &cache), places.collect::<Vec<_>>());
    }
}
