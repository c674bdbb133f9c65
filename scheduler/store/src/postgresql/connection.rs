//! Connections to the server.

use std::error::Error as _;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use postgres::config::{Host, SslMode, TargetSessionAttrs};
use postgres::error::SqlState;
use postgres::{Client, Config, NoTls};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use rustls::{ClientConfig, RootCertStore};
use tokio_postgres_rustls::MakeRustlsConnect;

use super::schema;
use crate::error::StoreError;

/// The shortest lease. A shorter one could not be renewed in time through a busy server.
const LEASE_MIN: Duration = Duration::from_secs(1);

/// How to reach a PostgreSQL database.
#[derive(Clone, PartialEq, Eq, Default)]
pub struct PostgresqlConfig {
    /// The address of the database, `postgresql://USER@HOST/DATABASE` as for `psql`.
    pub url: String,
    /// The user's password, if it is not in the URL.
    pub password: Option<String>,
    /// The authority that signs the server's certificate, as PEM. If it is set, the connection uses TLS and checks the
    /// server.
    pub authority_pem: Option<String>,
    /// If the leader does not renew its lease for this time, another scheduler takes over.
    pub lease: Duration,
}

impl fmt::Debug for PostgresqlConfig {
    /// Leaves out all secrets.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PostgresqlConfig").field("lease", &self.lease).finish_non_exhaustive()
    }
}

/// A configuration whose values were checked.
pub(super) struct Address {
    config: Config,
    tls: Option<MakeRustlsConnect>,
    lease: Duration,
    /// The server and the database, for messages.
    place: String,
}

impl Address {
    pub(super) fn of(settings: &PostgresqlConfig) -> Result<Self, StoreError> {
        let PostgresqlConfig { url, password, authority_pem, lease } = settings;
        let unusable = |what: String| StoreError::Unusable { place: "the PostgreSQL database".to_owned(), what };
        let is_url = url.starts_with("postgresql://") || url.starts_with("postgres://");
        let parsed =
            if is_url { url.parse::<Config>().map_err(|error| with_causes(&error)) } else { Err(String::new()) };
        let mut config = parsed.map_err(|why| {
            unusable(format!("its URL cannot be used ({why}); write postgresql://USER@HOST:PORT/DATABASE"))
        })?;
        if config.get_hosts().is_empty() {
            return Err(unusable("its URL names no host; write postgresql://USER@HOST:PORT/DATABASE".to_owned()));
        }
        if let Some(password) = password {
            config.password(password);
        }
        let place = place(&config);
        let unusable = |what: String| StoreError::Unusable { place: place.clone(), what };
        if *lease < LEASE_MIN {
            return Err(unusable(format!("the leader's lease of {lease:?} is shorter than {LEASE_MIN:?}")));
        }
        let tls = authority_pem.as_deref().map(tls).transpose().map_err(unusable)?;
        match &tls {
            Some(_) => _ = config.ssl_mode(SslMode::Require),
            None if config.get_ssl_mode() == SslMode::Disable || config.get_hosts().iter().all(is_near) => {
                config.ssl_mode(SslMode::Disable);
            }
            None => {
                return Err(unusable(
                    "it is on another machine, and the authority of the server's certificate is missing; name a file with \
                     that authority, or add ?sslmode=disable to the URL if the network between is safe"
                        .to_owned(),
                ));
            }
        }
        let part = *lease / 4;
        config.connect_timeout(part).tcp_user_timeout(part);
        config.keepalives_idle(part).keepalives_interval(part).keepalives_retries(1);
        config.target_session_attrs(TargetSessionAttrs::ReadWrite).application_name("aliquot-scheduler");
        Ok(Self { config, tls, lease: *lease, place })
    }

    /// The length of the lease by the server's clock.
    pub(super) fn lease(&self) -> Duration {
        self.lease
    }

    /// How long a leader may rely on its lease by its own clock, which may be slower than the server's.
    pub(super) fn lease_of_leader(&self) -> Duration {
        self.lease * 9 / 10
    }

    /// Opens a connection. A transaction that it leaves unfinished ends before the lease does, so that it does not keep
    /// another scheduler from taking over.
    pub(super) fn connect(&self) -> Result<Client, StoreError> {
        let connected = match &self.tls {
            Some(tls) => self.config.connect(tls.clone()),
            None => self.config.connect(NoTls),
        };
        let mut client = connected.map_err(|error| self.error(&error))?;
        schema::begin_session(&mut client, self.lease / 2).map_err(|error| self.error(&error))?;
        Ok(client)
    }

