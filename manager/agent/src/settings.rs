//! How a node takes part in a cluster.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::Deserialize;

use crate::identity::is_token;

/// The table `[cluster]` of the manager's configuration, as a person writes it.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Settings {
    /// The scheduler's address, `HOST:PORT`; of several schedulers all, separated by commas.
    pub scheduler: Option<String>,
    /// The token to join with. Not needed any more when the node has joined.
    pub token: Option<String>,
    /// The node's own certificate, made elsewhere. A node that has one needs no token.
    pub certificate: Option<PathBuf>,
    /// The certificate's private key.
    pub key: Option<PathBuf>,
    /// The certificates of the authorities that have signed the scheduler's certificate.
    pub authority: Option<PathBuf>,
    /// The name in the scheduler's certificate.
    pub server_name: String,
    /// The node's name in the cluster [default: the host's name].
    pub node_name: Option<String>,
    /// The address where processes of other nodes reach this one [default: the address from which this node reaches the
    /// scheduler, or on the scheduler's own machine another one where it listens].
    pub address: Option<String>,
    /// Labels by which jobs choose nodes, in addition to those that every node has.
    pub labels: BTreeMap<String, String>,
    /// Taints: only jobs that tolerate all of them run here.
    pub taints: Vec<Taint>,
    /// Whether the node is cordoned: then nothing new is started here.
    pub cordoned: bool,
    /// Processor time that jobs do not get, in thousandths of a CPU.
    pub reserved_cpu_millis: u64,
    /// Memory that jobs do not get, in bytes.
    pub reserved_memory_bytes: u64,
    /// Whether jobs of root may run here.
    pub allow_root: bool,
    /// The users whose jobs may run here. If it is not set, all users' jobs may.
    pub allowed_uids: Option<Vec<u32>>,
    /// Variables that every job gets, unless it sets them itself.
    pub environment: BTreeMap<String, String>,
    /// The command that runs podman for jobs with an image: the program, and options before its subcommand. If it is
    /// not set, the node runs no images. Podman runs as the manager's user, which is root on most nodes.
    pub podman: Vec<String>,
    /// Additional options of `podman run`, for every job. Without the node's network, the members of a gang do not find
    /// each other.
    pub podman_run: Vec<String>,
    /// Directories that images may mount; "~" stands for the home of the job's user.
    pub mounts: Vec<String>,
    /// Maximum bytes of each log that are kept.
    pub log_bytes_max: u64,
    /// Maximum bytes of all logs. If there are more, the oldest logs of jobs that have ended are removed.
    pub logs_bytes_max: u64,
    /// Days for which a log is kept after its job has ended.
    pub log_days: u32,
}

/// A taint: jobs that do not tolerate it do not run on the node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Taint {
    /// The name of the taint.
    pub key: String,
    /// The value of the taint; empty if it has none.
    #[serde(default)]
    pub value: String,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            scheduler: None,
            token: None,
            certificate: None,
            key: None,
            authority: None,
            server_name: "scheduler.aliquot.internal".into(),
            node_name: None,
            address: None,
            labels: BTreeMap::new(),
            taints: Vec::new(),
            cordoned: false,
            reserved_cpu_millis: 0,
            reserved_memory_bytes: 1 << 30,
            allow_root: false,
            allowed_uids: None,
            environment: BTreeMap::new(),
            podman: Vec::new(),
            podman_run: ["--network", "host"].map(str::to_owned).into(),
            mounts: Vec::new(),
            log_bytes_max: 64 << 20,
            logs_bytes_max: 8 << 30,
            log_days: 14,
        }
    }
}

