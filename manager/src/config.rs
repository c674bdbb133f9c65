//! The manager's configuration: a TOML file, and flags that take precedence over it.
//!
//! [`Settings`] holds the values that a person writes, in the file or as flags. [`Config`] is the result once defaults
//! are filled in. The rest of the manager sees only [`Config`].

use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use aliquot_agent::settings as cluster;
use aliquot_node::QosClass;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{Args, ValueEnum};
use serde::Deserialize;

pub use crate::driver_root::DriverRoot;
use crate::logging;
use crate::paths::{Paths, SOCKET_FILE};
use crate::procfs;

mod audit;
mod cdi;
mod error;
mod joining;
mod kubernetes;
mod sharing;
pub use audit::AuditSettings;
pub use cdi::{CdiConfig, CdiDir, CdiSettings, ExtraMount, PRELOAD_FILE, Preload};
pub use error::ConfigError;
pub use joining::Joining;
pub use kubernetes::{
    DevicePluginError, DevicePluginSettings, KubernetesConfig, KubernetesFlags, KubernetesMode, KubernetesSettings,
    MigMode,
};
pub use sharing::{DeviceSharing, MpsSettings, SharingSettings};

/// Everything that can be set in the configuration file, or by flags of the same names. A setting that is missing has a
/// default.
#[derive(Args, Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Settings {
    /// Directory for sockets and regions, on a file system that is not mounted noexec [default: /run/aliquot, or
    /// $XDG_RUNTIME_DIR/aliquot for an ordinary user]
    #[arg(long, value_name = "DIR")]
    pub runtime_dir: Option<PathBuf>,
    /// Directory for the checkpoint, which outlives a reboot [default: /var/lib/aliquot, or $XDG_STATE_HOME/aliquot]
    #[arg(long, value_name = "DIR")]
    pub state_dir: Option<PathBuf>,
    /// Unix socket to serve gRPC on [default: manager.sock in the runtime directory]
    #[arg(long, value_name = "FILE")]
    pub socket: Option<PathBuf>,
    /// Address to serve Prometheus metrics on, for example 127.0.0.1:9405 [default: none]
    #[arg(long, value_name = "ADDRESS")]
    pub metrics_address: Option<SocketAddr>,
    /// NVML library to load [default: libnvidia-ml.so.1 as the driver's loader finds it]
    #[arg(long, value_name = "FILE")]
    pub nvml_library: Option<PathBuf>,
    /// The node's root directory as the manager sees it, for a manager in a container [default: /]
    #[arg(long, value_name = "DIR")]
    pub host_root: Option<PathBuf>,
    /// The driver's root directory on the node, for a driver that is installed in a container [default: /]
    #[arg(long, value_name = "DIR")]
    pub driver_root: Option<PathBuf>,
    /// Directory to publish slices in as CDI devices, or "off" [default: /var/run/cdi, off for an ordinary user]
    #[arg(long, value_name = "DIR|off")]
    pub cdi_dir: Option<CdiDir>,
    /// Format of log lines [default: text]
    #[arg(long, value_name = "FORMAT")]
    pub log_format: Option<LogFormat>,
    /// Log level: error, warn, info, debug, trace, or a filter such as aliquot_manager::attach=debug [default: info]
    #[arg(long, value_name = "LEVEL")]
    pub log_level: Option<String>,
    /// Priority class of slices that ask for none: latency-critical, standard or batch [default: standard]
    #[arg(long, value_name = "CLASS", value_parser = priority_classes())]
    pub default_priority_class: Option<QosClass>,
    /// What containers get with a slice; in the file only.
    #[arg(skip)]
    pub cdi: Option<CdiSettings>,
    /// How the audit treats what it finds; in the file only.
    #[arg(skip)]
    pub audit: Option<AuditSettings>,
    /// How devices are shared between slices; in the file only.
    #[arg(skip)]
    pub sharing: Option<SharingSettings>,
    /// How pods get slices, on a node of Kubernetes; in the file only.
    #[arg(skip)]
    pub kubernetes: Option<KubernetesSettings>,
    /// The flags for that.
    #[command(flatten)]
    #[serde(skip)]
    pub kubernetes_flags: KubernetesFlags,
    /// How the node takes part in a cluster without Kubernetes; in the file only.
    #[arg(skip)]
    pub cluster: Option<cluster::Settings>,
    /// The flags for that.
    #[command(flatten)]
    #[serde(skip)]
    pub joining: Joining,
}

