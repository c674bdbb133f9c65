//! Settings for Kubernetes.

use std::env;
use std::path::{Path, PathBuf};

use aliquot_kubernetes::device_plugin;
pub use aliquot_kubernetes::device_plugin::{Settings as DevicePluginSettings, SettingsError as DevicePluginError};
use aliquot_kubernetes::relay::Meeting;
use serde::Deserialize;

use crate::config::{ConfigError, absolute};
use crate::procfs;

/// The variable that a DaemonSet sets to its node's name.
const NODE_NAME_VARIABLE: &str = "NODE_NAME";

/// What a person writes in the table `[kubernetes]`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KubernetesSettings {
    /// In which way pods get slices.
    pub mode: KubernetesMode,
    /// The node's name in the cluster [default: `$NODE_NAME`, or the host's name].
    pub node_name: Option<String>,
    /// Kubelet's directory.
    #[serde(default = "default_kubelet_dir")]
    pub kubelet_dir: PathBuf,
    /// How to reach the API server [default: as a pod does].
    pub kubeconfig: Option<PathBuf>,
    /// How GPUs in MIG mode are used [default: `static`].
    #[serde(default)]
    pub mig: MigMode,
    /// Whether kubelet speaks to relays, which speak to this manager.
    #[serde(default)]
    pub relay: bool,
    /// What the device plugin offers, in that mode.
    #[serde(default)]
    pub device_plugin: DevicePluginSettings,
}

/// How GPUs in MIG mode are used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum MigMode {
    /// The existing instances, made by an administrator, are devices like others.
    #[default]
    Static,
    /// As `static`; what those instances leave free is divided as claims need it: an instance is made for a claim, and
    /// destroyed with it. Only with claims (DRA).
    Dynamic,
}

/// In which way pods get slices. Both ways give out the same devices, so a node uses only one of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum KubernetesMode {
    /// By claims: the DRA driver `gpu.aliquot.dev`.
    Dra,
    /// By units of extended resources, which kubelet hands out: a device plugin, for clusters without consumable
    /// capacity.
    DevicePlugin,
}

/// The complete Kubernetes configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KubernetesConfig {
    /// In which way pods get slices.
    pub mode: KubernetesMode,
    /// The node's name in the cluster.
    pub node_name: String,
    /// Kubelet's directory.
    pub kubelet_dir: PathBuf,
    /// How to reach the API server; `None`: as a pod does.
    pub kubeconfig: Option<PathBuf>,
    /// How GPUs in MIG mode are used.
    pub mig: MigMode,
    /// Directory for the state that must be kept.
    pub state_dir: PathBuf,
    /// Where relays find this manager.
    pub meeting: Meeting,
    /// Whether kubelet speaks to relays, and not to this manager.
    pub relay: bool,
    /// What the device plugin offers, in that mode.
    pub device_plugin: device_plugin::Config,
}

fn default_kubelet_dir() -> PathBuf {
    "/var/lib/kubelet".into()
}

impl KubernetesSettings {
    /// Fills in defaults and checks the settings against the manager's others.
    pub(super) fn completed(
        self,
        runtime_dir: &Path,
        state_dir: &Path,
        is_published: bool,
    ) -> Result<KubernetesConfig, ConfigError> {
        if !is_published {
            return Err(ConfigError::KubernetesWithoutCdi);
        }
        if self.mig == MigMode::Dynamic && self.mode != KubernetesMode::Dra {
            return Err(ConfigError::DynamicMigWithoutDra);
        }
        let node_name = self.node_name.or_else(|| env::var(NODE_NAME_VARIABLE).ok()).filter(|name| !name.is_empty());
        Ok(KubernetesConfig {
            mode: self.mode,
            // Kubelet's default: the host's name in lower case.
            node_name: node_name.unwrap_or_else(|| procfs::host_name().to_lowercase()),
            kubelet_dir: absolute("kubernetes.kubelet_dir", self.kubelet_dir)?,
            kubeconfig: self.kubeconfig.map(|path| absolute("kubernetes.kubeconfig", path)).transpose()?,
            mig: self.mig,
            state_dir: state_dir.join("kubernetes"),
            meeting: Meeting::below(runtime_dir),
            relay: self.relay,
            // Checked in every mode: an invalid table is an error even if it is not used.
            device_plugin: self.device_plugin.checked().map_err(ConfigError::DevicePlugin)?,
        })
    }
}
