//! Records of the program around the engine, and counters.

use std::collections::BTreeSet;
use std::thread;

use crate::{on_each_backend, pair, removed, set};

on_each_backend! {
    fn what_was_saved_is_there_after_a_restart(kit) {
        kit.database().save(&[set("job", "2", "{}"), set("job", "10", "[1]"), set("user", "2", "\"x\"")]).expect("saved");
        kit.database().save(&[set("job", "10", "[2]"), removed("job", "2"), set("job", "11", "null")]).expect("saved");
        kit.reopen();
        assert_eq!(kit.records("job"), [pair("10", "[2]"), pair("11", "null")]);
        assert_eq!(kit.records("user"), [pair("2", "\"x\"")]);
        assert_eq!(kit.records("nothing"), []);
    }

    fn the_last_change_of_a_key_in_a_save_counts(kit) {
        let changes = [set("job", "1", "1"), removed("job", "1"), set("job", "2", "1"), set("job", "2", "2")];
        kit.database().save(&changes).expect("saved");
        assert_eq!(kit.records("job"), [pair("2", "2")]);
    }

    fn any_text_can_be_a_key_or_a_value(kit) {
        let texts = ["", " ", "\0", "'; DROP TABLE records; --", "ä\u{1F600}", &"x".repeat(1 << 20)];
        let changes: Vec<_> = texts.iter().map(|text| set("any", text, text)).collect();
        kit.database().save(&changes).expect("saved");
        kit.reopen();
        let found: BTreeSet<_> = kit.records("any").into_iter().collect();
        assert_eq!(found, texts.iter().map(|text| pair(text, text)).collect());
    }

    fn no_number_is_given_twice_whoever_asks_and_when(kit) {
        let mut all = Vec::new();
        for _ in 0..3 {
            let threads: Vec<_> = (0..8)
                .map(|_| {
                    let database = kit.database().clone();
                    thread::spawn(move || {
                        (0..10).map(|_| database.next_number("job").expect("a number")).collect::<Vec<_>>()
                    })
                })
                .collect();
            all.extend(threads.into_iter().flat_map(|thread| thread.join().expect("it does not panic")));
            kit.reopen();
        }
        all.sort_unstable();
        assert_eq!(all, (1..=240).collect::<Vec<u64>>());
        assert_eq!(kit.database().next_number("other").expect("a number"), 1);
    }
}
