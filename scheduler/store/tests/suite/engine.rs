//! The engine's state in a database.

use aliquot_scheduler_engine::{Batch, ClaimKey, ClaimRecord, Generation, Memory, Store};

use crate::on_each_backend;

fn key(uid: &str, stray: Option<u64>) -> ClaimKey {
    ClaimKey { uid: uid.into(), stray: stray.map(|number| Generation { term: 1, number }) }
}

fn record(added_ms: u64) -> ClaimRecord {
    ClaimRecord { added_ms, ..ClaimRecord::default() }
}

on_each_backend! {
    fn an_engine_finds_what_it_has_saved(kit) {
        let mut store = kit.database().engine_store();
        let term = store.load().expect("an empty store can be loaded").term;
        let claims = vec![(key("a", None), Some(record(1))), (key("a", Some(7)), Some(record(2)))];
        store.save(&Batch { term, claims, ..Batch::default() }).expect("saved");
        let memory = Memory { models: vec!["A".into()], ..Memory::default() };
        let claims = vec![(key("b", None), Some(record(3))), (key("a", None), None)];
        store.save(&Batch { term, claims, memory: Some(memory.clone()), ..Batch::default() }).expect("saved");
        drop(store);
        kit.reopen();
        let mut saved = kit.database().engine_store().load().expect("it can be loaded");
        saved.claims.sort_by(|left, right| left.0.cmp(&right.0));
        assert_eq!(saved.claims, [(key("a", Some(7)), record(2)), (key("b", None), record(3))]);
        assert_eq!(saved.memory, memory);
    }

    fn of_a_record_that_a_batch_changes_twice_the_last_counts(kit) {
        let mut store = kit.database().engine_store();
        let term = store.load().expect("an empty store can be loaded").term;
        let claims = vec![(key("a", Some(7)), Some(record(1))), (key("b", None), Some(record(2)))];
        store.save(&Batch { term, claims, ..Batch::default() }).expect("saved");
        let again = vec![(key("a", Some(7)), None), (key("a", Some(7)), Some(record(3)))];
        let gone = vec![(key("b", None), Some(record(4))), (key("b", None), None)];
        store.save(&Batch { term, claims: [again, gone].concat(), ..Batch::default() }).expect("saved");
        drop(store);
        kit.reopen();
        let saved = kit.database().engine_store().load().expect("it can be loaded");
        assert_eq!(saved.claims, [(key("a", Some(7)), record(3))]);
    }

    fn a_term_that_has_ended_cannot_save(kit) {
        let (mut old, mut new) = (kit.database().engine_store(), kit.database().engine_store());
        let batch = |term| Batch { term, claims: vec![(key("a", None), Some(record(term)))], ..Batch::default() };
        let first = old.load().expect("loaded").term;
        old.save(&batch(first)).expect("saved");
        let second = new.load().expect("loaded").term;
        assert!(second > first);
        let refused = old.save(&batch(first)).expect_err("it is too late").to_string();
        assert!(refused.contains(&format!("term {first} cannot save any more; it is term {second} now")), "{refused}");
        new.save(&batch(second)).expect("saved");
        // A term that never began is refused too.
        new.save(&batch(second + 1)).expect_err("it has not begun");
        drop((old, new));
        kit.reopen();
        let saved = kit.database().engine_store().load().expect("loaded");
        assert!(saved.term > second);
        assert_eq!(saved.claims, [(key("a", None), record(second))]);
    }
}