/// Reads a priority class from a flag.
fn priority_classes() -> impl TypedValueParser<Value = QosClass> {
    PossibleValuesParser::new(QosClass::ALL.map(QosClass::as_str)).try_map(|name| name.parse())
}

/// Format of log lines.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    /// For people.
    #[default]
    Text,
    /// One JSON object a line.
    Json,
}

/// The complete configuration of the manager.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// Directory for sockets and regions.
    pub runtime_dir: PathBuf,
    /// Directory for the checkpoint. `None`: nothing is saved, and slices end with the manager.
    pub state_dir: Option<PathBuf>,
    /// Unix socket to serve gRPC on.
    pub socket: PathBuf,
    /// Address to serve metrics on.
    pub metrics_address: Option<SocketAddr>,
    /// NVML library; `None`: the one that the driver's loader finds.
    pub nvml_library: Option<PathBuf>,
    /// Root directories of the node and of its driver.
    pub driver: DriverRoot,
    /// Publishing as CDI devices; `None`: off.
    pub cdi: Option<CdiConfig>,
    /// How the audit treats what it finds.
    pub audit: AuditSettings,
    /// How devices are shared between slices.
    pub sharing: SharingSettings,
    /// How pods get slices; `None`: this is not a Kubernetes node.
    pub kubernetes: Option<KubernetesConfig>,
    /// How the node takes part in a cluster without Kubernetes; `None`: it does not.
    pub cluster: Option<cluster::Config>,
    /// Priority class of slices that do not ask for one.
    pub default_priority_class: QosClass,
    /// Format of log lines.
    pub log_format: LogFormat,
    /// Log level or filter.
    pub log_level: String,
    /// Whether this manager waits for another one with the same directories to end, instead of giving up.
    pub stands_by: bool,
}

impl Config {
    /// The configuration from flags and the file `file`, or the default file if there is one.
    ///
    /// # Errors
    /// The file cannot be read or understood, or a value can never work.
    pub fn load(flags: Settings, file: Option<&Path>) -> Result<Config, ConfigError> {
        let defaults = Paths::of_this_user();
        let settings = Config::file(file).map_or_else(|| Ok(Settings::default()), |path| read(&path))?;
        Config::from_settings(flags, settings, defaults)
    }

    /// The file that [`Config::load`] reads: `file`, or the default one; `None` if that is not there.
    #[must_use]
    pub fn file(file: Option<&Path>) -> Option<PathBuf> {
        let default = || Paths::of_this_user().config_file;
        // A file that cannot be examined is not treated as missing.
        let is_there = |path: &PathBuf| path.try_exists().unwrap_or(true);
        file.map(Path::to_owned).or_else(|| Some(default()).filter(is_there))
    }

    /// The configuration of a manager inside another program: everything is below `runtime_dir`, nothing is published,
    /// and nothing is saved.
    #[must_use]
    pub fn embedded(runtime_dir: PathBuf) -> Config {
        Config {
            socket: runtime_dir.join(SOCKET_FILE),
            runtime_dir,
            state_dir: None,
            metrics_address: None,
            nvml_library: None,
            driver: DriverRoot::default(),
            cdi: None,
            audit: AuditSettings::default(),
            sharing: SharingSettings::default(),
            kubernetes: None,
            cluster: None,
            default_priority_class: QosClass::default(),
            log_format: LogFormat::default(),
            log_level: "warn".into(),
            stands_by: false,
        }
    }

