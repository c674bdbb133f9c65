//! The configuration of a scheduler: a TOML file, in which every value has a default.

use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use aliquot_scheduler_store::PostgresqlConfig;
use serde::Deserialize;

pub use crate::access::{LocalUser, Role};
pub use crate::audit::AuditConfig;
pub use crate::grants::ConfiguredUser;
pub use crate::limits::Limits;

use crate::grants;

/// The default port on which nodes reach a scheduler.
pub const PORT: u16 = 7460;

/// The configuration of a scheduler.
#[derive(Clone, PartialEq, Eq, Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// The address on which it listens for nodes.
    pub listen: SocketAddr,
    /// The address by which nodes reach it, as HOST:PORT, for the command with which they join. Empty: this machine's
    /// host name, with the port on which it listens.
    pub address: String,
    /// The socket for users.
    pub socket: PathBuf,
    /// The directory for its state: an SQLite database, unless the state is in PostgreSQL.
    pub state_dir: PathBuf,
    /// The database for its state, which several schedulers share: one leads, the others stand by.
    pub postgresql: Option<Postgresql>,
    /// The file with the key that encrypts users' secrets; not set: `secrets.key` in `state_dir`, made when it is
    /// needed. Schedulers that share a database must have the same key.
    pub secrets_key: Option<PathBuf>,
    /// The address on which it serves `/metrics` and `/healthz`, without encryption; not set: it does not serve them.
    pub metrics_address: Option<SocketAddr>,
    /// User numbers of administrators, in addition to root and the user that the scheduler runs as.
    pub administrators: Vec<u32>,
    /// The rights of other users.
    pub users: Vec<ConfiguredUser>,
    /// The role of users of the scheduler's machine that the configuration does not name.
    pub default_role: Role,
    /// How many calls and connections each caller may have.
    pub limits: Limits,
    /// The log of changes and refused calls.
    pub audit: AuditConfig,
    /// The length of a node's lease: a node stops its jobs this long after the last contact.
    pub lease_ms: u64,
    /// A node that was silent for this time gets nothing new.
    pub silence_ms: u64,
    /// A start that a node has not answered in this time counts as failed.
    pub start_deadline_ms: u64,
    /// The name of the placement policy. The program reads this text and the next three as its options of these names;
    /// not set: the option's default.
    pub policy: Option<String>,
    /// How strongly past usage counts against a queue.
    pub usage_weight: Option<String>,
    /// The time after which past usage counts half.
    pub usage_half_life: Option<String>,
    /// The level of what is logged, or a filter.
    pub log_level: Option<String>,
    /// Certificates from elsewhere, instead of those of its own authority.
    pub tls: Option<Tls>,
}

/// Certificates that come from elsewhere, each a PEM file.
#[derive(Clone, PartialEq, Eq, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Tls {
    /// The scheduler's certificate, for the name `scheduler.aliquot.internal`.
    pub certificate: PathBuf,
    /// The private key of that certificate.
    pub key: PathBuf,
    /// The authority that signs the certificates of nodes.
    pub authority: PathBuf,
}

/// How to reach a PostgreSQL database.
#[derive(Clone, PartialEq, Eq, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Postgresql {
    /// The address of the database: `postgresql://USER@HOST:PORT/DATABASE`.
    pub url: String,
    /// A file with the user's password.
    pub password_file: Option<PathBuf>,
    /// A PEM file with the authority that signs the server's certificate; not set: no TLS.
    pub authority: Option<PathBuf>,
    /// If the leader does not renew its lease for this time, another scheduler takes over.
    #[serde(default = "leader_lease_ms")]
    pub lease_ms: u64,
}

fn leader_lease_ms() -> u64 {
    10_000
}

impl Postgresql {
    /// The same settings with the contents of the files.
    ///
    /// # Errors
    /// If a file cannot be read.
    pub(crate) fn read(&self) -> Result<PostgresqlConfig, String> {
        let Self { url, password_file, authority, lease_ms } = self;
        let read = |path: &PathBuf| fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()));
        let password = password_file.as_ref().map(read).transpose()?;
        Ok(PostgresqlConfig {
            url: url.clone(),
            password: password.map(|password| password.trim_end_matches(['\r', '\n']).to_owned()),
            authority_pem: authority.as_ref().map(read).transpose()?,
            lease: Duration::from_millis(*lease_ms),
        })
    }
}

impl Default for Config {
    fn default() -> Self {
        Self {
            listen: SocketAddr::from(([0, 0, 0, 0], PORT)),
            address: String::new(),
            socket: PathBuf::from("/run/aliquot/scheduler.sock"),
            state_dir: PathBuf::from("/var/lib/aliquot/scheduler"),
            postgresql: None,
            secrets_key: None,
            metrics_address: None,
            administrators: Vec::new(),
            users: Vec::new(),
            default_role: Role::User,
            limits: Limits::default(),
            audit: AuditConfig::default(),
            lease_ms: 30_000,
            silence_ms: 10_000,
            start_deadline_ms: 30_000,
            policy: None,
            usage_weight: None,
            usage_half_life: None,
            log_level: None,
            tls: None,
        }
    }
}

/// Why a configuration cannot be read or used.
#[derive(Debug, thiserror::Error)]
#[error("{}: {why}", path.display())]
pub struct ConfigError {
    path: PathBuf,
    why: String,
}

impl Config {
    /// Reads the configuration from a file.
    ///
    /// # Errors
    /// If the file cannot be read, or a value is wrong.
    pub fn read(path: &Path) -> Result<Self, ConfigError> {
        let failed = |why: String| ConfigError { path: path.to_owned(), why };
        let text = fs::read_to_string(path).map_err(|error| failed(error.to_string()))?;
        let config: Self = toml::from_str(&text).map_err(|error| failed(error.to_string()))?;
        config.check().map_err(failed)?;
        Ok(config)
    }

