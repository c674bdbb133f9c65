//! The nodes that belong to the cluster, and the tokens with which new nodes join.

use std::collections::BTreeMap;
use std::sync::Arc;

use aliquot_scheduler_store::{Change, Database, Leadership, StoreError};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::certificates::hex;

const TOKENS: &str = "token";
const NODES: &str = "member";
/// The beginning of every join token.
const TOKEN_PREFIX: &str = "alq1.";
/// The certificates of one node that are valid at the same time: the newest, and the one before it, which the node uses
/// until it has received the newest.
const SERIALS_MAX: usize = 2;

/// A join token as it is saved. Its key is the hash of its secret.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Token {
    expires_ms: u64,
    uses_left: u32,
    replace: bool,
}

/// A node that has joined.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
struct Member {
    /// The serial numbers of the certificates that are valid for it.
    serials: Vec<String>,
}

/// The content of a join token, as a node gets it.
#[derive(Serialize, Deserialize)]
struct TokenText {
    secret: String,
    authority: String,
}

/// Why a node cannot join.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Denied {
    Token(String),
    Name(String),
    Exists(String),
}

/// How long a join token is valid by default.
pub(crate) const TOKEN_VALID_MS: u64 = 3_600_000;

/// The token for a node that joins, and its command.
#[derive(Clone, Debug)]
pub struct Invitation {
    /// The join token, as text for the node's configuration.
    pub token: String,
    /// The command to run on the node.
    pub command: String,
    /// When the token expires, in milliseconds since 1970.
    pub expires_ms: u64,
}

/// The addresses of the cluster's schedulers, each HOST:PORT.
#[derive(Clone, Debug)]
pub(crate) struct Addresses {
    pub(crate) own: String,
    /// Knows the other schedulers, which may become the leader later.
    pub(crate) leadership: Leadership,
}

impl Addresses {
    /// All addresses, with the own one first.
    pub(crate) fn all(&self) -> Vec<String> {
        let mut addresses = vec![self.own.clone()];
        addresses.extend(self.leadership.schedulers().into_iter().filter(|other| *other != self.own));
        addresses
    }
}

/// Makes join tokens for new nodes.
#[derive(Clone, Debug)]
pub(crate) struct Inviter {
    pub(crate) membership: Arc<Membership>,
    pub(crate) authority_pem: String,
    pub(crate) addresses: Addresses,
}

impl Inviter {
    pub(crate) fn invite(
        &self,
        now_ms: u64,
        valid_ms: u64,
        uses: u32,
        replace: bool,
    ) -> Result<Invitation, StoreError> {
        let made = self.membership.new_token(now_ms, valid_ms, uses, replace, &self.authority_pem);
        let (token, expires_ms) = made?;
        let command = format!("aliquot-manager --scheduler {} --join {token}", self.addresses.all().join(","));
        Ok(Invitation { token, command, expires_ms })
    }
}

/// The nodes that belong to the cluster.
#[derive(Debug)]
pub(crate) struct Membership {
    database: Database,
    /// Held during a change until the change is saved, so that changes follow each other.
    changes: Mutex<()>,
    /// The state as saved. Each call of a node takes this lock, so it is never held during a write to the disk.
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    tokens: BTreeMap<String, Token>,
    members: BTreeMap<String, Member>,
}

impl Membership {
    /// The nodes that have joined, as saved.
    pub(crate) fn load(database: Database) -> Result<Self, LoadError> {
        let read = |(key, value): (String, String)| {
            let token = serde_json::from_str(&value).map_err(|error| LoadError::Record(format!("token: {error}")))?;
            Ok((key, token))
        };
        let tokens = database.records(TOKENS)?.into_iter().map(read).collect::<Result<_, LoadError>>()?;
        let read = |(key, value): (String, String)| {
            let member = serde_json::from_str(&value);
            Ok((key.clone(), member.map_err(|error| LoadError::Record(format!("node {key}: {error}")))?))
        };
        let members = database.records(NODES)?.into_iter().map(read).collect::<Result<_, LoadError>>()?;
        Ok(Self { database, changes: Mutex::new(()), state: Mutex::new(State { tokens, members }) })
    }

    /// Whether no node has ever joined and no token was made.
    pub(crate) fn is_empty(&self) -> bool {
        let state = self.state.lock();
        state.members.is_empty() && state.tokens.is_empty()
    }

