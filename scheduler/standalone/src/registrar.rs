//! Adds, changes, removes and lists users of other machines.

use std::sync::Arc;
use std::time::Duration;

use aliquot_proto::scheduler::v1 as wire;
use aliquot_scheduler_store::StoreError;
use tonic::Status;

use crate::access::{Grant, LocalUser, Role};
use crate::accounts::{Account, Signed, check_name};
use crate::callers::Callers;
use crate::certificates::{Authority, Issued, USER_LIFE, USER_LIFE_MAX};
use crate::grants::{ConfiguredUser, check_grant, number_for_jobs};
use crate::membership::Addresses;

/// The shortest validity of a certificate. A shorter one could end before it is used.
const USER_LIFE_MIN: Duration = Duration::from_secs(1);

/// Manages the users that may call from other machines.
#[derive(Debug)]
pub(crate) struct Registrar {
    pub(crate) callers: Callers,
    /// Signs certificates; `None`: the certificates come from elsewhere.
    pub(crate) authority: Option<Arc<Authority>>,
    /// The authority that signs the scheduler's own certificate, as PEM.
    pub(crate) authority_pem: String,
    pub(crate) addresses: Addresses,
    /// The users in the configuration, in its order.
    pub(crate) configured: Vec<ConfiguredUser>,
}

/// The status for the caller, also made from errors of the store.
struct Refused(Status);

impl From<StoreError> for Refused {
    fn from(error: StoreError) -> Self {
        Self(Status::unavailable(error.to_string()))
    }
}

impl From<Status> for Refused {
    fn from(status: Status) -> Self {
        Self(status)
    }
}

impl Registrar {
    /// Adds or changes a user. The change is durable when this returns.
    pub(crate) fn add(&self, request: wire::AddUserRequest) -> Result<wire::AddUserResponse, Status> {
        let wire::AddUserRequest { user, certificate_request, valid_ms, replace } = request;
        let user = user.unwrap_or_default();
        let name = user.name.clone();
        check_name(&name).map_err(Status::invalid_argument)?;
        let says_nothing = wire::User { name: name.clone(), ..wire::User::default() } == user;
        let grant = read_grant(user)?;
        let is_configured = self.callers.grants.remote.contains_key(&name);
        if is_configured && !says_nothing {
            return Err(Status::failed_precondition(format!(
                "the rights of user {name} are in the scheduler's configuration; change them there, and add the user without \
                 a role, queues and a local user"
            )));
        }
        let life = if valid_ms == 0 { USER_LIFE } else { Duration::from_millis(valid_ms) };
        if life < USER_LIFE_MIN || life > USER_LIFE_MAX {
            return Err(Status::invalid_argument(format!(
                "a certificate cannot be valid for {valid_ms} ms: write from 1000 to {}",
                USER_LIFE_MAX.as_millis()
            )));
        }
        let change = |before: Option<&Account>| {
            if before.is_some() && !replace {
                return Err(Refused(Status::already_exists(format!(
                    "there is a user {name} already; for another certificate: aliquot users add {name} --replace; to \
                     change the rights of {name}: aliquot users set {name}"
                ))));
            }
            let (certificate, pem) = self.certificate(&name, &certificate_request, life, before)?;
            let account = Account { grant: grant.clone(), certificate };
            Ok((Some(account.clone()), (account, pem)))
        };
        let (account, certificate) = self.callers.accounts.change(&name, change).map_err(|Refused(status)| status)?;
        Ok(wire::AddUserResponse {
            user: Some(self.shown(&name, &account)),
            certificate,
            authority: self.authority_pem.clone(),
            addresses: self.addresses.all(),
        })
    }

    /// The certificate that is valid for the user from now on, and its text if it is new.
    fn certificate(
        &self,
        name: &str,
        request: &str,
        life: Duration,
        before: Option<&Account>,
    ) -> Result<(Option<Signed>, String), Status> {
        let Some(authority) = &self.authority else { return Ok((None, String::new())) };
        if let (Some(before), "") = (before, request) {
            return Ok((before.certificate.clone(), String::new()));
        }
        let issued = authority.user(name, request, life);
        let Issued { pem, serial, expires_ms } = issued.map_err(|error| Status::invalid_argument(error.to_string()))?;
        Ok((Some(Signed { serial, expires_ms }), pem))
    }

