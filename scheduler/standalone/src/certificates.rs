//! Certificates: the scheduler's own authority, and the identity in a certificate.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use aliquot_scheduler_store::{Change, Database};
use rcgen::{
    BasicConstraints, CertificateParams, CertificateSigningRequestParams, DistinguishedName, DnType,
    ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose, SerialNumber,
};
use x509_parser::prelude::{FromDer, X509Certificate};

use crate::config::Tls;
use crate::serve::ServeError;

/// The name in the scheduler's certificate that nodes expect, whatever address it listens on.
pub const SERVER_NAME: &str = "scheduler.aliquot.internal";
/// The organisation in the certificate of a node.
const NODES: &str = "aliquot:nodes";
/// The organisation in the certificate of a user of another machine.
const USERS: &str = "aliquot:users";
/// The organisation in the certificate of a scheduler.
const SCHEDULER: &str = "aliquot:scheduler";
/// The kind of records in which the schedulers of one database share their authority, and the keys of these records.
pub(crate) const AUTHORITY: &str = "authority";
const CERTIFICATE: &str = "certificate";
const KEY: &str = "key";
const DAY_S: u64 = 24 * 3600;
const AUTHORITY_LIFE: Duration = Duration::from_secs(3650 * DAY_S);
/// How long a user's certificate is valid by default, and at most.
pub(crate) const USER_LIFE: Duration = Duration::from_secs(90 * DAY_S);
pub(crate) const USER_LIFE_MAX: Duration = AUTHORITY_LIFE;
/// How long a node's certificate is valid. Nodes ask for a new one when a third of this time is left.
const NODE_LIFE: Duration = Duration::from_secs(90 * DAY_S);
/// Certificates are valid from this long before now, because clocks may differ.
const CLOCK_SKEW: Duration = Duration::from_secs(3600);

/// Why a certificate cannot be made or read.
#[derive(Debug, thiserror::Error)]
pub enum CertificateError {
    /// A file cannot be read or written.
    #[error("{}: {error}", path.display())]
    File {
        /// The path of the file.
        path: PathBuf,
        /// The error of the operating system.
        error: io::Error,
    },
    /// A file or record is not a certificate or key.
    #[error("{what} cannot be used: {why}")]
    Unusable {
        /// The certificate or key.
        what: String,
        /// Why it cannot be used.
        why: String,
    },
}

fn unusable(what: impl Into<String>) -> impl FnOnce(rcgen::Error) -> CertificateError {
    let what = what.into();
    move |error| CertificateError::Unusable { what, why: error.to_string() }
}

/// The certificate and the key with which the scheduler serves nodes, and the authority that it trusts.
#[derive(Clone)]
pub(crate) struct Identity {
    pub(crate) certificate_pem: String,
    pub(crate) key_pem: String,
    pub(crate) authority_pem: String,
}

/// The identity of a scheduler: from given certificates, or from its own authority.
pub(crate) fn identity(tls: Option<&Tls>, authority: Option<&Authority>) -> Result<Identity, CertificateError> {
    match (tls, authority) {
        (Some(tls), _) => Ok(Identity {
            certificate_pem: read(&tls.certificate)?,
            key_pem: read(&tls.key)?,
            authority_pem: read(&tls.authority)?,
        }),
        (None, Some(authority)) => authority.server(),
        (None, None) => {
            let (what, why) = ("the scheduler's certificate".to_owned(), "there is no authority to sign it".to_owned());
            Err(CertificateError::Unusable { what, why })
        }
    }
}

/// Signs certificates for schedulers, nodes and users.
pub(crate) struct Authority {
    issuer: Issuer<'static, KeyPair>,
    pub(crate) pem: String,
}

impl std::fmt::Debug for Identity {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Identity").finish_non_exhaustive()
    }
}

impl std::fmt::Debug for Authority {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Authority").finish_non_exhaustive()
    }
}

/// A certificate that was made for a node or a user.
#[derive(Debug)]
pub(crate) struct Issued {
    pub(crate) pem: String,
    /// The serial number, which is unique among all certificates of this authority.
    pub(crate) serial: String,
    /// When the certificate ends, in milliseconds since 1970.
    pub(crate) expires_ms: u64,
}

