//! The node's identity for the scheduler, and how the node verifies the scheduler: keys and certificates.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use aliquot_proto::agent::v1::agents_client::AgentsClient;
use aliquot_proto::agent::v1::{JoinRequest, JoinResponse, LEADER, RenewCertificateRequest};
use aliquot_proto::stream::v1::{CONNECTION_WINDOW_BYTES, STREAM_WINDOW_BYTES};
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use rcgen::{CertificateParams, DistinguishedName, DnType, KeyPair};
use serde::{Deserialize, Serialize};
use tokio::time::timeout;
use tonic::Code;
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint};
use tracing::info;

use crate::clock;
use crate::files;
use crate::settings::{Config, Source};

/// The beginning of a join token.
const TOKEN_PREFIX: &str = "alq1.";
/// How long a connection may take. After this there is still time to try another scheduler within the length of a
/// lease.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
const CALL_TIMEOUT: Duration = Duration::from_secs(20);
/// Time between two probes. A cut connection is noticed after one interval and one timeout.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(3);
const KEEPALIVE_TIMEOUT: Duration = Duration::from_secs(4);

/// The reason why there is no connection to the scheduler.
#[derive(Debug, thiserror::Error)]
pub(crate) enum LinkError {
    #[error("the join token cannot be used: {0}; copy the whole of it, or make another one with: aliquot token")]
    Token(&'static str),
    #[error("this node has not joined yet, and has no join token; make one with: aliquot token")]
    NoToken,
    #[error(
        "this node has joined a cluster other than that of the join token; to move it, let its jobs end and remove {}",
        .0.display()
    )]
    OtherCluster(PathBuf),
    #[error("the node's certificate has expired; join again with a new token, made with: aliquot token --replace")]
    Expired,
    #[error("the node's certificate is not valid yet: this machine's clock is {0} s behind the scheduler's")]
    ClockBehind(u64),
    #[error("the scheduler does not let this node join: {0}")]
    Refused(String),
    #[error("cannot use {}: {source}", path.display())]
    File { path: PathBuf, source: io::Error },
    #[error("cannot make a key: {0}")]
    Key(#[from] rcgen::Error),
    #[error("cannot understand the certificate: {0}")]
    Certificate(String),
    #[error("the scheduler {address} cannot be reached: {why}")]
    Unreachable { address: String, why: String },
    #[error("the scheduler has closed the connection: {0}")]
    Ended(String),
    #[error("the scheduler {address} stands by, and the leader is {leader}")]
    StandsBy { address: String, leader: String },
}

/// A key and its certificates, all in PEM.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Identity {
    key: String,
    certificate: String,
    authority: String,
}

/// The content of a join token.
#[derive(Debug, PartialEq, Eq, Deserialize)]
struct Token {
    secret: String,
    authority: String,
}

impl Token {
    fn parse(text: &str) -> Result<Token, LinkError> {
        let encoded = text.trim().strip_prefix(TOKEN_PREFIX).ok_or(LinkError::Token("it does not begin with alq1."))?;
        let decoded = URL_SAFE_NO_PAD.decode(encoded).map_err(|_| LinkError::Token("it is damaged"))?;
        serde_json::from_slice(&decoded).map_err(|_| LinkError::Token("it is damaged"))
    }
}

/// Whether a text has the form of a join token.
pub(crate) fn is_token(text: &str) -> bool {
    Token::parse(text).is_ok()
}

/// When a certificate is valid, in seconds since 1970.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Validity {
    from: i64,
    until: i64,
}

impl Validity {
    fn of(certificate: &str) -> Result<Validity, LinkError> {
        let wrong = |error: &dyn std::fmt::Display| LinkError::Certificate(error.to_string());
        let (_, pem) = x509_parser::pem::parse_x509_pem(certificate.as_bytes()).map_err(|error| wrong(&error))?;
        let parsed = pem.parse_x509().map_err(|error| wrong(&error))?;
        let validity = parsed.validity();
        Ok(Validity { from: validity.not_before.timestamp(), until: validity.not_after.timestamp() })
    }

