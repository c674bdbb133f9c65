//! The certificates with which all replicas serve: an authority of their own, and the certificates that it signs. What
//! is due depends only on the time that is given.
//!
//! No connection fails when they are renewed. A new authority stands beside the old one in what clients trust before it
//! signs anything, and the old one stays there until it ends. So whatever certificate a replica serves with, and
//! whichever bundle a client knows, they fit together.

mod keeper;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use k8s_openapi::ByteString;
use rcgen::{
    BasicConstraints, CertificateParams, CertificateSigningRequestParams, DistinguishedName, DnType,
    ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose,
};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig};
use x509_parser::prelude::{FromDer, X509Certificate};

use crate::tls;

pub(crate) use keeper::{Keeper, Purpose, TRIES, failed};

const DAY: Duration = Duration::from_secs(24 * 3600);
const AUTHORITY_LIFE: Duration = Duration::from_secs(3650 * DAY.as_secs());
const CERTIFICATE_LIFE: Duration = Duration::from_secs(90 * DAY.as_secs());
/// A certificate is valid from this long before it is made, for clocks that do not agree.
const CLOCK_SKEW: Duration = Duration::from_secs(3600);
/// A new authority signs no certificates of the replicas for this long. By then every client trusts it.
const SETTLED_AFTER: Duration = Duration::from_secs(3600);

/// The fields of the Secret, as cert-manager and others name them, and the authority's own key.
const BUNDLE: &str = "ca.crt";
const AUTHORITY_KEY: &str = "ca.key";
const CERTIFICATE: &str = "tls.crt";
const KEY: &str = "tls.key";

/// What the replicas share, in PEM.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Certificates {
    /// The authorities that are trusted, the newest first: it signs.
    pub(crate) bundle: String,
    authority_key: String,
    certificate: String,
    key: String,
}

impl std::fmt::Debug for Certificates {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Certificates").finish_non_exhaustive()
    }
}

/// From when until when a certificate is valid.
#[derive(Clone, Copy, Debug)]
struct Validity {
    made: SystemTime,
    end: SystemTime,
}

impl Validity {
    fn of(der: &[u8]) -> Result<Validity, String> {
        let (_, certificate) = X509Certificate::from_der(der).map_err(|error| error.to_string())?;
        let at = |seconds: i64| UNIX_EPOCH + Duration::from_secs(u64::try_from(seconds).unwrap_or(0));
        let validity = certificate.validity();
        Ok(Validity { made: at(validity.not_before.timestamp()) + CLOCK_SKEW, end: at(validity.not_after.timestamp()) })
    }

    fn has_ended(&self, now: SystemTime) -> bool {
        now >= self.end
    }

    /// Whether a third of its life is left, or less.
    fn is_due(&self, now: SystemTime) -> bool {
        let left = self.end.duration_since(now).unwrap_or_default();
        left <= self.end.duration_since(self.made).unwrap_or_default() / 3
    }

    fn is_settled(&self, now: SystemTime) -> bool {
        now.duration_since(self.made).is_ok_and(|age| age >= SETTLED_AFTER)
    }
}

impl Certificates {
    /// A new authority and a certificate for these names.
    ///
    /// # Errors
    /// A certificate cannot be made.
    pub(crate) fn new(names: &[String], now: SystemTime) -> Result<Certificates, String> {
        let (bundle, authority_key) = authority(now)?;
        let (certificate, key) = certificate(&bundle, &authority_key, names, now)?;
        Ok(Certificates { bundle, authority_key, certificate, key })
    }

    /// Reads the certificates from the fields of the Secret.
    ///
    /// # Errors
    /// It cannot be used.
    pub(crate) fn read(data: &BTreeMap<String, ByteString>) -> Result<Certificates, String> {
        let text = |key: &str| {
            let bytes = data.get(key).ok_or_else(|| format!("{key} is missing"))?;
            String::from_utf8(bytes.0.clone()).map_err(|_| format!("{key} is no text"))
        };
        let [bundle, authority_key, certificate, key] = [BUNDLE, AUTHORITY_KEY, CERTIFICATE, KEY].map(text);
        let read =
            Certificates { bundle: bundle?, authority_key: authority_key?, certificate: certificate?, key: key? };
        KeyPair::from_pem(&read.authority_key).map_err(|error| format!("{AUTHORITY_KEY}: {error}"))?;
        read.authorities()?;
        read.server()?;
        Ok(read)
    }

