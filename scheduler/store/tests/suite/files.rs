//! Files that are locked, damaged, newer, or not a database.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use aliquot_scheduler_engine::Store;
use aliquot_scheduler_store::{Database, StoreError};
use rusqlite::Connection;

use crate::{Kit, pair, set};

/// The error when this file is opened. The attempt must not change the file.
fn refused(path: &Path) -> StoreError {
    let before = fs::read(path).expect("it can be read");
    let refused = Database::open(path).expect_err("it must be refused");
    assert!(refused.to_string().contains(&path.display().to_string()), "{refused}");
    assert_eq!(fs::read(path).expect("it can be read"), before, "{refused}");
    refused
}

#[test]
fn only_the_owner_can_read_the_files() {
    let mut kit = Kit::new();
    kit.database().save(&[set("job", "1", "{}")]).expect("saved");
    let files = || fs::read_dir(kit.folder()).expect("a folder").map(|entry| entry.expect("an entry").path());
    let mode = |path: &Path| fs::metadata(path).expect("a file").permissions().mode() & 0o777;
    for file in files() {
        assert_eq!(mode(&file), 0o600, "{}", file.display());
    }
    // A backup that was copied here may be readable for others.
    let path = kit.path();
    kit.close();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).expect("it is ours");
    kit.reopen();
    assert_eq!(mode(&path), 0o600);
}

#[test]
fn a_database_that_is_in_use_is_refused_by_whatever_name() {
    let mut kit = Kit::new();
    let link = kit.folder().join("link");
    std::os::unix::fs::symlink(kit.path(), &link).expect("a link can be made");
    for path in [kit.path(), link.clone()] {
        let refused = Database::open(&path).expect_err("it is in use").to_string();
        assert!(refused.contains(&format!("in use by process {}", std::process::id())), "{refused}");
    }
    kit.close();
    let other = Database::open(&link).expect("it is free");
    kit.open().expect_err("it is in use");
    drop(other);
    kit.reopen();
}

#[test]
fn what_is_no_database_of_a_scheduler_is_refused() {
    let kit = Kit::new();
    let path = kit.folder().join("other");
    for text in ["x", "plain text that is longer than the head of a database file", "SQLite format 4\0"] {
        fs::write(&path, text).expect("there is room");
        assert!(matches!(refused(&path), StoreError::NotOurs { .. }));
    }
    fs::remove_file(&path).expect("it is there");
    Connection::open(&path).and_then(|other| other.execute_batch("CREATE TABLE t (x)")).expect("another program's");
    assert!(matches!(refused(&path), StoreError::NotOurs { what: "the SQLite file of another program", .. }));
}

#[test]
fn a_database_that_was_cut_off_anywhere_is_refused() {
    let mut kit = Kit::new();
    let changes: Vec<_> = (0..1000).map(|key| set("job", &key.to_string(), &"x".repeat(100))).collect();
    kit.database().save(&changes).expect("saved");
    kit.close();
    let whole = fs::read(kit.path()).expect("it can be read");
    let page = 4096;
    assert!(whole.len() > 20 * page);
    let lengths = [0, 1, 15, 16, 18, 99, 100, 1000, page - 1, page, page + 1, 2 * page, whole.len() / page / 2 * page];
    for length in lengths.into_iter().chain([whole.len() - page, whole.len() - 1]) {
        fs::write(kit.path(), &whole[..length]).expect("there is room");
        let refused = refused(&kit.path());
        let is_clear = matches!(refused, StoreError::Damaged { .. } | StoreError::NotOurs { .. });
        assert!(is_clear, "{length} of {} bytes: {refused:?}", whole.len());
    }
    fs::write(kit.path(), &whole).expect("there is room");
    kit.reopen();
    assert_eq!(kit.records("job").len(), 1000);
}

#[test]
fn a_page_of_garbage_is_found_when_the_file_is_opened() {
    let mut kit = Kit::new();
    let changes: Vec<_> = (0..1000).map(|key| set("job", &key.to_string(), &"x".repeat(100))).collect();
    kit.database().save(&changes).expect("saved");
    kit.close();
    let whole = fs::read(kit.path()).expect("it can be read");
    for page in 1..whole.len() / 4096 {
        let mut spoiled = whole.clone();
        spoiled[page * 4096..(page + 1) * 4096].fill(0xff);
        fs::write(kit.path(), &spoiled).expect("there is room");
        let refused = Database::open(&kit.path()).expect_err("it is damaged");
        assert!(matches!(refused, StoreError::Damaged { .. }), "page {page}: {refused:?}");
    }
}