    /// The time for a renewal, when a third of the certificate's life is left.
    fn renew_at(self) -> i64 {
        self.until - (self.until - self.from) / 3
    }
}

fn now_s() -> i64 {
    i64::try_from(clock::unix_ms() / 1000).unwrap_or(i64::MAX)
}

/// The identity to dial this scheduler with: the stored one, or a new one for the join token.
pub(crate) async fn obtain(config: &Config, scheduler: &str) -> Result<Identity, LinkError> {
    let token = match &config.source {
        Source::Own(certificate, key, authority) => {
            let identity = Identity { key: read(key)?, certificate: read(certificate)?, authority: read(authority)? };
            return identity.checked();
        }
        Source::Joined { token } => token.as_deref().map(Token::parse).transpose()?,
    };
    let path = joined_file(config);
    let file = |source| LinkError::File { path: path.clone(), source };
    let joined: Option<Identity> = files::read_json(&path).map_err(file)?;
    match (joined, token) {
        (None, None) => Err(LinkError::NoToken),
        (Some(joined), Some(token)) if joined.authority.trim() != token.authority.trim() => {
            Err(LinkError::OtherCluster(config.state_dir.clone()))
        }
        (Some(joined), token) => match (joined.checked(), token) {
            (Err(LinkError::Expired), Some(token)) => join(config, scheduler, &token).await,
            (checked, _) => checked,
        },
        (None, Some(token)) => join(config, scheduler, &token).await,
    }
}

fn joined_file(config: &Config) -> PathBuf {
    config.state_dir.join("identity.json")
}

fn read(path: &Path) -> Result<String, LinkError> {
    fs::read_to_string(path).map_err(|source| LinkError::File { path: path.to_owned(), source })
}

/// Makes a new key, and a request for its certificate.
fn request(config: &Config) -> Result<(KeyPair, String), LinkError> {
    let key = KeyPair::generate()?;
    let mut name = DistinguishedName::new();
    name.push(DnType::CommonName, config.node_name.as_str());
    let mut params = CertificateParams::default();
    params.distinguished_name = name;
    let request = params.serialize_request(&key)?.pem()?;
    Ok((key, request))
}

async fn join(config: &Config, scheduler: &str, token: &Token) -> Result<Identity, LinkError> {
    let (key, certificate_request) = request(config)?;
    let tls = ClientTlsConfig::new()
        .ca_certificate(Certificate::from_pem(&token.authority))
        .domain_name(&config.settings.server_name);
    let channel = connect(scheduler, tls).await?;
    let request = JoinRequest { secret: token.secret.clone(), node: config.node_name.clone(), certificate_request };
    let answer = AgentsClient::new(channel).join(with_timeout(request)).await;
    let answer = answer.map_err(|status| refused(scheduler, &status))?.into_inner();
    info!(scheduler, node = config.node_name, "joined the cluster");
    // The token may be used up now, so the certificate is kept even if the machine's clock is wrong at present.
    let identity = understood(&key, answer)?;
    keep(config, &identity)?;
    identity.checked()
}

/// Gets another certificate through `channel`, before the present one expires.
pub(crate) async fn renew(config: &Config, scheduler: &str, channel: Channel) -> Result<(), LinkError> {
    let (key, certificate_request) = request(config)?;
    let request = RenewCertificateRequest { certificate_request };
    let answer = AgentsClient::new(channel).renew_certificate(with_timeout(request)).await;
    let identity = understood(&key, answer.map_err(|status| refused(scheduler, &status))?.into_inner())?;
    // The present certificate is better than one that is not valid yet.
    keep(config, &identity.checked()?)?;
    info!("the node has a new certificate");
    Ok(())
}

fn with_timeout<T>(message: T) -> tonic::Request<T> {
    let mut request = tonic::Request::new(message);
    request.set_timeout(CALL_TIMEOUT);
    request
}

