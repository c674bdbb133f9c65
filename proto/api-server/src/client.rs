//! Access to the API server: connections, retries, and its errors in words.

use std::path::{Path, PathBuf};
use std::time::Duration;

use kube::client::ClientBuilder;
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};
use tokio::time::{Instant, sleep};
use tower::BoxError;
use tower::util::MapErrLayer;

/// The longest wait for an answer, because kubelet waits for what depends on it.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(15);

/// A server that does not accept a connection within this time counts as unreachable.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// How long a server that cannot answer now is asked again while kubelet waits. Together with the wait for the last
/// answer this is shorter than kubelet's own timeout. After a failure kubelet tries again only when it next looks at
/// the pod, up to 90 s later.
const PATIENCE: Duration = Duration::from_secs(10);

/// The pause after the first try. It doubles with each further try, up to the longest pause.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// Why no connection to the API server can be made.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// The named kubeconfig cannot be used.
    #[error("cannot use the kubeconfig {}: {source}", path.display())]
    Kubeconfig {
        /// The path of the named file.
        path: PathBuf,
        /// The error of the library that reads the file.
        source: Box<kube::config::KubeconfigError>,
    },
    /// No file was named, and this process does not run in a pod.
    #[error("no API server is known: {0}; run as a pod with a service account, or name a kubeconfig")]
    NotInCluster(#[source] Box<kube::config::InClusterError>),
    /// The configuration cannot be used.
    #[error("cannot reach the API server: {0}")]
    Client(#[source] Box<kube::Error>),
}

/// A client for the API server that `kubeconfig` names; without it, for the cluster in which this process runs as a
/// pod. No request is sent yet.
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
    // The timeout counts from the request, not from the last use of the connection.
    config.reset_reader_on_write = true;
    // The caller repeats a failed request itself: kubelet, a loop, or a caller with [`Patience`]. The client's own
    // retries would keep kubelet waiting for minutes.
    config.default_retry = false;
    client_with(config).map_err(|source| ConnectError::Client(Box::new(source)))
}

/// The API server cannot be reached.
#[derive(Debug, thiserror::Error)]
#[error("the API server {server} cannot be reached: {}", first_cause(&**error))]
struct Unreachable {
    server: String,
    error: BoxError,
}

/// The cause without a further cause: it says the most.
fn first_cause<'a>(error: &'a (dyn std::error::Error + 'static)) -> &'a (dyn std::error::Error + 'static) {
    std::iter::successors(Some(error), |error| error.source()).last().unwrap_or(error)
}

/// A client with this configuration, whose errors name the server. No request is sent yet.
///
/// # Errors
/// If the configuration cannot be used.
pub fn client_with(config: Config) -> kube::Result<Client> {
    let url = &config.cluster_url;
    // Not the whole URL: it may have a password.
    let port = url.port().map(|port| format!(":{port}")).unwrap_or_default();
    let server = format!("{}://{}{port}", url.scheme_str().unwrap_or("https"), url.host().unwrap_or_default());
    let named = move |error: BoxError| -> BoxError {
        match error.downcast::<kube::Error>() {
            Ok(error) => error,
            Err(error) => Box::new(Unreachable { server: server.clone(), error }),
        }
    };
    Ok(ClientBuilder::try_from(config)?.with_layer(&MapErrLayer::new(named)).build())
}

async fn from_file(path: &Path) -> Result<Config, kube::config::KubeconfigError> {
    Config::from_custom_kubeconfig(Kubeconfig::read_from(path)?, &KubeConfigOptions::default()).await
}

/// The remaining time in which a server that cannot answer now is asked again.
#[derive(Clone, Copy, Debug)]
pub struct Patience {
    end: Instant,
}

impl Patience {
    /// The time starts now.
    #[must_use]
    pub fn begin() -> Patience {
        Patience { end: Instant::now() + PATIENCE }
    }

    /// Repeats `ask` until the server answers, or the time is over.
    ///
    /// # Errors
    /// The server's refusal, or the reason why it still cannot answer.
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

/// Whether the error is temporary: the server cannot be reached, is starting or stopping, or is overloaded.
#[must_use]
pub fn is_passing(error: &kube::Error) -> bool {
    match error {
        kube::Error::Api(status) => status.code == 429 || status.code >= 500,
        kube::Error::HyperError(_) | kube::Error::Service(_) => true,
        _ => false,
    }
}

/// The message of the API server, without the structure around it.
#[must_use]
pub fn message(error: &kube::Error) -> String {
    match error {
        kube::Error::Api(status) if !status.message.is_empty() => status.message.clone(),
        kube::Error::Service(error) if error.is::<Unreachable>() => error.to_string(),
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

/// Whether the error says that the object does not exist.
#[must_use]
pub fn is_not_found(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if status.code == 404)
}

/// Whether this client does not have the right.
#[must_use]
pub fn is_forbidden(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if status.code == 403)
}

/// Whether another client was faster: it has changed the object, or made one of the same name.
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

    /// Sends requests to a server that answers with these status codes in turn; the last one is repeated. Returns the
    /// number of requests.
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
                // The second answer is final, so that a further request shows at once.
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

    #[tokio::test]
    async fn a_server_that_cannot_be_reached_is_named() {
        // Nothing listens there any more.
        let address = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
        let config = Config::new(format!("http://{address}").parse().unwrap());
        let asked = Api::<Pod>::namespaced(client_with(config).unwrap(), "default").get("pod").await;
        let error = asked.unwrap_err();
        let said = message(&error);
        assert!(said.starts_with(&format!("the API server http://{address} cannot be reached: ")), "{said}");
        assert!(said.contains("Connection refused") && is_passing(&error), "{said}");
    }
}
