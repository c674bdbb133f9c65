//! The manager's certificate for reports. It is made anew whenever the manager starts, and is never written to a disk.

use std::net::SocketAddr;
use std::time::Duration;

use aliquot_proto::reports::v1::JoinRequest;
use aliquot_proto::reports::v1::reports_client::ReportsClient;
use rcgen::{CertificateParams, DistinguishedName, DnType, KeyPair};
use tokio::time::{Instant, timeout};
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint};
use tracing::debug;

use super::{ReportError, Settings};

/// Time limit for a connection. After that another replica is tried.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Time limit for an answer.
pub(super) const CALL_TIMEOUT: Duration = Duration::from_secs(20);
/// Time between two probes. A cut connection is noticed after one interval and one timeout.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(5);
const KEEPALIVE_TIMEOUT: Duration = Duration::from_secs(5);
/// How long a certificate is used, of the hour for which it is valid. The rest allows for clocks that differ.
const USED_FOR: Duration = Duration::from_secs(40 * 60);

/// The file with the token of the manager's service account, which kubelet renews.
const TOKEN: &str = "token";
/// The file with the authorities of the scheduler's certificate.
const AUTHORITY: &str = "ca.crt";

/// A key, and the certificate that the scheduler has signed for it, in PEM.
pub(super) struct Identity {
    key: String,
    certificate: String,
    joined: Instant,
}

impl Identity {
    /// Gets a new certificate from the replica at this address.
    pub(super) async fn join(settings: &Settings, address: SocketAddr) -> Result<Identity, ReportError> {
        let token = read(settings, TOKEN).await?.trim().to_owned();
        let key = KeyPair::generate()?;
        let mut name = DistinguishedName::new();
        name.push(DnType::CommonName, settings.node_name.as_str());
        let mut params = CertificateParams::default();
        params.distinguished_name = name;
        let certificate_request = params.serialize_request(&key)?.pem()?;
        let joined = Instant::now();
        let channel = connect(settings, address, ClientTlsConfig::new()).await?;
        let mut request =
            tonic::Request::new(JoinRequest { token, node: settings.node_name.clone(), certificate_request });
        request.set_timeout(CALL_TIMEOUT);
        let answer = ReportsClient::new(channel).join(request).await;
        let answer = answer.map_err(|status| ReportError::Refused { address, status: Box::new(status) })?;
        debug!(%address, "the manager has a certificate for reports");
        Ok(Identity { key: key.serialize_pem(), certificate: answer.into_inner().certificate, joined })
    }

    /// How much longer the certificate is used.
    pub(super) fn due_in(&self) -> Duration {
        (self.joined + USED_FOR).saturating_duration_since(Instant::now())
    }

    pub(super) fn is_due(&self) -> bool {
        self.due_in().is_zero()
    }

    /// A connection that proves to the scheduler which node this is.
    pub(super) async fn connect(&self, settings: &Settings, address: SocketAddr) -> Result<Channel, ReportError> {
        let own = tonic::transport::Identity::from_pem(&self.certificate, &self.key);
        connect(settings, address, ClientTlsConfig::new().identity(own)).await
    }
}

async fn read(settings: &Settings, file: &str) -> Result<String, ReportError> {
    let path = settings.dir.join(file);
    tokio::fs::read_to_string(&path).await.map_err(|source| ReportError::File { path, source })
}

async fn connect(settings: &Settings, address: SocketAddr, tls: ClientTlsConfig) -> Result<Channel, ReportError> {
    let authority = read(settings, AUTHORITY).await?;
    let tls = tls.ca_certificate(Certificate::from_pem(authority)).domain_name(&settings.server_name);
    let unreached = |error: tonic::transport::Error| ReportError::Unreached { address, why: with_causes(&error) };
    let endpoint = Endpoint::from_shared(format!("https://{address}")).and_then(|endpoint| endpoint.tls_config(tls));
    let endpoint = endpoint
        .map_err(unreached)?
        .connect_timeout(CONNECT_TIMEOUT)
        .tcp_nodelay(true)
        .http2_keep_alive_interval(KEEPALIVE_INTERVAL)
        .keep_alive_timeout(KEEPALIVE_TIMEOUT);
    // The endpoint's own limit is for TCP alone. A replica that is frozen accepts the connection, and sends nothing.
    match timeout(CONNECT_TIMEOUT, endpoint.connect()).await {
        Ok(connected) => connected.map_err(unreached),
        Err(_) => {
            let why = format!("it has not answered within {} s", CONNECT_TIMEOUT.as_secs());
            Err(ReportError::Unreached { address, why })
        }
    }
}

/// An error of the transport with its causes, which its own text leaves out.
fn with_causes(error: &tonic::transport::Error) -> String {
    let causes = std::iter::successors(std::error::Error::source(error), |cause| cause.source());
    let texts: Vec<String> = causes.map(ToString::to_string).filter(|cause| !cause.is_empty()).collect();
    if texts.is_empty() { error.to_string() } else { texts.join(": ") }
}
