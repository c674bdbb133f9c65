//! Copies of a database that is in use.

use std::fs;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use aliquot_scheduler_engine::Store;
use aliquot_scheduler_store::{Database, StoreError};

use crate::{Kit, pair, set};

#[test]
fn a_backup_made_while_others_save_is_one_moment_of_the_database() {
    let kit = Kit::new();
    // So many records need several steps of copying.
    let filler: Vec<_> = (0..3000).map(|key| set("filler", &key.to_string(), &"x".repeat(4000))).collect();
    kit.database().save(&filler).expect("saved");
    let is_done = AtomicBool::new(false);
    let backup = kit.folder().join("backup.db");
    let (before, after) = thread::scope(|scope| {
        let writer = scope.spawn(|| {
            let mut round = 0_u64;
            while !is_done.load(Ordering::Relaxed) {
                round += 1;
                // These records are at both ends of the file.
                let value = round.to_string();
                kit.database()
                    .save(&[set("a", "", &value), set("filler", "1500", &value), set("z", "", &value)])
                    .expect("saved");
            }
            round
        });
        while kit.records("z").is_empty() {
            thread::yield_now();
        }
        let before: u64 = kit.records("z")[0].1.parse().expect("a round");
        kit.database().back_up(&backup).expect("there is room");
        is_done.store(true, Ordering::Relaxed);
        (before, writer.join().expect("it does not panic"))
    });
    let copy = Database::open(&backup).expect("the copy is a database");
    let value = |kind| copy.records(kind).expect("readable")[0].1.parse::<u64>().expect("a round");
    let round = value("a");
    assert_eq!(value("z"), round);
    let filler = copy.records("filler").expect("readable");
    assert_eq!(filler.len(), 3000);
    assert!(filler.contains(&pair("1500", &round.to_string())));
    assert!((before..=after).contains(&round), "{before} <= {round} <= {after}");
}

#[test]
fn a_backup_never_replaces_a_file_and_leaves_nothing_else_behind() {
    let kit = Kit::new();
    let folder = kit.folder().join("backups");
    fs::create_dir(&folder).expect("there is room");
    let to = folder.join("one");
    kit.database().back_up(&to).expect("there is room");
    let first = fs::read(&to).expect("it can be read");
    kit.database().save(&[set("job", "1", "{}")]).expect("saved");
    assert!(matches!(kit.database().back_up(&to), Err(StoreError::Exists { .. })));
    assert_eq!(fs::read(&to).expect("it can be read"), first);
    let nowhere = kit.database().back_up(&folder.join("not/there")).expect_err("there is no folder").to_string();
    assert!(nowhere.contains("not/there") && nowhere.contains("No such file"), "{nowhere}");
    let names: Vec<_> =
        fs::read_dir(&folder).expect("a folder").map(|entry| entry.expect("an entry").file_name()).collect();
    assert_eq!(names, ["one"]);
    kit.database().save(&[set("job", "2", "{}")]).expect("a backup that fails harms nobody");
}

#[test]
fn no_number_and_no_term_is_given_again_after_a_backup_is_restored() {
    let mut kit = Kit::new();
    let backup = kit.folder().join("backup.db");
    kit.database().next_number("job").expect("a number");
    kit.database().engine_store().load().expect("loaded");
    kit.database().back_up(&backup).expect("there is room");
    let numbers: Vec<u64> = (0..5).map(|_| kit.database().next_number("job").expect("a number")).collect();
    let terms: Vec<u64> = (0..5).map(|_| kit.database().engine_store().load().expect("loaded").term).collect();
    let (last, term) = (numbers[4], terms[4]);
    kit.close();
    fs::rename(&backup, kit.path()).expect("it can be restored");
    kit.reopen();
    let number = kit.database().next_number("job").expect("a number");
    assert!(number > last, "{number}");
    assert!(kit.database().engine_store().load().expect("loaded").term > term);
    // The gap comes once, not at each start.
    kit.reopen();
    assert_eq!(kit.database().next_number("job").expect("a number"), number + 1);
}
