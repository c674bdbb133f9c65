//! The records of claims: one file for each claim, written before any work for the claim and kept until all of it is
//! undone. So as long as a part of a claim exists, its record does as well. With one file for all claims, each of two
//! hundred claims would rewrite it.
//!
//! A file is replaced as a whole (written aside, synced, renamed, and the directory synced). It carries the version of
//! its format, and a checksum of its content. Claims that are prepared at once share the syncs of the directory. A
//! claim that is one slice, as most are, is written in the first format, which allows only one slice: so an older
//! program can be put back in place of this one.
//!
//! The record of a claim that was only begun must outlive this process, but not the machine: kubelet was told nothing
//! yet, and the files of a slice end with the machine too. Kubelet, which has noted the claim before it asks, asks
//! again or unprepares it; its slice is then found by the claim's UID. So such a record is not synced, unless it
//! replaces another one or names MIG instances. A loss of power can leave it empty, and the next start removes it.
//!
//! A slice without a record and without a claim in the API can be found and removed. MIG instances cannot: nothing
//! distinguishes those that were made for claims from an administrator's. So a record that names instances has a copy
//! in a second file, which is used if the first is damaged. If both are damaged, the instances stay until a person
//! destroys them.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use aliquot_durable::Directory;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use sha2::{Digest, Sha256};
use tracing::{info, warn};

use super::allocation::{AllocatedDevice, ClaimSlice};
use super::instances;
use super::names::ClaimUid;

/// The newest format of the files.
const VERSION: u32 = 2;
/// The format for claims that are one slice.
const VERSION_OF_ONE: u32 = 1;
const EXTENSION: &str = "json";
/// The extension of copies.
const COPY_EXTENSION: &str = "copy";

/// How far a claim is prepared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Phase {
    /// The slices may exist or not; kubelet was not told of them.
    Started,
    /// The slices exist, and kubelet was told of them.
    Completed,
}

/// The record of a claim.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Record {
    /// The UID of the claim.
    pub uid: ClaimUid,
    /// The namespace of the claim.
    pub namespace: String,
    /// The name of the claim.
    pub name: String,
    /// How far the claim is prepared.
    pub phase: Phase,
    /// The boot of the machine in which this was written.
    pub boot_id: String,
    /// The slices that the claim is divided into.
    #[serde(flatten, with = "written")]
    pub slices: Vec<ClaimSlice>,
}

impl Record {
    /// The devices to report to kubelet.
    pub(super) fn devices(&self) -> impl Iterator<Item = &AllocatedDevice> {
        self.slices.iter().flat_map(|slice| &slice.devices)
    }

    /// The division of the claim's requests into slices.
    #[must_use]
    pub(super) fn division(&self) -> Vec<BTreeSet<String>> {
        self.slices.iter().map(ClaimSlice::requests).collect()
    }

    fn version(&self) -> u32 {
        if self.slices.len() == 1 { VERSION_OF_ONE } else { VERSION }
    }
}

/// The form of slices in a record: one slice by itself, several as a list.
mod written {
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    use super::ClaimSlice;

    #[derive(Serialize, Deserialize)]
    #[serde(untagged)]
    enum Written {
        Several { slices: Vec<ClaimSlice> },
        One(ClaimSlice),
    }

    pub(super) fn serialize<S: Serializer>(slices: &[ClaimSlice], serializer: S) -> Result<S::Ok, S::Error> {
        let written = match slices {
            [one] => Written::One(one.clone()),
            several => Written::Several { slices: several.into() },
        };
        written.serialize(serializer)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<ClaimSlice>, D::Error> {
        Ok(match Written::deserialize(deserializer)? {
            Written::Several { slices } => slices,
            Written::One(slice) => vec![slice],
        })
    }
}

/// The reason why a record is not read or written.
#[derive(Debug, thiserror::Error)]
pub enum PreparedClaimsError {
    /// The file system refuses.
    #[error("cannot {action} {}: {source}", path.display())]
    Io {
        /// The action that failed.
        action: &'static str,
        /// The file that it was for.
        path: PathBuf,
        /// The error of the system.
        source: io::Error,
    },
    /// The content is not what was written.
    #[error("{} is damaged: {what}", path.display())]
    Damaged {
        /// The path of that file.
        path: PathBuf,
        /// What is wrong with the content.
        what: String,
    },
    /// The file is of another version of this program.
    #[error(
        "{} is of version {found}, and this program reads versions up to {VERSION}: use the program that wrote it",
        path.display()
    )]
    Version {
        /// The path of that file.
        path: PathBuf,
        /// The version of the file's format.
        found: u32,
    },
}

