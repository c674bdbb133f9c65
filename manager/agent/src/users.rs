//! The users whose jobs may run on this node, and their accounts here.

use std::path::PathBuf;
use std::sync::Arc;

use nix::unistd::{Uid, User, geteuid, getgrouplist};

use crate::settings::Settings;
use crate::supervise::Credentials;

/// A user of this node.
#[derive(Clone, Debug)]
pub(crate) struct JobUser {
    pub(crate) credentials: Credentials,
    pub(crate) name: String,
    pub(crate) home: PathBuf,
    pub(crate) shell: PathBuf,
}

/// How a user is found, as [`look_up`] does.
pub(crate) type LookUp = Arc<dyn Fn(u32, &str, &Settings) -> Result<JobUser, String> + Send + Sync>;

/// The user `uid`, whom the scheduler knows as `name`. Waits where a name service on another machine does not answer.
///
/// # Errors
/// The error says why jobs of this user do not run here.
pub(crate) fn look_up(uid: u32, name: &str, settings: &Settings) -> Result<JobUser, String> {
    let own = geteuid();
    if uid == 0 && !settings.allow_root {
        return Err(
            "jobs of root do not run on this node; submit it as another user, or set cluster.allow_root = true \
                    in its manager's configuration"
                .into(),
        );
    }
    if settings.allowed_uids.as_ref().is_some_and(|uids| !uids.contains(&uid)) {
        return Err(format!("jobs of user {uid} ({name}) do not run on this node: see cluster.allowed_uids"));
    }
    if !own.is_root() && own.as_raw() != uid {
        return Err(format!(
            "the node manager runs as user {own} and not as root, so jobs of user {uid} ({name}) do not run on this node"
        ));
    }
    let user = User::from_uid(Uid::from_raw(uid)).map_err(|error| format!("cannot look up user {uid}: {error}"))?;
    let user = user.ok_or_else(|| format!("there is no user {uid} ({name}) on this node"))?;
    let c_name = std::ffi::CString::new(user.name.clone()).map_err(|_| format!("the name of user {uid} is damaged"))?;
    let groups =
        getgrouplist(&c_name, user.gid).map_err(|error| format!("cannot look up groups of {name}: {error}"))?;
    Ok(JobUser {
        credentials: Credentials {
            uid,
            gid: user.gid.as_raw(),
            groups: groups.into_iter().map(nix::unistd::Gid::as_raw).collect(),
        },
        name: user.name,
        home: user.dir,
        shell: user.shell,
    })
}

impl JobUser {
    /// Checks that this is the user whom the scheduler's machine knows by this name; empty: it knows none. A domain is
    /// not compared, because machines write it in different ways.
    ///
    /// # Errors
    /// The number is that of another user here.
    pub(crate) fn check_name(&self, there: &str) -> Result<(), String> {
        let (here, uid) = (&self.name, self.credentials.uid);
        if there.is_empty() || without_domain(there).eq_ignore_ascii_case(without_domain(here)) {
            return Ok(());
        }
        // One number may have several names.
        let named = User::from_name(there).map_err(|error| format!("cannot look up user {there}: {error}"))?;
        if named.is_some_and(|user| user.uid.as_raw() == uid) {
            return Ok(());
        }
        Err(format!(
            "user {uid} is {here:?} on this node and {there:?} on the scheduler's machine, so the job would run as somebody \
             else; give users the same numbers on all machines"
        ))
    }
}

/// A name such as `ada`, also of `ada@example.com` and `EXAMPLE\ada`.
fn without_domain(name: &str) -> &str {
    let name = name.rsplit('\\').next().unwrap_or(name);
    name.split('@').next().unwrap_or(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jobs_of_root_need_permission() {
        assert!(look_up(0, "root", &Settings::default()).unwrap_err().contains("allow_root"));
        let settings = Settings { allowed_uids: Some(vec![1]), ..Settings::default() };
        assert!(look_up(2, "ada", &settings).unwrap_err().contains("allowed_uids"));
    }

    #[test]
    fn a_user_who_is_not_there_is_named() {
        let nobody_has_this = 4_000_000_001;
        let why = look_up(nobody_has_this, "ada", &Settings::default()).unwrap_err();
        assert!(why.contains("ada") && why.contains("4000000001"), "{why}");
    }

    #[test]
    fn a_number_that_is_another_users_here_is_refused() {
        let settings = Settings { allow_root: true, ..Settings::default() };
        let own = look_up(geteuid().as_raw(), "me", &settings).unwrap();
        let user = JobUser { name: "bob".to_owned(), ..own.clone() };
        let why = user.check_name("ada").unwrap_err();
        assert!(why.contains("is \"bob\" on this node and \"ada\" on the scheduler's machine"), "{why}");
        for same in ["", "bob", "Bob", "bob@example.com", "EXAMPLE\\bob", &own.name] {
            user.check_name(same).unwrap();
        }
    }

    #[test]
    fn this_user_is_found_with_home_and_groups() {
        let settings = Settings { allow_root: true, ..Settings::default() };
        let user = look_up(geteuid().as_raw(), "me", &settings).unwrap();
        assert!(!user.name.is_empty() && user.home.is_absolute());
        assert!(user.credentials.groups.contains(&user.credentials.gid));
    }
}
