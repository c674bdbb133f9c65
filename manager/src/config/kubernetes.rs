//! Settings for Kubernetes.

use std::env;
use std::path::{Path, PathBuf};

use aliquot_kubernetes::device_plugin;
pub use aliquot_kubernetes::device_plugin::{Settings as DevicePluginSettings, SettingsError as DevicePluginError};
use aliquot_kubernetes::relay::Meeting;
use aliquot_kubernetes::reports;
use clap::Args;
use serde::Deserialize;

use crate::config::{ConfigError, absolute};
use crate::procfs;

/// The variable that a DaemonSet sets to its node's name.
const NODE_NAME_VARIABLE: &str = "NODE_NAME";

/// The table `[kubernetes]` as a person writes it.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KubernetesSettings {
    /// How pods get slices.
    pub mode: KubernetesMode,
    /// The node's name in the cluster [default: `$NODE_NAME`, or the host's name].
    pub node_name: Option<String>,
    /// The directory where kubelet keeps its sockets and files.
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
    /// The replicas of the cluster's scheduler that take reports, as `HOST:PORT`, several separated by commas [default:
    /// nothing is reported].
    pub reports_to: Option<String>,
    /// The name in the scheduler's certificate [default: the first host].
    pub reports_name: Option<String>,
    /// The directory with the token and the authority for reports.
    #[serde(default = "default_reports_dir")]
    pub reports_dir: PathBuf,
    /// The offer of the device plugin, in that mode.
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

/// How pods get slices. Both ways give out the same devices, so a node uses only one of them.
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
    /// How pods get slices.
    pub mode: KubernetesMode,
    /// The node's name in the cluster.
    pub node_name: String,
    /// The directory where kubelet keeps its sockets and files.
    pub kubelet_dir: PathBuf,
    /// How to reach the API server; `None`: as a pod does.
    pub kubeconfig: Option<PathBuf>,
    /// How GPUs in MIG mode are used.
    pub mig: MigMode,
    /// Directory for state that must outlive the manager.
    pub state_dir: PathBuf,
    /// Where relays find this manager.
    pub meeting: Meeting,
    /// Whether kubelet speaks to relays, and not to this manager.
    pub relay: bool,
    /// How the manager reports to the cluster's scheduler; `None`: it does not.
    pub reports: Option<reports::Settings>,
    /// The offer of the device plugin, in that mode.
    pub device_plugin: device_plugin::Config,
}

/// The flags that change these settings.
#[derive(Args, Clone, Debug, Default)]
pub struct KubernetesFlags {
    /// Addresses to which to report the use of slices: those of the scheduler's replicas, separated by commas. Replaces
    /// reports_to in the configuration's table [kubernetes] [default: nothing is reported]
    #[arg(long, value_name = "HOST:PORT")]
    reports_to: Option<String>,
}

impl KubernetesFlags {
    /// Whether a flag is given.
    pub(super) fn has_any(&self) -> bool {
        self.reports_to.is_some()
    }

    #[cfg(test)]
    pub(super) fn to(address: &str) -> Self {
        Self { reports_to: Some(address.to_owned()) }
    }
}

fn default_kubelet_dir() -> PathBuf {
    "/var/lib/kubelet".into()
}

fn default_reports_dir() -> PathBuf {
    "/var/run/secrets/aliquot.dev/reports".into()
}

/// Splits a list of addresses. Returns each host with its port, and the first host.
fn addresses(text: &str) -> Result<(Vec<String>, String), ConfigError> {
    let read = |address: &str| {
        let (host, port) = address.trim().rsplit_once(':')?;
        let is_one = !host.is_empty() && port.parse().is_ok_and(|port: u16| port > 0);
        is_one.then(|| (address.trim().to_owned(), host.to_owned()))
    };
    let all: Option<(Vec<String>, Vec<String>)> = text.split(',').map(read).collect();
    let (all, mut hosts) = all.ok_or_else(|| ConfigError::ReportsTo { text: text.to_owned() })?;
    Ok((all, hosts.swap_remove(0)))
}

impl KubernetesSettings {
    /// Fills in defaults, and checks these settings against the rest of the configuration.
    pub(super) fn completed(
        self,
        flags: KubernetesFlags,
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
        // Kubelet's default: the host's name in lower case.
        let node_name = node_name.unwrap_or_else(|| procfs::host_name().to_lowercase());
        let dir = absolute("kubernetes.reports_dir", self.reports_dir)?;
        let addresses = flags.reports_to.or(self.reports_to).map(|text| addresses(&text)).transpose()?;
        let reports = addresses.map(|(schedulers, host)| {
            let server_name = self.reports_name.unwrap_or(host);
            reports::Settings { schedulers, server_name, dir, node_name: node_name.clone() }
        });
        Ok(KubernetesConfig {
            mode: self.mode,
            node_name,
            reports,
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
