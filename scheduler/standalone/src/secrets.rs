//! The secrets of users and queues. They are encrypted in the store and in this process. They are decrypted only for
//! the node that starts a job.

mod key;

use std::collections::BTreeMap;
use std::path::PathBuf;

use aliquot_proto::agent::v1 as agent;
use aliquot_proto::scheduler::v1 as wire;
use aliquot_proto::secret::{SECRET_BYTES_MAX, is_secret_name, secret_as_variable};
use aliquot_scheduler_core::DEFAULT_QUEUE;
use aliquot_scheduler_store::{Change, Database, StoreError};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use crate::access::Identity;
use crate::jobs::{Job, SecretUse};
use crate::membership::LoadError;
use key::{Key, KeyError, KeyFile};

/// The kind of the records in which secrets are saved.
const SECRETS: &str = "secret";
/// The most secrets of one user or queue.
const OF_HOLDER_MAX: usize = 100;
/// The most bytes of a variable with its name in a container: podman up to 4.6 reads no longer lines.
const LINE_BYTES_MAX: usize = 60_000;

/// The holder of a secret.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Holder {
    /// A user of a scheduler's machine, by number.
    Local(u32),
    /// A user of another machine, by name.
    Remote(String),
    /// All jobs of a queue and of the queues below it.
    Queue(String),
}

/// A secret, as it is saved.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
struct Record {
    /// The encrypted value. The record's key is authenticated together with it.
    sealed: String,
    /// The name of the key that encrypts the value.
    key: String,
    /// The length of the value in bytes.
    bytes: u32,
    set_ms: u64,
    set_by: String,
}

/// A secret in a list.
#[derive(Debug)]
pub(crate) struct Listed {
    pub(crate) secret: wire::Secret,
    /// The local user who holds it. The name must be looked up, which may take long, so it is not in the secret.
    pub(crate) local_user: Option<u32>,
}

