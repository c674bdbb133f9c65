//! Errors of the configuration.

use std::io;
use std::ops::RangeInclusive;
use std::path::PathBuf;

use aliquot_agent::settings as cluster;

use super::DevicePluginError;
use crate::inventory::DeviceUuid;
use crate::logging::LogLevelError;

/// The reason why the configuration cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file that was named cannot be read.
    #[error("cannot read the configuration file {}: {source}", path.display())]
    Read {
        /// The configuration file, as it was named.
        path: PathBuf,
        /// The error that the system gave as the reason.
        source: io::Error,
    },
    /// The file's contents are wrong; the parser names the key and the place.
    #[error("in the configuration file {}: {source}", path.display())]
    Parse {
        /// The configuration file, as it was named.
        path: PathBuf,
        /// The parser's error, with the key and the place.
        source: Box<toml::de::Error>,
    },
    /// A path that must be absolute is not.
    #[error("{key} is {}, which is not an absolute path", path.display())]
    Relative {
        /// The key, with its tables.
        key: &'static str,
        /// The value that stands there.
        path: PathBuf,
    },
    /// The log level or filter is invalid.
    #[error(transparent)]
    LogLevel(#[from] LogLevelError),
    /// An entry of `cdi.extra_env` is not `NAME=value`.
    #[error("cdi.extra_env has the entry {entry:?}, which is not of the form NAME=value")]
    Env {
        /// The entry as it stands there.
        entry: String,
    },
    /// An entry of `sharing.devices` has an invalid device name.
    #[error(
        "sharing.devices has the uuid {uuid}, which is not of the form GPU-xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx; nvidia-smi -L lists them"
    )]
    SharedDevice {
        /// The UUID as it stands there.
        uuid: DeviceUuid,
    },
    /// Leases cannot be that short or long.
    #[error(
        "sharing.lease_max_ms is {ms}, which is not within {} to {} milliseconds",
        allowed.start(),
        allowed.end()
    )]
    LeaseMax {
        /// The value as it stands there.
        ms: u64,
        /// The values that it can have.
        allowed: RangeInclusive<u64>,
    },
    /// An entry of `cdi.extra_env` or `cdi.extra_mounts` would replace the shim's preloading.
    #[error(
        "cdi.{key} sets {what}, which containers need to preload the shim: set cdi.preload to {instead:?}, or remove the entry"
    )]
    PreloadTaken {
        /// Which list: `extra_env` or `extra_mounts`.
        key: &'static str,
        /// The variable or the file.
        what: &'static str,
        /// The value of `cdi.preload` with which this entry could stay.
        instead: &'static str,
    },
    /// The address for reports is not of the form `HOST:PORT`.
    #[error("kubernetes.reports_to is {text:?}, which is not HOST:PORT; write for example scheduler.example.com:9410")]
    ReportsTo {
        /// The value as it stands there.
        text: String,
    },
    /// Reports are a part of Kubernetes.
    #[error(
        "--reports-to is given, and there is no table [kubernetes] in the configuration: add the table, or leave the flag out"
    )]
    ReportsWithoutKubernetes,
    /// The table `[kubernetes.device_plugin]` is wrong.
    #[error("kubernetes.{0}")]
    DevicePlugin(#[source] DevicePluginError),
    /// MIG instances cannot be made on demand for extended resources.
    #[error(
        "kubernetes.mig is \"dynamic\", which needs kubernetes.mode \"dra\": MIG instances are made only for claims"
    )]
    DynamicMigWithoutDra,
    /// The table `[cluster]` is wrong.
    #[error(transparent)]
    Cluster(#[from] cluster::SettingsError),
    /// A node cannot be in both kinds of cluster: each of them would give out the same devices.
    #[error(
        "the node takes part in a cluster without Kubernetes, and there is a table [kubernetes]: remove one of them"
    )]
    ClusterAndKubernetes,
    /// Kubernetes needs CDI: pods get their slices as CDI devices.
    #[error("there is a table [kubernetes], and cdi_dir is \"off\": pods get slices as CDI devices; set cdi_dir")]
    KubernetesWithoutCdi,
    /// The loader cannot preload a library from the runtime directory.
    #[error(
        "runtime_dir is {}: containers preload the shim from there, and the loader would split the path at a space or \
         colon and end it at a #; use a path without them, or set cdi_dir to \"off\"",
        path.display()
    )]
    NotPreloadable {
        /// The path of the runtime directory.
        path: PathBuf,
    },
}