    /// Removes a user. The user's certificates are not valid any more from now on.
    pub(crate) fn remove(&self, name: &str) -> Result<(), Status> {
        let is_trusted = self.authority.is_none() && self.callers.grants.remote.contains_key(name);
        if is_trusted {
            return Err(Status::failed_precondition(format!(
                "user {name} is in the scheduler's configuration, and the certificate comes from another authority; remove the \
                 user from the configuration, and restart the scheduler"
            )));
        }
        let change = |before: Option<&Account>| match before {
            Some(_) => Ok((None, ())),
            None => Err(Refused(Status::not_found(format!(
                "there is no user {name} on other machines; see: aliquot users"
            )))),
        };
        self.callers.accounts.change(name, change).map_err(|Refused(status)| status)
    }

    /// The users of other machines, and the users in the configuration.
    pub(crate) fn list(&self) -> Vec<wire::User> {
        let accounts = self.callers.accounts.all();
        let is_account = |user: &ConfiguredUser| {
            user.local.is_none() && accounts.iter().any(|(name, _)| Some(name) == user.certificate.as_ref())
        };
        let configured = self.configured.iter().filter(|user| !is_account(user)).map(|user| wire::User {
            is_local: user.local.is_some(),
            is_configured: true,
            ..of_grant(&user.name(), &user.grant())
        });
        configured.chain(accounts.iter().map(|(name, account)| self.shown(name, account))).collect()
    }

    fn shown(&self, name: &str, account: &Account) -> wire::User {
        let configured = self.callers.grants.remote.get(name);
        wire::User {
            expires_unix_ms: account.certificate.as_ref().map_or(0, |signed| signed.expires_ms),
            is_configured: configured.is_some(),
            ..of_grant(name, configured.unwrap_or(&account.grant))
        }
    }
}

fn of_grant(name: &str, grant: &Grant) -> wire::User {
    let role = match grant.role {
        Role::Administrator => wire::Role::Administrator,
        Role::User => wire::Role::User,
        Role::Viewer => wire::Role::Viewer,
        Role::Node | Role::None => wire::Role::None,
    };
    wire::User {
        name: name.to_owned(),
        role: role.into(),
        queues: grant.queues.clone().unwrap_or_default(),
        runs_as: grant.runs_as.as_ref().map(ToString::to_string).unwrap_or_default(),
        ..wire::User::default()
    }
}

fn read_grant(user: wire::User) -> Result<Grant, Status> {
    let role = match wire::Role::try_from(user.role) {
        Ok(wire::Role::Unspecified | wire::Role::User) => Role::User,
        Ok(wire::Role::Viewer) => Role::Viewer,
        Ok(wire::Role::Administrator) => Role::Administrator,
        Ok(wire::Role::None) => Role::None,
        Err(_) => return Err(Status::invalid_argument(format!("there is no role of number {}", user.role))),
    };
    let wire::User { name, queues, runs_as, .. } = user;
    let runs_as = match runs_as.parse::<u32>() {
        Ok(number) => Some(LocalUser::Number(number)),
        Err(_) => Some(LocalUser::Name(runs_as)).filter(|user| *user != LocalUser::Name(String::new())),
    };
    if let Some(user) = &runs_as {
        number_for_jobs(user).map_err(Status::invalid_argument)?;
    }
    let grant = Grant { role, queues: Some(queues).filter(|queues| !queues.is_empty()), runs_as };
    check_grant(&name, &grant).map_err(Status::invalid_argument)?;
    Ok(grant)
}

#[cfg(test)]
mod tests {
    use aliquot_scheduler_store::{Database, Leadership};
    use rcgen::{CertificateParams, KeyPair};
    use tonic::Code;

    use super::*;
    use crate::accounts::Accounts;
    use crate::grants::Grants;

    /// A registrar with a configuration that names `bob`, a user of other machines.
    fn registrar(dir: &tempfile::TempDir, signs: bool) -> Registrar {
        let accounts = Accounts::load(Database::open(&dir.path().join("scheduler.db")).unwrap()).unwrap();
        let bob = ConfiguredUser {
            local: None,
            certificate: Some("bob".to_owned()),
            role: Role::Viewer,
            queues: None,
            runs_as: None,
        };
        let configured = vec![bob];
        let grants = Grants::new(&configured, Role::User, &[], 0).unwrap();
        Registrar {
            callers: Callers::new(grants, Arc::new(accounts), signs),
            authority: signs.then(|| Arc::new(Authority::open(dir.path()).unwrap())),
            authority_pem: "authority".to_owned(),
            addresses: Addresses { own: "head:7460".to_owned(), leadership: Leadership::default() },
            configured,
        }
    }

