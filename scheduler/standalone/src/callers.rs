//! Identifies callers by their connections, and finds their rights.

use std::sync::Arc;

use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderValue};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD_NO_PAD;
use tonic::Status;
use tonic::codegen::http::Extensions;
use tonic::transport::CertificateDer;
use tonic::transport::server::{TlsConnectInfo, UdsConnectInfo};

use crate::access::{Caller, Grant, Identity, Role};
use crate::accounts::Accounts;
use crate::certificates::{Subject, is_scheduler, node_of, user_of};
use crate::connections::ConnectionInfo;
use crate::grants::Grants;
use crate::local_users::LocalUsers;

/// The headers in which a standby scheduler names the caller of a call that it hands on: the number of a user of its
/// machine, or the certificate of a user of another machine, and from where that user has called.
const FORWARDED_UID: &str = "aliquot-uid";
const FORWARDED_CERTIFICATE: &str = "aliquot-certificate";
const FORWARDED_FROM: &str = "aliquot-from";

/// The identity of a caller, from the connection.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Claim {
    /// The kernel has told the number of a user of a scheduler's machine.
    Local(u32),
    /// The certificate names a user of another machine.
    User(Subject),
    /// The certificate names this node.
    Node(String),
    /// Neither the kernel nor a certificate identifies the caller.
    Unknown,
}

/// Where a call comes from.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Origin {
    /// `socket`, or the caller's address.
    pub(crate) from: String,
    /// The standby scheduler that handed the call on.
    pub(crate) by_way_of: Option<String>,
}

impl Claim {
    pub(crate) fn identity(&self) -> Option<Identity> {
        match self {
            Self::Local(uid) => Some(Identity::Local(*uid)),
            Self::User(subject) => Some(Identity::Remote(subject.name.clone())),
            Self::Node(name) => Some(Identity::Node(name.clone())),
            Self::Unknown => None,
        }
    }

    fn of_certificate(der: &[u8]) -> Self {
        if let Some(subject) = user_of(der) {
            return Self::User(subject);
        }
        node_of(der).map_or(Self::Unknown, |subject| Self::Node(subject.name))
    }
}

/// The caller of a call. Headers that name another caller are believed only if they come from a scheduler.
pub(crate) fn claim(extensions: &Extensions, headers: &HeaderMap) -> (Claim, Origin) {
    if let Some(uid) = local_uid(extensions) {
        return (Claim::Local(uid), Origin { from: "socket".to_owned(), by_way_of: None });
    }
    let from = remote_address(extensions);
    let Some(certificate) = peer_certificate(extensions) else {
        return (Claim::Unknown, Origin { from, by_way_of: None });
    };
    if !is_scheduler(&certificate) {
        return (Claim::of_certificate(&certificate), Origin { from, by_way_of: None });
    }
    let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
    let forwarded = text(FORWARDED_CERTIFICATE).and_then(|text| STANDARD_NO_PAD.decode(text).ok());
    let claim = match (text(FORWARDED_UID).and_then(|uid| uid.parse().ok()), forwarded) {
        (Some(uid), _) => Claim::Local(uid),
        (None, Some(der)) => Claim::of_certificate(&der),
        (None, None) => Claim::Unknown,
    };
    let origin = Origin { from: text(FORWARDED_FROM).unwrap_or_default().to_owned(), by_way_of: Some(from) };
    (claim, origin)
}

/// The caller of a connection over TLS, and whether it is a scheduler.
pub(crate) fn of_connection(extensions: &Extensions) -> (Claim, bool) {
    match peer_certificate(extensions) {
        Some(certificate) => (Claim::of_certificate(&certificate), is_scheduler(&certificate)),
        None => (Claim::Unknown, false),
    }
}

/// Writes the caller into the headers of a call that is passed on, and removes headers with that name from the caller.
///
/// # Errors
/// If the caller is not a user.
pub(crate) fn hand_on(parts: &mut Parts) -> Result<(), Status> {
    for name in [FORWARDED_UID, FORWARDED_CERTIFICATE, FORWARDED_FROM] {
        parts.headers.remove(name);
    }
    let certificate = peer_certificate(&parts.extensions).filter(|certificate| user_of(certificate).is_some());
    let (name, value, from) = match (local_uid(&parts.extensions), certificate) {
        (Some(uid), _) => (FORWARDED_UID, HeaderValue::from(uid), "socket".to_owned()),
        (None, Some(certificate)) => {
            let text = STANDARD_NO_PAD.encode(&certificate);
            let value = HeaderValue::try_from(text).map_err(|_| not_known())?;
            (FORWARDED_CERTIFICATE, value, remote_address(&parts.extensions))
        }
        (None, None) => return Err(not_known()),
    };
    parts.headers.insert(name, value);
    if let Ok(from) = HeaderValue::try_from(from) {
        parts.headers.insert(FORWARDED_FROM, from);
    }
    Ok(())
}

