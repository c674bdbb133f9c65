//! A full disk: a small file system that only a child process sees.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use aliquot_scheduler_engine::Store;
use aliquot_scheduler_store::{Database, StoreError};

use crate::set;

/// Tells a child process that it is one, and where the disk is.
const CHILD: &str = "ALIQUOT_STORE_DISK";
/// The exit code of a child that cannot have a disk.
const NO_DISK: i32 = 77;

fn fill_and_make_room(disk: &Path) {
    let (path, ballast): (PathBuf, PathBuf) = (disk.join("state.db"), disk.join("ballast"));
    fs::write(&ballast, vec![0; 1 << 20]).expect("there is room");
    let mut database = Database::open(&path).expect("there is room");
    let value = "x".repeat(10_000);
    let mut count = 0;
    let refused = loop {
        match database.save(&[set("a", &format!("{count:05}"), &value), set("b", &format!("{count:05}"), "{}")]) {
            Ok(()) => count += 1,
            Err(error) => break error,
        }
    };
    assert!(matches!(refused, StoreError::Full { .. }), "{refused:?}");
    assert!(count > 10, "{count}");
    let check = |database: &Database, count: usize| {
        for kind in ["a", "b"] {
            let keys: Vec<_> = database.records(kind).expect("readable").into_iter().map(|(key, _)| key).collect();
            assert_eq!(keys, (0..count).map(|key| format!("{key:05}")).collect::<Vec<_>>());
        }
    };
    check(&database, count);
    let backup = database.back_up(&disk.join("backup")).expect_err("there is no room for a copy");
    assert!(matches!(backup, StoreError::Full { .. }), "{backup:?}");
    let names = fs::read_dir(disk).expect("a folder").map(|entry| entry.expect("an entry").file_name());
    assert!(names.into_iter().all(|name| !name.to_string_lossy().contains("backup")), "nothing is left of the copy");
    // This holds also if the scheduler ends while the disk is full.
    drop(database);
    database = match Database::open(&path) {
        Ok(database) => database,
        Err(error) => {
            assert!(matches!(error, StoreError::Full { .. }), "{error:?}");
            fs::remove_file(&ballast).expect("it is there");
            Database::open(&path).expect("there is room")
        }
    };
    check(&database, count);
    let _ = fs::remove_file(&ballast);
    let key = format!("{count:05}");
    database.save(&[set("a", &key, &value), set("b", &key, "{}")]).expect("there is room");
    database.engine_store().load().expect("there is room");
    drop(database);
    check(&Database::open(&path).expect("it is whole"), count + 1);
}

#[test]
#[ignore = "a part of the test below, in a process of its own"]
fn child() {
    if let Some(disk) = std::env::var_os(CHILD) {
        fill_and_make_room(Path::new(&disk));
    }
}

#[test]
fn a_full_disk_is_an_error_that_loses_nothing() {
    let folder = tempfile::tempdir().expect("a folder");
    let script = format!("mount -t tmpfs -o size=3m none \"${CHILD}\" || exit {NO_DISK}; exec \"$0\" \"$@\"");
    let child = Command::new("unshare")
        .args(["--mount", "--map-root-user", "sh", "-c", &script])
        .arg(std::env::current_exe().expect("this is a program"))
        .args(["--exact", "full_disk::child", "--ignored", "--nocapture"])
        .env(CHILD, folder.path())
        .output();
    match child {
        Ok(output) if output.status.success() => {
            let said = String::from_utf8_lossy(&output.stdout);
            assert!(said.contains("1 passed"), "{said}");
        }
        Ok(output) if output.status.code() == Some(101) => {
            panic!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        }
        // `unshare` is missing, or is not permitted.
        other => eprintln!("skipped, because a file system of its own cannot be had: {other:?}"),
    }
}
