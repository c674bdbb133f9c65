//! The rights that the configuration gives to users.

use std::collections::{BTreeMap, BTreeSet};

use nix::unistd::{Uid, User};
use serde::Deserialize;

use crate::access::{Grant, LocalUser, Role};

/// A user in the configuration with its rights. It is a user of the scheduler's machine or one of other machines.
#[derive(Clone, PartialEq, Eq, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ConfiguredUser {
    /// A user of the scheduler's machine, by name or number.
    pub local: Option<LocalUser>,
    /// A user of other machines, by the name in its certificate.
    pub certificate: Option<String>,
    /// The role of the user.
    #[serde(default)]
    pub role: Role,
    /// The queues that the user may submit to, each with all queues below it; not set: all.
    pub queues: Option<Vec<String>>,
    /// The local user as whom the jobs of a user of other machines run; not set: the user cannot submit jobs.
    pub runs_as: Option<LocalUser>,
}

impl ConfiguredUser {
    /// The user's name in messages and lists.
    pub(crate) fn name(&self) -> String {
        let local = self.local.as_ref().map(ToString::to_string);
        local.or_else(|| self.certificate.clone()).unwrap_or_default()
    }

    pub(crate) fn grant(&self) -> Grant {
        Grant { role: self.role, queues: self.queues.clone(), runs_as: self.runs_as.clone() }
    }
}

/// Checks whether a role and its options fit together.
///
/// # Errors
/// A sentence with the wrong value, and what to do.
pub(crate) fn check_grant(name: &str, grant: &Grant) -> Result<(), String> {
    let Grant { role, queues, .. } = grant;
    if *role == Role::Node {
        return Err(format!("user {name:?} cannot have the role of a node; nodes join with: aliquot token"));
    }
    match queues.as_deref() {
        Some(_) if *role != Role::User => {
            Err(format!("user {name:?} has queues, which only the role \"user\" has; leave the queues out"))
        }
        Some([]) => {
            Err(format!("user {name:?} has no queues; leave `queues` out for all, or give the role \"viewer\""))
        }
        _ => Ok(()),
    }
}

/// Checks the users of a configuration.
///
/// # Errors
/// A sentence with the wrong value, and what to do.
pub(crate) fn check(users: &[ConfiguredUser], default_role: Role) -> Result<(), String> {
    if matches!(default_role, Role::Administrator | Role::Node) {
        return Err("default_role is \"user\", \"viewer\" or \"none\"; name administrators one by one".to_owned());
    }
    let mut seen = BTreeSet::new();
    for user in users {
        let name = user.name();
        match (&user.local, &user.certificate) {
            (Some(_), None) if user.runs_as.is_some() => {
                return Err(format!("user {name:?} is local and runs as itself; leave runs_as out"));
            }
            (Some(_), None) => {}
            (None, Some(certificate)) if !certificate.is_empty() => {}
            _ => return Err("each of [[users]] has either a key `local` or a key `certificate`".to_owned()),
        }
        if !seen.insert((user.local.is_some(), name.clone())) {
            return Err(format!("user {name:?} is in [[users]] twice; join both into one"));
        }
        check_grant(&name, &user.grant())?;
    }
    Ok(())
}

/// The rights of each user that the configuration names.
#[derive(Clone, Debug, Default)]
pub(crate) struct Grants {
    local: BTreeMap<u32, Grant>,
    pub(crate) remote: BTreeMap<String, Grant>,
    administrators: BTreeSet<u32>,
    default_role: Role,
}

impl Grants {
    /// The rights in a configuration. The user that the scheduler runs as is `own`.
    ///
    /// # Errors
    /// If it names a user that does not exist, or the same user twice.
    pub(crate) fn new(
        users: &[ConfiguredUser],
        default_role: Role,
        administrators: &[u32],
        own: u32,
    ) -> Result<Self, String> {
        let administrators = administrators.iter().copied().chain([0, own]).collect();
        let mut grants = Self { default_role, administrators, ..Self::default() };
        for user in users {
            let grant = user.grant();
            match (&user.local, &user.certificate) {
                (Some(local), _) => {
                    let uid = number(local)?;
                    if grants.local.insert(uid, grant).is_some() {
                        return Err(format!("[[users]] names user {uid} twice, as a number and by name; join both"));
                    }
                }
                (None, Some(name)) => _ = grants.remote.insert(name.clone(), grant),
                (None, None) => {}
            }
        }
        Ok(grants)
    }

    /// The rights of a user of the scheduler's machine.
    pub(crate) fn local(&self, uid: u32) -> Grant {
        if self.administrators.contains(&uid) {
            return Grant { role: Role::Administrator, ..Grant::default() };
        }
        self.local.get(&uid).cloned().unwrap_or(Grant { role: self.default_role, ..Grant::default() })
    }
}