/// The identity in the scheduler's answer, with a certificate that can be understood.
fn understood(key: &KeyPair, answer: JoinResponse) -> Result<Identity, LinkError> {
    let JoinResponse { certificate, authority } = answer;
    Validity::of(&certificate)?;
    Ok(Identity { key: key.serialize_pem(), certificate, authority })
}

/// Stores an identity, all of it in one file, so that key and certificate always belong together.
fn keep(config: &Config, identity: &Identity) -> Result<(), LinkError> {
    let path = joined_file(config);
    files::write_json(&path, identity).map_err(|source| LinkError::File { path, source })
}

fn refused(scheduler: &str, status: &tonic::Status) -> LinkError {
    match status.code() {
        _ if status.metadata().contains_key(LEADER) => stands_by(scheduler, status),
        Code::Unauthenticated | Code::InvalidArgument | Code::AlreadyExists | Code::PermissionDenied => {
            LinkError::Refused(status.message().to_owned())
        }
        _ => unreachable(scheduler, status),
    }
}

/// Converts a status that names the leader into an error.
pub(crate) fn stands_by(scheduler: &str, status: &tonic::Status) -> LinkError {
    let leader = status.metadata().get(LEADER).and_then(|leader| leader.to_str().ok()).unwrap_or_default();
    LinkError::StandsBy { address: scheduler.to_owned(), leader: leader.to_owned() }
}

impl Identity {
    fn checked(self) -> Result<Identity, LinkError> {
        let Validity { from, until } = Validity::of(&self.certificate)?;
        let now = now_s();
        if until <= now {
            return Err(LinkError::Expired);
        }
        // A certificate that was just made is valid at once by the clock of the authority that made it.
        match u64::try_from(from - now) {
            Ok(behind @ 1..) => Err(LinkError::ClockBehind(behind)),
            _ => Ok(self),
        }
    }

    /// How long to wait until the certificate should be renewed.
    pub(crate) fn renew_in(&self) -> Duration {
        let renew_at = Validity::of(&self.certificate).map_or(i64::MAX, Validity::renew_at);
        Duration::from_secs(u64::try_from(renew_at - now_s()).unwrap_or(0))
    }

    /// A connection to a scheduler.
    pub(crate) async fn connect(&self, config: &Config, scheduler: &str) -> Result<Channel, LinkError> {
        connect(scheduler, self.tls(config)).await
    }

    /// Another connection, which is made when it is used.
    pub(crate) fn connect_when_used(&self, config: &Config, scheduler: &str) -> Result<Channel, LinkError> {
        Ok(endpoint(scheduler, self.tls(config))?.connect_lazy())
    }

    fn tls(&self, config: &Config) -> ClientTlsConfig {
        ClientTlsConfig::new()
            .ca_certificate(Certificate::from_pem(&self.authority))
            .identity(tonic::transport::Identity::from_pem(&self.certificate, &self.key))
            .domain_name(&config.settings.server_name)
    }
}

fn endpoint(scheduler: &str, tls: ClientTlsConfig) -> Result<Endpoint, LinkError> {
    let endpoint = Endpoint::from_shared(format!("https://{scheduler}"))
        .and_then(|endpoint| endpoint.tls_config(tls))
        .map_err(|error| unreachable(scheduler, &error))?;
    Ok(endpoint
        .connect_timeout(CONNECT_TIMEOUT)
        .tcp_nodelay(true)
        .initial_stream_window_size(STREAM_WINDOW_BYTES)
        .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
        .http2_keep_alive_interval(KEEPALIVE_INTERVAL)
        .keep_alive_timeout(KEEPALIVE_TIMEOUT)
        .keep_alive_while_idle(true))
}

