//! A database that an older scheduler made.

use aliquot_scheduler_engine::Store;
use aliquot_scheduler_store::Database;
use rusqlite::Connection;

/// What the older scheduler had saved, as SQL.
const FORMAT_1: &str = include_str!("../recorded/format-1.sql");
/// The number that marks SQLite files of schedulers.
const APPLICATION_ID: i32 = 0x616c_7173;

#[test]
fn a_database_of_the_first_format_is_brought_up_to_date() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("state.db");
    let number = |name: &str| -> i32 {
        let connection = Connection::open(&path).expect("a connection");
        connection.pragma_query_value(None, name, |row| row.get(0)).expect("a number")
    };
    let old = Connection::open(&path).expect("a connection");
    old.execute_batch(FORMAT_1).expect("it was recorded whole");
    old.pragma_update(None, "application_id", APPLICATION_ID).expect("it can be written");
    old.pragma_update(None, "user_version", 1).expect("it can be written");
    old.close().expect("it can be closed");
    for _ in 0..2 {
        let database = Database::open(&path).expect("an older one is no fault");
        let count = |kind| database.records(kind).expect("readable").len();
        assert_eq!((count("job"), count("task"), count("queue"), count("member")), (9, 11, 2, 1));
        let saved = database.engine_store().load().expect("the engine goes on");
        assert_eq!((saved.claims.len(), saved.nodes.len()), (8, 1));
        let runs = saved.claims.iter().filter(|(_, claim)| claim.instance.is_some()).count();
        assert_eq!(runs, 6, "what runs has its place still");
    }
    assert!(number("user_version") > 1, "an older scheduler refuses it from now on");
    let again = Database::open(&path).expect("it is up to date");
    assert_eq!(again.next_number("job").expect("a number"), 2, "numbers go on");
}