#[derive(Serialize, Deserialize)]
struct Envelope {
    version: u32,
    checksum: String,
    record: Value,
}

/// The directory of the records.
#[derive(Debug)]
pub(super) struct PreparedClaims {
    files: Directory,
}

impl PreparedClaims {
    /// The records in `dir`, which is made if it does not exist. Unfinished files of an earlier process are removed,
    /// and so are records that a loss of power has left empty.
    pub(super) fn open(dir: PathBuf) -> Result<PreparedClaims, PreparedClaimsError> {
        fs::create_dir_all(&dir).map_err(io_error("make", &dir))?;
        let prepared = PreparedClaims { files: Directory::new(dir) };
        for path in prepared.paths()? {
            let is_unfinished =
                path.extension().is_none_or(|extension| extension != EXTENSION && extension != COPY_EXTENSION);
            if is_unfinished {
                fs::remove_file(&path).map_err(io_error("remove", &path))?;
            } else if fs::metadata(&path).map_err(io_error("read", &path))?.len() == 0 {
                info!(path = %path.display(), "removes an empty record: the power was lost when its claim was begun");
                fs::remove_file(&path).map_err(io_error("remove", &path))?;
            }
        }
        Ok(prepared)
    }

    /// The record of a claim, if there is one.
    pub(super) fn load(&self, uid: &ClaimUid) -> Result<Option<Record>, PreparedClaimsError> {
        let outcome = read(self.file(uid), uid);
        if !matches!(outcome, Ok(None) | Err(PreparedClaimsError::Damaged { .. })) {
            return outcome;
        }
        match read(self.copy(uid), uid) {
            Ok(Some(record)) => {
                warn!(claim = %uid, "what is remembered of a claim is damaged: its copy is taken");
                Ok(Some(record))
            }
            _ => outcome,
        }
    }

    /// Writes `record` in place of the claim's former record. When this returns, it outlives this process. It also
    /// outlives a loss of power, unless the claim was only begun.
    pub(super) fn save(&self, record: &Record) -> Result<(), PreparedClaimsError> {
        let path = self.file(&record.uid);
        let contents = contents(record).map_err(|error| io_error("write", &path)(error.into()))?;
        let has_instances = instances::partitions(record).next().is_some();
        if has_instances {
            let copy = self.copy(&record.uid);
            self.files.replace(&copy, &contents).map_err(io_error("write", &copy))?;
        }
        let ends_with_the_machine = record.phase == Phase::Started && !has_instances && !path.exists();
        let written = match ends_with_the_machine {
            true => self.files.make_unsynced(&path, &contents),
            false => self.files.replace(&path, &contents),
        };
        written.map_err(io_error("write", &path))
    }

    /// Removes the record of a claim.
    pub(super) fn remove(&self, uid: &ClaimUid) -> Result<(), PreparedClaimsError> {
        // The copy is removed first, because a copy without its record would be taken for a claim.
        for path in [self.copy(uid), self.file(uid)] {
            self.files.remove(&path).map_err(io_error("remove", &path))?;
        }
        Ok(())
    }

    /// The claims that have a record, whether it can be read or not.
    pub(super) fn uids(&self) -> Result<Vec<ClaimUid>, PreparedClaimsError> {
        let paths = self.paths()?;
        let stems = paths.iter().filter_map(|path| path.file_stem()?.to_str());
        // A record and its copy count once.
        let uids: BTreeSet<ClaimUid> = stems.filter_map(|stem| ClaimUid::parse(stem).ok()).collect();
        Ok(uids.into_iter().collect())
    }

