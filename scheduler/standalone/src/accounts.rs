//! Users of other machines that administrators have added: their rights and their certificates.

use std::collections::BTreeMap;

use aliquot_scheduler_store::{Change, Database, StoreError};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use tokio::sync::watch;

use crate::access::Grant;
use crate::certificates::Subject;
use crate::membership::LoadError;

/// The kind of the records in which users are saved.
const USERS: &str = "user";

/// A user, as saved.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Account {
    pub(crate) grant: Grant,
    /// The certificate that the scheduler signed last for this user; earlier ones are not valid any more. `None`: it
    /// has signed none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) certificate: Option<Signed>,
}

/// A certificate that the scheduler has signed for a user.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct Signed {
    pub(crate) serial: String,
    pub(crate) expires_ms: u64,
}

/// All users that administrators have added.
#[derive(Debug)]
pub(crate) struct Accounts {
    database: Database,
    /// Held during a change until the change is saved, so that changes follow each other.
    changes: Mutex<()>,
    /// The users as saved. Each call of a user takes this lock, so it is never held during a write to the disk.
    users: Mutex<BTreeMap<String, Account>>,
    /// Signals that a user has changed.
    changed: watch::Sender<()>,
}

impl Accounts {
    /// The users as they were saved.
    pub(crate) fn load(database: Database) -> Result<Self, LoadError> {
        let read = |(name, value): (String, String)| {
            let account = serde_json::from_str(&value);
            Ok((name.clone(), account.map_err(|error| LoadError::Record(format!("user {name}: {error}")))?))
        };
        let users = database.records(USERS)?.into_iter().map(read).collect::<Result<_, LoadError>>()?;
        Ok(Self { database, changes: Mutex::new(()), users: Mutex::new(users), changed: watch::Sender::new(()) })
    }

    pub(crate) fn get(&self, name: &str) -> Option<Account> {
        self.users.lock().get(name).cloned()
    }

    /// All users with their names, in the order of the names.
    pub(crate) fn all(&self) -> Vec<(String, Account)> {
        self.users.lock().iter().map(|(name, account)| (name.clone(), account.clone())).collect()
    }

    /// Whether this certificate is the one that was signed last for its user.
    pub(crate) fn has_signed(&self, subject: &Subject) -> bool {
        let users = self.users.lock();
        let signed = users.get(&subject.name).and_then(|account| account.certificate.as_ref());
        signed.is_some_and(|signed| signed.serial == subject.serial)
    }

    /// Adds, changes or removes a user. `change` gets the present account. The change is durable when this returns.
    pub(crate) fn change<T, E: From<StoreError>>(
        &self,
        name: &str,
        change: impl FnOnce(Option<&Account>) -> Result<(Option<Account>, T), E>,
    ) -> Result<T, E> {
        let _change = self.changes.lock();
        let (account, answer) = change(self.get(name).as_ref())?;
        let value = account.as_ref().and_then(|account| serde_json::to_string(account).ok());
        self.database.save(&[Change { kind: USERS, key: name.to_owned(), value }])?;
        match account {
            Some(account) => _ = self.users.lock().insert(name.to_owned(), account),
            None => _ = self.users.lock().remove(name),
        }
        self.changed.send_replace(());
        Ok(answer)
    }

    /// A receiver that is told of every later change.
    pub(crate) fn changes(&self) -> watch::Receiver<()> {
        self.changed.subscribe()
    }
}

/// Refuses names that are not usable in certificates, files and commands.
///
/// # Errors
/// A sentence that says which names are allowed.
pub(crate) fn check_name(name: &str) -> Result<(), String> {
    let is_usable = (1..=63).contains(&name.len())
        && name.starts_with(|letter: char| letter.is_ascii_alphanumeric())
        && name.chars().all(|letter| letter.is_ascii_alphanumeric() || matches!(letter, '-' | '_' | '.' | '@'));
    if is_usable {
        return Ok(());
    }
    Err(format!(
        "{name:?} cannot be the name of a user: write 1 to 63 letters, digits, '-', '_', '.' and '@', and begin with a \
         letter or digit"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::access::{LocalUser, Role};

    fn open(dir: &tempfile::TempDir) -> Accounts {
        Accounts::load(Database::open(&dir.path().join("scheduler.db")).unwrap()).unwrap()
    }

    fn add(accounts: &Accounts, name: &str, serial: &str) {
        let certificate = Some(Signed { serial: serial.to_owned(), expires_ms: 9 });
        let grant =
            Grant { role: Role::User, queues: Some(vec!["a".into()]), runs_as: Some(LocalUser::Name("ada".into())) };
        let account = Account { grant, certificate };
        accounts.change(name, |_| Ok::<_, StoreError>((Some(account), ()))).unwrap();
    }

    fn has_signed(accounts: &Accounts, name: &str, serial: &str) -> bool {
        accounts.has_signed(&Subject { name: name.to_owned(), serial: serial.to_owned(), expires_ms: 9 })
    }

    #[test]
    fn users_outlive_a_restart_and_so_does_a_removal() {
        let dir = tempfile::tempdir().unwrap();
        let accounts = open(&dir);
        add(&accounts, "ada", "first");
        add(&accounts, "bob", "other");
        accounts.change("bob", |_| Ok::<_, StoreError>((None, ()))).unwrap();
        let before = accounts.get("ada").unwrap();
        drop(accounts);
        let accounts = open(&dir);
        assert_eq!(accounts.all(), [("ada".to_owned(), before)]);
        assert!(has_signed(&accounts, "ada", "first"));
        assert!(!has_signed(&accounts, "bob", "other"), "a user who was removed stays away");
    }

    #[test]
    fn the_last_certificate_counts() {
        let dir = tempfile::tempdir().unwrap();
        let accounts = open(&dir);
        let changes = accounts.changes();
        add(&accounts, "ada", "first");
        add(&accounts, "ada", "second");
        assert!(changes.has_changed().unwrap());
        assert!(has_signed(&accounts, "ada", "second") && !has_signed(&accounts, "ada", "first"));
        assert!(!has_signed(&accounts, "bob", "second"), "it is not that of somebody else");
    }

    #[test]
    fn a_change_that_fails_changes_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let accounts = open(&dir);
        assert!(accounts.change::<(), _>("ada", |_| Err(LoadError::Record("no".to_owned()))).is_err());
        assert_eq!(accounts.all(), []);
    }

    #[test]
    fn users_are_found_while_one_is_changed() {
        let dir = tempfile::tempdir().unwrap();
        let accounts = open(&dir);
        add(&accounts, "ada", "first");
        let looked = accounts.change("ada", |before| {
            // Another call sees only saved changes.
            let others_find = accounts.users.try_lock().map(|users| users.get("ada").cloned());
            Ok::<_, StoreError>((before.cloned(), others_find))
        });
        assert_eq!(looked.unwrap(), Some(accounts.get("ada")));
    }

    #[test]
    fn names_are_those_of_people_and_machines() {
        for name in ["ada", "ada@example.com", "ci-7_x.y", "7"] {
            check_name(name).unwrap();
        }
        for name in ["", "-ada", "a b", "ä", "../a", "a\n", &"a".repeat(64)] {
            assert!(check_name(name).is_err(), "{name:?}");
        }
    }
}
