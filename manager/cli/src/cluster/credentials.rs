//! A user's credentials for a scheduler on another machine: a file that `aliquot users add` writes, and the connection that
//! it opens.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Once;
use std::time::Duration;

use aliquot_manager::paths::Paths;
use serde::{Deserialize, Serialize};
use tonic::Status;
use tonic::transport::{Certificate, ClientTlsConfig, Endpoint, Identity};

use crate::deadline::{self, Deadlines};
use crate::error::{Failure, Result, with_causes};
use crate::output;
use crate::server::SCHEDULER;

/// The file name of a user's credentials, in the directory of this program's other files.
const FILE: &str = "credentials.toml";
/// The name in the certificate of every scheduler, whatever its address.
const SERVER_NAME: &str = "scheduler.aliquot.internal";
/// How long one address may take before the next is tried.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Time between two checks that the scheduler is there, and how long it may take to answer.
const SIGN_OF_LIFE_INTERVAL: Duration = Duration::from_secs(5);

/// The data that a user needs to call a scheduler from another machine. Certificates and the key are PEM texts, or
/// paths of PEM files, relative to this file.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Credentials {
    /// The user's name, for people.
    pub(crate) user: String,
    /// The addresses of the schedulers, each HOST:PORT.
    pub(crate) schedulers: Vec<String>,
    /// The authority that signs the scheduler's certificate.
    pub(crate) authority: String,
    pub(crate) certificate: String,
    pub(crate) key: String,
}

impl std::fmt::Debug for Credentials {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Credentials").field("user", &self.user).finish_non_exhaustive()
    }
}

/// The default file of this user's credentials.
pub(crate) fn default_file() -> PathBuf {
    Paths::of_this_user().config_file.with_file_name(FILE)
}

/// Whether this is a file of credentials and not a socket.
pub(crate) fn is_file(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|metadata| metadata.is_file())
}

impl Credentials {
    fn read(path: &Path) -> Result<Credentials> {
        let unusable = |why: String| {
            Failure::new(format!("{} cannot be used as credentials for a scheduler: {why}", path.display()))
                .hint("an administrator makes such a file with: aliquot users add NAME")
        };
        let text = fs::read_to_string(path).map_err(|error| unusable(error.to_string()))?;
        warn_if_open(path);
        let read: Credentials = toml::from_str(&text).map_err(|error| unusable(error.message().to_owned()))?;
        let pem = |value: String| {
            if value.trim_start().starts_with("-----BEGIN") {
                return Ok(value);
            }
            let file = path.parent().unwrap_or(Path::new("")).join(&value);
            fs::read_to_string(&file).map_err(|error| unusable(format!("{}: {error}", file.display())))
        };
        if read.schedulers.is_empty() {
            return Err(unusable("it names no scheduler".to_owned()));
        }
        Ok(Credentials {
            authority: pem(read.authority)?,
            certificate: pem(read.certificate)?,
            key: pem(read.key)?,
            ..read
        })
    }

    /// The text of a file with these credentials.
    pub(crate) fn text(&self) -> Result<String> {
        let text = toml::to_string_pretty(self);
        let text = text.map_err(|error| Failure::new(format!("the credentials cannot be written: {error}")))?;
        Ok(format!("# Anyone with this file can call the scheduler as {:?}. Keep it secret.\n{text}", self.user))
    }
}

/// Warns once if other users can read the file.
fn warn_if_open(path: &Path) {
    static TOLD: Once = Once::new();
    let mode = fs::metadata(path).map_or(0, |metadata| metadata.permissions().mode());
    if mode & 0o077 != 0 {
        let path = path.display();
        TOLD.call_once(|| {
            output::say(format_args!(
                "warning: other users can read {path}, which has a secret key; close it: chmod 600 {path}"
            ));
        });
    }
}

/// A new file that only this user can read. A file that exists is not replaced.
pub(crate) fn create(path: &Path) -> Result<File> {
    let made = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path);
    made.map_err(|error| {
        let failure = Failure::new(format!("cannot make {}: {error}", path.display()));
        match error.kind() {
            io::ErrorKind::AlreadyExists => failure.hint("remove it, or name another file with --output"),
            _ => failure.hint("name another file with --output"),
        }
    })
}