    fn file(&self, uid: &ClaimUid) -> PathBuf {
        self.files.path().join(format!("{uid}.{EXTENSION}"))
    }

    fn copy(&self, uid: &ClaimUid) -> PathBuf {
        self.files.path().join(format!("{uid}.{COPY_EXTENSION}"))
    }

    fn paths(&self) -> Result<Vec<PathBuf>, PreparedClaimsError> {
        let dir = self.files.path();
        let list = || fs::read_dir(dir)?.map(|entry| Ok(entry?.path())).collect::<io::Result<Vec<_>>>();
        list().map_err(io_error("read", dir))
    }
}

/// The content of the file for `record`.
fn contents(record: &Record) -> serde_json::Result<Vec<u8>> {
    let version = record.version();
    let record = serde_json::to_value(record)?;
    serde_json::to_vec_pretty(&Envelope { version, checksum: checksum(&record), record })
}

fn read(path: PathBuf, uid: &ClaimUid) -> Result<Option<Record>, PreparedClaimsError> {
    let text = match fs::read_to_string(&path) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) if error.kind() == io::ErrorKind::InvalidData => {
            return Err(PreparedClaimsError::Damaged { path, what: "it is no text".into() });
        }
        Err(error) => return Err(io_error("read", &path)(error)),
    };
    let record = parse(&text, &path)?;
    if record.uid == *uid {
        Ok(Some(record))
    } else {
        Err(PreparedClaimsError::Damaged { path, what: format!("it is about claim {}", record.uid) })
    }
}

fn parse(text: &str, path: &Path) -> Result<Record, PreparedClaimsError> {
    let damaged = |what: String| PreparedClaimsError::Damaged { path: path.into(), what };
    let value: Value = serde_json::from_str(text).map_err(|error| damaged(error.to_string()))?;
    // The version is checked first, so that another version is not reported as damage.
    let known = VERSION_OF_ONE.into()..=VERSION.into();
    if let Some(found) = value.get("version").and_then(Value::as_u64).filter(|found| !known.contains(found)) {
        return Err(PreparedClaimsError::Version {
            path: path.into(),
            found: u32::try_from(found).unwrap_or(u32::MAX),
        });
    }
    let envelope: Envelope = serde_json::from_value(value).map_err(|error| damaged(error.to_string()))?;
    if checksum(&envelope.record) != envelope.checksum {
        return Err(damaged("its checksum does not fit".into()));
    }
    serde_json::from_value(envelope.record).map_err(|error| damaged(error.to_string()))
}

/// The checksum of the text without spaces that `Value` prints, which is the same again after the record is read.
fn checksum(record: &Value) -> String {
    Sha256::digest(record.to_string()).iter().map(|byte| format!("{byte:02x}")).collect()
}