fn not_known() -> Status {
    Status::unauthenticated(
        "the call has no certificate of a user; an administrator makes one with: aliquot users add NAME",
    )
}

/// The number of the local user at the other end of the socket.
fn local_uid(extensions: &Extensions) -> Option<u32> {
    Some(extensions.get::<UdsConnectInfo>()?.peer_cred?.uid())
}

/// The certificate of the peer of a connection over TLS.
pub(crate) fn peer_certificate(extensions: &Extensions) -> Option<CertificateDer<'static>> {
    let certificates = extensions.get::<TlsConnectInfo<ConnectionInfo>>()?.peer_certs()?;
    certificates.first().cloned()
}

/// The IP address of the peer of a connection over TLS.
pub(crate) fn remote_address(extensions: &Extensions) -> String {
    let address = extensions.get::<TlsConnectInfo<ConnectionInfo>>().map(|info| info.get_ref().from);
    address.map(|address| address.to_string()).unwrap_or_default()
}

/// Finds the rights of callers.
#[derive(Clone, Debug)]
pub(crate) struct Callers {
    pub(crate) grants: Arc<Grants>,
    pub(crate) accounts: Arc<Accounts>,
    /// Whether the scheduler signs the certificates of users, so that it knows each valid one. If not, it trusts every
    /// certificate of their authority.
    pub(crate) signs: bool,
    pub(crate) users: LocalUsers,
}

impl Callers {
    pub(crate) fn new(grants: Grants, accounts: Arc<Accounts>, signs: bool) -> Self {
        Self { grants: Arc::new(grants), accounts, signs, users: LocalUsers::default() }
    }

    /// The caller with the present rights. This may wait until the caller's name was looked up.
    ///
    /// # Errors
    /// If the caller is not known, or the certificate is no longer valid.
    pub(crate) async fn caller(&self, claim: &Claim, now_ms: u64) -> Result<Caller, Status> {
        let Claim::Local(uid) = claim else { return self.certified(claim, now_ms) };
        let name = self.users.name_of(*uid).await;
        Ok(Caller { identity: Identity::Local(*uid), name, grant: self.grants.local(*uid) })
    }

    /// A caller with a certificate, with the present rights.
    ///
    /// # Errors
    /// If the caller is not known, or the certificate is no longer valid.
    fn certified(&self, claim: &Claim, now_ms: u64) -> Result<Caller, Status> {
        let identity = claim.identity().ok_or_else(not_known)?;
        let (name, grant) = match claim {
            Claim::User(subject) => {
                (subject.name.clone(), self.remote(subject, now_ms).map_err(Status::unauthenticated)?)
            }
            Claim::Node(name) => (name.clone(), Grant { role: Role::Node, ..Grant::default() }),
            Claim::Local(_) | Claim::Unknown => return Err(not_known()),
        };
        Ok(Caller { identity, name, grant })
    }

    fn remote(&self, subject: &Subject, now_ms: u64) -> Result<Grant, String> {
        let name = &subject.name;
        if subject.expires_ms <= now_ms {
            return Err(format!(
                "the certificate of user {name} has expired; an administrator makes a new one with: aliquot users add \
                 {name} --replace"
            ));
        }
        if self.signs && !self.accounts.has_signed(subject) {
            return Err(format!(
                "the certificate of user {name} is not valid any more: the user was removed, or has a newer one; an \
                 administrator makes another one with: aliquot users add {name} --replace"
            ));
        }
        let configured = self.grants.remote.get(name).cloned();
        configured.or_else(|| Some(self.accounts.get(name)?.grant)).ok_or_else(|| {
            format!("user {name} is not known here; an administrator can change that with: aliquot users add {name}")
        })
    }