impl Authority {
    /// Opens the authority in this directory, and makes one if there is none.
    pub(crate) fn open(dir: &Path) -> Result<Self, CertificateError> {
        let (certificate, key) = (dir.join("authority.crt"), dir.join("authority.key"));
        if !certificate.exists() {
            let (pem, key_pem) = new_authority().map_err(unusable("the new authority"))?;
            // The certificate is written last: where it exists, the key exists too.
            write_secret(&key, &key_pem)?;
            write_secret(&certificate, &pem)?;
        }
        let (pem, key_pem) = (read(&certificate)?, read(&key)?);
        Self::of(pem, &key_pem, [certificate.display().to_string(), key.display().to_string()])
    }

    /// The authority that the schedulers of a database share. The leader makes one if there is none.
    pub(crate) fn shared(database: &Database) -> Result<Self, ServeError> {
        if let Some(authority) = Self::of_records(database.records(AUTHORITY)?)? {
            return Ok(authority);
        }
        let (pem, key_pem) = new_authority().map_err(unusable("the new authority"))?;
        let record = |key: &str, value: &str| Change {
            kind: AUTHORITY,
            key: key.to_owned(),
            value: serde_json::to_string(value).ok(),
        };
        database.save(&[record(CERTIFICATE, &pem), record(KEY, &key_pem)])?;
        Ok(Self::of(pem, &key_pem, ["the new authority".to_owned(), "its key".to_owned()])?)
    }

    /// The authority in these records; `None`: there are none.
    pub(crate) fn of_records(records: Vec<(String, String)>) -> Result<Option<Self>, CertificateError> {
        let names = ["the authority in the database".to_owned(), "its key".to_owned()];
        let mut texts = BTreeMap::new();
        for (key, value) in records {
            let text: String = serde_json::from_str(&value)
                .map_err(|error| CertificateError::Unusable { what: names[0].clone(), why: error.to_string() })?;
            texts.insert(key, text);
        }
        let (Some(pem), Some(key_pem)) = (texts.remove(CERTIFICATE), texts.remove(KEY)) else { return Ok(None) };
        Self::of(pem, &key_pem, names).map(Some)
    }

    /// The authority with this certificate and key. The names are for messages.
    fn of(pem: String, key_pem: &str, [certificate, key]: [String; 2]) -> Result<Self, CertificateError> {
        let key = KeyPair::from_pem(key_pem).map_err(unusable(key))?;
        let issuer = Issuer::from_ca_cert_pem(&pem, key).map_err(unusable(certificate))?;
        Ok(Self { issuer, pem })
    }

    /// A certificate for the scheduler itself. It is made anew at each start, so it need not be renewed. Its validity
    /// begins long before: a machine's clock may be ahead at the start, and be set back while the scheduler runs.
    pub(crate) fn server(&self) -> Result<Identity, CertificateError> {
        let failed = || unusable("the scheduler's certificate");
        let key = KeyPair::generate().map_err(failed())?;
        let mut params = params("aliquot scheduler", SCHEDULER, AUTHORITY_LIFE).map_err(failed())?;
        begin_long_ago(&mut params);
        params.subject_alt_names = vec![rcgen::SanType::DnsName(SERVER_NAME.try_into().map_err(failed())?)];
        // A standby scheduler calls the leader on behalf of its users.
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        let certificate = params.signed_by(&key, &self.issuer).map_err(failed())?;
        let (certificate_pem, key_pem) = (certificate.pem(), key.serialize_pem());
        Ok(Identity { certificate_pem, key_pem, authority_pem: self.pem.clone() })
    }

    /// A certificate for a node. Only the public key of the request is used.
    pub(crate) fn node(&self, name: &str, request_pem: &str) -> Result<Issued, CertificateError> {
        self.client(name, NODES, NODE_LIFE, request_pem)
    }

    /// A certificate for a user of another machine. Only the public key of the request is used.
    pub(crate) fn user(&self, name: &str, request_pem: &str, life: Duration) -> Result<Issued, CertificateError> {
        self.client(name, USERS, life, request_pem)
    }

    fn client(
        &self,
        name: &str,
        organisation: &str,
        life: Duration,
        request_pem: &str,
    ) -> Result<Issued, CertificateError> {
        let request = CertificateSigningRequestParams::from_pem(request_pem)
            .map_err(unusable(format!("the request for the certificate of {name}")))?;
        let failed = || unusable(format!("the certificate of {name}"));
        let mut params = params(name, organisation, life).map_err(failed())?;
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        let serial = params.serial_number.as_ref().map(|serial| hex(serial.as_ref())).unwrap_or_default();
        let expires_ms = unix_ms(params.not_after.unix_timestamp());
        let certificate = params.signed_by(&request.public_key, &self.issuer).map_err(failed())?;
        Ok(Issued { pem: certificate.pem(), serial, expires_ms })
    }
}