/// Writes all of a new file.
pub(crate) fn write(mut file: &File, path: &Path, text: &str) -> Result<()> {
    let written = file.write_all(text.as_bytes()).and_then(|()| file.sync_all());
    written.map_err(|error| Failure::new(format!("cannot write {}: {error}", path.display())))
}

/// A channel to the first scheduler in the file `path` that can be reached. A scheduler that stands by passes calls on.
pub(crate) async fn channel(path: &Path) -> Result<Deadlines> {
    let credentials = Credentials::read(path)?;
    let tls = ClientTlsConfig::new()
        .ca_certificate(Certificate::from_pem(&credentials.authority))
        .identity(Identity::from_pem(&credentials.certificate, &credentials.key))
        .domain_name(SERVER_NAME);
    let mut failures = Vec::new();
    for address in &credentials.schedulers {
        let endpoint = Endpoint::from_shared(format!("https://{address}"));
        let endpoint = endpoint.and_then(|endpoint| endpoint.tls_config(tls.clone()));
        let connected = match endpoint {
            Ok(endpoint) => {
                let endpoint = endpoint
                    .tcp_nodelay(true)
                    .http2_keep_alive_interval(SIGN_OF_LIFE_INTERVAL)
                    .keep_alive_timeout(deadline::of_question());
                tokio::time::timeout(CONNECT_TIMEOUT, endpoint.connect()).await
            }
            Err(error) => Ok(Err(error)),
        };
        match connected {
            Ok(Ok(channel)) => return Ok(Deadlines::new(channel, &SCHEDULER, path)),
            Ok(Err(error)) => failures.push(format!("{address}: {}", with_causes(&error))),
            Err(_) => failures.push(format!("{address}: no answer within {} s", CONNECT_TIMEOUT.as_secs())),
        }
    }
    let (file, failures) = (path.display(), failures.join("; "));
    Err(Failure::new(format!("the scheduler that {file} names cannot be reached: {failures}")).hint(
        "check the network, and the addresses in that file; make a new file with: aliquot users add NAME --replace",
    ))
}

/// The failure of a call whose certificate the scheduler's machine did not accept; `None` for any other failure.
pub(crate) fn expired(status: &Status) -> Option<Failure> {
    let cause = std::error::Error::source(status)?;
    let has_expired = with_causes(cause).contains("CertificateExpired");
    has_expired.then(|| {
        Failure::new("the certificate in the file of credentials has expired")
            .hint("an administrator makes another one with: aliquot users add NAME --replace")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn credentials() -> Credentials {
        let pem = |name: &str| format!("-----BEGIN {name}-----\nabc\n-----END {name}-----\n");
        Credentials {
            user: "ada".to_owned(),
            schedulers: vec!["head:7460".to_owned()],
            authority: pem("CERTIFICATE"),
            certificate: pem("CERTIFICATE"),
            key: pem("PRIVATE KEY"),
        }
    }

    #[test]
    fn a_file_is_read_as_it_was_written() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("ada.toml");
        write(&create(&path).unwrap(), &path, &credentials().text().unwrap()).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        let read = Credentials::read(&path).unwrap();
        assert_eq!((read.user.as_str(), read.key), ("ada", credentials().key));
        assert!(create(&path).unwrap_err().to_string().contains("--output"), "it is not replaced");
    }

    #[test]
    fn certificates_may_lie_in_files_beside_it() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("ada.toml");
        let named = Credentials { key: "ada.key".to_owned(), ..credentials() };
        fs::write(&path, named.text().unwrap()).unwrap();
        assert!(Credentials::read(&path).unwrap_err().to_string().contains("ada.key"));
        fs::write(dir.path().join("ada.key"), "the key").unwrap();
        assert_eq!(Credentials::read(&path).unwrap().key, "the key");
    }

    #[test]
    fn what_is_no_file_of_credentials_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("ada.toml");
        for text in ["", "user = 7", "nonsense", "user = \"a\"\nschedulers = []\nauthority = \"-----BEGIN\"\n"] {
            fs::write(&path, text).unwrap();
            let said = Credentials::read(&path).unwrap_err().to_string();
            assert!(said.contains("ada.toml") && said.contains("aliquot users add"), "{said}");
        }
        let none = Credentials { schedulers: Vec::new(), ..credentials() };
        fs::write(&path, none.text().unwrap()).unwrap();
        assert!(Credentials::read(&path).unwrap_err().to_string().contains("names no scheduler"));
    }
}