    pub(crate) fn data(&self) -> BTreeMap<String, ByteString> {
        let bytes = |text: &String| ByteString(text.clone().into_bytes());
        let fields = [
            (BUNDLE, &self.bundle),
            (AUTHORITY_KEY, &self.authority_key),
            (CERTIFICATE, &self.certificate),
            (KEY, &self.key),
        ];
        fields.map(|(key, text)| (key.to_owned(), bytes(text))).into()
    }

    /// The certificates that replace these now; `None`: nothing is due.
    ///
    /// # Errors
    /// A certificate cannot be read or made.
    pub(crate) fn renewed(&self, names: &[String], now: SystemTime) -> Result<Option<Certificates>, String> {
        let authorities = self.authorities()?;
        let (_, newest) = authorities.first().ok_or("there is no authority")?;
        let serving = Validity::of(&der(&self.certificate)?)?;
        if newest.has_ended(now) {
            return Certificates::new(names, now).map(Some);
        }
        if serving.has_ended(now) || serving.is_due(now) && newest.is_settled(now) {
            let (certificate, key) = certificate(&self.bundle, &self.authority_key, names, now)?;
            return Ok(Some(Certificates { certificate, key, ..self.clone() }));
        }
        if newest.is_due(now) {
            let (mut bundle, authority_key) = authority(now)?;
            bundle.extend(authorities.iter().filter(|(_, of)| !of.has_ended(now)).map(|(pem, _)| pem.as_str()));
            return Ok(Some(Certificates { bundle, authority_key, ..self.clone() }));
        }
        Ok(None)
    }

    /// When the certificate ends.
    ///
    /// # Errors
    /// It cannot be read.
    pub(crate) fn end(&self) -> Result<SystemTime, String> {
        Ok(Validity::of(&der(&self.certificate)?)?.end)
    }

    /// The TLS configuration with which HTTP is served to any client.
    ///
    /// # Errors
    /// The certificate or its key cannot be used.
    pub(crate) fn server(&self) -> Result<Arc<ServerConfig>, String> {
        let (certificate, key) = self.serving()?;
        let config = tls::builder()?.with_no_client_auth().with_single_cert(vec![certificate], key);
        config.map(tls::for_http).map_err(|error| format!("{CERTIFICATE}: {error}"))
    }

