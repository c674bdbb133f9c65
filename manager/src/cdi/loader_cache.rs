//! The libraries that the driver's loader finds. They are listed again only when the loader's cache has changed,
//! because listing them starts a process, `ldconfig`, and two hundred slices can be published at once.

use std::collections::BTreeMap;
use std::fs::{self, Metadata};
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::driver_root::DriverRoot;

/// Libraries by name, and their paths below the driver's root.
pub(super) type Libraries = BTreeMap<String, PathBuf>;

/// The libraries found last, and the version of the cache that they were in.
#[derive(Debug, Default)]
pub(super) struct LoaderCache(Mutex<Option<(Version, Arc<Libraries>)>>);

/// Changes whenever the cache's file is replaced or written to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Version {
    device: u64,
    inode: u64,
    bytes: u64,
    /// Seconds and nanoseconds of the last change.
    changed: (i64, i64),
}

impl Version {
    fn of(file: &Metadata) -> Version {
        let changed = (file.ctime(), file.ctime_nsec());
        Version { device: file.dev(), inode: file.ino(), bytes: file.size(), changed }
    }
}

impl LoaderCache {
    /// The libraries that the loader of the driver at `root` finds now. While one caller asks `ldconfig`, the others
    /// wait for its answer.
    pub(super) fn read(&self, root: &DriverRoot) -> Arc<Libraries> {
        let mut known = self.0.lock();
        // Read before `ldconfig` is asked: a change in the meantime is noticed at the next call.
        let version = fs::metadata(root.loader_cache_file()).ok().map(|file| Version::of(&file));
        if let Some((_, libraries)) = known.as_ref().filter(|(of, _)| Some(*of) == version) {
            return Arc::clone(libraries);
        }
        let libraries = Arc::new(root.loader_cache());
        // An empty answer is not kept: perhaps `ldconfig` could not be started for the moment.
        *known = version.filter(|_| !libraries.is_empty()).map(|version| (version, Arc::clone(&libraries)));
        libraries
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::driver_root::test_node;

    #[test]
    fn libraries_are_asked_for_again_when_the_cache_has_changed() {
        let node = test_node(&["libc.so.6"]);
        let root = DriverRoot::new(node.path().into(), "/drivers".into());
        let cache = LoaderCache::default();
        let first = cache.read(&root);
        assert!(first.contains_key("libc.so.6") && !first.contains_key("libm.so.6"), "{first:?}");
        assert!(Arc::ptr_eq(&first, &cache.read(&root)));
        let other = test_node(&["libc.so.6", "libm.so.6"]);
        fs::rename(other.path().join("drivers/etc/ld.so.cache"), root.loader_cache_file()).unwrap();
        assert!(cache.read(&root).contains_key("libm.so.6"));
        fs::remove_file(root.loader_cache_file()).unwrap();
        assert!(cache.read(&root).is_empty());
    }
}