#[test]
fn a_newer_database_is_refused_and_left_as_it_is() {
    let mut kit = Kit::new();
    kit.close();
    let newer = Connection::open(kit.path()).expect("a connection");
    newer.pragma_update(None, "user_version", 1000).expect("it can be written");
    newer.close().expect("it can be closed");
    let refused = refused(&kit.path());
    assert!(matches!(refused, StoreError::Newer { found: 1000, .. }), "{refused}");
    assert!(refused.to_string().contains("it has format 1000"), "{refused}");
}

#[test]
fn a_log_that_belongs_to_another_database_is_not_applied() {
    let mut kit = Kit::new();
    kit.database().save(&[set("job", "1", "old")]).expect("saved");
    let backup = kit.folder().join("backup.db");
    kit.database().back_up(&backup).expect("there is room");
    kit.database().save(&[set("job", "1", "new")]).expect("saved");
    // A crash leaves the log behind.
    let log = kit.folder().join("state.db-wal");
    let left = fs::read(&log).expect("there is a log");
    assert!(!left.is_empty());
    kit.close();
    fs::write(&log, &left).expect("there is room");
    fs::rename(&backup, kit.path()).expect("a backup is restored");
    let refused = refused(&kit.path());
    assert!(matches!(refused, StoreError::ForeignLog { .. }), "{refused}");
    assert!(refused.to_string().contains(&format!("remove {}", log.display())), "{refused}");
    let restored = fs::read(kit.path()).expect("it can be read");
    fs::remove_file(kit.path()).expect("it is there");
    assert!(matches!(kit.open(), Err(StoreError::ForeignLog { .. })), "a new database would take the log too");
    fs::write(kit.path(), restored).expect("there is room");
    fs::remove_file(&log).expect("it is there");
    kit.reopen();
    assert_eq!(kit.records("job"), [pair("1", "old")]);
}

#[test]
fn what_a_crash_leaves_of_a_database_that_was_being_made_is_removed() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("state.db");
    for suffix in [".new", ".new-journal", ".new-wal"] {
        fs::write(folder.path().join(format!("state.db{suffix}")), "half").expect("there is room");
    }
    drop(Database::open(&path).expect("it can be made"));
    let mut names: Vec<_> =
        fs::read_dir(&folder).expect("a folder").map(|entry| entry.expect("an entry").file_name()).collect();
    names.sort();
    assert_eq!(names, ["state.db", "state.db.lock"]);
}

#[test]
fn a_folder_that_is_not_there_is_named() {
    let refused = Database::open(Path::new("/not/there/state.db")).expect_err("there is no folder").to_string();
    assert!(refused.starts_with("/not/there: cannot find the folder: No such file"), "{refused}");
}

#[test]
fn a_record_of_the_engine_that_is_damaged_is_named() {
    let mut kit = Kit::new();
    for (kind, key, format, value, told) in [
        ("claim", "[\"a\"]", 1, "{\"added_ms\": \"x\"}", "invalid type"),
        ("claim", "[\"a\"]", 1, "{\"instance\": {\"node\": \"n\"}}", "missing field `session`"),
        ("claim", "a", 1, "{}", "its key is none"),
        ("claim", "[\"a\"]", 6, "{}", "it has format 6, and this program knows 1 to 5"),
        ("node", "a", 1, "", "EOF"),
        (
            "memory",
            "",
            1,
            "{\"capacity\": {\"integrals\": [{\"resource\": \"cpu\", \"integral\": \"-1\"}]}}",
            "integral",
        ),
        ("other", "a", 1, "{}", "no record is of this kind"),
    ] {
        kit.close();
        let connection = Connection::open(kit.path()).expect("a connection");
        connection.execute("DELETE FROM engine_records", []).expect("it can be written");
        let insert = "INSERT INTO engine_records VALUES (?, ?, ?, ?)";
        connection.execute(insert, (kind, key, format, value)).expect("it can be written");
        connection.close().expect("it can be closed");
        kit.reopen();
        let refused = kit.database().engine_store().load().expect_err("it cannot be understood").to_string();
        let place = format!("table engine_records, kind {kind:?}, key {key:?}: ");
        assert!(refused.contains(&place) && refused.contains(told), "{refused}");
    }
}
