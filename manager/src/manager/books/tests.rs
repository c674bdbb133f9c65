use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use super::*;
use crate::checkpoint::tests::slice;

/// Slice number `number` with `percent` of the one device.
fn with(number: u128, percent: u32) -> Slice {
    let mut slice = slice(number);
    slice.parts[0].core_request_percent = percent;
    slice.parts[0].core_limit_percent = percent;
    slice.parts[0].memory_limit_bytes = u64::from(percent);
    slice
}

/// The making of `after`, refused if more than 100 percent would be given.
fn decide(slices: &Slices, after: &Slice) -> Result<Change, u32> {
    let given = slices.given(&after.parts[0].device, Some(after.id)).core_request_percent;
    match given + after.parts[0].core_request_percent {
        0..=100 => Ok(Change::Make(after.clone())),
        _ => Err(given),
    }
}

fn make<'a>(books: &'a Books, after: &Slice) -> Result<Ongoing<'a>, u32> {
    books.begin(&[&*after.name].into(), |slices| decide(slices, after))
}

fn books() -> Books {
    Books::new(QosClass::default())
}

#[test]
fn a_change_is_shown_when_it_is_in_force_and_counts_from_its_beginning() {
    let books = books();
    let first = make(&books, &with(1, 60)).unwrap();
    assert!(books.list_beginning_with("").is_empty() && books.get("slice-1").is_none());
    assert_eq!((books.greatest(|slice| Some(slice.parts[0].core_limit_percent)), books.making()), (Some(60), 1));
    first.succeeded();
    assert_eq!(books.get("slice-1").unwrap().0, with(1, 60));
    drop(first);
    assert_eq!(books.making(), 0);
    assert_eq!(make(&books, &with(2, 41)).map(drop), Err(60));
}

#[test]
fn a_resize_counts_as_the_greater_of_both_until_it_ends() {
    for (from, to) in [(20, 70), (70, 20)] {
        let books = books();
        books.take_over(with(1, from), None);
        let change = Change::Resize { before: with(1, from), after: with(1, to) };
        let resize = books.begin(&["slice-1"].into(), |_| Ok::<_, u32>(change.clone())).unwrap();
        let device = &with(1, 1).parts[0].device;
        let reserved = |books: &Books| books.state.lock().reserved.given(device, None);
        assert_eq!((reserved(&books).core_request_percent, reserved(&books).memory_bytes), (70, 70));
        resize.succeeded();
        drop(resize);
        assert_eq!(reserved(&books).core_request_percent, to);
    }
}

#[test]
fn a_change_that_fails_leaves_the_books_as_they_were() {
    let books = books();
    books.take_over(with(1, 30), Some("ill".into()));
    let removal = Change::Remove(with(1, 30));
    drop(books.begin(&["slice-1"].into(), |_| Ok::<_, u32>(removal.clone())).unwrap());
    drop(make(&books, &with(2, 70)).unwrap());
    assert_eq!(books.list_beginning_with(""), [(with(1, 30), Some("ill".into()))]);
    drop(make(&books, &with(3, 70)).unwrap());
    let removed = books.begin(&["slice-1"].into(), |_| Ok::<_, u32>(removal.clone())).unwrap();
    removed.succeeded();
    assert!(books.list_beginning_with("").is_empty() && books.state.lock().problems.is_empty());
}

#[test]
fn a_refusal_waits_for_changes_that_could_make_room() {
    for succeeds in [false, true] {
        let books = books();
        let first = make(&books, &with(1, 60)).unwrap();
        let is_refused = AtomicBool::new(false);
        thread::scope(|scope| {
            let second = scope.spawn(|| {
                let outcome = books.begin(&["slice-2"].into(), |slices| {
                    decide(slices, &with(2, 60)).inspect_err(|_| is_refused.store(true, Ordering::Relaxed))
                });
                outcome.map(|ongoing| ongoing.succeeded())
            });
            while !is_refused.load(Ordering::Relaxed) {
                thread::yield_now();
            }
            if succeeds {
                first.succeeded();
            }
            drop(first);
            assert_eq!(second.join().unwrap(), if succeeds { Err(60) } else { Ok(()) });
        });
        assert_eq!(books.list_beginning_with("").len(), 1);
    }
}

#[test]
fn a_refusal_is_final_if_no_change_under_way_could_make_room() {
    let removal = Change::Remove(with(2, 10));
    let shrinking = Change::Resize { before: with(2, 10), after: with(2, 1) };
    for change in [removal, shrinking] {
        let books = books();
        books.take_over(with(1, 60), None);
        books.take_over(with(2, 10), None);
        let ongoing = books.begin(&["slice-2"].into(), |_| Ok::<_, u32>(change.clone())).unwrap();
        let (sender, outcome) = mpsc::channel();
        thread::scope(|scope| {
            scope.spawn(|| sender.send(make(&books, &with(3, 50)).map(drop)));
            let outcome = outcome.recv_timeout(Duration::from_secs(30));
            drop(ongoing);
            assert_eq!(outcome, Ok(Err(70)), "{change:?}");
        });
    }
}

#[test]
fn changes_of_one_slice_wait_for_each_other() {
    let books = books();
    let first = make(&books, &with(1, 10)).unwrap();
    thread::scope(|scope| {
        let second = scope.spawn(|| {
            let decide = |slices: &Slices| match slices.get("slice-1") {
                Some(found) => Ok(Change::Remove(found.clone())),
                None => Err("there is none"),
            };
            books.begin(&["slice-1"].into(), decide).map(|ongoing| ongoing.succeeded())
        });
        first.succeeded();
        assert!(books.get("slice-1").is_some());
        drop(first);
        assert_eq!(second.join().unwrap(), Ok(()));
    });
    books.wait_for_changes();
    assert!(books.list_beginning_with("").is_empty());
}
