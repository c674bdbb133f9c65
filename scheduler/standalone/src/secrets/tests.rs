use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use super::*;
use crate::jobs::{Image, JobSpec};

/// The secrets in the database of this directory.
fn open(dir: &tempfile::TempDir, makes_key: bool) -> Secrets {
    let database = Database::open(&dir.path().join("scheduler.db")).unwrap();
    Secrets::load(database, key_file(dir), makes_key).unwrap()
}

fn key_file(dir: &tempfile::TempDir) -> PathBuf {
    dir.path().join("secrets.key")
}

fn ada() -> Holder {
    Holder::Remote("ada".to_owned())
}

fn queue(name: &str) -> Holder {
    Holder::Queue(name.to_owned())
}

/// A job of ada, a user of another machine.
fn job(secrets: &[(&str, &str)]) -> Job {
    let secrets =
        secrets.iter().map(|(name, variable)| SecretUse { name: (*name).into(), variable: (*variable).into() });
    let spec = JobSpec { secrets: secrets.collect(), ..JobSpec::default() };
    let (user, local_user, request_id) = ("ada".to_owned(), String::new(), String::new());
    Job { id: 1, spec, uid: 1000, local_user, user, is_remote: true, submitted_ms: 0, request_id }
}

fn values(secrets: &Secrets, of: &[&str], queues: &[&str]) -> Result<Vec<String>, String> {
    let job = job(&of.iter().map(|name| (*name, "")).collect::<Vec<_>>());
    let queues: Vec<String> = queues.iter().map(|queue| (*queue).to_owned()).collect();
    let given = secrets.of_job(&job, &queues).map_err(|error| error.to_string())?;
    Ok(given.into_iter().map(|secret| String::from_utf8(secret.value).unwrap()).collect())
}

#[test]
fn a_job_gets_the_nearest_secret_of_a_name_after_a_restart_too() {
    let dir = tempfile::tempdir().unwrap();
    let secrets = open(&dir, true);
    for (holder, name, value) in [
        (ada(), "a", "of ada"),
        (queue("vision"), "a", "of vision"),
        (queue("vision"), "b", "of vision"),
        (queue("research"), "b", "of research"),
        (queue("research"), "c", "of research"),
        (Holder::Local(1000), "d", "of the local user as whom the job runs"),
        (Holder::Remote("bob".to_owned()), "d", "of bob"),
    ] {
        secrets.set(5, holder, name, value.as_bytes(), "root").unwrap();
    }
    drop(secrets);
    let secrets = open(&dir, true);
    let given = values(&secrets, &["a", "b", "c"], &["vision", "research"]).unwrap();
    assert_eq!(given, ["of ada", "of vision", "of research"]);
    let why = values(&secrets, &["a", "d"], &["vision", "research"]).unwrap_err();
    assert!(why.contains("neither user ada nor queue \"vision\" has a secret \"d\""), "{why}");
    assert!(values(&secrets, &["b"], &["other"]).is_err());

    secrets.set(6, ada(), "a", b"newer", "ada").unwrap();
    assert_eq!(values(&secrets, &["a"], &[]).unwrap(), ["newer"]);
    let listed = secrets.list(|holder| *holder == ada());
    let [Listed { secret: wire::Secret { bytes: 5, set_unix_ms: 6, is_remote: true, .. }, local_user: None }] =
        listed.as_slice()
    else {
        panic!("{listed:?}")
    };
    secrets.remove(ada(), "a", "ada").unwrap();
    assert!(matches!(secrets.remove(ada(), "a", "ada"), Err(SecretError::Unknown(_))));
    let of_numbers: Vec<_> = secrets.list(|holder| matches!(holder, Holder::Local(_)));
    assert_eq!(of_numbers.iter().map(|listed| listed.local_user).collect::<Vec<_>>(), [Some(1000)]);
    assert_eq!(values(&secrets, &["a"], &["vision"]).unwrap(), ["of vision"]);
    secrets.remove_all(&queue("vision")).unwrap();
    drop(secrets);
    assert_eq!(open(&dir, true).list(|_| true).len(), 4);
}

#[test]
fn no_value_is_in_the_files_of_the_store_or_in_a_backup() {
    let dir = tempfile::tempdir().unwrap();
    let secrets = open(&dir, true);
    secrets.set(5, ada(), "token", b"open-sesame", "ada").unwrap();
    secrets.database.back_up(&dir.path().join("backup.db")).unwrap();
    assert!(!format!("{secrets:?}").contains("open-sesame"));
    drop(secrets);
    let mut files = 0;
    for entry in fs::read_dir(dir.path()).unwrap() {
        let (path, value) = (entry.unwrap().path(), b"open-sesame");
        assert!(!fs::read(&path).unwrap().windows(value.len()).any(|part| part == value), "{}", path.display());
        files += 1;
    }
    assert!(files >= 3, "the database, the backup and the key");
    assert_eq!(fs::metadata(key_file(&dir)).unwrap().permissions().mode() & 0o777, 0o600);
}

