//! CDI files, checked as strictly as runtimes check them.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::fs::{self, DirEntry};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use serde_json::Value;

/// The changes that CDI devices make to a container.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Edits {
    environment: Vec<String>,
    /// For each mount the path in the container, and the path on the node.
    mounts: Vec<(String, String)>,
}

impl fmt::Display for Edits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.environment.iter().try_for_each(|variable| writeln!(f, "{variable}"))?;
        self.mounts.iter().try_for_each(|(inside, outside)| writeln!(f, "{inside} {outside}"))
    }
}

/// A directory of CDI files. Each file is read once, and again after it was replaced.
#[derive(Debug)]
pub(crate) struct Registry {
    directory: PathBuf,
    files: Mutex<BTreeMap<Version, Arc<Value>>>,
}

/// One version of a file: its path, its inode, and the time of its last change.
type Version = (PathBuf, u64, (i64, i64));

impl Registry {
    pub(crate) fn of(directory: PathBuf) -> Registry {
        Registry { directory, files: Mutex::default() }
    }

    /// The changes that `devices` make to a container.
    ///
    /// # Errors
    /// If a device is in no file or in two, or if two devices mount different things at one path.
    pub(crate) fn resolve(&self, devices: &[String]) -> Result<Edits, String> {
        resolve(&self.files(), devices)
    }

    fn files(&self) -> Vec<Arc<Value>> {
        let entries = fs::read_dir(&self.directory).into_iter().flatten().flatten();
        let is_meant = |entry: &DirEntry| entry.path().extension().is_some_and(|extension| extension == "json");
        let present = entries.filter(is_meant).filter_map(|entry| {
            let metadata = entry.metadata().ok()?;
            Some((entry.path(), metadata.ino(), (metadata.ctime(), metadata.ctime_nsec())))
        });
        let mut files = self.files.lock().unwrap_or_else(PoisonError::into_inner);
        let mut read = |version: Version| {
            let file = match files.remove(&version) {
                Some(file) => file,
                None => Arc::new(serde_json::from_slice(&fs::read(&version.0).ok()?).ok()?),
            };
            Some((version, file))
        };
        let now: BTreeMap<Version, Arc<Value>> = present.filter_map(&mut read).collect();
        *files = now;
        files.values().cloned().collect()
    }
}

fn resolve(files: &[Arc<Value>], devices: &[String]) -> Result<Edits, String> {
    let mut edits = Edits::default();
    let mut of_files = BTreeSet::new();
    for name in devices {
        let (kind, device) = name.split_once('=').ok_or_else(|| format!("{name:?} is no CDI device"))?;
        let found: Vec<(usize, &Value)> = files
            .iter()
            .map(AsRef::as_ref)
            .enumerate()
            .filter(|(_, file)| file["kind"] == kind)
            .flat_map(|(index, file)| {
                file["devices"].as_array().into_iter().flatten().map(move |device| (index, device))
            })
            .filter(|(_, found)| found["name"] == device)
            .collect();
        let [(index, found)] = found.as_slice() else {
            return Err(format!("unresolvable CDI devices {name}: found {} times", found.len()));
        };
        edits.add(&found["containerEdits"]);
        if of_files.insert(*index) {
            edits.add(&files[*index]["containerEdits"]);
        }
    }
    let mut targets: Vec<&String> = edits.mounts.iter().map(|(inside, _)| inside).collect();
    targets.sort();
    if let Some(twice) = targets.windows(2).find(|pair| pair[0] == pair[1]) {
        return Err(format!("two mounts at {}", twice[0]));
    }
    for (_, outside) in &edits.mounts {
        if !Path::new(outside).exists() {
            return Err(format!("{outside} is to be mounted, and is not there"));
        }
    }
    Ok(edits)
}

impl Edits {
    fn add(&mut self, edits: &Value) {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        for variable in edits["env"].as_array().into_iter().flatten().map(text) {
            let name = |text: &str| text.split('=').next().map(str::to_owned);
            self.environment.retain(|known| name(known) != name(&variable));
            self.environment.push(variable);
        }
        let mounts = edits["mounts"].as_array().into_iter().flatten();
        for mount in mounts.map(|mount| (text(&mount["containerPath"]), text(&mount["hostPath"]))) {
            // Two devices have the same mount: the later one replaces the other.
            self.mounts.retain(|known| *known != mount);
            self.mounts.push(mount);
        }
    }
}
