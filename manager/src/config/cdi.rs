//! How slices are published as CDI devices, and what containers get with them.

use std::path::{Path, PathBuf};
use std::str::FromStr;

use serde::Deserialize;

use super::{ConfigError, absolute};

/// The file of libraries that the C library's loader loads in every process before the program's own.
pub const PRELOAD_FILE: &str = "/etc/ld.so.preload";

/// Where and how slices are published as CDI devices.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CdiConfig {
    /// The directory that container runtimes read.
    pub dir: PathBuf,
    /// Everything that containers of a slice get besides its devices.
    pub settings: CdiSettings,
}

/// Where to publish slices as CDI devices.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub enum CdiDir {
    /// Slices are not published as CDI devices.
    Off,
    /// Slices are published in this directory.
    Dir(PathBuf),
}

impl FromStr for CdiDir {
    type Err = String;

    fn from_str(text: &str) -> Result<CdiDir, String> {
        match text {
            "" => Err("expected a directory or \"off\"".into()),
            "off" => Ok(CdiDir::Off),
            dir => Ok(CdiDir::Dir(dir.into())),
        }
    }
}

impl TryFrom<String> for CdiDir {
    type Error = String;

    fn try_from(text: String) -> Result<CdiDir, String> {
        text.parse()
    }
}

/// How containers preload the shim, and what else they get, for drivers in unusual places and for simulated ones.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CdiSettings {
    /// How the processes of a container come to load the shim.
    #[serde(default)]
    pub preload: Preload,
    /// Files or directories that every slice's container gets.
    #[serde(default)]
    pub extra_mounts: Vec<ExtraMount>,
    /// Variables, each as `NAME=value`, that every slice's container gets.
    #[serde(default)]
    pub extra_env: Vec<String>,
}

/// The way in which the processes of a container come to load the shim.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Preload {
    /// The file `/etc/ld.so.preload`, mounted read-only. It works for every process whatever its environment, also for
    /// logins and set-user-ID programs, and leaves `LD_PRELOAD` to the image. It hides the image's own file.
    #[default]
    File,
    /// The variable `LD_PRELOAD`, in place of the image's. A program that clears its environment runs without the shim.
    Environment,
    /// Both, for C libraries that look for the file elsewhere (Nix) or do not read it (musl).
    Both,
}

impl Preload {
    /// Whether `/etc/ld.so.preload` is mounted.
    #[must_use]
    pub fn by_file(self) -> bool {
        matches!(self, Preload::File | Preload::Both)
    }

    /// Whether `LD_PRELOAD` is set.
    #[must_use]
    pub fn by_environment(self) -> bool {
        matches!(self, Preload::Environment | Preload::Both)
    }
}

/// A file or directory that every slice's container gets.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ExtraMount {
    /// Path on this machine.
    pub host_path: PathBuf,
    /// Path in the container; the same path if not set.
    pub container_path: Option<PathBuf>,
    /// Whether the container may write to it.
    #[serde(default)]
    pub writable: bool,
}

impl CdiSettings {
    /// Refuses entries that can never work.
    ///
    /// # Errors
    /// The error names the entry and the reason.
    pub(super) fn validate(&self) -> Result<(), ConfigError> {
        let named = |entry: &String| matches!(entry.split_once('='), Some((name, _)) if !name.is_empty());
        if let Some(entry) = self.extra_env.iter().find(|entry| !named(entry)) {
            return Err(ConfigError::Env { entry: entry.clone() });
        }
        if self.preload.by_environment() && self.extra_env.iter().any(|entry| entry.starts_with("LD_PRELOAD=")) {
            return Err(ConfigError::PreloadTaken { key: "extra_env", what: "LD_PRELOAD", instead: "file" });
        }
        for mount in &self.extra_mounts {
            absolute("cdi.extra_mounts.host_path", mount.host_path.clone())?;
            let target = absolute("cdi.extra_mounts.container_path", mount.container_path().to_owned())?;
            if self.preload.by_file() && target == Path::new(PRELOAD_FILE) {
                return Err(ConfigError::PreloadTaken {
                    key: "extra_mounts",
                    what: PRELOAD_FILE,
                    instead: "environment",
                });
            }
        }
        Ok(())
    }
}

impl ExtraMount {
    /// Its path in the container.
    #[must_use]
    pub fn container_path(&self) -> &Path {
        self.container_path.as_deref().unwrap_or(&self.host_path)
    }
}