    /// The meaning of an error of the server or of the connection.
    pub(super) fn error(&self, error: &postgres::Error) -> StoreError {
        let (place, what) = (self.place.clone(), with_causes(error));
        let Some(code) = error.code() else {
            // The connection is broken, or could not be made.
            return StoreError::Unreachable { place, what };
        };
        let passing = [
            SqlState::ADMIN_SHUTDOWN,
            SqlState::CRASH_SHUTDOWN,
            SqlState::CANNOT_CONNECT_NOW,
            SqlState::TOO_MANY_CONNECTIONS,
            SqlState::READ_ONLY_SQL_TRANSACTION,
            SqlState::QUERY_CANCELED,
            SqlState::LOCK_NOT_AVAILABLE,
            SqlState::T_R_DEADLOCK_DETECTED,
            SqlState::T_R_SERIALIZATION_FAILURE,
            SqlState::IDLE_IN_TRANSACTION_SESSION_TIMEOUT,
        ];
        if passing.contains(code) || code.code().starts_with("08") {
            return StoreError::Unreachable { place, what };
        }
        StoreError::Postgresql { place, what }
    }

    pub(super) fn unusable(&self, what: &str) -> StoreError {
        StoreError::Unusable { place: self.place.clone(), what: what.to_owned() }
    }

    pub(super) fn lease_lost(&self) -> StoreError {
        StoreError::LeaseLost { place: self.place.clone() }
    }

    pub(super) fn place(&self) -> &str {
        &self.place
    }
}

/// Whether the server is on this machine.
fn is_near(host: &Host) -> bool {
    match host {
        Host::Tcp(name) => name == "localhost" || name.parse().is_ok_and(|ip: std::net::IpAddr| ip.is_loopback()),
        Host::Unix(_) => true,
    }
}

fn place(config: &Config) -> String {
    let host = |host: &Host| match host {
        Host::Tcp(name) => name.clone(),
        Host::Unix(path) => path.display().to_string(),
    };
    let hosts: Vec<String> = config.get_hosts().iter().map(host).collect();
    format!("the PostgreSQL database {:?} on {}", config.get_dbname().unwrap_or_default(), hosts.join(", "))
}

fn tls(authority_pem: &str) -> Result<MakeRustlsConnect, String> {
    let wrong = |error: &dyn fmt::Display| format!("the authority of its server's certificate cannot be used: {error}");
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(authority_pem.as_bytes()) {
        roots.add(certificate.map_err(|error| wrong(&error))?).map_err(|error| wrong(&error))?;
    }
    if roots.is_empty() {
        return Err(wrong(&"the file has no certificate in PEM"));
    }
    let config = ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(|error| wrong(&error))?;
    Ok(MakeRustlsConnect::new(config.with_root_certificates(roots).with_no_client_auth()))
}

/// The message of an error with those of its causes, each only once.
fn with_causes(error: &postgres::Error) -> String {
    let (mut told, mut next) = (error.to_string(), error.source());
    while let Some(cause) = next {
        let text = cause.to_string();
        if !told.contains(&text) {
            told = format!("{told}: {text}");
        }
        next = cause.source();
    }
    told
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(url: &str) -> PostgresqlConfig {
        PostgresqlConfig { url: url.to_owned(), lease: Duration::from_secs(10), ..PostgresqlConfig::default() }
    }

    fn refused(settings: &PostgresqlConfig) -> String {
        Address::of(settings).err().map(|error| error.to_string()).unwrap_or_default()
    }

    #[test]
    fn what_cannot_work_is_refused_with_a_remedy() {
        for (url, word) in [
            ("", "postgresql://USER"),
            ("mysql://a@b/c", "postgresql://USER"),
            ("postgresql://a@b:x/c", "postgresql://USER"),
            ("postgresql:///c", "names no host"),
            ("postgresql://a:secret@db.example/c", "sslmode=disable"),
        ] {
            let refused = refused(&settings(url));
            assert!(refused.contains(word) && !refused.contains("secret"), "{url}: {refused}");
        }
        let short = PostgresqlConfig { lease: Duration::from_millis(10), ..settings("postgresql://a@localhost/c") };
        assert!(refused(&short).contains("10ms"), "{}", refused(&short));
        let no_authority = PostgresqlConfig { authority_pem: Some("x".into()), ..settings("postgresql://a@db/c") };
        assert!(refused(&no_authority).contains("no certificate"), "{}", refused(&no_authority));
    }

    #[test]
    fn a_server_of_this_machine_needs_no_certificate() {
        for url in ["postgresql://a@localhost/c", "postgresql://a@127.0.0.1/c", "postgresql://a@%2Frun%2Fpg/c"] {
            assert_eq!(refused(&settings(url)), "", "{url}");
        }
        assert_eq!(refused(&settings("postgresql://a@db.example/c?sslmode=disable")), "");
    }

    #[test]
    fn messages_name_the_place_and_no_password() {
        let settings = settings("postgresql://a:secret@%2Frun%2Fpg/c");
        let address = Address::of(&settings).unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(address.place(), "the PostgreSQL database \"c\" on /run/pg");
        assert!(!format!("{settings:?}").contains("secret"));
    }
}