    /// Waits until the caller's rights differ from those at the beginning of the call, or the certificate has ended.
    /// Answers the error for the caller.
    pub(crate) async fn lost(self, claim: Claim, caller: Caller, clock: Arc<crate::clock::Clock>) -> Status {
        let Claim::User(subject) = &claim else { return std::future::pending().await };
        let mut changes = self.accounts.changes();
        loop {
            let now_ms = clock.now_ms();
            match self.certified(&claim, now_ms) {
                Ok(now) if now == caller => {}
                Ok(_) => return Status::unavailable("the rights of this user have changed; call again"),
                Err(status) => return status,
            }
            let left = std::time::Duration::from_millis(subject.expires_ms.saturating_sub(now_ms));
            tokio::select! {
                changed = changes.changed() => if changed.is_err() { return std::future::pending().await },
                () = tokio::time::sleep(left) => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use aliquot_scheduler_store::{Database, StoreError};

    use super::*;
    use crate::accounts::{Account, Signed};
    use crate::grants::ConfiguredUser;
    use crate::local_users;

    fn subject(name: &str, serial: &str) -> Subject {
        Subject { name: name.to_owned(), serial: serial.to_owned(), expires_ms: 1000 }
    }

    /// Callers: ada was added by an administrator, and bob is in the configuration.
    fn callers(dir: &tempfile::TempDir, signs: bool) -> Callers {
        let accounts = Accounts::load(Database::open(&dir.path().join("scheduler.db")).unwrap()).unwrap();
        let certificate = Some(Signed { serial: "1".to_owned(), expires_ms: 1000 });
        let account = Account { grant: Grant { role: Role::Viewer, ..Grant::default() }, certificate };
        accounts.change("ada", |_| Ok::<_, StoreError>((Some(account), ()))).unwrap();
        let bob = ConfiguredUser {
            local: None,
            certificate: Some("bob".to_owned()),
            role: Role::Administrator,
            queues: None,
            runs_as: None,
        };
        Callers::new(Grants::new(&[bob], Role::User, &[], 0).unwrap(), Arc::new(accounts), signs)
    }

    fn role(callers: &Callers, claim: Claim, now_ms: u64) -> Result<Role, String> {
        callers.certified(&claim, now_ms).map(|caller| caller.grant.role).map_err(|status| status.message().to_owned())
    }

    #[test]
    fn only_the_last_certificate_that_was_signed_counts() {
        let dir = tempfile::tempdir().unwrap();
        let callers = callers(&dir, true);
        assert_eq!(role(&callers, Claim::User(subject("ada", "1")), 999), Ok(Role::Viewer));
        for (wrong, now_ms, word) in [
            (subject("ada", "2"), 0, "not valid any more"),
            (subject("bob", "1"), 0, "not valid any more"),
            (subject("ada", "1"), 1000, "has expired"),
        ] {
            let why = role(&callers, Claim::User(wrong), now_ms).unwrap_err();
            assert!(why.contains(word) && why.contains("aliquot users add"), "{why}");
        }
        callers.accounts.change("ada", |_| Ok::<_, StoreError>((None, ()))).unwrap();
        assert!(role(&callers, Claim::User(subject("ada", "1")), 0).is_err());
    }

    #[test]
    fn with_certificates_from_elsewhere_the_name_counts() {
        let dir = tempfile::tempdir().unwrap();
        let callers = callers(&dir, false);
        assert_eq!(role(&callers, Claim::User(subject("ada", "of another authority")), 0), Ok(Role::Viewer));
        assert_eq!(role(&callers, Claim::User(subject("bob", "of another authority")), 0), Ok(Role::Administrator));
        assert!(role(&callers, Claim::User(subject("eve", "1")), 0).unwrap_err().contains("not known here"));
    }

    #[test]
    fn a_node_and_a_stranger_are_no_users() {
        let dir = tempfile::tempdir().unwrap();
        let callers = callers(&dir, true);
        assert_eq!(role(&callers, Claim::Node("ada".to_owned()), 0), Ok(Role::Node));
        assert!(role(&callers, Claim::Unknown, 0).unwrap_err().contains("aliquot users add"));
    }

    #[test]
    fn a_user_whose_name_is_not_found_holds_up_no_other() {
        let dir = tempfile::tempdir().unwrap();
        let (users, mut asks, go) = local_users::tests::stalling();
        let callers = Callers { users, ..callers(&dir, true) };
        local_users::tests::runtime().block_on(async {
            let first = callers.clone();
            let first = tokio::spawn(async move { first.caller(&Claim::Local(1), 0).await });
            assert_eq!(asks.recv().await, Some(1), "the first one waits");
            assert_eq!(callers.caller(&Claim::Local(2), 0).await.unwrap().name, "user-2");
            assert_eq!(callers.caller(&Claim::User(subject("ada", "1")), 0).await.unwrap().name, "ada");
            drop(go);
            assert_eq!(first.await.unwrap().unwrap().name, "user-1");
        });
    }

    #[test]
    fn headers_of_strangers_do_not_count() {
        let mut headers = HeaderMap::new();
        headers.insert(FORWARDED_UID, HeaderValue::from(0));
        assert_eq!(claim(&Extensions::new(), &headers).0, Claim::Unknown);
    }

    #[test]
    fn a_call_under_way_ends_with_its_user() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let dir = tempfile::tempdir().unwrap();
        let callers = callers(&dir, true);
        let claim = Claim::User(Subject { expires_ms: u64::MAX, ..subject("ada", "1") });
        let caller = callers.certified(&claim, 0).unwrap();
        let lost = |caller: Caller| callers.clone().lost(claim.clone(), caller, Arc::new(crate::clock::Clock::new(0)));
        runtime.block_on(async {
            let mut first = Box::pin(lost(caller.clone()));
            assert!(std::future::poll_fn(|cx| std::task::Poll::Ready(first.as_mut().poll(cx).is_pending())).await);
            callers.accounts.change("ada", |_| Ok::<_, StoreError>((None, ()))).unwrap();
            assert_eq!(first.await.code(), tonic::Code::Unauthenticated);
            assert_eq!(lost(caller).await.code(), tonic::Code::Unauthenticated, "also if it began a moment later");
        });
    }
}