    fn request(name: &str) -> wire::AddUserRequest {
        let csr = CertificateParams::default().serialize_request(&KeyPair::generate().unwrap()).unwrap();
        let user = wire::User { name: name.to_owned(), ..wire::User::default() };
        wire::AddUserRequest { user: Some(user), certificate_request: csr.pem().unwrap(), ..Default::default() }
    }

    fn code<T: std::fmt::Debug>(done: Result<T, Status>) -> Code {
        done.unwrap_err().code()
    }

    #[test]
    fn a_user_is_added_once_and_changed_without_a_new_certificate() {
        let dir = tempfile::tempdir().unwrap();
        let registrar = registrar(&dir, true);
        let added = registrar.add(request("ada")).unwrap();
        assert!(added.certificate.contains("BEGIN CERTIFICATE") && added.addresses == ["head:7460"]);
        assert_eq!(code(registrar.add(request("ada"))), Code::AlreadyExists);
        let before = registrar.callers.accounts.get("ada").unwrap().certificate;
        let user = wire::User {
            name: "ada".to_owned(),
            queues: vec!["team-a".to_owned()],
            runs_as: "root".to_owned(),
            ..wire::User::default()
        };
        let change = wire::AddUserRequest { user: Some(user), replace: true, ..Default::default() };
        assert_eq!(registrar.add(change).unwrap().certificate, "");
        let account = registrar.callers.accounts.get("ada").unwrap();
        assert_eq!((account.certificate, account.grant.queues), (before.clone(), Some(vec!["team-a".to_owned()])));
        registrar.add(wire::AddUserRequest { replace: true, ..request("ada") }).unwrap();
        assert_ne!(registrar.callers.accounts.get("ada").unwrap().certificate, before);
        registrar.remove("ada").unwrap();
        assert_eq!(code(registrar.remove("ada")), Code::NotFound);
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let registrar = registrar(&dir, true);
        let of = |change: &dyn Fn(&mut wire::AddUserRequest, &mut wire::User)| {
            let mut request = request("ada");
            let mut user = request.user.take().unwrap();
            change(&mut request, &mut user);
            code(registrar.add(wire::AddUserRequest { user: Some(user), ..request }))
        };
        assert_eq!(of(&|_, user| user.name = "../ada".to_owned()), Code::InvalidArgument);
        assert_eq!(of(&|_, user| user.role = 99), Code::InvalidArgument);
        assert_eq!(of(&|_, user| user.runs_as = "no-such-user".to_owned()), Code::InvalidArgument);
        assert_eq!(of(&|request, _| request.certificate_request = "nonsense".to_owned()), Code::InvalidArgument);
        assert_eq!(of(&|request, _| request.certificate_request.clear()), Code::InvalidArgument);
        assert_eq!(of(&|request, _| request.valid_ms = u64::MAX), Code::InvalidArgument);
        let viewer = |_: &mut wire::AddUserRequest, user: &mut wire::User| {
            user.set_role(wire::Role::Viewer);
            user.queues = vec!["a".to_owned()];
        };
        assert_eq!(of(&viewer), Code::InvalidArgument);
        assert_eq!(registrar.callers.accounts.all(), []);
    }

    #[test]
    fn the_configuration_says_what_its_users_may_do() {
        let dir = tempfile::tempdir().unwrap();
        let registrar = registrar(&dir, true);
        let mut wrong = request("bob");
        wrong.user.as_mut().unwrap().set_role(wire::Role::Administrator);
        assert_eq!(code(registrar.add(wrong)), Code::FailedPrecondition);
        let user = registrar.add(request("bob")).unwrap().user.unwrap();
        assert_eq!((user.role(), user.is_configured), (wire::Role::Viewer, true));
        assert_eq!(registrar.list().len(), 1, "{:?}", registrar.list());
        registrar.remove("bob").unwrap();
        assert_eq!(registrar.list()[0].expires_unix_ms, 0);
    }

    #[test]
    fn with_certificates_from_elsewhere_only_the_name_is_kept() {
        let dir = tempfile::tempdir().unwrap();
        let registrar = registrar(&dir, false);
        assert_eq!(registrar.add(request("ada")).unwrap().certificate, "");
        assert_eq!(registrar.callers.accounts.get("ada").unwrap().certificate, None);
        registrar.remove("ada").unwrap();
        assert_eq!(code(registrar.remove("bob")), Code::FailedPrecondition);
    }
}