/// The number of a local user.
///
/// # Errors
/// If there is no such user on this machine.
pub(crate) fn number(user: &LocalUser) -> Result<u32, String> {
    match user {
        LocalUser::Number(number) => Ok(*number),
        LocalUser::Name(name) => match User::from_name(name) {
            Ok(Some(user)) => Ok(user.uid.as_raw()),
            Ok(None) => {
                Err(format!("there is no user {name:?} on the scheduler's machine; make it, or name another one"))
            }
            Err(error) => Err(format!("cannot look up user {name:?}: {error}")),
        },
    }
}

/// The number of the local user as whom jobs run. This may wait for the network. Root must be named as root: another
/// name with the number 0 is refused.
///
/// # Errors
/// If there is no such user on this machine, or it is root by another name.
pub(crate) fn number_for_jobs(user: &LocalUser) -> Result<u32, String> {
    match (number(user)?, user) {
        (0, LocalUser::Name(name)) if name != "root" => {
            Err(format!("user {name:?} is another name of root; to run jobs as root, name the user root"))
        }
        (number, _) => Ok(number),
    }
}

/// The name of a local user; `None`: the user has none. This may wait for the network.
///
/// # Errors
/// If the machine's list of users cannot be read now.
pub(crate) fn name_of(uid: u32) -> Result<Option<String>, String> {
    let user = User::from_uid(Uid::from_raw(uid)).map_err(|error| format!("cannot look up user {uid}: {error}"))?;
    Ok(user.map(|user| user.name))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn user(local: Option<&str>, certificate: Option<&str>) -> ConfiguredUser {
        ConfiguredUser {
            local: local.map(|name| LocalUser::Name(name.to_owned())),
            certificate: certificate.map(ToOwned::to_owned),
            role: Role::User,
            queues: None,
            runs_as: None,
        }
    }

    #[test]
    fn without_a_configuration_every_local_user_may_submit() {
        let grants = Grants::new(&[], Role::User, &[1000], 998).unwrap();
        for uid in [0, 998, 1000] {
            assert_eq!(grants.local(uid).role, Role::Administrator, "{uid}");
        }
        assert_eq!(grants.local(1001), Grant::default());
        assert_eq!((Grant::default().role, Grant::default().queues), (Role::User, None));
    }

    #[test]
    fn a_named_user_has_what_the_configuration_says() {
        let viewer = ConfiguredUser { local: Some(LocalUser::Number(7)), role: Role::Viewer, ..user(None, None) };
        let root = ConfiguredUser { local: Some(LocalUser::Name("root".into())), role: Role::None, ..user(None, None) };
        let grants = Grants::new(&[viewer, root, user(None, Some("ada"))], Role::None, &[], 0).unwrap();
        assert_eq!(grants.local(7).role, Role::Viewer);
        assert_eq!(grants.local(8).role, Role::None);
        assert_eq!(grants.local(0).role, Role::Administrator, "nobody locks root out");
        assert!(grants.remote.contains_key("ada"));
    }

    #[test]
    fn what_makes_no_sense_is_named() {
        let of = |user: ConfiguredUser| check(&[user], Role::User).unwrap_err();
        assert!(of(user(None, None)).contains("either"));
        assert!(of(user(Some("ada"), Some("ada"))).contains("either"));
        assert!(of(ConfiguredUser { role: Role::Node, ..user(Some("ada"), None) }).contains("aliquot token"));
        assert!(of(ConfiguredUser { queues: Some(vec![]), ..user(Some("ada"), None) }).contains("leave `queues` out"));
        let viewer = ConfiguredUser { role: Role::Viewer, queues: Some(vec!["a".into()]), ..user(Some("ada"), None) };
        assert!(of(viewer).contains("only the role \"user\""));
        let as_bob = ConfiguredUser { runs_as: Some(LocalUser::Number(7)), ..user(Some("ada"), None) };
        assert!(of(as_bob).contains("runs as itself"));
        let twice = [user(None, Some("ada")), user(None, Some("ada"))];
        assert!(check(&twice, Role::User).unwrap_err().contains("twice"));
        assert!(check(&[], Role::Administrator).unwrap_err().contains("default_role"));
    }

    #[test]
    fn a_user_that_there_is_not_is_refused() {
        let missing = LocalUser::Name("no-such-user".to_owned());
        assert!(number(&missing).unwrap_err().contains("no-such-user"));
        let entry = ConfiguredUser { local: Some(missing), ..user(None, None) };
        assert!(Grants::new(&[entry], Role::User, &[], 0).is_err());
        assert_eq!(number_for_jobs(&LocalUser::Name("root".to_owned())), Ok(0));
    }
}