/// Why a secret cannot be set, removed or given to a job.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SecretError {
    #[error("{0}")]
    Invalid(String),
    #[error("{0}")]
    Unknown(String),
    #[error("{0}")]
    TooMany(String),
    #[error(transparent)]
    Key(#[from] KeyError),
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl From<SecretError> for tonic::Status {
    fn from(error: SecretError) -> Self {
        let why = error.to_string();
        match error {
            SecretError::Invalid(_) => Self::invalid_argument(why),
            SecretError::Unknown(_) => Self::not_found(why),
            SecretError::TooMany(_) => Self::resource_exhausted(why),
            SecretError::Key(_) => Self::failed_precondition(why),
            SecretError::Store(_) => Self::unavailable(why),
        }
    }
}

impl Holder {
    /// The holder for a caller or for the owner of a job; `None`: nodes have no secrets.
    pub(crate) fn user(identity: &Identity) -> Option<Self> {
        match identity {
            Identity::Local(uid) => Some(Self::Local(*uid)),
            Identity::Remote(name) => Some(Self::Remote(name.clone())),
            Identity::Node(_) => None,
        }
    }

    /// The holder's name in messages to a user, who is the holder unless that is a queue.
    fn shown(&self, user: &str) -> String {
        match self {
            Self::Local(_) => format!("user {user}"),
            Self::Remote(name) => format!("user {name}"),
            Self::Queue(name) => format!("queue {name:?}"),
        }
    }

    /// The option of the command line that names this holder.
    fn option(&self) -> String {
        match self {
            Self::Queue(name) => format!(" --queue {name}"),
            Self::Local(_) | Self::Remote(_) => String::new(),
        }
    }
}

/// The secrets of all users and queues. They are encrypted in memory and in the store.
#[derive(Debug)]
pub(crate) struct Secrets {
    database: Database,
    key: KeyFile,
    records: Mutex<BTreeMap<(Holder, String), Record>>,
}

/// The key of a record. It is authenticated with the value, so that no record can be exchanged for another.
fn record_key(holder: &Holder, name: &str) -> String {
    serde_json::to_string(&(holder, name)).unwrap_or_default()
}

impl Secrets {
    /// The secrets as saved. `key_file` contains the key that encrypts them. If `makes_key` is set, it is made when it
    /// is first needed.
    pub(crate) fn load(database: Database, key_file: PathBuf, makes_key: bool) -> Result<Self, LoadError> {
        let read = |(key, value): (String, String)| {
            let unreadable = |error: serde_json::Error| LoadError::Record(format!("secret {key}: {error}"));
            Ok((serde_json::from_str(&key).map_err(unreadable)?, serde_json::from_str(&value).map_err(unreadable)?))
        };
        let records = database.records(SECRETS)?.into_iter().map(read).collect::<Result<_, LoadError>>()?;
        Ok(Self { database, key: KeyFile::new(key_file, makes_key), records: Mutex::new(records) })
    }

    /// Sets a secret, in place of an older one. The change is durable when this returns. `set_by` is the name of the
    /// caller, who is the holder unless that is a queue.
    pub(crate) fn set(
        &self,
        now_ms: u64,
        holder: Holder,
        name: &str,
        value: &[u8],
        set_by: &str,
    ) -> Result<wire::Secret, SecretError> {
        if !is_secret_name(name) {
            return Err(SecretError::Invalid(format!(
                "{name:?} cannot be the name of a secret: write 1 to 63 letters, digits, '-', '_' and '.', and begin with a \
                 letter or digit"
            )));
        }
        if value.is_empty() || value.len() > SECRET_BYTES_MAX {
            return Err(SecretError::Invalid(format!(
                "the value of secret {name:?} has {} bytes; a secret has 1 to {SECRET_BYTES_MAX}",
                value.len()
            )));
        }
        let mut records = self.records.lock();
        let key = (holder, name.to_owned());
        if !records.contains_key(&key) {
            let count = records.keys().filter(|(holder, _)| *holder == key.0).count();
            if count >= OF_HOLDER_MAX {
                return Err(SecretError::TooMany(format!(
                    "{} has {count} secrets, which is the most; remove one that no job needs: aliquot secrets remove NAME{}",
                    key.0.shown(set_by),
                    key.0.option()
                )));
            }
        }
        let sealing: std::sync::Arc<Key> = self.key.for_sealing(records.len())?;
        let in_store = record_key(&key.0, name);
        let record = Record {
            sealed: sealing.seal(&in_store, value),
            key: sealing.name().to_owned(),
            bytes: u32::try_from(value.len()).unwrap_or(u32::MAX),
            set_ms: now_ms,
            set_by: set_by.to_owned(),
        };
        let text = serde_json::to_string(&record).map_err(|error| SecretError::Invalid(error.to_string()))?;
        self.database.save(&[Change { kind: SECRETS, key: in_store, value: Some(text) }])?;
        let shown = shown(&key, &record, set_by);
        records.insert(key, record);
        Ok(shown)
    }

    /// The secrets of all holders for which `sees` is true, by holder and name.
    pub(crate) fn list(&self, sees: impl Fn(&Holder) -> bool) -> Vec<Listed> {
        let records = self.records.lock();
        let seen = records.iter().filter(|((holder, _), _)| sees(holder));
        let listed = |(key, record): (&(Holder, String), &Record)| Listed {
            secret: shown(key, record, ""),
            local_user: match key.0 {
                Holder::Local(uid) => Some(uid),
                Holder::Remote(_) | Holder::Queue(_) => None,
            },
        };
        seen.map(listed).collect()
    }

    /// Removes a secret from memory and from the store. Running jobs keep their copies. `by` is the name of the caller.
    pub(crate) fn remove(&self, holder: Holder, name: &str, by: &str) -> Result<(), SecretError> {
        let mut records = self.records.lock();
        let key = (holder, name.to_owned());
        if !records.contains_key(&key) {
            let whose = key.0.shown(by);
            return Err(SecretError::Unknown(format!("{whose} has no secret {name:?}; see: aliquot secrets")));
        }
        self.database.save(&[Change { kind: SECRETS, key: record_key(&key.0, name), value: None }])?;
        records.remove(&key);
        Ok(())
    }

    /// Removes all secrets of a holder that was removed.
    pub(crate) fn remove_all(&self, holder: &Holder) -> Result<(), StoreError> {
        let mut records = self.records.lock();
        let theirs = records.keys().filter(|(of, _)| of == holder);
        let changes: Vec<Change> =
            theirs.map(|(_, name)| Change { kind: SECRETS, key: record_key(holder, name), value: None }).collect();
        self.database.save(&changes)?;
        records.retain(|(of, _), _| of != holder);
        Ok(())
    }

    /// The decrypted secrets that a job names, for its node. `queues` are the job's queue and those above it, the
    /// nearest first.
    ///
    /// # Errors
    /// If a secret does not exist, cannot be decrypted, or cannot be the value of its variable.
    pub(crate) fn of_job(&self, job: &Job, queues: &[String]) -> Result<Vec<agent::Secret>, SecretError> {
        job.spec.secrets.iter().map(|secret| self.open(job, queues, secret)).collect()
    }

    fn open(
        &self,
        job: &Job,
        queues: &[String],
        SecretUse { name, variable }: &SecretUse,
    ) -> Result<agent::Secret, SecretError> {
        let users = Holder::user(&job.owner());
        let holders = users.into_iter().chain(queues.iter().cloned().map(Holder::Queue));
        let mut found = None;
        {
            let records = self.records.lock();
            for holder in holders {
                let key = (holder, name.clone());
                if let Some(record) = records.get(&key) {
                    found = Some((record_key(&key.0, name), record.clone()));
                    break;
                }
            }
        }
        let Some((in_store, record)) = found else {
            let queue = queues.first().map_or(DEFAULT_QUEUE, String::as_str);
            return Err(SecretError::Unknown(format!(
                "neither user {} nor queue {queue:?} has a secret {name:?}; keep one: aliquot secrets set {name} --from-file \
                 FILE",
                job.user
            )));
        };
        let value = self.key.named(&record.key, name)?.open(&in_store, &record.sealed);
        let value = value.ok_or_else(|| {
            SecretError::Invalid(format!(
                "secret {name:?} is damaged in the store; set it again: aliquot secrets set {name}"
            ))
        })?;
        if !variable.is_empty() {
            check_variable(name, variable, &value, job.spec.image.is_some())?;
        }
        Ok(agent::Secret { name: name.clone(), value, variable: variable.clone() })
    }
}

/// Refuses a value that a variable cannot have.
fn check_variable(name: &str, variable: &str, value: &[u8], has_image: bool) -> Result<(), SecretError> {
    let refused = |why: &str| {
        Err(SecretError::Invalid(format!(
            "secret {name:?} cannot be the variable {variable:?}: {why}; let the job read the file: --secret {name}"
        )))
    };
    match secret_as_variable(value) {
        None => refused("it is not text"),
        Some(text) if has_image && text.contains(['\n', '\r']) => {
            refused("it has line breaks, which no container is given")
        }
        Some(text) if has_image && text.len() + variable.len() > LINE_BYTES_MAX => {
            refused(&format!("it has {} bytes, and a container's variables have {LINE_BYTES_MAX} at most", text.len()))
        }
        Some(_) => Ok(()),
    }
}

/// A secret in the form for users, without its value. A local user is called `user`.
fn shown((holder, name): &(Holder, String), record: &Record, user: &str) -> wire::Secret {
    let (queue, user) = match holder {
        Holder::Local(_) => (String::new(), user.to_owned()),
        Holder::Remote(name) => (String::new(), name.clone()),
        Holder::Queue(name) => (name.clone(), String::new()),
    };
    wire::Secret {
        name: name.clone(),
        queue,
        user,
        is_remote: matches!(holder, Holder::Remote(_)),
        bytes: record.bytes,
        set_unix_ms: record.set_ms,
        set_by: record.set_by.clone(),
    }
}

#[cfg(test)]
mod tests;