#[test]
fn a_record_that_was_moved_or_changed_is_not_opened() {
    let dir = tempfile::tempdir().unwrap();
    let secrets = open(&dir, true);
    secrets.set(5, Holder::Local(7), "token", b"of the user 7", "seven").unwrap();
    let [(_, value)] = &secrets.database.records(SECRETS).unwrap()[..] else { panic!("one record") };
    let moved = Change { kind: SECRETS, key: record_key(&ada(), "token"), value: Some(value.clone()) };
    secrets.database.save(&[moved]).unwrap();
    drop(secrets);
    let why = values(&open(&dir, true), &["token"], &[]).unwrap_err();
    assert!(why.contains("damaged"), "{why}");
}

#[test]
fn a_key_that_is_missing_open_or_another_one_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let why = open(&dir, false).set(5, ada(), "token", b"x", "ada").unwrap_err().to_string();
    assert!(why.contains("secrets_key") && why.contains("secrets.key"), "{why}");
    let secrets = open(&dir, true);
    secrets.set(5, ada(), "token", b"x", "ada").unwrap();
    drop(secrets);
    let file = key_file(&dir);
    let (other, aside) = (dir.path().join("other"), dir.path().join("aside"));
    let trouble = |dir: &tempfile::TempDir| values(&open(dir, true), &["token"], &[]).unwrap_err();

    fs::set_permissions(&file, Permissions::from_mode(0o640)).unwrap();
    assert!(trouble(&dir).contains("chmod 600"), "{}", trouble(&dir));
    fs::set_permissions(&file, Permissions::from_mode(0o600)).unwrap();
    fs::rename(&file, &aside).unwrap();
    assert!(trouble(&dir).contains("there is no such file"), "{}", trouble(&dir));
    // Nor is a new key made, with which the old secrets could never be decrypted.
    let why = open(&dir, true).set(5, ada(), "more", b"x", "ada").unwrap_err().to_string();
    assert!(why.contains("1 secrets were sealed with it"), "{why}");

    let replace = |with: &Path| fs::rename(with, &file).unwrap();
    aliquot_durable::replace(&other, b"not a key").unwrap();
    replace(&other);
    assert!(trouble(&dir).contains("32 bytes"), "{}", trouble(&dir));
    aliquot_durable::replace(&other, b"AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=\n").unwrap();
    replace(&other);
    assert!(trouble(&dir).contains("sealed with another key"), "{}", trouble(&dir));
    replace(&aside);
    assert_eq!(values(&open(&dir, true), &["token"], &[]).unwrap(), ["x"]);
}

#[test]
fn what_is_too_much_is_refused_with_the_value_and_the_remedy() {
    let dir = tempfile::tempdir().unwrap();
    let secrets = open(&dir, true);
    let refused = |name: &str, value: &[u8]| secrets.set(5, ada(), name, value, "ada").unwrap_err().to_string();
    assert!(refused("../x", b"x").contains("\"../x\" cannot be the name"));
    assert!(refused("x", b"").contains("0 bytes"));
    assert!(refused("x", &vec![0; SECRET_BYTES_MAX + 1]).contains("65537 bytes; a secret has 1 to 65536"));
    for number in 0..OF_HOLDER_MAX {
        secrets.set(5, ada(), &number.to_string(), b"x", "ada").unwrap();
    }
    assert!(refused("one-more", b"x").contains("user ada has 100 secrets"));
    secrets.set(5, ada(), "7", b"y", "ada").unwrap();
    secrets.set(5, queue("team-a"), "one-more", b"x", "root").unwrap();
}

#[test]
fn what_no_variable_can_have_is_refused_before_the_job_starts() {
    let dir = tempfile::tempdir().unwrap();
    let secrets = open(&dir, true);
    secrets.set(5, ada(), "lines", b"a\nb\n", "ada").unwrap();
    secrets.set(5, ada(), "bytes", &[0, 1, 0xff], "ada").unwrap();
    let with_image = |mut job: Job| {
        job.spec.image = Some(Image::default());
        job
    };
    let trouble = |job: &Job| secrets.of_job(job, &[]).unwrap_err().to_string();
    assert!(secrets.of_job(&job(&[("lines", "A"), ("bytes", "")]), &[]).is_ok());
    assert!(trouble(&job(&[("bytes", "A")])).contains("secret \"bytes\" cannot be the variable \"A\": it is not text"));
    assert!(trouble(&with_image(job(&[("lines", "A")]))).contains("line breaks"));
    assert!(secrets.of_job(&with_image(job(&[("lines", "")])), &[]).is_ok());
}
