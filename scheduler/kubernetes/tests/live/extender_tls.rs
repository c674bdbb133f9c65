//! The extender with certificates for both sides.

use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::sync::Arc;

use aliquot_kubernetes_scheduler::TlsFiles;
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use rustls::pki_types::PrivateKeyDer;
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};
use tempfile::TempDir;

use crate::kit::{Cluster, Extras};

/// The name in the extender's certificate, as the manifests have it.
const NAME: &str = "aliquot-scheduler-extender.aliquot-system.svc";

type Issuer = CertifiedIssuer<'static, KeyPair>;

fn authority() -> Issuer {
    let mut params = CertificateParams::new(Vec::new()).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap()
}

/// A certificate of this name, and its key.
fn certificate(authority: &Issuer, name: &str) -> (rcgen::Certificate, KeyPair) {
    let key = KeyPair::generate().unwrap();
    let params = CertificateParams::new(vec![name.to_owned()]).unwrap();
    (params.signed_by(&key, &**authority).unwrap(), key)
}

fn write(directory: &Path, authority: &Issuer) -> TlsFiles {
    let (certificate, key) = certificate(authority, NAME);
    let file = |name: &str, text: String| {
        let path = directory.join(name);
        fs::write(&path, text).unwrap();
        path
    };
    TlsFiles {
        certificate: file("tls.crt", certificate.pem()),
        key: file("tls.key", key.serialize_pem()),
        client_authority: Some(file("ca.crt", authority.as_ref().pem())),
    }
}

/// The status with which the extender answers, or why there is no answer. `own`: who asks proves that by a certificate
/// of this authority.
fn ask(address: SocketAddr, trusted: &Issuer, own: Option<&Issuer>) -> Result<u16, String> {
    let mut roots = RootCertStore::empty();
    roots.add(trusted.as_ref().der().clone()).unwrap();
    let builder = ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots);
    let config = match own {
        None => builder.with_no_client_auth(),
        Some(authority) => {
            let (certificate, key) = certificate(authority, "kube-scheduler");
            let key = PrivateKeyDer::try_from(key.serialize_der()).unwrap();
            builder.with_client_auth_cert(vec![certificate.der().clone()], key).unwrap()
        }
    };
    let connection = ClientConnection::new(Arc::new(config), NAME.try_into().unwrap()).unwrap();
    let mut stream = StreamOwned::new(connection, TcpStream::connect(address).unwrap());
    let request = b"GET /inspect HTTP/1.1\r\nhost: replica\r\nconnection: close\r\n\r\n";
    stream.write_all(request).map_err(|error| error.to_string())?;
    let mut answer = Vec::new();
    // The server may end without a farewell.
    let read = stream.read_to_end(&mut answer);
    let answer = String::from_utf8(answer).unwrap();
    let status = answer.split(' ').nth(1).and_then(|status| status.parse().ok());
    status.ok_or_else(|| format!("{read:?} {answer}"))
}

#[test]
fn only_who_has_a_certificate_may_ask() {
    let directory = TempDir::new().unwrap();
    let (authority, stranger) = (authority(), authority());
    let files = write(directory.path(), &authority);
    let mut cluster = Cluster::start();
    cluster.node("n", 1);
    let scheduler = cluster.scheduler_with(Extras { tls: Some(files), ..Extras::default() });
    let address = scheduler.extender_address;
    cluster.wait_until("the leader answers", |_| ask(address, &authority, Some(&authority)) == Ok(200));
    assert!(ask(address, &authority, None).is_err(), "nobody without a certificate");
    assert!(ask(address, &authority, Some(&stranger)).is_err(), "nor with one of another authority");
    assert!(ask(address, &stranger, Some(&authority)).is_err(), "the extender proves who it is");
    // Without TLS there is no answer at all.
    let mut plain = TcpStream::connect(address).unwrap();
    plain.write_all(b"GET /inspect HTTP/1.1\r\nhost: replica\r\n\r\n").unwrap();
    let mut answer = Vec::new();
    _ = plain.read_to_end(&mut answer);
    assert!(!answer.starts_with(b"HTTP"), "{}", String::from_utf8_lossy(&answer));
}

#[test]
fn a_renewed_certificate_is_used_without_a_restart() {
    let directory = TempDir::new().unwrap();
    let (first, second) = (authority(), authority());
    let files = write(directory.path(), &first);
    let mut cluster = Cluster::start();
    cluster.node("n", 1);
    let scheduler = cluster.scheduler_with(Extras { tls: Some(files), ..Extras::default() });
    let address = scheduler.extender_address;
    cluster.wait_until("the leader answers", |_| ask(address, &first, Some(&first)) == Ok(200));
    // Files that cannot be read change nothing.
    fs::write(directory.path().join("tls.key"), "no key").unwrap();
    assert_eq!(ask(address, &first, Some(&first)), Ok(200));
    write(directory.path(), &second);
    assert_eq!(ask(address, &second, Some(&second)), Ok(200));
    assert!(ask(address, &first, Some(&first)).is_err());
}
