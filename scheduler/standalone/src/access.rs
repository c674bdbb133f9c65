//! Access rights. All rights are decided here, without I/O: a caller and an action give permission, or a reason with
//! the caller's rights and the users who can change them.

use serde::{Deserialize, Serialize};

use crate::secrets::Holder;

/// The role of a user or node.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Role {
    /// Sees, submits and cancels everything, and changes queues, nodes, tokens and users.
    Administrator,
    /// Submits jobs to some queues or all, and sees and cancels its own jobs.
    #[default]
    User,
    /// Sees everything and changes nothing.
    Viewer,
    /// Calls the API for nodes, and none of the API for users.
    Node,
    /// May do nothing, not even look at lists.
    None,
}

/// The caller of a call, or the owner of a job.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Identity {
    /// A user of a scheduler's machine, by user number.
    Local(u32),
    /// A user of another machine, by the name in the certificate.
    Remote(String),
    /// A node, by name.
    Node(String),
}

/// A user of the scheduler's machine, as an administrator writes it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(untagged)]
pub enum LocalUser {
    /// By user number, as the kernel knows it.
    Number(u32),
    /// By name, from the machine's list of users.
    Name(String),
}

/// The rights of a user.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Grant {
    pub(crate) role: Role,
    /// The queues that the user may submit to, each with all queues below it; `None`: all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) queues: Option<Vec<String>>,
    /// The local user as whom this user's jobs run, if the user is one of another machine.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) runs_as: Option<LocalUser>,
}

/// A caller and the caller's rights.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Caller {
    pub(crate) identity: Identity,
    /// The caller's name in messages.
    pub(crate) name: String,
    pub(crate) grant: Grant,
}

/// The facts about a job on which rights depend.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct OwnedJob<'job> {
    pub(crate) id: u64,
    pub(crate) owner: Identity,
    /// The owner's name in messages.
    pub(crate) user: &'job str,
}

/// An action that a caller asks for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Action<'a> {
    /// Look at the lists of jobs, queues and nodes, without their private parts.
    Look,
    /// See the list of users and their rights.
    SeeUsers,
    /// Submit a job to the first of these queues; the others are the queues above it.
    Submit { queues: &'a [String] },
    /// See the command, the environment, the log and the reasons of a job. The verb is for messages.
    Inspect { job: OwnedJob<'a>, verb: &'static str },
    /// Change a job or act in its owner's name. The verb is for messages.
    Control { job: OwnedJob<'a>, verb: &'static str },
    /// See that this holder has a secret. No call ever answers its value. A queue is listed with those above and below
    /// it.
    SeeSecret { holder: &'a Holder, queues: &'a [String] },
    /// Set or remove a secret of this holder.
    ChangeSecret { holder: &'a Holder },
    /// Change queues, nodes, tokens and users.
    Administer,
}

/// Says in messages which users are administrators.
const ADMINISTRATORS: &str = "administrators are root, the scheduler's own user, and the administrators in its \
                              configuration";

impl std::fmt::Display for LocalUser {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Number(number) => write!(f, "{number}"),
            Self::Name(name) => f.write_str(name),
        }
    }
}

impl Caller {
    /// Checks whether the caller may do this.
    ///
    /// # Errors
    /// A sentence with the reason, the caller's rights, and the users who can change them.
    pub(crate) fn may(&self, action: &Action<'_>) -> Result<(), String> {
        let Grant { role, queues, runs_as } = &self.grant;
        let owns = |job: &OwnedJob<'_>| job.owner == self.identity;
        let holds = |holder: &Holder| Holder::user(&self.identity).as_ref() == Some(holder);
        let is_user = |holder: &Holder| !matches!(holder, Holder::Queue(_));
        let may_submit_to =
            |asked: &[String]| queues.as_ref().is_none_or(|own| own.iter().any(|queue| asked.contains(queue)));
        let is_allowed = match (role, action) {
            (Role::Node | Role::None, _) => false,
            (Role::Administrator | Role::User, Action::Submit { .. }) if self.is_remote() && runs_as.is_none() => {
                return Err(self.has_no_local_user());
            }
            (Role::User | Role::Viewer, Action::Look) => true,
            (Role::Viewer, Action::Inspect { .. } | Action::SeeUsers | Action::SeeSecret { .. }) => true,
            // A user's secret can be changed by that user only, even if the caller is an administrator.
            (Role::Administrator, Action::ChangeSecret { holder }) if is_user(holder) => holds(holder),
            (Role::User, Action::ChangeSecret { holder }) => holds(holder),
            (Role::User, Action::SeeSecret { holder, queues: asked }) => match is_user(holder) {
                true => holds(holder),
                false => may_submit_to(asked),
            },
            (Role::User, Action::Submit { queues: asked }) => may_submit_to(asked),
            (Role::User, Action::Inspect { job, .. } | Action::Control { job, .. }) => owns(job),
            (Role::Administrator, _) => true,
            (Role::User, Action::SeeUsers | Action::Administer) => false,
            (
                Role::Viewer,
                Action::Submit { .. } | Action::Control { .. } | Action::ChangeSecret { .. } | Action::Administer,
            ) => false,
        };
        if is_allowed { Ok(()) } else { Err(self.refusal(action)) }
    }