    /// Checks that the values can be used together.
    ///
    /// # Errors
    /// A sentence with the wrong value, and what to do.
    pub fn check(&self) -> Result<(), String> {
        grants::check(&self.users, self.default_role)?;
        self.limits.check()?;
        self.audit.check()?;
        if self.lease_ms < 1000 {
            return Err(format!("lease_ms {} is shorter than 1000: no node could renew it in time", self.lease_ms));
        }
        if self.silence_ms >= self.lease_ms {
            return Err(format!(
                "silence_ms {} is not shorter than lease_ms {}: a node whose lease ends would still be given new work",
                self.silence_ms, self.lease_ms
            ));
        }
        if self.start_deadline_ms == 0 {
            return Err("start_deadline_ms 0 leaves no node time to start anything; write for example 30000".to_owned());
        }
        match &self.postgresql {
            Some(Postgresql { lease_ms, .. }) if *lease_ms < 1000 => {
                Err(format!("postgresql.lease_ms {lease_ms} is shorter than 1000: no leader could renew it in time"))
            }
            Some(Postgresql { lease_ms, .. }) if self.lease_ms / 2 < *lease_ms => Err(format!(
                "lease_ms {} is not twice as long as postgresql.lease_ms {lease_ms}: jobs would be stopped before another \
                 scheduler takes over",
                self.lease_ms
            )),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Config, String> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("scheduler.toml");
        std::fs::write(&path, text).unwrap();
        Config::read(&path).map_err(|error| error.to_string())
    }

    #[test]
    fn everything_has_a_default() {
        assert_eq!(read("").unwrap(), Config::default());
    }

    #[test]
    fn what_is_wrong_is_named_with_its_file() {
        for (text, word) in [
            ("lease_ms = 10", "lease_ms 10"),
            ("silence_ms = 30000", "silence_ms 30000"),
            ("start_deadline_ms = 0", "start_deadline_ms 0"),
            ("default_role = \"node\"", "default_role"),
            ("default_role = \"admin\"", "admin"),
            ("[[users]]\nlocal = 7\ncertificate = \"ada\"", "either"),
            ("[[users]]\nlocal = 7\nrole = \"viewer\"\nqueues = [\"a\"]", "\"7\""),
            ("[limits]\ncalls_burst = 0", "limits.calls_burst 0"),
            ("[audit]\nfiles = 0", "audit.files 0"),
            ("lisen = \"[::]:1\"", "lisen"),
            ("listen = \"nowhere\"", "listen"),
            ("[postgresql]\nurl = \"postgresql://a@b/c\"\nlease_ms = 999", "postgresql.lease_ms 999"),
            ("[postgresql]\nurl = \"postgresql://a@b/c\"\nlease_ms = 16000", "lease_ms 30000"),
            ("[postgresql]\nlease_ms = 5000", "url"),
        ] {
            let error = read(text).unwrap_err();
            assert!(error.contains(word) && error.contains("scheduler.toml"), "{error}");
        }
    }

    #[test]
    fn the_example_names_every_key_with_its_default() {
        let text = include_str!("../../../deploy/config/scheduler.toml");
        let keys: String =
            text.lines().filter_map(|line| line.strip_prefix("#= ")).flat_map(|line| [line, "\n"]).collect();
        let Config {
            listen,
            address,
            socket,
            state_dir,
            postgresql,
            secrets_key,
            metrics_address,
            administrators,
            users,
            default_role,
            limits,
            audit,
            lease_ms,
            silence_ms,
            start_deadline_ms,
            policy,
            usage_weight,
            usage_half_life,
            log_level,
            tls,
        } = read(&keys).unwrap();
        let default = Config::default();
        assert_eq!((listen, &socket, &state_dir), (default.listen, &default.socket, &default.state_dir));
        assert_eq!((lease_ms, silence_ms), (default.lease_ms, default.silence_ms));
        assert_eq!(start_deadline_ms, default.start_deadline_ms);
        assert!(secrets_key.is_some());
        // The program that reads these has the defaults, and tests them.
        assert!(policy.is_some() && usage_weight.is_some() && usage_half_life.is_some());
        assert_eq!(log_level.as_deref(), Some("info"));
        assert!(!address.is_empty() && metrics_address.is_some() && !administrators.is_empty() && tls.is_some());
        assert_eq!((default_role, limits), (default.default_role, default.limits));
        assert_eq!((audit.file_bytes, audit.files), (default.audit.file_bytes, default.audit.files));
        assert!(audit.file.is_some() && users.iter().any(|user| user.local.is_some() && user.queues.is_some()));
        assert!(users.iter().any(|user| user.certificate.is_some() && user.runs_as.is_some()));
        let Postgresql { url, password_file, authority, lease_ms } = postgresql.unwrap();
        assert_eq!((url.is_empty(), lease_ms), (false, leader_lease_ms()));
        assert!(password_file.is_some() && authority.is_some());
    }

    #[test]
    fn a_password_is_the_line_of_its_file() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("password");
        fs::write(&file, "a b \n").unwrap();
        let named = Postgresql {
            url: "postgresql://a@b/c".into(),
            password_file: Some(file.clone()),
            authority: None,
            lease_ms: 10_000,
        };
        assert_eq!(named.read().unwrap().password.as_deref(), Some("a b "));
        fs::remove_file(&file).unwrap();
        assert!(named.read().unwrap_err().contains("password"), "the file is named");
    }
}