    /// Makes a join token. Any node that has the token can join with it.
    pub(crate) fn new_token(
        &self,
        now_ms: u64,
        valid_ms: u64,
        uses: u32,
        replace: bool,
        authority_pem: &str,
    ) -> Result<(String, u64), StoreError> {
        let secret = hex(&random::<24>());
        let expires_ms = now_ms.saturating_add(valid_ms);
        let token = Token { expires_ms, uses_left: uses, replace };
        let _change = self.changes.lock();
        let is_expired = |(_, token): &(&String, &Token)| token.expires_ms <= now_ms;
        let expired: Vec<String> =
            self.state.lock().tokens.iter().filter(is_expired).map(|(key, _)| key.clone()).collect();
        let mut changes: Vec<Change> =
            expired.iter().map(|key| Change { kind: TOKENS, key: key.clone(), value: None }).collect();
        changes.push(record(TOKENS, &hash(&secret), &token));
        self.database.save(&changes)?;
        let mut state = self.state.lock();
        expired.iter().for_each(|key| _ = state.tokens.remove(key));
        state.tokens.insert(hash(&secret), token);
        drop(state);
        let text = TokenText { secret, authority: authority_pem.to_owned() };
        let text = serde_json::to_vec(&text).unwrap_or_default();
        Ok((format!("{TOKEN_PREFIX}{}", URL_SAFE_NO_PAD.encode(text)), expires_ms))
    }

    /// Uses up a token for a node, and makes the node's certificate. Both are durable when this returns.
    pub(crate) fn join<E: From<StoreError>>(
        &self,
        now_ms: u64,
        secret: &str,
        node: &str,
        issue: impl FnOnce() -> Result<(String, String), E>,
    ) -> Result<Result<String, Denied>, E> {
        if let Err(why) = check_name(node) {
            return Ok(Err(Denied::Name(why)));
        }
        let key = hash(secret);
        let _change = self.changes.lock();
        let (token, has_joined) = {
            let state = self.state.lock();
            (state.tokens.get(&key).cloned(), state.members.contains_key(node))
        };
        let Some(token) = token.filter(|token| token.uses_left > 0) else {
            let why = "the join token is not known here, or used up; make a new one with: aliquot token";
            return Ok(Err(Denied::Token(why.to_owned())));
        };
        if token.expires_ms <= now_ms {
            let why = "the join token has expired; make a new one with: aliquot token";
            return Ok(Err(Denied::Token(why.to_owned())));
        }
        if has_joined && !token.replace {
            let why = format!(
                "a node named {node:?} has joined; choose another name, or make a token that replaces it with: \
                 aliquot token --replace"
            );
            return Ok(Err(Denied::Exists(why)));
        }
        let token = Token { uses_left: token.uses_left - 1, ..token };
        let (certificate, serial) = issue()?;
        let member = Member { serials: vec![serial] };
        self.database.save(&[record(TOKENS, &key, &token), record(NODES, node, &member)])?;
        let mut state = self.state.lock();
        state.tokens.insert(key, token);
        state.members.insert(node.to_owned(), member);
        Ok(Ok(certificate))
    }

    /// Notes that a node has a new certificate in place of the one with the serial `of`. Answers whether `of` was valid
    /// for the node until now.
    pub(crate) fn renewed(&self, node: &str, of: &str, serial: String) -> Result<bool, StoreError> {
        let _change = self.changes.lock();
        let member = self.state.lock().members.get(node).cloned();
        let is_its_own = |member: &Member| member.serials.iter().any(|known| known == of);
        let Some(mut member) = member.filter(is_its_own) else { return Ok(false) };
        member.serials.push(serial);
        let excess = member.serials.len().saturating_sub(SERIALS_MAX);
        member.serials.drain(..excess);
        self.database.save(&[record(NODES, node, &member)])?;
        self.state.lock().members.insert(node.to_owned(), member);
        Ok(true)
    }

    /// Whether a certificate is valid for a node of the cluster now.
    pub(crate) fn is_member(&self, node: &str, serial: &str) -> bool {
        self.state.lock().members.get(node).is_some_and(|member| member.serials.iter().any(|known| known == serial))
    }

    /// Takes a node out of the cluster; answers whether it was in. Its certificates are not valid any more from then
    /// on.
    pub(crate) fn remove(&self, node: &str) -> Result<bool, StoreError> {
        let _change = self.changes.lock();
        if !self.state.lock().members.contains_key(node) {
            return Ok(false);
        }
        self.database.save(&[Change { kind: NODES, key: node.to_owned(), value: None }])?;
        self.state.lock().members.remove(node);
        Ok(true)
    }
}

/// Why saved nodes, users or secrets cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// The store cannot be read.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// A record in the store cannot be read.
    #[error("the scheduler's store has a record that cannot be read: {0}; restore a backup")]
    Record(String),
}

fn record(kind: &'static str, key: &str, value: &impl Serialize) -> Change {
    Change { kind, key: key.to_owned(), value: serde_json::to_string(value).ok() }
}

/// Only the hash of a secret is saved, so a reader of the store or of a backup cannot join.
fn hash(secret: &str) -> String {
    hex(&Sha256::digest(secret.as_bytes()))
}

/// Random bytes, which cannot be guessed.
pub(crate) fn random<const N: usize>() -> [u8; N] {
    let mut bytes = [0; N];
    // The kernel's source of random numbers does not fail after the machine has started.
    getrandom::fill(&mut bytes).expect("the kernel gives random bytes");
    bytes
}

