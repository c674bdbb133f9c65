//! How a scheduler is configured: a TOML file, in which everything has a default.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use serde::Deserialize;

/// The port on which nodes reach a scheduler.
pub const PORT: u16 = 7460;

/// How a scheduler is configured.
#[derive(Clone, PartialEq, Eq, Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// Where it listens for nodes.
    pub listen: SocketAddr,
    /// Where nodes reach it: HOST:PORT, for the command with which they join. Empty: this machine's host name, and the
    /// port that it listens on.
    pub address: String,
    /// The socket for users.
    pub socket: PathBuf,
    /// What it must remember is here.
    pub state_dir: PathBuf,
    /// Where it serves `/metrics` and `/healthz`, without encryption; not set: nowhere.
    pub metrics_address: Option<SocketAddr>,
    /// User numbers of administrators, beside root and the user that it runs as.
    pub administrators: Vec<u32>,
    /// A node stops what runs so long after it was heard of last.
    pub lease_ms: u64,
    /// Nothing new is started on a node that was not heard of for so long.
    pub silence_ms: u64,
    /// A start that a node has not answered for so long has failed.
    pub start_deadline_ms: u64,
    /// Certificates from elsewhere, in place of its own authority.
    pub tls: Option<Tls>,
}

/// Certificates that come from elsewhere, each a PEM file.
#[derive(Clone, PartialEq, Eq, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Tls {
    /// The scheduler's certificate, for the name `scheduler.aliquot.internal`.
    pub certificate: PathBuf,
    /// Its key.
    pub key: PathBuf,
    /// Who signs the certificates of nodes.
    pub authority: PathBuf,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            listen: SocketAddr::from(([0, 0, 0, 0], PORT)),
            address: String::new(),
            socket: PathBuf::from("/run/aliquot/scheduler.sock"),
            state_dir: PathBuf::from("/var/lib/aliquot/scheduler"),
            metrics_address: None,
            administrators: Vec::new(),
            lease_ms: 30_000,
            silence_ms: 10_000,
            start_deadline_ms: 30_000,
            tls: None,
        }
    }
}

/// Why a configuration cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("{}: {why}", path.display())]
pub struct ConfigError {
    path: PathBuf,
    why: String,
}

impl Config {
    /// The configuration in a file.
    ///
    /// # Errors
    /// If it cannot be read or makes no sense.
    pub fn read(path: &Path) -> Result<Self, ConfigError> {
        let failed = |why: String| ConfigError { path: path.to_owned(), why };
        let text = std::fs::read_to_string(path).map_err(|error| failed(error.to_string()))?;
        let config: Self = toml::from_str(&text).map_err(|error| failed(error.to_string()))?;
        config.check().map_err(failed)?;
        Ok(config)
    }

    /// Says what makes no sense.
    ///
    /// # Errors
    /// What it is, with the value, and what to do.
    pub fn check(&self) -> Result<(), String> {
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
        Ok(())
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
            ("lisen = \"[::]:1\"", "lisen"),
            ("listen = \"nowhere\"", "listen"),
        ] {
            let error = read(text).unwrap_err();
            assert!(error.contains(word) && error.contains("scheduler.toml"), "{error}");
        }
    }
}