async fn connect(scheduler: &str, tls: ClientTlsConfig) -> Result<Channel, LinkError> {
    let endpoint = endpoint(scheduler, tls)?;
    // The endpoint's own limit is for TCP alone. A scheduler that is frozen accepts the connection, and sends nothing.
    match timeout(CONNECT_TIMEOUT, endpoint.connect()).await {
        Ok(connected) => connected.map_err(|error| unreachable(scheduler, &error)),
        Err(_) => {
            let why = format!("it has not answered within {} s", CONNECT_TIMEOUT.as_secs());
            Err(LinkError::Unreachable { address: scheduler.to_owned(), why })
        }
    }
}

/// Converts an error of the transport into one that names its cause and says what to do.
pub(crate) fn unreachable(scheduler: &str, error: &dyn std::error::Error) -> LinkError {
    let causes = std::iter::successors(error.source(), |cause| cause.source());
    let mut why = error.to_string();
    for cause in causes.map(ToString::to_string).filter(|cause| !cause.is_empty()) {
        if !why.contains(&cause) {
            why = format!("{why}: {cause}");
        }
    }
    let hints = [
        ("NotValidYet", "its certificate is not valid yet by this machine's clock; compare the clocks"),
        ("not valid yet", "its certificate is not valid yet by this machine's clock; compare the clocks"),
        ("CertificateExpired", "the scheduler does not accept the node's certificate, which has expired by its clock"),
        ("certificate expired", "a certificate has expired; compare the clocks, or join again with a new token"),
        ("UnknownIssuer", "it is not the scheduler of the cluster that this node has joined, or its authority is new"),
        ("NotValidForName", "its certificate is for another name than cluster.server_name"),
        ("onnection refused", "nothing listens there; does aliquot-scheduler run, and is the port right?"),
    ];
    if let Some((_, hint)) = hints.iter().find(|(word, _)| why.contains(word)) {
        why = format!("{hint} ({why})");
    }
    LinkError::Unreachable { address: scheduler.to_owned(), why }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_read_and_a_damaged_one_refused() {
        let text = format!("alq1.{}", URL_SAFE_NO_PAD.encode(r#"{"secret":"s","authority":"PEM"}"#));
        assert_eq!(Token::parse(&format!(" {text}\n")).unwrap(), Token { secret: "s".into(), authority: "PEM".into() });
        for damaged in ["", "s", "alq1.", "alq1.!", &text[..text.len() - 4]] {
            assert!(Token::parse(damaged).unwrap_err().to_string().contains("aliquot token"), "{damaged}");
        }
    }

    #[tokio::test]
    async fn a_scheduler_that_says_nothing_is_given_up() {
        // The kernel accepts the connection, as it does for a process that is frozen.
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let tls = ClientTlsConfig::new().domain_name("scheduler");
        let given_up = connect(&address, tls).await.unwrap_err().to_string();
        assert!(given_up.contains(&address) && given_up.contains("has not answered"), "{given_up}");
    }

    fn identity(from_s: i64, until_s: i64) -> Identity {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::default();
        let at = |second: i64| rcgen::date_time_ymd(1970, 1, 1) + Duration::from_secs(second.cast_unsigned());
        (params.not_before, params.not_after) = (at(from_s), at(until_s));
        let certificate = params.self_signed(&key).unwrap().pem();
        Identity { key: key.serialize_pem(), authority: certificate.clone(), certificate }
    }

    #[test]
    fn a_certificate_is_renewed_when_a_third_of_its_life_is_left() {
        let now = now_s();
        let fresh = identity(now - 1_000, now + 29_000).checked().ok().unwrap();
        assert!((18_990..=19_000).contains(&fresh.renew_in().as_secs()), "{:?}", fresh.renew_in());
        let old = identity(now - 29_000, now + 1_000).checked().ok().unwrap();
        assert_eq!(old.renew_in(), Duration::ZERO);
    }

    #[test]
    fn an_expired_certificate_and_a_wrong_clock_are_told_apart() {
        let now = now_s();
        assert!(matches!(identity(now - 100, now - 50).checked(), Err(LinkError::Expired)));
        assert!(matches!(identity(now + 500, now + 900).checked(), Err(LinkError::ClockBehind(490..))));
    }
}