    /// Whether the caller may see the private parts of a job.
    pub(crate) fn may_inspect(&self, job: OwnedJob<'_>) -> bool {
        self.may(&Action::Inspect { job, verb: "see" }).is_ok()
    }

    fn is_remote(&self) -> bool {
        matches!(self.identity, Identity::Remote(_))
    }

    fn has_no_local_user(&self) -> String {
        let name = &self.name;
        format!(
            "user {name} calls from another machine, and it is not said as which local user the jobs of {name} run; an \
             administrator can say it: aliquot users set {name} --as LOCALUSER, or runs_as in the scheduler's configuration"
        )
    }

    fn refusal(&self, action: &Action<'_>) -> String {
        let refused = match action {
            Action::Look => "this call is for users of the cluster".to_owned(),
            Action::SeeUsers => "only administrators and viewers may see users and their rights".to_owned(),
            Action::Submit { queues } => {
                let queue = queues.first().map(String::as_str).unwrap_or_default();
                format!("{} may not submit to queue {queue:?}", self.who())
            }
            Action::Inspect { job: OwnedJob { id, user, .. }, verb } => {
                format!("job {id} is of user {user}; only that user, administrators and viewers may {verb} it")
            }
            Action::Control { job: OwnedJob { id, user, .. }, verb } => {
                format!("job {id} is of user {user}; only that user and administrators may {verb} it")
            }
            Action::SeeSecret { .. } => format!("{} may not see this secret", self.who()),
            Action::ChangeSecret { holder: Holder::Queue(queue) } => {
                format!("only administrators may change the secrets of queue {queue:?}")
            }
            Action::ChangeSecret { .. } => format!("{} has no secrets, because no job can use them", self.who()),
            Action::Administer => "only administrators may do this".to_owned(),
        };
        let change = match &self.identity {
            Identity::Local(_) => "can change that in the table users of the scheduler's configuration",
            Identity::Remote(_) => "can change that with: aliquot users set",
            Identity::Node(_) => "can give you a certificate of a user: aliquot users add",
        };
        format!("{refused}; {} {}; administrators {change} ({ADMINISTRATORS})", self.who(), self.allowance())
    }

    fn who(&self) -> String {
        let kind = if matches!(self.identity, Identity::Node(_)) { "node" } else { "user" };
        format!("{kind} {}", self.name)
    }