/// The reason why a node cannot take part as configured.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum SettingsError {
    /// The configuration does not name a scheduler.
    #[error("the address of the scheduler is missing; use --scheduler HOST:PORT, or cluster.scheduler")]
    NoScheduler,
    /// The address has no port, or is not an address.
    #[error("cluster.scheduler names {0:?}, which is not of the form HOST:PORT; several are separated by commas")]
    Address(String),
    /// The join token does not have the form of one. Only its beginning is told, as it may be a damaged secret.
    #[error(
        "cluster.token (--join) begins with {0:?}, and is no whole join token: these begin with alq1.; copy the whole of it, \
         or make another one with: aliquot token"
    )]
    Token(String),
    /// A node cannot have this name.
    #[error(
        "cluster.node_name is {0:?}: a node's name has lower-case letters, digits, '-' and '.', and at most 63 of them; \
         choose one with --node-name"
    )]
    NodeName(String),
    /// Only a part of a certificate is named.
    #[error("cluster.certificate, cluster.key and cluster.authority belong together: set all three, or none")]
    PartOfCertificate,
    /// A path that must be absolute is not.
    #[error("cluster.{key} is {}, which is not an absolute path", path.display())]
    Relative {
        /// The key in the table `[cluster]`.
        key: &'static str,
        /// The path that was given.
        path: PathBuf,
    },
    /// The maximum size of a log is too small.
    #[error("cluster.log_bytes_max is {0}: a log needs at least 65536 bytes")]
    LogBytes(u64),
    /// There is not enough room for one log.
    #[error("cluster.logs_bytes_max is {all}, which is less than cluster.log_bytes_max, {one}: make it greater")]
    LogsBytes {
        /// The maximum size of all logs.
        all: u64,
        /// The maximum size of one log.
        one: u64,
    },
    /// A directory that images may mount must be named from the root.
    #[error(
        "cluster.mounts names {0:?}; write \"~\", or a directory below the root, without colons, commas, quotes and \"..\""
    )]
    Mount(String),
    /// The variable's name is empty, or the system cannot take it.
    #[error("cluster.environment has {0:?}, which cannot be the name of a variable")]
    Variable(String),
}

/// The source of a node's certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Source {
    /// The scheduler gives one for a token, and later renews it.
    Joined { token: Option<String> },
    /// Files of the node's own: certificate, key, authority.
    Own(PathBuf, PathBuf, PathBuf),
}

/// The complete configuration of a node in a cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// The addresses of the schedulers, of which one leads.
    pub(crate) schedulers: Vec<String>,
    pub(crate) node_name: String,
    pub(crate) source: Source,
    pub(crate) settings: Settings,
    /// The directory for files that outlive a restart of the machine.
    pub(crate) state_dir: PathBuf,
    /// The directory for files that do not outlive a restart.
    pub(crate) runtime_dir: PathBuf,
    /// The directory for the secrets of jobs, in memory. The users of jobs can pass through it, and see only their own.
    pub(crate) secrets_dir: PathBuf,
    /// The node manager's socket.
    pub(crate) manager_socket: PathBuf,
}

impl Settings {
    /// Fills in the defaults of a manager that keeps its state in `state_dir`, runs in `runtime_dir`, and serves
    /// `manager_socket`, on the host `host_name`.
    ///
    /// # Errors
    /// See [`SettingsError`].
    pub fn completed(
        self,
        state_dir: &Path,
        runtime_dir: &Path,
        manager_socket: &Path,
        host_name: &str,
    ) -> Result<Config, SettingsError> {
        let named = self.scheduler.as_deref().ok_or(SettingsError::NoScheduler)?;
        let schedulers: Vec<String> = named.split(',').map(|address| address.trim().to_owned()).collect();
        if let Some(wrong) = schedulers.iter().find(|address| !is_address(address)) {
            return Err(SettingsError::Address(wrong.clone()));
        }
        let node_name = self.node_name.clone().unwrap_or_else(|| host_name.to_lowercase());
        let is_of_name = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"-.".contains(&byte);
        if node_name.is_empty() || node_name.len() > 63 || !node_name.bytes().all(is_of_name) {
            return Err(SettingsError::NodeName(node_name));
        }
        let source = match (self.certificate.clone(), self.key.clone(), self.authority.clone()) {
            (None, None, None) => match self.token.clone() {
                Some(token) if !is_token(&token) => return Err(SettingsError::Token(token.chars().take(6).collect())),
                token => Source::Joined { token },
            },
            (Some(certificate), Some(key), Some(authority)) => Source::Own(
                absolute("certificate", certificate)?,
                absolute("key", key)?,
                absolute("authority", authority)?,
            ),
            _ => return Err(SettingsError::PartOfCertificate),
        };
        if self.log_bytes_max < 1 << 16 {
            return Err(SettingsError::LogBytes(self.log_bytes_max));
        }
        if self.logs_bytes_max < self.log_bytes_max {
            return Err(SettingsError::LogsBytes { all: self.logs_bytes_max, one: self.log_bytes_max });
        }
        let is_plain = |mount: &str| !mount.contains([':', ',', '"', '\'', '\\']) && !mount.contains("..");
        let is_mount = |mount: &str| {
            mount == "~" || (mount.starts_with('/') && !mount.trim_matches('/').is_empty() && is_plain(mount))
        };
        if let Some(mount) = self.mounts.iter().find(|mount| !is_mount(mount)) {
            return Err(SettingsError::Mount(mount.clone()));
        }
        let is_wrong = |name: &&String| name.is_empty() || name.contains(['=', '\0']);
        if let Some(name) = self.environment.keys().find(is_wrong) {
            return Err(SettingsError::Variable(name.clone()));
        }
        Ok(Config {
            schedulers,
            node_name,
            source,
            settings: self,
            state_dir: state_dir.join("cluster"),
            runtime_dir: runtime_dir.join("cluster"),
            secrets_dir: runtime_dir.join("secrets"),
            manager_socket: manager_socket.to_owned(),
        })
    }
}