fn check_name(node: &str) -> Result<(), String> {
    let is_inner = |letter: char| letter.is_ascii_lowercase() || letter.is_ascii_digit() || matches!(letter, '-' | '.');
    let ends_well = |letter: char| letter.is_ascii_lowercase() || letter.is_ascii_digit();
    let is_usable = (1..=63).contains(&node.len())
        && node.chars().all(is_inner)
        && node.starts_with(ends_well)
        && node.ends_with(ends_well);
    if is_usable {
        return Ok(());
    }
    Err(format!(
        "{node:?} cannot be the name of a node: write 1 to 63 lower-case letters, digits, '-' and '.', with a letter or \
         digit at both ends"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn open(dir: &tempfile::TempDir) -> Membership {
        Membership::load(Database::open(&dir.path().join("scheduler.db")).unwrap()).unwrap()
    }

    fn secret_of(token: &str) -> String {
        let text = URL_SAFE_NO_PAD.decode(token.strip_prefix(TOKEN_PREFIX).unwrap()).unwrap();
        serde_json::from_slice::<TokenText>(&text).unwrap().secret
    }

    fn join(membership: &Membership, now_ms: u64, secret: &str, node: &str) -> Result<String, Denied> {
        membership.join(now_ms, secret, node, || Ok::<_, StoreError>(("pem".into(), format!("serial-{node}")))).unwrap()
    }

    #[test]
    fn a_token_lets_in_as_many_nodes_as_it_says() {
        let dir = tempfile::tempdir().unwrap();
        let membership = open(&dir);
        let (token, _) = membership.new_token(0, 1000, 2, false, "authority").unwrap();
        let secret = secret_of(&token);
        join(&membership, 1, &secret, "a").unwrap();
        assert!(matches!(join(&membership, 1, &secret, "a"), Err(Denied::Exists(_))));
        assert!(matches!(join(&membership, 1, &secret, "A"), Err(Denied::Name(_))));
        join(&membership, 1, &secret, "b").unwrap();
        assert!(matches!(join(&membership, 1, &secret, "c"), Err(Denied::Token(_))));
        assert!(membership.is_member("a", "serial-a") && !membership.is_member("a", "serial-b"));
    }

    #[test]
    fn nodes_are_known_while_another_one_joins() {
        let dir = tempfile::tempdir().unwrap();
        let membership = open(&dir);
        let (token, _) = membership.new_token(0, 1000, 1, false, "authority").unwrap();
        let joined = membership.join(1, &secret_of(&token), "a", || {
            assert!(membership.state.try_lock().is_some(), "those who call wait until the new node is saved");
            Ok::<_, StoreError>(("pem".into(), "serial".into()))
        });
        assert!(joined.unwrap().is_ok() && membership.is_member("a", "serial"));
    }

    #[test]
    fn a_token_expires_and_cannot_be_guessed() {
        let dir = tempfile::tempdir().unwrap();
        let membership = open(&dir);
        let (token, expires_ms) = membership.new_token(0, 1000, 1, false, "authority").unwrap();
        assert!(matches!(join(&membership, expires_ms, &secret_of(&token), "a"), Err(Denied::Token(_))));
        assert!(matches!(join(&membership, 0, "", "a"), Err(Denied::Token(_))));
        assert!(join(&membership, expires_ms - 1, &secret_of(&token), "a").is_ok());
    }

    #[test]
    fn who_has_joined_and_which_tokens_there_are_outlives_a_restart() {
        let dir = tempfile::tempdir().unwrap();
        let membership = open(&dir);
        let (token, _) = membership.new_token(0, 1000, 2, false, "authority").unwrap();
        join(&membership, 1, &secret_of(&token), "a").unwrap();
        assert!(membership.renewed("a", "serial-a", "second".into()).unwrap());
        drop(membership);
        let membership = open(&dir);
        assert!(membership.is_member("a", "serial-a") && membership.is_member("a", "second"));
        join(&membership, 1, &secret_of(&token), "b").unwrap();
        assert!(membership.renewed("a", "second", "third".into()).unwrap());
        assert!(!membership.is_member("a", "serial-a"), "the certificate before the last two is worth nothing");
    }

    #[test]
    fn a_node_that_is_removed_or_replaced_is_not_let_in_again() {
        let dir = tempfile::tempdir().unwrap();
        let membership = open(&dir);
        let (token, _) = membership.new_token(0, 1000, 9, true, "authority").unwrap();
        let secret = secret_of(&token);
        join(&membership, 1, &secret, "a").unwrap();
        let other = membership.join(1, &secret, "a", || Ok::<_, StoreError>(("pem".into(), "other".into())));
        assert!(other.unwrap().is_ok());
        assert!(membership.is_member("a", "other") && !membership.is_member("a", "serial-a"));
        assert!(membership.remove("a").unwrap() && !membership.remove("a").unwrap());
        assert!(!membership.is_member("a", "other"));
        assert!(!membership.renewed("a", "other", "new".into()).unwrap(), "who was removed gets no certificate");
        assert!(!membership.is_member("a", "new"));
    }
}