    /// The caller's rights, as words for messages.
    fn allowance(&self) -> String {
        match (self.grant.role, &self.grant.queues) {
            (Role::Administrator, _) => "may do everything".to_owned(),
            (Role::User, None) => "may submit jobs to all queues, and see and cancel these jobs".to_owned(),
            (Role::User, Some(queues)) => {
                let queues: Vec<String> = queues.iter().map(|queue| format!("{queue:?}")).collect();
                format!("may submit jobs to {} and the queues below, and see and cancel these jobs", queues.join(", "))
            }
            (Role::Viewer, _) => "may see everything and change nothing".to_owned(),
            (Role::Node, _) => "may only make the calls for nodes".to_owned(),
            (Role::None, _) => "may do nothing here".to_owned(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn caller(identity: Identity, role: Role, queues: Option<&[&str]>) -> Caller {
        let queues = queues.map(|queues| queues.iter().map(|queue| (*queue).to_owned()).collect());
        let runs_as = Some(LocalUser::Number(1000)).filter(|_| matches!(identity, Identity::Remote(_)));
        Caller { identity, name: "ada".to_owned(), grant: Grant { role, queues, runs_as } }
    }

    fn ada() -> Identity {
        Identity::Remote("ada".to_owned())
    }

    fn job_of(owner: Identity) -> OwnedJob<'static> {
        OwnedJob { id: 7, owner, user: "somebody" }
    }

    /// One letter for each action: submit to team-a, to a queue below it and to team-b, then the other actions; those
    /// with secrets come last.
    fn table(caller: &Caller) -> String {
        let queues = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        let (own, below, other) = (queues(&["team-a"]), queues(&["vision", "team-a"]), queues(&["team-b"]));
        let bob = Identity::Local(7);
        let own_secrets = Holder::user(&caller.identity).expect("a user");
        let (others, of_queue) = (Holder::Local(7), Holder::Queue("team-a".to_owned()));
        let actions = [
            Action::Look,
            Action::SeeUsers,
            Action::Submit { queues: &own },
            Action::Submit { queues: &below },
            Action::Submit { queues: &other },
            Action::Inspect { job: job_of(caller.identity.clone()), verb: "see" },
            Action::Inspect { job: job_of(bob.clone()), verb: "see" },
            Action::Control { job: job_of(caller.identity.clone()), verb: "cancel" },
            Action::Control { job: job_of(bob), verb: "cancel" },
            Action::Administer,
            Action::SeeSecret { holder: &own_secrets, queues: &[] },
            Action::SeeSecret { holder: &others, queues: &[] },
            Action::SeeSecret { holder: &of_queue, queues: &own },
            Action::ChangeSecret { holder: &own_secrets },
            Action::ChangeSecret { holder: &others },
            Action::ChangeSecret { holder: &of_queue },
        ];
        actions.iter().map(|action| if caller.may(action).is_ok() { 'y' } else { '-' }).collect()
    }

    #[test]
    fn each_role_may_what_the_table_says() {
        for (role, queues, expected) in [
            //                              look, users, 3 queues, see own and other, cancel own and other, administer; see, change secrets
            (Role::Administrator, None, "yyyyyyyyyyyyyy-y"),
            (Role::User, None, "y-yyyy-y--y-yy--"),
            (Role::User, Some(&["team-a"][..]), "y-yy-y-y--y-yy--"),
            (Role::User, Some(&["vision"][..]), "y--y-y-y--y--y--"),
            (Role::Viewer, None, "yy---yy---yyy---"),
            (Role::Node, None, "----------------"),
            (Role::None, None, "----------------"),
        ] {
            for identity in [Identity::Local(1000), ada()] {
                let caller = caller(identity, role, queues);
                assert_eq!(table(&caller), expected, "{caller:?}");
            }
        }
    }

    #[test]
    fn the_same_name_on_another_machine_is_another_user() {
        let remote = caller(ada(), Role::User, None);
        assert!(!remote.may_inspect(job_of(Identity::Local(1000))), "although it runs as this user");
        let local = caller(Identity::Local(1000), Role::User, None);
        assert!(!local.may_inspect(job_of(ada())));
    }

    #[test]
    fn without_a_local_user_nobody_elsewhere_submits() {
        for role in [Role::User, Role::Administrator] {
            let mut caller = caller(ada(), role, None);
            caller.grant.runs_as = None;
            let why = caller.may(&Action::Submit { queues: &["default".to_owned()] }).unwrap_err();
            assert!(why.contains("--as LOCALUSER"), "{why}");
        }
    }

    #[test]
    fn a_refusal_says_what_is_allowed_and_who_can_change_it() {
        let caller = caller(ada(), Role::User, Some(&["team-a"]));
        let why = caller.may(&Action::Submit { queues: &["team-b".to_owned()] }).unwrap_err();
        for part in ["may not submit to queue \"team-b\"", "may submit jobs to \"team-a\"", "aliquot users set", "root"]
        {
            assert!(why.contains(part), "{why}");
        }
        let why = caller.may(&Action::Control { job: job_of(Identity::Local(7)), verb: "cancel" }).unwrap_err();
        assert!(why.starts_with("job 7 is of user somebody; only that user and administrators may cancel it"), "{why}");
    }
}