fn is_address(text: &str) -> bool {
    text.rsplit_once(':').is_some_and(|(host, port)| !host.is_empty() && port.parse::<u16>().is_ok())
}

fn absolute(key: &'static str, path: PathBuf) -> Result<PathBuf, SettingsError> {
    if path.is_absolute() { Ok(path) } else { Err(SettingsError::Relative { key, path }) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn completed(text: &str) -> Result<Config, SettingsError> {
        let settings: Settings = toml::from_str(text).unwrap();
        settings.completed(Path::new("/s"), Path::new("/r"), Path::new("/r/manager.sock"), "Host-1")
    }

    #[test]
    fn two_lines_are_enough() {
        let config =
            completed("scheduler = 'head:7460'\ntoken = 'alq1.eyJzZWNyZXQiOiJzIiwiYXV0aG9yaXR5IjoiUEVNIn0'").unwrap();
        assert_eq!((config.node_name.as_str(), config.state_dir), ("host-1", PathBuf::from("/s/cluster")));
        assert_eq!(
            config.source,
            Source::Joined { token: Some("alq1.eyJzZWNyZXQiOiJzIiwiYXV0aG9yaXR5IjoiUEVNIn0".into()) }
        );
    }

    #[test]
    fn what_cannot_work_is_refused() {
        assert_eq!(completed(""), Err(SettingsError::NoScheduler));
        assert_eq!(completed("scheduler = 'a:1, b:2'").unwrap().schedulers, ["a:1", "b:2"]);
        assert_eq!(completed("scheduler = 'a:1,'"), Err(SettingsError::Address(String::new())));
        for address in ["head", ":1", "head:port", "head:70000"] {
            let text = format!("scheduler = '{address}'");
            assert_eq!(completed(&text), Err(SettingsError::Address(address.into())));
        }
        let wrong = |line: &str| completed(&format!("scheduler = 'head:1'\n{line}")).unwrap_err().to_string();
        assert!(wrong("node_name = 'A_b'").contains("--node-name"));
        for token in ["", "x", "alq1.", "alq1.!"] {
            assert!(wrong(&format!("token = '{token}'")).contains("aliquot token"), "{token}");
        }
        assert!(wrong("key = '/k'").contains("cluster.authority"));
        assert!(wrong("key = '/k'\ncertificate = 'c'\nauthority = '/a'").contains("absolute"));
        for mount in ["data", "/", "/a,b", "/a/../b"] {
            assert!(wrong(&format!("mounts = ['{mount}']")).contains(&format!("{mount:?}")));
        }
        assert!(wrong("log_bytes_max = 1").contains("65536"));
        assert!(wrong("logs_bytes_max = 70000").contains("67108864"));
        assert!(wrong("environment = { 'A=B' = '' }").contains("A=B"));
    }
}
