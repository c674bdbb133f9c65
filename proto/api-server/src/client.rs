//! The API server: how it is reached, and its errors in words.

use std::path::{Path, PathBuf};
use std::time::Duration;

use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};
use tokio::time::{Instant, sleep};

/// An answer that takes longer is none: kubelet waits for what depends on it.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(15);

/// A server that does not take a connection within this time is away.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// A server that cannot answer now is asked again for so long while kubelet waits. Together with the wait for the last
/// answer this is less than kubelet's own patience. Kubelet tries again what has failed only at its next look at the
/// pod, up to 90 s later.
const PATIENCE: Duration = Duration::from_secs(10);

/// Between the first tries; then twice as long each time, up to the longest pause.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

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
    config.connect_timeout = Some(CONNECT_TIMEOUT);
    config.read_timeout = Some(ANSWER_TIMEOUT);
    config.write_timeout = Some(ANSWER_TIMEOUT);
    // The time for an answer begins with the question, not when the connection was used last.
    config.reset_reader_on_write = true;
    // Whoever asks tries again: kubelet, a loop of ours, or whoever is [patient](Patience). The client's own tries
    // would keep kubelet waiting for minutes.
    config.default_retry = false;
    Client::try_from(config).map_err(|source| ConnectError::Client(Box::new(source)))
}

async fn from_file(path: &Path) -> Result<Config, kube::config::KubeconfigError> {
    Config::from_custom_kubeconfig(Kubeconfig::read_from(path)?, &KubeConfigOptions::default()).await
}

/// What is left of the time in which a server is asked again that cannot answer now.
#[derive(Clone, Copy, Debug)]
pub struct Patience {
    end: Instant,
}

impl Patience {
    /// It begins now.
    #[must_use]
    pub fn begin() -> Patience {
        Patience { end: Instant::now() + PATIENCE }
    }

    /// What the server answers to `ask`, once it does.
    ///
    /// # Errors
    /// What it refuses, or why it still cannot answer.
    pub async fn ask<T, F>(self, ask: impl Fn() -> F) -> kube::Result<T>
    where
        F: Future<Output = kube::Result<T>>,
    {
        let mut pause = FIRST_PAUSE;
        loop {
            match ask().await {
                Err(error) if is_passing(&error) && Instant::now() + pause < self.end => {}
                outcome => return outcome,
            }
            sleep(pause).await;
            pause = LONGEST_PAUSE.min(pause * 2);
        }
    }
}

/// Whether the server may answer in a moment: it cannot be reached, is starting or ending, or has too much to do.
fn is_passing(error: &kube::Error) -> bool {
    match error {
        kube::Error::Api(status) => status.code == 429 || status.code >= 500,
        kube::Error::HyperError(_) | kube::Error::Service(_) => true,
        _ => false,
    }
}

/// What the API server says, without the structure around it.
#[must_use]
pub fn message(error: &kube::Error) -> String {
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
pub fn is_not_found(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if status.code == 404)
}

/// Whether somebody else was faster.
#[must_use]
pub fn is_conflict(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if status.code == 409)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering};

    use k8s_openapi::api::core::v1::Pod;
    use kube::api::Api;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;

    use super::*;

    /// Asks a server whose answers have these status codes; the last one is repeated. Returns how often it was asked.
    async fn asked(codes: &[u16]) -> (kube::Result<()>, u32) {
        let count = AtomicU32::new(0);
        let ask = || async {
            let asked = count.fetch_add(1, Ordering::Relaxed) as usize;
            match codes.get(asked).or(codes.last()) {
                Some(200) | None => Ok(()),
                Some(&code) => Err(kube::Error::Api(Box::new(kube::core::Status::failure("", "").with_code(code)))),
            }
        };
        let outcome = Patience::begin().ask(ask).await;
        (outcome, count.load(Ordering::Relaxed))
    }

    #[tokio::test(start_paused = true)]
    async fn who_waits_for_an_answer_asks_again_until_the_server_can_give_it() {
        let (outcome, count) = asked(&[503, 429, 500, 200]).await;
        assert!(outcome.is_ok());
        assert_eq!(count, 4);
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_refused_is_not_asked_for_again() {
        for code in [403, 404, 409] {
            let (outcome, count) = asked(&[code, 200]).await;
            assert!(outcome.is_err());
            assert_eq!(count, 1);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn nobody_waits_for_ever_for_a_server_that_never_answers() {
        let begin = Instant::now();
        let (outcome, count) = asked(&[503]).await;
        assert!(outcome.is_err());
        assert!(count > 5 && begin.elapsed() <= PATIENCE, "{count} times, {:?}", begin.elapsed());
    }

    #[tokio::test]
    async fn a_server_that_cannot_answer_now_is_asked_once() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let asked = Arc::new(AtomicU32::new(0));
        let count = Arc::clone(&asked);
        tokio::spawn(async move {
            loop {
                let (mut connection, _) = listener.accept().await.unwrap();
                let _ = connection.read(&mut [0; 4096]).await.unwrap();
                // Not for ever: whoever asks again is to be seen at once.
                let status = if count.fetch_add(1, Ordering::Relaxed) == 0 { "503 Away" } else { "404 Not Found" };
                let answer = format!("HTTP/1.1 {status}\r\ncontent-length: 0\r\nconnection: close\r\n\r\n");
                connection.write_all(answer.as_bytes()).await.unwrap();
            }
        });
        let file = tempfile::NamedTempFile::new().unwrap();
        let kubeconfig = format!(
            "apiVersion: v1\nkind: Config\ncurrent-context: c\n\
             clusters: [{{name: c, cluster: {{server: \"http://{address}\"}}}}]\n\
             users: [{{name: c, user: {{}}}}]\n\
             contexts: [{{name: c, context: {{cluster: c, user: c}}}}]\n"
        );
        std::fs::write(file.path(), kubeconfig).unwrap();
        let client = connect(Some(file.path())).await.unwrap();
        assert!(Api::<Pod>::namespaced(client, "default").get("pod").await.is_err());
        assert_eq!(asked.load(Ordering::Relaxed), 1);
    }
}
