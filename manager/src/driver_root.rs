//! Finds the node's driver, also for a manager in a container, which sees the node's files at another place.
//!
//! A file has three paths: its path on the node, which a CDI specification needs; its path below the driver's own root,
//! which the driver's loader cache holds (the two differ if the driver is installed in a container); and its path as
//! this process sees it. Links are followed below the driver's root (`openat2`): driver packages use absolute links,
//! which would lead into the manager's own image.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::fs::{CWD, Mode, OFlags, ResolveFlags, openat, openat2};

/// How `ldconfig` names this architecture.
const OWN_KIND: &str = if cfg!(target_arch = "aarch64") { "AArch64" } else { "x86-64" };
/// Where `ldconfig` may be.
const LDCONFIG: [&str; 2] = ["/sbin/ldconfig", "/usr/sbin/ldconfig"];
/// The library that every driver has.
const DRIVER: &str = "libcuda.so.1";
/// Where the libraries of a driver are whose loader has no cache, as on systems that are images: the places in which
/// NVIDIA's container toolkit looks.
const LIBRARY_DIRS: [&str; 6] = if cfg!(target_arch = "aarch64") {
    [
        "/usr/lib64",
        "/usr/lib/aarch64-linux-gnu",
        "/usr/lib/aarch64-linux-gnu/nvidia/current",
        "/lib64",
        "/lib/aarch64-linux-gnu",
        "/lib/aarch64-linux-gnu/nvidia/current",
    ]
} else {
    [
        "/usr/lib64",
        "/usr/lib/x86_64-linux-gnu",
        "/usr/lib/x86_64-linux-gnu/nvidia/current",
        "/lib64",
        "/lib/x86_64-linux-gnu",
        "/lib/x86_64-linux-gnu/nvidia/current",
    ]
};

/// Location of the node's driver.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DriverRoot {
    /// The node's root directory, as this process sees it.
    host_root: PathBuf,
    /// The driver's root directory, on the node.
    driver_root: PathBuf,
}

impl Default for DriverRoot {
    /// The driver is installed on the node, and this process sees the node's files where they are.
    fn default() -> DriverRoot {
        DriverRoot { host_root: "/".into(), driver_root: "/".into() }
    }
}

impl DriverRoot {
    /// The driver below `driver_root` on the node, whose own root is seen at `host_root`. Both are absolute.
    #[must_use]
    pub fn new(host_root: PathBuf, driver_root: PathBuf) -> DriverRoot {
        DriverRoot { host_root, driver_root }
    }

    /// Whether this process's own loader finds the driver's libraries.
    pub(crate) fn is_own(&self) -> bool {
        *self == DriverRoot::default()
    }

    /// The libraries in the cache of the driver's loader: their names, and their paths below the driver's root. If the
    /// driver has a root of its own, and the cache or `ldconfig` is missing, or the cache does not know the driver:
    /// also the libraries in the usual directories.
    pub(crate) fn loader_cache(&self) -> BTreeMap<String, PathBuf> {
        let mut cache = self.cached();
        if !self.is_own() && !cache.contains_key(DRIVER) {
            for (name, path) in LIBRARY_DIRS.into_iter().flat_map(|dir| self.libraries_in(Path::new(dir))) {
                cache.entry(name).or_insert(path);
            }
        }
        cache
    }

    /// The libraries in `dir`, which is below the driver's root.
    fn libraries_in(&self, dir: &Path) -> Vec<(String, PathBuf)> {
        let entries = fs::read_dir(self.seen(dir)).into_iter().flatten().flatten();
        let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
        names.filter(|name| name.contains(".so.")).map(|name| (name.clone(), dir.join(name))).collect()
    }

    /// The libraries in the cache of the driver's loader.
    fn cached(&self) -> BTreeMap<String, PathBuf> {
        let output = LDCONFIG.into_iter().find_map(|tool| {
            let mut command = Command::new(tool);
            command.arg("-p");
            if !self.is_own() {
                command.arg("-C").arg(self.loader_cache_file());
            }
            command.output().ok()
        });
        output.map(|output| parse(&String::from_utf8_lossy(&output.stdout))).unwrap_or_default()
    }

    /// The file of that cache, as this process sees it.
    pub(crate) fn loader_cache_file(&self) -> PathBuf {
        self.seen("/etc/ld.so.cache")
    }