    fn from_settings(flags: Settings, file: Settings, defaults: Paths) -> Result<Config, ConfigError> {
        let runtime_dir =
            absolute("runtime_dir", flags.runtime_dir.or(file.runtime_dir).unwrap_or(defaults.runtime_dir))?;
        let state_dir = absolute("state_dir", flags.state_dir.or(file.state_dir).unwrap_or(defaults.state_dir))?;
        let socket = flags.socket.or(file.socket).unwrap_or_else(|| runtime_dir.join(SOCKET_FILE));
        let cdi_dir = match flags.cdi_dir.or(file.cdi_dir) {
            Some(CdiDir::Off) => None,
            Some(CdiDir::Dir(dir)) => Some(dir),
            None => defaults.cdi_dir,
        };
        let cdi = file.cdi.unwrap_or_default();
        cdi.validate()?;
        let audit = file.audit.unwrap_or_default();
        if cdi_dir.is_some() && runtime_dir.to_string_lossy().contains([' ', '\t', '\n', ':', '#']) {
            return Err(ConfigError::NotPreloadable { path: runtime_dir });
        }
        let log_level = flags.log_level.or(file.log_level).unwrap_or_else(|| "info".into());
        logging::filter(&log_level)?;
        let cluster = flags.joining.change(file.cluster);
        let cluster =
            cluster.map(|settings| settings.completed(&state_dir, &runtime_dir, &socket, &procfs::host_name()));
        if cluster.is_some() && file.kubernetes.is_some() {
            return Err(ConfigError::ClusterAndKubernetes);
        }
        if file.kubernetes.is_none() && flags.kubernetes_flags.has_any() {
            return Err(ConfigError::ReportsWithoutKubernetes);
        }
        let kubernetes = file
            .kubernetes
            .map(|settings| settings.completed(flags.kubernetes_flags, &runtime_dir, &state_dir, cdi_dir.is_some()));
        Ok(Config {
            socket: absolute("socket", socket)?,
            runtime_dir,
            state_dir: Some(state_dir),
            metrics_address: flags.metrics_address.or(file.metrics_address),
            nvml_library: flags.nvml_library.or(file.nvml_library),
            driver: DriverRoot::new(
                absolute("host_root", flags.host_root.or(file.host_root).unwrap_or_else(|| "/".into()))?,
                absolute("driver_root", flags.driver_root.or(file.driver_root).unwrap_or_else(|| "/".into()))?,
            ),
            kubernetes: kubernetes.transpose()?,
            cluster: cluster.transpose()?,
            cdi: cdi_dir
                .map(|dir| Ok::<_, ConfigError>(CdiConfig { dir: absolute("cdi_dir", dir)?, settings: cdi }))
                .transpose()?,
            audit: AuditSettings { mps_server: absolute("audit.mps_server", audit.mps_server)?, ..audit },
            sharing: file.sharing.unwrap_or_default().validated()?,
            default_priority_class: flags.default_priority_class.or(file.default_priority_class).unwrap_or_default(),
            log_format: flags.log_format.or(file.log_format).unwrap_or_default(),
            log_level,
            stands_by: false,
        })
    }
}

fn read(path: &Path) -> Result<Settings, ConfigError> {
    let text = fs::read_to_string(path).map_err(|source| ConfigError::Read { path: path.into(), source })?;
    toml::from_str(&text).map_err(|source| ConfigError::Parse { path: path.into(), source: Box::new(source) })
}

