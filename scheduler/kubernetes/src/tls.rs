//! TLS for the clients of the scheduler. The certificate is looked up for each connection, so a renewed one is used
//! without a restart.

use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use aliquot_telemetry::{Crowd, Stay};
use axum::serve::Listener;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{ConfigBuilder, RootCertStore, ServerConfig, WantsVerifier};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;
use tracing::{debug, warn};

/// A client begins to speak within that time.
const HANDSHAKE_WITHIN: Duration = Duration::from_secs(10);
/// Connections that are being made at the same time, at most. All managers of a cluster may come at once.
const HANDSHAKES_MAX: usize = 1024;
/// The pause after a connection could not be taken, as when there are too many files.
const PAUSE: Duration = Duration::from_secs(1);

/// The files, in PEM, by which the extender proves its identity.
#[derive(Clone, Debug)]
pub struct TlsFiles {
    /// Its certificate, and those between it and its authority.
    pub certificate: PathBuf,
    /// The key of the certificate.
    pub key: PathBuf,
    /// The authority of clients' certificates; `None`: any client that reaches the address may ask.
    pub client_authority: Option<PathBuf>,
}

impl TlsFiles {
    fn load(&self) -> Result<Arc<ServerConfig>, String> {
        let wrong = |file: &Path, error: &dyn std::fmt::Display| format!("{} cannot be used: {error}", file.display());
        let certificates = certificates(&self.certificate)?;
        let key = PrivateKeyDer::from_pem_file(&self.key).map_err(|error| wrong(&self.key, &error))?;
        let builder = builder()?;
        let builder = match &self.client_authority {
            None => builder.with_no_client_auth(),
            Some(file) => {
                let mut roots = RootCertStore::empty();
                for certificate in self::certificates(file)? {
                    roots.add(certificate).map_err(|error| wrong(file, &error))?;
                }
                let provider = Arc::clone(builder.crypto_provider());
                let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider);
                builder.with_client_cert_verifier(verifier.build().map_err(|error| wrong(file, &error))?)
            }
        };
        let config = builder.with_single_cert(certificates, key).map_err(|error| wrong(&self.certificate, &error))?;
        Ok(for_http(config))
    }
}

/// Servers are configured from this.
pub(crate) fn builder() -> Result<ConfigBuilder<ServerConfig, WantsVerifier>, String> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    builder.map_err(|error| error.to_string())
}

/// The configuration of a server of HTTP.
pub(crate) fn for_http(mut config: ServerConfig) -> Arc<ServerConfig> {
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Arc::new(config)
}

/// The configuration of a server of gRPC.
pub(crate) fn for_grpc(mut config: ServerConfig) -> Arc<ServerConfig> {
    config.alpn_protocols = vec![b"h2".to_vec()];
    Arc::new(config)
}

fn certificates(file: &Path) -> Result<Vec<CertificateDer<'static>>, String> {
    let wrong = |error: &dyn std::fmt::Display| format!("{} cannot be used: {error}", file.display());
    let certificates = CertificateDer::pem_file_iter(file).map_err(|error| wrong(&error))?;
    let certificates = certificates.collect::<Result<Vec<_>, _>>().map_err(|error| wrong(&error))?;
    match certificates.is_empty() {
        true => Err(wrong(&"it has no certificate in PEM")),
        false => Ok(certificates),
    }
}

/// A certificate from files, which are read for each connection.
pub(crate) struct FromFiles {
    files: TlsFiles,
    /// What was read last and can be used.
    config: Arc<ServerConfig>,
}

impl FromFiles {
    /// # Errors
    /// What is wrong with the files.
    pub(crate) fn new(files: TlsFiles) -> Result<FromFiles, String> {
        Ok(FromFiles { config: files.load()?, files })
    }

    pub(crate) fn config(&mut self) -> Arc<ServerConfig> {
        match self.files.load() {
            Ok(config) => self.config = config,
            Err(error) => warn!(error, "the certificate that was read before is used"),
        }
        Arc::clone(&self.config)
    }
}

