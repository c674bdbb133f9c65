//! The key that encrypts secrets. The cipher is AES-256-GCM; the file contains the key's 32 bytes in base 64.

use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use parking_lot::Mutex;
use ring::aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use sha2::{Digest, Sha256};

use crate::certificates::hex;
use crate::membership::random;

const KEY_BYTES: usize = 32;
/// Bytes of a key's name: enough to tell keys apart, and of no help to find the key.
const NAME_BYTES: usize = 8;

/// Why a key cannot be used: the file, the fault, and the remedy.
#[derive(Debug, thiserror::Error)]
#[error("{}: {why}", path.display())]
pub(crate) struct KeyError {
    path: PathBuf,
    why: String,
}

/// The key that encrypts values, as read from its file.
pub(super) struct Key {
    sealing: LessSafeKey,
    /// The beginning of the key's hash.
    name: String,
}

impl std::fmt::Debug for Key {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Key").field("name", &self.name).finish_non_exhaustive()
    }
}

impl Key {
    fn new(bytes: &[u8]) -> Option<Self> {
        let sealing = LessSafeKey::new(UnboundKey::new(&AES_256_GCM, bytes).ok()?);
        let hash = Sha256::digest(bytes);
        Some(Self { sealing, name: hex(&hash[..NAME_BYTES]) })
    }

    /// The key's name, which tells it from other keys.
    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// Encrypts a value for the record with this key. The text contains a random nonce, the encrypted bytes and their
    /// tag.
    pub(super) fn seal(&self, record: &str, value: &[u8]) -> String {
        let nonce = random::<NONCE_LEN>();
        let (mut sealed, mut text) = (value.to_vec(), nonce.to_vec());
        let aad = Aad::from(record.as_bytes());
        let done = self.sealing.seal_in_place_append_tag(Nonce::assume_unique_for_key(nonce), aad, &mut sealed);
        // Only values of 64 GiB and more are refused by the library.
        done.expect("a secret is short");
        text.append(&mut sealed);
        STANDARD.encode(text)
    }

    /// Decrypts a value for the record with this key; `None`: it was encrypted for another record, or was changed
    /// since.
    pub(super) fn open(&self, record: &str, sealed: &str) -> Option<Vec<u8>> {
        let mut bytes = STANDARD.decode(sealed).ok()?;
        let mut value = bytes.split_off(bytes.len().min(NONCE_LEN));
        let nonce = Nonce::try_assume_unique_for_key(&bytes).ok()?;
        let length = self.sealing.open_in_place(nonce, Aad::from(record.as_bytes()), &mut value).ok()?.len();
        value.truncate(length);
        Some(value)
    }
}

/// The file of the key. It is read when the key is first needed.
#[derive(Debug)]
pub(super) struct KeyFile {
    path: PathBuf,
    makes: bool,
    read: Mutex<Option<Arc<Key>>>,
}

impl KeyFile {
    pub(super) fn new(path: PathBuf, makes: bool) -> Self {
        Self { path, makes, read: Mutex::default() }
    }

    fn error(&self, why: impl Into<String>) -> KeyError {
        KeyError { path: self.path.clone(), why: why.into() }
    }

    /// The key for encrypting a new secret, when `others` secrets exist already. Makes a key if there is none and
    /// making one is allowed.
    ///
    /// # Errors
    /// If there is no key, or it cannot be used.
    pub(super) fn for_sealing(&self, others: usize) -> Result<Arc<Key>, KeyError> {
        let mut read = self.read.lock();
        if let Some(key) = &*read {
            return Ok(Arc::clone(key));
        }
        let key = match self.load()? {
            Some(key) => key,
            None if others > 0 => return Err(self.missing(&format!("{others} secrets were sealed with it"))),
            None if self.makes => self.make()?,
            None => {
                return Err(self.error(
                    "there is no such file; schedulers that share a database need the same key for secrets: make it once with \
                     `head -c 32 /dev/urandom | base64`, copy it to each of them with mode 600, and name it as secrets_key in \
                     their configuration",
                ));
            }
        };
        Ok(Arc::clone(read.insert(Arc::new(key))))
    }

    /// The key with this name, which encrypted `secret`.
    ///
    /// # Errors
    /// If there is no key, it is a different one, or it cannot be used.
    pub(super) fn named(&self, name: &str, secret: &str) -> Result<Arc<Key>, KeyError> {
        let mut read = self.read.lock();
        let key = match &*read {
            Some(key) => Arc::clone(key),
            None => {
                let key = self.load()?.ok_or_else(|| self.missing(&format!("secret {secret:?} was sealed with it")))?;
                Arc::clone(read.insert(Arc::new(key)))
            }
        };
        if key.name != name {
            return Err(self.error(format!(
                "secret {secret:?} was sealed with another key, {name}, and this is {}; put that key back and restart the \
                 scheduler, or set the secret again: aliquot secrets set {secret}",
                key.name
            )));
        }
        Ok(key)
    }

    fn missing(&self, needed: &str) -> KeyError {
        self.error(format!(
            "there is no such file, and {needed}; put it back, or remove these secrets and set them again"
        ))
    }

    /// The key in the file; `None`: the file does not exist.
    fn load(&self) -> Result<Option<Key>, KeyError> {
        let mode = match fs::metadata(&self.path) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            metadata => metadata.map_err(|error| self.error(error.to_string()))?.permissions().mode() & 0o7777,
        };
        if mode & 0o077 != 0 {
            return Err(self.error(format!("others can use the key for secrets (mode {mode:o}); run: chmod 600")));
        }
        let text = fs::read_to_string(&self.path).map_err(|error| self.error(error.to_string()))?;
        let bytes = STANDARD.decode(text.trim()).ok().filter(|bytes| bytes.len() == KEY_BYTES);
        let key = bytes.and_then(|bytes| Key::new(&bytes));
        key.map(Some)
            .ok_or_else(|| self.error("this is not a key for secrets, which has 32 bytes in base 64; put the key back"))
    }

    fn make(&self) -> Result<Key, KeyError> {
        let bytes = random::<KEY_BYTES>();
        let text = STANDARD.encode(bytes) + "\n";
        // The file is made so that only its owner can read it.
        aliquot_durable::replace(&self.path, text.as_bytes()).map_err(|error| self.error(error.to_string()))?;
        Key::new(&bytes).ok_or_else(|| self.error("the new key cannot be used"))
    }
}