/// Makes sure that a path is absolute: other processes use it, and their working directory differs.
fn absolute(key: &'static str, path: PathBuf) -> Result<PathBuf, ConfigError> {
    if path.is_absolute() { Ok(path) } else { Err(ConfigError::Relative { key, path }) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::inventory::SharingMode;

    fn defaults() -> Paths {
        Paths {
            config_file: "/c".into(),
            runtime_dir: "/run/x".into(),
            state_dir: "/s".into(),
            cdi_dir: Some("/cdi".into()),
        }
    }

    fn parse(text: &str) -> Result<Settings, String> {
        toml::from_str(text).map_err(|error| error.to_string())
    }

    #[test]
    fn flags_come_before_the_file_and_the_file_before_defaults() {
        let file = parse("runtime_dir = '/run/file'\nstate_dir = '/file'\ncdi_dir = 'off'").unwrap();
        let flags = Settings { state_dir: Some("/flag".into()), ..Settings::default() };
        let config = Config::from_settings(flags, file, defaults()).unwrap();
        assert_eq!(config.state_dir, Some("/flag".into()));
        assert_eq!(config.socket, PathBuf::from("/run/file/manager.sock"));
        assert_eq!(config.cdi, None);
        assert_eq!(config.log_level, "info");
    }

    #[test]
    fn an_unknown_key_is_named() {
        let error = parse("runtime_directory = '/run/file'").unwrap_err();
        assert!(error.contains("runtime_directory") && error.contains("runtime_dir"), "{error}");
        let error = parse("[cdi]\nextra_mount = []").unwrap_err();
        assert!(error.contains("extra_mount"), "{error}");
        let error = parse("[audit]\npolicy = 'kill'").unwrap_err();
        assert!(error.contains("`kill`") && error.contains("`stop`"), "{error}");
        let error = parse("default_priority_class = 'urgent'").unwrap_err();
        assert!(error.contains("`urgent`") && error.contains("`latency-critical`"), "{error}");
        let error = parse("[cdi]\npreload = 'env'").unwrap_err();
        assert!(error.contains("`env`") && error.contains("`environment`"), "{error}");
    }

    #[test]
    fn settings_that_would_replace_the_shim_are_refused() {
        let settings = |text: &str| Config::from_settings(Settings::default(), parse(text).unwrap(), defaults());
        let variable = "extra_env = ['LD_PRELOAD=/usr/lib/libjemalloc.so.2']";
        let file = "[[cdi.extra_mounts]]\nhost_path = '/opt/preload'\ncontainer_path = '/etc/ld.so.preload'";
        for (text, refused) in [
            (format!("[cdi]\npreload = 'file'\n{variable}"), None),
            (format!("[cdi]\npreload = 'both'\n{variable}"), Some("LD_PRELOAD")),
            (format!("[cdi]\npreload = 'environment'\n{variable}"), Some("LD_PRELOAD")),
            (format!("[cdi]\npreload = 'environment'\n{file}"), None),
            (format!("[cdi]\npreload = 'both'\n{file}"), Some(PRELOAD_FILE)),
            (file.to_owned(), Some(PRELOAD_FILE)),
        ] {
            match (settings(&text), refused) {
                (Ok(_), None) => {}
                (Err(error), Some(what)) => assert!(error.to_string().contains(what), "{text}: {error}"),
                (other, _) => panic!("{text}: {other:?}"),
            }
        }
        assert!(settings("runtime_dir = '/run/a b'").unwrap_err().to_string().contains("/run/a b"));
        assert!(settings("runtime_dir = '/run/a b'\ncdi_dir = 'off'").is_ok());
    }

    #[test]
    fn values_that_can_never_work_are_refused() {
        assert!(parse("metrics_address = '9405'").is_err());
        assert!(parse("log_format = 'xml'").unwrap_err().contains("xml"));
        assert!(parse("cdi_dir = ''").is_err());
        for (text, key) in [
            ("runtime_dir = 'run'", "runtime_dir"),
            ("socket = './m.sock'", "socket"),
            ("cdi_dir = 'cdi'", "cdi_dir"),
            ("host_root = 'host'", "host_root"),
            ("driver_root = 'driver'", "driver_root"),
            ("log_level = 'xx'", "\"xx\" is no level"),
            ("[audit]\nmps_server = 'nvidia-cuda-mps-server'", "audit.mps_server"),
            ("[sharing.mps]\npipe_directory = 'pipes'", "sharing.mps.pipe_directory"),
            ("[sharing]\ndevices = [{ uuid = '0', mode = 'mps' }]", "sharing.devices"),
            ("[kubernetes]\nmode = 'dra'\nkubelet_dir = 'kubelet'", "kubernetes.kubelet_dir"),
            ("[kubernetes]\nmode = 'dra'\nkubeconfig = 'config'", "kubernetes.kubeconfig"),
            ("[kubernetes]\nmode = 'dra'\nreports_to = 'scheduler'", "kubernetes.reports_to"),
            ("[kubernetes]\nmode = 'dra'\nreports_to = 'a:1,:1'", "kubernetes.reports_to"),
            ("[kubernetes]\nmode = 'dra'\nreports_dir = 'secrets'", "kubernetes.reports_dir"),
            ("[kubernetes]\nmode = 'device-plugin'\nmig = 'dynamic'", "kubernetes.mig"),
            ("[kubernetes]\nmode = 'dra'\n[kubernetes.device_plugin]\ndialects = ['x']", "device_plugin"),
            ("cdi_dir = 'off'\n[kubernetes]\nmode = 'dra'", "cdi_dir"),
            ("[cluster]\nscheduler = 'head'", "cluster.scheduler"),
            ("[cluster]\nscheduler = 'head:1'\n[kubernetes]\nmode = 'dra'", "remove one of them"),
            ("[[cdi.extra_mounts]]\nhost_path = 'lib'", "host_path"),
            ("[cdi]\nextra_env = ['=x']", "NAME=value"),
        ] {
            let error = Config::from_settings(Settings::default(), parse(text).unwrap(), defaults()).unwrap_err();
            assert!(error.to_string().contains(key), "{error}");
        }
    }

    #[test]
    fn flags_that_cannot_work_are_refused() {
        let mut flags = Settings { kubernetes_flags: KubernetesFlags::to("a:1"), ..Settings::default() };
        let error = Config::from_settings(flags.clone(), Settings::default(), defaults()).unwrap_err().to_string();
        assert!(error.contains("--reports-to") && error.contains("[kubernetes]"), "{error}");
        assert!(Config::from_settings(flags.clone(), parse("[kubernetes]\nmode = 'dra'").unwrap(), defaults()).is_ok());
        flags.kubernetes_flags = KubernetesFlags::default();
        let file = parse("[cluster]\nscheduler = 'head:1'\ntoken = 'x'").unwrap();
        let error = Config::from_settings(flags, file, defaults()).unwrap_err().to_string();
        assert!(error.contains("\"x\"") && error.contains("aliquot token"), "{error}");
    }

    #[test]
    fn the_example_file_is_complete_and_says_the_truth() {
        let example = include_str!("../../deploy/config/manager.toml");
        // Every key stands in the example as a comment: without the comment marks it must be a valid file.
        let all: String = example
            .lines()
            .map(|line| line.strip_prefix("#= ").unwrap_or(line))
            .fold(String::new(), |text, line| text + line + "\n");
        let settings = parse(&all).unwrap();
        let Settings {
            runtime_dir,
            state_dir,
            socket,
            metrics_address,
            nvml_library,
            host_root,
            driver_root,
            cdi_dir,
            log_format,
            log_level,
            default_priority_class,
            cdi,
            audit,
            sharing,
            kubernetes,
            kubernetes_flags: _,
            cluster,
            joining: _,
        } = settings;
        assert!(runtime_dir.is_some() && state_dir.is_some() && socket.is_some() && metrics_address.is_some());
        assert!(host_root.is_some() && driver_root.is_some());
        assert!(nvml_library.is_some() && cdi_dir.is_some() && log_format.is_some() && log_level.is_some());
        assert_eq!(default_priority_class, Some(QosClass::default()));
        let CdiSettings { preload, extra_mounts, extra_env } = cdi.unwrap();
        assert_eq!(preload, Preload::default());
        assert!(!extra_mounts.is_empty() && !extra_env.is_empty());
        assert_eq!(audit, Some(AuditSettings::default()));
        let SharingSettings { mode, lease_max_ms, devices, mps } = sharing.unwrap();
        assert_eq!((mode, mps), (SharingMode::default(), MpsSettings::default()));
        assert_eq!(lease_max_ms, SharingSettings::default().lease_max_ms);
        assert!(!devices.is_empty());
        let KubernetesSettings {
            mode,
            node_name,
            kubelet_dir,
            kubeconfig,
            mig,
            relay,
            reports_to,
            reports_name,
            reports_dir,
            device_plugin,
        } = kubernetes.unwrap();
        assert!(reports_to.is_some() && reports_name.is_some());
        assert_eq!(reports_dir, PathBuf::from("/var/run/secrets/aliquot.dev/reports"));
        assert_eq!((mode, mig), (KubernetesMode::Dra, MigMode::default()));
        assert_eq!(kubelet_dir, PathBuf::from("/var/lib/kubelet"));
        assert!(node_name.is_some() && kubeconfig.is_some() && relay);
        let defaults = DevicePluginSettings::default();
        let dialects = device_plugin.dialects.clone();
        assert!(!dialects.is_empty());
        let core_memory_percent = device_plugin.core_memory_percent;
        assert!(core_memory_percent.is_some());
        let expected = DevicePluginSettings { dialects, core_memory_percent, ..defaults };
        assert_eq!(device_plugin, expected);
        let cluster::Settings {
            scheduler,
            token,
            certificate,
            key,
            authority,
            node_name,
            address,
            labels,
            taints,
            cordoned,
            allow_root,
            allowed_uids,
            environment,
            podman,
            podman_run,
            mounts,
            server_name,
            reserved_cpu_millis,
            reserved_memory_bytes,
            log_bytes_max,
            logs_bytes_max,
            log_days,
        } = cluster.unwrap();
        assert!([scheduler, token, node_name, address].iter().all(Option::is_some));
        assert!([certificate, key, authority].iter().all(Option::is_some));
        assert!(!labels.is_empty() && !taints.is_empty() && cordoned && allow_root);
        assert!(allowed_uids.is_some() && !environment.is_empty() && !mounts.is_empty());
        let defaults = cluster::Settings::default();
        assert!(!podman.is_empty() && podman_run.starts_with(&defaults.podman_run));
        assert_eq!(server_name, defaults.server_name);
        assert_eq!((reserved_cpu_millis, reserved_memory_bytes), (0, defaults.reserved_memory_bytes));
        assert_eq!((log_bytes_max, log_days), (defaults.log_bytes_max, defaults.log_days));
        assert_eq!(logs_bytes_max, defaults.logs_bytes_max);
        assert!(parse(example).is_ok());
    }
}