fn io_error(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> PreparedClaimsError {
    let path = path.to_owned();
    move |source| PreparedClaimsError::Io { action, path, source }
}

#[cfg(test)]
mod tests {
    use aliquot_node::{Partition, Placement, QosClass, SliceRequest};

    use super::*;

    fn one(slice: SliceRequest, devices: Vec<AllocatedDevice>) -> Vec<ClaimSlice> {
        vec![ClaimSlice { slice, devices, ..ClaimSlice::default() }]
    }

    fn record(uid: &str, phase: Phase) -> Record {
        let uid = ClaimUid::parse(uid).unwrap();
        Record {
            slices: one(SliceRequest { name: uid.slice_name(), ..SliceRequest::default() }, Vec::new()),
            uid,
            namespace: "team".into(),
            name: "train".into(),
            phase,
            boot_id: "boot".into(),
        }
    }

    fn prepared() -> (tempfile::TempDir, PreparedClaims) {
        let dir = tempfile::tempdir().unwrap();
        let prepared = PreparedClaims::open(dir.path().join("claims")).unwrap();
        (dir, prepared)
    }

    #[test]
    fn what_was_saved_last_is_loaded_until_it_is_removed() {
        let (_dir, prepared) = prepared();
        let (started, completed) = (record("a", Phase::Started), record("a", Phase::Completed));
        assert_eq!(prepared.load(&started.uid).unwrap(), None);
        prepared.save(&started).unwrap();
        prepared.save(&completed).unwrap();
        prepared.save(&record("b", Phase::Started)).unwrap();
        assert_eq!(prepared.load(&started.uid).unwrap(), Some(completed));
        assert_eq!(prepared.uids().unwrap(), [ClaimUid::parse("a").unwrap(), ClaimUid::parse("b").unwrap()]);
        prepared.remove(&started.uid).unwrap();
        prepared.remove(&started.uid).unwrap();
        assert_eq!(prepared.load(&started.uid).unwrap(), None);
    }

    #[test]
    fn a_record_that_names_instances_survives_the_loss_of_its_file_or_of_its_copy() {
        let partition = Partition {
            gpu_uuid: "GPU-0".into(),
            profile: "1g.10gb".into(),
            placement: Placement { start: 0, size: 1 },
        };
        let device = AllocatedDevice { partition: Some(partition), ..AllocatedDevice::default() };
        let saved = Record { slices: one(SliceRequest::default(), vec![device]), ..record("a", Phase::Completed) };
        for bad in ["a.json", "a.copy"] {
            for text in [None, Some(""), Some("{")] {
                let (dir, prepared) = prepared();
                prepared.save(&Record { phase: Phase::Started, ..saved.clone() }).unwrap();
                prepared.save(&saved).unwrap();
                let file = dir.path().join("claims").join(bad);
                match text {
                    Some(text) => fs::write(&file, text).unwrap(),
                    None => fs::remove_file(&file).unwrap(),
                }
                let again = PreparedClaims::open(dir.path().join("claims")).unwrap();
                assert_eq!(again.uids().unwrap(), std::slice::from_ref(&saved.uid));
                assert_eq!(again.load(&saved.uid).unwrap().as_ref(), Some(&saved), "{bad} is {text:?}");
                again.remove(&saved.uid).unwrap();
                assert_eq!((again.uids().unwrap().len(), again.load(&saved.uid).unwrap()), (0, None));
            }
        }
    }

    #[test]
    fn what_was_being_written_is_removed_at_the_next_start() {
        let (dir, prepared) = prepared();
        prepared.save(&record("a", Phase::Completed)).unwrap();
        let aside = dir.path().join("claims/b.new");
        fs::write(&aside, "{").unwrap();
        let again = PreparedClaims::open(dir.path().join("claims")).unwrap();
        assert!(!aside.exists());
        assert_eq!(again.uids().unwrap().len(), 1);
    }

    /// A record that was begun is not synced. So after a loss of power its file may be empty, but then nothing of its
    /// claim exists.
    #[test]
    fn a_record_that_lost_power_left_empty_is_forgotten() {
        let (dir, prepared) = prepared();
        let begun = record("a", Phase::Started);
        prepared.save(&begun).unwrap();
        prepared.save(&record("b", Phase::Completed)).unwrap();
        fs::write(dir.path().join("claims/a.json"), "").unwrap();
        let again = PreparedClaims::open(dir.path().join("claims")).unwrap();
        assert_eq!(again.load(&begun.uid).unwrap(), None);
        assert_eq!(again.uids().unwrap(), [ClaimUid::parse("b").unwrap()]);
    }

    #[test]
    fn a_change_of_any_byte_is_noticed() {
        let (dir, prepared) = prepared();
        let saved = record("a", Phase::Completed);
        prepared.save(&saved).unwrap();
        let file = dir.path().join("claims/a.json");
        let good = fs::read(&file).unwrap();
        for at in 0..good.len() {
            let mut bad = good.clone();
            bad[at] ^= 1;
            fs::write(&file, &bad).unwrap();
            // A changed space between the values does not change the content.
            match prepared.load(&saved.uid) {
                Ok(found) => assert_eq!(found, Some(saved.clone()), "byte {at}"),
                Err(error) => assert!(!matches!(error, PreparedClaimsError::Io { .. }), "byte {at}: {error}"),
            }
        }
        for length in 0..good.len() {
            fs::write(&file, &good[..length]).unwrap();
            assert!(matches!(prepared.load(&saved.uid), Err(PreparedClaimsError::Damaged { .. })), "{length} bytes");
        }
    }

    #[test]
    fn a_record_of_another_version_or_claim_is_not_taken() {
        let (dir, prepared) = prepared();
        let saved = record("a", Phase::Completed);
        prepared.save(&saved).unwrap();
        let (from, to) = (dir.path().join("claims/a.json"), dir.path().join("claims/b.json"));
        fs::copy(&from, &to).unwrap();
        let error = prepared.load(&ClaimUid::parse("b").unwrap()).unwrap_err().to_string();
        assert!(error.ends_with("it is about claim a"), "{error}");
        for version in [0, 3] {
            fs::write(&from, format!(r#"{{"version": {version}, "claims": []}}"#)).unwrap();
            let error = prepared.load(&saved.uid).unwrap_err();
            assert!(matches!(error, PreparedClaimsError::Version { found, .. } if found == version), "{error}");
        }
    }

    /// The file as an older program has written it, to the byte.
    #[test]
    fn a_record_of_a_running_claim_survives_an_upgrade() {
        let (dir, prepared) = prepared();
        let file = dir.path().join("claims/a.json");
        let before = include_str!("prepared_claims/completed.json").trim_end();
        fs::write(&file, before).unwrap();
        let found = prepared.load(&ClaimUid::parse("a").unwrap()).unwrap().unwrap();
        assert_eq!((found.phase, &*found.boot_id, &*found.name), (Phase::Completed, "boot", "train"));
        let [slice] = found.slices.as_slice() else { panic!("the claim is one slice: {found:?}") };
        assert_eq!((slice.slice.qos_class, slice.slice.parts[0].core_limit_percent), (Some(QosClass::Batch), 80));
        assert_eq!(slice.devices[0].share_id.as_deref(), Some("share"));
        // And the older program reads what this one writes.
        prepared.save(&found).unwrap();
        assert_eq!(fs::read_to_string(&file).unwrap(), before);
    }

    #[test]
    fn one_slice_is_written_as_before_and_several_in_a_version_of_their_own() {
        let (dir, prepared) = prepared();
        let device = AllocatedDevice { request: "gpu".into(), ..AllocatedDevice::default() };
        let slice = SliceRequest { name: "claim-a".into(), ..SliceRequest::default() };
        let mut saved = Record { slices: one(slice, vec![device]), ..record("a", Phase::Completed) };
        let written =
            || -> Value { serde_json::from_slice(&fs::read(dir.path().join("claims/a.json")).unwrap()).unwrap() };
        prepared.save(&saved).unwrap();
        let now = written();
        assert_eq!((&now["version"], &now["record"]["slice"]["name"]), (&Value::from(1), &Value::from("claim-a")));
        assert_eq!(now["record"]["devices"][0]["request"], "gpu");
        let keys = ["boot_id", "devices", "name", "namespace", "phase", "slice", "uid"];
        assert!(now["record"].as_object().unwrap().keys().eq(keys), "{now}");
        assert_eq!(prepared.load(&saved.uid).unwrap().as_ref(), Some(&saved));
        saved.slices.push(ClaimSlice {
            containers: BTreeSet::from([("pod".into(), "main".into())]),
            ..saved.slices[0].clone()
        });
        prepared.save(&saved).unwrap();
        assert_eq!(written()["version"], 2);
        assert_eq!(prepared.load(&saved.uid).unwrap(), Some(saved));
    }
}
