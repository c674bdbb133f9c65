//! The API server: how it is reached, and its errors in words.

use std::path::{Path, PathBuf};
use std::time::Duration;

use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};

/// An answer that takes longer is none: kubelet waits for what depends on it.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(15);

/// Why the API server is not known.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// The file that was named.
    #[error("cannot use the kubeconfig {}: {source}", path.display())]
    Kubeconfig {
        /// The file.
        path: PathBuf,
        /// Why.
        source: Box<kube::config::KubeconfigError>,
    },
    /// No file was named, and this is no pod.
    #[error("no API server is known: {0}; run as a pod with a service account, or name a kubeconfig")]
    NotInCluster(#[source] Box<kube::config::InClusterError>),
    /// What is known cannot be used.
    #[error("cannot reach the API server: {0}")]
    Client(#[source] Box<kube::Error>),
}

/// A client of the API server that `kubeconfig` names; without one, of the cluster that this is a pod of. Nothing is
/// asked yet.
///
/// # Errors
/// See [`ConnectError`].
pub async fn connect(kubeconfig: Option<&Path>) -> Result<Client, ConnectError> {
    let mut config = match kubeconfig {
        None => Config::incluster().map_err(|source| ConnectError::NotInCluster(Box::new(source)))?,
        Some(path) => from_file(path)
            .await
            .map_err(|source| ConnectError::Kubeconfig { path: path.into(), source: Box::new(source) })?,
    };
    config.read_timeout = Some(ANSWER_TIMEOUT);
    config.write_timeout = Some(ANSWER_TIMEOUT);
    Client::try_from(config).map_err(|source| ConnectError::Client(Box::new(source)))
}

async fn from_file(path: &Path) -> Result<Config, kube::config::KubeconfigError> {
    Config::from_custom_kubeconfig(Kubeconfig::read_from(path)?, &KubeConfigOptions::default()).await
}

/// What the API server says, without the structure around it.
#[must_use]
pub(crate) fn message(error: &kube::Error) -> String {
    match error {
        kube::Error::Api(status) if !status.message.is_empty() => status.message.clone(),
        other => {
            let mut text = other.to_string();
            let mut source = std::error::Error::source(other);
            while let Some(cause) = source {
                text = format!("{text}: {cause}");
                source = cause.source();
            }
            text
        }
    }
}

/// Whether what was asked for is not there.
#[must_use]
pub(crate) fn is_not_found(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if status.code == 404)
}

/// Whether somebody else was faster.
#[must_use]
pub(crate) fn is_conflict(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if status.code == 409)
}
