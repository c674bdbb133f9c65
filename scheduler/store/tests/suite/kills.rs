//! Processes that are killed while they save.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};
use std::thread;

use aliquot_scheduler_engine::{Batch, ClaimKey, ClaimRecord, Store};

use crate::{Kit, on_each_backend, open_named, set};

/// Tells a child process that it is one, and which database to use.
const CHILD: &str = "ALIQUOT_STORE_CHILD";
/// The number of threads that save at the same time in a child.
const CALLERS: u64 = 4;
/// The number of kills in a run of the tests.
const KILLS: usize = 40;
/// The keys of the records of one save. Each record contains the save's number.
const KEYS: [&str; 3] = ["first", "second", "third"];

/// Saves until it is killed, and prints what is durable.
fn save_for_ever(name: &str) {
    let database = open_named(name).expect("nobody else has it");
    let say = |line: String| {
        // A line is written at once, so that a kill never leaves part of a line that counts.
        std::io::stdout().lock().write_all(format!("{line}\n").as_bytes()).expect("somebody reads");
    };
    let mut store = database.engine_store();
    let term = store.load().expect("it can be loaded").term;
    thread::scope(|scope| {
        for caller in 0..CALLERS {
            let (database, say) = (&database, &say);
            scope.spawn(move || {
                loop {
                    let number = database.next_number("save").expect("a number");
                    let change = |name| set("save", &format!("{caller} {name}"), &number.to_string());
                    database.save(&KEYS.map(change)).expect("saved");
                    say(format!("@saved {caller} {number}"));
                }
            });
        }
        for number in 0.. {
            let record = ClaimRecord { added_ms: number, ..ClaimRecord::default() };
            let claim = |uid: &str| (ClaimKey { uid: uid.into(), stray: None }, Some(record.clone()));
            store.save(&Batch { term, claims: KEYS.map(claim).to_vec(), ..Batch::default() }).expect("saved");
            say(format!("@engine {term} {number}"));
        }
    });
}

#[test]
#[ignore = "a part of the test below, in a process of its own"]
fn child() {
    if let Ok(name) = std::env::var(CHILD) {
        save_for_ever(&name);
    }
}

on_each_backend! {
    fn what_was_acknowledged_outlives_a_kill_of_the_process(kit) {
        let mut saved: BTreeMap<u64, u64> = BTreeMap::new();
        for kill in 0..KILLS {
            kit.close();
            let mut child = Command::new(std::env::current_exe().expect("this is a program"))
                .args(["--exact", "kills::child", "--ignored", "--nocapture"])
                .env(CHILD, kit.name())
                .stdout(Stdio::piped())
                .spawn()
                .expect("it can be started");
            let mut lines = BufReader::new(child.stdout.take().expect("it is a pipe")).lines().map_while(Result::ok);
            let mut engine = None;
            let mut take_in = |line: String| {
                let words: Vec<&str> = line.split_whitespace().collect();
                let number = |word: usize| words[word].parse::<u64>().expect("a number");
                match words.first() {
                    Some(&"@saved") => _ = saved.insert(number(1), number(2)),
                    Some(&"@engine") => engine = Some((number(1), number(2))),
                    _ => return false,
                }
                true
            };
            // Each kill comes after a different time.
            let mut count = 0;
            while count < kill * 7 % 60 {
                count += usize::from(take_in(lines.next().expect("it goes on until it is killed")));
            }
            child.kill().expect("it still runs");
            // What the child printed before counts too.
            lines.for_each(|line| _ = take_in(line));
            child.wait().expect("it was killed");
            kit.reopen();
            check_saves(&kit, &saved);
            check_engine(&kit, engine);
        }
        assert!(saved.len() as u64 == CALLERS, "everybody has saved: {saved:?}");
    }
}

fn check_saves(kit: &Kit, acknowledged: &BTreeMap<u64, u64>) {
    let mut found: BTreeMap<u64, Vec<u64>> = BTreeMap::new();
    for (key, value) in kit.records("save") {
        let caller = key.split_once(' ').expect("two words").0.parse().expect("a number");
        found.entry(caller).or_default().push(value.parse().expect("a number"));
    }
    for (caller, numbers) in &found {
        assert_eq!(numbers.len(), KEYS.len(), "half a save of {caller}: {numbers:?}");
        assert!(numbers.iter().all(|number| *number == numbers[0]), "half a save of {caller}: {numbers:?}");
    }
    for (caller, number) in acknowledged {
        let last = found.get(caller).map(|numbers| numbers[0]);
        assert!(last >= Some(*number), "caller {caller} had {number}, and {last:?} is there");
    }
    let next = kit.database().next_number("save").expect("a number");
    let last = found.values().map(|numbers| numbers[0]).max().unwrap_or(0);
    assert!(next > last, "{last} was given, and {next} is next");
}

fn check_engine(kit: &Kit, acknowledged: Option<(u64, u64)>) {
    let saved = kit.database().engine_store().load().expect("it can be loaded");
    let times: Vec<u64> = saved.claims.iter().map(|(_, record)| record.added_ms).collect();
    assert!(times.is_empty() || times.len() == KEYS.len(), "half a batch: {times:?}");
    assert!(times.iter().all(|time| *time == times[0]), "half a batch: {times:?}");
    if let Some((term, number)) = acknowledged {
        assert!(saved.term > term);
        assert!(times.first() >= Some(&number), "{number} was acknowledged, and {times:?} is there");
    }
}