/// The owner of a caller's certificate.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Subject {
    pub(crate) name: String,
    pub(crate) serial: String,
    /// When the certificate ends, in milliseconds since 1970.
    pub(crate) expires_ms: u64,
}

/// The node that owns this certificate; `None`: it does not belong to a node. TLS has checked that it is valid.
pub(crate) fn node_of(der: &[u8]) -> Option<Subject> {
    subject_of(der, NODES)
}

/// The user that owns this certificate; `None`: it does not belong to a user. TLS has checked that it is valid.
pub(crate) fn user_of(der: &[u8]) -> Option<Subject> {
    subject_of(der, USERS)
}

/// Whether this certificate belongs to a scheduler. TLS has checked that it is valid.
pub(crate) fn is_scheduler(der: &[u8]) -> bool {
    subject_of(der, SCHEDULER).is_some()
}

/// The owner of this certificate, if it names this organisation.
fn subject_of(der: &[u8], organisation: &str) -> Option<Subject> {
    let (_, certificate) = X509Certificate::from_der(der).ok()?;
    let subject = certificate.subject();
    let named = subject.iter_organization().next()?.as_str().ok()?;
    let name = subject.iter_common_name().next()?.as_str().ok()?.to_owned();
    let expires_ms = unix_ms(certificate.validity().not_after.timestamp());
    (named == organisation).then(|| Subject { name, serial: hex(certificate.raw_serial()), expires_ms })
}

/// Converts seconds since 1970 to milliseconds; 0 for times before 1970.
fn unix_ms(seconds: i64) -> u64 {
    u64::try_from(seconds).unwrap_or(0).saturating_mul(1000)
}

fn new_authority() -> Result<(String, String), rcgen::Error> {
    let key = KeyPair::generate()?;
    let mut params = params("aliquot", "aliquot:authority", AUTHORITY_LIFE)?;
    begin_long_ago(&mut params);
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    Ok((params.self_signed(&key)?.pem(), key.serialize_pem()))
}

fn params(name: &str, organisation: &str, life: Duration) -> Result<CertificateParams, rcgen::Error> {
    let mut params = CertificateParams::new(Vec::new())?;
    let mut subject = DistinguishedName::new();
    subject.push(DnType::CommonName, name);
    subject.push(DnType::OrganizationName, organisation);
    params.distinguished_name = subject;
    let now = SystemTime::now();
    params.not_before = (now - CLOCK_SKEW).into();
    params.not_after = (now + life).into();
    params.serial_number = Some(SerialNumber::from(random_serial().to_vec()));
    params.use_authority_key_identifier_extension = true;
    Ok(params)
}

/// Lets a validity begin before the time of every clock with which a scheduler starts, except those that were never set.
fn begin_long_ago(params: &mut CertificateParams) {
    params.not_before = rcgen::date_time_ymd(2000, 1, 1);
}