    /// Resolves all links in `path`, which is below the driver's root, as they resolve there. Returns the path on the
    /// node.
    ///
    /// # Errors
    /// The file does not exist or cannot be examined.
    pub(crate) fn resolve(&self, path: &Path) -> io::Result<PathBuf> {
        if self.is_own() {
            return fs::canonicalize(path);
        }
        let root = openat(CWD, self.seen("/"), OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
        let file = openat2(&root, path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty(), ResolveFlags::IN_ROOT)?;
        let name = |fd: i32| fs::read_link(format!("/proc/self/fd/{fd}"));
        let (root, file) = (name(root.as_raw_fd())?, name(file.as_raw_fd())?);
        let below = file.strip_prefix(&root).map_err(io::Error::other)?;
        Ok(self.driver_root.join(below))
    }

    /// The directories on the node that may have the driver's device nodes, the likeliest first: a driver that is
    /// installed in a container has them in that container's `/dev`.
    pub(crate) fn device_dirs(&self) -> Vec<PathBuf> {
        let own = self.driver_root.join("dev");
        let has_nodes = own.as_path() != Path::new("/dev") && self.seen_on_node(&own.join("nvidiactl")).exists();
        has_nodes.then_some(own).into_iter().chain(["/dev".into()]).collect()
    }

    /// The path at which this process sees `path`, which is below the driver's root.
    pub(crate) fn seen(&self, path: impl AsRef<Path>) -> PathBuf {
        self.seen_on_node(&below_root(&self.driver_root).join(below_root(path.as_ref())))
    }

    /// The path at which this process sees `path`, which is a path on the node.
    pub(crate) fn seen_on_node(&self, path: &Path) -> PathBuf {
        self.host_root.join(below_root(path))
    }
}

/// `path` without its leading slash.
fn below_root(path: &Path) -> &Path {
    path.strip_prefix("/").unwrap_or(path)
}

/// Parses lines such as `libcuda.so.1 (libc6,x86-64) => /lib/x86_64-linux-gnu/libcuda.so.1`.
fn parse(text: &str) -> BTreeMap<String, PathBuf> {
    let entry = |line: &str| {
        let (name, path) = line.split_once(" => ")?;
        let (name, kind) = name.trim().split_once(" (")?;
        kind.contains(OWN_KIND).then(|| (name.to_owned(), PathBuf::from(path.trim())))
    };
    let mut cache = BTreeMap::new();
    for (name, path) in text.lines().filter_map(entry) {
        // The loader takes the first match.
        cache.entry(name).or_insert(path);
    }
    cache
}

/// A node's root directory with a driver in `/drivers`, which has these libraries of this machine in its cache.
#[cfg(test)]
pub(crate) fn test_node(names: &[&str]) -> tempfile::TempDir {
    let node = tempfile::tempdir().unwrap();
    let libraries = node.path().join("drivers/usr/lib");
    fs::create_dir_all(node.path().join("drivers/etc")).unwrap();
    fs::create_dir_all(&libraries).unwrap();
    let own = DriverRoot::default().loader_cache();
    for name in names {
        fs::copy(own[*name].canonicalize().unwrap(), libraries.join(name)).unwrap();
    }
    let ldconfig = LDCONFIG.iter().find(|tool| Path::new(tool).exists()).expect("the C library's ldconfig");
    let made = Command::new(ldconfig).arg("-r").arg(node.path().join("drivers")).arg("/usr/lib").status().unwrap();
    assert!(made.success());
    node
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

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
    fn the_node_s_own_loader_cache_is_read_from_where_the_node_is_seen() {
        let node = test_node(&["libc.so.6"]);
        let root = DriverRoot::new(node.path().into(), "/drivers".into());
        let expected = BTreeMap::from([("libc.so.6".to_owned(), PathBuf::from("/usr/lib/libc.so.6"))]);
        let mut found = root.loader_cache();
        found.retain(|name, _| name == "libc.so.6");
        assert_eq!(found, expected);
    }

    #[test]
    fn a_driver_without_a_loader_cache_is_found_in_its_directories() {
        let node = tempfile::tempdir().unwrap();
        let libraries = node.path().join("drivers/lib64");
        fs::create_dir_all(&libraries).unwrap();
        fs::write(libraries.join("libcuda.so.570.1"), "").unwrap();
        symlink("libcuda.so.570.1", libraries.join("libcuda.so.1")).unwrap();
        fs::write(libraries.join("README"), "").unwrap();
        let root = DriverRoot::new(node.path().into(), "/drivers".into());
        let found = root.loader_cache();
        let expected =
            ["libcuda.so.1", "libcuda.so.570.1"].map(|name| (name.to_owned(), Path::new("/lib64").join(name)));
        assert_eq!(found, BTreeMap::from(expected));
        assert_eq!(root.resolve(&found["libcuda.so.1"]).unwrap(), Path::new("/drivers/lib64/libcuda.so.570.1"));
    }

    #[test]
    fn absolute_links_stay_below_the_driver_s_root() {
        let node = tempfile::tempdir().unwrap();
        let driver = node.path().join("run/driver");
        for dir in ["usr/lib", "etc/alternatives"] {
            fs::create_dir_all(driver.join(dir)).unwrap();
        }
        fs::write(driver.join("usr/lib/libcuda.so.570.1"), "").unwrap();
        symlink("/usr/lib/libcuda.so.570.1", driver.join("etc/alternatives/libcuda")).unwrap();
        symlink("/etc/alternatives/libcuda", driver.join("usr/lib/libcuda.so.1")).unwrap();
        symlink("usr/lib", driver.join("lib")).unwrap();
        let root = DriverRoot::new(node.path().into(), "/run/driver".into());
        let found = root.resolve(Path::new("/lib/libcuda.so.1")).unwrap();
        assert_eq!(found, PathBuf::from("/run/driver/usr/lib/libcuda.so.570.1"));
        assert!(root.seen_on_node(&found).is_file());
        assert_eq!(root.seen("/lib/libcuda.so.1"), driver.join("lib/libcuda.so.1"));
        assert!(root.resolve(Path::new("/lib/libnvidia-ml.so.1")).is_err());
    }
}
