//! The model checker's atomics, for processes that can be killed.
//!
//! A SIGKILL stops a process between two of its accesses to shared memory, and it writes nothing afterwards. A model's
//! thread in [`killed_after`] imitates that: it ends just before one of its accesses.

use core::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use loom::sync::atomic::Ordering;

loom::thread_local! {
    /// Accesses that the calling thread may still make before it is killed; `None`: it is not killed.
    static ACCESSES_LEFT: Cell<Option<usize>> = Cell::new(None);
}

/// The unwind payload of a killed thread.
struct Killed;

/// How a thread ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum End {
    /// It ran to its end.
    Natural,
    /// It was killed at an access.
    Killed,
}

/// Runs `life`, and kills it just before its access number `accesses` to shared memory, counted from 0.
pub fn killed_after(accesses: usize, life: impl FnOnce()) -> End {
    ACCESSES_LEFT.with(|left| left.set(Some(accesses)));
    let outcome = catch_unwind(AssertUnwindSafe(life));
    ACCESSES_LEFT.with(|left| left.set(None));
    match outcome {
        Ok(()) => End::Natural,
        Err(reason) if reason.is::<Killed>() => End::Killed,
        // A failed assertion of the model.
        Err(reason) => resume_unwind(reason),
    }
}

fn access() {
    let killed = ACCESSES_LEFT.with(|left| {
        let killed = left.get() == Some(0);
        left.set(left.get().and_then(|accesses| accesses.checked_sub(1)));
        killed
    });
    if killed {
        // Not `panic!`, which would print a message.
        resume_unwind(Box::new(Killed));
    }
}

macro_rules! mortal {
    ($($(#[$doc:meta])* $name:ident: $integer:ty;)*) => {$(
        $(#[$doc])*
        #[derive(Debug)]
        pub struct $name(loom::sync::atomic::$name);

        #[allow(missing_docs, reason = "the names and meanings are those of the standard library")]
        impl $name {
            #[must_use]
            pub fn new(value: $integer) -> $name {
                $name(loom::sync::atomic::$name::new(value))
            }

            pub fn load(&self, order: Ordering) -> $integer {
                access();
                self.0.load(order)
            }

            pub fn store(&self, value: $integer, order: Ordering) {
                access();
                self.0.store(value, order);
            }

            pub fn swap(&self, value: $integer, order: Ordering) -> $integer {
                access();
                self.0.swap(value, order)
            }

            pub fn fetch_add(&self, value: $integer, order: Ordering) -> $integer {
                access();
                self.0.fetch_add(value, order)
            }

            pub fn fetch_sub(&self, value: $integer, order: Ordering) -> $integer {
                access();
                self.0.fetch_sub(value, order)
            }

            pub fn fetch_or(&self, value: $integer, order: Ordering) -> $integer {
                access();
                self.0.fetch_or(value, order)
            }

            pub fn fetch_max(&self, value: $integer, order: Ordering) -> $integer {
                access();
                self.0.fetch_max(value, order)
            }

            pub fn compare_exchange(
                &self,
                current: $integer,
                new: $integer,
                success: Ordering,
                failure: Ordering,
            ) -> Result<$integer, $integer> {
                access();
                self.0.compare_exchange(current, new, success, failure)
            }

            pub fn compare_exchange_weak(
                &self,
                current: $integer,
                new: $integer,
                success: Ordering,
                failure: Ordering,
            ) -> Result<$integer, $integer> {
                access();
                self.0.compare_exchange_weak(current, new, success, failure)
            }
        }
    )*};
}

mortal! {
    /// [`loom::sync::atomic::AtomicU32`] of a process that can be killed.
    AtomicU32: u32;
    /// [`loom::sync::atomic::AtomicU64`] of a process that can be killed.
    AtomicU64: u64;
}
