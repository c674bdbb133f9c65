//! Certificates in virtual time.

use rustls::RootCertStore;
use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::ServerCertVerifier;
use rustls::pki_types::UnixTime;

use super::*;

/// Where the virtual time begins.
const BEGIN: Duration = Duration::from_secs(1_764_000_000);

fn at(since_begin: Duration) -> SystemTime {
    UNIX_EPOCH + BEGIN + since_begin
}

fn days(days: u32) -> Duration {
    DAY * days
}

fn names() -> Vec<String> {
    vec!["aliquot-scheduler-webhook.aliquot-system.svc".into()]
}

/// Whether an API server that trusts this bundle connects to a replica that serves with these certificates.
pub(crate) fn fits(bundle: &str, served: &Certificates, now: SystemTime) -> Result<(), String> {
    let mut roots = RootCertStore::empty();
    for authority in CertificateDer::pem_slice_iter(bundle.as_bytes()) {
        roots.add(authority.unwrap()).unwrap();
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let verifier = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider).build().unwrap();
    let name = names().remove(0).try_into().unwrap();
    let time = UnixTime::since_unix_epoch(now.duration_since(UNIX_EPOCH).unwrap());
    let end_entity = der(&served.certificate).unwrap();
    verifier.verify_server_cert(&end_entity, &[], &name, &[], time).map(drop).map_err(|error| error.to_string())
}

#[test]
fn what_was_made_is_read_and_is_served_with() {
    let made = Certificates::new(&names(), at(Duration::ZERO)).unwrap();
    assert_eq!(Certificates::read(&made.data()), Ok(made.clone()));
    assert_eq!(fits(&made.bundle, &made, at(Duration::ZERO)), Ok(()));
    assert!(fits(&made.bundle, &made, at(days(91))).is_err(), "it has ended");
    let stranger = Certificates::new(&names(), at(Duration::ZERO)).unwrap();
    assert!(fits(&stranger.bundle, &made, at(Duration::ZERO)).is_err(), "another authority");
}

#[test]
fn a_secret_that_cannot_be_used_is_named() {
    let made = Certificates::new(&names(), at(Duration::ZERO)).unwrap();
    let other = Certificates::new(&names(), at(Duration::ZERO)).unwrap();
    for (field, text, words) in [
        ("tls.key", None, "tls.key is missing"),
        ("tls.key", Some("no key"), "tls.key: "),
        ("tls.key", Some(other.key.as_str()), "tls.crt: "),
        ("ca.crt", Some(""), "ca.crt has no certificate"),
        ("ca.key", Some("no key"), "ca.key: "),
    ] {
        let mut data = made.data();
        match text {
            None => drop(data.remove(field)),
            Some(text) => drop(data.insert(field.into(), ByteString(text.as_bytes().to_vec()))),
        }
        let why = Certificates::read(&data).unwrap_err();
        assert!(why.contains(words), "{field} {text:?}: {why}");
    }
}

#[test]
fn the_certificate_is_renewed_when_a_third_of_its_life_is_left() {
    let made = Certificates::new(&names(), at(Duration::ZERO)).unwrap();
    assert_eq!(made.renewed(&names(), at(days(59))), Ok(None));
    let renewed = made.renewed(&names(), at(days(60))).unwrap().expect("it is due");
    assert_eq!(renewed.bundle, made.bundle);
    assert_eq!(renewed.end(), Ok(at(days(150))));
    assert_eq!(fits(&made.bundle, &renewed, at(days(100))), Ok(()));
    // After a long silence it is renewed at once, and after a longer one the authority is, too.
    let late = made.renewed(&names(), at(days(2000))).unwrap().unwrap();
    assert_eq!(fits(&made.bundle, &late, at(days(2000))), Ok(()));
    let anew = made.renewed(&names(), at(days(4000))).unwrap().unwrap();
    assert_ne!(anew.bundle, made.bundle);
    assert_eq!(fits(&anew.bundle, &anew, at(days(4000))), Ok(()));
}

#[test]
fn a_new_authority_is_trusted_before_it_signs() {
    let mut now = at(days(2433));
    let made = Certificates::new(&names(), at(Duration::ZERO)).unwrap();
    let before = made.renewed(&names(), now).unwrap().expect("the certificate has ended");
    assert_eq!(before.bundle, made.bundle);
    now += Duration::from_secs(60);
    assert_eq!(before.renewed(&names(), now), Ok(None));
    now += days(1);
    let both = before.renewed(&names(), now).unwrap().expect("the authority is due");
    assert!(both.bundle.ends_with(&made.bundle) && both.bundle.len() > made.bundle.len());
    assert_eq!(both.certificate, before.certificate, "it still serves with what the old one has signed");
    for bundle in [&made.bundle, &both.bundle] {
        assert_eq!(fits(bundle, &both, now), Ok(()));
    }
    let serves = both.renewed(&names(), now + days(60)).unwrap().expect("the certificate is due");
    assert_eq!(fits(&both.bundle, &serves, now + days(60)), Ok(()));
    assert!(fits(&made.bundle, &serves, now + days(60)).is_err(), "the new authority has signed it");
}

#[test]
fn an_authority_that_is_new_signs_only_after_a_while() {
    let made = Certificates::new(&names(), at(Duration::ZERO)).unwrap();
    // The certificate is due a minute after the authority was renewed.
    let due = at(days(2434));
    let serving = {
        let (certificate, key) =
            certificate(&made.bundle, &made.authority_key, &names(), due - days(60) + Duration::from_secs(60)).unwrap();
        Certificates { certificate, key, ..made }
    };
    let both = serving.renewed(&names(), due).unwrap().expect("the authority is due");
    assert_eq!(both.certificate, serving.certificate);
    assert_eq!(both.renewed(&names(), due + Duration::from_secs(120)), Ok(None));
    let later = both.renewed(&names(), due + Duration::from_secs(3600)).unwrap().expect("now it signs");
    assert_ne!(later.certificate, both.certificate);
}