/// A random serial number, unique in practice. It is positive and has no leading zero, so that all tools print it
/// alike.
fn random_serial() -> [u8; 16] {
    let mut serial = crate::membership::random::<16>();
    serial[0] = serial[0] & 0x3f | 0x40;
    serial
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn read(path: &Path) -> Result<String, CertificateError> {
    fs::read_to_string(path).map_err(|error| CertificateError::File { path: path.to_owned(), error })
}

/// Writes a file that only this user can read. The file is written completely and durably, or not at all.
fn write_secret(path: &Path, text: &str) -> Result<(), CertificateError> {
    aliquot_durable::replace(path, text.as_bytes())
        .map_err(|error| CertificateError::File { path: path.to_owned(), error })
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn request() -> String {
        let key = KeyPair::generate().unwrap();
        // The names in a node's request do not count, only its key.
        let asked = params("somebody else", "aliquot:scheduler", NODE_LIFE).unwrap();
        let mut asked = asked;
        asked.serial_number = None;
        asked.not_before = rcgen::date_time_ymd(1975, 1, 1);
        asked.not_after = rcgen::date_time_ymd(4096, 1, 1);
        asked.use_authority_key_identifier_extension = false;
        asked.serialize_request(&key).unwrap().pem().unwrap()
    }

    #[test]
    fn the_authority_is_the_same_after_a_restart() {
        let dir = tempfile::tempdir().unwrap();
        let first = Authority::open(dir.path()).unwrap();
        assert_eq!(first.pem, Authority::open(dir.path()).unwrap().pem);
        let mode = fs::metadata(dir.path().join("authority.key")).unwrap().permissions().mode();
        assert_eq!(mode & 0o077, 0, "nobody else reads the key");
    }

    #[test]
    fn a_node_gets_the_name_that_the_scheduler_says() {
        let dir = tempfile::tempdir().unwrap();
        let authority = Authority::open(dir.path()).unwrap();
        let issued = authority.node("node-1", &request()).unwrap();
        let (_, pem) = x509_parser::pem::parse_x509_pem(issued.pem.as_bytes()).unwrap();
        let subject = node_of(&pem.contents).expect("it is a node's");
        let Issued { serial, expires_ms, .. } = issued;
        assert_eq!(subject, Subject { name: "node-1".into(), serial, expires_ms });
        assert!(!is_scheduler(&pem.contents), "a node is no scheduler");
        let server = authority.server().unwrap();
        let (_, pem) = x509_parser::pem::parse_x509_pem(server.certificate_pem.as_bytes()).unwrap();
        assert_eq!(node_of(&pem.contents), None, "the scheduler is no node");
        assert!(is_scheduler(&pem.contents));
        assert_eq!(node_of(b"nonsense"), None);
    }

    #[test]
    fn a_user_is_no_node_and_no_scheduler() {
        let dir = tempfile::tempdir().unwrap();
        let authority = Authority::open(dir.path()).unwrap();
        let issued = authority.user("ada", &request(), Duration::from_secs(3600)).unwrap();
        let (_, pem) = x509_parser::pem::parse_x509_pem(issued.pem.as_bytes()).unwrap();
        let subject = user_of(&pem.contents).expect("it is a user's");
        assert_eq!((subject.name.as_str(), &subject.serial), ("ada", &issued.serial));
        assert_eq!(subject.expires_ms, issued.expires_ms);
        assert!(node_of(&pem.contents).is_none() && !is_scheduler(&pem.contents));
        let node = authority.node("ada", &request()).unwrap();
        let (_, pem) = x509_parser::pem::parse_x509_pem(node.pem.as_bytes()).unwrap();
        assert_eq!(user_of(&pem.contents), None, "a node of the same name is no user");
    }

    #[test]
    fn no_clock_is_too_early_for_the_schedulers_certificate() {
        let dir = tempfile::tempdir().unwrap();
        let authority = Authority::open(dir.path()).unwrap();
        // Nodes on which the right time is long before that of the scheduler's clock.
        let nodes_time = |pem: &str| {
            let (_, pem) = x509_parser::pem::parse_x509_pem(pem.as_bytes()).unwrap();
            let validity = pem.parse_x509().unwrap().validity().clone();
            let now = i64::try_from(SystemTime::UNIX_EPOCH.elapsed().unwrap().as_secs()).unwrap();
            let years_ago = |years: i64| x509_parser::time::ASN1Time::from_timestamp(now - years * 31_536_000).unwrap();
            [0, 1, 20].map(|years| validity.is_valid_at(years_ago(years)))
        };
        assert_eq!(nodes_time(&authority.server().unwrap().certificate_pem), [true; 3]);
        assert_eq!(nodes_time(&authority.pem), [true; 3], "it may be the first start with this clock");
    }

    #[test]
    fn schedulers_of_one_database_have_one_authority() {
        let dir = tempfile::tempdir().unwrap();
        let database = Database::open(&dir.path().join("scheduler.db")).unwrap();
        assert!(Authority::of_records(database.records(AUTHORITY).unwrap()).unwrap().is_none());
        let leader = Authority::shared(&database).unwrap();
        assert_eq!(leader.pem, Authority::shared(&database).unwrap().pem);
        let next = Authority::of_records(database.records(AUTHORITY).unwrap()).unwrap();
        assert_eq!(next.map(|authority| authority.pem), Some(leader.pem));
    }

    #[test]
    fn what_is_no_request_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let authority = Authority::open(dir.path()).unwrap();
        assert!(authority.node("node-1", "nonsense").is_err());
    }

    #[test]
    fn a_damaged_authority_is_named() {
        let dir = tempfile::tempdir().unwrap();
        drop(Authority::open(dir.path()).unwrap());
        fs::write(dir.path().join("authority.key"), "nonsense").unwrap();
        let error = Authority::open(dir.path()).unwrap_err().to_string();
        assert!(error.contains("authority.key"), "{error}");
    }
}