    /// The TLS configuration with which gRPC is served to clients that have a certificate of this authority, and to
    /// clients that come for one.
    ///
    /// # Errors
    /// The certificates or the key cannot be used.
    pub(crate) fn server_for_clients(&self) -> Result<Arc<ServerConfig>, String> {
        let (certificate, key) = self.serving()?;
        let mut roots = RootCertStore::empty();
        for (pem, _) in self.authorities()? {
            roots.add(der(&pem)?).map_err(|error| format!("{BUNDLE}: {error}"))?;
        }
        let builder = tls::builder()?;
        let provider = Arc::clone(builder.crypto_provider());
        let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider);
        let verifier = verifier.allow_unauthenticated().build().map_err(|error| format!("{BUNDLE}: {error}"))?;
        let config = builder.with_client_cert_verifier(verifier).with_single_cert(vec![certificate], key);
        config.map(tls::for_grpc).map_err(|error| format!("{CERTIFICATE}: {error}"))
    }

    /// A certificate in PEM by which replicas know a client of this name, valid for `life`. Of the request only the
    /// public key is used. Another replica may know a new authority a moment later; until then it refuses the
    /// certificate.
    ///
    /// # Errors
    /// The request cannot be used.
    pub(crate) fn for_client(
        &self,
        name: &str,
        request_pem: &str,
        life: Duration,
        now: SystemTime,
    ) -> Result<String, String> {
        let request = CertificateSigningRequestParams::from_pem(request_pem)
            .map_err(|error| format!("the request for a certificate cannot be used: {error}"))?;
        let made = || -> Result<String, rcgen::Error> {
            let authority = Issuer::from_ca_cert_pem(&self.bundle, KeyPair::from_pem(&self.authority_key)?)?;
            let mut params = params(name, &[], life, now)?;
            params.use_authority_key_identifier_extension = true;
            params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
            Ok(params.signed_by(&request.public_key, &authority)?.pem())
        };
        made().map_err(|error| format!("no certificate can be made: {error}"))
    }

    /// The certificate and the key with which replicas serve.
    fn serving(&self) -> Result<(CertificateDer<'static>, PrivateKeyDer<'static>), String> {
        let key = PrivateKeyDer::from_pem_slice(self.key.as_bytes()).map_err(|error| format!("{KEY}: {error}"))?;
        Ok((der(&self.certificate)?, key))
    }

    /// The authorities, each in PEM.
    fn authorities(&self) -> Result<Vec<(String, Validity)>, String> {
        let begin = "-----BEGIN CERTIFICATE-----";
        let pems = self.bundle.split_inclusive("-----END CERTIFICATE-----\n").filter(|pem| pem.contains(begin));
        let read: Result<Vec<_>, String> = pems.map(|pem| Ok((pem.to_owned(), Validity::of(&der(pem)?)?))).collect();
        read.and_then(|read| if read.is_empty() { Err(format!("{BUNDLE} has no certificate")) } else { Ok(read) })
    }
}

/// The name in a client's certificate, and when the certificate ends; `None`: it is not of the form of those made here.
pub(crate) fn client_of(der: &[u8]) -> Option<(String, SystemTime)> {
    let (_, certificate) = X509Certificate::from_der(der).ok()?;
    let name = certificate.subject().iter_common_name().next()?.as_str().ok()?.to_owned();
    Some((name, Validity::of(der).ok()?.end))
}

/// The first certificate of a text.
fn der(pem: &str) -> Result<CertificateDer<'static>, String> {
    CertificateDer::from_pem_slice(pem.as_bytes()).map_err(|error| error.to_string())
}

/// A new authority: its certificate and its key.
fn authority(now: SystemTime) -> Result<(String, String), String> {
    let since = now.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let made = || -> Result<(String, String), rcgen::Error> {
        let key = KeyPair::generate()?;
        // Two authorities that are trusted at the same time have different names.
        let mut params = params(&format!("aliquot authority {since}"), &[], AUTHORITY_LIFE, now)?;
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
        Ok((params.self_signed(&key)?.pem(), key.serialize_pem()))
    };
    made().map_err(|error| format!("no authority can be made: {error}"))
}

/// A certificate for these names, signed by the first authority of the bundle, and its key.
fn certificate(
    bundle: &str,
    authority_key: &str,
    names: &[String],
    now: SystemTime,
) -> Result<(String, String), String> {
    let made = || -> Result<(String, String), rcgen::Error> {
        let authority = Issuer::from_ca_cert_pem(bundle, KeyPair::from_pem(authority_key)?)?;
        let key = KeyPair::generate()?;
        let mut params = params("aliquot scheduler", names, CERTIFICATE_LIFE, now)?;
        params.use_authority_key_identifier_extension = true;
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        Ok((params.signed_by(&key, &authority)?.pem(), key.serialize_pem()))
    };
    made().map_err(|error| format!("no certificate can be made: {error}"))
}

fn params(name: &str, names: &[String], life: Duration, now: SystemTime) -> Result<CertificateParams, rcgen::Error> {
    let mut params = CertificateParams::new(names)?;
    let mut subject = DistinguishedName::new();
    subject.push(DnType::CommonName, name);
    params.distinguished_name = subject;
    params.not_before = (now - CLOCK_SKEW).into();
    params.not_after = (now + life).into();
    Ok(params)
}

#[cfg(test)]
pub(crate) mod tests;