type Connection = (TlsStream<TcpStream>, SocketAddr);

/// Hands out connections whose handshakes are done. Slow handshakes do not hold up other connections.
pub(crate) struct TlsListener {
    tcp: TcpListener,
    /// What the next connection is made with.
    config: Box<dyn FnMut() -> Arc<ServerConfig> + Send>,
    handshakes: JoinSet<Option<Connection>>,
    begun: Crowd,
}

impl TlsListener {
    pub(crate) fn new(tcp: TcpListener, config: impl FnMut() -> Arc<ServerConfig> + Send + 'static) -> TlsListener {
        TlsListener { tcp, config: Box::new(config), handshakes: JoinSet::new(), begun: Crowd::new(HANDSHAKES_MAX) }
    }
}

impl Listener for TlsListener {
    type Io = TlsStream<TcpStream>;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> Connection {
        loop {
            tokio::select! {
                biased;
                Some(done) = self.handshakes.join_next() => {
                    if let Ok(Some(connection)) = done {
                        return connection;
                    }
                }
                accepted = self.tcp.accept() => match accepted {
                    Ok((stream, from)) => {
                        let acceptor = TlsAcceptor::from((self.config)());
                        let stay = self.begun.admit(from.ip());
                        self.handshakes.spawn(handshake(acceptor, stream, from, stay));
                    }
                    Err(error) => {
                        warn!(%error, "a connection could not be taken");
                        sleep(PAUSE).await;
                    }
                }
            }
        }
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.tcp.local_addr()
    }
}

async fn handshake(acceptor: TlsAcceptor, stream: TcpStream, from: SocketAddr, stay: Stay) -> Option<Connection> {
    let made = tokio::select! {
        made = timeout(HANDSHAKE_WITHIN, acceptor.accept(stream)) => made,
        () = stay => return None,
    };
    match made {
        Ok(Ok(stream)) => Some((stream, from)),
        Ok(Err(error)) => {
            debug!(%from, %error, "no TLS connection was made");
            None
        }
        Err(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use rcgen::{CertificateParams, KeyPair};
    use rustls::ClientConfig;
    use tokio::net::TcpSocket;
    use tokio_rustls::TlsConnector;

    use super::*;

    #[tokio::test]
    async fn idle_clients_keep_no_other_client_away() {
        let key = KeyPair::generate().unwrap();
        let certificate = CertificateParams::new(vec!["replica".into()]).unwrap().self_signed(&key).unwrap();
        let mut roots = RootCertStore::empty();
        roots.add(certificate.der().clone()).unwrap();
        let private = PrivateKeyDer::try_from(key.serialize_der()).unwrap();
        let config = builder().unwrap().with_no_client_auth();
        let config = for_http(config.with_single_cert(vec![certificate.der().clone()], private).unwrap());
        let tcp = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = tcp.local_addr().unwrap();
        let mut listener = TlsListener::new(tcp, move || Arc::clone(&config));
        listener.begun = Crowd::new(4);
        let accepted = tokio::spawn(async move { listener.accept().await.1 });
        let mut idle = Vec::new();
        for _ in 0..8 {
            idle.push(TcpStream::connect(address).await.unwrap());
        }
        // A client elsewhere is not the one that ends.
        let elsewhere = TcpSocket::new_v4().unwrap();
        elsewhere.bind(([127, 0, 0, 2], 0).into()).unwrap();
        let elsewhere = elsewhere.connect(address).await.unwrap();
        let at = elsewhere.local_addr().unwrap();
        for _ in 0..8 {
            idle.push(TcpStream::connect(address).await.unwrap());
        }
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let client = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
        let client = Arc::new(client.with_root_certificates(roots).with_no_client_auth());
        let made = TlsConnector::from(client).connect("replica".try_into().unwrap(), elsewhere);
        let made = timeout(HANDSHAKE_WITHIN / 2, made).await;
        assert!(made.is_ok_and(|made| made.is_ok()), "a connection is made at once");
        assert_eq!(accepted.await.unwrap(), at);
    }
}
